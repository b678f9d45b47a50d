"""Occurrences around clock changes in several time zones, with manually computed results.

The cases are gaps, overlaps, odd shifts and a skipped day.
"""

from datetime import UTC, datetime, timedelta

import pytest

from django_dcron.schedules.schedule import parse_schedule

HALF_DAY = timedelta(hours=12)

# zone, cron, noon (UTC) before, then the next occurrences as month-day and UTC time
CASES = [
    # New York: 2026-03-08 02:00 -> 03:00 (07:00 UTC), 2026-11-01 02:00 -> 01:00 (06:00 UTC)
    ("America/New_York", "30 2 * * *", "2026-03-07", ["03-08 07:00", "03-09 06:30", "03-10 06:30"]),
    ("America/New_York", "0,30 2 * * *", "2026-03-07", ["03-08 07:00", "03-09 06:00"]),
    (
        "America/New_York",
        "0 2,3 * * *",
        "2026-03-07",
        ["03-08 07:00", "03-09 06:00", "03-09 07:00"],
    ),
    ("America/New_York", "H(30-30) 2 * * *", "2026-03-07", ["03-08 07:00", "03-09 06:30"]),
    ("America/New_York", "*/30 2 * * *", "2026-03-07", ["03-09 06:00", "03-09 06:30"]),
    ("America/New_York", "0 */2 * * *", "2026-03-08", ["03-08 14:00", "03-08 16:00"]),
    (
        "America/New_York",
        "0 */2 8 3 *",
        "2026-03-07",
        ["03-08 05:00", "03-08 08:00", "03-08 10:00"],
    ),
    ("America/New_York", "30 1 * * *", "2026-10-31", ["11-01 05:30", "11-02 06:30"]),
    (
        "America/New_York",
        "0-59/30 1 * * *",
        "2026-10-31",
        ["11-01 05:00", "11-01 05:30", "11-02 06:00"],
    ),
    (
        "America/New_York",
        "*/30 1 * * *",
        "2026-10-31",
        ["11-01 05:00", "11-01 05:30", "11-01 06:00"],
    ),
    (
        "America/New_York",
        "30 * 1 11 *",
        "2026-10-31",
        ["11-01 04:30", "11-01 05:30", "11-01 06:30"],
    ),
    (
        "America/New_York",
        "0 1,2 * * *",
        "2026-10-31",
        ["11-01 05:00", "11-01 07:00", "11-02 06:00"],
    ),
    # London, and Dublin (whose summer time is the standard time): 2026-03-29 01:00 -> 02:00,
    # 2026-10-25 02:00 -> 01:00
    ("Europe/London", "30 1 * * *", "2026-03-28", ["03-29 01:00", "03-30 00:30"]),
    ("Europe/London", "30 1 * * *", "2026-10-24", ["10-25 00:30", "10-26 01:30"]),
    ("Europe/Dublin", "30 1 * * *", "2026-03-28", ["03-29 01:00", "03-30 00:30"]),
    ("Europe/Dublin", "30 1 * * *", "2026-10-24", ["10-25 00:30", "10-26 01:30"]),
    # Lord Howe shifts by half an hour: 2026-04-05 02:00 -> 01:30, 2026-10-04 02:00 -> 02:30
    ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04", ["04-04 14:45", "04-05 15:15"]),
    (
        "Australia/Lord_Howe",
        "*/15 1 * * *",
        "2026-04-04",
        ["04-04 14:00", "04-04 14:15", "04-04 14:30"],
    ),
    ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03", ["10-03 15:30", "10-04 15:15"]),
    # Changes at midnight: Sao Paulo 2018-11-04 and 2018-02-18, Beirut 2026-03-29, Cairo 2026-04-24
    ("America/Sao_Paulo", "0 0 * * *", "2018-11-03", ["11-04 03:00", "11-05 02:00"]),
    ("America/Sao_Paulo", "30 0 4 11 *", "2018-11-03", ["11-04 03:00"]),
    ("America/Sao_Paulo", "30 23 * * *", "2018-02-17", ["02-18 01:30", "02-19 02:30"]),
    ("America/Sao_Paulo", "30 23 17 2 *", "2018-02-17", ["02-18 01:30"]),
    ("Asia/Beirut", "0 0 * * *", "2026-03-28", ["03-28 22:00", "03-29 21:00"]),
    ("Africa/Cairo", "15 0 * * *", "2026-04-23", ["04-23 22:00", "04-24 21:15"]),
    # Casablanca leaves summer time for Ramadan: 2026-02-15 03:00 -> 02:00, 2026-03-22 02:00 ->
    # 03:00
    ("Africa/Casablanca", "30 2 * * *", "2026-02-14", ["02-15 01:30", "02-16 02:30"]),
    ("Africa/Casablanca", "30 2 * * *", "2026-03-21", ["03-22 02:00", "03-23 01:30"]),
    # Troll shifts by two hours: 2026-03-29 01:00 -> 03:00, 2026-10-25 03:00 -> 01:00
    (
        "Antarctica/Troll",
        "30 1,2 * * *",
        "2026-03-28",
        ["03-29 01:00", "03-29 23:30", "03-30 00:30"],
    ),
    ("Antarctica/Troll", "30 2 * * *", "2026-10-24", ["10-25 00:30", "10-26 02:30"]),
    (
        "Antarctica/Troll",
        "*/30 2 25 10 *",
        "2026-10-24",
        ["10-25 00:00", "10-25 00:30", "10-25 02:00"],
    ),
    # Changes that aren't daylight saving: Caracas by half an hour, Casey by exactly three hours,
    # Vostok by more
    ("America/Caracas", "45 2 * * *", "2016-04-30", ["05-01 07:00", "05-02 06:45"]),
    ("Antarctica/Casey", "30 3 * * *", "2009-10-17", ["10-17 18:00", "10-18 16:30"]),
    ("Antarctica/Casey", "30 0 * * *", "2010-03-04", ["03-04 13:30", "03-05 16:30"]),
    ("Antarctica/Vostok", "0 3 1 11 *", "1994-10-31", ["10-31 20:00"]),  # in 1995
    # Apia skipped 2011-12-30, Kwajalein 1993-08-21: such a shift is too large to make up for
    ("Pacific/Apia", "0 9 * * *", "2011-12-29", ["12-29 19:00", "12-30 19:00", "12-31 19:00"]),
    ("Pacific/Apia", "0 9 30 12 *", "2011-12-28", ["12-29 19:00"]),  # in 2012
    ("Pacific/Kwajalein", "0 9 21 8 *", "1993-08-19", ["08-20 21:00"]),  # in 1994
    ("UTC", "30 2 * * *", "2026-03-28", ["03-29 02:30", "03-30 02:30"]),
]


@pytest.mark.parametrize(("zone", "text", "noon", "expected"), CASES)
def test_occurrences_around_clock_changes_match_manual_results(
    zone: str, text: str, noon: str, expected: list[str]
) -> None:
    start = datetime.fromisoformat(noon).replace(tzinfo=UTC) + HALF_DAY
    schedule = parse_schedule(text, zone)
    found = list(schedule.occurrences(start, start + timedelta(days=800), len(expected)))
    assert [f"{at:%m-%d %H:%M}" for at in found] == expected
    backwards = [found[-1]]
    while len(backwards) < len(found):
        previous = schedule.previous_before(backwards[-1])
        assert previous is not None
        backwards.append(previous)
    assert backwards == found[::-1]
