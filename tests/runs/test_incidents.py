"""Failed attempts become incidents, each attempt once, and a success resolves them."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F

from django_dcron.db.now import database_now
from django_dcron.jobs.attempt_end import declare_lost, end_attempt
from django_dcron.models import Attempt, Incident, Job, Run, Statistics
from django_dcron.models.incident import NOT_GROUPED
from django_dcron.policies.incidents import IncidentState
from django_dcron.policies.lifecycle import Outcome, State
from django_dcron.runs import endings
from django_dcron.runs import incidents as module
from django_dcron.runs.completion import Ending
from django_dcron.runs.incidents import group_failed_attempts, prune_incidents, resolve_recovered
from django_dcron.targets.shadow import PREFIX
from django_dcron.utils import sync_points
from tests.execution.conftest import attempt_of, reread
from tests.factories import make_idle_job, make_run

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
ALL_SHARDS = range(64)


def failure(message: str = "no", exception_class: str = "shop.Refused") -> Ending:
    return Ending(Outcome.FAILED, exception_class=exception_class, message=message)


def fail(job: Job, ending: Ending | None = None) -> Run:
    run = make_run(job, "running")
    assert end_attempt(run, 1, ending or failure(), attempt_of(run).token)
    return run


def succeed(job: Job) -> Run:
    run = make_run(job, "running")
    assert end_attempt(run, 1, Ending(Outcome.SUCCEEDED), attempt_of(run).token)
    return run


def make_older(job: Job) -> None:
    """Move all that happened to an hour earlier, so that the order of events is known."""
    Attempt.objects.filter(run__job=job).update(finished_at=F("finished_at") - HOUR)
    Statistics.objects.filter(job=job).update(last_finished_at=F("last_finished_at") - HOUR)
    for incident in Incident.objects.filter(job=job):
        incident.first_seen_at -= HOUR
        incident.last_seen_at -= HOUR
        if incident.resolved_at:
            incident.resolved_at -= HOUR
        incident.save()


def only_incident() -> Incident:
    return Incident.objects.get()


def test_failed_attempts_that_are_alike_become_one_incident() -> None:
    job = make_idle_job()
    first, second = fail(job, failure("order 1 is lost")), fail(job, failure("order 22 is lost"))
    Attempt.objects.filter(run=first).update(finished_at=F("finished_at") - HOUR)
    assert group_failed_attempts() == 2
    incident = only_incident()
    assert (incident.job_id, incident.count, incident.state) == (job.pk, 2, IncidentState.OPEN)
    assert (incident.exception_class, incident.message) == ("shop.Refused", "order 22 is lost")
    assert incident.first_seen_at == attempt_of(first).finished_at
    assert incident.last_seen_at == attempt_of(second).finished_at
    assert (incident.last_run, incident.last_attempt) == (second.pk, attempt_of(second).pk)
    assert sum(count for _, count in incident.trend) == 2
    assert {attempt_of(run).incident for run in (first, second)} == {incident.pk}
    assert not incident.is_returning


def test_each_attempt_is_counted_once_however_often_failures_are_grouped() -> None:
    fail(make_idle_job())
    assert [group_failed_attempts() for _ in range(3)] == [1, 0, 0]
    assert only_incident().count == 1


def test_jobs_exceptions_and_messages_have_their_own_incidents() -> None:
    one, other = make_idle_job(), make_idle_job()
    for job, ending in (
        (one, failure()),
        (other, failure()),
        (one, failure("never")),
        (one, failure("no", "shop.Gone")),
    ):
        fail(job, ending)
    group_failed_attempts()
    assert sorted(Incident.objects.values_list("job_id", flat=True)) == [one.pk] * 3 + [other.pk]


def test_retried_lost_and_timed_out_attempts_count_but_no_others() -> None:
    job = make_idle_job(max_attempts=2, retry_jitter=0)
    retried = fail(job)
    assert reread(retried).state == State.PENDING
    lost = make_run(job, "running", attempt=2)
    assert declare_lost(lost, "the worker is gone")
    fail(job, Ending(Outcome.TIMED_OUT, message="took too long"))
    fail(job, Ending(Outcome.CANCELLED, exception_class="RunCancelled"))
    succeed(job)
    make_run(job, "running")
    assert group_failed_attempts() == 3
    found = Incident.objects.order_by("message").values_list("exception_class", "message")
    assert list(found) == [
        ("shop.Refused", "no"),
        ("", "the worker is gone"),
        ("", "took too long"),
    ]
    assert Attempt.objects.filter(incident=None).count() == 3


def test_run_that_fails_without_an_attempt_becomes_an_incident_at_once() -> None:
    run = make_run(make_idle_job(), "pending")
    assert endings.end_unstarted(run, State.FAILED, "UnknownTarget: no target 'x'")
    incident = only_incident()
    assert (incident.exception_class, incident.message) == ("UnknownTarget", "no target 'x'")
    assert (incident.count, incident.last_run, incident.last_attempt) == (1, run.pk, None)
    assert not endings.end_unstarted(run, State.FAILED, "UnknownTarget: no target 'x'")
    assert only_incident().count == 1


def test_a_success_resolves_and_a_later_failure_returns() -> None:
    job = make_idle_job()
    fail(job)
    group_failed_attempts()
    assert resolve_recovered() == 0
    make_older(job)
    succeed(job)
    assert [resolve_recovered() for _ in range(2)] == [1, 0]
    resolved = only_incident()
    assert resolved.state == IncidentState.RESOLVED
    assert resolved.resolved_at == Statistics.objects.get(job=job).last_finished_at
    make_older(job)
    fail(job)
    group_failed_attempts()
    returned = only_incident()
    assert (returned.state, returned.count, returned.resolved_at) == ("open", 2, None)
    assert returned.is_returning
    assert returned.returned_at == returned.last_seen_at
    assert resolve_recovered() == 0


def test_only_a_success_that_executes_the_target_resolves() -> None:
    job = make_idle_job()
    fail(job)
    group_failed_attempts()
    make_older(job)
    target = job.target
    for job.target, resolved in ((f"{PREFIX}{target}", 0), (target, 1)):
        succeed(job)
        job.target = target  # the handover is done before the check
        assert resolve_recovered() == resolved


def test_a_failure_that_is_grouped_after_a_later_success_is_resolved() -> None:
    job = make_idle_job()
    fail(job)
    make_older(job)
    succeed(job)
    group_failed_attempts()
    assert resolve_recovered() == 1
    fail(job)
    succeed(job)
    Attempt.objects.filter(incident=NOT_GROUPED).update(finished_at=F("finished_at") - 2 * HOUR)
    group_failed_attempts()
    assert (only_incident().state, only_incident().count) == (IncidentState.RESOLVED, 2)
    assert only_incident().returned_at is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (IncidentState.ACKNOWLEDGED, IncidentState.RESOLVED),
        (IncidentState.MUTED, IncidentState.MUTED),
    ],
)
def test_states_set_by_users_outlast_failures(before: IncidentState, after: IncidentState) -> None:
    job = make_idle_job()
    fail(job)
    group_failed_attempts()
    Incident.objects.update(state=before, changed_by="kim", note="known")
    fail(job)
    group_failed_attempts()
    incident = only_incident()
    assert (incident.state, incident.count, incident.changed_by) == (before, 2, "kim")
    make_older(job)
    succeed(job)
    resolve_recovered()
    assert only_incident().state == after


def test_nodes_group_the_failures_of_their_shards_and_namespace() -> None:
    one, other = make_idle_job(namespace="a"), make_idle_job(namespace="b")
    fail(one)
    fail(other)
    shards = {one.pk % 64}
    assert group_failed_attempts(shards, "b") == 0
    assert group_failed_attempts(shards) == 1
    assert only_incident().job_id == one.pk
    assert group_failed_attempts(job_id=one.pk) == 0
    assert group_failed_attempts(job_id=other.pk) == 1


def test_messages_beyond_the_limit_share_an_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_PER_JOB", 3)
    job = make_idle_job()
    for letter in "abcdef":
        fail(job, failure(letter))
    group_failed_attempts()
    fail(job, failure("g"))
    group_failed_attempts()
    assert sum(Incident.objects.values_list("count", flat=True)) == 7
    assert Incident.objects.get(message="").count == 4
    assert Incident.objects.count() == 4


def test_only_incidents_that_were_resolved_long_ago_are_pruned() -> None:
    job = make_idle_job()
    for message in ("old", "open", "new"):
        fail(job, failure(message))
    group_failed_attempts()
    long_ago = database_now("default") - module.RETENTION - HOUR
    Incident.objects.exclude(message="new").update(last_seen_at=long_ago)
    Incident.objects.exclude(message="open").update(state=IncidentState.RESOLVED)
    assert prune_incidents(ALL_SHARDS) == 1
    assert set(Incident.objects.values_list("message", flat=True)) == {"open", "new"}


def test_incidents_are_deleted_with_their_job() -> None:
    job = make_idle_job()
    fail(job)
    group_failed_attempts()
    job.delete()
    assert not Incident.objects.exists()


class Stopped(Exception):
    """The process ends here."""


@pytest.fixture
def stop_in_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(point: str) -> None:
        if point == "incidents.grouped":
            raise Stopped

    monkeypatch.setattr(sync_points, "listener", stop)


def test_a_process_that_dies_before_the_commit_has_counted_nothing(
    stop_in_transaction: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(make_idle_job())
    with pytest.raises(Stopped):
        group_failed_attempts()
    assert not Incident.objects.exists()
    monkeypatch.setattr(sync_points, "listener", None)
    assert group_failed_attempts() == 1
    assert only_incident().count == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time")
def test_two_processes_that_read_the_same_failures_count_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_idle_job()
    for _ in range(5):
        fail(job)
    read = threading.Barrier(2)
    ungrouped = module._ungrouped

    def read_together(*args: Any) -> Any:
        failures = ungrouped(*args)
        read.wait(30)
        return failures

    monkeypatch.setattr(module, "_ungrouped", read_together)

    def group() -> None:
        try:
            group_failed_attempts()
        finally:
            connection.close()

    threads = [threading.Thread(target=group) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert only_incident().count == 5
    assert not Attempt.objects.filter(incident=NOT_GROUPED).exists()
