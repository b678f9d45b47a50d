"""Test the endpoint of the audit log: pages, filters, permission and visible rows."""

from typing import Any

import pytest
from pytest_django import Settings

from django_dcron import control
from django_dcron.models import AuditEntry, Calendar, Job
from tests.contrib.rest.conftest import Api, ApiWith, problem
from tests.factories import make_idle_job


def _actions(response: Any) -> list[str]:
    assert response.status_code == 200, response.content
    return [entry["action"] for entry in response.json()["results"]]


def test_entries_are_listed_latest_first_in_pages(api: Api) -> None:
    job = make_idle_job()
    control.pause(job, "deploy")
    control.resume(job)

    first = api.get("audit/", limit=2)
    second = api.get(first.json()["next"])

    assert (_actions(first), _actions(second)) == (["resume", "pause"], ["create"])
    assert second.json()["next"] is None
    pause = first.json()["results"][1]
    entry = AuditEntry.objects.get(action="pause")
    assert (pause["id"], pause["reason"], pause["after"]) == (entry.pk, "deploy", entry.after)
    assert pause["at"].endswith("Z")


def test_entries_are_filtered(api: Api) -> None:
    job, other = make_idle_job(), make_idle_job()
    with control.acting_as("ada"):
        control.pause(other, "deploy")
    control.trigger(job)

    assert _actions(api.get("audit/", job=job.pk)) == ["trigger", "create"]
    assert _actions(api.get("audit/", actor="ada")) == ["pause"]
    assert _actions(api.get("audit/", action="create", kind="job", via="code")) == ["create"] * 2
    at = AuditEntry.objects.get(action="pause").at.isoformat().replace("+00:00", "Z")
    assert _actions(api.get("audit/", since=at))[-1:] == ["pause"]
    assert "pause" not in _actions(api.get("audit/", until=at))
    problem(api.get("audit/", action="explode"), 400)
    problem(api.get("audit/", cursor="x"), 400)


def test_permission_to_view_jobs_is_not_enough(api_with: ApiWith) -> None:
    make_idle_job()
    problem(api_with("view_job").get("audit/"), 403)
    assert _actions(api_with("view_auditentry").get("audit/")) == ["create"]


def only_shop(request: Any, rows: Any) -> Any:
    if rows.model is Job:
        return rows.filter(namespace="shop")
    return rows.filter(name="shop days") if rows.model is Calendar else rows


def no_deletions(request: Any, rows: Any) -> Any:
    return rows.exclude(action="delete") if rows.model is AuditEntry else rows


@pytest.fixture
def _entries(db: None) -> None:
    for namespace in ("shop", "hush"):
        job = make_idle_job(namespace=namespace)
        control.trigger(job)
        control.freeze("deploy", namespace)
        control.save_calendar(Calendar(name=f"{namespace} days", dates="12-25"))
    gone = make_idle_job(namespace="shop", name="gone")
    control.delete(gone)
    control.freeze("deploy")


@pytest.mark.usefixtures("_entries")
def test_only_entries_about_visible_rows_are_listed(api: Api, settings: Settings) -> None:
    settings.DCRON_REST_QUERYSET = f"{__name__}.only_shop"
    found = api.get("audit/").json()["results"]

    assert "hush" not in str(found)
    assert [entry["action"] for entry in found if entry["label"] == "gone"] == []
    assert [entry["kind"] for entry in found] == ["freeze", "calendar", "freeze", "run", "job"]


@pytest.mark.usefixtures("_entries")
def test_the_project_narrows_the_entries_themselves(api: Api, settings: Settings) -> None:
    before = _actions(api.get("audit/"))
    settings.DCRON_REST_QUERYSET = f"{__name__}.no_deletions"
    assert _actions(api.get("audit/")) == [each for each in before if each != "delete"]
