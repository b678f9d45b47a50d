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
from schemathesis import GenerationMode
from schemathesis.openapi import from_wsgi
from schemathesis.specs.openapi import checks

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.jobs.representation import JOB_FIELDS, ValueFormat
from django_dcron.models import Attempt, AuditEntry, Calendar, Incident, Limit, Node
from tests import depth
from tests.contrib.rest.conftest import operations
from tests.contrib.test_ics import file_of
from tests.factories import make_idle_job, make_run

OPERATIONS = sorted(operation.name for _method, _url, operation in operations())
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
    Node.objects.create(id="n-1", name="n", host="h", pid=1, version="1", **times)
    calendars = [
        control.save_calendar(Calendar(name=name, dates="12-25")) for name in ("zu", "closed")
    ]
    limits = [control.save_limit(Limit(name=name, max_running=1)) for name in ("api", "sms")]
    job.calendar, job.limit = calendars[0], limits[0]
    control.save(job)
    control.delete(make_idle_job())
    return {
        "job_id": [job.pk, other.pk],
        "incident_id": [
            Incident.objects.create(
                job=job, fingerprint=fingerprint, first_seen_at=now, last_seen_at=now
            ).pk
            for fingerprint in ("1", "2")
        ],
        "freeze_id": [control.freeze("deploy", namespace).pk for namespace in (None, "default")],
        "calendar_name": [calendar.pk for calendar in calendars],
        "limit_name": [limit.pk for limit in limits],
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
    # The requests have valid credentials.
    schema.config.generation.update(with_security_parameters=False)
    yield schema
    for signal in signals:
        signal.connect(close_old_connections)


def _authorization() -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(b"admin:password").decode()}


VALID_VALUES = {
    "name": "ünlike others",
    "namespace": "billing",
    "target": "tests.app.tasks.echo",
    "schedule": "30 3 * * *",
    "dates": "SAT-SUN",
    "ics": file_of("DTSTART;VALUE=DATE:20261224 RRULE:FREQ=YEARLY").decode(),
    "timezone": "Europe/Berlin",
    "max_running": 3,
    "max_started": 100,
    "version": 2,  # of the edit in ``rows``
    "interval": "1m",
    "start": "2026-01-01T00:00:00Z",
    "end": "2026-01-03T00:00:00+02:00",
    **{name: "1h30m" for name, field in JOB_FIELDS.items() if field.format is ValueFormat.DURATION},
}
REMOVED_PARAMETERS = ("cursor", "attempt")


def refer_to_existing_objects(case: Any, rows: dict[str, list[Any]], number: int) -> None:
    """Make the request refer to existing objects. If ``number`` is 0, all its values are valid."""
    for name in rows.keys() & case.path_parameters.keys():
        case.path_parameters[name] = rows[name][number % len(rows[name])]
    for name in REMOVED_PARAMETERS:
        (case.query or {}).pop(name, None)
    if "If-Match" in (case.headers or {}):
        case.headers["If-Match"] = ["*", '"1"'][number % 2]
    if isinstance(case.body, dict) and isinstance(jobs := case.body.get("jobs"), list):
        references = {"id": rows["job_id"][1], "version": 1}
        case.body = {
            "jobs": [
                with_valid_values(job, number)
                | {name: value for name, value in references.items() if name in job}
                for job in jobs[:1]  # two valid ones would have the same name
            ]
        }
    elif isinstance(case.body, dict) and not number and "/bulk/" in case.operation.path:
        case.body = {"ids": rows["run_id" if "/runs/" in case.operation.path else "job_id"]}
    elif isinstance(case.body, dict) and not number and "/restore/" in case.operation.path:
        case.body = {"entry": AuditEntry.objects.get(action="delete").pk}
    elif isinstance(case.body, dict) and not number and case.operation.path.endswith("/freezes/"):
        case.body = {"reason": "incident", "replace": True}
    elif isinstance(case.body, dict):
        case.body = with_valid_values(case.body, number)


def with_valid_values(body: dict[str, Any], number: int) -> dict[str, Any]:
    others = sorted(body.keys() - VALID_VALUES.keys())[number::7] if number else []
    return {
        name: VALID_VALUES.get(name, body[name])
        for name in body
        if name in {*VALID_VALUES, *others}
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


def excluded_checks(status: int, operation: Any) -> list[Any]:
    """Return the checks to exclude for this status, because no JSON Schema expresses the rule."""
    if status == PRECONDITION_FAILED:  # the version is checked before the body
        return [checks.negative_data_rejection, checks.positive_data_acceptance]
    if (operation.body or operation.query) and status in (BAD_REQUEST, UNPROCESSABLE):
        # No JSON Schema can describe valid schedules, targets or dates.
        return [checks.positive_data_acceptance]
    return []


@contextmanager
def rolled_back() -> Iterator[None]:
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
def test_operation_conforms_to_the_openapi_document(
    name: str, mode: GenerationMode, schema: Any, rows: dict[str, list[Any]]
) -> None:
    operation = next(
        each
        for each in schema.get_all_operations()
        if each.ok().definition.raw["operationId"] == name
    ).ok()

    seen: list[int] = []

    def ask_many(examples: int, number: int | None = None) -> None:
        # Unlike ``derandomize``, a seed doesn't change with the source of the test.
        @hypothesis.seed(0 if number is None else number + 1)
        @hypothesis.settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(strategy(operation, mode, rows))
        def ask(case: Any) -> None:
            if number is not None:
                refer_to_existing_objects(case, rows, number)
            with rolled_back():
                response = case.call(headers=_authorization())
                seen.append(response.status_code)
                case.validate_response(
                    response,
                    checks=CHECKS,
                    excluded_checks=excluded_checks(response.status_code, operation),
                    headers=_authorization(),
                )

        ask()

    if mode is GenerationMode.NEGATIVE:
        ask_many(EXAMPLES)
        return
    ask_many(EXAMPLES // 2)
    for number in range(4):
        ask_many(-(-EXAMPLES // 8), number)
    assert min(seen) < 300, f"no request succeeded: {seen}"
