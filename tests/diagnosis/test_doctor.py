"""Test that the doctor finds each fault, and reports nothing about a healthy system."""

import shlex
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django_redis import get_redis_connection
from pytest_django import Settings

from django_dcron import control, targets
from django_dcron.contrib.alerts import outbox
from django_dcron.db.clock import ClusterClock
from django_dcron.db.now import database_now
from django_dcron.diagnosis import system_health
from django_dcron.diagnosis.doctor.alerts import TRIED_FOR
from django_dcron.diagnosis.doctor.findings import WARNINGS, Code
from django_dcron.diagnosis.doctor.jobs import PLACE_CURSOR
from django_dcron.diagnosis.doctor.releases import RECENT, _releases_side_by_side, _Start
from django_dcron.diagnosis.doctor.report import MANY_PAUSES
from django_dcron.diagnosis.doctor.window import format_moment
from django_dcron.diagnosis.system_health import read_facts
from django_dcron.exceptions import SignatureMismatch, UnknownTarget
from django_dcron.jobs.audit.actor import Actor, acting
from django_dcron.jobs.cursors import move_outdated_cursors
from django_dcron.jobs.definitions import definition_id, store_definitions
from django_dcron.jobs.sync import NO_LONGER_DECLARED
from django_dcron.locks import get_lock
from django_dcron.models import (
    Alert,
    Attempt,
    Cursor,
    Incident,
    Job,
    Limit,
    LimitPlace,
    Node,
    Run,
    Statistics,
    Via,
)
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.models.lease import LockLease
from django_dcron.monitoring.metrics import catalog
from django_dcron.monitoring.metrics import cluster as metrics
from django_dcron.policies.health.facts import NamedCount
from django_dcron.policies.health.problems import Problem, Severity
from django_dcron.policies.incidents import IncidentState
from django_dcron.policies.retry import exception_name
from django_dcron.policies.sharding import shard_lock_name
from django_dcron.policies.slots import Slot
from django_dcron.scheduler.membership import Membership
from tests import services
from tests.diagnosis.conftest import (
    HOUR,
    MINUTE,
    MINUTES_OF_HISTORY,
    System,
    make_job_with_history,
)
from tests.factories import make_idle_job, make_run

SECOND = timedelta(seconds=1)


def run_at(system: System, minutes_back: int) -> Run:
    return Run.objects.get(job=system.job, scheduled_at=system.latest - minutes_back * MINUTE)


def due_ago(span: timedelta) -> dict[str, object]:
    return {"due_at": database_now("default") - span}


def make_limited_run(system: System, state: str = "waiting") -> Run:
    return make_run(system.job, state, trigger="manual", limited=True, **due_ago(MINUTE))


def make_place(run: Run, number: int | None, **limit: object) -> None:
    found, _ = Limit.objects.get_or_create(name="payment-api", defaults={"max_running": 3} | limit)
    LimitPlace.objects.create(run=run, limit=found, number=number, due_at=run.due_at)


# --- health -------------------------------------------------------------------------------------


def test_healthy_system_causes_no_finding(system: System) -> None:
    report = system.examine()
    assert report.findings.listed == []
    assert report.healthy
    assert (report.jobs, report.totals.jobs, report.examined.number) == (1, 1, 5)
    assert report.verdict.facts.live_nodes == 1
    assert (report.totals.occurrences, report.totals.runs) == (5, 5)
    assert (report.totals.since_change, len(report.notes)) == (1, 1)


def test_ordinary_rows_cause_no_finding(system: System) -> None:
    """Create everything that a healthy system may contain at any moment."""
    job, now = system.job, database_now("default")
    make_run(job, "running", slot=Slot.RUNNING)
    make_run(job, "waiting")
    make_run(job, "queued")
    make_run(job)
    make_run(job, trigger="manual", state="cancelled", finished_at=now, reason="by hand")
    failed = make_run(job, "running", trigger="manual", attempt=2)
    Attempt.objects.create(
        run=failed, number=1, token=failed.pk, worker="w", started_at=now, outcome="lost"
    )
    Attempt.objects.filter(run=failed).update(outcome="timed_out", finished_at=now)
    Run.objects.filter(pk=failed.pk).update(state="failed", reason="too long", finished_at=now)
    make_run(job, trigger="manual", state="failed", reason="cannot be dispatched", finished_at=now)
    Statistics.objects.update(failed=2, cancelled=1)
    control.pause(make_job_with_history(system.latest))
    control.pause(make_job_with_history(system.latest, target="tests.app.tasks.ok"), "until Monday")
    assert system.examine().findings.listed == []


def test_single_failure_causes_a_note(system: System) -> None:
    Statistics.objects.update(
        consecutive_failures=1, last_state="failed", last_finished_at=system.latest
    )
    report = system.examine()
    assert report.healthy
    assert report.failed == NamedCount(1, (str(system.job),))
    assert any(str(system.job) in note for note in report.notes)


def test_missed_occurrences_cause_a_note(system: System) -> None:
    quiet = len(system.examine().notes)
    at = system.latest
    ended = {"trigger": "manual", "finished_at": at}
    make_run(system.job, state="skipped", scheduled_at=at - SECOND / 2, **ended)
    assert len(system.examine().notes) == quiet, "runs are also skipped without an outage"
    make_run(system.job, state="missed", scheduled_at=at - SECOND / 3, **ended)
    Statistics.objects.update(skipped=1, missed=1)
    report = system.examine()
    assert report.healthy
    assert (report.examined.missed, report.examined.skipped) == (1, 1)
    (note,) = (note for note in report.notes if "history --state missed" in note)
    assert note.startswith("1 occurrence was missed")


def test_single_failure_causes_a_note_beside_a_failing_job(system: System) -> None:
    failing = make_job_with_history(system.latest, name="failing")
    Statistics.objects.update(
        consecutive_failures=1, last_state="skipped", last_finished_at=system.latest
    )
    Statistics.objects.filter(pk=failing.pk).update(consecutive_failures=5)
    fine = make_job_with_history(system.latest, name="fine")
    Statistics.objects.filter(pk=fine.pk).update(
        last_state="succeeded", last_finished_at=system.latest
    )
    report = system.examine()
    assert set(report.findings.counts) == {Code.JOBS_FAILING}
    assert report.failed == NamedCount(1, (str(system.job),))


def test_failures_of_a_muted_incident_cause_a_note(system: System) -> None:
    at = system.latest
    Statistics.objects.update(consecutive_failures=5, last_state="failed", last_finished_at=at)
    incident = Incident.objects.create(
        job=system.job, fingerprint="a", count=5, first_seen_at=at, last_seen_at=at
    )
    assert system.codes() == {Code.EVERY_RUN_FAILS}
    control.set_incident_state(incident, IncidentState.MUTED)
    report = system.examine()
    assert report.healthy
    assert (report.muted.names, report.failed.names) == ((str(system.job),), ())
    assert any("muted" in note and str(system.job) in note for note in report.notes)


def test_note_about_undeclared_jobs_mentions_a_rename(system: System) -> None:
    control.pause(system.job, NO_LONGER_DECLARED)
    (note,) = [note for note in system.examine().notes if str(system.job) in note]
    section = note.partition('see "')[2].partition('"')[0]
    guide = (Path(__file__).parents[2] / "docs/how-to/deployment.md").read_text()
    assert f"### {section}\n" in guide


def test_enabled_shadows_cause_a_note(system: System) -> None:
    target = "shadow:tests.app.tasks.ok"
    shadow = make_idle_job(target=target, namespace="shop")
    make_idle_job(target=target, enabled=False)
    report = system.examine()
    assert report.healthy
    assert report.shadows.names == (str(shadow),)
    assert not system.examine(namespace=system.job.namespace).shadows
    (note,) = [note for note in report.notes if str(shadow) in note]
    command = note.partition("manage.py ")[2].split()
    out = StringIO()
    call_command(*command, stdout=out)
    assert str(shadow) in out.getvalue()
    assert str(system.job) not in out.getvalue()


def test_many_pauses_with_one_reason_cause_a_note(system: System) -> None:
    jobs = [make_idle_job(namespace="shop") for _ in range(MANY_PAUSES)]
    with acting(lambda: Actor("ann", via=Via.CLI)):
        control.pause_many(jobs[1:], "quiet please (ann)")
        assert not any("quiet please" in note for note in system.examine().notes)
        control.pause(jobs[0], "quiet please (ann)")
    report = system.examine()
    assert report.healthy
    make_idle_job(namespace="shop")
    other = control.pause(make_idle_job(namespace="other"), "quiet please (ann)")
    for namespace, left in (("shop", {other}), ("", set())):
        with acting(lambda: Actor("ann", via=Via.CLI)):
            control.pause_many(jobs, "quiet please (ann)")
        notes = system.examine(namespace=namespace).notes
        (note,) = [note for note in notes if "quiet please" in note]
        call_command(*shlex.split(note.partition("manage.py ")[2]), "--yes", stdout=StringIO())
        assert {*Job.objects.filter(enabled=False)} == left
    with acting(lambda: Actor("ann", via=Via.CLI)):
        control.pause_many(jobs)
        assert not any("--reason" in note for note in system.examine().notes)
        control.resume_many(jobs)
    with acting(lambda: Actor("ann", via=Via.CLI)):
        control.pause_many(Job.objects.all(), "quiet please (ann)")
    report = system.examine()
    assert set(report.findings.counts) == {Code.ALL_JOBS_PAUSED}
    assert not any("quiet please" in note for note in report.notes), "the finding has the reason"


def test_jobs_that_code_no_longer_declares_cause_a_note(system: System) -> None:
    make_idle_job(name="gone", namespace="shop", enabled=False, pause_reason=NO_LONGER_DECLARED)

    def is_named(**window: object) -> bool:
        return any("shop/gone" in note for note in system.examine(**window).notes)

    assert is_named()
    assert is_named(namespace="shop")
    assert not is_named(namespace=system.job.namespace or "other")


# --- one fault, one finding ---------------------------------------------------------------------

RUN_FAULTS: list[tuple[Code, Callable[[System], object]]] = [
    (Code.OCCURRENCE_MISSING, lambda s: run_at(s, 2).delete()),
    (
        Code.OCCURRENCE_COUNTED_TWICE,
        lambda s: Run.objects.filter(pk=run_at(s, 0).pk).update(
            missed_before=2, missed_from=s.latest - 2 * MINUTE
        ),
    ),
    (Code.RUN_OFF_SCHEDULE, lambda s: make_run(s.job, scheduled_at=s.latest - 90 * SECOND)),
    (Code.STATISTICS_BEHIND, lambda s: Statistics.objects.update(succeeded=MINUTES_OF_HISTORY)),
    (Code.STATISTICS_BEHIND, lambda s: Statistics.objects.all().delete()),
    (
        Code.RUN_OVERDUE,
        lambda s: make_run(s.job, trigger="manual", **due_ago(MINUTE)),
    ),
    (
        Code.RUN_UNDELIVERED,
        lambda s: make_run(
            s.job,
            "queued",
            trigger="manual",
            queued_at=database_now("default") - 10 * MINUTE,
            **due_ago(10 * MINUTE),
        ),
    ),
    (
        Code.RUN_UNDELIVERED,
        lambda s: make_run(s.job, "queued", trigger="manual", deliveries=3, **due_ago(10 * MINUTE)),
    ),
    (
        Code.RUN_STUCK,
        lambda s: make_run(
            s.job, "running", trigger="manual", heartbeat_at=database_now("default") - 2 * MINUTE
        ),
    ),
    (
        Code.RUN_LEFT_WAITING,
        lambda s: make_run(s.job, "waiting", trigger="manual", **due_ago(MINUTE)),
    ),
    (
        Code.SLOT_HELD,
        lambda s: Run.objects.filter(pk=run_at(s, 0).pk).update(slot=Slot.RUNNING),
    ),
    (
        Code.LIMIT_PLACE_HELD,
        lambda s: make_place(run_at(s, 0), number=1),
    ),
    (
        Code.RUN_LEFT_WAITING,
        lambda s: make_place(make_limited_run(s), number=None),
    ),
    (Code.STATE_ILLEGAL, lambda s: Run.objects.filter(pk=run_at(s, 0).pk).update(state="lost")),
    (Code.FINISHED_WITHOUT_TIME, lambda s: Run.objects.update(finished_at=None)),
    (Code.ATTEMPT_OPEN, lambda s: Attempt.objects.filter(run=run_at(s, 1)).update(outcome="")),
    (
        Code.ATTEMPT_OPEN,
        lambda s: [make_run(s.job, "running"), Attempt.objects.filter(outcome="").delete()],
    ),
    (Code.ATTEMPTS_WRONG, lambda s: Attempt.objects.filter(run=run_at(s, 1)).delete()),
    (Code.ATTEMPTS_WRONG, lambda s: Attempt.objects.filter(run=run_at(s, 1)).update(number=2)),
    (
        Code.ATTEMPTS_WRONG,
        lambda s: make_run(
            s.job,
            trigger="manual",
            state="failed",
            finished_at=s.latest,
            scheduled_at=s.latest - SECOND / 3,
        ),
    ),
    (Code.OUTCOME_CONTRADICTS, lambda s: Attempt.objects.update(outcome="timed_out")),
    (Code.STARTED_EARLY, lambda s: Run.objects.update(started_at=F("started_at") - HOUR)),
]


ALSO_FOUND = {
    Code.ATTEMPTS_WRONG: {Code.STATISTICS_BEHIND},
    Code.OCCURRENCE_COUNTED_TWICE: {Code.STATISTICS_BEHIND},
    Code.RUN_UNDELIVERED: {Code.WORKERS_BEHIND},  # other runs have started recently
    Code.ATTEMPT_OPEN: {Code.ATTEMPTS_WRONG},
    Code.STATE_ILLEGAL: {Code.ATTEMPTS_WRONG},
}
"""Other findings that a fault may cause, too."""


@pytest.mark.parametrize(("code", "fault"), RUN_FAULTS)
def test_fault_of_run_is_found(
    system: System, code: Code, fault: Callable[[System], object]
) -> None:
    fault(system)
    found = system.codes()
    assert code in found
    assert found <= {code} | ALSO_FOUND.get(code, set())


def test_runs_that_wait_for_others_in_a_limit_cause_no_finding(system: System) -> None:
    make_place(make_limited_run(system), number=None)
    make_place(make_run(system.job, "running", trigger="manual", limited=True), number=1)
    assert system.codes() == set()
    Limit.objects.update(interval=MINUTE, max_started=1)
    LimitPlace.objects.exclude(number=None).delete()  # the running run started in this interval
    assert system.codes() == set()


def test_wrong_count_of_missed_occurrences_is_found(system: System) -> None:
    run_at(system, 1).delete()
    run_at(system, 2).delete()
    latest = Run.objects.filter(pk=run_at(system, 0).pk)
    latest.update(missed_before=2, missed_from=system.latest - 2 * MINUTE)
    Statistics.objects.update(missed=2)
    assert system.examine().findings.listed == []
    latest.update(missed_before=3)
    assert Code.MISSED_MISCOUNTED in system.codes()
    latest.update(missed_before=1, missed_from=None)
    assert {Code.MISSED_MISCOUNTED, Code.OCCURRENCE_MISSING} <= system.codes()


def test_quoted_sentences_end_with_one_full_stop(system: System) -> None:
    control.freeze("The database is being moved.")
    for problem, schedule in (("Unreadable.", system.job.schedule), ("", "* * *")):
        Cursor.objects.update(problem=problem, schedule=schedule)
        Job.objects.update(schedule=schedule)
        report = system.examine()
        texts = [each.message for each in report.findings.listed] + report.notes
        assert Code.QUARANTINED in report.findings.counts
        assert any("being moved." in text for text in texts)
        assert [text for text in texts if ".." in text] == []


JOB_FAULTS: list[tuple[Code, Callable[[System], object]]] = [
    (Code.CURSOR_OUTDATED, lambda s: Job.objects.update(schedule="*/2 * * * *")),
    (Code.CURSOR_OUTDATED, lambda s: Cursor.objects.all().delete()),
    (Code.CURSOR_OVERDUE, lambda s: Cursor.objects.update(next_at=s.latest - HOUR)),
    (Code.CURSOR_STOPPED, lambda s: Cursor.objects.update(next_at=None)),
    (Code.CURSOR_WRONG, lambda s: Cursor.objects.update(next_at=s.latest + 2 * MINUTE)),
    (Code.CURSOR_WRONG, lambda s: Cursor.objects.update(next_at=s.latest + 61 * SECOND)),
    (Code.QUARANTINED, lambda s: Cursor.objects.update(problem="unreadable")),
    (
        Code.QUARANTINED,
        lambda s: [model.objects.update(schedule="nonsense") for model in (Job, Cursor)],
    ),
    (
        Code.NEVER_FIRES,
        lambda s: [
            Job.objects.update(ends_at=s.latest),
            Cursor.objects.update(ends_at=s.latest, next_at=None),
        ],
    ),
    (Code.UNKNOWN_TARGET, lambda s: Job.objects.update(target="nobody.has.this")),
    (Code.ARGUMENTS_REJECTED, lambda s: Job.objects.update(kwargs={"renamed": 1})),
]


@pytest.mark.parametrize(("code", "fault"), JOB_FAULTS)
def test_fault_of_job_is_found(
    system: System, code: Code, fault: Callable[[System], object]
) -> None:
    fault(system)
    assert system.codes() == {code}
    finding = system.examine().findings.listed[0]
    assert (finding.subject.kind, finding.subject.id) == ("job", str(system.job.pk))


@pytest.mark.parametrize(
    ("code", "fault"),
    [each for each in JOB_FAULTS if each[0] in (Code.CURSOR_STOPPED, Code.CURSOR_WRONG)],
)
def test_pausing_and_resuming_the_job_corrects_its_cursor(
    system: System, code: Code, fault: Callable[[System], object]
) -> None:
    fault(system)
    assert PLACE_CURSOR in system.examine().findings.listed[0].message
    control.resume(control.pause(system.job))
    assert system.codes() == set()


def test_arguments_of_unknown_targets_and_of_paused_jobs_are_not_checked(system: System) -> None:
    Job.objects.update(kwargs={"renamed": 1}, target="nobody.has.this")
    assert system.codes() == {Code.UNKNOWN_TARGET}
    Job.objects.update(target="tests.app.tasks.ok")
    assert system.codes() == {Code.ARGUMENTS_REJECTED}
    (finding,) = system.examine().findings.listed
    assert "'renamed'" in finding.message
    control.pause(system.job)
    assert system.codes() == set()


def test_declared_job_that_sync_refuses_is_found(system: System) -> None:
    def report() -> None: ...

    with targets.isolated_registry():
        targets.cron("@daily", name="good")(report)
        assert system.codes() == set()
        targets.cron("@daily", name="bad", max_attempts=0)(report)
        (finding,) = system.examine().findings.listed
    assert (finding.code, str(finding.subject)) == (Code.DECLARATION_REFUSED, "job bad")
    assert "max_attempts: " in finding.message


def test_arguments_that_sync_refuses_are_not_shown(system: System) -> None:
    def report(password: str, when: object) -> None: ...

    with targets.isolated_registry():
        targets.cron("@daily", kwargs={"password": "s3cret", "when": {1, 2}})(report)
        document = system.examine().as_json()
    assert "kwargs['when'] has the type set" in str(document)
    assert "s3cret" not in str(document)


def copy_node(node: str, **fields: object) -> Node:
    row = Node.objects.get(pk=node)
    row.pk = f"{node}-other"
    for name, value in ({"shards": 0} | fields).items():
        setattr(row, name, value)
    row.save(force_insert=True)
    return row


NODE_FAULTS: list[tuple[Code, Callable[[System], object]]] = [
    (Code.NO_LIVE_NODE, lambda s: s.node.leave()),
    (
        Code.NODE_DEAD,
        lambda s: [
            copy_node(s.node.id, name="b", heartbeat_at=s.latest - HOUR),
            Node.objects.filter(pk=s.node.id).update(shards=63, started_at=s.latest + HOUR),
        ],
    ),
    (Code.NODE_STALLED, lambda s: Node.objects.update(ticked_at=s.latest - HOUR)),
    (Code.NODE_STALLED, lambda s: Node.objects.update(ticked_at=None)),
    (Code.NODE_DEGRADED, lambda s: Node.objects.update(degraded=True)),
    (Code.NODE_SKEWED, lambda s: Node.objects.update(skew=-10 * MINUTE)),
    (Code.VERSIONS_DIFFER, lambda s: copy_node(s.node.id, version="0.0.1")),
    (
        Code.NAMESPACES_OVERLAP,
        lambda s: copy_node(s.node.id, namespace="shop", started_at=s.latest + HOUR),
    ),
    (Code.SHARDS_DIFFER, lambda s: copy_node(s.node.id, shard_count=16)),
    (Code.SHARDS_UNLED, lambda s: s.lock.release([":shard:3/64", ":shard:9/64"], s.node.id)),
    (
        Code.LEASE_ORPHANED,
        lambda s: [
            s.lock.release([":shard:3/64"], s.node.id),
            s.lock.hold([":shard:3/64"], "ghost", MINUTE),
        ],
    ),
]


@pytest.mark.parametrize(("code", "fault"), NODE_FAULTS)
def test_fault_of_nodes_is_found(
    system: System, code: Code, fault: Callable[[System], object]
) -> None:
    assert system.codes() == set()
    fault(system)
    assert system.codes() == {code}


def test_unserved_namespace_is_found(system: System) -> None:
    system.node.leave()
    shop = Membership("shop", "shop", system.lock, ClusterClock())
    shop.register()
    Node.objects.update(
        started_at=system.latest - HOUR,
        ticked_at=database_now("default"),
        skew=timedelta(),
        shards=64,
    )
    assert system.codes() == {Code.NAMESPACE_UNSERVED}
    assert system.codes(namespace="shop") == set()


def test_unreachable_lock_server_is_found(system: System, redis_server: services.Server) -> None:
    redis_server.kill()
    assert system.codes() == {Code.LOCK_UNREACHABLE}


def test_redis_that_may_evict_locks_is_found(system: System) -> None:
    redis = get_redis_connection("default")
    redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        (finding,) = system.examine().findings.listed
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
    assert finding.code is Code.LOCK_UNSAFE
    assert "allkeys-lru" in finding.message


@pytest.mark.django_db(transaction=True)
def test_database_lock_is_examined(settings: Settings, redis_server: services.Server) -> None:
    settings.DCRON_LOCK = "database"
    lock = get_lock()
    node = Membership("a", "", lock, ClusterClock())
    node.register()
    now = database_now("default")
    Node.objects.update(started_at=now - HOUR, ticked_at=now)
    system = System(lock, node, Job(), now)
    assert system.codes() == set()
    lock.release([":shard:0/64"], node.id)
    assert system.codes() == {Code.SHARDS_UNLED}


def lease_in_database(shards: Iterable[int], node: str, namespace: str = "") -> None:
    """Lead these shards as a node with ``runcron --embedded`` does, whatever DCRON_LOCK is."""
    Node.objects.filter(pk=node).update(locks_in_database=True)
    expires_at = timezone.now() + HOUR
    rows = [
        LockLease(name=shard_lock_name(namespace, shard, 64), holder=node, expires_at=expires_at)
        for shard in shards
    ]
    LockLease.objects.bulk_create(rows)


def lead_in_database(system: System, shards: Iterable[int], node: str) -> None:
    system.lock.release([f":shard:{shard}/64" for shard in shards], system.node.id)
    lease_in_database(shards, node)


def test_embedded_nodes_need_no_lock_server(system: System, redis_server: services.Server) -> None:
    lead_in_database(system, range(64), system.node.id)
    redis_server.kill()
    assert system.codes() == set()
    copy_node(system.node.id, name="b")  # leads no shards
    assert system.codes() == set()
    LockLease.objects.filter(name=":shard:3/64").update(holder="")
    assert system.codes() == {Code.SHARDS_UNLED}
    LockLease.objects.filter(name=":shard:3/64").update(holder="ghost")
    assert system.codes() == {Code.LEASE_ORPHANED}


def test_locks_in_the_database_are_checked_without_a_lock_server(
    system: System, redis_server: services.Server
) -> None:
    """The other node, which serves all namespaces, uses the lock server."""
    copy_node(system.node.id, pk="embedded", name="b", namespace="reports", shards=60)
    lease_in_database(range(60), "embedded", "reports")
    redis_server.kill()
    findings = system.examine().findings
    assert findings.counts[Code.LOCK_UNREACHABLE] == 1
    (unled,) = (each for each in findings.listed if each.code is Code.SHARDS_UNLED)
    assert unled.subject.name == "reports"


def test_embedded_node_beside_a_node_with_a_lock_server_leads_its_shards(system: System) -> None:
    copy_node(system.node.id, pk="embedded", name="b")
    Node.objects.update(shards=32)
    lead_in_database(system, range(32), "embedded")
    assert system.codes() == set()
    LockLease.objects.filter(name=":shard:3/64").update(holder="ghost")
    assert system.codes() == {Code.SHARDS_UNLED}


@pytest.mark.parametrize("namespace", ["", "reports"])
def test_embedded_node_hides_no_locks_of_another_site(system: System, namespace: str) -> None:
    """The node with the lock server leads no shards."""
    ours = {shard_lock_name("", shard, 64) for shard in range(64)}
    system.lock.release(ours, system.node.id)
    system.lock.hold(ours, "ghost", MINUTE)
    Node.objects.update(shards=0)
    copy_node(system.node.id, pk="embedded", name="b", namespace=namespace, shards=64)
    lease_in_database(range(64) if namespace else range(32), "embedded", namespace)
    codes = system.codes()
    assert Code.LEASE_ORPHANED in codes
    assert Code.SHARDS_UNLED not in codes


def test_restarted_node_causes_no_finding(system: System) -> None:
    copy_node(system.node.id, heartbeat_at=system.latest - HOUR, name=system.node.name)
    assert system.codes() == set()


def test_site_whose_locks_another_site_has_is_not_healthy(system: System) -> None:
    Node.objects.update(shards=0)
    names = [f":shard:{number}/64" for number in range(64)]
    system.lock.release(names, system.node.id)
    system.lock.hold(names, "ghost", MINUTE)
    assert [(group.code, group.severity) for group in system.examine().findings.groups()] == [
        (Code.LEASE_ORPHANED, Severity.ERROR),
        (Code.NO_SHARD_LED, Severity.WARNING),
    ]


def test_locks_of_another_site_are_shown_before_the_jobs_that_wait(system: System) -> None:
    Node.objects.update(shards=0)
    names = [f":shard:{number}/64" for number in range(64)]
    system.lock.release(names, system.node.id)
    system.lock.hold(names, "ghost", MINUTE)
    Cursor.objects.update(next_at=system.latest - HOUR)
    first, *others = system.examine().findings.groups()
    assert first.code is Code.LEASE_ORPHANED
    assert Code.CURSOR_OVERDUE in {group.code for group in others}


@pytest.mark.parametrize("is_copied", [True, False])
def test_locks_of_another_site_are_explained(system: System, is_copied: bool) -> None:
    """A copy of production's database contains the rows of production's nodes."""
    if is_copied:
        copy_node(system.node.id, pk="ghost", name="b", heartbeat_at=system.latest - HOUR)
    system.lock.release([":shard:3/64"], system.node.id)
    system.lock.hold([":shard:3/64"], "ghost", MINUTE)
    (finding,) = system.examine().findings.listed
    assert finding.code is Code.LEASE_ORPHANED
    assert "KEY_PREFIX" in finding.message


def notes_about(system: System, node: str) -> int:
    return sum(node in note for note in system.examine().notes)


def test_dead_node_whose_shards_are_led_causes_a_note(system: System) -> None:
    """The nodes of a Deployment never start again under the same name."""
    for name in ("pod-1", "pod-2"):
        copy_node(system.node.id, pk=name, name=name, heartbeat_at=system.latest - HOUR)
    assert system.codes() == set()
    assert (notes_about(system, "pod-1"), notes_about(system, "pod-2")) == (1, 1)


def test_doctor_metrics_and_health_agree_on_the_dead_nodes(system: System) -> None:
    copy_node(system.node.id, name="gone", heartbeat_at=system.latest - HOUR)
    # A node that was restarted at once: its new process didn't delete the row.
    copy_node(system.node.id, pk="first", heartbeat_at=system.latest - HOUR)
    states = {
        sample.labels: sample.value
        for sample in metrics.read_samples()
        if sample.metric is catalog.NODES
    }
    assert states["dead",] == 1
    assert read_facts().dead_nodes == 1
    assert (notes_about(system, "gone"), notes_about(system, f" {system.node.name} after ")) == (
        1,
        0,
    )


def test_dead_node_is_a_note_if_another_code_reports_the_loss(system: System) -> None:
    Node.objects.update(heartbeat_at=system.latest - HOUR)
    assert system.codes() == {Code.NO_LIVE_NODE}
    assert notes_about(system, f": {system.node.name} after ") == 1


def test_no_node_counts_as_dead_while_the_database_is_read_only(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_health, "refuses_writes", lambda using: True)
    Node.objects.update(heartbeat_at=system.latest - HOUR)
    assert system.codes() == {Code.DATABASE_READ_ONLY}
    assert notes_about(system, f" {system.node.name} after ") == 0


def test_dead_node_of_a_namespace_without_other_nodes_is_found(system: System) -> None:
    Node.objects.update(namespace=system.job.namespace or "shop")
    Job.objects.update(namespace=system.job.namespace or "shop")
    Cursor.objects.update(namespace=system.job.namespace or "shop")
    Node.objects.update(shards=64, started_at=system.latest + HOUR)
    copy_node(system.node.id, name="b", namespace="billing", heartbeat_at=system.latest - HOUR)
    assert system.codes() == {Code.NODE_DEAD}, "no job of the namespace is enabled"
    make_idle_job(name="invoice", namespace="billing", enabled=True)
    assert system.codes() >= {Code.NAMESPACE_UNSERVED}
    assert Code.NODE_DEAD not in system.codes()


def test_alerts_that_cannot_be_sent_are_found_by_channel(system: System) -> None:
    now = database_now("default")

    def make(channel: str, key: int, tries: int, error: str, **given: datetime | None) -> None:
        values = {"created_at": now - HOUR, "try_at": now + HOUR} | given
        Alert.objects.create(channel=channel, key=key, tries=tries, error=error, **values)

    make("ops", 1, 1, "HTTP 500")
    make("ops", 2, 0, "")
    make("mail", 3, 9, "HTTP 500", sent_at=now - 2 * HOUR, try_at=None)
    make("mail", 4, 55, "HTTP 500", try_at=None, created_at=now - 49 * HOUR)
    assert system.codes() == set(), (
        "the first failed tries, sent alerts and old ones are no findings"
    )
    make("ops", 5, 3, "HTTP 404")
    make("ops", 6, 3, "HTTP 410", created_at=now - MINUTE)
    given_up = now - 25 * HOUR
    make("mail", 7, 55, "refused", try_at=None, created_at=given_up)
    make("mail", 10, 1, "", sent_at=given_up + MINUTE, try_at=None)
    mail, ops = system.examine().findings.listed
    assert {mail.code, ops.code} == {Code.ALERTS_UNDELIVERED}
    assert (mail.subject.name, ops.subject.name) == ("mail", "ops")
    assert "1 alert wasn't" in mail.message
    assert all(part in ops.message for part in ("2 alerts weren't", "HTTP 410"))
    assert (ops.at, ops.severity) == (now - HOUR, Severity.WARNING)
    make("mail", 8, 1, "", sent_at=now, try_at=None)
    make("ops", 9, 1, "", sent_at=now, try_at=None)
    (ops,) = system.examine().findings.listed
    assert ops.subject.name == "ops", "the channel of the alert that was given up works again"


def test_alerts_are_tried_for_at_least_the_time_that_the_doctor_assumes() -> None:
    assert sum(map(outbox._wait, range(1, outbox.MAX_TRIES)), timedelta()) >= TRIED_FOR


def _start_attempt(job: Job, release: str, worker: str, at: datetime) -> None:
    now = database_now("default")
    run = make_run(job, "running", trigger="manual", started_at=at, heartbeat_at=now)
    Attempt.objects.filter(run=run).update(worker=worker, release=release, started_at=at)


def test_workers_of_two_releases_side_by_side_are_found(system: System) -> None:
    now = database_now("default")

    def start(release: str, worker: str, age: timedelta) -> None:
        _start_attempt(system.job, release, worker, now - age)

    before = system.codes()
    start("2026.1", "old@a", 3 * MINUTE)
    start("2026.2", "new@b", 2 * MINUTE)
    assert system.codes() == before, "one release replaced the other"
    start("2026.1", "new@b", timedelta(seconds=90))
    assert system.codes() == before, "a rollback replaced it again"
    start("2026.2", "new@b", timedelta(seconds=70))
    start("", "unknown@c", MINUTE)
    start("2026.1", "old@a", MINUTE)
    (finding,) = (
        each
        for each in system.examine().findings.listed
        if each.code is Code.WORKER_RELEASES_DIFFER
    )
    assert finding.severity is Severity.WARNING
    assert all(part in finding.message for part in ("2026.1 (old@a", "2026.2 (new@b"))
    assert "unknown@c" not in finding.message


def test_release_that_was_replaced_ten_minutes_ago_is_not_found(system: System) -> None:
    """Only its last start is among those of the last ten minutes."""
    last = database_now("default") - RECENT + MINUTE / 2
    old = [(last + minutes * MINUTE, "2026.1", "old@a") for minutes in (-2, -1, 0)]
    new = [(last + seconds * SECOND, "2026.2", "new@b") for seconds in range(-15, 500, 60)]
    for at, release, worker in sorted([*old, *new]):
        _start_attempt(system.job, release, worker, at)
    assert Code.WORKER_RELEASES_DIFFER not in system.codes()


@pytest.mark.parametrize(
    ("silent_for", "found"), [(0, True), (59, True), (119, True), (121, False), (300, False)]
)
def test_release_counts_as_running_for_twice_its_longest_gap(silent_for: int, found: bool) -> None:
    """A worker of a quiet queue still runs; a replaced worker doesn't."""
    last = datetime(2026, 3, 1, tzinfo=UTC)
    now = last + timedelta(seconds=silent_for)
    old = [
        _Start(last - minute * MINUTE, "old", "old@a", None, None, "", uuid4())
        for minute in range(5)
    ]
    new = [
        _Start(now - second * SECOND, "new", "new@b", None, None, "", uuid4())
        for second in range(600)
    ]
    starts = sorted([*old, *new], key=lambda start: start.at, reverse=True)
    assert bool(_releases_side_by_side(starts, now)) is found


def _attempt(worker: str, job: Job, exception: type[Exception]) -> None:
    """Create an attempt of the worker that failed with the exception."""
    store_definitions([job])
    run = make_run(job, "running", trigger="manual")
    Attempt.objects.filter(run=run).update(
        worker=worker, definition=definition_id(job), exception_class=exception_name(exception)
    )


def _outdated_workers(system: System) -> list[str]:
    findings = system.examine().findings.listed
    return [each.message for each in findings if each.code is Code.WORKER_OUTDATED]


def test_worker_that_does_not_know_a_target_of_the_code_here_is_found(system: System) -> None:
    removed = make_idle_job()
    Job.objects.filter(pk=removed.pk).update(target="tests.app.tasks.removed")
    _attempt("fine@b", Job.objects.get(pk=removed.pk), UnknownTarget)
    assert _outdated_workers(system) == []
    Job.objects.filter(pk=removed.pk).update(target=system.job.target)
    assert _outdated_workers(system) == [], "the attempt had another target"
    _attempt("old@c", system.job, UnknownTarget)
    (message,) = _outdated_workers(system)
    started_at = Attempt.objects.latest("pk").started_at
    assert started_at is not None
    last, end = format_moment(started_at), format_moment(started_at + 10 * MINUTE)
    assert f"old@c (such as {system.job.target}, last at {last})" in message
    assert f"this finding ends by {end}." in message
    assert "fine" not in message
    later = make_idle_job(target="tests.app.tasks.echo")
    _attempt("old@c", later, UnknownTarget)
    (message,) = _outdated_workers(system)
    assert f"old@c (such as {later.target}, last at " in message, "the latest one"
    _attempt("new@d", later, ValueError)
    _attempt("new@d", system.job, ValueError)
    assert _outdated_workers(system) == [], "another worker replaced it"
    _attempt("old@c", system.job, UnknownTarget)
    _attempt("new@d", system.job, ValueError)
    assert len(_outdated_workers(system)) == 1, "both run side by side"
    _attempt("old@c", system.job, ValueError)
    assert _outdated_workers(system) == [], "the worker was restarted"


def test_all_workers_are_named_if_none_knows_the_target(system: System) -> None:
    for worker in ("old@a", "old@b"):
        _attempt(worker, system.job, UnknownTarget)
    (message,) = _outdated_workers(system)
    assert all(worker in message for worker in ("old@a", "old@b"))
    _attempt("new@c", system.job, ValueError)
    assert _outdated_workers(system) == [], "another worker replaced both"


def test_worker_that_does_not_accept_arguments_of_the_code_here_is_found(system: System) -> None:
    unfit = make_idle_job(target="tests.app.tasks.ok")
    Job.objects.filter(pk=unfit.pk).update(args=[1])
    _attempt("old@a", Job.objects.get(pk=unfit.pk), SignatureMismatch)
    assert _outdated_workers(system) == [], "the code here doesn't accept them either"
    own = make_idle_job(target="tests.app.tasks.echo")
    _attempt("old@a", own, SignatureMismatch)
    Run.objects.filter(job=own).update(kwargs={"was": "removed"})
    assert _outdated_workers(system) == [], "the run had its own arguments"
    fits = make_idle_job(target="tests.app.tasks.echo", kwargs={"city": "Köln"})
    _attempt("old@a", make_idle_job(target="tests.app.tasks.echo"), ValueError)
    _attempt("old@a", fits, SignatureMismatch)
    (message,) = _outdated_workers(system)
    assert "old@a (such as tests.app.tasks.echo, last at " in message
    _attempt("new@b", make_idle_job(target="tests.app.tasks.echo"), ValueError)
    assert len(_outdated_workers(system)) == 1, "no worker has accepted the new arguments"
    for worker, exception in (("old@a", SignatureMismatch), ("new@b", ValueError)):
        _attempt(worker, fits, exception)
        latest = Attempt.objects.latest("pk").run_id
        Run.objects.filter(pk=latest).update(kwargs={"its": "own"})
    assert len(_outdated_workers(system)) == 1, "these runs had their own arguments"
    _attempt("new@b", fits, ValueError)
    assert _outdated_workers(system) == [], "another worker replaced it"


def test_own_arguments_of_a_run_do_not_hide_that_a_worker_lacks_its_target(system: System) -> None:
    _attempt("old@a", system.job, UnknownTarget)
    Run.objects.filter(job=system.job).update(kwargs={})
    unfit = make_idle_job(target="tests.app.tasks.slow")
    Job.objects.filter(pk=unfit.pk).update(args=[1, 2])
    _attempt("other@b", Job.objects.get(pk=unfit.pk), SignatureMismatch)
    (message,) = _outdated_workers(system)
    assert "old@a" in message


def test_parser_of_a_project_that_fails_does_not_end_the_doctor(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise LookupError("monday")

    job = make_idle_job(target="tests.app.tasks.echo")
    _attempt("old@a", job, SignatureMismatch)
    monkeypatch.setattr(type(targets.get(job.target)), "check_arguments", fail)
    assert _outdated_workers(system) == []


def test_every_code_is_covered_by_a_test() -> None:
    provoked = {code for code, _ in (*RUN_FAULTS, *JOB_FAULTS, *NODE_FAULTS)}
    in_other_tests = {
        Code.MISSED_MISCOUNTED,
        Code.NAMESPACE_UNSERVED,
        Code.LOCK_UNREACHABLE,
        Code.LOCK_UNSAFE,
        Code.OTHER_SCHEDULER_RUNS,
        Code.ENTRY_NOT_IMPORTED,
        Code.WORKER_RELEASES_DIFFER,
        Code.WORKER_OUTDATED,
        Code.DECLARATION_REFUSED,
        Code.ALERTS_UNDELIVERED,
    }
    of_health = {Code(problem) for problem in Problem}  # see tests/policies/test_health.py
    assert provoked | in_other_tests | of_health == set(Code)
    assert set(Code) > WARNINGS


def test_severity_of_undelivered_run_matches_health_verdict(system: System) -> None:
    make_run(
        system.job,
        "queued",
        trigger="manual",
        queued_at=system.latest - HOUR,
        due_at=system.latest - HOUR,
    )
    severities = {finding.code: finding.severity for finding in system.examine().findings.listed}
    assert severities == {
        Code.WORKERS_BEHIND: Severity.WARNING,
        Code.RUN_UNDELIVERED: Severity.WARNING,
    }

    Attempt.objects.update(started_at=system.latest - HOUR)
    severities = {finding.code: finding.severity for finding in system.examine().findings.listed}
    assert severities[Code.NO_WORKER] == severities[Code.RUN_UNDELIVERED] == Severity.ERROR


def test_queue_without_starts_is_a_note_at_first(system: System) -> None:
    """A monitoring that calls the doctor doesn't alert at each restart of the workers."""
    Attempt.objects.update(started_at=system.latest - HOUR)
    waiting = database_now("default") - timedelta(seconds=30)
    make_run(system.job, "queued", trigger="manual", queued_at=waiting, due_at=waiting)
    report = system.examine()
    assert report.verdict.problems == {Problem.QUEUE_STALLED}
    assert report.healthy
    (note,) = (note for note in report.notes if "queued" in note)
    assert note == str(report.verdict.issues[0])


def explanations(system: System) -> dict[Code, list[str]]:
    return {
        finding.code: list(finding.explanation.causes)
        for finding in system.examine().findings.listed
        if finding.explanation
    }


def test_missing_node_explains_runs_and_cursors(system: System) -> None:
    make_job_with_history(system.latest)
    Cursor.objects.update(next_at=system.latest - MINUTE)
    for _ in range(3):
        make_run(system.job, trigger="manual", **due_ago(HOUR))
    make_run(system.job, "waiting", trigger="manual", **due_ago(HOUR))
    assert explanations(system) == {}, "a node is live"
    Node.objects.update(heartbeat_at=system.latest - HOUR)
    cause = [Problem.NO_LIVE_NODE]
    assert explanations(system) == {
        Code.CURSOR_OVERDUE: cause,
        Code.RUN_OVERDUE: cause,
        Code.RUN_LEFT_WAITING: cause,
    }
    counts = system.examine().findings.counts
    assert (counts[Code.CURSOR_OVERDUE], counts[Code.RUN_OVERDUE]) == (1, 1)


def test_missing_worker_explains_undelivered_runs(system: System) -> None:
    for _ in range(3):
        make_run(system.job, "queued", trigger="manual", deliveries=3, **due_ago(HOUR))
    assert explanations(system) == {Code.RUN_UNDELIVERED: [Problem.WORKERS_BEHIND]}
    Attempt.objects.update(started_at=system.latest - HOUR)
    assert explanations(system) == {Code.RUN_UNDELIVERED: [Problem.NO_WORKER]}


# --- no false findings --------------------------------------------------------------------------


def test_occurrences_before_job_change_are_not_expected(system: System) -> None:
    """The job ran every five minutes until a moment ago, so it has no runs for every minute."""
    run_at(system, 3).delete()
    run_at(system, 2).delete()
    Cursor.objects.update(placed_at=system.latest - 1.5 * MINUTE)
    assert system.codes() == set()
    assert Code.OCCURRENCE_MISSING in system.codes(steady=True)


def test_missing_occurrence_is_found_after_edit_of_description(system: System) -> None:
    run_at(system, 2).delete()
    system.job.refresh_from_db()
    system.job.description = "another"
    control.save(system.job)
    assert system.codes() == {Code.OCCURRENCE_MISSING}


def test_change_outside_control_is_accepted_once_a_node_processed_it(system: System) -> None:
    Job.objects.update(schedule="*/5 * * * *")
    assert system.codes() == {Code.CURSOR_OUTDATED}
    move_outdated_cursors(database_now("default"), Job.objects.all())
    assert system.codes() == set()


def test_pruned_history_causes_no_finding(system: System) -> None:
    Cursor.objects.update(placed_at=system.latest - HOUR)
    Statistics.objects.update(succeeded=60)
    report = system.examine()
    assert report.healthy
    assert report.totals.pruned == 1
    run_at(system, 2).delete()
    assert system.codes() == {Code.OCCURRENCE_MISSING}, "newer than the oldest run, so not pruned"


def test_failed_runs_kept_by_pruning_cause_no_finding(system: System) -> None:
    Cursor.objects.update(placed_at=system.latest - HOUR)
    Statistics.objects.update(succeeded=59, failed=1)
    oldest = run_at(system, 4)
    Run.objects.filter(pk=oldest.pk).update(
        state="failed", scheduled_at=system.latest - 30 * MINUTE
    )
    Run.objects.filter(pk=oldest.pk).update(started_at=F("scheduled_at"))
    assert system.codes() == set()


def test_missing_oldest_occurrences_are_found(system: System) -> None:
    Cursor.objects.update(placed_at=system.latest - HOUR)
    (finding,) = system.examine().findings.listed
    assert finding.code is Code.OCCURRENCE_MISSING
    assert finding.message.startswith(("54 occ", "55 occ"))


def test_window_that_ends_during_outage_causes_no_finding(system: System) -> None:
    for back in (1, 2):
        run_at(system, back).delete()
    Run.objects.filter(pk=run_at(system, 0).pk).update(
        missed_before=2, missed_from=system.latest - 2 * MINUTE
    )
    Statistics.objects.update(missed=2)
    assert system.codes(until=system.latest - 1.5 * MINUTE) == set()


def test_backfilled_occurrence_causes_no_finding(system: System) -> None:
    Run.objects.filter(pk=run_at(system, 2).pk).update(trigger="backfill")
    assert system.codes() == set()


def test_run_withdrawn_by_pause_causes_no_finding(system: System) -> None:
    """The cursor was ahead, and the runs it had claimed were withdrawn."""
    Cursor.objects.update(previous_at=system.latest + MINUTE, next_at=system.latest + MINUTE)
    assert system.codes() == set()
    control.pause(system.job)
    assert system.codes() == set()


def test_ended_job_is_compared_up_to_its_end(system: System) -> None:
    Job.objects.update(enabled=False, pause_reason=EXHAUSTED, ends_at=system.latest)
    Cursor.objects.update(enabled=False, next_at=None, ends_at=system.latest)
    assert system.examine().totals.occurrences == 5
    assert system.codes() == set()
    run_at(system, 2).delete()
    assert system.codes() == {Code.OCCURRENCE_MISSING}


def test_interval_is_compared_by_its_phase(system: System) -> None:
    for model in (Job, Cursor):
        model.objects.update(schedule="@every 1m")
    assert system.examine().totals.occurrences == 5
    assert system.codes() == set()
    run_at(system, 2).delete()
    assert system.codes() == {Code.OCCURRENCE_MISSING}


# --- large systems ------------------------------------------------------------------------------


def test_occurrences_per_job_are_limited(system: System) -> None:
    run_at(system, 4).delete()
    report = system.examine(occurrences_per_job=3)
    assert report.healthy
    assert report.totals.occurrences == 3
    assert report.totals.truncated == 1
    assert "latest 3 occurrences" in report.notes[-1]
    run_at(system, 2).delete()
    assert system.codes(occurrences_per_job=3) == {Code.OCCURRENCE_MISSING}


def test_examined_runs_are_limited(system: System) -> None:
    report = system.examine(runs=2)
    assert (report.examined.number, report.examined.more) == (2, True)
    assert "latest 2 runs" in report.notes[-1]


def test_first_findings_are_listed_and_all_are_counted(system: System) -> None:
    for _ in range(25):
        make_run(system.job, trigger="manual", **due_ago(MINUTE))
    findings = system.examine().findings
    assert len(findings.listed) == 20
    assert findings.counts == {Code.RUN_OVERDUE: 25}
    assert findings.more == {Code.RUN_OVERDUE: 5}


def test_number_of_queries_is_constant(system: System) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            report = system.examine()
        assert report.findings.counts[Code.OCCURRENCE_MISSING] == Job.objects.count()
        return len(captured)

    for _ in range(9):
        make_job_with_history(system.latest)
    Run.objects.filter(scheduled_at=system.latest - 2 * MINUTE).delete()
    of_ten = queries()
    for _ in range(90):
        make_job_with_history(system.latest)
    Run.objects.filter(scheduled_at=system.latest - 2 * MINUTE).delete()
    assert queries() == of_ten
    assert of_ten <= 35


def test_doctor_writes_nothing(system: System) -> None:
    with CaptureQueriesContext(connection) as captured:
        system.examine()
    assert {query["sql"].split()[0].upper() for query in captured} <= {"SELECT", "DECLARE"}
