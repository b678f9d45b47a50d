"""Test the plan of a job's next days: occurrences, exclusions and freezes of each day."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.calendar_text import HolidaysOf, parse_calendar
from django_dcron.schedules.exclusion import apply_calendar
from django_dcron.schedules.exclusion_reasons import NO_REASONS, ExclusionReasons
from django_dcron.schedules.schedule import Schedule, parse_schedule
from django_dcron.schedules.timetable import Timetable
from django_dcron.schedules.upcoming_days import (
    DayOccurrences,
    FrozenPeriod,
    UpcomingDay,
    days_of_months,
    occurrences_per_day,
    upcoming_days,
)

NOW = datetime(2026, 10, 11, 12, 20, 30, tzinfo=UTC)
LAST_DAY = date(2026, 11, 30)
DAY = timedelta(days=1)


def no_holidays(_country: str, _part: str) -> HolidaysOf:
    raise AssertionError


def schedule_of(text: str, zone: str = "UTC", dates: str = "", policy: str = "skip") -> Schedule:
    schedule = parse_schedule(text, zone)
    if not dates:
        return schedule
    calendar = parse_calendar(dates, no_holidays)
    return apply_calendar(schedule, calendar, ExclusionPolicy(policy))


def listed(timetable: Timetable) -> Counter[date]:
    """Count the occurrences up to ``LAST_DAY`` one by one."""
    zone = ZoneInfo(timetable.schedule.timezone)
    found: Counter[date] = Counter()
    occurrence = timetable.first_after(NOW)
    while occurrence and (day := occurrence.astimezone(zone).date()) <= LAST_DAY:
        found[day] += 1
        occurrence = timetable.next_after(occurrence)
    return found


BOUNDS = {"starts_at": datetime(2026, 10, 20, 10, 10, 20, tzinfo=UTC)}
BOUNDS["ends_at"] = BOUNDS["starts_at"] + 31 * DAY


@pytest.mark.parametrize(
    ("text", "dates", "policy"),
    [
        ("30 3 * * *", "", "skip"),
        ("0,30 2-3 * * *", "SAT-SUN", "next_day"),
        ("* * * * *", "", "skip"),
        ("*/5 9-17 * * MON-FRI", "only MON-FRI 10:00-16:30", "skip"),
        ("*/2 * * * *", "22:15-06:00", "window_end"),
        ("*/15 * * * * *", "2026-10-20..2026-10-25", "skip"),
        ("*/3 8-18 * * *\n30 2 * * SAT", "", "skip"),
        ("@every 7m", "", "skip"),
        ("@every 25h", "", "skip"),
        ("@at 2026-11-01T09:00", "", "skip"),
    ],
)
@pytest.mark.parametrize(
    ("zone", "bounds"),
    [
        ("Europe/Berlin", {}),
        ("Europe/Berlin", BOUNDS),
        ("Asia/Kolkata", {}),
        ("America/New_York", BOUNDS),
    ],
    ids=["Berlin", "Berlin, bounded", "Kolkata", "New York, bounded"],
)
def test_counts_equal_those_of_all_occurrences(
    zone: str, text: str, dates: str, policy: str, bounds: dict[str, datetime]
) -> None:
    """The period has a change of clocks in Berlin and in New York."""
    timetable = Timetable(schedule_of(text, zone, dates, policy), **bounds)
    first = timetable.first_after(NOW)

    found = occurrences_per_day(timetable, first, LAST_DAY) if first else {}
    assert {day: each.number for day, each in found.items()} == listed(timetable)


def test_schedule_of_every_minute_has_1440_occurrences_per_day_in_few_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timetable, steps = Timetable(schedule_of("* * * * *")), Counter[str]()
    step = Timetable.next_after

    def count(self: Timetable, instant: datetime) -> datetime | None:
        steps["next_after"] += 1
        return step(self, instant)

    monkeypatch.setattr(Timetable, "next_after", count)
    first = datetime(2026, 10, 1, tzinfo=UTC)
    found = occurrences_per_day(timetable, first, LAST_DAY)

    assert {each.number for each in found.values()} == {1440}
    assert (len(found), found[date(2026, 10, 2)].first) == (61, first + DAY)
    assert steps["next_after"] <= 61 * 25


def test_days_have_occurrences_exclusions_and_freezes() -> None:
    timetable = Timetable(
        schedule_of("0 9 * * *", "Europe/Berlin", "SUN\nMON 22:00-24:00"),
        starts_at=datetime(2026, 10, 11, tzinfo=UTC),
        ends_at=datetime(2026, 10, 13, 12, tzinfo=UTC),
    )
    first = timetable.first_after(NOW)
    assert first is not None
    freeze = FrozenPeriod(NOW, datetime(2026, 10, 12, 10, tzinfo=UTC), "deploy")
    days = [date(2026, 10, number) for number in (10, 11, 12, 13, 14)]
    past, sunday, monday, tuesday, after = upcoming_days(
        days,
        now=NOW,
        timetable=timetable,
        occurrences=occurrences_per_day(timetable, first, days[-1]),
        reasons_on=lambda day: ExclusionReasons((f"{day:%A}",)),
        freezes=[freeze],
    )

    assert past == UpcomingDay(days[0], is_past=True)
    assert (sunday.is_excluded, sunday.occurrences) == (True, None)
    assert (sunday.reasons.names, sunday.freezes) == (("Sunday",), (freeze,))
    assert not monday.is_excluded
    assert (monday.excluded, monday.freezes) == (((79_200, 86_400),), (freeze,))
    assert monday.occurrences == DayOccurrences(1, datetime(2026, 10, 12, 7, tzinfo=UTC))
    assert (tuesday.reasons, tuesday.freezes, tuesday.is_outside) == (NO_REASONS, (), False)
    assert tuesday.occurrences is not None
    assert (after.is_outside, after.occurrences) == (True, None)


@pytest.mark.parametrize(
    ("begin", "end", "frozen"),
    [
        (NOW, None, [11, 12, 13]),
        (NOW, datetime(2026, 10, 12, tzinfo=UTC), [11]),
        (NOW - DAY, NOW, []),
        (NOW + DAY, NOW + 2 * DAY, [12, 13]),
    ],
)
def test_freeze_marks_the_days_that_it_covers(
    begin: datetime, end: datetime | None, frozen: list[int]
) -> None:
    found = upcoming_days(
        [date(2026, 10, number) for number in range(10, 14)],
        now=NOW,
        timetable=Timetable(schedule_of("0 9 * * *")),
        occurrences={},
        reasons_on=lambda _day: NO_REASONS,
        freezes=[FrozenPeriod(begin, end, "deploy")],
    )
    assert [each.day.day for each in found if each.freezes] == frozen


def test_days_of_months_are_all_days_of_whole_months() -> None:
    days = days_of_months(date(2026, 12, 31), 2)
    assert (days[0], days[-1], len(days)) == (date(2026, 12, 1), date(2027, 1, 31), 62)
