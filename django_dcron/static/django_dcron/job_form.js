"use strict";

// The job form: shows the preview's errors next to the fields, as after a rejected save.
(() => {
    const preview = document.getElementById("dcron-preview");
    if (!preview) {
        return;
    }
    const form = preview.closest("form");
    const result = document.getElementById("dcron-preview-result");

    const inputs = (field) => {
        const named = [...form.elements].filter((input) => input.name === field);
        return named.length ? named : [...form.elements].filter((input) => new RegExp(`^${field}_\\d$`).test(input.name));
    };
    const listId = (field) => `id_${field}_error`;
    const describedBy = (input) => (input.getAttribute("aria-describedby") || "").split(" ").filter(Boolean);

    function describe(input, ids) {
        if (ids.length) {
            input.setAttribute("aria-describedby", [...new Set(ids)].join(" "));
        } else {
            input.removeAttribute("aria-describedby");
        }
    }

    function clear() {
        for (const list of form.querySelectorAll("ul.errorlist[id$='_error']")) {
            list.remove();
        }
        for (const box of form.querySelectorAll(".errors, .dcron-tabs .dcron-wrong")) {
            box.classList.remove("errors", "dcron-wrong");
        }
        for (const input of form.querySelectorAll("[aria-invalid]")) {
            input.removeAttribute("aria-invalid");
            describe(input, describedBy(input).filter((id) => !id.endsWith("_error")));
        }
    }

    function mark(field, message) {
        const [first, ...others] = inputs(field);
        if (!first) {
            return;
        }
        let list = document.getElementById(listId(field));
        if (!list) {
            list = document.createElement("ul");
            list.className = "errorlist";
            list.id = listId(field);
            const box = first.closest(".flex-container:not(.form-multiline)");
            const help = box?.querySelector(":scope > .help");  // Django 6.1 and later show it above the field
            if (help) {
                help.after(list);
            } else {
                (box ?? first).before(list);  // Unfold and Jazzmin have no such box
            }
        }
        const item = document.createElement("li");
        item.textContent = message;
        list.append(item);
        first.closest(".fieldBox, .form-row, .form-group")?.classList.add("errors");
        const panel = first.closest("[data-dcron-panel]");
        document.getElementById(`${panel?.id}-tab`)?.classList.add("dcron-wrong");
        for (const input of [first, ...others]) {
            input.setAttribute("aria-invalid", "true");
            describe(input, [...describedBy(input), list.id]);
        }
    }

    // An error shown next to its field is hidden in the preview, except from screen readers. The
    // preview shows it while the field is in a closed tab.
    function hideRepeated() {
        for (const item of result.querySelectorAll("[data-dcron-field]")) {
            const list = document.getElementById(listId(item.dataset.dcronField));
            const isShown = list && !list.closest("[data-dcron-panel]:not([data-dcron-open]), details:not([open])");
            item.classList.toggle("dcron-hidden", Boolean(isShown));
        }
    }

    hideRepeated();
    document.addEventListener("dcron:tab", hideRepeated);

    preview.addEventListener("htmx:afterRequest", (event) => {
        if (!event.detail.successful || event.detail.elt !== preview) {
            return;
        }
        clear();
        for (const item of result.querySelectorAll("[data-dcron-field]")) {
            mark(item.dataset.dcronField, item.querySelector("span").textContent);
        }
        hideRepeated();
    });

    // Unchanged text is not announced again.
    result.addEventListener("htmx:oobBeforeSwap", (event) => {
        event.detail.shouldSwap = event.detail.fragment.textContent !== result.textContent;
    });

    // A user who was logged out meanwhile sees a message and keeps the typed values.
    preview.addEventListener("htmx:beforeSwap", (event) => {
        const { xhr, pathInfo } = event.detail;
        const answered = new URL(xhr.responseURL, document.baseURI).pathname;
        const loggedOut = answered !== new URL(pathInfo.requestPath, document.baseURI).pathname;
        preview.querySelector("[data-dcron-logged-out]").hidden = !loggedOut;
        if (loggedOut) {
            event.preventDefault();
            event.stopPropagation();
        }
    });

    // Django's calendar and clock fill in fields without sending an event.
    document.addEventListener("click", (event) => {
        if (event.target.closest(".calendarbox, .clockbox, .datetimeshortcuts")) {
            window.setTimeout(() => form.dispatchEvent(new Event("change")));
        }
    }, true);

    // The lookup of rows only triggers jQuery's handlers.
    window.django.jQuery(form).on("change", (event) => {
        if (!event.originalEvent) {
            form.dispatchEvent(new Event("change"));
        }
    });
})();
