"""Test that crowded minutes are found, and how H would spread their jobs."""

from collections import Counter
from datetime import UTC, datetime

import pytest

from django_dcron.schedules.crowding import (
    MAX_CROWDS,
    CrowdedMinute,
    TimetableGroup,
    crowded_minutes_of,
)
from django_dcron.schedules.fields import MINUTE, parse_field
from django_dcron.schedules.load import RealHours
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import Timetable

MONDAY = datetime(2026, 6, 15, tzinfo=UTC)
WEEK = RealHours(MONDAY, 168)


def group(
    text: str, jobs: int, zone: str = "UTC", *, spread: bool = False, prefix: str = "job"
) -> TimetableGroup:
    timetable = Timetable(parse_schedule(text, zone, hash_key="x"))
    return TimetableGroup(
        timetable, None, text, spread, [f"default/{prefix}-{n}" for n in range(jobs)]
    )


def drawn(form: str, jobs: int, prefix: str = "job") -> Counter[int]:
    found: Counter[int] = Counter()
    for n in range(jobs):
        found.update(parse_field(MINUTE, form, f"default/{prefix}-{n}").values)
    return found


def test_hourly_jobs_at_the_same_minute_are_a_crowd() -> None:
    (crowd,) = crowded_minutes_of(WEEK, [group("0 * * * *", 42), group("17 4 * * *", 9)])
    assert crowd == CrowdedMinute(
        jobs=42,
        minute=0,
        hours=tuple(range(168)),
        fewest=42,
        forms=("H",),
        at_most=max(drawn("H", 42).values()),
        texts=(("0 * * * *", "UTC", 42),),
    )
    assert crowd.at_most < 6


def test_daily_jobs_at_the_same_time_are_a_crowd() -> None:
    (crowd,) = crowded_minutes_of(WEEK, [group("30 3 * * *", 12), group("* * * * *", 2)])
    assert (crowd.jobs, crowd.minute, sorted(crowd.hours)) == (
        12,
        30,
        [3 + 24 * day for day in range(7)],
    )


def test_jobs_of_different_texts_and_zones_form_one_crowd() -> None:
    jobs = [group("0 9 * * MON", 8), group("0 11 15 * *", 7, "Europe/Berlin", prefix="other")]
    (crowd,) = crowded_minutes_of(WEEK, jobs)
    assert (crowd.jobs, crowd.minute, crowd.hours) == (15, 0, (9,))
    assert crowd.texts == (("0 9 * * MON", "UTC", 8), ("0 11 15 * *", "Europe/Berlin", 7))


def test_step_schedules_are_advised_to_use_hashed_steps() -> None:
    (crowd,) = crowded_minutes_of(
        WEEK, [group("0 * * * *", 20), group("*/15 * * * *", 30, prefix="quarter")]
    )
    assert (crowd.jobs, crowd.minute, crowd.forms) == (50, 0, ("H/15", "H"))
    assert crowd.at_most == max((drawn("H", 20) + drawn("H/15", 30, "quarter")).values())


def test_fullest_crowd_is_first_and_crowds_are_disjoint() -> None:
    jobs = [group("0 * * * *", 20), group("0 3 * * *", 15), group("30 5 * * *", 40)]
    first, second = crowded_minutes_of(WEEK, jobs)
    assert (first.jobs, first.minute, first.hours[0]) == (40, 30, 5)
    assert (second.jobs, second.fewest, second.hours[0], len(second.hours)) == (35, 20, 3, 168)


def test_crowd_minute_is_in_the_time_zone_of_the_site() -> None:
    """The site's zone is half an hour apart from the zone of the jobs."""
    (crowd,) = crowded_minutes_of(WEEK, [group("0 12 * * *", 20, "Asia/Kolkata")])
    assert (crowd.minute, sorted(crowd.hours)) == (30, [6 + 24 * day for day in range(7)])


@pytest.mark.parametrize(
    "jobs",
    [
        [],
        [group("0 * * * *", 9)],
        [group("* * * * *", 500), group("* * * * * *", 500)],
        [group("* * * * *", 500), group("0 * * * *", 30)],
        [group("@every 1h", 500), group("@at 2026-06-16T00:00", 500)],
        [group("0 H * * *", 500, spread=True)],
        [group("1,2,3,40 * * * *", 500)],
        [group("5,40 * * * *", 500)],  # with H/35, some jobs would start only once an hour
        [group("*/4 3 * * *", 500)],
        [group("* 3 * * *", 500)],
        [group("0 3 20 1 *", 500)],
        [group(f"{minute} * * * *", 20, prefix=str(minute)) for minute in range(60)],
    ],
)
def test_no_crowded_minute_is_reported_if_spreading_would_not_help(
    jobs: list[TimetableGroup],
) -> None:
    assert crowded_minutes_of(WEEK, jobs) == []


def test_every_minute_jobs_do_not_hide_a_smaller_crowd() -> None:
    (crowd,) = crowded_minutes_of(
        WEEK, [group("* * * * *", 1000), group("0 * * * *", 500), group("*/5 * * * *", 400)]
    )
    assert (crowd.jobs, crowd.minute) == (900, 0)


def test_number_of_reported_crowds_is_limited() -> None:
    assert (
        len(crowded_minutes_of(WEEK, [group(f"{minute} 3 * * *", 20) for minute in range(10)]))
        == MAX_CROWDS
    )
