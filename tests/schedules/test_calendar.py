"""The text of a calendar: the dates it excludes, and the errors of invalid texts."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from django_dcron.exceptions import InvalidCalendar, InvalidSchedule
from django_dcron.schedules.calendar import ExcludedDates, HolidaysOf
from django_dcron.schedules.calendar_text import MAX_HOLIDAYS, MAX_LENGTH, parse_calendar
from tests.refusals import refusal

DAY = timedelta(days=1)
START = date(2026, 1, 1)
THREE_YEARS = [START + number * DAY for number in range(3 * 365)]


def no_holidays(country: str, part: str) -> HolidaysOf:
    raise InvalidCalendar("none of %(country)s", country=country)


def may_first(country: str, part: str) -> HolidaysOf:
    return lambda year: frozenset({date(year, 5, 2 if part == "X" else 1)})


def read(text: str) -> ExcludedDates:
    return parse_calendar(text, may_first)


@pytest.mark.parametrize(
    ("text", "excluded"),
    [
        ("2026-12-24", lambda day: day == date(2026, 12, 24)),
        ("2026-12-24..2027-01-01", lambda day: date(2026, 12, 24) <= day <= date(2027, 1, 1)),
        ("12-25", lambda day: (day.month, day.day) == (12, 25)),
        ("02-29", lambda day: (day.month, day.day) == (2, 29)),
        (
            "12-24..01-01",
            lambda day: (day.month, day.day) >= (12, 24) or (day.month, day.day) == (1, 1),
        ),
        ("sat", lambda day: day.isoweekday() == 6),
        ("FRI-MON", lambda day: day.isoweekday() in (5, 6, 7, 1)),
        ("holidays DE", lambda day: (day.month, day.day) == (5, 1)),
        ("holidays DE-X", lambda day: (day.month, day.day) == (5, 2)),
        (
            "SAT, SUN\n\n12-25 # Christmas, all of it\n",
            lambda day: day.weekday() > 4 or (day.month, day.day) == (12, 25),
        ),
        (
            "2026-01-05..2026-01-09,2026-01-07..2026-01-20",
            lambda day: date(2026, 1, 5) <= day <= date(2026, 1, 20),
        ),
        (
            "2026-01-05 .. 2026-01-20, 2026-01-07",
            lambda day: date(2026, 1, 5) <= day <= date(2026, 1, 20),
        ),
    ],
)
def test_calendar_excludes_the_listed_dates(text: str, excluded: Callable[[date], bool]) -> None:
    calendar = read(text)
    found = [day for day in THREE_YEARS if calendar.excludes(day)]
    assert found == [day for day in THREE_YEARS if excluded(day)]
    assert found


def test_weekday_names_are_case_insensitive() -> None:
    for number, name in enumerate(("mon", "TUE", "Wed", "THU", "fri", "SAT", "SUN")):
        calendar = read(name)
        assert {day.weekday() for day in THREE_YEARS if calendar.excludes(day)} == {number}


def test_open_from_and_open_until_find_the_nearest_open_date() -> None:
    calendar = read("SAT-SUN\n2026-12-24..2027-01-01\n05-01")
    for day in THREE_YEARS[:700]:
        following, before = day, day
        while calendar.excludes(following):
            following += DAY
        while calendar.excludes(before):
            before -= DAY
        assert (calendar.open_from(day), calendar.open_until(day)) == (following, before)


def test_search_for_an_open_date_ends_at_the_horizon() -> None:
    calendar = read("1970-01-01..2199-12-31")
    assert calendar.open_from(date(2026, 1, 1)) is None
    assert calendar.open_until(date(2026, 1, 1)) is None
    assert calendar.open_from(date(2199, 12, 31)) == date(2200, 1, 1)
    assert read("SAT").open_from(date.max) is None
    assert read("SAT").open_until(date.min) is None


@pytest.mark.parametrize(
    ("text", "code", "params"),
    [
        ("SAT\nXMAS", "unknown_entry", {"line": 2, "value": "'XMAS'"}),
        ("12-25, 13-01", "invalid_date", {"line": 1, "value": "'13-01'"}),
        ("02-30", "invalid_date", {"line": 1, "value": "'02-30'"}),
        ("2026-02-29", "invalid_date", {"line": 1, "value": "'2026-02-29'"}),
        ("1969-12-31", "invalid_date", {"line": 1, "value": "'1969-12-31'"}),
        (
            "2026-12-24..2026-12-23",
            "reversed_range",
            {"line": 1, "value": "'2026-12-24..2026-12-23'"},
        ),
        ("2026-12-24..12-26", "unknown_entry", {"line": 1, "value": "'2026-12-24..12-26'"}),
        ("٢٠٢٦-01-01", "unknown_entry", {"line": 1, "value": "'٢٠٢٦-01-01'"}),
        ("", "no_dates", {}),
        (" # SAT", "no_dates", {}),
        ("MON-SUN", "no_dates_left", {}),
        ("01-01..12-31", "no_dates_left", {}),
        ("x" * (MAX_LENGTH + 1), "too_long", {"count": MAX_LENGTH + 1, "most": MAX_LENGTH}),
        ("holidays", "unknown_entry", {"line": 1, "value": "'holidays'"}),
        ("24.13.", "unknown_entry", {"line": 1, "value": "'24.13.'"}),
        ("29.2.2027", "unknown_entry", {"line": 1, "value": "'29.2.2027'"}),
        ("1.1.0000", "unknown_entry", {"line": 1, "value": "'1.1.0000'"}),
        *(
            (text, "unknown_entry", {"line": 1, "value": repr(text), "near": near})
            for text, near in {
                "Weekends": "SAT-SUN",
                "weekday": "MON-FRI",
                "24.12.": "12-24",
                "29.2": "02-29",
                "1. 5. 2027": "2027-05-01",
            }.items()
        ),
    ],
)
def test_invalid_calendar_text_is_refused_with_code_and_parameters(
    text: str, code: str, params: dict[str, Any]
) -> None:
    with pytest.raises(InvalidCalendar) as refused:
        read(text)
    assert (refused.value.code, refused.value.params) == (code, params)
    assert all(str(value) in str(refused.value) for value in params.values())
    assert isinstance(refused.value, InvalidSchedule)


def test_unknown_holidays_are_reported_with_their_line() -> None:
    with refusal(InvalidCalendar, "unknown_holidays", line=2, problem="none of XX"):
        parse_calendar("SAT\nholidays xx", no_holidays)


def test_number_of_countries_and_parts_is_limited() -> None:
    """A search looks up the holidays of each in each year, which takes a millisecond."""
    most = "\n".join(f"holidays DE-{number}" for number in range(MAX_HOLIDAYS))
    assert len(read(f"{most}\nHolidays de-0").holidays) == MAX_HOLIDAYS <= 20
    with pytest.raises(InvalidCalendar) as refused:
        read(f"{most}\nholidays FR")
    assert (refused.value.code, refused.value.params) == (
        "too_many_holidays",
        {"line": MAX_HOLIDAYS + 1, "most": MAX_HOLIDAYS},
    )


def test_calendars_with_equal_text_are_equal() -> None:
    assert read("SAT") == read("SAT")
    assert hash(read("SAT")) == hash(read("SAT"))
    assert read("SAT") != read("SUN")


def test_equality_and_repr_depend_only_on_the_text() -> None:
    calendar = read("SAT-SUN\n2026-12-24..2027-01-01\n05-01")
    others: dict[str, Any] = {
        "weekdays": frozenset(),
        "yearly": frozenset(),
        "ranges": (),
        "holidays": (len,),
    }

    assert repr(calendar) == f"ExcludedDates(text={calendar.text!r})"
    assert all(replace(calendar, **{name: other}) == calendar for name, other in others.items())
    assert replace(calendar, text="") != calendar
