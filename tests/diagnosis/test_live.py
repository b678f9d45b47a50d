"""Test that the doctor reports no false findings when it repeatedly examines a working node.

The doctor reads different rows at different moments.
"""

import pytest
from pytest_django import Settings

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.diagnosis.doctor.report import Report, examine
from django_dcron.diagnosis.doctor.window import Window
from django_dcron.locks import get_lock
from django_dcron.models import Job, Run
from tests import depth
from tests.conftest import StartProcess
from tests.diagnosis.conftest import HOUR
from tests.factories import make_job
from tests.waiting import wait_until

EXAMINATIONS = 60 if depth.FULL else 15


def examine_now() -> Report:
    now = database_now("default")
    return examine(Window(now - HOUR, now, now), get_lock())


@pytest.mark.slow
def test_working_node_causes_no_finding(start_runcron: StartProcess, settings: Settings) -> None:
    settings.DCRON_LOCK = "database"
    jobs = [
        make_job(overlap_policy=policy)
        for policy in ("allow", "skip", "queue_all")
        for _ in range(4)
    ]
    node = start_runcron("--embedded")
    wait_until(
        lambda: Run.objects.filter(state="succeeded").count() > 10 * len(jobs), 60, what="runs"
    )
    edited = jobs.pop()
    for number in range(EXAMINATIONS):
        if number % 10 == 0:
            fresh = Job.objects.get(pk=edited.pk)
            fresh.schedule = f"*/{1 + number % 3} * * * * *"
            control.save(fresh)
        report = examine_now()
        assert report.findings.listed == []
    assert report.totals.jobs >= len(jobs)
    assert report.totals.occurrences > len(jobs)
    node.terminate()
    assert node.wait() == 0
