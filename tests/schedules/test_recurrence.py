"""Recurrence rules match dateutil and a brute-force search; their times follow cron's rules."""

from datetime import UTC, date, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.clock_changes import Effect, clock_changes
from django_dcron.schedules.describe import describe
from django_dcron.schedules.exclusion import apply_calendar
from django_dcron.schedules.load import RealHours
from django_dcron.schedules.recurrence import _days_of_year
from django_dcron.schedules.recurrence_text import EXAMPLE, WEEKDAYS
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import Timetable
from tests.schedules.test_exclusion import calendar
from tests.schedules.test_lines import both_ways
from tests.schedules.test_schedule_properties import examples
from tests.verdict.recurrence import Rule

DAY = timedelta(days=1)
BERLIN = ZoneInfo("Europe/Berlin")


def _numbers(low: int, high: int, *, from_end: bool = False) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    if from_end:
        number |= st.integers(-high, -low)
    return st.lists(number.map(str), min_size=1, max_size=3, unique=True).map(",".join)


def _weekdays(numbers: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    item = st.tuples(numbers, st.sampled_from(WEEKDAYS)).map("".join)
    return st.lists(item, min_size=1, max_size=3, unique=True).map(",".join)


_PLAIN = _weekdays(st.just(""))
_IN_MONTH = _PLAIN | _weekdays(st.sampled_from(["1", "2", "+3", "-1", "-2"]))
_IN_YEAR = _PLAIN | _weekdays(st.sampled_from(["1", "20", "53", "-1", "-30"]))
_MONTHS = {"BYMONTH": _numbers(1, 12)}
_MONTH_DAYS = {"BYMONTHDAY": _numbers(1, 31, from_end=True)}
_POSITIONS = {"BYSETPOS": _numbers(1, 4, from_end=True)}


@st.composite
def rules(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]))
    parts = {
        "DAILY": _MONTHS | _MONTH_DAYS | {"BYDAY": _PLAIN},
        "WEEKLY": _MONTHS | {"BYDAY": _PLAIN},
        "MONTHLY": _MONTHS | _MONTH_DAYS | _POSITIONS | {"BYDAY": _IN_MONTH},
        "YEARLY": _MONTH_DAYS | _POSITIONS | {"BYDAY": _IN_YEAR, "BYYEARDAY": _numbers(1, 366)},
    }[kind]
    if kind == "YEARLY" and draw(st.booleans()):
        parts = _MONTHS | _MONTH_DAYS | _POSITIONS | {"BYDAY": _IN_MONTH}
    chosen = draw(st.sets(st.sampled_from(sorted(parts))))
    if "BYSETPOS" in chosen:
        chosen |= {"BYDAY"}
    text = ";".join([f"FREQ={kind}", *(f"{name}={draw(parts[name])}" for name in sorted(chosen))])
    if kind == "WEEKLY" and draw(st.booleans()):
        text += f";WKST={draw(st.sampled_from(WEEKDAYS))}"
    return f"{text};INTERVAL={draw(st.integers(1, 4))}"


STARTS = st.dates(date(2023, 1, 1), date(2028, 12, 31))


@examples(200)
@given(rules(), STARTS, st.integers(-60, 1500))
def test_days_match_dateutil_and_a_brute_force_search(rule: str, start: date, days: int) -> None:
    after = start + days * DAY
    until = after + 500 * DAY
    brute_force = Rule(f"{start} {rule}")
    expected = [after + n * DAY for n in range(1, 501) if brute_force.falls_on(after + n * DAY)]
    begin, end = (datetime(day.year, day.month, day.day) for day in (after, until))  # noqa: DTZ001
    try:
        schedule = parse_schedule(f"@rrule {start} {rule}")
    except InvalidSchedule:
        assert not any(brute_force.falls_on(start + n * DAY) for n in range(3000))
        return  # dateutil would search until the year 9999
    anchor = datetime(start.year, start.month, start.day)  # noqa: DTZ001
    listed = takewhile(lambda at: at <= end, rrulestr(f"RRULE:{rule}", dtstart=anchor))
    assert [at.date() for at in listed if at > begin] == expected
    found = both_ways(schedule, begin.replace(tzinfo=UTC), end.replace(tzinfo=UTC))
    assert [at.date() for at in found] == expected


def test_every_second_friday_keeps_its_phase_over_the_years() -> None:
    schedule = parse_schedule(EXAMPLE, "Europe/Berlin")
    start = datetime(2026, 1, 2, 9, tzinfo=BERLIN)
    assert schedule.previous_before(start) is None
    found = list(schedule.occurrences(start - DAY, start + timedelta(weeks=520)))
    assert [at.astimezone(BERLIN).replace(tzinfo=None) for at in found] == [
        start.replace(tzinfo=None) + timedelta(weeks=2 * number) for number in range(261)
    ]


def test_times_follow_the_rules_of_fixed_cron_fields() -> None:
    spring, autumn = datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)
    rule = "@rrule 2026-01-01 FREQ=DAILY;BYHOUR=1,2,3;BYMINUTE=30"
    for start in (spring, autumn):
        fields = parse_schedule("30 1,2,3 * * *", "Europe/Berlin")
        recurring = parse_schedule(rule, "Europe/Berlin")
        expected = list(fields.occurrences(start, start + 3 * DAY))
        assert both_ways(recurring, start, start + 3 * DAY) == expected
    changes = clock_changes(parse_schedule(rule, "Europe/Berlin"), spring, autumn + 3 * DAY)
    assert [change.effect for change in changes] == [Effect.ONCE_AFTER, Effect.FIRST_TIME]


@pytest.mark.parametrize("policy", ExclusionPolicy)
def test_calendar_excludes_the_same_days_as_for_cron_fields(policy: ExclusionPolicy) -> None:
    dates = calendar("SAT-SUN\n2026-05-01..2026-05-05")
    fields = apply_calendar(parse_schedule("0 9 1,15 * *"), dates, policy)
    text = "@rrule 2026-01-01T09:00 FREQ=MONTHLY;BYMONTHDAY=1,15"
    recurring = apply_calendar(parse_schedule(text), dates, policy)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert list(recurring.occurrences(start, start + 365 * DAY)) == list(
        fields.occurrences(start, start + 365 * DAY)
    )


def test_load_counts_the_days_of_the_rule() -> None:
    schedule = parse_schedule("@rrule 2026-01-01 FREQ=DAILY;INTERVAL=3;BYHOUR=6,18")
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    counts = dict(RealHours(begin, 5 * 24).occurrences(Timetable(schedule)))
    assert counts == {6: 1, 18: 1, 78: 1, 90: 1}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "invalid_recurrence"),
        ("FREQ=DAILY", "invalid_recurrence"),
        ("2026-02-30 FREQ=DAILY", "invalid_recurrence"),
        ("2026-01-01T25:00 FREQ=DAILY", "invalid_recurrence"),
        ("1969-01-01 FREQ=DAILY", "invalid_recurrence"),
        ("2026-01-01 FREQ=DAILY BYHOUR=9", "invalid_recurrence"),
        ("2026-01-01 FREQ=DAILY;COUNT=3", "rule_with_end"),
        ("2026-01-01 FREQ=DAILY;UNTIL=20270101", "rule_with_end"),
        ("2026-01-01 FREQ=DAILY;BYEASTER=0", "unknown_part"),
        ("2026-01-01 FREQ=DAILY;;", "unknown_part"),
        ("2026-01-01 FREQ=DAILY;FREQ=WEEKLY", "repeated_part"),
        ("2026-01-01 INTERVAL=2", "no_frequency"),
        ("2026-01-01 FREQ=HOURLY", "invalid_part"),
        ("2026-01-01 FREQ=DAILY;INTERVAL=0", "invalid_part"),
        ("2026-01-01 FREQ=DAILY;INTERVAL=1001", "invalid_part"),
        ("2026-01-01 FREQ=DAILY;INTERVAL=1,2", "invalid_part"),
        ("2026-01-01 FREQ=DAILY;BYMONTH=13", "invalid_part"),
        ("2026-01-01 FREQ=DAILY;BYMONTHDAY=0", "invalid_part"),
        ("2026-01-01 FREQ=DAILY;BYHOUR=", "invalid_part"),
        ("2026-01-01 FREQ=DAILY;BYHOUR=24", "invalid_part"),
        ("2026-01-01 FREQ=MONTHLY;BYDAY=6MO", "invalid_part"),
        ("2026-01-01 FREQ=MONTHLY;BYDAY=XX", "invalid_part"),
        ("2026-01-01 FREQ=WEEKLY;WKST=1", "invalid_part"),
        ("2026-01-01 FREQ=WEEKLY;BYDAY=1MO", "part_not_allowed"),
        ("2026-01-01 FREQ=WEEKLY;BYMONTHDAY=1", "part_not_allowed"),
        ("2026-01-01 FREQ=MONTHLY;BYYEARDAY=1", "part_not_allowed"),
        ("2026-01-01 FREQ=YEARLY;BYWEEKNO=1;BYDAY=MO", "unknown_part"),
        ("2026-01-01 FREQ=MONTHLY;BYDAY=MO,1TU", "part_not_allowed"),
        ("2026-01-01 FREQ=MONTHLY;BYDAY=-1TU,MO", "part_not_allowed"),
        ("2026-01-01 FREQ=MONTHLY;BYDAY=MO;BYSETPOS=1;BYHOUR=9,17", "part_not_allowed"),
        ("2026-01-01 FREQ=MONTHLY;BYSETPOS=1", "part_missing"),
        ("2026-01-01T10:00 FREQ=DAILY;BYHOUR=9,17", "late_start"),
        ("2026-01-01 FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "never_matches"),
        ("2025-01-01 FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29", "never_matches"),
    ],
)
def test_invalid_rule_is_refused(text: str, code: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse_schedule(f"@rrule {text}")
    assert caught.value.code == code


def test_rule_is_read_in_either_case_and_with_its_prefix() -> None:
    plain = parse_schedule("@rrule 2026-01-01T09:00 FREQ=WEEKLY;BYDAY=MO")
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for text in (
        "@RRULE 2026-01-01t09:00 freq=weekly;byday=mo",
        "@rrule 2026-01-01T09:00 RRULE:FREQ=WEEKLY;BYDAY=MO;",
    ):
        found = parse_schedule(text)
        assert found.next_after(start) == plain.next_after(start)


@pytest.mark.parametrize(
    ("rule", "fragments"),
    [
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=FR", ["09:00", "2 weeks", "Friday", "2026-01-02"]),
        ("FREQ=MONTHLY;BYMONTHDAY=-1", ["every month", "last day"]),
        ("FREQ=MONTHLY;BYDAY=2TU,-1FR", ["2nd Tuesday", "last Friday"]),
        ("FREQ=YEARLY;BYMONTH=7;BYMONTHDAY=1", ["every year", "day 1", "July"]),
        ("FREQ=DAILY;INTERVAL=10", ["every 10 days"]),
        ("FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=-1", ["BYSETPOS=-1"]),
        ("FREQ=YEARLY;BYDAY=20MO", ["BYDAY=20MO"]),
        ("FREQ=YEARLY;BYDAY=MO", ["every year", "BYDAY=MO"]),
        ("FREQ=YEARLY;BYMONTHDAY=1", ["every year", "BYMONTHDAY=1"]),
    ],
)
def test_description_explains_the_rule(rule: str, fragments: list[str]) -> None:
    words = describe(parse_schedule(f"@rrule 2026-01-02T09:00 {rule}"))
    assert [each for each in fragments if each not in words] == []


@pytest.mark.parametrize("year", [1971, 2190])
def test_search_lists_few_years_however_far_the_start_is(year: int) -> None:
    """dateutil alone would walk from the start to the instant."""
    schedule = parse_schedule("@rrule 1970-01-02 FREQ=DAILY;INTERVAL=900")
    before = _days_of_year.cache_info().misses
    assert schedule.next_after(datetime(year, 6, 1, tzinfo=UTC)) is not None
    assert schedule.previous_before(datetime(year, 6, 1, tzinfo=UTC)) is not None
    assert _days_of_year.cache_info().misses - before <= 8
