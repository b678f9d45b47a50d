"""Parse alert rules and decide which alerts a change of a job's counters causes.

A rule in the settings or in a job's field is an object such as
``{"on": "failed", "to": ["ops"]}``. Some kinds take one option, such as ``"after": 3``.

Invariants:

- The totals ``succeeded``, ``failed`` and ``missed`` never decrease. The difference between two
  readings shows everything that happened in between.
- The decision is a pure function of two readings. Two equal readings yield no event.
- A rule reports consecutive failures once, when their number reaches the rule's threshold. A rule
  with ``"after": "every"`` reports each failure.
- Rules about failures and recovery ignore failures of muted incidents.
- Only a success that executed the target ends the failures that a recovery follows. A resume or the
  run of a shadow doesn't.
- An auto-pause is reported once, even if runs that a user starts end while it lasts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from django_dcron.exceptions import TranslatableError
from django_dcron.utils.durations import parse_duration_text, write_duration
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.suggestions import similar_names

SHORTEST = timedelta(seconds=1)
LONGEST = timedelta(days=3650)
MOST_FAILURES = 1_000_000
"""The largest value of ``after``. The message about an invalid value names it."""
LONGEST_SHOWN = 30
"""The length of the longest text that errors quote."""


class AlertKind(StrEnum):
    """The event that a rule reports."""

    FAILED = "failed"
    RECOVERED = "recovered"
    MISSED = "missed"
    PAUSED = "paused"
    """The job was auto-paused."""
    LATE = "late"
    """A run hasn't ended in time."""
    SILENT = "silent"
    """No run of the job has succeeded for too long."""
    NODE_LOST = "node_lost"
    DEGRADED = "degraded"
    """A node can't reach the lock server."""
    UNHEALTHY = "unhealthy"
    """The health verdict contains an error."""


CLUSTER_KINDS = frozenset({AlertKind.NODE_LOST, AlertKind.DEGRADED, AlertKind.UNHEALTHY})
OPTIONS = {
    AlertKind.FAILED: "after",
    AlertKind.RECOVERED: "after",
    AlertKind.LATE: "within",
    AlertKind.SILENT: "for",
}
EVERY = 0
"""The value of ``after`` for a rule with ``"after": "every"``: it reports each failure."""
WORDS = frozenset({*AlertKind, "on", "to", *OPTIONS.values(), "every"})
"""The words of rules, apart from the names of channels."""


class InvalidRule(TranslatableError, ValueError):
    """An alert rule is invalid. The message names the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Rule:
    on: AlertKind
    to: tuple[str, ...]
    """Names of channels."""
    after: int = 1
    """The number of consecutive failures, or ``EVERY``."""
    span: timedelta | None = None
    """The time a run may take (``late``), or the longest time without a success (``silent``)."""


def rule_kinds(*, of_job: bool) -> tuple[str, ...]:
    """Return the values that ``on`` may have in a rule of a job, or in a rule of the project."""
    return tuple(kind.value for kind in AlertKind if not (of_job and kind in CLUSTER_KINDS))


def read_rules(value: Any, channels: Collection[str] | None, *, of_job: bool) -> tuple[Rule, ...]:
    """Parse a JSON list of rules. With ``of_job``, rules about the cluster are refused.

    ``channels``: the names that rules may contain. None allows every name.

    Raises ``InvalidRule``.
    """
    if not isinstance(value, (list, tuple)):
        raise InvalidRule(
            _('%(value)s isn\'t a list of rules such as [{"on": "failed", "to": ["ops"]}]'),
            value=_shown(value),
            code="not_a_list",
        )
    return tuple(
        _read_rule(number, rule, channels, of_job) for number, rule in enumerate(value, start=1)
    )


def _read_rule(number: int, rule: Any, channels: Collection[str] | None, of_job: bool) -> Rule:
    if not isinstance(rule, Mapping):
        raise InvalidRule(
            _(
                'rule %(number)d: %(value)s isn\'t an object such as {"on": "failed", "to": '
                '["ops"]}'
            ),
            number=number,
            value=_shown(rule),
            code="not_an_object",
        )
    allowed = rule_kinds(of_job=of_job)
    if rule.get("on") not in allowed:
        raise InvalidRule(
            _("rule %(number)d: %(option)s is %(value)s (allowed: %(allowed)s)"),
            number=number,
            option="on",
            value=_shown(rule.get("on")),
            allowed=", ".join(allowed),
            code="invalid_option_value",
        )
    kind = AlertKind(rule["on"])
    option = OPTIONS.get(kind)
    known = ["on", "to", *([option] if option else [])]
    if unknown := [key for key in rule if key not in known]:
        raise InvalidRule(
            _("rule %(number)d: unknown option (allowed for %(kind)s: %(allowed)s)")
            if _may_be_secret(unknown[0])
            else _("rule %(number)d: unknown option %(value)s (allowed for %(kind)s: %(allowed)s)"),
            number=number,
            value=_shown(unknown[0]),
            kind=kind.value,
            allowed=", ".join(known),
            code="unknown_option",
        )
    to = _read_channels(number, rule.get("to"), channels)
    if option == "after":
        return Rule(kind, to, after=_read_after(number, kind, rule.get("after", 1)))
    if option:
        if option not in rule:
            raise InvalidRule(
                _(
                    "rule %(number)d: %(option)s is required (a duration such as 90s, 30m or 1d, "
                    "from %(least)s to %(most)s)"
                ),
                number=number,
                option=option,
                least=write_duration(SHORTEST),
                most=write_duration(LONGEST),
                code="missing_duration",
            )
        return Rule(kind, to, span=_read_span(number, option, rule[option]))
    return Rule(kind, to)


def _read_channels(number: int, value: Any, channels: Collection[str] | None) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if isinstance(names, (list, tuple)) and names:
        known = names if channels is None else channels
        invalid = [name for name in names if not isinstance(name, str) or name not in known]
        if not invalid:
            return tuple(dict.fromkeys(names))
        value = invalid[0]
    raise InvalidRule(
        _(
            "rule %(number)d: %(option)s is %(value)s (allowed: a list of channels from "
            "DCRON_ALERT_CHANNELS: %(known)s)"
        ),
        number=number,
        option="to",
        value=_shown(value, channels or ()),
        known=", ".join(sorted(channels or ())) or TranslatableText(_("none are defined")),
        code="invalid_channels",
    )


def _shown(value: Any, channels: Collection[str] = ()) -> str | TranslatableText:
    """Return the value, or only its type and length if it may be a secret."""
    if not _may_be_secret(value, channels):
        return repr(value)
    if isinstance(value, str):
        return TranslatableText(_("a text of length %(length)d"), length=len(value))
    return TranslatableText(_("a value of type %(type)s"), type=type(value).__name__)


def _may_be_secret(value: Any, channels: Collection[str] = ()) -> bool:
    """Return whether the value may contain an address or a token.

    Rules may contain the URL or the token of a channel by mistake. Tokens can be short, and
    passwords can be words, so only these texts are harmless: numbers, durations, and texts that
    resemble a word of rules or a channel.
    """
    if isinstance(value, str) and value:
        is_harmless = _is_number_or_duration(value) or similar_names(value, {*WORDS, *channels})
        return len(value) > LONGEST_SHOWN or not is_harmless
    return bool(value) and not isinstance(value, (int, float, timedelta))


def _is_number_or_duration(text: str) -> bool:
    try:
        return text.isdecimal() or parse_duration_text(text) is not None
    except OverflowError:
        return True


def _read_after(number: int, kind: AlertKind, value: Any) -> int:
    if value == "every" and kind is AlertKind.FAILED:
        return EVERY
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_FAILURES:
        return value
    raise InvalidRule(
        _(
            "rule %(number)d: %(option)s is %(value)s (allowed: a number of consecutive "
            'failures from 1 to 1,000,000, or "every")'
        )
        if kind is AlertKind.FAILED
        else _(
            "rule %(number)d: %(option)s is %(value)s (allowed: a number of consecutive "
            "failures from 1 to 1,000,000)"
        ),
        number=number,
        option="after",
        value=_shown(value),
        code="invalid_after",
    )


def _read_span(number: int, option: str, value: Any) -> timedelta:
    span = value
    if isinstance(value, str):
        try:
            span = parse_duration_text(value)
        except OverflowError:
            span = None
    if isinstance(span, timedelta) and SHORTEST <= span <= LONGEST:
        return span
    raise InvalidRule(
        _(
            "rule %(number)d: %(option)s is %(value)s (allowed: a duration such as 90s, 30m "
            "or 1d, from %(least)s to %(most)s)"
        ),
        number=number,
        option=option,
        value=_shown(value),
        least=write_duration(SHORTEST),
        most=write_duration(LONGEST),
        code="invalid_duration",
    )


@dataclass(frozen=True, slots=True)
class JobCounters:
    """A reading of a job's counters."""

    succeeded: int = 0
    failed: int = 0
    missed: int = 0
    consecutive_failures: int = 0
    auto_paused: bool = False
    unrecovered_failures: int = 0
    """The most consecutive failures since the last success, despite resumes of the job."""
    pause_after_failures: int = 1
    """The number of consecutive failures that auto-pauses the job."""
    shadow_runs: int = 0
    """The successes that executed nothing, because the job was a shadow."""

    @property
    def executed(self) -> int:
        """The number of successes that executed the target."""
        return self.succeeded - self.shadow_runs


@dataclass(frozen=True, slots=True)
class Event:
    rule: Rule
    number: int = 1
    """The number of runs or occurrences, or the number of consecutive failures."""


class UnmutedCounters(NamedTuple):
    """Two readings without the failures of muted incidents."""

    before: JobCounters
    now: JobCounters
    muted: int
    """How many of the consecutive failures of the second reading are muted."""


def without_muted(
    before: JobCounters, now: JobCounters, muted_before: int, muted_failures: int
) -> UnmutedCounters:
    """Return both readings without the failures of muted incidents.

    ``muted_before``: how many consecutive failures were muted at the first reading.
    ``muted_failures``: how many failures since then are muted.
    """
    failures = now.failed - before.failed
    muted_failures = min(muted_failures, failures)
    was_reset = now.consecutive_failures != before.consecutive_failures + failures
    muted = min((0 if was_reset else muted_before) + muted_failures, now.consecutive_failures)
    return UnmutedCounters(
        replace(before, consecutive_failures=max(before.consecutive_failures - muted_before, 0)),
        replace(
            now,
            failed=now.failed - muted_failures,
            consecutive_failures=now.consecutive_failures - muted,
        ),
        muted,
    )


def count_unrecovered_failures(before: JobCounters, now: JobCounters) -> int:
    """Return the most consecutive failures since the last success, at the reading ``now``."""
    if now.executed > before.executed:
        return now.consecutive_failures
    # If a resume between the readings ended consecutive failures, there was at least one.
    new = max(now.consecutive_failures, min(now.failed - before.failed, 1))
    return max(before.unrecovered_failures, new)


def detect_events(
    before: JobCounters,
    now: JobCounters,
    rules: Collection[Rule],
    unmuted: UnmutedCounters | None = None,
) -> list[Event]:
    """Return the events that ``rules`` report for the change from ``before`` to ``now``.

    With ``unmuted``, only rules about auto-pauses count failures of muted incidents.
    """
    events = (
        _event_for_rule(rule, before, now)
        if unmuted is None or rule.on is AlertKind.PAUSED
        else _event_for_rule(rule, unmuted.before, unmuted.now)
        for rule in rules
    )
    return [event for event in events if event is not None]


def _event_for_rule(rule: Rule, before: JobCounters, now: JobCounters) -> Event | None:
    failures = now.failed - before.failed
    # Between the readings, a success or a resume ended the earlier consecutive failures.
    was_reset = now.consecutive_failures != before.consecutive_failures + failures
    match rule.on:
        case AlertKind.FAILED if failures > 0 and rule.after == EVERY:
            return Event(rule, failures)
        case AlertKind.FAILED if failures > 0:
            if before.consecutive_failures and not now.consecutive_failures:
                # Most likely, these failures continued the reported ones until a success.
                return None
            base = 0 if was_reset else before.consecutive_failures
            # If the failures began and ended between the readings, there was at least one.
            longest = max(now.consecutive_failures, 1)
            return Event(rule, longest) if base < rule.after <= longest else None
        case AlertKind.RECOVERED if now.executed > before.executed and not now.consecutive_failures:
            failed = max(before.consecutive_failures, before.unrecovered_failures)
            longest = max(failed, min(failures, 1))
            return Event(rule, longest) if longest >= rule.after else None
        case AlertKind.MISSED if now.missed > before.missed:
            return Event(rule, now.missed - before.missed)
        case AlertKind.PAUSED if now.auto_paused:
            is_new = not before.auto_paused or (was_reset and _may_be_paused_again(before, now))
            return Event(rule, now.consecutive_failures) if is_new else None
    return None


def _may_be_paused_again(before: JobCounters, now: JobCounters) -> bool:
    """Return whether the auto-paused job may have been resumed and paused again meanwhile.

    A manual run may succeed while the job stays paused. After a resume and a success, only as many
    failures as ``pause_after_failures`` pause the job again.
    """
    no_success = now.succeeded == before.succeeded
    return no_success or now.consecutive_failures >= now.pause_after_failures
