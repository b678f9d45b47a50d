"""Clients of the API for its tests: who they are, and JSON in and out."""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

PROBLEM = "application/problem+json"
VIEWS = ("view_job", "view_calendar", "view_run", "view_attempt", "view_node")
ROOT = "/dcron/"


class Api:
    """Asks as one user: ``api.post("jobs/", {...})``. JSON both ways; headers by name: ``if_match='"1"'``."""

    def __init__(self, user: User | None):
        self.client = Client()
        if user is not None:
            self.client.force_login(user)

    def ask(self, method: str, address: str, body: Any = None, /, **headers: str) -> Any:
        url = address if address.startswith(("/", "http")) else ROOT + address
        sent = {"data": json.dumps(body), "content_type": "application/json"} if body is not None else {}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.generic(method, url, headers=named, **sent)

    def get(self, address: str, /, **query: Any) -> Any:
        return self.client.get(address if address.startswith(("/", "http")) else ROOT + address, query)

    def post(self, address: str, body: Any = None, /, **headers: str) -> Any:
        return self.ask("POST", address, body, **headers)

    def put(self, address: str, body: Any, /, **headers: str) -> Any:
        return self.ask("PUT", address, body, **headers)

    def patch(self, address: str, body: Any, /, **headers: str) -> Any:
        return self.ask("PATCH", address, body, **headers)

    def delete(self, address: str, /, **headers: str) -> Any:
        return self.ask("DELETE", address, **headers)


ApiWith = Callable[..., Api]


@pytest.fixture
def api_with(db: None) -> ApiWith:
    """Of a user with just these permissions, who is no staff."""

    def log_in(*codenames: str) -> Api:
        user = User.objects.create_user(f"program-{uuid4().hex[:8]}")
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        assert user.user_permissions.count() == len(codenames)
        return Api(user)

    return log_in


@pytest.fixture
def api(admin_user: User) -> Api:
    """Of a superuser."""
    return Api(admin_user)


def problem(response: Any, status: int) -> Any:
    """The body, which must be a problem of this status."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == PROBLEM
    body = response.json()
    assert body["status"] == status
    return body
