"""The timeline: which jobs get a lane, how their runs are summarized, and the coming runs."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.diagnosis.selection import Selection
from django_dcron.diagnosis.timeline import LANES, Coming, Lane, Runs, timeline
from django_dcron.models import Cursor, Job, Run
from tests.factories import make_idle_job, make_job

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def run_of(job: Job, at: datetime, state: str = "succeeded", **values: Any) -> Run:
    """Create a run that started 20 ms late and took a second, unless ``values`` says otherwise."""
    times: dict[str, Any] = {"due_at": at, "claimed_at": at}
    if state in ("succeeded", "failed", "running"):
        times["started_at"] = at + timedelta(milliseconds=20)
    if state not in ("running", "pending", "queued", "waiting"):
        times["finished_at"] = at + SECOND
    return Run.objects.create(job=job, scheduled_at=at, state=state, **times | values)


def many_runs(
    job: Job, first: datetime, number: int, step: timedelta, state: str = "succeeded"
) -> None:
    Run.objects.bulk_create(
        Run(
            job=job,
            scheduled_at=at,
            due_at=at,
            claimed_at=at,
            started_at=at + SECOND / 10,
            finished_at=at + SECOND / 2,
            state=state,
        )
        for at in (first + n * step for n in range(number))
    )


def next_at(job: Job, at: datetime) -> None:
    Cursor.objects.filter(pk=job.pk).update(next_at=at)


def lane_of(job: Job, **options: Any) -> Lane:
    (found,) = (lane for lane in timeline(NOON, **options).lanes if lane.job.pk == job.pk)
    return found


def test_a_run_is_reported_as_it_is() -> None:
    job = make_idle_job()
    at = NOON - 20 * MINUTE
    run = run_of(job, at, "failed", missed_before=3)
    started, finished = at + timedelta(milliseconds=20), at + SECOND
    assert lane_of(job).runs == (Runs("failed", 1, at, at, at, started, finished, 3, run.pk),)


def test_runs_that_did_not_start_and_those_that_have_not_ended() -> None:
    job = make_idle_job()
    states = ["missed", "skipped", "cancelled", "queued", "running"]
    for number, state in enumerate(states):
        run_of(job, NOON - 10 * MINUTE + number * MINUTE, state)
    found = lane_of(job).runs
    assert [runs.state for runs in found] == states
    assert [runs.started_at is None for runs in found] == [True, True, True, True, False]
    assert [runs.finished_at is None for runs in found] == [False, False, False, True, True]


def test_a_job_of_every_second_is_summed_up_by_the_minute() -> None:
    job = make_idle_job()
    many_runs(job, NOON - 15 * MINUTE + SECOND, 900, SECOND)
    Run.objects.filter(job=job, scheduled_at=NOON - 10 * MINUTE).update(state="failed")
    with CaptureQueriesContext(connection) as asked:
        found = lane_of(job).runs
    assert sum(runs.number for runs in found) == 900
    at = NOON - 10 * MINUTE
    assert [(runs.state, runs.number, runs.scheduled_at) for runs in found] == [
        ("succeeded", 299, NOON - 15 * MINUTE + SECOND),
        ("failed", 1, at),
        ("succeeded", 59, at + SECOND),
        ("succeeded", 540, at + MINUTE),
        ("succeeded", 1, NOON),
    ]
    assert [runs.run_id is None for runs in found] == [True, False, True, True, False]
    tenth, half = SECOND / 10, SECOND / 2
    due, last = at + MINUTE, NOON - SECOND
    assert found[3] == Runs("succeeded", 540, last, due, due, due + tenth, last + half, 0, None)
    assert len(asked) == 4


def test_minutes_are_one_only_if_they_follow_each_other_and_are_alike() -> None:
    job = make_idle_job()
    for minute, states in enumerate(["ss", "ss", "s", "ss", "", "ss", "ff", "ff", "sf", "ss"]):
        for number, state in enumerate(states):
            at = NOON - 30 * MINUTE + minute * MINUTE + number * 20 * SECOND
            run_of(job, at, {"s": "succeeded", "f": "failed"}[state])
    assert [(runs.state[0], runs.number) for runs in lane_of(job).runs] == [
        ("s", 4),
        ("s", 1),
        ("s", 2),
        ("s", 2),
        ("f", 4),
        ("s", 1),
        ("f", 1),
        ("s", 2),
    ]


def test_what_reaches_into_the_hour_from_before() -> None:
    long, over, hanging = make_idle_job(), make_idle_job(), make_idle_job()
    ended = run_of(long, NOON - 2 * HOUR, finished_at=NOON - MINUTE)
    run_of(over, NOON - 2 * HOUR)
    still = [run_of(hanging, NOON - hours * HOUR, "running") for hours in (30, 3, 2)]
    assert [runs.run_id for runs in lane_of(long).runs] == [ended.pk]
    assert lane_of(over).runs == ()
    assert [runs.run_id for runs in lane_of(hanging).runs] == [run.pk for run in still]


def test_nothing_of_what_is_not_due_yet() -> None:
    job = make_idle_job()
    run_of(job, NOON + SECOND, "pending")
    run_of(job, NOON - HOUR - 2 * SECOND)
    run_of(job, NOON)
    assert [runs.scheduled_at for runs in lane_of(job).runs] == [NOON]


def test_without_runs_for_those_who_may_not_see_them() -> None:
    job = make_idle_job()
    run_of(job, NOON - MINUTE)
    with CaptureQueriesContext(connection) as asked:
        assert lane_of(job, with_runs=False).runs == ()
    assert not any("dcron_run" in query["sql"] and "GROUP BY" in query["sql"] for query in asked)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("*/20 * * * *", [(20, 20), (40, 40), (60, 60)]),
        ("30 12 * * *", [(30, 30)]),
        ("* * * * *", [(minute, minute) for minute in range(1, 61)]),
        ("0,10 30,45 * * * *", [(30, 30), (45, 45)]),
        ("0 14 * * *", []),
        ("@every 25m", [(5, 5), (30, 30), (55, 55)]),
    ],
)
def test_what_comes(schedule: str, expected: list[tuple[int, int]]) -> None:
    job = make_job(schedule=schedule)
    next_at(job, NOON + 5 * MINUTE)
    assert lane_of(job).coming == tuple(
        Coming(NOON + first * MINUTE, NOON + last * MINUTE) for first, last in expected
    )


@pytest.mark.parametrize("schedule", ["* * * * * *", "@every 1s", "@every 40s", "*/7 * * * * *"])
def test_what_comes_more_than_once_a_minute_is_one(schedule: str) -> None:
    job = make_job(schedule=schedule)
    next_at(job, NOON + 10 * SECOND)
    (coming,) = lane_of(job).coming
    assert coming.first - NOON < 40 * SECOND
    assert NOON + HOUR - coming.last < MINUTE


def test_what_comes_in_bouts() -> None:
    job = make_job(schedule="* 0-9,30-39 * * * *")
    assert [(each.first - NOON, each.last - NOON) for each in lane_of(job).coming] == [
        (SECOND, 9 * MINUTE + 31 * SECOND),
        (30 * MINUTE, 39 * MINUTE + 30 * SECOND),
        (60 * MINUTE, 60 * MINUTE),
    ]


def test_what_comes_ends_with_the_job() -> None:
    job = make_job(schedule="*/10 * * * *", ends_at=datetime(2126, 1, 1, tzinfo=UTC))
    Job.objects.filter(pk=job.pk).update(ends_at=NOON + 25 * MINUTE)
    assert [each.first for each in lane_of(job).coming] == [NOON + 10 * MINUTE, NOON + 20 * MINUTE]


def test_nothing_comes_of_a_job_that_is_not_scheduled() -> None:
    paused, quarantined, unseen, unreadable = (make_job() for _ in range(4))
    control.pause(paused)
    Cursor.objects.filter(pk=quarantined.pk).update(problem="no such zone")
    Cursor.objects.filter(pk=unseen.pk).delete()
    Job.objects.filter(pk=unreadable.pk).update(schedule="whenever")
    lanes = timeline(NOON).lanes
    assert len(lanes) == 4
    assert [(lane.coming, lane.next_at) for lane in lanes] == [((), None)] * 4


def test_the_next_occurrence_is_reported_though_it_is_far() -> None:
    job = make_job(schedule="0 14 * * *")
    assert lane_of(job).next_at == NOON + 2 * HOUR


# --- which jobs ---------------------------------------------------------------------------------


def test_all_jobs_by_name_if_they_are_few() -> None:
    for name in ("b", "c", "a"):
        make_idle_job(name=name)
    control.pause(make_idle_job(name="a", namespace="shop"))
    found = timeline(NOON)
    assert [str(lane.job) for lane in found.lanes] == ["a", "b", "c", "shop/a"]
    assert found.jobs == 4


@pytest.fixture
def crowd() -> list[Job]:
    """More jobs than lanes. The last jobs are due first."""
    jobs = [
        make_idle_job(name=f"job-{n:02}", namespace="shop" if n % 2 else "default")
        for n in range(LANES + 10)
    ]
    for number, job in enumerate(jobs):
        next_at(job, NOON + (100 - number) * MINUTE)
    return jobs


def test_of_many_those_that_run_failed_or_are_due_next(crowd: list[Job]) -> None:
    run_of(crowd[0], NOON - 5 * HOUR, "running")
    run_of(crowd[1], NOON - 5 * MINUTE, "failed")
    run_of(crowd[2], NOON - 5 * HOUR, "failed")
    Cursor.objects.filter(pk=crowd[-1].pk).update(problem="no such zone")
    Cursor.objects.filter(pk=crowd[-2].pk).update(next_at=None)
    found = timeline(NOON)
    shown = {lane.job.pk for lane in found.lanes}
    assert shown == {job.pk for job in [crowd[0], crowd[1], *crowd[-LANES:-2]]}
    by_name = sorted(
        found.lanes, key=lambda lane: (not lane.runs, lane.job.namespace, lane.job.name)
    )
    assert list(found.lanes) == by_name
    assert [bool(lane.runs) for lane in found.lanes] == [True, True] + [False] * (LANES - 2)
    assert found.jobs == LANES + 10


def test_those_that_run_leave_room_for_those_that_failed(crowd: list[Job]) -> None:
    for job in crowd[:-5]:
        run_of(job, NOON - MINUTE, "running")
    for job in crowd[-5:]:
        run_of(job, NOON - MINUTE, "failed")
        next_at(job, NOON + 1000 * MINUTE)
    assert {job.pk for job in crowd[-5:]} < {lane.job.pk for lane in timeline(NOON).lanes}


def test_a_choice_of_many(crowd: list[Job]) -> None:
    run_of(crowd[0], NOON - MINUTE, "running")
    run_of(crowd[2], NOON - MINUTE, "failed")
    in_shop = timeline(NOON, Selection("shop"))
    assert {lane.job.namespace for lane in in_shop.lanes} == {"shop"}
    assert (len(in_shop.lanes), in_shop.jobs) == (20, 20)
    assert [lane.job.name for lane in timeline(NOON, Selection(name="B-07")).lanes] == ["job-07"]
    make_idle_job(name="other")
    named = timeline(NOON, Selection(name="job"))
    assert (len(named.lanes), named.jobs) == (LANES, LANES + 10)


def test_few_queries_however_many_jobs_and_runs(crowd: list[Job]) -> None:
    for job in crowd:
        many_runs(job, NOON - 70 * MINUTE - 30 * SECOND, 30, MINUTE)
        run_of(job, NOON - SECOND, "running")
        run_of(job, NOON - 2 * SECOND, "failed")
    with CaptureQueriesContext(connection) as asked:
        found = timeline(NOON)
    assert sum(runs.number for lane in found.lanes for runs in lane.runs) == LANES * 21
    assert len(asked) == 9


def test_no_more_queries_for_those_that_reach_into_the_hour(crowd: list[Job]) -> None:
    for job in crowd:
        run_of(job, NOON - 3 * HOUR, finished_at=NOON)
        run_of(job, NOON - 2 * HOUR, "running")
    with CaptureQueriesContext(connection) as asked:
        timeline(NOON)
    assert len(asked) == 9
