"""Periods of constant offset start and end at the second at which a zone's clocks change."""

# ruff: noqa: DTZ001 -- a naive datetime is UTC here

from datetime import datetime, timedelta

import pytest

from django_dcron.exceptions import InvalidTimeZone
from django_dcron.schedules.zones import SECOND, check_zone, offset_period_at

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


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("Europe/Berln", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("GMT+1", None),
        ("UTC+1", None),
        ("utc-03:30", None),
        ("UTC + 1", None),
        ("Etc/GMT+15", None),
    ],
)
def test_error_suggests_a_similar_name_unless_the_name_is_an_offset(
    name: str, suggested: str | None
) -> None:
    """``Etc/GMT+1``, the name most similar to ``GMT+1``, is an hour behind UTC."""
    with pytest.raises(InvalidTimeZone) as raised:
        check_zone(name)
    near = raised.value.params and raised.value.params.get("near")
    assert near == (suggested and repr(suggested))
