"""Test the duration field of the admin's forms, and how pages show durations."""

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError

from django_dcron.admin.display import duration_or_empty
from django_dcron.admin.durations import DurationFormField, parse_storable_duration
from django_dcron.utils.durations import write_duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", timedelta(seconds=90)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("1H 30M", timedelta(hours=1, minutes=30)),
        ("2d", timedelta(days=2)),
        ("1.5s", timedelta(seconds=1.5)),
        ("0s", timedelta()),
        ("0", timedelta()),
        ("5 minutes", timedelta(minutes=5)),
        ("1 hour 30 min", timedelta(hours=1, minutes=30)),
        ("2 days", timedelta(days=2)),
        ("5 sec", timedelta(seconds=5)),
        ("00:05:00", timedelta(minutes=5)),
        ("1 02:00:00", timedelta(days=1, hours=2)),
    ],
)
def test_duration_input_accepts_common_notations(text: str, expected: timedelta) -> None:
    assert DurationFormField().clean(text) == expected


@pytest.mark.parametrize(
    "text", ["soon", "5x", "1,5", "5 30", "-30", "1h-3m", "m5", "999999999999d", "5m 1h", "٣x"]
)
def test_invalid_duration_error_names_value_and_example(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DurationFormField().clean(text)
    (error,) = caught.value.error_list
    assert (error.code, error.params) == ("invalid", {"value": text})
    assert text in error.messages[0]
    assert "1h 30m" in error.messages[0]


@pytest.mark.parametrize("text", ["45", " 30 ", "1.5"])
def test_duration_without_a_unit_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DurationFormField().clean(text)
    (error,) = caught.value.error_list
    assert error.code == "without_unit"
    assert f"{text.strip()}s" in error.messages[0]
    assert f"{text.strip()}d" in error.messages[0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(), "0s"),
        (timedelta(seconds=60), "1m"),
        (timedelta(seconds=3600), "1h"),
        (timedelta(days=1, seconds=61), "1d1m1s"),
        (timedelta(microseconds=500_000), "0.5s"),
        (timedelta(seconds=61, microseconds=1), "1m1.000001s"),
        (timedelta(seconds=-5), "-5.0"),
    ],
)
def test_written_duration_is_read_back(value: timedelta, text: str) -> None:
    assert write_duration(value) == text
    assert parse_storable_duration(text) == value
    spaced = write_duration(value, " ")
    assert spaced.replace(" ", "") == text
    assert parse_storable_duration(spaced) == value


def test_duration_input_separates_units_with_space() -> None:
    value = timedelta(days=1, hours=2, seconds=3)
    assert write_duration(value, " ") == "1d 2h 3s"
    assert DurationFormField().prepare_value(value) == "1d 2h 3s"


def test_an_empty_optional_duration_is_none() -> None:
    assert DurationFormField(required=False).clean("") is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (timedelta(), "0 ms"),
        (timedelta(milliseconds=12), "12 ms"),
        (timedelta(seconds=3.42), "3.4 s"),
        (timedelta(seconds=59.98), "1m 00s"),
        (timedelta(milliseconds=999.7), "1.0 s"),
        (timedelta(seconds=123), "2m 03s"),
        (timedelta(hours=1, minutes=2), "1h 02m"),
        (timedelta(days=3, hours=4), "3d 4h"),
        (timedelta(seconds=-4), "-4.0 s"),
        (timedelta(microseconds=-400), "0 ms"),
        (timedelta(microseconds=-600), "-1 ms"),
    ],
)
def test_format_duration_is_compact(value: timedelta | None, text: str) -> None:
    assert duration_or_empty(value) == text
