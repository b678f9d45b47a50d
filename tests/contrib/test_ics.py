"""iCalendar files become entries of a calendar, or name what they omit."""

# ruff: noqa: DTZ001 -- hypothesis draws naive datetimes

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_dcron.contrib.ics import (
    LONGEST_FILE,
    MAX_ENTRIES,
    MAX_EVENTS,
    IcsResult,
    read_ics,
)
from django_dcron.exceptions import InvalidCalendar
from django_dcron.models.calendar import read_dates

BERLIN, UTC = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")
FIRST, LAST = date(2026, 11, 1), date(2031, 10, 31)
HOUR = timedelta(hours=1)


def file_of(*events: str) -> bytes:
    """Return an iCalendar file. The properties of an event are separated by spaces."""
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//test"]
    for number, event in enumerate(events):
        own_uid = () if "UID:" in event else (f"UID:{number}",)
        lines += ["BEGIN:VEVENT", *own_uid, *event.split(" "), "END:VEVENT"]
    return "\r\n".join([*lines, "END:VCALENDAR", ""]).encode()


def read(*events: str) -> IcsResult:
    return read_ics(file_of(*events), zone=BERLIN, first=FIRST, last=LAST)


DAILY_BUT_MONDAYS = (
    "DTSTART;VALUE=DATE:20261101 RRULE:FREQ=DAILY;BYDAY=TU,WE,TH,FR,SA,SU;INTERVAL=2"
)
DAY_EVENT = "DTSTART;VALUE=DATE:{} DTEND;VALUE=DATE:{}"


@pytest.mark.parametrize(
    ("event", "entries"),
    [
        ("DTSTART;VALUE=DATE:20261224", "2026-12-24"),
        (DAY_EVENT.format(20261224, 20261227), "2026-12-24..2026-12-26"),
        ("DTSTART;VALUE=DATE:20261224 DURATION:P2D", "2026-12-24..2026-12-25"),
        (DAY_EVENT.format(20261030, 20261031), ""),
        (DAY_EVENT.format(20261030, 20261102), "2026-10-30..2026-11-01"),
        (DAY_EVENT.format(20311031, 20311105), "2031-10-31..2031-11-04"),
        (DAY_EVENT.format(20311101, 20311102), ""),
        # Each year, from the past on.
        (DAY_EVENT.format(20201224, 20201225) + " RRULE:FREQ=YEARLY", "12-24"),
        (DAY_EVENT.format(20201224, 20201227) + " RRULE:FREQ=YEARLY", "12-24..12-26"),
        (DAY_EVENT.format(20201230, 20210103) + " RRULE:FREQ=YEARLY", "12-30..01-02"),
        (
            DAY_EVENT.format(20200227, 20200301) + " RRULE:FREQ=YEARLY",
            "2027-02-27..2027-03-01, 2028-02-27..2028-02-29, 2029-02-27..2029-03-01, "
            "2030-02-27..2030-03-01, 2031-02-27..2031-03-01",
        ),
        (
            DAY_EVENT.format(20271224, 20271225) + " RRULE:FREQ=YEARLY",
            "2027-12-24, 2028-12-24, 2029-12-24, 2030-12-24",
        ),
        (
            DAY_EVENT.format(20201224, 20201225) + " RRULE:FREQ=YEARLY;UNTIL=20281224",
            "2026-12-24, 2027-12-24, 2028-12-24",
        ),
        (
            DAY_EVENT.format(20251224, 20251225) + " RRULE:FREQ=YEARLY;COUNT=3",
            "2026-12-24, 2027-12-24",
        ),
        (
            DAY_EVENT.format(20251224, 20251225)
            + " RRULE:FREQ=YEARLY EXDATE;VALUE=DATE:20271224,20281224"
            + " RDATE;VALUE=DATE:20270103",
            "2026-12-24, 2027-01-03, 2029-12-24, 2030-12-24",
        ),
        # The fourth Thursday of November.
        (
            DAY_EVENT.format(20201126, 20201127) + " RRULE:FREQ=YEARLY;BYMONTH=11;BYDAY=4TH",
            "2026-11-26, 2027-11-25, 2028-11-23, 2029-11-22, 2030-11-28",
        ),
        # Each week.
        (DAY_EVENT.format(20200104, 20200105) + " RRULE:FREQ=WEEKLY", "SAT"),
        (DAY_EVENT.format(20200104, 20200106) + " RRULE:FREQ=WEEKLY", "SAT, SUN"),
        (DAY_EVENT.format(20200104, 20200105) + " RRULE:FREQ=WEEKLY;BYDAY=SA,SU", "SAT, SUN"),
        (
            DAY_EVENT.format(20261104, 20261105) + " RRULE:FREQ=WEEKLY;INTERVAL=2;COUNT=3",
            "2026-11-04, 2026-11-18, 2026-12-02",
        ),
        # Times.
        (
            "DTSTART;TZID=Europe/Berlin:20261224T220000 DTEND;TZID=Europe/Berlin:20261225T060000",
            "2026-12-24 22:00-06:00",
        ),
        ("DTSTART:20261224T220000 DTEND:20261224T235930", "2026-12-24 22:00-24:00"),
        ("DTSTART:20261224T220030 DURATION:PT1H", "2026-12-24 22:00-23:01"),
        ("DTSTART:20261224T210000Z DURATION:PT8H", "2026-12-24 22:00-06:00"),
        ("DTSTART:20270624T210000Z DURATION:PT8H", "2027-06-24 23:00-07:00"),
        ("DTSTART:20261224T000000 DTEND:20261226T000000", "2026-12-24..2026-12-25"),
        (
            "DTSTART:20261224T120000 DTEND:20261226T060000",
            "2026-12-24 12:00-24:00, 2026-12-25, 2026-12-26 00:00-06:00",
        ),
        (
            "DTSTART;TZID=Europe/Berlin:20200105T020000 DTEND;TZID=Europe/Berlin:20200105T040000"
            " RRULE:FREQ=WEEKLY",
            "SUN 02:00-04:00",
        ),
        (
            "DTSTART:20261104T010000Z DURATION:PT2H RRULE:FREQ=MONTHLY;BYDAY=1WE;COUNT=2",
            "2026-11-04 02:00-04:00, 2026-12-02 02:00-04:00",
        ),
        # Dates of other zones: 23:00 in UTC is the next day in Berlin.
        (
            "DTSTART;TZID=Europe/Berlin:20261110T000000 DURATION:PT2H RRULE:FREQ=DAILY;COUNT=3"
            " EXDATE:20261110T230000Z RDATE:20261129T230000Z"
            " RDATE;VALUE=PERIOD:20261204T230000Z/PT2H",
            "2026-11-10 00:00-02:00, 2026-11-12 00:00-02:00, 2026-11-30 00:00-02:00, "
            "2026-12-05 00:00-02:00",
        ),
        # Additional dates at another time or with another duration.
        (
            "DTSTART:20261224T220000 DURATION:PT1H RDATE:20200101T100000,20261226T120000",
            "2026-12-24 22:00-23:00, 2026-12-26 12:00-13:00",
        ),
        (
            "DTSTART:20261224T220000 DURATION:PT1H RDATE;VALUE=PERIOD:20261226T220000/PT2H",
            "2026-12-24 22:00-23:00, 2026-12-26 22:00-24:00",
        ),
        (
            "DTSTART;TZID=Europe/Berlin:20261110T090000 DURATION:PT1H RRULE:FREQ=WEEKLY;COUNT=2"
            " RDATE;TZID=Europe/Berlin:20261117T140000,20261118T100000"
            " EXDATE:20261117T130000Z,20261118T090000Z",
            "2026-11-10 09:00-10:00, 2026-11-17 09:00-10:00",
        ),
        (
            "DTSTART:20261110T010000Z DURATION:PT1H RDATE:20261111T020000Z",
            "2026-11-10 02:00-03:00, 2026-11-11 03:00-04:00",
        ),
        ("DTSTART;VALUE=DATE:20261224 STATUS:CANCELLED", ""),
        ("DTSTART;VALUE=DATE:20261224 TRANSP:TRANSPARENT", "2026-12-24"),
    ],
)
def test_event_becomes_entries(event: str, entries: str) -> None:
    kept = "DTSTART;VALUE=DATE:20261106"
    result = read(event, kept)
    assert not result.omitted
    assert result.dates.splitlines() == [*filter(None, [entries]), "2026-11-06"]
    read_dates(result.dates)


def test_replaced_and_cancelled_dates_leave_their_series() -> None:
    result = read(
        DAY_EVENT.format(20261102, 20261103) + " UID:a RRULE:FREQ=WEEKLY;COUNT=4",
        "DTSTART;VALUE=DATE:20261110 UID:a RECURRENCE-ID;VALUE=DATE:20261109",
        "DTSTART;VALUE=DATE:20261116 UID:a RECURRENCE-ID;VALUE=DATE:20261116 STATUS:CANCELLED",
        "DTSTART;VALUE=DATE:20261116 UID:b",
    )
    assert result.dates.splitlines() == ["2026-11-02, 2026-11-23", "2026-11-10", "2026-11-16"]


def test_replaced_time_is_compared_in_the_zone_of_the_series() -> None:
    result = read(
        "DTSTART;TZID=Europe/Berlin:20261110T000000 DURATION:PT2H UID:a RRULE:FREQ=DAILY;COUNT=3",
        "DTSTART:20261111T120000 DURATION:PT1H UID:a RECURRENCE-ID:20261110T230000Z",
    )
    assert result.dates.splitlines() == [
        "2026-11-10 00:00-02:00, 2026-11-12 00:00-02:00",
        "2026-11-11 12:00-13:00",
    ]


@pytest.mark.parametrize(
    "event",
    [
        "DTSTART;VALUE=DATE:20261224 DTEND;VALUE=DATE:20261224",
        "DTSTART:20261224T220000",
        "DTSTART:20261224T220000 DTEND:20261224T210000",
        "DTSTART:20261224T220000 DTEND:20261224T230000Z",
        "DTSTART:someday",
        "DESCRIPTION:without_start",
        "DTSTART;VALUE=DATE:20261224 RRULE:FREQ=SECONDLY",
        "DTSTART;VALUE=DATE:20261224 RRULE:FREQ=YEARLY;BYWEEKNO=3",
        "DTSTART;VALUE=DATE:20261224 RRULE:FREQ=YEARLY RRULE:FREQ=WEEKLY",
        "DTSTART;VALUE=DATE:00010101 RRULE:FREQ=DAILY",
        "DTSTART;VALUE=DATE:19800101 RRULE:FREQ=DAILY;COUNT=30000",
        "DTSTART;VALUE=DATE:20261224 EXDATE:never",
        "DTSTART;VALUE=DATE:20261224 RDATE:20261226T120000",
        "DTSTART:20261224T220000 DURATION:PT1H RDATE;VALUE=PERIOD:20261226T220000/20261226T210000",
        "DTSTART;VALUE=DATE:20261101 DURATION:P999999D RRULE:FREQ=DAILY;UNTIL=20261230",
        "DTSTART;TZID=Asia/Tokyo:00010101T000000 DURATION:PT1H RRULE:FREQ=DAILY",
    ],
)
def test_event_that_no_entry_expresses_is_omitted_by_name(event: str) -> None:
    result = read(f"{event} SUMMARY:Maintenance", "DTSTART;VALUE=DATE:20261106")
    assert result.dates == "2026-11-06"
    [omitted] = result.omitted
    assert omitted.summary == "Maintenance"
    assert str(omitted.reason)


def test_summary_becomes_a_comment_of_one_line() -> None:
    event = b"DTSTART;VALUE=DATE:20261224\r\nSUMMARY:Office\\, closed\\nSAT #1"
    content = file_of("X:1").replace(b"X:1", event)
    result = read_ics(content, zone=BERLIN, first=FIRST, last=LAST)
    assert result.dates == "2026-12-24 # Office, closed SAT #1"
    assert read_dates(result.dates).excluded_times(date(2026, 12, 26)) == ()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "no_events"),
        (b"hello", "not_icalendar"),
        (b"\xff\xfe\x00", "not_icalendar"),
        (file_of(), "no_events"),
        (file_of("DTSTART;VALUE=DATE:20200101"), "no_events"),
        (file_of("DTSTART;VALUE=DATE:20200101") * (LONGEST_FILE // 100), "too_long"),
        (file_of(*["DTSTART;VALUE=DATE:20200101"] * (MAX_EVENTS + 1)), "too_many_events"),
        (file_of(*[DAILY_BUT_MONDAYS] * (MAX_ENTRIES // 300)), "too_many_entries"),
    ],
)
def test_unsuitable_file_is_refused(content: bytes, code: str) -> None:
    with pytest.raises(InvalidCalendar) as caught:
        read_ics(content, zone=BERLIN, first=FIRST, last=LAST)
    assert caught.value.code == code


@given(
    zone=st.sampled_from([BERLIN, UTC, ZoneInfo("Asia/Kathmandu")]),
    start=st.datetimes(datetime(2026, 11, 2), datetime(2028, 11, 1)),
    minutes=st.integers(1, 4 * 24 * 60),
    rule=st.sampled_from(
        [
            "FREQ=DAILY",
            "FREQ=WEEKLY",
            "FREQ=MONTHLY;BYDAY=2FR",
            "FREQ=YEARLY",
            "FREQ=DAILY;INTERVAL=3",
        ]
    ),
    count=st.integers(1, 5),
)
@example(BERLIN, datetime(2027, 3, 27, 22, 0), 480, "FREQ=DAILY", 2)
def test_entries_exclude_exactly_the_minutes_of_the_event(
    zone: ZoneInfo, start: datetime, minutes: int, rule: str, count: int
) -> None:
    start = start.replace(second=0, microsecond=0, tzinfo=zone)
    name = "" if zone is UTC else f";TZID={zone.key}"
    result = read(
        f"DTSTART{name}:{start:%Y%m%dT%H%M%S}{'Z' if zone is UTC else ''} "
        f"DURATION:PT{minutes}M RRULE:{rule};COUNT={count}"
    )
    assert not result.omitted
    excluded = read_dates(result.dates)

    def is_excluded(at: datetime) -> bool:
        seconds = at.hour * 3600 + at.minute * 60
        return any(low <= seconds < high for low, high in excluded.excluded_times(at.date()))

    begin = start.astimezone(BERLIN).replace(tzinfo=None)
    assert is_excluded(begin)
    if zone is BERLIN:
        stop = begin + timedelta(minutes=minutes)
        assert is_excluded(stop - timedelta(minutes=1))
        if count == 1:
            assert not is_excluded(stop)
            assert not is_excluded(begin - timedelta(minutes=1))
