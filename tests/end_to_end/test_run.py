"""From the text of a schedule to a finished run on a real Celery worker, with real processes."""

import pytest

from django_dcron.models import Attempt, Node, Run
from tests.conftest import StartProcess
from tests.factories import make_job
from tests.waiting import wait_until

pytestmark = pytest.mark.every_database


def test_job_runs_on_a_worker(start_worker: StartProcess, start_runcron: StartProcess) -> None:
    job = make_job(target="tests.app.tasks.echo", args=[1], kwargs={"city": "Berlin"})
    start_worker()
    node = start_runcron("--name", "a")

    wait_until(
        lambda: Run.objects.filter(job=job, state="succeeded").count() >= 3,
        30,
        what="three succeeded runs",
    )
    node.terminate()
    assert node.wait() == 0

    run = Run.objects.filter(job=job, state="succeeded").first()
    attempt = Attempt.objects.get(run=run)
    assert (run.attempt, attempt.outcome) == (1, "succeeded")
    assert attempt.result == '{"args": [1], "kwargs": {"city": "Berlin"}}'
    assert run.scheduled_at <= run.started_at <= run.finished_at
    assert not Node.objects.exists()
