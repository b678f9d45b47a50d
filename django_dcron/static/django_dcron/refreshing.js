"use strict";

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
    if (document.hidden || selecting || working) {
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
