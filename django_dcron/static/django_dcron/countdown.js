"use strict";

// Counts down to the times in the page. Without this script, the page shows the time left when it
// was loaded. The button that pauses refreshes pauses the countdown, too.
(() => {
    const texts = document.querySelector("[data-dcron-countdown-texts]").dataset;
    // How far the server's clock is ahead of this machine's clock, in milliseconds.
    const clockOffset = Date.parse(texts.now) - Date.now();
    const isPaused = () => window.sessionStorage.getItem("dcron-refresh-paused") === "1";

    // Whole minutes from an hour on, as the server writes them; minutes and seconds below.
    function span(seconds) {
        const [minutes, rest] = [Math.floor(seconds / 60), seconds % 60];
        if (seconds < 3600) {
            return minutes ? `${minutes}m ${String(rest).padStart(2, "0")}s` : `${rest}s`;
        }
        const parts = [[Math.floor(minutes / 1440), "d"], [Math.floor(minutes / 60) % 24, "h"], [minutes % 60, "m"]];
        return parts.filter(([number]) => number).map(([number, unit]) => number + unit).join(" ");
    }

    function text(left) {
        if (left > 0) {
            return texts.ahead.replace("{span}", span(left));
        }
        return left > -60 ? texts.due : texts.past.replace("{span}", span(-left - (-left % 60)).replace(" 00s", ""));
    }

    function show() {
        if (document.hidden || isPaused()) {
            return;
        }
        const now = Date.now() + clockOffset;
        for (const element of document.querySelectorAll("[data-dcron-countdown]")) {
            const current = text(Math.ceil((Date.parse(element.dateTime) - now) / 1000));
            if (element.textContent !== current) {
                // A shorter text keeps the width, so that no column moves.
                element.style.minWidth ||= `${element.offsetWidth}px`;
                element.textContent = current;
            }
        }
    }

    window.setInterval(show, 1000);
    document.addEventListener("visibilitychange", show);
    document.addEventListener("htmx:afterSwap", show);
    show();
})();
