"""A change by the API is in the job's history, as one made in the admin is."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_dcron.models import Job
from django_dcron.observability import standing
from django_dcron.observability.changes import Change, FieldChange, changes_of
from django_dcron.rest import history
from tests.factories import make_idle_job, make_job, make_run
from tests.rest.conftest import Api, problem

JOB = {"name": "report", "target": "tests.app.tasks.ok", "schedule": "30 3 * * *"}


def _only(job: Job) -> Change:
    (change,) = changes_of(job)
    return change


def test_who_made_it(api: Api) -> None:
    made = Job.objects.get(pk=api.post("jobs/", JOB).json()["id"])

    change = _only(made)
    assert (change.by, change.said, change.version, change.is_addition) == ("admin", "Added.", 1, True)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_who_changed_it_and_from_what_to_what(method: str, api: Api) -> None:
    job = make_idle_job(name="report", description="old")
    address = f"jobs/{job.pk}/"
    sent = api.get(address).json() | {"description": "new"} if method == "PUT" else {"description": "new"}

    assert api.ask(method, address, sent, if_match="*").status_code == 200

    change = _only(job)
    assert (change.by, change.said, change.version) == ("admin", "Changed Description.", 2)
    assert change.fields == (FieldChange("description", "old", "new"),)


def test_who_paused_and_who_resumed_it(api: Api) -> None:
    job = make_idle_job()

    api.post(f"jobs/{job.pk}/pause/", {"reason": "deploy", "until": "2150-01-01T20:00:00+01:00"})
    job.refresh_from_db()
    author = standing.paused_by(job)
    api.post(f"jobs/{job.pk}/resume/")

    pause, resume = changes_of(job)
    assert pause.said == "paused until 2150-01-01 19:00:00 UTC: deploy (admin)"
    assert (pause.switched, pause.version) == (False, 2)
    assert author is not None
    assert author.by == "admin"
    assert (resume.by, resume.said, resume.switched, resume.version) == ("admin", "resumed", True, 3)


def test_who_backfilled_it(api: Api) -> None:
    job = make_job(schedule="0 3 * * *")
    asked = {"start": "2026-03-02T00:00:00Z", "end": "2026-03-04T00:00:00Z"}

    assert api.post(f"jobs/{job.pk}/backfill/", asked | {"dry_run": True}).status_code == 200
    assert changes_of(job) == []
    assert api.post(f"jobs/{job.pk}/backfill/", asked).status_code == 200

    said = "backfilled 2 runs, from 2026-03-02 03:00:00 UTC to 2026-03-03 03:00:00 UTC"
    assert (_only(job).said, _only(job).fields) == (said, ())


def test_who_deleted_it(api: Api) -> None:
    job = make_idle_job(name="report")

    api.delete(f"jobs/{job.pk}/", if_match="*")

    entry = LogEntry.objects.get()
    assert (entry.is_deletion(), entry.object_id, entry.object_repr) == (True, str(job.pk), "report")
    assert entry.user.get_username() == "admin"


def test_what_is_refused_and_what_programs_do_all_day_leaves_none(api: Api) -> None:
    job = make_idle_job()
    run = make_run(job)

    problem(api.patch(f"jobs/{job.pk}/", {"schedule": "nonsense"}, if_match="*"), 400)
    problem(api.patch(f"jobs/{job.pk}/", {"description": "x"}, if_match='"9"'), 412)
    api.post(f"jobs/{job.pk}/trigger/")
    api.post(f"runs/{run.pk}/cancel/")

    assert not LogEntry.objects.exists()


def test_somebody_who_is_no_row_leaves_none(admin_user: User) -> None:
    """A stateless token's user."""
    job = make_idle_job()

    history.note_change(object(), job, {}, "x")
    assert not LogEntry.objects.exists()
    history.note_change(admin_user, job, {}, "x")
    assert LogEntry.objects.count() == 1


def test_without_the_admin_there_is_none(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django.apps.apps.is_installed", lambda name: name != "django.contrib.admin")

    assert api.post("jobs/", JOB).status_code == 201

    assert not LogEntry.objects.exists()


def test_the_page_of_the_history_shows_it(admin_client: Client, api: Api) -> None:
    job = make_idle_job()
    api.patch(f"jobs/{job.pk}/", {"schedule": "0 5 * * *"}, if_match="*")

    page: Any = admin_client.get(reverse("admin:django_dcron_job_history", args=[job.pk]))

    assert "<ins>0 5 * * *</ins>" in page.content.decode()
    assert "past the admin" not in page.content.decode()
