"""Retries that a Celery task requests, and its limits of retries."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import celery
import pytest
from celery.exceptions import MaxRetriesExceededError

from django_dcron.exceptions import PermanentFailure, RetryLater
from django_dcron.execution.executor import execute
from django_dcron.models import Attempt
from tests.factories import make_idle_job, make_run
from tests.targets.celery_calls import Down, call


class NoPickle(Exception):
    def __init__(self, host: str, port: int):
        super().__init__(f"{host}:{port}")


def retried(task: Any, **options: Any) -> RetryLater:
    with pytest.raises(RetryLater) as caught:
        call(task, **options)
    return caught.value


def test_retry_with_countdown_retries_after_the_countdown(app: celery.Celery) -> None:
    @app.task(bind=True)
    def fetch(self: Any) -> None:
        try:
            raise Down("no answer")
        except Down as error:
            raise self.retry(exc=error, countdown=60) from error

    asked = retried(fetch)

    assert asked.after == timedelta(seconds=60)
    assert isinstance(asked.__cause__, Down)
    assert str(asked) == "", "the cause is recorded"


@pytest.mark.parametrize("zone", [UTC, None])
def test_retry_with_eta_retries_at_the_eta(app: celery.Celery, zone: Any) -> None:
    @app.task(bind=True)
    def fetch(self: Any, offset: int) -> None:
        when = datetime.now(UTC) + timedelta(seconds=offset)
        self.retry(eta=when if zone else when.replace(tzinfo=None))

    with pytest.raises(RetryLater) as caught:
        call(fetch, 100)
    assert caught.value.after is not None
    assert timedelta(seconds=90) < caught.value.after <= timedelta(seconds=100)
    with pytest.raises(RetryLater) as caught:
        call(fetch, -100)
    assert caught.value.after == timedelta()


def test_retry_uses_default_retry_delay_set_on_the_task(app: celery.Celery) -> None:
    @app.task(bind=True, default_retry_delay=7)
    def fetch(self: Any) -> None:
        self.retry(throw=True)

    assert retried(fetch).after == timedelta(seconds=7)


def test_retry_without_delay_raises_the_exception_for_the_retry_policy(app: celery.Celery) -> None:
    @app.task(bind=True)
    def fetch(self: Any) -> None:
        try:
            raise Down("no answer")
        except Down as error:
            self.retry(exc=error)

    with pytest.raises(Down, match="no answer") as caught:
        call(fetch)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_retry_without_delay_or_exception_leaves_the_delay_to_the_job(app: celery.Celery) -> None:
    @app.task(bind=True)
    def fetch(self: Any) -> None:
        raise self.retry(throw=False)

    asked = retried(fetch)
    assert asked.after is None
    assert asked.__cause__ is None


def test_retry_keeps_an_exception_that_cannot_be_pickled(app: celery.Celery) -> None:
    @app.task(bind=True)
    def fetch(self: Any) -> None:
        try:
            raise NoPickle("db", 5432)
        except NoPickle as error:
            self.retry(exc=error, countdown=1)

    assert isinstance(retried(fetch).__cause__, NoPickle)


def test_retry_reports_the_exception_passed_as_exc(app: celery.Celery) -> None:
    @app.task(bind=True)
    def fetch(self: Any) -> None:
        try:
            raise KeyError("rate")
        except KeyError:
            self.retry(exc=Down("no rate"), countdown=1)

    assert isinstance(retried(fetch).__cause__, Down)


def test_autoretry_with_backoff_uses_the_delay_of_celery(app: celery.Celery) -> None:
    @app.task(autoretry_for=(Down,), retry_backoff=4, retry_jitter=False)
    def fetch() -> None:
        raise Down("no answer")

    assert retried(fetch, attempt=1).after == timedelta(seconds=4)
    assert retried(fetch, attempt=3).after == timedelta(seconds=16)
    assert isinstance(retried(fetch).__cause__, Down)


def test_autoretry_without_backoff_raises_the_exception(app: celery.Celery) -> None:
    @app.task(autoretry_for=(Down,))
    def fetch() -> None:
        raise Down("no answer")

    with pytest.raises(Down):
        call(fetch)


def test_retry_beyond_max_retries_raises_the_original_exception(app: celery.Celery) -> None:
    @app.task(bind=True, max_retries=1)
    def fetch(self: Any, exc: Exception | None = None) -> None:
        self.retry(exc=Down("no answer") if exc else None, countdown=5)

    assert retried(fetch, attempt=1).after == timedelta(seconds=5)
    with pytest.raises(Down):
        call(fetch, True, attempt=2)
    with pytest.raises(MaxRetriesExceededError):
        call(fetch, attempt=2)


@pytest.mark.parametrize("exc", [True, False])
def test_retry_beyond_the_limit_of_its_call_ends_the_run(app: celery.Celery, exc: bool) -> None:
    @app.task(bind=True)
    def fetch(self: Any) -> None:
        self.retry(exc=Down("no answer") if exc else None, countdown=3, max_retries=2)

    for attempt in (1, 2):
        assert retried(fetch, attempt=attempt, max_attempts=10).after == timedelta(seconds=3)
    with pytest.raises(PermanentFailure) as caught:
        call(fetch, attempt=3, max_attempts=10)
    assert isinstance(caught.value.__cause__, Down if exc else MaxRetriesExceededError)
    assert "2" in "".join(caught.value.__notes__)


def test_other_errors_leave_retries_to_the_job(app: celery.Celery) -> None:
    @app.task(bind=True, max_retries=1)
    def fetch(self: Any, limit: int | None, *, retry: bool) -> None:
        if retry:
            self.retry(exc=Down("no answer"), max_retries=limit)
        raise Down("plain")

    @app.task(autoretry_for=(Down,), retry_kwargs={"max_retries": 1})
    def automatic() -> None:
        raise Down("no answer")

    def is_final(task: Any, *args: Any, **kwargs: Any) -> bool:
        with pytest.raises((Down, PermanentFailure)) as caught:
            call(task, *args, attempt=4, max_attempts=10, **kwargs)
        return isinstance(caught.value, PermanentFailure)

    assert is_final(fetch, 2, retry=True)
    assert not is_final(fetch, None, retry=True), "a limit of the task, or of an earlier call"
    assert not is_final(fetch, 2, retry=False), "the task didn't ask for a retry"
    assert not is_final(fetch, 5, retry=True), "Celery didn't give up"
    assert not is_final(automatic), "a limit that the task declares"


@pytest.mark.parametrize(("attempt", "noted"), [(1, False), (2, True)])
def test_last_exception_has_a_note_with_the_attempt_limit(
    app: celery.Celery, attempt: int, noted: bool
) -> None:
    @app.task(name="shop.flaky", autoretry_for=(ConnectionError,))
    def flaky() -> None:
        raise ConnectionError("no answer")

    with pytest.raises(ConnectionError) as caught:
        call(flaky, attempt=attempt, max_attempts=2)
    notes = getattr(caught.value, "__notes__", [])
    assert [("2 attempts" in note) for note in notes] == [True] * noted


def recorded(task: Any) -> Attempt:
    """Execute the task as a run of a job, and return the first attempt."""
    run = make_run(make_idle_job(target=task.name, max_attempts=3), "queued")
    assert execute(run.pk, 1, worker="w")
    return Attempt.objects.get(run=run)


def functions_in(traceback: str) -> list[str]:
    """Return the function of each frame."""
    return re.findall(r'^  File .*", line \d+, in (\w+)$', traceback, re.MULTILINE)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("backoff", [False, 4])
def test_traceback_of_a_retried_attempt_is_that_of_the_task(
    app: celery.Celery, backoff: bool | int
) -> None:
    @app.task(autoretry_for=(ConnectionError,), retry_backoff=backoff)
    def fetch() -> None:
        connect()

    def connect() -> None:
        try:
            raise OSError("refused")
        except OSError as error:
            raise ConnectionError("no answer") from error

    attempt = recorded(fetch)
    assert (attempt.exception_class, attempt.message) == ("ConnectionError", "no answer")
    assert functions_in(attempt.traceback) == ["connect", "fetch", "connect"], "cause, then error"
    assert attempt.traceback.endswith("\nConnectionError: no answer\n")


@pytest.mark.django_db(transaction=True)
def test_traceback_of_a_retry_without_an_exception_shows_where_the_task_asked_for_it(
    app: celery.Celery,
) -> None:
    @app.task(bind=True)
    def poll(self: Any) -> None:
        self.retry(countdown=60)

    assert functions_in(recorded(poll).traceback)[0] == "poll"


@pytest.mark.django_db(transaction=True)
def test_traceback_keeps_the_frames_and_the_message_of_a_retry_later_of_the_task(
    app: celery.Celery,
) -> None:
    @app.task
    def fetch(text: str = "") -> None:
        try:
            raise ConnectionError("no answer")
        except ConnectionError as error:
            raise RetryLater(text, after=timedelta(hours=1)) from error

    attempt = recorded(fetch)
    assert attempt.exception_class == "ConnectionError"
    assert functions_in(attempt.traceback) == ["fetch", "fetch"]
    assert "RetryLater" in attempt.traceback
