"""Every interface shows what a run ran, and what differs in its job now, without secrets."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_dcron import control
from django_dcron.admin.runs.admin import JOB_ARGUMENTS_NOTE, RECORDED_ARGUMENTS_NOTE
from django_dcron.diagnosis.definitions import changes_since
from django_dcron.jobs.definitions import content_of, definition_id
from django_dcron.models import Attempt, Run
from django_dcron.targets.redaction import CHANGED_MASK, MASK
from tests.factories import make_idle_job, make_run
from tests.management.calling import call

pytestmark = pytest.mark.django_db

CHANGES = [
    {"field": "kwargs", "then": {"city": "Berlin", "token": MASK}, "now": {"token": CHANGED_MASK}},
    {"field": "timeout", "then": "5m", "now": "10m"},
]


@pytest.fixture
def run() -> Run:
    """A run whose job has been changed since."""
    kwargs = {"city": "Berlin", "token": "s3cret"}
    job = make_idle_job(
        name="report", target="tests.app.tasks.echo", kwargs=kwargs, timeout=timedelta(minutes=5)
    )
    run = make_run(job, "succeeded")
    Run.objects.update(started_at=run.scheduled_at, finished_at=run.scheduled_at)
    attempt = Attempt(run=run, number=1, token=run.pk, worker="w", release="5f1c2ab")
    attempt.started_at, attempt.definition_id = run.scheduled_at, definition_id(job)
    attempt.save()
    job.kwargs, job.timeout, job.description = {"token": "oth3r"}, timedelta(minutes=10), "new"
    control.save(job)
    return run


def _client(*codenames: str) -> Client:
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def _check(attempt: dict[str, Any]) -> None:
    assert attempt["release"] == "5f1c2ab"
    definition = attempt["definition"]
    assert definition["version"] == 1
    assert definition["changes"] == CHANGES
    assert definition["content"]["kwargs"] == CHANGES[0]["then"]
    assert definition["content"]["name"] == "report"


def test_rest_api_returns_what_ran(run: Run) -> None:
    url = f"/dcron/runs/{run.pk}/"
    (attempt,) = _client("view_run", "view_attempt", "view_job").get(url).json()["attempts"]
    _check(attempt)


def test_rest_api_returns_no_definition_without_permission(run: Run) -> None:
    url = f"/dcron/runs/{run.pk}/"
    (attempt,) = _client("view_run", "view_attempt").get(url).json()["attempts"]
    assert (attempt["release"], attempt["definition"]) == ("5f1c2ab", None)


def test_command_shows_what_ran(run: Run) -> None:
    answer = call("history", str(run.pk), "--json")
    (attempt,) = answer.json["run"]["attempts"]
    _check(attempt)
    text = call("history", str(run.pk)).out
    for part in ("5f1c2ab", "timeout: 5m -> 10m"):
        assert part in text
    assert "s3cret" not in answer.out + text


def test_page_of_a_run_shows_what_ran(run: Run) -> None:
    url = reverse("admin:django_dcron_run_change", args=[run.pk])
    html = _client("view_run", "view_attempt", "view_job").get(url).content.decode()
    section = html[html.index('id="dcron-ran"') :].partition("</section>")[0]
    for part in ("5f1c2ab", "5m", "10m", "Berlin", MASK):
        assert part in section
    assert str(RECORDED_ARGUMENTS_NOTE) in html.replace("&#x27;", "'")
    assert str(JOB_ARGUMENTS_NOTE) not in html.replace("&#x27;", "'")
    assert "s3cret" not in html
    assert "oth3r" not in html


def test_page_of_a_run_hides_the_definition_without_permission(run: Run) -> None:
    url = reverse("admin:django_dcron_run_change", args=[run.pk])
    for codenames in (["view_run", "view_attempt"], ["view_run"]):
        User.objects.all().delete()
        html = _client(*codenames).get(url).content.decode()
        assert "dcron-ran" not in html
        assert "Berlin" not in html


def test_export_of_runs_has_version_and_release(run: Run, admin_client: Client) -> None:
    never_started = make_run(run.job, "skipped")
    response: Any = admin_client.get(reverse("admin:django_dcron_run_export", args=["json"]))
    rows = json.loads(b"".join(response.streaming_content))["runs"]
    shown = {row["id"]: (row["job_version"], row["release"]) for row in rows}
    assert shown == {str(run.pk): (1, "5f1c2ab"), str(never_started.pk): (None, None)}


def test_field_that_was_not_recorded_had_its_default() -> None:
    """A definition of an earlier release lacks the fields of this one."""
    job = make_idle_job(queue="mail")
    content = content_of(job)
    del content["queue"], content["jitter"]
    content["removed"] = 1
    (change,) = changes_since(content, job)
    assert (change.field, change.old, change.new) == ("queue", "", "mail")


def test_deleted_definition_is_none(run: Run) -> None:
    Attempt.objects.get().definition.delete()
    (attempt,) = call("history", str(run.pk), "--json").json["run"]["attempts"]
    assert attempt["definition"] is None
    url = reverse("admin:django_dcron_run_change", args=[run.pk])
    html = _client("view_run", "view_attempt", "view_job").get(url).content.decode()
    assert "dcron-ran" in html
