"""Histograms of attempts: their start delay, their wait for a worker and their duration.

Prometheus doesn't scrape workers, and their transactions should stay short. Instead, a node reads
the table of attempts when it's scraped. Each update continues at the key where the
previous one stopped.

Invariants:

- A node observes each start and each end of an attempt once, if it leads the job's shard when it
  reads them. Summed over all nodes, the histograms describe the cluster.
- While a shard changes its leader, events between two scrapes may count twice or not at all. The
  effect on a distribution is negligible.
- A node's memory is bounded and grows only with scrapes. It stores a key, the buckets, and up to
  ``MAX_OPEN`` unfinished attempts.
- An update reads at most ``MAX_NEW`` new rows and ``MAX_OPEN`` unfinished ones, by their keys. It
  usually needs five small queries.
- Attempts beyond these limits are skipped and counted as unobserved. An update counts at most
  ``MAX_COUNTED`` of the skipped new attempts.
- The first update observes nothing, because Prometheus expects counters to start at zero with the
  process. Attempts that are already running then are observed when they end, so a deploy doesn't
  lose long runs.
- A database assigns keys before rows become visible. An update therefore stops at rows younger than
  ``COMMIT_MARGIN``. An attempt whose transaction takes longer to commit is not observed.
- A database error leaves the state as it was after the last observed row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from itertools import takewhile
from typing import NamedTuple
from uuid import UUID

from django.db.models import QuerySet

from django_dcron.conf import settings
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.bounded_count import MAX_COUNTED, count_up_to
from django_dcron.models import Attempt, Run
from django_dcron.monitoring.metrics import catalog
from django_dcron.monitoring.metrics.samples import Distribution, Histogram, MetricSample
from django_dcron.policies.lifecycle import Outcome
from django_dcron.policies.sharding import shard_of_job
from django_dcron.utils.batches import in_batches

MAX_NEW = 20_000
"""The maximum number of new attempts that an update observes."""
MAX_OPEN = 10_000
"""The maximum number of unfinished attempts that a node remembers."""
CHUNK = 1_000
"""The number of rows per query."""
COMMIT_MARGIN = timedelta(seconds=2)
"""The time that an attempt's transaction has to commit after the attempt's start."""

DELAY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
DURATION_BUCKETS = (
    0.01,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
    1800,
    3600,
    7200,
    21600,
    86400,
)
"""Upper bounds of the buckets, in seconds."""


class _AttemptColumns(NamedTuple):
    pk: int
    run_id: UUID
    due_at: datetime | None
    queued_at: datetime | None
    started_at: datetime
    finished_at: datetime | None
    outcome: str


class AttemptObserver:
    """Histograms that are updated from new and ended attempts. Not thread-safe."""

    def __init__(self, namespace: str, shards: Callable[[], Collection[int]]):
        """``namespace`` is the one that the node serves, or empty for all.

        ``shards`` returns the shards that the node leads now.
        """
        self._namespace = namespace
        self._shards = shards
        self._last: int | None = None
        """The key up to which all attempts have been read; None before the first update."""
        self._open: dict[int, int] = {}
        """Unfinished attempts and their jobs.

        Attempts of other nodes' shards are included, because this node may lead those shards later.
        """
        self._start_delay = Histogram(catalog.START_DELAY, DELAY_BUCKETS)
        self._wait = Histogram(catalog.WAIT, DELAY_BUCKETS)
        self._durations = {
            outcome: Histogram(catalog.DURATION, DURATION_BUCKETS, (outcome.value,))
            for outcome in Outcome
        }
        self._unobserved = 0

    def metrics(self) -> tuple[Distribution | MetricSample, ...]:
        """Return the metrics as of the latest update."""
        histograms = (self._start_delay, self._wait, *self._durations.values())
        return (
            *(each.now() for each in histograms),
            MetricSample(catalog.UNOBSERVED, self._unobserved),
        )

    def update(self) -> None:
        """Observe new attempts and finished ones. Raises the database's errors."""
        if self._last is None:
            self._begin()
            return
        led = frozenset(self._shards())
        settled = database_now(alias_for(Attempt)) - COMMIT_MARGIN
        self._observe_ends(led)
        self._observe_starts(self._last, led, settled)

    def _begin(self) -> None:
        newest = _newest()
        running = Run.objects.using(alias_for(Run)).running().order_by()
        open_runs = dict(self._of_namespace(running[:MAX_OPEN]))
        for chunk in in_batches(list(open_runs), CHUNK):
            attempts = _attempts().filter(run__in=chunk, outcome="", pk__lte=newest)
            self._open |= {pk: open_runs[run] for pk, run in attempts.values_list("pk", "run_id")}
        self._last = newest

    def _observe_ends(self, led: Collection[int]) -> None:
        for chunk in in_batches(list(self._open), CHUNK):
            rows = {row.pk: row for row in _rows(_attempts().filter(pk__in=chunk))}
            for pk in chunk:
                row = rows.get(pk)
                if row is None:  # the attempt was deleted with its job
                    del self._open[pk]
                elif row.outcome:
                    self._observe_end(row, self._open.pop(pk), led)

    def _observe_starts(self, last: int, led: Collection[int], settled: datetime) -> None:
        newest = _newest()
        if newest - last > MAX_NEW:
            last = self._last = self._skip_to_latest(last)
        while last < newest:
            new_rows = _rows(_attempts().filter(pk__gt=last).order_by("pk")[:CHUNK])
            rows = list(takewhile(lambda row: row.started_at <= settled, new_rows))
            if not rows:
                return
            runs = (
                Run.objects.using(alias_for(Run))
                .filter(pk__in={row.run_id for row in rows})
                .order_by()
            )
            jobs = dict(self._of_namespace(runs))
            for row in rows:
                if row.run_id in jobs:
                    self._observe_start(row, jobs[row.run_id], led)
            last = self._last = rows[-1].pk
            if len(rows) < CHUNK:
                return

    def _skip_to_latest(self, last: int) -> int:
        """Return the key before the latest ``MAX_NEW`` attempts, and count the skipped attempts.

        Returns ``last`` if at most ``MAX_NEW`` attempts are new. Keys have gaps, so the difference
        of two keys isn't the number of attempts.
        """
        before = (
            _attempts().filter(pk__gt=last).order_by("-pk").values_list("pk", flat=True)[MAX_NEW:]
        )
        edge = before.first()
        if edge is None:
            return last
        self._unobserved += min(
            count_up_to(_attempts().filter(pk__gt=last, pk__lte=edge)), MAX_COUNTED
        )
        return edge

    def _of_namespace(self, runs: QuerySet[Run]) -> Iterator[tuple[UUID, int]]:
        """Yield the runs of the node's namespace with their jobs.

        Python filters by namespace, because a database may start such a query from the jobs of
        the namespace and read all their runs.
        """
        for pk, job_id, namespace in runs.values_list("pk", "job_id", "job__namespace"):
            if self._namespace in ("", namespace):
                yield pk, job_id

    def _observe_start(self, row: _AttemptColumns, job_id: int, led: Collection[int]) -> None:
        if shard_of_job(job_id, settings.SHARDS) in led:
            if row.due_at is not None:
                self._start_delay.observe(row.started_at - row.due_at)
            if row.queued_at is not None:
                self._wait.observe(row.started_at - row.queued_at)
        if row.outcome:
            self._observe_end(row, job_id, led)
            return
        self._open[row.pk] = job_id
        if len(self._open) > MAX_OPEN:
            del self._open[next(iter(self._open))]
            self._unobserved += 1

    def _observe_end(self, row: _AttemptColumns, job_id: int, led: Collection[int]) -> None:
        if shard_of_job(job_id, settings.SHARDS) in led and row.finished_at is not None:
            self._durations[Outcome(row.outcome)].observe(row.finished_at - row.started_at)


def _attempts() -> QuerySet[Attempt]:
    return Attempt.objects.using(alias_for(Attempt)).order_by()


def _rows(attempts: QuerySet[Attempt]) -> Iterator[_AttemptColumns]:
    return map(_AttemptColumns._make, attempts.values_list(*_AttemptColumns._fields))


def _newest() -> int:
    return _attempts().order_by("-pk").values_list("pk", flat=True).first() or 0
