"""Runs are on time again soon after a fault, and a fault affects only its own runs."""

from uuid import UUID

import pytest
from django.db.models import Count, Q

from django_dcron.models import Job, Run
from tests.cluster.cluster import SECOND, TIMEOUT, Cluster, now
from tests.lock_holder import keeping_open
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.nightly]


def test_runs_are_on_time_again_after_all_workers_were_gone_for_a_minute(cluster: Cluster) -> None:
    """The summary says how long it takes to start the workers and to execute what is overdue."""
    cluster.start(jobs=10)
    cluster.run_for(3)
    for worker in cluster.workers:
        worker.kill_for_good()
    cluster.wait_for(now() + 60 * SECOND)
    for worker in cluster.workers:
        worker.supervised = True
    cluster.wait_for_recovery("all workers gone for a minute")
    cluster.account()


@pytest.mark.parametrize("states", [("pending", "queued"), ("running",)], ids=["start", "end"])
def test_locked_rows_do_not_keep_the_runs_of_other_jobs_from_starting(
    cluster: Cluster, states: tuple[str, ...]
) -> None:
    """Another session locks the runs of half of the jobs."""
    seconds = {"kwargs": {"seconds": 0.1}}
    jobs = cluster.start(jobs=16, schedule="* * * * * *", overlap_policy="allow", **seconds)
    cluster.run_for(2)
    others = jobs[1::2]
    rows = Run.objects.filter(job__in=jobs[::2], state__in=states)
    locked: list[UUID] = []

    def lock() -> list[UUID]:
        locked.extend(rows.select_for_update().values_list("pk", flat=True))
        return locked

    def others_run() -> bool:
        other_jobs = Job.objects.filter(pk__in=[job.pk for job in others])
        numbers = other_jobs.annotate(number=Count("runs", filter=fresh)).values_list("number")
        return min(number for (number,) in numbers) >= 5

    with keeping_open(lambda: wait_until(lock, TIMEOUT, what="rows to lock")):
        locked_at = now()
        fresh = Q(runs__started_at__gt=locked_at, runs__due_at__gt=locked_at)
        wait_until(others_run, TIMEOUT, what="each other job to run", interval=0.2)
        assert not Run.objects.filter(pk__in=locked).exclude(state__in=states).exists()
    cluster.wait_for_recovery(f"rows of half of the jobs locked: {', '.join(states)}")
    cluster.account()
