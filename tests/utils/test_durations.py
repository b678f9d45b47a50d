"""Durations as text: parsing and formatting."""

from datetime import timedelta

import pytest

from django_dcron.utils.durations import (
    MAX_LENGTH,
    parse_duration_text,
    write_duration,
)

SECOND, MINUTE, HOUR, DAY = (
    timedelta(seconds=1),
    timedelta(minutes=1),
    timedelta(hours=1),
    timedelta(days=1),
)

WRITTEN = [
    (timedelta(), "0s"),
    (SECOND, "1s"),
    (5 * SECOND, "5s"),
    (59 * SECOND, "59s"),
    (MINUTE, "1m"),
    (61 * SECOND, "1m1s"),
    (59 * MINUTE + 59 * SECOND, "59m59s"),
    (HOUR, "1h"),
    (23 * HOUR + 59 * MINUTE, "23h59m"),
    (DAY, "1d"),
    (2 * DAY + 3 * HOUR + 4 * MINUTE + 5 * SECOND, "2d3h4m5s"),
    (SECOND / 2, "0.5s"),
    (timedelta(microseconds=1), "0.000001s"),
    (HOUR + timedelta(microseconds=50_000), "1h0.05s"),
    (10 * SECOND + timedelta(microseconds=100_000), "10.1s"),
]


@pytest.mark.parametrize(("value", "text"), WRITTEN)
def test_write_duration_output_is_short_and_parses_back(value: timedelta, text: str) -> None:
    assert write_duration(value) == text
    assert parse_duration_text(text) == value


def test_negative_duration_is_written_in_seconds_and_is_not_parsed() -> None:
    assert write_duration(-90 * SECOND) == "-90.0"
    assert parse_duration_text("-90.0") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 1D 2H 3M 4.5S ", DAY + 2 * HOUR + 3 * MINUTE + 4.5 * SECOND),
        ("1.5h", 90 * MINUTE),
        ("1w", 7 * DAY),
        ("2w 1d", 15 * DAY),
        ("90 m", 90 * MINUTE),
        ("1d" + " " * (MAX_LENGTH - 4) + "1s", DAY + SECOND),
        (" " * 60 + "1d" + " " * 60, DAY),
    ],
)
def test_parse_duration_text_accepts_spaces_upper_case_and_fractions(
    text: str, value: timedelta
) -> None:
    assert MAX_LENGTH == 64
    assert parse_duration_text(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "5",
        "s",
        "soon",
        "1s 1m",
        "1m1m",
        "-1s",
        "1x",
        "1d" + " " * (MAX_LENGTH - 3) + "1s",
    ],
)
def test_parse_duration_text_returns_none_for_invalid_text(text: str) -> None:
    assert parse_duration_text(text) is None


def test_duration_beyond_timedelta_range_raises_overflow_error() -> None:
    with pytest.raises(OverflowError):
        parse_duration_text("9999999999d")
