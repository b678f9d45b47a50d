"""Test the release of backfilled runs: oldest first, a few at a time, and after scheduled runs."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from pytest_django import Settings

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.jobs.pausing import end_pauses
from django_dcron.models import Attempt, Cursor, Job, Run, Statistics
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.policies.lifecycle import FINAL, State
from django_dcron.policies.slots import Slot, backfill_number
from django_dcron.runs import endings, slot_queue, transitions
from django_dcron.runs.endings import AttemptEnd
from django_dcron.scheduler import backfill_release as module
from django_dcron.scheduler.adoption import adopt
from django_dcron.scheduler.backfill_release import release
from django_dcron.scheduler.rescue import rescue
from tests.execution.conftest import deliver, reread, state_of
from tests.factories import make_job, make_run
from tests.lock_holder import keeping_locked
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db

ALL = range(64)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
T = datetime(2025, 1, 15, 12, 0, 0, tzinfo=UTC)
EXCLUSIVE = ("skip", "queue_one", "queue_all", "cancel_running")


@pytest.fixture
def now() -> datetime:
    return database_now("default")


def backfilled(number: int, **fields: object) -> Job:
    """Return a job with ``number`` backfilled occurrences, from ``T`` on."""
    job = make_job(**{"schedule": "0 * * * *", "overlap_policy": "allow"} | fields)
    assert len(control.backfill(job, T, T + number * HOUR).occurrences) == number
    return job


def hours(state: str = "pending") -> list[int]:
    """Return the occurrences of the backfilled runs in this state, in hours after ``T``."""
    runs = Run.objects.filter(trigger="backfill", state=state).order_by("scheduled_at")
    return [int((run.scheduled_at - T) / HOUR) for run in runs]


def run_of(hour: int) -> Run:
    return Run.objects.select_related("job").get(scheduled_at=T + hour * HOUR)


def end(run: Run) -> None:
    started = deliver(run)
    assert started
    assert endings.finish(
        started, AttemptEnd(run.attempt, {"outcome": "succeeded"}), State.SUCCEEDED, ""
    )


# --- order and limits ----------------------------------------------------------------------------


def test_oldest_runs_are_released_first_up_to_the_limit(settings: Settings, now: datetime) -> None:
    settings.DCRON_BACKFILL_CONCURRENCY = 3
    job = backfilled(6)
    assert release(ALL, now) == 3
    assert hours() == [0, 1, 2]
    assert release(ALL, now) == 0
    run = run_of(0)
    assert (run.due_at, run.reason, run.node) == (now, "", "")
    assert now < run_of(1).due_at < run_of(2).due_at < now + SECOND, "in this order"
    assert [due.run_id for due in adopt(ALL, now + SECOND, node="a")] == [
        run_of(hour).pk for hour in range(3)
    ]
    Run.objects.filter(pk=run_of(0).pk).update(state="queued")
    deliver(run_of(1))
    assert release(ALL, now) == 0, "queued and running runs count, too"
    end(run_of(2))
    control.cancel(run_of(0))
    assert release(ALL, now) == 2
    assert hours() == [3, 4]
    assert Statistics.objects.get(pk=job.pk).succeeded == 1


@pytest.mark.parametrize("state", sorted(State))
def test_only_waiting_backfilled_runs_are_released(now: datetime, state: State) -> None:
    job = make_job()
    run = make_run(
        job,
        state,
        trigger="backfill",
        deliveries=9,
        due_at=T,
        node="dead",
        slot=Slot.BACKFILL,
        slot_number=backfill_number(T),
    )
    live = make_run(job, state)
    released = transitions.release_backfilled(run.pk, now)
    assert released == (state is State.WAITING)
    assert not transitions.release_backfilled(live.pk, now)
    assert state_of(live) == state
    run.refresh_from_db()
    if released:
        assert (run.state, run.due_at, run.deliveries, run.node, run.slot) == (
            "pending",
            now,
            0,
            "",
            None,
        )
    else:
        assert (run.state, run.due_at, run.deliveries, run.node) == (state, T, 9, "dead")


def test_earlier_occurrences_of_a_later_backfill_are_released_first(now: datetime) -> None:
    job = backfilled(1)
    control.backfill(job, T - 2 * HOUR, T)
    release(ALL, now)
    assert hours() == [-2, -1]


def fail_with_retry_at(run: Run, until: datetime) -> None:
    started = deliver(run)
    assert started
    endings.retry(started, AttemptEnd(1, {"outcome": "failed"}), until, "again")


def test_run_awaiting_retry_counts_towards_the_limit(settings: Settings, now: datetime) -> None:
    settings.DCRON_BACKFILL_CONCURRENCY = 1
    backfilled(3, max_attempts=2)
    release(ALL, now)
    fail_with_retry_at(run_of(0), now + HOUR)
    assert release(ALL, now) == 0


@pytest.mark.parametrize("policy", EXCLUSIVE)
def test_exclusive_job_with_a_run_awaiting_retry_releases_the_next_run(
    now: datetime, policy: str
) -> None:
    backfilled(4, max_attempts=2, overlap_policy=policy)
    assert release(ALL, now) == 1
    fail_with_retry_at(run_of(0), now + HOUR)
    assert release(ALL, now) == 1
    assert release(ALL, now) == 0
    assert hours() == [0, 1]
    fail_with_retry_at(run_of(1), now + HOUR)
    assert release(ALL, now + 2 * HOUR) == 0, "runs awaiting a retry don't accumulate"


def test_total_of_released_runs_is_limited_per_node(settings: Settings, now: datetime) -> None:
    settings.DCRON_BACKFILL_CONCURRENCY = 3
    maximum = 3 * module.FULL_JOBS_PER_NODE
    jobs = [backfilled(2) for _ in range(maximum)]
    assert release(ALL, now) == maximum
    assert release(ALL, now) == 0
    even = [shard for shard in ALL if shard % 2 == 0]
    under_way = Run.objects.pending().in_shards(even, 64).count()
    assert release(even, now) == maximum - under_way, "each node counts only its own jobs"
    for run in Run.objects.pending().select_related("job"):
        end(run)
    while Run.objects.waiting().exists():
        assert 0 < release(ALL, now) <= maximum
        for run in Run.objects.pending().select_related("job"):
            end(run)
    assert Run.objects.finished().count() == 2 * len(jobs)


def test_job_with_unknown_policy_releases_one_run_at_a_time(now: datetime) -> None:
    job, other = backfilled(2), backfilled(2)
    Job.objects.filter(pk=job.pk).update(overlap_policy="one_per_weekday")
    assert release(ALL, now) == 3
    assert Run.objects.pending().filter(job=job).count() == 1
    end(run_of_job(job))
    assert release(ALL, now) == 1
    assert Run.objects.pending().filter(job=other).count() == 2


def run_of_job(job: Job) -> Run:
    return Run.objects.pending().select_related("job").get(job=job)


@pytest.mark.parametrize("obstacle", ["paused", "elsewhere", "full"])
def test_number_of_queries_is_constant_when_no_run_can_be_released(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    now: datetime,
    obstacle: str,
    django_assert_max_num_queries: Any,
) -> None:
    monkeypatch.setattr(module, "BATCH_SIZE", 1)
    settings.DCRON_BACKFILL_CONCURRENCY = 1
    jobs = [backfilled(2) for _ in range(12)]
    if obstacle == "paused":
        Job.objects.update(enabled=False)
    if obstacle == "full":
        release(ALL, now)
    other_shards = {63 - jobs[0].pk % 64} - {job.pk % 64 for job in jobs}
    shards = other_shards if obstacle == "elsewhere" else ALL
    with django_assert_max_num_queries(5):
        assert release(shards, now) == 0


def test_release_stops_when_its_time_budget_is_used_up(
    monkeypatch: pytest.MonkeyPatch, now: datetime
) -> None:
    for _ in range(3):
        backfilled(1)
    monkeypatch.setattr(module, "BUDGET", 0)
    assert [release(ALL, now) for _ in range(4)] == [1, 1, 1, 0], "the next call continues"


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_locked_job_is_skipped(now: datetime) -> None:
    """The node doesn't wait for the lock, because the session that holds it may be suspended."""
    locked, other = backfilled(1), backfilled(1)
    with keeping_locked(Cursor.objects.filter(pk=locked.pk)):
        assert release(ALL, now) == 1
        assert Run.objects.pending().get().job == other
    assert release(ALL, now) == 1


@pytest.mark.parametrize("policy", EXCLUSIVE)
def test_exclusive_job_releases_one_run_at_a_time(now: datetime, policy: str) -> None:
    job = backfilled(3, overlap_policy=policy)
    live = make_run(job, "running", slot=Slot.RUNNING)
    assert release(ALL, now) == 0
    endings.finish(live, AttemptEnd(1, {"outcome": "succeeded"}), State.SUCCEEDED, "")
    assert release(ALL, now) == 1
    assert hours() == [0]


def test_run_is_not_released_before_the_end_of_a_pause_that_a_node_has_ended(now: datetime) -> None:
    """A node ends a pause ahead of time, so that an occurrence at its end is on time."""
    job = backfilled(1)
    until = now + 8 * SECOND
    control.pause(job, "deploy", until)
    assert end_pauses(Job.objects.using("default")) == 1
    assert release(ALL, until - SECOND) == 0
    assert release(ALL, until) == 1


def test_paused_job_releases_runs_after_it_is_resumed(now: datetime) -> None:
    job = backfilled(2)
    control.pause(job)
    assert release(ALL, now) == 0
    control.resume(job)
    assert release(ALL, now) == 2


def test_job_with_exhausted_schedule_releases_runs(now: datetime) -> None:
    backfilled(1)
    Job.objects.update(enabled=False, pause_reason=EXHAUSTED)
    assert release(ALL, now) == 1


@pytest.mark.parametrize("batch_size", [1, 2, 4, 5])
def test_jobs_release_runs_independently(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, now: datetime, batch_size: int
) -> None:
    settings.DCRON_BACKFILL_CONCURRENCY = 1
    monkeypatch.setattr(module, "BATCH_SIZE", batch_size)
    jobs = [backfilled(2) for _ in range(3)]
    assert release(ALL, now) == 3
    assert set(Run.objects.pending().values_list("job", flat=True)) == {job.pk for job in jobs}


def test_only_runs_of_led_shards_and_served_namespace_are_released(now: datetime) -> None:
    own, other = backfilled(1, namespace="shop"), backfilled(1, namespace="other")
    assert release({(own.pk + 1) % 64}, now, namespace="shop") == 0
    assert release(ALL, now, namespace="shop") == 1
    assert Run.objects.pending().get().job == own
    assert release({other.pk % 64}, now) == 1


def test_waiting_backfilled_runs_are_not_woken_by_rescue_or_finish(now: datetime) -> None:
    job = backfilled(3, overlap_policy="queue_all")
    assert rescue(ALL, now, 15 * SECOND) == 0
    live = make_run(job, "running", slot=Slot.RUNNING)
    endings.finish(live, AttemptEnd(1, {"outcome": "succeeded"}), State.SUCCEEDED, "")
    assert not slot_queue.wake_next(job.pk)
    assert hours("waiting") == [0, 1, 2]


@pytest.mark.django_db(transaction=True)
def test_concurrency_limit_holds_with_several_shard_leaders(settings: Settings) -> None:
    """Three leaders release and finish runs quickly, while the test counts the active runs."""
    settings.DCRON_BACKFILL_CONCURRENCY = 2
    total = 16
    job = backfilled(total)
    counts: list[int] = []
    ended: list[datetime] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def lead() -> None:
        while len(ended) < total and not failures:
            release(ALL, database_now("default"))
            counts.append(under_way())
            oldest = (
                Run.objects.pending()
                .filter(job=job)
                .select_related("job")
                .order_by("scheduled_at")
                .first()
            )
            if oldest and endings.end_unstarted(oldest, State.SKIPPED, "done"):
                ended.append(oldest.scheduled_at)

    def observe() -> None:
        while not done.is_set():
            counts.append(under_way())

    def under_way() -> int:
        return Run.objects.filter(trigger="backfill", state="pending").count()

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    observer = threading.Thread(target=guarded, args=(observe,))
    leaders = [threading.Thread(target=guarded, args=(lead,)) for _ in range(3)]
    for thread in (observer, *leaders):
        thread.start()
    for thread in leaders:
        thread.join(TIMEOUT)
    done.set()
    observer.join(TIMEOUT)
    assert not failures
    assert max(counts) <= 2
    assert len(ended) == total == len(set(ended))


# --- live runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", EXCLUSIVE)
def test_backfilled_run_waits_again_if_the_slot_is_taken(now: datetime, policy: str) -> None:
    """No policy skips the backfilled run or cancels the live run."""
    job = backfilled(2, overlap_policy=policy)
    release(ALL, now)
    live = make_run(job, "running", slot=Slot.RUNNING)
    assert deliver(run_of(0)) is None
    run = run_of(0)
    assert (run.state, run.due_at) == ("waiting", T)
    assert (run.slot, run.slot_number) == (Slot.BACKFILL, backfill_number(T))
    assert f"({live.pk}) was unfinished: running" in run.reason
    assert reread(live).cancel_requested_at is None
    endings.finish(live, AttemptEnd(1, {"outcome": "succeeded"}), State.SUCCEEDED, "")
    assert release(ALL, now) == 1
    assert hours() == [0], "it kept its place"
    assert deliver(run_of(0))


@pytest.mark.parametrize("policy", EXCLUSIVE)
def test_live_run_waits_for_a_backfilled_run_and_runs_next(now: datetime, policy: str) -> None:
    """No policy skips the live run or cancels the backfilled run."""
    job = backfilled(2, overlap_policy=policy)
    release(ALL, now)
    started = deliver(run_of(0))
    assert started
    live = make_run(job, "queued")
    assert deliver(live) is None
    assert state_of(live) == "waiting"
    assert reread(started).cancel_requested_at is None
    endings.finish(started, AttemptEnd(1, {"outcome": "succeeded"}), State.SUCCEEDED, "")
    assert (state_of(live), reread(live).slot) == ("pending", Slot.RUNNING)
    assert release(ALL, now) == 0, "the live run has the slot"
    assert deliver(reread(live))


@pytest.mark.parametrize(
    ("policy", "states"),
    [
        ("skip", ("waiting", "skipped")),
        ("queue_one", ("waiting", "skipped")),
        ("queue_all", ("waiting", "waiting")),
        ("cancel_running", ("skipped", "waiting")),
    ],
)
def test_overlap_policy_applies_among_waiting_live_runs(
    now: datetime, policy: str, states: tuple[str, str]
) -> None:
    job = backfilled(1, overlap_policy=policy)
    release(ALL, now)
    assert deliver(run_of(0))
    first, second = make_run(job, "queued"), make_run(job, "queued")
    deliver(first), deliver(second)
    assert (state_of(first), state_of(second)) == states


@pytest.mark.parametrize("policy", EXCLUSIVE)
def test_live_run_does_not_wait_for_retry_of_a_backfilled_run(now: datetime, policy: str) -> None:
    job = backfilled(2, overlap_policy=policy, max_attempts=2)
    release(ALL, now)
    started = deliver(run_of(0))
    assert started
    live = make_run(job, "queued")
    deliver(live)
    endings.retry(started, AttemptEnd(1, {"outcome": "failed"}), now, "again")
    assert (state_of(live), reread(live).slot, reread(started).slot) == (
        "pending",
        Slot.RUNNING,
        None,
    )
    assert deliver(reread(started)) is None
    assert (state_of(started), reread(started).attempt) == ("waiting", 2)
    again = deliver(reread(live))
    assert again
    endings.finish(again, AttemptEnd(1, {"outcome": "succeeded"}), State.SUCCEEDED, "")
    assert release(ALL, now) == 1
    assert hours() == [0]
    assert deliver(run_of(0))
    assert list(Attempt.objects.filter(run=started).values_list("number", flat=True)) == [1, 2]


def test_backfilled_run_is_never_too_late(now: datetime) -> None:
    """No misfire policy or start deadline applies, because a person requested the backfill."""
    backfilled(1, start_deadline=SECOND, misfire_policy="skip")
    release(ALL, now - HOUR)
    run = run_of(0)
    Run.objects.filter(pk=run.pk).update(state="queued", queued_at=now - HOUR, deliveries=1)
    assert rescue(ALL, now, 15 * SECOND) == 1
    assert state_of(run) == "pending"
    assert deliver(run_of(0))


def test_running_backfilled_run_can_be_cancelled(now: datetime) -> None:
    backfilled(1)
    release(ALL, now)
    deliver(run_of(0))
    assert control.cancel(run_of(0)).cancel_requested_at is not None


def test_backfill_does_not_move_the_cursor(now: datetime) -> None:
    before = Cursor.objects.values().filter(job=backfilled(3)).get()
    release(ALL, now)
    end(run_of(0))
    assert Cursor.objects.values().get() == before
    assert hours("succeeded") == [0]
    assert set(hours("pending") + hours("waiting")) == {1, 2}
    assert run_of(0).state in FINAL
