"""Shared fixtures for the execution of runs: start attempts, register and run functions."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, connection

from django_dcron.execution.executor import execute
from django_dcron.models import Attempt, Run
from django_dcron.runs.start import start_attempt
from django_dcron.targets import functions
from tests.factories import make_idle_job, make_run

MakeTarget = Callable[[Callable[..., Any]], str]


def deliver(run: Run, *, token: UUID | None = None, worker: str = "w") -> Run | None:
    """Deliver the run's current attempt once. Return the run if it started."""
    started = start_attempt(run.pk, run.attempt, token=token or uuid4(), worker=worker)
    return started[0] if started else None


def reread(run: Run) -> Run:
    return Run.objects.select_related("job").get(pk=run.pk)


def state_of(run: Run) -> str:
    return reread(run).state


def attempt_of(run: Run, number: int = 1) -> Attempt:
    return Attempt.objects.get(run=run, number=number)


@pytest.fixture
def make_target(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeTarget]:
    """Register functions as targets for this test. Return their keys."""
    monkeypatch.setattr(functions, "registered", {})
    return lambda function: functions.register_function(function)


RunFunction = Callable[..., tuple[Run, Attempt]]


@pytest.fixture
def run_function(make_target: MakeTarget) -> RunFunction:
    """Execute a function as a job's run in this thread. Return the run and its attempt."""

    def run(
        function: Callable[..., Any], run: dict[str, Any] | None = None, **job: Any
    ) -> tuple[Run, Attempt]:
        made = make_run(make_idle_job(target=make_target(function), **job), **run or {})
        assert execute(made.pk, made.attempt, worker="w")
        return reread(made), attempt_of(made, made.attempt)

    return run


def cut_connection() -> None:
    """Cut the connection without Django's knowledge. SQLite has none that could be cut."""
    cut = {
        "postgresql": "SELECT pg_terminate_backend(pg_backend_pid())",
        "mysql": "KILL CONNECTION_ID()",
    }
    with suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute(cut[connection.vendor])
