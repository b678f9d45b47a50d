"""Test that actions over the API appear in the history of the job or run, as in the admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models.signals import pre_save
from django.test import Client
from django.urls import reverse

from django_dcron.diagnosis import job_status
from django_dcron.jobs.audit import entries
from django_dcron.jobs.audit.differences import FieldChange
from django_dcron.jobs.audit.entries import LoggedChange, logged_changes_of
from django_dcron.models import AuditAction, AuditEntry, Job, Run, Via
from django_dcron.models.audit_entry import AuditEntryQuerySet
from tests.contrib.rest.conftest import Api, problem
from tests.factories import make_idle_job, make_job, make_run

JOB = {"name": "report", "target": "tests.app.tasks.ok", "schedule": "30 3 * * *"}


def _changes(job: Job) -> list[LoggedChange]:
    """Return the changes over the API. The creation of the job in the test isn't one of them."""
    return [change for change in logged_changes_of(job) if change.by == "admin"]


def _only_change(job: Job) -> LoggedChange:
    (change,) = _changes(job)
    return change


def _entries(*rows: Job | Run) -> AuditEntryQuerySet:
    """Return the entries of changes over the API, of any row or of ``rows``, oldest first."""
    entries = AuditEntry.objects.filter(via=Via.REST).order_by("pk")
    return entries.filter(object_id__in=[str(row.pk) for row in rows]) if rows else entries


def _actions_of(row: Job | Run) -> list[str]:
    return [entry.action for entry in _entries(row)]


def test_created_job_is_recorded_with_its_user(api: Api) -> None:
    made = Job.objects.get(pk=api.post("jobs/", JOB).json()["id"])

    change = _only_change(made)
    assert (change.by, change.version, change.is_addition) == ("admin", 1, True)
    assert FieldChange("schedule", "", "30 3 * * *") in change.fields


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_changed_job_is_recorded_with_old_and_new_values(method: str, api: Api) -> None:
    job = make_idle_job(name="report", description="old")
    path = f"jobs/{job.pk}/"
    sent = (
        api.get(path).json() | {"description": "new"} if method == "PUT" else {"description": "new"}
    )

    assert api.send(method, path, sent, if_match="*").status_code == 200

    change = _only_change(job)
    assert (change.by, change.action, change.version) == ("admin", AuditAction.CHANGE, 2)
    assert change.fields == (FieldChange("description", "old", "new"),)


def test_pause_and_resume_are_recorded(api: Api) -> None:
    job = make_idle_job()

    api.post(f"jobs/{job.pk}/pause/", {"reason": "deploy", "until": "2150-01-01T20:00:00+01:00"})
    job.refresh_from_db()
    author = job_status.paused_by(job)
    api.post(f"jobs/{job.pk}/resume/")

    pause, resume = _changes(job)
    assert (pause.action, pause.reason) == (AuditAction.PAUSE, "deploy (admin)")
    assert pause.of("paused_until") == FieldChange("paused_until", None, "2150-01-01T19:00:00Z")
    assert (pause.switched, pause.version) == (False, 2)
    assert author is not None
    assert author.by == "admin"
    assert (resume.by, resume.action, resume.switched, resume.version) == (
        "admin",
        AuditAction.RESUME,
        True,
        3,
    )


def test_backfill_is_recorded_but_not_a_dry_run(api: Api) -> None:
    job = make_job(schedule="0 3 * * *")
    asked = {"start": "2026-03-02T00:00:00Z", "end": "2026-03-04T00:00:00Z"}

    assert api.post(f"jobs/{job.pk}/backfill/", asked | {"dry_run": True}).status_code == 200
    assert _actions_of(job) == []
    for _ in range(2):
        assert api.post(f"jobs/{job.pk}/backfill/", asked).status_code == 200

    entry = _entries(job).get()
    assert (entry.action, entry.actor) == (AuditAction.BACKFILL, "admin")
    assert entry.after == {
        "runs": 2,
        "first": "2026-03-02T03:00:00Z",
        "last": "2026-03-03T03:00:00Z",
    }


def test_trigger_is_recorded_once_for_each_run(api: Api) -> None:
    job = make_idle_job(target="tests.app.tasks.echo")

    first = api.post(f"jobs/{job.pk}/trigger/", idempotency_key="k").json()["id"]
    api.post(f"jobs/{job.pk}/trigger/", idempotency_key="k")
    second = api.post(f"jobs/{job.pk}/trigger/", {"args": [1]}).json()["id"]

    found = _entries().filter(job_id=job.pk)
    assert [(entry.object_id, entry.action, entry.after) for entry in found] == [
        (first, AuditAction.TRIGGER, {}),
        (second, AuditAction.TRIGGER, {"args": "[1]"}),
    ]
    assert _actions_of(job) == []


def test_cancel_and_rerun_are_recorded(api: Api) -> None:
    running, pending = make_run(make_idle_job(), "running"), make_run(make_idle_job())

    for _ in range(2):
        api.post(f"runs/{running.pk}/cancel/")
    api.post(f"runs/{pending.pk}/cancel/", {"reason": "wrong day"})
    made = Run.objects.get(pk=api.post(f"runs/{pending.pk}/rerun/").json()["id"])

    assert _actions_of(running) == [AuditAction.CANCEL]
    assert _entries(pending).get().reason == "wrong day (admin)"
    rerun = _entries(made).get()
    assert (rerun.action, rerun.after) == (AuditAction.RERUN, {"rerun_of": str(pending.pk)})


def test_deleted_job_is_recorded(api: Api) -> None:
    job = make_idle_job(name="report")

    api.delete(f"jobs/{job.pk}/", if_match="*")

    entry = _entries(job).get()
    assert (entry.action, entry.label, entry.actor) == (AuditAction.DELETE, "report", "admin")
    assert entry.before["name"] == "report"


def test_entries_have_the_address_of_the_client(api: Api) -> None:
    job = make_idle_job()

    api.post(f"jobs/{job.pk}/pause/", {"reason": "deploy"})

    entry = _entries(job).get()
    assert (entry.via, entry.address) == (Via.REST, "127.0.0.1")


def test_refused_request_is_not_recorded(api: Api) -> None:
    job = make_idle_job()
    running, ended = make_run(job, "running"), make_run(job, "failed")

    problem(api.patch(f"jobs/{job.pk}/", {"schedule": "nonsense"}, if_match="*"), 400)
    problem(api.patch(f"jobs/{job.pk}/", {"description": "x"}, if_match='"9"'), 412)
    problem(api.post(f"jobs/{job.pk}/trigger/", {"args": [1]}), 400)
    problem(api.post(f"runs/{ended.pk}/cancel/"), 409)
    problem(api.post(f"runs/{running.pk}/rerun/"), 409)

    assert not _entries().exists()


def test_frequent_backfills_do_not_hide_who_paused_the_job(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "READ", 2)
    job = make_job(schedule="0 3 * * *")
    api.post(f"jobs/{job.pk}/pause/", {"reason": "deploy"})
    for day in (2, 3, 4):
        asked = {"start": f"2026-03-0{day}T00:00:00Z", "end": f"2026-03-0{day}T12:00:00Z"}
        assert api.post(f"jobs/{job.pk}/backfill/", asked).status_code == 200
    job.refresh_from_db()

    author = job_status.paused_by(job)

    assert len(_actions_of(job)) == 4
    assert author is not None
    assert author.by == "admin"


def test_run_actions_are_recorded_at_the_run_and_not_at_the_job(api: Api) -> None:
    job = make_idle_job()
    for _ in range(2):
        made = api.post(f"jobs/{job.pk}/trigger/").json()["id"]
    api.post(f"runs/{made}/cancel/")
    api.post(f"runs/{made}/rerun/")

    kinds = _entries().values_list("kind", "job_id")
    assert [*kinds] == [("run", job.pk)] * 4


def test_action_is_undone_if_its_entry_cannot_be_written(
    api: Api, request: pytest.FixtureRequest
) -> None:
    job = make_job(name="report", schedule="0 3 * * *")
    run = make_run(job)

    def fail(**_sent: Any) -> None:
        raise ZeroDivisionError

    pre_save.connect(fail, AuditEntry)
    request.addfinalizer(lambda: pre_save.disconnect(fail, AuditEntry))

    for path, data in (
        (f"jobs/{job.pk}/trigger/", {}),
        (f"jobs/{job.pk}/pause/", {"reason": "deploy"}),
        (f"runs/{run.pk}/cancel/", {}),
        (
            f"jobs/{job.pk}/backfill/",
            {"start": "2026-03-02T00:00:00Z", "end": "2026-03-04T00:00:00Z"},
        ),
    ):
        with pytest.raises(ZeroDivisionError):
            api.post(path, data)
    with pytest.raises(ZeroDivisionError):
        api.delete(f"jobs/{job.pk}/", if_match="*")

    job.refresh_from_db()
    run.refresh_from_db()
    assert (job.enabled, job.version) == (True, 1)
    assert run.state == "pending"
    assert Run.objects.count() == 1


def test_history_page_shows_changes_over_the_api(admin_client: Client, api: Api) -> None:
    job = make_idle_job()
    api.patch(f"jobs/{job.pk}/", {"schedule": "0 5 * * *"}, if_match="*")
    run = api.post(f"jobs/{job.pk}/trigger/").json()["id"]

    page = admin_client.get(
        reverse("admin:django_dcron_job_history", args=[job.pk])
    ).content.decode()
    page_of_run = admin_client.get(
        reverse("admin:django_dcron_run_history", args=[run])
    ).content.decode()

    assert "<ins>0 5 * * *</ins>" in page
    assert "dcron-aside" not in page
    assert str(AuditAction.TRIGGER.label) in page_of_run
