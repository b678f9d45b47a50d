"""What the database says about the cluster and its jobs: about as many queries whatever the tables hold.

Invariants:

- A counter is one row of ``Statistics``, so no process's memory matters: all scrapes agree, and restarts and pruning change nothing.
- A counter never goes down, and no series ever stands for two jobs: it carries the job's key, which is never given twice. Of a job
  that was deleted it ends, as of one that was renamed, for which another begins; a first value counts for no increase.
- The jobs with counters are the first ``DCRON_METRICS_JOBS`` by key: a new job never takes another's place. The others are *not*
  added up: such a sum would fall whenever one of them is deleted or moves up, and Prometheus takes a counter that falls for one
  that began anew at zero and has since come to all it shows.
- All outcomes are there from the job's first scrape on, at zero: of a counter that begins at one nobody sees the first step.
- No query reads more than ``LIMIT`` + 1 rows of runs, or of cursors, each by an index. The jobs' rows are counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Min, Q, QuerySet

from django_dcron.conf import settings
from django_dcron.domain.lifecycle import State
from django_dcron.domain.system_health import Problem, SystemStatus, Verdict
from django_dcron.models import Cursor, Job, Node, Run
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability import cluster
from django_dcron.observability.bounded import LIMIT, count_up_to
from django_dcron.observability.metrics import catalogue
from django_dcron.observability.metrics.samples import SECOND, Sample
from django_dcron.observability.overdue import patience
from django_dcron.observability.system_health import read_verdict

QUERIES = 25
"""At most, if nothing is wrong. The health verdict asks some more to name a cause."""
OUTCOMES = (State.SUCCEEDED, State.FAILED, State.SKIPPED, State.MISSED, State.CANCELLED)
DUE = "due"
"""Pending, and its time has come."""


def read() -> tuple[Sample, ...]:
    """Raises the database's errors."""
    now = database_now(alias_for(Run))
    nodes = cluster.nodes()
    live = [node for node in nodes if cluster.is_live(node)]
    return (
        *_counters(),
        *_jobs(),
        *_runs(now),
        *_cursors(now),
        *_nodes(nodes, live),
        *_health(read_verdict()),
    )


def _counters() -> Iterator[Sample]:
    jobs = Job.objects.using(alias_for(Job)).order_by("pk")
    counts = (f"statistics__{outcome.value}" for outcome in OUTCOMES)
    for key, namespace, name, *counted in jobs.values_list("pk", "namespace", "name", *counts)[
        : settings.METRICS_JOBS
    ]:
        for outcome, number in zip(OUTCOMES, counted, strict=True):
            yield Sample(catalogue.RUNS, number or 0, (str(key), namespace, name, outcome.value))


def _jobs() -> Iterator[Sample]:
    in_quarantine = Q(enabled=True, cursor__problem__gt="")
    by_namespace = list(
        Job.objects.using(alias_for(Job))
        .order_by()
        .values("namespace")
        .annotate(
            total=Count("pk"),
            paused=Count("pk", filter=Q(enabled=False)),
            out_of_scheduling=Count("pk", filter=in_quarantine),
            failing=Count("pk", filter=Q(enabled=True, statistics__failures_in_a_row__gt=0)),
        )
    )
    sums = {
        name: sum(each[name] for each in by_namespace)
        for name in ("total", "paused", "out_of_scheduling", "failing")
    }
    enabled = sums["total"] - sums["paused"] - sums["out_of_scheduling"]
    yield Sample(catalogue.JOBS, enabled, ("enabled",))
    yield Sample(catalogue.JOBS, sums["paused"], ("paused",))
    yield Sample(catalogue.JOBS, sums["out_of_scheduling"], ("out_of_scheduling",))
    yield Sample(catalogue.JOBS_FAILING, sums["failing"])
    yield Sample(catalogue.JOBS_UNCOUNTED, max(sums["total"] - settings.METRICS_JOBS, 0))


def _runs(now: datetime) -> Iterator[Sample]:
    runs = Run.objects.using(alias_for(Run))
    for state, waiting in ((DUE, runs.pending().due(now)), (State.QUEUED.value, runs.queued())):
        number, longest = _number_and_age(waiting, "due_at", now)
        yield Sample(catalogue.RUNS_UNFINISHED, number, (state,))
        yield Sample(catalogue.OLDEST, longest / SECOND, (state,))
    yield Sample(catalogue.RUNS_UNFINISHED, count_up_to(runs.running()), (State.RUNNING.value,))
    yield Sample(catalogue.RUNS_UNFINISHED, count_up_to(runs.waiting()), (State.WAITING.value,))


def _cursors(now: datetime) -> Iterator[Sample]:
    """A cursor whose job nobody has had the time to claim yet is not overdue; but how far behind it is shows at once."""
    past = Cursor.objects.using(alias_for(Cursor)).due(now)
    overdue = Count("pk", filter=Q(next_at__lte=now - patience()))
    found = past.values("pk", "next_at")[: LIMIT + 1].aggregate(number=overdue, first=Min("next_at"))
    yield Sample(catalogue.CURSORS_OVERDUE, found["number"])
    yield Sample(catalogue.CURSOR_LAG, (now - found["first"]) / SECOND if found["first"] else 0)


def _number_and_age(waiting: QuerySet[Any], column: str, now: datetime) -> tuple[int, timedelta]:
    """The oldest ``LIMIT`` + 1, by an index on ``column``."""
    oldest = waiting.order_by(column).values("pk", column)[: LIMIT + 1]
    found = oldest.aggregate(number=Count("pk"), first=Min(column))
    return found["number"], max(now - found["first"], timedelta()) if found["first"] else timedelta()


def _nodes(nodes: list[Node], live: list[Node]) -> Iterator[Sample]:
    started_again = {(node.namespace, node.name) for node in live}
    dead = {(node.namespace, node.name) for node in nodes} - started_again
    states = {
        "live": len(live),
        "dead": len(dead),
        "degraded": sum(node.degraded for node in live),
        "stalled": sum(map(cluster.is_stalled, live)),
        "skewed": sum(map(cluster.is_skewed, live)),
    }
    for state, number in states.items():
        yield Sample(catalogue.NODES, number, (state,))
    yield Sample(catalogue.NODES_AGENDA, sum(node.agenda for node in live))
    yield Sample(catalogue.NODES_SKEW, max((abs(node.skew) / SECOND for node in live), default=0))
    yield Sample(catalogue.SHARDS_UNLED, _unled(live))


def _health(verdict: Verdict) -> Iterator[Sample]:
    for status in SystemStatus:
        yield Sample(catalogue.HEALTH_STATUS, verdict.status is status, (status.value,))
    for problem in Problem:
        yield Sample(catalogue.PROBLEM, problem in verdict.problems, (problem.value,))
    facts = verdict.facts
    yield Sample(catalogue.NAMESPACES_UNSERVED, facts.unserved.number + facts.stalled_namespaces)


def _unled(live: Iterable[Node]) -> int:
    """Nodes share the shards with those of the same namespace and number of shards."""
    led: defaultdict[tuple[str, int], int] = defaultdict(int)
    for node in live:
        led[node.namespace, node.shard_count] += node.shards
    return sum(max(count - shards, 0) for (_, count), shards in led.items())
