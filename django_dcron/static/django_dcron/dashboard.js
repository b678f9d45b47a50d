"use strict";

// On a narrow screen, the timeline scrolls. At first, the present is in the middle of the visible part.
// A refresh keeps the scroll position that the user has chosen.
(() => {
    const placed = new WeakMap(); // the scroll position that this script has set for a chart
    let moved = new Map(); // positions that the user has set, by the id of the replaced part

    const chartOf = (part) => part && part.querySelector(".dcron-chart:has(.dcron-now)");

    function toNow(chart) {
        const now = chart.querySelector(".dcron-now").getBoundingClientRect().left;
        const names = chart.querySelector("ul").getBoundingClientRect().width; // the names stay on the left
        const middle = chart.getBoundingClientRect().left + (names + chart.clientWidth) / 2;
        chart.scrollLeft += now - middle;
        placed.set(chart, chart.scrollLeft);
    }

    document.querySelectorAll(".dcron-chart:has(.dcron-now)").forEach(toNow);

    document.addEventListener("htmx:oobBeforeSwap", (event) => {
        const chart = chartOf(event.detail.target);
        moved = new Map();
        if (chart && chart.scrollLeft !== placed.get(chart)) {
            moved.set(event.detail.target.id, chart.scrollLeft);
        }
    });

    document.addEventListener("htmx:oobAfterSwap", (event) => {
        const chart = chartOf(document.getElementById(event.detail.target.id)); // the new chart
        if (!chart) {
            return;
        }
        if (moved.has(event.detail.target.id)) {
            chart.scrollLeft = moved.get(event.detail.target.id);
        } else {
            toNow(chart);
        }
    });
})();
