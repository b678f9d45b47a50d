"""A node compares all jobs with their cursors in turn, a bounded number at a time."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_dcron.db.now import database_now
from django_dcron.models import Cursor, Job
from django_dcron.scheduler import outdated_cursors
from django_dcron.scheduler.outdated_cursors import OutdatedCursors
from tests.factories import make_idle_job

pytestmark = pytest.mark.django_db


@pytest.fixture
def three_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outdated_cursors, "COMPARED_AT_ONCE", 3)


def move(outdated: OutdatedCursors) -> int:
    return outdated.move(database_now("default"), Job.objects.all())


def change(*jobs: Job) -> None:
    Job.objects.filter(pk__in=[job.pk for job in jobs]).update(schedule="@hourly")


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
def test_keys_without_jobs_are_skipped() -> None:
    first = make_idle_job()
    Job.objects.filter(pk=first.pk).update(deleted_at=database_now("default"))
    jobs = [make_idle_job() for _ in range(4)]
    Cursor.objects.filter(job__in=jobs[:2]).delete()
    Job.objects.filter(pk__in=[job.pk for job in jobs[:2]]).delete()
    change(*jobs[2:])
    assert move(OutdatedCursors()) == 2


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
def test_comparison_reads_only_the_given_keys() -> None:
    make_idle_job()
    with CaptureQueriesContext(connection) as captured:
        move(OutdatedCursors())
    (compared,) = (query["sql"] for query in captured if "LEFT OUTER JOIN" in query["sql"])
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {compared}")
        steps = [row[3] for row in cursor.fetchall()]
    assert any("rowid>? AND rowid<?" in step for step in steps), steps
    assert not any(step.startswith("SCAN") or "B-TREE" in step for step in steps), steps
