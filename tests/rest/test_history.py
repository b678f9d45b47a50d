"""What is done by the API is in the history of the job or the run, as what is done in the admin is."""

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

from django_dcron.models import Job, Run
from django_dcron.observability import changes, noting, standing
from django_dcron.observability.changes import Change, FieldChange, changes_of, read
from django_dcron.rest.history import entry_of
from tests.factories import make_idle_job, make_job, make_run
from tests.rest.conftest import Api, problem

JOB = {"name": "report", "target": "tests.app.tasks.ok", "schedule": "30 3 * * *"}


def _only(job: Job) -> Change:
    (change,) = changes_of(job)
    return change


def _said_of(row: Job | Run) -> list[str]:
    """All entries, oldest first."""
    entries = LogEntry.objects.filter(
        content_type=ContentType.objects.get_for_model(row), object_id=str(row.pk)
    )
    return [f"{each.by}: {each.said}" for each in map(read, entries.order_by("pk"))]


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
    assert _said_of(job) == []
    assert api.post(f"jobs/{job.pk}/backfill/", asked).status_code == 200

    assert _said_of(job) == [
        "admin: backfilled 2 runs, from 2026-03-02 03:00:00 UTC to 2026-03-03 03:00:00 UTC"
    ]


def test_who_ran_it_once_for_each_run(api: Api) -> None:
    job = make_idle_job(target="tests.app.tasks.echo")

    first = api.post(f"jobs/{job.pk}/trigger/", idempotency_key="k").json()["id"]
    api.post(f"jobs/{job.pk}/trigger/", idempotency_key="k")
    second = api.post(f"jobs/{job.pk}/trigger/", {"args": [1]}).json()["id"]

    assert _said_of(Run.objects.get(pk=first)) == [f"admin: run now, as run {first}"]
    assert _said_of(Run.objects.get(pk=second)) == [f"admin: run now with other arguments, as run {second}"]
    assert _said_of(job) == []


def test_who_cancelled_a_run_and_who_ran_it_again(api: Api) -> None:
    running, pending = make_run(make_idle_job(), "running"), make_run(make_idle_job())

    api.post(f"runs/{running.pk}/cancel/")
    api.post(f"runs/{pending.pk}/cancel/", {"reason": "wrong day"})
    made = api.post(f"runs/{pending.pk}/rerun/").json()["id"]

    assert _said_of(running) == ["admin: told to stop"]
    assert _said_of(pending) == ["admin: cancelled", f"admin: runs again, as run {made}"]


def test_who_deleted_it(api: Api) -> None:
    job = make_idle_job(name="report")

    api.delete(f"jobs/{job.pk}/", if_match="*")

    entry = LogEntry.objects.get()
    assert (entry.is_deletion(), entry.object_id, entry.object_repr) == (True, str(job.pk), "report")
    assert entry.user.get_username() == "admin"


def test_what_is_refused_leaves_none(api: Api) -> None:
    job = make_idle_job()
    running, ended = make_run(job, "running"), make_run(job, "failed")

    problem(api.patch(f"jobs/{job.pk}/", {"schedule": "nonsense"}, if_match="*"), 400)
    problem(api.patch(f"jobs/{job.pk}/", {"description": "x"}, if_match='"9"'), 412)
    problem(api.post(f"jobs/{job.pk}/trigger/", {"args": [1]}), 400)
    problem(api.post(f"runs/{ended.pk}/cancel/"), 409)
    problem(api.post(f"runs/{running.pk}/rerun/"), 409)

    assert not LogEntry.objects.exists()


def test_what_programs_do_all_day_hides_no_change(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "READ", 2)
    job = make_job(schedule="0 3 * * *")
    api.post(f"jobs/{job.pk}/pause/", {"reason": "deploy"})
    for day in (2, 3, 4):
        asked = {"start": f"2026-03-0{day}T00:00:00Z", "end": f"2026-03-0{day}T12:00:00Z"}
        assert api.post(f"jobs/{job.pk}/backfill/", asked).status_code == 200
    job.refresh_from_db()

    author = standing.paused_by(job)

    assert len(_said_of(job)) == 4
    assert author is not None
    assert author.by == "admin"


def test_what_programs_do_all_day_adds_nothing_to_what_pages_of_jobs_read(api: Api) -> None:
    job = make_idle_job()
    for _ in range(2):
        made = api.post(f"jobs/{job.pk}/trigger/").json()["id"]
    api.post(f"runs/{made}/cancel/")
    api.post(f"runs/{made}/rerun/")

    assert [*LogEntry.objects.values_list("content_type__model", flat=True)] == ["run"] * 4


@pytest.fixture
def _no_entry_can_be_written(db: None) -> Iterator[None]:
    """As the database has it against them: what comes later in the same transaction is not to suffer."""

    def fail(**_sent: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM nowhere")

    pre_save.connect(fail, LogEntry)
    yield
    pre_save.disconnect(fail, LogEntry)


@pytest.mark.usefixtures("_no_entry_can_be_written")
def test_what_was_done_is_answered_so_if_it_cannot_be_noted(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(name="report", schedule="0 3 * * *")
    days = {"start": "2026-03-02T00:00:00Z", "end": "2026-03-04T00:00:00Z"}
    address = f"jobs/{job.pk}/"

    triggered = api.post(f"{address}trigger/")
    run = triggered.json()["id"]
    answers = [
        triggered,
        api.post(f"runs/{run}/cancel/"),
        api.post(f"runs/{run}/rerun/"),
        api.post(f"{address}backfill/", days),
        api.post(f"{address}pause/"),
        api.post(f"{address}resume/"),
        api.patch(address, {"description": "new"}, if_match="*"),
        api.delete(address, if_match="*"),
        api.post("jobs/", JOB),
        api.post("calendars/", {"name": "closed", "dates": "12-25"}),
        api.patch("calendars/closed/", {"dates": "12-26"}, if_match="*"),
        api.delete("calendars/closed/", if_match="*"),
    ]

    assert [each.status_code for each in answers] == [
        *(201, 200, 201, 200, 200, 200, 200, 204),
        *(201, 201, 200, 204),
    ]
    told = [each for each in caplog.records if each.name == "django_dcron.rest"]
    assert len(told) == len(answers)
    assert f"what was done to the run {run} (" in told[0].getMessage()
    assert "report" in told[0].getMessage()
    assert told[0].exc_info
    assert not LogEntry.objects.exists()


@pytest.mark.usefixtures("_no_entry_can_be_written")
def test_in_a_transaction_of_the_projects_own_the_deed_is_kept(api: Api) -> None:
    job = make_idle_job()

    with transaction.atomic():
        assert api.post(f"jobs/{job.pk}/trigger/").status_code == 201

    assert Run.objects.filter(job=job).count() == 1


def test_what_the_database_has_given_up_is_not_told_as_done(db: None) -> None:
    job = make_idle_job()

    def give_up() -> None:
        with transaction.atomic(), entry_of(job):
            transaction.set_rollback(True)
            raise DatabaseError("deadlock")

    with pytest.raises(DatabaseError, match="deadlock"):
        give_up()


def test_somebody_who_is_no_row_leaves_none(admin_user: User) -> None:
    """A stateless token's user."""
    job = make_idle_job()

    noting.note_deed(object(), job, {}, "x")
    assert not LogEntry.objects.exists()
    noting.note_deed(admin_user, job, {}, "x")
    assert LogEntry.objects.count() == 1


def test_without_the_admin_there_is_none(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django.apps.apps.is_installed", lambda name: name != "django.contrib.admin")

    made = api.post("jobs/", JOB)
    assert made.status_code == 201
    assert api.post(f"{made['Location']}trigger/").status_code == 201

    assert not LogEntry.objects.exists()


def test_the_page_of_the_history_shows_it(admin_client: Client, api: Api) -> None:
    job = make_idle_job()
    api.patch(f"jobs/{job.pk}/", {"schedule": "0 5 * * *"}, if_match="*")
    run = api.post(f"jobs/{job.pk}/trigger/").json()["id"]

    page = admin_client.get(reverse("admin:django_dcron_job_history", args=[job.pk])).content.decode()
    page_of_run = admin_client.get(reverse("admin:django_dcron_run_history", args=[run])).content.decode()

    assert "<ins>0 5 * * *</ins>" in page
    assert "past the admin" not in page
    assert "run now, as run " in page_of_run
