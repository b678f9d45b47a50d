"use strict";

// Submits the form of a running action for the next rows. Without this script, the user presses the
// button.
for (const button of document.querySelectorAll("[data-dcron-continue]")) {
    button.form.requestSubmit(button);
    button.disabled = true;
}
