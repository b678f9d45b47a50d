"""The database is stopped, killed and suspended. Processes survive, and no run is lost or
duplicated.

During an outage, this process doesn't query the database either. It reads logs and the broker's
queue instead.
"""

import os
import signal
import time
from collections.abc import Iterator

import pytest
from django.db import connections
from redis import Redis

from django_dcron.models import Attempt, Run
from tests import services
from tests.cluster.cluster import SECOND, TIMEOUT, WITNESS, Cluster, shorter_durations, suspended
from tests.factories import make_job
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]

UNREACHABLE, REACHABLE = "database unusable: ", "database usable again: "


@pytest.fixture
def database(
    cluster: Cluster, database_server: services.Server | None
) -> Iterator[services.Server]:
    """A database server that the test may stop, kill and suspend. It works again after the test."""
    assert database_server is not None
    yield database_server
    database_server.resume()
    if not database_server.running:
        database_server.start()
    connections.close_all()


def start_database(database: services.Server) -> None:
    database.start()
    connections.close_all()  # the connections of this process


def wait_for(seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds + 60, what=what, interval=0.1)


def wait_for_lines(cluster: Cluster, text: str, times: int = 1) -> None:
    """Wait until each node has logged the text ``times`` times."""
    for node in cluster.nodes:
        what = f"{text!r} {times} times"
        wait_until(lambda: node.process.log.count(text) >= times, TIMEOUT, what=what)  # noqa: B023


STOPPED = "stopped because the worker couldn't write the heartbeat"
"""The beginning of the message."""


def assert_all_processes_survived(cluster: Cluster, outages: set[int]) -> None:
    """Assert that no process exited and that no node declared a run lost.

    A worker may have stopped one, because it couldn't write heartbeats for a whole lease.
    """
    for member in [*cluster.nodes, *cluster.workers]:
        assert not member.exits, member.process.log[-5000:]
    for node in cluster.nodes:
        log = node.process.log
        assert log.count(UNREACHABLE) == log.count(REACHABLE), "logged once each"
        assert log.count(UNREACHABLE) in outages
    lost = Attempt.objects.filter(outcome="lost").exclude(message__startswith=STOPPED)
    assert not lost.exists(), "all workers were alive"


@pytest.mark.nightly
def test_no_run_is_lost_while_the_database_is_stopped_for_a_minute(
    cluster: Cluster, database: services.Server, redis_server: services.Server
) -> None:
    impatient = shorter_durations(REDELIVER_AFTER=10)
    late = {"misfire_grace": 5 * SECOND}
    for policy in ("skip", "run_latest", "run_all"):
        make_job(name=policy, target=WITNESS, overlap_policy="allow", misfire_policy=policy, **late)
    # The run is executing when the database fails. Its outcome must be recorded when the
    # database is back.
    make_job(name="long", target=WITNESS, schedule="*/5 * * * * *", kwargs={"seconds": 3}, **late)
    longest = {"kwargs": {"seconds": 30}, "misfire_policy": "skip", "max_attempts": 2}
    make_job(name="longest", target=WITNESS, schedule="*/20 * * * * *", **longest)
    cluster.start(jobs=1, node_env=impatient, worker_env=impatient)
    cluster.run_for(3)
    running = {name: Run.objects.running().filter(job__name=name) for name in ("longest", "long")}
    for name, runs in running.items():
        wait_until(runs.exists, TIMEOUT, what=f"the {name} run to start")
    at_work, stopped = running["long"].get(), running["longest"].get()
    database.stop()
    stopped_at = time.monotonic()
    wait_for_lines(cluster, UNREACHABLE)
    broker = Redis(unix_socket_path=str(redis_server.answers_at), db=1)
    waiting = broker.llen("celery")
    wait_until(
        lambda: broker.llen("celery") > waiting, TIMEOUT, what="runs of the agenda to be dispatched"
    )
    broker.close()
    wait_for(60 - (time.monotonic() - stopped_at), what="a minute")
    with suspended(cluster.workers):  # the nodes reconnect first and find only old heartbeats
        start_database(database)
        wait_for_lines(cluster, REACHABLE)
    cluster.account()
    outcomes = dict(stopped.attempts.values_list("number", "outcome"))
    assert outcomes == {1: "lost", 2: "succeeded"}, (
        "its worker stopped it after a lease without heartbeats"
    )
    assert stopped.attempts.get(number=1).message.startswith(STOPPED)
    assert_all_processes_survived(cluster, outages={1})
    at_work.refresh_from_db()
    assert (at_work.state, at_work.attempt) == ("succeeded", 1)
    assert at_work.finished_at > at_work.started_at + 50 * SECOND, (
        "the worker kept the outcome until the database was back"
    )
    missed = Run.objects.filter(state="missed").values_list("job__name", flat=True)
    assert "skip" in missed
    assert "run_all" not in missed
    assert Run.objects.filter(job__name="run_latest", missed_before__gt=30).exists()
    assert Run.objects.filter(job__name="run_all", state="succeeded").count() > 60


def test_no_run_is_lost_when_the_database_is_restarted_killed_and_suspended(
    cluster: Cluster, database: services.Server
) -> None:
    """Each fault happens while runs are claimed, started and finished."""
    quick = shorter_durations(REDELIVER_AFTER=10, RUN_LEASE=10)
    make_job(name="long", target=WITNESS, schedule="*/5 * * * * *", kwargs={"seconds": 3})
    cluster.start(jobs=6, exclusive="skip", node_env=quick, worker_env=quick)
    cluster.run_for(2)
    database.stop()
    wait_for_lines(cluster, UNREACHABLE, 1)
    start_database(database)
    wait_for_lines(cluster, REACHABLE, 1)
    os.kill(database.pid, signal.SIGKILL)
    wait_for_lines(cluster, UNREACHABLE, 2)
    database.kill()
    start_database(database)
    wait_for_lines(cluster, REACHABLE, 2)
    claimed = Run.objects.count()
    wait_until(lambda: Run.objects.count() > claimed, TIMEOUT, what="claims to continue")
    database.suspend()
    wait_for(20, "far more than a run lease")
    database.resume()
    cluster.account()
    # A database that was suspended within a claim may end the idle transaction. That node logs a
    # third outage.
    assert_all_processes_survived(cluster, outages={2, 3})
