"""Parse alert rules and decide which alerts a change of a job's counters causes.

A rule in the settings or in a job's field is an object such as ``{"on": "failed", "to": ["ops"]}``,
with one option if its kind has one.

Invariants:

- Counters never decrease. The difference between two readings shows everything that happened in
  between.
- The decision is a pure function of two readings. Two equal readings yield no event.
- A rule reports a streak of failures once, when the streak reaches the rule's threshold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from django_dcron.exceptions import TranslatableError
from django_dcron.utils.durations import read_duration, write_duration
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _

SHORTEST = timedelta(seconds=1)
LONGEST = timedelta(days=3650)


class Kind(StrEnum):
    """The event that a rule reports."""

    FAILED = "failed"
    RECOVERED = "recovered"
    MISSED = "missed"
    PAUSED = "paused"
    """The circuit breaker paused the job."""
    LATE = "late"
    """A run hasn't ended in time."""
    SILENT = "silent"
    """No run of the job has succeeded for too long."""
    NODE_LOST = "node_lost"
    DEGRADED = "degraded"
    """A node can't reach the lock server."""
    UNHEALTHY = "unhealthy"
    """The health verdict contains an error."""


OF_THE_CLUSTER = frozenset({Kind.NODE_LOST, Kind.DEGRADED, Kind.UNHEALTHY})
OPTIONS = {
    Kind.FAILED: "after",
    Kind.RECOVERED: "after",
    Kind.LATE: "within",
    Kind.SILENT: "for",
}
EVERY = 0
"""The value of ``after`` for a rule with ``"after": "every"``: it reports each failure."""


class InvalidRule(TranslatableError, ValueError):
    """An alert rule is invalid. The message names the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Rule:
    on: Kind
    to: tuple[str, ...]
    """Names of channels."""
    after: int = 1
    """The number of consecutive failures, or ``EVERY``."""
    span: timedelta | None = None
    """The time a run may take (``late``), or the longest time without a success (``silent``)."""


def kinds(*, of_job: bool) -> tuple[str, ...]:
    """Return the values that ``on`` may have in a rule of a job, or in a rule of the project."""
    return tuple(kind.value for kind in Kind if not (of_job and kind in OF_THE_CLUSTER))


def read_rules(value: Any, channels: Collection[str], *, of_job: bool) -> tuple[Rule, ...]:
    """Parse a JSON list of rules. With ``of_job``, rules about the cluster are refused.

    Raises ``InvalidRule``.
    """
    if not isinstance(value, (list, tuple)):
        raise InvalidRule(
            _('%(value)s is not a list of rules such as [{"on": "failed", "to": ["ops"]}]'),
            value=repr(value),
            code="not_a_list",
        )
    return tuple(
        _read_rule(number, rule, channels, of_job) for number, rule in enumerate(value, start=1)
    )


def _read_rule(number: int, given: Any, channels: Collection[str], of_job: bool) -> Rule:
    if not isinstance(given, Mapping):
        raise InvalidRule(
            _(
                'rule %(number)d: %(value)s is not an object such as {"on": "failed", "to": '
                '["ops"]}'
            ),
            number=number,
            value=repr(given),
            code="not_an_object",
        )
    allowed = kinds(of_job=of_job)
    if given.get("on") not in allowed:
        raise InvalidRule(
            _("rule %(number)d: %(option)s is %(value)s (allowed: %(allowed)s)"),
            number=number,
            option="on",
            value=repr(given.get("on")),
            allowed=", ".join(allowed),
            code="invalid_option_value",
        )
    kind = Kind(given["on"])
    option = OPTIONS.get(kind)
    known = ["on", "to", *([option] if option else [])]
    if unknown := [key for key in given if key not in known]:
        raise InvalidRule(
            _("rule %(number)d: unknown option %(value)s (allowed for %(kind)s: %(allowed)s)"),
            number=number,
            value=repr(unknown[0]),
            kind=kind.value,
            allowed=", ".join(known),
            code="unknown_option",
        )
    to = _read_channels(number, given.get("to"), channels)
    if option == "after":
        return Rule(kind, to, after=_read_after(number, kind, given.get("after", 1)))
    if option:
        return Rule(kind, to, span=_read_span(number, option, given.get(option)))
    return Rule(kind, to)


def _read_channels(number: int, given: Any, channels: Collection[str]) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if isinstance(names, (list, tuple)) and names and all(isinstance(name, str) for name in names):
        unknown = [name for name in names if name not in channels]
        if not unknown:
            return tuple(dict.fromkeys(names))
        given = unknown[0]
    raise InvalidRule(
        _(
            "rule %(number)d: %(option)s is %(value)s (allowed: a list of channels from "
            "DCRON_ALERT_CHANNELS: %(known)s)"
        ),
        number=number,
        option="to",
        value=repr(given),
        known=", ".join(sorted(channels)) or TranslatableText(_("none are defined")),
        code="invalid_channels",
    )


def _read_after(number: int, kind: Kind, given: Any) -> int:
    if given == "every" and kind is Kind.FAILED:
        return EVERY
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= 1_000_000:
        return given
    raise InvalidRule(
        _(
            "rule %(number)d: %(option)s is %(value)s (allowed: a number of consecutive "
            'failures, at least 1, or "every")'
        )
        if kind is Kind.FAILED
        else _(
            "rule %(number)d: %(option)s is %(value)s (allowed: a number of consecutive "
            "failures, at least 1)"
        ),
        number=number,
        option="after",
        value=repr(given),
        code="invalid_after",
    )


def _read_span(number: int, option: str, given: Any) -> timedelta:
    span = given
    if isinstance(given, str):
        try:
            span = read_duration(given)
        except OverflowError:
            span = None
    if isinstance(span, timedelta) and SHORTEST <= span <= LONGEST:
        return span
    raise InvalidRule(
        _(
            "rule %(number)d: %(option)s is %(value)s (allowed: a duration such as 90s, 30m "
            "or 1d, up to %(most)s)"
        ),
        number=number,
        option=option,
        value=repr(given),
        most=write_duration(LONGEST),
        code="invalid_duration",
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """A reading of a job's counters."""

    succeeded: int = 0
    failed: int = 0
    missed: int = 0
    streak: int = 0
    """Consecutive failures."""
    circuit_open: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    rule: Rule
    number: int = 1
    """The number of runs or occurrences, or the number of consecutive failures of a streak."""


def detect_events(before: Counts, now: Counts, rules: Collection[Rule]) -> list[Event]:
    """Return the events that ``rules`` report for the change from ``before`` to ``now``."""
    found = (_event_for_rule(rule, before, now) for rule in rules)
    return [event for event in found if event is not None]


def _event_for_rule(rule: Rule, before: Counts, now: Counts) -> Event | None:
    failures = now.failed - before.failed
    began_anew = now.streak != before.streak + failures
    """Whether a success or a resume of the job broke the streak between the two readings."""
    match rule.on:
        case Kind.FAILED if failures > 0 and rule.after == EVERY:
            return Event(rule, failures)
        case Kind.FAILED if failures > 0:
            if before.streak and not now.streak:
                return None  # most likely the end of the streak already reported
            base = 0 if began_anew else before.streak
            longest = max(now.streak, 1)  # a streak that began and ended in between had a failure
            return Event(rule, longest) if base < rule.after <= longest else None
        case Kind.RECOVERED if now.succeeded > before.succeeded and not now.streak:
            longest = max(before.streak, min(failures, 1))
            return Event(rule, longest) if longest >= rule.after else None
        case Kind.MISSED if now.missed > before.missed:
            return Event(rule, now.missed - before.missed)
        case Kind.PAUSED if now.circuit_open and (began_anew or not before.circuit_open):
            return Event(rule, now.streak)
    return None
