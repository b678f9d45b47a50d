"""The pruner: a thread that deletes expired finished runs in the node's shards.

It also removes the rows of deleted jobs whose runs are all deleted.

The node that leads shard 0 also deletes expired entries of the audit log, definitions that no run
or job needs, and the rows of nodes that died long ago.

``runs.retention`` decides which runs have expired.

Invariants:

- The thread has its own connection. After each batch, it rests nine times as long as the batch
  took. It is therefore busy for a tenth of the time at most, even with a slow database.
- A batch deletes about a thousand rows at most and locks no row that the schedule needs.
- Runs that can't be deleted now, because of a lock or an outage, are left for the next round.
- Errors of the project's signal receivers, which deletions call, are logged and don't end the
  thread.
- Two nodes normally don't prune the same job, because each prunes its own shards. If they do, one
  of them finds the rows locked or deleted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator

from django.db import DatabaseError, InterfaceError, connections

from django_dcron.conf import settings
from django_dcron.db.clock import Clock
from django_dcron.db.contention import isolating_errors
from django_dcron.db.errors import in_one_line
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import WaitLimits
from django_dcron.jobs.audit.retention import prune_audit_log
from django_dcron.jobs.definition_retention import prune_definitions
from django_dcron.jobs.deletion import remove_jobs_without_history
from django_dcron.models import Job, Node
from django_dcron.models.job import JobQuerySet
from django_dcron.policies.sharding import shard_of_job
from django_dcron.runs import retention
from django_dcron.scheduler.dead_nodes import delete_dead_nodes
from django_dcron.scheduler.membership import Membership
from django_dcron.scheduler.tick import LOCK_TIMEOUT, longest_silence

logger = logging.getLogger("django_dcron.scheduler")

FIRST_ROUND_AFTER = 60.0
"""Seconds from the node's start to the first round. Due runs come first."""
PAUSE_BETWEEN_ROUNDS = 600.0
"""Seconds from the end of a round to the start of the next."""
MAX_BUSY_SHARE = 0.1
"""The maximum share of its time in which the thread queries the database."""
JOBS_AT_ONCE = 500


class Pruner:
    def __init__(self, membership: Membership, clock: Clock, rest: Callable[[float], bool]):
        """Create the pruner.

        ``rest`` sleeps for the given seconds, or until the node stops. It returns whether the node
        stops.
        """
        self._membership = membership
        self._clock = clock
        self._rest = rest
        self._limits = WaitLimits(alias_for(Job))

    def run(self) -> None:
        """Prune until the node stops. This is the body of the thread."""
        try:
            self._rounds()
        finally:
            self._limits.lift()

    def _rounds(self) -> None:
        pause = FIRST_ROUND_AFTER
        while not self._rest(pause):
            pause = PAUSE_BETWEEN_ROUNDS
            pruned: Counter[int] = Counter()
            try:
                self._round(pruned)
            except (DatabaseError, InterfaceError) as error:
                connections.close_all()  # closes this thread's connections only
                text = "pruning failed, retrying later: node=%s error=%s"
                self._log(logging.WARNING, "pruning_failed", text, in_one_line(error))
            if pruned:
                text = "runs pruned: node=%s runs=%d jobs=%d"
                self._log(logging.INFO, "pruned", text, pruned.total(), len(pruned))

    def _round(self, pruned: Counter[int]) -> None:
        """Prune the node's shards once. Count the pruned runs of each job in ``pruned``.

        An error loses no count, because ``pruned`` is the caller's.
        """
        last = 0
        while batch := list(
            self._jobs().filter(pk__gt=last).values_list("pk", flat=True)[:JOBS_AT_ONCE]
        ):
            last = batch[-1]
            started_at = self._clock.monotonic()
            candidates = retention.candidates(self._jobs().filter(pk__in=batch), self._clock.now())
            if self._pace(started_at):
                return
            for job_id in candidates:
                if self._prune(job_id, pruned):
                    return
            with isolating_errors("remove deleted jobs", alias_for(Job)):
                remove_jobs_without_history(batch)
        if 0 in self._membership.shards:
            self._prune_audit_log()
            self._prune_definitions()
            with isolating_errors("delete dead nodes", alias_for(Node)):
                delete_dead_nodes()

    def _prune_audit_log(self) -> None:
        if deleted := self._run_batches(prune_audit_log(self._clock.now)):
            text = "audit log pruned: node=%s entries=%d"
            self._log(logging.INFO, "audit_log_pruned", text, deleted)

    def _prune_definitions(self) -> None:
        if deleted := self._run_batches(prune_definitions()):
            text = "definitions pruned: node=%s definitions=%d"
            self._log(logging.INFO, "definitions_pruned", text, deleted)

    def _run_batches(self, batches: Iterator[int]) -> int:
        """Run ``batches`` until they end or the node stops. Return the number of deleted rows."""
        self._limits.impose(lock=LOCK_TIMEOUT, silence=longest_silence())
        started_at, deleted = self._clock.monotonic(), 0
        for number in batches:
            deleted += number
            if self._pace(started_at):
                break
            started_at = self._clock.monotonic()
        return deleted

    def _jobs(self) -> JobQuerySet:
        jobs = Job.with_deleted.using(alias_for(Job))
        jobs = jobs.in_shards(self._membership.shards, settings.SHARDS)
        if self._membership.namespace:
            jobs = jobs.filter(namespace=self._membership.namespace)
        return jobs.order_by("pk")

    def _prune(self, job_id: int, pruned: Counter[int]) -> bool:
        """Prune a job. Return whether the node stops."""
        self._limits.impose(lock=LOCK_TIMEOUT, silence=longest_silence())
        started_at = self._clock.monotonic()
        try:
            for number in retention.prune_runs(job_id, self._clock.now):
                if number:
                    pruned[job_id] += number
                if self._pace(started_at):
                    return True
                if shard_of_job(job_id, settings.SHARDS) not in self._membership.shards:
                    return False
                started_at = self._clock.monotonic()
        except retention.DeletionBlocked as error:
            self._log(
                logging.INFO,
                "not_pruned",
                "runs not pruned: node=%s job_id=%d error=%s",
                job_id,
                error,
            )
        except (DatabaseError, InterfaceError):
            raise
        except Exception:  # of a signal receiver
            extra = {"event": "not_pruned", "node": self._membership.name}
            text = "runs not pruned: node=%s job_id=%d"
            logger.exception(text, self._membership.name, job_id, extra=extra)
        return False

    def _pace(self, started_at: float) -> bool:
        """Rest after a batch that began at ``started_at``. Return whether the node stops."""
        return self._rest((self._clock.monotonic() - started_at) * (1 / MAX_BUSY_SHARE - 1))

    def _log(self, level: int, event: str, message: str, *args: object) -> None:
        node = self._membership.name
        logger.log(level, message, node, *args, extra={"event": event, "node": node})
