"""Celery tasks as targets: keys, arguments and request, in this process without a broker."""

import threading
from typing import Any

import celery
import pytest

from django_dcron import targets
from django_dcron.exceptions import InvalidArguments, UnknownTarget
from django_dcron.targets import Invocation, TargetKind
from tests.refusals import refusal
from tests.targets.celery_calls import Down, call
from tests.waiting import TIMEOUT


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
    def describe_request(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {
            "current": celery.current_task._get_current_object() is self,
            **{
                name: getattr(self.request, name)
                for name in (
                    *("id", "retries", "hostname", "args", "kwargs"),
                    *("headers", "called_directly"),
                )
            },
        }

    assert call(describe_request, 1, attempt=3, a=2) == {
        "current": True,
        "id": "call-1",
        "retries": 2,
        "hostname": "w1@host",
        "args": [1],
        "kwargs": {"a": 2},
        "headers": None,
        "called_directly": False,
    }
    assert describe_request.request_stack.top is None
    assert celery.current_task._get_current_object() is None


def test_task_request_is_local_to_the_thread(app: celery.Celery) -> None:
    both = threading.Barrier(2)

    @app.task(bind=True)
    def describe_request(self: Any) -> int:
        both.wait(TIMEOUT)
        return self.request.retries

    target, seen = targets.get(describe_request.name), {}

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
    def describe_request(self: Any) -> tuple[str, int]:
        return self.request.id, self.request.retries

    assert call(describe_request, attempt=2) == ("call-1", 1)
    assert seen == ["call-1"]


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
