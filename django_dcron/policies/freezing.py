"""Decide whether a freeze holds back a run.

A freeze stops the automatic starts in one or all namespaces. A start is automatic if the run comes
from a schedule, a backfill or a chain, or is a rerun that queues like a backfill.

Invariants:

- A freeze is in force until ``until``, exclusive. If ``until`` is None, it is in force until
  someone ends it.
- A freeze never holds back runs that a person or a program started one by one: manual runs, and
  reruns that don't queue.
- ``models.freeze`` has the same rule as SQL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django_dcron.policies.lifecycle import Trigger

USUAL_START_DELAY = timedelta(seconds=5)
"""Normally, a run starts within this time after it is due."""
ALL_NAMESPACES = ""
AUTOMATIC = frozenset({Trigger.SCHEDULE, Trigger.BACKFILL, Trigger.CHAIN})
"""The triggers of runs that a freeze holds back. Reruns that queue have ``BACKFILL``."""


@dataclass(frozen=True, slots=True)
class FreezeExtent:
    """What a freeze covers, and when."""

    namespace: str
    """Empty: all namespaces."""
    since: datetime
    until: datetime | None
    """None: until someone ends the freeze."""

    def is_in_force(self, now: datetime) -> bool:
        return self.until is None or self.until > now

    def covers(self, namespace: str) -> bool:
        return self.namespace in (ALL_NAMESPACES, namespace)

    def delayed(self, due_at: datetime) -> bool:
        """Return whether the freeze was in force when a run fell due, or soon after.

        A run that was due earlier would have started if nothing else had delayed it.
        """
        return self.since <= due_at + USUAL_START_DELAY and self.is_in_force(due_at)


def holding_freeze(
    freezes: Iterable[FreezeExtent], *, namespace: str, at: datetime
) -> FreezeExtent | None:
    """Return the freeze in force at ``at`` that holds back the namespace's runs the longest."""
    found = [freeze for freeze in freezes if freeze.is_in_force(at) and freeze.covers(namespace)]
    return max(
        found, key=lambda freeze: (freeze.until is None, freeze.until or freeze.since), default=None
    )


def is_frozen(
    freezes: Iterable[FreezeExtent], *, namespace: str, trigger: Trigger, now: datetime
) -> bool:
    """Return whether a run of a job in ``namespace`` must not start now."""
    return trigger in AUTOMATIC and any(
        freeze.is_in_force(now) and freeze.covers(namespace) for freeze in freezes
    )
