"use strict";

// Scrolls a log to its end, and restores the scroll position after a refresh. A log that was at its
// end shows new lines. htmx keeps the keyboard focus, because the id of the box doesn't change.
(() => {
    const NEAR = 8; // pixels from the end that still count as the end
    let places = new Map();

    const boxes = (root) => root.querySelectorAll("[data-dcron-keeps-place]");
    const toEnd = (box) => { box.scrollTop = box.scrollHeight; };

    document.querySelectorAll(".dcron-log").forEach(toEnd);

    document.addEventListener("htmx:beforeSwap", (event) => {
        places = new Map();
        for (const box of boxes(event.detail.target)) {
            const atEnd = box.scrollHeight - box.clientHeight - box.scrollTop <= NEAR;
            places.set(box.id, { top: box.scrollTop, atEnd });
        }
    });

    document.addEventListener("htmx:afterSwap", (event) => {
        const part = document.getElementById(event.detail.target.id); // the new part
        for (const box of part ? boxes(part) : []) {
            const place = places.get(box.id);
            if (place && !place.atEnd) {
                box.scrollTop = place.top;
            } else if (box.classList.contains("dcron-log")) {
                toEnd(box);
            }
        }
    });
})();
