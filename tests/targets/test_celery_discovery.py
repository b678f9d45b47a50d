"""How the modules with Celery tasks are imported."""

import subprocess
import sys
import threading

import celery
import pytest

from django_dcron import targets
from django_dcron.exceptions import UnknownTarget
from django_dcron.targets import Invocation, TargetKind
from tests.logs import logged
from tests.management.calling import call
from tests.refusals import refusal
from tests.waiting import TIMEOUT


def nothing() -> None: ...


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


def test_threads_wait_for_the_import_in_another_thread(
    app: celery.Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery skips an import while another one is in progress."""
    imports: list[int] = []
    begun, skipped = threading.Event(), threading.Event()

    def import_modules() -> None:
        imports.append(1)
        if len(imports) > 1:
            skipped.set()
            return
        begun.set()
        skipped.wait(0.2)  # time for the other thread to continue too early
        app.task(nothing, name="found.late")

    def discover() -> None:
        app.set_current()  # of this thread
        targets.available()

    monkeypatch.setattr(app.loader, "import_default_modules", import_modules)
    first = threading.Thread(target=discover)
    first.start()
    try:
        assert begun.wait(TIMEOUT)
        assert targets.get("found.late").kind is TargetKind.TASK
    finally:
        first.join()
    assert imports == [1]


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


@pytest.mark.django_db
@pytest.mark.parametrize("option", ["", "--traceback"])
def test_dcron_commands_log_failed_imports_without_the_traceback(
    app: celery.Celery,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    option: str,
) -> None:
    def import_modules() -> None:
        raise ImportError("no module\nnamed shpo")

    monkeypatch.setattr(app.loader, "import_default_modules", import_modules)
    call("doctor", *filter(None, [option]))
    (message,) = logged(caplog, "tasks_not_imported")
    place = f"{__file__}:{import_modules.__code__.co_firstlineno + 1}"
    short = f" error=ImportError: no module named shpo at={place} " in message
    assert (short, "Traceback" in caplog.text) == (not option, bool(option))


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


def test_shared_task_is_a_target_without_a_celery_app() -> None:
    code = """
settings.configure()
django.setup()
from celery import shared_task
from django_dcron import targets
def report():
    return "done"
shared_task(name="shop.jobs.report")(report)
print(targets.available(), targets.get("shop.jobs.report").call(targets.Invocation()))
"""
    assert in_a_new_process(code) == ["['shop.jobs.report'] done"]


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
