"""Name the problems of the health verdict that explain findings about single jobs and runs.

Invariant: a problem explains all findings of a code or none. If the verdict reports the code, too,
the problem doesn't explain all of them.
"""

from __future__ import annotations

from django_dcron.diagnosis.doctor.findings import Code, Findings
from django_dcron.policies.health.problems import Problem
from django_dcron.policies.health.verdict import Verdict

_NO_NODE = frozenset({Problem.DATABASE_READ_ONLY, Problem.NO_LIVE_NODE})
_NO_SCHEDULING = _NO_NODE | {Problem.NODE_STALLED, Problem.NAMESPACE_UNSERVED}
_CAUSES = {
    Code.CURSOR_OVERDUE: _NO_SCHEDULING,
    Code.RUN_OVERDUE: _NO_SCHEDULING | {Problem.NO_BROKER},
    Code.RUN_UNDELIVERED: frozenset(
        {
            Problem.DATABASE_READ_ONLY,
            Problem.RUN_UNKNOWN_TO_WORKER,
            Problem.TASK_UNKNOWN_TO_WORKER,
            Problem.NO_WORKER,
            Problem.QUEUE_UNSERVED,
            Problem.WORKERS_BEHIND,
        }
    ),
    Code.RUN_STUCK: _NO_NODE,
    Code.RUN_LEFT_WAITING: _NO_NODE,
}
"""The problems that explain all findings of the code, as ``policies.health`` decides."""


def explain_findings(findings: Findings, verdict: Verdict) -> None:
    """Replace findings whose cause the verdict names by a single one for each code."""
    reported = {problem.value for problem in verdict.problems}
    for code, explaining in _CAUSES.items():
        causes = [issue.problem for issue in verdict.issues if issue.problem in explaining]
        if causes and code.value not in reported:
            findings.explain(code, causes)
