"use strict";

// The schedule picker of the job form. A choice writes schedule text. Schedule text that the picker
// can express sets its choices.
(() => {
    const picker = document.querySelector("[data-dcron-picker]");
    if (!picker) {
        return;
    }
    const schedule = document.getElementById(picker.dataset.dcronPicker);
    const input = (name) => picker.querySelector(`[data-dcron-pick="${name}"]`);
    const weekdays = [...picker.querySelectorAll("[data-dcron-pick='weekday']")];
    const MACROS = new Map([
        ["@hourly", "0 * * * *"], ["@daily", "0 0 * * *"], ["@midnight", "0 0 * * *"], ["@weekly", "0 0 * * SUN"], ["@monthly", "0 0 1 * *"],
    ]);
    const WORKING_DAYS = "MON,TUE,WED,THU,FRI";
    const step = (number) => (number === "1" ? "*" : `*/${number}`);

    // Return the schedule text of the choices, or null while they are incomplete.
    function chosenSchedule() {
        const unit = input("unit").value;
        if (unit === "minutes") {
            return `${step(input("minutes").value)} * * * *`;
        }
        if (unit === "hours") {
            const minute = input("minute");
            return minute.value && minute.checkValidity() ? `${Number(minute.value)} ${step(input("hours").value)} * * *` : null;
        }
        if (unit === "once") {
            return input("at").value ? `@at ${input("at").value}` : null;
        }
        if (!input("time").value) {
            return null;
        }
        const [hour, minute] = input("time").value.split(":").map(Number);
        if (unit === "days") {
            return `${minute} ${hour} * * *`;
        }
        if (unit === "monthdays") {
            return `${minute} ${hour} ${input("monthday").value} * *`;
        }
        const chosen = weekdays.filter((day) => day.checked).map((day) => day.value);
        const text = chosen.length === 7 ? "*" : chosen.join(",").replace(WORKING_DAYS, "MON-FRI");
        return chosen.length ? `${minute} ${hour} * * ${text}` : null;
    }

    // Return the choices for schedule text, or null if the picker can't express it.
    function choicesFor(text) {
        const trimmed = text.trim();
        const once = trimmed.match(/^@at\s+(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}(:\d{2})?)$/i);
        if (once) {
            return { unit: "once", at: `${once[1]}T${once[2]}` };
        }
        const fields = (MACROS.get(trimmed.toLowerCase()) || trimmed.toUpperCase()).split(/\s+/);
        if (fields.length !== 5 || fields[3] !== "*") {
            return null;
        }
        const [minute, hour, monthday, , weekday] = fields;
        const interval = (field) => (field === "*" ? "1" : field.match(/^\*\/(\d+)$/)?.[1]);
        const daily = monthday === "*" && weekday === "*";
        if (interval(minute)) {
            return daily && hour === "*" ? { unit: "minutes", minutes: interval(minute) } : null;
        }
        if (!/^\d+$/.test(minute) || minute > 59) {
            return null;
        }
        if (interval(hour)) {
            return daily ? { unit: "hours", hours: interval(hour), minute } : null;
        }
        if (!/^\d+$/.test(hour) || hour > 23) {
            return null;
        }
        const time = `${hour.padStart(2, "0")}:${minute.padStart(2, "0")}`;
        if (daily) {
            return { unit: "days", time };
        }
        if (weekday === "*") {
            return { unit: "monthdays", monthday, time };
        }
        const days = weekday.replace("MON-FRI", WORKING_DAYS).split(",");
        const known = days.every((day) => weekdays.some((box) => box.value === day));
        return known && monthday === "*" ? { unit: "weekdays", days, time } : null;
    }

    // Whether each choice is an option of its input.
    const isOffered = ({ days, ...choices }) => Object.entries(choices).every(
        ([name, value]) => !input(name).options || [...input(name).options].some((option) => option.value === value),
    );

    function showInputs() {
        for (const part of picker.querySelectorAll("[data-dcron-for]")) {
            part.hidden = !part.dataset.dcronFor.split(" ").includes(input("unit").value);
        }
    }

    function showSchedule() {
        const found = choicesFor(schedule.value);
        const choices = found && isOffered(found) ? found : null;
        picker.querySelector("[data-dcron-replaces]").hidden = Boolean(choices) || !schedule.value.trim();
        picker.querySelector("[data-dcron-incomplete]").hidden = true;
        if (!choices) {
            return;
        }
        const { days, ...values } = choices;
        for (const [name, value] of Object.entries(values)) {
            input(name).value = value;
        }
        for (const box of days ? weekdays : []) {
            box.checked = days.includes(box.value);
        }
        showInputs();
    }

    function writeSchedule() {
        const text = chosenSchedule();
        picker.querySelector("[data-dcron-incomplete]").hidden = text !== null;
        if (text === null || text === schedule.value) {
            return;
        }
        schedule.value = text;
        picker.querySelector("[data-dcron-replaces]").hidden = true;
        schedule.dispatchEvent(new Event("input", { bubbles: true }));
    }

    picker.hidden = false;
    schedule.addEventListener("input", (event) => event.isTrusted && showSchedule());
    picker.addEventListener("toggle", () => {
        if (picker.open && !schedule.value.trim()) {
            writeSchedule();
        }
    });
    picker.addEventListener("input", (event) => {
        event.stopPropagation();  // the schedule's own event updates the preview
        showInputs();
        writeSchedule();
    });
    picker.addEventListener("change", (event) => event.stopPropagation());
    showInputs();
    showSchedule();
})();
