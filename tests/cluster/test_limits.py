"""Test that limits are never exceeded while workers and nodes are killed."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.db import connection

from django_dcron import control
from django_dcron.models import Limit, LimitPlace, Run
from tests.cluster.cluster import SECOND, TIMEOUT, WITNESS, Cluster, fault, shorter_durations
from tests.factories import make_job
from tests.verdict.finding import TOLERANCE
from tests.verdict.history import Change
from tests.verdict.tables import read_changes
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql]

QUICK = shorter_durations(REDELIVER_AFTER=5, RUN_LEASE=6)
ALLOWED = 3
WORKER_FAULTS = fault(["limit.joined", "limit.freed", "start.done", "finish.ended"], chance=0.03)
NODE_FAULTS = fault(["limit.freed", "retry.written"], chance=0.1)
WITH_KEY = "customer {kwargs[number]}"
CUSTOMERS = ("customer 1", "customer 2", "customer 3")


def test_limit_holds_while_workers_and_nodes_are_killed(cluster: Cluster) -> None:
    """Processes are also killed within transactions that assign, free or hand over a place.

    The database records all state changes in order. The test counts the running runs after each
    change.
    """
    limit = control.save_limit(Limit(name="api", max_running=ALLOWED))
    start(cluster, limit, schedule="*/4 * * * * *")
    cluster.run_for(12)
    wait_until_reached(lambda changes: max(numbers_running(changes)) >= ALLOWED)
    wait_for_waiting_and_killed(cluster)
    cluster.account()
    assert cluster.history is not None
    assert max(numbers_running(cluster.history.changes)) == ALLOWED
    assert [each.max_running for each in cluster.history.limits] == [ALLOWED]
    assert {each.limit for each in cluster.history.changes} == {"api"}
    assert_no_place_is_left()


def test_each_key_has_its_own_places_while_workers_and_nodes_are_killed(cluster: Cluster) -> None:
    """The keys come from the arguments of the jobs and of triggered runs."""
    limit = control.save_limit(Limit(name="api", key=WITH_KEY, max_running=2))
    start_for_each_customer(cluster, limit, every=4)
    retried = {"max_attempts": 5, "retry_backoff": SECOND}  # workers are killed
    triggered = make_job(
        target=WITNESS, schedule="@never", limit=limit, overlap_policy="allow", **retried
    )
    for number in (1, 2, 3) * 4:
        control.trigger(triggered, kwargs={"seconds": 0.3, "number": number})
    cluster.run_for(12)
    wait_until_reached(
        lambda changes: (
            highest_by_key(changes) == dict.fromkeys(CUSTOMERS, 2)
            and max(numbers_running(changes)) > 2
        )
    )
    wait_for_waiting_and_killed(cluster)
    cluster.account()
    assert cluster.history is not None
    assert highest_by_key(cluster.history.changes) == dict.fromkeys(CUSTOMERS, 2)
    assert_no_place_is_left()


def test_starts_within_an_interval_are_limited_while_workers_and_nodes_are_killed(
    cluster: Cluster,
) -> None:
    """A process that is killed after it has counted a start doesn't allow another one."""
    given = {"max_started": ALLOWED, "interval": 2 * SECOND}
    limit = control.save_limit(Limit(name="sms", key=WITH_KEY, **given))
    start_for_each_customer(cluster, limit, every=2)
    cluster.run_for(12)
    wait_for_waiting_and_killed(cluster)
    cluster.account()
    assert cluster.history is not None
    by_key = changes_by_key(cluster.history.changes)
    highest = {
        key: max(numbers_started(changes, 2 * SECOND - TOLERANCE))
        for key, changes in by_key.items()
    }
    assert highest == dict.fromkeys(CUSTOMERS, ALLOWED)


def start(cluster: Cluster, limit: Limit, **fields: object) -> None:
    """Start processes with faults, and six jobs with the limit."""
    cluster.add_worker(pool="threads", env=QUICK | WORKER_FAULTS, wait=False)
    given = {"kwargs": {"seconds": 0.15}, "limit": limit, "misfire_grace": 120 * SECOND} | fields
    cluster.start(
        jobs=6, workers=2, node_env=QUICK | NODE_FAULTS, worker_env=QUICK | WORKER_FAULTS, **given
    )


def start_for_each_customer(cluster: Cluster, limit: Limit, every: int) -> None:
    """Start two jobs for each of two customers, and six for a third one.

    ``every``: the interval of the most frequent jobs, in seconds.
    """
    given = {"target": WITNESS, "limit": limit, "misfire_grace": 120 * SECOND, "max_attempts": 5}
    for number in (1, 2):
        for name, policy in (("all", "allow"), ("in turn", "queue_all")):
            make_job(
                name=f"customer {number} {name}",
                schedule=f"*/{every if policy == 'allow' else 2 * every} * * * * *",
                kwargs={"seconds": 0.4, "number": number},
                overlap_policy=policy,
                retry_backoff=SECOND,
                **given,
            )
    given = {"kwargs": {"seconds": 0.2, "number": 3}, "schedule": f"*/{4 * every} * * * * *"}
    start(cluster, limit, **given)


def wait_for_waiting_and_killed(cluster: Cluster) -> None:
    """Wait until a run has waited for the limit and a worker was killed, and end the faults."""
    waited = Run.objects.filter(reason__startswith="waits for limit")
    wait_until(waited.exists, TIMEOUT, what="a run to wait for the limit")
    threads = cluster.workers[0]
    wait_until(lambda: threads.exits, TIMEOUT, what="a worker to be killed")
    cluster.remove_faults()


def wait_until_reached(reaches: Callable[[list[Change]], bool]) -> None:
    """Wait until the changes so far reach what the test looks for, however slow the machine is."""

    def reached() -> bool:
        with connection.cursor() as cursor:
            return reaches(read_changes(cursor))

    wait_until(reached, TIMEOUT, what="the runs to use all places", interval=1.0)


def highest_by_key(changes: list[Change]) -> dict[str, int]:
    return {key: max(numbers_running(each)) for key, each in changes_by_key(changes).items()}


def changes_by_key(changes: list[Change]) -> dict[str, list[Change]]:
    found = defaultdict(list)
    for change in changes:
        found[change.key].append(change)
    return found


def numbers_running(changes: list[Change]) -> Iterator[int]:
    """Yield the number of running runs after each change."""
    running: set[str] = set()
    for change in changes:
        (running.add if change.new == "running" else running.discard)(change.run)
        yield len(running)


def numbers_started(changes: list[Change], interval: timedelta) -> Iterator[int]:
    """Yield the number of starts within the interval up to each start."""
    started = [each.at for each in changes if each.new == "running" and each.old != "running"]
    for last in started:
        yield sum(last - interval < at <= last for at in started)


def assert_no_place_is_left() -> None:
    """Only runs that haven't ended may have a place."""
    assert not LimitPlace.objects.exclude(run__state__in=("pending", "queued", "waiting")).exists()
