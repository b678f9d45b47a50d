"""Calendars with times: occurrences match a brute-force definition, minute by minute."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest

from django_dcron.exceptions import InvalidCalendar, InvalidSchedule
from django_dcron.schedules.calendar import WEEKDAYS, ExclusionPolicy
from django_dcron.schedules.clock_changes import clock_changes
from django_dcron.schedules.days import HORIZON
from django_dcron.schedules.describe import describe
from django_dcron.schedules.exclusion import excluding
from django_dcron.schedules.load import Minute, RealHours
from django_dcron.schedules.schedule import Schedule, WallClock, parse_schedule
from django_dcron.schedules.timetable import Timetable
from django_dcron.schedules.windows import MAX_JUMPS, Windowed
from tests import depth
from tests.schedules.test_exclusion import calendar
from tests.schedules.test_lines import both_ways

SKIP, END = ExclusionPolicy.SKIP, ExclusionPolicy.WINDOW_END
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
TEXTS = (
    "*/15 * * * *",
    "30 2 * * *",
    "0 * * * *",
    "10,40 1-3 * * *",
    "0 9 * * MON-FRI",
    "7 22 * * *\n30 5 * * *\n*/40 12 * * SAT",
    "@rrule 2026-01-01 FREQ=DAILY;INTERVAL=2;BYHOUR=2,14",
    "@at 2026-03-29T02:30",
)
STARTS = (datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC))
"""Before the clocks of Berlin change. Those of New York and Lord Howe change in other weeks."""


@dataclass(frozen=True)
class Entry:
    """An entry of a calendar, with its times in minutes of the day."""

    only: bool
    weekdays: frozenset[int]
    begin: int
    end: int

    def has(self, local: datetime) -> bool:
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if self.begin < self.end:
            return day in self.weekdays and self.begin <= minute < self.end
        return (day in self.weekdays and minute >= self.begin) or (
            (day - 1) % 7 in self.weekdays and minute < self.end
        )

    @property
    def text(self) -> str:
        word = "only " if self.only else ""
        times = "-".join(f"{at // 60:02}:{at % 60:02}" for at in (self.begin, self.end))
        if len(self.weekdays) == 7:
            return f"{word}{times}"
        return ", ".join(f"{word}{WEEKDAYS[day]} {times}" for day in sorted(self.weekdays))


def any_entry(random: Random) -> Entry:
    begin = random.choice([0, 60, 90, 120, 180, 540, 1020, 1320])
    end = random.choice([at for at in (90, 150, 181, 240, 360, 1080, 1440) if at != begin])
    weekdays = random.choice([range(7), range(5), (5, 6), (random.randrange(7),)])
    return Entry(random.random() < 0.3, frozenset(weekdays), begin, end)


def is_excluded(entries: list[Entry], local: datetime) -> bool:
    only = [entry for entry in entries if entry.only]
    return any(entry.has(local) for entry in entries if not entry.only) or (
        bool(only) and not any(entry.has(local) for entry in only)
    )


def oracle(
    own: Schedule, entries: list[Entry], zone: str, moves: bool, start: datetime, end: datetime
) -> list[datetime]:
    """Return the occurrences in ``(start, end]``: look at each minute since a week before."""
    found, moving, at = set(), False, start - 8 * DAY
    occurrences = set(own.occurrences(at - MINUTE, end))
    while at <= end:
        occurs = at in occurrences
        if is_excluded(entries, at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)):
            moving |= occurs
        else:
            if occurs or (moves and moving):
                found.add(at)
            moving = False
        at += MINUTE
    return sorted(at for at in found if at > start)


def test_occurrences_match_a_definition_by_the_minute() -> None:
    random, compared = Random(4), 0
    for number in range(depth.examples(120)):
        entries = [any_entry(random) for _ in range(random.randrange(1, 4))]
        text, zone = random.choice(TEXTS), random.choice(ZONES)
        policy = random.choice([SKIP, END])
        own = parse_schedule(text, zone)
        dates = calendar("\n".join(entry.text for entry in entries))
        schedule = excluding(own, dates, policy)
        start = STARTS[number % 2] + random.randrange(-3, 3) * DAY
        end = start + 3 * DAY
        expected = oracle(own, entries, zone, policy is END, start, end)
        assert both_ways(schedule, start, end) == expected, (text, zone, dates.text, policy)
        compared += len(expected)
        hours = RealHours(start, 72)
        timetable = Timetable(schedule, start + MINUTE, end - MINUTE)
        minutes = dict(hours.minutes(timetable))
        # An end of the job is respected to the minute, and its occurrences are at whole minutes.
        assert minutes == {(at - start) // MINUTE: 1 for at in expected if at < end}
        assert sum(count for _hour, count in hours.occurrences(timetable)) == len(minutes)
        for at in expected[:3]:
            assert Minute(at).has_start(Timetable(schedule))
    assert compared > depth.examples(500)


@pytest.mark.parametrize(
    ("dates", "policy", "expected"),
    [
        ("02:00-04:00", SKIP, ["01:30", "04:00", "04:30"]),
        ("02:00-04:00", END, ["01:30", "04:00", "04:30"]),
        ("02:00-04:10", END, ["01:30", "04:10", "04:30"]),
        ("only 01:00-01:40, only 04:00-05:00", END, ["01:30", "04:00", "04:30"]),
        ("2026-05-01 02:00-04:10", SKIP, ["01:30", "04:30"]),
        ("holidays DE 02:00-04:10", SKIP, ["01:30", "04:30"]),
        ("04-30 22:00-01:45", END, ["01:45", "02:00", "02:30"]),
    ],
)
def test_windows_restrict_the_occurrences(
    dates: str, policy: ExclusionPolicy, expected: list[str]
) -> None:
    schedule = excluding(parse_schedule("*/30 * * * *"), calendar(dates), policy)
    found = schedule.occurrences(datetime(2026, 5, 1, 1, 15, tzinfo=UTC), STARTS[1], len(expected))
    assert [f"{at:%H:%M}" for at in found] == expected


def test_inclusion_of_dates_excludes_all_others() -> None:
    dates = calendar("only 2026-05-04..2026-05-06\nonly SAT\n2026-05-05")
    assert not dates.has_times
    kept = [date(2026, 5, day) for day in (2, 4, 6, 9, 16, 23, 30)]
    days = [date(2026, 5, 1) + number * DAY for number in range(31)]
    assert [day for day in days if not dates.excludes(day)] == kept
    schedule = excluding(parse_schedule("0 9 * * *"), dates, SKIP)
    found = schedule.occurrences(STARTS[0] + 34 * DAY, STARTS[0] + 65 * DAY)
    assert [at.date() for at in found] == kept
    schedule = excluding(parse_schedule("0 9 * * *"), dates, END)
    found = schedule.occurrences(STARTS[0] + 34 * DAY, STARTS[0] + 65 * DAY)
    assert [at.date() for at in found if not at.hour] == kept  # once after each excluded stretch


def test_working_days_are_dates_with_any_time_left() -> None:
    dates = calendar("only MON-FRI 09:00-17:00\n2026-05-01")
    schedule = excluding(parse_schedule("0 9 WD#1 * *"), dates, SKIP)
    assert schedule.next_after(datetime(2026, 5, 1, tzinfo=UTC)) == datetime(
        2026, 5, 4, 9, tzinfo=UTC
    )


def test_move_to_the_next_date_is_refused_with_times() -> None:
    with pytest.raises(InvalidSchedule) as caught:
        excluding(parse_schedule("@daily"), calendar("22:00-06:00"), ExclusionPolicy.NEXT_DAY)
    assert caught.value.code == "calendar_with_times"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("25:00-26:00", "invalid_time"),
        ("24:00-06:00", "invalid_time"),
        ("09:60-10:00", "invalid_time"),
        ("SAT 09:00-09:00", "invalid_time"),
        ("SAT 9:00-10:00", "unknown_entry"),
        ("only", "unknown_entry"),
        ("only only SAT", "unknown_entry"),
        ("\n".join(f"0{n // 60}:{n % 60:02}-09:00" for n in range(51)), "too_many_times"),
    ],
)
def test_invalid_time_is_refused(text: str, code: str) -> None:
    with pytest.raises(InvalidCalendar) as caught:
        calendar(text)
    assert caught.value.code == code


@pytest.mark.parametrize("policy", [SKIP, END])
def test_schedule_that_is_always_excluded_has_no_occurrence_or_one_per_stretch(
    policy: ExclusionPolicy,
) -> None:
    schedule = excluding(parse_schedule("0 3 * * *"), calendar("02:00-04:00"), policy)
    after = datetime(2026, 5, 1, tzinfo=UTC)
    expected = None if policy is SKIP else datetime(2026, 5, 1, 4, tzinfo=UTC)
    assert schedule.next_after(after) == expected
    never = excluding(parse_schedule("0 3 * * *"), calendar("00:00-24:00"), policy)
    assert never.next_after(after) is never.previous_before(after) is None


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("0 3 29 2 *", "only SAT 10:00-11:00"),
        ("0 3 * * *", "02:00-04:00"),
        ("@rrule 2020-01-06T03:00 FREQ=YEARLY;INTERVAL=7", "02:00-04:00"),
    ],
)
def test_search_without_a_result_ends_at_the_horizon(text: str, dates: str) -> None:
    asked = []

    class Counted(NamedTuple):
        """The rule of the schedule, which counts how often it is asked."""

        rule: WallClock

        def next_after(self, instant: datetime) -> datetime | None:
            asked.append(instant)
            return self.rule.next_after(instant)

        def previous_before(self, instant: datetime) -> datetime | None:
            asked.append(instant)
            return self.rule.previous_before(instant)

    rule = parse_schedule(text).rule
    assert isinstance(rule, WallClock)
    windowed = Windowed(Counted(rule), calendar(dates), "UTC", moves=False)
    start = datetime(2026, 5, 1)  # noqa: DTZ001
    assert windowed.next_after(start) is windowed.previous_before(start) is None
    assert len(asked) <= 2 * MAX_JUMPS + 2
    assert max(asked) - min(asked) <= 2 * HORIZON + 8 * DAY


def test_clock_change_in_excluded_time_is_not_reported() -> None:
    own = parse_schedule("30 2 * * *", "Europe/Berlin")
    hidden = excluding(own, calendar("01:00-05:00"), SKIP)
    shown = excluding(own, calendar("01:00-02:10"), SKIP)
    until = STARTS[0] + 5 * DAY
    assert list(clock_changes(hidden, STARTS[0], until)) == []
    assert list(clock_changes(shown, STARTS[0], until)) == list(
        clock_changes(own, STARTS[0], until)
    )


def test_different_schedules_have_different_descriptions() -> None:
    own = parse_schedule("0 3 * * *")
    words = {
        describe(excluding(own, calendar(dates), policy))
        for dates, policy in (("SAT", SKIP), ("SAT", END), ("22:00-04:00", SKIP))
    }
    assert len(words) == 3
