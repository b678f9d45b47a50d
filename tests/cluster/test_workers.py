"""Workers die, are suspended or are missing, at any moment of a run."""

import signal

import pytest
from django.db.models import QuerySet

from django_dcron.models import Attempt, Run
from tests.cluster.cluster import (
    AWAITED_WITNESS,
    SECOND,
    TIMEOUT,
    WITNESS,
    Cluster,
    Member,
    fault,
    now,
    shorter_durations,
    stopped,
    suspended,
)
from tests.factories import make_job
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]

QUICK = shorter_durations(REDELIVER_AFTER=5, RUN_LEASE=6)


def lost() -> QuerySet[Attempt]:
    return Attempt.objects.filter(outcome="lost")


def unfinished_messages(worker: Member) -> int:
    """The number of messages that the worker has fetched and whose runs haven't ended."""
    log = worker.process.log
    return log.count(" received") - log.count(" succeeded in ")


def test_no_run_is_lost_when_workers_are_killed_between_steps(cluster: Cluster) -> None:
    """Workers die before the work, between the work and its record, or before the acknowledgement.

    The nodes that take over these runs die, too. With a pool of threads, the whole worker dies with
    its prefetched messages. With a pool of processes, only the child dies, and Celery reports it at
    once.
    """
    steps = fault(
        ["start.held", "start.done", "work.done", "finish.ended", "record.done"], chance=0.06
    )
    rescuers = fault(["rescue.begun", "retry.written"], chance=0.1)
    cluster.add_worker(pool="threads", env=QUICK | steps, wait=False)
    cluster.start(
        jobs=4,
        workers=1,
        node_env=QUICK | rescuers,
        worker_env=QUICK | steps,
        kwargs={"seconds": 0.1},
    )
    threads, prefork = cluster.workers
    cluster.run_for(12)
    wait_until(lambda: len(threads.exits) >= 2, TIMEOUT, what="a worker to be killed twice")
    reported = lost().filter(message__startswith="worker process died")
    wait_until(reported.exists, TIMEOUT, what="a child's death to be reported")
    rescued = lost().filter(message__contains="no heartbeat from")
    wait_until(rescued.exists, TIMEOUT, what="a run to be rescued")
    fetched = Run.objects.filter(deliveries__gt=1)
    wait_until(fetched.exists, TIMEOUT, what="a prefetched message to be lost with its worker")
    assert set(threads.exits) == {-signal.SIGKILL}
    assert not prefork.exits
    cluster.remove_faults()  # kills the remaining workers with all prefetched messages
    cluster.account()


def test_no_run_is_lost_when_nodes_are_killed_while_their_coroutines_wait(
    cluster: Cluster,
) -> None:
    """Each node executes many coroutines at once, all of which die with it."""
    steps = QUICK | fault(["start.done", "work.done", "record.done"], chance=0.01)
    cluster.start(
        jobs=8, nodes=0, workers=0, exclusive="allow", target=AWAITED_WITNESS, kwargs={"seconds": 1}
    )
    for _ in range(2):
        cluster.add_node("--embedded", env=steps)
    cluster.run_for(12)
    rescued = lost().filter(message__contains="no heartbeat from")
    wait_until(rescued.exists, TIMEOUT, what="a run to be rescued")
    cluster.remove_faults()
    cluster.account()


@pytest.mark.nightly
def test_worker_suspended_past_its_lease_duplicates_no_run(cluster: Cluster) -> None:
    """Other workers have taken over its runs. Its late results change nothing."""
    cluster.start(jobs=10, node_env=QUICK, worker_env=QUICK, kwargs={"seconds": 0.4})
    first, running = cluster.workers[0], Run.objects.running()

    def busy() -> bool:
        # The other worker executes at most two of the running runs.
        return unfinished_messages(first) >= 4 and running.count() >= 3

    wait_until(busy, TIMEOUT, what="the worker to be busy and to have prefetched runs")
    with suspended([first]):
        wait_until(lost().exists, TIMEOUT, what="its runs to be lost")
        elsewhere = Run.objects.filter(deliveries__gt=1, state="succeeded")
        wait_until(elsewhere.exists, TIMEOUT, what="its prefetched runs to be executed elsewhere")

    def late_runs_ended() -> bool:
        """Whether the code ended late or was stopped because its heartbeats failed for a lease."""
        late = lost().exclude(late_outcome="").exists()
        return late or "run stopped, heartbeat not written: " in first.process.log

    wait_until(late_runs_ended, TIMEOUT, what="the end of its runs")
    cluster.account()
    assert not any(worker.exits for worker in cluster.workers)


@pytest.mark.nightly
def test_suspended_workers_do_not_block_jobs_by_their_transactions(cluster: Cluster) -> None:
    """One worker is suspended in the transaction of a start, the other in that of a finish.

    Other processes need the same rows, and they get them before the workers resume.
    """
    steps = [fault(point, signal="SIGSTOP", times=3) for point in ("start.held", "finish.ended")]
    suspended_workers = [
        cluster.add_worker(pool="threads", env=QUICK | step, wait=False) for step in steps
    ]
    overlapping = {
        "schedule": "* * * * * *",
        "overlap_policy": "queue_one",
        "kwargs": {"seconds": 1.2},
    }
    jobs = cluster.start(jobs=4, workers=1, node_env=QUICK, worker_env=QUICK, **overlapping)
    wait_until(lambda: all(map(stopped, suspended_workers)), TIMEOUT, what="both to be suspended")
    suspended_at = now()
    started = Run.objects.filter(started_at__gt=suspended_at).order_by().values("job").distinct()
    wait_until(lambda: started.count() == len(jobs), what="every job to continue", interval=0.2)
    cluster.wait_for(suspended_at + 8 * SECOND)
    for worker in suspended_workers:
        worker.process.resume()
    cluster.account()
    assert not any(worker.exits for worker in cluster.workers)


@pytest.mark.nightly
def test_misfire_policies_apply_after_an_outage_of_all_workers(cluster: Cluster) -> None:
    """Each job's policy decides about the overdue runs."""
    for policy in ("skip", "run_latest", "run_all"):
        late = {"misfire_policy": policy, "misfire_grace": 4 * SECOND}
        make_job(name=policy, target=WITNESS, overlap_policy="allow", **late)
    cluster.start(jobs=1, node_env=QUICK, worker_env=QUICK)
    cluster.run_for(2)
    for worker in cluster.workers:
        worker.kill_for_good()
    stopped_at = now()
    cluster.wait_for(stopped_at + 12 * SECOND)
    for worker in cluster.workers:
        worker.supervised = True
    cluster.account()
    due_during_outage = Run.objects.filter(
        scheduled_at__gt=stopped_at, scheduled_at__lt=stopped_at + 6 * SECOND
    )
    states = {
        name: set(due_during_outage.filter(job__name=name).values_list("state", flat=True))
        for name in ("skip", "run_latest", "run_all")
    }
    assert states == {"skip": {"missed"}, "run_latest": {"missed"}, "run_all": {"succeeded"}}
    assert Run.objects.filter(
        job__name="run_latest", state="succeeded", scheduled_at__gt=stopped_at
    ).exists()


@pytest.mark.nightly
def test_restarted_workers_execute_queued_runs_without_redelivery(cluster: Cluster) -> None:
    """Nothing waits for a timer: no queued run is dispatched again before it starts."""
    late = {"misfire_policy": "run_all", "misfire_grace": 600 * SECOND, "overlap_policy": "allow"}
    cluster.start(jobs=4, kwargs={"seconds": 0.05}, **late)
    cluster.run_for(2)
    for worker in cluster.workers:
        worker.kill_for_good()
    queued = Run.objects.queued().filter(due_at__gt=now())
    wait_until(lambda: queued.count() >= 40, TIMEOUT, what="runs in the queue", interval=0.2)
    in_queue = list(queued.values_list("pk", flat=True))
    for worker in cluster.workers:
        worker.supervised = True
    started = Run.objects.filter(pk__in=in_queue, started_at__isnull=False)
    wait_until(
        lambda: started.count() == len(in_queue),
        TIMEOUT,
        what="the queued runs to start",
        interval=0.1,
    )
    assert not started.exclude(deliveries=1).exists()
    cluster.account()
