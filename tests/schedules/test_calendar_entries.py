"""The entries of a period, which ``tests/contrib/test_ics.py`` also reads back."""

from datetime import datetime

import pytest

from django_dcron.schedules.calendar_entries import entries_of_time, entry_lines


@pytest.mark.parametrize(
    ("begin", "stop", "entries"),
    [
        ("2026-12-24", "2026-12-25", ["2026-12-24"]),
        ("2026-12-24", "2026-12-27", ["2026-12-24..2026-12-26"]),
        ("2026-12-24 09:30", "2026-12-24 17:00", ["2026-12-24 09:30-17:00"]),
        ("2026-12-24 22:00", "2026-12-25", ["2026-12-24 22:00-24:00"]),
        ("2026-12-24 22:00", "2026-12-25 06:00", ["2026-12-24 22:00-06:00"]),
        (
            "2026-12-24 22:00",
            "2026-12-25 22:00",
            ["2026-12-24 22:00-24:00", "2026-12-25 00:00-22:00"],
        ),
        (
            "2026-12-24 22:00",
            "2026-12-28 06:00",
            ["2026-12-24 22:00-24:00", "2026-12-25..2026-12-27", "2026-12-28 00:00-06:00"],
        ),
        ("2026-12-24", "2026-12-25 06:00", ["2026-12-24", "2026-12-25 00:00-06:00"]),
        ("2026-12-24 22:00", "2026-12-26", ["2026-12-24 22:00-24:00", "2026-12-25"]),
        # Whole minutes that contain the time.
        ("2026-12-24 09:30:59.9", "2026-12-24 17:00:01", ["2026-12-24 09:30-17:01"]),
        ("2026-12-24 09:30", "2026-12-24 17:00:00.000001", ["2026-12-24 09:30-17:01"]),
    ],
)
def test_time_becomes_the_fewest_entries(begin: str, stop: str, entries: list[str]) -> None:
    assert entries_of_time(datetime.fromisoformat(begin), datetime.fromisoformat(stop)) == entries


def test_lines_have_a_few_entries_and_the_first_one_a_comment() -> None:
    assert list(entry_lines([*"abcdefg"], "closed")) == ["a, b, c, d, e # closed", "f, g"]
    assert list(entry_lines([*"ab"], "")) == ["a, b"]
