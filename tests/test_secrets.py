"""Test who can see secrets in arguments, and where. Exports contain them; lists don't read them."""

import json
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.jobs import portable
from django_dcron.models import Job, Run
from django_dcron.targets import MASK
from tests.factories import make_idle_job

SECRET = "hunter2-hunter2"
NEW_SECRET = "hunter3-hunter3"
ADMIN = "/admin/django_dcron"
ALL_VIEWS = ("view_job", "view_run", "view_attempt", "view_node", "view_calendar")

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    kwargs = {"password": SECRET, "city": "Berlin"}
    return make_idle_job(target="tests.app.tasks.echo", args=[f"--token={SECRET}"], kwargs=kwargs)


@pytest.fixture
def run(job: Job) -> Run:
    return control.trigger(job, args=[{"api_key": SECRET}], kwargs={"secret": SECRET})


def client_with(*codenames: str) -> Client:
    user = User.objects.create_user(f"user-{User.objects.count()}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def text_of(client: Client, url: str) -> str:
    response: Any = client.get(url)
    assert response.status_code == 200
    return (
        b"".join(response.streaming_content).decode()
        if response.streaming
        else response.content.decode()
    )


def pages(job: Job, run: Run) -> list[str]:
    return [
        f"{ADMIN}/job/{job.pk}/change/",
        f"{ADMIN}/job/{job.pk}/history/",
        f"{ADMIN}/job/",
        f"{ADMIN}/job/export/json/",
        f"{ADMIN}/job/export/csv/",
        f"{ADMIN}/run/{run.pk}/change/",
        f"{ADMIN}/run/export/json/",
        f"/dcron/jobs/{job.pk}/",
        "/dcron/jobs/",
        f"/dcron/runs/{run.pk}/",
        f"/dcron/jobs/{job.pk}/stats/",
    ]


def test_users_without_change_permission_see_no_secret(
    job: Job, run: Run, admin_client: Client
) -> None:
    api_change = {"kwargs": {"password": NEW_SECRET}}
    version = {"If-Match": admin_client.get(f"/dcron/jobs/{job.pk}/")["ETag"]}
    changed = admin_client.patch(
        f"/dcron/jobs/{job.pk}/",
        json.dumps(api_change),
        content_type="application/json",
        headers=version,
    )
    assert changed.status_code == 200
    viewer = client_with(*ALL_VIEWS, "trigger_job", "pause_job", "delete_job", "add_job")
    for url in pages(job, run):
        shown = text_of(viewer, url)
        assert SECRET not in shown, url
        assert NEW_SECRET not in shown, url
    assert MASK in text_of(viewer, f"{ADMIN}/job/{job.pk}/change/")
    assert viewer.get(f"/dcron/jobs/{job.pk}/").json()["kwargs"] == {"password": MASK}
    assert MASK in text_of(viewer, f"{ADMIN}/job/{job.pk}/history/")


def test_run_page_masks_secrets_of_the_job_and_of_the_run(job: Job, run: Run) -> None:
    without_own = control.trigger(job)
    for shown, codenames in (
        (without_own, ALL_VIEWS),  # the job's arguments
        (run, ("view_run",)),  # the run's arguments for a user who can't see the job
    ):
        page = text_of(client_with(*codenames), f"{ADMIN}/run/{shown.pk}/change/")
        assert SECRET not in page
        assert page.count(MASK) >= 2, "positional and keyword arguments"


def test_users_with_change_permission_see_secrets_of_the_job(job: Job, run: Run) -> None:
    editor = client_with(*ALL_VIEWS, "change_job")
    assert SECRET in text_of(editor, f"{ADMIN}/job/{job.pk}/change/")
    assert editor.get(f"/dcron/jobs/{job.pk}/").json()["kwargs"]["password"] == SECRET
    assert editor.get(f"/dcron/runs/{run.pk}/").json()["kwargs"] == {"secret": SECRET}
    assert SECRET not in text_of(editor, f"{ADMIN}/run/{run.pk}/change/")


def test_masked_arguments_of_a_run_keep_their_values(job: Job) -> None:
    operator = client_with(*ALL_VIEWS, "trigger_job", "run_job_with_arguments")
    url = f"{ADMIN}/job/{job.pk}/do/run_with/"
    form = operator.get(url).context["form"]
    sent = {name: form[name].value() for name in ("args", "kwargs")}
    assert SECRET not in str(sent)
    operator.post(url, {**sent, "kwargs": sent["kwargs"].replace("Berlin", "Rome")})
    made = job.runs.get()
    assert (made.args, made.kwargs) == ([f"--token={SECRET}"], {"password": SECRET, "city": "Rome"})


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_command_line_masks_secrets_and_export_contains_them(
    job: Job, run: Run, options: list[str]
) -> None:
    for words in (["show", str(job.pk)], ["history", str(run.pk)]):
        out = StringIO()
        call_command("dcron", *words, *options, stdout=out)
        assert SECRET not in out.getvalue()
        assert MASK in out.getvalue()
    assert SECRET in portable.write_document([job])


@pytest.mark.parametrize("url", [f"{ADMIN}/job/", f"{ADMIN}/run/", "/dcron/jobs/", "/dcron/runs/"])
def test_lists_do_not_read_arguments(job: Job, run: Run, admin_client: Client, url: str) -> None:
    with CaptureQueriesContext(connection) as queries:
        admin_client.get(url)
    read = [query["sql"] for query in queries if "kwargs" in query["sql"]]
    assert read == []
