"""Load the facts about queues and workers: what waits, since when, and what keeps workers busy.

Invariants:

- No query reads more than ``MAX_COUNTED`` + 1 rows, each through an index.
- The cause of a problem is queried only if there is a problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Q, QuerySet

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.bounded_count import MAX_COUNTED
from django_dcron.diagnosis.figures import count_missed_occurrences, window_start
from django_dcron.diagnosis.overdue import undelivered_runs
from django_dcron.diagnosis.summaries import Summary, SummaryQuery, summarize
from django_dcron.dispatch.queues import queue_name
from django_dcron.models import Attempt, Job, Run
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.health.facts import QueueFacts, WaitingCount
from django_dcron.policies.health.workers import IDLE_QUEUE_AFTER
from django_dcron.policies.lifecycle import State

QUEUED_EXAMINED = 200
"""The number of queued runs whose queues are examined: the oldest undelivered and the latest."""
RUNNING_EXAMINED = 1000
"""The number of running runs that are counted by job if other runs wait."""
BUSIEST_LISTED = 3
"""The number of jobs that are named because most running runs are theirs."""
LATEST_STARTS = 200
"""The number of latest starts that are searched for the last start from each queue."""


class _Undelivered(NamedTuple):
    """The undelivered runs of a queue."""

    waiting: WaitingCount
    queued_at: datetime | None
    """When the oldest of them was queued."""


class _LastStarts(NamedTuple):
    """The latest starts from a queue."""

    started_at: datetime
    due_at: datetime
    """The latest due time of a started run."""


def worker_facts(
    runs: RunQuerySet, node_facts: dict[str, Any], now: datetime, summaries: Mapping[str, Summary]
) -> dict[str, Any]:
    """Return the facts, given those about nodes and the ``summaries`` of all runs."""
    attempts = Attempt.objects.using(alias_for(Attempt)).order_by("-pk")
    last_start, stuck = summaries["latest_attempt"].first, summaries["stuck"]
    facts: dict[str, Any] = {
        "last_start": last_start,
        "queued": summaries["queued"].number,
        "queued_since": summaries["queued"].first,
        "running": summaries["running"].number,
        "stuck": WaitingCount(stuck.number, stuck.first),
    }
    waiting = _undelivered_by_queue(runs, now) if summaries["undelivered"].number else {}
    if waiting and facts["running"]:
        facts["busiest"] = _busiest_jobs(runs)
    if waiting or any(not worker.executes for worker in node_facts["workers"] or ()):
        last_starts = _last_starts(attempts)
        facts["recent_queues"] = tuple(last_starts)
        facts["queues"] = tuple(
            _queue_facts(name, each, last_starts.get(name)) for name, each in waiting.items()
        )
    if last_start is None or now - last_start > settings.REDELIVER_AFTER:
        since = max(filter(None, (last_start, window_start(now))))
        facts |= {"missed": count_missed_occurrences(runs, since), "missed_since": since}
        # A run that a freeze has returned has no delivery.
        published = Q(queued_at__isnull=False, deliveries__gt=0, started_at=None)
        never = runs.filter(published, state=State.MISSED, due_at__gt=since).order_by("due_at")
        (found,) = summarize(SummaryQuery(never, MAX_COUNTED + 1, first="due_at"))
        facts["never_started"] = WaitingCount(found.number, found.first)
        if waiting:
            facts["queues_of_latest_queued"] = _queues_of_latest_queued(runs)
    elif waiting:
        oldest = min(each.waiting.since for each in waiting.values() if each.waiting.since)
        since = max(oldest, window_start(now))
        facts |= {"missed": count_missed_occurrences(runs, since), "missed_since": since}
    idle_since = max(filter(None, (summaries["queued"].first, last_start)), default=now)
    is_stalled = facts["queued"] and not facts["running"] and now - idle_since >= IDLE_QUEUE_AFTER
    if is_stalled and not waiting:
        facts["queues_of_latest_queued"] = _queues_of_latest_queued(runs)
    return facts


def _queue_facts(name: str, waits: _Undelivered, last: _LastStarts | None) -> QueueFacts:
    if last is None:
        return QueueFacts(name, waits.waiting)
    overtaken = waits.queued_at is not None and last.due_at > waits.queued_at
    return QueueFacts(name, waits.waiting, last.started_at, overtaken)


def _undelivered_by_queue(runs: RunQuerySet, now: datetime) -> dict[str, _Undelivered]:
    rows = (
        undelivered_runs(runs, now)
        .order_by("due_at")
        .values_list("job__queue", "job__target", "due_at", "queued_at")
    )
    found: dict[str, _Undelivered] = {}
    for queue, target, due_at, queued_at in rows[:QUEUED_EXAMINED]:
        name = queue_name(target, queue)
        before, oldest_at = found.get(name, _Undelivered(WaitingCount(0, due_at), queued_at))
        found[name] = _Undelivered(WaitingCount(before.number + 1, before.since), oldest_at)
    return found


def _busiest_jobs(runs: RunQuerySet) -> tuple[tuple[str, int], ...]:
    examined = runs.running().order_by().values_list("job", flat=True)[:RUNNING_EXAMINED]
    most = dict(Counter(examined).most_common(BUSIEST_LISTED))
    jobs = Job.objects.using(alias_for(Job)).only("namespace", "name").in_bulk([*most])
    return tuple((str(jobs[key]), number) for key, number in most.items() if key in jobs)


def _queues_of_latest_queued(runs: RunQuerySet) -> tuple[str, ...]:
    latest = runs.queued().not_frozen().order_by("-due_at")
    rows = latest.values_list("job__target", "job__queue")[:QUEUED_EXAMINED]
    return tuple({queue_name(target, queue) for target, queue in rows})


def _last_starts(attempts: QuerySet[Attempt]) -> dict[str, _LastStarts]:
    """Return the latest starts by queue.

    Two queries avoid a join, for which a database may read all runs first.
    """
    started = list(attempts.values_list("run", "started_at")[:LATEST_STARTS])
    rows = Run.objects.using(alias_for(Run)).filter(pk__in={run for run, _ in started})
    columns = ("pk", "job__target", "job__queue", "due_at")
    by_run = {
        run: (queue_name(target, queue), due_at)
        for run, target, queue, due_at in rows.values_list(*columns)
    }
    found: dict[str, _LastStarts] = {}
    for run, started_at in started:
        if run in by_run:
            name, due_at = by_run[run]
            last = found.get(name, _LastStarts(started_at, due_at))
            found[name] = _LastStarts(max(last.started_at, started_at), max(last.due_at, due_at))
    return found
