"""Rescue: only runs whose holder is gone continue elsewhere."""

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connection
from pytest_django import Settings

from django_dcron.db.now import database_now
from django_dcron.db.session_limits import WaitLimits
from django_dcron.models import Attempt, Job, Run, Statistics
from django_dcron.policies.slots import running_slot
from django_dcron.runs import transitions
from django_dcron.runs.completion import lose
from django_dcron.runs.start import start
from django_dcron.scheduler import rescue as module
from django_dcron.scheduler.delayed_heartbeats import DelayedHeartbeats
from django_dcron.scheduler.rescue import rescue
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
def test_a_stale_heartbeat_is_a_lost_attempt_and_the_retry_policy_decides(
    now: datetime, max_attempts: int, state: str
) -> None:
    job = make_idle_job(max_attempts=max_attempts)
    run = make_run(job, "running", heartbeat_at=now - 16 * SECOND, slot=running_slot(job.pk))
    assert rescue(ALL, now, LEASE) == 1
    run.refresh_from_db()
    attempt = Attempt.objects.get()
    assert (run.state, run.reason) == (state, "no heartbeat from w for 16 s")
    assert (attempt.outcome, attempt.message) == ("lost", run.reason)
    assert attempt.finished_at is not None
    assert (run.attempt, run.slot is None) == ((1, True) if state == "failed" else (2, False))
    assert rescue(ALL, now, LEASE) == 0


def test_a_run_is_lost_whose_last_heartbeat_the_database_has_timed() -> None:
    """The rescue looks for the heartbeat that it has read. See ``UtcNow`` for SQLite."""
    run = make_run(make_idle_job(), "running")
    assert transitions.beat(run.pk, 1)
    assert rescue(ALL, database_now("default") + LEASE + SECOND, LEASE) == 1
    assert Run.objects.get().state == "failed"


def test_a_run_without_a_row_for_its_attempt_is_lost_too(now: datetime) -> None:
    run = make_run(make_idle_job(), "running", heartbeat_at=now - 16 * SECOND)
    Attempt.objects.all().delete()
    assert rescue(ALL, now, LEASE) == 1
    run.refresh_from_db()
    assert run.state == "failed"
    assert "None" not in run.reason


def test_it_is_the_present_attempt_that_is_lost(now: datetime) -> None:
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


def test_a_fresh_heartbeat_is_left_alone(now: datetime) -> None:
    make_run(make_idle_job(), "running", heartbeat_at=now - 14 * SECOND)
    assert rescue(ALL, now, LEASE) == 0
    assert Run.objects.get().state == "running"


@pytest.mark.parametrize(("max_attempts", "cancelled"), [(1, False), (2, False), (1, True)])
@pytest.mark.parametrize("later", ["heartbeat", "execution"])
def test_a_sign_of_life_after_the_look_keeps_the_run(
    now: datetime, max_attempts: int, cancelled: bool, later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the rescue has read the heartbeat, it may wait for a lock, and so may the worker."""
    job = make_idle_job(max_attempts=max_attempts)
    run = make_run(job, "running", heartbeat_at=now - 60 * SECOND)
    if cancelled:
        transitions.request_cancel(run.pk, "by hand")

    def lose_late(*of_run: Any) -> bool:
        if later == "heartbeat":
            assert transitions.beat(run.pk, 1)
        else:
            Attempt.objects.update(token=uuid4())
        return lose(*of_run)

    monkeypatch.setattr(module, "lose", lose_late)
    assert rescue(ALL, now, LEASE) == 0
    run.refresh_from_db()
    assert (run.state, run.attempt, Attempt.objects.get().outcome) == ("running", 1, "")
    assert Statistics.objects.get(job=job).last_state == ""


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_a_lock_that_kept_a_heartbeat_waiting_is_no_reason_to_lose_its_run_when_it_goes(
    now: datetime,
) -> None:
    clock = StillClock(now)
    delayed = DelayedHeartbeats(clock.monotonic)
    run = make_run(make_idle_job(), "running", heartbeat_at=now - 10 * SECOND)

    def take_up() -> int:
        return rescue(ALL, clock.now(), LEASE, delayed)

    with keeping_locked(Run.objects.filter(pk=run.pk)):
        assert take_up() == 0, "it is not silent for long enough, but its lock is seen"
    clock.advance(6)
    assert take_up() == 0, "the worker has had no chance yet"
    assert transitions.beat(run.pk, 1)
    Run.objects.update(heartbeat_at=clock.now())
    clock.advance(20)
    assert take_up() == 1, "from then on it counts as any other"
    connection.close()


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_new_row_that_refers_to_the_run_does_not_count_as_a_lock(now: datetime) -> None:
    run = make_run(make_idle_job(), "running", heartbeat_at=now - 60 * SECOND)
    with keeping_open(
        lambda: Attempt.objects.create(run=run, number=2, token=uuid4(), started_at=now)
    ):
        assert rescue(ALL, now, LEASE) == 1


def test_a_node_without_runs_remembers_which_shards_it_has_looked_at(now: datetime) -> None:
    clock = StillClock(now)
    delayed = DelayedHeartbeats(clock.monotonic)
    job = make_idle_job()
    assert rescue(set(ALL) - {job.pk % 64}, now, LEASE, delayed) == 0
    make_run(job, "running", heartbeat_at=now - 60 * SECOND)
    assert rescue(ALL, now, LEASE, delayed) == 0, "the shard is new to this node"
    clock.advance(8)
    assert rescue(ALL, now, LEASE, delayed) == 1


@pytest.mark.parametrize("contention", [True, False])
def test_a_look_for_locks_that_meets_a_lock_excuses_all_runs(
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
    assert delayed.excuse(uuid4(), 1, LEASE) is contention


def test_locks_are_looked_for_after_half_a_lease_of_silence(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[Run] = []
    monkeypatch.setattr(
        module, "_locked_run_ids", lambda silent: looked_at.extend(silent) or frozenset()
    )
    silent = [
        make_run(make_idle_job(), "running", heartbeat_at=now - n * SECOND) for n in (7, 8, 9)
    ]
    assert rescue(ALL, now, LEASE) == 0
    assert looked_at == [silent[2], silent[1]]


def test_a_database_that_cannot_skip_locks_is_not_asked_for_them(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection.features, "has_select_for_update_skip_locked", False)
    make_run(make_idle_job(), "running", heartbeat_at=now - 60 * SECOND)
    assert rescue(ALL, now, LEASE) == 1


def test_a_lock_is_an_excuse_for_half_a_lease() -> None:
    clock, run_id = StillClock(), uuid4()
    delayed = DelayedHeartbeats(clock.monotonic)
    delayed.see(ALL, [run_id], LEASE)
    clock.advance(7)
    assert delayed.excuse(run_id, 1, LEASE)
    assert not delayed.excuse(uuid4(), 1, LEASE)
    clock.advance(1)
    assert not delayed.excuse(run_id, 1, LEASE)
    delayed.see_all_locked()
    assert delayed.excuse(run_id, 1, LEASE)
    assert delayed.excuse(uuid4(), 1, LEASE)


def test_a_run_in_a_gained_shard_is_excused_as_nobody_has_looked_for_its_locks() -> None:
    clock = StillClock()
    delayed = DelayedHeartbeats(clock.monotonic)
    delayed.see([1, 2], (), LEASE)
    assert not delayed.excuse(uuid4(), 1, LEASE)
    delayed.see([1, 3], (), LEASE)
    assert [delayed.excuse(uuid4(), job_id, LEASE) for job_id in (1, 3, 67)] == [False, True, True]
    clock.advance(8)
    assert not delayed.excuse(uuid4(), 3, LEASE)


def test_one_run_that_cannot_be_rescued_does_not_keep_the_others(
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
def test_what_somebody_keeps_locked_keeps_nothing_else(
    now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "django_dcron.scheduler")
    stale, long_ago = now - 60 * SECOND, now - timedelta(hours=1)
    locked, lost = (make_run(make_idle_job(), "running", heartbeat_at=stale) for _ in range(2))
    unheard = make_run(make_idle_job(), "queued", due_at=long_ago, queued_at=long_ago)
    left = make_run(make_idle_job(overlap_policy="queue_all"), "waiting")
    limits = WaitLimits("default")
    limits.impose(lock=SECOND, silence=LEASE)
    with keeping_locked(Run.objects.filter(pk=locked.pk)):
        assert rescue(ALL, now, LEASE) == 3
    states = dict(Run.objects.values_list("pk", "state"))
    assert states == {
        locked.pk: "running",
        lost.pk: "failed",
        unheard.pk: "pending",
        left.pk: "pending",
    }
    assert logged(caplog, "contention", run=str(locked.pk), job=str(locked.job))
    assert rescue(ALL, now, LEASE) == 1
    connection.close()


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_the_locks_of_queued_runs_are_not_waited_for_one_after_the_other(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_ago, tried = now - timedelta(hours=1), []
    runs = [
        make_run(make_idle_job(), "queued", due_at=long_ago, queued_at=long_ago) for _ in range(4)
    ]
    real = transitions.redeliver

    def redeliver(run_id: Any, *given: Any) -> bool:
        tried.append(run_id)
        return real(run_id, *given)

    monkeypatch.setattr(transitions, "redeliver", redeliver)
    with keeping_locked(Run.objects.filter(pk__in=[run.pk for run in runs[:3]])):
        assert rescue(ALL, now, LEASE) == 1
    assert tried == [runs[3].pk]
    assert rescue(ALL, now, LEASE) == 3
    connection.close()


def test_a_database_that_goes_away_meanwhile_is_not_taken_for_a_bad_run(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*of_run: Any) -> bool:
        raise OperationalError("gone")

    make_run(make_idle_job(), "running", heartbeat_at=now - timedelta(hours=1))
    monkeypatch.setattr(module, "lose", gone)
    with pytest.raises(OperationalError):
        rescue(ALL, now, LEASE)


def test_queued_for_too_long_is_dispatched_again_with_growing_patience(
    now: datetime, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DCRON_REDELIVER_AFTER = 10 * SECOND
    job = make_idle_job(queue="mail")
    run = make_run(job, node="dead", due_at=now - timedelta(days=1))
    key = (run.pk, run.attempt)
    for delivery in range(1, 14):
        timeout = 10 * SECOND * 2 ** min(delivery - 1, 10)
        assert transitions.mark_queued([key], now - timeout) == 1
        assert rescue(ALL, now, LEASE) == 0, f"delivery {delivery} is given its time"
        assert rescue(ALL, now + timedelta(microseconds=1), LEASE) == 1
        run.refresh_from_db()
        assert (run.state, run.attempt, run.node, run.deliveries) == ("pending", 1, "", delivery)
    assert logged(caplog, "redelivered", "=86400s", "=mail", job=str(job), run=str(run.pk), runs=1)


@pytest.mark.parametrize("many", [2, 12])
def test_many_that_found_no_worker_are_one_line(
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


def test_what_no_worker_may_start_any_more_is_missed_and_not_dispatched_again(
    now: datetime,
) -> None:
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
        ({"age": 69}, False),
        ({"trigger": "manual"}, False),
        ({"attempt": 2}, False),
        ({"has_slot": True}, False),
    ],
    ids=str,
)
def test_of_a_job_that_skips_what_is_late_no_worker_is_waited_for(
    now: datetime, given: dict[str, Any], missed: bool
) -> None:
    """The rescue decides like a worker's start. A run that waited for its slot isn't late."""
    job = make_idle_job(
        misfire_policy=given.pop("policy", "skip"),
        misfire_grace=70 * SECOND,
        overlap_policy="queue_all",
    )
    slot = running_slot(job.pk) if given.pop("has_slot", False) else None
    at = now - given.pop("age", 71) * SECOND
    run = make_run(job, "queued", due_at=at, queued_at=at, scheduled_at=at, slot=slot, **given)
    assert rescue(ALL, now, LEASE) == (not missed)
    run.refresh_from_db()
    assert run.state == ("missed" if missed else "pending")
    assert ("1m10s" in run.reason) == missed
    if not missed:  # a worker that comes now starts it
        assert start(run.pk, run.attempt, token=uuid4(), worker="w")


@pytest.mark.parametrize("policy", ["run_latest", "run_all"])
def test_a_newer_due_run_is_no_reason_to_give_up_an_older_one(now: datetime, policy: str) -> None:
    """The newer run may be cancelled before a worker comes, so only the start can decide."""
    job = make_idle_job(misfire_policy=policy, misfire_grace=70 * SECOND, catchup_limit=1)
    for age in (73, 72, 71):
        at = now - age * SECOND
        make_run(job, "queued", due_at=at, queued_at=at, scheduled_at=at)
    assert rescue(ALL, now, LEASE) == 3
    assert set(Run.objects.values_list("state", flat=True)) == {"pending"}


def test_a_run_that_goes_on_to_its_next_attempt_meanwhile_is_not_missed(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def retried_meanwhile(run: Run, *_: Any, **__: Any) -> str:
        Run.objects.filter(pk=run.pk).update(attempt=2)
        return "too late"

    monkeypatch.setattr(module, "too_late", retried_meanwhile)
    long_ago = now - timedelta(hours=1)
    run = make_run(make_idle_job(), "queued", due_at=long_ago, queued_at=long_ago)
    assert rescue(ALL, now, LEASE) == 0
    run.refresh_from_db()
    assert (run.state, run.attempt) == ("queued", 2)


def test_one_call_rescues_a_limited_number_of_each_kind(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESCUED_AT_ONCE", 2)
    long_ago = now - timedelta(hours=1)
    for _ in range(3):
        make_run(make_idle_job(), "running", heartbeat_at=long_ago)
        make_run(make_idle_job(), "queued", due_at=long_ago, queued_at=long_ago)
        make_run(make_idle_job(overlap_policy="queue_all"), "waiting")
    assert [rescue(ALL, now, LEASE) for _ in range(3)] == [6, 3, 0]


def test_the_limit_of_one_call_is_reasonable() -> None:
    assert 100 <= module.RESCUED_AT_ONCE <= 5000


def test_a_longer_lease_is_more_patient(now: datetime) -> None:
    make_run(make_idle_job(), "running", heartbeat_at=now - 44 * SECOND)
    assert rescue(ALL, now, 3 * LEASE) == 0
    assert rescue(ALL, now, LEASE) == 1


def test_a_run_that_waits_for_nobody_is_woken(now: datetime) -> None:
    job = make_idle_job(overlap_policy="queue_all")
    first = make_run(job, "waiting", due_at=now - SECOND)
    second = make_run(job, "waiting", scheduled_at=now + SECOND)
    assert rescue(ALL, now, LEASE) == 1
    first.refresh_from_db(), second.refresh_from_db()
    assert (first.state, second.state) == ("pending", "waiting")
    assert rescue(ALL, now, LEASE) == 0, "the second waits for the first now"


def test_waiting_for_a_holder_is_no_reason_to_wake(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of runs with a reason to wait doesn't hide one without a reason."""
    monkeypatch.setattr(module, "RESCUED_AT_ONCE", 1)
    for _ in range(3):
        job = make_idle_job(overlap_policy="queue_all")
        make_run(job, "pending", slot=running_slot(job.pk))
        make_run(job, "waiting", scheduled_at=now + SECOND)
    left = make_run(make_idle_job(overlap_policy="queue_all"), "waiting")
    assert rescue(ALL, now, LEASE) == 1
    left.refresh_from_db()
    assert left.state == "pending"


def test_backfilled_runs_that_wait_for_their_turn_do_not_hide_one_that_waits_for_nobody(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESCUED_AT_ONCE", 1)
    backfilled = [make_run(make_idle_job(), "waiting", trigger="backfill") for _ in range(3)]
    left = make_run(make_idle_job(overlap_policy="queue_all"), "waiting")
    assert rescue(ALL, now, LEASE) == 1
    left.refresh_from_db()
    assert left.state == "pending"
    assert Run.objects.waiting().count() == len(backfilled)


def test_only_in_ones_shards(now: datetime) -> None:
    job = make_idle_job(overlap_policy="queue_all")
    make_run(job, "running", heartbeat_at=now - timedelta(hours=1))
    long_ago = now - timedelta(hours=1)
    make_run(job, "queued", due_at=long_ago, queued_at=long_ago, scheduled_at=now - SECOND)
    make_run(make_idle_job(), "waiting")
    others = set(ALL) - {pk % 64 for pk in Job.objects.values_list("pk", flat=True)}
    assert rescue(others, now, LEASE) == 0
    assert rescue((), now, LEASE) == 0
    assert rescue(ALL, now, LEASE) == 3
