"""Where many jobs start together, and how H would spread them."""

from collections import Counter
from datetime import UTC, datetime

import pytest

from django_dcron.schedules.crowding import MOST_CROWDS, Crowd, Group, crowds
from django_dcron.schedules.fields import MINUTE, parse_field
from django_dcron.schedules.load import Hours
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import Timetable

MONDAY = datetime(2026, 6, 15, tzinfo=UTC)
WEEK = Hours(MONDAY, 168)


def group(
    text: str, jobs: int, zone: str = "UTC", *, spread: bool = False, prefix: str = "job"
) -> Group:
    timetable = Timetable(parse_schedule(text, zone, hash_key="x"))
    return Group(timetable, None, text, spread, [f"default/{prefix}-{n}" for n in range(jobs)])


def drawn(form: str, jobs: int, prefix: str = "job") -> Counter[int]:
    found: Counter[int] = Counter()
    for n in range(jobs):
        found.update(parse_field(MINUTE, form, f"default/{prefix}-{n}").values)
    return found


def test_the_minute_of_every_hour() -> None:
    (crowd,) = crowds(WEEK, [group("0 * * * *", 42), group("17 4 * * *", 9)])
    assert crowd == Crowd(
        jobs=42,
        minute=0,
        hours=tuple(range(168)),
        fewest=42,
        forms=("H",),
        at_most=max(drawn("H", 42).values()),
        texts=(("0 * * * *", "UTC", 42),),
    )
    assert crowd.at_most < 6


def test_a_time_of_day() -> None:
    (crowd,) = crowds(WEEK, [group("30 3 * * *", 12), group("* * * * *", 2)])
    assert (crowd.jobs, crowd.minute, sorted(crowd.hours)) == (
        12,
        30,
        [3 + 24 * day for day in range(7)],
    )


def test_a_time_of_one_day_told_in_two_ways_and_zones() -> None:
    jobs = [group("0 9 * * MON", 8), group("0 11 15 * *", 7, "Europe/Berlin", prefix="other")]
    (crowd,) = crowds(WEEK, jobs)
    assert (crowd.jobs, crowd.minute, crowd.hours) == (15, 0, (9,))
    assert crowd.texts == (("0 9 * * MON", "UTC", 8), ("0 11 15 * *", "Europe/Berlin", 7))


def test_steps_are_spread_by_steps() -> None:
    (crowd,) = crowds(WEEK, [group("0 * * * *", 20), group("*/15 * * * *", 30, prefix="quarter")])
    assert (crowd.jobs, crowd.minute, crowd.forms) == (50, 0, ("H/15", "H"))
    assert crowd.at_most == max((drawn("H", 20) + drawn("H/15", 30, "quarter")).values())


def test_the_fullest_comes_first_and_nobody_is_in_two() -> None:
    jobs = [group("0 * * * *", 20), group("0 3 * * *", 15), group("30 5 * * *", 40)]
    first, second = crowds(WEEK, jobs)
    assert (first.jobs, first.minute, first.hours[0]) == (40, 30, 5)
    assert (second.jobs, second.fewest, second.hours[0], len(second.hours)) == (35, 20, 3, 168)


def test_minutes_of_the_site_are_reported() -> None:
    """The site's zone is half an hour apart from the zone of the jobs."""
    (crowd,) = crowds(WEEK, [group("0 12 * * *", 20, "Asia/Kolkata")])
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
        [group("*/4 3 * * *", 500)],
        [group("* 3 * * *", 500)],
        [group("0 3 20 1 *", 500)],
        [group(f"{minute} * * * *", 20, prefix=str(minute)) for minute in range(60)],
    ],
)
def test_no_advice_where_none_helps(jobs: list[Group]) -> None:
    assert crowds(WEEK, jobs) == []


def test_jobs_of_every_minute_do_not_hide_a_crowd_half_their_number() -> None:
    (crowd,) = crowds(
        WEEK, [group("* * * * *", 1000), group("0 * * * *", 500), group("*/5 * * * *", 400)]
    )
    assert (crowd.jobs, crowd.minute) == (900, 0)


def test_no_more_than_one_can_read() -> None:
    assert (
        len(crowds(WEEK, [group(f"{minute} 3 * * *", 20) for minute in range(10)])) == MOST_CROWDS
    )
