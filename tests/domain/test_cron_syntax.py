"""What a schedule text may say, and how it is told that it may not."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from django_dcron.domain.schedule import parse_schedule
from django_dcron.exceptions import InvalidSchedule

START = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday


def firings(text: str, days: int = 400, limit: int = 8, **options: str) -> list[str]:
    schedule = parse_schedule(text, **options)
    found = schedule.occurrences(START - timedelta(seconds=1), START + timedelta(days=days), limit)
    return [f"{at:%m-%d %H:%M:%S}" for at in found]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@Annually", "0 0 1 1 *"),
        ("  5\t4  * * *\n", "5 4 * * *"),
        ("0 0 * jan-mar mon", "0 0 * 1-3 1"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * FRI-SUN", "0 0 * * 5,6,0"),
        ("0 0 * * 5-7", "0 0 * * 5,6,0"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * * SUN-TUE", "0 0 * * 0,1,2"),
        ("0 0 * * SUN-SUN", "0 0 * * 0"),
        ("0 0 * * 7-7", "0 0 * * 0"),
        ("0 0 * * MON-SUN/2", "0 0 * * 1,3,5,0"),
        ("0 0 * * 2/2", "0 0 * * 2,4,6"),
        ("0 0 * * 7/2", "0 0 * * 0"),
        ("0 0 * * L", "0 0 * * 6"),
        ("0 0 * * 0L", "0 0 * * SUNL"),
        ("0 0 * * 7L", "0 0 * * SUNL"),
        ("0 0 * * 7#2", "0 0 * * SUN#2"),
        ("5-5 * * * *", "5 * * * *"),
        ("50/5 * * * *", "50,55 * * * *"),
        ("10-20/5 * * * *", "10,15,20 * * * *"),
        ("59/15 * * * *", "59 * * * *"),
        ("1-5,10,20/20 * * * *", "1,2,3,4,5,10,20,40 * * * *"),
        ("0 0 1 * ?", "0 0 1 * *"),
        ("0 0 ? * 1", "0 0 * * 1"),
        ("0 0 ? * ?", "0 0 * * *"),
        ("0 5 4 * * *", "5 4 * * *"),
        ("0 5 4 * * * *", "5 4 * * *"),
        ("0 5 4 * * ? 2026-2028", "5 4 * * *"),
        ("TZ=UTC 5 4 * * *", "5 4 * * *"),
        ("CRON_TZ=Etc/UTC @daily", "0 0 * * *"),
        ("00 004 * * *", "0 4 * * *"),
    ],
)
def test_spellings_of_the_same(text: str, same: str) -> None:
    assert firings(text) == firings(same) != []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*/20 * * * * *", ["01-01 00:00:00", "01-01 00:00:20", "01-01 00:00:40", "01-01 00:01:00"]),
        ("30 3 * * *", ["01-01 03:30:00", "01-02 03:30:00", "01-03 03:30:00", "01-04 03:30:00"]),
        ("0 0 L * *", ["01-31 00:00:00", "02-28 00:00:00", "03-31 00:00:00", "04-30 00:00:00"]),
        ("0 0 L-3 * *", ["01-28 00:00:00", "02-25 00:00:00", "03-28 00:00:00", "04-27 00:00:00"]),
        ("0 0 L-30 * *", ["01-01 00:00:00", "03-01 00:00:00", "05-01 00:00:00", "07-01 00:00:00"]),
        ("0 0 LW * *", ["01-30 00:00:00", "02-27 00:00:00", "03-31 00:00:00", "04-30 00:00:00"]),
        ("0 0 1W * *", ["01-01 00:00:00", "02-02 00:00:00", "03-02 00:00:00", "04-01 00:00:00"]),
        ("0 0 1W 8 *", ["08-03 00:00:00"]),  # the 1st is a Saturday
        ("0 0 31W 5 *", ["05-29 00:00:00"]),  # the 31st is a Sunday
        ("0 0 15W * *", ["01-15 00:00:00", "02-16 00:00:00", "03-16 00:00:00", "04-15 00:00:00"]),
        ("0 0 31W * *", ["01-30 00:00:00", "03-31 00:00:00", "05-29 00:00:00", "07-31 00:00:00"]),
        ("0 0 1,LW * *", ["01-01 00:00:00", "01-30 00:00:00", "02-01 00:00:00", "02-27 00:00:00"]),
        ("0 0 10W,20 * *", ["01-09 00:00:00", "01-20 00:00:00", "02-10 00:00:00", "02-20 00:00:00"]),
        ("0 0 * * 5L", ["01-30 00:00:00", "02-27 00:00:00", "03-27 00:00:00", "04-24 00:00:00"]),
        ("0 0 * * MON#1", ["01-05 00:00:00", "02-02 00:00:00", "03-02 00:00:00", "04-06 00:00:00"]),
        ("0 0 * * 4#5", ["01-29 00:00:00", "04-30 00:00:00", "07-30 00:00:00", "10-29 00:00:00"]),
        ("0 0 * * 1#1,5L", ["01-05 00:00:00", "01-30 00:00:00", "02-02 00:00:00", "02-27 00:00:00"]),
        ("0 0 * * 2,3#5", ["01-06 00:00:00", "01-13 00:00:00", "01-20 00:00:00", "01-27 00:00:00"]),
        # Neither day field starts with a star: either will do.
        ("0 0 13 * 5", ["01-02 00:00:00", "01-09 00:00:00", "01-13 00:00:00", "01-16 00:00:00"]),
        ("0 0 31 * 1#5", ["01-31 00:00:00", "03-30 00:00:00", "03-31 00:00:00", "05-31 00:00:00"]),
        ("0 0 L * 1#1", ["01-05 00:00:00", "01-31 00:00:00", "02-02 00:00:00", "02-28 00:00:00"]),
        # One does: both must match.
        ("0 0 */10 * 1", ["05-11 00:00:00", "06-01 00:00:00", "08-31 00:00:00", "09-21 00:00:00"]),
        ("0 0 13 * */5", ["02-13 00:00:00", "03-13 00:00:00", "09-13 00:00:00", "11-13 00:00:00"]),
        ("0 0 */7 * 1#2", ["06-08 00:00:00"]),
        ("0 0 LW * */5", ["01-30 00:00:00", "02-27 00:00:00", "05-29 00:00:00", "07-31 00:00:00"]),
        ("0 0 0 29 2 ? 2028", []),
        ("0 0 0 1 1 ? 2027,2030", ["01-01 00:00:00"]),
    ],
)
def test_which_days(text: str, expected: list[str]) -> None:
    assert firings(text, limit=4) == expected


REFUSALS = [
    # out of range
    ("75 * * * *", "minute: 75 is out of range (allowed 0-59)"),
    ("60 * * * * *", "second: 60 is out of range (allowed 0-59)"),
    ("0 24 * * *", "hour: 24 is out of range (allowed 0-23)"),
    ("0 0 0 * *", "day of month: 0 is out of range (allowed 1-31)"),
    ("0 0 32 * *", "day of month: 32 is out of range (allowed 1-31)"),
    ("0 0 * 0 *", "month: 0 is out of range (allowed 1-12 or JAN-DEC)"),
    ("0 0 * 13 *", "month: 13 is out of range"),
    ("0 0 * * 8", "day of week: 8 is out of range (allowed 0-7 or SUN-SAT)"),
    ("0 0 0 1 1 * 1969", "year: 1969 is out of range (allowed 1970-2099)"),
    ("0 0 0 1 1 * 2100", "year: 2100 is out of range"),
    ("0-60 * * * *", "minute: 60 is out of range"),
    ("0 0 0W * *", "day of month: 0 is out of range"),
    ("0 0 32W * *", "day of month: 32 is out of range"),
    ("0 0 L-0 * *", "day of month: 0 is out of range (allowed 1-30)"),
    ("0 0 L-31 * *", "day of month: 31 is out of range (allowed 1-30)"),
    ("0 0 * * 8L", "day of week: 8 is out of range"),
    ("0 0 * * 1#0", "day of week: '1#0' asks for weekday number 0 of a month (allowed #1-#5)"),
    ("0 0 * * 1#6", "day of week: '1#6' asks for weekday number 6"),
    ("H(5-75) * * * *", "minute: 75 is out of range"),
    # ranges and steps
    ("5-1 * * * *", "minute: 5-1 is a reversed range"),
    ("0 22-2 * * *", "hour: 22-2 is a reversed range"),
    ("0 0 * APR-MAR *", "month: APR-MAR is a reversed range"),
    ("0 0 * * FRI-MON", "day of week: FRI-MON is a reversed range"),
    ("0 0 * * 5-0", "day of week: 5-0 is a reversed range (write 7 for a Sunday at the end)"),
    ("0 0 * * 7-3", "day of week: 7-3 is a reversed range"),
    ("H(9-5) * * * *", "minute: 9-5 is a reversed range"),
    ("*/0 * * * *", "minute: '*/0' has a step of 0 (allowed steps 1-59)"),
    ("*/60 * * * *", "minute: '*/60' has a step of 60 (allowed steps 1-59)"),
    ("0 */24 * * *", "hour: '*/24' has a step of 24 (allowed steps 1-23)"),
    ("0 0 */32 * *", "day of month: '*/32' has a step of 32 (allowed steps 1-31)"),
    ("0 0 * */13 *", "month: '*/13' has a step of 13 (allowed steps 1-12)"),
    ("0 0 * * */8", "day of week: '*/8' has a step of 8 (allowed steps 1-7)"),
    ("0 0 0 1 1 * */130", "year: '*/130' has a step of 130 (allowed steps 1-129)"),
    ("*/ * * * *", "minute: '*/' has a step of nothing"),
    ("H(0-3)/15 * * * *", "minute: 'H(0-3)/15' has a step of 15 (allowed steps 1-4)"),
    ("0 0 H/29 * *", "day of month: 'H/29' has a step of 29 (allowed steps 1-28)"),
    ("*/5/5 * * * *", "minute: '*/5/5' has a step of 5/5"),
    ("*/-5 * * * *", "minute: '*/-5' has a step of -5"),
    ("H/60 * * * *", "minute: 'H/60' has a step of 60"),
    # no value
    (",1 * * * *", "minute: ',1' has an empty item in its list"),
    ("1,,2 * * * *", "minute: '1,,2' has an empty item in its list"),
    ("1, * * * *", "minute: '1,' has an empty item in its list"),
    ("foo * * * *", "minute: 'FOO' is not a value of this field (allowed 0-59)"),
    ("-5 * * * *", "minute: '' in '-5' is not a value"),
    ("5- * * * *", "minute: '' in '5-' is not a value"),
    ("1-2-3 * * * *", "minute: '2-3' in '1-2-3' is not a value"),
    ("*-5 * * * *", "minute: '*' in '*-5' is not a value"),
    ("+5 * * * *", "minute: '+5' is not a value"),
    ("1.5 * * * *", "minute: '1.5' is not a value"),
    ("** * * * *", "minute: '**' is not a value"),
    ("MON * * * *", "minute: 'MON' is not a value"),
    ("L * * * *", "minute: 'L' is not a value"),
    ("0 0 MON * *", "day of month: 'MON' is not a value"),
    ("0 0 * FOO *", "month: 'FOO' is not a value of this field (allowed 1-12 or JAN-DEC)"),
    ("0 0 * MON *", "month: 'MON' is not a value"),
    ("0 0 * * JAN", "day of week: 'JAN' is not a value"),
    ("0 0 * * L5", "day of week: 'L5' is not a value"),
    ("0 0 * * 1-5#2", "day of week: '5#2' in '1-5#2' is not a value"),
    ("0 0 * * #2", "day of week: '#2' is not a value"),
    ("0 0 W * *", "day of month: 'W' is not a value"),
    ("0 0 WL * *", "day of month: 'WL' is not a value"),
    ("0 0 1-5W * *", "day of month: '5W' in '1-5W' is not a value"),
    ("0 0 L/2 * *", "day of month: 'L' in 'L/2' is not a value"),
    ("0 0 * * 5W", "day of week: '5W' is not a value"),
    ("? * * * *", "minute: ? is for the day fields only"),
    ("0 0 * ? *", "month: ? is for the day fields only"),
    ("0 0 ?/2 * *", "day of month: '?' in '?/2' is not a value"),
    ("0 0 1,? * *", "day of month: '?' is not a value"),
    ("0 0 0 1 1 ? H", "year: 'H' is not a value of this field (allowed 1970-2099; no H in this field)"),
    ("H(5) * * * *", "minute: 'H(5)' is not a value of this field (allowed 0-59; H, H(a-b), H/n, H(a-b)/n)"),
    ("H5 * * * *", "minute: 'H5' is not a value"),
    ("H-5 * * * *", "minute: 'H-5' is not a value"),
    ("R * * * *", "minute: 'R' is not a value"),
    ("\x00 * * * *", "minute: '\\x00' is not a value"),
    # shape
    ("", "schedule: '' has 0 fields (allowed: 5, 6 with seconds first, 7 with"),
    ("   ", "schedule: '' has 0 fields"),
    ("*", "schedule: '*' has 1 field (allowed"),
    ("* * * *", "has 4 fields"),
    ("* * * * * * * *", "has 8 fields"),
    ("CRON_TZ=UTC", "has 0 fields"),
    ("CRON_TZ=UTC TZ=UTC * * * * *", "second: 'TZ=UTC' is not a value"),
    ("@reboot", "schedule: '@reboot' is not a known macro (allowed: @hourly, @daily, @midnight, @weekly,"),
    ("@daily 5", "schedule: '@daily 5' is not a known macro"),
    ("@", "schedule: '@' is not a known macro"),
    ("@every", "@every: '' is not an interval (allowed: whole hours, minutes and seconds such as 1h30m"),
    ("@every 0s", "@every: '0s' is not an interval"),
    ("@every 500ms", "@every: '500ms' is not an interval"),
    ("@every 1.5h", "@every: '1.5h' is not an interval"),
    ("@every -1h", "@every: '-1h' is not an interval"),
    ("@every 30m1h", "@every: '30m1h' is not an interval"),
    ("@every 1h 30m", "@every: '1h 30m' is not an interval"),
    ("@every 1d", "@every: '1d' is not an interval"),
    ("@every 90", "@every: '90' is not an interval"),
    ("@every 999999999h", "@every: '999999999h' is not an interval"),
    ("@every 99999999999999999999h", "is not an interval"),
    ("@at", "@at: '' is not a time (allowed: years 1970-2099 as 2026-12-01T09:00"),
    ("@at tomorrow", "@at: 'tomorrow' is not a time"),
    ("@at 2026-02-30T09:00", "@at: '2026-02-30T09:00' is not a time"),
    ("@at 2026-12-01", "@at: '2026-12-01' is not a time"),
    ("@at 2026-12-01T25:00", "is not a time"),
    ("@at 2026-12-01T09:00+25:00", "is not a time"),
    ("@at 1969-12-31T23:59", "is not a time"),
    ("@at 2100-01-01T00:00", "is not a time"),
    ("@at 2026-12-01T09:00:00.5", "is not a time"),
    ("x" * 256, "schedule: 256 characters are too many (allowed: at most 255)"),
    ("* * * * * # ü", "schedule: '\\xfc' is not allowed (allowed: ASCII characters only)"),
    ("٣ * * * *", "allowed: ASCII characters only"),
    ("0\u00a00 * * *", "allowed: ASCII characters only"),
    # never
    ("0 0 30 2 *", "schedule: '0 0 30 2 *' can never match: no such day in the calendar"),
    ("0 0 31 4,6 ?", "schedule: '0 0 31 4,6 ?' can never match"),
    ("0 0 31W 4,6,9,11 *", "can never match"),
    ("0 0 30W 2 *", "can never match"),
    ("0 0 L-29 2 *", "can never match"),
    ("0 0 0 29 2 ? 2025-2027", "can never match"),
    ("0 0 0 29 2 */7 2028", "can never match"),
    ("0 0 */31 2 1#3", "can never match"),
]


@pytest.mark.parametrize(("text", "message"), REFUSALS)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse_schedule(text)
    assert message in str(caught.value)
    assert "allowed" in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("text", [None, 5, b"* * * * *", ["*"], 1.5])
def test_only_text_is_text(text: object) -> None:
    with pytest.raises(InvalidSchedule, match="is not text"):
        parse_schedule(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "zone",
    [
        "",
        "Mars/Phobos",
        "../UTC",
        "/etc/passwd",
        "Europe",
        "europe/berlin",
        "localtime",
        "Factory",
        "posix/UTC",
        "UTC\x00",
        "Europe/Berlin ",
        "x" * 10_000,
        None,
        5,
        "+02:00",
        "é",
    ],
)
def test_unknown_zones(zone: object) -> None:
    with pytest.raises(InvalidSchedule, match=r"timezone: .* is not a known time zone"):
        parse_schedule("* * * * *", zone)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", ["CRON_TZ=Mars/Phobos", "TZ=../UTC", "TZ=", "CRON_TZ=/etc/localtime"])
def test_unknown_zones_in_front(prefix: str) -> None:
    with pytest.raises(InvalidSchedule, match="is not a known time zone"):
        parse_schedule(f"{prefix} * * * * *")


def test_a_misspelt_zone_is_suggested() -> None:
    with pytest.raises(InvalidSchedule, match=r"did you mean Europe/Berlin\?"):
        parse_schedule("* * * * *", "Europe/Berlim")


def test_the_longest_text() -> None:
    assert parse_schedule("*" + " " * 246 + "* * * *").text == "* * * * *"


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("H H H H H *", "job-1", ["08-04 09:46:35"]),
        ("H H * * *", "job-2", ["01-01 00:04:00", "01-02 00:04:00"]),
        (
            "H(0-29)/10 H(0-7) * * *",
            "job-1",
            ["01-01 01:06:00", "01-01 01:16:00", "01-01 01:26:00", "01-02 01:06:00"],
        ),
        ("H/15 * * * *", "job-1", ["01-01 00:01:00", "01-01 00:16:00", "01-01 00:31:00", "01-01 00:46:00"]),
        ("H,30 H 1,H * *", "", ["01-01 06:30:00", "01-01 06:40:00", "02-01 06:30:00", "02-01 06:40:00"]),
    ],
)
def test_hash_values_are_stable_for_ever(text: str, key: str, expected: list[str]) -> None:
    """These literals must never change: they are when people's jobs run."""
    assert firings(text, hash_key=key, limit=len(expected)) == expected


def test_hashing_spreads_and_stays_inside() -> None:
    minutes = [int(firings("H(10-19) 0 * * *", hash_key=str(n), limit=1)[0][9:11]) for n in range(300)]
    assert set(minutes) == set(range(10, 20))
    days = {firings("0 0 H * *", hash_key=str(n), limit=1)[0][3:5] for n in range(300)}
    assert days == {f"{n:02}" for n in range(1, 29)}
    quarters = [int(at[9:11]) for at in firings("H/15 * * * *", hash_key="x", limit=4)]
    assert [b - a for a, b in pairwise(quarters)] == [15, 15, 15]
    assert firings("H(5-5)/1 * * * *", limit=2) == firings("5 * * * *", limit=2)


def test_only_hashed_schedules_depend_on_the_key() -> None:
    assert parse_schedule("0 0 * * *", hash_key="a") is parse_schedule("0  0 * * *", hash_key="b")
    assert parse_schedule("h 0 * * *", hash_key="a") != parse_schedule("h 0 * * *", hash_key="b")
    assert parse_schedule("0 0 1,H * *", hash_key="a") != parse_schedule("0 0 1,H * *", hash_key="b")
    assert parse_schedule("H 0 * * *", hash_key="a") == parse_schedule("H 0 * * *", hash_key="a")
