"""The doctor's account, for tests, with what only a test can know: every real start left a witness row.

Nothing is written, nothing is started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from django.db.models import Q

from django_dcron.domain.lifecycle import FINAL, Outcome, State
from django_dcron.models import Attempt, Cursor, Job, Run, Statistics
from django_dcron.observability.doctor import account, history
from django_dcron.observability.doctor.account import Totals
from django_dcron.observability.doctor.findings import Findings
from django_dcron.observability.doctor.jobs import JobExaminer
from django_dcron.observability.doctor.window import Window, jobs_of
from tests.app.models import Witness

ALL = 10**9


@dataclass
class Verdict:
    expected: int = 0
    """Occurrences the schedules yield in the window."""
    runs: int = 0
    """Rows that account for them."""
    starts: int = 0
    """Witness rows."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"{self.expected} occurrences, {self.runs} runs, {self.starts} starts"
        return "\n".join([f"{counts}, {len(self.problems)} problems", *self.problems[:50]])


def check(after: datetime, until: datetime) -> Verdict:
    """Check all jobs for the window from ``after`` (not included) to ``until`` (included).

    Nobody may be writing meanwhile: stop the nodes, and let the workers finish. The schedules must have been the same
    throughout the window, and nothing pruned.
    """
    window = Window(after, until, now=until, runs_per_job=None, runs=None, steady=True)
    findings, totals = Findings(named=ALL), Totals()
    for jobs in jobs_of(window):
        JobExaminer(window, findings).examine(jobs)
        account.examine(jobs, window, findings, totals)
    # Of the runs not only those of the window: what was claimed ahead, or made by hand, has to be legal too.
    everything = Window(
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2200, 1, 1, tzinfo=UTC),
        now=until,
        runs=None,
    )
    history.examine(everything, findings)
    verdict = Verdict(totals.occurrences, totals.runs)
    verdict.problems = [f"{finding.code}: {finding}" for finding in findings.listed]
    for job in Job.objects.order_by("pk"):
        verdict.problems += [f"{job}: {problem}" for problem in _strictly(job, until)]
    _check_witnesses(verdict)
    return verdict


def _strictly(job: Job, until: datetime) -> Iterator[str]:
    """What holds when nobody is writing and nothing was ever pruned."""
    cursor = Cursor.objects.get(pk=job.pk)
    if job.enabled and (cursor.next_at is None or cursor.next_at <= until):
        yield f"its cursor stands at {cursor.next_at}: behind"
    statistics = Statistics.objects.get(pk=job.pk)
    for state in FINAL - {State.MISSED}:  # a missed row may stand for many
        counted, rows = getattr(statistics, state.value), Run.objects.filter(job=job, state=state).count()
        if counted != rows:
            yield f"{counted} counted as {state}, {rows} rows are"
    if Run.objects.filter(job=job, state__in=FINAL, slot__isnull=False).exists():
        yield "a finished run holds a slot"


def _check_witnesses(verdict: Verdict) -> None:
    starts = Counter(Witness.objects.values_list("run_id", "attempt"))
    verdict.starts = starts.total()
    attempts = {(str(run_id), number) for run_id, number in Attempt.objects.values_list("run_id", "number")}
    for (run_id, attempt), times in starts.items():
        if times > 1:
            verdict.problems.append(f"run {run_id} attempt {attempt} was started {times} times")
        if (run_id, attempt) not in attempts:
            verdict.problems.append(f"run {run_id} attempt {attempt} was started, and nothing says so")
    witnessed = Q(run__job__target="tests.app.tasks.witness", outcome=Outcome.SUCCEEDED)
    for run_id, number in Attempt.objects.filter(witnessed).values_list("run_id", "number"):
        if not starts[str(run_id), number]:
            verdict.problems.append(f"run {run_id} attempt {number} succeeded without a start")
