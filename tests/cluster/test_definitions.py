"""Workers die while people edit jobs: each attempt still records the definition that it ran."""

from collections import Counter

import pytest

from django_dcron import control
from django_dcron.models import Attempt, Job
from tests.app.models import Witness
from tests.cluster.cluster import SECOND, TIMEOUT, Cluster, fault, shorter_durations
from tests.threads import repeating
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql]

QUICK = shorter_durations(REDELIVER_AFTER=5, RUN_LEASE=6)
EDITS_AT_LEAST = 20


def test_attempts_record_what_they_ran_while_jobs_are_edited_and_workers_killed(
    cluster: Cluster,
) -> None:
    """Half of the jobs are edited without ``control``. Their new definitions aren't stored yet."""
    steps = fault(["start.done", "work.done", "record.done"], chance=0.03)
    jobs = cluster.start(
        jobs=4,
        node_env=QUICK,
        worker_env=QUICK | steps,
        kwargs={"number": 0},
        misfire_grace=120 * SECOND,
    )
    numbers = Counter[int]()

    def edit() -> None:
        """Increment an argument of each job."""
        for index, job in enumerate(jobs):
            number = numbers[job.pk] + 1
            if index % 2:
                Job.objects.filter(pk=job.pk).update(kwargs={"number": number})
            else:
                fresh = Job.objects.get(pk=job.pk)
                fresh.kwargs = {"number": number}
                control.save(fresh)
            numbers[job.pk] = number

    with repeating(edit) as errors:
        cluster.run_for(12)
        wait_until(
            lambda: errors or min(numbers[job.pk] for job in jobs) > EDITS_AT_LEAST,
            TIMEOUT,
            what="edits of each job",
        )
        lost = Attempt.objects.filter(outcome="lost")
        wait_until(lost.exists, TIMEOUT, what="an attempt of a killed worker")
    cluster.remove_faults()
    cluster.account()
    recorded = {
        (str(each.run_id), each.number): each.definition and each.definition.content["kwargs"]
        for each in Attempt.objects.select_related("definition")
    }
    ran = {(each.run_id, each.attempt): {"number": each.number} for each in Witness.objects.all()}
    assert {key: recorded[key] for key in ran} == ran
    assert len({each["number"] for each in ran.values()}) > 2
