"""The checker reports each kind of fault."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_dcron.models import Attempt, Cursor, Job, Run, Statistics
from tests.app.models import Witness
from tests.checker import check
from tests.factories import make_job, make_run

pytestmark = pytest.mark.django_db

T = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
UNTIL = T + timedelta(seconds=3)


@pytest.fixture
def job() -> Job:
    """A job with three correct runs, one per second."""
    job = make_job(target="tests.app.tasks.witness")
    for second in (1, 2, 3):
        at = T + timedelta(seconds=second)
        run = make_run(job, "running", scheduled_at=at, due_at=at, started_at=at)
        Attempt.objects.filter(run=run).update(outcome="succeeded", finished_at=at)
        Run.objects.filter(pk=run.pk).update(state="succeeded", finished_at=at)
        Witness.objects.create(run_id=run.pk, job=job, scheduled_at=at, attempt=1, worker_pid=1)
    Cursor.objects.update(next_at=UNTIL + timedelta(seconds=1), previous_at=UNTIL)
    Statistics.objects.update(succeeded=3)
    return job


def first() -> Run:
    return Run.objects.earliest("scheduled_at")


def test_correct_rows_have_no_problems(job: Job) -> None:
    verdict = check(T, UNTIL)
    assert verdict.problems == []
    assert (verdict.expected, verdict.runs, verdict.starts) == (3, 3, 3)


PAST = "@at 2026-03-01T11:00:00"


@pytest.fixture
def follower(job: Job) -> Job:
    """A job without further occurrences that runs after the other job."""
    return make_job(schedule=PAST, after={job.name: "ended"})


def test_job_that_follows_another_can_have_no_further_occurrence(follower: Job) -> None:
    assert check(T, UNTIL).problems == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"after": {}}, "behind"), ({"schedule": "* * * * * *"}, "cursor_stopped")],
)
def test_other_job_without_a_next_occurrence_is_reported(
    follower: Job, fields: dict[str, Any], problem: str
) -> None:
    Job.objects.filter(pk=follower.pk).update(**fields)
    schedule = Job.objects.get(pk=follower.pk).schedule
    Cursor.objects.filter(pk=follower.pk).update(schedule=schedule)
    verdict = check(T, UNTIL)
    assert any(problem in each for each in verdict.problems), str(verdict)


@pytest.mark.parametrize(
    ("breach", "problem"),
    [
        (lambda: first().delete(), "occurrence_missing"),
        (
            lambda: Run.objects.filter(scheduled_at=UNTIL).update(
                missed_before=2, missed_from=T + timedelta(seconds=1)
            ),
            "occurrence_counted_twice",
        ),
        (
            lambda: make_run(Job.objects.get(), scheduled_at=T + timedelta(seconds=1.5)),
            "run_off_schedule",
        ),
        (
            lambda: Witness.objects.create(
                run_id=first().pk, job="j", scheduled_at=T, attempt=1, worker_pid=2
            ),
            "was started 2 times",
        ),
        (lambda: Witness.objects.all().delete(), "succeeded without a start"),
        (lambda: Attempt.objects.all().delete(), "was started without a record"),
        (lambda: Attempt.objects.update(outcome=""), "attempt_open"),
        (lambda: Attempt.objects.update(number=2), "attempts_wrong"),
        (lambda: Attempt.objects.update(outcome="failed"), "outcome_contradicts"),
        (lambda: Run.objects.update(finished_at=None), "finished_without_time"),
        (
            lambda: Run.objects.filter(pk=first().pk).update(slot="running"),
            "a finished run holds a slot",
        ),
        (lambda: Run.objects.update(started_at=T - timedelta(hours=1)), "started_early"),
        (lambda: Run.objects.update(state="skipped"), "attempts_wrong"),
        (lambda: Cursor.objects.update(next_at=UNTIL), "behind"),
        (lambda: Cursor.objects.update(next_at=UNTIL + timedelta(seconds=2)), "cursor_wrong"),
        (lambda: Cursor.objects.update(problem="unreadable"), "quarantined"),
        (lambda: Cursor.objects.update(timezone="Europe/Berlin"), "cursor_outdated"),
        (
            lambda: Statistics.objects.update(succeeded=4),
            "the statistics count 4 runs as succeeded, but there are 3",
        ),
    ],
)
def test_each_breach_is_reported(job: Job, breach: Callable[[], object], problem: str) -> None:
    breach()
    verdict = check(T, UNTIL)
    assert any(problem in each for each in verdict.problems), str(verdict)
