"""The heart of a worker process: it keeps runs alive, carries news both ways, and survives whatever happens to one."""

import logging
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from django.db import DataError, OperationalError

from django_dcron import control, transitions
from django_dcron.execution import heart as module
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.executor import execute
from django_dcron.execution.heart import Heart, heart
from django_dcron.models import Attempt, Run
from tests.execution.conftest import attempt_of, reread
from tests.factories import make_idle_job, make_run
from tests.lock_holder import keeping_locked
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def quick_heart(settings: Any) -> Heart:
    settings.DCRON_RUN_LEASE = timedelta(seconds=0.15)  # a beat every 50 ms
    return Heart()


@pytest.fixture
def run(quick_heart: Heart) -> Iterator[CurrentRun]:
    """A run under execution, watched."""
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
    wait_for_beats(run)  # one may have been on its way
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
    levels = {record.levelno for record in caplog.records if vars(record).get("event") == "heartbeat_failed"}
    assert levels == {logging.WARNING if isinstance(error, OperationalError) else logging.ERROR}


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_row_that_somebody_keeps_locked_silences_no_other(quick_heart: Heart, run: CurrentRun) -> None:
    row = make_run(make_idle_job(), "running")
    kept = CurrentRun(reread(row), row.claimed_at, token=uuid4(), worker="w")
    with keeping_locked(Run.objects.filter(pk=row.pk)), quick_heart.watching(kept):
        before = heartbeat(kept)
        wait_for_beats(run, 3)
        assert heartbeat(kept) == before
    with quick_heart.watching(kept):
        wait_for_beats(kept)


def test_who_asks_for_a_beat_waits_no_longer_than_promised(
    run: CurrentRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The database hangs."""
    monkeypatch.setattr(module, "LONGEST_ANSWER", 0.05)
    hanging = threading.Event()
    with mock.patch.object(transitions, "beat", side_effect=lambda *_: hanging.wait(20)):
        run.heartbeat()
        hanging.set()
    assert "no heartbeat within" in caplog.text


def test_each_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = heart()
    assert heart() is mine
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert heart() is not mine
    del module._hearts[-1]


# --- a worker that is cut off from the database -----------------------------------------------------------------------


@pytest.mark.parametrize("patience", [timedelta(seconds=1), None], ids=str)
def test_a_run_whose_heartbeats_cannot_be_written_is_stopped_if_the_project_wants_that(
    make_target: Any, settings: Any, monkeypatch: pytest.MonkeyPatch, patience: timedelta | None
) -> None:
    settings.DCRON_RUN_LEASE = timedelta(seconds=0.3)
    settings.DCRON_STOP_UNHEARD_AFTER = patience
    tries: list[int] = []

    def gone(*given: Any) -> bool:
        tries.append(1)
        raise OperationalError("gone")

    def work() -> str:
        wait_until(lambda: len(tries) > 30 if patience is None else None, 60, what="the end")
        return "done"

    monkeypatch.setattr(transitions, "beat", gone)
    run = make_run(make_idle_job(target=make_target(work), max_attempts=2), "queued")
    assert execute(run.pk, 1, worker="w", keeper=Heart())
    attempt = attempt_of(run)
    if patience is None:
        assert (reread(run).state, attempt.outcome) == ("succeeded", "succeeded")
    else:
        assert (reread(run).state, reread(run).attempt) == ("pending", 2), "the retry policy decides"
        assert (attempt.outcome, attempt.message) == (
            "lost",
            "stopped by its worker, which could not write its heartbeat",
        )
