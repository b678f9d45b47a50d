"""Celery tasks as targets, run by the real Celery classes in this process without a broker."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import celery
import celery._state
import pytest
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject

from django_dcron import targets
from django_dcron.exceptions import (
    InvalidArguments,
    PermanentFailure,
    RetryLater,
    UnknownTarget,
)
from django_dcron.targets import Invocation, TargetKind, django_tasks
from tests.logs import logged
from tests.refusals import refusal
from tests.waiting import TIMEOUT


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[celery.Celery]:
    """A separate app for this thread, with only Celery's own tasks. Publishing fails the test."""
    monkeypatch.setattr(django_tasks, "has_tasks", lambda: False)
    before = celery.current_app._get_current_object()
    builtin = {
        finalizer
        for finalizer in celery._state._on_app_finalizers
        if finalizer.__module__ == "celery.app.builtins"
    }
    # Otherwise, all apps share their tasks.
    monkeypatch.setattr(celery._state, "_on_app_finalizers", builtin)
    app = celery.Celery("proj", broker="memory://", fixups=[])

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("a message was published")

    monkeypatch.setattr(app, "send_task", refuse)
    monkeypatch.setattr(app.amqp, "send_task_message", refuse)
    app.set_current()
    yield app
    before.set_current()


def nothing() -> None: ...


def call(
    task: Any, *args: Any, attempt: int = 1, max_attempts: int | None = None, **kwargs: Any
) -> Any:
    invocation = Invocation(list(args), kwargs, "call-1", attempt, "w1@host", max_attempts)
    return targets.get(task.name).call(invocation)


def test_task_is_a_target_under_its_own_name(app: celery.Celery) -> None:
    @app.task(name="shop.report")
    def report(day: str) -> str:
        """Write the report.

        At length.
        """
        return f"report of {day}"

    target = targets.get("shop.report")

    assert (target.key, target.kind, target.route_name) == (
        "shop.report",
        TargetKind.TASK,
        "shop.report",
    )
    assert target.description == "Write the report."
    assert target.call(Invocation(["today"])) == "report of today"
    assert repr(target) == "<CeleryTarget shop.report>"
    assert targets.available() == ["shop.report"]


def test_task_without_docstring_has_no_description(app: celery.Celery) -> None:
    @app.task
    def bare() -> None: ...

    class Bare(celery.Task):
        name = "bare.class"

        def run(self) -> None: ...

    app.register_task(Bare())
    assert targets.get(bare.name).description == ""
    assert targets.get("bare.class").description == ""


@pytest.mark.parametrize("key", ["celery.chord", "celery.backend_cleanup", "django_dcron.run"])
def test_built_in_tasks_are_not_targets(app: celery.Celery, key: str) -> None:
    @app.task(name="django_dcron.run")
    def carrier() -> None: ...

    assert key in app.tasks
    assert key not in targets.available()
    with pytest.raises(UnknownTarget):
        targets.get(key)


def test_task_request_describes_the_attempt(app: celery.Celery) -> None:
    @app.task(bind=True)
    def look(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {
            "current": celery.current_task._get_current_object() is self,
            **{
                name: getattr(self.request, name)
                for name in ("id", "retries", "hostname", "args", "kwargs", "called_directly")
            },
        }

    assert call(look, 1, attempt=3, a=2) == {
        "current": True,
        "id": "call-1",
        "retries": 2,
        "hostname": "w1@host",
        "args": [1],
        "kwargs": {"a": 2},
        "called_directly": False,
    }
    assert look.request_stack.top is None
    assert celery.current_task._get_current_object() is None


def test_task_request_is_local_to_the_thread(app: celery.Celery) -> None:
    both = threading.Barrier(2)

    @app.task(bind=True)
    def look(self: Any) -> int:
        both.wait(TIMEOUT)
        return self.request.retries

    target, seen = targets.get(look.name), {}

    def run(attempt: int) -> None:
        seen[attempt] = target.call(Invocation(attempt=attempt))

    threads = [threading.Thread(target=run, args=(attempt,)) for attempt in (1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {1: 0, 5: 4}


def test_custom_call_method_is_used_and_sees_the_request(app: celery.Celery) -> None:
    seen = []

    class Noting(celery.Task):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(self.request.id)
            return super().__call__(*args, **kwargs)

    @app.task(base=Noting, bind=True)
    def look(self: Any) -> tuple[str, int]:
        return self.request.id, self.request.retries

    assert call(look, attempt=2) == ("call-1", 1)
    assert seen == ["call-1"]


# --- Retrying -----------------------------------------------------------------------------------


class Down(Exception):
    pass


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


def test_retry_without_delay_or_exception_leaves_the_delay_to_the_job(
    app: celery.Celery,
) -> None:
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


def test_autoretry_without_backoff_raises_the_exception(
    app: celery.Celery,
) -> None:
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


# --- Other outcomes -----------------------------------------------------------------------------


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


# --- Hooks --------------------------------------------------------------------------------------


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


# --- Arguments ----------------------------------------------------------------------------------


def test_arguments_of_bound_tasks_are_checked_without_self(app: celery.Celery) -> None:
    @app.task(bind=True, autoretry_for=(Down,))
    def bound(self: Any, city: str, *, days: int = 1) -> None: ...

    class OfClass(celery.Task):
        name = "of.class"

        def run(self, city: str) -> None: ...

    app.register_task(OfClass())
    for key in (bound.name, "of.class"):
        target = targets.get(key)
        target.check_arguments(["Berlin"], {})
        target.check_arguments([], {"city": "Berlin"})
        with refusal(InvalidArguments, "missing_argument", field="args", name="'city'"):
            target.check_arguments([], {})
        with refusal(InvalidArguments, "too_many_arguments", field="args"):
            target.check_arguments(["Berlin", 1], {})


def test_arguments_are_not_checked_if_typing_is_disabled(app: celery.Celery) -> None:
    @app.task(typing=False)
    def injected(session: Any) -> None: ...

    class OfC(celery.Task):
        name = "of.c"
        run = staticmethod(dict.fromkeys)  # has a signature, which is removed below

    app.register_task(OfC())
    targets.get(injected.name).check_arguments([], {})
    app.tasks["of.c"].run = type  # no signature at all
    targets.get("of.c").check_arguments([1, 2, 3, 4], {})


# --- Discovery ----------------------------------------------------------------------------------


def test_task_modules_are_imported_once(
    app: celery.Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports = []

    def import_modules() -> None:
        imports.append(1)
        app.task(nothing, name="found.late")
        assert targets.available() == ["found.late"]  # no endless recursion during the import

    monkeypatch.setattr(app.loader, "import_default_modules", import_modules)

    assert targets.available() == ["found.late"]
    assert targets.get("found.late").kind is TargetKind.TASK
    assert imports == [1]
    assert targets.discovery_problem() == ""


def test_task_modules_are_not_imported_again_in_a_worker(
    app: celery.Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.loader, "worker_initialized", True)
    monkeypatch.setattr(app.loader, "import_default_modules", lambda: pytest.fail("imported again"))
    assert targets.available() == []
    assert targets.discovery_problem() == ""


def test_task_modules_that_fail_to_import_are_reported(
    app: celery.Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def import_modules() -> None:
        raise ImportError("no module named shpo")

    monkeypatch.setattr(app.loader, "import_default_modules", import_modules)
    app.task(nothing, name="shop.report")

    assert targets.get("shop.report").key == "shop.report"
    with refusal(UnknownTarget, "unknown_target", near="'shop.report'") as caught:
        targets.get("shop.reprot")
    assert "no module named shpo" in str(caught.value.params["why"])
    assert logged(caplog, "tasks_not_imported")
    assert "no module named shpo" in targets.discovery_problem()


def in_a_new_process(code: str) -> list[str]:
    code = f"import django; from django.conf import settings\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_project_without_celery_app_has_no_task_targets() -> None:
    code = """
settings.configure()
django.setup()
from django_dcron import targets
print(targets.available())
"""
    assert in_a_new_process(code) == ["[]"]


def test_importing_task_modules_does_not_set_up_django_again() -> None:
    code = """
import logging, os, sys, types
sys.modules["shop"] = types.ModuleType("shop", "")
sys.modules["shop.tasks"] = tasks = types.ModuleType("shop.tasks")
os.environ["DJANGO_SETTINGS_MODULE"] = "shop"
settings.configure(LOGGING={"version": 1, "disable_existing_loggers": True})
import celery
app = celery.Celery("shop", broker="memory://")
app.autodiscover_tasks(["shop"])
django.setup()
logger = logging.getLogger("shop")
from django.core import checks
checks.register(lambda **kwargs: print("checked") or [])
from django_dcron import targets
print(targets.available(), repr(targets.discovery_problem()), logger.disabled)
"""
    assert in_a_new_process(code) == ["[] '' False"]


def test_project_tasks_are_found() -> None:
    assert targets.get("tests.app.tasks.ok").call(Invocation()) == "ok"
    assert "tests.app.tasks.echo" in targets.available()


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
