"""Backfill creates the missing runs of past occurrences, except those not claimed yet."""

import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connections, transaction

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.exceptions import (
    Conflict,
    InvalidSchedule,
    InvalidValue,
    NotPossible,
    TranslatableError,
)
from django_dcron.jobs import backfill as module
from django_dcron.models import Cursor, Job, Run, Statistics
from django_dcron.policies.lifecycle import FINAL, State
from django_dcron.runs.creation import WAITING_FOR_TURN
from django_dcron.scheduler.claim import claim
from tests.checker import check
from tests.factories import make_idle_job, make_job, make_run
from tests.refusals import refusal
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
ALL = range(64)

T = datetime(2025, 1, 15, 12, 0, 0, tzinfo=UTC)
"""A time in the past."""


def hourly(**fields: Any) -> Job:
    return make_job(schedule="0 * * * *", **fields)


def made() -> list[datetime]:
    return list(
        Run.objects.filter(trigger="backfill")
        .order_by("scheduled_at")
        .values_list("scheduled_at", flat=True)
    )


# --- selected occurrences -----------------------------------------------------------------------


def test_range_includes_start_excludes_end_and_may_precede_the_job() -> None:
    job = hourly()
    before = database_now("default")
    result = control.backfill(job, T, T + 3 * HOUR)
    assert result.occurrences == (T, T + HOUR, T + 2 * HOUR)
    assert (result.existing_runs, result.continue_from, result.until) == (0, None, T + 3 * HOUR)
    assert made() == list(result.occurrences)
    run = Run.objects.earliest("scheduled_at")
    assert (run.job, run.state, run.trigger, run.attempt) == (job, "waiting", "backfill", 1)
    assert (run.due_at, run.node, run.missed_before, run.reason) == (T, "", 0, WAITING_FOR_TURN)
    assert before <= run.claimed_at <= database_now("default")


def test_future_end_is_reduced_to_now() -> None:
    """This happens when the caller's clock is slightly ahead of the database's."""
    start = database_now("default") - 2 * HOUR
    job = hourly(enabled=False)
    result = control.backfill(job, start, start + 4 * HOUR, dry_run=True)
    assert len(result.occurrences) == 2
    assert start + 2 * HOUR <= result.until <= database_now("default")


def test_result_text_has_count_range_and_continuation() -> None:
    job = hourly()
    assert str(control.backfill(job, T, T + 3 * HOUR, limit=2)) == (
        "2 occurrences from 2025-01-15T12:00:00+00:00 to 2025-01-15T13:00:00+00:00"
        "; continue with start=2025-01-15T14:00:00+00:00"
    )
    again = control.backfill(job, T, T + 2 * HOUR)
    assert (again.occurrences, again.existing_runs) == ((), 2)
    assert re.match("0 occurrences; 2 ", str(again))


def test_occurrences_with_a_run_in_any_state_are_left_unchanged() -> None:
    job, other = hourly(), hourly()
    taken = {T + number * HOUR: state for number, state in enumerate(sorted(State))}
    for at, state in taken.items():
        make_run(job, state, scheduled_at=at)
    make_run(
        job, "succeeded", scheduled_at=T + 9 * HOUR + timedelta(microseconds=1), trigger="manual"
    )
    make_run(other, "succeeded", scheduled_at=T + 9 * HOUR)
    result = control.backfill(job, T, T + 11 * HOUR)
    assert result.occurrences == (T + 9 * HOUR, T + 10 * HOUR)
    assert result.existing_runs == len(taken) == 9
    assert (
        dict(Run.objects.filter(scheduled_at__in=taken).values_list("scheduled_at", "state"))
        == taken
    )
    assert control.backfill(job, T, T + 11 * HOUR).existing_runs == 11
    assert len(made()) == 2


def test_occurrences_only_counted_as_missed_get_their_own_runs() -> None:
    job = hourly()
    row = {"missed_before": 3, "missed_from": T, "finished_at": T + 3 * HOUR}
    make_run(job, "missed", scheduled_at=T + 3 * HOUR, **row)
    Statistics.objects.update(missed=4)
    Cursor.objects.update(placed_at=T - SECOND, previous_at=T + 3 * HOUR, next_at=T + 4 * HOUR)
    result = control.backfill(job, T, T + 4 * HOUR)
    assert result.occurrences == (T, T + HOUR, T + 2 * HOUR)
    verdict = check(T - SECOND, T + 3 * HOUR)
    assert [problem for problem in verdict.problems if "behind" not in problem] == []
    assert verdict.expected == 4


def test_dry_run_writes_nothing_and_returns_the_same_result() -> None:
    job = hourly()
    make_run(job, "failed", scheduled_at=T + HOUR)
    before = list(Run.objects.values()), list(Cursor.objects.values()), list(Job.objects.values())
    planned = control.backfill(job, T, T + 5 * HOUR, limit=3, dry_run=True)
    assert (
        list(Run.objects.values()),
        list(Cursor.objects.values()),
        list(Job.objects.values()),
    ) == before
    assert planned.occurrences == (T, T + 2 * HOUR, T + 3 * HOUR)
    assert control.backfill(job, T, T + 5 * HOUR, limit=3) == planned


@pytest.mark.parametrize(("limit", "read_limit"), [(3, 100), (100, 4), (2, 3), (100, 100)])
def test_backfill_in_batches_equals_backfill_at_once(
    monkeypatch: pytest.MonkeyPatch, limit: int, read_limit: int
) -> None:
    monkeypatch.setattr(module, "BATCH_SIZE", 2)
    monkeypatch.setattr(module, "READ_LIMIT", read_limit)
    job = hourly()
    for number in (1, 2, 3, 4, 7):
        make_run(job, "succeeded", scheduled_at=T + number * HOUR)
    start: datetime | None = T
    pieces: list[datetime] = []
    existing_runs = 0
    for _ in range(12):
        assert start is not None
        dry = control.backfill(job, start, T + 11 * HOUR, limit=limit, dry_run=True)
        result = control.backfill(job, start, T + 11 * HOUR, limit=limit)
        assert result == dry
        assert len(result.occurrences) <= limit
        assert len(result.occurrences) + result.existing_runs <= read_limit + 2
        pieces += result.occurrences
        existing_runs += result.existing_runs
        start = result.continue_from
        if start is None:
            break
    assert pieces == [T + number * HOUR for number in (0, 5, 6, 8, 9, 10)] == made()
    assert existing_runs == 5


def test_occurrences_after_the_cursor_are_left_to_the_claim() -> None:
    """After an outage of all nodes, the misfire policy decides about the unclaimed occurrences."""
    job = make_job(schedule="* * * * *", misfire_policy="run_all", catchup_limit=100)
    now = database_now("default")
    minute = now.replace(second=0, microsecond=0)
    Cursor.objects.update(next_at=minute - 9 * 60 * SECOND, previous_at=minute - 10 * 60 * SECOND)
    result = control.backfill(job, minute - 12 * 60 * SECOND, now)
    assert result.until == minute - 9 * 60 * SECOND
    assert result.occurrences == tuple(minute - back * 60 * SECOND for back in (12, 11, 10))
    claim(ALL, now, node="a")
    by_trigger = Run.objects.filter(scheduled_at__lte=minute).values_list("scheduled_at", "trigger")
    assert dict(by_trigger) == {
        minute - back * 60 * SECOND: "backfill" if back >= 10 else "schedule" for back in range(13)
    }


def test_backfill_follows_clock_changes() -> None:
    """02:30 occurs once on either day, and the days have 23 and 25 full hours."""
    daily = make_job(schedule="30 2 * * *", timezone="Europe/Berlin")
    every_hour = hourly(timezone="Europe/Berlin")
    for day, at, hours in (
        (datetime(2025, 3, 29, 23, tzinfo=UTC), datetime(2025, 3, 30, 1, tzinfo=UTC), 23),
        (datetime(2025, 10, 25, 22, tzinfo=UTC), datetime(2025, 10, 26, 0, 30, tzinfo=UTC), 25),
    ):
        assert control.backfill(daily, day, day + hours * HOUR).occurrences == (at,)
        assert len(control.backfill(every_hour, day, day + hours * HOUR).occurrences) == hours


def test_range_may_be_in_any_time_zone() -> None:
    job = hourly()
    start = T.astimezone(ZoneInfo("Asia/Kathmandu"))
    assert control.backfill(job, start, start + HOUR).occurrences == (T,)


def test_interval_keeps_its_phase() -> None:
    job = make_job(schedule="@every 7m")
    interval = 7 * 60 * SECOND
    Cursor.objects.update(next_at=T + 1000 * interval + 5 * SECOND, previous_at=None)
    expected = [T + number * interval + 5 * SECOND for number in range(3)]
    assert control.backfill(job, T, T + 3 * interval).occurrences == tuple(expected)
    assert control.backfill(job, T + 3 * interval + 5 * SECOND, T + 4 * interval).occurrences == (
        T + 3 * interval + 5 * SECOND,
    )
    Cursor.objects.update(next_at=None, previous_at=T + 2000 * interval + 6 * SECOND)
    assert control.backfill(job, T, T + interval).occurrences == (T + 6 * SECOND,)


def test_backfill_respects_start_and_end_of_the_job() -> None:
    job = hourly()
    between = {"starts_at": T + 2 * HOUR, "ends_at": T + 4 * HOUR, "enabled": False}
    Job.objects.update(**between), Cursor.objects.update(**between, next_at=None)
    job.refresh_from_db()
    assert control.backfill(job, T, T + 9 * HOUR).occurrences == tuple(
        T + number * HOUR for number in (2, 3, 4)
    )
    every = make_job(schedule="@every 1h", starts_at=T + 90 * 60 * SECOND)
    assert control.backfill(every, T, T + 4 * HOUR).occurrences == tuple(
        T + number * HOUR + 30 * 60 * SECOND for number in (1, 2, 3)
    )


def test_paused_and_ended_jobs_can_be_backfilled() -> None:
    paused = control.pause(hourly())
    assert control.backfill(paused, T, T + HOUR).occurrences == (T,)
    ended = make_job(schedule="@at 2099-01-15T12:00")
    past = {"schedule": "@at 2025-01-15T12:00", "enabled": False}
    Job.objects.filter(pk=ended.pk).update(**past)
    Cursor.objects.filter(pk=ended.pk).update(**past, next_at=None)
    ended.refresh_from_db()
    assert control.backfill(ended, T - DAY, T + DAY).occurrences == (T,)


def test_range_without_occurrences_creates_no_runs() -> None:
    result = control.backfill(make_idle_job(), T, T + HOUR)
    assert (result.occurrences, result.existing_runs, result.continue_from) == ((), 0, None)
    assert not made()


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "limit", "expected"),
    [
        (
            T.replace(tzinfo=None),
            T,
            1,
            ("naive", "start", {"value": "2025-01-15T12:00:00"}),
        ),
        (
            T,
            (T + HOUR).replace(tzinfo=None),
            1,
            ("naive", "end", {"value": "2025-01-15T13:00:00"}),
        ),
        (
            T,
            T,
            1,
            ("not_before_end", "start", {"value": T.isoformat(), "end": T.isoformat()}),
        ),
        (T + HOUR, T, 1, ("not_before_end", "start", {"end": T.isoformat()})),
        (
            T.replace(year=1969),
            T,
            1,
            ("too_early", "start", {"value": "1969-01-15T12:00:00+00:00"}),
        ),
        (
            T.replace(year=2199),
            T.replace(year=2200),
            1,
            ("in_the_future", "start", {"value": "2199-01-15T12:00:00+00:00"}),
        ),
        (T, T + HOUR, 0, ("invalid_limit", "limit", {"value": 0, "most": 10_000})),
        (T, T + HOUR, 10_001, ("invalid_limit", "limit", {"value": 10_001, "most": 10_000})),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_invalid_arguments_are_refused_with_field_and_value(
    start: datetime,
    end: datetime,
    limit: int,
    expected: tuple[str, str, dict[str, Any]],
    dry_run: bool,
) -> None:
    code, field, values = expected
    with refusal(InvalidValue, code, field=field, **values):
        control.backfill(hourly(), start, end, limit=limit, dry_run=dry_run)
    assert not made()


def test_start_in_the_future_is_refused_with_the_present_in_its_own_zone() -> None:
    start = datetime(2199, 1, 15, 12, tzinfo=timezone(-5 * HOUR))
    with refusal(InvalidValue, "in_the_future", field="start") as refused:
        control.backfill(hourly(), start, start + HOUR)
    assert refused.value.params["now"].endswith("-05:00")


def _edited(job: Job) -> None:
    fresh = Job.objects.get(pk=job.pk)
    fresh.schedule = "30 * * * *"
    control.save(fresh)


def _unreadable(job: Job) -> None:
    Job.objects.update(schedule="61 * * * *")
    Cursor.objects.update(schedule="61 * * * *")
    job.schedule = "61 * * * *"


@pytest.mark.parametrize(
    ("change", "error", "code"),
    [
        (_edited, Conflict, "changed"),
        (lambda job: Job.objects.update(schedule="1 1 * * *"), NotPossible, "not_placed"),
        (lambda job: job.delete(), NotPossible, "not_saved"),
        (_unreadable, InvalidSchedule, "out_of_range"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_stale_deleted_or_invalid_job_is_refused(
    change: Callable[[Job], Any], error: type[TranslatableError], code: str, dry_run: bool
) -> None:
    job = hourly()
    change(job)
    with pytest.raises(error) as refused:
        control.backfill(job, T, T + HOUR, dry_run=dry_run)
    assert refused.value.code == code
    assert not made()


def test_job_paused_meanwhile_can_be_backfilled() -> None:
    job = hourly()
    control.pause(Job.objects.get(pk=job.pk))
    assert control.backfill(job, T, T + HOUR).occurrences == (T,)


def test_interval_that_never_started_is_refused() -> None:
    job = make_job(schedule="@every 1h", enabled=False)
    with pytest.raises(NotPossible) as refused:
        control.backfill(job, T, T + HOUR)
    assert refused.value.code == "no_starting_point"


def test_job_deleted_after_planning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    job = hourly()
    plan = module._plan

    def deleted_meanwhile(*args: Any) -> module.Backfill:
        planned = plan(*args)
        Job.objects.all().delete()
        return planned

    monkeypatch.setattr(module, "_plan", deleted_meanwhile)
    with pytest.raises(NotPossible) as refused:
        control.backfill(job, T, T + HOUR)
    assert refused.value.code == "deleted"
    assert not Run.objects.exists()


def test_occurrences_since_the_end_of_a_pause_are_left_to_the_claim() -> None:
    """No node has claimed these occurrences yet."""
    job = make_job()
    now = database_now("default").replace(microsecond=0)
    control.pause(job)
    Job.objects.filter(pk=job.pk).update(paused_until=now - 30 * SECOND)
    made = control.backfill(job, now - 60 * SECOND, now).occurrences
    assert (made[0], made[-1]) == (now - 60 * SECOND, now - 31 * SECOND)


def test_job_edited_after_planning_raises_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    job = hourly()
    plan = module._plan

    def edited_meanwhile(*args: Any) -> module.Backfill:
        planned = plan(*args)
        _edited(job)
        return planned

    monkeypatch.setattr(module, "_plan", edited_meanwhile)
    with pytest.raises(Conflict) as refused:
        control.backfill(job, T, T + HOUR)
    assert refused.value.code == "changed"
    assert not made()


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_backfill_in_a_long_transaction_does_not_block_claims_of_other_jobs() -> None:
    """For example, a web request may be such a transaction."""
    job, other = make_job(), make_job()
    made, done = threading.Event(), threading.Event()

    def request() -> None:
        try:
            with transaction.atomic():
                control.backfill(job, T, T + SECOND)
                made.set()
                done.wait(TIMEOUT)
        finally:
            connections.close_all()

    thread = threading.Thread(target=request)
    thread.start()
    claimed: list[int] = []

    def node() -> None:
        try:
            claimed.extend(
                run.job_id for run in claim(ALL, database_now("default") + HOUR, node="a").runs
            )
        finally:
            connections.close_all()

    try:
        assert made.wait(TIMEOUT)
        claims = threading.Thread(target=node)
        claims.start()
        claims.join(TIMEOUT)
        assert set(claimed) == {other.pk}, "the claim of the other job did not wait"
    finally:
        done.set()
        thread.join(TIMEOUT)
        claims.join(TIMEOUT)


def test_run_created_after_planning_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    job = hourly()
    plan = module._plan

    def made_meanwhile(*args: Any) -> module.Backfill:
        planned = plan(*args)
        make_run(job, "succeeded", scheduled_at=T + HOUR)
        return planned

    monkeypatch.setattr(module, "_plan", made_meanwhile)
    result = control.backfill(job, T, T + 3 * HOUR)
    assert (result.occurrences, result.existing_runs) == ((T, T + 2 * HOUR), 1)
    assert Run.objects.get(scheduled_at=T + HOUR).state == "succeeded"


# --- concurrency --------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_concurrent_backfills_and_claims_create_one_run_per_occurrence() -> None:
    job = make_job(misfire_policy="run_all", catchup_limit=1000)
    now = database_now("default").replace(microsecond=0)
    begin, boundary = now - 400 * SECOND, now - 200 * SECOND
    Cursor.objects.update(next_at=boundary, previous_at=boundary - SECOND)
    together = threading.Barrier(5)
    results: list[module.Backfill] = []
    failures: list[BaseException] = []

    def person(first: datetime) -> None:
        try:
            together.wait(TIMEOUT)
            start: datetime | None = first
            while start is not None:
                results.append(control.backfill(job, start, now, limit=30))
                start = results[-1].continue_from
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    def node() -> None:
        try:
            together.wait(TIMEOUT)
            while Cursor.objects.get().next_at <= now:  # type: ignore[operator]
                claim(ALL, now, node="a")
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    works = [*(lambda back=back: person(begin + back * SECOND) for back in (0, 0, 50, 100)), node]
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not failures
    rows = Run.objects.filter(scheduled_at__lte=now).values_list("scheduled_at", "trigger")
    assert sorted(at for at, _ in rows) == [begin + n * SECOND for n in range(401)]
    backfilled = sorted(at for at, trigger in rows if trigger == "backfill")
    assert sorted(at for result in results for at in result.occurrences) == backfilled, (
        "each run was created by one backfill"
    )
    assert backfilled == [begin + n * SECOND for n in range(200)], (
        "exactly the occurrences before the cursor"
    )


# --- backfilled runs ----------------------------------------------------------------------------


def test_waiting_backfilled_run_is_cancelled_immediately() -> None:
    job = hourly()
    control.backfill(job, T, T + HOUR)
    run = control.cancel(Run.objects.get())
    assert (run.state, Statistics.objects.get().cancelled) == ("cancelled", 1)
    assert control.backfill(job, T, T + HOUR).existing_runs == 1, "it stays cancelled"
    assert run.state in FINAL


def test_editing_or_pausing_the_job_keeps_backfilled_runs() -> None:
    job = hourly()
    control.backfill(job, T, T + 2 * HOUR)
    job.schedule = "30 * * * *"
    control.save(job)
    control.pause(job)
    assert made() == [T, T + HOUR]
