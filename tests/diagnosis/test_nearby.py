"""Test which occurrences of a timetable are at a time and on either side of it."""

from datetime import UTC, datetime, timedelta

import pytest

from django_dcron.diagnosis.why.nearby import Nearby, nearby
from django_dcron.models.calendar import read_dates
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.exclusion import apply_calendar
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import Timetable

HOLIDAY_AND_WEEKENDS = "2026-01-01\nSAT-SUN"
MINUTE = timedelta(minutes=1)


def january(day: int, hour: int = 9) -> datetime:
    return datetime(2026, 1, day, hour, tzinfo=UTC)


def nearby_at(
    instant: datetime,
    text: str,
    policy: ExclusionPolicy,
    *,
    dates: str = HOLIDAY_AND_WEEKENDS,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
) -> Nearby:
    schedule = apply_calendar(parse_schedule(text), read_dates(dates), policy)
    return nearby(Timetable(schedule, starts_at, ends_at), None, instant, instant + MINUTE)


@pytest.mark.parametrize("policy", ExclusionPolicy)
def test_calendar_excludes_no_date_that_is_another_working_day(policy: ExclusionPolicy) -> None:
    """The third working day is 2026-01-05 in Monday to Friday, and 2026-01-06 in the calendar."""
    assert nearby_at(january(5), "0 9 WD#3 * ?", policy).excluded == ()
    found = nearby_at(january(6), "0 9 WD#3 * ?\n0 12 1 * ?", policy)
    assert (found.inside, found.excluded, found.moved) == ((january(6),), (), ())


@pytest.mark.parametrize("policy", [ExclusionPolicy.SKIP, ExclusionPolicy.WINDOW_END])
def test_excluded_dates_of_a_schedule_with_working_days_are_found(policy: ExclusionPolicy) -> None:
    found = nearby_at(january(1), "0 9 WD#3,1 * ?", policy)
    assert (found.inside, found.excluded) == ((), (january(1),))


def test_times_that_the_calendar_moved_are_found() -> None:
    found = nearby_at(january(5, 0), "0 */12 * * *", ExclusionPolicy.WINDOW_END)
    assert found.moved == (january(4, 12), january(4, 0), january(3, 12), january(3, 0))


@pytest.mark.parametrize(
    "bounds", [{"starts_at": january(5, 1)}, {"ends_at": january(4, 23)}], ids=str
)
def test_nothing_moved_to_an_occurrence_out_of_bounds(bounds: dict[str, datetime]) -> None:
    found = nearby_at(january(5, 0), "0 */12 * * *", ExclusionPolicy.WINDOW_END, **bounds)
    assert (found.inside, found.out_of_bounds, found.moved) == ((), (january(5, 0),), ())


def test_moved_times_are_those_of_the_first_occurrence_within_bounds() -> None:
    found = nearby_at(
        january(5, 0),
        "0 */12 * * *\n30 0 0 5 * ?",
        ExclusionPolicy.WINDOW_END,
        starts_at=january(5, 0) + timedelta(seconds=15),
    )
    assert len(found.inside) == 1
    assert found.moved == ()
