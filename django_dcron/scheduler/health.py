"""A node's verdict on itself: facts in, status and reasons out. No I/O; whoever shows it (a file, a server) asks here.

ok        all is well
degraded  work is done, but something is not as it should be: a restart would not help
unfit     no work is done, and has not been for longer than the limits allow: a supervisor should start the node again
starting  it has not led anything yet: the database has not answered
draining  it was asked to stop, and is at it: it must be let

Three questions are answered from the same facts: is the process alive (else start it again), is it ready (has it begun to
work, and can it), and how is it?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

ALERTS = "alerts"
"""The thread that looks for what people are to be told. Those that tell are called after it, and a dash."""
WORKERS = "workers"
"""The thread that asks the workers how they are."""
LOOK_EXPIRES = 10.0
"""Seconds after which a watchdog that has not looked is taken to hang itself."""


class Status(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    UNFIT = "unfit"
    STARTING = "starting"
    DRAINING = "draining"

    @property
    def fit(self) -> bool:
        return self is not Status.UNFIT


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node knows of itself at one moment. Instants are cluster time, spans are seconds."""

    at: datetime | None
    """None before the database has told the time."""
    name: str
    id: str
    namespace: str
    release: str
    pid: int
    since: datetime | None
    """None while it is starting."""
    shards: int
    """How many it leads."""
    leases: int
    """How many shards' locks it holds; the others it leads by hashing alone."""
    agenda: int
    """How many runs are on it."""
    lag: float
    """How late that run is which has waited longest to be handed over."""
    ticked: bool
    """A tick has gone through since the start."""
    tick_age: float
    """Since a tick last went through, or since the start; of the time that this process was running."""
    heartbeat_age: float
    """Since a heartbeat was last written, in the same way."""
    hanging: Mapping[str, float]
    """The threads that hang, and for how long."""
    waiting: Mapping[str, float]
    """Those that have waited long for a database that stalls."""
    look_age: float
    """Since the watchdog last looked; the ages and threads above are as of then."""
    database_away_since: datetime | None
    database_error: str
    """Why the last tick did not go through; empty if it did."""
    lock_degraded: bool
    broker_away: bool
    skew: float
    draining: bool
    clock_doubt: float = 0.0
    """How far the database's clock has jumped, while cluster time doesn't follow it yet."""


@dataclass(frozen=True, slots=True)
class Health:
    facts: Facts
    status: Status
    reasons: tuple[str, ...]

    @property
    def alive(self) -> bool:
        """Nothing that runs need hangs, or it is at its end anyway. A database that is away is no reason to start it again."""
        stuck = any(map(_is_needed, self.facts.hanging))
        return self.facts.draining or not (stuck or self.facts.look_age > LOOK_EXPIRES)

    @property
    def ready(self) -> bool:
        """It is registered, its ticks go through, and it is to go on."""
        working = self.status in (Status.OK, Status.DEGRADED) and self.facts.ticked
        return working and self.facts.database_away_since is None

    def __str__(self) -> str:
        said = f"{self.facts.name} is {self.status}"
        return f"{said}: {'; '.join(self.reasons)}" if self.reasons else said

    def as_json(self) -> dict[str, Any]:
        facts = self.facts
        away = facts.database_away_since
        return {
            "status": self.status.value,
            "reasons": list(self.reasons),
            "name": facts.name,
            "id": facts.id,
            "namespace": facts.namespace,
            "release": facts.release,
            "pid": facts.pid,
            "since": facts.since.isoformat() if facts.since else None,
            "shards": facts.shards,
            "leases": facts.leases,
            "agenda": facts.agenda,
            "lag": round(facts.lag, 3),
            "tick_age": round(facts.tick_age, 3),
            "heartbeat_age": round(facts.heartbeat_age, 3),
            "hanging": sorted(facts.hanging),
            "database_away_since": away.isoformat() if away else None,
            "lock_degraded": facts.lock_degraded,
            "broker_away": facts.broker_away,
            "skew": round(facts.skew, 3),
            "clock_doubt": round(facts.clock_doubt, 3),
            "written_at": facts.at.isoformat() if facts.at else None,
        }


def judge(facts: Facts, grace: float) -> Health:
    """``grace``: how many seconds may pass between two ticks that go through, and two heartbeats."""
    grave, slight = _grave(facts, grace), _slight(facts)
    if facts.draining:
        status = Status.DRAINING
    elif grave:
        status = Status.UNFIT
    elif facts.since is None:
        status = Status.STARTING
    else:
        status = Status.DEGRADED if slight else Status.OK
    return Health(facts, status, (*grave, *slight))


def _grave(facts: Facts, grace: float) -> list[str]:
    because = f": {facts.database_error}" if facts.database_error else ""
    reasons = [_hangs(thread, seconds) for thread, seconds in facts.hanging.items() if _is_needed(thread)]
    if facts.look_age > LOOK_EXPIRES:
        reasons.append(f"the watch thread hangs: it has not looked for {facts.look_age:.0f} s")
    if facts.tick_age > grace:
        reasons.append(f"no tick has gone through for {facts.tick_age:.0f} s{because}")
    if facts.heartbeat_age > grace:
        reasons.append(f"no heartbeat was written for {facts.heartbeat_age:.0f} s")
    return reasons


def _slight(facts: Facts) -> list[str]:
    reasons = [_hangs(thread, seconds) for thread, seconds in facts.hanging.items() if not _is_needed(thread)]
    reasons += [
        f"the {thread} thread has waited for the database for {seconds:.0f} s"
        for thread, seconds in facts.waiting.items()
    ]
    if facts.database_away_since:
        since = f"{facts.database_away_since:%Y-%m-%d %H:%M:%S} UTC"
        reasons.append(f"the database is away since {since}: {facts.database_error}")
    if facts.lock_degraded:
        reasons.append("the lock cannot be reached: it leads by hashing alone")
    if facts.broker_away:
        reasons.append("the broker does not take runs: they wait on the agenda")
    return reasons


def _is_needed(thread: str) -> bool:
    """Whether runs need it. A channel that hangs must not have the node started again, and what it executes with it."""
    return thread.partition("-")[0] not in (ALERTS, WORKERS)


def _hangs(thread: str, seconds: float) -> str:
    return f"the {thread} thread hangs: no sign of life for {seconds:.0f} s"
