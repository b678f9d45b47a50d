"""Test the permissions that each URL of the API requires.

Each URL is requested by an anonymous user and by users with no permission, each single permission
and the required permissions. ``REQUESTS`` lists every operation and the permissions it requires. An
unlisted operation fails the first test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from rest_framework.permissions import (
    BasePermission,
    DjangoModelPermissions,
    DjangoModelPermissionsOrAnonReadOnly,
)
from rest_framework.settings import api_settings

from django_dcron import control
from django_dcron.models import (
    Attempt,
    AuditEntry,
    Calendar,
    Freeze,
    Incident,
    Job,
    Limit,
    Node,
    Run,
)
from tests.admin.conftest import counted_writes, log_in_as
from tests.contrib.rest.conftest import VIEWS, Api, ApiWith, operations, problem
from tests.contrib.test_ics import file_of
from tests.factories import make_idle_job, make_job, make_run
from tests.teams import make_incidents


@dataclass(frozen=True)
class Request:
    needs: str
    method: str
    path: str
    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def permissions(self) -> set[str]:
        return {*self.needs.split()}

    def body_for(self, keys: Mapping[str, Any]) -> Any:
        return self.body(keys) if callable(self.body) else self.body

    @property
    def changes_rows(self) -> bool:
        return self.method != "GET" and "preview" not in self.path


MATCHING = {"if_match": "*"}
EVENT = "DTSTART;VALUE=DATE:20261224 RRULE:FREQ=YEARLY SUMMARY:Christmas"
JOB = {"name": "new", "target": "tests.app.tasks.ok", "schedule": "0 3 * * *"}
CALENDAR = {"name": "new", "dates": "12-25"}
OTHER_DATES = {"dates": "12-24"}
LIMIT = {"name": "new", "max_running": 3}
OTHER_MAXIMUM = {"max_running": 4}
RANGE = {"start": "2026-03-01T00:00:00Z", "end": "2026-04-04T00:00:00Z"}

REQUESTS = {
    "list_jobs": Request("view_job", "GET", "jobs/"),
    "create_job": Request("add_job", "POST", "jobs/", 201, JOB),
    "create_jobs": Request("add_job", "POST", "jobs/bulk/", 201, {"jobs": [JOB]}),
    "change_jobs": Request(
        "change_job",
        "PATCH",
        "jobs/bulk/",
        200,
        lambda keys: {"jobs": [{"id": keys["job"], "version": 1, "name": "other"}]},
    ),
    "pause_jobs": Request(
        "view_job pause_job",
        "POST",
        "jobs/bulk/pause/",
        200,
        lambda keys: {"ids": [keys["job"]], "reason": "deploy"},
    ),
    "resume_jobs": Request(
        "view_job pause_job",
        "POST",
        "jobs/bulk/resume/",
        200,
        lambda keys: {"ids": [keys["paused"]]},
    ),
    "trigger_jobs": Request(
        "view_job trigger_job",
        "POST",
        "jobs/bulk/trigger/",
        200,
        lambda keys: {"ids": [keys["job"]]},
    ),
    "trigger_jobs with arguments": Request(
        "view_job trigger_job run_job_with_arguments",
        "POST",
        "jobs/bulk/trigger/",
        200,
        lambda keys: {"ids": [keys["echo"]], "args": [1]},
    ),
    "preview_ics": Request(
        "view_calendar", "POST", "calendars/ics/preview/", 200, {"ics": file_of(EVENT).decode()}
    ),
    "preview_schedule": Request("view_job", "POST", "jobs/preview/", 200, {"schedule": "@daily"}),
    "read_job": Request("view_job", "GET", "jobs/{job}/"),
    "replace_job": Request("change_job", "PUT", "jobs/{job}/", 200, JOB, MATCHING),
    "change_job": Request("change_job", "PATCH", "jobs/{job}/", 200, {"name": "other"}, MATCHING),
    "delete_job": Request("delete_job", "DELETE", "jobs/{job}/", 204, None, MATCHING),
    "revert_job": Request("change_job", "POST", "jobs/{paused}/revert/", 200, {"version": 2}),
    "restore_job": Request(
        "add_job", "POST", "jobs/restore/", 201, lambda keys: {"entry": keys["deletion"]}
    ),
    "pause_job": Request(
        "view_job pause_job", "POST", "jobs/{job}/pause/", 200, {"reason": "deploy"}
    ),
    "resume_job": Request("view_job pause_job", "POST", "jobs/{paused}/resume/"),
    "trigger_job": Request("view_job trigger_job", "POST", "jobs/{job}/trigger/", 201),
    "trigger_job with arguments": Request(
        "view_job trigger_job run_job_with_arguments",
        "POST",
        "jobs/{echo}/trigger/",
        201,
        {"args": [1]},
    ),
    "trigger_job with equal arguments": Request(
        "view_job trigger_job", "POST", "jobs/{echo}/trigger/", 201, {"args": [7.0], "kwargs": {}}
    ),
    "preview_job": Request("view_job", "GET", "jobs/{job}/preview/"),
    "backfill_job": Request("view_job trigger_job", "POST", "jobs/{job}/backfill/", 200, RANGE),
    "get_job_stats": Request("view_job view_run", "GET", "jobs/{job}/stats/"),
    "list_calendars": Request("view_calendar", "GET", "calendars/"),
    "create_calendar": Request("add_calendar", "POST", "calendars/", 201, CALENDAR),
    "read_calendar": Request("view_calendar", "GET", "calendars/closed/"),
    "replace_calendar": Request(
        "change_calendar", "PUT", "calendars/closed/", 200, OTHER_DATES, MATCHING
    ),
    "change_calendar": Request(
        "change_calendar", "PATCH", "calendars/closed/", 200, OTHER_DATES, MATCHING
    ),
    "delete_calendar": Request(
        "delete_calendar", "DELETE", "calendars/closed/", 204, None, MATCHING
    ),
    "list_limits": Request("view_limit", "GET", "limits/"),
    "create_limit": Request("add_limit", "POST", "limits/", 201, LIMIT),
    "read_limit": Request("view_limit", "GET", "limits/narrow/"),
    "replace_limit": Request("change_limit", "PUT", "limits/narrow/", 200, OTHER_MAXIMUM, MATCHING),
    "change_limit": Request(
        "change_limit", "PATCH", "limits/narrow/", 200, OTHER_MAXIMUM, MATCHING
    ),
    "delete_limit": Request("delete_limit", "DELETE", "limits/narrow/", 204, None, MATCHING),
    "list_runs": Request("view_run", "GET", "runs/"),
    "read_run": Request("view_run", "GET", "runs/{run}/"),
    "read_log": Request("view_run view_attempt", "GET", "runs/{run}/log/"),
    "cancel_run": Request("view_run cancel_run", "POST", "runs/{run}/cancel/"),
    "cancel_runs": Request(
        "view_run cancel_run",
        "POST",
        "runs/bulk/cancel/",
        200,
        lambda keys: {"ids": [str(keys["run"])]},
    ),
    "cancel_runs of jobs": Request(
        "view_job view_run cancel_run",
        "POST",
        "runs/bulk/cancel/",
        200,
        lambda keys: {"jobs": {"pattern": "*/*"}},
    ),
    "rerun_run": Request("view_run rerun_run", "POST", "runs/{ended}/rerun/", 201),
    "rerun_run with arguments": Request(
        "view_run rerun_run run_job_with_arguments",
        "POST",
        "runs/{ended_with_arguments}/rerun/",
        201,
    ),
    "list_freezes": Request("view_job", "GET", "freezes/"),
    "create_freeze": Request(
        "view_job freeze_jobs", "POST", "freezes/", 201, {"reason": "deploy", "namespace": "shop"}
    ),
    "delete_freeze": Request("view_job freeze_jobs", "DELETE", "freezes/{freeze}/", 204),
    "list_incidents": Request("view_incident", "GET", "incidents/"),
    "read_incident": Request("view_incident", "GET", "incidents/{incident}/"),
    "set_incident_state": Request(
        "view_incident acknowledge_incident",
        "POST",
        "incidents/{incident}/state/",
        200,
        {"state": "acknowledged"},
    ),
    "list_audit_entries": Request("view_auditentry", "GET", "audit/"),
    "list_nodes": Request("view_node", "GET", "nodes/"),
    "get_stats": Request("view_job view_run", "GET", "stats/"),
}
OTHER_PERMISSIONS = sorted(
    {codename for request in REQUESTS.values() for codename in request.permissions} - {*VIEWS}
)


def test_every_operation_is_tested() -> None:
    assert {each.name: {*each.permissions} for _method, _url, each in operations()} == {
        name: request.permissions for name, request in REQUESTS.items() if " " not in name
    }
    assert len(OTHER_PERMISSIONS) == 17


@pytest.fixture
def keys(db: None) -> dict[str, Any]:
    job = make_job(schedule="0 3 1 * *")
    run = make_run(job, "running")
    control.save_calendar(Calendar(name="closed", dates="12-25"))
    control.save_limit(Limit(name="narrow", max_running=3))
    control.delete(make_idle_job())
    paused = make_idle_job(enabled=False)
    paused.max_attempts = 2
    return {
        "job": job.pk,
        "freeze": control.freeze("incident").pk,
        "shop": make_idle_job(namespace="shop").pk,
        "paused": control.save(paused).pk,
        "deletion": AuditEntry.objects.get(action="delete").pk,
        "run": run.pk,
        "incident": make_incidents(job, "", None)[0].pk,
        "ended": make_run(job, "failed").pk,
        "echo": make_idle_job(target="tests.app.tasks.echo", args=[7]).pk,
        "ended_with_arguments": make_run(job, "failed", args=[1]).pk,
    }


def _all_rows() -> list[Any]:
    return [
        list(model._default_manager.order_by("pk").values())
        for model in (Job, Calendar, Limit, Run, Attempt, Incident, Node, Freeze)
    ]


def _send(api: Api, request: Request, keys: dict[str, Any]) -> tuple[Any, bool]:
    """Return the response and whether the request changed a row. Changes are rolled back."""
    with transaction.atomic():
        before = _all_rows() if request.changes_rows else None
        path = request.path.format(**keys)
        with counted_writes() as writes:
            response = api.send(request.method, path, request.body_for(keys), **request.headers)
        changed = bool(writes.number) and _all_rows() != before
        transaction.set_rollback(True)
    return response, changed


def test_anonymous_requests_are_refused(keys: dict[str, Any]) -> None:
    requests = [
        *REQUESTS.values(),
        Request("", "GET", "schema/"),
        Request("", "GET", ""),
        Request("", "GET", "x/"),
    ]
    for request in requests:
        response, changed = _send(Api(None), request, keys)
        assert response.status_code in (401, 403), request
        assert response.json()["code"] == "not_authenticated"
        assert not changed, request


USERS = {
    "all views and everything about runs": (
        *VIEWS,
        "trigger_job",
        "rerun_run",
        "run_job_with_arguments",
    ),
    "no permission": (),
    "all views": VIEWS,
    **{f"only {each}": (each,) for each in (*VIEWS, *OTHER_PERMISSIONS)},
} | {f"views and {other}": (*VIEWS, other) for other in OTHER_PERMISSIONS}


@pytest.mark.parametrize("group", ["no", "all", "only", "views"])
def test_operations_require_exactly_the_documented_permissions(
    group: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_responses, count, api = [], 0, Api(None)
    walked = {who: permissions for who, permissions in USERS.items() if who.startswith(group)}
    for who, permissions in walked.items():
        log_in_as(permissions, monkeypatch, is_staff=False)
        granted = {*permissions, *(each.replace("change", "view") for each in permissions)}
        for name, request in REQUESTS.items():
            response, changed = _send(api, request, keys)
            expected = (
                (request.status, request.changes_rows)
                if granted >= request.permissions
                else (403, False)
            )
            refused = response.status_code == 403 and response.json()["code"] == "permission_denied"
            if (response.status_code, changed) != expected or refused != (expected[0] == 403):
                wrong_responses.append(
                    f"{who}: {name} returned {response.status_code}: {response.content!r}"
                )
            count += 1
    assert not wrong_responses, "\n".join(wrong_responses)
    assert count == len(walked) * len(REQUESTS) > 0


def test_requests_of_a_deactivated_user_are_refused(keys: dict[str, Any], admin_user: User) -> None:
    api = Api(admin_user)
    User.objects.update(is_active=False)

    for request in REQUESTS.values():
        response, changed = _send(api, request, keys)
        assert (response.status_code, changed) == (403, False), request


def test_post_with_session_authentication_requires_a_csrf_token(
    keys: dict[str, Any], admin_user: User
) -> None:
    api = Api(admin_user)
    api.client.handler.enforce_csrf_checks = True

    problem(api.post(f"jobs/{keys['job']}/pause/", {}), 403)

    assert Job.objects.get(pk=keys["job"]).enabled


def test_arguments_and_job_filters_require_permission_to_view_jobs(api_with: ApiWith) -> None:
    job = make_idle_job(target="tests.app.tasks.echo", args=["secret"], tags=["hidden"])
    run = make_run(job, "failed")
    api = api_with("view_run")

    shown = api.get(f"runs/{run.pk}/")

    assert "secret" not in shown.content.decode()
    assert (shown.json()["args"], shown.json()["attempts"]) == (None, None)
    assert shown.json()["job"]["name"] == job.name
    for query in ({"job": job.pk}, {"tag": "hidden"}, {"namespace": "default"}):
        problem(api.get("runs/", **query), 403)


def test_trigger_response_reveals_no_run_details_without_view_run(api_with: ApiWith) -> None:
    job = make_idle_job()
    make_run(job, "failed", idempotency_key="k", reason="secret")

    response = api_with("view_job", "trigger_job").post(
        f"jobs/{job.pk}/trigger/", {}, idempotency_key="k"
    )

    assert response.status_code == 200
    assert {*response.json()} == {"id", "job", "scheduled_at", "url", "shadow"}


class WithSecondFactor(BasePermission):
    """A project's own permission for all of its API."""

    message = "Log in with your second factor."

    def has_permission(self, request: Any, view: Any) -> bool:
        return request.headers.get("X-Second-Factor") == "yes"


@pytest.mark.parametrize(
    "rule",
    [WithSecondFactor, DjangoModelPermissions & WithSecondFactor, ~~WithSecondFactor],
    ids=["alone", "combined", "negated twice"],
)
def test_project_permission_class_applies_to_every_operation(
    keys: dict[str, Any], api: Api, monkeypatch: pytest.MonkeyPatch, rule: Any
) -> None:
    monkeypatch.setattr(api_settings, "DEFAULT_PERMISSION_CLASSES", [rule])
    second_factor = {"x_second_factor": "yes"}
    for name, request in {**REQUESTS, "schema": Request("", "GET", "schema/")}.items():
        response, changed = _send(api, request, keys)
        assert (response.status_code, changed) == (403, False), name
        response, _changed = _send(
            api, replace(request, headers={**request.headers, **second_factor}), keys
        )
        assert response.status_code == request.status, (name, response.content)


def test_django_model_permissions_of_the_project_change_nothing(
    keys: dict[str, Any], api_with: ApiWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        api_settings, "DEFAULT_PERMISSION_CLASSES", [DjangoModelPermissionsOrAnonReadOnly]
    )
    path = f"jobs/{keys['job']}/pause/"
    assert api_with("view_job", "pause_job").post(path, {}).status_code == 200
    problem(api_with("view_job", "add_job").post(path, {}), 403)
    assert Api(None).get("jobs/").status_code in (401, 403)
