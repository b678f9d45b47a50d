"use strict";

// Names the values of a list's rows by their columns. On a phone, each row is a card without the
// header (lists.css, admin.css). Without this script, a phone shows a table that scrolls sideways.
(() => {
    function nameCells() {
        const table = document.getElementById("result_list");
        if (!table?.tHead) {
            return;
        }
        const titles = Array.from(table.tHead.rows[0].cells, (cell) => cell.querySelector(".text")?.textContent.trim());
        for (const row of table.querySelectorAll("tbody tr")) {
            for (const [index, cell] of Array.from(row.cells).entries()) {
                if (titles[index] && cell.tagName === "TD" && !cell.classList.contains("action-checkbox")) {
                    cell.dataset.dcronColumn = titles[index];
                    cell.toggleAttribute("data-dcron-empty", cell.textContent.trim() === "-");
                }
            }
        }
        table.classList.add("dcron-cards");
    }

    document.addEventListener("htmx:afterSwap", nameCells);
    nameCells();
})();
