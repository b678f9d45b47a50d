"""@cron: what it registers and declares, and what it refuses, at decoration."""

import functools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import shared_task

import django_dcron
from django_dcron import targets
from django_dcron.domain.misfire import MisfirePolicy
from django_dcron.exceptions import InvalidSchedule
from django_dcron.targets import Invocation, TargetKind, cron
from django_dcron.targets import declaration as module
from django_dcron.targets.declaration import JobFields
from django_dcron.targets.functions import FunctionTarget


@pytest.fixture(autouse=True)
def nothing_declared() -> Iterator[None]:
    with targets.isolated():
        yield


class ShopDown(Exception):
    pass


def fetch(day: str = "today") -> str:
    """Fetch the rates."""
    return f"rates of {day}"


def test_the_function_is_a_target_and_stays_a_function() -> None:
    decorated = cron("@daily")(fetch)

    assert decorated is fetch
    target = targets.get(f"{__name__}.fetch")
    assert (target.kind, target.route_name) == (TargetKind.FUNCTION, None)
    assert target.description == "Fetch the rates."
    assert target.call(Invocation(kwargs={"day": "May"})) == "rates of May"
    assert target.key in targets.available()


def test_the_package_offers_it() -> None:
    assert django_dcron.cron is cron


def test_a_declaration_says_what_the_code_said() -> None:
    at = datetime(2027, 1, 1, tzinfo=UTC)
    cron(
        "*/5 * * * *",
        args=("May",),
        timezone="Europe/Berlin",
        starts_at=at,
        timeout=timedelta(minutes=2),
        start_deadline=None,
        misfire_policy=MisfirePolicy.SKIP,
        retry_on=(ConnectionError, "OSError", ShopDown),
        never_retry_on=KeyError,
        tags="shop",
    )(fetch)

    (declaration,) = targets.declarations()
    assert declaration.key == ("default", "fetch")
    assert declaration.target == f"{__name__}.fetch"
    assert declaration.fields == {
        "schedule": "*/5 * * * *",
        "args": ["May"],
        "kwargs": {},
        "timezone": "Europe/Berlin",
        "starts_at": at,
        "timeout": timedelta(minutes=2),
        "start_deadline": None,
        "misfire_policy": "skip",
        "retry_on": ["ConnectionError", "OSError", f"{__name__}.ShopDown"],
        "never_retry_on": ["KeyError"],
        "tags": ["shop"],
    }
    assert str(declaration) == "fetch"


def test_every_field_of_a_job_can_be_declared() -> None:
    """So that a field added to the job is not forgotten here."""
    from django_dcron.models import Job

    fixed = {"namespace", "name", "target", "args", "kwargs", "schedule"}
    ours = {"id", "pause_reason", "paused_until", "declared", "version", "created_at", "updated_at"}
    fields = {field.name for field in Job._meta.get_fields() if field.concrete}
    assert fields - fixed - ours == set(JobFields.__annotations__)


def test_what_a_job_may_leave_empty_may_be_declared_empty() -> None:
    from django_dcron.models import Job

    empty = {field.name for field in Job._meta.get_fields() if field.concrete and field.null}
    assert (empty & set(JobFields.__annotations__)) | {"timezone"} == module.NULLABLE
    cron("@daily", **dict.fromkeys(module.NULLABLE))(fetch)  # type: ignore[arg-type]


def test_it_may_be_stacked_under_different_names() -> None:
    cron("@daily", name="by day")(cron("@hourly", name="by hour", namespace="shop")(fetch))

    assert [declaration.key for declaration in targets.declarations()] == [
        ("shop", "by hour"),
        ("default", "by day"),
    ]
    assert str(targets.declarations()[0]) == "shop/by hour"


def test_on_a_celery_task_it_declares_the_task() -> None:
    @cron("@daily")
    @shared_task(name="shop.declared")
    def report() -> str:
        return "written"

    (declaration,) = targets.declarations()
    assert (declaration.name, declaration.target) == ("report", "shop.declared")
    assert targets.get("shop.declared").kind is TargetKind.TASK


def test_on_a_celery_task_made_from_a_class() -> None:
    from celery import Task, current_app

    class Nightly(Task):
        name = "shop.Nightly"

        def run(self) -> None: ...

    task = current_app.register_task(Nightly())
    cron("@daily")(task)
    (declaration,) = targets.declarations()
    assert (declaration.name, declaration.target) == ("Nightly", "shop.Nightly")


def test_a_coroutine_function_is_run() -> None:
    @cron("@daily")
    async def fetch_all(city: str) -> str:
        return city.upper()

    target = targets.get(targets.declarations()[0].target)
    assert target.call(Invocation(["ulm"])) == "ULM"


def test_a_function_without_a_signature_takes_anything() -> None:
    FunctionTarget("type", type).check_arguments([1, 2, 3, 4], {})


# --- What is refused ----------------------------------------------------------------------------------------


def test_without_parentheses_it_says_what_is_missing() -> None:
    with pytest.raises(
        TypeError, match=r'@cron needs a schedule first: @cron\("\*/5 \* \* \* \*"\), not <func'
    ):
        cron(fetch)  # type: ignore[arg-type]


def test_a_bad_schedule_names_the_job() -> None:
    with pytest.raises(InvalidSchedule, match=r"job fetch declared by @cron: minute: .*61"):
        cron("61 * * * *")(fetch)
    assert targets.declarations() == ()
    assert f"{__name__}.fetch" not in targets.available()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"time_out": timedelta(1)}, "a job has no field 'time_out'; did you mean timeout?"),
        ({"color": "red"}, "a job has no field 'color'$"),
        ({"timeout": 30}, r"timeout=30 is not a timedelta; write timeout=timedelta\(seconds=30\)"),
        ({"jitter": "1m"}, r"jitter='1m' is not a timedelta; write jitter=timedelta\(seconds="),
        ({"jitter": None}, "jitter=None is not a timedelta"),
        ({"starts_at": "2027-01-01"}, "starts_at='2027-01-01' is not an aware datetime"),
        ({"ends_at": datetime(2027, 1, 1)}, r"ends_at=.* is not an aware datetime"),  # noqa: DTZ001
        ({"retry_on": [404]}, "retry_on: 404 is neither an exception class nor the name of one"),
        ({"retry_on": dict}, "retry_on: <class 'dict'> is neither"),
    ],
)
def test_a_field_that_cannot_be_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        cron("@daily", **fields)


def test_two_jobs_of_one_name_are_refused() -> None:
    def other() -> None: ...

    cron("@daily", name="rates")(fetch)
    with pytest.raises(ValueError, match=r"two jobs named rates .* for .*\.fetch and for .*other"):
        cron("@daily", name="rates")(other)
    with pytest.raises(ValueError, match="two jobs named rates"):
        cron("@hourly", name="rates")(fetch)


def test_a_module_loaded_again_is_no_second_job() -> None:
    def load() -> Any:
        code = compile('@cron("@daily")\ndef job(): return version', "shop/cron.py", "exec")
        module = {"cron": cron, "__name__": "shop.cron"}
        exec(code, module)  # noqa: S102 (as importing it does)
        return module

    load()["version"] = 1
    load()["version"] = 2
    assert len(targets.declarations()) == 1
    assert targets.get("shop.cron.job").call(Invocation()) == 2


def test_functions_that_a_factory_makes_cannot_be_told_apart() -> None:
    def declare(city: str) -> None:
        @cron("@daily", name=city)
        def report() -> str:
            return city

    declare("Ulm")
    with pytest.raises(TypeError, match="cannot tell two functions named"):
        declare("Bonn")


def test_what_runs_nothing_is_refused() -> None:
    def pages() -> Iterator[int]:
        yield 1

    async def events() -> Any:
        yield 1

    for generator in (pages, events):
        with pytest.raises(TypeError, match="it is a generator function"):
            cron("@daily")(generator)

    class Report: ...

    with pytest.raises(TypeError, match=r"and .*Report is a class; decorate a function"):
        cron("@daily")(Report)
    with pytest.raises(TypeError, match="needs name="):
        cron("@daily")(lambda: None)
    with pytest.raises(TypeError, match="needs a function or a Celery task"):
        cron("@daily", name="partial")(functools.partial(fetch, "May"))


def test_isolation_ends() -> None:
    with targets.isolated():
        cron("@daily")(fetch)
    assert targets.declarations() == ()
    assert f"{__name__}.fetch" not in targets.available()
