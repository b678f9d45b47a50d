"""@cron: what it registers and declares, and what it rejects at decoration."""

import asyncio
import functools
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_type_hints

import pytest
from celery import shared_task
from celery.schedules import crontab, schedule
from django.utils.translation import gettext_lazy

import django_dcron
from django_dcron import targets
from django_dcron.exceptions import InvalidSchedule
from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.targets import Invocation, TargetKind, cron
from django_dcron.targets import declared_fields as module
from django_dcron.targets.declared_fields import JobFields
from django_dcron.targets.functions import FunctionTarget


@pytest.fixture(autouse=True)
def isolated_declarations() -> Iterator[None]:
    with targets.isolated_registry():
        yield


class ShopDown(Exception):
    pass


def fetch(day: str = "today") -> str:
    """Fetch the rates."""
    return f"rates of {day}"


def test_decorated_function_is_a_target_and_stays_callable() -> None:
    decorated = cron("@daily")(fetch)

    assert decorated is fetch
    target = targets.get(f"{__name__}.fetch")
    assert (target.kind, target.route_name) == (TargetKind.FUNCTION, None)
    assert target.description == "Fetch the rates."
    assert target.call(Invocation(kwargs={"day": "May"})) == "rates of May"
    assert target.key in targets.available()


def test_lazy_translation_is_stored_as_str() -> None:
    cron("@daily", description=gettext_lazy("Report"))(fetch)  # type: ignore[arg-type]

    [declaration] = targets.declarations()
    description = declaration.fields["description"]
    assert (type(description), description) == (str, "Report")


def test_cron_is_exported_by_the_package() -> None:
    assert django_dcron.cron is cron
    assert set(django_dcron.__all__) <= set(dir(django_dcron))
    assert all(hasattr(django_dcron, name) for name in dir(django_dcron))


@pytest.mark.parametrize(
    ("fields", "error", "named"),
    [
        ({"after": "import-orders"}, TypeError, ("after", "{'import-orders': 'succeeded'}")),
        ({"after": {"a": "success"}}, ValueError, ("after", "'a'", "mean 'succeeded'", "'ended'")),
        ({"after": {1: "ended"}}, TypeError, ("after", "1")),
        (
            {"after": {"a": "failed", "default/a": "ended"}},
            ValueError,
            ("after", "'a'", "'default/a'"),
        ),
        ({"alerts": "ops"}, TypeError, ("alerts", "'ops'", "'to'")),
        ({"alerts": {"on": "failed"}}, TypeError, ("alerts", "'to'")),
        ({"alerts": ["failed"]}, TypeError, ("alerts", "rule 1", "'failed'")),
        ({"alerts": [{"on": "fialed"}]}, ValueError, ("alerts", "rule 1", "mean 'failed'")),
        ({"overlap_policy": "skipp"}, ValueError, ("overlap_policy", "'skipp'", "mean 'skip'")),
        ({"overlap_policy": "x"}, ValueError, ("overlap_policy", "'queue_one'", "'allow'")),
        ({"overlap_policy": True}, TypeError, ("overlap_policy", "True", "'queue_one'")),
        ({"misfire_policy": "run_last"}, ValueError, ("misfire_policy", "mean 'run_latest'")),
        ({"calendar_policy": "nextday"}, ValueError, ("calendar_policy", "mean 'next_day'")),
        ({"max_attempts": "3"}, TypeError, ("max_attempts", "'3'")),
        ({"max_attempts": True}, TypeError, ("max_attempts", "True")),
        ({"retry_jitter": "0"}, TypeError, ("retry_jitter", "'0'")),
        ({"enabled": 1}, TypeError, ("enabled", "True")),
        ({"kwargs": [1]}, TypeError, ("kwargs", "type list", "dict")),
        ({"kwargs": 0}, TypeError, ("kwargs", "type int", "dict")),
        ({"args": "May"}, TypeError, ("args", "type str", "list")),
        ({"args": 5}, TypeError, ("args", "type int", "list")),
        ({"queue": 5}, TypeError, ("queue", "5")),
    ],
)
def test_error_for_invalid_value_names_field_value_and_choices(
    fields: Any, error: type[Exception], named: tuple[str, ...]
) -> None:
    with pytest.raises(error) as raised:
        cron("@daily", **fields)
    assert [text for text in named if text not in str(raised.value)] == []
    assert targets.declarations() == ()


def test_choices_accept_enum_members_and_values() -> None:
    rules = [{"on": "failed", "to": ["ops"]}]
    cron("@daily", overlap_policy="allow", misfire_policy=MisfirePolicy.SKIP, alerts=rules)(fetch)
    [declared] = targets.declarations()
    assert declared.fields["overlap_policy"] == "allow"
    assert declared.fields["alerts"] == rules


def test_declaration_has_the_declared_fields_as_stored_values() -> None:
    at = datetime(2027, 1, 1, tzinfo=UTC)
    cron(
        "*/5 * * * *",
        args=("May",),
        timezone="Europe/Berlin",
        starts_at=at,
        timeout=timedelta(minutes=2),
        retry_backoff=5,
        jitter=0.5,
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
        "retry_backoff": timedelta(seconds=5),
        "jitter": timedelta(seconds=0.5),
        "start_deadline": None,
        "misfire_policy": "skip",
        "retry_on": ["ConnectionError", "OSError", f"{__name__}.ShopDown"],
        "never_retry_on": ["KeyError"],
        "tags": ["shop"],
    }
    assert str(declaration) == "fetch"


def test_every_field_of_a_job_can_be_declared() -> None:
    """A field that is added to the job must be added to the declaration, too."""
    from django_dcron.models import Job

    fixed = {"namespace", "name", "target", "args", "kwargs", "schedule"}
    set_by_the_package = {"id", "declared", "version", "created_at", "updated_at", "deleted_at"}
    set_by_the_package |= {"pause_reason", "paused_until", "imported"}
    set_by_the_package |= {"import_source", "import_key"}
    fields = {field.name for field in Job._meta.get_fields() if field.concrete}
    assert fields - fixed - set_by_the_package == set(JobFields.__annotations__)


def test_type_of_a_policy_names_each_choice() -> None:
    """Literals let a type checker find a wrong choice, and an editor complete one."""
    hints = get_type_hints(JobFields)
    for field, choices in module.CHOICES.items():
        policy, literal = get_args(hints[field])
        assert get_args(literal) == choices == tuple(policy)


def test_every_nullable_job_field_can_be_declared_as_none() -> None:
    from django_dcron.models import Job

    empty = {field.name for field in Job._meta.get_fields() if field.concrete and field.null}
    assert (empty & set(JobFields.__annotations__)) | {"timezone"} == module.NULLABLE
    cron("@daily", **dict.fromkeys(module.NULLABLE))(fetch)  # type: ignore[arg-type]


def test_decorator_can_be_stacked_with_different_names() -> None:
    cron("@daily", name="by day")(cron("@hourly", name="by hour", namespace="shop")(fetch))

    assert [declaration.key for declaration in targets.declarations()] == [
        ("shop", "by hour"),
        ("default", "by day"),
    ]
    assert str(targets.declarations()[0]) == "shop/by hour"


@pytest.mark.usefixtures("isolated_tasks")
def test_decorating_a_celery_task_declares_the_task() -> None:
    @cron("@daily")
    @shared_task(name="shop.declared")
    def report() -> str:
        return "written"

    (declaration,) = targets.declarations()
    assert (declaration.name, declaration.target) == ("report", "shop.declared")
    assert targets.get("shop.declared").kind is TargetKind.TASK


@pytest.mark.usefixtures("isolated_tasks")
@pytest.mark.parametrize("in_registry", [False, True])
def test_decorating_a_class_based_celery_task_declares_it(in_registry: bool) -> None:
    """A task that was only put into the registry isn't bound to its app yet."""
    from celery import Task, current_app

    class Nightly(Task):
        name = "shop.Nightly"

        def run(self) -> None: ...

    task = Nightly()
    register: Any = current_app.tasks.register if in_registry else current_app.register_task
    register(task)
    cron("@daily")(task)
    (declaration,) = targets.declarations()
    assert (declaration.name, declaration.target) == ("Nightly", "shop.Nightly")


@pytest.mark.usefixtures("isolated_tasks")
@pytest.mark.parametrize("task_name", ["shop.Nightly", "shop.Weekly", None])
def test_task_whose_base_class_is_registered_must_be_registered(task_name: str | None) -> None:
    from celery import Task, current_app

    class Nightly(Task):
        name = "shop.Nightly"

        def run(self) -> None: ...

    class Weekly(Nightly):
        name = task_name

    current_app.register_task(Nightly())
    with pytest.raises(TypeError, match=r"app\.register_task\(Weekly\(\)\)"):
        cron("@daily")(Weekly())
    assert not targets.declarations()


@pytest.mark.parametrize("is_instance", [True, False])
def test_class_based_celery_task_that_is_not_registered_is_refused(is_instance: bool) -> None:
    from celery import Task

    class Nightly(Task):
        name = "shop.Nightly"

        def run(self) -> None: ...

    with pytest.raises(TypeError, match=r"app\.register_task\(Nightly\(\)\)"):
        cron("@daily")(Nightly() if is_instance else Nightly)
    assert not targets.declarations()


def test_coroutine_function_is_called_without_an_event_loop() -> None:
    @cron("@daily")
    async def fetch_all(city: str) -> str:
        return city.upper()

    target = targets.get(targets.declarations()[0].target)
    assert target.is_async
    assert asyncio.run(target.call(Invocation(["ulm"]))) == "ULM"


def test_function_without_signature_accepts_any_arguments() -> None:
    FunctionTarget("type", type).check_arguments([1, 2, 3, 4], {})


# --- Refusals -----------------------------------------------------------------------------------


def test_decorator_without_parentheses_raises_type_error() -> None:
    with pytest.raises(TypeError, match=r"text, not <func"):
        cron(fetch)  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", [(), ("",), (None,)])
def test_error_for_a_missing_schedule_names_the_schedule_of_chained_jobs(schedule: Any) -> None:
    with pytest.raises(TypeError, match=re.escape("@cron(\"@never\", after={'fetch': 'failed'})")):
        cron(*schedule, after={"fetch": "failed"})
    with pytest.raises(TypeError, match="schedule is missing"):
        cron(*schedule)


def test_error_for_invalid_schedule_names_the_job() -> None:
    with pytest.raises(InvalidSchedule, match=r"job fetch: minute: .*61"):
        cron("61 * * * *")(fetch)
    assert targets.declarations() == ()
    assert f"{__name__}.fetch" not in targets.available()


def test_unknown_time_zone_is_rejected_at_import() -> None:
    with pytest.raises(InvalidSchedule, match=r"job fetch: .*Europe/Berln.*Europe/Berlin"):
        cron("@daily", timezone="Europe/Berln")(fetch)
    assert targets.declarations() == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"time_out": timedelta(1)}, r"'time_out'\..* 'timeout'"),
        ({"color": "red"}, r"'color'\. Fields: "),
        ({"expires": 60}, r"'expires'\. Use start_deadline\."),
        ({"max_retries": 3}, r"'max_retries'\. Use max_attempts"),
        ({"timeout": True}, r"timeout=True .*timeout=timedelta\(seconds="),
        ({"timeout": float("nan")}, r"timeout=nan .*timedelta"),
        ({"jitter": "1m"}, r"jitter='1m' .*jitter=timedelta\(seconds="),
        ({"jitter": None}, "jitter=None .*timedelta"),
        ({"starts_at": "2027-01-01"}, "starts_at='2027-01-01' .*aware datetime"),
        ({"ends_at": datetime(2027, 1, 1)}, "ends_at=.*aware datetime"),  # noqa: DTZ001
        ({"retry_on": [404]}, "retry_on .*404.*exception"),
        ({"retry_on": dict}, "retry_on .*<class 'dict'>"),
    ],
)
def test_error_for_unknown_field_or_wrong_type_names_the_field(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        cron("@daily", **fields)


@pytest.mark.parametrize(
    ("schedule", "example"),
    [
        (timedelta(minutes=5), '"@every 5m"'),
        (timedelta(0), r'"\*/5'),
        (5, r'"\*/5'),
        (schedule(30), '"@every 30s"'),
        (schedule(10.5), r'"\*/5'),
        (crontab(minute="*/15", hour={8, 9}, day_of_week="mon-fri"), r'"\*/15 8,9 \* \* mon-fri"'),
        (crontab(minute=0, hour=0, day_of_month=13, day_of_week="fri"), r'"\*/5'),
        (crontab(minute=0, hour=0, day_of_week="monday"), r'"\*/5'),
    ],
)
def test_schedule_of_the_wrong_type_is_refused_with_an_example(schedule: Any, example: str) -> None:
    with pytest.raises(TypeError, match=f"Use .*{example}"):
        cron(schedule)


@pytest.mark.parametrize(
    ("field", "value"), [("args", "--password=s3cret"), ("kwargs", [("password", "s3cret")])]
)
def test_error_for_arguments_of_the_wrong_type_omits_their_value(field: str, value: Any) -> None:
    """``dcron sync`` shows the error of a task module that can't be imported."""
    with pytest.raises(TypeError, match=f"{field} has the type .*Use {field}=") as caught:
        cron("@daily", **{field: value})
    assert "s3cret" not in str(caught.value)


def test_hints_for_names_of_other_schedulers_name_existing_fields() -> None:
    fields = set(JobFields.__annotations__)
    for other, hint in module.OTHER_NAMES.items():
        assert other not in fields
        meant = module.field_meant_by(other)
        assert hint.startswith(("the schedule ", meant))
        assert meant in fields | {"schedule", "target"}


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("retry", "Use max_attempts, which includes the first attempt."),
        ("every", 'Use the schedule "@every 5m".'),
        ("disabled", "Use enabled, with the opposite value."),
        ("task", "Use @cron as a decorator of the function or task."),
        ("no_overlap", "Use overlap_policy."),
    ],
)
def test_field_of_another_scheduler_is_refused_with_the_field_to_use(field: str, hint: str) -> None:
    with pytest.raises(TypeError) as caught:
        cron("@daily", **{field: 3})  # type: ignore[arg-type]
    assert str(caught.value) == f"@cron: unknown field {field!r}. {hint}"


@pytest.mark.parametrize(
    ("write", "use"),
    [
        (lambda job: {"first": "ended", job: "failed"}, "'shop/other'"),
        (lambda job: [job], "after={'shop/other': 'succeeded'}"),
        (lambda job: job, "after={'shop/other': 'succeeded'}"),
    ],
)
def test_function_in_after_is_refused_with_the_name_of_its_job(write: Any, use: str) -> None:
    def advice() -> str:
        with pytest.raises(TypeError) as caught:
            cron("@daily", after=write(fetch))
        return str(caught.value).removeprefix("@cron: after contains a function or task. ")

    assert advice() == "Use the name of the job."
    cron("@daily", name="other", namespace="shop")(fetch)
    assert advice() == f"Use {use}."
    cron("@hourly", name="second")(fetch)
    assert advice() == "Use the name of the job."


def test_unknown_field_lists_the_fields_unless_one_is_similar() -> None:
    with pytest.raises(TypeError) as caught:
        cron("@daily", zzz=1)  # type: ignore[call-arg]
    assert all(field in str(caught.value) for field in JobFields.__annotations__)
    with pytest.raises(TypeError, match=r"'timeout'\?$"):
        cron("@daily", timout=1)  # type: ignore[call-arg]


def test_duplicate_job_name_is_refused() -> None:
    def other() -> None: ...

    cron("@daily", name="rates")(fetch)
    with pytest.raises(ValueError, match=r"rates.* \S+\.fetch .*other"):
        cron("@daily", name="rates")(other)
    with pytest.raises(ValueError, match="rates"):
        cron("@hourly", name="rates")(fetch)


def test_reloading_a_module_replaces_its_declaration() -> None:
    def load() -> Any:
        code = compile('@cron("@daily")\ndef job(): return version', "shop/cron.py", "exec")
        module = {"cron": cron, "__name__": "shop.cron"}
        exec(code, module)  # noqa: S102 (as importing it does)
        return module

    load()["version"] = 1
    load()["version"] = 2
    assert len(targets.declarations()) == 1
    assert targets.get("shop.cron.job").call(Invocation()) == 2


def test_second_function_made_by_the_same_factory_is_refused() -> None:
    def declare(city: str) -> None:
        @cron("@daily", name=city)
        def report() -> str:
            return city

    declare("Ulm")
    with pytest.raises(TypeError, match=r"declare\.<locals>\.report"):
        declare("Bonn")


def test_generators_classes_lambdas_and_partials_are_refused() -> None:
    def pages() -> Iterator[int]:
        yield 1

    async def events() -> Any:
        yield 1

    for generator in (pages, events):
        with pytest.raises(TypeError, match=rf"\b{generator.__name__}\b"):
            cron("@daily")(generator)

    class Report: ...

    with pytest.raises(TypeError, match=r"\.Report\b"):
        cron("@daily")(Report)
    with pytest.raises(TypeError, match="name="):
        cron("@daily")(lambda: None)
    with pytest.raises(TypeError, match=r"functools\.partial"):
        cron("@daily", name="partial")(functools.partial(fetch, "May"))


def test_declarations_are_discarded_when_isolation_ends() -> None:
    with targets.isolated_registry():
        cron("@daily")(fetch)
    assert targets.declarations() == ()
    assert f"{__name__}.fetch" not in targets.available()
