"""Test the audit log: one entry per change, in the change's transaction, and append-only."""

import json
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.exceptions import Conflict, NotPossible
from django_dcron.jobs import pausing
from django_dcron.jobs.audit.actor import Actor, acting, acting_as, current_actor
from django_dcron.jobs.audit.differences import CONTEXT, names_of_changes
from django_dcron.jobs.audit.entries import logged_changes_of
from django_dcron.jobs.queued_reruns import rerun_selected
from django_dcron.models import AuditEntry, Calendar, Job, Run, Statistics, Via
from django_dcron.targets.redaction import CHANGED_MASK, MASK
from tests.factories import forget_entries, make_idle_job, make_job, make_run
from tests.management.calling import call

pytestmark = pytest.mark.django_db

ENTRY_FIELDS = [field.name for field in AuditEntry._meta.concrete_fields]


def entries(**lookups: Any) -> list[AuditEntry]:
    """Return the entries, oldest first."""
    return list(AuditEntry.objects.filter(**lookups).order_by("pk"))


def actions(**lookups: Any) -> list[str]:
    return [entry.action for entry in entries(**lookups)]


def test_each_change_of_a_job_has_one_entry() -> None:
    job = make_idle_job(name="report")
    job.description = "new"
    control.save(job)
    control.pause(job, "deploy")
    control.pause(job, "deploy")  # changes nothing
    control.resume(job)
    key = job.pk
    control.delete(job)

    assert actions() == ["create", "change", "pause", "resume", "delete"]
    created, changed, paused, resumed, deleted = entries()
    assert {(entry.kind, entry.object_id, entry.job_id) for entry in entries()} == {
        ("job", str(key), key)
    }
    assert {entry.label for entry in entries()} == {"report"}
    assert [entry.version for entry in entries()] == [1, 2, 3, 4, 4]
    assert created.after["name"] == "report"
    assert (changed.before, changed.after) == ({"description": ""}, {"description": "new"})
    assert (paused.before["enabled"], paused.after["enabled"]) == (True, False)
    assert (paused.reason, resumed.reason) == ("deploy", "")
    assert deleted.before["description"] == "new"
    assert not deleted.after


def test_renaming_or_deleting_a_job_has_an_entry_for_each_follower() -> None:
    first = make_idle_job(name="first")
    follower = make_job(name="follower", schedule="@never", after={"first": "ended"})
    forget_entries()
    first.name, follower.description = "renamed", "new"
    with acting_as("ada"):
        control.save_many([follower, first])
        control.delete(first)

    saved, renamed, deleted = entries(object_id=str(follower.pk))
    assert [entry.version for entry in (saved, renamed, deleted)] == [2, 3, 4]
    assert Job.objects.get(pk=follower.pk).version == 4
    assert {(entry.action, entry.actor) for entry in (renamed, deleted)} == {("change", "ada")}
    assert renamed.before == {"after": '{"first": "ended"}'}
    assert renamed.after == deleted.before == {"after": '{"renamed": "ended"}'}
    assert deleted.after == {"after": "{}"}


def test_follower_of_a_job_whose_deletion_is_rolled_back_has_no_entry() -> None:
    first = make_idle_job(name="first")
    make_job(name="follower", schedule="@never", after={"first": "ended"})
    forget_entries()
    with transaction.atomic():
        control.delete(first)
        transaction.set_rollback(True)
    assert entries() == []


def test_changes_of_many_jobs_have_one_entry_each_in_one_statement() -> None:
    counts = []
    for number in (2, 20):
        jobs = [
            Job(name=f"{number}-{each}", target="tests.app.tasks.ok", schedule="@daily")
            for each in range(number)
        ]
        forget_entries()
        with CaptureQueriesContext(connection) as queries:
            control.save_many(jobs)
            control.pause_many(jobs, "deploy")
            control.resume_many(jobs)
            runs = control.trigger_many(jobs)
            control.cancel_many([run for run in runs if isinstance(run, Run)])
        table = AuditEntry._meta.db_table
        counts.append(sum(table in query["sql"] for query in queries))
        assert actions() == [
            action for action in ("create", "pause", "resume", "trigger", "cancel") for _job in jobs
        ]
    assert counts[0] == counts[1] == 5


def test_refused_changes_have_no_entry() -> None:
    job = make_idle_job()
    stale = Job.objects.get(pk=job.pk)
    control.save(job)
    ended = make_run(job, "failed")
    forget_entries()

    with pytest.raises(Conflict):
        control.save(stale)
    with pytest.raises(ValidationError):
        control.save(Job(name="new", target="tests.app.tasks.ok", schedule="nonsense"))
    with pytest.raises(NotPossible):
        control.cancel(ended)
    with pytest.raises(NotPossible):
        control.unfreeze()
    assert len(control.cancel_many([ended])) == 1

    assert not entries()


def test_entry_is_rolled_back_with_its_change() -> None:
    job = make_idle_job()
    forget_entries()

    with transaction.atomic():
        control.pause(job, "deploy")
        assert actions() == ["pause"]
        transaction.set_rollback(True)

    assert not entries()


def test_runs_are_recorded_with_their_job() -> None:
    job = make_idle_job(target="tests.app.tasks.echo")
    forget_entries()
    run = control.trigger(job, args=["x"], kwargs={"password": "hush"}, idempotency_key="k")
    assert (
        control.trigger(job, args=["x"], kwargs={"password": "hush"}, idempotency_key="k") == run
    ), "no other run is created"
    control.cancel(run, "wrong day")
    rerun = control.rerun(run)

    triggered, cancelled, again = entries()
    assert [triggered.action, cancelled.action, again.action] == ["trigger", "cancel", "rerun"]
    assert {entry.kind for entry in entries()} == {"run"}
    assert {entry.job_id for entry in entries()} == {job.pk}
    assert (cancelled.object_id, cancelled.reason) == (str(run.pk), "wrong day")
    assert (again.object_id, again.after["rerun_of"]) == (str(rerun.pk), str(run.pk))
    assert MASK in triggered.after["kwargs"]
    assert "hush" not in str([entry.after for entry in entries()])


def test_secrets_of_jobs_are_redacted() -> None:
    job = make_idle_job(target="tests.app.tasks.echo", kwargs={"api_token": "hush"})
    job.kwargs = {"api_token": "hush-2"}
    control.save(job)
    changed = entries()[-1]
    assert [json.loads(each["kwargs"]) for each in (changed.before, changed.after)] == [
        {"api_token": MASK},
        {"api_token": CHANGED_MASK},
    ]
    control.delete(job)

    text = str([(entry.before, entry.after) for entry in entries()])
    assert "hush" not in text
    assert MASK in text


def test_calendars_and_freezes_are_recorded() -> None:
    calendar = control.save_calendar(Calendar(name="closed", dates="12-25"))
    calendar.dates = "12-26"
    control.save_calendar(calendar)
    control.delete_calendar(calendar)
    control.freeze("deploy", until=database_now("default") + timedelta(hours=1), by="ada")
    control.unfreeze(by="bob")

    assert actions(kind="calendar") == ["create", "change", "delete"]
    assert entries(kind="calendar")[1].before == {"dates": "12-25"}
    frozen, ended = entries(kind="freeze")
    assert (frozen.action, frozen.actor, frozen.reason) == ("freeze", "ada", "deploy")
    assert "until" in frozen.after
    assert (ended.action, ended.actor) == ("unfreeze", "bob")


def test_entry_shows_a_change_at_the_end_of_a_long_value() -> None:
    dates = "\n".join(f"{year}-12-26" for year in range(2000, 2050))
    calendar = control.save_calendar(Calendar(name="closed", dates=dates))
    calendar.dates += "\n2050-02-28"
    control.save_calendar(calendar)

    changed = entries(kind="calendar")[1]
    before, after = changed.before["dates"], changed.after["dates"]
    assert (len(before), before[0]) == (CONTEXT + 1, "…")
    assert after == f"{before}\n2050-02-28"


def test_backfill_is_recorded_once() -> None:
    job = make_job(schedule="0 3 * * *")
    forget_entries()
    now = database_now("default")
    days = (now - timedelta(days=3), now)
    control.backfill(job, *days, dry_run=True)
    made = control.backfill(job, *days)
    control.backfill(job, *days)  # all of them have runs

    (entry,) = entries()
    assert (entry.action, entry.object_id) == ("backfill", str(job.pk))
    assert entry.after["runs"] == len(made.occurrences) == 3
    # PostgreSQL orders the keys by their length.
    stored = dict(sorted(entry.after.items(), key=lambda pair: (len(pair[0]), pair[0])))
    assert names_of_changes({}, stored) == ["runs", "first", "last"]
    assert logged_changes_of(job) == []


def test_rerun_of_selected_runs_is_no_change_of_the_job() -> None:
    job = make_idle_job()
    run = make_run(job, "failed")
    forget_entries()
    rerun_selected([run])

    (entry,) = entries()
    assert (entry.action, entry.object_id) == ("rerun", str(job.pk))
    assert logged_changes_of(job) == []


def test_nodes_are_recorded_as_the_scheduler() -> None:
    failing = make_idle_job(pause_after_failures=1)
    Statistics.objects.filter(pk=failing.pk).update(consecutive_failures=1)
    paused = make_idle_job()
    control.pause(paused, "deploy")
    Job.objects.filter(pk=paused.pk).update(paused_until=database_now("default"))
    forget_entries()

    jobs = Job.objects.using("default")
    pausing.pause_failing_jobs(jobs)
    pausing.end_pauses(jobs)

    assert [(entry.via, entry.action, entry.object_id) for entry in entries()] == [
        (Via.SCHEDULER, "pause", str(failing.pk)),
        (Via.SCHEDULER, "resume", str(paused.pk)),
    ]


def test_command_line_is_recorded_with_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    job = make_idle_job(name="report")
    forget_entries()

    assert call("pause", "report", "--reason", "deploy").code == 0

    (entry,) = entries(object_id=str(job.pk))
    assert (entry.via, entry.actor, entry.action) == (Via.CLI, "ada", "pause")
    assert entry.address


def test_actor_is_restored_after_the_block() -> None:
    with control.acting_as("ada", "10.0.0.1"):
        with acting(lambda: Actor("bob", via=Via.ADMIN)):
            assert (current_actor().name, current_actor().via) == ("bob", Via.ADMIN)
        assert current_actor() == Actor("ada", "10.0.0.1", Via.CODE)
    assert current_actor() == Actor("", "", Via.CODE)


def test_names_are_stored_whatever_they_contain() -> None:
    job = make_idle_job()
    forget_entries()
    with control.acting_as("a\0" + "b" * 500, "c" * 500):
        control.pause(job, "x" * 255)

    (entry,) = entries()
    assert (len(entry.actor), len(entry.address)) == (150, 255)


def test_entries_cannot_be_changed_or_deleted() -> None:
    make_idle_job()
    rows, entry = AuditEntry.objects.all(), AuditEntry.objects.get()
    entry.actor = "nobody"
    fields = {name: getattr(entry, name) for name in ENTRY_FIELDS}
    upsert = {"update_conflicts": True, "update_fields": ["actor"], "unique_fields": ["id"]}
    for attempt in (
        entry.save,
        entry.delete,
        rows.delete,
        lambda: rows.update(actor="nobody"),
        lambda: rows.bulk_update([entry], ["actor"]),
        lambda: rows.update_or_create(pk=entry.pk, defaults={"actor": "nobody"}),
        lambda: rows.bulk_create([AuditEntry(**fields)], **upsert),
        lambda: AuditEntry.objects.bulk_create([AuditEntry(**fields)], **upsert),
        lambda: rows.bulk_create([AuditEntry(**fields)], None, False, True, ["actor"], ["id"]),
        lambda: async_to_sync(rows.abulk_create)([AuditEntry(**fields)], **upsert),
        lambda: async_to_sync(rows.aupdate)(actor="nobody"),
        lambda: async_to_sync(rows.adelete)(),
        lambda: AuditEntry(**fields).save(force_update=True),
        lambda: AuditEntry(**fields).save(False, True),
    ):
        with pytest.raises(NotPossible) as refused, transaction.atomic():
            attempt()
        assert refused.value.code == "append_only"
    assert AuditEntry.objects.get().actor == ""


def test_new_entry_does_not_replace_one_with_the_same_key() -> None:
    make_idle_job()
    entry = AuditEntry.objects.get()
    fields = {name: getattr(entry, name) for name in ENTRY_FIELDS} | {"actor": "nobody"}
    for attempt in (
        AuditEntry(**fields).save,
        lambda: AuditEntry.objects.create(**fields),
        lambda: AuditEntry.objects.bulk_create([AuditEntry(**fields)]),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            attempt()
    AuditEntry.objects.bulk_create([AuditEntry(**fields)], ignore_conflicts=True)
    assert AuditEntry.objects.get().actor == ""
