"""Test that the retries and time limits of the real Celery's tasks become fields of the job."""

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import wraps
from typing import Any

import pytest
from celery.utils.time import get_exponential_backoff_interval

from django_dcron.contrib.importers import celery_task
from django_dcron.contrib.importers.source_contents import EntryRefused
from django_dcron.jobs.portable import check_rules
from django_dcron.models import Job
from django_dcron.policies.retry import Failure, FailureClass
from tests.celery_app import app

NAME = "tests.importers.retried"
Define = Callable[..., None]


def nothing() -> None: ...


@pytest.fixture
def define_task() -> Iterator[Define]:
    def one(function: Callable[..., Any] = nothing, **options: Any) -> None:
        app.tasks.pop(NAME, None)
        app.task(name=NAME, lazy=False, shared=False, **options)(function)

    yield one
    app.tasks.pop(NAME, None)


def policies(**options: Any) -> tuple[dict[str, Any], list[str]]:
    warnings: list[str] = []
    values = celery_task.policy_fields(NAME, options, warnings.append)
    check_rules(Job(name="a", target="tests.app.tasks.ok", schedule="@daily", **values))
    return values, warnings


def retries_itself(self: Any) -> None:
    raise self.retry()


def read_attribute(self: Any) -> Any:
    return self.request.periodic_task_name


def read_by_name(self: Any) -> Any:
    def inner() -> Any:
        return getattr(self.request, "periodic_task_name", None)

    return inner()


@pytest.mark.parametrize("function", [read_attribute, read_by_name])
def test_task_that_reads_the_name_of_its_row_gets_a_warning(
    define_task: Define, function: Callable[..., Any]
) -> None:
    define_task(function, bind=True)
    assert policies() == ({}, []), "other sources don't set it"
    warnings: list[str] = []
    celery_task.warn_if_reads_beat_name(NAME, warnings.append)
    [warning] = warnings
    assert "current_run().job.name" in warning


def test_task_that_does_not_read_the_name_of_its_row_gets_no_warning(define_task: Define) -> None:
    define_task()
    warnings: list[str] = []
    for name in (NAME, "gone"):
        celery_task.warn_if_reads_beat_name(name, warnings.append)
    assert warnings == []


def test_task_without_options_sets_no_fields(define_task: Define) -> None:
    define_task()
    assert policies() == ({}, [])
    assert celery_task.policy_fields("gone", {}, [].append) == {}


@pytest.mark.parametrize("expires", [120, 120.0, timedelta(minutes=2)])
def test_expires_of_the_task_is_the_start_deadline_unless_the_entry_has_its_own(
    define_task: Define, expires: Any
) -> None:
    define_task(expires=expires)
    assert policies() == ({"start_deadline": timedelta(minutes=2)}, [])
    assert policies(expires=None) == policies()
    assert policies(expires=30) == ({}, [])


def test_autoretry_options_become_retry_fields(define_task: Define) -> None:
    define_task(autoretry_for=(ConnectionError,), max_retries=5, default_retry_delay=30)
    values, warnings = policies()
    assert values == {
        "max_attempts": 6,
        "retry_backoff": timedelta(seconds=30),
        "retry_backoff_factor": 1.0,
        "retry_backoff_max": timedelta(seconds=30),
        "retry_jitter": 0.0,
        "retry_on": ["ConnectionError"],
        "never_retry_on": [],
    }
    assert "6 attempts" in warnings[0]
    assert any("overlap_policy" in warning for warning in warnings)


def test_autoretry_exceptions_become_retry_on_and_never_retry_on(define_task: Define) -> None:
    define_task(autoretry_for=(Exception,), dont_autoretry_for=(KeyError, EntryRefused))
    values, _ = policies()
    assert values["retry_on"] == []
    assert values["never_retry_on"] == ["KeyError", f"{EntryRefused.__module__}.EntryRefused"]


def test_retry_kwargs_override_task_options(define_task: Define) -> None:
    define_task(autoretry_for=(OSError,), retry_kwargs={"max_retries": 1, "countdown": 5})
    values, _ = policies()
    assert (values["max_attempts"], values["retry_backoff"]) == (2, timedelta(seconds=5))


@pytest.mark.parametrize("jitter", [True, False])
def test_retry_delays_equal_those_of_celery(
    define_task: Define, jitter: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    define_task(
        autoretry_for=(OSError,), retry_backoff=3, retry_backoff_max=40, retry_jitter=jitter
    )
    job = Job(**policies()[0] | {"max_attempts": 9})
    failure = Failure(FailureClass.TRANSIENT)
    for edge in (0.0, 1.0) if jitter else (0.5,):
        # The lowest and the highest random number on both sides.
        monkeypatch.setattr(random, "randrange", lambda stop, edge=edge: int((stop - 1) * edge))
        monkeypatch.setattr(
            random, "uniform", lambda low, high, edge=edge: low + edge * (high - low)
        )
        for attempt in range(1, 8):
            seconds = get_exponential_backoff_interval(3, attempt - 1, 40, full_jitter=jitter)
            assert job.retry.retry_after(failure, attempt) == timedelta(seconds=seconds)


@pytest.mark.parametrize("most", [None, 100, 1000])
def test_max_retries_are_capped_with_a_warning(define_task: Define, most: int | None) -> None:
    define_task(autoretry_for=(OSError,), max_retries=most)
    values, warnings = policies()
    assert values["max_attempts"] == 100
    assert ("without a limit" if most is None else str(most)) in warnings[0]


def wrapped(self: Any) -> None:
    raise self.retry()


def logs_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def logging(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return logging


def retries_in_a_nested_function(self: Any) -> None:
    def again() -> None:
        raise self.retry()

    again()


@pytest.mark.parametrize(
    "function", [retries_itself, logs_calls(wrapped), retries_in_a_nested_function]
)
def test_task_that_calls_retry_gets_retry_fields_and_a_warning(
    define_task: Define, function: Callable[..., Any]
) -> None:
    define_task(function, bind=True, max_retries=2)
    values, warnings = policies()
    assert (values["max_attempts"], values["retry_backoff"]) == (3, timedelta(seconds=180))
    assert "retry_on" not in values
    assert any("retry_on" in warning for warning in warnings)


def test_time_limits_become_the_timeout(define_task: Define) -> None:
    define_task(soft_time_limit=50, time_limit=60)
    values, warnings = policies()
    assert values == {"timeout": timedelta(seconds=50)}
    assert "time_limit 60" in warnings[0]
    assert policies(soft_time_limit=10)[0] == {"timeout": timedelta(seconds=10)}
    define_task(time_limit=60)
    assert policies() == ({"timeout": timedelta(seconds=60)}, [])
    with pytest.raises(EntryRefused, match="soft_time_limit"):
        policies(soft_time_limit="x")


def test_rate_limit_is_reported_as_a_warning(define_task: Define) -> None:
    define_task(rate_limit="10/m")
    values, warnings = policies()
    assert values == {}
    assert "10/m" in warnings[0]
