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
    const refreshing = document.querySelector("[data-dcron-part][hx-get], [data-dcron-live]");
    const countdown = document.querySelector("[data-dcron-countdown]");
    button.hidden = !(window.htmx && refreshing) && countdown === null;
}

function isWorkingIn(part) {
    const selection = document.getSelection();
    const selecting = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
    const focused = document.activeElement;
    return selecting || (part.contains(focused) && !focused.hasAttribute("data-dcron-keeps-place"));
}

const isRefreshed = (element) => element.hasAttribute("data-dcron-part") || element.hasAttribute("data-dcron-live");

// htmx refreshes parts of a page, except while the page is hidden or the user is working in the part.
document.addEventListener("htmx:beforeRequest", (event) => {
    const element = event.detail.elt;
    if (!isRefreshed(element)) {
        return;
    }
    const isPart = element.hasAttribute("data-dcron-part");
    if (isPaused() || document.hidden || (isPart && isWorkingIn(element))) {
        event.preventDefault();
    }
});

// While refreshes fail, the page says so. Otherwise, it would look calm during an outage. A single
// failure doesn't count, because the server may just have been restarted.
const failedNote = document.querySelector("[data-dcron-refresh-failed]");
if (failedNote) {
    const lastSuccess = new Map(); // by the id of the refreshed element
    const failures = new Map();
    const opened = new Date();
    const relative = new Intl.RelativeTimeFormat(document.documentElement.lang, { numeric: "always" });
    const ago = (time) => {
        const seconds = Math.round((new Date() - time) / 1000);
        return seconds < 90 ? relative.format(-seconds, "second") : relative.format(-Math.round(seconds / 60), "minute");
    };
    document.addEventListener("htmx:afterRequest", (event) => {
        // The element itself may have been replaced, and then its parent gets the event.
        const element = event.detail.requestConfig.elt;
        if (!isRefreshed(element)) {
            return;
        }
        const { status } = event.detail.xhr; // 0: no response
        if (status >= 200 && status < 400) {
            lastSuccess.set(element.id, new Date());
            failures.delete(element.id);
        } else {
            failures.set(element.id, (failures.get(element.id) || 0) + 1);
        }
        const failing = [...failures].filter(([, count]) => count > 1).map(([id]) => id);
        failedNote.hidden = failing.length === 0;
        document.body.classList.toggle("dcron-outdated", failing.length > 0);
        if (failing.length) {
            const times = failing.map((id) => lastSuccess.get(id) || opened);
            const oldest = times.reduce((first, other) => (other < first ? other : first));
            failedNote.querySelector("time").textContent = ago(oldest);
        }
    });
}

// One request refreshes all parts of the dashboard. It contains the digests of the shown parts, and
// the response contains the parts that have changed. A part that the user is working in keeps its
// content, so the next response contains it again.
const live = window.htmx && document.querySelector("[data-dcron-live]");
if (live) {
    const SHORTEST = 5000; // milliseconds; the wait grows while nothing changes
    const LONGEST = 15000;
    let wait = SHORTEST;
    let timer = 0;
    const poll = () => {
        window.clearTimeout(timer);
        timer = window.setTimeout(poll, wait);
        window.htmx.trigger(live, "dcron-poll");
    };
    live.addEventListener("htmx:configRequest", (event) => {
        for (const part of document.querySelectorAll("[data-dcron-part][data-dcron-seen]")) {
            event.detail.parameters[part.id] = part.dataset.dcronSeen;
        }
    });
    live.addEventListener("htmx:afterRequest", (event) => {
        wait = event.detail.xhr.status === 204 ? Math.min(1.5 * wait, LONGEST) : SHORTEST;
        window.clearTimeout(timer);
        timer = window.setTimeout(poll, wait);
    });
    document.addEventListener("htmx:oobBeforeSwap", (event) => {
        if (isWorkingIn(event.detail.target)) {
            event.detail.shouldSwap = false;
        }
    });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) { poll(); } });
    timer = window.setTimeout(poll, wait);
}

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
