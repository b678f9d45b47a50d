"""The forecast counts as many occurrences in each hour as ``Schedule`` lists."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from django_dcron.schedules.load import HOUR, MINUTE, RealHours, RealMinute
from django_dcron.schedules.schedule import Schedule, parse_schedule, parse_with_drawn_values
from django_dcron.schedules.timetable import Timetable
from django_dcron.schedules.zones import offset_period_at
from tests.schedules.test_schedule_properties import (
    MINUTE_CRON,
    SECOND_CRON,
    ZONES,
    examples,
    parsed,
)

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
# Midnight in Berlin, with no clock change for weeks.
MIDSUMMER = datetime(2026, 6, 14, 22, tzinfo=UTC)


def listed(timetable: Timetable, hours: RealHours) -> dict[int, int]:
    end = hours.begin + hours.count * HOUR
    found = timetable.schedule.occurrences(hours.begin - SECOND, end - SECOND)
    starts, ends = timetable.starts_at or hours.begin, timetable.ends_at or end
    return dict(Counter(hours.number_of(at) for at in found if starts <= at <= ends))


def counted(
    timetable: Timetable, hours: RealHours, known: datetime | None = None
) -> dict[int, int]:
    found: Counter[int] = Counter()
    for hour, number in hours.occurrences(timetable, known):
        found[hour] += number
    return dict(found)


@pytest.mark.parametrize(
    "text",
    [
        "* * * * * *",
        "* * * * *",
        "*/5 8-18 * * MON-FRI",
        "0,30 */2 * * *",
        "7 3 L * *",
        "0 12 15W,LW * *",
        "30 9 * * MON#3,FRIL",
        "0 0 14,16 * WED",
        "5-50/15 * * 6 * ",
        "15,45 10-12 6-8 * 6 ? 2026",
        "H H(0-6) * * *",
        "H/10 H/3 * * H",
        "H * H * *",
        "@hourly",
        "@weekly",
        "@yearly",
        "@at 2026-06-18T03:59:59",
        "@at 2030-01-01T00:00",
        "CRON_TZ=Asia/Kolkata 45 3,23 * * *",
        "TZ=America/New_York H * * * *",
    ],
)
@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Kiritimati"]
)
def test_hourly_counts_match_the_occurrences(text: str, zone: str) -> None:
    timetable = Timetable(parse_schedule(text, zone, hash_key="default/report"))
    for begin in (MIDSUMMER, MIDSUMMER + timedelta(minutes=30)):
        hours = RealHours(begin, 3 if text == "* * * * * *" else 168)
        assert counted(timetable, hours) == listed(timetable, hours), begin


@pytest.mark.parametrize(
    "text",
    [
        "* * * * *",
        "*/7 8-18 * * *",
        "0,30 12 15W * *",
        "H H(0-6) * * *",
        "@every 1m",
        "@every 7m",
        "@every 25m",
        "@every 20h",
        "@at 2026-06-15T12:10",
        "@at 2026-06-15T18:31",
        "@at 2030-01-01T00:00",
        "@never",
    ],
)
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kathmandu"])
@pytest.mark.parametrize(
    ("starts", "ends"),
    [
        (None, None),
        (MIDSUMMER + 12 * HOUR + 10 * MINUTE, MIDSUMMER + 18 * HOUR + 30 * MINUTE),
        (MIDSUMMER - DAY, MIDSUMMER + 9 * DAY),
    ],
)
def test_counts_per_minute_match_the_occurrences(
    text: str, zone: str, starts: datetime | None, ends: datetime | None
) -> None:
    """An interval takes its phase from an occurrence a day earlier."""
    schedule, hours = (
        parse_schedule(text, zone, hash_key="default/report"),
        RealHours(MIDSUMMER, 30),
    )
    known = MIDSUMMER - DAY
    found = schedule.occurrences(known, MIDSUMMER + 30 * HOUR - SECOND)
    expected = Counter(
        (at - MIDSUMMER) // MINUTE
        for at in found
        if (starts or known) <= at <= (ends or at) and at >= MIDSUMMER
    )
    minutes = list(hours.minutes(Timetable(schedule, starts, ends), known))
    assert dict(minutes) == dict(expected)
    assert len(minutes) == len(expected)


def assert_counts(text: str, zone: str, quarters: int, count: int) -> None:
    begin = datetime(1972, 2, 1, tzinfo=UTC) + quarters * timedelta(minutes=15)
    period = offset_period_at(zone, begin.replace(tzinfo=None))
    begins_after = begin.replace(tzinfo=None) - period.start
    assume(begins_after >= 3 * HOUR and period.end - begin.replace(tzinfo=None) >= count * HOUR)
    timetable, hours = Timetable(parsed(text, zone)), RealHours(begin, count)
    assert counted(timetable, hours) == listed(timetable, hours)


QUARTERS = st.integers(0, 80 * 365 * 24 * 4)


@examples(60)
@given(MINUTE_CRON, st.sampled_from(ZONES), QUARTERS)
def test_counts_match_for_random_minute_cron_between_clock_changes(
    text: str, zone: str, quarters: int
) -> None:
    assert_counts(text, zone, quarters, 24)


@examples(40)
@given(SECOND_CRON, st.sampled_from(ZONES), QUARTERS)
def test_counts_match_for_random_second_cron_between_clock_changes(
    text: str, zone: str, quarters: int
) -> None:
    assert_counts(text, zone, quarters, 2)


@pytest.mark.parametrize(
    "day", [datetime(2026, 3, 28, 23, tzinfo=UTC), datetime(2026, 10, 24, 22, tzinfo=UTC)]
)
@pytest.mark.parametrize("text", ["*/20 * * * *", "0 */2 * * *", "* 2 * * *", "15 * * * *"])
def test_wildcard_counts_match_across_clock_changes(day: datetime, text: str) -> None:
    timetable, hours = Timetable(parse_schedule(text, "Europe/Berlin")), RealHours(day, 48)
    assert counted(timetable, hours) == listed(timetable, hours)


def test_fixed_time_counts_are_inexact_across_clock_changes() -> None:
    """The forecast is inexact at a clock change.

    A fixed time that the clock skips occurs once, after the gap, but the forecast counts zero. A
    fixed time that repeats occurs once, but the forecast counts two.
    """
    fixed = Timetable(parse_schedule("30 2 * * *", "Europe/Berlin"))
    spring = RealHours(datetime(2026, 3, 28, 23, tzinfo=UTC), 23)
    autumn = RealHours(datetime(2026, 10, 24, 22, tzinfo=UTC), 25)
    assert (counted(fixed, spring), listed(fixed, spring)) == ({}, {2: 1})
    assert (counted(fixed, autumn), listed(fixed, autumn)) == ({2: 1, 3: 1}, {2: 1})


@pytest.mark.parametrize(
    "text", ["@every 1s", "@every 7m", "@every 45m", "@every 1h", "@every 25h", "@every 300h"]
)
@pytest.mark.parametrize("away", [timedelta(), -3 * DAY + 17 * SECOND, 40 * DAY + 59 * SECOND])
def test_every_schedule_is_counted_in_phase_with_a_known_occurrence(
    text: str, away: timedelta
) -> None:
    hours, known = RealHours(MIDSUMMER, 30), MIDSUMMER + away
    interval = parse_schedule(text).interval
    assert interval
    first = known - (known - hours.begin) // interval * interval
    expected: Counter[int] = Counter()
    for number in range(30 * HOUR // interval + 1):
        at = hours.number_of(first + number * interval)
        expected.update([at] if at < 30 else [])
    assert counted(Timetable(parse_schedule(text)), hours, known) == dict(expected)


@pytest.mark.parametrize("text", ["*/10 * * * *", "@every 10m", "@at 2026-06-15T12:00+00:00"])
def test_counts_respect_start_and_end(text: str) -> None:
    starts, ends = MIDSUMMER + 14 * HOUR, MIDSUMMER + 20 * HOUR - SECOND
    timetable = Timetable(parse_schedule(text), starts, ends)
    hours = RealHours(MIDSUMMER, 48)
    found = counted(timetable, hours, MIDSUMMER)
    assert found == ({14: 1} if "@at" in text else dict.fromkeys(range(14, 20), 6))


def test_nothing_is_counted_outside_of_start_and_end() -> None:
    hours = RealHours(MIDSUMMER, 24)
    every = parse_schedule("* * * * *")
    assert counted(Timetable(every, MIDSUMMER + DAY), hours) == {}
    assert counted(Timetable(every, None, MIDSUMMER - SECOND), hours) == {}
    assert len(counted(Timetable(every, MIDSUMMER - DAY, MIDSUMMER + 9 * DAY), hours)) == 24


TEXTS_WITH_HASHES = [
    "H H * * *",
    "H/15 * * * *",
    "H H(0-29)/10 8-18 * * MON-FRI",
    "H 3 H,15,LW * THU,SUN#1",
    "h h ? jan-mar h(1-5) ",
    "CRON_TZ=Europe/Berlin H H(2-5) * * ?",
    "0 H H 1 1 ? 2026-2030",
]


@pytest.mark.parametrize(
    "text", [*TEXTS_WITH_HASHES, "30 3 * * THU", "@hourly", "@every 5m", "TZ=Asia/Tokyo 0 0 * * *"]
)
@pytest.mark.parametrize("key", ["default/a", "default/b", "shop/import orders"])
def test_parse_drawn_gives_the_same_occurrences(text: str, key: str) -> None:
    def some(schedule: Schedule) -> list[datetime]:
        return list(schedule.occurrences(MIDSUMMER, MIDSUMMER + 400 * DAY, 50))

    own, drawn = (
        parse_schedule(text, "UTC", hash_key=key),
        parse_with_drawn_values(text, "UTC", hash_key=key),
    )
    assert some(drawn) == some(own)
    assert (drawn.timezone, drawn.hash_key) == (own.timezone, "")


def test_jobs_with_equal_hash_values_share_a_schedule() -> None:
    drawn = {
        parse_with_drawn_values("H * * * *", "UTC", hash_key=f"default/{n}") for n in range(1000)
    }
    assert len(drawn) == 60


def test_drawn_text_may_exceed_the_length_limit() -> None:
    text = ",".join(["H/2"] * 60) + " * * * *"
    assert list(
        parse_with_drawn_values(text, "UTC", hash_key="a").occurrences(MIDSUMMER, MIDSUMMER + HOUR)
    )


def test_hours_are_those_of_the_given_time_zone() -> None:
    kolkata = ZoneInfo("Asia/Kolkata")
    hours = RealHours(datetime(2026, 6, 15, tzinfo=kolkata), 24)
    assert counted(Timetable(parse_schedule("10 0 * * *", "Asia/Kolkata")), hours) == {0: 1}
    assert counted(Timetable(parse_schedule("10,40 0 * * *", "UTC")), hours) == {5: 1, 6: 1}


@pytest.mark.parametrize(
    "text",
    [
        "* * * * *",
        "*/7 23,0 * * *",
        "0 0 * * MON",
        "15 30 0 15W * *",
        "H H * * *",
        "@every 7m",
        "@every 90s",
        "@at 2026-06-15T00:07:31",
        "CRON_TZ=Asia/Kathmandu 45 3 * * *",
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu"])
def test_minute_has_a_start_if_it_contains_an_occurrence(text: str, zone: str) -> None:
    begin, count = MIDSUMMER + 30 * SECOND, 180
    starts, ends = begin + 10 * MINUTE, begin + 170 * MINUTE
    timetable = Timetable(parse_schedule(text, zone, hash_key="default/report"), starts, ends)
    known = begin - 1000 * MINUTE + 17 * SECOND
    after = known + (begin - HOUR - known) // (timetable.schedule.interval or DAY) * (
        timetable.schedule.interval or DAY
    )
    found = timetable.schedule.occurrences(after, begin + count * MINUTE)
    expected = {at.replace(second=0) for at in found if starts <= at <= ends}
    inside = [begin.replace(second=0) + number * MINUTE for number in range(11, 170)]
    assert [at for at in inside if RealMinute(at + 59 * SECOND).has_start(timetable, known)] == [
        at for at in inside if at in expected
    ]
    assert not RealMinute(starts - MINUTE).has_start(timetable, known)
    assert not RealMinute(ends + MINUTE).has_start(timetable, known)


@pytest.mark.parametrize(
    ("text", "second", "expected"),
    [
        ("* * * * *", 30, True),
        ("@never", 30, False),
        ("@every 1h", 0, True),  # no known occurrence: one is at the start of the minute
        ("@at 2026-06-14T22:00:59", 0, True),
        ("@at 2026-06-14T21:59:59", 0, False),
        ("@at 2026-06-14T22:01:00", 59, False),
    ],
)
def test_minute_has_a_start_for_each_kind_of_schedule(
    text: str, second: int, expected: bool
) -> None:
    minute = RealMinute(MIDSUMMER + second * SECOND + timedelta(microseconds=5))
    assert minute.has_start(Timetable(parse_schedule(text, "UTC"))) is expected


@pytest.mark.parametrize(
    ("known", "expected"),
    [(-1, False), (0, True), (59, True), (60, False), (3599, False), (3600, True), (-3541, True)],
)
def test_minute_has_a_start_of_an_every_schedule_in_phase(known: int, expected: bool) -> None:
    timetable = Timetable(parse_schedule("@every 1h"))
    assert RealMinute(MIDSUMMER).has_start(timetable, MIDSUMMER + known * SECOND) is expected


@pytest.mark.parametrize(
    ("starts", "ends", "expected"),
    [
        (None, None, True),
        (59, None, True),
        (60, None, False),
        (None, 0, True),
        (None, -1, False),
        (-60, 60, True),
        (60, 120, False),
        (-120, -60, False),
    ],
)
def test_minute_has_no_start_outside_of_start_and_end(
    starts: int | None, ends: int | None, expected: bool
) -> None:
    def at(second: int | None) -> datetime | None:
        return None if second is None else MIDSUMMER + second * SECOND

    timetable = Timetable(parse_schedule("* * * * *"), at(starts), at(ends))
    assert RealMinute(MIDSUMMER).has_start(timetable) is expected
