"""Run the doctor's accounting in tests, and compare it with the witness rows.

Every start of a run inserts a witness row, which only tests have. The checker is read-only and
starts no runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from django.db.models import Q

from django_dcron.diagnosis.doctor import account, history
from django_dcron.diagnosis.doctor.account import Totals
from django_dcron.diagnosis.doctor.findings import Findings
from django_dcron.diagnosis.doctor.jobs import JobExaminer
from django_dcron.diagnosis.doctor.window import Window, batches_of_jobs
from django_dcron.jobs.placement import runs_without_schedule
from django_dcron.models import Attempt, Cursor, Job, Run, Statistics
from django_dcron.models.statistics import pending_counts
from django_dcron.policies.lifecycle import FINAL, Outcome, State
from tests.app.models import Witness

ALL = 10**9


@dataclass
class Verdict:
    expected: int = 0
    """Number of occurrences that the schedules yield in the window."""
    runs: int = 0
    """Number of runs that account for them."""
    starts: int = 0
    """Number of witness rows."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"{self.expected} occurrences, {self.runs} runs, {self.starts} starts"
        return "\n".join([f"{counts}, {len(self.problems)} problems", *self.problems[:50]])


def check(after: datetime, until: datetime) -> Verdict:
    """Check all jobs for the window from ``after`` (exclusive) to ``until`` (inclusive).

    No process may write during the check: stop the nodes and let the workers finish first. The
    schedules must not have changed within the window, and no run may have been pruned.
    """
    window = Window(after, until, now=until, occurrences_per_job=None, runs=None, steady=True)
    findings, totals = Findings(named=ALL), Totals()
    for jobs in batches_of_jobs(window):
        JobExaminer(window, findings).examine(jobs)
        account.examine_jobs(jobs, window, findings, totals)
    # Check the transitions of all runs, including claimed future runs and manual runs.
    everything = Window(
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2200, 1, 1, tzinfo=UTC),
        now=until,
        runs=None,
    )
    history.examine_latest_runs(everything, findings)
    verdict = Verdict(totals.occurrences, totals.runs)
    verdict.problems = [f"{finding.code}: {finding}" for finding in findings.listed]
    for job in Job.objects.order_by("pk"):
        verdict.problems += [f"{job}: {problem}" for problem in _strict_problems(job, until)]
    _check_witnesses(verdict)
    return verdict


def _strict_problems(job: Job, until: datetime) -> Iterator[str]:
    """Check the rules that apply only if no process writes and nothing was pruned."""
    cursor = Cursor.objects.get(pk=job.pk)
    if job.enabled and _is_behind(job, cursor, until):
        yield f"the cursor is behind: {cursor.next_at}"
    statistics, pending = Statistics.objects.get(pk=job.pk), pending_counts([job.pk])
    for state in FINAL - {State.MISSED}:  # one missed row may stand for several occurrences
        counted, rows = (
            getattr(statistics, state.value) + pending.get(job.pk, Counter())[state.value],
            Run.objects.filter(job=job, state=state).count(),
        )
        if counted != rows:
            yield f"the statistics count {counted} runs as {state}, but there are {rows}"
    if Run.objects.filter(job=job, state__in=FINAL, slot__isnull=False).exists():
        yield "a finished run holds a slot"


def _is_behind(job: Job, cursor: Cursor, until: datetime) -> bool:
    if cursor.next_at is None:
        # A job that follows others stays enabled without occurrences. The doctor's examiner has
        # checked that it has none.
        return not runs_without_schedule(job)
    return cursor.next_at <= until


def _check_witnesses(verdict: Verdict) -> None:
    starts = Counter(Witness.objects.values_list("run_id", "attempt"))
    verdict.starts = starts.total()
    attempts = {
        (str(run_id), number) for run_id, number in Attempt.objects.values_list("run_id", "number")
    }
    for (run_id, attempt), times in starts.items():
        if times > 1:
            verdict.problems.append(f"run {run_id} attempt {attempt} was started {times} times")
        if (run_id, attempt) not in attempts:
            verdict.problems.append(f"run {run_id} attempt {attempt} was started without a record")
    witnessed = Q(run__job__target="tests.app.tasks.witness", outcome=Outcome.SUCCEEDED)
    for run_id, number in Attempt.objects.filter(witnessed).values_list("run_id", "number"):
        if not starts[str(run_id), number]:
            verdict.problems.append(f"run {run_id} attempt {number} succeeded without a start")
