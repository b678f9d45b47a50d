"""Read the dates in an English sentence."""

from __future__ import annotations

import re
from datetime import date, timedelta

DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONDAY_FIRST = (*DAYS[1:], "SUN")
DAY = r"(?:sun|mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?)(?:days?)?"  # also their plurals
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
ISO_DATE = r"(?:19[789]|20\d)\d-\d{2}-\d{2}"
NEAR_DAY = rf"(?:(?P<near>today|tomorrow)|(?:next )?(?P<weekday>{DAY}))"
_DAY_IN_MONTH = r"(\d{1,2})(?:st|nd|rd|th)?"
_DAY_FIRST = rf"\b(?:the )?{_DAY_IN_MONTH} (?:of )?(?P<month>{MONTH})(?: and)? (20\d\d)\b"
_MONTH_FIRST = rf"\b(?P<month>{MONTH}) (?:the )?{_DAY_IN_MONTH}(?: and)? (20\d\d)\b"


def with_iso_dates(words: str) -> str:
    """Return the words with 2026-12-04 for "Friday 4 December 2026"."""

    def iso_date(found: re.Match[str]) -> str:
        name, (day, year) = month_name(found["month"]), re.findall(r"\d+", found[0])
        return f"{year}-{_MONTHS.index(name) + 1:02}-{int(day):02}"

    words = re.sub(_MONTH_FIRST, iso_date, re.sub(_DAY_FIRST, iso_date, words))
    found = re.search(rf"\b({DAY})(?: and)? (?=({ISO_DATE}))", words)
    day = parse_iso_date(found[2]) if found else None
    if found and day and MONDAY_FIRST[day.weekday()] == day_name(found[1]):
        return f"{words[: found.start()]}{words[found.end() :]}"
    return words


def near_date(near: str | None, weekday: str | None, today: date | None) -> date | None:
    """Return the date of "today", "tomorrow" or the next such weekday after today, if any."""
    if today is None or not (near or weekday):
        return None
    if weekday is None:
        return today + timedelta(days=near == "tomorrow")
    days = (MONDAY_FIRST.index(day_name(weekday)) - today.weekday()) % 7
    return today + timedelta(days=days or 7)


def parse_iso_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def month_name(name: str) -> str:
    return name[:3].upper()


def day_name(name: str) -> str:
    return name[:3].upper()
