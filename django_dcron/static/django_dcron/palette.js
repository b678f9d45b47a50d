"use strict";

// The command palette (Ctrl-K) and the keyboard shortcuts (?). The server finds the results; the
// input keeps the focus while the arrow keys select one of them.
(() => {
    const palette = document.getElementById("dcron-palette");
    const help = document.getElementById("dcron-shortcuts");
    const input = palette.querySelector("input");
    const results = palette.querySelector("[data-dcron-results]");
    const status = palette.querySelector("[role=status]");
    const singleKeys = help.querySelector("[data-dcron-single-keys]");
    const OFF = "dcron-single-keys-off";
    const DELAY = 120; // milliseconds between the last key and the request
    const SEQUENCE = 1500; // milliseconds between two keys of a shortcut
    let request = null;
    let timer = 0;
    let shown = null; // the text whose results are shown
    let typed = { keys: "", at: 0 };

    const options = () => [...results.querySelectorAll("[role=option]")];

    function select(option) {
        for (const each of options()) {
            each.setAttribute("aria-selected", String(each === option));
        }
        input.setAttribute("aria-expanded", String(Boolean(option)));
        if (option) {
            input.setAttribute("aria-controls", "dcron-palette-list");
            input.setAttribute("aria-activedescendant", option.id);
            option.scrollIntoView({ block: "nearest" });
        } else {
            input.removeAttribute("aria-controls");
            input.removeAttribute("aria-activedescendant");
        }
    }

    function move(step) {
        const all = options();
        const current = all.findIndex((option) => option.getAttribute("aria-selected") === "true");
        if (all.length) {
            select(all[(current + step + all.length) % all.length]);
        }
    }

    async function find() {
        request?.abort();
        request = new AbortController();
        const { signal } = request;
        const text = input.value;
        const url = `${palette.dataset.url}?q=${encodeURIComponent(text)}`;
        try {
            const response = await fetch(url, { signal, redirect: "error" });
            const html = response.ok ? await response.text() : "";
            if (signal.aborted) {
                return;
            }
            results.innerHTML = html;
            shown = text;
        } catch {
            return; // a later request replaced this one, or the network failed
        }
        const all = options();
        all.forEach((option, number) => { option.id = `dcron-option-${number}`; });
        select(all[0]);
        const { one, many } = status.dataset;
        const nothing = results.textContent.trim(); // says why there are no options
        status.textContent = all.length > 1 ? many.replace("{number}", all.length) : all.length ? one : nothing;
    }

    // Never chooses from the results of an earlier text.
    async function choose() {
        if (shown !== input.value) {
            window.clearTimeout(timer);
            await find();
        }
        if (shown === input.value) {
            results.querySelector("[aria-selected=true]")?.click();
        }
    }

    function open() {
        if (!palette.open) {
            help.close();
            palette.showModal();
            input.value = "";
            results.replaceChildren();
            select(null);
            shown = null;
            find();
        }
        input.focus();
    }

    input.addEventListener("input", () => {
        window.clearTimeout(timer);
        timer = window.setTimeout(find, DELAY);
    });

    input.addEventListener("keydown", (event) => {
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        if (step) {
            event.preventDefault();
            move(step);
        } else if (event.key === "Enter" && !event.isComposing) {
            event.preventDefault();
            choose();
        }
    });

    for (const dialog of [palette, help]) {
        dialog.addEventListener("click", (event) => {
            if (event.target === dialog) { // the backdrop
                dialog.close();
            }
        });
    }

    singleKeys.checked = window.localStorage.getItem(OFF) !== "1";
    singleKeys.addEventListener("change", () => {
        window.localStorage.setItem(OFF, singleKeys.checked ? "0" : "1");
    });

    const isTyping = (element) => element.closest("input, textarea, select, [contenteditable]");

    function pressed(key) {
        if (key === "?") {
            help.showModal();
            return true;
        }
        const search = document.querySelector("#searchbar");
        if (key === "/" && search) {
            search.focus();
            return true;
        }
        const now = Date.now();
        typed = { keys: (now - typed.at < SEQUENCE ? typed.keys.slice(-1) : "") + key, at: now };
        const page = help.querySelector(`[data-dcron-keys="${CSS.escape(typed.keys)}"]`);
        page?.click();
        return Boolean(page);
    }

    document.addEventListener("keydown", (event) => {
        if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
            event.preventDefault();
            open();
            return;
        }
        const isSingle = !(event.ctrlKey || event.metaKey || event.altKey || event.isComposing) && event.key.length === 1;
        if (isSingle && singleKeys.checked && !document.querySelector("dialog[open]") && !isTyping(event.target) && pressed(event.key)) {
            event.preventDefault();
        }
    });

    // Every page has a button. Most pages have one beside their other controls.
    const buttons = [...document.querySelectorAll("[data-dcron-open-palette]")];
    for (const button of buttons) {
        button.hidden = button.dataset.dcronOpenPalette === "fallback" && buttons.length > 1;
        button.addEventListener("click", open);
    }
})();
