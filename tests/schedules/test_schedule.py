"""Schedules as values: @every, @at, attributes, limits of datetime, and cost."""

import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules import daylight, days, zones
from django_dcron.schedules.describe import describe
from django_dcron.schedules.schedule import Schedule, parse_schedule

NOW = datetime(2026, 6, 15, 12, 0, 0, tzinfo=UTC)
TICK = timedelta(microseconds=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_next_and_previous_exclude_the_given_instant() -> None:
    schedule = parse_schedule("0 12 * * *")
    assert schedule.next_after(NOW) == NOW + timedelta(days=1)
    assert schedule.next_after(NOW - TICK) == NOW
    assert schedule.previous_before(NOW) == NOW - timedelta(days=1)
    assert schedule.previous_before(NOW + TICK) == NOW


def test_any_aware_datetime_is_accepted_and_utc_is_returned() -> None:
    schedule = parse_schedule("30 3 * * *", "Europe/Berlin")
    for zone in (ZoneInfo("Asia/Tokyo"), timezone(timedelta(hours=-5)), UTC):
        found = schedule.next_after(NOW.astimezone(zone))
        assert found == at("2026-06-16 01:30")
        assert found.tzinfo is UTC


def test_naive_datetimes_are_refused() -> None:
    schedule = parse_schedule("* * * * *")
    for search in (schedule.next_after, schedule.previous_before):
        with pytest.raises(ValueError, match=re.escape(repr(NOW.replace(tzinfo=None)))):
            search(NOW.replace(tzinfo=None))
        with pytest.raises(TypeError, match=r"not date$"):
            search(NOW.date())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=re.escape(repr(NOW.replace(tzinfo=None)))):
        schedule.occurrences(NOW, NOW.replace(tzinfo=None))
    with pytest.raises(ValueError, match=re.escape(repr(NOW.replace(tzinfo=None)))):
        schedule.occurrences(NOW.replace(tzinfo=None), NOW)


def test_occurrences_exclude_the_start_and_include_the_end() -> None:
    schedule = parse_schedule("0 * * * *")
    hour = timedelta(hours=1)
    assert list(schedule.occurrences(NOW, NOW + 3 * hour)) == [
        NOW + hour,
        NOW + 2 * hour,
        NOW + 3 * hour,
    ]
    assert list(schedule.occurrences(NOW, NOW + 9 * hour, 2)) == [NOW + hour, NOW + 2 * hour]
    assert list(schedule.occurrences(NOW, NOW + 9 * hour, limit=0)) == []
    assert list(schedule.occurrences(NOW, NOW)) == []
    assert list(schedule.occurrences(NOW, NOW - hour)) == []
    assert list(schedule.occurrences(NOW, datetime.max.replace(tzinfo=UTC), 1)) == [NOW + hour]


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("@every 1h30m", timedelta(minutes=90)),
        ("@every 14d", timedelta(days=14)),
        ("@every 2W1d12h", timedelta(days=15, hours=12)),
        ("@every 45s", timedelta(seconds=45)),
        ("@EVERY 2H", timedelta(hours=2)),
        ("@every 1h2m3s", timedelta(hours=1, minutes=2, seconds=3)),
        ("@every 90m", timedelta(minutes=90)),
        ("TZ=Europe/Berlin @every  36h", timedelta(hours=36)),
    ],
)
def test_every_schedule_counts_from_the_given_instant(text: str, interval: timedelta) -> None:
    schedule = parse_schedule(text, "America/New_York")
    odd = NOW + 123_456 * TICK
    assert schedule.interval == interval
    assert schedule.at is None
    assert schedule.next_after(odd) == odd + interval
    assert schedule.previous_before(odd) == odd - interval
    assert list(schedule.occurrences(odd, odd + 3 * interval)) == [
        odd + interval * n for n in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("@at 2026-12-01T09:00", "UTC", "2026-12-01 09:00"),
        ("@at 2026-12-01T09:00", "Europe/Berlin", "2026-12-01 08:00"),
        ("@AT 2026-12-01t09:00:30", "Europe/Berlin", "2026-12-01 08:00:30"),
        ("@at 2026-12-01 09:00", "Europe/Berlin", "2026-12-01 08:00"),
        ("@at 2026-12-01T09:00Z", "Europe/Berlin", "2026-12-01 09:00"),
        ("@at 2026-12-01T09:00-05:30", "Europe/Berlin", "2026-12-01 14:30"),
        ("CRON_TZ=Asia/Tokyo @at 2026-12-01T09:00", "Europe/Berlin", "2026-12-01 00:00"),
        ("@at 2026-03-29T02:30", "Europe/Berlin", "2026-03-29 01:00"),  # in a gap: its end
        ("@at 2026-10-25T02:30", "Europe/Berlin", "2026-10-25 00:30"),  # twice: the first
        ("@at 1970-01-01T00:00", "UTC", "1970-01-01 00:00"),
        ("@at 2099-12-31T23:59", "UTC", "2099-12-31 23:59"),
        # A fraction is rounded up.
        ("@at 2026-12-01T08:59:59.000001", "UTC", "2026-12-01 09:00"),
        ("@at 2026-12-01T10:59:59.5+02:00", "UTC", "2026-12-01 09:00"),
        ("@at 2026-12-01T09:00:00.000000", "UTC", "2026-12-01 09:00"),
        ("@at 2026-10-25T02:59:59.5", "Europe/Berlin", "2026-10-25 01:00"),
        ("@at 2099-12-31T23:59:59.5", "UTC", "2100-01-01 00:00"),
    ],
)
def test_at_schedule_has_one_occurrence(text: str, zone: str, expected: str) -> None:
    schedule = parse_schedule(text, zone)
    moment = at(expected)
    assert schedule.at == moment
    assert schedule.interval is None
    assert schedule.next_after(moment - TICK) == moment
    assert schedule.next_after(moment) is None
    assert schedule.previous_before(moment + TICK) == moment
    assert schedule.previous_before(moment) is None
    assert list(schedule.occurrences(moment - timedelta(days=1), moment)) == [moment]


@pytest.mark.parametrize("text", ["1970-01-01T00:00+02:00", "1970-01-01T00:59"])
def test_at_time_before_1970_in_utc_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        parse_schedule(f"@at {text}", "Europe/Berlin")
    assert (refused.value.code, refused.value.params) == ("invalid_time", {"value": repr(text)})


def test_at_time_on_a_skipped_day_is_refused() -> None:
    with pytest.raises(InvalidSchedule) as refused:
        parse_schedule("@at 2011-12-30T09:00", "Pacific/Apia")
    assert (refused.value.code, refused.value.params) == (
        "skipped_time",
        {"value": "'2011-12-30T09:00'", "zone": "Pacific/Apia"},
    )


def test_time_zone_prefix_overrides_the_time_zone_argument() -> None:
    schedule = parse_schedule("CRON_TZ=Asia/Tokyo 0 9 * * *", "Europe/Berlin")
    assert schedule.timezone == "Asia/Tokyo"
    assert schedule.next_after(NOW) == at("2026-06-16 00:00")
    assert schedule == parse_schedule("CRON_TZ=Asia/Tokyo  0 9 * * * ", "UTC")


def test_schedule_is_immutable_hashable_and_picklable() -> None:
    schedule = parse_schedule(" 0  9 * * 1-5", "Europe/Berlin")
    assert (schedule.text, schedule.timezone, str(schedule)) == (
        "0 9 * * 1-5",
        "Europe/Berlin",
        "0 9 * * 1-5",
    )
    assert (schedule.interval, schedule.at) == (None, None)
    assert parse_schedule(schedule.text, schedule.timezone) is schedule
    copied = pickle.loads(pickle.dumps(schedule))  # noqa: S301
    assert len({schedule, copied, parse_schedule("0 9 * * 1-5", "UTC")}) == 2
    with pytest.raises(AttributeError):
        schedule.text = "* * * * *"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("0 0 29 2 *", "2026-01-01", ["2028-02-29", "2032-02-29"]),
        ("0 0 29 2 *", "2096-02-29", ["2104-02-29", "2108-02-29"]),
        ("0 0 29 2 */7", "2026-01-01", ["2032-02-29", "2060-02-29", "2088-02-29", "2128-02-29"]),
        ("0 0 1 1 *", "2026-12-31 23:59:59", ["2027-01-01"]),
        ("59 59 23 31 12 *", "2026-12-31", ["2026-12-31 23:59:59", "2027-12-31 23:59:59"]),
        ("0 0 31 12 *", "2099-12-31", ["2100-12-31"]),
        ("0 0 0 1 1 ? 2099", "2049-01-02", ["2099-01-01"]),
        ("0 0 0 1 1 ? 2099", "2048-12-30", []),  # fifty years and two days away
        ("0 0 0 1 1 ? 2025", "2026-01-01", []),
        ("0 0 0 1 1 ? 1970-2099", "2099-06-01", []),
        ("0 0 0 1 1 ? *", "2099-06-01", ["2100-01-01"]),
    ],
)
def test_occurrences_up_to_fifty_years_ahead_are_found(
    text: str, start: str, expected: list[str]
) -> None:
    found = list(
        parse_schedule(text).occurrences(at(start), at("2200-01-01"), max(1, len(expected)))
    )
    assert found == [at(time) for time in expected]


def test_previous_occurrence_is_found_at_most_fifty_years_back() -> None:
    schedule = parse_schedule("0 0 0 1 1 ? 1990")
    assert schedule.previous_before(at("2039-12-01")) == at("1990-01-01")
    assert schedule.previous_before(at("2041-01-01")) is None


def test_fifty_year_horizon_is_exact_to_the_second() -> None:
    ahead, back = parse_schedule("59 59 23 1 1 ? 2090"), parse_schedule("0 0 0 1 1 ? 1990")
    next_one, previous_one = at("2090-01-01 23:59:59"), at("1990-01-01")
    second = timedelta(seconds=1)
    assert ahead.next_after(next_one - days.HORIZON) == next_one
    assert ahead.next_after(next_one - days.HORIZON - second) is None
    assert back.previous_before(previous_one + days.HORIZON) == previous_one
    assert back.previous_before(previous_one + days.HORIZON + TICK) is None


def test_every_schedule_ends_at_the_limits_of_datetime() -> None:
    schedule, hour = parse_schedule("@every 1h"), timedelta(hours=1)
    first, last = (edge.replace(tzinfo=UTC) for edge in (zones.FIRST, zones.LAST))
    assert schedule.next_after(last - hour - TICK) == last - TICK
    assert schedule.next_after(last - hour) is None
    assert schedule.previous_before(first + hour + TICK) == first + TICK
    assert schedule.previous_before(first + hour) is None


EDGES = [
    "* * * * *",
    "0 0 29 2 *",
    "0 0 LW * 1#5",
    "@every 1h",
    "@every 400000h",
    "@at 2026-12-01T09:00",
    "30 2 31W 7 *",
]


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/Anchorage"])
@pytest.mark.parametrize("text", EDGES)
def test_search_near_the_limits_of_datetime_does_not_fail(text: str, zone: str) -> None:
    schedule = parse_schedule(text, zone)
    for year in (1, 2, 3, 8, 40, 60, 9930, 9950, 9990, 9991, 9992, 9998, 9999):
        for month, day in ((1, 1), (6, 30), (12, 31)):
            for offset in (-23, 0, 23):
                instant = datetime(
                    year, month, day, 23, 59, 59, 999_999, timezone(timedelta(hours=offset))
                )
                after, before = schedule.next_after(instant), schedule.previous_before(instant)
                assert after is None or after > instant
                assert before is None or before < instant


@pytest.mark.parametrize("text", ["* * * * *", "0 0 29 2 *", "@every 1h"])
def test_no_occurrence_is_found_beyond_the_limits_of_datetime(text: str) -> None:
    schedule = parse_schedule(text)
    assert schedule.next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert schedule.previous_before(datetime.min.replace(tzinfo=UTC)) is None


WORST = [
    "0 0 29W 2 *",
    "0 0 31W * 1#5",
    "0 0 L-30,LW,15W * 5L,1#5",
    "0 0 L 2 1",
    "0 0 */30 2 *",
    "0 0 29 2 */3",
    "* * 29 2 *",
    "*/5 * 29 2 */3",
    "0 0 0 29W 2 ? 2000-2099/7",
]


@pytest.mark.parametrize("zone", ["UTC", "Africa/Casablanca"])
@pytest.mark.parametrize("text", WORST)
def test_search_makes_a_bounded_number_of_croniter_calls(
    text: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count the calls of croniter, because their number doesn't depend on the machine's speed."""
    searches = 0
    search = days._DaySearch._search

    def counted(*args: object) -> object:
        nonlocal searches
        searches += 1
        return search(*args)  # type: ignore[arg-type]

    schedule = parse_schedule(text, zone)
    monkeypatch.setattr(days._DaySearch, "_search", counted)
    for year in range(2020, 2030):
        before = searches
        schedule.next_after(NOW.replace(year=year))
        schedule.previous_before(NOW.replace(year=year))
        assert searches - before <= 40


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Africa/Casablanca"])
def test_search_over_decades_examines_few_clock_changes(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined = 0

    def counted(*args: Any) -> Any:
        nonlocal examined
        examined += 1
        return zones.offset_period_at(*args)

    schedule = parse_schedule("0 0 29 2 */7", zone)
    monkeypatch.setattr(daylight, "offset_period_at", counted)
    found = schedule.next_after(at("2004-03-01")), schedule.previous_before(at("2032-02-01"))
    assert [instant and (instant + 12 * timedelta(hours=1)).year for instant in found] == [
        2032,
        2004,
    ]
    assert examined <= 12


def test_common_schedules_do_not_use_croniter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(days._DaySearch, "_search", None)
    for text in ("* * * * *", "*/5 * * * *", "30 3 * * *", "0 9 * * 1-5", "0 0 * * 0"):
        assert parse_schedule(text, "Europe/Berlin").next_after(NOW) is not None


def test_schedule_is_thread_safe() -> None:
    schedule = parse_schedule("30 2 15W,L * 5L,1#5", "Europe/Berlin")
    starts = [NOW + timedelta(days=37 * n) for n in range(150)]

    def both(start: datetime) -> tuple[datetime | None, datetime | None]:
        return schedule.next_after(start), schedule.previous_before(start)

    alone = [both(start) for start in starts]
    with ThreadPoolExecutor(8) as pool:
        for together in pool.map(lambda _: [both(start) for start in starts], range(8)):
            assert together == alone


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30 3 * * *", "At 03:30 (Europe/Berlin)"),
        ("*/5 * * * *", "Every 5 minutes (Europe/Berlin)"),
        ("*/10 * * * * *", "Every 10 seconds (Europe/Berlin)"),
        ("* * * * * *", "Every second (Europe/Berlin)"),
        ("30 * * * * *", "At 30 seconds past the minute (Europe/Berlin)"),
        ("1 * * * *", "At 1 minute past the hour (Europe/Berlin)"),
        ("0 * * * *", "Every hour (Europe/Berlin)"),
        ("* 0 * * * *", "Every second, at 0 minutes past the hour (Europe/Berlin)"),
        ("0 */2 * * *", "Every 2 hours (Europe/Berlin)"),
        (
            "15 1/3 * * *",
            "At 15 minutes past the hour, every 3 hours, starting at 01:00 (Europe/Berlin)",
        ),
        ("5/20 * * * *", "Every 20 minutes, starting at 5 minutes past the hour (Europe/Berlin)"),
        ("7-59/15 * * * *", "At 7, 22, 37 and 52 minutes past the hour (Europe/Berlin)"),
        ("*/40 * * * *", "At 0 and 40 minutes past the hour (Europe/Berlin)"),
        ("0/25 * * * * *", "At 0, 25 and 50 seconds past the minute (Europe/Berlin)"),
        ("0 */9 * * *", "At 00:00, 09:00 and 18:00 (Europe/Berlin)"),
        ("*/30 */9 * * *", "Every 30 minutes, during the hours 0, 9 and 18 (Europe/Berlin)"),
        ("0 8/3 * * *", "Every 3 hours, starting at 08:00 (Europe/Berlin)"),
        ("0-10 11 * * *", "Every minute between 11:00 and 11:10 (Europe/Berlin)"),
        ("* 11 * * *", "Every minute, between 11:00 and 11:59 (Europe/Berlin)"),
        ("30 6,14,16 * * *", "At 06:30, 14:30 and 16:30 (Europe/Berlin)"),
        ("15 30 6,14 * * *", "At 06:30:15 and 14:30:15 (Europe/Berlin)"),
        ("0,30 9,17 * * *", "At 09:00, 09:30, 17:00 and 17:30 (Europe/Berlin)"),
        ("*/15 8-18 * * *", "Every 15 minutes, between 08:00 and 18:45 (Europe/Berlin)"),
        ("0 9-17 * * *", "On the hour, between 09:00 and 17:00 (Europe/Berlin)"),
        ("*/5 1,2,5-8 * * *", "Every 5 minutes, during the hours 1, 2 and 5 to 8 (Europe/Berlin)"),
        (
            "5,6,7 1-5,10 3-4 * * *",
            "Seconds 5 through 7 past the minute, at 1 to 5 and 10 minutes past the hour, "
            "between 03:01 and 04:10 (Europe/Berlin)",
        ),
        ("@weekly", "At 00:00, on Sunday (Europe/Berlin)"),
        ("@yearly", "At 00:00, on day 1 of the month, in January (Europe/Berlin)"),
        ("0 9 * * 1-5", "At 09:00, Monday to Friday (Europe/Berlin)"),
        ("0 9 * * FRI-SUN", "At 09:00, Friday to Sunday (Europe/Berlin)"),
        ("0 0 13 * 5", "At 00:00, on day 13 of the month, and also on Friday (Europe/Berlin)"),
        (
            "0 0 */10 * 1",
            "At 00:00, on days 1, 11, 21 and 31 of the month, only if it is Monday (Europe/Berlin)",
        ),
        (
            "0 0 1,15W,L,L-1,L-3,LW * *",
            "At 00:00, on day 1, the weekday (Monday to Friday) nearest to day 15, the last day, "
            "the day 1 day before the last day, the day 3 days before the last day and the last "
            "weekday (Monday to Friday) of the month (Europe/Berlin)",
        ),
        (
            "0 0 12 ? 1 2#1,5L 2030",
            (
                "At 12:00, on the 1st Tuesday of the month and the last Friday of the month, in "
                "January, in 2030 (Europe/Berlin)"
            ),
        ),
        ("0 0 * * 1,3", "At 00:00, on Monday and Wednesday (Europe/Berlin)"),
        (
            "0 0 5-9 1-3,6 *",
            "At 00:00, on days 5 to 9 of the month, in January to March and June (Europe/Berlin)",
        ),
        (
            "0 0 */10 * 1,5L",
            "At 00:00, on days 1, 11, 21 and 31 of the month, only if it is Monday or the last "
            "Friday of the month (Europe/Berlin)",
        ),
        ("0 0 1-31 * 5", "At 00:00 (Europe/Berlin)"),
        ("0 0 0 * * * *", "At 00:00 (Europe/Berlin)"),
        ("H H(0-5) * * *", "At 01:16 (Europe/Berlin)"),
        ("CRON_TZ=UTC 0 0 * * *", "At 00:00"),
        ("@every 1h30m", "Every 1 hour and 30 minutes"),
        ("@every 2w", "Every 336 hours"),
        ("@every 1s", "Every 1 second"),
        ("@every 48h10s", "Every 48 hours and 10 seconds"),
        ("@at 2026-12-01T09:00", "Once, on 2026-12-01 at 09:00 (Europe/Berlin)"),
        ("@at 2026-12-01T09:00:05Z", "Once, on 2026-12-01 at 10:00:05 (Europe/Berlin)"),
    ],
)
def test_describe_returns_the_expected_text(text: str, expected: str) -> None:
    schedule: Schedule = parse_schedule(text, "Europe/Berlin", hash_key="x")
    assert describe(schedule) == expected


def test_equality_and_repr_do_not_depend_on_the_parsed_rule() -> None:
    schedule = parse_schedule("H * * * *", "Europe/Berlin", hash_key="x")
    assert replace(schedule, rule=parse_schedule("@never").rule) == schedule
    assert "rule" not in repr(schedule)
    assert "H * * * *" in repr(schedule)
    assert replace(schedule, hash_key="y") != schedule
