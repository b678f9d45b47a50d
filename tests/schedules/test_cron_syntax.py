"""Valid schedule texts and their occurrences, and the errors of invalid ones."""

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from django_dcron.exceptions import InvalidSchedule, InvalidTimeZone
from django_dcron.schedules.hashing import hash_key_of
from django_dcron.schedules.recurrence_text import EXAMPLE
from django_dcron.schedules.schedule import parse_schedule

START = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday


def occurrences_of(text: str, days: int = 400, limit: int = 8, **options: str) -> list[str]:
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
def test_equivalent_texts_have_the_same_occurrences(text: str, same: str) -> None:
    assert occurrences_of(text) == occurrences_of(same) != []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "*/20 * * * * *",
            ["01-01 00:00:00", "01-01 00:00:20", "01-01 00:00:40", "01-01 00:01:00"],
        ),
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
        (
            "0 0 10W,20 * *",
            ["01-09 00:00:00", "01-20 00:00:00", "02-10 00:00:00", "02-20 00:00:00"],
        ),
        ("0 0 * * 5L", ["01-30 00:00:00", "02-27 00:00:00", "03-27 00:00:00", "04-24 00:00:00"]),
        ("0 0 * * MON#1", ["01-05 00:00:00", "02-02 00:00:00", "03-02 00:00:00", "04-06 00:00:00"]),
        ("0 0 * * 4#5", ["01-29 00:00:00", "04-30 00:00:00", "07-30 00:00:00", "10-29 00:00:00"]),
        (
            "0 0 * * 1#1,5L",
            ["01-05 00:00:00", "01-30 00:00:00", "02-02 00:00:00", "02-27 00:00:00"],
        ),
        ("0 0 * * 2,3#5", ["01-06 00:00:00", "01-13 00:00:00", "01-20 00:00:00", "01-27 00:00:00"]),
        # Neither day field starts with a star, so one match is enough.
        ("0 0 13 * 5", ["01-02 00:00:00", "01-09 00:00:00", "01-13 00:00:00", "01-16 00:00:00"]),
        ("0 0 31 * 1#5", ["01-31 00:00:00", "03-30 00:00:00", "03-31 00:00:00", "05-31 00:00:00"]),
        ("0 0 L * 1#1", ["01-05 00:00:00", "01-31 00:00:00", "02-02 00:00:00", "02-28 00:00:00"]),
        # One of them does, so both must match.
        ("0 0 */10 * 1", ["05-11 00:00:00", "06-01 00:00:00", "08-31 00:00:00", "09-21 00:00:00"]),
        ("0 0 13 * */5", ["02-13 00:00:00", "03-13 00:00:00", "09-13 00:00:00", "11-13 00:00:00"]),
        ("0 0 */7 * 1#2", ["06-08 00:00:00"]),
        ("0 0 LW * */5", ["01-30 00:00:00", "02-27 00:00:00", "05-29 00:00:00", "07-31 00:00:00"]),
        ("0 0 0 29 2 ? 2028", []),
        ("0 0 0 1 1 ? 2027,2030", ["01-01 00:00:00"]),
    ],
)
def test_day_fields_match_the_expected_days(text: str, expected: list[str]) -> None:
    assert occurrences_of(text, limit=4) == expected


MONTH_DAYS = "1-31, L, LW, 15W, WD#3"
REFUSALS: list[tuple[str, str, dict[str, str]]] = [
    # out of range
    ("75 * * * *", "out_of_range", {"field": "minute", "value": "75", "allowed": "0-59"}),
    ("60 * * * * *", "out_of_range", {"field": "second", "value": "60", "allowed": "0-59"}),
    ("0 24 * * *", "out_of_range", {"field": "hour", "value": "24", "allowed": "0-23"}),
    ("0 0 0 * *", "out_of_range", {"field": "day of month", "value": "0", "allowed": "1-31"}),
    ("0 0 32 * *", "out_of_range", {"field": "day of month", "value": "32", "allowed": "1-31"}),
    ("0 0 * 0 *", "out_of_range", {"field": "month", "value": "0", "allowed": "1-12 or JAN-DEC"}),
    ("0 0 * 13 *", "out_of_range", {"field": "month", "value": "13", "allowed": "1-12 or JAN-DEC"}),
    (
        "0 0 * * 8",
        "out_of_range",
        {"field": "day of week", "value": "8", "allowed": "0-7 or SUN-SAT"},
    ),
    (
        "0 0 0 1 1 * 1969",
        "out_of_range",
        {"field": "year", "value": "1969", "allowed": "1970-2099"},
    ),
    (
        "0 0 0 1 1 * 2100",
        "out_of_range",
        {"field": "year", "value": "2100", "allowed": "1970-2099"},
    ),
    ("0-60 * * * *", "out_of_range", {"field": "minute", "value": "60", "allowed": "0-59"}),
    ("0 0 0W * *", "out_of_range", {"field": "day of month", "value": "0", "allowed": "1-31"}),
    ("0 0 32W * *", "out_of_range", {"field": "day of month", "value": "32", "allowed": "1-31"}),
    ("0 0 L-0 * *", "out_of_range", {"field": "day of month", "value": "0", "allowed": "1-30"}),
    ("0 0 L-31 * *", "out_of_range", {"field": "day of month", "value": "31", "allowed": "1-30"}),
    (
        "0 0 * * 8L",
        "out_of_range",
        {"field": "day of week", "value": "8", "allowed": "0-7 or SUN-SAT"},
    ),
    (
        "0 0 * * 1#0",
        "invalid_weekday_number",
        {"field": "day of week", "value": "'1#0'", "number": "0"},
    ),
    (
        "0 0 * * 1#6",
        "invalid_weekday_number",
        {"field": "day of week", "value": "'1#6'", "number": "6"},
    ),
    ("H(5-75) * * * *", "out_of_range", {"field": "minute", "value": "75", "allowed": "0-59"}),
    # ranges and steps
    ("5-1 * * * *", "reversed_range", {"field": "minute", "value": "5-1", "allowed": "0-59"}),
    ("0 22-2 * * *", "reversed_range", {"field": "hour", "value": "22-2", "allowed": "0-23"}),
    (
        "0 0 * APR-MAR *",
        "reversed_range",
        {"field": "month", "value": "APR-MAR", "allowed": "1-12 or JAN-DEC"},
    ),
    (
        "0 0 * * FRI-MON",
        "reversed_range",
        {"field": "day of week", "value": "FRI-MON", "allowed": "0-7 or SUN-SAT"},
    ),
    (
        "0 0 * * 5-0",
        "reversed_range",
        {"field": "day of week", "value": "5-0", "allowed": "0-7 or SUN-SAT"},
    ),
    (
        "0 0 * * 7-3",
        "reversed_range",
        {"field": "day of week", "value": "7-3", "allowed": "0-7 or SUN-SAT"},
    ),
    ("H(9-5) * * * *", "reversed_range", {"field": "minute", "value": "9-5", "allowed": "0-59"}),
    (
        "*/0 * * * *",
        "invalid_step",
        {"field": "minute", "value": "'*/0'", "step": "'0'", "most": "59"},
    ),
    (
        "*/60 * * * *",
        "invalid_step",
        {"field": "minute", "value": "'*/60'", "step": "'60'", "most": "59"},
    ),
    (
        "0 */24 * * *",
        "invalid_step",
        {"field": "hour", "value": "'*/24'", "step": "'24'", "most": "23"},
    ),
    (
        "0 0 */32 * *",
        "invalid_step",
        {"field": "day of month", "value": "'*/32'", "step": "'32'", "most": "31"},
    ),
    (
        "0 0 * */13 *",
        "invalid_step",
        {"field": "month", "value": "'*/13'", "step": "'13'", "most": "12"},
    ),
    (
        "0 0 * * */8",
        "invalid_step",
        {"field": "day of week", "value": "'*/8'", "step": "'8'", "most": "7"},
    ),
    (
        "0 0 0 1 1 * */130",
        "invalid_step",
        {"field": "year", "value": "'*/130'", "step": "'130'", "most": "129"},
    ),
    (
        "*/ * * * *",
        "invalid_step",
        {"field": "minute", "value": "'*/'", "step": "''", "most": "59"},
    ),
    (
        "H(0-3)/15 * * * *",
        "invalid_step",
        {"field": "minute", "value": "'H(0-3)/15'", "step": "'15'", "most": "4"},
    ),
    (
        "0 0 H/29 * *",
        "invalid_step",
        {"field": "day of month", "value": "'H/29'", "step": "'29'", "most": "28"},
    ),
    (
        "*/5/5 * * * *",
        "invalid_step",
        {"field": "minute", "value": "'*/5/5'", "step": "'5/5'", "most": "59"},
    ),
    (
        "*/-5 * * * *",
        "invalid_step",
        {"field": "minute", "value": "'*/-5'", "step": "'-5'", "most": "59"},
    ),
    (
        "H/60 * * * *",
        "invalid_step",
        {"field": "minute", "value": "'H/60'", "step": "'60'", "most": "59"},
    ),
    # no value
    (",1 * * * *", "empty_item", {"field": "minute", "value": "',1'", "allowed": "0-59"}),
    ("1,,2 * * * *", "empty_item", {"field": "minute", "value": "'1,,2'", "allowed": "0-59"}),
    ("1, * * * *", "empty_item", {"field": "minute", "value": "'1,'", "allowed": "0-59"}),
    ("foo * * * *", "invalid_value", {"field": "minute", "value": "'FOO'", "allowed": "0-59"}),
    (
        "-5 * * * *",
        "invalid_value",
        {"field": "minute", "value": "''", "allowed": "0-59", "item": "'-5'"},
    ),
    (
        "5- * * * *",
        "invalid_value",
        {"field": "minute", "value": "''", "allowed": "0-59", "item": "'5-'"},
    ),
    (
        "1-2-3 * * * *",
        "invalid_value",
        {"field": "minute", "value": "'2-3'", "allowed": "0-59", "item": "'1-2-3'"},
    ),
    (
        "*-5 * * * *",
        "invalid_value",
        {"field": "minute", "value": "'*'", "allowed": "0-59", "item": "'*-5'"},
    ),
    ("+5 * * * *", "invalid_value", {"field": "minute", "value": "'+5'", "allowed": "0-59"}),
    ("1.5 * * * *", "invalid_value", {"field": "minute", "value": "'1.5'", "allowed": "0-59"}),
    ("** * * * *", "invalid_value", {"field": "minute", "value": "'**'", "allowed": "0-59"}),
    ("MON * * * *", "invalid_value", {"field": "minute", "value": "'MON'", "allowed": "0-59"}),
    ("L * * * *", "invalid_value", {"field": "minute", "value": "'L'", "allowed": "0-59"}),
    (
        "0 0 MON * *",
        "invalid_value",
        {"field": "day of month", "value": "'MON'", "allowed": MONTH_DAYS},
    ),
    (
        "0 0 * FOO *",
        "invalid_value",
        {"field": "month", "value": "'FOO'", "allowed": "1-12 or JAN-DEC"},
    ),
    (
        "0 0 * MON *",
        "invalid_value",
        {"field": "month", "value": "'MON'", "allowed": "1-12 or JAN-DEC"},
    ),
    (
        "0 0 * * JAN",
        "invalid_value",
        {"field": "day of week", "value": "'JAN'", "allowed": "0-7 or SUN-SAT"},
    ),
    (
        "0 0 * * L5",
        "invalid_value",
        {"field": "day of week", "value": "'L5'", "allowed": "0-7 or SUN-SAT"},
    ),
    (
        "0 0 * * 1-5#2",
        "invalid_value",
        {"field": "day of week", "value": "'5#2'", "allowed": "0-7 or SUN-SAT", "item": "'1-5#2'"},
    ),
    (
        "0 0 * * #2",
        "invalid_value",
        {"field": "day of week", "value": "'#2'", "allowed": "0-7 or SUN-SAT"},
    ),
    ("0 0 W * *", "invalid_value", {"value": "'W'", "allowed": MONTH_DAYS}),
    ("0 0 WL * *", "invalid_value", {"value": "'WL'", "allowed": MONTH_DAYS}),
    (
        "0 0 1-5W * *",
        "invalid_value",
        {"field": "day of month", "value": "'5W'", "allowed": "1-31", "item": "'1-5W'"},
    ),
    (
        "0 0 L/2 * *",
        "invalid_value",
        {"field": "day of month", "value": "'L'", "allowed": "1-31", "item": "'L/2'"},
    ),
    (
        "0 0 * * 5W",
        "invalid_value",
        {"field": "day of week", "value": "'5W'", "allowed": "0-7 or SUN-SAT"},
    ),
    ("? * * * *", "day_fields_only", {"field": "minute", "value": "?", "allowed": "0-59"}),
    (
        "0 0 * ? *",
        "day_fields_only",
        {"field": "month", "value": "?", "allowed": "1-12 or JAN-DEC"},
    ),
    (
        "0 0 ?/2 * *",
        "invalid_value",
        {"field": "day of month", "value": "'?'", "allowed": "1-31", "item": "'?/2'"},
    ),
    ("0 0 1,? * *", "invalid_value", {"value": "'?'", "allowed": MONTH_DAYS}),
    (
        "0 0 0 1 1 ? H",
        "hash_not_allowed",
        {"field": "year", "value": "'H'", "allowed": "1970-2099"},
    ),
    ("H(5) * * * *", "invalid_hash", {"field": "minute", "value": "'H(5)'", "allowed": "0-59"}),
    ("H5 * * * *", "invalid_hash", {"field": "minute", "value": "'H5'", "allowed": "0-59"}),
    ("H-5 * * * *", "invalid_hash", {"field": "minute", "value": "'H-5'", "allowed": "0-59"}),
    ("R * * * *", "invalid_value", {"field": "minute", "value": "'R'", "allowed": "0-59"}),
    ("\x00 * * * *", "invalid_value", {"field": "minute", "value": "'\\x00'", "allowed": "0-59"}),
    # shape
    ("", "field_count", {"value": "''", "count": "0"}),
    ("   ", "field_count", {"value": "''", "count": "0"}),
    ("*", "field_count", {"value": "'*'", "count": "1"}),
    ("every 5 minutes", "sentence", {"schedule": "'*/5 * * * *'"}),
    ("* * * *", "field_count", {"value": "'* * * *'", "count": "4"}),
    ("* * * * * * * *", "field_count", {"value": "'* * * * * * * *'", "count": "8"}),
    ("CRON_TZ=UTC", "field_count", {"value": "''", "count": "0"}),
    (
        "CRON_TZ=UTC TZ=UTC * * * * *",
        "invalid_value",
        {"field": "second", "value": "'TZ=UTC'", "allowed": "0-59"},
    ),
    ("daily", "unknown_macro", {"value": "'daily'", "near": "'@daily'"}),
    ("@Dayly", "unknown_macro", {"value": "'@Dayly'", "near": "'@daily'"}),
    ("@reboot", "unknown_macro", {"value": "'@reboot'"}),
    ("every", "unknown_macro", {"near": "'@every 1h30m'"}),
    ("@every1h", "unknown_macro", {"near": "'@every 1h30m'"}),
    ("@evry 5m", "unknown_macro", {"value": "'@evry 5m'", "near": "'@every 1h30m'"}),
    ("@eveyr", "unknown_macro", {"near": "'@every 1h30m'"}),
    ("@att 2026-12-01T09:00", "unknown_macro", {"near": "'@at 2026-12-01T09:00'"}),
    ("@rule 2026-01-02T09:00", "unknown_macro", {"near": f"'{EXAMPLE}'"}),
    ("@daily 5", "unknown_macro", {"value": "'@daily 5'"}),
    ("@", "unknown_macro", {"value": "'@'"}),
    ("@every", "invalid_interval", {"value": "''"}),
    ("@every 0s", "invalid_interval", {"value": "'0s'"}),
    ("@every 500ms", "invalid_interval", {"value": "'500ms'"}),
    ("@every 1.5h", "invalid_interval", {"value": "'1.5h'"}),
    ("@every -1h", "invalid_interval", {"value": "'-1h'"}),
    ("@every 30m1h", "invalid_interval", {"value": "'30m1h'"}),
    ("@every 1h 30m", "invalid_interval", {"value": "'1h 30m'"}),
    ("@every 1d1w", "invalid_interval", {"value": "'1d1w'"}),
    ("@every 99999w", "invalid_interval", {"value": "'99999w'"}),
    ("@every 999999d", "invalid_interval", {"value": "'999999d'"}),
    ("@every 999999999d", "invalid_interval", {"value": "'999999999d'"}),
    ("@biweekly", "unknown_macro", {"value": "'@biweekly'", "rule": EXAMPLE}),
    ("2w", "unknown_macro", {"value": "'2w'", "rule": EXAMPLE}),
    ("every second Friday", "unknown_macro", {"rule": EXAMPLE}),
    *(
        (f"every 2nd {day}", "unknown_macro", {"rule": EXAMPLE})
        for day in ("Mon", "TUE", "Tues", "wed", "THU", "Thurs", "SAT", "Saturday", "sun", "week")
    ),
    ("0 9 WD3 * *", "invalid_value", {"field": "day of month", "near": "'WD#3'"}),
    ("0 9 WDL-2 * *", "invalid_value", {"value": "'WDL-2'", "near": "'WD#L-2'"}),
    ("0 9 X * *", "invalid_value", {"value": "'X'", "allowed": MONTH_DAYS}),
    ("@every 90", "invalid_interval", {"value": "'90'"}),
    ("@every 999999999h", "invalid_interval", {"value": "'999999999h'"}),
    ("@every 99999999999999999999h", "invalid_interval", {"value": "'99999999999999999999h'"}),
    ("@at", "invalid_time", {"value": "''"}),
    ("@at tomorrow", "invalid_time", {"value": "'tomorrow'"}),
    ("@at 2026-02-30T09:00", "invalid_time", {"value": "'2026-02-30T09:00'"}),
    ("@at 2026-12-01", "invalid_time", {"value": "'2026-12-01'"}),
    ("@at 2026-12-01T25:00", "invalid_time", {"value": "'2026-12-01T25:00'"}),
    ("@at 2026-12-01T09:00+25:00", "invalid_time", {"value": "'2026-12-01T09:00+25:00'"}),
    ("@at 1969-12-31T23:59", "invalid_time", {"value": "'1969-12-31T23:59'"}),
    ("@at 2100-01-01T00:00", "invalid_time", {"value": "'2100-01-01T00:00'"}),
    ("@at 2026-12-01T09:00.5", "invalid_time", {"value": "'2026-12-01T09:00.5'"}),
    ("x" * 256, "too_long", {"count": "256", "most": "255"}),
    ("* * * * * # ü", "not_ascii", {"value": "'\\xfc'"}),
    ("٣ * * * *", "not_ascii", {"value": "'\\u0663'"}),
    ("0\u00a00 * * *", "not_ascii", {"value": "'\\xa0'"}),
    # never
    ("0 0 30 2 *", "never_matches", {"value": "'0 0 30 2 *'"}),
    ("0 0 31 4,6 ?", "never_matches", {"value": "'0 0 31 4,6 ?'"}),
    ("0 0 31W 4,6,9,11 *", "never_matches", {"value": "'0 0 31W 4,6,9,11 *'"}),
    ("0 0 30W 2 *", "never_matches", {"value": "'0 0 30W 2 *'"}),
    ("0 0 L-29 2 *", "never_matches", {"value": "'0 0 L-29 2 *'"}),
    ("0 0 0 29 2 ? 2025-2027", "never_matches", {"value": "'0 0 0 29 2 ? 2025-2027'"}),
    ("0 0 0 29 2 */7 2028", "never_matches", {"value": "'0 0 0 29 2 */7 2028'"}),
    ("0 0 */31 2 1#3", "never_matches", {"value": "'0 0 */31 2 1#3'"}),
]


@pytest.mark.parametrize(("text", "code", "params"), REFUSALS)
def test_invalid_text_is_refused_with_code_and_parameters(
    text: str, code: str, params: dict[str, str]
) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse_schedule(text)
    assert caught.value.code == code
    assert params.items() <= {n: str(value) for n, value in caught.value.params.items()}.items()
    assert all(value in str(caught.value) for value in params.values())
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("text", [None, 5, b"* * * * *", ["*"], 1.5])
def test_schedule_that_is_not_a_str_is_refused(text: object) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse_schedule(text)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.params["value"]) == ("not_text", repr(text))


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
def test_unknown_time_zone_is_refused(zone: object) -> None:
    with pytest.raises(InvalidTimeZone):
        parse_schedule("* * * * *", zone)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "prefix", ["CRON_TZ=Mars/Phobos", "TZ=../UTC", "TZ=", "CRON_TZ=/etc/localtime"]
)
def test_unknown_time_zone_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidTimeZone):
        parse_schedule(f"{prefix} * * * * *")


def test_similar_time_zone_is_suggested() -> None:
    with pytest.raises(InvalidTimeZone) as caught:
        parse_schedule("* * * * *", "Europe/Berlim")
    assert caught.value.params == {"value": "'Europe/Berlim'", "near": "'Europe/Berlin'"}
    assert "'Europe/Berlin'" in str(caught.value)


def test_text_of_maximum_length_is_accepted() -> None:
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
        (
            "H/15 * * * *",
            "job-1",
            ["01-01 00:01:00", "01-01 00:16:00", "01-01 00:31:00", "01-01 00:46:00"],
        ),
        (
            "H,30 H 1,H * *",
            "",
            ["01-01 06:30:00", "01-01 06:40:00", "02-01 06:30:00", "02-01 06:40:00"],
        ),
    ],
)
def test_hash_values_are_stable(text: str, key: str, expected: list[str]) -> None:
    """These values must never change, because they decide when existing jobs run."""
    assert occurrences_of(text, hash_key=key, limit=len(expected)) == expected


def test_hash_key_of_a_job_is_stable() -> None:
    assert hash_key_of("shop", "nightly") == "shop/nightly"


def test_hash_values_are_spread_within_their_range() -> None:
    minutes = [
        int(occurrences_of("H(10-19) 0 * * *", hash_key=str(n), limit=1)[0][9:11])
        for n in range(300)
    ]
    assert set(minutes) == set(range(10, 20))
    days = {occurrences_of("0 0 H * *", hash_key=str(n), limit=1)[0][3:5] for n in range(300)}
    assert days == {f"{n:02}" for n in range(1, 29)}
    quarters = [int(at[9:11]) for at in occurrences_of("H/15 * * * *", hash_key="x", limit=4)]
    assert [b - a for a, b in pairwise(quarters)] == [15, 15, 15]
    assert occurrences_of("H(5-5)/1 * * * *", limit=2) == occurrences_of("5 * * * *", limit=2)


def test_only_hashed_schedules_depend_on_the_hash_key() -> None:
    assert parse_schedule("0 0 * * *", hash_key="a") is parse_schedule("0  0 * * *", hash_key="b")
    assert parse_schedule("h 0 * * *", hash_key="a") != parse_schedule("h 0 * * *", hash_key="b")
    assert parse_schedule("0 0 1,H * *", hash_key="a") != parse_schedule(
        "0 0 1,H * *", hash_key="b"
    )
    assert parse_schedule("H 0 * * *", hash_key="a") == parse_schedule("H 0 * * *", hash_key="a")


@pytest.mark.parametrize(
    ("names", "text", "first"),
    [
        ("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC", "0 0 1 {} *", 1),
        ("SUN MON TUE WED THU FRI SAT", "0 0 * * {}", 0),
    ],
)
def test_month_and_weekday_names_are_case_insensitive(names: str, text: str, first: int) -> None:
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    for number, name in enumerate(names.split(), start=first):
        expected = list(parse_schedule(text.format(number)).occurrences(start, end))
        for spelling in (name, name.lower()):
            assert list(parse_schedule(text.format(spelling)).occurrences(start, end)) == expected


@pytest.mark.parametrize("text", ["* * * * * */10", "61 * * * * *"])
def test_error_in_six_fields_says_where_the_seconds_are(text: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"\. Six fields begin with the seconds\.$") as raised:
        parse_schedule(text, "UTC")
    assert raised.value.params["allowed"]


@pytest.mark.parametrize(
    "text", ["*/60 25 * * *", "0 */60 * * * *", "0 9 WD3 13 *", "0 0 9 WD3 * *"]
)
def test_error_that_continues_another_has_no_doubled_punctuation(text: str) -> None:
    with pytest.raises(InvalidSchedule) as raised:
        parse_schedule(text, "UTC")
    assert not re.search(r"[.?][.;]", str(raised.value))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("61 25 * * *", ["minute: 61", "hour: 25"]),
        ("0 61 25 * * MOO 1", ["minute: 61", "hour: 25", "day of week: 'MOO'", "year: 1"]),
        ("0 61 25 * * *", ["minute: 61", "hour: 25"]),
        ("0 25 * * *", ["hour: 25"]),
    ],
)
def test_error_names_all_invalid_fields(text: str, fields: list[str]) -> None:
    with pytest.raises(InvalidSchedule) as raised:
        parse_schedule(text, "UTC")
    problems = str(raised.value).split("; ")
    assert all(each.startswith(name) for each, name in zip(problems, fields, strict=True)), problems
    first = fields[0].partition(": ")
    assert (str(raised.value.params["field"]), raised.value.params["value"]) == first[::2]


@pytest.mark.parametrize(
    "text",
    [
        "61 * * * *",
        "0 61 * * * * *",
        "every day at 9 am UTC",
        "every monday at 10:00 and 11:00",
    ],
)
def test_error_in_other_schedules_does_not_mention_six_fields(text: str) -> None:
    with pytest.raises(InvalidSchedule) as raised:
        parse_schedule(text, "UTC")
    assert "Six fields" not in str(raised.value)
