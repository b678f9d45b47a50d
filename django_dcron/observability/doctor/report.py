"""The doctor: looks at everything once and says what is not as it should be. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django_dcron.domain.counts_in_words import number_of
from django_dcron.domain.system_health import Issue, Problem, Verdict
from django_dcron.locks import Lock
from django_dcron.observability.doctor import account, history, nodes, unfinished
from django_dcron.observability.doctor.account import Totals
from django_dcron.observability.doctor.findings import CLUSTER, NAMED, Code, Findings
from django_dcron.observability.doctor.jobs import JobExaminer
from django_dcron.observability.doctor.window import Window, jobs_of
from django_dcron.observability.system_health import read_verdict

JSON_VERSION = 1
"""Goes up when a key of the JSON goes or changes its meaning, not when one is added."""


@dataclass(frozen=True, slots=True)
class Report:
    window: Window
    findings: Findings
    jobs: int
    totals: Totals
    runs: int
    """Looked at one by one."""
    more_runs: bool
    verdict: Verdict

    @property
    def healthy(self) -> bool:
        return not self.findings.counts

    @property
    def notes(self) -> list[str]:
        """What the account could not see."""
        totals, window = self.totals, self.window
        notes = []
        if totals.since_change:
            notes.append(
                f"{number_of(totals.since_change, 'job was', 'jobs were')} changed within the window, and accounted for since then."
            )
        if totals.pruned:
            notes.append(
                f"{number_of(totals.pruned, 'job is', 'jobs are')} accounted for since the oldest row; older ones were pruned."
            )
        if totals.truncated:
            notes.append(
                f"Of {number_of(totals.truncated, 'job')} only the latest occurrences, {window.runs_per_job}, were accounted for."
            )
        if self.more_runs:
            notes.append(f"Only the latest of the window's runs, {self.runs}, were looked at one by one.")
        return notes

    def as_json(self) -> dict[str, Any]:
        return {
            "version": JSON_VERSION,
            "healthy": self.healthy,
            "at": self.window.now.isoformat(),
            "since": self.window.since.isoformat(),
            "until": self.window.until.isoformat(),
            "namespace": self.window.namespace,
            "looked_at": {
                "jobs": self.jobs,
                "jobs_accounted_for": self.totals.jobs,
                "occurrences": self.totals.occurrences,
                "scheduled_runs": self.totals.runs,
                "runs": self.runs,
                "live_nodes": self.verdict.facts.live_nodes,
            },
            "findings": [finding.as_json() for finding in self.findings.listed],
            "more": {code.value: number for code, number in sorted(self.findings.more.items())},
            "notes": self.notes,
        }


LISTED_BY_ROW = frozenset(
    {Problem.QUARANTINED, Problem.CURSOR_OVERDUE, Problem.RUN_OVERDUE, Problem.RUN_STUCK}
)
"""Problems whose jobs or runs are findings of their own, under the same code."""


def examine(window: Window, lock: Lock, *, named: int = NAMED) -> Report:
    """The system's health, then all nodes, jobs and runs one by one. Raises the database's errors."""
    findings, totals = Findings(named), Totals()
    verdict = read_verdict(window.namespace)
    for issue in verdict.issues:
        if issue.problem not in LISTED_BY_ROW:
            _add(issue, findings)
    nodes.examine(window, findings, lock)
    examiner, jobs = JobExaminer(window, findings), 0
    for batch in jobs_of(window):
        examiner.examine(batch)
        account.examine(batch, window, findings, totals)
        jobs += len(batch)
    unfinished.examine(window, findings, verdict)
    for issue in verdict.issues:
        if not findings.counts[Code(issue.problem)]:  # the rows have changed since
            _add(issue, findings)
    runs, more_runs = history.examine(window, findings)
    return Report(window, findings, jobs, totals, runs, more_runs, verdict)


def _add(issue: Issue, findings: Findings) -> None:
    findings.add(Code(issue.problem), CLUSTER, str(issue), issue.severity)
