"""Test which entries of a calendar are named as the reason for an excluded day."""

from datetime import date

import pytest

from django_dcron.schedules.calendar_text import HolidaysOf, parse_entries
from django_dcron.schedules.exclusion_reasons import ExclusionReasons, reasons_on

MAY_FIRST = date(2026, 5, 1)
"""A Friday."""


def may_first(_country: str, _part: str) -> HolidaysOf:
    return lambda year: frozenset({date(year, 5, 1)})


def name(country: str, part: str, day: date) -> str:
    return f"Labor Day in {country}{part}" if (day.month, day.day) == (5, 1) else ""


def reasons(text: str, day: date) -> ExclusionReasons:
    return reasons_on(day, parse_entries(text, may_first), name)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("05-01", ("05-01",)),
        ("05-01 # Labor Day", ("Labor Day",)),
        ("holidays DE # of the office", ("Labor Day in DE",)),
        ("holidays de-BY", ("Labor Day in DEBY",)),
        ("SAT-SUN, FRI # Closed\n2026-04-30..2026-05-02 # Move", ("Closed", "Move")),
        ("SAT, FRI # Closed\n05-01 # Closed", ("Closed",)),
        ("12-25", ()),
        # Times are named only if no entry excludes the whole date.
        ("10:00-11:00 # Backup\nFRI", ("FRI",)),
        ("10:00-11:00 # Backup\nSAT 08:00-09:00\nFRI 12:00-13:00", ("Backup", "FRI 12:00-13:00")),
    ],
)
def test_entries_are_named_by_holiday_or_comment_or_text(text: str, names: tuple[str, ...]) -> None:
    assert reasons(text, MAY_FIRST) == ExclusionReasons(names)


def test_time_that_began_on_a_holiday_is_named_on_the_next_day() -> None:
    assert reasons("holidays DE 22:00-06:00", date(2026, 5, 2)).names == ("Labor Day in DE",)


@pytest.mark.parametrize(
    ("text", "day", "names", "is_outside"),
    [
        ("only MON-FRI 09:00-17:00", MAY_FIRST, (), True),
        ("only MON-FRI 09:00-17:00\n12:00-13:00 # Lunch", MAY_FIRST, ("Lunch",), True),
        ("only MON-FRI", MAY_FIRST, (), False),
        ("only MON-FRI", date(2026, 5, 2), (), True),
        ("only MON-FRI\n05-01", MAY_FIRST, ("05-01",), False),
    ],
)
def test_times_outside_only_have_no_entry(
    text: str, day: date, names: tuple[str, ...], is_outside: bool
) -> None:
    assert reasons(text, day) == ExclusionReasons(names, has_times_outside=is_outside)
