"""Judge a node's health from the facts that it knows about itself. This module does no I/O.

The statuses:

- ``ok``: the node works.
- ``degraded``: the node works, but has a problem that a restart wouldn't fix.
- ``unfit``: the node hasn't worked for longer than the limits allow. A supervisor should restart
  it.
- ``starting``: the node hasn't joined the cluster yet. It waits for the database.
- ``draining``: the node is stopping and must not be interrupted.

The same facts answer three questions:

- Is the process alive? If not, restart it.
- Is the node ready: has it started to work, and can it work?
- What is its status?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

ALERTS = "alerts"
"""The thread that finds the alerts to send. The threads that send the alerts are named after it,
with a dash and a suffix.
"""
WORKERS = "workers"
"""The thread that asks the workers for their state."""
CHECK_EXPIRES_AFTER = 10.0
"""Seconds without a check after which the watchdog itself is considered hung."""


class HealthStatus(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    UNFIT = "unfit"
    STARTING = "starting"
    DRAINING = "draining"

    @property
    def fit(self) -> bool:
        return self is not HealthStatus.UNFIT


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts that a node knows about itself at one moment.

    Times are cluster time; durations are seconds.
    """

    at: datetime | None
    """None until the database's clock has been read."""
    name: str
    id: str
    namespace: str
    version: str
    pid: int
    since: datetime | None
    """None while the node is starting."""
    shards: int
    """The number of shards that the node leads."""
    leases: int
    """The number of shards whose lock the node has. It leads the other shards without locks."""
    agenda: int
    """The number of runs on the agenda."""
    lag: float
    """Lag of the oldest run awaiting dispatch."""
    ticked: bool
    """Whether a tick has succeeded since the start."""
    tick_age: float
    """Time since the last successful tick, or since the start. Counts only while the process was
    running.
    """
    heartbeat_age: float
    """Time since the last successful heartbeat, counted in the same way."""
    hanging: Mapping[str, float]
    """The threads that hang, and for how long."""
    waiting: Mapping[str, float]
    """The threads that have waited long for a stalled database, and for how long."""
    check_age: float
    """Time since the watchdog's last check. The ages and threads above are as of that check."""
    database_unreachable_since: datetime | None
    database_error: str
    """Why the last tick failed. Empty if it succeeded."""
    lock_degraded: bool
    lock_error: str
    """Why the node can't use the lock server. Empty if it can."""
    broker_unreachable: bool
    broker_error: str
    """Why the broker accepts no messages. Empty if it accepts them."""
    skew: float
    draining: bool
    clock_doubt: float = 0.0
    """How far the database's clock has jumped, while cluster time doesn't follow it yet."""
    blocked_steps: Mapping[str, float] = field(default_factory=dict)
    """The steps of ticks that other transactions block for long, and for how long."""
    foreign_lock_holder: str = ""
    """The node of another database that has locks of this node's shards. Empty if none has."""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    facts: NodeFacts
    status: HealthStatus
    reasons: tuple[str, ...]

    @property
    def alive(self) -> bool:
        """Whether the process needs no restart: it drains, or the needed threads and checks work.

        An unreachable database is no reason for a restart.
        """
        stuck = any(map(_is_needed, self.facts.hanging))
        return self.facts.draining or not (stuck or self.facts.check_age > CHECK_EXPIRES_AFTER)

    @property
    def ready(self) -> bool:
        """Whether the node is registered, its ticks succeed and it isn't stopping."""
        working = self.status in (HealthStatus.OK, HealthStatus.DEGRADED) and self.facts.ticked
        return working and self.facts.database_unreachable_since is None

    def __str__(self) -> str:
        text = f"{self.facts.name} is {self.status}"
        return f"{text}: {'; '.join(self.reasons)}" if self.reasons else text

    def as_json(self) -> dict[str, Any]:
        facts = self.facts
        return {
            "status": self.status.value,
            "reasons": list(self.reasons),
            "name": facts.name,
            "id": facts.id,
            "namespace": facts.namespace,
            "version": facts.version,
            "pid": facts.pid,
            "since": _time(facts.since),
            "shards": facts.shards,
            "leases": facts.leases,
            "agenda": facts.agenda,
            "lag": round(facts.lag, 3),
            "tick_age": round(facts.tick_age, 3),
            "heartbeat_age": round(facts.heartbeat_age, 3),
            "hanging": sorted(facts.hanging),
            "blocked_steps": sorted(facts.blocked_steps),
            "database_unreachable_since": _time(facts.database_unreachable_since),
            "lock_degraded": facts.lock_degraded,
            "broker_unreachable": facts.broker_unreachable,
            "skew": round(facts.skew, 3),
            "clock_doubt": round(facts.clock_doubt, 3),
            "written_at": _time(facts.at),
        }


def _time(at: datetime | None) -> str | None:
    """Return a time in UTC as ISO 8601, with a ``Z``."""
    return at.isoformat().replace("+00:00", "Z") if at else None


def judge(facts: NodeFacts, grace: float) -> NodeHealth:
    """Return the node's health.

    ``grace``: the maximum number of seconds between two successful ticks, and between two
    heartbeats.
    """
    errors, warnings = _errors(facts, grace), _warnings(facts)
    if facts.draining:
        status = HealthStatus.DRAINING
    elif errors:
        status = HealthStatus.UNFIT
    elif facts.since is None:
        status = HealthStatus.STARTING
    else:
        status = HealthStatus.DEGRADED if warnings else HealthStatus.OK
    return NodeHealth(facts, status, (*errors, *warnings))


def _errors(facts: NodeFacts, grace: float) -> list[str]:
    reasons = [
        _hang_reason(thread, seconds)
        for thread, seconds in facts.hanging.items()
        if _is_needed(thread)
    ]
    if facts.check_age > CHECK_EXPIRES_AFTER:
        reasons.append(f"the health monitor hangs: no check for {facts.check_age:.0f} s")
    if facts.tick_age > grace:
        text = f"no tick has succeeded for {facts.tick_age:.0f} s"
        reasons.append(_with_cause(text, facts.database_error))
    if facts.heartbeat_age > grace:
        reasons.append(f"no heartbeat written for {facts.heartbeat_age:.0f} s")
    return reasons


def _warnings(facts: NodeFacts) -> list[str]:
    reasons = [
        _hang_reason(thread, seconds)
        for thread, seconds in facts.hanging.items()
        if not _is_needed(thread)
    ]
    reasons += [
        f"the {thread} thread has been waiting for the database for {seconds:.0f} s"
        for thread, seconds in facts.waiting.items()
    ]
    if facts.database_unreachable_since:
        since = f"{facts.database_unreachable_since:%Y-%m-%d %H:%M:%S} UTC"
        reasons.append(f"the database has been unusable since {since}: {facts.database_error}")
    if facts.blocked_steps:
        steps = (f"{name} for {age:.0f} s" for name, age in sorted(facts.blocked_steps.items()))
        reasons.append(
            "another transaction has locked rows or tables of django_dcron in the database: the "
            f"node hasn't completed {', '.join(steps)}"
        )
    if facts.lock_degraded:
        text = "shards are assigned by hash, without locks"
        reasons.append(_with_cause(text, facts.lock_error))
    if facts.foreign_lock_holder:
        reasons.append(
            f"{facts.foreign_lock_holder}, a node of another database, has locks of this node's "
            "shards: give each site that shares a Redis its own KEY_PREFIX in CACHES"
        )
    if facts.clock_doubt:
        step = f"{facts.clock_doubt:+.1f} s"
        reasons.append(f"the database clock jumped by {step}: cluster time doesn't follow it yet")
    if facts.broker_unreachable:
        text = "the broker accepts no messages, so runs wait on the agenda"
        reasons.append(_with_cause(text, facts.broker_error))
    return reasons


def _with_cause(reason: str, error: str) -> str:
    """Append the error if it is known. Another thread may just have cleared it."""
    return f"{reason}: {error}" if error else reason


def _is_needed(thread: str) -> bool:
    """Return whether runs depend on the thread.

    An alert channel that hangs must not restart the node, which would end the runs that it
    executes.
    """
    return thread.partition("-")[0] not in (ALERTS, WORKERS)


def _hang_reason(thread: str, seconds: float) -> str:
    return f"the {thread} thread hangs: no activity for {seconds:.0f} s"
