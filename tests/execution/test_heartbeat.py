"""The heart of a worker process keeps its runs alive and carries news in both directions.

It survives every failure of a single run.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
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
from django_dcron.execution import heartbeat as module
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.executor import execute
from django_dcron.execution.heartbeat import Heart, heart
from django_dcron.models import Attempt, Run
from django_dcron.runs import transitions
from django_dcron.scheduler.tick import RESCUE_EVERY
from tests.execution.conftest import attempt_of, reread
from tests.factories import make_idle_job, make_run
from tests.lock_holder import keeping_locked
from tests.logs import logged
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def quick_heart(settings: Any) -> Heart:
    settings.DCRON_RUN_LEASE = timedelta(seconds=0.15)  # a heartbeat every 50 ms
    settings.DCRON_STOP_UNHEARD_AFTER = None  # a slow machine may exceed such a lease
    return Heart()


@pytest.fixture
def run(quick_heart: Heart) -> Iterator[CurrentRun]:
    """An executing run that the heart watches."""
    row = make_run(make_idle_job(max_attempts=2), "running")
    watched = CurrentRun(reread(row), row.claimed_at, token=attempt_of(row).token, worker="w")
    with quick_heart.watching(watched):
        yield watched


def heartbeat(run: CurrentRun) -> Any:
    return Run.objects.get(pk=run.id).heartbeat_at


def wait_for_beats(run: CurrentRun, count: int = 2) -> None:
    for _ in range(count):
        before = heartbeat(run)
        wait_until(lambda before=before: heartbeat(run) > before, what="a heartbeat")  # type: ignore[misc]


def test_it_beats_for_all_it_watches(quick_heart: Heart, run: CurrentRun) -> None:
    other = make_run(make_idle_job(), "running")
    watched = CurrentRun(reread(other), other.claimed_at, token=uuid4(), worker="w")
    with quick_heart.watching(watched):
        wait_for_beats(run)
        wait_for_beats(watched)


def test_it_no_longer_beats_for_what_has_ended(quick_heart: Heart, run: CurrentRun) -> None:
    row = make_run(make_idle_job(), "running")
    with quick_heart.watching(CurrentRun(reread(row), row.claimed_at, token=uuid4(), worker="w")):
        pass
    wait_for_beats(run)  # one heartbeat may still be under way
    before = Run.objects.get(pk=row.pk).heartbeat_at
    wait_for_beats(run)
    assert Run.objects.get(pk=row.pk).heartbeat_at == before


def test_it_writes_what_is_new_and_only_that(run: CurrentRun) -> None:
    run.log.write("first\n")
    run.progress(1, 2, "half")
    wait_until(lambda: attempt_of(reread(run.run)).progress_note == "half")
    assert attempt_of(run.run).log == "first\n"
    Attempt.objects.update(log="changed by the test")
    wait_for_beats(run)
    assert attempt_of(run.run).log == "changed by the test"
    run.log.write("second\n")
    wait_until(lambda: attempt_of(run.run).log == "first\nsecond\n")


def test_it_brings_a_cancel(run: CurrentRun) -> None:
    wait_for_beats(run)
    assert not run.cancelled
    control.cancel(Run.objects.get(pk=run.id))
    wait_until(lambda: run.cancelled)


def test_it_stops_what_was_declared_lost_and_writes_nothing_more_of_it(run: CurrentRun) -> None:
    transitions.retry(run.run, 1, run.started_at, "", {"outcome": "lost"}, None)
    run.log.write("nobody wants to know")
    wait_until(lambda: run.cancelled)
    assert attempt_of(run.run).log == ""


@pytest.mark.parametrize(
    "error", [OperationalError("gone"), DataError("refused"), ValueError("a bug")], ids=repr
)
def test_what_goes_wrong_with_one_run_harms_no_other(
    quick_heart: Heart, run: CurrentRun, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    ill = make_run(make_idle_job(), "running")
    real = transitions.beat

    def beat(run_id: Any, attempt: int) -> bool:
        if run_id == ill.pk:
            raise error
        return real(run_id, attempt)

    with (
        mock.patch.object(transitions, "beat", beat),
        quick_heart.watching(CurrentRun(reread(ill), ill.claimed_at, token=uuid4(), worker="w")),
    ):
        wait_until(lambda: any(str(ill.job) in record.message for record in caplog.records))
        wait_for_beats(run)
    levels = {
        record.levelno
        for record in caplog.records
        if vars(record).get("event") == "heartbeat_failed"
    }
    assert levels == {logging.WARNING if isinstance(error, OperationalError) else logging.ERROR}


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_row_that_somebody_keeps_locked_silences_no_other(
    quick_heart: Heart, run: CurrentRun
) -> None:
    row = make_run(make_idle_job(), "running")
    kept = CurrentRun(reread(row), row.claimed_at, token=uuid4(), worker="w")
    with keeping_locked(Run.objects.filter(pk=row.pk)), quick_heart.watching(kept):
        before = heartbeat(kept)
        wait_for_beats(run, 3)
        assert heartbeat(kept) == before
    with quick_heart.watching(kept):
        wait_for_beats(kept)


def test_a_connection_that_cannot_be_closed_does_not_end_the_heartbeats(
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


def test_who_asks_for_a_beat_waits_no_longer_than_promised(
    run: CurrentRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The database doesn't answer."""
    monkeypatch.setattr(module, "LONGEST_ANSWER", 0.05)
    hanging = threading.Event()
    with mock.patch.object(transitions, "beat", side_effect=lambda *_: hanging.wait(20)):
        run.heartbeat()
        hanging.set()
    assert logged(caplog, "heartbeat_late")


def test_each_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = heart()
    assert heart() is mine
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert heart() is not mine
    del module._hearts[-1]


# --- a worker that is cut off from the database -------------------------------------------------


UNHEARD = "stopped because the worker couldn't write the heartbeat"


def gone(*given: Any) -> bool:
    raise OperationalError("gone")


def locked(*given: Any) -> bool:
    raise OperationalError("database is locked")


@pytest.mark.parametrize(
    ("given", "timeout"),
    [
        ({}, 15),
        ({"RUN_LEASE": 40}, 40),
        ({"STOP_UNHEARD_AFTER": 5}, 5),
        ({"STOP_UNHEARD_AFTER": None}, None),
    ],
    ids=str,
)
def test_the_default_patience_is_the_run_lease(
    settings: Any, given: dict[str, int | None], timeout: int | None
) -> None:
    for name, seconds in given.items():
        setattr(settings, f"DCRON_{name}", None if seconds is None else timedelta(seconds=seconds))
    expected = None if timeout is None else timedelta(seconds=timeout)
    assert expected == conf.STOP_UNHEARD_AFTER


def test_a_run_whose_heartbeats_cannot_be_written_is_stopped_and_tried_again(
    make_target: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_RUN_LEASE = timedelta(seconds=0.3)
    monkeypatch.setattr(transitions, "beat", gone)

    def work() -> None:
        wait_until(lambda: None, what="the stop")

    run = make_run(make_idle_job(target=make_target(work), max_attempts=2), "queued")
    assert execute(run.pk, 1, worker="w", keeper=Heart())
    assert (reread(run).state, reread(run).attempt) == ("pending", 2), "the retry policy decides"
    assert (attempt_of(run).outcome, attempt_of(run).message) == ("lost", UNHEARD)


@pytest.mark.parametrize(
    ("timeout", "beat"), [(None, gone), (timedelta(seconds=0.3), locked)], ids=["off", "locked"]
)
def test_a_run_goes_on_where_that_is_wanted_and_where_only_a_lock_is_in_the_way(
    make_target: Any,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    timeout: timedelta | None,
    beat: Any,
) -> None:
    """While the run's row is locked, nobody can declare the run lost."""
    settings.DCRON_RUN_LEASE = timedelta(seconds=0.3)
    settings.DCRON_STOP_UNHEARD_AFTER = timeout
    monkeypatch.setattr(
        module, "_lock_excuse", lambda: 3600.0
    )  # a slow machine may delay the next attempt
    tries: list[int] = []

    def counted(*given: Any) -> bool:
        tries.append(1)
        return bool(beat(*given))

    monkeypatch.setattr(transitions, "beat", counted)
    run = make_run(
        make_idle_job(target=make_target(lambda: wait_until(lambda: len(tries) > 30))), "queued"
    )
    assert execute(run.pk, 1, worker="w", keeper=Heart())
    assert reread(run).state == "succeeded"


@pytest.mark.parametrize("silent", [0.0, 3500.0], ids=["young", "old"])
def test_the_lease_counts_from_when_the_start_was_asked_for(settings: Any, silent: float) -> None:
    """The row's heartbeat dates from the request, however long the answer took."""
    settings.DCRON_RUN_LEASE = timedelta(seconds=3600)
    row = make_run(make_idle_job(), "running")
    watched = CurrentRun(reread(row), row.claimed_at, token=uuid4(), worker="w")
    pulse = module._Pulse(watched, heard_at=1000.0 - silent, limit=3600.0)
    assert pulse.deadline == 4600.0 - silent
    with Heart().watching(watched, heard_at=time.monotonic() - silent - 200):
        if silent:
            wait_until(lambda: watched.unheard, what="the stop")
        else:
            assert not watched.unheard


def test_an_error_while_one_run_is_stopped_does_not_keep_others_going(
    settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DCRON_RUN_LEASE = timedelta(seconds=3600)
    rows = [make_run(make_idle_job(), "running") for _ in range(2)]
    first, second = (
        CurrentRun(reread(row), row.claimed_at, token=attempt_of(row).token, worker="w")
        for row in rows
    )
    real = module._stop_unheard

    def stop(pulse: Any) -> None:
        if pulse.run is first:
            raise RuntimeError("can't start new thread")
        real(pulse)

    monkeypatch.setattr(module, "_stop_unheard", stop)
    monkeypatch.setattr(transitions, "beat", gone)
    keeper, long_ago = Heart(), time.monotonic() - 7200
    with keeper.watching(first, heard_at=long_ago):
        wait_until(lambda: logged(caplog, "not_stopped_unheard"), what="the error")
        with keeper.watching(second, heard_at=long_ago):
            wait_until(lambda: second.unheard, what="the stop of the second run")


def test_a_locked_row_puts_the_stop_off_by_no_more_than_the_rescue_excuses(settings: Any) -> None:
    settings.DCRON_RUN_LEASE = timedelta(seconds=15)
    row = make_run(make_idle_job(), "running")
    watched = CurrentRun(reread(row), row.claimed_at, token=uuid4(), worker="w")
    pulse = module._Pulse(watched, heard_at=100.0, limit=15.0)
    pulse.locked_at = 109.0
    assert pulse.deadline == 115.0, "not sooner"
    pulse.locked_at = 114.0
    assert pulse.deadline == 119.0
    assert 2 * module.AGAIN_AFTER < pulse.deadline - pulse.locked_at < 15 / 2 - RESCUE_EVERY
    watched.code_ended = True
    assert pulse.deadline == module.NEVER, "its outcome is waited for, however long"


def test_a_failed_heartbeat_is_tried_again_well_within_the_lease(settings: Any) -> None:
    settings.DCRON_RUN_LEASE = timedelta(seconds=15)
    before = time.monotonic()
    assert module._next_round() >= before + 5
    assert module._next_round(soon=True) <= time.monotonic() + module.AGAIN_AFTER


def test_a_silent_connection_is_replaced_before_runs_must_be_stopped() -> None:
    beating = Heart()
    with (
        mock.patch.object(beating._limits, "impose") as impose,
        mock.patch.object(module, "limit_connecting") as limit_connecting,
    ):
        beating._limit_waits()
    silence = impose.call_args.kwargs["silence"]
    ((_, connecting),) = [call.args for call in limit_connecting.call_args_list]
    user_timeout = 2 * max(ceil(silence.total_seconds()), KEEPALIVE_PROBES)
    assert timedelta(seconds=user_timeout) + connecting < conf.STOP_UNHEARD_AFTER
