"""The pruner: a thread that deletes finished runs that are kept no longer (``pruning``), of the jobs whose shards the node leads.

It has a connection of its own, and takes its time: after each batch it rests nine times as long as that took, so that of one
connection's time it has a tenth, also where the database is slow. A batch is a few hundred rows, and locks nothing that
the schedule needs. What cannot be deleted now, because a row is locked or the database is away, is left for the next round.

Two nodes never prune a job at once while each leads its own shards; should they, one finds the rows locked or gone.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, connections

from django_dcron import pruning
from django_dcron.conf import settings
from django_dcron.domain.clock import Clock
from django_dcron.domain.counts_in_words import number_of
from django_dcron.models import Job
from django_dcron.models.database import WaitLimits, alias_for, in_one_line
from django_dcron.models.job import JobQuerySet
from django_dcron.scheduler.membership import Membership
from django_dcron.scheduler.ticking import LOCK_PATIENCE, SHORTEST_SILENCE

logger = logging.getLogger("django_dcron.scheduler")

FIRST_AFTER = 60.0
"""Seconds after the start: what is due comes first."""
ROUND_EVERY = 600.0
"""Seconds from the end of a round to the next."""
SHARE = 0.1
"""Of the time, at most, that it works."""
JOBS_AT_ONCE = 500


class Pruner:
    def __init__(self, membership: Membership, clock: Clock, rest: Callable[[float], bool]):
        """``rest``: sleep so many seconds, or until the node is to stop, and say whether it is."""
        self._membership = membership
        self._clock = clock
        self._rest = rest
        self._limits = WaitLimits(alias_for(Job))

    def run(self) -> None:
        """The thread: until the node is to stop."""
        try:
            self._rounds()
        finally:
            self._limits.lift()

    def _rounds(self) -> None:
        pause = FIRST_AFTER
        while not self._rest(pause):
            pause = ROUND_EVERY
            pruned: Counter[int] = Counter()
            try:
                self._round(pruned)
            except (DatabaseError, InterfaceError) as error:
                connections.close_all()  # this thread's own
                text = "%s: pruning goes on later: %s"
                self._log(logging.WARNING, "pruning_failed", text, in_one_line(error))
            if pruned:
                runs, jobs = number_of(pruned.total(), "run"), number_of(len(pruned), "job")
                text = "%s: pruned %s of %s"
                self._log(logging.INFO, "pruned", text, runs, jobs)

    def _round(self, pruned: Counter[int]) -> None:
        last = 0
        while batch := list(self._jobs().filter(pk__gt=last).values_list("pk", flat=True)[:JOBS_AT_ONCE]):
            last = batch[-1]
            begun = self._clock.monotonic()
            candidates = pruning.candidates(self._jobs().filter(pk__in=batch), self._clock.now())
            if self._pace(begun):
                return
            for job_id in candidates:
                if self._prune(job_id, pruned):
                    return

    def _jobs(self) -> JobQuerySet:
        jobs = Job.objects.using(alias_for(Job)).in_shards(self._membership.shards, settings.SHARDS)
        if self._membership.namespace:
            jobs = jobs.filter(namespace=self._membership.namespace)
        return jobs.order_by("pk")

    def _prune(self, job_id: int, pruned: Counter[int]) -> bool:
        """Returns whether the node is to stop."""
        self._limits.impose(lock=LOCK_PATIENCE, silence=max(settings.LEASE, SHORTEST_SILENCE))
        begun = self._clock.monotonic()
        try:
            for number in pruning.prune(job_id, self._clock.now):
                if number:
                    pruned[job_id] += number
                if self._pace(begun):
                    return True
                if job_id % settings.SHARDS not in self._membership.shards:
                    return False
                begun = self._clock.monotonic()
        except pruning.InTheWay as error:
            self._log(logging.INFO, "not_pruned", "%s: old runs of job %d stay for now: %s", job_id, error)
        except (DatabaseError, InterfaceError):
            raise
        except Exception:
            # Deleting calls the project's own code, as its signals have receivers; no node is to end of that.
            extra = {"event": "not_pruned", "node": self._membership.name}
            logger.exception("old runs of job %d stay for now", job_id, extra=extra)
        return False

    def _pace(self, begun: float) -> bool:
        """Rest after what was begun then; returns whether the node is to stop."""
        return self._rest((self._clock.monotonic() - begun) * (1 / SHARE - 1))

    def _log(self, level: int, event: str, message: str, *args: object) -> None:
        node = self._membership.name
        logger.log(level, message, node, *args, extra={"event": event, "node": node})
