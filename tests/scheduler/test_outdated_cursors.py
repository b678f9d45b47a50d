"""A node compares all jobs with their cursors in turn, a bounded number at a time."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_dcron.db.now import database_now
from django_dcron.jobs import cursors, pausing
from django_dcron.models import Cursor, Job
from django_dcron.scheduler import outdated_cursors, tick
from django_dcron.scheduler.outdated_cursors import OutdatedCursors, move_all_outdated
from tests.factories import make_idle_job
from tests.scheduler.test_tick import NodeUnderTest

pytestmark = pytest.mark.django_db


@pytest.fixture
def three_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outdated_cursors, "COMPARED_AT_ONCE", 3)


def move(outdated: OutdatedCursors) -> int:
    return outdated.move(database_now("default"), Job.objects.all())


def change(*jobs: Job) -> None:
    Job.objects.filter(pk__in=[job.pk for job in jobs]).update(schedule="@hourly")


def refuse(job: Job) -> Callable[..., bool]:
    """Return a move of cursors that fails for ``job``."""
    move_cursor = cursors._move_cursor

    def fail(job_id: int, *given: Any) -> bool:
        if job_id == job.pk:
            raise ValueError("refused")
        return move_cursor(job_id, *given)

    return fail


def plan(sql: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
        return [row[3] for row in cursor.fetchall()]


def is_outdated(job: Job) -> bool:
    return Cursor.objects.get(pk=job.pk).schedule != "@hourly"


@pytest.mark.usefixtures("three_at_once")
def test_all_jobs_are_compared_in_turn() -> None:
    jobs = [make_idle_job() for _ in range(8)]
    outdated = OutdatedCursors()
    for _round in range(3):
        change(*jobs)
        assert [move(outdated) for _ in range(3)] == [3, 3, 2]
        Cursor.objects.update(schedule="@never")


@pytest.mark.usefixtures("three_at_once")
def test_gaps_between_keys_cost_no_time() -> None:
    jobs = [make_idle_job() for _ in range(2)]
    far = [Job.objects.create(pk=10**9 + n, name=f"far-{n}", target=jobs[0].target) for n in (1, 2)]
    change(*jobs, *far)
    outdated = OutdatedCursors()
    assert [move(outdated) for _ in range(3)] == [3, 1, 0]


@pytest.mark.usefixtures("three_at_once")
@pytest.mark.parametrize("moved_at_once", [2, 500])
def test_all_jobs_are_moved_if_there_is_no_later_tick(
    monkeypatch: pytest.MonkeyPatch, moved_at_once: int
) -> None:
    for module in ("jobs.cursors", "scheduler.outdated_cursors"):
        monkeypatch.setattr(f"django_dcron.{module}.MOVED_AT_ONCE", moved_at_once)
    change(*[make_idle_job() for _ in range(8)])
    assert move_all_outdated(database_now("default"), Job.objects.all()) == 8


@pytest.mark.usefixtures("three_at_once")
@pytest.mark.parametrize("once", [True, False])
def test_ticks_compare_all_jobs(once: bool) -> None:
    node = NodeUnderTest()
    jobs = [make_idle_job() for _ in range(8)]
    change(*jobs)
    for number in range(1 if once else 3):
        node.clock.advance(number * tick.APPLY_CHANGES_EVERY)
        node.ticker.tick(once=once)
    assert not any(map(is_outdated, jobs))


@pytest.mark.usefixtures("three_at_once")
def test_jobs_that_fail_do_not_keep_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("jobs.cursors", "scheduler.outdated_cursors"):
        monkeypatch.setattr(f"django_dcron.{module}.MOVED_AT_ONCE", 1)
    jobs = [make_idle_job() for _ in range(4)]
    change(jobs[0], jobs[3])
    monkeypatch.setattr(cursors, "_move_cursor", refuse(jobs[0]))
    outdated = OutdatedCursors()
    for _ in range(3):
        move(outdated)
    assert [is_outdated(jobs[0]), is_outdated(jobs[3])] == [True, False]


@pytest.mark.usefixtures("three_at_once")
def test_many_changes_keep_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outdated_cursors, "MOVED_AT_ONCE", 2)
    monkeypatch.setattr("django_dcron.jobs.cursors.MOVED_AT_ONCE", 2)
    jobs = [make_idle_job() for _ in range(4)]
    change(*jobs)
    outdated = OutdatedCursors()
    assert [move(outdated) for _ in range(3)] == [2, 1, 1]
    assert not any(map(is_outdated, jobs))


def test_without_jobs_nothing_is_moved() -> None:
    assert move(OutdatedCursors()) == 0


@pytest.mark.sqlite
def test_checks_read_failing_and_paused_jobs_by_an_index() -> None:
    with CaptureQueriesContext(connection) as captured:
        pausing.pause_failing_jobs(Job.objects.all())
        pausing.end_pauses(Job.objects.all())
    failing, paused = (query["sql"] for query in captured if "SELECT" in query["sql"])
    assert any("dcron_statistics_failing" in step for step in plan(failing)), plan(failing)
    assert any("dcron_job_paused_until" in step for step in plan(paused)), plan(paused)


@pytest.mark.sqlite
def test_comparison_reads_only_the_given_keys() -> None:
    make_idle_job()
    with CaptureQueriesContext(connection) as captured:
        move(OutdatedCursors())
    (compared,) = (query["sql"] for query in captured if "LEFT OUTER JOIN" in query["sql"])
    steps = plan(compared)
    assert any("rowid>?" in step for step in steps), steps
    assert not any(step.startswith("SCAN") or "B-TREE" in step for step in steps), steps
