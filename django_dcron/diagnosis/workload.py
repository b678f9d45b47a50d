"""Find the runs a node sent to workers, the workers' replies, and the runs each worker executes.

Invariants:

- No query reads more than ``RUNS_SEARCHED`` runs, each through an index.
- A worker is listed even before its first run, because the nodes store the workers' replies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any

from django_dcron.diagnosis import cluster
from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Attempt, Node, Run
from django_dcron.policies.health.facts import WorkerFacts

RUNS_SEARCHED = 10_000
"""The number of latest runs that are searched for those of a node. No index covers the node."""
RUNS_SHOWN = 20
ATTEMPTS_READ = 200
REPLIES_EXPIRE = timedelta(minutes=2)
"""Older replies of workers are outdated."""


@dataclass(frozen=True, slots=True)
class Workload:
    worker: str
    queues: tuple[str, ...]
    """The queues of the worker's latest reply to a node; empty if it hasn't answered lately."""
    attempts: tuple[Attempt, ...]
    """The attempts that the worker executes, oldest first."""


def runs_sent_by(node: Node, scope: Scope) -> list[Run]:
    """Return the node's latest runs, newest first, with their jobs."""
    latest = scope.runs.order_by("-scheduled_at", "-pk")
    oldest = latest.values_list("scheduled_at", flat=True)[RUNS_SEARCHED - 1 : RUNS_SEARCHED]
    since = oldest.first()
    sent = latest.filter(node=node.pk, queued_at__isnull=False)
    if since is not None:
        sent = sent.filter(scheduled_at__gte=since)
    return list(sent.defer("args", "kwargs").prefetch_related("job")[:RUNS_SHOWN])


def workloads(nodes: Iterable[Node], scope: Scope) -> list[Workload]:
    """Return the workers that execute a run or have lately answered one of ``nodes``, by name.

    ``nodes`` are live.
    """
    running = list(
        scope.runs.running().order_by("-due_at").values_list("pk", flat=True)[:ATTEMPTS_READ]
    )
    attempts = scope.attempts.filter(run__in=running, outcome="").order_by("started_at")
    executed: defaultdict[str, list[Attempt]] = defaultdict(list)
    columns = ("run", "number", "worker", "started_at", "outcome", "finished_at")
    for attempt in attempts.only(*columns).prefetch_related("run__job"):
        executed[_host_of(attempt.worker)].append(attempt)
    queues: dict[str, tuple[str, ...]] = {}
    for _, replies in sorted(_current_replies(nodes), key=itemgetter(0)):
        queues |= {reply["name"]: tuple(reply["queues"]) for reply in replies}
    return [
        Workload(worker, queues.get(worker, ()), tuple(executed[worker]))
        for worker in sorted({*queues, *executed})
    ]


def latest_worker_replies(
    live: Iterable[Node], after: datetime | None = None
) -> tuple[WorkerFacts, ...] | None:
    """Return the workers' replies to the node that asked last; None without a recent reply.

    With ``after``, only requests after this time count. The runs that a worker doesn't know are
    combined from its replies to all nodes.
    """
    replies = [
        (at, workers) for at, workers in _current_replies(live) if after is None or at > after
    ]
    if not replies:
        return None
    unknown: defaultdict[str, set[str]] = defaultdict(set)
    for _, workers in replies:
        for each in workers:
            unknown[each["name"]] |= set(each["unknown_runs"])
    _, latest = max(replies, key=itemgetter(0))
    return tuple(
        WorkerFacts(
            each["name"], tuple(each["queues"]), each["executes"], len(unknown[each["name"]])
        )
        for each in latest
    )


def _current_replies(live: Iterable[Node]) -> list[tuple[datetime, list[dict[str, Any]]]]:
    """Return the replies to each node that aren't outdated, with the time of its request."""
    return [
        (at, node.workers["replies"])
        for node in live
        if node.workers
        and cluster.time_since(node, at := datetime.fromisoformat(node.workers["at"]))
        < REPLIES_EXPIRE
    ]


def _host_of(worker: str) -> str:
    """Return the name without the process: ``celery@web-1`` of ``celery@web-1/4242``."""
    return worker.rpartition("/")[0] or worker
