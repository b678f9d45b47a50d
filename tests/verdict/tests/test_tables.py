"""The raw tables as a history, and the verdict beside the doctor on the same rows."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from django_dcron.models import Attempt, Cursor, Job, Run, Statistics
from tests.app.models import Witness
from tests.checker import check
from tests.factories import make_job, make_run
from tests.verdict.history import History, Start
from tests.verdict.judgement import Verdict, judge
from tests.verdict.tables import read_history

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
T = datetime(2026, 3, 1, 12, tzinfo=UTC)
UNTIL = T + 3 * SECOND
TARGET = "tests.app.tasks.witness"


def ended_run(job: Job, at: datetime) -> Run:
    run = make_run(job, "running", scheduled_at=at, due_at=at, claimed_at=at, started_at=at)
    Attempt.objects.filter(run=run).update(
        outcome="succeeded", started_at=at, finished_at=at + SECOND / 2
    )
    Run.objects.filter(pk=run.pk).update(state="succeeded", finished_at=at + SECOND / 2)
    Witness.objects.create(run_id=run.pk, job=job, scheduled_at=at, attempt=1, worker_pid=1)
    return run


@pytest.fixture
def job() -> Job:
    """A job with three correct runs, one per second."""
    job = make_job(target=TARGET, misfire_grace=90 * SECOND, max_attempts=2, retry_jitter=0.25)
    for second in (1, 2, 3):
        ended_run(job, T + second * SECOND)
    Cursor.objects.update(next_at=UNTIL + SECOND, previous_at=UNTIL)
    Statistics.objects.update(succeeded=3)
    return job


def read() -> History:
    starts = [
        Start(row.run_id, row.attempt, row.job, row.scheduled_at, row.scheduled_at, "1")
        for row in Witness.objects.all()
    ]
    ended = [Start(**{**vars(start), "ended_at": start.began_at + SECOND / 4}) for start in starts]
    with connection.cursor() as cursor:
        return read_history(cursor, T, UNTIL, ended, witnessed=[TARGET], is_steady=True)


def verdict() -> Verdict:
    return judge(read())


def test_history_has_the_values_of_the_rows(job: Job) -> None:
    history = read()
    (read_job,) = history.jobs
    names = (
        "id",
        "schedule",
        "timezone",
        "enabled",
        "misfire_policy",
        "misfire_grace",
        "catchup_limit",
        "start_deadline",
        "overlap_policy",
        "max_attempts",
        "retry_backoff",
        "retry_backoff_factor",
        "retry_backoff_max",
        "retry_jitter",
        "starts_at",
    )
    assert [getattr(read_job, name) for name in names] == [getattr(job, name) for name in names]
    assert (read_job.name, read_job.next_at) == (str(job), UNTIL + SECOND)
    assert not read_job.limited
    runs = {str(run.pk): run for run in Run.objects.all()}
    assert runs.keys() == {run.id for run in history.runs}
    for run in history.runs:
        row = runs[run.id]
        assert (run.scheduled_at, run.state) == (row.scheduled_at, row.state)
        assert (run.due_at, run.finished_at) == (row.due_at, row.finished_at)
    assert {attempt.run for attempt in history.attempts} == set(runs)
    assert History.from_json(history.to_json()).runs == history.runs


def test_history_of_some_jobs_has_no_rows_of_the_others(job: Job) -> None:
    ended_run(make_job(target=TARGET), UNTIL)
    with connection.cursor() as cursor:
        history = read_history(cursor, T, UNTIL, jobs=(job.pk, job.pk))
    assert [each.id for each in history.jobs] == [each.job for each in history.counters] == [job.pk]
    assert {run.job for run in history.runs} == {job.pk}
    assert len(history.runs) == 3
    assert {attempt.run for attempt in history.attempts} == {run.id for run in history.runs}


def test_correct_rows_have_no_findings(job: Job) -> None:
    judged = verdict()
    assert judged.findings == ()
    assert (judged.totals.occurrences, judged.totals.runs, judged.totals.starts) == (3, 3, 3)


def first() -> Run:
    return Run.objects.earliest("scheduled_at")


def half_a_second_off() -> None:
    make_run(Job.objects.get(), scheduled_at=T + 1.5 * SECOND)


BREACHES: dict[str, Callable[[], object]] = {
    "lost": lambda: first().delete(),
    "duplicated": lambda: Run.objects.filter(scheduled_at=UNTIL).update(
        missed_before=2, missed_from=T + SECOND
    ),
    "off_schedule": half_a_second_off,
    "starts": lambda: Witness.objects.all().delete(),
    "attempts": lambda: Attempt.objects.update(number=2),
    "behind": lambda: Cursor.objects.update(next_at=UNTIL),
    "unfinished": lambda: Run.objects.update(finished_at=None),
    "statistics": lambda: Statistics.objects.update(succeeded=4),
    "not_judged": lambda: Cursor.objects.update(problem="unreadable"),
}


@pytest.mark.parametrize("rule", BREACHES)
def test_doctor_and_verdict_find_the_same_breach(job: Job, rule: str) -> None:
    assert not check(T, UNTIL).problems
    BREACHES[rule]()
    assert check(T, UNTIL).problems
    assert rule in {finding.rule for finding in verdict().findings}
