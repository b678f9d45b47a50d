"""Another session locks the rows of a run that a worker is to start.

The worker starts other runs and returns this run to the nodes once its rows are free.
"""

import logging
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_dcron.execution import executor
from django_dcron.execution.executor import execute
from django_dcron.execution.heartbeat import Heartbeats
from django_dcron.models import Run
from django_dcron.policies.slots import Slot
from django_dcron.runs import deliveries
from tests.execution.conftest import attempt_of, reread
from tests.factories import make_idle_job, make_run
from tests.lock_holder import keeping_locked, lock_limit
from tests.logs import logged
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.parametrize("state", ["pending", "queued"])
def test_worker_returns_a_locked_run_and_executes_others(state: str, make_target: Any) -> None:
    target = make_target(lambda: "done")
    run, other = (
        make_run(make_idle_job(target=target), each, node="a-node") for each in (state, "queued")
    )
    heartbeats, limit = Heartbeats(), lock_limit()
    with keeping_locked(Run.objects.filter(pk=run.pk)):
        assert not execute(run.pk, 1, worker="w", heartbeats=heartbeats)
        assert execute(other.pk, 1, worker="w", heartbeats=heartbeats)
        assert (reread(run).state, reread(other).state) == (state, "succeeded")
        assert lock_limit() == limit, "the limit of the project's connection is restored"
    wait_until(
        lambda: (reread(run).state, reread(run).node) == ("pending", ""),
        what="the run to be given back",
    )
    assert execute(run.pk, 1, worker="w", heartbeats=heartbeats)
    assert attempt_of(run).outcome == "succeeded"


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_worker_does_not_wait_for_a_locked_slot_holder(make_target: Any) -> None:
    job = make_idle_job(target=make_target(lambda: None), overlap_policy="skip")
    holder = make_run(job, "running", slot=Slot.RUNNING)
    run = make_run(job, "queued")
    heartbeats, limit = Heartbeats(), lock_limit()
    with keeping_locked(Run.objects.filter(pk=holder.pk)):
        assert not execute(run.pk, 1, worker="w", heartbeats=heartbeats)
        assert lock_limit() == limit
    wait_until(
        lambda: reread(run).node == "" and reread(run).state == "pending",
        what="the run to be given back",
    )


def test_worker_waits_for_a_brief_lock(make_target: Any) -> None:
    run = make_run(make_idle_job(target=make_target(lambda: "done")), "queued")
    tries: list[int] = []
    real = executor.start_attempt

    def deadlocked_once(*given: Any, **how: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise OperationalError("deadlock detected")
        return real(*given, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "start_attempt", deadlocked_once)
        assert execute(run.pk, 1, worker="w", heartbeats=Heartbeats())
    assert reread(run).state == "succeeded"


def test_run_returns_to_the_nodes_after_a_database_outage(
    settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_dcron.runs")
    run, heartbeats = make_run(make_idle_job(), "queued", node="a-node"), Heartbeats()
    real = deliveries.return_to_nodes

    def gone(*given: Any) -> bool:
        raise OperationalError("gone")

    monkeypatch.setattr(deliveries, "return_to_nodes", gone)
    heartbeats.return_later(run.pk, 1)
    wait_until(lambda: logged(caplog, "return_postponed"))
    monkeypatch.setattr(deliveries, "return_to_nodes", real)
    wait_until(lambda: reread(run).node == "", what="the run to be given back")
    wait_until(lambda: not heartbeats._to_return, what="the list to be empty")


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_returning_runs_to_nodes_waits_only_briefly_for_locks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit applies from the thread's start, because later heartbeats wait for the thread."""
    limits: list[object] = []
    real = deliveries.return_to_nodes

    def hand_back(run_id: Any, attempt: int) -> bool:
        limits.append(lock_limit())
        return real(run_id, attempt)

    monkeypatch.setattr(deliveries, "return_to_nodes", hand_back)
    run, heartbeats = make_run(make_idle_job(), "queued", node="a-node"), Heartbeats()
    heartbeats.return_later(run.pk, 1)
    wait_until(lambda: reread(run).node == "", what="the run to be given back")
    assert limits[0] == {"postgresql": "200ms", "mysql": 1}[connection.vendor]


def test_runs_are_no_longer_returned_after_the_redelivery_timeout(settings: Any) -> None:
    heartbeats = Heartbeats()
    heartbeats._to_return[make_run(make_idle_job(), "queued").pk, 1] = 0.0
    heartbeats._return_unlocked_runs()
    heartbeats._limits.lift()
    assert heartbeats._to_return == {}
