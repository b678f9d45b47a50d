"""Metrics of the cluster and its jobs, read from the database.

Invariants:

- The number of queries hardly depends on the number of rows.
- A counter is one row of ``Statistics``, not the memory of a process. All scrapes agree, and
  restarts and pruning don't change it.
- A counter never decreases. Its labels contain the job's key, which no other job ever gets, so one
  series never represents two jobs.
- The series of a deleted job ends. A renamed job gets a new series, whose first value doesn't count
  as an increase.
- The first ``DCRON_METRICS_JOBS`` jobs by key have counters. A new job never displaces another.
- The counters of other jobs aren't summed up. Such a sum decreases when a job is deleted or gets
  its own counters, and Prometheus treats a decrease as a reset to zero.
- Each job has all outcomes from its first scrape, at zero. Otherwise, Prometheus misses the first
  increase of a counter.
- No query reads more than ``MAX_COUNTED`` + 1 rows of runs or cursors, each by an index. Only the
  rows of jobs are counted completely.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Min, Q, QuerySet

from django_dcron.conf import settings
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import cluster
from django_dcron.diagnosis.bounded_count import MAX_COUNTED, count_up_to
from django_dcron.diagnosis.job_state import JobState
from django_dcron.diagnosis.overdue import takeover_time
from django_dcron.diagnosis.system_health import read_verdict
from django_dcron.models import Cursor, Freeze, Job, Node, Run
from django_dcron.models.job_states import IS_FAILING, IS_FINISHED, IS_PAUSED, IS_QUARANTINED
from django_dcron.monitoring.metrics import catalog
from django_dcron.monitoring.metrics.samples import SECOND, MetricSample
from django_dcron.policies.freezing import ALL_NAMESPACES
from django_dcron.policies.health.problems import Problem
from django_dcron.policies.health.verdict import SystemStatus, Verdict
from django_dcron.policies.lifecycle import State

QUERIES = 25
"""Maximum number of queries without problems. To name a cause, the health verdict needs more."""
OUTCOMES = (State.SUCCEEDED, State.FAILED, State.SKIPPED, State.MISSED, State.CANCELLED)
_NOT_ENABLED = (JobState.PAUSED.value, JobState.FINISHED.value, JobState.QUARANTINED.value)
DUE = "due"
"""Label of pending runs that are due and not frozen."""


def read_samples() -> tuple[MetricSample, ...]:
    """Return all samples. Raises the database's errors."""
    now = database_now(alias_for(Run))
    nodes = cluster.nodes()
    live = [node for node in nodes if cluster.is_live(node)]
    return (
        *_counters(),
        *_jobs(),
        *_runs(now),
        *_cursors(now),
        *_nodes(nodes, live),
        *_freezes(now),
        *_health(read_verdict()),
    )


def _counters() -> Iterator[MetricSample]:
    jobs = Job.objects.using(alias_for(Job)).order_by("pk")
    counts = ["statistics__late_successes"]
    counts += (f"statistics__{outcome.value}" for outcome in OUTCOMES)
    for key, namespace, name, late, *counted in jobs.values_list(
        "pk", "namespace", "name", *counts
    )[: settings.METRICS_JOBS]:
        yield MetricSample(catalog.LATE_SUCCESSES, late or 0, (str(key), namespace, name))
        for outcome, number in zip(OUTCOMES, counted, strict=True):
            yield MetricSample(
                catalog.RUNS, number or 0, (str(key), namespace, name, outcome.value)
            )


def _jobs() -> Iterator[MetricSample]:
    by_namespace: list[Any] = list(
        Job.objects.using(alias_for(Job))
        .order_by()
        .values("namespace")
        .annotate(
            total=Count("pk"),
            paused=Count("pk", filter=IS_PAUSED),
            finished=Count("pk", filter=IS_FINISHED),
            quarantined=Count("pk", filter=IS_QUARANTINED),
            failing=Count("pk", filter=IS_FAILING),
        )
    )
    sums = {
        name: sum(each[name] for each in by_namespace)
        for name in ("total", *_NOT_ENABLED, "failing")
    }
    enabled = sums["total"] - sum(sums[state] for state in _NOT_ENABLED)
    yield MetricSample(catalog.JOBS, enabled, (JobState.ENABLED.value,))
    for state in _NOT_ENABLED:
        yield MetricSample(catalog.JOBS, sums[state], (state,))
    yield MetricSample(catalog.JOBS_FAILING, sums["failing"])
    yield MetricSample(catalog.JOBS_UNCOUNTED, max(sums["total"] - settings.METRICS_JOBS, 0))


def _runs(now: datetime) -> Iterator[MetricSample]:
    runs = Run.objects.using(alias_for(Run))
    due = runs.pending().due(now).not_frozen()
    for state, waiting in ((DUE, due), (State.QUEUED.value, runs.queued())):
        number, longest = _number_and_age(waiting, "due_at", now)
        yield MetricSample(catalog.RUNS_UNFINISHED, number, (state,))
        yield MetricSample(catalog.OLDEST, longest / SECOND, (state,))
    yield MetricSample(catalog.RUNS_UNFINISHED, count_up_to(runs.running()), (State.RUNNING.value,))
    yield MetricSample(catalog.RUNS_UNFINISHED, count_up_to(runs.waiting()), (State.WAITING.value,))


def _cursors(now: datetime) -> Iterator[MetricSample]:
    """Yield the number of overdue cursors, and the lag.

    A cursor is overdue only after the nodes had time to claim its occurrence. The lag is the age
    of the oldest unclaimed occurrence, even if its cursor isn't overdue yet.
    """
    past = Cursor.objects.using(alias_for(Cursor)).due(now).not_frozen()
    overdue = Count("pk", filter=Q(next_at__lte=now - takeover_time()))
    totals = past.values("pk", "next_at")[: MAX_COUNTED + 1].aggregate(
        number=overdue, first=Min("next_at")
    )
    yield MetricSample(catalog.CURSORS_OVERDUE, totals["number"])
    yield MetricSample(
        catalog.CURSOR_LAG, (now - totals["first"]) / SECOND if totals["first"] else 0
    )


def _freezes(now: datetime) -> Iterator[MetricSample]:
    """Yield a sample for all namespaces, and one for each namespace that was ever frozen."""
    freezes = Freeze.objects.using(alias_for(Freeze))
    frozen = {freeze.namespace: freeze.extent.is_in_force(now) for freeze in freezes}
    for namespace in sorted({ALL_NAMESPACES, *frozen}):
        yield MetricSample(catalog.FROZEN, frozen.get(namespace, False), (namespace,))


def _number_and_age(waiting: QuerySet[Any], column: str, now: datetime) -> tuple[int, timedelta]:
    """Return the number of rows and the age of the oldest, from at most ``MAX_COUNTED`` + 1 rows.

    The query uses an index on ``column``.
    """
    oldest = waiting.order_by(column).values("pk", column)[: MAX_COUNTED + 1]
    totals = oldest.aggregate(number=Count("pk"), first=Min(column))
    age = max(now - totals["first"], timedelta()) if totals["first"] else timedelta()
    return totals["number"], age


def _nodes(nodes: list[Node], live: list[Node]) -> Iterator[MetricSample]:
    states = {
        "live": len(live),
        "dead": len(cluster.dead_nodes(nodes)),
        "degraded": sum(node.degraded for node in live),
        "stalled": sum(map(cluster.is_stalled, live)),
        "skewed": sum(map(cluster.is_skewed, live)),
    }
    for state, number in states.items():
        yield MetricSample(catalog.NODES, number, (state,))
    yield MetricSample(catalog.NODES_AGENDA, sum(node.agenda for node in live))
    yield MetricSample(
        catalog.NODES_SKEW, max((abs(node.skew) / SECOND for node in live), default=0)
    )
    yield MetricSample(catalog.SHARDS_UNLED, cluster.count_unled_shards(live))


def _health(verdict: Verdict) -> Iterator[MetricSample]:
    for status in SystemStatus:
        yield MetricSample(catalog.HEALTH_STATUS, verdict.status is status, (status.value,))
    for problem in Problem:
        yield MetricSample(catalog.PROBLEM, problem in verdict.problems, (problem.value,))
    facts = verdict.facts
    yield MetricSample(
        catalog.NAMESPACES_UNSERVED, facts.unserved.number + facts.stalled_namespaces
    )
