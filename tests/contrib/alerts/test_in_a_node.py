"""Test the alerts of a real node: about its own jobs and about another node that was killed."""

import json
import re
from pathlib import Path

import pytest

from django_dcron import control
from tests.conftest import StartProcess
from tests.contrib.alerts.conftest import Service
from tests.factories import make_job
from tests.waiting import wait_until

TIMEOUT = 60.0


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_node_tells_of_a_job_that_fails_and_recovers_and_of_a_node_that_was_killed(
    start_runcron: StartProcess, service: Service
) -> None:
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.contrib.alerts.settings",
        "DCRON_TEST_WEBHOOK": service.url,
        "DCRON_TEST_SETTINGS": json.dumps({"TICK": 0.1, "LEASE": 1}),
    }
    first = start_runcron("--embedded", "--name", "first", env=environment)
    job = make_job(name="roast", target="tests.app.tasks.fail")
    wait_until(
        lambda: "[dcron] roast failed" in " ".join(service.subjects),
        TIMEOUT,
        what="word of the failure",
    )
    job.refresh_from_db()
    job.target = "tests.app.tasks.ok"
    control.save(job)
    wait_until(
        lambda: "[dcron] roast has recovered" in " ".join(service.subjects),
        TIMEOUT,
        what="word of the recovery",
    )
    first.kill()
    start_runcron("--embedded", "--name", "second", env=environment)
    wait_until(
        lambda: "[dcron] node first is lost" in " ".join(service.subjects),
        TIMEOUT,
        what="word of the loss",
    )
    first_failures = [
        subject for subject in service.subjects if subject.startswith("[dcron] roast failed")
    ]
    assert len(first_failures) == 1, "once for the streak"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_while_a_channel_hangs_that_is_logged_the_others_are_notified_and_the_node_stops_as_ever(
    start_runcron: StartProcess, service: Service, hanging: Service, tmp_path: Path
) -> None:
    health = tmp_path / "health.json"
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.contrib.alerts.settings",
        "DCRON_TEST_WEBHOOK": service.url,
        "DCRON_TEST_HANGING_WEBHOOK": hanging.url,
        "DCRON_TEST_SETTINGS": json.dumps({"TICK": 0.1, "LEASE": 1, "HANG_AFTER": 3}),
    }
    node = start_runcron("--embedded", "--name", "a", "--health-file", str(health), env=environment)
    job = make_job(name="roast", target="tests.app.tasks.fail")
    wait_until(hanging.asked.is_set, TIMEOUT, what="a message that nobody answers")
    wait_until(
        lambda: "roast failed" in " ".join(service.subjects), TIMEOUT, what="word of the failure"
    )
    job.refresh_from_db()
    job.target = "tests.app.tasks.ok"
    control.save(job)
    wait_until(
        lambda: "roast has recovered" in " ".join(service.subjects),
        TIMEOUT,
        what="word of the recovery",
    )
    wait_until(
        lambda: json.loads(health.read_text())["status"] == "degraded",
        TIMEOUT,
        what="a node that says so, and is fit",
    )
    assert "alerts-hanging" in json.loads(health.read_text())["hanging"]
    first = re.split(
        r"\n\s+Thread ", node.log.partition("thread hangs: node=a thread=alerts-hanging")[2]
    )[1]
    assert first.startswith("dcron-alerts-hanging:\n"), "its own stack is told before all others"
    assert "in send_to" in first
    node.terminate()
    assert node.wait() == 0
