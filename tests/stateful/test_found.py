"""Regression tests for bugs that ``test_life_of_runs`` found, in as few steps as possible."""

from datetime import timedelta

import pytest

from django_dcron.db.now import database_now
from django_dcron.jobs.cursors import move_outdated_cursors
from django_dcron.models import Cursor, Job, Run, Statistics
from django_dcron.scheduler.claim import claim
from tests.factories import make_job, make_run

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


def test_node_that_was_suspended_before_a_change_withdraws_no_due_run() -> None:
    """The node was suspended after it had read the clock, and another node dispatched the run."""
    job = make_job()
    last_read = database_now("default") - 60 * SECOND
    due = make_run(job, scheduled_at=last_read + 30 * SECOND, due_at=last_read + 30 * SECOND)
    Job.objects.filter(pk=job.pk).update(schedule="0 0 1 1 *")
    assert move_outdated_cursors(last_read, Job.objects.all()) == 1
    assert Run.objects.filter(pk=due.pk).exists()
    assert Cursor.objects.get().schedule == "0 0 1 1 *"


@pytest.mark.parametrize("policy", ["run_latest", "skip"])
def test_run_cancelled_early_counts_the_occurrences_missed_before_it(policy: str) -> None:
    """A change of the job moved the cursor back before the cancelled run. An outage followed."""
    job = make_job(schedule="*/5 * * * * *", misfire_grace=SECOND, misfire_policy=policy)
    lost = Cursor.objects.get().next_at
    assert lost is not None
    newest = lost + 5 * SECOND
    cancelled = make_run(job, "cancelled", scheduled_at=newest, due_at=newest)
    claim(range(64), newest + 2 * SECOND, node="n")
    cancelled.refresh_from_db()
    assert (cancelled.state, cancelled.missed_before, cancelled.missed_from) == (
        "cancelled",
        1,
        lost,
    )
    assert Statistics.objects.get().missed == 1
