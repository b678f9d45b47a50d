"""Test the format of errors, and that the project's own REST framework settings stay unchanged."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.test import override_settings
from django.utils import translation
from drf_spectacular.settings import spectacular_settings
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import APIException, AuthenticationFailed
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView, exception_handler

from django_dcron.contrib.rest import schema
from django_dcron.contrib.rest.urls import router
from django_dcron.contrib.rest.viewsets import BaseView, BaseViewSet
from django_dcron.models import Job
from django_dcron.models.job_states import EXHAUSTED
from tests.contrib.rest.conftest import Api, problem
from tests.factories import make_idle_job, make_run
from tests.waiting import TIMEOUT

JOB = {"name": "report", "target": "tests.app.tasks.ok", "schedule": "30 3 * * *"}


def test_validation_problem_has_detail_code_and_field_errors(api: Api) -> None:
    refused = problem(api.post("jobs/", JOB | {"schedule": "61 * * * *", "retry_on": 5}), 400)

    assert refused == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": f"retry_on: {refused['errors']['retry_on'][0]}",
        "code": "invalid",
        "errors": refused["errors"],
    }
    assert {*refused["errors"]} == {"retry_on", "schedule"}


def test_unused_pause_reason_is_still_validated(api: Api) -> None:
    """An enabled job doesn't store the reason, but the document limits its length."""
    refused = problem(api.post("jobs/", JOB | {"pause_reason": "x" * 256}), 400)
    assert {*refused["errors"]} == {"pause_reason"}


def test_length_limit_includes_surrounding_spaces(api: Api) -> None:
    """The documented limit includes leading and trailing spaces."""
    job = make_idle_job()
    refused = problem(api.post(f"jobs/{job.pk}/pause/", {"reason": f"deploy{' ' * 200}"}), 400)
    assert {*refused["errors"]} == {"reason"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "stats/"),
        ("HEAD", "jobs/{job}/"),
        ("POST", "jobs/{job}/pause/"),
        ("POST", "jobs/bulk/pause/"),
        ("DELETE", "calendars/none/"),
    ],
)
def test_unknown_parameter_is_refused_by_operations_without_parameters(
    method: str, path: str, api: Api
) -> None:
    job = make_idle_job()
    body = {"ids": [job.pk]} if "bulk" in path else None
    response = api.send(method, f"{path.format(job=job.pk)}?until=2150-01-01T00:00:00Z", body)
    assert response.status_code == 400
    if method != "HEAD":
        assert [*problem(response, 400)["errors"]] == ["until"]
    assert Job.objects.get().enabled


def test_problem_without_fields_has_no_errors_member(api: Api) -> None:
    assert problem(api.get("jobs/1/"), 404) == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "Not found.",
        "code": "not_found",
    }


@pytest.mark.parametrize("path", ["", "x/", "jobs/1/x/", "runs/x/y/z/", "%0A/", "schema/x/"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_unknown_url_is_a_404_problem(path: str, method: str, api: Api) -> None:
    problem(api.send(method, path), 404)


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PATCH"])
def test_unsupported_method_is_a_405_problem(method: str, api: Api) -> None:
    refused = api.send(method, "jobs/")

    problem(refused, 405)
    assert refused["Allow"] == "GET, HEAD, POST"


def test_head_returns_headers_without_a_body(api: Api) -> None:
    job = make_idle_job()

    response = api.send("HEAD", f"jobs/{job.pk}/")

    assert (response.status_code, response["ETag"], response.content) == (200, '"1"', b"")


@pytest.mark.parametrize(
    "accepted", ["text/html", "application/xml", "nonsense", "application/problem+json"]
)
def test_response_is_json_for_any_accept_header(accepted: str, api: Api) -> None:
    assert api.send("GET", "jobs/", None, accept=accepted)["Content-Type"] == "application/json"
    problem(api.send("GET", "jobs/1/", None, accept=accepted), 404)


@pytest.mark.sqlite
def test_stored_lone_surrogate_is_escaped_in_json(api: Api) -> None:
    """PostgreSQL can't store a lone surrogate.

    Code that bypasses validation can write it elsewhere.
    """
    job = make_idle_job()
    Job.objects.update(tags=["\ud800"])

    assert api.get(f"jobs/{job.pk}/").json()["tags"] == ["\ud800"]


def test_unexpected_exception_is_raised(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("django_dcron.contrib.rest.nodes.cluster.nodes", broken)

    with pytest.raises(ZeroDivisionError):
        api.get("nodes/")


def test_refused_request_is_rolled_back(admin_user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``ATOMIC_REQUESTS``, a returned response would commit, even if it reports an error."""
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    job = make_idle_job()
    marked: list[bool] = []
    monkeypatch.setattr(
        "django_dcron.contrib.rest.problems.set_rollback", lambda: marked.append(True)
    )

    problem(Api(admin_user).post(f"jobs/{job.pk}/pause/", {"until": "2020-01-01T00:00:00Z"}), 400)

    assert marked == [True]


# --- the project's own API ------------------------------------------------------------------------


class Never(BaseThrottle):
    def allow_request(self, request: Any, view: Any) -> bool:
        return False

    def wait(self) -> float:
        return 7.5


def test_project_throttles_apply(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BaseView.throttle_classes is APIView.throttle_classes
    assert BaseView.authentication_classes is APIView.authentication_classes
    monkeypatch.setattr(BaseView, "throttle_classes", [Never])

    refused = api.get("jobs/")

    assert problem(refused, 429)["code"] == "throttled"
    assert refused["Retry-After"] == "8"


class TokenExpired(AuthenticationFailed):
    """An error like Simple JWT's, whose detail is an object and not a text."""

    def __init__(self) -> None:
        super().__init__(
            {
                "detail": "The token has expired.",
                "code": "token_not_valid",
                "messages": [{"type": "access"}],
            },
            "token_not_valid",
        )


class OddStatus(APIException):
    status_code = 499
    default_detail = "Gone away."
    default_code = "gone_away"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (TokenExpired, ("The token has expired.", "token_not_valid")),
        (OddStatus, ("Gone away.", "gone_away")),
        (PermissionDenied("Only from the office."), ("Only from the office.", "permission_denied")),
    ],
)
def test_exceptions_of_project_classes_become_problems(
    error: type[APIException] | PermissionDenied,
    shown: tuple[str, str],
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Never(BaseAuthentication):
        def authenticate(self, request: Any) -> None:
            raise error

    monkeypatch.setattr(BaseView, "authentication_classes", [Never])

    response = api.get("jobs/")

    body = problem(response, response.status_code)
    assert (body["detail"], body["code"]) == shown
    assert response.status_code == (499 if error is OddStatus else 403)


# --- languages ------------------------------------------------------------------------------------


def _refusals(api: Api) -> list[tuple[Any, int]]:
    """Return refusals of fields, of actions and of the API itself, with their expected status."""
    job = make_idle_job(target="tests.app.tasks.echo")
    simple, ended = make_idle_job(), make_run(job, "failed")
    path = f"jobs/{job.pk}/"
    api.post(f"{path}trigger/", {"args": [1]}, idempotency_key="k")
    limited = override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=10)
    with limited:
        too_large = api.post(f"{path}pause/", {"reason": "0123456789"})
    return [
        (api.post("jobs/", JOB | {"schedule": "61 * * * *"}), 400),
        (api.post("jobs/", JOB | {"nonsense": 1}), 400),
        (api.patch(path, {}, if_match="nonsense"), 400),
        (api.patch(path, {}), 428),
        (api.patch(path, {}, if_match='"9"'), 412),
        (api.post(f"{path}trigger/", {"args": [2]}, idempotency_key="k"), 422),
        (api.post(f"{path}trigger/", idempotency_key="a b"), 400),
        (api.post(f"jobs/{simple.pk}/trigger/", {"args": [1, 2, 3]}), 400),
        (api.post(f"{path}pause/", {"until": "2020-01-01T00:00:00Z"}), 400),
        (api.post(f"runs/{ended.pk}/cancel/"), 409),
        (api.get(f"runs/{ended.pk}/log/"), 404),
        (api.get("runs/", cursor="x"), 400),
        (api.get("runs/", ordering="due_at"), 400),
        (api.client.post("/dcron/jobs/", b"{", content_type="application/json"), 400),
        (api.client.post("/dcron/jobs/", b"\xff", content_type="application/json"), 400),
        (too_large, 413),
        (api.get("jobs/0/"), 404),
        (api.put("jobs/", {}), 405),
    ]


def test_every_refusal_is_translated(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are translated, as in the admin. The test marks each text from a catalog."""

    def marked(text: str) -> str:
        return f"¡{text}"

    with monkeypatch.context() as patched:
        for name in ("gettext", "pgettext"):
            patched.setattr(translation._trans, name, lambda *texts: marked(texts[-1]))
        patched.setattr(
            translation._trans, "ngettext", lambda one, more, n: marked(one if n == 1 else more)
        )
        answers = _refusals(api)

    for response, status in answers:
        body = problem(response, status)
        message = [text for texts in body.get("errors", {}).values() for text in texts] or [
            body["detail"]
        ]
        assert all("¡" in text for text in message), body


def test_refused_action_is_reported_in_german(api: Api) -> None:
    job = make_idle_job(name="report", enabled=False)
    Job.objects.update(schedule="@at 2020-01-01T00:00")

    with translation.override("de"):
        refused = api.post(f"jobs/{job.pk}/resume/")

        expected = translation.gettext("%(job)s can't be resumed: %(why)s.") % {
            "job": "report",
            "why": translation.gettext(EXHAUSTED),
        }
    assert problem(refused, 409)["detail"] == expected
    assert "Zeitplan" in expected


def test_every_view_uses_the_base_class_and_is_documented() -> None:
    """Every view has the default permission classes, and each of its actions is documented."""
    for pattern in router.urls:
        view = pattern.callback
        assert issubclass(view.cls, BaseViewSet)
        assert view.cls.permission_classes is BaseViewSet.permission_classes
        for method, action in view.actions.items():
            assert method in view.cls.http_method_names
            assert isinstance(getattr(view.cls, action).operation, schema.Operation)


def test_project_wide_rest_framework_settings_are_unchanged() -> None:
    assert api_settings.EXCEPTION_HANDLER is exception_handler
    assert api_settings.DEFAULT_SCHEMA_CLASS.__module__.startswith("rest_framework.")


def test_spectacular_settings_of_the_project_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "TITLE": "shop",
        "CAMELIZE_NAMES": True,
        "COMPONENT_SPLIT_REQUEST": False,
        "OAS_VERSION": "3.1.0",
    }
    for name, value in values.items():
        monkeypatch.setattr(spectacular_settings, name, value)

    patterns = tuple(router.urls)
    assert schema._document.__wrapped__(patterns) == schema._document(patterns)

    assert {name: getattr(spectacular_settings, name) for name in values} == values


@override_settings(
    REST_FRAMEWORK={
        "DATETIME_FORMAT": "%d.%m.%Y",
        "COERCE_DECIMAL_TO_STRING": True,
        "NON_FIELD_ERRORS_KEY": "all",
    },
)
def test_rest_framework_formats_of_the_project_do_not_apply(api: Api) -> None:
    job = make_idle_job()

    assert api.get(f"jobs/{job.pk}/").json()["created_at"].endswith("Z")
    assert [*problem(api.post("jobs/", []), 400)["errors"]] == ["non_field_errors"]


# --- requirements ---------------------------------------------------------------------------------

WITHOUT = """
import sys
sys.modules["drf_spectacular"] = None
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=[{apps}], DATABASES={{}}, USE_TZ=True)
django.setup()
import django_dcron.contrib.rest.urls
"""


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (WITHOUT.format(apps='"rest_framework"'), "pip install django-dcron[api]"),
        (
            WITHOUT.format(apps="").replace('sys.modules["drf_spectacular"] = None', ""),
            "INSTALLED_APPS",
        ),
    ],
    ids=["without the extra", "not installed"],
)
def test_missing_requirement_is_reported(code: str, shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )

    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "ImproperlyConfigured" in last
    assert shown in last
