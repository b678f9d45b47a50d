"""Fixtures and helpers for the tests of the admin."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from django import forms
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.urls import reverse

from django_dcron.models import Attempt, Job, Run
from tests import factories

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def make_job(name: str = "report", **values: Any) -> Job:
    return factories.make_job(name=name, **({"schedule": "30 3 * * *"} | values))


def make_run(job: Job, scheduled_at: datetime = NOON, **values: Any) -> Run:
    times = {"due_at": scheduled_at, "claimed_at": scheduled_at}
    return Run.objects.create(**{"job": job, "scheduled_at": scheduled_at, **times, **values})


def make_attempt(run: Run, number: int = 1, **values: Any) -> Attempt:
    started = {
        "worker": "celery@web-1",
        "started_at": run.scheduled_at + timedelta(milliseconds=20),
    }
    return Attempt.objects.create(
        **{"run": run, "number": number, "token": uuid4(), **started, **values}
    )


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each request of the dashboard read its sections and check its user."""
    monkeypatch.setattr("django_dcron.admin.dashboard.store.PREFIX", f"test-{uuid4().hex}:")
    times = count(start=1_000_000, step=1_000_000)
    monkeypatch.setattr("django_dcron.admin.dashboard.live.clock", lambda: float(next(times)))


def section_url(name: str, query: str = "", seen: str = "") -> str:
    """Return the URL with which a tab asks for one section of the dashboard."""
    live = reverse("admin:django_dcron_dashboard_live")
    return f"{live}?dcron-{name}={seen}" + (f"&{query}" if query else "")


def add_url() -> str:
    return reverse("admin:django_dcron_job_add")


def job_url(job: Job) -> str:
    return reverse("admin:django_dcron_job_change", args=[job.pk])


def run_url(run: Run) -> str:
    return reverse("admin:django_dcron_run_change", args=[run.pk])


def list_url(model: str) -> str:
    return reverse(f"admin:django_dcron_{model}_changelist")


def action_url(row: Job | Run, action: str) -> str:
    return reverse(f"admin:django_dcron_{row._meta.model_name}_action", args=[row.pk, action])


def as_rendered(response: Any) -> dict[str, str]:
    """Return the form's data as a browser would submit it unchanged."""
    form: forms.Form = response.context["adminform"].form
    sent = {}
    for bound in form:
        value = bound.value()
        if isinstance(bound.field, forms.SplitDateTimeField):
            continue  # empty in all these tests
        if isinstance(bound.field, forms.BooleanField):
            sent |= {bound.html_name: "on"} if value else {}
        else:
            sent[bound.html_name] = "" if value is None else str(value)
    return sent


def fill_in(client: Client, url: str, **changes: str) -> Any:
    """Open the form, change some fields and save it."""
    return client.post(url, {**as_rendered(client.get(url)), **changes})


def errors(response: Any) -> dict[str, list[str]]:
    assert response.status_code == 200, "it was saved"
    found: dict[str, list[str]] = response.context["adminform"].form.errors
    return found


def messages(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


class Writes:
    """Counts the statements that write, except those that write sessions."""

    number = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(("INSERT", "UPDATE", "DELETE")) and "django_session" not in sql:
            self.number += 1
        return execute(sql, params, many, context)


@contextmanager
def counted_writes() -> Iterator[Writes]:
    writes = Writes()
    with connection.execute_wrapper(writes):
        yield writes


def log_in_as(
    codenames: Iterable[str], monkeypatch: pytest.MonkeyPatch, *, is_staff: bool = True
) -> User:
    """Log in every later request as a new user with exactly these permissions.

    The user object is shared by all requests, so no request queries the user.
    """
    user = User.objects.create_user(f"user-{uuid4().hex[:8]}", is_staff=is_staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    monkeypatch.setattr("django.contrib.auth.get_user", lambda request: user)
    return user


StaffWith = Callable[..., Client]


def log_in(*codenames: str) -> Client:
    """Return the client of a new staff user with exactly these permissions."""
    user = User.objects.create_user(f"staff-{uuid4().hex[:8]}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def staff_with(db: None) -> StaffWith:
    return log_in
