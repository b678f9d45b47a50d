"""Test limits over HTTP. What they share with calendars is tested in ``test_calendars``."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_dcron import control
from django_dcron.jobs.representation import to_json
from django_dcron.models import Job, Limit, LimitPlace, Run
from tests.admin.conftest import as_rendered, errors
from tests.contrib.rest.conftest import Api, ApiWith, problem
from tests.factories import entries_by_users, make_idle_job, make_run

API = {"name": "payment-api", "max_running": 3}
PATH = "limits/payment-api/"


def make_limit(name: str = "payment-api", **fields: Any) -> Limit:
    return control.save_limit(Limit(name=name, **({"max_running": 3} | fields)))


def make_limited_run(limit: Limit, number: int | None) -> Run:
    state = "waiting" if number is None else "running"
    run = make_run(make_idle_job(limit=limit), state, limited=True)
    LimitPlace.objects.create(run=run, limit=limit, number=number, due_at=run.due_at)
    return run


def test_limit_is_created_changed_and_deleted(api: Api) -> None:
    made = api.post("limits/", API | {"max_started": 100, "interval": "1m"})

    assert (made.status_code, made["ETag"]) == (201, '"1"')
    assert made.json() == {
        "name": "payment-api",
        "version": 1,
        "description": "",
        "max_running": 3,
        "max_started": 100,
        "interval": "1m",
        "key": "",
    }
    assert api.get(made["Location"]).json() == made.json()
    job = {"name": "a", "target": "tests.app.tasks.ok", "schedule": "@daily", "limit": API["name"]}
    assert api.post("jobs/", job).status_code == 201
    assert Job.objects.get().limit_id == API["name"]

    changed = api.patch(PATH, {"max_running": 5}, if_match=made["ETag"])
    assert (changed.status_code, changed["ETag"]) == (200, '"2"')
    assert changed.json() == made.json() | {"max_running": 5, "version": 2}
    again = api.send("PUT", PATH, changed.json(), if_match=changed["ETag"])
    assert again.json() == changed.json() | {"version": 3}
    replaced = api.send("PUT", PATH, {"max_running": 5}, if_match="*")
    assert (replaced.json()["max_started"], replaced.json()["interval"]) == (None, None)

    control.delete(Job.objects.get())
    assert api.delete(PATH, if_match='"4"').status_code == 204
    assert not Limit.objects.exists()
    actions = [entry.action for entry in entries_by_users().filter(kind="limit")]
    assert actions == ["create", "change", "change", "change", "delete"]


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_all_errors_of_a_change_are_reported_at_once(method: str, api: Api) -> None:
    make_limit()
    body = {"name": "other", "colour": "red", "description": 5, "key": "customer:{kwargs[id]"}
    refused = problem(api.send(method, PATH, body, if_match="*"), 400)
    assert {*refused["errors"]} == {*body}


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        ("name", "a/b"),
        ("max_running", 0),
        ("max_running", 1001),
        ("max_running", None),
        ("interval", None),
        ("key", "customer:{kwargs[customer_id]"),
    ],
)
def test_field_errors_are_the_same_as_in_the_admin(
    field: str, sent: Any, api: Api, admin_client: Client
) -> None:
    body = API | {"max_started": 5, "interval": "1m"} if field == "interval" else API
    refused = problem(api.post("limits/", body | {field: sent}), 400)

    url = reverse("admin:django_dcron_limit_add")
    filled = body | {field: "" if sent is None else sent}
    form = as_rendered(admin_client.get(url)) | {key: str(value) for key, value in filled.items()}
    assert [*refused["errors"]] == [field]
    assert refused["errors"] == errors(admin_client.post(url, form))
    assert not Limit.objects.exists()


def test_list_shows_running_and_waiting_runs(api: Api, django_assert_num_queries: Any) -> None:
    limit = make_limit()
    make_limit("sms", max_running=None, max_started=100, interval="60")
    runs = [make_limited_run(limit, number) for number in (None, 1, 2, None)]
    api.get("limits/")

    with django_assert_num_queries(3):  # the session, the user and the limits
        shown = api.get("limits/").json()["results"]

    assert [(each["name"], each["running"], each["waiting"]) for each in shown] == [
        ("payment-api", 2, 2),
        ("sms", 0, 0),
    ]
    first = min(runs[0].due_at, runs[3].due_at)
    assert [each["waiting_since"] for each in shown] == [to_json(first), None]
    assert [each["name"] for each in api.get("limits/", search="SM").json()["results"]] == ["sms"]


@pytest.mark.parametrize(("also", "named"), [((), "a job or a run"), (("view_job",), "report")])
def test_conflict_names_the_job_only_with_permission_to_view_jobs(
    also: tuple[str, ...], named: str, api_with: ApiWith
) -> None:
    make_idle_job(name="report", limit=make_limit())

    refused = problem(api_with("delete_limit", *also).delete(PATH, if_match="*"), 409)

    assert refused["code"] == "conflict"
    assert refused["detail"].endswith(f"because {named} uses it.")


def test_outdated_change_is_refused(api: Api) -> None:
    limit = make_limit()
    limit.max_running = 4
    control.save_limit(limit)

    problem(api.patch(PATH, {"max_running": 9}, if_match='"1"'), 412)
    problem(api.patch(PATH, {"max_running": 9}), 428)
    problem(api.patch("limits/nothing/", {"max_running": 9}, if_match="*"), 404)
    assert Limit.objects.get().max_running == 4
