"""The doctor's findings: stable codes, their severities, and a bounded collection.

Programs rely on the codes, so a code is never renamed and never changes its meaning.
``docs/reference/doctor.md`` lists them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from django_dcron.jobs.representation import to_json
from django_dcron.policies.health.problems import Problem, Severity
from django_dcron.utils.counts import number_of
from django_dcron.utils.time_format import format_site_time

NAMED = 20
"""The number of findings listed per code; further ones are only counted."""
SUBJECTS_IN_LINE = 3
"""The number of subjects that one line names."""


NEVER = datetime.max.replace(tzinfo=UTC)


class Code(StrEnum):
    """The codes of findings; they include every ``policies.health.problems.Problem``."""

    # The system's health.
    DATABASE_READ_ONLY = "database_read_only"
    NO_BROKER = "no_broker"
    NO_WORKER = "no_worker"
    QUEUE_UNSERVED = "queue_unserved"
    WORKERS_BEHIND = "workers_behind"
    QUEUE_STALLED = "queue_stalled"
    RUN_UNKNOWN_TO_WORKER = "run_unknown_to_worker"
    TASK_UNKNOWN_TO_WORKER = "task_unknown_to_worker"
    EVERY_RUN_FAILS = "every_run_fails"
    JOBS_FAILING = "jobs_failing"
    JOB_AUTO_PAUSED = "job_auto_paused"
    ALL_JOBS_PAUSED = "all_jobs_paused"
    FREEZE_WITHOUT_END = "freeze_without_end"
    RUN_OVERLONG = "run_overlong"
    JOB_BACKLOG = "job_backlog"
    # Occurrences against runs.
    OCCURRENCE_MISSING = "occurrence_missing"
    OCCURRENCE_COUNTED_TWICE = "occurrence_counted_twice"
    RUN_OFF_SCHEDULE = "run_off_schedule"
    MISSED_MISCOUNTED = "missed_miscounted"
    STATISTICS_BEHIND = "statistics_behind"
    # Jobs and cursors.
    CURSOR_OUTDATED = "cursor_outdated"
    CURSOR_OVERDUE = "cursor_overdue"
    CURSOR_STOPPED = "cursor_stopped"
    CURSOR_WRONG = "cursor_wrong"
    QUARANTINED = "quarantined"
    NEVER_FIRES = "never_fires"
    UNKNOWN_TARGET = "unknown_target"
    ARGUMENTS_REJECTED = "arguments_rejected"
    DECLARATION_REFUSED = "declaration_refused"
    NAMESPACE_UNSERVED = "namespace_unserved"
    NO_SHARD_LED = "no_shard_led"
    OTHER_SCHEDULER_RUNS = "other_scheduler_runs"
    ENTRY_NOT_IMPORTED = "entry_not_imported"
    # Runs.
    RUN_OVERDUE = "run_overdue"
    RUN_UNDELIVERED = "run_undelivered"
    RUN_STUCK = "run_stuck"
    RUN_LEFT_WAITING = "run_left_waiting"
    STATE_ILLEGAL = "state_illegal"
    FINISHED_WITHOUT_TIME = "finished_without_time"
    SLOT_HELD = "slot_held"
    LIMIT_PLACE_HELD = "limit_place_held"
    ATTEMPT_OPEN = "attempt_open"
    ATTEMPTS_WRONG = "attempts_wrong"
    OUTCOME_CONTRADICTS = "outcome_contradicts"
    STARTED_EARLY = "started_early"
    # Nodes, shards and the lock.
    NO_LIVE_NODE = "no_live_node"
    NODE_DEAD = "node_dead"
    NODE_STALLED = "node_stalled"
    NODE_DEGRADED = "node_degraded"
    NODE_SKEWED = "node_skewed"
    BROKER_UNREACHABLE = "broker_unreachable"
    CLOCK_IN_DOUBT = "clock_in_doubt"
    VERSIONS_DIFFER = "versions_differ"
    WORKER_RELEASES_DIFFER = "worker_releases_differ"
    WORKER_OUTDATED = "worker_outdated"
    NAMESPACES_OVERLAP = "namespaces_overlap"
    SHARDS_UNLED = "shards_unled"
    SHARDS_DIFFER = "shards_differ"
    LEASE_ORPHANED = "lease_orphaned"
    LOCK_UNREACHABLE = "lock_unreachable"
    LOCK_UNSAFE = "lock_unsafe"
    # Alerts.
    ALERTS_UNDELIVERED = "alerts_undelivered"


WARNINGS = frozenset(
    {
        Code.QUEUE_STALLED,
        Code.JOBS_FAILING,
        Code.JOB_AUTO_PAUSED,
        Code.ALL_JOBS_PAUSED,
        Code.FREEZE_WITHOUT_END,
        Code.RUN_OVERLONG,
        Code.JOB_BACKLOG,
        Code.RUN_OFF_SCHEDULE,
        Code.CURSOR_OUTDATED,
        Code.NEVER_FIRES,
        Code.OTHER_SCHEDULER_RUNS,
        Code.ENTRY_NOT_IMPORTED,
        Code.STARTED_EARLY,
        Code.ALERTS_UNDELIVERED,
        Code.NODE_DEAD,
        Code.NO_SHARD_LED,
        Code.NODE_DEGRADED,
        Code.NODE_SKEWED,
        Code.BROKER_UNREACHABLE,
        Code.CLOCK_IN_DOUBT,
        Code.VERSIONS_DIFFER,
        Code.WORKER_RELEASES_DIFFER,
        Code.WORKER_OUTDATED,
        Code.NAMESPACES_OVERLAP,
        Code.SHARDS_DIFFER,
        Code.LEASE_ORPHANED,
        Code.LOCK_UNREACHABLE,
        Code.LOCK_UNSAFE,
    }
)
"""All other codes are errors, unless the health verdict sets another severity."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The job, run, node or other object that a finding is about."""

    kind: str
    """``job``, ``run``, ``node``, ``namespace``, ``lock``, ``channel`` (of alerts), or ``cluster``
    for the whole system.
    """
    id: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name or self.id}".strip()

    def as_json(self) -> dict[str, str]:
        return {"kind": self.kind, "id": self.id, "name": self.name}


CLUSTER = Subject("cluster")
LOCK = Subject("lock")


@dataclass(frozen=True, slots=True)
class Finding:
    code: Code
    subject: Subject
    fact: str
    severity: Severity
    at: datetime | None = None
    """The time of the occurrence or run, if the finding is about one."""
    advice: str = ""
    """Possible causes and the recommended action, unless ``fact`` contains them."""
    explanation: CommonCause | None = None
    """Given if the finding replaces several that have the same cause."""

    @property
    def message(self) -> str:
        """The meaning of the finding and the recommended action."""
        return f"{self.fact} {self.advice}".rstrip()

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        document = {
            "code": self.code.value,
            "severity": self.severity.value,
            "subject": self.subject.as_json(),
            "message": self.message,
        }
        return document | (self.explanation.as_json() if self.explanation else {})


@dataclass(frozen=True, slots=True)
class CommonCause:
    """The findings that problems of the whole system explain."""

    causes: tuple[Problem, ...]
    """At least one."""
    explained: tuple[Finding, ...]
    """The first of the explained findings, the oldest first."""
    count: int
    """The number of explained findings, including those that aren't listed."""
    oldest: datetime | None

    @property
    def message(self) -> str:
        causes = " and ".join(cause.value for cause in self.causes)
        advice = "that finding" if len(self.causes) == 1 else "those findings"
        subjects = number_of(self.count, self.explained[0].subject.kind)
        verb = "waits" if self.count == 1 else "wait"
        oldest = f", the oldest since {format_site_time(self.oldest)}" if self.oldest else ""
        examples = [str(finding.subject) for finding in self.explained[:SUBJECTS_IN_LINE]]
        if more := self.count - len(examples):
            examples.append(f"and {more} more")
        return (
            f"{subjects} {verb} because of {causes}{oldest}. Follow the advice of {advice}. "
            f"Examples: {', '.join(examples)}"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "explained_by": [cause.value for cause in self.causes],
            "count": self.count,
            "explained": [
                {"subject": finding.subject.as_json(), "message": finding.fact}
                for finding in self.explained
            ],
        }


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """The findings of one code."""

    code: Code
    listed: list[Finding]
    """At least one; the oldest first."""
    count: int
    """The number of findings, including those that aren't listed."""
    oldest: datetime | None

    @property
    def severity(self) -> Severity:
        severities = {finding.severity for finding in self.listed}
        return Severity.ERROR if Severity.ERROR in severities else Severity.WARNING

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code.value,
            "severity": self.severity.value,
            "count": self.count,
            "oldest": to_json(self.oldest),
        }


@dataclass
class Findings:
    """The first ``named`` findings of each code, and the count of all."""

    named: int = NAMED
    listed: list[Finding] = field(default_factory=list)
    counts: Counter[Code] = field(default_factory=Counter)
    oldest: dict[Code, datetime] = field(default_factory=dict)

    def add(
        self,
        code: Code,
        subject: Subject,
        message: str,
        severity: Severity | None = None,
        at: datetime | None = None,
        *,
        advice: str = "",
    ) -> None:
        """Add a finding; ``severity`` overrides the code's default severity.

        ``message`` contains the recommended action, unless ``advice`` does. ``explain`` drops
        ``advice``.
        """
        if at is not None:
            self.oldest[code] = min(at, self.oldest.get(code, at))
        if severity is None:
            severity = Severity.WARNING if code in WARNINGS else Severity.ERROR
        self.counts[code] += 1
        if self.counts[code] <= self.named:
            self.listed.append(Finding(code, subject, message, severity, at, advice))

    def explain(self, code: Code, causes: Sequence[Problem]) -> None:
        """Replace the findings of the code by a single one that names their causes."""
        for group in self.groups():
            if group.code is code:
                place = next(n for n, each in enumerate(self.listed) if each.code is code)
                explanation = CommonCause(
                    tuple(causes), tuple(group.listed), group.count, group.oldest
                )
                finding = Finding(
                    code,
                    CLUSTER,
                    explanation.message,
                    group.severity,
                    group.oldest,
                    explanation=explanation,
                )
                others = [each for each in self.listed if each.code is not code]
                self.listed = [*others[:place], finding, *others[place:]]
                self.counts[code] = 1

    def groups(self) -> list[FindingGroup]:
        """Return the findings by code, errors first, in the order of the first finding of each."""
        by_code: dict[Code, list[Finding]] = {}
        for finding in self.listed:
            by_code.setdefault(finding.code, []).append(finding)
        groups = [
            FindingGroup(
                code=code,
                # The oldest first; ``sorted`` keeps the order of those without a time.
                listed=sorted(listed, key=lambda each: (each.at is None, each.at or NEVER)),
                count=self.counts[code],
                oldest=self.oldest.get(code),
            )
            for code, listed in by_code.items()
        ]
        return sorted(groups, key=lambda group: group.severity is not Severity.ERROR)

    @property
    def more(self) -> dict[Code, int]:
        """The number of findings per code that are counted but not listed."""
        return {
            code: number - self.named for code, number in self.counts.items() if number > self.named
        }
