"""A schedule of several lines has the occurrences of each line, each instant once."""

from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.clock_changes import Effect, clock_changes
from django_dcron.schedules.crowding import TimetableGroup, crowded_minutes_of
from django_dcron.schedules.describe import describe
from django_dcron.schedules.exclusion import apply_calendar
from django_dcron.schedules.load import RealHours, RealMinute
from django_dcron.schedules.schedule import Schedule, parse_schedule, parse_with_drawn_values
from django_dcron.schedules.timetable import Timetable
from tests.schedules.oracle import Oracle
from tests.schedules.test_exclusion import calendar
from tests.schedules.test_schedule_properties import MINUTE, MINUTE_CRON, examples, parsed

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 3, 28, tzinfo=UTC)
"""The clocks of Berlin go forward on the next day."""
TIMES = ("30 2 * * *", "*/20 1-3 * * *", "0 9 * * MON-FRI", "CRON_TZ=Asia/Tokyo 30 9 * * *")


def both_ways(schedule: Schedule, start: datetime, end: datetime) -> list[datetime]:
    """Return the occurrences in ``(start, end]``. Asserts that ``previous_before`` finds them."""
    found = list(schedule.occurrences(start, end))
    back, at = [], schedule.previous_before(end + MINUTE)
    while at is not None and at > start:
        back.append(at)
        at = schedule.previous_before(at)
    assert found == back[::-1]
    return found


@examples(60)
@given(st.lists(MINUTE_CRON, min_size=2, max_size=4), st.integers(0, 3 * 365))
def test_occurrences_of_several_lines_match_the_oracle(texts: list[str], days: int) -> None:
    for text in texts:
        parsed(text)
    start = datetime(2025, 1, 1, tzinfo=UTC) + timedelta(days=days)
    end = start + timedelta(hours=30)
    expected = {at for text in texts for at in Oracle(text).occurrences(BERLIN, start, end, MINUTE)}
    schedule = parse_schedule("\n".join(texts), "Europe/Berlin")
    assert both_ways(schedule, start, end) == sorted(expected)


def test_each_line_has_its_own_time_zone_and_clock_rules() -> None:
    schedule = parse_schedule("\n".join(TIMES), "Europe/Berlin")
    end = START + timedelta(days=4)
    expected = {
        at for text in TIMES for at in parse_schedule(text, "Europe/Berlin").occurrences(START, end)
    }
    assert both_ways(schedule, START, end) == sorted(expected)
    assert schedule.timezone == "Europe/Berlin"


def test_zone_is_that_of_all_lines_if_they_agree() -> None:
    assert parse_schedule("TZ=Asia/Tokyo @daily\nTZ=Asia/Tokyo @hourly").timezone == "Asia/Tokyo"
    assert parse_schedule("TZ=Asia/Tokyo @daily\n@hourly").timezone == "UTC"


def test_empty_lines_and_spaces_make_no_difference() -> None:
    assert parse_schedule("\r\n @daily \r\n\r\n 0  9 * * *\r\n") == parse_schedule(
        "@daily\n0 9 * * *"
    )
    assert parse_schedule("@daily\n") == parse_schedule("@daily")


def test_calendar_applies_to_each_line() -> None:
    dates = calendar("SAT-SUN")
    for policy in ExclusionPolicy:
        lines = [
            apply_calendar(parse_schedule(text, "Europe/Berlin"), dates, policy) for text in TIMES
        ]
        whole = apply_calendar(parse_schedule("\n".join(TIMES), "Europe/Berlin"), dates, policy)
        end = START + timedelta(days=10)
        expected = {at for line in lines for at in line.occurrences(START, end)}
        assert both_ways(whole, START, end) == sorted(expected)
        assert whole.without_calendar == parse_schedule("\n".join(TIMES), "Europe/Berlin")


def test_hash_is_drawn_in_each_line_as_if_it_were_alone() -> None:
    text = "H 9 * * *\nH 17 * * *"
    drawn = parse_with_drawn_values(text, hash_key="default/report")
    assert [line.text for line in drawn.lines] == [
        parse_with_drawn_values(line, hash_key="default/report").text for line in text.split("\n")
    ]
    assert list(drawn.occurrences(START, START + timedelta(days=2))) == list(
        parse_schedule(text, hash_key="default/report").occurrences(
            START, START + timedelta(days=2)
        )
    )


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("@daily\n@every 1h", "not_combinable", 2),
        ("@never\n@daily", "not_combinable", 1),
        ("@daily\n\n0 25 * * *", "out_of_range", 2),
        ("0 9 * *\n@daily", "field_count", 1),
    ],
)
def test_error_names_the_line(text: str, code: str, line: int) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse_schedule(text)
    assert caught.value.params["line"] == line
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("@daily\n" * 21, "too_many_lines"),
        ("@daily\n" + "x" * 256, "too_long"),
        ("0 0 1 1 * \n" * 100, "too_long"),
    ],
)
def test_lines_have_limits(text: str, code: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse_schedule(text)
    assert caught.value.code == code


def test_description_has_each_line_and_what_they_share_once() -> None:
    schedule = parse_schedule("0 9 * * MON-FRI\n0 11 * * SAT", "Europe/Berlin")
    words = describe(apply_calendar(schedule, calendar("12-25"), ExclusionPolicy.SKIP))
    assert all(describe(line).removesuffix(" (Europe/Berlin)") in words for line in schedule.lines)
    assert (words.count("Europe/Berlin"), words.count("calendar")) == (1, 1)
    differing = describe(parse_schedule("@daily\nTZ=Asia/Tokyo @daily", "Europe/Berlin"))
    assert (differing.count("Europe/Berlin"), differing.count("Asia/Tokyo")) == (1, 1)


def test_load_counts_an_instant_of_two_lines_once() -> None:
    random = Random(3)
    texts = ["*/15 * * * *", "0 */2 * * *", "30 4 * * * *", "@at 2026-03-28T05:45", "5 9 * * MON"]
    for _ in range(20):
        schedule = parse_schedule("\n".join(random.sample(texts, 3)), "Asia/Kolkata")
        timetable = Timetable(schedule, START + timedelta(hours=3), None)
        hours = RealHours(START, 48)
        expected = list(
            schedule.occurrences(
                START + timedelta(hours=3) - timedelta(seconds=1),
                START + timedelta(hours=48) - timedelta(seconds=1),
            )
        )
        counts = dict(hours.occurrences(timetable))
        assert counts == {
            hour: len([at for at in expected if hours.number_of(at) == hour])
            for hour in sorted({hours.number_of(at) for at in expected})
        }
        for number in range(180, 600):
            begin = START + number * MINUTE
            assert RealMinute(begin).has_start(timetable) is any(
                begin <= at < begin + MINUTE for at in expected
            )
        group = TimetableGroup(timetable, None, schedule.text, spread=False, keys=["a"] * 99)
        assert crowded_minutes_of(hours, [group]) == []


def test_clock_change_of_two_lines_is_reported_once() -> None:
    schedule = parse_schedule("30 2 * * *\n15,45 2 * * *\n10 * * * *", "Europe/Berlin")
    found = list(clock_changes(schedule, START, START + timedelta(days=3)))
    assert [change.effect for change in found] == [Effect.ONCE_AFTER]
