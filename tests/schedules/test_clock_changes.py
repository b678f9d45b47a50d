"""The reported effects of clock changes match the schedule's occurrences, in many zones."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_dcron.schedules.clock_changes import ClockChange, Effect, clock_changes
from django_dcron.schedules.schedule import Schedule, parse_schedule
from django_dcron.schedules.zones import offset_period_at

HOUR = timedelta(hours=1)
MOMENT = timedelta(microseconds=1)


def changes(text: str, zone: str, year: int) -> list[ClockChange]:
    start = datetime(year, 1, 1, tzinfo=UTC)
    return list(clock_changes(parse_schedule(text, zone), start, start.replace(year=year + 1)))


@pytest.mark.parametrize(
    ("text", "effects"),
    [
        ("30 2 * * *", ["once_after", "first_time"]),
        ("0,15,30 2 * * *", ["once_after", "first_time"]),
        ("0 0-23 * * *", ["once_after", "first_time"]),
        ("*/30 2 * * *", ["not_at_all", "both_times"]),
        ("30 */2 * * *", ["not_at_all", "both_times"]),
        ("0 30 2 * * *", ["once_after", "first_time"]),
        ("* 30 2 * * *", ["not_at_all", "both_times"]),
        ("30 3 * * *", []),
        ("0 3 * * *", []),
        ("59 1 * * *", []),
        ("30 2 * * MON", []),
        ("30 2 * 3 SUN", ["once_after"]),
        ("30 2 29 2 *", []),
        ("*/5 * * * *", []),
        ("30 * * * *", []),
        ("* * * * * *", []),
        ("@every 1h", []),
        ("@at 2026-03-29T02:30", []),
    ],
)
def test_clock_changes_in_berlin_have_the_expected_effects(text: str, effects: list[str]) -> None:
    assert [change.effect for change in changes(text, "Europe/Berlin", 2026)] == effects


def test_local_times_before_and_after_a_change_are_reported() -> None:
    forward, back = changes("30 2 * * *", "Europe/Berlin", 2026)
    assert forward == ClockChange(
        zone="Europe/Berlin",
        at=datetime(2026, 3, 29, 1, tzinfo=UTC),
        shown_before=datetime(2026, 3, 29, 2),  # noqa: DTZ001
        shown_after=datetime(2026, 3, 29, 3),  # noqa: DTZ001
        effect=Effect.ONCE_AFTER,
    )
    assert (back.shown_before.hour, back.shown_after.hour) == (3, 2)


@pytest.mark.parametrize(
    ("text", "zone", "year", "effects"),
    [
        # Lord Howe: 02:00 to 02:30; back from 02:00 to 01:30.
        ("15 2 * * *", "Australia/Lord_Howe", 2026, ["once_after"]),
        ("45 1 * * *", "Australia/Lord_Howe", 2026, ["first_time"]),
        ("10 * * * *", "Australia/Lord_Howe", 2026, ["not_at_all"]),
        ("0 0 * * *", "Africa/Cairo", 2026, ["once_after"]),  # at midnight
        ("0 12 * * *", "Pacific/Apia", 2011, ["not_at_all"]),  # a skipped day
        ("30 2 * * *", "UTC", 2026, []),
    ],
)
def test_unusual_clock_changes_have_the_expected_effects(
    text: str, zone: str, year: int, effects: list[str]
) -> None:
    assert [change.effect for change in changes(text, zone, year)] == effects


def test_only_changes_in_the_requested_range_are_reported() -> None:
    schedule = parse_schedule("30 2 * * *", "Europe/Berlin")
    forward, back = (change.at for change in changes("30 2 * * *", "Europe/Berlin", 2026))

    assert [change.at for change in clock_changes(schedule, forward - MOMENT, back)] == [
        forward,
        back,
    ]
    assert [change.at for change in clock_changes(schedule, forward, back - MOMENT)] == []


def test_search_stops_at_the_last_representable_date() -> None:
    schedule = parse_schedule("30 2 * * *", "Europe/Berlin")
    last = datetime(9999, 12, 31, tzinfo=UTC)

    assert list(clock_changes(schedule, last - HOUR, last)) == []


ZONES = st.sampled_from(
    [
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "America/Havana",
        "Africa/Cairo",
        "Asia/Tehran",
    ]
)
TEXTS = st.sampled_from(
    [
        "30 2 * * *",
        "0,45 0-3 * * *",
        "*/20 2 * * *",
        "10 */2 * * *",
        "0 0 * * *",
        "*/7 * * * *",
        "15 * * * *",
        "0 1-3 * * *",
        "30 0 * * *",
    ]
)


@given(TEXTS, ZONES, st.integers(2008, 2040))
@example("*/7 * * * *", "Europe/Berlin", 2026)
def test_reported_effects_match_the_occurrences(text: str, zone: str, year: int) -> None:
    schedule = parse_schedule(text, zone)
    shown = {change.at: change for change in changes(text, zone, year)}
    for at, before, after in _shifts(zone, year):
        nearby = set(schedule.occurrences(at - 4 * HOUR, at + 4 * HOUR))
        affected = _matches(text, min(before, after), max(before, after))
        if at in shown:
            assert affected
            _check(shown[at], nearby, affected, zone, schedule)
        elif affected:  # no reported effect: the gaps between the runs stay the same
            gaps = [later - earlier for earlier, later in pairwise(sorted(nearby))]
            assert len(set(gaps)) <= 2
            assert max(gaps) <= HOUR


def _check(
    change: ClockChange,
    nearby: set[datetime],
    affected: list[datetime],
    zone: str,
    schedule: Schedule,
) -> None:
    offset = offset_period_at(zone, change.at.replace(tzinfo=None) - timedelta(seconds=1)).offset
    first = {(local - offset).replace(tzinfo=UTC) for local in affected}
    shift = change.shown_before - change.shown_after
    second = {at + shift for at in first}
    match change.effect:
        case Effect.ONCE_AFTER:
            assert change.at in nearby
        case Effect.NOT_AT_ALL:
            regular = _matches(
                schedule.text, change.shown_after, change.shown_after + timedelta(seconds=1)
            )
            assert (change.at in nearby) == bool(regular)
        case Effect.FIRST_TIME:
            assert first <= nearby
            assert not second & nearby
        case Effect.BOTH_TIMES:
            assert first | second <= nearby


def _shifts(zone: str, year: int) -> list[tuple[datetime, datetime, datetime]]:
    """Return the year's clock changes: instant, local times just before and after."""
    instant, found = datetime(year, 1, 1), []  # noqa: DTZ001
    while (instant := offset_period_at(zone, instant).end).year == year:
        period = offset_period_at(zone, instant)
        if period.offset != period.offset_before:
            at = instant.replace(tzinfo=UTC)
            found.append((at, instant + period.offset_before, instant + period.offset))
    return found


def _matches(text: str, low: datetime, high: datetime) -> list[datetime]:
    """Return the local times from ``low`` to just before ``high``, as if no clock ever changed."""
    plain = parse_schedule(text, "UTC").occurrences(
        low.replace(tzinfo=UTC) - MOMENT, high.replace(tzinfo=UTC) - MOMENT
    )
    return [at.replace(tzinfo=None) for at in plain]
