"""A set clock is the current time in Python and in SQL, and it ends with the test."""

import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db.models import F

from django_dcron import control
from django_dcron.db import clock
from django_dcron.db.clock import ClusterClock
from django_dcron.db.now import UtcNow, database_now
from django_dcron.dispatch import shared_dispatcher
from django_dcron.exceptions import InvalidValue
from django_dcron.models import Attempt, Cursor, Node, Run
from django_dcron.runs.start import start_attempt
from django_dcron.runs.transitions import _START
from django_dcron.testing import ManualClock, set_clock
from tests.factories import make_idle_job, make_job, make_run
from tests.refusals import refusal
from tests.testing.conftest import NINE

HOUR = timedelta(hours=1)
ODD = NINE + timedelta(microseconds=123456)


def test_set_clock_stands_still_until_advanced_or_set() -> None:
    with set_clock(NINE) as manual_clock:
        assert manual_clock.now() == clock.now() == database_now("default") == NINE
        manual_clock.advance(HOUR)
        assert database_now("default") == NINE + HOUR
        manual_clock.set_to(NINE - HOUR)
        assert database_now("default") == NINE - HOUR
        assert repr(manual_clock) == "<clock set to 2026-03-02T08:00:00+00:00>"
    assert clock.now() > NINE + timedelta(days=1)


def test_times_are_converted_to_utc() -> None:
    with set_clock(datetime(2026, 3, 2, 10, tzinfo=timezone(HOUR))) as manual_clock:
        assert manual_clock.now() == NINE
        assert manual_clock.now().tzinfo is UTC


def test_outer_clock_is_restored_after_a_nested_clock() -> None:
    with set_clock(NINE) as outer:
        with suppress(ZeroDivisionError), set_clock(NINE + HOUR):
            raise ZeroDivisionError
        assert outer.now() == NINE


@set_clock(NINE)
def test_set_clock_works_as_a_decorator() -> None:
    assert clock.now() == NINE


def test_using_a_clock_after_its_block_raises_runtime_error() -> None:
    with set_clock(NINE) as manual_clock:
        pass
    for use in (
        manual_clock.now,
        lambda: manual_clock.set_to(NINE),
        lambda: manual_clock.advance(HOUR),
    ):
        with pytest.raises(RuntimeError, match="set_clock"):
            use()
    assert clock.fixed_at is None
    assert repr(manual_clock) == "<a clock that is no longer set>"


def test_invalid_times_are_refused(clock_at_nine: ManualClock) -> None:
    naive = datetime(2026, 3, 2, 9)  # noqa: DTZ001 (a naive datetime)
    for use in (clock_at_nine.set_to, lambda at: set_clock(at).__enter__()):
        with refusal(InvalidValue, "naive", field="at", value="2026-03-02T09:00:00"):
            use(naive)
        with pytest.raises(TypeError, match=r"^at: '9:00' "):
            use("9:00")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^advance: -1 day, 23:00:00 "):
        clock_at_nine.advance(-HOUR)
    with pytest.raises(TypeError, match=r"^advance: 60 "):
        clock_at_nine.advance(60)  # type: ignore[arg-type]
    assert clock_at_nine.now() == NINE


def test_set_clock_applies_to_all_threads(clock_at_nine: ManualClock) -> None:
    seen: list[datetime] = []
    thread = threading.Thread(target=lambda: seen.append(database_now("default")))
    thread.start()
    thread.join()
    assert seen == [NINE]


def test_cluster_clock_follows_the_set_clock() -> None:
    cluster = ClusterClock()
    with set_clock(NINE) as manual_clock:
        assert cluster.now() == NINE
        manual_clock.advance(HOUR)
        assert cluster.now() == NINE + HOUR


def test_no_dispatcher_is_shared_while_a_clock_is_set() -> None:
    assert shared_dispatcher() is not None
    with set_clock(NINE):
        assert shared_dispatcher() is None
    assert shared_dispatcher() is not None


@pytest.mark.django_db
@pytest.mark.parametrize("at", [NINE, ODD])
def test_sql_expressions_use_the_set_clock(at: datetime) -> None:
    run = make_run(make_idle_job())
    with set_clock(at):
        Run.objects.update(due_at=UtcNow(), queued_at=UtcNow() + HOUR)
        assert Run.objects.values_list(UtcNow(), UtcNow() - HOUR).get() == (at, at - HOUR)
        assert Run.objects.filter(
            due_at=UtcNow(), queued_at__gt=UtcNow(), due_at__lte=UtcNow()
        ).exists()
        assert not Run.objects.filter(due_at__lt=UtcNow()).exists()
        assert Run.objects.values_list(F("queued_at") - UtcNow(), flat=True).get() == HOUR
        Node.objects.create(
            id="n", name="n", pid=1, started_at=UtcNow(), heartbeat_at=UtcNow(), skew=timedelta()
        )
        assert Node.objects.live(HOUR).exists()
    run.refresh_from_db()
    assert (run.due_at, run.queued_at) == (at, at + HOUR)
    assert not Node.objects.live(HOUR).exists()


@pytest.mark.django_db
def test_prepared_statements_do_not_store_a_set_time() -> None:
    before, within, after, later = (make_run(make_idle_job()) for _ in range(4))
    token = before.pk
    assert start_attempt(before.pk, 1, token=token, worker="w")
    with set_clock(NINE) as manual_clock:
        kept = dict(_START._compiled)
        assert start_attempt(within.pk, 1, token=token, worker="w")
        manual_clock.advance(HOUR)
        assert start_attempt(later.pk, 1, token=token, worker="w")
        assert _START._compiled == kept
    assert start_attempt(after.pk, 1, token=token, worker="w")
    times = {run.pk: run.started_at for run in Run.objects.all()}
    assert (times[within.pk], times[later.pk]) == (NINE, NINE + HOUR)
    assert Attempt.objects.get(run=within).started_at == NINE
    assert all(at and at > NINE + timedelta(days=1) for at in (times[before.pk], times[after.pk]))


@pytest.mark.django_db
def test_save_preview_pause_and_commands_use_the_set_clock(clock_at_nine: ManualClock) -> None:
    job = make_job(schedule="0 * * * *", name="hourly")
    assert Cursor.objects.get(job=job).next_at == NINE + HOUR
    assert control.preview(job, 2) == [NINE + HOUR, NINE + 2 * HOUR]
    assert control.trigger(job).due_at == NINE
    with refusal(InvalidValue, "in_the_past", field="until", value=NINE.isoformat()):
        control.pause(job, until=NINE)
    control.pause(job, until=NINE + HOUR)
    out = StringIO()
    call_command("dcron", "next", "hourly", "-n", "1", stdout=out)
    assert "2026-03-02 10:00:00" in out.getvalue()


@pytest.mark.django_db
def test_past_schedules_are_refused_by_the_set_clock() -> None:
    with set_clock(NINE):
        assert make_job(schedule="@at 2026-03-02T09:00:01").enabled
        with pytest.raises(ValidationError) as refused:
            make_job(schedule="@at 2026-03-02T09:00")
        assert list(refused.value.error_dict) == ["schedule"]


@pytest.mark.django_db(transaction=True)
def test_node_in_the_same_process_uses_the_set_clock(clock_at_nine: ManualClock) -> None:
    job = make_job(schedule="0 * * * *")
    clock_at_nine.advance(HOUR)
    call_command("runcron", "--once", "--embedded", "--name", "n", verbosity=0)
    run = Run.objects.get(job=job)
    assert (run.scheduled_at, run.state) == (NINE + HOUR, "succeeded")
    assert run.started_at == run.finished_at == NINE + HOUR
