"""Runs in threads of the node: limited in number, started once, and not lost at the close."""

import logging
import threading
from typing import Any
from uuid import UUID

import pytest
from django.db import connections, transaction

from django_dcron.dispatch import DispatchFailed, make_dispatcher
from django_dcron.dispatch.thread import ThreadDispatcher
from django_dcron.models import Job
from tests.factories import make_idle_job
from tests.scheduler.stand_ins import due_run
from tests.waiting import TIMEOUT, wait_until


class Work:
    """The function that the threads call. Each call returns only when the test allows it."""

    def __init__(self) -> None:
        self.started: list[UUID] = []
        self.may_end = threading.Event()
        self.max_concurrent = 0
        self._inside = 0
        self._lock = threading.Lock()

    def __call__(self, run_id: UUID, attempt: int, *, worker: str) -> None:
        with self._lock:
            self.started.append(run_id)
            self._inside += 1
            self.max_concurrent = max(self.max_concurrent, self._inside)
        assert self.may_end.wait(TIMEOUT)
        with self._lock:
            self._inside -= 1


@pytest.fixture
def work() -> Work:
    return Work()


def test_number_of_concurrent_runs_is_limited_to_the_threads(work: Work) -> None:
    dispatcher = ThreadDispatcher(work, 3, 1)
    runs = [due_run(f"{n}") for n in range(10)]
    dispatcher.publish([dispatcher.prepare(run) for run in runs])
    wait_until(lambda: len(work.started) == 3, what="three runs to start")
    work.may_end.set()
    dispatcher.close(wait=True)
    assert set(work.started[:3]) == {run.run_id for run in runs[:3]}, "three threads start at once"
    assert sorted(work.started) == sorted(run.run_id for run in runs)
    assert work.max_concurrent == 3


def test_unfinished_run_is_not_accepted_twice(work: Work) -> None:
    dispatcher = ThreadDispatcher(work, 1, 1)
    first, second = due_run("a"), due_run("b")
    dispatcher.publish([first, second, first])
    dispatcher.publish([first, second])
    work.may_end.set()
    wait_until(lambda: not dispatcher._submitted, what="both runs to end")
    assert work.started == [first.run_id, second.run_id]
    dispatcher.publish([first])  # a later redelivery
    dispatcher.close(wait=True)
    assert work.started == [first.run_id, second.run_id, first.run_id]


def test_unstarted_runs_can_be_taken_back(work: Work) -> None:
    dispatcher = ThreadDispatcher(work, 1, 1)
    runs = [due_run(f"{n}") for n in range(3)]
    dispatcher.publish(runs)
    wait_until(lambda: work.started, what="one run to start")
    assert dispatcher.take_unstarted() == [run.key for run in runs[1:]]
    assert dispatcher.take_unstarted() == []
    work.may_end.set()
    dispatcher.close(wait=True)
    assert work.started == [runs[0].run_id]


def test_close_without_waiting_starts_no_more_runs(work: Work) -> None:
    dispatcher = ThreadDispatcher(work, 1, 1)
    dispatcher.publish([due_run("a"), due_run("b")])
    wait_until(lambda: work.started, what="one run to start")
    dispatcher.close(wait=False)
    work.may_end.set()
    dispatcher.close(wait=True)
    assert len(work.started) == 1


def test_publish_fails_after_close(work: Work) -> None:
    dispatcher = ThreadDispatcher(work, 1, 1)
    dispatcher.close(wait=True)
    run = due_run("a")
    with pytest.raises(DispatchFailed):
        dispatcher.publish([run])
    assert not dispatcher._submitted


def test_escaped_error_is_logged_and_the_thread_survives(caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    def execute(run_id: UUID, attempt: int, **options: Any) -> None:
        seen.append(run_id)
        raise SystemExit(3) if len(seen) == 1 else ZeroDivisionError

    dispatcher = make_dispatcher("thread", execute)
    runs = [due_run("a"), due_run("b")]
    dispatcher.publish(runs)
    dispatcher.close(wait=True)
    assert sorted(seen) == sorted(run.run_id for run in runs)
    errors = [vars(record) for record in caplog.records if record.levelno == logging.ERROR]
    assert sorted((each["event"], each["run"], each["job"]) for each in errors) == sorted(
        ("outcome_not_recorded", str(run.run_id), run.job_name) for run in runs
    )


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("max_age", "is_kept"), [(0, False), (None, True)])
def test_threads_keep_their_connections_as_long_as_the_settings_allow(
    monkeypatch: pytest.MonkeyPatch, max_age: int | None, is_kept: bool
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", max_age)
    sessions = []

    def execute(run_id: UUID, attempt: int, *, worker: str) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            sessions.append(cursor.fetchone())
        if len(sessions) == 2:
            connections["default"].close()

    dispatcher = ThreadDispatcher(execute, 1, 1)
    for name in ("a", "b"):
        dispatcher.publish([due_run(name)])
    dispatcher.close(wait=True)
    assert (sessions[0] == sessions[1]) == is_kept


@pytest.mark.django_db(transaction=True)
def test_transaction_that_a_job_leaves_open_does_not_reach_the_next_job() -> None:
    found: list[Any] = []

    def execute(run_id: UUID, attempt: int, *, worker: str) -> None:
        found.append(connections["default"].in_atomic_block)
        found.append(list(Job.objects.values_list("name", flat=True)))
        transaction.atomic().__enter__()
        make_idle_job(name=str(run_id))

    dispatcher = ThreadDispatcher(execute, 1, 1)
    for name in ("a", "b"):
        dispatcher.publish([due_run(name)])
    dispatcher.close(wait=True)
    assert found == [False, [], False, []]
