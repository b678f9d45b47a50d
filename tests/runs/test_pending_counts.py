"""Another session locks a job's statistics. The ends of its runs are counted without waiting."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import NoReturn

import pytest
from django.db import OperationalError

from django_dcron.conf import settings
from django_dcron.db.session_limits import WaitLimits
from django_dcron.execution.executor import execute
from django_dcron.models import Attempt, Job, PendingCount, Run, Statistics
from django_dcron.models.statistics import PendingCountQuerySet, count_ended_runs, pending_counts
from django_dcron.policies.lifecycle import Outcome, State
from django_dcron.policies.slots import Slot
from django_dcron.runs.completion import Ending, complete_attempt
from django_dcron.runs.pending_counts import add_pending_counts
from django_dcron.runs.retention import with_pruned_history
from tests.factories import make_idle_job, make_run
from tests.lock_holder import keeping_locked
from tests.threads import in_threads

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgresql,
    pytest.mark.mariadb,
]


@pytest.fixture(autouse=True)
def short_waits() -> Iterator[None]:
    """Let statements fail that wait for a lock for more than a second."""
    limits = WaitLimits("default")
    limits.impose(lock=timedelta(seconds=1), silence=timedelta(minutes=1))
    yield
    limits.lift()


def locked(job: Job) -> AbstractContextManager[None]:
    return keeping_locked(Statistics.objects.filter(pk=job.pk))


def counted(job: Job) -> tuple[int, int, int, str]:
    row = Statistics.objects.get(pk=job.pk)
    return row.succeeded, row.failed, row.consecutive_failures, row.last_state


def add_all() -> int:
    return add_pending_counts(range(settings.SHARDS))


def succeed(job: Job) -> None:
    end(job, Ending(Outcome.SUCCEEDED))


def fail(job: Job) -> None:
    end(job, Ending(Outcome.FAILED, message="broken"))


def end(job: Job, ending: Ending) -> None:
    run = make_run(job, "running")
    token = Attempt.objects.get(run=run).token
    assert complete_attempt(run, 1, ending, token).won


def test_worker_finishes_a_run_whose_statistics_are_locked() -> None:
    job = make_idle_job()
    run = make_run(job, "queued")
    with locked(job):
        assert execute(run.pk, 1, worker="w")
        run.refresh_from_db()
        assert (run.state, run.slot) == ("succeeded", None)
        assert Attempt.objects.get().outcome == "succeeded"
        assert add_all() == 0, "a node doesn't wait, either"
        assert counted(job) == (0, 0, 0, "")
    assert add_all() == 1
    assert counted(job) == (1, 0, 0, "succeeded")
    run.refresh_from_db()
    assert add_all() == 0
    assert not PendingCount.objects.exists()


@pytest.mark.parametrize(
    "overlap_policy", ["allow", "queue_all"], ids=["usual way", "in a transaction"]
)
def test_each_end_counts_once_and_in_order(overlap_policy: str) -> None:
    job = make_idle_job(overlap_policy=overlap_policy)
    succeed(job)
    with locked(job):
        fail(job)
        succeed(job)
        fail(job)
    assert counted(job) == (1, 0, 0, "succeeded")
    fail(job)
    assert counted(job) == (1, 0, 0, "succeeded"), "later counts wait for the earlier ones"
    assert add_all() == 4
    assert counted(job) == (2, 3, 2, "failed")
    fail(job)
    assert counted(job) == (2, 4, 3, "failed")


def test_a_run_that_does_not_start_is_counted_without_waiting() -> None:
    job = make_idle_job(overlap_policy="skip")
    make_run(job, "running", slot=Slot.RUNNING)
    run = make_run(job, "queued")
    with locked(job):
        assert not execute(run.pk, 1, worker="w")
        run.refresh_from_db()
        assert run.state == "skipped"
    assert add_all() == 1
    assert Statistics.objects.get().skipped == 1


def test_only_locked_statistics_get_pending_counts() -> None:
    jobs = [make_idle_job() for _ in range(3)]
    Statistics.objects.filter(pk=jobs[2].pk).delete()
    with locked(jobs[0]):
        count_ended_runs([job.pk for job in jobs], State.MISSED, 5)
    assert [Statistics.objects.get(pk=job.pk).missed for job in jobs] == [0, 5, 5]
    assert add_all() == 1
    assert [Statistics.objects.get(pk=job.pk).missed for job in jobs] == [5, 5, 5]


def test_a_late_success_is_counted_without_waiting() -> None:
    job = make_idle_job()
    run = make_run(job, "running")
    token = Attempt.objects.get().token
    lost, late = Ending(Outcome.LOST, message="gone"), Ending(Outcome.SUCCEEDED)
    assert complete_attempt(run, 1, lost).won
    with locked(job):
        assert not complete_attempt(run, 1, late, token).won
    assert add_all() == 1
    row = Statistics.objects.get()
    assert (row.late_successes, row.succeeded, row.last_state) == (1, 0, "failed")


def test_a_run_of_a_shadow_is_counted_without_waiting() -> None:
    job = make_idle_job(target="shadow:tests.app.tasks.ok")
    fail(job)
    with locked(job):
        succeed(job)
    assert pending_counts([job.pk])[job.pk] == {"shadow_runs": 1, "succeeded": 1}
    assert add_all() == 1
    row = Statistics.objects.get()
    assert counted(job) == (1, 1, 0, "succeeded")
    assert (row.shadow_runs, row.last_was_shadow) == (1, True)
    job.target = "tests.app.tasks.ok"
    with locked(job):
        succeed(job)
    assert add_all() == 1
    row.refresh_from_db()
    assert (row.succeeded, row.shadow_runs, row.last_was_shadow) == (2, 1, False)


def test_counts_are_neither_lost_nor_added_twice_by_an_aborted_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_idle_job()
    with locked(job):
        fail(job)

    def abort(*given: object, **columns: object) -> NoReturn:
        raise OperationalError("gone")

    with monkeypatch.context() as broken:
        broken.setattr(PendingCountQuerySet, "delete", abort)
        with pytest.raises(OperationalError):
            add_all()
    assert (counted(job), PendingCount.objects.count()) == ((0, 0, 0, ""), 1)
    assert add_all() == 1
    assert counted(job) == (0, 1, 1, "failed")


def test_an_older_count_changes_only_the_totals() -> None:
    job = make_idle_job()
    with locked(job):
        fail(job)
    PendingCount.objects.update(counter="succeeded")
    Statistics.objects.update(
        failed=2,
        consecutive_failures=2,
        last_state="failed",
        last_finished_at=PendingCount.objects.get().ended_at + timedelta(seconds=1),
    )
    assert add_all() == 1
    assert counted(job) == (1, 2, 2, "failed")


def test_counts_of_other_shards_and_deleted_jobs() -> None:
    job, deleted = make_idle_job(), make_idle_job()
    for each in (job, deleted):
        with locked(each):
            fail(each)
    PendingCount.objects.filter(job=deleted.pk).update(job=deleted.pk + 10_000_000)
    other = {*range(settings.SHARDS)} - {job.pk % settings.SHARDS}
    assert add_pending_counts({(job.pk + 1) % settings.SHARDS} & other) == 0
    assert add_all() == 1
    assert not PendingCount.objects.exists()


def test_deleting_a_job_deletes_its_pending_counts() -> None:
    job = make_idle_job()
    with locked(job):
        fail(job)
    job.delete()
    assert not PendingCount.objects.exists()


def test_pending_counts_are_no_sign_of_a_pruned_history() -> None:
    job = make_idle_job()
    with locked(job):
        fail(job)
    assert with_pruned_history([job.pk]) == set()
    Run.objects.all().delete()
    assert with_pruned_history([job.pk]) == {job.pk}


def test_simultaneous_ends_are_each_counted_once() -> None:
    """They don't wait for one another: each changes the statistics or adds a pending count."""
    job = make_idle_job(overlap_policy="allow")
    runs = [make_run(job, "running") for _ in range(40)]
    tokens = dict(Attempt.objects.values_list("run_id", "token"))

    def end_all(own_runs: list[Run]) -> None:
        for run in own_runs:
            assert complete_attempt(run, 1, Ending(Outcome.SUCCEEDED), tokens[run.pk]).won

    in_threads(*(partial(end_all, runs[first::4]) for first in range(4)), add_often)
    while add_all():
        pass
    assert counted(job) == (40, 0, 0, "succeeded")


def add_often() -> None:
    for _ in range(20):
        add_all()
