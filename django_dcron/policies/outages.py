"""Decide whether a node's heartbeat ends an outage: a time in which no node could work.

Invariants:

- Only the nodes' heartbeats and clean stops count. While one node writes heartbeats, there is no
  outage, even if the other nodes are down or jobs are frozen.
- The start of an outage identifies it. Nodes that find it at the same moment find the same start.
- A new installation has no earlier heartbeat, so its first heartbeat ends no outage.
- All times are the database's. If its clock is set back, there is no outage.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

SHORTEST_OUTAGE = timedelta(minutes=1)
"""A deploy that restarts all nodes takes less time. If ``DCRON_LEASE`` is longer, it is the limit,
because nodes write a heartbeat every third of it.
"""


@dataclass(frozen=True, slots=True)
class FailedHeartbeat:
    """The first failed heartbeat of a node since its last successful one."""

    at: datetime
    error: str


@dataclass(frozen=True, slots=True)
class Outage:
    since: datetime
    """The last heartbeat or clean stop of any node."""
    until: datetime
    """The next heartbeat."""
    failure: FailedHeartbeat | None = None
    """Why the node that found the outage wrote no heartbeat. None if it wasn't running."""

    @property
    def duration(self) -> timedelta:
        return self.until - self.since


def find_outage(
    last_sign_of_life: datetime | None,
    now: datetime,
    failure: FailedHeartbeat | None = None,
    *,
    shortest: timedelta = SHORTEST_OUTAGE,
) -> Outage | None:
    """Return the outage that a heartbeat at ``now`` ends, if any.

    ``last_sign_of_life``: the last heartbeat or clean stop of any node. None if there was none.
    A failure that came late in the outage isn't its cause: the node was suspended before.
    """
    if last_sign_of_life is None or now - last_sign_of_life < shortest:
        return None
    if failure is not None and failure.at - last_sign_of_life > shortest:
        failure = None
    return Outage(last_sign_of_life, now, failure)
