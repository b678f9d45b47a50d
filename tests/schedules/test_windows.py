"""Calendars with times: occurrences match a brute-force definition, minute by minute."""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest

from django_dcron.exceptions import InvalidCalendar, InvalidSchedule
from django_dcron.schedules.calendar import ExcludedDates, ExclusionPolicy
from django_dcron.schedules.calendar_text import WEEKDAYS
from django_dcron.schedules.clock_changes import clock_changes
from django_dcron.schedules.days import HORIZON
from django_dcron.schedules.describe import describe
from django_dcron.schedules.exclusion import apply_calendar
from django_dcron.schedules.load import RealHours, RealMinute
from django_dcron.schedules.schedule import Schedule, parse_schedule
from django_dcron.schedules.times_of_day import TimesByDate
from django_dcron.schedules.timetable import MICROSECOND, Timetable
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
    dates: tuple[date, date] | None = None
    """A range of whole dates, which counts instead of weekdays and times."""

    def has(self, local: datetime) -> bool:
        if self.dates:
            return self.dates[0] <= local.date() <= self.dates[1]
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if self.begin < self.end:
            return day in self.weekdays and self.begin <= minute < self.end
        return (day in self.weekdays and minute >= self.begin) or (
            (day - 1) % 7 in self.weekdays and minute < self.end
        )

    @property
    def text(self) -> str:
        word = "only " if self.only else ""
        if self.dates:
            return f"{word}{self.dates[0]}..{self.dates[1]}"
        times = "-".join(f"{at // 60:02}:{at % 60:02}" for at in (self.begin, self.end))
        if len(self.weekdays) == 7:
            return f"{word}{times}"
        return ", ".join(f"{word}{WEEKDAYS[day]} {times}" for day in sorted(self.weekdays))


def any_entry(random: Random) -> Entry:
    begin = random.choice([0, 60, 90, 120, 180, 540, 1020, 1320])
    end = random.choice([at for at in (90, 150, 181, 240, 360, 1080, 1440) if at != begin])
    weekdays = random.choice([range(7), range(5), (5, 6), (random.randrange(7),)])
    return Entry(random.random() < 0.3, frozenset(weekdays), begin, end)


def any_range(random: Random, start: datetime) -> Entry:
    """Return whole dates near ``start``: a long or short range, or the only dates left."""
    first = start.date() + random.randrange(-2, 3) * DAY
    last = first + random.choice([0, 1, 400, 9000]) * DAY
    if random.random() < 0.3:
        first -= random.choice([3, 400, 9000]) * DAY
    return Entry(random.random() < 0.6, frozenset(), 0, 0, (first, last))


def is_excluded(entries: list[Entry], local: datetime) -> bool:
    only = [entry for entry in entries if entry.only]
    return any(entry.has(local) for entry in entries if not entry.only) or (
        bool(only) and not any(entry.has(local) for entry in only)
    )


def times_in_the_fields(line: Schedule, instant: datetime, zone: str) -> list[datetime]:
    """Return the local times in the fields of a line that lead to an occurrence at ``instant``.

    There are several if the clocks skip some of them.
    """
    local = instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    before = (instant - MINUTE).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    if line.wall_clock is None or not line.wall_clock.cron.fixed or local - before <= MINUTE:
        return [local]
    unskipped = parse_schedule(line.text)  # UTC skips nothing
    found = unskipped.occurrences(before.replace(tzinfo=UTC), local.replace(tzinfo=UTC))
    return [at.replace(tzinfo=None) for at in found]


def oracle(
    own: Schedule, entries: list[Entry], zone: str, moves: bool, start: datetime, end: datetime
) -> list[datetime]:
    """Return the occurrences in ``(start, end]``: look at each minute since a week before."""
    found, moving, at = set(), False, start - 8 * DAY
    occurrences = set(own.occurrences(at - MINUTE, end))
    if not moves:
        occurrences = {
            found
            for line in own.lines
            for found in line.occurrences(at - MINUTE, end)
            if not all(
                is_excluded(entries, local) for local in times_in_the_fields(line, found, zone)
            )
        }
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
        start = STARTS[number % 2] + random.randrange(-3, 3) * DAY
        # The oracle looks back a week, which always has an occurrence of other texts than ``@at``.
        if number % 3 == 0 and not text.startswith("@at"):
            entries.append(any_range(random, start))
        dates = calendar("\n".join(entry.text for entry in entries))
        schedule = apply_calendar(own, dates, policy)
        end = start + 3 * DAY
        expected = oracle(own, entries, zone, policy is END, start, end)
        assert both_ways(schedule, start, end) == expected, (text, zone, dates.text, policy)
        compared += len(expected)
        for at in expected[:3]:
            assert RealMinute(at).has_start(Timetable(schedule))
        if list(clock_changes(own, start, end)):
            continue  # Counted by the wall clock: see ``load``.
        hours = RealHours(start, 72)
        timetable = Timetable(schedule, start + MINUTE, end - MINUTE)
        minutes = dict(hours.minutes(timetable))
        # An end of the job is respected to the minute, and its occurrences are at whole minutes.
        assert minutes == {(at - start) // MINUTE: 1 for at in expected if at < end}
        assert sum(count for _hour, count in hours.occurrences(timetable)) == len(minutes)
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
    schedule = apply_calendar(parse_schedule("*/30 * * * *"), calendar(dates), policy)
    found = schedule.occurrences(datetime(2026, 5, 1, 1, 15, tzinfo=UTC), STARTS[1], len(expected))
    assert [f"{at:%H:%M}" for at in found] == expected


def test_inclusion_of_dates_excludes_all_others() -> None:
    dates = calendar("only 2026-05-04..2026-05-06\nonly SAT\n2026-05-05")
    assert not dates.has_times
    kept = [date(2026, 5, day) for day in (2, 4, 6, 9, 16, 23, 30)]
    days = [date(2026, 5, 1) + number * DAY for number in range(31)]
    assert [day for day in days if not dates.excludes(day)] == kept
    schedule = apply_calendar(parse_schedule("0 9 * * *"), dates, SKIP)
    found = schedule.occurrences(STARTS[0] + 34 * DAY, STARTS[0] + 65 * DAY)
    assert [at.date() for at in found] == kept
    schedule = apply_calendar(parse_schedule("0 9 * * *"), dates, END)
    found = schedule.occurrences(STARTS[0] + 34 * DAY, STARTS[0] + 65 * DAY)
    assert [at.date() for at in found if not at.hour] == kept  # once after each excluded period


def test_working_days_are_dates_with_any_time_left() -> None:
    dates = calendar("only MON-FRI 09:00-17:00\n2026-05-01")
    schedule = apply_calendar(parse_schedule("0 9 WD#1 * *"), dates, SKIP)
    assert schedule.next_after(datetime(2026, 5, 1, tzinfo=UTC)) == datetime(
        2026, 5, 4, 9, tzinfo=UTC
    )


def test_move_to_the_next_date_is_refused_with_times() -> None:
    with pytest.raises(InvalidSchedule) as caught:
        apply_calendar(parse_schedule("@daily"), calendar("22:00-06:00"), ExclusionPolicy.NEXT_DAY)
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
    schedule = apply_calendar(parse_schedule("0 3 * * *"), calendar("02:00-04:00"), policy)
    after = datetime(2026, 5, 1, tzinfo=UTC)
    expected = None if policy is SKIP else datetime(2026, 5, 1, 4, tzinfo=UTC)
    assert schedule.next_after(after) == expected
    never = apply_calendar(parse_schedule("0 3 * * *"), calendar("00:00-24:00"), policy)
    assert never.next_after(after) is never.previous_before(after) is None


@pytest.fixture
def computed_dates(monkeypatch: pytest.MonkeyPatch) -> Counter[date]:
    """Count how often the excluded times of each date are computed."""
    counted: Counter[date] = Counter()
    excluded_times = ExcludedDates.excluded_times

    def count(dates: ExcludedDates, day: date) -> tuple[tuple[int, int], ...]:
        counted[day] += 1
        return excluded_times(dates, day)

    monkeypatch.setattr(ExcludedDates, "excluded_times", count)
    return counted


@pytest.mark.parametrize(
    ("text", "dates", "most"),
    [
        ("30 2 * * *", "02:00-04:00", 1),
        ("30 2 * * *", "MON-FRI 02:00-04:00, SAT-SUN 01:00-03:00", 1),
        ("30 2 * * *", "MON-FRI, SAT-SUN 01:00-03:00", 1),
        ("0 3 * * *", "only 01-01 10:00-11:00", 1),
        ("0 3 29 2 *", "only SAT 10:00-11:00", 1),
        ("0 9 29 2 *", "02-29 08:00-10:00", 100),
        ("@rrule 2020-01-06T03:00 FREQ=YEARLY;INTERVAL=7", "01-06 02:00-04:00", 100),
        ("30 2 * * *", "01-01..06-30 02:00-04:00, 07-01..12-31 02:00-04:00", 5_000),
        ("0 3 * * *", "1970-01-01..2199-12-31 02:00-04:00", 100),
    ],
)
def test_search_without_a_result_ends_at_the_horizon(
    computed_dates: Counter[date], text: str, dates: str, most: int
) -> None:
    schedule = apply_calendar(parse_schedule(text), calendar(f"{dates} # {text}"), SKIP)
    start = datetime(2026, 5, 1, tzinfo=UTC)
    assert schedule.next_after(start) is schedule.previous_before(start) is None
    assert computed_dates.total() <= most
    if computed_dates:
        assert max(computed_dates) - min(computed_dates) <= 2 * HORIZON + 10 * 366 * DAY


@pytest.mark.parametrize(
    "dates",
    [
        "02-28..02-29 23:00-02:00, 10-01..01-15",
        "2024-02-27..2028-03-02 22:00-06:00, SUN 01:00-02:00, 2028-03-02..2030-01-01 01:00-02:00",
        "12-24..01-01, 02-29 20:00-04:00",
        "only 02-28..02-29 23:00-02:00, only MON",
        "2026-05-01, 2026-06-01..2026-06-30 21:00-20:00",
    ],
)
def test_weekday_decides_on_steady_dates(dates: str) -> None:
    entries, seen = calendar(dates), set()
    for number in range(2000):
        day = date(2024, 1, 1) + number * DAY
        first, last = entries.steady_dates(day)
        assert first <= day <= last
        if first == last or first in seen:
            continue
        seen.add(first)
        length = min((last - day).days + 1, 800)
        times = [entries.excluded_times(day + n * DAY) for n in range(length)]
        assert times[:-7] == times[7:], day
    assert len(seen) >= 3


@pytest.mark.parametrize(
    "dates",
    ["02:00-04:00", "01-01..06-30 02:00-04:00, 07-01..12-31 02:00-04:00", "2020-01-01..2080-01-01"],
)
@pytest.mark.parametrize("policy", [SKIP, END])
def test_line_without_occurrences_is_searched_once_and_not_for_each_occurrence(
    computed_dates: Counter[date], dates: str, policy: ExclusionPolicy
) -> None:
    text = "*/5 5-23 * * *\n30 2 * * *"
    schedule = apply_calendar(parse_schedule(text), calendar(f"{dates} # {policy}"), policy)
    start = datetime(2026, 5, 1, tzinfo=UTC)
    schedule.next_after(start)
    first = computed_dates.total()
    found = list(schedule.occurrences(start, start + 5 * DAY))
    # One occurrence a night is moved, and two occurrences are on the edges.
    expected = 0 if "2080" in dates else 5 * (19 * 12 + (policy is END))
    assert len(found) == expected
    assert computed_dates.total() - first <= 10 * len(found) + 100


@pytest.mark.parametrize(
    "dates", ["MON-SAT", "MON-SAT 02:00-04:00", "MON-SAT, 2026-05-03 02:00-04:00"]
)
def test_each_date_is_evaluated_once_for_all_lines(
    computed_dates: Counter[date], monkeypatch: pytest.MonkeyPatch, dates: str
) -> None:
    evaluated: Counter[date] = Counter()
    add = TimesByDate.add

    def count(known: TimesByDate, day: date, times: tuple[tuple[int, int], ...]) -> None:
        evaluated[day] += 1
        add(known, day, times)

    monkeypatch.setattr(TimesByDate, "add", count)
    dead = "\n".join(f"{minute} 2 * * MON-SAT" for minute in range(10))
    # The holiday, May 1, differs in weekday each year, so the weekday alone doesn't decide.
    entries = calendar(f"holidays DE, {dates}")
    schedule = apply_calendar(parse_schedule(f"{dead}\n0 12 * * SUN"), entries, SKIP)
    start = datetime(2026, 5, 1, tzinfo=UTC)
    assert schedule.next_after(start) == datetime(2026, 5, 3, 12, tzinfo=UTC)
    assert max(evaluated.values()) == 1
    assert evaluated.total() <= HORIZON.days + 2 * 366 + 10
    first = computed_dates.total()
    found = list(schedule.occurrences(start, start + 100 * DAY))
    assert len(found) == 14
    assert computed_dates.total() - first <= 10 * len(found)
    assert schedule.previous_before(start) == datetime(2026, 4, 26, 12, tzinfo=UTC)
    assert max(evaluated.values()) == 1


@pytest.mark.parametrize("dates", ["02:00-04:00", "only 03:30-04:00, only SUN 02:30-02:45"])
def test_results_do_not_depend_on_earlier_searches(dates: str) -> None:
    random = Random(7)
    text = "30 2 * * *\n15 3 * * MON"
    for policy in (SKIP, END):
        shared = apply_calendar(parse_schedule(text), calendar(dates), policy)
        for number in range(60):
            at = datetime(2026, 1, 1, tzinfo=UTC) + random.randrange(20_000) * 10 * MINUTE
            # The comment makes another text, and so a schedule that hasn't searched yet.
            fresh = apply_calendar(parse_schedule(text), calendar(f"{dates} # {number}"), policy)
            assert shared.next_after(at) == fresh.next_after(at)
            assert shared.previous_before(at) == fresh.previous_before(at)


def test_occurrences_after_many_excluded_stretches_are_found() -> None:
    windows = [
        f"{half} {hour:02}:{minute:02}-{hour:02}:{minute + 29:02}"
        for half in ("01-01..06-30", "07-01..12-31")
        for hour in range(12)
        for minute in (0, 30)
    ]
    half_hours = apply_calendar(
        parse_schedule("*/30 0-11 * * *\n@at 2075-01-01T00:29"), calendar("\n".join(windows)), SKIP
    )
    start = datetime(2026, 5, 1, tzinfo=UTC)
    assert half_hours.next_after(start) == datetime(2075, 1, 1, 0, 29, tzinfo=UTC)
    nightly = apply_calendar(
        parse_schedule("0 3 * * *"), calendar("2026-01-01..2070-01-01 02:00-04:00"), SKIP
    )
    assert nightly.next_after(start) == datetime(2070, 1, 2, 3, tzinfo=UTC)
    assert nightly.previous_before(datetime(2070, 1, 2, tzinfo=UTC)) == datetime(
        2025, 12, 31, 3, tzinfo=UTC
    )


@pytest.mark.parametrize("text", ["0 3 * * *", "0 0 3 5 12 ? 2026", "@at 2026-12-05T03:00"])
@pytest.mark.parametrize("policy", [SKIP, END])
def test_open_times_that_begin_in_the_future_are_found(text: str, policy: ExclusionPolicy) -> None:
    dates = calendar("only 2026-12-01..2026-12-24 02:00-10:00")
    schedule = apply_calendar(parse_schedule(text), dates, policy)
    start, end = datetime(2026, 11, 25, tzinfo=UTC), datetime(2027, 1, 5, tzinfo=UTC)
    found = both_ways(schedule, start, end)
    assert [at for at in found if at.hour == 3] == both_ways(
        parse_schedule(text), datetime(2026, 12, 1, tzinfo=UTC), datetime(2026, 12, 25, tzinfo=UTC)
    )
    # One run stands for all earlier times.
    assert [at.hour for at in found if at.hour != 3] == [2] * (
        text[0] == "0" and policy is END and "?" not in text
    )


@pytest.mark.parametrize(
    ("dates", "policy", "expected"),
    [
        ("02:00-04:00", SKIP, datetime(2090, 1, 1, 10, tzinfo=UTC)),
        ("02:00-04:00", END, datetime(2090, 1, 1, 10, tzinfo=UTC)),
        ("09:00-11:00", SKIP, None),
        ("09:00-11:00", END, datetime(2090, 1, 1, 11, tzinfo=UTC)),
        ("2090-01-01", END, datetime(2090, 1, 2, tzinfo=UTC)),
    ],
)
def test_single_instant_has_no_horizon(
    dates: str, policy: ExclusionPolicy, expected: datetime | None
) -> None:
    schedule = apply_calendar(parse_schedule("@at 2090-01-01T10:00"), calendar(dates), policy)
    assert schedule.next_after(datetime(2026, 5, 1, tzinfo=UTC)) == expected
    assert schedule.previous_before(datetime(2190, 5, 1, tzinfo=UTC)) == expected


@pytest.mark.parametrize(
    ("dates", "policy", "expected"),
    [
        ("02:00-03:00", SKIP, None),  # its time in the fields
        ("03:00-04:00", SKIP, None),  # its instant
        ("02:00-03:00", END, "03:00"),
        ("02:00-04:00", END, "04:00"),
        ("03:30-04:00", SKIP, "03:00"),
    ],
)
def test_time_that_the_clocks_skip_is_excluded_with_its_time_in_the_fields(
    dates: str, policy: ExclusionPolicy, expected: str | None
) -> None:
    zone = ZoneInfo("Europe/Berlin")
    schedule = apply_calendar(parse_schedule("30 2 * * *", zone.key), calendar(dates), policy)
    begin = datetime(2026, 3, 29, tzinfo=zone)
    found = both_ways(schedule, begin - MINUTE, begin + DAY - MINUTE)
    assert [f"{at.astimezone(zone):%H:%M}" for at in found] == [expected] * (expected is not None)


@pytest.mark.parametrize("policy", [SKIP, END])
def test_planned_load_looks_at_each_date_and_not_at_each_minute(
    computed_dates: Counter[date], policy: ExclusionPolicy
) -> None:
    schedule = apply_calendar(
        parse_schedule("* * * * *", "Europe/Berlin"),
        calendar(f"02:00-04:00 # load {policy}"),
        policy,
    )
    hours = dict(
        RealHours(datetime(2026, 5, 1, tzinfo=UTC), 7 * 24).occurrences(Timetable(schedule))
    )
    assert sum(hours.values()) == 7 * 22 * 60
    # Per date: once for the date, and three times for each end of a part of an excluded hour.
    assert computed_dates.total() <= 8 * 10


@pytest.mark.parametrize(
    "text",
    [
        "15 30 10 * * *",
        "15,45 */30 7-9 * * *",
        "0 30 10 * * *",
        "@at 2026-05-01T10:30:15",
        "0 3 * * *",
    ],
)
@pytest.mark.parametrize("hour", range(0, 24, 3))
def test_planned_load_that_begins_in_excluded_time_counts_each_occurrence_once(
    text: str, hour: int
) -> None:
    schedule = apply_calendar(parse_schedule(text), calendar("22:00-06:00"), END)
    begin = datetime(2026, 5, 1, hour, tzinfo=UTC)
    hours, timetable = RealHours(begin, 24), Timetable(schedule)
    occurrences = list(schedule.occurrences(begin - MICROSECOND, begin + DAY - MICROSECOND))
    by_hour = Counter(hours.number_of(at) for at in occurrences)
    by_minute = Counter((at - begin) // MINUTE for at in occurrences)
    assert dict(hours.occurrences(timetable)) == by_hour
    assert dict(hours.minutes(timetable)) == by_minute


def test_clock_change_in_excluded_time_is_not_reported() -> None:
    own = parse_schedule("30 2 * * *", "Europe/Berlin")
    hidden = apply_calendar(own, calendar("01:00-05:00"), SKIP)
    shown = apply_calendar(own, calendar("01:00-02:10"), SKIP)
    until = STARTS[0] + 5 * DAY
    assert list(clock_changes(hidden, STARTS[0], until)) == []
    assert list(clock_changes(shown, STARTS[0], until)) == list(
        clock_changes(own, STARTS[0], until)
    )


@pytest.mark.parametrize(
    ("text", "excluded", "policy", "effects"),
    [
        ("0 2,4 * * *", "01:50-02:10", SKIP, []),
        ("0 2,4 * * *", "01:50-02:10", END, ["once_after", "first_time"]),
        ("0 2,4 * * *", "02:10-02:50", SKIP, ["once_after", "first_time"]),
        ("0,30 2 * * *", "02:10-02:50", SKIP, ["once_after", "first_time"]),
        ("30 2 * * *", "02:30-04:30", END, []),
        ("0 1 * * *", "01:00-02:30", SKIP, []),
        ("0 1 * * *", "01:00-02:30", END, ["once_after", "first_time"]),
        ("*/20 1 * * *", "00:30-02:30", END, ["once_after", "first_time"]),
        ("0 1 * * *", "01:00-02:00", END, []),
        ("0 1 * * *", "01:00-03:00", END, []),
        ("0 1 * * *", "01:10-02:30", END, []),
        ("0 1 * * *", "01:00-02:30,03:00-05:00", END, ["first_time"]),
        ("*/20 * * * *", "01:00-02:30", END, []),
        ("30 2 * * *", "03:00-05:00", SKIP, ["not_at_all", "first_time"]),
        ("30 2 * * *", "03:00-05:00", END, ["first_time"]),
        ("*/20 2 * * *", "02:00-02:30", SKIP, ["not_at_all", "both_times"]),
    ],
)
def test_reported_clock_changes_are_those_of_times_that_are_not_excluded(
    text: str, excluded: str, policy: ExclusionPolicy, effects: list[str]
) -> None:
    own = parse_schedule(text, "Europe/Berlin")
    schedule = apply_calendar(own, calendar(excluded), policy)
    found = list(clock_changes(schedule, STARTS[0], STARTS[1] + 5 * DAY))
    assert [change.effect for change in found] == effects
    for change in found:
        at_end = list(schedule.occurrences(change.at - MICROSECOND, change.at))
        assert bool(at_end) == (change.effect == "once_after")


def test_different_schedules_have_different_descriptions() -> None:
    own = parse_schedule("0 3 * * *")
    words = {
        describe(apply_calendar(own, calendar(dates), policy))
        for dates, policy in (("SAT", SKIP), ("SAT", END), ("22:00-04:00", SKIP))
    }
    assert len(words) == 3
