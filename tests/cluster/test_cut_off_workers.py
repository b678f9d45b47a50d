"""A worker loses the database while its job's code goes on, and another worker takes over."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from django_dcron import control
from django_dcron.models import Attempt, Run, Statistics
from tests import settings
from tests.cluster.cluster import SECOND, TIMEOUT, Cluster, shorter_durations
from tests.factories import make_idle_job
from tests.fault_proxy import FaultProxy
from tests.silent_proxy import SOCKETS
from tests.verdict.witness import Anchor, read_log
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]

LEASE = 2
QUICK = {"RUN_LEASE": LEASE, "REDELIVER_AFTER": 10}


@pytest.fixture
def to_database() -> Iterator[FaultProxy]:
    proxy = FaultProxy(SOCKETS[settings.DATABASE])
    yield proxy
    proxy.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store outside of the database, which all workers reach."""
    path = tmp_path / "store.sqlite3"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE value (attempt, fence)")
        connection.execute("INSERT INTO value VALUES (0, 0)")
        connection.execute("CREATE TABLE try (attempt, written)")
    return path


def read(store: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(store, timeout=60)) as connection:
        return connection.execute(query).fetchall()


def start_run_on_one_worker(
    cluster: Cluster, to_database: FaultProxy, store: Path, **stop: float
) -> Run:
    """Start a run on a worker, and another worker for the next attempt. Cut the first one off.

    The first worker executes nothing else meanwhile and has fetched nothing else.
    """
    env = {"DCRON_TEST_DATABASE_PORT": str(to_database.port)}
    cluster.start(jobs=1, nodes=1, workers=0, node_env=shorter_durations(**QUICK))
    job = make_idle_job(
        target="tests.app.tasks.write_with_fence",
        kwargs={"directory": str(store.parent)},
        max_attempts=2,
        retry_backoff=5 * SECOND,
    )
    run = control.trigger(job)
    cluster.add_worker(
        "--prefetch-multiplier",
        "1",
        pool="solo",
        concurrency=1,
        env=shorter_durations(**QUICK, **stop) | env,
    )
    started = Attempt.objects.filter(run=run, number=1)
    wait_until(started.exists, TIMEOUT, what="the first attempt")
    cluster.add_worker(env=shorter_durations(**QUICK))
    (store.parent / "release-2").touch()
    to_database.cut()
    second = Attempt.objects.filter(run=run, number=2, outcome="succeeded")
    wait_until(second.exists, TIMEOUT, what="the second attempt to succeed elsewhere")
    return run


def test_late_success_is_recorded_counted_and_not_applied(
    cluster: Cluster, to_database: FaultProxy, store: Path
) -> None:
    run = start_run_on_one_worker(cluster, to_database, store, STOP_WITHOUT_HEARTBEAT_AFTER=3600)
    (store.parent / "release-1").touch()
    wait_until(lambda: len(read(store, "SELECT * FROM try")) == 2, TIMEOUT, what="the late write")
    to_database.restore()
    cluster.wait_for_recovery("worker cut off from the database: its job goes on")
    late = Attempt.objects.filter(run=run, number=1, late_outcome="succeeded")
    wait_until(late.exists, TIMEOUT, what="the late success to be recorded")

    first, second = Attempt.objects.filter(run=run).order_by("number")
    assert (first.outcome, first.result) == ("lost", "")
    run.refresh_from_db()
    assert (run.state, run.attempt) == ("succeeded", 2)
    counted = Statistics.objects.get(pk=run.job_id)
    assert (counted.succeeded, counted.late_successes) == (1, 1)
    assert second.late_outcome == ""
    assert read(store, "SELECT attempt, written FROM try") == [(2, 1), (1, 0)]
    assert read(store, "SELECT attempt, fence FROM value") == [(2, second.pk)]
    cluster.account()


@pytest.mark.nightly
def test_worker_stops_its_code_before_the_next_attempt_begins(
    cluster: Cluster, to_database: FaultProxy, store: Path, tmp_path: Path
) -> None:
    """The worker decides this by its own clock, because it reaches no other process."""
    run = start_run_on_one_worker(cluster, to_database, store)
    to_database.restore()
    cluster.wait_for_recovery("worker cut off from the database: the worker stops its job")
    cluster.account()
    first, second = Attempt.objects.filter(run=run).order_by("number")
    assert (first.outcome, first.late_outcome, second.outcome) == ("lost", "", "succeeded")
    starts = read_log(tmp_path / "witnesses.jsonl", Anchor(time.monotonic(), second.started_at))
    first_start, second_start = (
        next(start for start in starts if start.run == str(run.pk) and start.attempt == number)
        for number in (1, 2)
    )
    assert first_start.ended_at is not None
    assert first_start.ended_at < second_start.began_at
    assert read(store, "SELECT attempt, written FROM try") == [(2, 1)]
