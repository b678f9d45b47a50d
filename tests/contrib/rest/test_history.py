"""Test that actions over the API appear in the history of the job or run, as in the admin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import DatabaseError, connection, transaction
from django.db.models.signals import pre_save
from django.test import Client
from django.urls import reverse

from django_dcron.contrib.rest.history import audit_errors_logged
from django_dcron.diagnosis import job_status
from django_dcron.jobs.audit import entries
from django_dcron.jobs.audit.entries import (
    FieldChange,
    LoggedChange,
    logged_changes_of,
    read_change,
)
from django_dcron.jobs.audit.log import log_action
from django_dcron.jobs.audit.texts import (
    cancelled_text,
    paused_text,
    rerun_text,
    resumed_text,
    triggered_text,
)
from django_dcron.models import Job, Run
from tests.contrib.rest.conftest import Api, problem
from tests.factories import make_idle_job, make_job, make_run

JOB = {"name": "report", "target": "tests.app.tasks.ok", "schedule": "30 3 * * *"}


def _only(job: Job) -> LoggedChange:
    (change,) = logged_changes_of(job)
    return change


def _messages_of(row: Job | Run) -> list[str]:
    """Return all entries, oldest first."""
    entries = LogEntry.objects.filter(
        content_type=ContentType.objects.get_for_model(row), object_id=str(row.pk)
    )
    return [f"{each.by}: {each.message}" for each in map(read_change, entries.order_by("pk"))]


def test_created_job_is_recorded_with_its_user(api: Api) -> None:
    made = Job.objects.get(pk=api.post("jobs/", JOB).json()["id"])

    change = _only(made)
    assert (change.by, change.message, change.version, change.is_addition) == (
        "admin",
        "Added.",
        1,
        True,
    )


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_changed_job_is_recorded_with_old_and_new_values(method: str, api: Api) -> None:
    job = make_idle_job(name="report", description="old")
    path = f"jobs/{job.pk}/"
    sent = (
        api.get(path).json() | {"description": "new"} if method == "PUT" else {"description": "new"}
    )

    assert api.send(method, path, sent, if_match="*").status_code == 200

    change = _only(job)
    assert (change.by, change.message, change.version) == ("admin", "Changed Description.", 2)
    assert change.fields == (FieldChange("description", "old", "new"),)


def test_pause_and_resume_are_recorded(api: Api) -> None:
    job = make_idle_job()

    api.post(f"jobs/{job.pk}/pause/", {"reason": "deploy", "until": "2150-01-01T20:00:00+01:00"})
    job.refresh_from_db()
    author, text = job_status.paused_by(job), paused_text(job)
    api.post(f"jobs/{job.pk}/resume/")

    pause, resume = logged_changes_of(job)
    assert pause.message == text
    assert "2150-01-01 19:00:00 UTC" in text
    assert "deploy (admin)" in text
    assert (pause.switched, pause.version) == (False, 2)
    assert author is not None
    assert author.by == "admin"
    assert (resume.by, resume.message, resume.switched, resume.version) == (
        "admin",
        resumed_text(),
        True,
        3,
    )


def test_backfill_is_recorded_but_not_a_dry_run(api: Api) -> None:
    job = make_job(schedule="0 3 * * *")
    asked = {"start": "2026-03-02T00:00:00Z", "end": "2026-03-04T00:00:00Z"}

    assert api.post(f"jobs/{job.pk}/backfill/", asked | {"dry_run": True}).status_code == 200
    assert _messages_of(job) == []
    assert api.post(f"jobs/{job.pk}/backfill/", asked).status_code == 200

    (text,) = _messages_of(job)
    assert text.startswith("admin: ")
    for value in (" 2 ", "2026-03-02 03:00:00 UTC", "2026-03-03 03:00:00 UTC"):
        assert value in text


def test_trigger_is_recorded_once_for_each_run(api: Api) -> None:
    job = make_idle_job(target="tests.app.tasks.echo")

    first = api.post(f"jobs/{job.pk}/trigger/", idempotency_key="k").json()["id"]
    api.post(f"jobs/{job.pk}/trigger/", idempotency_key="k")
    second = api.post(f"jobs/{job.pk}/trigger/", {"args": [1]}).json()["id"]

    runs = [Run.objects.get(pk=made) for made in (first, second)]
    assert [_messages_of(run) for run in runs] == [
        [f"admin: {triggered_text(run)}"] for run in runs
    ]
    assert _messages_of(job) == []


def test_cancel_and_rerun_are_recorded(api: Api) -> None:
    running, pending = make_run(make_idle_job(), "running"), make_run(make_idle_job())

    api.post(f"runs/{running.pk}/cancel/")
    api.post(f"runs/{pending.pk}/cancel/", {"reason": "wrong day"})
    made = api.post(f"runs/{pending.pk}/rerun/").json()["id"]

    cancelled = [cancelled_text(Run.objects.get(pk=run.pk)) for run in (running, pending)]
    assert cancelled[0] != cancelled[1]
    assert _messages_of(running) == [f"admin: {cancelled[0]}"]
    rerun = rerun_text(Run.objects.get(pk=made))
    assert _messages_of(pending) == [f"admin: {cancelled[1]}", f"admin: {rerun}"]


def test_deleted_job_is_recorded(api: Api) -> None:
    job = make_idle_job(name="report")

    api.delete(f"jobs/{job.pk}/", if_match="*")

    entry = LogEntry.objects.get()
    assert (entry.is_deletion(), entry.object_id, entry.object_repr) == (
        True,
        str(job.pk),
        "report",
    )
    assert entry.user.get_username() == "admin"


def test_refused_request_is_not_recorded(api: Api) -> None:
    job = make_idle_job()
    running, ended = make_run(job, "running"), make_run(job, "failed")

    problem(api.patch(f"jobs/{job.pk}/", {"schedule": "nonsense"}, if_match="*"), 400)
    problem(api.patch(f"jobs/{job.pk}/", {"description": "x"}, if_match='"9"'), 412)
    problem(api.post(f"jobs/{job.pk}/trigger/", {"args": [1]}), 400)
    problem(api.post(f"runs/{ended.pk}/cancel/"), 409)
    problem(api.post(f"runs/{running.pk}/rerun/"), 409)

    assert not LogEntry.objects.exists()


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

    assert len(_messages_of(job)) == 4
    assert author is not None
    assert author.by == "admin"


def test_run_actions_are_recorded_at_the_run_and_not_at_the_job(api: Api) -> None:
    job = make_idle_job()
    for _ in range(2):
        made = api.post(f"jobs/{job.pk}/trigger/").json()["id"]
    api.post(f"runs/{made}/cancel/")
    api.post(f"runs/{made}/rerun/")

    assert [*LogEntry.objects.values_list("content_type__model", flat=True)] == ["run"] * 4


@pytest.fixture
def _failing_history_entries(db: None) -> Iterator[None]:
    """Make each history entry fail with a database error.

    The error must not break the rest of the transaction.
    """

    def fail(**_sent: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM nowhere")

    pre_save.connect(fail, LogEntry)
    yield
    pre_save.disconnect(fail, LogEntry)


@pytest.mark.usefixtures("_failing_history_entries")
def test_action_succeeds_if_its_history_entry_cannot_be_written(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(name="report", schedule="0 3 * * *")
    days = {"start": "2026-03-02T00:00:00Z", "end": "2026-03-04T00:00:00Z"}
    path = f"jobs/{job.pk}/"

    triggered = api.post(f"{path}trigger/")
    run = triggered.json()["id"]
    answers = [
        triggered,
        api.post(f"runs/{run}/cancel/"),
        api.post(f"runs/{run}/rerun/"),
        api.post(f"{path}backfill/", days),
        api.post(f"{path}pause/"),
        api.post(f"{path}resume/"),
        api.patch(path, {"description": "new"}, if_match="*"),
        api.delete(path, if_match="*"),
        api.post("jobs/", JOB),
        api.post("calendars/", {"name": "closed", "dates": "12-25"}),
        api.patch("calendars/closed/", {"dates": "12-26"}, if_match="*"),
        api.delete("calendars/closed/", if_match="*"),
    ]

    assert [each.status_code for each in answers] == [
        *(201, 200, 201, 200, 200, 200, 200, 204),
        *(201, 201, 200, 204),
    ]
    shown = [each for each in caplog.records if each.name == "django_dcron.rest"]
    assert len(shown) == len(answers)
    assert f"run={run} " in shown[0].getMessage()
    assert "report" in shown[0].getMessage()
    assert shown[0].exc_info
    assert not LogEntry.objects.exists()


@pytest.mark.usefixtures("_failing_history_entries")
def test_failed_history_entry_does_not_break_an_outer_transaction(api: Api) -> None:
    job = make_idle_job()

    with transaction.atomic():
        assert api.post(f"jobs/{job.pk}/trigger/").status_code == 201

    assert Run.objects.filter(job=job).count() == 1


def test_database_error_of_the_action_is_raised(db: None) -> None:
    job = make_idle_job()

    def give_up() -> None:
        with transaction.atomic(), audit_errors_logged(job):
            transaction.set_rollback(True)
            raise DatabaseError("deadlock")

    with pytest.raises(DatabaseError, match="deadlock"):
        give_up()


def test_user_without_a_row_is_not_recorded(admin_user: User) -> None:
    """The user of a stateless token has no row in the database."""
    job = make_idle_job()

    log_action(object(), job, {}, "x")
    assert not LogEntry.objects.exists()
    log_action(admin_user, job, {}, "x")
    assert LogEntry.objects.count() == 1


def test_nothing_is_recorded_if_the_admin_is_not_installed(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "django.apps.apps.is_installed", lambda name: name != "django.contrib.admin"
    )

    made = api.post("jobs/", JOB)
    assert made.status_code == 201
    assert api.post(f"{made['Location']}trigger/").status_code == 201

    assert not LogEntry.objects.exists()


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
    assert triggered_text(Run.objects.get(pk=run)) in page_of_run
