"""System checks: when each id is reported, and its text."""

import importlib
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import django
import pytest
from celery import current_app, shared_task
from django.core.checks import CheckMessage, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import OperationalError, connection, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from pytest_django import Settings

from django_dcron import checks, conf, control, cron, targets
from django_dcron.checks import jobs, reporting, services
from django_dcron.contrib.alerts.channels import destinations
from django_dcron.dispatch import celery_setup as dispatch
from django_dcron.dispatch import make_dispatcher
from django_dcron.jobs import sync
from django_dcron.models import Calendar, Job
from django_dcron.models.calendar import read_dates
from django_dcron.policies.alerting import InvalidRule, read_rules
from django_dcron.schedules import public_holidays
from django_dcron.targets import commands, declaration, functions
from django_dcron.utils.docs_links import DOCS
from tests.docs.test_documents import ROOT
from tests.factories import make_job

LOCMEM = "django.core.cache.backends.locmem.LocMemCache"
SECRET_SETTINGS = (
    "DCRON_ALERT_CHANNELS",
    "DCRON_HEALTHCHECKS_URL",
    "DCRON_METRICS_TOKEN",
    "DCRON_SHELL",
)


@pytest.fixture
def outside_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "is_test", lambda: False)


def messages() -> list[CheckMessage]:
    """Return the messages that the start of a node reports."""
    with checks.as_node_start():
        return checks.check_settings(None)


def ids() -> list[str]:
    return [str(message.id) for message in messages()]


def job_messages() -> list[CheckMessage]:
    return checks.check_jobs(None, databases=["default"])


@pytest.mark.django_db  # some of Django's own checks query the features of the database
def test_correct_project_has_no_findings() -> None:
    assert messages() == []
    assert [message for message in run_checks() if "dcron" in str(message.id)] == []


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("DCRON_LEASE", 6, "a timedelta of at least 0.5 s"),
        ("DCRON_LEASE", timedelta(seconds=0.1), "a timedelta of at least 0.5 s"),
        ("DCRON_SHARDS", 0, "a whole number from 1 to 4096"),
        ("DCRON_SHARDS", True, "a whole number from 1 to 4096"),
        ("DCRON_THREADS", "8", "a whole number from 1 to 1024"),
        ("DCRON_LOCK", "", '"redis", "database", "file"'),
        ("DCRON_LOCK", None, '"redis", "database", "file"'),
        (
            "DCRON_LOCK",
            "rediss",
            (
                '"redis", "database", "file" or the dotted path of a Lock class. Did you mean '
                "'redis'?"
            ),
        ),
        (
            "DCRON_DISPATCHER",
            "threads",
            (
                '"celery", "thread", "tasks" or the dotted path of a Dispatcher class. Did you '
                "mean 'thread'?"
            ),
        ),
        ("DCRON_ALERT_CHANNELS", ["slack://x"], "a dict from name to channel"),
        ("DCRON_ALERTS", {"on": "failed"}, "a list of rules"),
        ("DCRON_SITE_URL", "shop.example", "a URL such as https://example.com"),
        ("DCRON_HEALTHCHECKS_URL", "file:///etc", "a URL such as https://hc-ping.com/PING-KEY"),
        ("DCRON_MIDDLEWARE", "a.b", "a list of dotted paths"),
        ("DCRON_KEEP_FOR", None, "a timedelta from 1 s to 36500 days"),
        ("DCRON_KEEP_FAILED_FOR", timedelta.max, "a timedelta from 1 s to 36500 days"),
        ("DCRON_KEEP_RUNS", 0, "a whole number of at least 1, or None"),
        ("DCRON_KEEP_RUNS", "all", "a whole number of at least 1, or None"),
        ("DCRON_MIDDLEWARE", [1], "a list of dotted paths"),
        ("DCRON_SHELL", {"backup": "pg_dump shop"}, "a dict from name to argument list"),
        ("DCRON_SHELL", {"backup": []}, "a dict from name to argument list"),
        ("DCRON_SHELL", {1: ["ls"]}, "a dict from name to argument list"),
        ("DCRON_SHELL", {"any": ["{}"]}, "a dict from name to argument list"),
        ("DCRON_COMMANDS", "clearsessions", "a list of management command names"),
        ("DCRON_COMMANDS", [["clearsessions"]], "a list of management command names"),
        ("DCRON_COMMANDS", {"dumpdata": "--indent"}, "a list of management command names"),
        ("DCRON_COMMANDS", {"dumpdata": [1]}, "a list of management command names"),
    ],
)
def test_e001_for_a_setting_of_the_wrong_type(
    settings: Settings, name: str, value: Any, allowed: str
) -> None:
    setattr(settings, name, value)
    (message,) = messages()
    assert message.id == "django_dcron.E001"
    shown = f"an invalid {type(value).__name__}" if name in SECRET_SETTINGS else repr(value)
    assert message.msg.startswith(f"{name} is {shown}. Allowed: {allowed}")
    assert message.hint


def test_valid_settings_are_accepted(settings: Settings, tmp_path: Path) -> None:
    settings.DCRON_SHELL = {"backup": ["pg_dump", "shop"]}
    settings.DCRON_COMMANDS = {
        "clearsessions": (),
        "dumpdata": ["args", "-o", "--indent"],
        "check": "__all__",
    }
    settings.DCRON_LOCK_DIR = tmp_path
    assert messages() == []


def test_e002_without_time_zone_support(settings: Settings) -> None:
    settings.USE_TZ = False
    assert ids() == ["django_dcron.E002"]
    with pytest.raises(CommandError, match="USE_TZ"):
        call_command("dcron", "list", skip_checks=False)


@pytest.mark.parametrize(
    ("zone", "codes"),
    [
        ("Asia/Tokyo", ["django_dcron.E002"]),
        ("Europe/London", ["django_dcron.E002"]),
        ("UTC", []),
        ("Nowhere", []),
        (None, []),
    ],
)
def test_e002_for_a_database_that_stores_local_times(
    monkeypatch: pytest.MonkeyPatch, zone: str | None, codes: list[str]
) -> None:
    """PostgreSQL stores UTC in any time zone."""
    default = connections["default"]
    monkeypatch.setitem(default.settings_dict, "TIME_ZONE", zone)
    expected = [] if default.features.supports_timezones else codes
    assert ids() == expected
    if expected:
        with pytest.raises(CommandError, match="TIME_ZONE"):
            call_command("dcron", "list", skip_checks=False)


@pytest.mark.parametrize("cache", ["nowhere", "memory"])
def test_e003_for_a_redis_lock_without_redis_cache(settings: Settings, cache: str) -> None:
    settings.CACHES = {
        **settings.CACHES,
        "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    }
    settings.DCRON_CACHE = cache
    (message,) = messages()
    assert message.id == "django_dcron.E003"
    assert repr(cache) in message.msg
    assert ("locmem" in message.msg) == (cache == "memory")
    settings.DCRON_LOCK = "database"
    assert ids() == []


def test_e009_for_the_tasks_dispatcher_on_django_before_6_0(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(django, "VERSION", (5, 2, 0, "final", 0))
    settings.DCRON_DISPATCHER = "tasks"
    (message,) = messages()
    assert message.id == "django_dcron.E009"
    assert "Django 6.0" in message.msg
    assert message.hint
    with pytest.raises(ImproperlyConfigured, match=r"Django 6\.0 "):
        make_dispatcher("tasks", print)


@pytest.mark.django_tasks
def test_e010_for_an_unknown_task_backend(settings: Settings) -> None:
    settings.DCRON_DISPATCHER = "tasks"
    assert messages() == [], "no warning without Celery"
    settings.DCRON_TASKS_BACKEND = "nowhere"
    (message,) = messages()
    assert message.id == "django_dcron.E010"
    assert "'nowhere'" in message.msg


@pytest.mark.django_tasks
@pytest.mark.parametrize(
    ("kind", "text"),
    [("immediate.ImmediateBackend", "immediately"), ("dummy.DummyBackend", "executes nothing")],
)
def test_w011_for_a_task_backend_without_workers(settings: Settings, kind: str, text: str) -> None:
    settings.DCRON_DISPATCHER = "tasks"
    settings.TASKS = {"default": {"BACKEND": f"django.tasks.backends.{kind}"}}
    (message,) = messages()
    assert message.id == "django_dcron.W011"
    assert text in message.msg


@pytest.fixture
def mysql(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the database look like MySQL, which neither PyPI nor Debian provides."""
    default = connections["default"]
    monkeypatch.setattr(default, "vendor", "mysql")
    monkeypatch.setattr(default, "mysql_is_mariadb", False, raising=False)
    monkeypatch.setattr(default, "mysql_server_info", "8.0.36", raising=False)


def declared_messages(**after: dict[str, str]) -> list[CheckMessage]:
    with targets.isolated_registry():
        for name, predecessors in after.items():
            cron("@daily", name=name, after=predecessors)(report)
        return checks.check_declarations(None)


def report() -> None:
    """A function to declare."""


@pytest.fixture
def check_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["manage.py", "check"])


@pytest.mark.usefixtures("check_command")
def test_w018_for_an_after_that_no_code_declares() -> None:
    (message,) = declared_messages(orders={}, invoices={"oders": "succeeded"})
    assert message.id == "django_dcron.W018"
    assert "invoices" in message.msg
    assert "'oders'" in message.msg
    assert "'orders'" in message.msg
    assert not message.is_serious(), "the job may exist in the database"


@pytest.fixture
def check_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["manage.py", "check", "--database", "default"])


@pytest.mark.django_db
@pytest.mark.usefixtures("check_of_the_database")
def test_e013_if_the_job_is_not_in_the_database_either() -> None:
    make_job(name="stored")
    with targets.isolated_registry():
        cron("@daily", name="a", after={"stored": "succeeded"})(report)
        cron("@daily", name="b", after={"stord": "ended"})(report)
        assert checks.check_declarations_in_database(None) == []
        (message,) = checks.check_declarations_in_database(None, databases=["default"])
    assert (message.id, message.is_serious()) == ("django_dcron.E013", True)
    assert "job b" in message.msg
    assert "'stord'" in message.msg
    assert "'stored'" in message.msg


@pytest.mark.django_db
@pytest.mark.usefixtures("check_of_the_database")
def test_no_e013_after_the_rename_of_an_earlier_job() -> None:
    """The stored job follows the renamed job, so the sync doesn't refuse it."""
    stored = make_job(name="stored")
    with targets.isolated_registry():
        cron("@daily", name="a", after={"stored": "succeeded"})(report)
        sync.apply(sync.plan())
        stored.name = "renamed"
        control.save(stored)
        assert checks.check_declarations_in_database(None, databases=["default"]) == []
        assert Job.objects.get(name="a").after == {"renamed": "succeeded"}


@pytest.mark.usefixtures("check_command")
def test_w018_is_not_reported_for_a_job_of_a_task_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_task_modules() -> str:
        cron("@daily", name="orders")(report)
        return ""

    monkeypatch.setattr(targets, "discovery_problem", import_task_modules)
    assert declared_messages(invoices={"orders": "succeeded"}) == []


@pytest.fixture
def task_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A task module that declares three wrong jobs, each in another way, and can't be imported."""

    def import_task_module() -> str:
        cron("@daily", name="needs")(shared_task(name="shop.needs")(needs))
        cron("@daily", name="follows", after={"nonexistent": "succeeded"})(report)
        shared_task(name="shop.below")(cron("@daily", name="below")(below))
        return "ImportError: shpo"

    def needs(x: int) -> None: ...

    def below() -> None: ...

    monkeypatch.setattr(targets, "discovery_problem", import_task_module)
    with targets.isolated_registry():
        yield


@pytest.mark.django_db
@pytest.mark.usefixtures("isolated_tasks", "task_module")
@pytest.mark.parametrize(
    ("arguments", "code_of_name"),
    [
        ("", "W018"),
        ("--database default", "E013"),
        ("--data=default", "E013"),
        ("--deploy", "W018"),
        ("--database default --traceback", "E013"),
        ("--database default --tag compatibility", "W018"),
        ("--database default -tcompatibility", "W018"),
    ],
)
def test_command_check_sees_the_jobs_of_task_modules(
    arguments: str, code_of_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["manage.py", "check", *arguments.split()])
    found = [
        str(message.id)
        for message in run_checks(
            tags=["compatibility"] if "compatibility" in arguments else None,
            databases=["default"] if "default" in arguments else None,
        )
    ]
    codes = {code_of_name, "W021", "W024", "W026"}
    assert sorted(each for each in found if "dcron" in each) == [
        f"django_dcron.{code}" for code in sorted(codes)
    ]


@pytest.mark.django_db
@pytest.mark.usefixtures("isolated_tasks", "task_module")
@pytest.mark.parametrize(
    ("command", "databases"), [("shell", None), ("migrate", ["default"]), ("test", ["default"])]
)
def test_other_commands_do_not_import_the_task_modules(
    command: str, databases: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["manage.py", command])
    monkeypatch.setattr(targets, "discovery_problem", lambda: pytest.fail("imported"))
    cron("@daily", name="follows", after={"of-a-task-module": "succeeded"})(report)
    assert not [each for each in run_checks(databases=databases) if "@cron" in each.msg]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"queue": "reports"}, "queue: "),
        ({"calendar": "holidays"}, "calendar: "),
        ({"alerts": [{"on": "failed", "to": ["ops"]}]}, "alerts: "),
        ({"max_attempts": 0}, "max_attempts: "),
        ({"name": "stored"}, "was created by a person"),
        ({"kwargs": {"town": "Ulm"}}, None),  # W021
        ({}, None),
    ],
)
@pytest.mark.usefixtures("check_of_the_database")
def test_w027_for_a_declared_job_that_sync_refuses(
    fields: dict[str, Any], text: str | None, settings: Settings
) -> None:
    settings.DCRON_QUEUES = ["celery"]
    make_job(name="stored")
    with targets.isolated_registry():
        cron("@daily", **{"name": "daily-report", **fields})(report)
        found = checks.check_declarations_in_database(None, databases=["default"])
    assert [message.id for message in found] == ["django_dcron.W027"] * (text is not None)
    assert all(text in message.msg for message in found if text)


@pytest.mark.django_db
@pytest.mark.usefixtures("check_of_the_database")
def test_w027_names_the_job_to_correct() -> None:
    with targets.isolated_registry():
        cron("@daily", name="unknown-name", after={"zzz": "failed"})(report)
        cron("@daily", name="waits", after={"unknown-name": "failed"})(report)
        cron("@daily", name="invalid", max_attempts=0)(report)
        cron("@daily", name="both", after={"invalid": "failed"}, max_attempts=0)(report)
        found = checks.check_declarations_in_database(None, databases=["default"])
    assert [(message.id[-4:], "waits for" in (message.hint or "")) for message in found] == [
        ("E013", False),
        ("W027", True),
        ("W027", False),
        ("W027", False),
    ]


@pytest.mark.parametrize(
    ("after", "cycle"),
    [
        ({"a": {"a": "ended"}}, {"a"}),
        ({"a": {"c": "ended"}, "b": {"a": "ended"}, "c": {"b": "ended"}, "d": {}}, {"a", "b", "c"}),
    ],
)
def test_e012_once_for_each_cycle(after: dict[str, Any], cycle: set[str]) -> None:
    (message,) = declared_messages(**after)
    assert (message.id, message.is_serious()) == ("django_dcron.E012", True)
    path = message.msg.rpartition(": ")[2].rstrip(".").split(" → ")
    assert {*path} == cycle
    assert path[0] == path[-1]


def test_correct_chain_has_no_findings() -> None:
    assert declared_messages(a={}, b={"a": "ended"}, c={"a": "failed", "b": "ended"}) == []


def database_messages() -> list[CheckMessage]:
    return checks.check_database(None, databases=["default"])


def test_e011_for_mysql(mysql: None) -> None:
    (message,) = messages()
    assert message.id == "django_dcron.E011"
    assert "'default' is MySQL 8.0.36" in message.msg
    assert {"PostgreSQL", "MariaDB", "SQLite"} <= set(re.findall(r"\w+", str(message.hint)))
    (elsewhere,) = database_messages()
    assert elsewhere.id == "django_dcron.W013"
    assert elsewhere.hint == message.hint
    assert checks.check_settings(None) == checks.check_database(None) == [], "these don't connect"


def test_e011_for_another_database(monkeypatch: pytest.MonkeyPatch) -> None:
    assert database_messages() == []
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    monkeypatch.setattr(connections["default"], "display_name", "Oracle")
    assert ids() == ["django_dcron.E011"]


def test_unreachable_database_is_no_finding(mysql: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node reports it, and its probes answer meanwhile."""

    def fail(connection: object) -> bool:
        raise OperationalError("connection refused")

    default = connections["default"]
    unreachable = type("Unreachable", (type(default),), {"mysql_is_mariadb": property(fail)})
    monkeypatch.delattr(default, "mysql_is_mariadb")
    monkeypatch.setattr(default, "__class__", unreachable)
    assert messages() == []


@pytest.mark.django_db
def test_node_does_not_start_on_mysql_even_without_checks(mysql: None) -> None:
    with pytest.raises(CommandError, match=r"MySQL 8\.0\.36"):
        call_command("runcron", embedded=True, once=True, verbosity=0, skip_checks=True)


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        ({"CACHES": {"default": {"BACKEND": LOCMEM}}}, "E003"),
        ({"DCRON_CACHE": "nowhere"}, "E003"),
        ({"USE_TZ": False}, "E002"),
        ({"DCRON_DISPATCHER": "tasks", "DCRON_TASKS_BACKEND": "nowhere"}, "E009|E010"),
    ],
)
def test_w013_replaces_errors_except_at_the_start_of_a_node(
    outside_tests: None, settings: Settings, broken: dict[str, Any], code: str
) -> None:
    """Migrations and builds have neither Redis nor workers."""
    for name, value in broken.items():
        setattr(settings, name, value)
    (message,) = checks.check_settings(None)
    assert message.id == "django_dcron.W013"
    assert not message.is_serious()
    assert re.search(code, message.msg)
    (at_start,) = messages()
    assert re.search(code, str(at_start.id))
    assert at_start.is_serious()
    assert at_start.hint == message.hint
    assert checks.check_settings(None) == [message], (
        "after the start of a node, the check warns again"
    )


def test_tests_report_nothing_about_the_services_of_nodes(
    settings: Settings, celery_conf: Any
) -> None:
    """A team's test settings have neither Redis nor a worker, and start no node."""
    settings.CACHES = {"default": {"BACKEND": LOCMEM}}
    settings.DCRON_LOCK = "redis"
    celery_conf.task_always_eager = True
    assert checks.check_settings(None) == []
    assert ids() == ["django_dcron.E003", "django_dcron.W014"], "a test that starts a node"


def test_w013_without_celery_app_or_transport(
    outside_tests: None, monkeypatch: pytest.MonkeyPatch, celery_conf: Any
) -> None:
    celery_conf.broker_write_url = "redsi://shop/0"
    assert [message.id for message in checks.check_settings(None)] == ["django_dcron.W013"]
    monkeypatch.setattr(dispatch, "has_app", lambda: False)
    assert [message.id for message in checks.check_settings(None)] == ["django_dcron.W013"]


def test_w013_names_all_causes_at_once(
    outside_tests: None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.CACHES = {"default": {"BACKEND": LOCMEM}}
    settings.DCRON_LOCK = "redis"
    settings.USE_TZ = False
    monkeypatch.setattr(dispatch, "has_app", lambda: False)
    (message,) = checks.check_settings(None)
    assert re.findall(r"\((E\d+)\)", message.msg) == ["E002", "E003", "E004"]
    assert len(str(message.hint).splitlines()) == 3
    settings.USE_TZ = True
    assert ids() == ["django_dcron.E003", "django_dcron.E004"]


def test_project_without_redis_and_celery_is_only_told_when_a_node_starts(
    outside_tests: None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``runcron --embedded`` needs neither of them."""
    settings.CACHES = {"default": {"BACKEND": LOCMEM}}
    monkeypatch.setattr(dispatch, "has_app", lambda: False)
    monkeypatch.setattr(dispatch, "has_broker", lambda: False)
    assert checks.check_settings(None) == []
    assert ids()[0] == "django_dcron.E003"
    settings.DCRON_LOCK = "redis"
    assert next(message.id for message in checks.check_settings(None)) == "django_dcron.W013"


def test_project_with_only_redis_or_only_celery_is_told_what_is_missing(
    outside_tests: None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "has_app", lambda: False)
        assert [message.id for message in checks.check_settings(None)] == ["django_dcron.W013"]
    settings.CACHES = {"default": {"BACKEND": LOCMEM}}
    assert [message.id for message in checks.check_settings(None)] == ["django_dcron.W013"]
    monkeypatch.setattr(dispatch, "has_app", lambda: False)
    monkeypatch.setattr(dispatch, "has_broker", lambda: False)
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache"}}
    assert [message.id for message in checks.check_settings(None)] == ["django_dcron.W013"]


def test_celery_is_not_checked_with_another_dispatcher(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "has_app", lambda: False)
    monkeypatch.setattr(dispatch, "transport_problem", lambda: "nothing")
    monkeypatch.setattr(dispatch, "pool_without_kill", lambda: "solo")
    settings.DCRON_DISPATCHER = "tests.scheduler.stand_ins.MemoryDispatcher"
    assert messages() == []


def test_e004_without_a_celery_app(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "has_app", lambda: False)
    assert ids() == ["django_dcron.E004"]
    settings.DCRON_DISPATCHER = "thread"
    assert ids() == []


@pytest.mark.parametrize("name", ["DCRON_LOCK", "DCRON_DISPATCHER", "DCRON_MIDDLEWARE"])
def test_e005_for_a_dotted_path_that_cannot_be_imported(settings: Settings, name: str) -> None:
    path = "tests.nowhere.Thing"
    setattr(settings, name, [path] if name == "DCRON_MIDDLEWARE" else path)
    (message,) = messages()
    assert message.id == "django_dcron.E005"
    assert message.msg.startswith(f"{name}: '{path}' ")


@pytest.fixture
def celery_conf() -> Iterator[Any]:
    before = {
        name: current_app.conf[name]
        for name in ("worker_pool", "broker_url", "broker_write_url", "task_always_eager")
    }
    yield current_app.conf
    current_app.conf.update(before)


def test_e006_for_an_unknown_or_missing_broker_transport(celery_conf: Any) -> None:
    celery_conf.broker_write_url = "redsi://user:secret@shop/0"
    (message,) = messages()
    assert message.id == "django_dcron.E006"
    assert "No such transport: redsi.  Did you mean redis?" in message.msg
    assert "secret" not in message.msg
    celery_conf.broker_write_url = "sqs://"
    (message,) = messages()
    assert (message.id, "boto" in message.msg) == ("django_dcron.E006", True)
    celery_conf.broker_write_url = "amqp://user:secret@shop//"
    assert ids() == []


def test_w014_for_an_eager_celery(celery_conf: Any) -> None:
    celery_conf.task_always_eager = True
    assert ids() == ["django_dcron.W014"]


def test_w015_for_a_broker_in_memory(celery_conf: Any, settings: Settings) -> None:
    celery_conf.broker_write_url = "memory://"
    assert ids() == ["django_dcron.W015"]
    settings.DCRON_DISPATCHER = "thread"
    assert ids() == []


@pytest.mark.parametrize(("words", "found"), [(["--name={}"], ["W016"]), (["{}"], []), (["x"], [])])
def test_w016_for_a_placeholder_within_a_word(
    settings: Settings, words: list[str], found: list[str]
) -> None:
    settings.DCRON_SHELL = {"backup": ["pg_dump", "--password=hunter2", *words]}
    reported = messages()
    assert ids() == [f"django_dcron.{code}" for code in found]
    assert "hunter2" not in str(reported)
    assert all("'backup'" in message.msg for message in reported)


@pytest.mark.parametrize("installed", [True, False])
def test_w022_for_a_channel_that_needs_apprise(
    settings: Settings, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = object() if installed else None
    monkeypatch.setattr("django_dcron.checks.settings.find_spec", lambda name: found)
    settings.DCRON_ALERT_CHANNELS = {
        "mail": {"mail": ["ops@example.org"]},
        "chat": {"apprise": ["slack://secret"]},
    }
    reported = messages()
    assert ids() == ([] if installed else ["django_dcron.W022"])
    assert all("'chat'" in message.msg and "secret" not in str(message) for message in reported)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("slack://secret", ""),
        ("JSON://secret", ""),
        ("https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", ""),
        ("slakc://secret", "'slakc'. Did you mean 'slack'"),
        ("xoxb-12345-secret://foo", "doesn't support its scheme"),
        ("http://secret", "json://HOST/PATH"),
        ("HTTPS://secret", "jsons://HOST/PATH"),
        ("https://example.com/?token=secret", "?-NAME=VALUE"),
        ("secret", "doesn't begin with a scheme"),
        ("mailto:user:secret@example.com?redirect=https://x", "doesn't begin with a scheme"),
        ("secret,slack://a/b/c", "doesn't begin with a scheme"),
        (" slack://secret", ""),
        ("\tslakc://secret", "'slakc'"),
    ],
)
def test_w025_for_a_url_that_apprise_does_not_support(
    settings: Settings, url: str, named: str
) -> None:
    settings.DCRON_ALERT_CHANNELS = {"mail": {"mail": ["a@b.c"]}, "chat": {"apprise": [url]}}
    assert checks.check_alert_channels(None) == [], "not every command loads apprise"
    found = checks.check_alert_channels(None, databases=["default"])
    assert [message.id for message in found] == (["django_dcron.W025"] if named else [])
    assert named in str(found)
    assert "secret" not in str(found)


def test_every_hint_links_to_its_setting_in_the_docs(settings: Settings) -> None:
    for setting in conf.Settings.all():
        # The heartbeat thread of an earlier test may still read its setting as a duration.
        wrong = timedelta(-1) if setting.name == "DCRON_RUN_LEASE" else object()
        setattr(settings, setting.name, wrong)
    hints = {message.msg.split()[0]: str(message.hint) for message in messages()}
    assert len(hints) == len(list(conf.Settings.all()))
    reference = (ROOT / "docs" / "reference" / "settings.md").read_text()
    for name, hint in hints.items():
        heading = re.findall(
            r"^## (.+)$", reference[: reference.index(f"| `{name}` |")], re.MULTILINE
        )[-1]
        assert hint.endswith(f"{DOCS}reference/settings.md#{anchor(heading)}")


def test_links_of_hints_point_to_existing_sections() -> None:
    codes = set(re.findall(r"^([EIW]\d{3}) ", checks.__doc__ or "", re.MULTILINE))
    assert set(reporting.PAGES) == codes - {"E001", "W013"}
    for link in reporting.PAGES.values():
        page, _, section = link.partition("#")
        text = (ROOT / "docs" / page).read_text()
        headings = {anchor(heading) for heading in re.findall(r"^##+ (.+)$", text, re.MULTILINE)}
        assert not section or section in headings, link


def test_hint_contains_its_link(outside_tests: None, settings: Settings) -> None:
    settings.DCRON_CACHE = "nowhere"
    [at_start], [elsewhere] = messages(), checks.check_settings(None)
    assert str(at_start.hint).endswith(reporting.PAGES["E003"])
    assert at_start.hint == elsewhere.hint


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize(
    ("pool", "text"),
    [
        ("gevent", "current_run().cancelled"),
        ("gevent", "coroutine"),
        ("eventlet", "current_run().cancelled"),
        ("threads", "ignores"),
        ("solo", "ignores"),
    ],
)
def test_w001_for_a_pool_that_cannot_enforce_timeouts(
    celery_conf: Any, pool: str, text: str
) -> None:
    celery_conf.worker_pool = pool
    (message,) = messages()
    assert message.id == "django_dcron.W001"
    assert repr(pool) in message.msg
    assert text in message.msg
    celery_conf.worker_pool = "prefork"
    assert ids() == []


@pytest.mark.sqlite
def test_w002_for_sqlite_with_deferred_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {})
    assert ids() == ["django_dcron.W002"]
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {"transaction_mode": "exclusive"})
    assert ids() == []


def test_w002_checks_only_the_database_of_the_jobs(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """Other databases of the project don't count. The first one here can't even be connected to."""
    other = {**connection.settings_dict, "ENGINE": "django.db.backends.sqlite3", "OPTIONS": {}}
    monkeypatch.setitem(connections.settings, "other", other)
    assert ids() == []


def test_w007_for_an_admin_without_django_htmx(settings: Settings) -> None:
    assert ids() == []
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_htmx"]
    assert ids() == ["django_dcron.W007"]
    settings.INSTALLED_APPS = [
        app for app in settings.INSTALLED_APPS if app != "django.contrib.admin"
    ]
    assert ids() == []


def test_w017_for_an_admin_before_django_dcron(settings: Settings) -> None:
    others = [app for app in settings.INSTALLED_APPS if app != "django_dcron"]
    settings.INSTALLED_APPS = [*others, "django_dcron"]
    assert ids() == ["django_dcron.W017"]


def test_w017_for_a_theme_before_django_dcron(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "jazzmin").mkdir()
    (tmp_path / "jazzmin" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    apps = settings.INSTALLED_APPS
    settings.INSTALLED_APPS = ["django_dcron", "jazzmin", *apps[1:]]
    assert ids() == []
    settings.INSTALLED_APPS = ["jazzmin", *apps]
    (message,) = messages()
    assert message.id == "django_dcron.W017"
    assert "jazzmin" in message.msg


@pytest.mark.parametrize(
    ("name", "near"), [("DCRON_LOG_LIMT", " Did you mean 'DCRON_LOG_LIMIT'"), ("DCRON_COLOUR", "")]
)
def test_w005_for_an_unknown_setting(settings: Settings, name: str, near: str) -> None:
    setattr(settings, name, 5)
    (message,) = messages()
    assert message.id == "django_dcron.W005"
    assert re.search(rf"{name}\.{near}", message.msg)


def test_w006_for_an_unknown_command(settings: Settings) -> None:
    settings.DCRON_COMMANDS = ["clearsesions", "migrate"]
    (message,) = messages()
    assert message.id == "django_dcron.W006"
    assert "'clearsesions'" in message.msg
    assert "'clearsessions'" in message.msg


def test_w006_for_an_unknown_argument_of_a_command(settings: Settings) -> None:
    settings.DCRON_COMMANDS = {"dumpdata": ["args", "--indnt"]}
    (message,) = messages()
    assert message.id == "django_dcron.W006"
    assert "'--indnt'" in message.msg
    assert "--indent" in message.msg


def test_w006_for_a_command_that_cannot_be_loaded(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(app: str, name: str) -> None:
        raise ModuleNotFoundError("No module named 'pandas'")

    monkeypatch.setattr(commands, "load_command_class", fail)
    settings.DCRON_COMMANDS = {"dumpdata": ["--indent"]}
    (message,) = messages()
    assert message.id == "django_dcron.W006"
    assert "'dumpdata'" in message.msg
    assert "No module named 'pandas'" in message.msg


@pytest.mark.django_db
def test_w003_for_arguments_that_are_no_longer_allowed(settings: Settings) -> None:
    settings.DCRON_COMMANDS = {"dumpdata": ["--indent"]}
    make_job(target="command:dumpdata", args=["--indent", "2"])
    assert job_messages() == []
    settings.DCRON_COMMANDS = ["dumpdata"]
    (message,) = job_messages()
    assert message.id == "django_dcron.W003"
    assert "DCRON_COMMANDS allows no arguments for dumpdata" in message.msg


@pytest.mark.django_db
def test_hint_of_w003_fits_the_target(settings: Settings) -> None:
    settings.DCRON_COMMANDS, settings.DCRON_SHELL = ["dumpdata"], {"true": ["true"]}
    make_job(target="tests.app.tasks.ok")
    named = {"tests.app.tasks.ok": set(), "command:dumpdata": {"COMMANDS"}, "shell:true": {"SHELL"}}
    for target, expected in named.items():
        Job.objects.update(target=target, args=["--indent", 2])
        (message,) = job_messages()
        assert message.id == "django_dcron.W003"
        assert set(re.findall(r"DCRON_(\w+)", message.hint or "")) == expected
    Job.objects.update(target="tests.app.tasks.ok", declared={})
    (message,) = job_messages()
    assert {"@cron", "if", "sync."} <= set((message.hint or "").split())


@pytest.mark.django_db
def test_w003_for_a_missing_target() -> None:
    job = make_job()
    assert job_messages() == []
    Job.objects.update(target="tests.app.tasks.okk")
    (message,) = job_messages()
    assert message.id == "django_dcron.W003"
    assert message.msg.startswith(f"Job {job} would fail: ")
    assert "tests.app.tasks.okk" in message.msg
    assert f"manage.py dcron pause {job}" in (message.hint or "")
    assert "tasks.py" not in (message.hint or ""), "imported only if a Celery app discovers it"
    control.pause(job)
    assert job_messages() == []


@pytest.mark.django_db
def test_w004_for_an_unreadable_schedule() -> None:
    job = make_job()
    Job.objects.update(timezone="Mars/Olympus")
    (message,) = job_messages()
    assert message.id == "django_dcron.W004"
    assert message.msg.startswith(f"Job {job} is quarantined: ")


@pytest.mark.django_db
def test_number_of_named_jobs_is_limited() -> None:
    for n in range(jobs.PROBLEMS_LISTED + 5):
        Job.objects.create(name=f"job-{n}", schedule="@daily", target="gone")
    assert len(job_messages()) == jobs.PROBLEMS_LISTED


@pytest.mark.django_db
def test_jobs_are_checked_only_on_requested_and_migrated_databases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Job.objects.create(name="a", schedule="@daily", target="gone")
    assert checks.check_jobs(None) == []
    assert checks.check_jobs(None, databases=["other"]) == []
    monkeypatch.setattr(connection.introspection, "table_names", list)
    assert job_messages() == []  # before the first migration


@pytest.mark.django_db
def test_jobs_are_not_checked_before_the_migrations_of_a_new_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``migrate`` runs the checks before it adds the columns that they read."""
    Job.objects.create(name="a", schedule="@daily", target="gone")
    with targets.isolated_registry():
        cron("@daily", max_attempts=0, after={"stored": "ended"})(report)
        recorder = MigrationRecorder(connection)
        for app, name in MigrationLoader(connection).graph.leaf_nodes("django_dcron"):
            recorder.record_unapplied(app, name)
        assert job_messages() == []
        monkeypatch.setattr(sys, "argv", ["manage.py", "check", "--database", "default"])
        assert [message.id for message in job_messages()] == ["django_dcron.I001"]
        assert checks.check_declarations_in_database(None, databases=["default"]) == []
        recorder.record_applied(app, name)
        assert len(job_messages()) == 1
        assert len(checks.check_declarations_in_database(None, databases=["default"])) == 1


def test_e007_for_an_invalid_alert_rule(settings: Settings) -> None:
    settings.DCRON_ALERT_CHANNELS = {"ops": {"mail": ["ops@example.com"]}}
    settings.DCRON_ALERTS = [{"on": "failed", "to": ["opps"]}]
    [message] = messages()
    assert message.id == "django_dcron.E007"
    assert "DCRON_ALERTS: rule 1: to is 'opps'" in message.msg


@pytest.mark.parametrize(
    ("channel", "expected"),
    [
        ("slack://x", ["channel 'ops' is of type str", "a dict such as"]),
        (
            {"webhook": ["x"]},
            ["channel 'ops'", "key 1, of type str, is unknown", "?-NAME=VALUE"],
        ),
        ({"aprise": ["x"]}, ["channel 'ops'", "'aprise'", "Did you mean 'apprise'?"]),
        ({}, ["channel 'ops'", 'neither "mail" nor "apprise"']),
        ({"mail": ["a@b.c"], "apprise": ["x://"]}, ["channel 'ops'", 'both "mail" and "apprise"']),
        ({"apprise": 8899}, ["channel 'ops'", '"apprise" is of type int', "a list of URLs"]),
        ({"mail": ["a@b.c", 1]}, ["channel 'ops'", 'item 2 of "mail" is of type int']),
        ({"mail": ""}, ["channel 'ops'", 'item 1 of "mail" is empty', "a list of addresses"]),
        ({"mail": ["a@b.c"], "every": 60}, ["channel 'ops'", '"every" is 60', "timedelta("]),
        ({"mail": ["a@b.c"], "every": "15m"}, ["channel 'ops'", "\"every\" is '15m'"]),
        ({"mail": ["a@b.c"], "every": timedelta(-1)}, ['"every" is datetime.timedelta(days=-1)']),
        ({"mail": ["a@b.c"], "every": True}, ["channel 'ops'", '"every" is of type bool']),
        ({"mail": ["a@b.c", " "]}, ["channel 'ops'", 'item 2 of "mail" is empty']),
    ],
)
def test_e001_for_an_invalid_channel_names_the_channel_and_the_key(
    settings: Settings, channel: Any, expected: list[str]
) -> None:
    settings.DCRON_ALERT_CHANNELS = {"mail": {"mail": ["a@b.c"]}, "ops": channel}
    [message] = messages()
    assert message.id == "django_dcron.E001"
    assert message.msg.startswith("DCRON_ALERT_CHANNELS: ")
    assert [text for text in expected if text not in message.msg] == []
    assert checks.check_alert_channels(None, databases=["default"]) == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    "channels",
    [
        ["slack://hunter2"],
        8899,
        {"ops": None},
        {"ops": "slack://hunter2"},
        {"ops": {"apprise": 8899}},
        {"ops": {"apprise": [1]}},
    ],
)
def test_check_of_the_database_reports_invalid_channels(settings: Settings, channels: Any) -> None:
    settings.DCRON_ALERT_CHANNELS = {"ops": {"mail": ["ops@example.com"]}}
    make_job(alerts=[{"on": "failed", "to": ["ops"]}])
    settings.DCRON_ALERT_CHANNELS = channels
    with pytest.raises(SystemCheckError) as raised:
        call_command("check", databases=["default"])
    assert re.findall(r"django_dcron\.([EW]\d+)", str(raised.value)) == ["E001"]
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("channels", "valid"),
    [
        (["slack://T1/hunter2"], []),
        ({"T1JJ/hunter2": {"mail": ["a@b.c"]}, "ops": {"mail": ["a@b.c"]}}, ["ops"]),
        ({"chat": {"apprise": 8899}, "ops": {"mail": ["a@b.c"]}}, ["chat", "ops"]),
    ],
)
def test_channels_with_invalid_names_are_not_named_in_errors(
    settings: Settings, channels: Any, valid: list[str]
) -> None:
    settings.DCRON_ALERT_CHANNELS = channels
    assert [*conf.settings.ALERT_CHANNELS] == valid
    assert [*destinations(conf.settings.ALERT_CHANNELS)] == (["ops"] if valid else [])
    with pytest.raises(InvalidRule) as raised:
        read_rules([{"on": "failed", "to": ["opps"]}], conf.settings.ALERT_CHANNELS, of_job=True)
    assert "DCRON_ALERT_CHANNELS" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_addresses_are_read_as_a_list_without_surrounding_whitespace(settings: Settings) -> None:
    settings.DCRON_ALERT_CHANNELS = {
        "mail": {"mail": "ops@example.com", "every": timedelta()},
        "hook": {"apprise": "json://localhost/hook"},
        "spaces": {"apprise": (" json://localhost/1\n", "json://localhost/2")},
        "nobody": {"mail": []},
        "nowhere": {"apprise": ()},
    }
    assert messages() == []
    assert checks.check_alert_channels(None, databases=["default"]) == []
    read = conf.settings.ALERT_CHANNELS
    assert read["mail"] == {"mail": ["ops@example.com"], "every": timedelta()}
    assert read["hook"] == {"apprise": ["json://localhost/hook"]}
    assert [read["nobody"], read["nowhere"]] == [{"mail": []}, {"apprise": []}]
    assert read["spaces"] == {"apprise": ["json://localhost/1", "json://localhost/2"]}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("ops", "Ops"), "channel 'ops' and channel 'Ops'"),
        (("o p s",), "channel 1"),
        (("ops", "störung"), "channel 2"),
        (("x" * 51,), "channel 1"),
        (("",), "channel 1"),
        ((8899,), "channel 1, of type int"),
    ],
)
def test_e001_for_invalid_or_ambiguous_channel_names(
    settings: Settings, names: tuple[Any, ...], expected: str
) -> None:
    settings.DCRON_ALERT_CHANNELS = {name: {"mail": ["ops@example.com"]} for name in names}
    [message] = messages()
    assert message.id == "django_dcron.E001"
    assert expected in message.msg


@pytest.mark.parametrize(
    "channels",
    [
        ["slack://hunter2/"],
        {"ops": "slack://hunter2/"},
        {"ops": {"slack://hunter2/": "x"}},
        {"slack://hunter2/": {}},
        {"ops": {"apprise": ["slack://hunter2/", {"url": "slack://hunter2/"}]}},
        {"ops": {"apprise": {"slack://hunter2/"}}},
        {"ops": {"mail": ["a@b.c"], "every": "slack://hunter2/"}},
        {"ops": {"mail": ["a@b.c"], "every": {"slack": {"token": "hunter2"}}}},
        {"ops": {"xoxb-hunter2": ["a@b.c"]}},
        {"ops": {"mailto:user:hunter2@host": {}}},
        {"mailto:user:hunter2@host": {"mail": ["a@b.c"]}},
        {"T1JJ/hunter2/abc": {"mail": ["a@b.c"]}},
        {"T1JJ/hunter2/abc": {"apprise": 8899}},
    ],
)
def test_no_message_contains_a_secret(settings: Settings, channels: Any) -> None:
    settings.DCRON_ALERT_CHANNELS = channels
    settings.DCRON_HEALTHCHECKS_URL = "hc-ping.com/hunter2"
    settings.DCRON_METRICS_TOKEN = ["hunter2"]
    reported = messages()
    assert [message.id for message in reported] == ["django_dcron.E001"] * 3
    assert "hunter2" not in str(reported)


def test_e008_for_check_ins_without_a_url(settings: Settings) -> None:
    settings.DCRON_MIDDLEWARE = ["django_dcron.contrib.checkins.check_in_healthchecks"]
    assert ids() == ["django_dcron.E008"]
    settings.DCRON_HEALTHCHECKS_URL = "https://hc-ping.com/key"
    assert ids() == []


@pytest.mark.django_db
def test_w009_for_a_job_with_an_unknown_alert_channel(settings: Settings) -> None:
    settings.DCRON_ALERT_CHANNELS = {"ops": {"mail": ["ops@example.com"]}}
    make_job(name="imports", alerts=[{"on": "failed", "to": ["ops"]}])
    assert job_messages() == []
    settings.DCRON_ALERT_CHANNELS = {}
    [message] = job_messages()
    assert message.id == "django_dcron.W009"
    assert "Job imports" in message.msg
    assert "rule 1: to is a text of length 3" in message.msg


@pytest.mark.django_db
def test_w010_for_an_unreadable_calendar(monkeypatch: pytest.MonkeyPatch) -> None:
    control.save_calendar(Calendar(name="closed", dates="SAT\nholidays DE"))
    make_job(calendar_id="closed")
    assert job_messages() == []
    monkeypatch.setitem(sys.modules, "holidays", None)
    read_dates.cache_clear()
    public_holidays._known.cache_clear()
    of_calendar, of_job = job_messages()
    assert (of_calendar.id, of_job.id) == ("django_dcron.W010", "django_dcron.W004")
    assert "closed" in of_calendar.msg
    assert "Line 2: " in of_calendar.msg
    assert "pip install django-dcron[holidays]" in of_calendar.msg


def test_w023_if_only_autostart_keeps_runs_from_celery(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DCRON_DISPATCHER", "DCRON_LOCK"):
        if hasattr(settings, name):
            delattr(settings, name)
    settings.DCRON_AUTOSTART = True
    assert ids() == ["django_dcron.W023"]
    monkeypatch.setattr(dispatch, "has_broker", lambda: False)
    assert ids() == []
    monkeypatch.undo()
    settings.DCRON_DISPATCHER = "thread"
    assert ids() == []


def test_w008_for_failed_runs_kept_shorter_than_others(settings: Settings) -> None:
    settings.DCRON_KEEP_FOR = settings.DCRON_KEEP_FAILED_FOR = timedelta(days=365)
    assert ids() == []
    settings.DCRON_KEEP_FAILED_FOR = timedelta(days=90)
    assert ids() == ["django_dcron.W008"]


# --- W019 to W024 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "other"),
    [("package_of_settings", ""), ("package_beside_it", "CRON_CLASSES = []  # django_dcron")],
)
def test_cron_module_of_a_package_that_is_not_installed_is_reported(
    place: str,
    other: str,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """``other``: the content of a cron.py that isn't reported."""
    (tmp_path / "manage.py").touch()
    for name in {"package_of_settings", place}:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, place, None)  # restored afterwards
    del sys.modules[place]
    settings.SETTINGS_MODULE = "package_of_settings.settings"
    module = tmp_path / place / "cron.py"
    if other:
        module.write_text(other)
    importlib.invalidate_caches()
    assert checks.check_declarations(None) == []
    module.write_text("from django_dcron import cron")
    (found,) = checks.check_declarations(None)
    assert (found.id, place in found.msg) == ("django_dcron.W019", True)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, place]
    assert checks.check_declarations(None) == []


@pytest.mark.parametrize("name", ["old-backup", ".hidden", "other_site"])
def test_cron_module_of_another_project_is_not_reported(
    name: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "manage.py").touch()
    for package in ("package_of_settings", name):
        (tmp_path / package).mkdir()
        (tmp_path / package / "settings.py").touch()
    (tmp_path / "package_of_settings" / "__init__.py").touch()
    (tmp_path / name / "cron.py").write_text("from django_dcron import cron")
    monkeypatch.syspath_prepend(tmp_path)
    settings.SETTINGS_MODULE = "package_of_settings.settings"
    importlib.invalidate_caches()
    assert checks.check_declarations(None) == []


def test_missing_broker_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "has_broker", lambda: False)
    assert ids() == ["django_dcron.W020"]


@pytest.mark.usefixtures("isolated_tasks")
def test_declared_job_without_a_required_argument_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(declaration, "_declared", {})
    monkeypatch.setattr(functions, "registered", {})

    def needs(x: int) -> None: ...

    def needs_too(x: int) -> None: ...

    task = shared_task(name="shop.needs")(needs_too)
    for each in (needs, task):
        cron("@daily", name=f"given {each.__class__.__name__}", args=[1])(each)
    assert checks.check_declarations(None) == []
    for each in (needs, task):
        cron("@daily", name=f"missing {each.__class__.__name__}")(each)
    found = checks.check_declarations(None)
    assert [(each.id, "'x'" in each.msg) for each in found] == [("django_dcron.W021", True)] * 2


@pytest.mark.usefixtures("isolated_tasks")
def test_function_of_a_task_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declaration, "_declared", {})
    monkeypatch.setattr(functions, "registered", {})

    def bake() -> None: ...

    cron("@daily")(shared_task(name="shop.bake")(bake))
    assert checks.check_declarations(None) == []
    shared_task(name="shop.bake")(cron("@daily", name="bake-too")(bake))

    def fry(self: Any = None) -> None: ...

    shared_task(name="shop.fry", bind=True)(cron("@daily")(fry))
    found = [message for message in checks.check_declarations(None) if "W024" in str(message.id)]
    assert ["shop.bake" in found[0].msg, "shop.fry" in found[1].msg] == [True, True]
