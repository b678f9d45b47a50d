"use strict";

// A log is read from its end, and keeps its place when its part of the page is refreshed: at its end it follows what is new,
// elsewhere it stays where it was. (The keyboard's focus htmx keeps, as the box keeps its id.)
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
        const part = document.getElementById(event.detail.target.id); // the new one in its place
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
