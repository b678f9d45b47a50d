"""Test the alerts of real nodes: about their jobs, a node that was killed, and outages."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection

from django_dcron import control
from django_dcron.models import Job
from tests import services
from tests.conftest import StartProcess
from tests.contrib.alerts.conftest import Service
from tests.factories import make_job, make_node
from tests.waiting import TIMEOUT, wait_until


def environment_for(service: Service, **settings: float) -> dict[str, str]:
    """Return the environment of a node that sends its alerts to ``service``."""
    return {
        "DJANGO_SETTINGS_MODULE": "tests.contrib.alerts.settings",
        "DCRON_TEST_WEBHOOK": service.url,
        "DCRON_TEST_SETTINGS": json.dumps({"TICK": 0.1, "LEASE": 1} | settings),
    }


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
    environment = environment_for(service)
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
def test_node_that_starts_after_an_outage_reports_it(
    start_runcron: StartProcess, service: Service
) -> None:
    make_node("killed", timedelta(hours=1))
    start_runcron("--embedded", "--name", "a", env=environment_for(service))
    await_alert("nothing was scheduled for 1h 0", service)


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.mariadb
def test_nodes_report_an_outage_of_the_database(
    start_runcron: StartProcess, service: Service, database_server: services.Server, tmp_path: Path
) -> None:
    environment = environment_for(service, DATABASE_GRACE=2)
    environment["DCRON_TEST_SHORTEST_OUTAGE"] = "1"
    nodes = [start_runcron("--embedded", "--name", name, env=environment) for name in "ab"]
    for node in nodes:
        node.wait_for_log("shards changed: ", TIMEOUT)
    connection.close()
    database_server.stop()
    try:
        for node in nodes:
            node.wait_for_log("node unfit: ", TIMEOUT)
    finally:
        database_server.start()
    await_alert("nothing was scheduled for ", service)
    texts = "\n".join(each["message"] for each in service.received)
    assert "couldn't write its heartbeat from " in texts
    for node in nodes:
        node.wait_for_log("node fit again: ", TIMEOUT)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_hanging_channel_is_logged_and_delays_neither_others_nor_shutdown(
    start_runcron: StartProcess, service: Service, hanging_service: Service, tmp_path: Path
) -> None:
    health = tmp_path / "health.json"
    environment = environment_for(service, HANG_AFTER=3)
    environment["DCRON_TEST_HANGING_WEBHOOK"] = hanging_service.url
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
