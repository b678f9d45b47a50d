"""The facts behind a health verdict: plain data about nodes, queues, workers, jobs and runs.

Invariant: sentences contain only names that the facts contain. ``SystemFacts.visible`` removes
names a person may not see.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

NAMES_LISTED = 5
"""The maximum number of names in a sentence."""
FAILURES_UNTIL_WARNING = 3
"""The verdict warns of a job after this many consecutive failures.

If the job doesn't run again soon, one failure is enough.
"""


@dataclass(frozen=True, slots=True)
class NamedCount:
    """A number of things, and the names of some of them."""

    number: int = 0
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Collection[str]) -> NamedCount:
        """Count ``names``, and name the first ones in alphabetical order."""
        return cls(len(names), tuple(sorted(names)[:NAMES_LISTED]))

    def __bool__(self) -> bool:
        return self.number > 0

    @property
    def listed(self) -> str:
        """The names, or the number if there are no names."""
        if not self.names:
            return str(self.number)
        return ", ".join(self.names) + (", ..." if self.number > len(self.names) else "")

    @property
    def unnamed(self) -> NamedCount:
        return replace(self, names=())


NOTHING_NAMED = NamedCount()


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """A number of waiting things, and since when the oldest one waits."""

    number: int = 0
    since: datetime | None = None

    def __bool__(self) -> bool:
        return self.number > 0


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue with runs that no worker has started within ``redeliver_after``."""

    name: str
    """Empty: unknown."""
    waiting: WaitingCount
    last_start: datetime | None = None
    """When a worker last started a run from the queue. None: not among the latest starts."""
    overtaken: bool = False
    """Whether a run that was due after the oldest of these runs was queued has started."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker that answered the nodes."""

    name: str
    queues: tuple[str, ...]
    executes: bool
    """Whether the worker knows the task ``django_dcron.execute``."""
    unknown_runs: int = 0
    """The number of received runs that exist in this database but not in the worker's."""


@dataclass(frozen=True, slots=True)
class LongRun:
    """A run that takes far longer than its job usually does, or than its timeout."""

    job: str
    lasts: timedelta
    usual: timedelta | None
    """The longest usual duration, or the timeout. None: both are unknown, and the run keeps another
    run of the job from starting.
    """


@dataclass(frozen=True, slots=True)
class WaitingRuns:
    """The runs of a job that wait for its earlier runs to end."""

    job: str
    number: int
    since: datetime
    """When the oldest of them was due."""
    grace: timedelta
    """The job's ``misfire_grace``."""


@dataclass(frozen=True, slots=True)
class UserPauses:
    """The jobs that users have paused for one reason."""

    number: int
    reason: str
    """The stored text, which normally contains the user's name. Empty: unknown."""
    since: datetime
    """When the first of these jobs was paused."""


@dataclass(frozen=True, slots=True)
class FreezeFacts:
    """A freeze that is in force."""

    namespace: str
    """Empty: all namespaces."""
    reason: str
    frozen_by: str
    since: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True)
class SystemFacts:
    """The facts behind a verdict. All instants are times of the database's clock."""

    now: datetime
    redeliver_after: timedelta
    namespace: str = ""
    """The namespace of the runs and jobs. Empty: all namespaces."""
    dispatcher: str = "celery"
    autostart: bool = False
    """Whether web processes run nodes."""

    database_read_only: bool = False

    live_nodes: int = 0
    dead_nodes: int = 0
    """Nodes that vanished within the last day: they neither stopped cleanly nor restarted."""
    last_heartbeat: datetime | None = None
    """The latest heartbeat of any node, live or not."""
    may_still_rescue: bool = False
    """Whether all live nodes are too new to have rescued all runs whose worker died."""
    stalled: NamedCount = NamedCount()
    """Live nodes whose ticks fail."""
    stalled_since: datetime | None = None
    degraded: NamedCount = NamedCount()
    """Live nodes that can't use the lock server."""
    lock_error: str = ""
    """The error of one of them. Empty: unknown."""
    without_broker: NamedCount = NamedCount()
    """Live nodes whose messages the broker didn't accept when they last tried to dispatch."""
    broker_error: str = ""
    """The error of one of them. Empty: unknown."""
    without_broker_since: datetime | None = None
    clock_doubted_by: NamedCount = NamedCount()
    """Live nodes that saw the database's clock jump and don't follow it yet."""
    clock_step: timedelta = timedelta()
    """The size of the jump; negative if the clock jumped back."""
    skewed: NamedCount = NamedCount()
    """Live nodes whose wall clock differs from the database's clock."""
    versions: tuple[str, ...] = ()
    """The versions of django-dcron of the live nodes."""
    namespaces_overlap: bool = False
    """Whether some live nodes serve all namespaces and others serve one."""
    without_shards: NamedCount = NamedCount()
    """Live nodes that have run for longer than a lease, if no node leads a shard."""
    shard_counts: tuple[int, ...] = ()
    """The values of DCRON_SHARDS in this process and the live nodes."""

    jobs: int = 0
    enabled_jobs: int = 0
    unserved: NamedCount = NamedCount()
    """Namespaces with enabled jobs and without a live node."""
    stalled_namespaces: int = 0
    """The number of namespaces with enabled jobs whose live nodes are all stalled."""
    quarantined: NamedCount = NamedCount()
    """Jobs that aren't scheduled because of a problem, such as an invalid schedule."""
    unknown_targets: NamedCount = NamedCount()
    """Targets of enabled jobs that the process with these facts doesn't know."""
    similar_targets: tuple[str, ...] = ()
    """Targets that the process knows, with names similar to those of the unknown ones."""
    lacks_task_modules: bool = False
    """Whether task modules failed to import in that process, if it doesn't know a target."""
    host: str = ""
    """The host of that process. Empty: unknown."""
    pid: int = 0
    serves_requests: bool = False
    """Whether that process is known to be a web process."""
    overdue_cursors: WaitingCount = WaitingCount()
    """Jobs with an occurrence that no node has claimed in time."""
    overdue_runs: WaitingCount = WaitingCount()
    """Pending runs that are due and that no node has dispatched in time."""
    on_agendas: int = 0
    """How many of the overdue runs are on the agenda of a live node that ticks."""

    job_queues: tuple[str, ...] = ()
    """The queues of the enabled jobs with a next occurrence."""
    workers: tuple[WorkerFacts, ...] | None = None
    """Workers that recently answered a live node. None: no live node has asked them recently, for
    example because the dispatcher isn't Celery.
    """
    last_start: datetime | None = None
    """When any worker last started a run."""
    queued: int = 0
    """Queued runs that no freeze holds back."""
    queued_since: datetime | None = None
    """Since when the oldest of them waits for a worker. None: no run is queued."""
    running: int = 0
    """Runs that a worker executes, according to their heartbeats."""
    busiest: tuple[tuple[str, int], ...] = ()
    """The jobs with the most running runs, and their numbers. Empty unless there are ``queues``."""
    queues: tuple[QueueFacts, ...] = ()
    """Queues with runs that no worker has started within ``redeliver_after``.

    Contains at least the queues of the oldest runs.
    """
    queues_of_latest_queued: tuple[str, ...] = ()
    """Queues of the latest queued runs. Empty if workers have started runs recently."""
    recent_queues: tuple[str, ...] = ()
    """Queues from which workers started the latest runs."""
    never_started: WaitingCount = WaitingCount()
    """Runs that were dispatched after the last start and are missed because no worker took them."""
    missed: int = 0
    """Occurrences missed since ``missed_since``."""
    missed_since: datetime | None = None
    """The last start. If workers have started runs recently: when the oldest run in ``queues`` was
    due. At most 24 hours ago. None: unknown.
    """
    stuck: WaitingCount = WaitingCount()
    """Running runs whose heartbeat stopped and that no node has declared lost."""
    long_runs: tuple[LongRun, ...] = ()

    enabled_shadows: int = 0
    """Enabled jobs that are shadows, so their code isn't executed."""
    has_outcome: bool = False
    """Whether a run of one of the jobs has succeeded or failed."""
    ran_lately: int = 0
    """Enabled jobs whose last run ended recently. Counts only jobs whose last run succeeded or that
    have consecutive failures.
    """
    failed_lately: NamedCount = NamedCount()
    """Those of these jobs that have consecutive failures."""
    muted_lately: int = 0
    """The number of those failed jobs that only fail with muted incidents."""
    failures_lately: int = 0
    """The sum of these jobs' consecutive failures, without jobs that only fail with muted
    incidents.
    """
    keep_failing: NamedCount = NamedCount()
    """Failing jobs with ``FAILURES_UNTIL_WARNING`` or more consecutive failures, and failing jobs
    that don't run again soon. Without jobs that only fail with muted incidents.
    """
    auto_paused: NamedCount = NamedCount()
    """Jobs that ``pause_after_failures`` has paused."""
    user_pauses: tuple[UserPauses, ...] = ()
    """The most frequent reason first. Empty if a job is enabled."""

    freezes: tuple[FreezeFacts, ...] = ()

    waiting_runs: tuple[WaitingRuns, ...] = ()
    """Jobs with runs that have waited for a while, and have the most such runs first."""

    shows_queues: bool = True
    """Whether sentences may name queues. The verdict itself always needs the names."""
    shows_workers: bool = True

    @property
    def has_work(self) -> bool:
        return bool(self.enabled_jobs or self.overdue_runs or self.queued)

    def visible(self, *, jobs: bool, nodes: bool) -> SystemFacts:
        """Return these facts without the names that a person may not see.

        ``jobs`` permits names of jobs, targets and queues, and the texts of freezes and pauses.
        ``nodes`` permits names of nodes, hosts, unserved namespaces and workers.
        """
        facts = self
        if not jobs:
            facts = replace(
                facts,
                quarantined=facts.quarantined.unnamed,
                unknown_targets=facts.unknown_targets.unnamed,
                similar_targets=(),
                failed_lately=facts.failed_lately.unnamed,
                keep_failing=facts.keep_failing.unnamed,
                auto_paused=facts.auto_paused.unnamed,
                user_pauses=tuple(replace(each, reason="") for each in facts.user_pauses),
                busiest=(),
                long_runs=tuple(replace(run, job="") for run in facts.long_runs),
                waiting_runs=tuple(replace(each, job="") for each in facts.waiting_runs),
                freezes=tuple(
                    replace(freeze, namespace="", reason="", frozen_by="")
                    for freeze in facts.freezes
                ),
            )
        if not nodes:
            facts = replace(
                facts,
                host="",
                stalled=facts.stalled.unnamed,
                without_shards=facts.without_shards.unnamed,
                degraded=facts.degraded.unnamed,
                lock_error="",
                without_broker=facts.without_broker.unnamed,
                broker_error="",
                clock_doubted_by=facts.clock_doubted_by.unnamed,
                skewed=facts.skewed.unnamed,
                unserved=facts.unserved.unnamed,
            )
        return replace(facts, shows_queues=jobs, shows_workers=nodes)
