"""Histograms of the attempts: how late they started, how long they waited for a worker, how long they took.

Nobody scrapes workers, and their transactions are not to become longer. So a node, when it is scraped, reads the attempts' table
on, by key, from where it stopped. Invariants:

- A node observes an attempt's start once and its end once, if it leads the job's shard when it learns of them. So the sum over
  all nodes is the cluster's. (While a shard changes hands, what happens between two scrapes may count twice or not at all: for a
  distribution that is next to nothing.)
- What a node keeps is bounded, and grows only when it is scraped: a key, the buckets, and ``OPEN`` attempts that have not ended.
- A look costs at most ``AT_ONCE`` new rows and ``OPEN`` open ones, by their keys; usually it is five small queries. What comes
  faster is left out, and counted as left out: ``LIMIT`` a look at the most.
- The first look observes nothing: all begins at zero with the process, as Prometheus expects. Of what was running by then the
  end is observed, so that long runs are not lost at a deploy.
- Keys are given before rows become visible. A look ends where rows are younger than ``SETTLED``; one that takes longer than
  that to be committed is not observed.
- An error of the database's leaves all as it was after the last row that was observed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import NamedTuple, TypeVar
from uuid import UUID

from django.db.models import QuerySet

from django_dcron.conf import settings
from django_dcron.domain.lifecycle import Outcome
from django_dcron.models import Attempt, Run
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability.bounded import LIMIT, count_up_to
from django_dcron.observability.metrics import catalogue
from django_dcron.observability.metrics.samples import Distribution, Histogram, Sample

AT_ONCE = 20_000
OPEN = 10_000
CHUNK = 1_000
SETTLED = timedelta(seconds=2)

TO_START = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
TO_END = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
"""Seconds."""

T = TypeVar("T")


class _Row(NamedTuple):
    pk: int
    run_id: UUID
    due_at: datetime | None
    queued_at: datetime | None
    started_at: datetime
    finished_at: datetime | None
    outcome: str


class Follower:
    """Not thread-safe."""

    def __init__(self, namespace: str, shards: Callable[[], Collection[int]]):
        """``namespace``: the one its node serves; empty: all. ``shards``: those it leads now."""
        self._namespace = namespace
        self._shards = shards
        self._last: int | None = None
        """The key up to which all is known; None before the first look."""
        self._open: dict[int, int] = {}
        """The attempts that have not ended, and their jobs. Also those of other nodes' shards, which may become ours."""
        self._lateness = Histogram(catalogue.LATENESS, TO_START)
        self._wait = Histogram(catalogue.WAIT, TO_START)
        self._durations = {
            outcome: Histogram(catalogue.DURATION, TO_END, (outcome.value,)) for outcome in Outcome
        }
        self._unobserved = 0

    def observed(self) -> tuple[Distribution | Sample, ...]:
        """As of the latest look."""
        histograms = (self._lateness, self._wait, *self._durations.values())
        return (*(each.now() for each in histograms), Sample(catalogue.UNOBSERVED, self._unobserved))

    def look(self) -> None:
        """Observe what is new. Raises the database's errors."""
        if self._last is None:
            self._begin()
            return
        led = frozenset(self._shards())
        settled = database_now(alias_for(Attempt)) - SETTLED
        self._see_ends(led)
        self._see_starts(self._last, led, settled)

    def _begin(self) -> None:
        newest = _newest()
        running = Run.objects.using(alias_for(Run)).running().order_by()
        open_runs = dict(self._ours(running[:OPEN]))
        for chunk in _chunks(list(open_runs)):
            attempts = _attempts().filter(run__in=chunk, outcome="", pk__lte=newest)
            self._open |= {pk: open_runs[run] for pk, run in attempts.values_list("pk", "run_id")}
        self._last = newest

    def _see_ends(self, led: Collection[int]) -> None:
        for chunk in _chunks(list(self._open)):
            rows = {row.pk: row for row in _rows(_attempts().filter(pk__in=chunk))}
            for pk in chunk:
                row = rows.get(pk)
                if row is None:  # deleted with its job
                    del self._open[pk]
                elif row.outcome:
                    self._observe_end(row, self._open.pop(pk), led)

    def _see_starts(self, last: int, led: Collection[int], settled: datetime) -> None:
        newest = _newest()
        if newest - last > AT_ONCE:
            last = self._last = self._skip_to_latest(last)
        while last < newest:
            found = _rows(_attempts().filter(pk__gt=last).order_by("pk")[:CHUNK])
            rows = list(takewhile(lambda row: row.started_at <= settled, found))
            if not rows:
                return
            runs = Run.objects.using(alias_for(Run)).filter(pk__in={row.run_id for row in rows}).order_by()
            jobs = dict(self._ours(runs))
            for row in rows:
                if row.run_id in jobs:
                    self._see_start(row, jobs[row.run_id], led)
            last = self._last = rows[-1].pk
            if len(rows) < CHUNK:
                return

    def _skip_to_latest(self, last: int) -> int:
        """Where the latest ``AT_ONCE`` begin, if there are more than that; keys alone do not tell, as they have gaps."""
        before = _attempts().filter(pk__gt=last).order_by("-pk").values_list("pk", flat=True)[AT_ONCE:]
        edge = before.first()
        if edge is None:
            return last
        self._unobserved += min(count_up_to(_attempts().filter(pk__gt=last, pk__lte=edge)), LIMIT)
        return edge

    def _ours(self, runs: QuerySet[Run]) -> Iterator[tuple[UUID, int]]:
        """The runs of the node's namespace, with their jobs. Sorted out here: a database that is asked for a namespace may
        begin with its jobs, and with all their runs."""
        for pk, job_id, namespace in runs.values_list("pk", "job_id", "job__namespace"):
            if self._namespace in ("", namespace):
                yield pk, job_id

    def _see_start(self, row: _Row, job_id: int, led: Collection[int]) -> None:
        if _shard(job_id) in led:
            if row.due_at is not None:
                self._lateness.observe(row.started_at - row.due_at)
            if row.queued_at is not None:
                self._wait.observe(row.started_at - row.queued_at)
        if row.outcome:
            self._observe_end(row, job_id, led)
            return
        self._open[row.pk] = job_id
        if len(self._open) > OPEN:
            del self._open[next(iter(self._open))]
            self._unobserved += 1

    def _observe_end(self, row: _Row, job_id: int, led: Collection[int]) -> None:
        if _shard(job_id) in led and row.finished_at is not None:
            self._durations[Outcome(row.outcome)].observe(row.finished_at - row.started_at)


def _shard(job_id: int) -> int:
    return job_id % settings.SHARDS


def _attempts() -> QuerySet[Attempt]:
    return Attempt.objects.using(alias_for(Attempt)).order_by()


def _rows(attempts: QuerySet[Attempt]) -> Iterator[_Row]:
    return map(_Row._make, attempts.values_list(*_Row._fields))


def _newest() -> int:
    return _attempts().order_by("-pk").values_list("pk", flat=True).first() or 0


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
