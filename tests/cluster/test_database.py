"""The database is stopped, killed and frozen: nodes and workers live on, and nothing is lost or doubled.

While it is away this process asks it nothing either: what happens meanwhile is read from logs and from the broker.
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
from tests.cluster.cluster import PATIENCE, SECOND, WITNESS, Cluster, frozen, lowered
from tests.factories import make_job
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]

GONE, BACK = "the database does not answer", "the database answers"


@pytest.fixture
def database(cluster: Cluster, database_server: services.Server | None) -> Iterator[services.Server]:
    """The server, which a test may stop, kill and freeze: it is back for whatever comes after the test."""
    assert database_server is not None
    yield database_server
    database_server.thaw()
    if not database_server.running:
        database_server.start()
    connections.close_all()


def start_again(database: services.Server) -> None:
    database.start()
    connections.close_all()  # this process's own


def wait_for(seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds + 60, what=what, interval=0.1)


def wait_for_lines(cluster: Cluster, text: str, times: int = 1) -> None:
    """Until each node has said so, so many times."""
    for node in cluster.nodes:
        wait_until(lambda: node.process.log.count(text) >= times, PATIENCE, what=f"{text!r} {times} times")  # noqa: B023


def assert_everybody_lived_on(cluster: Cluster, outages: set[int]) -> None:
    for member in [*cluster.nodes, *cluster.workers]:
        assert not member.exits, member.process.log[-5000:]
    for node in cluster.nodes:
        log = node.process.log
        assert log.count(GONE) == log.count(BACK), "said once each way"
        assert log.count(GONE) in outages
    assert not Attempt.objects.filter(outcome="lost").exists(), "all of them were alive"


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_database_away_for_a_minute(
    cluster: Cluster, database: services.Server, redis_server: services.Server
) -> None:
    impatient = lowered(REDELIVER_AFTER=10)
    late = {"misfire_grace": 5 * SECOND}
    for policy in ("skip", "run_latest", "run_all"):
        make_job(name=policy, target=WITNESS, overlap_policy="allow", misfire_policy=policy, **late)
    # At work when the database goes, with its outcome to record when it is back.
    make_job(name="long", target=WITNESS, schedule="*/5 * * * * *", kwargs={"seconds": 3}, **late)
    cluster.start(jobs=1, node_env=impatient, worker_env=impatient)
    cluster.run_for(3)
    long = Run.objects.running().filter(job__name="long")
    wait_until(long.exists, PATIENCE, what="a long run to start")
    at_work = long.get()
    database.stop()
    stopped_at = time.monotonic()
    wait_for_lines(cluster, GONE)
    broker = Redis(unix_socket_path=str(redis_server.answers_at), db=1)
    waiting = broker.llen("celery")
    wait_until(lambda: broker.llen("celery") > waiting, PATIENCE, what="the agenda to be handed over")
    broker.close()
    wait_for(60 - (time.monotonic() - stopped_at), what="a minute")
    with frozen(cluster.workers):  # the nodes are first to be back, and find nothing but old heartbeats
        start_again(database)
        wait_for_lines(cluster, BACK)
    cluster.account()
    assert_everybody_lived_on(cluster, outages={1})
    at_work.refresh_from_db()
    assert (at_work.state, at_work.attempt) == ("succeeded", 1)
    assert at_work.finished_at > at_work.started_at + 50 * SECOND, "it waited with its outcome"
    missed = Run.objects.filter(state="missed").values_list("job__name", flat=True)
    assert "skip" in missed
    assert "run_all" not in missed
    assert Run.objects.filter(job__name="run_latest", missed_before__gt=30).exists()
    assert Run.objects.filter(job__name="run_all", state="succeeded").count() > 60


@pytest.mark.timeout(240)
def test_database_restarted_killed_and_frozen(cluster: Cluster, database: services.Server) -> None:
    """Each of them while runs are claimed, started and finished."""
    quick = lowered(REDELIVER_AFTER=10, RUN_LEASE=10)
    make_job(name="long", target=WITNESS, schedule="*/5 * * * * *", kwargs={"seconds": 3})
    cluster.start(jobs=6, exclusive="skip", node_env=quick, worker_env=quick)
    cluster.run_for(2)
    database.stop()
    wait_for_lines(cluster, GONE, 1)
    start_again(database)
    wait_for_lines(cluster, BACK, 1)
    os.kill(database.pid, signal.SIGKILL)
    wait_for_lines(cluster, GONE, 2)
    database.kill()
    start_again(database)
    wait_for_lines(cluster, BACK, 2)
    claimed = Run.objects.count()
    wait_until(lambda: Run.objects.count() > claimed, PATIENCE, what="claims to go on")
    database.freeze()
    wait_for(20, "far more than a run lease")
    database.thaw()
    cluster.account()
    # A database that was frozen in the middle of a claim may end it for having been idle: a third outage, to that node.
    assert_everybody_lived_on(cluster, outages={2, 3})
