"""API clients for the tests of the REST API."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_dcron.contrib.rest.schema import Operation
from django_dcron.contrib.rest.urls import router

PROBLEM = "application/problem+json"
VIEWS = (
    "view_job",
    "view_calendar",
    "view_limit",
    "view_run",
    "view_attempt",
    "view_incident",
    "view_node",
)
ROOT = "/dcron/"


class Api:
    """Sends requests as one user: ``api.post("jobs/", {...})``.

    Bodies and responses are JSON. Headers are keywords: ``if_match='"1"'``.
    """

    def __init__(self, user: User | None):
        self.client = Client()
        if user is not None:
            self.client.force_login(user)

    def send(self, method: str, path: str, body: Any = None, /, **headers: str) -> Any:
        url = path if path.startswith(("/", "http")) else ROOT + path
        sent = (
            {"data": json.dumps(body), "content_type": "application/json"}
            if body is not None
            else {}
        )
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.generic(method, url, headers=named, **sent)

    def get(self, path: str, /, **query: Any) -> Any:
        return self.client.get(path if path.startswith(("/", "http")) else ROOT + path, query)

    def post(self, path: str, body: Any = None, /, **headers: str) -> Any:
        return self.send("POST", path, body, **headers)

    def put(self, path: str, body: Any, /, **headers: str) -> Any:
        return self.send("PUT", path, body, **headers)

    def patch(self, path: str, body: Any, /, **headers: str) -> Any:
        return self.send("PATCH", path, body, **headers)

    def delete(self, path: str, /, **headers: str) -> Any:
        return self.send("DELETE", path, **headers)


ApiWith = Callable[..., Api]


@pytest.fixture
def api_with(db: None) -> ApiWith:
    """Return a function that creates a client of a non-staff user with the given permissions."""

    def log_in(*codenames: str) -> Api:
        user = User.objects.create_user(f"program-{uuid4().hex[:8]}")
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        assert user.user_permissions.count() == len(codenames)
        return Api(user)

    return log_in


@pytest.fixture
def api(admin_user: User) -> Api:
    """Return a client for a superuser."""
    return Api(admin_user)


def problem(response: Any, status: int) -> Any:
    """Assert that the response is a problem with this status, and return its body."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == PROBLEM
    body = response.json()
    assert body["status"] == status
    return body


def operations() -> Iterator[tuple[str, str, Operation]]:
    """Yield the HTTP method, the URL pattern and the description of each operation of the API."""
    for pattern in router.urls:
        view = pattern.callback
        for method, action in view.actions.items():
            if method != "head":  # added by REST framework at the first request
                yield method.upper(), str(pattern.pattern), getattr(view.cls, action).operation
