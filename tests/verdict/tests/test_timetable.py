"""Compare the brute-force timetable with times worked out by hand, and with the scheduler's."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.exceptions import InvalidSchedule
from django_dcron.models.calendar import read_dates
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.exclusion import apply_calendar
from django_dcron.schedules.schedule import parse_schedule
from tests.verdict.timetable import NotJudged, Timetable

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
BERLIN = "Europe/Berlin"
GAP = datetime(2026, 3, 29, 1, tzinfo=UTC)
"""02:00 in Berlin becomes 03:00."""
REPEAT = datetime(2026, 10, 25, 1, tzinfo=UTC)
"""03:00 in Berlin becomes 02:00."""


@pytest.mark.parametrize(
    ("schedule", "around", "minutes"),
    [
        ("30 2 * * *", GAP, [0]),  # it runs at the first instant after the gap
        ("0,30 3 * * *", GAP, [0, 30]),
        ("15 2,3 * * *", GAP, [0, 15]),
        ("*/30 * * * *", GAP, [-60, -30, 0, 30]),
        ("30 * * * *", GAP, [-30, 30]),
        ("30 2 * * *", REPEAT, [-30]),  # in the first pass only
        ("30 * * * *", REPEAT, [-30, 30]),
        ("@at 2026-03-29T02:30", GAP, [0]),
        ("@at 2026-10-25T02:30", REPEAT, [-30]),
        ("@at 2026-10-25T01:30Z", REPEAT, [30]),
        ("@never", REPEAT, []),
        ("@rrule 2026-03-01T02:30 FREQ=WEEKLY", GAP, [0]),
        ("@rrule 2026-10-25T02:30 FREQ=WEEKLY;INTERVAL=2", REPEAT, [-30]),
        ("@rrule 2026-10-18T02:30 FREQ=WEEKLY;INTERVAL=2", REPEAT, []),
        ("CRON_TZ=Asia/Kathmandu 45 6 * * THU-SUN\n30 2 * * *", GAP, [0]),
        ("30 2 * * *\n*/30 * * * *", GAP, [-60, -30, 0, 30]),
        ("30 2 * * *\n45 3 * * *\n0 3 * * *", GAP, [0, 45]),
    ],
)
def test_daylight_saving(schedule: str, around: datetime, minutes: list[int]) -> None:
    found = Timetable(schedule, BERLIN).between(around - HOUR, around + HOUR - timedelta(seconds=1))
    assert [(at - around) / timedelta(minutes=1) for at in found] == minutes


def test_start_and_end_are_limits() -> None:
    limits = {"starts_at": GAP, "ends_at": GAP + 2 * HOUR}
    found = Timetable("@hourly", **limits).between(GAP - 9 * HOUR, GAP + 9 * HOUR)
    assert found == [GAP, GAP + HOUR, GAP + 2 * HOUR]


def test_interval_keeps_its_phase() -> None:
    phase = GAP + timedelta(seconds=7)
    found = Timetable("@every 1h30m", phase=phase).between(GAP, GAP + 4 * HOUR)
    assert found == [phase, phase + 1.5 * HOUR, phase + 3 * HOUR]


def test_hash_value_is_derived_from_known_occurrences() -> None:
    known = [GAP + timedelta(seconds=second) for second in (2, 6, 10, 15)]
    found = Timetable("H/4 * * * * *", known=known).between(GAP, GAP + timedelta(seconds=10))
    assert [at.second for at in found] == [2, 6, 10]


@pytest.mark.parametrize(
    "schedule",
    [
        "0 0 L * *",
        "0 0 1W * *",
        "0 0 * * 1#2",
        "0 H,5 * * *",
        "* *",
        "@rrule 2026-01-01 FREQ=YEARLY;BYWEEKNO=1;BYDAY=MO",
    ],
)
def test_unsupported_schedules_are_not_judged(schedule: str) -> None:
    with pytest.raises(NotJudged):
        Timetable(schedule)


CALENDARS = [
    ("02:10-04:00", "skip"),
    ("02:00-03:00", "skip"),
    ("02:10-02:20, 03:00-03:10", "skip"),
    ("SUN 01:30-02:30", "window_end"),
    ("only MON-SAT\nonly SUN 00:00-01:45, only SUN 03:15-24:00", "window_end"),
    ("03-28 22:00-03:30, 10-25 00:00-02:20", "skip"),
    ("2026-03-29\n2026-10-20..2026-10-24", "window_end"),
    ("10-25..10-26", "skip"),
    ("FRI-SAT 23:00-03:05 # maintenance", "window_end"),
]


@pytest.mark.parametrize(("dates", "policy"), CALENDARS)
@pytest.mark.parametrize("around", [GAP, REPEAT])
def test_scheduler_and_verdict_agree_on_calendars(
    dates: str, policy: str, around: datetime
) -> None:
    texts = ["*/20 * * * *", "30 2 * * *", "5 1-4 * * *\n*/30 3 * * *", "*/20 10 1,2 * * *"]
    after, until = around - 3 * HOUR, around + 3 * HOUR
    for zone in (BERLIN, "UTC", "Australia/Lord_Howe"):
        for text in texts:
            plain = parse_schedule(text, zone)
            schedule = apply_calendar(plain, read_dates(dates), ExclusionPolicy(policy))
            expected = list(schedule.occurrences(after - timedelta(seconds=1), until))
            timetable = Timetable(text, zone, calendar=dates, calendar_policy=policy)
            assert timetable.between(after, until) == expected, (text, zone)


@pytest.mark.parametrize("dates", ["SUN", "SAT-SUN\nonly 2020-01-01..2030-12-31", "MON, 03-29"])
@pytest.mark.parametrize("around", [GAP, REPEAT])
def test_scheduler_and_verdict_agree_on_moves_to_the_next_date(
    dates: str, around: datetime
) -> None:
    texts = [
        "30 2 * * *",
        "*/20 0-3 * * SAT",
        "15,45 1,2 * * SUN",
        "@rrule 2026-03-14T02:15 FREQ=WEEKLY;INTERVAL=2\n5 2 WD#L * ?",
    ]
    after, until = around - 2 * DAY, around + 2 * DAY
    for zone in (BERLIN, "Australia/Lord_Howe"):
        for text in texts:
            plain = parse_schedule(text, zone)
            schedule = apply_calendar(plain, read_dates(dates), ExclusionPolicy.NEXT_DAY)
            expected = list(schedule.occurrences(after - timedelta(seconds=1), until))
            timetable = Timetable(text, zone, calendar=dates, calendar_policy="next_day")
            assert timetable.between(after, until) == expected, (text, zone)


@pytest.mark.parametrize("dates", ["SAT-SUN, 03-02", "only MON 09:00-17:00", "00:00-12:00, MON"])
@pytest.mark.parametrize("policy", ["skip", "window_end"])
def test_working_days_are_those_of_the_calendar(dates: str, policy: str) -> None:
    after, until = datetime(2026, 2, 24, tzinfo=UTC), datetime(2026, 3, 5, tzinfo=UTC)
    for text in ("20 10 WD#2 * ?", "15 */3 WD#L-1 * ?", "0 12 WD#1 * ?\n0 13 WD#L * ?"):
        plain = parse_schedule(text, "UTC")
        schedule = apply_calendar(plain, read_dates(dates), ExclusionPolicy(policy))
        expected = list(schedule.occurrences(after - timedelta(seconds=1), until))
        timetable = Timetable(text, calendar=dates, calendar_policy=policy)
        assert timetable.between(after, until) == expected, text


def test_moment_that_moves_to_the_next_date_is_not_judged() -> None:
    with pytest.raises(NotJudged):
        Timetable("@at 2026-03-28T09:00", calendar="SAT", calendar_policy="next_day")


RULES = [
    "FREQ=DAILY;BYHOUR=0,1,2,3;BYMINUTE=0,30",
    "FREQ=WEEKLY;INTERVAL=2;BYDAY=SU;BYHOUR=2;BYMINUTE=30",
    "FREQ=MONTHLY;BYDAY=-1SU;BYHOUR=1,2,3;BYMINUTE=15,45",
    "FREQ=MONTHLY;BYDAY=SU;BYSETPOS=-1;BYHOUR=2;BYMINUTE=5;BYSECOND=7",
    "FREQ=YEARLY;BYMONTH=2,3,10;BYMONTHDAY=25,29;BYHOUR=2",
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("around", [GAP, REPEAT, datetime(2028, 2, 29, 2, tzinfo=UTC)])
def test_scheduler_and_timetable_agree_on_recurrence_rules(rule: str, around: datetime) -> None:
    for zone in (BERLIN, "UTC", "Australia/Lord_Howe"):
        for start in ("2026-03-15", "2024-02-29", "2026-10-11"):
            text = f"@rrule {start} {rule}"
            after, until = around - 2 * HOUR, around + 2 * HOUR
            schedule = parse_schedule(text, zone)
            expected = list(schedule.occurrences(after - timedelta(seconds=1), until))
            assert Timetable(text, zone).between(after, until) == expected


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high).map(str)
    span = st.tuples(st.integers(low, high), st.integers(low, high)).map(sorted)
    spans = span.map(lambda ends: f"{ends[0]}-{ends[1]}")
    steps = st.tuples(spans | st.just("*") | number, st.integers(2, 5)).map("{0[0]}/{0[1]}".format)
    item = number | spans | steps
    return st.just("*") | st.just("*") | st.lists(item, min_size=1, max_size=3).map(",".join)


CRON = st.tuples(
    st.integers(0, 59).map(str),
    _field(0, 59),
    _field(0, 23),
    _field(1, 31),
    _field(1, 12),
    _field(0, 6),
).map(" ".join)
WORKING_DAYS = st.sampled_from(["WD#1", "WD#18", "WD#L", "WD#L-2", "WD#L-20"])
CRON |= st.tuples(_field(0, 59), _field(0, 23), WORKING_DAYS, _field(1, 12), _field(0, 6)).map(
    " ".join
)
INSTANTS = st.sampled_from([GAP, REPEAT, datetime(2028, 2, 29, 0, tzinfo=UTC)])


@given(CRON, st.sampled_from([BERLIN, "UTC", "Australia/Lord_Howe"]), INSTANTS)
def test_scheduler_and_timetable_agree(text: str, zone: str, around: datetime) -> None:
    try:
        schedule = parse_schedule(text, zone)
    except InvalidSchedule:  # it never matches
        return
    after, until = around - HOUR, around + HOUR
    expected = list(schedule.occurrences(after - timedelta(seconds=1), until))
    assert Timetable(text, zone).between(after, until) == expected
