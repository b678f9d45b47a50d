"""Many occurrences in one sitting, through real nodes and workers that are killed and suspended.

``make volume OCCURRENCES=10000000 RATE=500`` chooses the size. The occurrences come in rounds. Each
round ends with its verdict, so that a sitting may be interrupted: the finished rounds count.
"""

import logging
import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, fields
from datetime import datetime, timedelta
from operator import add
from pathlib import Path

import pytest
from django.db import connection, transaction

from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import FINAL
from tests import services
from tests.cluster.cluster import SECOND, Cluster, now
from tests.factories import make_job
from tests.verdict.history import History
from tests.verdict.judgement import Totals, judge
from tests.verdict.tables import read_history
from tests.verdict.witness import Anchor, read_log
from tests.waiting import wait_until_none

logger = logging.getLogger(__name__)

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.nightly,
    pytest.mark.postgresql,
    pytest.mark.timeout(0),
]

OCCURRENCES = int(os.environ.get("DCRON_TEST_OCCURRENCES") or 6_000)
RATE = int(os.environ.get("DCRON_TEST_RATE") or 150)
"""Occurrences per second."""
FAULT_EVERY = 15.0
"""Seconds between two faults."""
SUSPENDED_FOR = 5.0
VACUUM_EVERY = 4
"""Vacuum the tables with each fourth fault, because the server of the tests doesn't."""
ROUND = 100_000
"""The number of occurrences between two verdicts. A verdict holds them all in memory."""
TARGET = "tests.app.tasks.logged_witness"


def test_no_occurrence_of_many_is_lost_or_duplicated(
    cluster: Cluster, redis_server: services.Server, tmp_path: Path
) -> None:
    kept_connections = {"DCRON_TEST_DB_REUSE_MAX": "1000"}
    cluster.start(jobs=0, nodes=0, worker_env=kept_connections, record_changes=False)
    for _ in range(2):
        cluster.add_node()
    sums, faults = Totals(*(0 for _ in fields(Totals))), Counter[str]()
    rounds = math.ceil(OCCURRENCES / ROUND)
    for _ in range(rounds):
        after, number = now(), OCCURRENCES / rounds
        until = (after + number / RATE * SECOND).replace(microsecond=0)
        jobs = _make_jobs(until, tmp_path)
        _inject_faults(cluster, redis_server, until, faults)
        _vacuum()
        wait_until_none(_unfinished, what="all jobs and runs to end", interval=1)
        verdict = judge(_read_history(after, until, jobs, tmp_path))
        cluster.totals = sums = Totals(*map(add, astuple(sums), astuple(verdict.totals)))
        logger.info("judged: %s, faults %s", sums, dict(faults))
        assert not verdict.findings, "\n".join(map(str, verdict.findings))
        assert verdict.totals.starts >= verdict.totals.occurrences >= number * 0.9
    cluster.stop()
    starts = sum(text.count('"began"') for text in map(Path.read_text, tmp_path.glob("*.jsonl")))
    assert starts == sums.starts, "a run started again after the verdict of its round"
    assert faults


def _make_jobs(until: datetime, directory: Path) -> list[int]:
    """Create jobs until their schedules yield ``RATE``. Their schedules end at ``until``."""
    ids, rate = [], 0.0
    while rate < RATE:
        exclusive = len(ids) % 2 == 1
        job = make_job(
            target=TARGET,
            kwargs={"directory": str(directory)},
            schedule="*/2 * * * * *" if exclusive else "* * * * * *",
            overlap_policy="queue_all" if exclusive else "allow",
            misfire_policy="run_all",
            misfire_grace=timedelta(hours=1),
            catchup_limit=3600,
            max_attempts=5,
            retry_backoff=SECOND,
            ends_at=until,
        )
        ids.append(job.pk)
        rate += 0.5 if exclusive else 1
    return ids


def _inject_faults(
    cluster: Cluster, redis: services.Server, until: datetime, faults: Counter[str]
) -> None:
    """Kill or suspend a random process every ``FAULT_EVERY`` seconds until the schedules end."""
    pause = threading.Event()
    while (left := (until - now()) / SECOND) > 0:
        pause.wait(min(FAULT_EVERY, left))
        victims = {"node": cluster.nodes, "worker": cluster.workers}
        kind = random.choice(["node", "worker"])
        process = random.choice(victims[kind]).process
        match random.choice(["killed", "suspended", "Redis restarted without its data"]):
            case "killed":
                process.kill()
                faults[f"{kind} killed"] += 1
            case "suspended":
                process.suspend()
                pause.wait(SUSPENDED_FOR)
                process.resume()
                faults[f"{kind} suspended"] += 1
            case other:
                redis.kill()
                redis.start()
                faults[other] += 1
        if faults.total() % VACUUM_EVERY == 0:
            _vacuum()
            runs, unfinished = Run.objects.count(), _unfinished()  # a backlog shows early
            logger.info("%s runs, unfinished %s, faults %s", runs, unfinished, dict(faults))


def _vacuum() -> None:
    with connection.cursor() as cursor:
        for table in ("run", "attempt", "statistics", "cursor", "pendingcount"):
            cursor.execute(f"VACUUM (ANALYZE) django_dcron_{table}")


def _unfinished() -> int:
    """The number of jobs whose schedule hasn't ended, and of runs that haven't."""
    return Job.objects.filter(enabled=True).count() + Run.objects.exclude(state__in=FINAL).count()


def _read_history(
    after: datetime, until: datetime, jobs: Sequence[int], directory: Path
) -> History:
    before, at, later = time.monotonic(), now(), time.monotonic()
    anchor = Anchor((before + later) / 2, at)
    names = [str(job) for job in Job.objects.filter(pk__in=jobs)]
    starts = [start for name in names for start in read_log(directory / f"{name}.jsonl", anchor)]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # nodes keep counting
        return read_history(
            cursor,
            after,
            until,
            starts,
            witnessed=[TARGET],
            jobs=(min(jobs), max(jobs)),
        )
