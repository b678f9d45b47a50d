"""Test alert rules: their syntax, and the events that they find in a job's counters."""

from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.policies.alerting import (
    EVERY,
    MOST_FAILURES,
    AlertKind,
    Event,
    InvalidRule,
    JobCounters,
    Rule,
    count_unrecovered_failures,
    detect_events,
    read_rules,
    without_muted,
)
from tests.refusals import refusal

CHANNELS = ("ops", "mail")
FIRST = Rule(AlertKind.FAILED, ("ops",))
THIRD = Rule(AlertKind.FAILED, ("ops",), after=3)
EACH = Rule(AlertKind.FAILED, ("ops",), after=EVERY)
RECOVERED = Rule(AlertKind.RECOVERED, ("ops",))
MISSED = Rule(AlertKind.MISSED, ("ops",))
SECRET_URL = "https://user:s3cret@example.com"
SECRET_TOKEN = "xoxb-" + "12" * 12 + "-s3cret"
SHORT_TOKEN = "azGs3cretQ4"
"""No longer than a token of Gotify."""

ends = st.lists(st.booleans(), max_size=40)
"""For each run, oldest first: whether it succeeded."""


def counts_after(ended: list[bool]) -> JobCounters:
    counts = JobCounters()
    for succeeded in ended:
        counts = JobCounters(
            counts.succeeded + succeeded,
            counts.failed + (not succeeded),
            consecutive_failures=0 if succeeded else counts.consecutive_failures + 1,
        )
    return counts


def event_numbers(ended: list[bool], rule: Rule, sizes: list[int]) -> list[int]:
    """Return the event numbers of checks after each batch of runs, for these batch sizes."""
    numbers, seen, position = [], JobCounters(), 0
    for size in [*sizes, len(ended)]:
        position = min(position + size, len(ended))
        now = counts_after(ended[:position])
        numbers += [event.number for event in detect_events(seen, now, [rule])]
        seen = now
    return numbers


def streaks(ended: list[bool]) -> list[int]:
    return [len(list(run)) for succeeded, run in groupby(ended) if not succeeded]


@given(ends)
def test_each_failure_streak_is_reported_once_if_checked_after_each_run(ended: list[bool]) -> None:
    each = [1] * len(ended)
    assert event_numbers(ended, FIRST, each) == [1] * len(streaks(ended))
    assert event_numbers(ended, THIRD, each) == [3] * sum(length >= 3 for length in streaks(ended))
    is_failing = bool(ended) and not ended[-1]
    assert event_numbers(ended, RECOVERED, each) == streaks(ended)[: -1 if is_failing else None]


@given(ends, st.lists(st.integers(0, 10), max_size=10))
def test_no_failure_is_missed_if_checks_are_rare(ended: list[bool], sizes: list[int]) -> None:
    assert sum(event_numbers(ended, EACH, sizes)) == ended.count(False)
    assert bool(event_numbers(ended, FIRST, sizes)) == (False in ended)
    assert len(event_numbers(ended, FIRST, sizes)) <= len(streaks(ended))


@given(ends)
def test_unchanged_counts_report_no_events(ended: list[bool]) -> None:
    now = counts_after(ended)
    assert detect_events(now, now, [FIRST, THIRD, EACH, RECOVERED, MISSED]) == []


def test_streak_reset_by_resuming_is_reported_again() -> None:
    assert [
        event.number
        for event in detect_events(
            JobCounters(failed=5, consecutive_failures=5),
            JobCounters(failed=6, consecutive_failures=1),
            [FIRST],
        )
    ] == [1]


def test_misses_are_counted_and_auto_pause_is_reported_once() -> None:
    assert detect_events(JobCounters(missed=2), JobCounters(missed=7), [MISSED])[0].number == 5
    rule = Rule(AlertKind.PAUSED, ("ops",))
    first = JobCounters(failed=3, consecutive_failures=3, auto_paused=True)
    assert [
        event.number
        for event in detect_events(JobCounters(failed=2, consecutive_failures=2), first, [rule])
    ] == [3]
    assert detect_events(first, first, [rule]) == []


def test_valid_rules_are_parsed() -> None:
    read = read_rules(
        [
            {"on": "failed", "to": "ops"},
            {"on": "failed", "to": ["ops", "mail", "ops"], "after": "every"},
            {"on": "late", "to": ["mail"], "within": "1h30m"},
            {"on": "silent", "to": ["mail"], "for": timedelta(days=1)},
        ],
        CHANNELS,
        of_job=True,
    )
    assert read == (
        Rule(AlertKind.FAILED, ("ops",)),
        Rule(AlertKind.FAILED, ("ops", "mail"), after=EVERY),
        Rule(AlertKind.LATE, ("mail",), span=timedelta(hours=1, minutes=30)),
        Rule(AlertKind.SILENT, ("mail",), span=timedelta(days=1)),
    )
    assert (
        read_rules([{"on": "node_lost", "to": ["ops"]}], CHANNELS, of_job=False)[0].on
        is AlertKind.NODE_LOST
    )


@pytest.mark.parametrize(
    ("value", "code", "params"),
    [
        ({"on": "failed"}, "not_a_list", {"value": "a value of type dict"}),
        (["failed"], "not_an_object", {"number": 1, "value": "'failed'"}),
        (
            [{"on": "faild", "to": ["ops"]}],
            "invalid_option_value",
            {"number": 1, "option": "on", "value": "'faild'"},
        ),
        (
            [{"on": ["failed"], "to": ["ops"]}],
            "invalid_option_value",
            {"number": 1, "option": "on", "value": "a value of type list"},
        ),
        (
            [{"on": "failed"}],
            "invalid_channels",
            {"number": 1, "option": "to", "value": "None", "known": "mail, ops"},
        ),
        ([{"on": "failed", "to": ["ops", "mial"]}], "invalid_channels", {"value": "'mial'"}),
        (
            [{"on": "failed", "to": ["ops", "AbCdEf12345.xyz"]}],
            "invalid_channels",
            {"value": "a text of length 15"},
        ),
        (
            [{"on": "failed", "to": ["ops", "team"]}],
            "invalid_channels",
            {"value": "a text of length 4"},
        ),
        ([{"on": "failed", "to": []}], "invalid_channels", {"value": "[]"}),
        ([{"on": "failed", "to": [3]}], "invalid_channels", {"value": "3"}),
        (
            [{"on": "missed", "to": ["ops"], "after": 3}],
            "unknown_option",
            {"number": 1, "value": "'after'", "kind": "missed", "allowed": "on, to"},
        ),
        (
            [{"on": "missed", "to": ["ops"], "After it": 3}],
            "unknown_option",
            {"value": "'After it'"},
        ),
        ([{"on": "failed", "to": ["ops"], "after": 0}], "invalid_after", {"value": "0"}),
        ([{"on": "failed", "to": ["ops"], "after": True}], "invalid_after", {"value": "True"}),
        ([{"on": "failed", "to": ["ops"], "after": 1.5}], "invalid_after", {"value": "1.5"}),
        (
            [{"on": "recovered", "to": ["ops"], "after": "every"}],
            "invalid_after",
            {"value": "'every'"},
        ),
        (
            [{"on": "late", "to": ["ops"]}],
            "missing_duration",
            {"number": 1, "option": "within", "least": "1s", "most": "3650d"},
        ),
        (
            [{"on": "silent", "to": ["ops"]}],
            "missing_duration",
            {"number": 1, "option": "for"},
        ),
        (
            [{"on": "late", "to": ["ops"], "within": None}],
            "invalid_duration",
            {"number": 1, "option": "within", "value": "None"},
        ),
        (
            [{"on": "late", "to": ["ops"], "within": "0.5s"}],
            "invalid_duration",
            {"value": "'0.5s'", "least": "1s", "most": "3650d"},
        ),
        (
            [{"on": "late", "to": ["ops"], "within": "soon"}],
            "invalid_duration",
            {"value": "a text of length 4"},
        ),
        (
            [{"on": "late", "to": ["ops"], "within": "1 hour 30"}],
            "invalid_duration",
            {"value": "a text of length 9"},
        ),
        ([{"on": "late", "to": ["ops"], "within": "0s"}], "invalid_duration", {"value": "'0s'"}),
        ([{"on": "late", "to": ["ops"], "within": "9" * 400 + "d"}], "invalid_duration", {}),
        (
            [{"on": "failed", "to": ["ops"]}, {"on": "silent", "to": ["ops"], "for": 60}],
            "invalid_duration",
            {"number": 2, "option": "for", "value": "60"},
        ),
        (
            [{"on": "degraded", "to": ["ops"]}],
            "invalid_option_value",
            {"option": "on", "value": "'degraded'"},
        ),
    ],
)
def test_invalid_rule_is_refused_with_code_and_parameters(
    value: Any, code: str, params: dict[str, object]
) -> None:
    with pytest.raises(InvalidRule) as caught:
        read_rules(value, CHANNELS, of_job=True)
    found = {name: str(caught.value.params[name]) for name in params}
    assert (caught.value.code, found) == (code, {name: str(params[name]) for name in params})
    assert all(value in str(caught.value) for value in found.values())


@pytest.mark.parametrize(
    "value",
    [
        SECRET_URL,
        [SECRET_URL],
        {"on": "failed", "to": [SECRET_URL]},
        [{"on": "failed", "to": SECRET_URL}],
        [{"on": "failed", "to": ["ops", SECRET_URL]}],
        [{"on": "failed", "to": [[SECRET_URL]]}],
        [{"on": "failed", "to": {"apprise": SECRET_URL}}],
        [{"on": SECRET_URL, "to": ["ops"]}],
        [{"on": SECRET_TOKEN, "to": ["ops"]}],
        [{"on": "failed", "to": [SECRET_TOKEN]}],
        [SHORT_TOKEN],
        [{"on": SHORT_TOKEN, "to": ["ops"]}],
        [{"on": "failed", "to": SHORT_TOKEN}],
        [{"on": "failed", "to": ["ops"], SHORT_TOKEN: 1}],
        [{"on": "failed", "to": ["ops"], "after": SHORT_TOKEN}],
        [{"on": "late", "to": ["ops"], "within": SHORT_TOKEN}],
        [{"on": "failed", "to": ["ops"], SECRET_TOKEN: 1}],
        [{"on": [SECRET_URL], "to": ["ops"]}],
        [{"on": "failed", "to": ["ops"], SECRET_URL: 1}],
        [{"on": "failed", "to": ["ops"], "after": SECRET_URL}],
        [{"on": "late", "to": ["ops"], "within": SECRET_URL}],
        [{"on": "silent", "to": ["ops"], "for": {"url": SECRET_URL}}],
    ],
)
def test_url_or_token_in_an_invalid_rule_is_not_quoted(value: Any) -> None:
    with pytest.raises(InvalidRule) as caught:
        read_rules(value, CHANNELS, of_job=True)
    assert "s3cret" not in str(caught.value)


def test_password_of_words_in_an_invalid_rule_is_not_quoted() -> None:
    with pytest.raises(InvalidRule) as caught:
        read_rules([{"on": "failed", "to": ["correct-horse-battery"]}], CHANNELS, of_job=True)
    assert "horse" not in str(caught.value)


def test_rule_without_defined_channels_is_refused() -> None:
    with refusal(InvalidRule, "invalid_channels"):
        read_rules([{"on": "failed", "to": ["ops"]}], (), of_job=True)


def rule(**given: Any) -> Rule:
    (read,) = read_rules([given | {"to": ["ops"]}], CHANNELS, of_job=True)
    return read


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("1s", timedelta(seconds=1)),
        ("3650d", timedelta(days=3650)),
        ("1.5h", timedelta(minutes=90)),
    ],
)
def test_shortest_and_longest_durations_are_accepted(text: str, span: timedelta) -> None:
    assert rule(on="late", within=text).span == span
    assert rule(on="silent", **{"for": text}).span == span


@pytest.mark.parametrize(
    "text", ["0.9s", "3650d1s", "9999999999d", timedelta(), timedelta(days=3651)]
)
def test_durations_beyond_the_limits_are_refused(text: Any) -> None:
    for kind, option in (("late", "within"), ("silent", "for")):
        with refusal(InvalidRule, "invalid_duration", option=option, value=repr(text)):
            rule(on=kind, **{option: text})


@pytest.mark.parametrize("kind", ["failed", "recovered"])
def test_after_option_accepts_one_to_a_million(kind: str) -> None:
    assert rule(on=kind).after == 1
    assert [rule(on=kind, after=number).after for number in (1, 2, 1_000_000)] == [
        1,
        2,
        1_000_000,
    ]
    for refused in (0, 1_000_001, "2", 1.0, False, None):
        with pytest.raises(InvalidRule) as caught:
            rule(on=kind, after=refused)
        assert f"after is {refused!r}" in str(caught.value)
        assert f"1 to {MOST_FAILURES:,}" in str(caught.value)
        assert ('"every"' in str(caught.value)) == (kind == "failed")


@pytest.mark.parametrize("kind", ["node_lost", "degraded", "unhealthy"])
def test_cluster_rules_are_refused_for_jobs(kind: str) -> None:
    rules = [{"on": kind, "to": ["ops"]}]
    assert read_rules(rules, CHANNELS, of_job=False) == (Rule(AlertKind(kind), ("ops",)),)
    with pytest.raises(InvalidRule, match=kind):
        read_rules(rules, CHANNELS, of_job=True)


@pytest.mark.parametrize(
    ("before", "now", "one_rule", "number"),
    [
        # A streak of failures between two checks has at least one failure.
        (JobCounters(), JobCounters(succeeded=1, failed=5), FIRST, 1),
        (JobCounters(), JobCounters(succeeded=1, failed=5), RECOVERED, 1),
        (JobCounters(), JobCounters(succeeded=1, failed=5), THIRD, None),
        # The job was resumed without a success.
        (JobCounters(failed=3, consecutive_failures=3), JobCounters(failed=3), RECOVERED, None),
        (
            JobCounters(failed=3, consecutive_failures=3),
            JobCounters(failed=3, succeeded=1),
            RECOVERED,
            3,
        ),
        (
            JobCounters(failed=3, unrecovered_failures=3),
            JobCounters(failed=3, succeeded=1),
            RECOVERED,
            3,
        ),
        (
            JobCounters(failed=3, unrecovered_failures=3),
            JobCounters(failed=3, missed=1),
            RECOVERED,
            None,
        ),
        (JobCounters(), JobCounters(succeeded=1), RECOVERED, None),
        (JobCounters(), JobCounters(missed=1), MISSED, 1),
        (JobCounters(missed=1), JobCounters(missed=1), MISSED, None),
    ],
)
def test_differences_of_counts_become_events(
    before: JobCounters, now: JobCounters, one_rule: Rule, number: int | None
) -> None:
    events = detect_events(before, now, [one_rule])
    assert [(event.rule, event.number) for event in events] == (
        [] if number is None else [(one_rule, number)]
    )


@pytest.mark.parametrize(
    ("before", "now", "number"),
    [
        (JobCounters(), JobCounters(failed=2, consecutive_failures=2), 2),
        # The job was resumed.
        (JobCounters(failed=3, unrecovered_failures=3), JobCounters(failed=3), 3),
        (
            JobCounters(failed=3, unrecovered_failures=3),
            JobCounters(failed=4, consecutive_failures=1),
            3,
        ),
        (JobCounters(), JobCounters(failed=5), 1),
        # A run succeeded.
        (JobCounters(failed=3, unrecovered_failures=3), JobCounters(failed=3, succeeded=1), 0),
        (
            JobCounters(failed=3, unrecovered_failures=3),
            JobCounters(failed=5, succeeded=1, consecutive_failures=1),
            1,
        ),
    ],
)
def test_only_a_success_resets_unrecovered_failures(
    before: JobCounters, now: JobCounters, number: int
) -> None:
    assert count_unrecovered_failures(before, now) == number


def test_second_auto_pause_is_reported_again() -> None:
    paused = Rule(AlertKind.PAUSED, ("ops",))
    first = JobCounters(failed=3, consecutive_failures=3, auto_paused=True)
    again = JobCounters(failed=5, consecutive_failures=2, auto_paused=True)
    assert detect_events(first, again, [paused]) == [Event(paused, 2)]


@pytest.mark.parametrize(("failures", "is_reported"), [(0, False), (1, False), (2, True)])
def test_success_of_an_auto_paused_job_is_a_new_pause_only_after_enough_failures(
    failures: int, is_reported: bool
) -> None:
    paused = Rule(AlertKind.PAUSED, ("ops",))
    first = JobCounters(failed=3, consecutive_failures=3, auto_paused=True)
    later = JobCounters(1, 3 + failures, 0, failures, auto_paused=True, pause_after_failures=2)
    assert bool(detect_events(first, later, [paused])) is is_reported


def test_counts_event_and_rule_have_default_values() -> None:
    assert JobCounters() == JobCounters(
        succeeded=0,
        failed=0,
        missed=0,
        consecutive_failures=0,
        auto_paused=False,
        unrecovered_failures=0,
        pause_after_failures=1,
    )
    assert (Event(FIRST).number, FIRST.after, FIRST.span) == (1, 1, None)


class Counts(NamedTuple):
    """A reading of a job's counters: its failures, and the consecutive ones among them."""

    failed: int
    streak: int


@dataclass(frozen=True)
class MutedCase:
    """Two readings, the muted failures among them, and what is left without these."""

    before: Counts
    now: Counts
    muted_before: int
    """Consecutive failures that were muted at the reading ``before``."""
    muted_failures: int
    """Muted failures between the two readings."""
    expected: tuple[Counts, Counts, int]


MUTED_CASES = {
    "all muted": MutedCase(
        before=Counts(0, 0),
        now=Counts(3, 3),
        muted_before=0,
        muted_failures=3,
        expected=(Counts(0, 0), Counts(0, 0), 3),
    ),
    "one more": MutedCase(
        before=Counts(3, 3),
        now=Counts(5, 5),
        muted_before=3,
        muted_failures=1,
        expected=(Counts(3, 0), Counts(4, 1), 4),
    ),
    "success": MutedCase(
        before=Counts(3, 3),
        now=Counts(3, 0),
        muted_before=3,
        muted_failures=0,
        expected=(Counts(3, 0), Counts(3, 0), 0),
    ),
    "success between": MutedCase(
        before=Counts(3, 3),
        now=Counts(5, 1),
        muted_before=3,
        muted_failures=1,
        expected=(Counts(3, 0), Counts(4, 0), 1),
    ),
    "none muted": MutedCase(
        before=Counts(3, 3),
        now=Counts(4, 4),
        muted_before=0,
        muted_failures=0,
        expected=(Counts(3, 3), Counts(4, 4), 0),
    ),
    "more than failed": MutedCase(
        before=Counts(3, 3),
        now=Counts(4, 4),
        muted_before=1,
        muted_failures=9,
        expected=(Counts(3, 2), Counts(3, 2), 2),
    ),
}


@pytest.mark.parametrize("case", MUTED_CASES.values(), ids=MUTED_CASES)
def test_muted_failures_are_taken_out_of_both_readings(case: MutedCase) -> None:
    earlier, later, muted = without_muted(
        *(
            JobCounters(failed=counts.failed, consecutive_failures=counts.streak)
            for counts in (case.before, case.now)
        ),
        case.muted_before,
        case.muted_failures,
    )
    assert case.expected == (
        Counts(earlier.failed, earlier.consecutive_failures),
        Counts(later.failed, later.consecutive_failures),
        muted,
    )
