"""Turn an English sentence into schedule text: "every weekday at 9:30" is ``30 9 * * MON-FRI``.

Invariants:

- Each word must be understood. A sentence with any other word has no schedule text, because a guess
  would run a job at a wrong time.
- A sentence of days without a time means midnight, as in ``@daily``.
- Times of one sentence that no single line can express become several lines.
- Every second week or day is counted from the date that the sentence names ("from 2026-01-02"). By
  default, that is the first matching day, beginning with today.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta

from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.sentence_dates import (
    DAY,
    DAYS,
    ISO_DATE,
    MONDAY_FIRST,
    MONTH,
    NEAR_DAY,
    day_name,
    month_name,
    near_date,
    parse_iso_date,
    with_iso_dates,
)
from django_dcron.schedules.sentence_times import (
    PARTS_OF_DAY,
    Time,
    clock_fields,
    hours_field,
    take_hours,
    take_times,
    with_at,
    without_match,
)
from django_dcron.utils.messages import gettext_noop as _

_NOT_ONCE = _(
    "Schedule %(value)s is a single time. To run the job once, write @at with a date and a time, "
    "such as %(schedule)s."
)
MAX_LENGTH = 200
_ORDINAL = r"(?:\d{1,2}(?:st|nd|rd|th)|last)"
_ORDINALS = {"first": "1st", "second": "2nd", "third": "3rd", "fourth": "4th", "fifth": "5th"}
_UP_TO_TWELVE = (
    *("one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
_NUMBERS = {word: str(number) for number, word in enumerate(_UP_TO_TWELVE, 1)}
_NUMBERS |= {"fifteen": "15", "twenty": "20", "thirty": "30"}
_UNITS_SPELLED_OUT = {
    **dict.fromkeys(("min", "mins"), "minutes"),
    **dict.fromkeys(("sec", "secs"), "seconds"),
    **dict.fromkeys(("hr", "hrs"), "hours"),
}
_EVERY = r"(?:every |each |on )?"
_OF_MONTH = r"(?: of (?:the|every|each|a) month)"
_ISO_TIME = rf"({ISO_DATE})[T ](\d{{2}}:\d{{2}}(?::\d{{2}})?(?:Z|[+-]\d{{2}}:\d{{2}})?)"
_START = rf"(?:(?:counted |starting )?from|starting|since)(?: on)? ({ISO_DATE})"
_REPEATED = r"every (?P<number>\d{1,3}|other) (?P<unit>weeks?|days?)(?: on (?P<days>.+))?"
_EVERY_OTHER_DAY_OF_WEEK = rf"every (?:2nd|other) ({DAY})|(?:biweekly|fortnightly) on ({DAY})"
_INTERVAL = r"every (?:(\d{1,4}) )?(second|minute|hour)s?(?: (.+))?"
_ABBREVIATED = "(?:every|each) (?=[0-9])(" + "".join(f"([1-9][0-9]?{u})?" for u in "wdhms") + ")"
"""An interval such as "every 1h30m"."""
_IN_MONTHS = rf"\bin ({MONTH}(?: and (?:in )?{MONTH})*)(?= |$)"
_DAY_RANGE = rf"({DAY})(?: to | through | until | ?- ?)({DAY})"
_SINGLE_TIME = re.compile(
    r"\b(?:next|today|tonight|tomorrow|once(?! (?:an?|per|each|every)\b))\b"
    r"|^in (?:an?|\d{1,4}) (?:second|minute|hour|day|week|month)s?\b"
    rf"|\b{ISO_DATE}(?!\d)|\b\d{{1,2}}[./]\d{{1,2}}[./]\d{{4}}\b"
)
_REPEATING = re.compile(
    r"\b(?:every|each|hourly|daily|nightly|weekly|biweekly|fortnightly|monthly|quarterly|yearly"
    r"|annually|weekdays?|weekends?|from|since|starting|until|not|except|before|after|between"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)days)\b"
)
_ANY_DATE, _ANY_TIME = "YYYY-MM-DD", "HH:MM"
_KNOWN_WORDS = PARTS_OF_DAY | {"working", "business"}
_QUARTERS = "JAN,APR,JUL,OCT"
_LAST_OF_QUARTERS = "MAR,JUN,SEP,DEC"
_UNITS = {"second": "s", "minute": "m", "hour": "h"}
_FULL = {"second": 60, "minute": 60, "hour": 24}
"""The cycle of each unit in cron text; only divisors of it are evenly spaced."""

DayFields = tuple[str, str, str]
"""Day of month, month and day of week."""


def schedule_of_sentence(text: str, today: date | None = None) -> str | None:
    """Return schedule text for the sentence, or None if any of its words isn't understood.

    "Every 2 weeks" needs a date to count from: one in the sentence, or ``today``.
    """
    if len(text) > MAX_LENGTH:
        return None
    words = _normalize(text)
    if (interval := _interval(words)) is not None:
        return interval
    words, times = take_times(words)
    if times is not None and (recurrence := _recurrence(words, times or [(0, 0)], today)):
        return recurrence
    words, months = _take_months(words)
    if times is None or months is None or not (words or times):
        return None
    fields = _days(words)
    if fields is None:
        return None
    day, month, weekday = fields
    if months and month != "*":
        return None
    return "\n".join(
        f"{clock} {day} {months or month} {weekday}" for clock in clock_fields(times or [(0, 0)])
    )


def replace_sentences(text: str, today: date) -> str:
    """Return the text of a schedule with schedule text for each line that is a sentence.

    ``today`` is the date in the zone of the schedule. Raises ``InvalidSchedule`` for a single time
    on a day such as "tomorrow". Only here can the error show its date.
    """
    return "\n".join(_replace_sentence(line, today) for line in text.split("\n"))


def _replace_sentence(line: str, today: date) -> str:
    schedule, suggested = schedule_of_sentence(line, today), suggest_single_time(line, today)
    if not schedule and suggested != suggest_single_time(line):  # the date depends on ``today``
        raise single_time_error(line, suggested)
    return schedule or line


def single_time_error(text: str, schedule: str) -> InvalidSchedule:
    """Return the error for the text of a single time. ``schedule`` is the text to write."""
    return InvalidSchedule(_NOT_ONCE, value=repr(text), schedule=schedule, code="single_time")


def suggest_single_time(text: str, today: date | None = None) -> str:
    """Return schedule text for a single time, such as "tomorrow at 9"; empty for other text.

    The date and time are those of the text if all words are understood. Otherwise, both are
    placeholders. So is a time that the text doesn't have, and the date of "tomorrow" if ``today``
    isn't given.
    """
    if len(text) > MAX_LENGTH:
        return ""
    if found := re.fullmatch(_ISO_TIME, text.strip().upper()):
        moment = f"{found[1]}T{found[2]}"
        return f"@at {moment}" if _is_iso_time(moment) else f"@at {_ANY_DATE}T{_ANY_TIME}"
    words = re.sub(rf"({ISO_DATE})t(?=\d)", r"\1 ", _normalize(text))
    words = with_iso_dates(words)
    if not _SINGLE_TIME.search(words) or _REPEATING.search(words):
        return ""
    words, times = take_times(with_at(words))
    found = re.fullmatch(rf"(?:once ?)?(?:(?:on )?(?:({ISO_DATE})|{NEAR_DAY}))?", words)
    is_date = found and (not found[1] or parse_iso_date(found[1]))
    if not found or not is_date or times is None or len(times) > 1:
        return f"@at {_ANY_DATE}T{_ANY_TIME}"
    day = found[1] or near_date(found["near"], found["weekday"], today) or _ANY_DATE
    clock = f"{times[0][0]:02}:{times[0][1]:02}" if times else _ANY_TIME
    return f"@at {day}T{clock}"


def find_unknown_word(text: str) -> str:
    """Return the only word without which the sentence is understood, or "".

    The sentence may have another meaning without it: "every half hour" isn't hourly. A part of the
    day isn't unknown, although it needs a time.
    """
    words = text.split()
    if len(text) > MAX_LENGTH:
        return ""
    found = [
        word
        for at, word in enumerate(words)
        if word.casefold() not in _KNOWN_WORDS
        and schedule_of_sentence(" ".join(words[:at] + words[at + 1 :]))
    ]
    return found[0] if len(found) == 1 else ""


def with_weekdays(text: str) -> str:
    """Return the sentence with "weekday" for each "working day" or "business day", if any."""
    words = " ".join(text.casefold().split())
    return re.sub(r"\b(?:working |business |work)day(?=s?\b)", "weekday", words)


def _normalize(text: str) -> str:
    words = text.casefold().strip().rstrip(".")
    words = re.sub(r"\s*(?:,|&|;)\s*(?:and\s+)?", " and ", words)
    words = re.sub(r"[\u2010-\u2015]", "-", words)
    words = re.sub(r"\b([ap])\.m\b\.?", r"\1m", words)
    words = re.sub(r"\bo'?clock\b", "", words)
    words = with_at(words)
    words = re.sub(r"\bhalf(?: an)? hour\b", "30 minutes", words)
    words = " ".join(_UNITS_SPELLED_OUT.get(word, word) for word in words.split())
    words = _with_digits(words.split())
    *others, last = words.split() or [""]  # the last word may be a unit: "every second"
    return " ".join([*(_ORDINALS.get(word, word) for word in others), last])


def _with_digits(words: list[str]) -> str:
    """Replace number words. Two in a row may be a time, such as nine thirty, and stay unknown."""
    is_number = [False, *(word in _NUMBERS or word.isdigit() for word in words), False]
    return " ".join(
        word if is_number[at] or is_number[at + 2] else _NUMBERS.get(word, word)
        for at, word in enumerate(words)
    )


# --- intervals ------------------------------------------------------------------------------------


def _interval(words: str) -> str | None:
    if found := re.fullmatch(r"(?:every hour|hourly)(?: at (?:minute |:)(\d{1,2}))?", words):
        return f"{int(found[1] or 0)} * * * *" if int(found[1] or 0) < 60 else None
    if found := re.fullmatch(_ABBREVIATED, words):
        return f"@every {found[1]}"
    words, between = take_hours(words)
    if not (found := re.fullmatch(_INTERVAL, words)):
        return None
    number, unit = int(found[1] or 1), found[2]
    days = _days(found[3]) if found[3] else ("*", "*", "*")
    if not number or days is None:
        return None
    if _FULL[unit] % number or number == _FULL[unit]:
        return None if found[3] or between else f"@every {number}{_UNITS[unit]}"
    step = "*" if number == 1 else f"*/{number}"
    hours = "*"
    if between is not None and (hours := hours_field(between, number, unit)) == "":
        return None
    clock = {
        "second": f"{step} * {hours}",
        "minute": f"{step} {hours}",
        "hour": f"0 {step if between is None else hours}",
    }[unit]
    return f"{clock} {' '.join(days)}"


# --- every second week or day ---------------------------------------------------------------------


def _recurrence(words: str, times: list[Time], today: date | None) -> str | None:
    """Return a recurrence rule for each time."""
    start = today
    if found := re.search(rf" {_START}$", words):
        words = words[: found.start()]
        start = parse_iso_date(found[1])
    if found := re.fullmatch(_EVERY_OTHER_DAY_OF_WEEK, words):
        words = f"every 2 weeks on {found[1] or found[2]}"
    if start is None or not (found := re.fullmatch(_REPEATED, words)):
        return None
    number = 2 if found["number"] == "other" else int(found["number"])
    is_weekly = found["unit"].startswith("week")
    names = re.split(r" and (?:on )?", found["days"]) if found["days"] else []
    if not number or (names and not is_weekly):
        return None
    if not all(re.fullmatch(DAY, name) for name in names):
        return None
    weekdays = {MONDAY_FIRST.index(day_name(name)) for name in names} or {start.weekday()}
    rule = f"FREQ=DAILY;INTERVAL={number}"
    if is_weekly:
        start = next(day for day in _next_days(start) if day.weekday() in weekdays)
        days = ",".join(MONDAY_FIRST[weekday][:2] for weekday in sorted(weekdays))
        rule = f"FREQ=WEEKLY;INTERVAL={number};BYDAY={days}"
    return "\n".join(f"@rrule {start}T{hour:02}:{minute:02} {rule}" for hour, minute in times)


def _is_iso_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _next_days(start: date) -> list[date]:
    return [start + timedelta(days=days) for days in range(7)]


# --- days -----------------------------------------------------------------------------------------


def _take_months(words: str) -> tuple[str, str | None]:
    """Return the other words and the month field; empty if no month is named."""
    if not (found := re.search(_IN_MONTHS, words)):
        return words, ""
    names = re.split(r" and (?:in )?", found[1])
    others = without_match(found)
    return others, ",".join(month_name(name) for name in names)


def _days(words: str) -> DayFields | None:
    for pattern, fields in _PATTERNS:
        if found := pattern.fullmatch(words):
            return fields(found)
    return None


def _weekdays(found: re.Match[str]) -> DayFields | None:
    if bounds := re.fullmatch(_DAY_RANGE, found[1]):
        first, last = (DAYS.index(day_name(bounds[at])) for at in (1, 2))
        if first < last:
            return "*", "*", f"{DAYS[first]}-{DAYS[last]}"
        return "*", "*", ",".join((*DAYS[first:], *DAYS[: last + 1]))
    names = [day_name(name) for name in re.split(r" and (?:on )?", found[1])]
    return "*", "*", ",".join(dict.fromkeys(names))


def _number(ordinal: str) -> int | None:
    """Return the number of an ordinal; None for the last one."""
    return None if ordinal == "last" else int(ordinal[:-2])


def _of_month(found: re.Match[str]) -> DayFields | None:
    """Return the fields of "the 1st and 15th", "the last Friday" or "the 3rd working day"."""
    ordinals = [_number(each) for each in re.split(r" and (?:on )?(?:the )?", found["ordinals"])]
    kind = (found["kind"] or "day").removesuffix("s")
    if any(number is not None and not 1 <= number <= 31 for number in ordinals):
        return None
    if kind == "day":
        return ",".join("L" if n is None else str(n) for n in ordinals), "*", "*"
    if kind in {"working day", "workday", "business day"}:
        if any(n is not None and n > 23 for n in ordinals):
            return None
        return ",".join(f"WD#{'L' if n is None else n}" for n in ordinals), "*", "?"
    if kind == "weekday":
        if ordinals == [1]:
            return "1W", "*", "?"
        return ("LW", "*", "?") if ordinals == [None] else None
    at = DAYS.index(day_name(kind))
    days = [f"{at}L" if n is None else f"{at}#{n}" for n in ordinals]
    return ("*", "*", ",".join(days)) if all(n is None or n <= 5 for n in ordinals) else None


def _of_quarter(found: re.Match[str]) -> DayFields | None:
    """Return the fields of "every quarter" or "the last day of the quarter"."""
    number = _number(found["ordinal"] or "1st")
    if number is None:
        return "L", _LAST_OF_QUARTERS, "*"
    # April, the shortest first month of a quarter, has 30 days.
    return (str(number), _QUARTERS, "*") if 1 <= number <= 30 else None


def _of_year(found: re.Match[str]) -> DayFields | None:
    number = int(re.sub(r"\D", "", found["day"]))
    return (str(number), month_name(found["month"]), "*") if 1 <= number <= 31 else None


def _fixed(*fields: str) -> Callable[[re.Match[str]], DayFields | None]:
    day, month, weekday = fields
    return lambda found: (day, month, weekday)


_LIST = rf"(?:the )?(?P<ordinals>{_ORDINAL}(?: and (?:on )?(?:the )?{_ORDINAL})*)"
_KIND = rf"(?: (?P<kind>days?|weekdays?|working days?|workdays?|business days?|{DAY}))?"
_ORDINAL_DAY = rf"(?P<ordinal>{_ORDINAL})(?: day)?"
_MONTHLY = r"(?:every month|each month|monthly)"
_YEARLY = r"(?:every year |each year |yearly |annually )?"
_DATE = r"(?P<day>\d{1,2}(?:st|nd|rd|th)?)"

_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], DayFields | None]], ...] = (
    (re.compile(rf"{_EVERY}days?|daily|"), _fixed("*", "*", "*")),
    (re.compile(rf"{_EVERY}(?:weekdays?)|(?:daily )?on weekdays"), _fixed("*", "*", "MON-FRI")),
    (re.compile(rf"{_EVERY}(?:weekends?)"), _fixed("*", "*", "SAT,SUN")),
    (
        re.compile(
            rf"(?:weekly on |every week on |each week on |{_EVERY})"
            rf"({DAY}(?: to | through | until | ?- ?){DAY}|{DAY}(?: and (?:on )?{DAY})*)"
        ),
        _weekdays,
    ),
    (re.compile(rf"{_EVERY}{_LIST}{_KIND}{_OF_MONTH}"), _of_month),
    (re.compile(rf"(?:on )?{_LIST} (?P<kind>{DAY})"), _of_month),
    (re.compile(rf"{_MONTHLY} on {_LIST}{_KIND}"), _of_month),
    (re.compile(_MONTHLY), _fixed("1", "*", "*")),
    (
        re.compile(rf"(?:every quarter|each quarter|quarterly)(?: on (?:the )?{_ORDINAL_DAY})?"),
        _of_quarter,
    ),
    (re.compile(rf"(?:on )?(?:the )?{_ORDINAL_DAY} of (?:every|each|the|a) quarter"), _of_quarter),
    (
        re.compile(rf"{_YEARLY}{_EVERY}(?P<month>{MONTH}) (?:the )?{_DATE}"),
        _of_year,
    ),
    (re.compile(rf"{_YEARLY}{_EVERY}(?:the )?{_DATE} (?:of )?(?P<month>{MONTH})"), _of_year),
)
