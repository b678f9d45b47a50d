"use strict";

// Shows the sections of a page as tabs. Without this script, the sections are one below the other
// and the tabs are links to them. The class hides the closed sections before they are painted.
document.documentElement.classList.add("dcron-tabbed");

document.addEventListener("DOMContentLoaded", () => {
    const list = document.querySelector("[data-dcron-tabs]");
    if (!list) {
        return;
    }
    const tabs = [...list.querySelectorAll("a")];
    const panelOf = (tab) => document.getElementById(tab.hash.slice(1));
    const keys = document.dir === "rtl" ? ["ArrowRight", "ArrowLeft"] : ["ArrowLeft", "ArrowRight"];

    function open(tab) {
        for (const each of tabs) {
            const isOpen = each === tab;
            each.setAttribute("aria-selected", String(isOpen));
            each.tabIndex = isOpen ? 0 : -1;
            panelOf(each).toggleAttribute("data-dcron-open", isOpen);
        }
        list.dispatchEvent(new CustomEvent("dcron:tab", { bubbles: true }));
    }

    function choose(tab) {
        open(tab);
        window.history.replaceState(window.history.state, "", tab.hash);
        tab.focus();
    }

    // Opens the section that the address names, or the one that contains the named element.
    function openAddressed() {
        const target = document.getElementById(decodeURIComponent(window.location.hash.slice(1)));
        const panel = target?.closest("[data-dcron-panel]");
        const tab = panel && tabs.find((each) => panelOf(each) === panel);
        if (tab) {
            open(tab);
            if (target !== panel) {
                target.scrollIntoView();
            }
        }
    }

    list.setAttribute("role", "tablist");
    for (const tab of tabs) {
        tab.setAttribute("role", "tab");
        tab.setAttribute("aria-controls", panelOf(tab).id);
        panelOf(tab).setAttribute("role", "tabpanel");
        panelOf(tab).setAttribute("aria-labelledby", tab.id);
        tab.addEventListener("click", (event) => {
            event.preventDefault();
            choose(tab);
        });
    }
    list.addEventListener("keydown", (event) => {
        const current = tabs.indexOf(event.target.closest("a"));
        const next = {
            [keys[0]]: current - 1, [keys[1]]: current + 1, Home: 0, End: -1, " ": current,
        }[event.key];
        if (next !== undefined && current !== -1) {
            event.preventDefault();
            choose(tabs.at(next % tabs.length));
        }
    });
    window.addEventListener("hashchange", openAddressed);

    open(tabs.find((tab) => tab.hasAttribute("data-dcron-selected")) || tabs[0]);
    if (!list.hasAttribute("data-dcron-errors")) {
        openAddressed();
    }
});
