"""The tick: one pass of a node over its shards. ``Ticker._steps`` lists its steps.

Invariants:

- The tick does all database work that the schedule needs, in one thread. The heartbeat, the pruner,
  the alerts and the worker probe have their own threads.
- Each step is a transaction or a guarded update. After an error, the next tick starts again with
  the first step.
- No step waits long for a lock, because the holder may be suspended. A blocked step is skipped
  (``steps``), and a later tick makes up for it.
- The database ends a transaction that is idle for longer than the lease (at least 5 s), so a
  suspended node doesn't keep its locks. SQLite has no such limit.
- No run is declared lost until ticks have succeeded without a long gap for a whole run lease.
  Before that, the database may have delayed heartbeats.
- A database that stalls without an error is detected by the duration of a tick.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from math import inf

from django_dcron import tracing
from django_dcron.conf import settings
from django_dcron.db.clock import ClusterClock
from django_dcron.db.contention import isolating_errors
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import WaitLimits
from django_dcron.dispatch.base import DueRun
from django_dcron.jobs import cursors, pausing
from django_dcron.models import Incident, Job, LimitStart, PendingCount, Run
from django_dcron.models.job import JobQuerySet
from django_dcron.runs import deliveries, incidents
from django_dcron.runs.pending_counts import COUNTS_AT_ONCE, add_pending_counts
from django_dcron.scheduler.adoption import adopt
from django_dcron.scheduler.agenda import Agenda, Key
from django_dcron.scheduler.backfill_release import release
from django_dcron.scheduler.claim import CLAIMED_AT_ONCE, claim
from django_dcron.scheduler.delayed_heartbeats import DelayedHeartbeats
from django_dcron.scheduler.limit_lines import find_waiting, prune_starts, wake_runs_with_place
from django_dcron.scheduler.membership import Membership
from django_dcron.scheduler.outdated_cursors import OutdatedCursors, move_all_outdated
from django_dcron.scheduler.publishing import RefusedDispatch
from django_dcron.scheduler.refusal import end_refused
from django_dcron.scheduler.rescue import rescue
from django_dcron.scheduler.steps import Steps, StillLocked, TickStep
from django_dcron.utils.batches import in_batches
from django_dcron.utils.sync_points import reach_sync_point

logger = logging.getLogger("django_dcron.scheduler")

MARK, CHANGES, INCIDENTS, PRUNE, COUNT = "mark", "changes", "incidents", "prune", "count"
"""The names of the steps that methods refer to."""
APPLY_CHANGES_EVERY = 5.0
RETRY_QUARANTINED_EVERY = 300.0
RESCUE_EVERY = 2.0
RELEASE_EVERY = 1.0
GROUP_FAILURES_EVERY = 5.0
RETRY_REFUSED_EVERY = 5.0
PRUNE_EVERY = 3600.0
COUNT_EVERY = 2.0
REPORT_EVERY = 60.0
"""Seconds. These aren't settings: they only have to be longer than a tick, and short enough for
users.
"""
LOCK_TIMEOUT = timedelta(seconds=1)
"""The longest wait for a lock. A few of these waits in one tick must not look like a stalled
database.
"""
SHORTEST_SILENCE = timedelta(seconds=5)
"""The shortest limit for an idle transaction of a node's thread."""
LONGEST_BURST = 2.0
"""The maximum number of seconds that marking waits for due runs to be dispatched first."""
ONCE_FACTOR = 3
"""How many run leases without a heartbeat make a single tick declare a run lost. A single tick
can't know whether the database was available before.
"""


def longest_silence() -> timedelta:
    """Return how long a thread of the node may be idle in a transaction.

    After this time, the database ends the transaction.
    """
    return max(settings.LEASE, SHORTEST_SILENCE)


@dataclass
class Ticker:
    membership: Membership
    agenda: Agenda
    clock: ClusterClock
    stopping: Callable[[], bool] = lambda: False
    on_activity: Callable[[], None] = lambda: None
    """Called before each step and each batch of claims, for the watchdog."""
    on_progress: Callable[[], None] = lambda: None
    """Called after a successful tick, and after each successful batch of claims."""
    clock_in_doubt: Callable[[], bool] = lambda: False
    """Returns whether the database's clock has jumped and may be wrong. In this case, the age of
    heartbeats is unreliable.
    """
    counts: Counter[str] = field(default_factory=Counter)
    """The numbers of runs and jobs that the ticks have processed since the last report."""
    _runner: Steps = field(init=False)
    _available_since: float | None = None
    """The monotonic time since which every tick has found the database available. None if the last
    tick didn't.
    """
    _completed_at: float | None = None
    """The monotonic time of the last successful tick; before it, the start of the first tick."""
    _limits: WaitLimits = field(default_factory=lambda: WaitLimits(alias_for(Run)))
    _behind_since: float | None = None
    """The monotonic time since which every check has found the agenda behind."""
    _delayed: DelayedHeartbeats = field(init=False)
    _outdated: OutdatedCursors = field(default_factory=OutdatedCursors)
    _settled: frozenset[int] = frozenset()
    """The shards of which no run assigned to this node is missing from the agenda. Such a run may
    be missing if a tick failed or skipped a step, until ``_adopt`` has looked for it. A tick
    without some of the shards doesn't look there.
    """
    _unended: set[Key] = field(default_factory=set)
    """The refused runs that couldn't be ended. They aren't added to the agenda meanwhile."""
    _retry_unended_at: float = inf
    """The monotonic time at which these runs are adopted, and so refused and ended, again."""

    def __post_init__(self) -> None:
        self._delayed = DelayedHeartbeats(self.clock.monotonic)
        self._runner = Steps(self.membership.name, self.clock.monotonic, lambda: self.on_activity())

    def tick(self, *, once: bool = False) -> None:
        """Make one pass. ``once``: this is the only tick of the process."""
        if self._completed_at is None:
            self._completed_at = self.clock.monotonic()
        self._limits.impose(lock=LOCK_TIMEOUT, silence=longest_silence())
        if self.clock.monotonic() >= self._retry_unended_at:
            self._unended, self._retry_unended_at, self._settled = set(), inf, frozenset()
        self._settled &= self.membership.shards
        blocked = self._runner.run_due(self._steps(once))
        if once and blocked:
            raise blocked[0]  # no later tick makes up for it
        self.membership.ticked()
        if blocked:
            self._settled = frozenset()
        self._record_success()
        self.on_progress()
        tracing.record_queued_spans()

    def _steps(self, once: bool) -> list[TickStep]:
        """Return the steps of a tick, in their order."""
        leads = self._leads
        may_rescue = leads if once else self._may_rescue
        silence = settings.RUN_LEASE * (ONCE_FACTOR if once else 1)
        return [
            TickStep(MARK, self._mark_outside_bursts),
            TickStep(CHANGES, partial(self._apply_changes, once), leads, every=APPLY_CHANGES_EVERY),
            TickStep("quarantine", self._retry_quarantined, leads, every=RETRY_QUARANTINED_EVERY),
            TickStep("claim", self._claim, leads),
            TickStep("release", self._release, leads, every=RELEASE_EVERY),
            TickStep("adopt", self._adopt, leads),
            TickStep("rescue", partial(self._rescue, silence), may_rescue, every=RESCUE_EVERY),
            TickStep(INCIDENTS, self._group_failures, leads, every=GROUP_FAILURES_EVERY),
            TickStep(PRUNE, self._prune, leads, every=PRUNE_EVERY),
            TickStep(COUNT, self._add_pending_counts, leads, every=COUNT_EVERY),
            TickStep("report", self._report, every=REPORT_EVERY),
        ]

    def _leads(self) -> bool:
        return bool(self.membership.shards)

    def blocked_steps(self) -> dict[str, float]:
        """Return the steps that other transactions block for long, and for how many seconds."""
        return self._runner.blocked_steps()

    def close(self) -> None:
        """Restore the connection's limits after the last tick."""
        self._limits.lift()

    def record_failure(self, *, database_unreachable: bool) -> None:
        """Record that the last tick failed."""
        self._settled = frozenset()
        if database_unreachable:
            self._available_since = None

    def mark_dispatched(self) -> None:
        """Mark dispatched runs as queued, and end refused runs. Locked runs are left for later."""
        self._runner.run(TickStep(MARK, self._mark))
        tracing.record_queued_spans()

    def _mark_outside_bursts(self) -> None:
        if self._in_burst():
            self._end_refused(self.agenda.take_refused())
        else:
            self._mark()

    def _mark(self) -> None:
        self._end_refused(self.agenda.take_refused())
        dispatched = self.agenda.take_dispatched()
        if not dispatched:
            return
        reach_sync_point("mark.begun")
        try:
            if self._runner.is_blocked(MARK):
                marked = self._mark_unlocked(dispatched)
            else:
                self._mark_queued(dispatched)
                marked = dispatched
        except BaseException:
            self.agenda.restore_dispatched(dispatched)
            raise
        reach_sync_point("mark.done")
        self.agenda.forget(marked)
        self.counts["dispatched"] += len(marked)
        if len(marked) < len(dispatched):
            marked_keys = {run.key for run in marked}
            locked = [run for run in dispatched if run.key not in marked_keys]
            self.agenda.restore_dispatched(locked)
            raise StillLocked([run.run_id for run in locked])

    def _mark_queued(self, dispatched: Iterable[DueRun]) -> None:
        deliveries.mark_queued(
            (run.key for run in dispatched), self.clock.now(), node=self.membership.id
        )

    def _mark_unlocked(self, dispatched: list[DueRun]) -> list[DueRun]:
        """Mark the unlocked runs, without waiting for the locked ones."""
        marked: list[DueRun] = []
        for batch in in_batches(dispatched, deliveries.MARKED_AT_ONCE):
            with deliveries.lock_unlocked([run.run_id for run in batch]) as free:
                of_batch = [run for run in batch if run.run_id in free]
                self._mark_queued(of_batch)
            marked += of_batch
        return marked

    def _in_burst(self) -> bool:
        """Return whether marking has to wait for the agenda.

        A node that stays behind for longer than ``LONGEST_BURST`` marks all the same, because other
        nodes would adopt unmarked runs.
        """
        now = self.clock.monotonic()
        if not self.agenda.is_behind:
            self._behind_since = None
            return False
        self._behind_since = now if self._behind_since is None else self._behind_since
        return now - self._behind_since < LONGEST_BURST

    def _jobs(self) -> JobQuerySet:
        jobs = Job.objects.using(alias_for(Job)).in_shards(self.membership.shards, settings.SHARDS)
        namespace = self.membership.namespace
        return jobs.filter(namespace=namespace) if namespace else jobs

    def _apply_changes(self, once: bool) -> None:
        """Apply changes to jobs: edits made without ``save``, repeated failures, ends of pauses."""
        jobs = self._jobs()
        move = move_all_outdated if once else self._outdated.move
        moved = move(self.clock.now(), jobs)
        self.counts["cursors_moved"] += moved
        if moved >= cursors.MOVED_AT_ONCE:
            self._runner.repeat(CHANGES)  # more jobs may have changed
        pausing.pause_failing_jobs(jobs)
        pausing.end_pauses(jobs)

    def _retry_quarantined(self) -> None:
        cursors.retry_quarantined(self.clock.now(), self._jobs())
        pausing.forget_problems_of_pauses(self._jobs())
        pausing.retry_ends_of_pauses(self._jobs())

    def _claim(self) -> None:
        while not self.stopping():
            claimed = claim(
                self.membership.shards,
                self.clock.now(),
                node=self.membership.id,
                namespace=self.membership.namespace,
            )
            self._add_to_agenda(claimed.runs)
            self.counts["claimed"] += len(claimed.runs)
            self.counts["missed"] += claimed.missed
            if not self._runner.is_blocked(MARK) and not self._in_burst():
                self.mark_dispatched()
            if claimed.considered < CLAIMED_AT_ONCE:
                return
            self.on_activity()
            self.on_progress()

    def _release(self) -> None:
        """Let waiting runs continue: those that wait for a limit, then those in a backfill."""
        waiting = find_waiting()
        if waiting.for_limit:
            self.counts["woken"] += wake_runs_with_place(self.membership.shards)
        if waiting.in_backfill:
            self.counts["released"] += release(
                self.membership.shards, self.clock.now(), namespace=self.membership.namespace
            )

    def _adopt(self) -> None:
        locked: list[DueRun] = []
        shards = self.membership.shards
        adopted = adopt(
            shards,
            self.clock.now() + settings.LOOK_AHEAD,
            node=self.membership.id,
            namespace=self.membership.namespace,
            also_own=not shards <= self._settled,
            known=self.agenda.knows,
            on_locked=locked.append,
        )
        self.counts["adopted"] += self._add_to_agenda(adopted)
        self._settled = shards
        if locked:
            raise StillLocked([run.run_id for run in locked])

    def _rescue(self, silence: timedelta) -> None:
        self.counts["rescued"] += rescue(
            self.membership.shards, self.clock.now(), silence, self._delayed
        )

    def _group_failures(self) -> None:
        """Group failed attempts into incidents. Its errors don't stop the tick."""
        scope = self.membership.shards, self.membership.namespace
        with isolating_errors("incidents", alias_for(Incident)):
            if incidents.group_failed_attempts(*scope) >= incidents.GROUPED_AT_ONCE:
                self._runner.repeat(INCIDENTS)
            else:
                incidents.resolve_recovered(*scope)

    def _prune(self) -> None:
        scope = self.membership.shards, self.membership.namespace
        with isolating_errors(PRUNE, alias_for(LimitStart)):
            if prune_starts(self.membership.shards):
                self._runner.repeat(PRUNE)
        with isolating_errors(PRUNE, alias_for(Incident)):
            if incidents.prune_incidents(*scope) >= incidents.PRUNED_AT_ONCE:
                self._runner.repeat(PRUNE)

    def _add_pending_counts(self) -> None:
        with isolating_errors(COUNT, alias_for(PendingCount)):
            if add_pending_counts(self.membership.shards) >= COUNTS_AT_ONCE:
                self._runner.repeat(COUNT)

    def _add_to_agenda(self, runs: Iterable[DueRun]) -> int:
        """Add runs to the agenda and return the number of new ones.

        Runs that can't be dispatched end as failed.
        """
        before = len(self.agenda)
        self._end_refused(self.agenda.add(run for run in runs if run.key not in self._unended))
        return max(len(self.agenda) - before, 0)

    def _end_refused(self, refused: Sequence[RefusedDispatch]) -> None:
        """End the runs as failed. A later tick adopts the rest and refuses it again."""
        if unended := end_refused(refused):
            self._unended |= unended
            retry_at = self.clock.monotonic() + RETRY_REFUSED_EVERY
            self._retry_unended_at = min(self._retry_unended_at, retry_at)

    def _may_rescue(self) -> bool:
        """Return whether the node leads and the database was available for a whole run lease.

        After an outage, heartbeats are old through no fault of the workers.
        """
        if self._has_stalled() or self.clock_in_doubt():
            self._available_since = None
        if self._available_since is None or not self._leads():
            return False
        return self.clock.monotonic() - self._available_since >= settings.RUN_LEASE.total_seconds()

    def _has_stalled(self) -> bool:
        """Return whether the last successful tick is too long ago.

        The current tick may be the reason.
        """
        timeout = settings.TICK + settings.RUN_LEASE / 3
        return (
            self._completed_at is None
            or self.clock.monotonic() - self._completed_at > timeout.total_seconds()
        )

    def _record_success(self) -> None:
        if self._has_stalled() or self._available_since is None:
            self._available_since = self.clock.monotonic()
        self._completed_at = self.clock.monotonic()

    def _report(self) -> None:
        counts, self.counts = self.counts, Counter()
        facts = {"agenda": len(self.agenda), **counts}
        logger.info(
            "tick report: node=%s %s",
            self.membership.name,
            " ".join(f"{name}={n}" for name, n in facts.items() if n or name == "agenda"),
            extra={"event": "tick_report", "node": self.membership.name, **facts},
        )
