"""The tick: one pass over what a node leads.

mark what was handed over -> follow the jobs -> claim -> release -> adopt -> rescue. All of a node's database work except its
heartbeat happens here, in one thread. A tick that fails half way is simply made again: each part is a transaction or a
guarded update of its own. Nobody's lock is waited for long, as its holder may be frozen; one that is in the way of a part
keeps the node neither from the others nor from its tick, and what was left is made up for by a later one. Nor does this
node, if it is itself frozen, keep its locks for longer than its shards.

Nobody is declared lost whose heartbeat the database may have kept waiting: not before a whole run lease of ticks that
went through, each soon after the other. A database that stalls without an error shows in the time a tick takes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from django.db import OperationalError

from django_dcron import definition, pausing, tracing, transitions
from django_dcron.conf import settings
from django_dcron.dispatch.base import DueRun
from django_dcron.domain.clock import ClusterClock
from django_dcron.domain.lifecycle import State
from django_dcron.models import Job, Run
from django_dcron.models.database import WaitLimits, alias_for, in_one_line, is_contention
from django_dcron.scheduler.adoption import adopt
from django_dcron.scheduler.agenda import Agenda
from django_dcron.scheduler.claiming import CLAIMED_AT_ONCE, claim
from django_dcron.scheduler.delayed_heartbeats import DelayedHeartbeats
from django_dcron.scheduler.membership import Membership
from django_dcron.scheduler.releasing import release
from django_dcron.scheduler.rescue import rescue
from django_dcron.sync_points import reach

logger = logging.getLogger("django_dcron.scheduler")

FOLLOW_EVERY = 5.0
RETRY_QUARANTINED_EVERY = 300.0
RESCUE_EVERY = 2.0
RELEASE_EVERY = 1.0
REPORT_EVERY = 60.0
"""Seconds. Not settings: they only have to be shorter than anybody's patience and longer than a tick."""
LOCK_PATIENCE = timedelta(seconds=1)
"""A few such waits in one tick must not pass for a database that stalls."""
SHORTEST_SILENCE = timedelta(seconds=5)
"""How long at least a tick may compute half way through a transaction; then the database ends it, or, at the latest, after
the lease."""
LONGEST_BURST = 2.0
"""Seconds for which marking waits for the agenda: it takes time that, in a burst, what is still due needs more."""
ONCE_PATIENCE = 3
"""A tick that is the first and the last knows nothing of the database's past: so many run leases count as one."""


@dataclass
class Ticker:
    membership: Membership
    agenda: Agenda
    clock: ClusterClock
    stopping: Callable[[], bool] = lambda: False
    alive: Callable[[], None] = lambda: None
    """Called before each part of a tick: it does not hang."""
    progressed: Callable[[], None] = lambda: None
    """Called when a tick went through, and when a part that is repeated has written to the database."""
    clock_in_doubt: Callable[[], bool] = lambda: False
    """Whether the database's clock has jumped, and may be wrong: then heartbeats seem old or new without being it."""
    counts: Counter[str] = field(default_factory=Counter)
    _last: dict[str, float] = field(default_factory=dict)
    _steady_since: float | None = None
    """Since when, on the monotonic clock, the database was there at every tick; None while it is away."""
    _completed_at: float | None = None
    """When the last tick had gone through."""
    _limits: WaitLimits = field(default_factory=lambda: WaitLimits(alias_for(Run)))
    _behind_since: float | None = None
    """Since when, on the monotonic clock, the agenda was behind at every look."""
    _blocked: set[str] = field(default_factory=set)
    """The parts that another transaction was in the way of when they were last tried."""
    _delayed: DelayedHeartbeats = field(init=False)
    _unsure: bool = True
    """The last tick did not go through as a whole: it may have claimed what did not come onto the agenda."""

    def __post_init__(self) -> None:
        self._delayed = DelayedHeartbeats(self.clock.monotonic)

    def tick(self, *, adopt_own: bool = False, once: bool = False) -> None:
        """One pass. ``adopt_own``: also look for runs that should be on the agenda but may not be. ``once``: no other
        pass was before this one, and none will follow."""
        if self._completed_at is None:
            self._completed_at = self.clock.monotonic()
        adopt_own = adopt_own or self._unsure
        silence = max(settings.LEASE, SHORTEST_SILENCE)
        self._limits.impose(lock=LOCK_PATIENCE, silence=silence)
        parts: list[tuple[str, Callable[[], None]]] = [
            ("mark", self._end_what_was_refused if self._in_burst() else self._mark)
        ]
        if self.membership.shards:
            if self._is_time("follow", FOLLOW_EVERY):
                parts.append(("follow", self._follow))
            parts += [
                ("claim", self._claim),
                ("release", self._release),
                ("adopt", partial(self._adopt, also_own=adopt_own)),
            ]
            if once:
                parts.append(("rescue", partial(self._rescue, ONCE_PATIENCE * settings.RUN_LEASE)))
            elif self._may_rescue() and self._is_time("rescue", RESCUE_EVERY):
                parts.append(("rescue", partial(self._rescue, settings.RUN_LEASE)))
        in_the_way = []
        for name, part in parts:
            self.alive()
            if error := self._do(name, part):
                in_the_way.append(error)
        if once and in_the_way:
            raise in_the_way[0]  # no other tick makes up for it
        self.membership.ticked()
        self._unsure = bool(in_the_way)
        self._went_through()
        self.progressed()
        tracing.record_noted()
        if self._is_time("report", REPORT_EVERY):
            self._report()

    def close(self) -> None:
        """No tick follows: the connection is as it was before the first."""
        self._limits.lift()

    def _do(self, name: str, part: Callable[[], None]) -> OperationalError | None:
        """Do a part of the tick; returns the error if another transaction was in its way, which is logged as it changes."""
        try:
            part()
        except OperationalError as error:
            if not is_contention(error):
                raise
            if name not in self._blocked:
                self._blocked.add(name)
                text = "%s: another transaction is in the way of the %s: %s"
                self._log("contention", text, name, in_one_line(error))
            return error
        if name in self._blocked:
            self._blocked.discard(name)
            self._log("contention_over", "%s: nothing is in the way of the %s any more", name)
        return None

    def _log(self, event: str, message: str, *args: object) -> None:
        node = self.membership.name
        logger.info(message, node, *args, extra={"event": event, "node": node})

    def failed(self, *, database_away: bool) -> None:
        """The last tick did not go through."""
        self._unsure = True
        if database_away:
            self._steady_since = None

    def mark_delivered(self) -> None:
        """Mark as queued what the agenda has handed over, and end what was refused; what somebody is in the way of, later."""
        self._do("mark", self._mark)
        tracing.record_noted()

    def _end_what_was_refused(self) -> None:
        self._end_refused(self.agenda.take_refused())

    def _mark(self) -> None:
        self._end_what_was_refused()
        delivered = self.agenda.take_delivered()
        if not delivered:
            return
        reach("mark.begun")
        try:
            transitions.mark_queued((run.key for run in delivered), self.clock.now(), node=self.membership.id)
        except BaseException:
            self.agenda.give_back(delivered)
            raise
        reach("mark.done")
        self.agenda.marked(delivered)
        self.counts["handed over"] += len(delivered)

    def _in_burst(self) -> bool:
        """Whether marking is to wait. A node that is behind for longer marks beside: what is not marked, others would take up."""
        now = self.clock.monotonic()
        if not self.agenda.is_behind:
            self._behind_since = None
            return False
        self._behind_since = now if self._behind_since is None else self._behind_since
        return now - self._behind_since < LONGEST_BURST

    def _follow(self) -> None:
        """Whatever concerns jobs, not runs: what was changed past ``save``, is in quarantine, keeps failing, or has
        been paused for long enough."""
        jobs = Job.objects.using(alias_for(Job)).in_shards(self.membership.shards, settings.SHARDS)
        if self.membership.namespace:
            jobs = jobs.filter(namespace=self.membership.namespace)
        followed = definition.follow_changes(self.clock.now(), jobs)
        self.counts["followed"] += followed
        if followed >= definition.FOLLOWED_AT_ONCE:
            del self._last["follow"]  # there are more: go on at the next tick
        if self._is_time("retry quarantined", RETRY_QUARANTINED_EVERY):
            definition.retry_quarantined(self.clock.now(), jobs)
        pausing.open_circuits(jobs)
        pausing.end_pauses(jobs)

    def _claim(self) -> None:
        while not self.stopping():
            claimed = claim(
                self.membership.shards,
                self.clock.now(),
                node=self.membership.id,
                namespace=self.membership.namespace,
            )
            self._put(claimed.runs)
            self.counts["claimed"] += len(claimed.runs)
            self.counts["missed"] += claimed.missed
            if "mark" not in self._blocked and not self._in_burst():
                self.mark_delivered()
            if claimed.considered < CLAIMED_AT_ONCE:
                return
            self.alive()
            self.progressed()

    def _release(self) -> None:
        if not self._is_time("release", RELEASE_EVERY):
            return
        self.counts["released"] += release(
            self.membership.shards, self.clock.now(), namespace=self.membership.namespace
        )

    def _adopt(self, *, also_own: bool) -> None:
        adopted = adopt(
            self.membership.shards,
            self.clock.now() + settings.LOOK_AHEAD,
            node=self.membership.id,
            namespace=self.membership.namespace,
            also_own=also_own,
            known=self.agenda.knows,
        )
        self.counts["adopted"] += self._put(adopted)

    def _rescue(self, lease: timedelta) -> None:
        self.counts["rescued"] += rescue(self.membership.shards, self.clock.now(), lease, self._delayed)

    def _put(self, runs: Iterable[DueRun]) -> int:
        """On the agenda, if not there yet: how many. What can never be handed over ends here, and says why."""
        before = len(self.agenda)
        self._end_refused(self.agenda.add(runs))
        return max(len(self.agenda) - before, 0)

    def _end_refused(self, refused: Iterable[tuple[DueRun, str]]) -> None:
        for run, reason in refused:
            row = transitions.runs().select_related("job").filter(pk=run.run_id).first()
            if row is not None and transitions.end_unstarted(row, State.FAILED, reason, attempt=run.attempt):
                extra = {
                    "event": "undeliverable",
                    "job": run.job_name,
                    "run": str(run.run_id),
                    "attempt": run.attempt,
                }
                logger.error("%s: %s", run.job_name, reason, extra=extra)

    def _may_rescue(self) -> bool:
        """Not before a whole run lease of steady ticks: after an outage the workers' heartbeats are old without fault."""
        if self._has_stalled() or self.clock_in_doubt():
            self._steady_since = None
        lease = settings.RUN_LEASE.total_seconds()
        return self._steady_since is not None and self.clock.monotonic() - self._steady_since >= lease

    def _has_stalled(self) -> bool:
        """Whether it is too long since a tick went through. This one may be the reason."""
        patience = settings.TICK + settings.RUN_LEASE / 3
        return (
            self._completed_at is None
            or self.clock.monotonic() - self._completed_at > patience.total_seconds()
        )

    def _went_through(self) -> None:
        if self._has_stalled() or self._steady_since is None:
            self._steady_since = self.clock.monotonic()
        self._completed_at = self.clock.monotonic()

    def _is_time(self, what: str, every: float) -> bool:
        now = self.clock.monotonic()
        if now - self._last.get(what, float("-inf")) < every:
            return False
        self._last[what] = now
        return True

    def _report(self) -> None:
        counts, self.counts = self.counts, Counter()
        done = ", ".join(f"{number} {what}" for what, number in counts.items() if number) or "nothing to do"
        logger.info(
            "%s: %s; %d on the agenda",
            self.membership.name,
            done,
            len(self.agenda),
            extra={
                "event": "report",
                "node": self.membership.name,
                "agenda": len(self.agenda),
                **_keys(counts),
            },
        )


def _keys(counts: Counter[str]) -> dict[str, int]:
    return {what.replace(" ", "_"): number for what, number in counts.items()}
