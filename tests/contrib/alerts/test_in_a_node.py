"""Test the alerts of a real node: about its own jobs and about another node that was killed."""

import json
import re
from pathlib import Path

import pytest

from django_dcron import control
from django_dcron.models import Job
from tests.conftest import StartProcess
from tests.contrib.alerts.conftest import Service
from tests.factories import make_job
from tests.waiting import TIMEOUT, wait_until


def await_alert(subject: str, service: Service) -> None:
    wait_until(
        lambda: subject in " ".join(service.subjects),
        TIMEOUT,
        what=f"an alert: {subject}",
    )


def let_recover(job: Job, service: Service) -> None:
    """Await the alerts about a failure of the job and about its next success."""
    await_alert("roast failed", service)
    job.refresh_from_db()
    job.target = "tests.app.tasks.ok"
    control.save(job)
    await_alert("roast has recovered", service)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_node_reports_failure_and_recovery_of_a_job_and_a_killed_node(
    start_runcron: StartProcess, service: Service
) -> None:
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.contrib.alerts.settings",
        "DCRON_TEST_WEBHOOK": service.url,
        "DCRON_TEST_SETTINGS": json.dumps({"TICK": 0.1, "LEASE": 1}),
    }
    first = start_runcron("--embedded", "--name", "first", env=environment)
    job = make_job(name="roast", target="tests.app.tasks.fail")
    let_recover(job, service)
    first.kill()
    start_runcron("--embedded", "--name", "second", env=environment)
    await_alert("node first is lost", service)
    first_failures = [
        subject for subject in service.subjects if subject.startswith("[dcron] roast failed")
    ]
    assert len(first_failures) == 1, "one alert for the streak"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_hanging_channel_is_logged_and_delays_neither_others_nor_shutdown(
    start_runcron: StartProcess, service: Service, hanging_service: Service, tmp_path: Path
) -> None:
    health = tmp_path / "health.json"
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.contrib.alerts.settings",
        "DCRON_TEST_WEBHOOK": service.url,
        "DCRON_TEST_HANGING_WEBHOOK": hanging_service.url,
        "DCRON_TEST_SETTINGS": json.dumps({"TICK": 0.1, "LEASE": 1, "HANG_AFTER": 3}),
    }
    node = start_runcron("--embedded", "--name", "a", "--health-file", str(health), env=environment)
    job = make_job(name="roast", target="tests.app.tasks.fail")
    wait_until(hanging_service.requested.is_set, TIMEOUT, what="a request to the hanging channel")
    let_recover(job, service)
    wait_until(
        lambda: json.loads(health.read_text())["status"] == "degraded",
        TIMEOUT,
        what="the status degraded",
    )
    assert "alerts-hanging" in json.loads(health.read_text())["hanging"]
    first_stack = re.split(
        r"\n\s+Thread ", node.log.partition("thread hangs: node=a thread=alerts-hanging")[2]
    )[1]
    assert first_stack.startswith("dcron-alerts-hanging:\n"), (
        "the stack of the hanging thread comes first"
    )
    assert "in send_to" in first_stack
    node.terminate()
    assert node.wait() == 0
