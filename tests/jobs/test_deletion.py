"""A deleted job keeps its history, and nothing else. ``erase`` removes the history, too."""

from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from django.db import transaction

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.exceptions import Conflict, NotPossible
from django_dcron.jobs import chains, deletion
from django_dcron.jobs.attempt_end import end_attempt
from django_dcron.models import (
    AlertCheck,
    Attempt,
    Calendar,
    Cursor,
    Definition,
    Incident,
    Job,
    Limit,
    LimitPlace,
    Link,
    PendingCount,
    Run,
    Statistics,
)
from django_dcron.models.run import JOB_DELETED
from django_dcron.policies.lifecycle import FINAL, UNFINISHED, Outcome, State, Trigger
from django_dcron.runs import transitions
from django_dcron.runs.completion import Ending
from django_dcron.scheduler.pruner import PAUSE_BETWEEN_ROUNDS, Pruner
from tests.execution.conftest import deliver, reread, state_of
from tests.factories import make_idle_job, make_job, make_run

pytestmark = pytest.mark.django_db

SUCCEEDED = Ending(Outcome.SUCCEEDED)
OF_EXISTING_JOBS = (Cursor, Statistics, PendingCount, AlertCheck, Incident, Link, LimitPlace)


def deleted(job: Job) -> Job:
    return Job.with_deleted.get(pk=job.pk)


def start(run: Run) -> Attempt:
    token = uuid4()
    assert deliver(run, token=token)
    return Attempt.objects.get(token=token)


# --- what stays -----------------------------------------------------------------------------------


def test_finished_runs_stay_and_unfinished_runs_are_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "BATCH_SIZE", 2)
    job = make_idle_job(overlap_policy="allow")
    finished = [make_run(job, state, finished_at=database_now("default")) for state in FINAL]
    unfinished = [make_run(job, state) for state in UNFINISHED]

    control.delete(job)

    assert {state_of(run): reread(run).reason for run in finished} == dict.fromkeys(FINAL, "")
    for run in map(reread, unfinished):
        assert (run.state, run.reason, run.slot) == (State.CANCELLED, JOB_DELETED, None)
        assert run.finished_at is not None


def test_followers_are_read_in_the_order_of_their_keys() -> None:
    job = make_idle_job()
    expected = [make_idle_job(name=name, after={str(job): "ended"}).pk for name in ("b", "a")]
    assert chains.followers(job, "default") == expected


def test_nothing_but_the_history_stays() -> None:
    limit = control.save_limit(Limit(name="api", max_running=1))
    first = make_idle_job()
    follows = {"schedule": "@never", "after": {str(first): "ended"}}
    job = make_job(limit=limit, overlap_policy="allow", **follows)
    follower = make_idle_job(after={str(job): "ended"})
    run = make_run(job)
    start(run)
    waiting = make_run(job)
    assert deliver(waiting) is None
    Statistics.objects.get_or_create(job=job)
    PendingCount.objects.create(job=job, counter="failed", ended_at=run.due_at)
    AlertCheck.objects.create(job=job, success_at=run.due_at)
    Incident.objects.create(
        job=job, fingerprint="x", first_seen_at=run.due_at, last_seen_at=run.due_at
    )

    control.delete(job)

    for model in OF_EXISTING_JOBS:
        field = "run__job" if model is LimitPlace else "job"
        assert not model.objects.filter(**{field: job.pk}).exists(), model
    assert not Link.objects.filter(after=job.pk).exists()
    assert Job.objects.get(pk=follower.pk).after == {}
    assert {state_of(run), state_of(waiting)} == {State.CANCELLED}
    assert not reread(run).limited
    control.delete_limit(limit)  # no job and no run uses it
    Job.objects.get(pk=first.pk)


def test_deleted_job_is_in_no_list_and_frees_its_names() -> None:
    calendar = control.save_calendar(Calendar(name="bank days", dates="2026-12-25"))
    job = make_idle_job(name="report", calendar=calendar, import_source="x", import_key="1")
    make_run(job, "succeeded")

    control.delete(job)

    assert not Job.objects.filter(pk=job.pk).exists()
    row = deleted(job)
    assert (row.enabled, row.calendar_id, row.import_key, row.after) == (False, None, None, {})
    assert (row.name, row.version) == (f"report (deleted {job.pk})", job.version + 1)
    assert row.deleted_at is not None
    control.delete_calendar(calendar)
    again = make_idle_job(name="report", import_source="x", import_key="1")
    make_run(again, "succeeded")
    control.delete(again)
    assert deleted(again).name == f"report (deleted {again.pk})"


def test_name_of_a_deleted_job_is_not_too_long() -> None:
    job = make_idle_job(name="n" * 120)
    make_run(job, "succeeded")
    control.delete(job)
    row = deleted(job)
    assert len(row.name) == 120
    assert row.name.endswith(f" (deleted {job.pk})")


def test_runs_claimed_ahead_are_no_history() -> None:
    job = make_job()
    ahead = database_now("default") + timedelta(seconds=5)
    make_run(job, scheduled_at=ahead, due_at=ahead)

    control.delete(job)

    assert not Run.objects.exists()
    assert not Job.with_deleted.filter(pk=job.pk).exists()


def test_deletion_is_refused_for_a_newer_version_or_a_deleted_job() -> None:
    job = make_idle_job()
    make_run(job, "succeeded")
    with pytest.raises(Conflict):
        control.delete(job, expected_version=job.version + 1)
    control.delete(job)
    for change in (control.delete, control.save, control.pause):
        with pytest.raises(Conflict):
            change(job)


@pytest.mark.parametrize("runs", [0, 1])
def test_erasing_deletes_the_history(runs: int) -> None:
    job, other = make_idle_job(), make_idle_job()
    for _ in range(runs):
        start(make_run(job))
    kept = make_run(other, "succeeded")

    control.delete(job, erase=True)

    assert [*Job.with_deleted.all()] == [other]
    assert [*Run.objects.all()] == [kept]
    assert not Attempt.objects.exists()
    assert not Definition.objects.filter(job_id=job.pk).exists()


# --- nothing runs any more ------------------------------------------------------------------------


def test_worker_of_a_cancelled_run_stops_and_its_outcome_is_late() -> None:
    job = make_idle_job()
    run = make_run(job)
    attempt = start(run)
    stale = reread(run)

    control.delete(job)

    assert not transitions.renew_heartbeat(run.pk, 1)
    assert not end_attempt(stale, 1, SUCCEEDED, attempt.token)
    attempt.refresh_from_db()
    assert (attempt.outcome, attempt.message) == (Outcome.CANCELLED, JOB_DELETED)
    assert attempt.late_outcome == Outcome.SUCCEEDED
    assert (state_of(run), Statistics.objects.filter(job=job.pk).exists()) == ("cancelled", False)


def test_runs_of_a_deleted_job_can_not_be_created() -> None:
    job = make_idle_job()
    run = make_run(job, "succeeded")
    stale = reread(run)
    control.delete(job)
    attempts = (
        lambda: control.trigger(job),
        lambda: control.rerun(stale),
        lambda: control.rerun(reread(run)),
    )
    for create in attempts:
        with pytest.raises(NotPossible) as refusal:
            create()
        assert refusal.value.code == "deleted"
    other = make_idle_job()
    refused, made = control.trigger_many([job, other])
    assert isinstance(refused, NotPossible)
    assert isinstance(made, Run)
    assert Run.objects.filter(job=job).count() == 1


@pytest.mark.parametrize("trigger", Trigger)
def test_run_inserted_during_the_deletion_is_cancelled_instead_of_started(trigger: str) -> None:
    job = make_idle_job()
    make_run(job, "succeeded")
    control.delete(job)
    inserted = make_run(deleted(job), trigger=trigger)

    assert deliver(inserted) is None

    run = reread(inserted)
    assert (run.state, run.reason) == (State.CANCELLED, JOB_DELETED)
    assert not Attempt.objects.exists()
    assert not Statistics.objects.filter(job=job.pk).exists()


def test_deletion_in_a_transaction_that_fails_changes_nothing() -> None:
    job = make_idle_job()
    run = make_run(job)
    with transaction.atomic():
        control.delete(job)
        transaction.set_rollback(True)
    assert Job.objects.get(pk=job.pk).name == job.name
    assert state_of(run) == State.PENDING
    assert Cursor.objects.filter(pk=job.pk).exists()


# --- the end of the history -----------------------------------------------------------------------


def prune() -> None:
    rests: list[float] = []

    def rest(seconds: float) -> bool:
        rests.append(seconds)
        return PAUSE_BETWEEN_ROUNDS in rests

    clock = SimpleNamespace(now=lambda: database_now("default"), monotonic=lambda: 0.0)
    membership = SimpleNamespace(name="a", shards=frozenset(range(64)), namespace="")
    Pruner(membership, clock, rest).run()  # type: ignore[arg-type]


def test_last_run_of_a_deleted_job_is_pruned_and_then_the_job() -> None:
    long_ago = database_now("default") - timedelta(days=400)
    times = {"scheduled_at": long_ago, "due_at": long_ago, "finished_at": long_ago}
    kept, job, recent = make_idle_job(), make_idle_job(), make_idle_job()
    for each in (kept, job):
        make_run(each, "succeeded", **times)
    run = make_run(recent)
    start(run)
    Definition.objects.create(
        id=uuid4(), job_id=job.pk, version=1, content={}, current_since=long_ago
    )
    for each in (job, recent):
        control.delete(each)

    prune()

    assert {*Job.with_deleted.all()} == {kept, recent}
    assert Run.objects.filter(job=kept).exists()
    assert state_of(run) == State.CANCELLED
    assert not Definition.objects.filter(job_id=job.pk).exists()
