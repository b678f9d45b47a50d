"""Test the timeline: its lanes, the summaries of runs and the upcoming occurrences."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.diagnosis.job_filters.selection import JobSelection
from django_dcron.diagnosis.timeline import LANES, Lane, OccurrenceStretch, RunStretch, timeline
from django_dcron.models import Cursor, Job, Run
from tests.factories import make_idle_job, make_job

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def make_run(job: Job, at: datetime, state: str = "succeeded", **values: Any) -> Run:
    """Create a run that started 20 ms late and took a second, unless ``values`` says otherwise."""
    times: dict[str, Any] = {"due_at": at, "claimed_at": at}
    if state in ("succeeded", "failed", "running"):
        times["started_at"] = at + timedelta(milliseconds=20)
    if state not in ("running", "pending", "queued", "waiting"):
        times["finished_at"] = at + SECOND
    return Run.objects.create(job=job, scheduled_at=at, state=state, **times | values)


def make_runs(
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


def set_next_at(job: Job, at: datetime) -> None:
    Cursor.objects.filter(pk=job.pk).update(next_at=at)


def lane_of(job: Job, **options: Any) -> Lane:
    (found,) = (lane for lane in timeline(NOON, **options).lanes if lane.job.pk == job.pk)
    return found


def test_single_run_is_shown_with_its_times() -> None:
    job = make_idle_job()
    at = NOON - 20 * MINUTE
    run = make_run(job, at, "failed", missed_before=3)
    started, finished = at + timedelta(milliseconds=20), at + SECOND
    assert lane_of(job).runs == (RunStretch("failed", 1, at, at, at, started, finished, 3, run.pk),)


def test_unstarted_and_unfinished_runs_lack_times() -> None:
    job = make_idle_job()
    states = ["missed", "skipped", "cancelled", "queued", "running"]
    for number, state in enumerate(states):
        make_run(job, NOON - 10 * MINUTE + number * MINUTE, state)
    found = lane_of(job).runs
    assert [runs.state for runs in found] == states
    assert [runs.started_at is None for runs in found] == [True, True, True, True, False]
    assert [runs.finished_at is None for runs in found] == [False, False, False, True, True]


def test_run_cancelled_during_backoff_has_no_start() -> None:
    job = make_idle_job()
    for at in (NOON - 70 * MINUTE, NOON - 30 * MINUTE):
        times = {"due_at": at + HOUR, "started_at": at + SECOND, "finished_at": at + 25 * MINUTE}
        make_run(job, at, "cancelled", attempt=2, **times)
    both = make_run(job, NOON - 10 * MINUTE, "failed", attempt=2, due_at=NOON - 9 * MINUTE)
    Run.objects.filter(pk=both.pk).update(heartbeat_at=NOON)
    found = lane_of(job).runs
    assert [(runs.state, runs.started_at is None) for runs in found] == [
        ("cancelled", True),
        ("cancelled", True),
        ("failed", False),
    ]


def test_runs_of_every_second_are_summarized_per_minute() -> None:
    job = make_idle_job()
    make_runs(job, NOON - 15 * MINUTE + SECOND, 900, SECOND)
    Run.objects.filter(job=job, scheduled_at=NOON - 10 * MINUTE).update(state="failed")
    with CaptureQueriesContext(connection) as captured:
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
    assert found[3] == RunStretch(
        "succeeded", 540, last, due, due, due + tenth, last + half, 0, None
    )
    assert len(captured) == 4


def test_only_adjacent_minutes_with_same_state_are_merged() -> None:
    job = make_idle_job()
    for minute, states in enumerate(["ss", "ss", "s", "ss", "", "ss", "ff", "ff", "sf", "ss"]):
        for number, state in enumerate(states):
            at = NOON - 30 * MINUTE + minute * MINUTE + number * 20 * SECOND
            make_run(job, at, {"s": "succeeded", "f": "failed"}[state])
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


def test_earlier_runs_that_overlap_the_hour_are_shown() -> None:
    long, finished, hanging = make_idle_job(), make_idle_job(), make_idle_job()
    ended = make_run(long, NOON - 2 * HOUR, finished_at=NOON - MINUTE)
    make_run(finished, NOON - 2 * HOUR)
    still = [make_run(hanging, NOON - hours * HOUR, "running") for hours in (30, 3, 2)]
    assert [runs.run_id for runs in lane_of(long).runs] == [ended.pk]
    assert lane_of(finished).runs == ()
    assert [runs.run_id for runs in lane_of(hanging).runs] == [run.pk for run in still]


def test_future_and_earlier_runs_are_not_shown() -> None:
    job = make_idle_job()
    make_run(job, NOON + SECOND, "pending")
    make_run(job, NOON - HOUR - 2 * SECOND)
    make_run(job, NOON)
    assert [runs.scheduled_at for runs in lane_of(job).runs] == [NOON]


def test_runs_are_omitted_without_permission() -> None:
    job = make_idle_job()
    make_run(job, NOON - MINUTE)
    with CaptureQueriesContext(connection) as captured:
        assert lane_of(job, with_runs=False).runs == ()
    assert not any("dcron_run" in query["sql"] and "GROUP BY" in query["sql"] for query in captured)


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
def test_upcoming_occurrences_are_listed(schedule: str, expected: list[tuple[int, int]]) -> None:
    job = make_job(schedule=schedule)
    set_next_at(job, NOON + 5 * MINUTE)
    assert lane_of(job).upcoming == tuple(
        OccurrenceStretch(NOON + first * MINUTE, NOON + last * MINUTE) for first, last in expected
    )


@pytest.mark.parametrize("schedule", ["* * * * * *", "@every 1s", "@every 40s", "*/7 * * * * *"])
def test_frequent_upcoming_occurrences_are_merged(schedule: str) -> None:
    job = make_job(schedule=schedule)
    set_next_at(job, NOON + 10 * SECOND)
    (stretch,) = lane_of(job).upcoming
    assert stretch.first - NOON < 40 * SECOND
    assert NOON + HOUR - stretch.last < MINUTE


def test_upcoming_occurrences_in_bursts_are_merged_per_burst() -> None:
    job = make_job(schedule="* 0-9,30-39 * * * *")
    assert [(each.first - NOON, each.last - NOON) for each in lane_of(job).upcoming] == [
        (SECOND, 9 * MINUTE + 31 * SECOND),
        (30 * MINUTE, 39 * MINUTE + 30 * SECOND),
        (60 * MINUTE, 60 * MINUTE),
    ]


@pytest.mark.parametrize(
    ("schedule", "next_at", "expected"),
    [
        ("*/20 * * * *", NOON - 40 * MINUTE, [(-40, -40), (-20, -20), (0, 0)]),
        ("*/20 * * * *", NOON - 5 * HOUR, [(-60, -60), (-40, -40), (-20, -20), (0, 0)]),
        ("* * * * * *", NOON - 10 * MINUTE, [(-10, 0)]),
        ("*/20 * * * *", NOON, []),  # not late yet
    ],
)
def test_overdue_occurrences_without_run_are_listed(
    schedule: str, next_at: datetime, expected: list[tuple[int, int]]
) -> None:
    job = make_job(schedule=schedule)
    set_next_at(job, next_at)
    found = [
        (round((each.first - NOON) / MINUTE), round((each.last - NOON) / MINUTE))
        for each in lane_of(job).without_run
    ]
    assert found == expected


def test_frozen_and_paused_jobs_have_no_overdue_occurrences() -> None:
    job = make_job(schedule="*/20 * * * *")
    set_next_at(job, NOON - HOUR)
    assert lane_of(job).without_run
    control.freeze("deploy")
    assert lane_of(job).without_run == ()
    control.unfreeze()
    control.pause(job)
    assert lane_of(job).without_run == ()


def test_upcoming_occurrences_end_with_job() -> None:
    job = make_job(schedule="*/10 * * * *", ends_at=datetime(2126, 1, 1, tzinfo=UTC))
    Job.objects.filter(pk=job.pk).update(ends_at=NOON + 25 * MINUTE)
    assert [each.first for each in lane_of(job).upcoming] == [
        NOON + 10 * MINUTE,
        NOON + 20 * MINUTE,
    ]


def test_unscheduled_jobs_have_no_upcoming_occurrences() -> None:
    paused, quarantined, unseen, unreadable = (make_job() for _ in range(4))
    control.pause(paused)
    Cursor.objects.filter(pk=quarantined.pk).update(problem="no such zone")
    Cursor.objects.filter(pk=unseen.pk).delete()
    Job.objects.filter(pk=unreadable.pk).update(schedule="whenever")
    lanes = timeline(NOON).lanes
    assert len(lanes) == 4
    assert [(lane.upcoming, lane.next_at) for lane in lanes] == [((), None)] * 4


def test_next_occurrence_beyond_the_hour_is_shown() -> None:
    job = make_job(schedule="0 14 * * *")
    assert lane_of(job).next_at == NOON + 2 * HOUR


# --- which jobs ---------------------------------------------------------------------------------


def test_lanes_of_few_jobs_are_ordered_by_name() -> None:
    for name in ("b", "c", "a"):
        make_idle_job(name=name)
    control.pause(make_idle_job(name="a", namespace="shop"))
    found = timeline(NOON)
    assert [str(lane.job) for lane in found.lanes] == ["a", "b", "c", "shop/a"]
    assert found.jobs == 4


@pytest.fixture
def crowd() -> list[Job]:
    """Create more jobs than lanes. The last jobs are due first."""
    jobs = [
        make_idle_job(name=f"job-{n:02}", namespace="shop" if n % 2 else "default")
        for n in range(LANES + 10)
    ]
    for number, job in enumerate(jobs):
        set_next_at(job, NOON + (100 - number) * MINUTE)
    return jobs


def test_running_failed_and_next_due_jobs_get_lanes_first(crowd: list[Job]) -> None:
    make_run(crowd[0], NOON - 5 * HOUR, "running")
    make_run(crowd[1], NOON - 5 * MINUTE, "failed")
    make_run(crowd[2], NOON - 5 * HOUR, "failed")
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


def test_running_jobs_leave_lanes_for_failed_jobs(crowd: list[Job]) -> None:
    for job in crowd[:-5]:
        make_run(job, NOON - MINUTE, "running")
    for job in crowd[-5:]:
        make_run(job, NOON - MINUTE, "failed")
        set_next_at(job, NOON + 1000 * MINUTE)
    assert {job.pk for job in crowd[-5:]} < {lane.job.pk for lane in timeline(NOON).lanes}


def test_lanes_are_limited_to_selection(crowd: list[Job]) -> None:
    make_run(crowd[0], NOON - MINUTE, "running")
    make_run(crowd[2], NOON - MINUTE, "failed")
    in_shop = timeline(NOON, JobSelection("shop"))
    assert {lane.job.namespace for lane in in_shop.lanes} == {"shop"}
    assert (len(in_shop.lanes), in_shop.jobs) == (20, 20)
    assert [lane.job.name for lane in timeline(NOON, JobSelection(name="B-07")).lanes] == ["job-07"]
    make_idle_job(name="other")
    named = timeline(NOON, JobSelection(name="job"))
    assert (len(named.lanes), named.jobs) == (LANES, LANES + 10)


def test_number_of_queries_is_constant(crowd: list[Job]) -> None:
    for job in crowd:
        make_runs(job, NOON - 70 * MINUTE - 30 * SECOND, 30, MINUTE)
        make_run(job, NOON - SECOND, "running")
        make_run(job, NOON - 2 * SECOND, "failed")
    with CaptureQueriesContext(connection) as captured:
        found = timeline(NOON)
    assert sum(runs.number for lane in found.lanes for runs in lane.runs) == LANES * 21
    assert len(captured) == 9


def test_number_of_queries_is_constant_for_overlapping_runs(crowd: list[Job]) -> None:
    for job in crowd:
        make_run(job, NOON - 3 * HOUR, finished_at=NOON)
        make_run(job, NOON - 2 * HOUR, "running")
    with CaptureQueriesContext(connection) as captured:
        timeline(NOON)
    assert len(captured) == 9
