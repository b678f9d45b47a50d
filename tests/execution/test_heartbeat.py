"""Test the heartbeats of a worker process.

They renew the leases of its runs, write output and read cancellations. An error with one run
doesn't affect the others.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from math import ceil
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from django.db import DataError, OperationalError, connections

from django_dcron import control
from django_dcron.conf import settings as conf
from django_dcron.db.connection_sockets import KEEPALIVE_PROBES
from django_dcron.exceptions import RunCancelled
from django_dcron.execution import heartbeat as module
from django_dcron.execution import heartbeat_loss
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.executor import execute
from django_dcron.execution.heartbeat import Heartbeats, process_heartbeats
from django_dcron.execution.heartbeat_loss import RunHeartbeat
from django_dcron.models import Attempt, Run
from django_dcron.runs import endings, transitions
from django_dcron.runs.endings import AttemptEnd
from django_dcron.scheduler.tick import RESCUE_EVERY
from django_dcron.utils.threads import DcronThread
from tests.execution.conftest import attempt_of, reread
from tests.factories import make_idle_job, make_run
from tests.lock_holder import keeping_locked
from tests.logs import logged
from tests.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def quick_heartbeats(settings: Any) -> Heartbeats:
    settings.DCRON_RUN_LEASE = timedelta(seconds=0.15)  # a heartbeat every 50 ms
    settings.DCRON_STOP_WITHOUT_HEARTBEAT_AFTER = None  # a slow machine may exceed such a lease
    return Heartbeats()


@pytest.fixture
def run(quick_heartbeats: Heartbeats) -> Iterator[CurrentRun]:
    """An executing run with heartbeats."""
    row = make_run(make_idle_job(max_attempts=2), "running")
    watched = CurrentRun(reread(row), row.claimed_at, token=attempt_of(row).token, worker="w")
    with quick_heartbeats.keep_alive(watched):
        yield watched


def heartbeat(run: CurrentRun) -> Any:
    return Run.objects.get(pk=run.id).heartbeat_at


def wait_for_beats(run: CurrentRun, count: int = 2) -> None:
    for _ in range(count):
        before = heartbeat(run)
        wait_until(lambda before=before: heartbeat(run) > before, what="a heartbeat")  # type: ignore[misc]


def test_heartbeats_are_written_for_all_runs(quick_heartbeats: Heartbeats, run: CurrentRun) -> None:
    other = make_run(make_idle_job(), "running")
    watched = CurrentRun(reread(other), other.claimed_at, token=uuid4(), worker="w")
    with quick_heartbeats.keep_alive(watched):
        wait_for_beats(run)
        wait_for_beats(watched)


def test_no_heartbeats_are_written_for_an_ended_run(
    quick_heartbeats: Heartbeats, run: CurrentRun
) -> None:
    row = make_run(make_idle_job(), "running")
    with quick_heartbeats.keep_alive(
        CurrentRun(reread(row), row.claimed_at, token=uuid4(), worker="w")
    ):
        pass
    wait_for_beats(run)  # one heartbeat may still be under way
    before = Run.objects.get(pk=row.pk).heartbeat_at
    wait_for_beats(run)
    assert Run.objects.get(pk=row.pk).heartbeat_at == before


def test_heartbeat_writes_only_new_progress_and_log(run: CurrentRun) -> None:
    run.log.write("first\n")
    run.progress(1, 2, "half")
    wait_until(lambda: attempt_of(reread(run.run)).progress_note == "half")
    assert attempt_of(run.run).log == "first\n"
    Attempt.objects.update(log="changed by the test")
    wait_for_beats(run)
    assert attempt_of(run.run).log == "changed by the test"
    run.log.write("second\n")
    wait_until(lambda: attempt_of(run.run).log == "first\nsecond\n")


def test_heartbeat_reads_the_cancel_request(run: CurrentRun) -> None:
    wait_for_beats(run)
    assert not run.cancelled
    control.cancel(Run.objects.get(pk=run.id))
    wait_until(lambda: run.cancelled)


def test_heartbeat_stops_a_run_that_was_declared_lost(run: CurrentRun) -> None:
    endings.retry(run.run, AttemptEnd(1, {"outcome": "lost"}), run.started_at, "")
    run.log.write("output after the loss")
    wait_until(lambda: run.cancelled)
    assert attempt_of(run.run).log == ""


def test_run_is_stopped_even_if_no_timer_can_be_started(
    run: CurrentRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has too many threads, so the process can't be ended if the code ignores it."""

    def refuse(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    run.end_process = mock.Mock()
    control.cancel(Run.objects.get(pk=run.id))
    wait_until(lambda: run.cancelled)


@pytest.mark.parametrize(
    "error", [OperationalError("gone"), DataError("refused"), ValueError("a bug")], ids=repr
)
def test_error_with_one_run_does_not_affect_the_others(
    quick_heartbeats: Heartbeats,
    run: CurrentRun,
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing = make_run(make_idle_job(), "running")
    real = transitions.renew_heartbeat

    def beat(run_id: Any, attempt: int) -> bool:
        if run_id == failing.pk:
            raise error
        return real(run_id, attempt)

    with (
        mock.patch.object(transitions, "renew_heartbeat", beat),
        quick_heartbeats.keep_alive(
            CurrentRun(reread(failing), failing.claimed_at, token=uuid4(), worker="w")
        ),
    ):
        wait_until(lambda: any(str(failing.job) in record.message for record in caplog.records))
        wait_for_beats(run)
    levels = [
        record.levelno
        for record in caplog.records
        if vars(record).get("event") == "heartbeat_failed" and record.levelno > logging.DEBUG
    ]
    if isinstance(error, OperationalError):
        assert levels == [logging.WARNING], "an outage is logged once, not in each round"
    else:
        assert {*levels} == {logging.ERROR}


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_locked_run_does_not_block_other_heartbeats(
    quick_heartbeats: Heartbeats, run: CurrentRun
) -> None:
    row = make_run(make_idle_job(), "running")
    kept = CurrentRun(reread(row), row.claimed_at, token=uuid4(), worker="w")
    with keeping_locked(Run.objects.filter(pk=row.pk)), quick_heartbeats.keep_alive(kept):
        before = heartbeat(kept)
        wait_for_beats(run, 3)
        assert heartbeat(kept) == before
    with quick_heartbeats.keep_alive(kept):
        wait_for_beats(kept)


def test_heartbeat_thread_survives_an_error_while_it_closes_connections(
    run: CurrentRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[int] = []
    close_all = connections.close_all

    def fail_after_closing() -> None:
        close_all()
        errors.append(1)
        raise OperationalError("gone")

    monkeypatch.setattr(connections, "close_all", fail_after_closing)
    wait_until(lambda: len(errors) > 2, what="heartbeats after an error")


def _running() -> CurrentRun:
    row = make_run(make_idle_job(), "running")
    return CurrentRun(reread(row), row.claimed_at, token=attempt_of(row).token, worker="w")


@pytest.mark.parametrize("name", ["dcron-heartbeats", "dcron-heartbeat-loss"])
def test_thread_that_could_not_start_is_started_for_the_next_run(
    settings: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The system may have too many threads for a while."""
    settings.DCRON_RUN_LEASE = timedelta(seconds=3600)
    first, second = _running(), _running()
    start, heartbeats = DcronThread.start, Heartbeats()

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as crowded:
        crowded.setattr(DcronThread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"), heartbeats.keep_alive(first):
            pass
    assert heartbeats._heartbeats == [], "the first run gets no heartbeats any more"
    with heartbeats.keep_alive(second, last_sent_at=time.monotonic() - 7200):
        wait_until(lambda: second.lost_heartbeat, what="the stop")
        before = heartbeat(second)
        with pytest.raises(RunCancelled):
            second.heartbeat()
        assert heartbeat(second) > before


def test_requested_heartbeat_waits_only_for_a_limited_time(
    run: CurrentRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The database doesn't answer."""
    monkeypatch.setattr(module, "BEAT_TIMEOUT", 0.05)
    hanging = threading.Event()
    with mock.patch.object(
        transitions, "renew_heartbeat", side_effect=lambda *_: hanging.wait(TIMEOUT)
    ):
        run.heartbeat()
        hanging.set()
    assert logged(caplog, "heartbeat_late")


def test_each_process_has_its_own_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = process_heartbeats()
    assert process_heartbeats() is mine
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert process_heartbeats() is not mine
    del module._by_process[-1]


# --- a worker that is cut off from the database -------------------------------------------------


def gone(*given: Any) -> bool:
    raise OperationalError("gone")


def locked(*given: Any) -> bool:
    raise OperationalError("database is locked")


@pytest.mark.parametrize(
    ("given", "timeout"),
    [
        ({}, 15),
        ({"RUN_LEASE": 40}, 40),
        ({"STOP_WITHOUT_HEARTBEAT_AFTER": 5}, 5),
        ({"STOP_WITHOUT_HEARTBEAT_AFTER": None}, None),
    ],
    ids=str,
)
def test_stop_without_heartbeat_after_defaults_to_the_run_lease(
    settings: Any, given: dict[str, int | None], timeout: int | None
) -> None:
    for name, seconds in given.items():
        setattr(settings, f"DCRON_{name}", None if seconds is None else timedelta(seconds=seconds))
    expected = None if timeout is None else timedelta(seconds=timeout)
    assert expected == conf.STOP_WITHOUT_HEARTBEAT_AFTER


def test_run_without_heartbeats_is_stopped_and_retried(
    make_target: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_RUN_LEASE = timedelta(seconds=0.3)
    monkeypatch.setattr(transitions, "renew_heartbeat", gone)

    def work() -> None:
        wait_until(lambda: None, what="the stop")

    run = make_run(make_idle_job(target=make_target(work), max_attempts=2), "queued")
    assert execute(run.pk, 1, worker="w", heartbeats=Heartbeats())
    assert (reread(run).state, reread(run).attempt) == ("pending", 2), "the retry policy decides"
    attempt = attempt_of(run)
    assert attempt.outcome == "lost"
    assert "DCRON_STOP_WITHOUT_HEARTBEAT_AFTER" in attempt.message


def test_process_of_a_run_that_ignores_the_stop_is_ended(
    make_target: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the job would continue beside the next attempt."""
    settings.DCRON_RUN_LEASE = timedelta(seconds=0.3)
    settings.DCRON_HARD_TIMEOUT_AFTER = timedelta(seconds=0.1)
    monkeypatch.setattr(transitions, "renew_heartbeat", gone)
    ended = threading.Event()

    def work() -> None:
        deadline = time.monotonic() + 60
        while not ended.is_set() and time.monotonic() < deadline:
            with suppress(BaseException):  # such as the exception that stops the run
                ended.wait(1)

    run = make_run(make_idle_job(target=make_target(work)), "queued")
    execute(run.pk, 1, worker="w", heartbeats=Heartbeats(), end_process=ended.set)
    assert ended.is_set()


@pytest.mark.parametrize(
    ("timeout", "beat"), [(None, gone), (timedelta(seconds=1.5), locked)], ids=["off", "locked"]
)
def test_run_without_heartbeats_continues_if_configured_or_locked(
    make_target: Any,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    timeout: timedelta | None,
    beat: Any,
) -> None:
    """While the run's row is locked, no node can declare the run lost."""
    settings.DCRON_RUN_LEASE = timedelta(seconds=0.3)
    settings.DCRON_STOP_WITHOUT_HEARTBEAT_AFTER = timeout
    # A slow machine may delay the next attempt.
    monkeypatch.setattr(heartbeat_loss, "_lock_allowance", lambda: 3600.0)
    tries: list[int] = []

    def counted(*given: Any) -> bool:
        tries.append(1)
        return bool(beat(*given))

    monkeypatch.setattr(transitions, "renew_heartbeat", counted)
    run = make_run(
        make_idle_job(target=make_target(lambda: wait_until(lambda: len(tries) > 30))), "queued"
    )
    assert execute(run.pk, 1, worker="w", heartbeats=Heartbeats())
    assert reread(run).state == "succeeded"


@pytest.mark.parametrize("silent", [0.0, 3500.0], ids=["young", "old"])
def test_lease_counts_from_the_request_of_the_start(settings: Any, silent: float) -> None:
    """The lease counts from the request, even if the database answered much later."""
    settings.DCRON_RUN_LEASE = timedelta(seconds=3600)
    row = make_run(make_idle_job(), "running")
    watched = CurrentRun(reread(row), row.claimed_at, token=uuid4(), worker="w")
    heartbeat = RunHeartbeat(watched, last_sent_at=1000.0 - silent, limit=3600.0)
    assert heartbeat.deadline == 4600.0 - silent
    with Heartbeats().keep_alive(watched, last_sent_at=time.monotonic() - silent - 200):
        if silent:
            wait_until(lambda: watched.lost_heartbeat, what="the stop")
        else:
            assert not watched.lost_heartbeat


def test_failed_stop_of_one_run_does_not_keep_others_running(
    settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DCRON_RUN_LEASE = timedelta(seconds=3600)
    first, second = _running(), _running()
    real = heartbeat_loss._stop_without_heartbeat

    def stop(heartbeat: Any) -> None:
        if heartbeat.run is first:
            raise RuntimeError("can't start new thread")
        real(heartbeat)

    monkeypatch.setattr(heartbeat_loss, "_stop_without_heartbeat", stop)
    monkeypatch.setattr(transitions, "renew_heartbeat", gone)
    heartbeats, long_ago = Heartbeats(), time.monotonic() - 7200
    with heartbeats.keep_alive(first, last_sent_at=long_ago):
        wait_until(lambda: logged(caplog, "not_stopped_without_heartbeat"), what="the error")
        with heartbeats.keep_alive(second, last_sent_at=long_ago):
            wait_until(lambda: second.lost_heartbeat, what="the stop of the second run")


def test_locked_row_delays_the_stop_less_than_the_rescue_waits(settings: Any) -> None:
    settings.DCRON_RUN_LEASE = timedelta(seconds=15)
    row = make_run(make_idle_job(), "running")
    watched = CurrentRun(reread(row), row.claimed_at, token=uuid4(), worker="w")
    heartbeat = RunHeartbeat(watched, last_sent_at=100.0, limit=15.0)
    heartbeat.locked_at = 109.0
    assert heartbeat.deadline == 115.0, "a lock never shortens the deadline"
    heartbeat.locked_at = 114.0
    assert heartbeat.deadline == 119.0
    assert 2 * module.RETRY_AFTER < heartbeat.deadline - heartbeat.locked_at < 15 / 2 - RESCUE_EVERY
    watched.code_ended = True
    assert heartbeat.deadline == heartbeat_loss.NEVER, "a run whose code has ended is never stopped"


def test_failed_heartbeat_is_retried_well_within_the_lease(settings: Any) -> None:
    settings.DCRON_RUN_LEASE = timedelta(seconds=15)
    before = time.monotonic()
    assert module._next_round() >= before + 5
    assert module._next_round(soon=True) <= time.monotonic() + module.RETRY_AFTER


def test_silent_connection_is_replaced_before_runs_are_stopped() -> None:
    beating = Heartbeats()
    with (
        mock.patch.object(beating._limits, "impose") as impose,
        mock.patch.object(module, "set_connect_timeout") as set_connect_timeout,
    ):
        beating._limit_waits()
    silence = impose.call_args.kwargs["silence"]
    ((_, connecting),) = [call.args for call in set_connect_timeout.call_args_list]
    user_timeout = 2 * max(ceil(silence.total_seconds()), KEEPALIVE_PROBES)
    assert timedelta(seconds=user_timeout) + connecting < conf.STOP_WITHOUT_HEARTBEAT_AFTER
