"""What is worth an alert: rules, and what has happened to a job between two looks at its counters.

Invariants:

- Counters never go down and are looked at from time to time, so nothing is overlooked: what happened between two looks shows
  in their difference, however long the looks are apart.
- The same two looks always say the same; a look that is repeated says nothing.
- A streak of failures is told of once by each rule: when it is as long as the rule says.

A rule, as the settings and a job's field have it: ``{"on": "failed", "to": ["ops"]}`` and one option, if its kind has one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from django_dcron.domain.durations import read_duration, write_duration
from django_dcron.exceptions import Told
from django_dcron.phrases import Phrase
from django_dcron.phrases import gettext_noop as _

SHORTEST = timedelta(seconds=1)
LONGEST = timedelta(days=3650)


class Kind(StrEnum):
    """What an alert is about."""

    FAILED = "failed"
    RECOVERED = "recovered"
    MISSED = "missed"
    PAUSED = "paused"
    """By the circuit breaker."""
    LATE = "late"
    """A run has not ended in time."""
    SILENT = "silent"
    """No success for too long."""
    NODE_LOST = "node_lost"
    DEGRADED = "degraded"
    """A node cannot reach the lock's server."""
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
"""``{"on": "failed", "after": "every"}``: not once for each streak, but for each failure."""


class InvalidRule(Told, ValueError):
    """The message names what is wrong and what is allowed."""


@dataclass(frozen=True, slots=True)
class Rule:
    on: Kind
    to: tuple[str, ...]
    """Names of channels."""
    after: int = 1
    """Failures in a row, or ``EVERY``."""
    span: timedelta | None = None
    """Of ``late``: within what it should have ended. Of ``silent``: how long no success may last."""


def read_rules(value: Any, channels: Collection[str], *, of_job: bool) -> tuple[Rule, ...]:
    """The rules that a JSON list says. Raises ``InvalidRule``. ``of_job``: those of the cluster are refused."""
    if not isinstance(value, (list, tuple)):
        raise InvalidRule(_("%(value)s is not a list of rules"), value=repr(value))
    return tuple(_read_rule(number, rule, channels, of_job) for number, rule in enumerate(value, start=1))


def _read_rule(number: int, given: Any, channels: Collection[str], of_job: bool) -> Rule:
    if not isinstance(given, Mapping):
        raise InvalidRule(
            _('rule %(number)d: %(value)s is not an object such as {"on": "failed", "to": ["ops"]}'),
            number=number,
            value=repr(given),
        )
    allowed = [kind.value for kind in Kind if not (of_job and kind in OF_THE_CLUSTER)]
    if given.get("on") not in allowed:
        raise InvalidRule(
            _("rule %(number)d: %(option)s is %(value)s (allowed: %(allowed)s)"),
            number=number,
            option="on",
            value=repr(given.get("on")),
            allowed=", ".join(allowed),
        )
    kind = Kind(given["on"])
    option = OPTIONS.get(kind)
    known = ["on", "to", *([option] if option else [])]
    if unknown := [key for key in given if key not in known]:
        raise InvalidRule(
            _("rule %(number)d: unknown %(value)s (allowed for %(kind)s: %(allowed)s)"),
            number=number,
            value=repr(unknown[0]),
            kind=kind.value,
            allowed=", ".join(known),
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
        _("rule %(number)d: %(option)s is %(value)s (allowed: a list of channels; there are: %(known)s)"),
        number=number,
        option="to",
        value=repr(given),
        known=", ".join(sorted(channels)) or Phrase(_("none is named in DCRON_ALERT_CHANNELS")),
    )


def _read_after(number: int, kind: Kind, given: Any) -> int:
    if given == "every" and kind is Kind.FAILED:
        return EVERY
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= 1_000_000:
        return given
    raise InvalidRule(
        _(
            'rule %(number)d: %(option)s is %(value)s (allowed: a number of failures in a row, from 1 or "every")'
        )
        if kind is Kind.FAILED
        else _("rule %(number)d: %(option)s is %(value)s (allowed: a number of failures in a row, from 1)"),
        number=number,
        option="after",
        value=repr(given),
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
            "rule %(number)d: %(option)s is %(value)s (allowed: a duration such as 90s, 30m or 1d, up to %(most)s)"
        ),
        number=number,
        option=option,
        value=repr(given),
        most=write_duration(LONGEST),
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """A job's counters, as they are or as they were when it was looked at last."""

    succeeded: int = 0
    failed: int = 0
    missed: int = 0
    streak: int = 0
    """Failures in a row."""
    circuit_open: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    rule: Rule
    number: int = 1
    """Of runs or occurrences; of a streak: how many failures in a row."""


def happened(before: Counts, now: Counts, rules: Collection[Rule]) -> list[Event]:
    """What the rules have to say of the difference."""
    found = (_asked(rule, before, now) for rule in rules)
    return [event for event in found if event is not None]


def _asked(rule: Rule, before: Counts, now: Counts) -> Event | None:
    failures = now.failed - before.failed
    began_anew = now.streak != before.streak + failures
    """The streak was broken between the looks, by a success or because somebody resumed the job."""
    match rule.on:
        case Kind.FAILED if failures > 0 and rule.after == EVERY:
            return Event(rule, failures)
        case Kind.FAILED if failures > 0:
            if before.streak and not now.streak:
                return None  # the end of the streak that was told of, as far as anybody can tell
            base = 0 if began_anew else before.streak
            longest = max(
                now.streak, 1
            )  # one that has begun and ended between the looks had one failure, or more
            return Event(rule, longest) if base < rule.after <= longest else None
        case Kind.RECOVERED if now.succeeded > before.succeeded and not now.streak:
            longest = max(before.streak, min(failures, 1))
            return Event(rule, longest) if longest >= rule.after else None
        case Kind.MISSED if now.missed > before.missed:
            return Event(rule, now.missed - before.missed)
        case Kind.PAUSED if now.circuit_open and (began_anew or not before.circuit_open):
            return Event(rule, now.streak)
    return None
