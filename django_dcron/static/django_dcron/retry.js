"use strict";

// Submits the form of a running retry for the next batches. Without this script, its button does.
for (const button of document.querySelectorAll("[data-dcron-continue]")) {
    button.form.requestSubmit(button);
}
