"""Django's own tasks as targets: found, checked, called and declared."""

import asyncio
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from django_dcron import targets
from django_dcron.exceptions import InvalidArguments, UnknownTarget
from django_dcron.targets import Invocation, TargetKind, cron, django_tasks
from tests.logs import logged
from tests.refusals import refusal

pytestmark = pytest.mark.django_tasks

REPORT = "tests.tasked.tasks.report"


def test_task_is_found_by_its_import_path() -> None:
    target = targets.get(REPORT)
    assert (target.key, target.kind, target.route_name) == (REPORT, TargetKind.DJANGO_TASK, None)
    assert target.description == "Count the orders."
    assert target.signature == "(city: str, days: int = 7)"
    assert (target.django_task.queue_name, target.django_task.priority) == ("reports", 7)
    assert target.call(Invocation(["Berlin"], {"days": 1})) == {"city": "Berlin", "days": 1}
    assert targets.get(f"shadow:{REPORT}").django_task is target.django_task


def test_only_tasks_under_their_own_import_path_are_targets() -> None:
    known = [key for key in targets.available() if key.startswith("tests.tasked.")]
    names = ("describe", "fail", "fetch", "report")
    assert known == [f"tests.tasked.tasks.{name}" for name in names]
    for key in (
        "tests.tasked.tasks.plain",
        "tests.tasked.tasks.other_name",
        "tests.tasked.tasks.celery_one",
        "tests.tasked.tasks.report.func",
        "tests.tasked.tasks",
        "tests.tasked",
        "report",
        "",
        "django_dcron.django_tasks.execute_run",
    ):
        with pytest.raises(UnknownTarget):
            targets.get(key)


def test_looking_up_an_unknown_key_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return super().__getattribute__(name)

    monkeypatch.setitem(sys.modules, "tests.tasked.lazy", Lazy("tests.tasked.lazy"))
    asked.clear()
    for key in (
        "tests.tasked.lazy.report",
        "tests.tasked.never.report",
        "tests.targets.nowhere.report",
    ):
        with pytest.raises(UnknownTarget):
            targets.get(key)
    assert asked == []
    assert "tests.tasked.never" not in sys.modules


def test_task_outside_installed_apps_is_a_target_only_if_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from django.tasks import task

    from tests.tasked.tasks import plain

    module = ModuleType("elsewhere.tasks")
    monkeypatch.setattr(plain, "__module__", "elsewhere.tasks")
    module.plain = task(plain)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "elsewhere.tasks", module)
    with pytest.raises(UnknownTarget):
        targets.get("elsewhere.tasks.plain")
    with targets.isolated_registry():
        cron("@daily")(module.plain)
        assert targets.get("elsewhere.tasks.plain").call(Invocation()) is None
        (declared,) = targets.declarations()
        assert (declared.name, declared.target) == ("plain", "elsewhere.tasks.plain")
        assert "elsewhere.tasks.plain" in targets.available()
    with pytest.raises(UnknownTarget):
        targets.get("elsewhere.tasks.plain")


@pytest.mark.parametrize(
    ("args", "kwargs", "code", "params"),
    [
        ([], {}, "missing_argument", {"name": "'city'"}),
        (["Berlin"], {"dayz": 1}, "unknown_parameter", {"name": "'dayz'", "near": "'days'"}),
        ([1, 2, 3], {}, "too_many_arguments", {"count": "3"}),
    ],
)
def test_arguments_are_checked_against_the_task_signature(
    args: list[Any], kwargs: dict[str, Any], code: str, params: dict[str, str]
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        targets.get(REPORT).check_arguments(args, kwargs)
    found = {name: str(value) for name, value in caught.value.params.items()}
    assert (caught.value.code, found | params) == (code, found)


def test_coroutine_task_is_called_without_an_event_loop() -> None:
    target = targets.get("tests.tasked.tasks.fetch")
    assert target.is_async
    assert asyncio.run(target.call(Invocation(["x"]))) == "got x"


def test_task_context_describes_the_run() -> None:
    target = targets.get("tests.tasked.tasks.describe")
    target.check_arguments(["a"], {})
    assert target.signature == "(name: str)"
    with refusal(InvalidArguments, "unknown_parameter", field="kwargs", name="'context'"):
        target.check_arguments([], {"context": 1, "name": "a"})
    called = target.call(
        Invocation([], {"name": "a"}, call_id="the-run", attempt=3, worker="host/1")
    )
    assert called == {
        "name": "a",
        "attempt": 3,
        "id": "the-run",
        "kwargs": {"name": "a"},
        "status": "RUNNING",
        "workers": ["host/1"] * 3,
    }


def test_cron_works_above_and_below_the_task_decorator() -> None:
    from django.tasks import task

    from tests.tasked.tasks import plain, report

    with targets.isolated_registry():
        assert cron("@hourly", args=["Berlin"])(report) is report
        assert cron("@daily", name="other")(plain) is plain  # below @task, @cron gets the function
        task(plain)
        first, second = targets.declarations()
        assert (first.name, first.target) == ("report", REPORT)
        assert second.target == "tests.tasked.tasks.plain"
        assert targets.get(second.target).kind is TargetKind.FUNCTION


def test_task_modules_that_fail_to_import_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(django_tasks, "_problems", None)
    monkeypatch.setattr(django_tasks, "import_module", lambda name: 1 / 0)
    with pytest.raises(UnknownTarget, match="ZeroDivisionError"):
        targets.get("tests.tasked.gone")
    assert logged(caplog, "tasks_not_imported", "tests.tasked.tasks")
    assert targets.get(REPORT).key == REPORT, "imported tasks remain targets"


def test_no_task_modules_are_imported_without_the_tasks_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(django_tasks, "_problems", None)
    monkeypatch.setattr(django_tasks, "import_module", lambda name: 1 / 0)
    monkeypatch.setattr(django_tasks, "settings", SimpleNamespace(is_overridden=lambda name: False))
    assert targets.discovery_problem() == ""
    assert targets.get(REPORT).key == REPORT
