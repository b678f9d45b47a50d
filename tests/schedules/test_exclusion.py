"""A schedule with a calendar matches an oracle that checks the dates one by one."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from random import Random
from zoneinfo import ZoneInfo

import pytest

from django_dcron.exceptions import InvalidCalendar, InvalidSchedule
from django_dcron.policies.misfire import Misfire, MisfirePolicy
from django_dcron.schedules.calendar import ExcludedDates, ExclusionPolicy
from django_dcron.schedules.calendar_text import parse_calendar
from django_dcron.schedules.describe import describe
from django_dcron.schedules.exclusion import apply_calendar
from django_dcron.schedules.load import RealHours, RealMinute
from django_dcron.schedules.rules import WallClock
from django_dcron.schedules.schedule import Schedule, parse_schedule
from django_dcron.schedules.timetable import Timetable
from tests import depth
from tests.schedules.test_calendar import may_first

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
SKIP, MOVE = ExclusionPolicy.SKIP, ExclusionPolicy.NEXT_DAY
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
TIMES = ("30 2", "0 0", "*/30 1-3", "59 23", "15 */6", "0 12", "* 2")
DAYS = (
    "* * *",
    "1 * *",
    "* * MON",
    "25 12 *",
    "L * *",
    "*/3 * *",
    "15W * *",
    "29 2 *",
    "* * FRI#1",
    "1,15 * SUN",
)


def calendar(text: str) -> ExcludedDates:
    return parse_calendar(text, may_first)


def with_calendar(
    text: str, dates: str, policy: ExclusionPolicy = MOVE, zone: str = "Europe/Berlin"
) -> Schedule:
    return apply_calendar(parse_schedule(text, zone), calendar(dates), policy)


def at(text: str, zone: str = "Europe/Berlin") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


def any_calendar(random: Random) -> ExcludedDates:
    def day() -> date:
        return date(2026, 1, 1) + random.randrange(500) * DAY

    def entry() -> str:
        first = day()
        return random.choice(
            [
                f"{first}",
                f"{first}..{first + random.randrange(40) * DAY}",
                f"{first:%m-%d}",
                f"{first:%m-%d}..{day():%m-%d}" if not random.randrange(4) else "10-20..11-03",
                random.choice(["SAT", "SUN", "MON-FRI", "SAT-SUN"]),
                "holidays DE",
            ]
        )

    return calendar("\n".join(entry() for _ in range(random.randrange(1, 5))))


def oracle(
    text: tuple[str, str],
    zone: str,
    dates: ExcludedDates,
    policy: ExclusionPolicy,
    begin: date,
    days: int,
) -> list[datetime]:
    """Return the occurrences by definition.

    The oracle checks the dates one by one, with the times of a schedule that matches every date.
    """
    rule = parse_schedule(" ".join(text), zone).rule
    assert isinstance(rule, WallClock)
    kept = set()
    for number in range(-800, days + 1):
        day = begin + number * DAY
        if rule.cron.days.on(day):
            while policy is MOVE and dates.excludes(day):
                day += DAY
            if not dates.excludes(day):
                kept.add(day)
    midnight = datetime(begin.year, begin.month, begin.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    every_day = parse_schedule(f"{text[0]} * * *", zone).occurrences(
        midnight - SECOND, midnight + days * DAY
    )
    return [each for each in every_day if each.astimezone(ZoneInfo(zone)).date() in kept]


def test_occurrences_match_a_day_by_day_oracle() -> None:
    random, begin, days, compared = Random(7), date(2026, 3, 1), 280, 0
    for _ in range(depth.examples(120)):
        try:
            dates = any_calendar(random)
        except InvalidCalendar:
            continue  # the calendar excludes everything
        zone, text = random.choice(ZONES), (random.choice(TIMES), random.choice(DAYS))
        policy = random.choice([SKIP, MOVE])
        schedule = apply_calendar(parse_schedule(" ".join(text), zone), dates, policy)
        expected = oracle(text, zone, dates, policy, begin, days)
        midnight = datetime(begin.year, begin.month, begin.day, tzinfo=ZoneInfo(zone)).astimezone(
            UTC
        )
        found = list(schedule.occurrences(midnight - SECOND, midnight + days * DAY))
        assert found == expected, (text, zone, dates.text, policy)
        assert found == sorted(set(found))
        compared += len(found)
        for earlier, later in pairwise(found):
            assert schedule.previous_before(later) == earlier
    assert compared > depth.examples(5_000)


def test_occurrences_on_excluded_dates_are_skipped_or_moved() -> None:
    christmas = "12-24..12-26\nSAT-SUN"
    daily = "0 9 * * *"
    found = [
        with_calendar(daily, christmas, policy).occurrences(
            at("2026-12-22T12:00"), at("2026-12-29T12:00")
        )
        for policy in (SKIP, MOVE)
    ]
    # Thursday to Sunday are excluded. All of them move to Monday, which has its own occurrence.
    expected = [at("2026-12-23T09:00"), at("2026-12-28T09:00"), at("2026-12-29T09:00")]
    assert [list(each) for each in found] == [expected, expected]
    monthly = "0 9 26 * *"
    assert with_calendar(monthly, christmas).next_after(at("2026-12-01T00:00")) == at(
        "2026-12-28T09:00"
    )
    assert with_calendar(monthly, christmas, SKIP).next_after(at("2026-12-01T00:00")) == at(
        "2027-01-26T09:00"
    )


def test_excluded_dates_are_in_the_time_zone_of_the_schedule() -> None:
    late = "30 23 * * *"
    instant = at("2026-05-30T12:00", "UTC")
    assert with_calendar(late, "05-30", SKIP, "UTC").next_after(instant) == at(
        "2026-05-31T23:30", "UTC"
    )
    # The instant is 14:30 on the 30th in UTC, and 23:30 on the 30th in Tokyo.
    assert with_calendar(late, "05-30", SKIP, "Asia/Tokyo").next_after(instant) == at(
        "2026-05-31T23:30", "Asia/Tokyo"
    )
    prefixed = apply_calendar(
        parse_schedule("CRON_TZ=Asia/Tokyo 30 23 * * *", "UTC"), calendar("05-30"), SKIP
    )
    assert prefixed.next_after(instant) == at("2026-05-31T23:30", "Asia/Tokyo")


@pytest.mark.parametrize(
    ("day", "text", "expected"),
    [
        # 2026-03-29: clocks go from 02:00 to 03:00; 2026-10-25: from 03:00 to 02:00.
        ("2026-03-28", "30 2 28 3 *", ["2026-03-29T01:00"]),
        ("2026-03-28", "30 */2 28 3 *", ["2026-03-28T23:30", "2026-03-29T02:30"]),
        ("2026-10-24", "30 2 24 10 *", ["2026-10-25T00:30"]),
        (
            "2026-10-24",
            "30 */2 24 10 *",
            ["2026-10-24T22:30", "2026-10-25T00:30", "2026-10-25T01:30"],
        ),
    ],
)
def test_moved_occurrence_follows_the_clock_changes_of_its_new_date(
    day: str, text: str, expected: list[str]
) -> None:
    found = list(with_calendar(text, day).occurrences(at(f"{day}T12:00"), at(f"{day}T12:00") + DAY))
    assert found[: len(expected)] == [at(each, "UTC") for each in expected]


def test_occurrence_delayed_by_a_dst_gap_keeps_its_date() -> None:
    # In Havana clocks go from 00:00 to 01:00 on 2026-03-08.
    kept = with_calendar("30 0 * * *", "2026-03-07", SKIP, "America/Havana")
    assert kept.next_after(at("2026-03-07T12:00", "UTC")) == at("2026-03-08T05:00", "UTC")
    skipped = with_calendar("30 0 * * *", "2026-03-08", SKIP, "America/Havana")
    assert skipped.next_after(at("2026-03-07T12:00", "UTC")) == at("2026-03-09T04:30", "UTC")


def test_at_schedule_on_an_excluded_date_is_moved_or_skipped() -> None:
    text, before = "@at 2026-12-25T09:00:30", at("2026-12-01T00:00")
    moved = with_calendar(text, "12-25..12-26")
    assert moved.at == at("2026-12-25T09:00:30")
    assert moved.next_after(before) == at("2026-12-27T09:00:30")
    assert moved.next_after(at("2026-12-27T09:00:30")) is None
    assert moved.previous_before(at("2027-12-25T09:00")) == at("2026-12-27T09:00:30")
    assert with_calendar(text, "12-25", SKIP).next_after(before) is None
    # The second 02:30 of a day on which clocks go back is a separate instant.
    twice = with_calendar("@at 2026-10-25T02:30:00+01:00", "12-25")
    assert twice.at == twice.next_after(before - 90 * DAY) == at("2026-10-25T01:30", "UTC")


def test_every_schedule_with_a_calendar_is_refused() -> None:
    with pytest.raises(InvalidSchedule) as refused:
        with_calendar("@every 90m", "12-25")
    assert (refused.value.code, refused.value.params) == (
        "elapsed_time",
        {"value": "'@every 90m'"},
    )


@pytest.mark.parametrize("policy", [SKIP, MOVE])
@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("* * * * * *", "MON-SAT\n01-01..12-30"),
        ("0 0 * * MON", "MON"),
        ("0 0 1 1 *", "1970-01-01..2199-12-31"),
    ],
)
def test_search_ends_even_if_few_dates_remain(
    text: str, dates: str, policy: ExclusionPolicy
) -> None:
    schedule, now = with_calendar(text, dates, policy, "UTC"), datetime(2026, 1, 1, tzinfo=UTC)
    found = schedule.next_after(now)
    assert found is None or not calendar(dates).excludes(found.date())
    before = schedule.previous_before(now)
    assert before is None or not calendar(dates).excludes(before.date())


def test_equality_depends_on_text_zone_calendar_and_policy() -> None:
    one = with_calendar("@daily", "12-25")
    assert one == with_calendar("@daily", "12-25")
    assert one not in {
        with_calendar("@daily", "12-25", SKIP),
        with_calendar("@daily", "12-26"),
        one.without_calendar,
    }
    assert one.without_calendar == parse_schedule("@daily", "Europe/Berlin")
    assert one.without_calendar.without_calendar is one.without_calendar


def test_description_mentions_the_calendar_policy() -> None:
    assert describe(with_calendar("0 9 * * *", "12-25", SKIP, "UTC")) == (
        "At 09:00, except on dates that the calendar excludes"
    )
    assert describe(with_calendar("0 9 * * *", "12-25")) == (
        "At 09:00, moved to the next date that the calendar allows (Europe/Berlin)"
    )
    assert describe(with_calendar("@at 2026-12-25T09:00", "12-25")) == (
        "Once, on 2026-12-25 at 09:00, moved to the next date that the calendar allows "
        "(Europe/Berlin)"
    )
    assert describe(with_calendar("0 9 1 * *\n@at 2026-12-25T09:00", "12-25", SKIP, "UTC")) == (
        "At 09:00, on day 1 of the month; also: Once, on 2026-12-25 at 09:00, except on dates that "
        "the calendar excludes"
    )


def test_forecast_respects_the_calendar() -> None:
    begin = at("2026-12-21T00:00")
    timetable = Timetable(with_calendar("*/20 3 * * *", "12-24..12-26"))
    hours = RealHours(begin, 10 * 24)
    counted = dict(hours.occurrences(timetable))
    expected: dict[int, int] = {}
    for each in timetable.schedule.occurrences(begin - SECOND, begin + 10 * DAY):
        expected[hours.number_of(each)] = expected.get(hours.number_of(each), 0) + 1
    assert counted == expected
    assert len(counted) == 7
    assert RealMinute(at("2026-12-23T03:20")).has_start(timetable)
    assert not RealMinute(at("2026-12-24T03:20")).has_start(timetable)


def test_missed_occurrences_do_not_include_excluded_dates() -> None:
    timetable = Timetable(with_calendar("0 9 * * *", "12-24..12-26", SKIP))
    first, now = at("2026-12-22T09:00"), at("2026-12-28T08:00")
    plan = timetable.plan_claim(
        first, late_before=now, horizon=now, misfire=Misfire(MisfirePolicy.RUN_LATEST, DAY, 1)
    )
    (span,) = plan.planned_runs
    assert (span.scheduled_at, span.missed_before) == (at("2026-12-27T09:00"), 2)
    assert plan.next_at == at("2026-12-28T09:00")


def test_never_schedule_with_a_calendar_has_no_occurrences() -> None:
    never = with_calendar("@never", "12-25")
    assert never.next_after(at("2026-12-01T00:00")) is None
    assert never.without_calendar == parse_schedule("@never", "Europe/Berlin")
