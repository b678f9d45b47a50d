"""Run all checks of the doctor once and return a report, without writing anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.doctor import account, causes, history, nodes, releases, unfinished
from django_dcron.diagnosis.doctor.account import Totals
from django_dcron.diagnosis.doctor.alerts import examine_alerts
from django_dcron.diagnosis.doctor.declarations import examine_declarations
from django_dcron.diagnosis.doctor.findings import CLUSTER, NAMED, Code, Findings
from django_dcron.diagnosis.doctor.history import ExaminedRuns
from django_dcron.diagnosis.doctor.jobs import JobExaminer
from django_dcron.diagnosis.doctor.window import Window, batches_of_jobs, format_moment
from django_dcron.diagnosis.failing_jobs import FAILS_AS_MUTED
from django_dcron.diagnosis.paused_by_users import find_user_pauses
from django_dcron.diagnosis.system_health import count_failed, count_with_names, read_verdict
from django_dcron.jobs.representation import to_json
from django_dcron.locks import Lock
from django_dcron.models import Job, Node
from django_dcron.models.job_states import NO_LONGER_DECLARED
from django_dcron.policies.health.facts import FreezeFacts, NamedCount, UserPauses
from django_dcron.policies.health.outcomes import resume_command
from django_dcron.policies.health.problems import FIND_UNLED_SHARDS, Issue, Problem
from django_dcron.policies.health.verdict import Verdict
from django_dcron.targets.shadow import PREFIX
from django_dcron.utils.counts import number_of
from django_dcron.utils.messages import with_full_stop

JSON_VERSION = 1
"""Incremented when a key of the JSON is removed or changes its meaning, not when one is added."""


@dataclass(frozen=True, slots=True)
class Report:
    window: Window
    findings: Findings
    jobs: int
    totals: Totals
    examined: ExaminedRuns
    verdict: Verdict
    failed: NamedCount
    """Jobs that have failed since their last success, and that ``jobs_failing`` doesn't report."""
    muted: NamedCount
    """Failing jobs whose failures since their last success belong to muted incidents."""
    shadows: NamedCount
    """Enabled jobs that are shadows."""
    user_pauses: tuple[UserPauses, ...]
    """The jobs that users have paused, the most frequent reason first."""
    undeclared: NamedCount
    """Jobs that are paused because code no longer declares them."""
    dead_nodes: list[Node]
    """The dead nodes that cause no finding."""
    further_notes: list[str] = field(default_factory=list)
    """Notes of checks that the caller has added."""

    @property
    def healthy(self) -> bool:
        return not self.findings.counts

    @property
    def noted_issues(self) -> list[Issue]:
        """The issues that are notes, because they may pass."""
        return [issue for issue in self.verdict.issues if issue.problem in NOTED]

    @property
    def notes(self) -> list[str]:
        """Freezes, dead nodes, jobs that may need a decision, and what the check didn't cover."""
        totals, window = self.totals, self.window
        notes = [_freeze_note(freeze) for freeze in self.verdict.facts.freezes]
        if noted := self.noted_issues:
            notes += map(str, noted)
        elif waiting := self.verdict.queue_note:
            notes.append(str(waiting))
        if self.dead_nodes:
            notes.append(nodes.dead_nodes_note(self.dead_nodes))
        notes += [*self._notes_on_jobs(), *self._notes_on_missed()]
        if not_compared := self.jobs - totals.jobs:
            notes.append(
                f"The schedules of {number_of(not_compared, 'job')} weren't checked. Reasons: the "
                "job is paused or quarantined, or it had no occurrence in this period since its "
                "latest change."
            )
        if totals.since_change:
            notes.append(
                f"{number_of(totals.since_change, 'job was', 'jobs were')} changed in this period. "
                "Only the time since the change was checked."
            )
        if totals.pruned:
            notes.append(
                f"Older runs of {number_of(totals.pruned, 'job')} were pruned. Only the time since "
                "the oldest run was checked."
            )
        if totals.truncated:
            notes.append(
                f"Only the latest {window.occurrences_per_job} occurrences of "
                f"{number_of(totals.truncated, 'job')} were checked (see --limit)."
            )
        if self.examined.more:
            notes.append(
                f"Only the latest {window.runs} runs of the period, and as many unfinished runs, "
                "were checked one by one."
            )
        return notes + self.further_notes

    def _notes_on_jobs(self) -> Iterator[str]:
        """Yield notes about jobs that may need a decision."""
        if self.failed:
            yield (
                f"{number_of(self.failed.number, 'job has', 'jobs have')} failed since the last "
                f"success: {self.failed.listed}. To see why: manage.py dcron why JOB"
            )
        if self.muted:
            failing = number_of(self.muted.number, "failing job has", "failing jobs have")
            yield f"{failing} only failures of muted incidents: {self.muted.listed}."
        if self.shadows:
            shadows = number_of(
                self.shadows.number,
                "enabled job is a shadow, and its",
                "enabled jobs are shadows, and their",
            )
            yield (
                f"{shadows} code isn't executed: {self.shadows.listed}. To list all: manage.py "
                "dcron list --enabled --search shadow:"
            )
        if Problem.ALL_JOBS_PAUSED not in self.verdict.problems:
            for pauses in filter(_affects_many_jobs, self.user_pauses):
                yield _pauses_note(pauses, self.window.namespace)
        if self.undeclared:
            paused = number_of(self.undeclared.number, "paused job is", "paused jobs are")
            yield (
                f"{paused} no longer declared in code: {self.undeclared.listed}. To delete a job: "
                "manage.py dcron delete JOB. To keep the history of a job that was renamed in "
                'code, see "Rename a declared job" in the docs.'
            )

    def _notes_on_missed(self) -> Iterator[str]:
        """Yield a note if occurrences were missed. Without any, skipped runs are no surprise."""
        counted_later = self.totals.counted_later
        if missed := self.examined.missed + counted_later:
            later = f" ({counted_later} of them counted by later runs)" if counted_later else ""
            skipped = (
                f", and {number_of(self.examined.skipped, 'run was', 'runs were')} skipped"
                if self.examined.skipped
                else ""
            )
            at_least = "At least " if self.examined.more else ""
            text = (
                f"{at_least}{number_of(missed, 'occurrence was', 'occurrences were')} missed in "
                f"this period{later}{skipped}."
            )
            if self.examined.missed or self.examined.skipped:
                text += (
                    " To list these runs: manage.py dcron history --state missed --state skipped "
                    f"--since {to_json(self.window.since)}"
                )
            yield text

    def as_json(self) -> dict[str, Any]:
        return {
            "version": JSON_VERSION,
            "healthy": self.healthy,
            "at": to_json(self.window.now),
            "since": to_json(self.window.since),
            "until": to_json(self.window.until),
            "namespace": self.window.namespace,
            "checked": {
                "jobs": self.jobs,
                "jobs_accounted_for": self.totals.jobs,
                "occurrences": self.totals.occurrences,
                "scheduled_runs": self.totals.runs,
                "counted_by_later_runs": self.totals.counted_later,
                "runs": self.examined.number,
                "live_nodes": self.verdict.facts.live_nodes,
            },
            "summary": [group.as_json() for group in self.findings.groups()],
            "findings": [finding.as_json() for finding in self.findings.listed],
            "more": {code.value: number for code, number in sorted(self.findings.more.items())},
            "notes": self.notes,
        }


LISTED_BY_ROW = frozenset(
    {
        Problem.QUARANTINED,
        Problem.UNKNOWN_TARGET,
        Problem.CURSOR_OVERDUE,
        Problem.RUN_OVERDUE,
        Problem.RUN_STUCK,
    }
)
"""Problems of single jobs or runs, which are reported as findings with the same code."""


MANY_PAUSES = 10
"""From this number of jobs that users paused for one reason, a note reminds of them."""
CHECK_LOGS = "Check the findings about shards, if there are any, and the nodes' logs."
NOTED = frozenset({Problem.QUEUE_STALLED})
"""Problems that are notes instead of findings: a restart of the workers causes them."""


def examine(window: Window, lock: Lock, *, named: int = NAMED) -> Report:
    """Check the system's health, then the nodes, jobs and runs; raises the database's errors.

    ``named``: the maximum number of findings to list for each code.
    """
    findings, totals = Findings(named), Totals()
    verdict = read_verdict(window.namespace)
    issues = [issue for issue in verdict.issues if issue.problem not in NOTED]
    # Lost locks come first, because they may cause the problems of the verdict.
    dead_nodes = nodes.examine_nodes(window, findings, lock, verdict)
    for issue in issues:
        if issue.problem not in LISTED_BY_ROW:
            _add(issue, findings)
    releases.examine_releases(window, findings)
    examine_declarations(window, findings)
    examine_alerts(window, findings)
    examiner, jobs = JobExaminer(window, findings, verdict.facts.freezes), 0
    for batch in batches_of_jobs(window):
        examiner.examine(batch)
        account.examine_jobs(batch, window, findings, totals)
        jobs += len(batch)
    unfinished.examine_unfinished_runs(window, findings, verdict)
    for issue in issues:
        if not findings.counts[Code(issue.problem)]:  # The rows have changed since.
            _add(issue, findings)
    causes.explain_findings(findings, verdict)
    examined = history.examine_latest_runs(window, findings)
    rows = Job.objects.using(alias_for(Job))
    if window.namespace:
        rows = rows.filter(namespace=window.namespace)
    undeclared = rows.filter(enabled=False, pause_reason=NO_LONGER_DECLARED)
    return Report(
        window,
        findings,
        jobs,
        totals,
        examined,
        verdict,
        failed=count_failed(rows),
        muted=count_with_names(rows.filter(FAILS_AS_MUTED)),
        shadows=count_with_names(rows.filter(enabled=True, target__startswith=PREFIX)),
        user_pauses=find_user_pauses(rows),
        undeclared=count_with_names(undeclared),
        dead_nodes=dead_nodes,
    )


def _freeze_note(freeze: FreezeFacts) -> str:
    scope = f"namespace {freeze.namespace}" if freeze.namespace else "all namespaces"
    by = f" by {freeze.frozen_by}" if freeze.frozen_by else ""
    until = f" until {format_moment(freeze.until)}" if freeze.until else ""
    reason = with_full_stop(freeze.reason)
    return f"Frozen{by} since {format_moment(freeze.since)}{until}: {scope}. Reason: {reason}"


def _affects_many_jobs(pauses: UserPauses) -> bool:
    return bool(pauses.reason) and pauses.number >= MANY_PAUSES


def _pauses_note(pauses: UserPauses, namespace: str) -> str:
    return (
        f"{number_of(pauses.number, 'job is', 'jobs are')} paused for one reason, the first since "
        f"{format_moment(pauses.since)}: {with_full_stop(pauses.reason)} To resume them: manage.py "
        f"dcron {resume_command(pauses.reason, namespace)}"
    )


def _add(issue: Issue, findings: Findings) -> None:
    # The remedy is to run the doctor, which is running.
    is_circular = issue.remedy.template == FIND_UNLED_SHARDS
    text = f"{issue.summary} {CHECK_LOGS}" if is_circular else str(issue)
    findings.add(Code(issue.problem), CLUSTER, text, issue.severity)
