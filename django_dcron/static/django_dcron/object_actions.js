"use strict";

// Closes the form of an action on Escape and on a click elsewhere. Without this script, the form's
// button closes it.
(() => {
    const openForms = () => document.querySelectorAll(".dcron-action details[open]");

    document.addEventListener("keydown", (event) => {
        if (event.key !== "Escape") {
            return;
        }
        for (const form of openForms()) {
            const hadFocus = form.contains(document.activeElement);
            form.open = false;
            if (hadFocus) {
                form.querySelector("summary").focus();
            }
        }
    });

    document.addEventListener("click", (event) => {
        for (const form of openForms()) {
            if (!form.contains(event.target)) {
                form.open = false;
            }
        }
    });
})();
