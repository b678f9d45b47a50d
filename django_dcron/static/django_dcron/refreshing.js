"use strict";

// A button pauses all refreshes of this tab until it is pressed again.
const PAUSED = "dcron-refresh-paused";
const isPaused = () => window.sessionStorage.getItem(PAUSED) === "1";

for (const button of document.querySelectorAll("[data-dcron-refresh-control]")) {
    const show = () => button.setAttribute("aria-pressed", String(isPaused()));
    button.addEventListener("click", () => {
        window.sessionStorage.setItem(PAUSED, isPaused() ? "0" : "1");
        show();
    });
    show();
    button.hidden = !window.htmx || document.querySelector("[data-dcron-part][hx-get]") === null;
}

// htmx refreshes parts of a page, except while the page is hidden or the user is working in the part.
document.addEventListener("htmx:beforeRequest", (event) => {
    const part = event.detail.elt;
    if (!part.hasAttribute("data-dcron-part")) {
        return;
    }
    const selection = document.getSelection();
    const selecting = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
    const focused = document.activeElement;
    const working = part.contains(focused) && !focused.hasAttribute("data-dcron-keeps-place");
    if (isPaused() || document.hidden || selecting || working) {
        event.preventDefault();
    }
});

// If the user has been logged out, load the login page as a full page, not inside the part.
document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr, pathInfo } = event.detail;
    const answered = new URL(xhr.responseURL, document.baseURI).pathname;
    const requested = new URL(pathInfo.requestPath, document.baseURI).pathname;
    if (answered !== requested) {
        event.preventDefault();
        window.location.reload();
    }
});
