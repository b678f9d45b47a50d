"""Run the settings, the middleware and the removal of a package from the migration guide."""

import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sentry_sdk
from celery import signals
from pytest_django import Settings
from sentry_sdk.transport import Transport

from django_dcron import checks, tasks
from django_dcron.models import Attempt
from django_dcron.targets.celery_tasks import discovered_app
from tests.docs.example_project import run_script
from tests.docs.test_documents import ROOT
from tests.factories import make_idle_job, make_run

PAGE = (ROOT / "docs" / "how-to" / "migrate.md").read_text()
SOURCES = (ROOT / "docs" / "how-to" / "migrate-sources.md").read_text()
SECTION = SOURCES.partition("\n### What listeners to Celery see\n")[2].partition("\n##")[0]
TASK_SIGNALS = ("prerun", "postrun", "success", "failure", "retry")

pytestmark = pytest.mark.django_db


class Events(Transport):
    """Records the events that Sentry's SDK would send."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.events += [item.payload.json for item in envelope if item.type == "event"]


@pytest.fixture
def heard() -> Iterator[list[tuple[str, str]]]:
    """The names of Celery's signals, each with the name of the task that sent it."""
    received: list[tuple[str, str]] = []
    receivers = {}
    for name in TASK_SIGNALS:

        def receive(sender: Any, name: str = name, **kwargs: Any) -> None:
            received.append((name, sender.name))

        receivers[name] = receive
        getattr(signals, f"task_{name}").connect(receive)
    yield received
    for name, receive in receivers.items():
        getattr(signals, f"task_{name}").disconnect(receive)


@pytest.fixture
def sentry() -> Iterator[Events]:
    events = Events()
    with sentry_sdk.isolation_scope() as scope:
        scope.set_client(
            sentry_sdk.Client(
                "https://key@sentry.example/1", transport=events, default_integrations=False
            )
        )
        yield events


@pytest.fixture
def middleware(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    """Use the middleware and the setting of the page."""
    module, setting = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    package, added = ModuleType("shop"), ModuleType("shop.sentry")
    exec(compile(module, "shop/sentry.py", "exec"), added.__dict__)  # noqa: S102
    monkeypatch.setitem(sys.modules, "shop", package)
    monkeypatch.setitem(sys.modules, "shop.sentry", added)
    values: dict[str, Any] = {}
    exec(setting, values)  # noqa: S102 (the project's own page)
    settings.DCRON_MIDDLEWARE = values["DCRON_MIDDLEWARE"]


def execute(target: str) -> Any:
    """Execute a run as a worker's tracer does. Return Celery's result, after the attempt's end."""
    run = make_run(make_idle_job(name="nightly", target=target))
    return tasks.execute_run.apply(args=[str(run.pk), 1])


@pytest.mark.parametrize(
    ("target", "outcome"),
    [("tests.app.tasks.ok", "succeeded"), ("tests.app.tasks.fail", "failed")],
)
def test_celery_sends_signals_for_the_carrying_task_only(
    heard: list[tuple[str, str]], target: str, outcome: str
) -> None:
    result = execute(target)

    assert Attempt.objects.get().outcome == outcome
    assert heard == [(name, "django_dcron.execute") for name in ("prerun", "success", "postrun")]
    assert result.state == "SUCCESS"
    assert all(f"`task_{name}`" in SECTION for name in TASK_SIGNALS)


def test_carrying_task_stores_no_result() -> None:
    assert tasks.execute_run.ignore_result


@pytest.mark.usefixtures("middleware")
def test_middleware_names_the_transaction_of_an_error(
    sentry: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        sentry_sdk.capture_message("reported by the task")

    monkeypatch.setattr(discovered_app().tasks["tests.app.tasks.ok"], "run", fail)
    # Sentry's integration begins a transaction for each message of Celery.
    with sentry_sdk.start_transaction(name="django_dcron.execute", source="task"):
        execute("tests.app.tasks.ok")
        sentry_sdk.capture_message("logged after the end")

    attempt = Attempt.objects.get()
    assert len(sentry.events) == 2
    for event in sentry.events:
        assert event["transaction"] == "nightly"
        assert event["transaction_info"]["source"] == "task"
        assert event["tags"] == {
            "dcron.job": "nightly",
            "dcron.target": "tests.app.tasks.ok",
            "dcron.run": str(attempt.run_id),
        }


def test_second_cache_for_the_locks_suffices(settings: Settings) -> None:
    (block,) = re.findall(r"```python\n(\s*CACHES\[.*?)```", PAGE, re.DOTALL)
    own = "django.core.cache.backends.redis.RedisCache"
    settings.CACHES = {"default": {"BACKEND": own, "LOCATION": "redis://localhost:6379/0"}}
    settings.DCRON_LOCK = "redis"
    with checks.as_node_start():
        (problem,) = checks.check_settings(None)
        assert (problem.id, own in problem.msg) == ("django_dcron.E003", True)
        values: dict[str, Any] = {"CACHES": {**settings.CACHES}}
        exec(textwrap.dedent(block), values)  # noqa: S102 (the project's own page)
        settings.CACHES, settings.DCRON_CACHE = values["CACHES"], values["DCRON_CACHE"]
        assert settings.CACHES["default"]["BACKEND"] == own
        assert checks.check_settings(None) == []


# --- Remove a package with tables -----------------------------------------------------------------

REMOVAL = PAGE.partition("\n### Remove a package with tables\n")[2].partition("\n##")[0]
LIST, PLAN, ZERO = re.findall(r"^ *\$ (.*)$", REMOVAL, re.MULTILINE)
PROJECT = {
    "shop/settings.py": """
        INSTALLED_APPS = ["django_celery_beat", "orders"]
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
        USE_TZ = True
    """,
    "orders/__init__.py": "",
    "orders/models.py": "",
    "orders/migrations/__init__.py": "",
    "orders/migrations/0001_order.py": """
        from django.db import migrations, models

        TASK = "django_celery_beat.PeriodicTask"

        class Migration(migrations.Migration):
            dependencies = [
                ("django_celery_beat", "0018_improve_crontab_helptext"),
            ]
            operations = [
                migrations.CreateModel(
                    "Order",
                    [
                        ("id", models.AutoField(primary_key=True)),
                        ("task", models.ForeignKey(TASK, models.CASCADE)),
                    ],
                ),
            ]
    """,
    "orders/migrations/0002_schedule.py": """
        from django.db import migrations

        def schedule(apps, schema_editor):
            interval = apps.get_model("django_celery_beat", "IntervalSchedule")
            every_hour = interval.objects.create(every=1, period="hours")
            rows = apps.get_model("django_celery_beat", "PeriodicTask").objects
            rows.create(name="orders", task="orders.tasks.close", interval=every_hour)

        class Migration(migrations.Migration):
            dependencies = [
                ("orders", "0001_order"),
                ("django_celery_beat", "0018_improve_crontab_helptext"),
            ]
            operations = [
                migrations.RunPython(schedule, migrations.RunPython.noop),
            ]
    """,
    "orders/migrations/0003_invoice.py": """
        from django.db import migrations, models

        class Migration(migrations.Migration):
            dependencies = [
                ("orders", "0002_schedule"),
            ]
            operations = [
                migrations.CreateModel("Invoice", [("id", models.AutoField(primary_key=True))]),
            ]
    """,
    "orders/migrations/0004_without_task.py": """
        from django.db import migrations

        class Migration(migrations.Migration):
            dependencies = [
                ("orders", "0003_invoice"),
            ]
            operations = [
                migrations.RemoveField("Order", "task"),
            ]
    """,
}
SETUP = """
import django
from django.core.management import call_command
from django.db import connection

django.setup()
"""
INSERT = "connection.cursor().execute('INSERT INTO orders_invoice (id) VALUES (7)')"
SELECT = "print(*connection.cursor().execute('SELECT id FROM orders_invoice'))"


def manage(project: Path, *commands: str, code: str = "") -> str:
    """Call management commands in a process of the project, then execute ``code``."""
    calls = [f"call_command(*{shlex.split(command)})" for command in commands]
    return run_script(project, "shop.settings", "\n".join([SETUP, *calls, code]))


def is_safe(plan: str) -> bool:
    names = [line for line in plan.splitlines()[1:] if not line.startswith(" ")]
    assert names, plan
    return all(name.startswith("django_celery_beat.") for name in names)


def edit(project: Path, migration: str, pattern: str, replacement: str = "") -> None:
    path = project / "orders" / "migrations" / f"{migration}.py"
    text, number = re.subn(pattern, replacement, path.read_text(), flags=re.DOTALL)
    assert number == 1
    path.write_text(text)


@pytest.mark.celery_beat
def test_package_is_removed_without_the_tables_of_the_project(tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    plan, zero = (line.removeprefix("python manage.py ") for line in (PLAN, ZERO))
    assert not is_safe(manage(tmp_path, "migrate --verbosity=0", plan, code=INSERT))

    found = subprocess.run(
        shlex.split(LIST), cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert {line.partition(":")[0] for line in found.splitlines()} == {
        "./shop/settings.py",
        "./orders/migrations/0001_order.py",
        "./orders/migrations/0002_schedule.py",
    }
    edit(tmp_path, "0001_order", r' +\("django_celery_beat", [^\n]*\n')
    edit(tmp_path, "0001_order", r' +\("task", [^\n]*\n')
    assert not is_safe(manage(tmp_path, plan)), "0002 still depends on the package"
    edit(tmp_path, "0002_schedule", r' +\("django_celery_beat", [^\n]*\n')
    edit(tmp_path, "0002_schedule", r" +migrations\.RunPython[^\n]*\n")
    edit(tmp_path, "0002_schedule", r"def schedule.*(?=class)")
    edit(tmp_path, "0004_without_task", r" +migrations\.RemoveField[^\n]*\n")
    assert is_safe(manage(tmp_path, plan))

    manage(tmp_path, zero)
    settings = tmp_path / "shop" / "settings.py"
    settings.write_text(settings.read_text().replace('"django_celery_beat", ', ""))
    assert manage(tmp_path, "migrate --verbosity=0", code=SELECT) == "(7,)\n"
    (tmp_path / "db.sqlite3").unlink()
    assert manage(tmp_path, "migrate --verbosity=0", code=SELECT) == "\n", "a new database"
