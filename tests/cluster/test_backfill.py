"""Test a backfill beside the job's own schedule. All nodes are killed during the backfill.

The backfill keeps its order and its limit of concurrent runs.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from django_dcron import control
from django_dcron.models import Attempt, Job, Run
from tests.app.models import Witness
from tests.cluster.cluster import SECOND, TIMEOUT, Cluster, now
from tests.factories import make_job
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]

LONG_AGO = datetime(2025, 1, 15, tzinfo=UTC)
MANY, FEW = 40, 10
CONCURRENCY = 2
"""The default of ``DCRON_BACKFILL_CONCURRENCY``."""
DURATION = SECOND / 5
"""Duration of each run of the job whose runs must not overlap."""


def attempts_of(job: Job) -> list[Attempt]:
    backfilled = Attempt.objects.filter(run__job=job, run__trigger="backfill").select_related("run")
    return list(backfilled.order_by("started_at"))


def max_concurrent(attempts: Iterable[Attempt]) -> int:
    """The maximum number of attempts that were under way at the same time."""
    steps = [(attempt.started_at, 1) for attempt in attempts]
    steps += [(attempt.finished_at, -1) for attempt in attempts if attempt.finished_at]
    under_way = highest = 0
    for _, step in sorted(steps):
        under_way += step
        highest = max(highest, under_way)
    return highest


@pytest.mark.nightly
def test_backfill_continues_after_all_nodes_are_killed(cluster: Cluster) -> None:
    cluster.start(jobs=4)
    concurrent = make_job(
        schedule="@monthly", target="tests.app.tasks.witness", overlap_policy="allow"
    )
    live = {
        "schedule": "*/2 * * * * *",
        "overlap_policy": "skip",
        "kwargs": {"seconds": DURATION / SECOND},
    }
    sequential = make_job(target="tests.app.tasks.witness", **live)
    cluster.after = now()  # check only occurrences since all jobs exist
    many = control.backfill(concurrent, LONG_AGO - timedelta(days=4 * 365), LONG_AGO, limit=MANY)
    few = control.backfill(sequential, LONG_AGO, LONG_AGO + 2 * FEW * SECOND)
    assert (len(many.occurrences), len(few.occurrences)) == (MANY, FEW)

    backfilled = Run.objects.filter(trigger="backfill")
    done = backfilled.filter(state="succeeded")
    wait_until(
        lambda: done.count() >= (MANY + FEW) / 4,
        TIMEOUT,
        what="a part of the backfill",
        interval=0.05,
    )
    for node in cluster.nodes:
        node.process.kill()
    assert backfilled.filter(state="waiting").exists(), "the nodes were killed during the backfill"
    wait_until(lambda: done.count() == MANY + FEW, TIMEOUT, what="the whole backfill", interval=0.1)
    cluster.account()

    assert {node.exits[0] for node in cluster.nodes} == {-9}
    assert max_concurrent(attempts_of(concurrent)) <= CONCURRENCY
    in_order = attempts_of(sequential)
    assert [attempt.run.scheduled_at for attempt in in_order] == list(few.occurrences)
    starts = sorted(Witness.objects.filter(job=str(sequential)).values_list("at", flat=True))
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert min(gaps) >= DURATION, "live and backfilled runs never overlap"
    for run in Run.objects.filter(job=sequential, state="skipped"):
        assert not any(str(attempt.run_id) in run.reason for attempt in in_order), (
            "no live run is skipped because of a backfilled one"
        )
