"""Test the dashboard's figures: their values, and a bounded cost for any number of rows."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models.sql import compiler
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.diagnosis import figures
from django_dcron.diagnosis.failures import FailedRun, group_failures, latest_failures
from django_dcron.diagnosis.figures import (
    LimitedCount,
    job_figures,
    percentile,
    run_figures,
    window_start,
)
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.models import Attempt, Cursor, Job, Run
from django_dcron.policies.lifecycle import State
from django_dcron.targets.shadow import NOT_EXECUTED
from tests.factories import make_idle_job, make_run

MS = timedelta(milliseconds=1)
HOUR = timedelta(hours=1)

pytestmark = pytest.mark.django_db


@pytest.fixture
def now(db: None) -> datetime:
    return database_now("default")


def _started(
    job: Job, now: datetime, late: timedelta, state: str = "succeeded", **fields: Any
) -> Run:
    """Create a run whose only attempt started ``late`` after its due time."""
    due_at = fields.pop("due_at", now - HOUR)
    run = make_run(job, state, due_at=due_at, started_at=due_at + late, **fields)
    if state != "running":  # make_run creates the attempt of a running run
        _attempt(run, run.attempt)
    return run


def _attempt(run: Run, number: int) -> None:
    Attempt.objects.create(run=run, number=number, token=uuid4(), worker="w", started_at=run.due_at)


def test_runs_are_counted_by_their_state(now: datetime) -> None:
    job = make_idle_job()
    wanted = {
        state: number for number, state in enumerate(State, start=1) if state != State.CANCELLED
    }
    for state, number in wanted.items():
        for _ in range(number):
            make_run(job, state)

    found = run_figures(now)

    counted = {state: getattr(found, state).number for state in wanted if state != State.PENDING}
    del wanted[State.PENDING]
    assert counted == wanted
    assert found.success_rate.succeeded == wanted[State.SUCCEEDED]
    assert found.success_rate.failed == wanted[State.FAILED]


def test_finished_runs_count_for_24_hours_and_unfinished_ones_always(now: datetime) -> None:
    job = make_idle_job()
    long_ago = now - timedelta(hours=25)
    for state in State:
        make_run(job, state, due_at=long_ago)

    found = run_figures(now)

    assert [found.succeeded, found.failed, found.missed, found.skipped] == [LimitedCount(0)] * 4
    assert [found.running, found.queued, found.waiting] == [LimitedCount(1)] * 3
    assert found.success_rate.percent is None


def test_window_starts_at_whole_minute(now: datetime) -> None:
    since = window_start(now.replace(second=59, microsecond=999))

    assert (since.second, since.microsecond) == (0, 0)
    assert (
        timedelta(days=1)
        <= now.replace(second=59, microsecond=999) - since
        < timedelta(days=1, minutes=1)
    )


def test_figures_of_empty_database_are_empty(now: datetime) -> None:
    found = run_figures(now)

    assert found.success_rate.percent is None
    assert found.starts.start_delays == ()
    assert job_figures(now).total == 0


@pytest.mark.parametrize(
    ("succeeded", "failed", "percent"),
    [(1, 0, 100), (0, 3, 0), (2, 1, 66.6), (99_999, 1, 99.9)],
)
def test_success_rate_is_100_only_if_all_runs_succeeded(
    succeeded: int, failed: int, percent: float
) -> None:
    assert figures.SuccessRate(succeeded, failed, sampled=False).percent == percent


def test_success_rate_omits_shadow_runs(now: datetime) -> None:
    job = make_idle_job()
    make_run(job, "failed")
    make_run(job, "succeeded")
    make_run(job, "succeeded", reason=NOT_EXECUTED)

    rate = run_figures(now).success_rate

    assert (rate.succeeded, rate.failed, rate.sampled) == (1, 1, False)


def test_counts_above_limit_are_marked_as_truncated(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "MAX_COUNTED", 3)
    job = make_idle_job()
    for state, number in {"failed": 4, "missed": 4, "skipped": 3}.items():
        for _ in range(number):
            make_run(job, state)

    found = run_figures(now)

    assert (found.failed, found.missed, found.skipped) == (
        LimitedCount(3, True),
        LimitedCount(3, True),
        LimitedCount(3),
    )


def test_success_rate_of_many_runs_uses_latest_starts(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "MAX_COUNTED", 3)
    monkeypatch.setattr(figures, "SAMPLE", 2)
    job = make_idle_job()
    for state in ["failed", "failed", "succeeded", "succeeded", "succeeded", "succeeded", "failed"]:
        _started(job, now, MS, state)

    rate = run_figures(now).success_rate

    assert (rate.sampled, rate.percent) == (True, 50)


def test_success_rate_of_many_runs_omits_shadow_runs(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "MAX_COUNTED", 1)
    job = make_idle_job()
    for state in ("failed", "failed", "succeeded"):
        _started(job, now, MS, state)
    _started(job, now, MS, reason=NOT_EXECUTED)

    rate = run_figures(now).success_rate

    assert (rate.succeeded, rate.failed, rate.sampled) == (1, 2, True)


def test_start_delay_is_measured_for_latest_attempt(now: datetime) -> None:
    job = make_idle_job(max_attempts=3)
    _started(job, now, 5 * MS)
    _started(job, now, -3 * MS, "running", heartbeat_at=now)  # clocks differ slightly
    retried = _started(job, now, timedelta(), "failed")
    _attempt(retried, 2)
    Run.objects.filter(pk=retried.pk).update(attempt=2, started_at=retried.due_at + 40 * MS)
    about_to_retry = _started(job, now, timedelta(), "pending", attempt=1)
    Run.objects.filter(pk=about_to_retry.pk).update(attempt=2, due_at=now + HOUR)
    given_up = _started(job, now, timedelta(), "cancelled", attempt=1)
    Run.objects.filter(pk=given_up.pk).update(attempt=2, due_at=now + HOUR)
    _started(job, now, HOUR, due_at=now - timedelta(days=2))  # outside the window

    starts = run_figures(now).starts

    assert starts.start_delays == (timedelta(), 5 * MS, 40 * MS)
    assert not starts.truncated


def test_start_delays_sample_latest_attempts(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "SAMPLE", 3)
    job = make_idle_job()
    for late in (9, 1, 2, 3):
        _started(job, now, late * MS)

    starts = run_figures(now).starts

    assert starts.start_delays == (MS, 2 * MS, 3 * MS)
    assert starts.truncated


@pytest.mark.parametrize(
    ("size", "percent", "rank"),
    [(1, 50, 1), (1, 99, 1), (2, 50, 1), (100, 50, 50), (100, 99, 99), (3, 99, 3)],
)
def test_percentile_is_nearest_rank(size: int, percent: int, rank: int) -> None:
    assert percentile([number * MS for number in range(1, size + 1)], percent) == rank * MS


def test_percentile_of_empty_list_is_none() -> None:
    assert percentile([], 50) is None


def test_missed_occurrences_without_row_are_counted(now: datetime) -> None:
    job = make_idle_job()
    make_run(job, "missed", missed_before=7)
    make_run(job, "missed", missed_before=4, due_at=now - timedelta(days=2))
    _started(job, now, MS, missed_before=30)

    found = run_figures(now)

    assert (found.missed, found.counted_by_later_runs) == (LimitedCount(1), 37)


def test_jobs_are_counted_by_state(now: datetime) -> None:
    make_idle_job()
    control.pause(make_idle_job(), "for a test")
    broken, paused_and_broken, soon = make_idle_job(), make_idle_job(), make_idle_job()
    control.pause(paused_and_broken, "for a test")
    Cursor.objects.filter(pk__in=[broken.pk, paused_and_broken.pk]).update(problem="no such zone")
    Cursor.objects.filter(pk__in=[soon.pk, broken.pk]).update(next_at=now + HOUR - MS)
    for later in (make_idle_job(), make_idle_job()):
        Cursor.objects.filter(pk=later.pk).update(next_at=now + HOUR + timedelta(minutes=1))

    disable_exhausted([make_idle_job().pk], "default")

    found = job_figures(now)

    counted = (found.enabled, found.paused, found.finished, found.quarantined)
    assert (found.total, counted) == (8, (4, 2, 1, 1))
    assert (found.due_soon, found.next_at) == (
        LimitedCount(1),
        Cursor.objects.get(pk=soon.pk).next_at,
    )


def test_job_with_claimed_occurrence_counts_once_as_due_soon(now: datetime) -> None:
    """An hourly job's cursor is ahead of its claimed run, and so beyond the coming hour."""
    claimed, coming, retries, by_hand = (make_idle_job(max_attempts=2) for _ in range(4))
    Cursor.objects.filter(pk=claimed.pk).update(next_at=now + HOUR + MS)
    Cursor.objects.filter(pk=coming.pk).update(next_at=now + HOUR - MS)
    first = now + timedelta(seconds=5)
    for job in (claimed, claimed, coming):
        make_run(job, "pending", due_at=first)
    make_run(claimed, "pending", due_at=now + HOUR + MS)
    make_run(retries, "pending", due_at=now, attempt=2)
    make_run(by_hand, "pending", due_at=now, trigger="manual")

    found = job_figures(now)

    assert (found.due_soon, found.next_at) == (LimitedCount(2), first)


def test_jobs_that_a_freeze_holds_back_are_counted(now: datetime) -> None:
    in_shop, claimed, other = (make_idle_job(namespace=name) for name in ("shop", "shop", "mail"))
    Cursor.objects.filter(pk__in=[in_shop.pk, other.pk]).update(next_at=now + HOUR / 2)
    Cursor.objects.filter(pk=claimed.pk).update(next_at=now + 2 * HOUR)
    for _ in range(3):
        make_run(claimed, "pending", due_at=now)
    assert job_figures(now).held_back == 0

    control.freeze("deploy", "shop")
    found = job_figures(now)
    assert (found.due_soon, found.held_back) == (LimitedCount(3), 2)

    control.freeze("deploy", until=database_now("default") + HOUR / 4)
    assert job_figures(now).held_back == 2, "the other job's next run comes after this freeze"
    control.freeze("deploy", until=database_now("default") + HOUR)
    assert job_figures(now).held_back == 3


def test_latest_failures_show_error_of_last_attempt(now: datetime) -> None:
    job = make_idle_job(max_attempts=2)
    make_run(job, "failed", due_at=now - timedelta(days=2))
    for number in range(3):
        run = make_run(job, "failed", due_at=now - number * HOUR, attempt=2, reason="a reason")
        if number:
            for attempt in (1, 2):
                _attempt(run, attempt)
                shown = {
                    "exception_class": "app.Broken",
                    "message": f"\n{number}.{attempt}\nand more",
                }
                Attempt.objects.filter(run=run, number=attempt).update(**shown)

    found = latest_failures(window_start(now), limit=3)

    assert [(failure.exception_class, failure.first_line) for failure in found] == [
        ("", "a reason"),
        ("app.Broken", "1.2"),
        ("app.Broken", "2.2"),
    ]
    assert len(latest_failures(window_start(now), limit=2)) == 2
    assert [group.number for group in group_failures(found)] == [1, 2]


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("no such order: 4711", "no such order: 4712", True),
        ("<Order at 0x7f00aa>", "<Order at 0x7f00ab>", True),
        (
            "row 01a213b2-e568-7d86-b71a-ded3a4df5b85",
            "row 01a2139e-1b9a-7571-a4b0-fb730e336ef0",
            True,
        ),
        ("no such order", "no such customer", False),
        ("same\nfirst", "same\nsecond", True),
    ],
)
def test_failures_with_same_message_except_numbers_are_one_group(
    now: datetime, one: str, other: str, alike: bool
) -> None:
    job = make_idle_job()
    runs = [make_run(job, "failed") for _ in range(3)]
    failures = [
        FailedRun(runs[0], "app.Broken", one),
        FailedRun(runs[1], "app.Broken", other),
        FailedRun(runs[2], "app.Other", one),
    ]
    groups = group_failures(failures)
    assert [group.number for group in groups] == ([2, 1] if alike else [1, 1, 1])
    assert (groups[0].latest, groups[0].first) == (failures[0], failures[int(alike)])


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of rows that each fetch reads."""
    read: list[int] = []
    fetch: Callable[..., Iterator[list[Any]]] = compiler.cursor_iter

    def counting(*args: Any) -> Iterator[list[Any]]:
        for rows in fetch(*args):
            read.append(len(rows))
            yield rows

    monkeypatch.setattr(compiler, "cursor_iter", counting)
    return read


def _fill(job: Job, number: int, now: datetime) -> None:
    """Create ``number`` finished runs within the last hour, with an attempt each."""
    states = ["succeeded", "failed", "missed", "skipped"]
    times = [now - HOUR * i / number for i in range(number)]
    runs = [
        Run(
            job=job,
            scheduled_at=at,
            due_at=at,
            claimed_at=at,
            started_at=at,
            finished_at=at,
            state=states[i % 4],
        )
        for i, at in enumerate(times)
    ]
    Run.objects.bulk_create(runs)
    Attempt.objects.bulk_create(
        Attempt(run=run, number=1, token=uuid4(), worker="w", started_at=run.started_at)
        for run in runs
    )


def test_number_of_queries_and_rows_is_constant(
    now: datetime, monkeypatch: pytest.MonkeyPatch, rows_read: list[int]
) -> None:
    monkeypatch.setattr(figures, "SAMPLE", 100)
    monkeypatch.setattr(figures, "MAX_COUNTED", 200)
    job = make_idle_job()

    def read() -> tuple[int, int]:
        rows_read.clear()
        with CaptureQueriesContext(connection) as queries:
            job_figures(now)
            run_figures(now)
            latest_failures(window_start(now), limit=10)
        return len(queries), sum(rows_read)

    _fill(job, 400, now - HOUR)
    few = read()
    others = [Job(name=f"j{i}", target="t", schedule="0 0 1 1 *", version=1) for i in range(500)]
    Job.objects.bulk_create(others)
    _fill(job, 2000, now)
    many = read()

    assert many == few
    assert run_figures(now).failed == LimitedCount(200, truncated=True)


@pytest.mark.sqlite
def test_queries_use_indexes_and_limits(now: datetime) -> None:
    _fill(make_idle_job(), 100, now)
    with CaptureQueriesContext(connection) as queries:
        run_figures(now)
        latest_failures(window_start(now), limit=10)
        job_figures(now)

    tables = (
        'FROM "django_dcron_run"',
        'FROM "django_dcron_attempt"',
        'FROM "django_dcron_cursor"',
    )
    read = [query["sql"] for query in queries if any(table in query["sql"] for table in tables)]
    assert len(read) == 6
    assert sum(sql.count("LIMIT") for sql in read) == 18  # of each set and each EXISTS
    assert all("LIMIT" in sql or " IN (" in sql for sql in read), read
    scans = ("SCAN django_dcron_run", "SCAN django_dcron_cursor", "TEMP B-TREE FOR ORDER BY")
    with connection.cursor() as cursor:
        for sql in read:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            plan = [row[3] for row in cursor.fetchall()]
            assert not any(scan in step for step in plan for scan in scans), plan
