"""Which failures are alike, and how their number per hour is kept."""

from datetime import UTC, datetime, timedelta

import pytest

from django_dcron.policies.incidents import (
    TREND_HOURS,
    Trend,
    extended_trend,
    fingerprint,
    hour_of,
    message_line,
    trend_in_steps,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 not found", "order 4711 not found"),
        ("<Order object at 0x7f3a>", "<Order object at 0xdead>"),
        (
            "no 0190f6d2-7c1e-7b3a-9d45-1f2e3d4c5b6a",
            "no 0190f6d2-8888-7b3a-9d45-aaaaaaaaaaaa",
        ),
        ("bad object 9f86d081884c7d65", "bad object e3b0c44298fc1c14"),
    ],
)
def test_messages_that_differ_in_numbers_and_ids_are_alike(one: str, other: str) -> None:
    assert fingerprint("ValueError", one) == fingerprint("ValueError", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("KeyError", "'foo'"), ("KeyError", "'bar'")),
        (("KeyError", "'foo'"), ("LookupError", "'foo'")),
        (("", "a: b"), ("a", "b")),
        (("", "feedbackfacade"), ("", "deadbeefdeadbeef")),
    ],
)
def test_other_failures_have_another_fingerprint(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert fingerprint(*one) != fingerprint(*other)


def test_any_text_has_a_fingerprint_of_the_same_length() -> None:
    texts = ("", "\ud800", "x" * 10_000, "№ ١٢")
    assert {len(fingerprint("E", text)) for text in texts} == {32}


def test_first_line_skips_blank_lines_and_is_short() -> None:
    assert message_line("\n\n  a\nb") == "a"
    assert message_line("   ") == ""
    assert len(message_line("x" * 10_000)) == 500


def test_trend_counts_failures_per_hour_and_forgets_the_old_ones() -> None:
    trend = extended_trend([], [NOON, NOON + HOUR / 2, NOON - HOUR])
    assert trend == [[hour_of(NOON) - 1, 1], [hour_of(NOON), 2]]
    later = extended_trend(trend, [NOON + (TREND_HOURS - 1) * HOUR])
    assert later == [[hour_of(NOON), 2], [hour_of(NOON) + TREND_HOURS - 1, 1]]


def test_trend_never_loses_failures_that_arrive_late() -> None:
    trend: Trend = [[hour_of(NOON), 1]]
    assert extended_trend(trend, [NOON - HOUR]) == [[hour_of(NOON) - 1, 1], [hour_of(NOON), 1]]


def test_trend_in_steps_ends_at_the_present_hour() -> None:
    trend = extended_trend([], [NOON, NOON - HOUR, NOON - 5 * HOUR, NOON - 100 * HOUR])
    assert trend_in_steps(trend, NOON, 1, 6) == [1, 0, 0, 0, 1, 1]
    assert trend_in_steps(trend, NOON, 3, 2) == [1, 2]
    assert trend_in_steps(trend, NOON + HOUR, 1, 3) == [1, 1, 0]
