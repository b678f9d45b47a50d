"""The registry's own checks: argument size, errors in the project's code, nested shadowing."""

import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from pytest_django import Settings

from django_dcron import control, targets
from django_dcron.exceptions import InvalidArguments, UnknownTarget
from django_dcron.models import Job
from django_dcron.targets import registry
from django_dcron.targets.celery_tasks import CeleryTarget
from tests import app as app_package
from tests.factories import make_idle_job
from tests.refusals import refusal

TARGET = "tests.app.tasks.ok"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> type[Exception]:
    class Broken(Exception):
        pass

    def check(target: CeleryTarget, args: list[Any], kwargs: dict[str, Any]) -> None:
        raise Broken("a bug of the project")

    monkeypatch.setattr(CeleryTarget, "check_arguments", check)
    return Broken


def test_exception_in_argument_check_becomes_a_field_error(broken: type[Exception]) -> None:
    rejected = {"target": TARGET, "problem": "a bug of the project"}
    with refusal(InvalidArguments, "rejected", field="args", **rejected) as caught:
        targets.check_arguments(TARGET, [], {})
    assert isinstance(caught.value.__cause__, broken)
    with pytest.raises(ValidationError) as invalid:
        Job(name="a", schedule="@daily", target=TARGET).clean_fields()
    assert set(invalid.value.message_dict) == {"args"}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (TARGET, True),
        (f"shadow:{TARGET}", True),
        (f"shadow:shadow:{TARGET}", False),
        ("tests.app.tasks.gone", False),
        ("shadow:tests.app.tasks.gone", False),
        ("command:gone", False),
        ("shell:gone", False),
        ("", False),
    ],
)
def test_known_targets_are_those_that_get_finds(key: str, expected: bool) -> None:
    assert targets.is_known(key) is expected
    with nullcontext() if expected else pytest.raises(UnknownTarget):
        targets.get(key)


@pytest.mark.parametrize(
    ("args", "kwargs", "field"),
    [
        (["x" * 60], {}, "args"),
        (["x" * 20], {"a": "y" * 30}, "kwargs"),
        ([], {"y" * 60: 1}, "kwargs"),
    ],
)
def test_arguments_beyond_the_size_limit_are_refused(
    settings: Settings, args: list[Any], kwargs: dict[str, Any], field: str
) -> None:
    settings.DCRON_ARGUMENTS_LIMIT = 50
    with refusal(InvalidArguments, "too_long", field=field, most=50):
        targets.check_arguments(TARGET, args, kwargs)


@pytest.mark.django_db
def test_size_limit_applies_to_jobs_and_to_triggered_runs() -> None:
    with pytest.raises(ValidationError) as invalid:
        make_idle_job(target="tests.app.tasks.echo", args=["x" * 70_000])
    assert set(invalid.value.message_dict) == {"args"}
    job = make_idle_job(target="tests.app.tasks.echo", args=["x" * 60_000])
    with pytest.raises(InvalidArguments):
        control.trigger(job, args=["x" * 70_000])


@pytest.mark.parametrize("times", [2, 1500])
def test_nested_shadow_target_is_refused(times: int) -> None:
    key = "shadow:" * times + TARGET
    with refusal(UnknownTarget, "unknown_target", target=f"{key!r:.80}") as caught:
        targets.get(key)
    assert "why" not in caught.value.params, "the target of the shadow isn't looked up"
    with pytest.raises(ValidationError) as invalid:
        Job(name="a", schedule="@daily", target="shadow:" * times).clean_fields()
    assert "target" in invalid.value.message_dict


@pytest.mark.parametrize(
    ("key", "explains"),
    [
        ("shop.nothing.like.it", True),
        ("tests.app.tasks.okk", False),
        ("command:nothing_like", False),
    ],
)
def test_unknown_target_without_similar_ones_says_where_targets_come_from(
    key: str, explains: bool
) -> None:
    with pytest.raises(UnknownTarget) as caught:
        targets.get(key)
    text = str(caught.value)
    assert ("renamed" in text) == explains
    if explains:
        assert text.index("renamed") < text.index("cron.py")


@pytest.mark.parametrize("listed", [[], ["check"]])
def test_unknown_target_names_only_a_listed_command(settings: Settings, listed: list[str]) -> None:
    settings.DCRON_COMMANDS = listed
    with pytest.raises(UnknownTarget) as caught:
        targets.get("shop.nothing.like.it")
    assert ("Management commands" in str(caught.value)) == bool(listed)
    assert re.findall(r"command:\w+", str(caught.value)) == [f"command:{each}" for each in listed]


@pytest.mark.parametrize("number", [0, 5, 6])
def test_unknown_target_lists_a_few_known_targets(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    known = [f"command:clean{index}" for index in range(number)]
    monkeypatch.setattr(registry, "available", lambda: known)
    with pytest.raises(UnknownTarget) as caught:
        targets.get("shop.nothing.like.it")
    text = str(caught.value)
    assert (", ".join(known) in text) == (number <= 5)
    assert ("known targets" in text) == (number == 5)


@pytest.mark.parametrize(
    ("key", "exists"),
    [
        ("tests.contrib.importers.plain.report", True),
        ("tests.app.undiscovered.anything", False),
        ("tests.app.tasks.missing", False),
        ("tests.not-a-name.x", False),
        ("no_such_package.jobs.report", False),
        ("report", False),
        ("", False),
    ],
)
def test_unknown_target_names_its_module_if_that_exists(key: str, exists: bool) -> None:
    with pytest.raises(UnknownTarget) as caught:
        targets.get(key)
    why = caught.value.params["why"]
    assert ("import its module in cron.py" in str(why)) is exists


def test_unregistered_module_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs_of_shop.py").write_text("raise SystemExit")
    monkeypatch.setattr(app_package, "__path__", [*app_package.__path__, str(tmp_path)])
    with pytest.raises(UnknownTarget) as caught:
        targets.get("tests.app.jobs_of_shop.report")
    assert "tests.app.jobs_of_shop" in str(caught.value.params["why"])
    assert "tests.app.jobs_of_shop" not in sys.modules


@pytest.mark.parametrize("module", ["tests.app.lazy", "lazy_package"])
def test_lookup_in_a_lazy_module_does_not_load_it(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lazy module imports code when one of its attributes is read."""
    read: list[str] = []

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            read.append(name)
            return super().__getattribute__(name)

    monkeypatch.setitem(sys.modules, module, Lazy(module))
    read.clear()
    for key in (f"{module}.report", f"{module}.jobs.report"):
        with pytest.raises(UnknownTarget):
            targets.get(key)
    assert read == []
