"""Periods of constant offset start and end at the second at which a zone's clocks change."""

# ruff: noqa: DTZ001 -- a naive datetime is UTC here

from datetime import datetime, timedelta

import pytest

from django_dcron.schedules.zones import SECOND, offset_period_at

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("zone", "change", "before", "after"),
    [
        ("Europe/Berlin", datetime(2026, 3, 29, 1), HOUR, 2 * HOUR),
        ("Europe/Berlin", datetime(2026, 10, 25, 1), 2 * HOUR, HOUR),
        (
            "Africa/Monrovia",
            datetime(1972, 1, 7, 0, 44, 30),
            -timedelta(minutes=44, seconds=30),
            timedelta(),
        ),
        ("Europe/Amsterdam", datetime(1940, 5, 15, 23, 40), timedelta(minutes=20), 2 * HOUR),
    ],
)
def test_offset_change_is_found_to_the_second(
    zone: str, change: datetime, before: timedelta, after: timedelta
) -> None:
    earlier, later = offset_period_at(zone, change - SECOND), offset_period_at(zone, change)

    assert (earlier.end, earlier.offset) == (change, before)
    assert (later.start, later.offset_before, later.offset) == (change, before, after)
