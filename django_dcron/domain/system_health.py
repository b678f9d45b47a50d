"""The health of the whole system: facts in, a verdict out. No I/O.

The dashboard, the admin index, ``dcron doctor``, ``/health``, the metrics and the alerts all show this verdict.

Invariants:

- Outcomes decide whether there is a problem: runs that nobody starts, occurrences that nobody claims, runs that fail.
- What nodes and workers report only names the cause, and with it the remedy.
- A problem that explains another one stands alone.
- The sentences contain names only if the facts do. ``SystemFacts.visible`` removes the names that a person may not see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from django_dcron.phrases import Language, Phrase
from django_dcron.phrases import gettext_noop as _

COUNTED = 10_000
"""Larger numbers are reported as "more than"."""
FAILURES_OF_A_FAILING_JOB = 3
"""In a row."""


class Severity(StrEnum):
    ERROR = "error"
    """A guarantee is broken, or work is not being done."""
    WARNING = "warning"
    """Work is done, but something is not as it should be."""


class SystemStatus(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    """There are warnings."""
    UNFIT = "unfit"
    """There are errors."""


class Problem(StrEnum):
    """Stable codes, the most urgent first."""

    DATABASE_READ_ONLY = "database_read_only"
    NO_LIVE_NODE = "no_live_node"
    NODE_STALLED = "node_stalled"
    NAMESPACE_UNSERVED = "namespace_unserved"
    BROKER_AWAY = "broker_away"
    RUN_UNKNOWN_TO_WORKER = "run_unknown_to_worker"
    TASK_UNKNOWN_TO_WORKER = "task_unknown_to_worker"
    NO_WORKER = "no_worker"
    QUEUE_UNSERVED = "queue_unserved"
    WORKERS_BEHIND = "workers_behind"
    CURSOR_OVERDUE = "cursor_overdue"
    RUN_OVERDUE = "run_overdue"
    RUN_STUCK = "run_stuck"
    EVERY_RUN_FAILS = "every_run_fails"
    QUARANTINED = "quarantined"
    JOBS_FAILING = "jobs_failing"
    JOB_PAUSED_ITSELF = "job_paused_itself"
    RUN_OVERLONG = "run_overlong"
    NODE_DEGRADED = "node_degraded"
    NODE_SKEWED = "node_skewed"
    SHARDS_DIFFER = "shards_differ"
    NAMESPACES_OVERLAP = "namespaces_overlap"
    RELEASES_DIFFER = "releases_differ"


@dataclass(frozen=True, slots=True)
class Named:
    """A number of things, and the names of some of them."""

    number: int = 0
    names: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.number > 0

    @property
    def listed(self) -> str:
        """The names; the number if there are none."""
        if not self.names:
            return str(self.number)
        return ", ".join(self.names) + (", ..." if self.number > len(self.names) else "")

    @property
    def unnamed(self) -> Named:
        return replace(self, names=())


@dataclass(frozen=True, slots=True)
class Waiting:
    """A number of things that wait, and since when the oldest of them does."""

    number: int = 0
    since: datetime | None = None

    def __bool__(self) -> bool:
        return self.number > 0


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue with runs that no worker has started within ``redeliver_after``."""

    name: str
    """Empty: unknown."""
    waiting: Waiting
    last_start: datetime | None = None
    """When a worker last started a run from it; None: not among the latest starts."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker that answered the nodes."""

    name: str
    queues: tuple[str, ...]
    executes: bool
    """It knows the task ``django_dcron.execute``."""
    unknown_runs: int = 0
    """Runs that it received, that exist here, and that its database does not contain."""


@dataclass(frozen=True, slots=True)
class LongRun:
    """A run that takes far longer than its job usually does."""

    job: str
    lasts: timedelta
    usual: timedelta


@dataclass(frozen=True, slots=True)
class SystemFacts:
    """Instants are times of the database's clock."""

    now: datetime
    redeliver_after: timedelta
    dispatcher: str = "celery"

    database_read_only: bool = False

    live_nodes: int = 0
    dead_nodes: int = 0
    """They neither stopped cleanly nor started again, in the last day."""
    last_heartbeat: datetime | None = None
    """Of any node, live or not."""
    stalled: Named = Named()
    """Live nodes whose ticks fail."""
    stalled_since: datetime | None = None
    degraded: Named = Named()
    """Live nodes that cannot reach the lock's server."""
    skewed: Named = Named()
    """Live nodes whose wall clock differs from the database's."""
    releases: tuple[str, ...] = ()
    """Of the live nodes."""
    namespaces_overlap: bool = False
    """Some live nodes serve all namespaces, others one of them."""
    shard_counts: tuple[int, ...] = ()
    """DCRON_SHARDS of this process and of the live nodes."""

    enabled_jobs: int = 0
    unserved: Named = Named()
    """Namespaces with enabled jobs and without a live node."""
    stalled_namespaces: int = 0
    """Namespaces with enabled jobs whose live nodes are all stalled."""
    quarantined: Named = Named()
    """Enabled jobs whose schedule cannot be read."""
    overdue_cursors: Waiting = Waiting()
    """Jobs with an occurrence that nobody has claimed in time."""
    overdue_runs: Waiting = Waiting()
    """Pending runs that are due and that nobody has handed over in time."""
    on_agendas: int = 0
    """How many of those are on the agenda of a live node that ticks."""

    workers: tuple[WorkerFacts, ...] | None = None
    """Those that answered a live node lately. None: no node has asked, as the dispatcher is not Celery."""
    last_start: datetime | None = None
    """When any worker last started a run."""
    queued: int = 0
    running: int = 0
    """Runs that a worker executes, by their heartbeats."""
    queues: tuple[QueueFacts, ...] = ()
    """Queues with runs that no worker has started within ``redeliver_after``; at least those of the oldest runs."""
    recent_queues: tuple[str, ...] = ()
    """Queues from which workers started the latest runs."""
    never_started: Waiting = Waiting()
    """Runs that were handed over after the last start and ended as missed, as no worker took them."""
    missed: int = 0
    """Occurrences missed since the last start."""
    stuck: Waiting = Waiting()
    """Running runs whose heartbeat stopped and that no node has declared lost."""
    long_runs: tuple[LongRun, ...] = ()

    ran_lately: int = 0
    """Enabled jobs of which a run ended lately and that have ever succeeded or failed."""
    failed_lately: int = 0
    """How many of those failed last."""
    failures_lately: int = 0
    """The sum of their failures in a row."""
    failing: Named = Named()
    """Enabled jobs whose last ``FAILURES_OF_A_FAILING_JOB`` runs all failed."""
    paused_themselves: Named = Named()
    """Jobs that ``pause_after_failures`` has paused."""

    shows_queues: bool = True
    """Sentences may name queues. (The verdict itself needs the names.)"""
    shows_workers: bool = True

    @property
    def has_work(self) -> bool:
        return bool(self.enabled_jobs or self.overdue_runs or self.queued)

    def visible(self, *, jobs: bool, nodes: bool) -> SystemFacts:
        """These facts for a person who may (or may not) see the names of jobs and queues, of nodes, namespaces and workers."""
        seen = self
        if not jobs:
            seen = replace(
                seen,
                quarantined=seen.quarantined.unnamed,
                failing=seen.failing.unnamed,
                paused_themselves=seen.paused_themselves.unnamed,
                long_runs=tuple(replace(run, job="") for run in seen.long_runs),
            )
        if not nodes:
            seen = replace(
                seen,
                stalled=seen.stalled.unnamed,
                degraded=seen.degraded.unnamed,
                skewed=seen.skewed.unnamed,
                unserved=seen.unserved.unnamed,
            )
        return replace(seen, shows_queues=jobs, shows_workers=nodes)


@dataclass(frozen=True, slots=True)
class Issue:
    """One problem."""

    problem: Problem
    severity: Severity
    summary: Phrase
    """One sentence: what is wrong."""
    remedy: Phrase
    """One sentence: what to do."""
    since: datetime | None = None
    figures: dict[str, int] = field(default_factory=dict)
    named: Named = Named()
    """What the problem is about, if that is one or several nodes, jobs, namespaces, queues or workers."""

    def said(self, language: Language) -> str:
        return f"{self.summary.said(language)} {self.remedy.said(language)}"

    def __str__(self) -> str:
        return f"{self.summary} {self.remedy}"


@dataclass(frozen=True, slots=True)
class Verdict:
    facts: SystemFacts
    issues: tuple[Issue, ...]
    """Errors first, then warnings, the most urgent first."""

    @property
    def status(self) -> SystemStatus:
        if not self.issues:
            return SystemStatus.OK
        return SystemStatus.UNFIT if self.issues[0].severity is Severity.ERROR else SystemStatus.DEGRADED

    @property
    def summary(self) -> Phrase:
        """One sentence for the first line."""
        if self.issues:
            return self.issues[0].summary
        if not self.facts.has_work:
            return Phrase(_("All is well: no job is enabled, so there is nothing to do."))
        return Phrase(
            _("All is well: runs start and succeed; live nodes: %(nodes)d."), nodes=self.facts.live_nodes
        )

    @property
    def problems(self) -> frozenset[Problem]:
        return frozenset(issue.problem for issue in self.issues)


def assess(facts: SystemFacts) -> Verdict:
    found = [
        *_of_database(facts),
        *_of_nodes(facts),
        *_of_dispatch(facts),
        *_of_workers(facts),
        *_of_outcomes(facts),
        *_of_settings(facts),
    ]
    order = list(Problem)
    ranked = sorted(found, key=lambda each: (each.severity is not Severity.ERROR, order.index(each.problem)))
    return Verdict(facts, tuple(ranked))


# --- the database and the nodes ---------------------------------------------------------------------------------------


def _of_database(facts: SystemFacts) -> Iterator[Issue]:
    if facts.database_read_only:
        yield Issue(
            Problem.DATABASE_READ_ONLY,
            Severity.ERROR,
            Phrase(_("The database refuses writes, so no run is scheduled, started or recorded.")),
            Phrase(_("Make the database writable, or connect to the primary server.")),
            facts.last_heartbeat,
        )


def _of_nodes(facts: SystemFacts) -> Iterator[Issue]:
    if facts.database_read_only or not facts.has_work:
        return
    if not facts.live_nodes:
        yield _no_live_node(facts)
        return
    if facts.stalled:
        yield Issue(
            Problem.NODE_STALLED,
            _severity_of_stalled(facts),
            Phrase(
                _("Nodes that are live but claim no occurrences, as their ticks fail: %(nodes)s."),
                nodes=facts.stalled.listed,
            ),
            Phrase(_("Read the logs of these nodes, then restart them.")),
            facts.stalled_since,
            {"nodes": facts.stalled.number},
            facts.stalled,
        )
    if facts.unserved:
        yield Issue(
            Problem.NAMESPACE_UNSERVED,
            Severity.ERROR,
            Phrase(
                _("Namespaces with enabled jobs that no live node serves: %(namespaces)s."),
                namespaces=facts.unserved.listed,
            ),
            Phrase(_("Start manage.py runcron with one of them as --namespace, or without --namespace.")),
            None,
            {"namespaces": facts.unserved.number},
            facts.unserved,
        )


def _severity_of_stalled(facts: SystemFacts) -> Severity:
    """A node that is live keeps its shards, whether or not it does anything for them."""
    waits = facts.stalled_namespaces or facts.overdue_cursors or facts.overdue_runs
    return Severity.ERROR if waits else Severity.WARNING


def _no_live_node(facts: SystemFacts) -> Issue:
    figures = {"jobs": facts.overdue_cursors.number, "runs": facts.overdue_runs.number}
    remedy = Phrase(_("Start manage.py runcron."))
    if facts.last_heartbeat is None:
        summary = Phrase(_("No node is live, so no run is scheduled."))
    elif not (facts.overdue_cursors or facts.overdue_runs):
        age = age_in_words(facts.now - facts.last_heartbeat)
        summary = Phrase(_("No node has been live for %(age)s, so no run is scheduled."), age=age)
    else:
        summary = Phrase(
            _(
                "No node has been live for %(age)s: %(jobs)s jobs with overdue occurrences, %(runs)s due runs not handed over."
            ),
            age=age_in_words(facts.now - facts.last_heartbeat),
            jobs=_number(facts.overdue_cursors.number),
            runs=_number(facts.overdue_runs.number),
        )
    return Issue(Problem.NO_LIVE_NODE, Severity.ERROR, summary, remedy, facts.last_heartbeat, figures)


# --- from the node to the queue ---------------------------------------------------------------------------------------


def _of_dispatch(facts: SystemFacts) -> Iterator[Issue]:
    if facts.database_read_only or not facts.live_nodes:
        return
    overdue = facts.overdue_runs
    if facts.on_agendas and overdue.since:
        yield Issue(
            Problem.BROKER_AWAY,
            Severity.ERROR,
            Phrase(
                _("The broker has accepted no runs for %(age)s: %(runs)s due runs wait on the nodes."),
                age=age_in_words(facts.now - overdue.since),
                runs=_number(facts.on_agendas),
            ),
            Phrase(_("Check that the broker is up and that the nodes can reach it; read the nodes' logs.")),
            overdue.since,
            {"runs": facts.on_agendas},
        )
    if facts.stalled or facts.unserved:
        return  # they explain the rest
    if (left := overdue.number - facts.on_agendas) > 0 and overdue.since:
        yield Issue(
            Problem.RUN_OVERDUE,
            Severity.ERROR,
            Phrase(
                _("No node hands over runs that are due: %(runs)s, the oldest for %(age)s."),
                runs=_number(left),
                age=age_in_words(facts.now - overdue.since),
            ),
            Phrase(_("Run manage.py dcron doctor for the shards that nobody leads; read the nodes' logs.")),
            overdue.since,
            {"runs": left},
        )
    if (cursors := facts.overdue_cursors) and cursors.since:
        yield Issue(
            Problem.CURSOR_OVERDUE,
            Severity.ERROR,
            Phrase(
                _("No node claims occurrences that are due: jobs: %(jobs)s, the oldest for %(age)s."),
                jobs=_number(cursors.number),
                age=age_in_words(facts.now - cursors.since),
            ),
            Phrase(_("Run manage.py dcron doctor for the shards that nobody leads; read the nodes' logs.")),
            cursors.since,
            {"jobs": cursors.number},
        )


# --- from the queue to the worker -------------------------------------------------------------------------------------


def _of_workers(facts: SystemFacts) -> Iterator[Issue]:
    if facts.database_read_only:
        return
    yield from _misled_workers(facts)
    unexplained = [queue for queue in facts.queues if not _is_explained(queue, facts)]
    unserved = [queue for queue in unexplained if _is_unserved(queue, facts)]
    behind = [queue for queue in unexplained if queue not in unserved]
    if unserved and _no_worker_at_all(facts):
        yield _no_worker(facts, unserved)
    elif unserved:
        yield _queue_unserved(facts, unserved)
    if behind:
        yield _workers_behind(facts, behind)
    if not facts.queues and facts.never_started and _is_long_ago(facts.last_start, facts):
        yield _no_worker(facts, ()) if _no_worker_at_all(facts) else _workers_behind(facts, ())
    elif not facts.queues and _nobody_answers_in_silence(facts):
        yield Issue(
            Problem.NO_WORKER,
            Severity.WARNING,
            Phrase(_("No worker answers the nodes.")),
            _start_a_worker(facts, ()),
            facts.last_start,
        )
    if facts.stuck and facts.live_nodes:
        yield Issue(
            Problem.RUN_STUCK,
            Severity.ERROR,
            Phrase(
                _("Runs whose worker is gone and that no node has declared lost: %(runs)s."),
                runs=_number(facts.stuck.number),
            ),
            Phrase(_("Run manage.py dcron doctor for the shards that nobody leads; read the nodes' logs.")),
            facts.stuck.since,
            {"runs": facts.stuck.number},
        )


def _misled_workers(facts: SystemFacts) -> Iterator[Issue]:
    """Workers that take our messages and cannot execute the runs."""
    if strangers := [worker for worker in facts.workers or () if worker.unknown_runs]:
        named = _workers_named(strangers, facts)
        yield Issue(
            Problem.RUN_UNKNOWN_TO_WORKER,
            Severity.ERROR,
            Phrase(
                _("Workers that use another database took %(runs)s runs from the queue: %(workers)s."),
                runs=sum(worker.unknown_runs for worker in strangers),
                workers=named.listed,
            ),
            Phrase(_("Connect these workers to this database, or give them another broker or queue.")),
            None,
            {"workers": named.number, "runs": sum(worker.unknown_runs for worker in strangers)},
            named,
        )
    if ignorant := _ignorant(facts):
        named = _workers_named(ignorant, facts)
        yield Issue(
            Problem.TASK_UNKNOWN_TO_WORKER,
            Severity.ERROR,
            Phrase(
                _(
                    "Workers that discard runs, as their Celery app doesn't know the task django_dcron.execute: %(workers)s."
                ),
                workers=named.listed,
            ),
            Phrase(_("Call app.autodiscover_tasks() in that Celery app, then restart the workers.")),
            None,
            {"workers": named.number},
            named,
        )


def _ignorant(facts: SystemFacts) -> list[WorkerFacts]:
    """Workers without our task that consume a queue of ours. On other queues they may be another project's."""
    ours = {queue.name for queue in facts.queues} | set(facts.recent_queues)
    return [worker for worker in facts.workers or () if not worker.executes and ours & {*worker.queues}]


def _workers_named(workers: Sequence[WorkerFacts], facts: SystemFacts) -> Named:
    return Named(len(workers), tuple(worker.name for worker in workers) if facts.shows_workers else ())


def _is_explained(queue: QueueFacts, facts: SystemFacts) -> bool:
    """Only workers that cannot execute our runs consume it."""
    consumers = [worker for worker in facts.workers or () if queue.name in worker.queues]
    return bool(consumers) and not any(worker.executes and not worker.unknown_runs for worker in consumers)


def _is_unserved(queue: QueueFacts, facts: SystemFacts) -> bool:
    """No worker takes runs from it, by what workers answer; by the starts if none answers."""
    if facts.dispatcher == "thread":
        return False
    if facts.workers:
        return bool(queue.name) and not any(queue.name in worker.queues for worker in facts.workers)
    return _is_long_ago(queue.last_start, facts)


def _no_worker_at_all(facts: SystemFacts) -> bool:
    """A worker that executes a long run may answer nobody."""
    silent = not facts.workers and not facts.running
    return facts.dispatcher != "thread" and silent and _is_long_ago(facts.last_start, facts)


def _nobody_answers_in_silence(facts: SystemFacts) -> bool:
    """Nodes have asked, nobody has answered, and nothing that has happened says that there is a worker."""
    idle = not facts.running and _is_long_ago(facts.last_start, facts)
    return facts.workers == () and bool(facts.enabled_jobs) and bool(facts.live_nodes) and idle


def _is_long_ago(start: datetime | None, facts: SystemFacts) -> bool:
    return start is None or facts.now - start > facts.redeliver_after


def _no_worker(facts: SystemFacts, queues: Sequence[QueueFacts]) -> Issue:
    since = _oldest(facts, queues)
    return Issue(
        Problem.NO_WORKER,
        Severity.ERROR,
        Phrase(
            _("No worker has picked up a run for %(age)s: %(queued)s queued, %(missed)s missed."),
            age=age_in_words(facts.now - since),
            queued=_number(facts.queued),
            missed=_number(facts.missed),
        ),
        _start_a_worker(facts, queues),
        since,
        {"queued": facts.queued, "missed": facts.missed},
    )


def _queue_unserved(facts: SystemFacts, queues: Sequence[QueueFacts]) -> Issue:
    since = _oldest(facts, queues)
    named = _queues_named(queues, facts)
    queued = sum(queue.waiting.number for queue in queues)
    return Issue(
        Problem.QUEUE_UNSERVED,
        Severity.ERROR,
        Phrase(
            _(
                "No worker picks up runs from some queues: %(queues)s; %(queued)s queued, the oldest for %(age)s."
            ),
            queues=named.listed,
            queued=_number(queued),
            age=age_in_words(facts.now - since),
        ),
        _start_a_worker(facts, queues),
        since,
        {"queues": named.number, "queued": queued},
        named,
    )


def _workers_behind(facts: SystemFacts, queues: Sequence[QueueFacts]) -> Issue:
    since = _oldest(facts, queues)
    stands_still = all(_is_long_ago(queue.last_start, facts) for queue in queues)
    figures = {"queued": facts.queued, "missed": facts.missed}
    if facts.dispatcher == "thread":
        remedy = Phrase(_("Raise DCRON_THREADS, start more nodes, or find out what keeps the threads busy."))
    else:
        remedy = Phrase(_("Start more workers, or find out what keeps the present ones busy."))
    return Issue(
        Problem.WORKERS_BEHIND,
        Severity.ERROR if stands_still else Severity.WARNING,
        Phrase(
            _(
                "Runs wait too long for a free worker: %(queued)s queued, the oldest for %(age)s, %(missed)s missed."
            ),
            queued=_number(facts.queued),
            age=age_in_words(facts.now - since),
            missed=_number(facts.missed),
        ),
        remedy,
        since,
        figures,
    )


def _start_a_worker(facts: SystemFacts, queues: Sequence[QueueFacts]) -> Phrase:
    named = [queue.name for queue in queues if queue.name] if facts.shows_queues else []
    values = {"queues": ", ".join(sorted(named))}
    match facts.dispatcher, bool(named):
        case "celery", True:
            return Phrase(_("Start a Celery worker for queue %(queues)s."), **values)
        case "celery", False:
            return Phrase(_("Start a Celery worker."))
        case "tasks", True:
            return Phrase(_("Start a worker of Django's tasks for queue %(queues)s."), **values)
        case "tasks", False:
            return Phrase(_("Start a worker of Django's tasks."))
        case _, True:
            return Phrase(_("Start a worker for queue %(queues)s."), **values)
    return Phrase(_("Start a worker."))


def _queues_named(queues: Sequence[QueueFacts], facts: SystemFacts) -> Named:
    names = tuple(sorted(queue.name for queue in queues if queue.name)) if facts.shows_queues else ()
    return Named(len(queues), names)


def _oldest(facts: SystemFacts, queues: Sequence[QueueFacts]) -> datetime:
    """Since when runs wait in vain: for as long as the oldest one has, also if it was missed meanwhile."""
    found = [queue.waiting.since for queue in queues] + [facts.never_started.since]
    return min((since for since in found if since is not None), default=facts.now)


# --- what becomes of runs ---------------------------------------------------------------------------------------------


def _of_outcomes(facts: SystemFacts) -> Iterator[Issue]:
    every_run_fails = (
        facts.ran_lately > 0
        and facts.failed_lately == facts.ran_lately
        and facts.failures_lately >= FAILURES_OF_A_FAILING_JOB
    )
    if every_run_fails:
        yield Issue(
            Problem.EVERY_RUN_FAILS,
            Severity.ERROR,
            Phrase(
                _(
                    "Every run fails: each job that ran in the last hour failed in its latest run (jobs: %(jobs)s)."
                ),
                jobs=_number(facts.ran_lately),
            ),
            Phrase(_("Open the latest failures and fix what they have in common.")),
            None,
            {"jobs": facts.ran_lately, "failures": facts.failures_lately},
        )
    elif facts.failing:
        yield _about_jobs(
            Problem.JOBS_FAILING,
            Severity.WARNING,
            Phrase(
                _("Jobs that failed %(times)d times in a row or more: %(jobs)s."),
                times=FAILURES_OF_A_FAILING_JOB,
                jobs=facts.failing.listed,
            ),
            Phrase(_("Open their latest failures and fix the cause.")),
            facts.failing,
        )
    if facts.quarantined:
        yield _about_jobs(
            Problem.QUARANTINED,
            Severity.ERROR,
            Phrase(
                _("Jobs that are out of scheduling, as their schedule can't be read: %(jobs)s."),
                jobs=facts.quarantined.listed,
            ),
            Phrase(_("Correct and save them.")),
            facts.quarantined,
        )
    if facts.paused_themselves:
        yield _about_jobs(
            Problem.JOB_PAUSED_ITSELF,
            Severity.WARNING,
            Phrase(
                _("Jobs that paused themselves after failures: %(jobs)s."),
                jobs=facts.paused_themselves.listed,
            ),
            Phrase(_("Fix the cause, then resume them.")),
            facts.paused_themselves,
        )
    if facts.long_runs:
        yield _long_runs(facts)


def _about_jobs(problem: Problem, severity: Severity, summary: Phrase, remedy: Phrase, jobs: Named) -> Issue:
    return Issue(problem, severity, summary, remedy, None, {"jobs": jobs.number}, jobs)


def _long_runs(facts: SystemFacts) -> Issue:
    worst = max(facts.long_runs, key=lambda run: run.lasts)
    names = tuple(dict.fromkeys(run.job for run in facts.long_runs if run.job))
    return Issue(
        Problem.RUN_OVERLONG,
        Severity.WARNING,
        Phrase(
            _("Runs that take far longer than usual: %(runs)s; one takes %(lasts)s instead of %(usual)s."),
            runs=Named(len(facts.long_runs), names).listed,
            lasts=age_in_words(worst.lasts),
            usual=age_in_words(worst.usual),
        ),
        Phrase(_("Read their logs, and cancel them if they hang.")),
        facts.now - worst.lasts,
        {"runs": len(facts.long_runs)},
        Named(len(facts.long_runs), names),
    )


# --- nodes that differ ------------------------------------------------------------------------------------------------


def _of_settings(facts: SystemFacts) -> Iterator[Issue]:
    if facts.degraded:
        yield _about_nodes(
            Problem.NODE_DEGRADED,
            Phrase(_("Nodes that can't reach the lock's server: %(nodes)s."), nodes=facts.degraded.listed),
            Phrase(
                _(
                    "Check that server and the network. Until then work may be done twice, but no run starts twice."
                )
            ),
            facts.degraded,
        )
    if facts.skewed:
        yield _about_nodes(
            Problem.NODE_SKEWED,
            Phrase(
                _("Nodes whose wall clock is off by a second or more: %(nodes)s."), nodes=facts.skewed.listed
            ),
            Phrase(
                _(
                    "Check NTP. Schedules follow the database's clock, but the times in these nodes' logs are wrong."
                )
            ),
            facts.skewed,
        )
    if len(facts.shard_counts) > 1:
        counts = ", ".join(map(str, facts.shard_counts))
        yield _about_nodes(
            Problem.SHARDS_DIFFER,
            Phrase(
                _(
                    "Processes differ in DCRON_SHARDS (%(counts)s), so work is done twice, but no run starts twice."
                ),
                counts=counts,
            ),
            Phrase(_("Give all processes the same DCRON_SHARDS.")),
        )
    if facts.namespaces_overlap:
        yield _about_nodes(
            Problem.NAMESPACES_OVERLAP,
            Phrase(
                _(
                    "Some nodes serve all namespaces and others one, so work is done twice, but no run starts twice."
                )
            ),
            Phrase(_("Give all nodes a --namespace, or none.")),
        )
    if len(facts.releases) > 1:
        yield _about_nodes(
            Problem.RELEASES_DIFFER,
            Phrase(_("Live nodes run different releases: %(releases)s."), releases=", ".join(facts.releases)),
            Phrase(_("Finish the upgrade.")),
        )


def _about_nodes(problem: Problem, summary: Phrase, remedy: Phrase, nodes: Named = Named()) -> Issue:
    figures = {"nodes": nodes.number} if nodes else {}
    return Issue(problem, Severity.WARNING, summary, remedy, None, figures, nodes)


# --- wording ----------------------------------------------------------------------------------------------------------


def age_in_words(age: timedelta) -> Phrase:
    """Roughly: a sentence that is refreshed every few seconds should rarely change."""
    seconds = max(int(age.total_seconds()), 0)
    if seconds < 120:
        return Phrase(_("%(number)d s"), number=seconds if seconds < 5 else seconds // 5 * 5)
    if seconds < 7200:
        return Phrase(_("%(number)d min"), number=seconds // 60)
    if seconds < 48 * 3600:
        return Phrase(_("%(number)d h"), number=seconds // 3600)
    return Phrase(_("%(number)d days"), number=seconds // 86400)


def _number(value: int) -> Phrase | str:
    return str(value) if value <= COUNTED else Phrase(_("more than %(limit)s"), limit=COUNTED)
