"""Load the facts of ``policies.health`` from the database.

This takes five queries if all is well and a run has started recently.

Invariants:

- No query reads more than ``MAX_COUNTED`` + 1 rows of runs, attempts or cursors, each through an
  index. Jobs are counted in full.
- Nothing is written. Only the database is queried, not Redis or the broker.
- The cause of a problem is queried only if there is a problem.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from socket import gethostname
from typing import Any

from django.db.models import Case, Count, F, Q, Sum, When, Window

from django_dcron import targets
from django_dcron.conf import settings
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import cluster
from django_dcron.diagnosis.bounded_count import MAX_COUNTED, count_up_to
from django_dcron.diagnosis.failing_jobs import FAILS_AS_MUTED, KEEPS_FAILING
from django_dcron.diagnosis.long_runs import find_long_runs, running_for_long
from django_dcron.diagnosis.overdue import (
    executing_runs,
    overdue_cursors,
    overdue_runs,
    stuck_runs,
    undelivered_runs,
)
from django_dcron.diagnosis.paused_by_users import find_user_pauses
from django_dcron.diagnosis.read_only import refuses_writes
from django_dcron.diagnosis.scope import Scope
from django_dcron.diagnosis.summaries import Summary, SummaryQuery, count, summarize
from django_dcron.diagnosis.waiting_runs import find_waiting_runs, waiting_for_long
from django_dcron.diagnosis.worker_facts import worker_facts
from django_dcron.diagnosis.workload import latest_worker_replies
from django_dcron.dispatch.queues import queue_name
from django_dcron.jobs.pausing import AUTO_PAUSED
from django_dcron.models import Attempt, Cursor, Freeze, Incident, Job, Node, Run
from django_dcron.models.job import JobQuerySet
from django_dcron.models.job_states import HANDOVER_REASONS, IS_FAILING, IS_QUARANTINED
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.health.facts import (
    NAMES_LISTED,
    FreezeFacts,
    NamedCount,
    SystemFacts,
    WaitingCount,
)
from django_dcron.policies.health.problems import Problem
from django_dcron.policies.health.verdict import Verdict, assess
from django_dcron.policies.incidents import IncidentState
from django_dcron.policies.lifecycle import State
from django_dcron.targets.shadow import is_shadow
from django_dcron.utils.suggestions import similar_names

LATELY = timedelta(hours=1)
"""A job ran or failed lately if its last run finished within this time."""


def read_verdict(namespace: str = "") -> Verdict:
    """Return the system's current health; raises the database's errors.

    ``namespace`` restricts it to the jobs of a namespace and the nodes that serve them.
    """
    return assess(read_facts(namespace))


def read_facts(
    namespace: str = "", now: datetime | None = None, *, serves_requests: bool = False
) -> SystemFacts:
    """Return the facts; ``now`` is the database's time if the caller has just read it.

    ``serves_requests`` says that this process is a web process.
    """
    now = now or database_now(alias_for(Run))
    runs, cursors = Run.objects.using(alias_for(Run)), Cursor.objects.using(alias_for(Cursor))
    jobs = Job.objects.using(alias_for(Job)).order_by()
    if namespace:
        runs, cursors = runs.filter(job__namespace=namespace), cursors.filter(namespace=namespace)
        jobs = jobs.filter(namespace=namespace)
    facts: dict[str, Any] = {
        "now": now,
        "namespace": namespace,
        "redeliver_after": settings.REDELIVER_AFTER,
        "dispatcher": settings.DISPATCHER,
        "autostart": settings.AUTOSTART,
        "serves_requests": serves_requests,
    }
    nodes = cluster.nodes(namespace)
    lately = Q(enabled=True, statistics__last_finished_at__gte=now - LATELY)
    groups = _group_jobs(jobs, lately)
    facts |= _nodes(nodes, {each["namespace"] for each in groups if each["enabled_jobs"]})
    working = [node.pk for node in nodes if cluster.is_live(node) and not cluster.is_stalled(node)]
    facts |= _jobs(jobs, groups, lately) | _targets(groups)
    facts["freezes"] = _freezes(namespace)
    queued = runs.queued().not_frozen() if facts["freezes"] else runs.queued()
    rows = _rows_to_summarize(runs, queued, cursors, working, now)
    summaries = dict(zip(rows, summarize(*rows.values()), strict=True))
    facts |= _due(summaries)
    facts |= worker_facts(runs, facts, now, summaries)
    facts["long_runs"] = find_long_runs(runs, now) if summaries["long_running"].number else ()
    facts["waiting_runs"] = find_waiting_runs(runs, now) if summaries["waiting"].number else ()
    if not working and nodes and refuses_writes(alias_for(Node)):
        # No node can write a heartbeat, so a missing one doesn't mean that the node has died.
        facts |= {"database_read_only": True, "dead_nodes": 0}
    return SystemFacts(**facts)


def _freezes(namespace: str) -> tuple[FreezeFacts, ...]:
    freezes = Freeze.objects.using(alias_for(Freeze)).in_force()
    if namespace:
        freezes = freezes.covering(namespace)
    columns = ("namespace", "reason", "frozen_by", "since", "until")
    return tuple(FreezeFacts(*row) for row in freezes.values_list(*columns))


# --- nodes ----------------------------------------------------------------------------------------


def _nodes(nodes: list[Node], wanted: set[str]) -> dict[str, Any]:
    """Return the facts about nodes; ``wanted`` are the namespaces with enabled jobs."""
    live = [node for node in nodes if cluster.is_live(node)]
    stalled = [node for node in live if cluster.is_stalled(node)]
    without_broker = [node for node in live if node.broker_unreachable_since]
    broker_outages = [at for node in live if (at := node.broker_unreachable_since)]
    served_namespaces = {node.namespace for node in live}
    working = {node.namespace for node in live if node not in stalled}
    unserved = sorted(wanted - served_namespaces) if "" not in served_namespaces else []
    idle = wanted - working - set(unserved) if "" not in working else set()
    return {
        "live_nodes": len(live),
        "dead_nodes": len(cluster.dead_nodes(nodes)),
        "last_heartbeat": max((node.heartbeat_at for node in nodes), default=None),
        "may_still_rescue": bool(live) and all(map(cluster.may_still_rescue, live)),
        "stalled": NamedCount.of([node.name for node in stalled]),
        "stalled_since": min((node.ticked_at or node.started_at for node in stalled), default=None),
        "without_shards": NamedCount.of([node.name for node in _nodes_without_shards(live)]),
        "degraded": NamedCount.of([node.name for node in live if node.degraded]),
        "lock_error": next((node.lock_error for node in live if node.lock_error), ""),
        "without_broker": NamedCount.of([node.name for node in without_broker]),
        "broker_error": next((node.broker_error for node in live if node.broker_error), ""),
        "without_broker_since": min(broker_outages, default=None),
        "clock_doubted_by": NamedCount.of([node.name for node in live if node.clock_doubt]),
        "clock_step": max((node.clock_doubt for node in live), key=abs, default=timedelta()),
        "skewed": NamedCount.of([node.name for node in live if cluster.is_skewed(node)]),
        "versions": tuple(sorted({node.version for node in live})),
        "namespaces_overlap": "" in served_namespaces and len(served_namespaces) > 1,
        "shard_counts": tuple(sorted({node.shard_count for node in live} | {settings.SHARDS}))
        if live
        else (),
        "unserved": NamedCount.of(unserved),
        "stalled_namespaces": len(idle),
        "workers": latest_worker_replies(live),
    }


def _nodes_without_shards(live: list[Node]) -> list[Node]:
    """Return the live nodes if none leads a shard, although each had the time to acquire one.

    A degraded node leads its shards without locks. A stalled node has another problem.
    """
    if any(node.shards or node.degraded or cluster.is_stalled(node) for node in live):
        return []
    if any(map(cluster.is_starting, live)):
        return []
    return live


# --- jobs -----------------------------------------------------------------------------------------

_FAILED_LAST = Q(statistics__consecutive_failures__gt=0)
_HAS_OUTCOME = Q(statistics__succeeded__gt=0) | Q(statistics__failed__gt=0)
_AUTO_PAUSED = Q(enabled=False, pause_reason__startswith=AUTO_PAUSED)

_JOBS_WITH: dict[Problem | None, Q] = {
    None: IS_FAILING,
    Problem.EVERY_RUN_FAILS: _FAILED_LAST,
    Problem.JOBS_FAILING: KEEPS_FAILING,
    Problem.JOB_AUTO_PAUSED: _AUTO_PAUSED,
}
"""The jobs that cause a problem. None: jobs that failed and are no problem yet."""
_WITHOUT_MUTED = frozenset({Problem.EVERY_RUN_FAILS, Problem.JOBS_FAILING})
"""Problems for which failures of muted incidents don't count."""


def latest_incident(problem: Problem | None, scope: Scope) -> Incident | None:
    """Return the latest incident of the jobs that cause ``problem``, with its job.

    None stands for all enabled jobs that have failed since their last success. Only visible rows
    count. Returns None for problems that aren't failures of jobs.
    """
    if problem not in _JOBS_WITH:
        return None
    jobs = scope.rows(Job).filter(_JOBS_WITH[problem])
    excluded = [IncidentState.RESOLVED]
    if problem in _WITHOUT_MUTED:
        excluded.append(IncidentState.MUTED)
    incidents = scope.rows(Incident).exclude(state__in=excluded)
    latest = incidents.filter(job__in=jobs.values("pk")).order_by("-last_seen_at", "-pk")
    return latest.select_related("job").first()


def _group_jobs(jobs: JobQuerySet, lately: Q) -> list[dict[str, Any]]:
    ran = lately & (_FAILED_LAST | Q(statistics__last_state=State.SUCCEEDED))
    found: Any = jobs.values("namespace", "target", "queue").annotate(
        jobs=Count("pk"),
        with_outcome=Count("pk", filter=_HAS_OUTCOME),
        enabled_jobs=Count("pk", filter=Q(enabled=True)),
        scheduled=Count("pk", filter=Q(enabled=True, cursor__next_at__isnull=False)),
        quarantined=Count("pk", filter=IS_QUARANTINED),
        failing=Count("pk", filter=IS_FAILING),
        auto_paused=Count("pk", filter=_AUTO_PAUSED),
        ran_lately=Count("pk", filter=ran),
        failed_lately=Count("pk", filter=lately & _FAILED_LAST),
        failures_lately=Sum(
            "statistics__consecutive_failures", filter=lately & _FAILED_LAST, default=0
        ),
    )
    return list(found)


def _jobs(jobs: JobQuerySet, groups: list[dict[str, Any]], lately: Q) -> dict[str, Any]:
    def total(name: str) -> int:
        return sum(each[name] for each in groups)

    facts: dict[str, Any] = {
        name: total(name) for name in ("jobs", "enabled_jobs", "ran_lately", "failures_lately")
    }
    if facts["jobs"] and not facts["enabled_jobs"]:
        pauses = find_user_pauses(jobs)
        waiting = count_up_to(jobs.filter(enabled=False, pause_reason__in=HANDOVER_REASONS))
        # After a handback, no job is enabled. The few that users have paused aren't the reason.
        if sum(each.number for each in pauses) >= waiting:
            facts["user_pauses"] = pauses
    facts["has_outcome"] = total("with_outcome") > 0
    queues = {queue_name(each["target"], each["queue"]) for each in groups if each["scheduled"]}
    facts["job_queues"] = tuple(sorted(queues - {""}))
    shadows = [each for each in groups if is_shadow(each["target"])]
    facts["enabled_shadows"] = sum(each["enabled_jobs"] for each in shadows)
    keep_failing = NamedCount()
    if total("failing"):
        keep_failing = count_with_names(jobs.filter(KEEPS_FAILING))
    if total("failing") > keep_failing.number:
        muted = jobs.filter(lately & FAILS_AS_MUTED).aggregate(
            jobs=Count("pk"), failures=Sum("statistics__consecutive_failures", default=0)
        )
        facts["muted_lately"] = muted["jobs"]
        facts["failures_lately"] -= muted["failures"]
    facts["keep_failing"] = keep_failing
    named = {
        "quarantined": IS_QUARANTINED,
        "failed_lately": lately & _FAILED_LAST,
        "auto_paused": _AUTO_PAUSED,
    }
    for name, which in named.items():
        number = total(name)
        # Failing jobs are an issue, so the summary doesn't name jobs that have failed lately.
        shown = number and not (name == "failed_lately" and keep_failing)
        facts[name] = NamedCount(number, _names(jobs.filter(which)) if shown else ())
    return facts


def _targets(groups: list[dict[str, Any]]) -> dict[str, Any]:
    used = {each["target"] for each in groups if each["enabled_jobs"]}
    unknown = [target for target in used if not targets.is_known(target)]
    named = NamedCount.of(unknown)
    known = targets.available() if named else []
    near = [each for target in named.names for each in similar_names(target, known, most=1)]
    return {
        "unknown_targets": named,
        "similar_targets": tuple(dict.fromkeys(near)),
        "lacks_task_modules": bool(unknown and targets.discovery_problem()),
        "host": gethostname(),
        "pid": os.getpid(),
    }


def count_failed(jobs: JobQuerySet) -> NamedCount:
    """Return the failing jobs that are no problem yet, without those of muted incidents."""
    others = jobs.filter(KEEPS_FAILING | FAILS_AS_MUTED)
    return count_with_names(jobs.filter(IS_FAILING).exclude(pk__in=others))


def count_with_names(jobs: JobQuerySet) -> NamedCount:
    counted: Any = jobs.annotate(number=Window(Count("pk"))).only("namespace", "name")
    found = list(counted.order_by("pk")[:NAMES_LISTED])
    return NamedCount(found[0].number, tuple(map(str, found))) if found else NamedCount()


def _names(jobs: JobQuerySet) -> tuple[str, ...]:
    return tuple(str(job) for job in jobs.only("namespace", "name").order_by("pk")[:NAMES_LISTED])


# --- what is due ----------------------------------------------------------------------------------


def _rows_to_summarize(
    runs: RunQuerySet, queued: RunQuerySet, cursors: Any, working: list[str], now: datetime
) -> dict[str, SummaryQuery]:
    """Return the rows that one statement counts; ``working`` are the live nodes that tick."""
    attempts = Attempt.objects.using(alias_for(Attempt)).order_by("-pk")
    on_agendas = count(Case(When(node__in=working, then=F("pk"))))
    overdue = overdue_runs(runs, now).order_by("due_at")
    # A run that waited for a slot is queued later than it was due. A repeated delivery also changes
    # ``queued_at``, although no worker has started the run since the first one.
    queued_since = Case(When(deliveries__gt=1, then=F("due_at")), default=F("queued_at"))
    return {
        "overdue_runs": SummaryQuery(
            overdue, MAX_COUNTED + 1, {"on_agendas": on_agendas}, first="due_at"
        ),
        "overdue_cursors": SummaryQuery(
            overdue_cursors(cursors, now).order_by("next_at"), MAX_COUNTED + 1, first="next_at"
        ),
        "latest_attempt": SummaryQuery(attempts, 1, first="started_at"),
        "queued": SummaryQuery(queued.order_by("due_at"), MAX_COUNTED + 1, first=queued_since),
        "running": SummaryQuery(executing_runs(runs, now).order_by(), MAX_COUNTED + 1),
        "stuck": SummaryQuery(
            stuck_runs(runs, now).order_by("due_at"), MAX_COUNTED + 1, first="due_at"
        ),
        "undelivered": SummaryQuery(undelivered_runs(runs, now).order_by("due_at"), 1),
        "long_running": SummaryQuery(running_for_long(runs, now).order_by("due_at"), 1),
        "waiting": SummaryQuery(waiting_for_long(runs, now).order_by("due_at"), 1),
    }


def _due(summaries: Mapping[str, Summary]) -> dict[str, Any]:
    overdue, cursors = summaries["overdue_runs"], summaries["overdue_cursors"]
    return {
        "overdue_cursors": WaitingCount(cursors.number, cursors.first),
        "overdue_runs": WaitingCount(overdue.number, overdue.first),
        "on_agendas": overdue.numbers["on_agendas"],
    }
