"""Rescue: only runs whose holder is gone continue elsewhere."""

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connection
from pytest_django import Settings

from django_dcron.db.now import database_now
from django_dcron.db.session_limits import WaitLimits
from django_dcron.jobs.attempt_end import declare_lost
from django_dcron.models import Attempt, Job, Run, Statistics
from django_dcron.policies.slots import Slot
from django_dcron.runs import deliveries, transitions
from django_dcron.runs.start import start_attempt
from django_dcron.scheduler import rescue as module
from django_dcron.scheduler.delayed_heartbeats import DelayedHeartbeats
from django_dcron.scheduler.rescue import CAUSES, rescue
from tests.factories import make_idle_job, make_run
from tests.lock_holder import keeping_locked, keeping_open
from tests.logs import events, logged
from tests.scheduler.stand_ins import StillClock

pytestmark = pytest.mark.django_db

ALL = range(64)
SECOND = timedelta(seconds=1)
LEASE = 15 * SECOND


@pytest.fixture
def now() -> datetime:
    return database_now("default")


@pytest.mark.parametrize(("max_attempts", "state"), [(1, "failed"), (2, "pending")])
def test_run_with_stale_heartbeat_is_lost_and_retried_by_policy(
    now: datetime, max_attempts: int, state: str
) -> None:
    job = make_idle_job(max_attempts=max_attempts)
    run = make_run(job, "running", heartbeat_at=now - 16 * SECOND, slot=Slot.RUNNING)
    assert rescue(ALL, now, LEASE) == 1
    run.refresh_from_db()
    attempt = Attempt.objects.get()
    assert (run.state, run.reason) == (state, f"no heartbeat from w for 16 s; {CAUSES}")
    assert (attempt.outcome, attempt.message) == ("lost", run.reason)
    assert attempt.finished_at is not None
    assert (run.attempt, run.slot is None) == ((1, True) if state == "failed" else (2, False))
    assert rescue(ALL, now, LEASE) == 0


def test_run_is_lost_if_its_stale_heartbeat_was_written_in_sql() -> None:
    """The rescue compares the stored heartbeat in its UPDATE. See ``UtcNow`` for SQLite."""
    run = make_run(make_idle_job(), "running")
    assert transitions.renew_heartbeat(run.pk, 1)
    assert rescue(ALL, database_now("default") + LEASE + SECOND, LEASE) == 1
    assert Run.objects.get().state == "failed"


def test_run_without_an_attempt_row_is_lost(now: datetime) -> None:
    run = make_run(make_idle_job(), "running", heartbeat_at=now - 16 * SECOND)
    Attempt.objects.all().delete()
    assert rescue(ALL, now, LEASE) == 1
    run.refresh_from_db()
    assert run.state == "failed"
    assert "None" not in run.reason


def test_only_the_current_attempt_is_lost(now: datetime) -> None:
    run = make_run(
        make_idle_job(max_attempts=2), "running", heartbeat_at=now - 16 * SECOND, attempt=2
    )
    Attempt.objects.create(
        run=run, number=1, token=uuid4(), worker="earlier", started_at=now, outcome="failed"
    )
    assert rescue(ALL, now, LEASE) == 1
    assert dict(run.attempts.values_list("number", "outcome")) == {1: "failed", 2: "lost"}
    run.refresh_from_db()
    assert run.state == "failed"
    assert " w " in run.reason


def test_run_with_fresh_heartbeat_keeps_running(now: datetime) -> None:
    make_run(make_idle_job(), "running", heartbeat_at=now - 14 * SECOND)
    assert rescue(ALL, now, LEASE) == 0
    assert Run.objects.get().state == "running"


@pytest.mark.parametrize(("max_attempts", "cancelled"), [(1, False), (2, False), (1, True)])
@pytest.mark.parametrize("later", ["heartbeat", "execution"])
def test_run_is_kept_if_its_worker_shows_activity_before_the_update(
    now: datetime, max_attempts: int, cancelled: bool, later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the rescue has read the heartbeat, it may wait for a lock, and so may the worker."""
    job = make_idle_job(max_attempts=max_attempts)
    run = make_run(job, "running", heartbeat_at=now - 60 * SECOND)
    if cancelled:
        transitions.mark_cancel_requested(run.pk, "by hand")

    def lose_late(*of_run: Any) -> bool:
        if later == "heartbeat":
            assert transitions.renew_heartbeat(run.pk, 1)
        else:
            Attempt.objects.update(token=uuid4())
        return declare_lost(*of_run)

    monkeypatch.setattr(module, "declare_lost", lose_late)
    assert rescue(ALL, now, LEASE) == 0
    run.refresh_from_db()
    assert (run.state, run.attempt, Attempt.objects.get().outcome) == ("running", 1, "")
    assert Statistics.objects.get(job=job).last_state == ""


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_run_is_kept_while_a_lock_delayed_its_heartbeat(now: datetime) -> None:
    clock = StillClock(now)
    delayed = DelayedHeartbeats(clock.monotonic)
    run = make_run(make_idle_job(), "running", heartbeat_at=now - 10 * SECOND)

    def rescue_now() -> int:
        return rescue(ALL, clock.now(), LEASE, delayed)

    with keeping_locked(Run.objects.filter(pk=run.pk)):
        assert rescue_now() == 0, "the heartbeat isn't stale yet, but the lock is noticed"
    clock.advance(6)
    assert rescue_now() == 0, "the worker has had no chance yet"
    assert transitions.renew_heartbeat(run.pk, 1)
    Run.objects.update(heartbeat_at=clock.now())
    clock.advance(20)
    assert rescue_now() == 1, "from then on it counts like any other run"
    connection.close()


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_foreign_key_lock_does_not_delay_the_rescue(now: datetime) -> None:
    run = make_run(make_idle_job(), "running", heartbeat_at=now - 60 * SECOND)
    with keeping_open(
        lambda: Attempt.objects.create(run=run, number=2, token=uuid4(), started_at=now)
    ):
        assert rescue(ALL, now, LEASE) == 1


def test_shards_without_runs_count_as_checked_for_locks(now: datetime) -> None:
    clock = StillClock(now)
    delayed = DelayedHeartbeats(clock.monotonic)
    job = make_idle_job()
    assert rescue(set(ALL) - {job.pk % 64}, now, LEASE, delayed) == 0
    make_run(job, "running", heartbeat_at=now - 60 * SECOND)
    assert rescue(ALL, now, LEASE, delayed) == 0, "the node has just gained the shard"
    clock.advance(8)
    assert rescue(ALL, now, LEASE, delayed) == 1


@pytest.mark.parametrize("contention", [True, False])
def test_all_runs_are_excused_if_the_search_for_locks_is_blocked(
    now: datetime, contention: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(silent: Any) -> frozenset[Any]:
        raise OperationalError("no answer")

    delayed = DelayedHeartbeats(StillClock().monotonic)
    make_run(make_idle_job(), "running", heartbeat_at=now - 60 * SECOND)
    monkeypatch.setattr(module, "_locked_run_ids", refused)
    monkeypatch.setattr(
        module, "is_contention", lambda error: contention and str(error) == "no answer"
    )
    for delayed_of_call in (None, delayed):
        with pytest.raises(OperationalError):
            rescue(ALL, now, LEASE, delayed_of_call)
    assert delayed.may_be_delayed(uuid4(), 1, LEASE) is contention


def test_locks_are_searched_after_half_a_lease_without_heartbeat(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined: list[Run] = []
    monkeypatch.setattr(
        module, "_locked_run_ids", lambda silent: examined.extend(silent) or frozenset()
    )
    silent = [
        make_run(make_idle_job(), "running", heartbeat_at=now - n * SECOND) for n in (7, 8, 9)
    ]
    assert rescue(ALL, now, LEASE) == 0
    assert examined == [silent[2], silent[1]]


def test_locks_are_not_searched_without_skip_locked_support(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection.features, "has_select_for_update_skip_locked", False)
    make_run(make_idle_job(), "running", heartbeat_at=now - 60 * SECOND)
    assert rescue(ALL, now, LEASE) == 1


def test_lock_excuses_a_run_for_half_a_lease() -> None:
    clock, run_id = StillClock(), uuid4()
    delayed = DelayedHeartbeats(clock.monotonic)
    delayed.record_locked(ALL, [run_id], LEASE)
    clock.advance(7)
    assert delayed.may_be_delayed(run_id, 1, LEASE)
    assert not delayed.may_be_delayed(uuid4(), 1, LEASE)
    clock.advance(1)
    assert not delayed.may_be_delayed(run_id, 1, LEASE)
    delayed.record_all_locked()
    assert delayed.may_be_delayed(run_id, 1, LEASE)
    assert delayed.may_be_delayed(uuid4(), 1, LEASE)


def test_run_in_a_gained_shard_is_excused_until_locks_are_searched() -> None:
    clock = StillClock()
    delayed = DelayedHeartbeats(clock.monotonic)
    delayed.record_locked([1, 2], (), LEASE)
    assert not delayed.may_be_delayed(uuid4(), 1, LEASE)
    delayed.record_locked([1, 3], (), LEASE)
    assert [delayed.may_be_delayed(uuid4(), job_id, LEASE) for job_id in (1, 3, 67)] == [
        False,
        True,
        True,
    ]
    clock.advance(8)
    assert not delayed.may_be_delayed(uuid4(), 3, LEASE)


def test_failed_rescue_of_one_run_does_not_block_the_others(
    now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    stale = now - 60 * SECOND
    bad = make_run(make_idle_job(), "running", heartbeat_at=stale)
    good = make_run(make_idle_job(), "running", heartbeat_at=stale)
    Job.objects.filter(pk=bad.job_id).update(retry_on=7, max_attempts=3, overlap_policy="nonsense")
    Job.objects.filter(pk=bad.job_id).update(never_retry_on=7)
    assert rescue(ALL, now, LEASE) == 1
    good.refresh_from_db()
    assert good.state == "failed"
    assert logged(caplog, "not_rescued", run=str(bad.pk), job=str(bad.job))


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_locked_run_does_not_block_the_rescue_of_others(
    now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "django_dcron.scheduler")
    stale, long_ago = now - 60 * SECOND, now - timedelta(hours=1)
    locked, lost = (make_run(make_idle_job(), "running", heartbeat_at=stale) for _ in range(2))
    undelivered = make_run(make_idle_job(), "queued", due_at=long_ago, queued_at=long_ago)
    left = make_run(make_idle_job(overlap_policy="queue_all"), "waiting")
    limits = WaitLimits("default")
    limits.impose(lock=SECOND, silence=LEASE)
    with keeping_locked(Run.objects.filter(pk=locked.pk)):
        assert rescue(ALL, now, LEASE) == 3
    states = dict(Run.objects.values_list("pk", "state"))
    assert states == {
        locked.pk: "running",
        lost.pk: "failed",
        undelivered.pk: "pending",
        left.pk: "pending",
    }
    assert logged(caplog, "contention", run=str(locked.pk), job=str(locked.job))
    assert rescue(ALL, now, LEASE) == 1
    connection.close()


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_locked_queued_runs_are_skipped_without_waiting(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_ago, tried = now - timedelta(hours=1), []
    runs = [
        make_run(make_idle_job(), "queued", due_at=long_ago, queued_at=long_ago) for _ in range(4)
    ]
    real = deliveries.redeliver

    def redeliver(run_id: Any, *given: Any) -> bool:
        tried.append(run_id)
        return real(run_id, *given)

    monkeypatch.setattr(deliveries, "redeliver", redeliver)
    with keeping_locked(Run.objects.filter(pk__in=[run.pk for run in runs[:3]])):
        assert rescue(ALL, now, LEASE) == 1
    assert tried == [runs[3].pk]
    assert rescue(ALL, now, LEASE) == 3
    connection.close()


def test_database_outage_during_rescue_is_not_blamed_on_the_run(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*of_run: Any) -> bool:
        raise OperationalError("gone")

    make_run(make_idle_job(), "running", heartbeat_at=now - timedelta(hours=1))
    monkeypatch.setattr(module, "declare_lost", gone)
    with pytest.raises(OperationalError):
        rescue(ALL, now, LEASE)


def test_run_queued_too_long_is_redelivered_after_growing_timeouts(
    now: datetime, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DCRON_REDELIVER_AFTER = 10 * SECOND
    job = make_idle_job(queue="mail")
    run = make_run(job, node="dead", due_at=now - timedelta(days=1))
    key = (run.pk, run.attempt)
    for delivery in range(1, 14):
        timeout = 10 * SECOND * 2 ** min(delivery - 1, 10)
        assert deliveries.mark_queued([key], now - timeout) == 1
        assert rescue(ALL, now, LEASE) == 0, f"delivery {delivery} hasn't timed out yet"
        assert rescue(ALL, now + timedelta(microseconds=1), LEASE) == 1
        run.refresh_from_db()
        assert (run.state, run.attempt, run.node, run.deliveries) == ("pending", 1, "", delivery)
    assert logged(caplog, "redelivered", "=86400s", "=mail", job=str(job), run=str(run.pk), runs=1)


@pytest.mark.parametrize("many", [2, 12])
def test_redelivered_runs_are_logged_in_one_line(
    many: int, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    oldest = make_idle_job()
    for n in range(1, many + 1):
        queued_at = now - (60 + n) * SECOND
        make_run(
            oldest if n == many else make_idle_job(),
            "queued",
            due_at=queued_at,
            queued_at=queued_at,
        )
    assert rescue(ALL, now, LEASE) == many
    assert events(caplog) == ["redelivered"]
    assert logged(caplog, "redelivered", f"={60 + many}s", job=str(oldest), runs=many)


def test_queued_run_past_its_start_deadline_is_missed(now: datetime) -> None:
    job = make_idle_job(start_deadline=timedelta(seconds=70))
    late, in_time, retry = (
        make_run(
            job,
            "queued",
            due_at=now - age,
            queued_at=now - age,
            scheduled_at=now - age - n * SECOND,
            attempt=attempt,
        )
        for n, (age, attempt) in enumerate([(71 * SECOND, 1), (69 * SECOND, 1), (71 * SECOND, 2)])
    )
    assert rescue(ALL, now, LEASE) == 2
    states = {run.pk: (run.state, run.reason) for run in Run.objects.all()}
    assert states[late.pk] == (
        "missed",
        "not started by the start deadline, 1m10s after it was due",
    )
    assert states[in_time.pk] == states[retry.pk] == ("pending", "")


@pytest.mark.parametrize(
    ("given", "missed"),
    [
        ({}, True),
        ({"policy": "run_latest"}, False),
        ({"policy": "run_all"}, False),
        ({"age": 100}, False),
        ({"trigger": "manual"}, False),
        ({"attempt": 2}, False),
        ({"has_slot": True}, False),
    ],
    ids=str,
)
def test_late_queued_run_is_missed_if_the_misfire_policy_skips(
    now: datetime, given: dict[str, Any], missed: bool
) -> None:
    """The rescue decides like a worker's start. A run that waited for its slot isn't late."""
    job = make_idle_job(
        misfire_policy=given.pop("policy", "skip"),
        misfire_grace=1000 * SECOND,
        overlap_policy="queue_all",
    )
    slot = Slot.RUNNING if given.pop("has_slot", False) else None
    at = now - given.pop("age", 1010) * SECOND
    run = make_run(job, "queued", due_at=at, queued_at=at, scheduled_at=at, slot=slot, **given)
    assert rescue(ALL, now, LEASE) == (not missed)
    run.refresh_from_db()
    assert run.state == ("missed" if missed else "pending")
    assert bool(run.reason) == missed
    if not missed:  # a worker can still start it
        assert start_attempt(run.pk, run.attempt, token=uuid4(), worker="w")


@pytest.mark.parametrize("policy", ["run_latest", "run_all"])
def test_late_queued_runs_are_redelivered_despite_newer_runs(now: datetime, policy: str) -> None:
    """The newer run may be cancelled before a worker takes it, so only the start can decide."""
    job = make_idle_job(misfire_policy=policy, misfire_grace=70 * SECOND, catchup_limit=1)
    for age in (73, 72, 71):
        at = now - age * SECOND
        make_run(job, "queued", due_at=at, queued_at=at, scheduled_at=at)
    assert rescue(ALL, now, LEASE) == 3
    assert set(Run.objects.values_list("state", flat=True)) == {"pending"}


def test_late_run_is_not_missed_if_its_attempt_changed_meanwhile(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def retried_meanwhile(run: Run, *_: Any, **__: Any) -> str:
        Run.objects.filter(pk=run.pk).update(attempt=2)
        return "too late"

    monkeypatch.setattr(module, "why_too_late", retried_meanwhile)
    long_ago = now - timedelta(hours=1)
    run = make_run(make_idle_job(), "queued", due_at=long_ago, queued_at=long_ago)
    assert rescue(ALL, now, LEASE) == 0
    run.refresh_from_db()
    assert (run.state, run.attempt) == ("queued", 2)


def test_rescue_is_limited_to_a_number_of_runs_per_kind(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESCUED_AT_ONCE", 2)
    long_ago = now - timedelta(hours=1)
    for _ in range(3):
        make_run(make_idle_job(), "running", heartbeat_at=long_ago)
        make_run(make_idle_job(), "queued", due_at=long_ago, queued_at=long_ago)
        make_run(make_idle_job(overlap_policy="queue_all"), "waiting")
    assert [rescue(ALL, now, LEASE) for _ in range(3)] == [6, 3, 0]


def test_limit_of_one_call_is_reasonable() -> None:
    assert 100 <= module.RESCUED_AT_ONCE <= 5000


def test_longer_lease_delays_the_rescue(now: datetime) -> None:
    make_run(make_idle_job(), "running", heartbeat_at=now - 44 * SECOND)
    assert rescue(ALL, now, 3 * LEASE) == 0
    assert rescue(ALL, now, LEASE) == 1


def test_waiting_run_without_holder_is_woken(now: datetime) -> None:
    job = make_idle_job(overlap_policy="queue_all")
    first = make_run(job, "waiting", due_at=now - SECOND)
    second = make_run(job, "waiting", scheduled_at=now + SECOND)
    assert rescue(ALL, now, LEASE) == 1
    first.refresh_from_db(), second.refresh_from_db()
    assert (first.state, second.state) == ("pending", "waiting")
    assert rescue(ALL, now, LEASE) == 0, "the second run now waits for the first"


def test_waiting_runs_with_a_holder_do_not_hide_one_without(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of runs with a reason to wait doesn't hide one without a reason."""
    monkeypatch.setattr(module, "RESCUED_AT_ONCE", 1)
    for _ in range(3):
        job = make_idle_job(overlap_policy="queue_all")
        make_run(job, "pending", slot=Slot.RUNNING)
        make_run(job, "waiting", scheduled_at=now + SECOND)
    left = make_run(make_idle_job(overlap_policy="queue_all"), "waiting")
    assert rescue(ALL, now, LEASE) == 1
    left.refresh_from_db()
    assert left.state == "pending"


def test_waiting_backfilled_runs_do_not_hide_a_run_without_holder(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESCUED_AT_ONCE", 1)
    backfilled = [make_run(make_idle_job(), "waiting", trigger="backfill") for _ in range(3)]
    left = make_run(make_idle_job(overlap_policy="queue_all"), "waiting")
    assert rescue(ALL, now, LEASE) == 1
    left.refresh_from_db()
    assert left.state == "pending"
    assert Run.objects.waiting().count() == len(backfilled)


def test_only_runs_in_the_given_shards_are_rescued(now: datetime) -> None:
    job = make_idle_job(overlap_policy="queue_all")
    make_run(job, "running", heartbeat_at=now - timedelta(hours=1))
    long_ago = now - timedelta(hours=1)
    make_run(job, "queued", due_at=long_ago, queued_at=long_ago, scheduled_at=now - SECOND)
    make_run(make_idle_job(), "waiting")
    others = set(ALL) - {pk % 64 for pk in Job.objects.values_list("pk", flat=True)}
    assert rescue(others, now, LEASE) == 0
    assert rescue((), now, LEASE) == 0
    assert rescue(ALL, now, LEASE) == 3
