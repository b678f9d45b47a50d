"""Test the facts of the health verdict, and that every page shows the same verdict."""

import json
import os
import shlex
from collections.abc import Callable
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django import Settings

from django_dcron import control, targets
from django_dcron.db.now import database_now
from django_dcron.diagnosis import read_only, system_health
from django_dcron.diagnosis.doctor.findings import WARNINGS, Code
from django_dcron.diagnosis.failing_jobs import FAILS_AS_MUTED
from django_dcron.diagnosis.long_runs import USUAL_DURATION_NEEDS, find_long_runs
from django_dcron.diagnosis.scope import EVERYTHING
from django_dcron.diagnosis.system_health import latest_incident, read_facts, read_verdict
from django_dcron.jobs.audit.actor import Actor, acting
from django_dcron.jobs.audit.entries import IMPORTED
from django_dcron.jobs.batch_reading import JobToSave
from django_dcron.jobs.definitions import definition_id
from django_dcron.jobs.saving import save_change
from django_dcron.models import (
    Attempt,
    AuditEntry,
    Cursor,
    Incident,
    Job,
    Node,
    Run,
    Statistics,
    Via,
)
from django_dcron.models.job_states import EXHAUSTED, HANDED_BACK
from django_dcron.monitoring.metrics import catalog, cluster
from django_dcron.policies.health.facts import NamedCount, WaitingCount
from django_dcron.policies.health.problems import Problem, Severity
from django_dcron.policies.health.verdict import SystemStatus, assess
from django_dcron.policies.incidents import IncidentState
from django_dcron.targets.shadow import NOT_EXECUTED
from tests.factories import make_idle_job, make_job, make_node, make_run

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def long_lease(settings: Settings) -> None:
    """Make leases longer than any test."""
    settings.DCRON_LEASE = 10 * MINUTE
    settings.DCRON_REDELIVER_AFTER = 30 * MINUTE


@pytest.fixture
def now() -> datetime:
    return database_now("default")


@pytest.fixture
def job() -> Job:
    return make_idle_job(name="report")


def make_started_run(job: Job, at: datetime, state: str = "succeeded", **fields: Any) -> Run:
    """Create a run that a worker started."""
    run = make_run(job, "running", due_at=at, started_at=at, scheduled_at=at, **fields)
    Attempt.objects.filter(run=run).update(started_at=at, definition=definition_id(job))
    finished = None if state == "running" else at + SECOND
    Run.objects.filter(pk=run.pk).update(state=state, finished_at=finished)
    return run


def make_queued_run(job: Job, at: datetime, **fields: Any) -> Run:
    return make_run(job, "queued", due_at=at, queued_at=at, **fields)


def worker_replies(
    *workers: tuple[str, list[str], bool, list[str]], at: datetime
) -> dict[str, Any]:
    keys = ("name", "queues", "executes", "unknown_runs")
    return {
        "at": at.isoformat(),
        "replies": [dict(zip(keys, each, strict=True)) for each in workers],
    }


def make_incident(
    job: Job, fingerprint: str, seen_at: datetime, state: IncidentState = IncidentState.OPEN
) -> Incident:
    return Incident.objects.create(
        job=job,
        fingerprint=fingerprint,
        state=state,
        count=1,
        first_seen_at=seen_at,
        last_seen_at=seen_at,
    )


def problems() -> set[Problem]:
    return set(read_verdict().problems)


def test_empty_system_is_healthy() -> None:
    assert read_verdict().status is SystemStatus.OK


def test_working_system_is_healthy(job: Job, now: datetime) -> None:
    make_node()
    make_node("crashed", age=HOUR)
    make_started_run(job, now - MINUTE)
    make_queued_run(job, now)
    make_run(job)

    assert read_verdict().issues == ()
    facts = read_facts()
    assert (facts.live_nodes, facts.dead_nodes, facts.enabled_jobs, facts.queued) == (1, 1, 1, 1)
    assert facts.last_start == now - MINUTE
    assert facts.workers is None


# --- nodes --------------------------------------------------------------------------------------


def test_unserved_namespaces_are_listed(now: datetime) -> None:
    for namespace in ("billing", "sales", "old"):
        make_idle_job(namespace=namespace, enabled=namespace != "old")
    make_node(namespace="sales")
    assert read_facts().unserved.names == ("billing",)
    assert read_facts("sales").unserved.number == 0

    Node.objects.update(ticked_at=now - HOUR)
    facts = read_facts()
    assert (facts.stalled.names, facts.stalled_namespaces, facts.unserved.names) == (
        ("node-a",),
        1,
        ("billing",),
    )

    make_node("b", namespace="")
    facts = read_facts()
    assert (facts.stalled_namespaces, facts.unserved.number, facts.namespaces_overlap) == (
        0,
        0,
        True,
    )


def test_differing_nodes_are_listed(job: Job) -> None:
    make_node()
    make_node(
        "b",
        degraded=True,
        lock_error="out of memory",
        skew=-2 * SECOND,
        version="2",
        shard_count=16,
    )
    facts = read_facts()

    assert facts.degraded.names == facts.skewed.names == ("b",)
    assert facts.lock_error == "out of memory"
    assert facts.versions == ("1", "2")
    assert facts.shard_counts == (16, 64)


def test_nodes_without_broker_or_reliable_clock_are_listed(job: Job, now: datetime) -> None:
    make_node()
    make_node("b", broker_unreachable_since=now - MINUTE, clock_doubt=3 * SECOND)
    make_node(
        "c",
        broker_unreachable_since=now - HOUR,
        broker_error="out of memory",
        clock_doubt=-6 * SECOND,
    )
    make_node(
        "dead", heartbeat_at=now - HOUR, broker_unreachable_since=now - 2 * HOUR, clock_doubt=HOUR
    )
    facts = read_facts()

    assert facts.without_broker.names == facts.clock_doubted_by.names == ("b", "c")
    assert facts.without_broker_since == now - HOUR
    assert facts.broker_error == "out of memory"
    assert facts.clock_step == -6 * SECOND
    assert {Problem.BROKER_UNREACHABLE, Problem.CLOCK_IN_DOUBT} <= problems()


def test_database_is_checked_for_writes_only_without_working_node(
    job: Job, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def refuse_writes(using: str) -> bool:
        checked.append(using)
        return True

    monkeypatch.setattr(system_health, "refuses_writes", refuse_writes)
    make_node()
    assert (problems(), checked) == (set(), [])

    Node.objects.update(heartbeat_at=now - HOUR)
    assert problems() == {Problem.DATABASE_READ_ONLY}
    assert checked == ["default"]
    assert read_facts().dead_nodes == 0, "a live node can't write its heartbeat"


def test_writable_database_does_not_refuse_writes() -> None:
    assert not read_only.refuses_writes("default")


@pytest.mark.postgresql
def test_read_only_postgresql_refuses_writes() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL transaction_read_only = on")
    assert read_only.refuses_writes("default")


@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("variable", ["GLOBAL read_only", "SESSION tx_read_only"])
def test_read_only_mariadb_refuses_writes(variable: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET {variable} = 1")
        try:
            assert read_only.refuses_writes("default")
        finally:
            cursor.execute(f"SET {variable} = 0")
    assert not read_only.refuses_writes("default")


@pytest.mark.sqlite
def test_read_only_sqlite_refuses_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA query_only = 1")
        try:
            assert read_only.refuses_writes("default")
        finally:
            cursor.execute("PRAGMA query_only = 0")
    assert not read_only.refuses_writes("default")
    monkeypatch.setattr(read_only.os, "access", lambda path, mode: False)
    assert read_only.refuses_writes("default")
    monkeypatch.setitem(connection.settings_dict, "NAME", "file:dcron?mode=ro")
    assert read_only.refuses_writes("default")
    monkeypatch.setitem(connection.settings_dict, "NAME", tmp_path / "nothing-yet")
    assert not read_only.refuses_writes("default")


@pytest.mark.parametrize(
    ("fields", "warns"),
    [
        ({}, True),
        ({"shards": 1}, False),
        ({"degraded": True}, False),
        ({"ticked_at": None}, False),
        ({"starts": timedelta()}, False),
    ],
    ids=str,
)
def test_live_nodes_without_shards_are_a_warning(
    job: Job, now: datetime, fields: dict[str, Any], warns: bool
) -> None:
    def make_idle_node(name: str, starts: timedelta = -HOUR, **fields: Any) -> None:
        make_node(name, **{"shards": 0, "started_at": now + starts} | fields)

    make_idle_node("a")
    assert problems() == {Problem.NO_SHARD_LED}
    make_idle_node("b", **fields)
    assert (Problem.NO_SHARD_LED in problems()) is warns
    assert read_facts().without_shards.names == (("a", "b") if warns else ())


# --- jobs ---------------------------------------------------------------------------------------


def test_failing_jobs_are_reported(now: datetime) -> None:
    make_node()

    def job_with(failures: int, ended: datetime = now, **fields: Any) -> Job:
        job = make_idle_job(**fields)
        Cursor.objects.filter(pk=job.pk).update(next_at=now + HOUR)
        state = "failed" if failures else "succeeded"
        Statistics.objects.filter(pk=job.pk).update(
            consecutive_failures=failures,
            last_state=state,
            last_finished_at=ended,
            succeeded=9,
            failed=failures,
        )
        return job

    job_with(2)
    assert problems() == set()
    failing = job_with(3)
    job_with(5, enabled=False)
    job_with(0, ended=now - 2 * HOUR)
    assert problems() == {Problem.EVERY_RUN_FAILS}
    facts = read_facts()
    assert (facts.ran_lately, facts.failed_lately.number, facts.failures_lately) == (2, 2, 5)

    well = job_with(0)
    assert problems() == {Problem.JOBS_FAILING}
    assert read_facts().keep_failing.names == (str(failing),)
    # A skipped run says nothing about success.
    Statistics.objects.filter(pk=well.pk).update(last_state="skipped")
    assert problems() == {Problem.EVERY_RUN_FAILS}


def test_job_that_does_not_run_again_soon_fails_from_its_first_failure(now: datetime) -> None:
    make_node()
    frequent, nightly, manual, paused = (make_idle_job() for _ in range(4))
    next_at = {frequent: HOUR, nightly: HOUR + SECOND, manual: None, paused: 24 * HOUR}
    for job, wait in next_at.items():
        Statistics.objects.filter(pk=job.pk).update(
            consecutive_failures=1, failed=1, last_state="failed", last_finished_at=now - MINUTE
        )
        Cursor.objects.filter(pk=job.pk).update(next_at=wait and now - MINUTE + wait)
    well = make_idle_job()
    Statistics.objects.filter(pk=well.pk).update(last_state="succeeded", last_finished_at=now)
    Job.objects.filter(pk=paused.pk).update(enabled=False)

    (issue,) = read_verdict().issues
    assert (issue.problem, issue.severity) == (Problem.JOBS_FAILING, Severity.WARNING)
    assert issue.named == NamedCount(2, (str(nightly), str(manual)))

    Statistics.objects.update(consecutive_failures=0, last_state="succeeded")
    assert problems() == set()


def test_job_that_fails_only_with_muted_incidents_is_named_without_a_problem(now: datetime) -> None:
    make_node()
    job, well = make_idle_job(), make_idle_job()
    Statistics.objects.filter(pk=job.pk).update(
        consecutive_failures=5, failed=5, last_state="failed", last_finished_at=now
    )
    Statistics.objects.filter(pk=well.pk).update(last_state="succeeded", last_finished_at=now)
    latest = make_incident(job, "latest", now)
    assert problems() == {Problem.JOBS_FAILING}, "an open incident"
    control.set_incident_state(latest, IncidentState.MUTED)
    verdict = read_verdict()
    assert verdict.status is SystemStatus.OK
    assert verdict.facts.failed_lately.names == (str(job),)

    Statistics.objects.filter(pk=well.pk).update(last_finished_at=now - 2 * HOUR)
    assert problems() == set(), "every run fails, but as expected"
    other = make_idle_job()
    Statistics.objects.filter(pk=other.pk).update(
        consecutive_failures=1, failed=1, last_state="failed", last_finished_at=now
    )
    Cursor.objects.filter(pk=other.pk).update(next_at=now + MINUTE)
    assert problems() == set(), "one failure that isn't muted"
    Statistics.objects.filter(pk=other.pk).update(consecutive_failures=3)
    (issue,) = read_verdict().issues
    assert (issue.problem, issue.figures) == (
        Problem.EVERY_RUN_FAILS,
        {"jobs": 1, "failures": 3},
    )


@pytest.mark.parametrize("problem", [Problem.EVERY_RUN_FAILS, Problem.JOBS_FAILING])
def test_cause_of_a_problem_is_no_muted_incident(now: datetime, problem: Problem) -> None:
    job = make_idle_job()
    Statistics.objects.filter(pk=job.pk).update(
        consecutive_failures=5, failed=5, last_state="failed", last_finished_at=now
    )
    acknowledged = make_incident(job, "earlier", now - HOUR, IncidentState.ACKNOWLEDGED)
    make_incident(job, "later", now - MINUTE, IncidentState.MUTED)
    other = make_idle_job()
    Statistics.objects.filter(pk=other.pk).update(
        consecutive_failures=5, failed=5, last_state="failed", last_finished_at=now
    )
    muted = make_incident(other, "latest", now, IncidentState.MUTED)
    assert latest_incident(problem, EVERYTHING) == acknowledged
    assert latest_incident(None, EVERYTHING) == muted


def test_cause_of_an_automatic_pause_may_be_a_muted_incident(now: datetime) -> None:
    job = make_idle_job()
    control.pause(job, "paused automatically after 3 consecutive failed runs")
    muted = make_incident(job, "latest", now, IncidentState.MUTED)
    assert latest_incident(Problem.JOB_AUTO_PAUSED, EVERYTHING) == muted


@pytest.mark.parametrize(
    ("state", "seen", "counts"),
    [
        (IncidentState.OPEN, -MINUTE, True),
        (IncidentState.ACKNOWLEDGED, -MINUTE, True),
        (IncidentState.RESOLVED, MINUTE, True),  # resolved by a person, and the job still fails
        (IncidentState.RESOLVED, -MINUTE, False),
        (IncidentState.MUTED, MINUTE, False),
    ],
)
def test_failures_of_another_incident_count_beside_muted_ones(
    now: datetime, state: IncidentState, seen: timedelta, counts: bool
) -> None:
    make_node()
    job = make_idle_job()
    Statistics.objects.filter(pk=job.pk).update(
        consecutive_failures=5, failed=5, last_state="failed", last_finished_at=now - 2 * HOUR
    )
    make_incident(job, "muted", now - HOUR, IncidentState.MUTED)
    make_incident(make_idle_job(), "of another job", now)
    make_incident(job, "other", now - HOUR + seen, state)
    assert problems() == ({Problem.JOBS_FAILING} if counts else set())
    assert Job.objects.filter(FAILS_AS_MUTED).exists() is not counts


def test_job_that_failed_and_runs_again_soon_is_named(now: datetime) -> None:
    make_node()
    job = make_idle_job()
    Statistics.objects.filter(pk=job.pk).update(
        consecutive_failures=1, failed=1, last_state="failed", last_finished_at=now
    )
    Cursor.objects.filter(pk=job.pk).update(next_at=now + MINUTE)
    verdict = read_verdict()
    assert verdict.status is SystemStatus.OK
    assert verdict.facts.failed_lately.names == (str(job),)


def test_hourly_job_stays_healthy_while_its_next_run_executes(now: datetime) -> None:
    """Its next occurrence is then almost two hours after the end of the failed run."""
    make_node()
    job = make_idle_job()
    Statistics.objects.filter(pk=job.pk).update(
        consecutive_failures=1, failed=1, last_state="failed", last_finished_at=now - HOUR + SECOND
    )
    Cursor.objects.filter(pk=job.pk).update(previous_at=now, next_at=now + HOUR)
    assert problems() == set()
    Cursor.objects.filter(pk=job.pk).update(next_at=now + HOUR + SECOND)
    assert problems() == {Problem.JOBS_FAILING}


@pytest.mark.parametrize(
    ("counted", "has_outcome"),
    [("succeeded", True), ("failed", True), ("missed", False), ("skipped", False)],
)
def test_summary_says_if_no_run_has_succeeded_or_failed(
    counted: str, has_outcome: bool, job: Job, now: datetime
) -> None:
    make_node()
    make_idle_job(namespace="shop")
    before = read_verdict()
    assert (before.status, before.facts.has_outcome) == (SystemStatus.OK, False)
    ended = {"last_finished_at": now - 2 * HOUR, counted: 1}
    Statistics.objects.filter(pk=job.pk).update(**ended)
    assert read_facts().has_outcome is has_outcome
    assert (str(read_verdict().summary) != str(before.summary)) is has_outcome
    assert str(read_verdict("shop").summary) == str(before.summary)


def test_enabled_shadows_are_counted() -> None:
    shadow = {"target": "shadow:tests.app.tasks.ok", "namespace": "shop"}
    make_idle_job(**shadow)
    make_idle_job(**shadow, enabled=False)
    make_idle_job(target="shadow:tests.app.tasks.echo")
    make_idle_job()
    assert (read_facts().enabled_shadows, read_facts("shop").enabled_shadows) == (2, 1)


def test_unknown_targets_of_enabled_jobs_are_a_warning(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_node()
    jobs = [job, make_idle_job(), make_idle_job(namespace="shop"), make_idle_job(enabled=False)]
    for each, target in zip(jobs, ("old.b", "shadow:old.a", "old.b", "old.c"), strict=True):
        Job.objects.filter(pk=each.pk).update(target=target)
    (issue,) = read_verdict().issues

    assert (issue.problem, issue.severity) == (Problem.UNKNOWN_TARGET, Severity.WARNING)
    assert issue.named.names == ("old.b", "shadow:old.a")
    assert f"PID {os.getpid()} on host {gethostname()}" in str(issue.summary)
    assert read_facts("shop").unknown_targets.names == ("old.b",)
    assert read_facts().similar_targets == ()
    Job.objects.filter(pk=job.pk).update(target="tests.app.tasks.ecco")
    assert read_facts().similar_targets == ("tests.app.tasks.echo",)
    Job.objects.filter(pk=job.pk).update(target="old.b")

    monkeypatch.setattr(targets, "discovery_problem", lambda: "ImportError: no billing")
    facts = read_facts()
    assert facts.lacks_task_modules
    (hidden,) = assess(facts.visible(jobs=False, nodes=False)).issues
    words = set(str(hidden.summary).replace(":", "").split())
    assert not {"old.b", gethostname(), str(os.getpid())} & words


def test_quarantined_and_automatically_paused_jobs_are_listed(job: Job) -> None:
    make_node()
    Cursor.objects.filter(pk=job.pk).update(problem="no such zone")
    control.pause(
        make_idle_job(name="broken"), "paused automatically after 3 consecutive failed runs"
    )
    control.pause(make_idle_job(), "someone's reason")

    facts = read_facts()
    assert facts.quarantined.names == ("report",)
    assert facts.auto_paused.names == ("broken",)
    assert read_facts("elsewhere").quarantined.number == 0


def test_restored_job_has_the_pause_of_the_deleted_one() -> None:
    by_user, automatic = make_idle_job(), make_idle_job(name="broken")
    with acting(lambda: Actor("ann", via=Via.CLI)):
        control.pause(by_user, "quiet")
    control.pause(automatic, "paused automatically after 3 consecutive failed runs")
    (pause,) = read_facts().user_pauses
    for _ in range(2):
        with acting(lambda: Actor("bob", via=Via.CLI)):
            for job in Job.objects.all():
                control.delete(job)
                control.restore(AuditEntry.objects.filter(action="delete").latest("pk"))
        assert read_facts().user_pauses == (pause,)
    with acting(lambda: Actor("bob", via=Via.CLI)):
        control.resume(Job.objects.get(name=by_user.name))
    assert read_facts().user_pauses == ()


def test_pause_of_all_jobs_by_users_is_a_warning(now: datetime) -> None:
    make_node()
    jobs = [make_idle_job(), make_idle_job(), make_idle_job(namespace="shop")]
    finished = make_idle_job(enabled=False, pause_reason=EXHAUSTED)
    imported = make_idle_job()
    control.pause(imported, "imported with --disabled")
    with acting(lambda: Actor("ann", via=Via.CLI)):
        for job in jobs[:2]:
            control.pause(job, "quiet (ann)")
        assert (problems(), read_facts().user_pauses) == (set(), ()), "another job is enabled"
        control.pause(jobs[2], "by ann")
    verdict = read_verdict()
    (issue,) = verdict.issues
    assert (issue.problem, issue.severity) == (Problem.ALL_JOBS_PAUSED, Severity.WARNING)
    assert issue.figures == {"jobs": 5, "paused": 3}
    assert [each.reason for each in verdict.facts.user_pauses] == ["quiet (ann)", "by ann"]
    assert issue.since is not None
    assert issue.since >= now
    (issue,) = read_verdict("shop").issues
    assert issue.figures == {"jobs": 1, "paused": 1}

    with acting(lambda: Actor("ann", via=Via.CLI)):
        control.pause(jobs[2], "quiet (ann)")
    for namespace, resumed in (("shop", jobs[2:]), ("", jobs)):
        command = str(read_verdict(namespace).issues[0].remedy).partition("manage.py ")[2]
        call_command(*shlex.split(command), "--yes")
        assert {*Job.objects.filter(enabled=True)} == {*resumed}
        control.pause_many(jobs[2:], "quiet (ann)", replace=False)
    Job.objects.exclude(pk__in=[finished.pk, imported.pk]).delete()
    assert problems() == set(), "users have paused none of the jobs"


def _disable_with_an_edit(job: Job) -> None:
    job.enabled = False
    control.save(job)


@pytest.mark.parametrize("disable", [control.pause, _disable_with_an_edit])
def test_jobs_that_users_disabled_without_a_reason_are_a_warning(
    disable: Callable[[Job], Any],
) -> None:
    make_node()
    job = make_idle_job()
    disable(job)
    assert problems() == set(), "no user has disabled the job"
    control.resume(job)
    with acting(lambda: Actor("ann", via=Via.REST)):
        disable(job)
    (issue,) = read_verdict().issues
    assert (issue.problem, issue.figures) == (Problem.ALL_JOBS_PAUSED, {"jobs": 1, "paused": 1})
    with acting(lambda: Actor("ann", via=Via.CLI)):
        control.pause(job, HANDED_BACK)
    assert problems() == set(), "the handover enables the job"


def test_pause_by_a_user_is_no_warning_if_most_jobs_are_handed_back() -> None:
    """The user's reason isn't why no job is enabled, and its job shouldn't be resumed."""
    make_node()
    with acting(lambda: Actor("ann", via=Via.CLI)):
        control.pause(make_idle_job(), "acme left")
        for handed_back, expected in ((1, {Problem.ALL_JOBS_PAUSED}), (2, set())):
            control.pause(make_idle_job(), HANDED_BACK)
            assert problems() == expected, handed_back


def test_job_that_an_import_disabled_is_not_paused_by_a_user() -> None:
    make_node()
    job = make_idle_job(import_source="redbeat", import_key="1")
    with acting(lambda: Actor("ann", via=Via.CLI)):
        job.enabled, job.pause_reason = False, "disabled in redbeat"
        save_change(JobToSave(job, reason=IMPORTED))
        assert problems() == set()
        control.resume(job)
        control.pause(job, "deploy (ann)")
        assert problems() == {Problem.ALL_JOBS_PAUSED}
        job.pause_reason = "disabled in redbeat"
        save_change(JobToSave(job, reason=IMPORTED))
    assert problems() == set(), "the import replaced the pause"


def test_overlong_run_is_reported(job: Job, now: datetime) -> None:
    make_node()
    for number in range(4):
        make_started_run(job, now - (number + 2) * HOUR)
    make_started_run(job, now - 9 * MINUTE, "running")
    long_run = make_started_run(job, now - 15 * MINUTE, "running")
    assert problems() == set(), "four runs are too few for a usual duration"

    executed = make_started_run(job, now - 7 * HOUR)
    Run.objects.filter(pk=executed.pk).update(reason=NOT_EXECUTED)
    assert problems() == set(), "the run of a shadow doesn't count"
    Run.objects.filter(pk=executed.pk).update(reason="")
    assert problems() == {Problem.RUN_OVERLONG}
    (found,) = read_facts().long_runs
    assert (found.job, found.usual) == ("report", SECOND)
    Run.objects.filter(pk=long_run.pk).update(started_at=now - 9 * MINUTE)
    assert problems() == set(), "a run of less than ten minutes is never overlong"


@pytest.mark.parametrize(
    ("overlap", "timeout", "state", "expected"),
    [
        ("skip", None, "skipped", {Problem.RUN_OVERLONG}),
        ("queue_one", None, "waiting", {Problem.RUN_OVERLONG}),
        ("skip", HOUR, "skipped", set()),
        ("allow", None, "skipped", set()),
        ("skip", None, "missed", set()),
    ],
)
def test_run_without_timeout_and_history_that_blocks_another_is_overlong(
    overlap: str, timeout: timedelta | None, state: str, expected: set[Problem], now: datetime
) -> None:
    make_node()
    job = make_idle_job(overlap_policy=overlap, timeout=timeout)
    make_run(job, "skipped", scheduled_at=now - HOUR, due_at=now - HOUR)
    make_started_run(job, now - 15 * MINUTE, "running")
    assert problems() == set(), "no later run was skipped"
    later = now - 14 * MINUTE
    run = make_run(job, state, scheduled_at=later, due_at=later)
    assert problems() == expected
    Run.objects.filter(pk=run.pk).update(trigger="backfill", limited=state == "waiting")
    if state == "waiting":
        assert problems() == set(), "backfilled runs and runs with a limit wait for others"


def test_run_whose_timeout_is_unknown_is_not_said_to_have_none(job: Job, now: datetime) -> None:
    make_node()
    Job.objects.filter(pk=job.pk).update(timeout=HOUR)
    run = make_started_run(job, now - 15 * MINUTE, "running")
    make_run(job, "skipped", scheduled_at=now - MINUTE, due_at=now - MINUTE)
    assert problems() == {Problem.RUN_OVERLONG}, "the run's definition had no timeout"
    run.attempts.update(definition=None)
    assert problems() == set()


def test_usual_durations_decide_whether_a_run_that_blocks_others_is_overlong(
    job: Job, now: datetime
) -> None:
    make_node()
    for number in range(USUAL_DURATION_NEEDS):
        run = make_started_run(job, now - (number + 2) * HOUR)
        Run.objects.filter(pk=run.pk).update(finished_at=F("started_at") + 20 * MINUTE)
    make_started_run(job, now - 15 * MINUTE, "running")
    make_run(job, "skipped", scheduled_at=now - MINUTE, due_at=now - MINUTE)
    assert problems() == set()


def test_blocking_runs_are_found_with_one_statement(now: datetime) -> None:
    for _number in range(3):
        job = make_idle_job()
        make_started_run(job, now - 15 * MINUTE, "running")
        make_run(job, "skipped", scheduled_at=now - MINUTE, due_at=now - MINUTE)
    with CaptureQueriesContext(connection) as queries:
        found = find_long_runs(Run.objects.all(), now)
    assert len(found) == 3
    assert sum("EXISTS" in each["sql"] for each in queries) == 1


def test_run_that_ignores_its_timeout_is_overlong(now: datetime) -> None:
    make_node()
    hanging = make_idle_job(name="hanging", timeout=9 * MINUTE)
    make_started_run(make_idle_job(timeout=10 * MINUTE), now - 10 * MINUTE - SECOND, "running")
    make_started_run(hanging, now - 10 * MINUTE - SECOND, "running")
    assert problems() == {Problem.RUN_OVERLONG}
    (found,) = read_facts().long_runs
    assert (found.job, found.usual) == ("hanging", 9 * MINUTE)
    hanging.timeout = HOUR
    control.save(hanging)
    assert problems() == {Problem.RUN_OVERLONG}, "the run keeps the timeout of its start"
    Run.objects.update(heartbeat_at=now - HOUR)
    assert problems() == {Problem.RUN_STUCK}, "the code of a run without a heartbeat has ended"


def test_timeout_shortened_since_the_start_makes_no_run_overlong(now: datetime) -> None:
    make_node()
    job = make_idle_job(timeout=4 * HOUR)
    make_started_run(job, now - HOUR, "running")
    job.timeout = 5 * MINUTE
    control.save(job)
    assert problems() == set()


def test_runs_of_a_shadow_have_no_usual_duration(job: Job, now: datetime) -> None:
    make_node()
    for number in range(USUAL_DURATION_NEEDS):
        make_started_run(job, now - (number + 2) * HOUR, reason=NOT_EXECUTED)
    make_started_run(job, now - 15 * MINUTE, "running")

    assert problems() == set()


# --- due runs and cursors -----------------------------------------------------------------------


def test_overdue_runs_and_cursors_are_reported(job: Job, now: datetime, settings: Settings) -> None:
    node = make_node()
    long_ago = now - HOUR
    make_run(job, due_at=long_ago, node=node.pk)
    assert problems() == {Problem.NO_BROKER}
    Run.objects.update(node="")
    assert problems() == {Problem.RUN_OVERDUE}
    Run.objects.update(due_at=now - MINUTE)
    Cursor.objects.update(next_at=long_ago)
    assert problems() == {Problem.CURSOR_OVERDUE}
    assert read_facts().overdue_cursors == WaitingCount(1, long_ago)
    assert read_facts("elsewhere").overdue_cursors == WaitingCount(0, None)


def test_run_that_is_dispatched_again_is_not_overdue(
    job: Job, now: datetime, settings: Settings
) -> None:
    """It is pending for a moment, although the node is healthy."""
    settings.DCRON_LEASE = 3 * SECOND
    settings.DCRON_REDELIVER_AFTER = MINUTE
    make_run(job, due_at=now - 5 * MINUTE, queued_at=now - 61 * SECOND, deliveries=1)
    assert read_facts().overdue_runs == WaitingCount(0, None)
    Run.objects.update(deliveries=2, queued_at=now - 140 * SECOND)
    assert read_facts().overdue_runs == WaitingCount(1, now - 5 * MINUTE)
    Run.objects.update(queued_at=None)
    assert read_facts().overdue_runs == WaitingCount(1, now - 5 * MINUTE)
    Run.objects.update(deliveries=0, queued_at=now - SECOND)
    assert read_facts().overdue_runs == WaitingCount(1, now - 5 * MINUTE), "a retry"


def test_run_with_stale_heartbeat_is_reported_as_stuck(job: Job, now: datetime) -> None:
    make_node()
    make_started_run(job, now - 2 * HOUR, "running")
    Run.objects.update(heartbeat_at=now - HOUR)
    assert Problem.RUN_STUCK in problems()
    Node.objects.update(started_at=now - 30 * SECOND)
    assert Problem.RUN_STUCK not in problems(), "the node may still rescue it"


# --- workers ------------------------------------------------------------------------------------


def test_missing_worker_is_reported_after_redelivery_time(job: Job, now: datetime) -> None:
    """The problem appears after one DCRON_REDELIVER_AFTER, not after two or three."""
    make_node()
    make_started_run(job, now - 2 * HOUR)
    make_queued_run(job, now - 29 * MINUTE)
    assert problems() == {Problem.QUEUE_STALLED}
    make_queued_run(job, now - 31 * MINUTE, missed_before=12)
    make_run(job, missed_before=4)
    make_run(job, "missed", due_at=now - 50 * MINUTE, missed_before=5)
    make_run(job, "missed", due_at=now - 3 * HOUR, missed_before=100)

    (issue,) = read_verdict().issues

    assert issue.problem is Problem.NO_WORKER
    assert issue.figures == {"queued": 2, "missed": 12 + 4 + 1 + 5}
    assert str(issue.remedy) == "Start a Celery worker for queue celery."


def test_worker_that_stops_starting_runs_is_a_warning_at_once(job: Job, now: datetime) -> None:
    make_node()
    make_started_run(job, now - 40 * SECOND)
    run = make_queued_run(job, now - 5 * SECOND)
    assert problems() == set()
    Run.objects.filter(pk=run.pk).update(queued_at=now - 20 * SECOND)
    assert problems() == {Problem.QUEUE_STALLED}
    long_run = make_started_run(job, now - HOUR, "running")
    Run.objects.filter(pk=long_run.pk).update(heartbeat_at=now)
    assert problems() == set(), "the workers are busy"
    Run.objects.filter(pk=long_run.pk).update(heartbeat_at=now - 10 * MINUTE)
    assert problems() == {Problem.QUEUE_STALLED}


def test_frozen_runs_are_not_among_the_queued_ones(job: Job, now: datetime) -> None:
    """The number and the age of queued runs are about the same runs."""
    make_node()
    billing = make_idle_job(namespace="billing")
    make_queued_run(billing, now - HOUR)
    make_queued_run(billing, now - MINUTE, trigger="manual")
    make_queued_run(job, now - 40 * MINUTE)
    facts = read_facts()
    assert (facts.queued, facts.queued_since) == (3, now - HOUR)

    control.freeze("deploy", "billing")

    facts = read_facts()
    assert (facts.queued, facts.queued_since) == (2, now - 40 * MINUTE)
    (issue,) = read_verdict().issues
    assert (issue.figures["queued"], issue.since) == (2, now - 40 * MINUTE)


def test_missed_occurrences_are_counted_since_a_known_time(job: Job, now: datetime) -> None:
    make_node()
    make_started_run(job, now - 2 * HOUR)
    make_queued_run(job, now - HOUR)
    assert read_facts().missed_since == now - 2 * HOUR, "the last start"
    make_started_run(make_idle_job(queue="mail"), now - SECOND)
    assert read_facts().missed_since == now - HOUR, "the oldest queued run"


def test_only_runs_with_fresh_heartbeat_count_as_running(job: Job, now: datetime) -> None:
    make_run(job, "running", heartbeat_at=now + MINUTE)  # fresh throughout the test
    make_run(job, "running", heartbeat_at=now - HOUR)
    assert read_facts().running == 1


def test_repeated_delivery_keeps_original_waiting_time(job: Job, now: datetime) -> None:
    make_node()
    make_run(job, "queued", due_at=now - 31 * MINUTE, queued_at=now, deliveries=2)
    assert problems() == {Problem.NO_WORKER}


def test_missed_runs_count_as_waiting_only_if_dispatched(job: Job, now: datetime) -> None:
    make_node()
    make_started_run(job, now - 2 * HOUR)
    make_run(job, "missed", due_at=now - HOUR)
    assert problems() == set(), "it was never dispatched"
    make_run(job, "missed", due_at=now - HOUR, queued_at=now - HOUR, deliveries=0)
    assert problems() == set(), "a freeze had returned it"
    make_run(job, "missed", due_at=now - HOUR, queued_at=now - HOUR, deliveries=1)
    assert problems() == {Problem.NO_WORKER}


def test_queues_are_judged_separately(now: datetime) -> None:
    make_node()
    slow, fast = make_idle_job(queue="reports"), make_idle_job(queue="mail")
    make_started_run(fast, now - MINUTE)
    make_queued_run(slow, now - HOUR)
    make_queued_run(slow, now - 40 * MINUTE)
    assert problems() == {Problem.QUEUE_UNSERVED}
    (queue,) = read_facts().queues
    assert (queue.name, queue.waiting, queue.last_start) == (
        "reports",
        WaitingCount(2, now - HOUR),
        None,
    )

    make_started_run(slow, now - 2 * MINUTE)
    assert problems() == {Problem.WORKERS_BEHIND}


def test_run_is_overtaken_if_a_run_that_was_due_later_has_started(job: Job, now: datetime) -> None:
    make_node()
    make_queued_run(job, now - HOUR)
    make_started_run(job, now - 61 * MINUTE)
    assert [queue.overtaken for queue in read_facts().queues] == [False]
    make_started_run(job, now - 2 * MINUTE)
    assert [queue.overtaken for queue in read_facts().queues] == [True]


def test_jobs_that_keep_the_workers_busy_are_named(job: Job, now: datetime) -> None:
    make_node()
    flood, other = make_idle_job(name="flood"), make_idle_job(name="other")
    for running in (flood, other, flood):
        make_run(running, "running", attempt=1, heartbeat_at=now, started_at=now)
    assert read_facts().busiest == (), "no run waits for long"
    make_queued_run(job, now - HOUR)
    assert read_facts().busiest == (("flood", 2), ("other", 1))


def test_remedy_for_missing_workers_names_the_queues_of_the_latest_runs(now: datetime) -> None:
    """A run in another queue counts as soon as it is queued."""
    make_node()
    make_queued_run(make_idle_job(queue="mail"), now - HOUR)
    assert str(read_verdict().issues[0].remedy) == "Start a Celery worker for queue mail."
    make_queued_run(make_idle_job(queue="reports"), now)
    assert str(read_verdict().issues[0].remedy) == "Start a Celery worker for queues mail, reports."


def test_queue_without_dispatcher_has_no_name(job: Job, now: datetime, settings: Settings) -> None:
    make_node()
    make_queued_run(job, now - HOUR)
    settings.DCRON_DISPATCHER = "no.such.Dispatcher"
    assert [queue.name for queue in read_facts().queues] == [""]


def test_queued_run_waits_since_its_first_delivery(job: Job, now: datetime) -> None:
    run = make_queued_run(job, now - MINUTE)
    queued = Run.objects.filter(pk=run.pk)
    queued.update(queued_at=now - 5 * SECOND, deliveries=1)
    assert read_facts().queued_since == now - 5 * SECOND, "it waited for a slot"
    queued.update(deliveries=2)
    assert read_facts().queued_since == now - MINUTE


def test_answers_of_workers_are_merged_and_expire(job: Job, now: datetime) -> None:
    make_queued_run(job, now - HOUR)
    node = make_node(workers=worker_replies(("w1", ["celery"], False, []), at=now))
    assert problems() == {Problem.TASK_UNKNOWN_TO_WORKER}

    Node.objects.update(workers=worker_replies(("w1", ["celery"], True, ["1", "2"]), at=now))
    make_node("b", workers=worker_replies(("w1", ["celery"], True, ["2", "3"]), at=now - SECOND))
    assert problems() == {Problem.RUN_UNKNOWN_TO_WORKER}
    (worker,) = read_facts().workers or ()
    assert worker.unknown_runs == 3

    Node.objects.update(workers=worker_replies(at=now))
    assert problems() == {Problem.NO_WORKER}
    Node.objects.update(workers=worker_replies(("w1", ["celery"], True, []), at=now - HOUR))
    assert read_facts().workers is None, "the replies are too old"
    Node.objects.filter(pk=node.pk).update(
        heartbeat_at=now - HOUR, workers=worker_replies(("w", [], True, []), at=now)
    )
    Node.objects.exclude(pk=node.pk).update(workers=None)
    assert read_facts().workers is None, "the replies to a dead node are outdated"


def test_queues_of_scheduled_jobs_need_workers(job: Job, now: datetime) -> None:
    make_node(workers=worker_replies(("w1", ["celery"], True, []), at=now))
    make_idle_job(queue="reports", enabled=False)
    make_job(queue="fast", schedule="@never")
    assert (read_facts().job_queues, problems()) == (("celery",), set())
    make_idle_job(queue="reports", namespace="shop")
    assert (read_facts().job_queues, problems()) == (
        ("celery", "reports"),
        {Problem.QUEUE_UNSERVED},
    )
    assert read_facts("shop").job_queues == ("reports",)
    Node.objects.update(workers=worker_replies(("w1", ["celery", "reports"], True, []), at=now))
    assert problems() == set()


# --- query costs --------------------------------------------------------------------------------


def queries(call: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as captured:
        call()
    assert {query["sql"].split()[0].upper() for query in captured} <= {"SELECT"}
    return len(captured)


def test_runs_that_pile_up_behind_their_job_are_a_backlog(job: Job, now: datetime) -> None:
    make_node()
    make_started_run(job, now - MINUTE)
    late = {"due_at": now - timedelta(minutes=9)}
    others = [make_idle_job(name=name) for name in ("quiet", "backfilled")]
    for number in range(4):
        make_run(job, "waiting", due_at=now - timedelta(minutes=number))
        make_run(others[1], "waiting", trigger="backfill", **late)
    make_run(others[0], "waiting", **late)
    assert [(each.job, each.number) for each in read_facts().waiting_runs] == [
        (str(job), 4),
        ("quiet", 1),
    ]
    issue = next(each for each in read_verdict().issues if each.problem is Problem.JOB_BACKLOG)
    assert issue.figures == {"jobs": 1, "runs": 4}
    assert f"manage.py dcron cancel {job} --state waiting" in str(issue)


def test_runs_that_have_waited_for_a_short_time_are_no_backlog(job: Job, now: datetime) -> None:
    for _ in range(4):
        make_run(job, "waiting", due_at=now - timedelta(minutes=1))
    assert read_facts().waiting_runs == ()


def test_number_of_queries_is_constant(job: Job, now: datetime) -> None:
    make_node()
    make_started_run(job, now - MINUTE)
    few = queries(read_verdict)
    assert few <= 5
    for number in range(30):
        each = make_idle_job(namespace=f"n{number % 3}")
        make_started_run(each, now - number * SECOND)
        make_queued_run(each, now)
    assert queries(read_verdict) == few

    for each in Job.objects.all():
        make_queued_run(each, now - HOUR)
    Statistics.objects.update(consecutive_failures=9, last_finished_at=now)
    assert queries(read_verdict) <= 2 * few


@pytest.mark.sqlite
def test_queries_use_indexes_and_limits(job: Job, now: datetime) -> None:
    make_node()
    make_started_run(job, now - 2 * HOUR)
    make_started_run(job, now - 3 * HOUR, "running")
    make_queued_run(job, now - HOUR)
    with CaptureQueriesContext(connection) as captured:
        read_verdict()
    tables = (
        'FROM "django_dcron_run"',
        'FROM "django_dcron_attempt"',
        'FROM "django_dcron_cursor"',
    )
    read = [query["sql"] for query in captured if any(table in query["sql"] for table in tables)]
    assert len(read) >= 8
    assert sum(sql.count("LIMIT") for sql in read) >= 16  # each set of rows has its own
    assert all("LIMIT" in sql or " IN (" in sql for sql in read), read
    scans = ("SCAN django_dcron_run", "SCAN django_dcron_cursor", "TEMP B-TREE FOR ORDER BY")
    with connection.cursor() as cursor:
        for sql in read:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            plan = [row[3] for row in cursor.fetchall()]
            assert not any(scan in step for step in plan for scan in scans), (sql, plan)


# --- the same verdict everywhere ----------------------------------------------------------------


def no_node() -> None:
    Node.objects.all().delete()


def stalled_node() -> None:
    Node.objects.update(ticked_at=F("started_at"))


def no_worker() -> None:
    for job in Job.objects.all():
        make_queued_run(job, database_now("default") - HOUR)


def failing_runs() -> None:
    now = database_now("default")
    Statistics.objects.update(consecutive_failures=3, last_state="failed", last_finished_at=now)


def degraded_node() -> None:
    Node.objects.update(degraded=True)


def no_fault() -> None:
    pass


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (no_fault, None),
        (no_node, Problem.NO_LIVE_NODE),
        (stalled_node, Problem.NODE_STALLED),
        (no_worker, Problem.NO_WORKER),
        (failing_runs, Problem.EVERY_RUN_FAILS),
        (degraded_node, Problem.NODE_DEGRADED),
    ],
)
def test_every_view_shows_same_verdict(
    fault: Callable[[], None],
    problem: Problem | None,
    job: Job,
    admin_client: Client,
    redis_server: object,
) -> None:
    make_node()
    fault()
    verdict = read_verdict()
    assert verdict.problems == ({problem} if problem else set())
    summary = str(verdict.summary)

    answer = admin_client.get(reverse("dcron_monitoring:health"))
    assert answer.status_code == (503 if verdict.status is SystemStatus.UNFIT else 200)
    content = json.loads(answer.content)
    assert content["status"] == verdict.status.value
    assert [each["code"] for each in content["problems"]] == ([problem.value] if problem else [])
    assert content["summary"] == summary

    for name in ("admin:index", "admin:django_dcron_dashboard_changelist"):
        assert summary in unescaped(admin_client.get(reverse(name)))
    assert summary in unescaped(admin_client.get(reverse("admin:app_list", args=["django_dcron"])))
    live = reverse("admin:django_dcron_dashboard_live")
    assert summary in unescaped(admin_client.get(live, {"dcron-health": ""}))

    code, report = doctor()
    health_codes = {finding["code"] for finding in report["findings"]} & {
        each.value for each in Problem
    }
    assert health_codes == {each.value for each in verdict.problems}
    if problem:
        assert code == 1
        assert any(summary in finding["message"] for finding in report["findings"])

    samples = [sample for sample in cluster.read_samples() if sample.value]
    assert [sample.labels for sample in samples if sample.metric is catalog.HEALTH_STATUS] == [
        (verdict.status.value,)
    ]
    assert {sample.labels for sample in samples if sample.metric is catalog.PROBLEM} == {
        (each.value,) for each in verdict.problems
    }


def unescaped(answer: Any) -> str:
    return str(answer.content.decode().replace("&#x27;", "'"))


def doctor() -> tuple[int, Any]:
    out = StringIO()
    try:
        call_command("dcron", "doctor", "--json", stdout=out)
    except CommandError as error:
        return error.returncode, json.JSONDecoder().raw_decode(out.getvalue())[0]
    return 0, json.loads(out.getvalue())


def test_every_problem_is_a_code_of_the_doctor() -> None:
    assert {problem.value for problem in Problem} <= {code.value for code in Code}
    assert Severity.ERROR.value == "error"
    assert not {Code.NO_LIVE_NODE, Code.NO_WORKER, Code.EVERY_RUN_FAILS} & WARNINGS


def test_admin_index_shows_verdict_once_with_permission(
    admin_client: Client, client: Client, job: Job, django_user_model: Any
) -> None:
    for url in (reverse("admin:index"), reverse("admin:app_list", args=["django_dcron"])):
        assert admin_client.get(url).content.decode().count("dcron-health-line") == 1
    client.force_login(django_user_model.objects.create_user("ann", is_staff=True))
    assert b"dcron-health-line" not in client.get(reverse("admin:index")).content
