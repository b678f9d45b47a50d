"""Chains with a real worker, which dispatches the runs that follow.

Invariant: a process that dies at any moment leaves exactly one following run.
"""

import json
from typing import Any

import pytest

from django_dcron import control
from django_dcron.jobs.attempt_end import declare_lost
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import State, Trigger
from tests.app.faults import VARIABLE
from tests.conftest import StartProcess
from tests.execution.conftest import reread, state_of
from tests.factories import make_idle_job, make_job
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def chain() -> tuple[Job, Job]:
    first = make_idle_job()
    return first, make_job(schedule="@never", after={str(first): "ended"})


def followers(job: Job) -> Any:
    return Run.objects.filter(job=job, trigger=Trigger.CHAIN)


def test_following_runs_are_executed_without_a_node(start_worker: StartProcess) -> None:
    start_worker()
    first, after = chain()
    last = make_job(schedule="@never", after={str(after): "succeeded"})
    run = control.trigger(first)
    wait_until(
        followers(last).filter(state=State.SUCCEEDED).exists, 30, what="the end of the chain"
    )
    assert state_of(run) == State.SUCCEEDED
    assert followers(after).get().state == State.SUCCEEDED
    assert Run.objects.count() == 3


@pytest.mark.parametrize("point", ["finish.ended", "follow.made"])
def test_worker_killed_during_a_finish_leaves_no_partial_finish(
    start_worker: StartProcess, point: str
) -> None:
    """First the child process that executed the run dies, then the worker that records its loss.

    In the end, the run is declared lost.
    """
    worker = start_worker(env={VARIABLE: json.dumps({"at": point, "times": 1})})
    first, after = chain()
    run = control.trigger(first)
    wait_until(lambda: not worker.running, what="the death of the worker")
    assert state_of(run) == State.RUNNING, "the end is rolled back"
    assert not followers(after).exists()
    assert declare_lost(reread(run), "gone")
    assert state_of(run) == State.FAILED
    assert followers(after).count() == 1


def test_worker_killed_after_the_end_of_a_run_leaves_one_follower(
    start_worker: StartProcess,
) -> None:
    start_worker(env={VARIABLE: json.dumps({"at": "record.done", "times": 1})})
    first, after = chain()
    run = control.trigger(first)
    wait_until(lambda: state_of(run) == State.SUCCEEDED, 30)
    assert not declare_lost(reread(run), "gone")
    assert followers(after).count() == 1
