"use strict";

// The calendar form: after a refused save, the errors next to the dates follow what is typed.
(() => {
    const months = document.getElementById("dcron-months");
    const form = months?.closest("form");
    const row = form?.querySelector(".field-dates");
    const input = row?.querySelector("textarea");
    if (!input) {
        return;
    }

    function clear(list) {
        list.remove();
        for (const box of [row, ...row.querySelectorAll(".errors")]) {
            box.classList.remove("errors");
        }
        const ids = (input.getAttribute("aria-describedby") || "").split(" ");
        input.setAttribute("aria-describedby", ids.filter((id) => id !== list.id).join(" "));
        input.removeAttribute("aria-invalid");
        if (!form.querySelector("ul.errorlist")) {
            form.querySelector(".errornote")?.remove();
        }
    }

    months.addEventListener("htmx:afterSwap", () => {
        const list = row.querySelector("ul.errorlist");
        const errors = months.querySelector("ul.errorlist");
        if (list && errors) {
            list.replaceChildren(...errors.cloneNode(true).children);
        } else if (list) {
            clear(list);
        }
    });
})();
