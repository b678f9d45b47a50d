"""Test that every view reports a real fault of real processes.

The dashboard, the admin index, the doctor and ``/health`` name the same problem and remedy.

One node and one worker serve all tests. A test may end one of them; the next test starts it again.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import Client
from django.urls import reverse
from playwright.sync_api import Page
from pytest_django import Settings

from django_dcron import control
from django_dcron.admin.dashboard.page import SECTIONS
from django_dcron.diagnosis.system_health import read_verdict
from django_dcron.models import Job, Run
from django_dcron.policies.health.problems import Problem
from django_dcron.policies.lifecycle import State
from tests import services
from tests.browser.conftest import Browse
from tests.browser.pages import dcron_url, url
from tests.conftest import PROCESSES
from tests.factories import make_job
from tests.waiting import TIMEOUT, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

REDELIVER_AFTER = 5
REFRESH = 2
"""Seconds after which the dashboard reads the health again; less than usual, to save time."""
ENVIRONMENT = {"DCRON_TEST_SETTINGS": json.dumps({"REDELIVER_AFTER": REDELIVER_AFTER})}
WORKER = [
    "-m",
    "celery",
    "-A",
    "tests.celery_app",
    "worker",
    "--pool",
    "threads",
    "--concurrency",
    "2",
]
QUIET = ["--loglevel", "INFO", "--without-gossip", "--without-mingle"]


@dataclass
class System:
    """The processes behind the admin. Each one starts when a test needs it."""

    foreign_database: Path
    processes: dict[str, services.Process] = field(default_factory=dict)
    shown: list[services.Process] = field(default_factory=list)
    """The processes whose logs a failed test shows."""

    def start(
        self, name: str, *arguments: str, env: dict[str, str] | None = None
    ) -> services.Process:
        if name not in self.processes or not self.processes[name].running:
            process = services.python_process(
                f"health-{name}", *arguments, env={**ENVIRONMENT, **(env or {})}
            )
            self.processes[name] = process
            process.start()
        self.shown.append(self.processes[name])
        return self.processes[name]

    def start_node(self) -> services.Process:
        return self.start("node", "-m", "django", "runcron", "--name", "node-a")

    def start_worker(self) -> services.Process:
        worker = self.start("worker", *WORKER, *QUIET, "--hostname", "good@%h")
        worker.wait_for_log(" ready.", TIMEOUT)
        return worker

    def start_foreign_worker(self) -> services.Process:
        """Start a worker on the same broker, but with another, empty database."""
        env = {
            "DCRON_TEST_DATABASE": "sqlite",
            "DCRON_TEST_DATABASE_NAME": str(self.foreign_database),
        }
        worker = self.start("foreign", *WORKER, *QUIET, "--hostname", "foreign@%h", env=env)
        worker.wait_for_log(" ready.", TIMEOUT)
        return worker

    def kill(self, name: str) -> None:
        if name in self.processes:
            self.processes[name].kill()


@pytest.fixture(scope="module")
def system(
    django_db_setup: None,
    redis_of_the_session: services.Server | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[System]:
    system = System(tmp_path_factory.mktemp("health") / "foreign.sqlite3")
    yield system
    services.stop_all(list(system.processes.values()))


@pytest.fixture
def healthy_system(
    request: pytest.FixtureRequest,
    system: System,
    live_server: Any,
    transactional_db: None,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> System:
    """Start a node and a worker, and create a job that runs every second without a problem."""
    settings.DCRON_REDELIVER_AFTER = timedelta(seconds=REDELIVER_AFTER)
    section = replace(SECTIONS["health"], min_interval=REFRESH, max_interval=REFRESH)
    monkeypatch.setitem(SECTIONS, "health", section)
    system.shown = request.node.stash.setdefault(PROCESSES, [])
    system.kill("foreign")
    system.start_node()
    system.start_worker()
    make_job(name="grind")
    return system


@dataclass(frozen=True)
class Report:
    """The problems and the text that one view shows."""

    problems: frozenset[str]
    text: str


def health_report() -> Report:
    answer = Client().get(reverse("dcron_monitoring:health"))
    content = json.loads(answer.content)
    assert answer.status_code == (503 if content["status"] == "unfit" else 200)
    return Report(frozenset(each["code"] for each in content["problems"]), content["summary"])


def doctor_report() -> Report:
    out, code = StringIO(), 0
    try:
        call_command("dcron", "doctor", "--json", stdout=out)
    except CommandError as error:
        code = error.returncode
    report = json.JSONDecoder().raw_decode(out.getvalue())[0]
    assert code == (0 if report["healthy"] else 1)
    return Report(
        frozenset(each["code"] for each in report["findings"]),
        "\n".join(each["message"] for each in report["findings"]),
    )


def first_line(page: Page) -> str:
    return page.locator(".dcron-health li, .dcron-health-line").first.inner_text()


def wait_until_healthy(page: Page) -> None:
    """Wait until a run has succeeded and the dashboard reports a healthy system.

    The dashboard refreshes itself.
    """
    wait_until(Run.objects.filter(state=State.SUCCEEDED).exists, what="a first success")
    page.goto(dcron_url("dashboard_changelist"))
    wait_until(
        lambda: "Healthy: " in first_line(page), TIMEOUT, what="a healthy system", interval=0.2
    )


def wait_until_every_view_reports(problem: Problem, says: str, page: Page, index: Page) -> None:
    """Wait until every view reports the problem.

    ``says`` is a pattern for the first line: the problem and its remedy. It has to match any
    duration, because a slow machine may take minutes until all views agree.
    """
    wanted = re.compile(says)

    def agree() -> bool:
        # The open page first: reading it costs nothing.
        if not wanted.search(first_line(page)):
            return False
        index.goto(url("index"))
        doctor, health = doctor_report(), health_report()
        return (
            bool(wanted.search(first_line(index)))
            and problem in health.problems
            and problem in doctor.problems
            and bool(wanted.search(doctor.text))
        )

    try:
        wait_until(agree, what=f"{problem} everywhere", interval=0.5)
    except AssertionError as error:
        messages_shown = (
            f"dashboard: {first_line(page)}\nindex: {first_line(index)}\n"
            f"{doctor_report()}\n{health_report()}"
        )
        raise AssertionError(f"{error}\n{messages_shown}") from None


def test_failing_runs_are_reported(healthy_system: System, page: Page, browse: Browse) -> None:
    wait_until_healthy(page)

    job = Job.objects.get()
    job.target = "tests.app.tasks.fail"
    control.save(job)

    wait_until_every_view_reports(
        Problem.EVERY_RUN_FAILS, "Every run fails.* Open the latest failed runs", page, browse()
    )


@pytest.mark.postgresql
def test_read_only_database_is_reported(healthy_system: System, page: Page, browse: Browse) -> None:
    """After a failover, clients that are still connected to the old primary can only read."""
    index = browse()
    wait_until_healthy(page)
    name = connection.ops.quote_name(connection.settings_dict["NAME"])

    def end_all_sessions() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
                "current_database() AND pid <> pg_backend_pid()"
            )
        connection.close()  # the connection of the test process

    try:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        end_all_sessions()

        wait_until_every_view_reports(
            Problem.DATABASE_READ_ONLY,
            "The database is read-only.* Make the database writable",
            page,
            index,
        )
    finally:
        connection.close()
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = off")
            cursor.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        end_all_sessions()
    wait_until_healthy(page)  # no process was restarted


def test_worker_with_other_database_is_reported(
    healthy_system: System, page: Page, browse: Browse
) -> None:
    """The foreign worker shares the broker, so it receives the runs of this database."""
    wait_until_healthy(page)

    healthy_system.kill("worker")
    healthy_system.start_foreign_worker()

    wait_until_every_view_reports(
        Problem.RUN_UNKNOWN_TO_WORKER, "another database.*foreign@.* Connect", page, browse()
    )


def test_missing_worker_is_reported(healthy_system: System, page: Page, browse: Browse) -> None:
    wait_until_healthy(page)

    healthy_system.kill("worker")

    wait_until_every_view_reports(
        Problem.NO_WORKER,
        (
            r"No worker has picked up a run for \d+ \w+: \d+ queued"
            r"(, \d+ missed in the last \d+ \w+)?\. "
            r"Start a Celery worker for queue celery\."
        ),
        page,
        browse(),
    )


def test_missing_node_is_reported(healthy_system: System, page: Page, browse: Browse) -> None:
    wait_until_healthy(page)

    healthy_system.kill("node")

    wait_until_every_view_reports(
        Problem.NO_LIVE_NODE,
        r".* for \d+ \w+.* manage\.py runcron\.",
        page,
        browse(),
    )
    assert Problem.NO_WORKER not in read_verdict().problems
