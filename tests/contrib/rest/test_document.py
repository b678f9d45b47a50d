"""Test the promises of the OpenAPI document with schemathesis.

Each operation receives valid and invalid requests. The test undoes each request, so that all
requests start with the same rows. Half of the requests reach existing objects: a row, a registered
target, a valid schedule. The requests are the same in each test run.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import hypothesis
import pytest
import schemathesis
from django.contrib.auth.models import User
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.openapi import from_wsgi
from schemathesis.specs.openapi import checks

from django_dcron import control
from django_dcron.contrib.rest.urls import documented
from django_dcron.db.now import database_now
from django_dcron.jobs.representation import JOB_FIELDS, Format
from django_dcron.models import Attempt, Calendar, Node
from tests import depth
from tests.factories import make_idle_job, make_run

OPERATIONS = sorted(
    operation.name
    for pattern in documented
    for operation in pattern.callback.cls.operations.values()
)
CHECKS = list(schemathesis.checks.CHECKS.get_all())
"""All checks of schemathesis.

Those that compare several requests compare those of one operation.
"""
BAD_REQUEST, UNPROCESSABLE = 400, 422
WITHOUT_PARAMETERS = {"get_stats"}
"""Operations that can't receive an invalid request."""
PRECONDITION_FAILED = 412
EXAMPLES = int(os.environ.get("DCRON_TEST_EXAMPLES", 50 if depth.FULL else 12))

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]


@pytest.fixture
def rows(db: None) -> dict[str, list[Any]]:
    """Create rows of each kind, by the URL parameter that refers to them."""
    job, other = make_idle_job(target="tests.app.tasks.echo"), make_idle_job(enabled=False)
    now = database_now("default")
    runs = [make_run(job, state) for state in ("pending", "running", "failed", "succeeded")]
    for run in runs:
        attempt = {"number": 9, "token": uuid4(), "worker": "w", "started_at": now}
        Attempt.objects.create(run=run, log="so far", message="m" * 2000, **attempt)
    times = {"started_at": now, "heartbeat_at": now - timedelta(days=1)}
    Node.objects.create(id="n-1", name="n", host="h", pid=1, release="1", **times)
    calendars = [
        control.save_calendar(Calendar(name=name, dates="12-25")) for name in ("zu", "closed")
    ]
    job.calendar = calendars[0]
    control.save(job)
    return {
        "job_id": [job.pk, other.pk],
        "calendar_name": [calendar.pk for calendar in calendars],
        "run_id": [str(run.pk) for run in runs],
    }


@pytest.fixture
def schema(admin_user: User) -> Iterator[Any]:
    """Load the document through the whole site, on the test's database connection.

    Django's own test client shares the connection in the same way.
    """
    signals = (request_started, request_finished)
    for signal in signals:
        signal.disconnect(close_old_connections)
    schema = from_wsgi("/dcron/schema/", WSGIHandler(), headers=_authorization())
    schema.config.generation.update(
        with_security_parameters=False
    )  # the requests have valid credentials
    yield schema
    for signal in signals:
        signal.connect(close_old_connections)


def _authorization() -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(b"admin:password").decode()}


GOOD = {
    "name": "ünlike others",
    "namespace": "billing",
    "target": "tests.app.tasks.echo",
    "schedule": "30 3 * * *",
    "dates": "SAT-SUN",
    "timezone": "Europe/Berlin",
    "start": "2026-01-01T00:00:00Z",
    "end": "2026-01-03T00:00:00+02:00",
    **{name: "1h30m" for name, field in JOB_FIELDS.items() if field.format is Format.DURATION},
}
MISLEADING = ("cursor", "attempt")


def aimed(case: Any, rows: dict[str, list[Any]], number: int) -> None:
    """Change the request so that it refers to existing objects. With 0, all its values are good."""
    for name in rows.keys() & case.path_parameters.keys():
        case.path_parameters[name] = rows[name][number % len(rows[name])]
    for name in MISLEADING:
        (case.query or {}).pop(name, None)
    if "If-Match" in (case.headers or {}):
        case.headers["If-Match"] = ["*", '"1"'][number % 2]
    if isinstance(case.body, dict):
        others = sorted(case.body.keys() - GOOD.keys())[number::7] if number else []
        case.body = {
            name: GOOD.get(name, case.body[name]) for name in case.body if name in {*GOOD, *others}
        }


def strategy(operation: Any, mode: GenerationMode, rows: dict[str, list[Any]]) -> Any:
    """Generate requests, including invalid requests to valid URLs.

    An invalid URL alone would prevent the body and the query from being checked.
    """
    free = operation.as_strategy(generation_mode=mode)
    if mode is GenerationMode.POSITIVE or not (operation.body or operation.query):
        return free
    keys = {name: keys[0] for name, keys in rows.items() if name in operation.path_parameters}
    headers = {"If-Match": "*"} if "If-Match" in operation.headers else None
    return free | operation.as_strategy(generation_mode=mode, path_parameters=keys, headers=headers)


def without_meaning(status: int, operation: Any) -> list[Any]:
    """Return the checks to exclude for this status, because no JSON Schema expresses the rule."""
    if status == PRECONDITION_FAILED:  # the version is checked before the body
        return [checks.negative_data_rejection, checks.positive_data_acceptance]
    if (operation.body or operation.query) and status in (BAD_REQUEST, UNPROCESSABLE):
        return [
            checks.positive_data_acceptance
        ]  # no JSON Schema can describe valid schedules, targets or dates
    return []


@contextmanager
def undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, id=f"{name}-{word}")
        for name in OPERATIONS
        for mode, word in ((GenerationMode.POSITIVE, "valid"), (GenerationMode.NEGATIVE, "invalid"))
        if mode is GenerationMode.POSITIVE or name not in WITHOUT_PARAMETERS
    ],
)
def test_an_operation_does_what_its_document_says(
    name: str, mode: GenerationMode, schema: Any, rows: dict[str, list[Any]]
) -> None:
    operation = next(
        each
        for each in schema.get_all_operations()
        if each.ok().definition.raw["operationId"] == name
    ).ok()

    @hypothesis.settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy(operation, mode, rows), st.integers(0, 7))
    def ask(case: Any, number: int) -> None:
        if number % 2 == 0 and mode is GenerationMode.POSITIVE:
            aimed(case, rows, number // 2)
        with undone():
            response = case.call(headers=_authorization())
            seen.append(response.status_code)
            case.validate_response(
                response,
                checks=CHECKS,
                excluded_checks=without_meaning(response.status_code, operation),
                headers=_authorization(),
            )

    seen: list[int] = []
    ask()
    assert mode is GenerationMode.NEGATIVE or min(seen) < 300, f"nothing was reached: {seen}"
