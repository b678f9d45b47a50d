"""Outcomes of Celery tasks other than retries, and the tasks' hooks."""

from typing import Any

import celery
import pytest
from celery.exceptions import Ignore, Reject

from django_dcron.exceptions import RetryLater
from tests.logs import logged
from tests.targets.celery_calls import Down, call


def test_ignore_succeeds_without_a_result(app: celery.Celery) -> None:
    @app.task
    def leave() -> None:
        raise Ignore

    assert call(leave) is None


def test_reject_in_a_task_is_raised(app: celery.Celery) -> None:
    @app.task
    def refuse() -> None:
        raise Reject("poison", requeue=False)

    with pytest.raises(Reject):
        call(refuse)


def test_replacement_is_published_as_a_separate_task(
    app: celery.Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = []
    monkeypatch.setattr(app, "send_task", lambda name, *args, **options: published.append(name))

    @app.task
    def other() -> None:
        raise AssertionError("ran here and now")

    @app.task(bind=True)
    def replaced(self: Any) -> None:
        raise self.replace(other.s())

    assert call(replaced) is None
    assert published == [other.name]


def test_base_exception_propagates_without_calling_hooks(app: celery.Celery) -> None:
    class Stop(BaseException):
        pass

    noted: list[str] = []

    @app.task(base=hooked(noted))
    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        call(stop)
    assert noted == ["before_start"]
    assert stop.request_stack.top is None


def hooked(noted: list[str], raising: bool = False) -> type[celery.Task]:
    class Hooked(celery.Task):
        def before_start(self, *values: Any) -> None:
            noted.append("before_start")

        def _note(self, text: str) -> None:
            noted.append(text)
            if raising:
                raise ZeroDivisionError("in a hook")

        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            self._note(f"on_success {retval} {task_id} {args} {kwargs}")

        def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            self._note(f"on_failure {exc!r} {einfo.type.__name__}")

        def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            self._note(f"on_retry {exc!r} {einfo.type.__name__}")

        def after_return(
            self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
        ) -> None:
            self._note(f"after_return {status} {retval!r}")

    return Hooked


@pytest.mark.parametrize("raising", [False, True])
def test_hooks_are_called_and_their_errors_do_not_hide_the_outcome(
    app: celery.Celery, raising: bool, caplog: pytest.LogCaptureFixture
) -> None:
    noted: list[str] = []

    @app.task(bind=True, base=hooked(noted, raising))
    def act(self: Any, how: str) -> str:
        if how == "fail":
            raise Down("no answer")
        if how == "retry":
            self.retry(exc=Down("later"), countdown=1)
        return how

    assert call(act, "well") == "well"
    assert noted == [
        "before_start",
        "on_success well call-1 ['well'] {}",
        "after_return SUCCESS 'well'",
    ]

    noted.clear()
    with pytest.raises(Down):
        call(act, "fail")
    failed = ["on_failure Down('no answer') Down", "after_return FAILURE Down('no answer')"]
    assert noted == ["before_start", *failed]

    noted.clear()
    with pytest.raises(RetryLater):
        call(act, "retry", attempt=1, max_attempts=2)
    assert noted == ["before_start", "on_retry Down('later') Retry"]

    noted.clear()
    with pytest.raises(RetryLater):
        call(act, "retry", attempt=2, max_attempts=2)
    assert noted == [
        "before_start",
        "on_failure Down('later') Down",
        "after_return FAILURE Down('later')",
    ]
    assert bool(logged(caplog, "hook_failed", "=on_success ")) is raising


def test_exception_in_before_start_is_raised(app: celery.Celery) -> None:
    class Closed(celery.Task):
        def before_start(self, *values: Any) -> None:
            raise Down("closed")

    @app.task(base=Closed)
    def act() -> None: ...

    with pytest.raises(Down, match="closed"):
        call(act)
