"""The start of an attempt: it happens once, and only if the policies allow it."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from typing import Any
from unittest import mock
from uuid import UUID, uuid4

import pytest
from django.db import IntegrityError, connection, connections
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from psycopg import _queries
from pytest_django import Settings

from django_dcron import control
from django_dcron.conf import settings as dcron_settings
from django_dcron.db.clock import DOUBT_FOR, ClusterClock
from django_dcron.db.now import database_now
from django_dcron.db.routing import database_name
from django_dcron.diagnosis.run_history import replacing_run
from django_dcron.exceptions import UnknownRun
from django_dcron.execution.database_outage import retry_until_available
from django_dcron.models import Attempt, Job, Run
from django_dcron.policies.lifecycle import State
from django_dcron.policies.misfire import REPLACED_BY_NEWER_RUN
from django_dcron.policies.slots import Slot, backfill_number
from django_dcron.runs import endings, start_facts, transitions
from django_dcron.runs import start as module
from django_dcron.runs.endings import AttemptEnd
from django_dcron.runs.ordinary_start import ReadOrStarted
from django_dcron.runs.start import start_attempt
from django_dcron.scheduler.rescue import rescue
from tests.execution.conftest import attempt_of, deliver, reread, state_of
from tests.factories import make_idle_job, make_job, make_run
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
GRACE = timedelta(seconds=30)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def now() -> datetime:
    return database_now("default").replace(microsecond=0)


@pytest.fixture(autouse=True)
def without_ordinary_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``decide_start`` decide about each run. ``test_ordinary_start`` tests the other path."""
    monkeypatch.setattr(
        module,
        "read_or_start",
        lambda run_id, *given, **options: ReadOrStarted(module.read_run(run_id), None),
    )


def queued_since(job: Job, at: datetime, **fields: Any) -> Run:
    """A run that became due at ``at`` and has been in the queue since then."""
    return make_run(job, **{"state": "queued", "scheduled_at": at, "due_at": at, **fields})


# --- exactly once -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["pending", "queued"])
def test_start_updates_the_run_and_creates_an_attempt(state: str) -> None:
    run = make_run(make_idle_job(), state)
    token = uuid4()

    started = start_attempt(run.pk, 1, token=token, worker="w1@host")

    assert started is not None
    assert (started[0].pk, started[0].job.pk) == (run.pk, run.job_id)
    after, attempt = reread(run), attempt_of(run)
    assert after.state == State.RUNNING
    assert after.started_at is not None
    assert after.heartbeat_at is not None
    assert (attempt.token, attempt.worker, attempt.outcome) == (token, "w1@host", "")
    assert attempt.started_at == started[1]
    assert (attempt.due_at, attempt.queued_at) == (run.due_at, run.queued_at)
    assert (attempt.queued_at is None) == (state == "pending"), (
        "the worker started the run before it was marked as queued"
    )


def test_retry_does_not_keep_queued_at_of_the_previous_attempt(now: datetime) -> None:
    earlier = {"queued_at": now - MINUTE, "attempt": 2, "due_at": now}
    run = make_run(make_idle_job(max_attempts=2), "pending", deliveries=0, **earlier)

    assert deliver(run)

    assert (attempt_of(run, 2).due_at, attempt_of(run, 2).queued_at) == (now, None)


def test_duplicate_delivery_changes_nothing() -> None:
    run = make_run(make_idle_job(), "queued")
    assert deliver(run)
    before = Run.objects.filter(pk=run.pk).values().get()

    assert deliver(run) is None

    assert Run.objects.filter(pk=run.pk).values().get() == before
    assert Attempt.objects.filter(run=run).count() == 1


def test_repeated_start_with_the_same_token_returns_the_attempt() -> None:
    run = make_run(make_idle_job(), "queued")
    token = uuid4()
    first = start_attempt(run.pk, 1, token=token, worker="w")
    again = start_attempt(run.pk, 1, token=token, worker="w")
    assert first is not None
    assert again is not None
    assert again[1] == first[1]
    assert Attempt.objects.filter(run=run).count() == 1


def test_start_with_the_token_of_a_finished_attempt_is_refused() -> None:
    run = make_run(make_idle_job(), "queued")
    token = uuid4()
    started = start_attempt(run.pk, 1, token=token, worker="w")
    assert started
    endings.finish(started[0], AttemptEnd(1, {"outcome": "succeeded"}, token), State.SUCCEEDED, "")
    assert start_attempt(run.pk, 1, token=token, worker="w") is None


@pytest.mark.parametrize(
    "state", ["waiting", "succeeded", "failed", "skipped", "missed", "cancelled"]
)
def test_run_in_another_state_does_not_start(state: str) -> None:
    run = make_run(make_idle_job(), state)
    assert deliver(run) is None
    assert state_of(run) == state
    assert not Attempt.objects.filter(run=run).exists()


def test_start_of_a_deleted_run_raises_unknown_run() -> None:
    run_id = uuid4()
    with pytest.raises(UnknownRun) as unknown:
        start_attempt(run_id, 1, token=uuid4(), worker="w")
    assert str(run_id) in str(unknown.value)
    assert database_name("default") in str(unknown.value)


def test_only_the_current_attempt_starts() -> None:
    run = make_run(make_idle_job(max_attempts=3), attempt=2)
    for attempt in (1, 3):
        assert start_attempt(run.pk, attempt, token=uuid4(), worker="w") is None
    assert deliver(run)
    assert attempt_of(run, 2).number == 2


def test_run_cancelled_between_read_and_start_does_not_start() -> None:
    run = make_run(make_idle_job(), "queued")
    with mock.patch.object(
        start_facts,
        "why_too_late",
        side_effect=lambda *_: "" if control.cancel(reread(run)) else "?",
    ):
        assert deliver(run) is None
    assert state_of(run) == State.CANCELLED
    assert not Attempt.objects.exists()


@pytest.mark.parametrize("why", ["cancelled", "too late"])
def test_run_whose_attempt_changed_meanwhile_is_not_ended(why: str) -> None:
    run = make_run(
        make_idle_job(), "queued", cancel_requested_at=NOON if why == "cancelled" else None
    )
    read = module.read_run(run.pk)
    Run.objects.update(attempt=2)
    with (
        mock.patch.object(module, "read_run", return_value=read),
        mock.patch.object(start_facts, "why_too_late", return_value=why),
    ):
        assert deliver(run) is None
    after = reread(run)
    assert (after.state, after.attempt) == (State.QUEUED, 2)


@pytest.mark.parametrize(
    ("early", "starts"), [(timedelta(0), True), (timedelta(microseconds=1), False)]
)
def test_punctual_start_is_refused_before_the_due_time(early: timedelta, starts: bool) -> None:
    run = make_run(make_idle_job(), "queued")
    read = module.read_run(run.pk)
    assert read
    at = run.due_at - early
    with mock.patch.object(
        module, "read_run", return_value=read._replace(at=at, at_without_jump=at)
    ):
        if starts:
            assert start_attempt(run.pk, 1, token=uuid4(), worker="w", punctual=True)
        else:
            with pytest.raises(module.NotDueYet) as raised:
                start_attempt(run.pk, 1, token=uuid4(), worker="w", punctual=True)
            assert raised.value.ahead == early
    assert state_of(run) == (State.RUNNING if starts else State.QUEUED)


# --- a database clock that jumps ----------------------------------------------------------------


@pytest.fixture
def clock_jumps(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Make the database's clock jump. An earlier start of this process saw the right time."""
    monkeypatch.setattr(start_facts, "_clock", ClusterClock())
    read = start_facts._READ.first
    step = timedelta()

    def first(**parameters: Any) -> Any:
        row = read(**parameters)
        return row and (*row[:-2], row[-2] + step, row[-1])

    def jump(by: timedelta) -> None:
        nonlocal step
        step = by

    monkeypatch.setattr(start_facts, "_READ", mock.Mock(first=first))
    start_attempt(make_run(make_idle_job(), "queued").pk, 1, token=uuid4(), worker="w")
    return jump


@pytest.mark.parametrize("limit", [{"start_deadline": GRACE}, {"misfire_policy": "skip"}], ids=str)
def test_forward_jump_of_database_clock_does_not_miss_runs(
    limit: dict[str, Any], clock_jumps: Callable[[timedelta], None]
) -> None:
    run = make_run(make_idle_job(misfire_grace=GRACE, **limit), "queued")
    clock_jumps(timedelta(hours=1))
    assert start_attempt(run.pk, 1, token=uuid4(), worker="w", punctual=True)
    assert state_of(run) == State.RUNNING


def test_backward_jump_of_database_clock_does_not_delay_runs(
    clock_jumps: Callable[[timedelta], None], now: datetime
) -> None:
    run = queued_since(make_idle_job(), now - SECOND)
    clock_jumps(-timedelta(hours=1))
    assert start_attempt(run.pk, 1, token=uuid4(), worker="w", punctual=True)


def test_lasting_jump_of_database_clock_is_accepted(
    clock_jumps: Callable[[timedelta], None],
) -> None:
    runs = [
        make_run(make_idle_job(misfire_policy="skip", misfire_grace=GRACE), "queued")
        for _ in range(2)
    ]
    clock_jumps(timedelta(hours=1))
    assert start_attempt(runs[0].pk, 1, token=uuid4(), worker="w")
    later, monotonic = DOUBT_FOR + 1, time.monotonic
    clock_jumps(timedelta(hours=1, seconds=later))
    with mock.patch.object(start_facts.time, "monotonic", side_effect=lambda: monotonic() + later):
        assert start_attempt(runs[1].pk, 1, token=uuid4(), worker="w") is None
    assert state_of(runs[1]) == State.MISSED


def test_run_with_a_cancel_request_between_attempts_is_cancelled(now: datetime) -> None:
    run = make_run(make_idle_job(), attempt=2, cancel_requested_at=now, reason="by hand")
    assert deliver(run) is None
    assert (state_of(run), reread(run).reason) == (State.CANCELLED, "by hand")


# --- too late -----------------------------------------------------------------------------------


def backlog(now: datetime, count: int, **job: Any) -> list[Run]:
    """One queued run for each of ``count`` minutes without workers, the last one on time."""
    made = make_idle_job(overlap_policy="allow", misfire_grace=GRACE, **job)
    return [queued_since(made, now - i * MINUTE) for i in reversed(range(count))]


def test_skip_runs_only_the_run_on_time_after_an_hour_without_workers(now: datetime) -> None:
    runs = backlog(now, 60, misfire_policy="skip")
    Run.objects.update(claimed_at=F("due_at"))
    started = [run for run in runs if deliver(run)]
    assert started == runs[-1:]
    assert {state_of(run) for run in runs[:-1]} == {State.MISSED}
    assert "the run didn't start within" in reread(runs[0]).reason


def test_missed_run_that_no_node_claimed_in_time_says_so(now: datetime) -> None:
    runs = backlog(now, 3, misfire_policy="skip")
    Run.objects.filter(pk=runs[0].pk).update(claimed_at=now)
    deliver(runs[0])
    assert reread(runs[0]).reason.startswith("no node claimed the occurrence within")


def test_skip_runs_nothing_if_all_runs_are_late(now: datetime) -> None:
    runs = backlog(now - MINUTE, 5, misfire_policy="skip")
    assert not [run for run in runs if deliver(run)]


@pytest.mark.parametrize("order", [1, -1], ids=["oldest first", "newest first"])
def test_run_latest_runs_only_the_newest_late_run(now: datetime, order: int) -> None:
    runs = backlog(now - MINUTE, 60, misfire_policy="run_latest")
    started = [run for run in runs[::order] if deliver(run)]
    assert started == runs[-1:]
    assert {state_of(run) for run in runs[:-1]} == {State.MISSED}
    assert reread(runs[0]).job.statistics.missed == 59
    assert REPLACED_BY_NEWER_RUN in reread(runs[0]).reason
    assert replacing_run(reread(runs[0])) == runs[-1]


def test_run_latest_ignores_runs_that_are_not_due_yet(now: datetime) -> None:
    [late] = backlog(now - MINUTE, 1, misfire_policy="run_latest")
    make_run(late.job, scheduled_at=now + MINUTE, due_at=now + MINUTE)
    assert deliver(late)


def test_run_latest_counts_a_newer_run_that_waits_for_its_retry(now: datetime) -> None:
    late, newer = backlog(now - MINUTE, 2, misfire_policy="run_latest")
    Run.objects.filter(pk=newer.pk).update(attempt=2, due_at=now + MINUTE)
    assert not deliver(late)
    assert state_of(late) == State.MISSED


def test_run_latest_ignores_newer_runs_that_were_missed(now: datetime) -> None:
    late, newer = backlog(now - MINUTE, 2, misfire_policy="run_latest")
    Run.objects.filter(pk=newer.pk).update(state="missed")
    assert deliver(late)


def test_run_all_runs_the_oldest_up_to_its_limit(now: datetime) -> None:
    runs = backlog(now - MINUTE, 60, misfire_policy="run_all", catchup_limit=10)
    started = [run for run in runs if deliver(run)]
    assert started == runs[:10]
    assert {state_of(run) for run in runs[10:]} == {State.MISSED}


def test_run_all_does_not_count_runs_before_the_backlog(now: datetime) -> None:
    runs = backlog(now - MINUTE, 4, misfire_policy="run_all", catchup_limit=2)
    for i in range(5, 20):
        at = now - i * MINUTE
        make_run(runs[0].job, "succeeded", scheduled_at=at, due_at=at, started_at=at + SECOND)
    assert [run for run in runs if deliver(run)] == runs[:2]


@pytest.mark.parametrize(
    ("policy", "order"), [*product(["skip", "queue_one", "queue_all"], [1, -1])]
)
def test_backlog_of_run_all_runs_one_after_the_other_oldest_first(
    now: datetime, policy: str, order: int
) -> None:
    """Also if workers receive the newest run first, and the policy skips overlapping runs."""
    runs = backlog(now, 4, misfire_policy="run_all")
    Job.objects.update(overlap_policy=policy)
    started = [run for run in runs[::order] if deliver(run)]
    assert started == runs[:1]
    for run, following in pairwise(runs):
        assert [state_of(each) for each in runs].count("running") == 1
        finish(run)
        assert reread(following).slot == Slot.RUNNING
        assert deliver(following)
    finish(runs[-1])
    assert {state_of(run) for run in runs} == {"succeeded"}


@pytest.mark.parametrize("attempt", [1, 2])
def test_run_all_skips_a_run_that_became_due_during_an_execution(
    now: datetime, attempt: int
) -> None:
    first, second = backlog(now, 2, misfire_policy="run_all")
    Job.objects.update(overlap_policy="skip")
    holder = queued_since(first.job, now - 2 * MINUTE)
    assert deliver(holder)
    between = first.due_at + SECOND
    Attempt.objects.filter(run=holder).update(started_at=between)
    # The first attempt counts: the run was unfinished since then.
    Run.objects.filter(pk=holder.pk).update(
        started_at=between if attempt == 1 else now + SECOND, attempt=attempt
    )
    for run in (first, second):
        assert not deliver(run)
    assert [state_of(first), state_of(second)] == [State.WAITING, State.SKIPPED]


@pytest.mark.parametrize(("misfire_policy", "reads"), [("run_latest", 0), ("run_all", 1)])
def test_only_a_queue_reads_when_a_retried_holder_first_started(
    now: datetime, misfire_policy: str, reads: int
) -> None:
    holder, run = backlog(now, 2, misfire_policy=misfire_policy)
    Job.objects.update(overlap_policy="queue_one", misfire_grace=HOUR)
    assert deliver(holder)
    Run.objects.filter(pk=holder.pk).update(attempt=2)
    with CaptureQueriesContext(connection) as queries:
        assert not deliver(run)
    table = connection.ops.quote_name(Attempt._meta.db_table)
    assert len([query for query in queries if f"FROM {table}" in query["sql"]]) == reads


def test_backlog_of_run_all_waits_for_the_retry_of_its_oldest_run(now: datetime) -> None:
    runs = backlog(now, 3, misfire_policy="run_all", max_attempts=2)
    Job.objects.update(overlap_policy="skip")
    assert deliver(runs[0])
    assert endings.retry(reread(runs[0]), AttemptEnd(1, {"outcome": "failed"}), now + MINUTE, "")
    for run in runs[1:]:
        assert not deliver(run)
    assert [state_of(run) for run in runs] == ["pending", "waiting", "waiting"]


@pytest.mark.parametrize("state", ["pending", "queued"])
def test_end_of_a_run_gives_the_slot_to_an_older_run_that_does_not_wait_yet(
    now: datetime, state: str
) -> None:
    first, second, third = backlog(now, 3, misfire_policy="run_all")
    Job.objects.update(overlap_policy="skip")
    assert deliver(first)
    Run.objects.filter(pk=second.pk).update(state=state, node="a", deliveries=8)
    assert not deliver(third)
    finish(first)
    second = reread(second)
    assert (second.slot, second.state) == (Slot.RUNNING, "pending")
    sent_again = {"queued": ("", 0, None), "pending": ("a", 8, second.queued_at)}[state]
    assert (second.node, second.deliveries, second.queued_at) == sent_again
    assert deliver(second)
    finish(second)
    assert deliver(reread(third))


def test_run_beyond_the_catch_up_limit_does_not_get_the_slot(now: datetime) -> None:
    runs = backlog(now - MINUTE, 4, misfire_policy="run_all", catchup_limit=2)
    Job.objects.update(overlap_policy="skip")
    for run in runs[:2]:
        assert deliver(run)
        finish(run)
    on_time = queued_since(runs[0].job, now)
    assert deliver(on_time)
    finish(on_time)
    for run in runs[2:]:
        assert not deliver(run)
        assert state_of(run) == State.MISSED


def test_late_run_that_run_latest_omits_does_not_get_the_slot(now: datetime) -> None:
    runs = backlog(now, 3, misfire_policy="run_latest")
    Job.objects.update(overlap_policy="queue_all")
    assert deliver(runs[-1])
    assert not deliver(runs[0])
    assert state_of(runs[0]) == State.MISSED


def test_queue_all_lets_an_older_run_within_its_grace_start_first(now: datetime) -> None:
    job = make_idle_job(overlap_policy="queue_all", misfire_grace=MINUTE)
    older, newer = (queued_since(job, now - i * SECOND) for i in (20, 10))
    manual = make_run(job, "queued", trigger="manual")
    assert not deliver(newer)
    assert (reread(older).slot, state_of(newer)) == (Slot.RUNNING, State.WAITING)
    assert deliver(older)
    finish(older)
    assert not deliver(manual)
    assert deliver(newer)


def test_run_within_its_grace_starts_despite_newer_runs(now: datetime) -> None:
    job = make_idle_job(overlap_policy="allow", misfire_policy="skip", misfire_grace=MINUTE)
    older, newer = (queued_since(job, now - i * SECOND) for i in (20, 10))
    assert deliver(newer)
    assert deliver(older)


def test_manual_run_is_never_too_late(now: datetime) -> None:
    job = make_idle_job(misfire_policy="skip", misfire_grace=GRACE)
    assert deliver(queued_since(job, now - 60 * MINUTE, trigger="manual"))


def test_run_that_waited_for_its_slot_is_not_too_late(now: datetime) -> None:
    job = make_idle_job(misfire_policy="skip", misfire_grace=GRACE, overlap_policy="queue_all")
    assert deliver(queued_since(job, now - 60 * MINUTE, slot=Slot.RUNNING))


def test_retry_is_never_too_late(now: datetime) -> None:
    job = make_idle_job(
        misfire_policy="skip", misfire_grace=GRACE, start_deadline=GRACE, max_attempts=3
    )
    assert deliver(queued_since(job, now - 60 * MINUTE, attempt=2))


@pytest.mark.parametrize("fields", [{}, {"trigger": "manual"}, {"slot": "running"}], ids=str)
def test_start_deadline_applies_under_any_policy(now: datetime, fields: dict[str, Any]) -> None:
    job = make_idle_job(
        misfire_policy="run_all",
        start_deadline=GRACE,
        misfire_grace=MINUTE,
        overlap_policy="queue_all",
    )
    run = queued_since(job, now - GRACE - SECOND, **fields)
    assert deliver(run) is None
    assert state_of(run) == State.MISSED
    assert "start deadline" in reread(run).reason


def test_run_starts_within_the_start_deadline(now: datetime) -> None:
    assert deliver(queued_since(make_idle_job(start_deadline=MINUTE), now - GRACE))


# --- overlap ------------------------------------------------------------------------------------

EXCLUSIVE = ["skip", "queue_one", "queue_all", "cancel_running"]


def holder_and_newcomers(policy: str, count: int = 1, **job: Any) -> tuple[Run, list[Run]]:
    made = make_idle_job(overlap_policy=policy, **job)
    holder = make_run(made, "queued")
    assert deliver(holder)
    # The runs become due one after the other, and the slot is granted in that order. The times
    # are whole seconds, because the factories use the microseconds.
    due = [holder.due_at + i * timedelta(seconds=1) for i in range(1, count + 1)]
    return reread(holder), [queued_since(made, at) for at in due]


def deliver_as_read(read: Any, **changed: Any) -> Run | None:
    """Deliver the run as a worker read it, whatever has changed since then."""
    with mock.patch.object(module, "read_run", return_value=read._replace(**changed)):
        return deliver(read.run)


def finish(run: Run, state: State = State.SUCCEEDED) -> None:
    assert endings.finish(reread(run), AttemptEnd(run.attempt, {"outcome": "succeeded"}), state, "")


def test_allow_starts_overlapping_runs() -> None:
    _, [first, second] = holder_and_newcomers("allow", 2)
    assert deliver(first)
    assert deliver(second)
    assert not Run.objects.exclude(slot=None).exists()


@pytest.mark.parametrize("policy", EXCLUSIVE)
def test_first_run_takes_the_slot_and_its_end_frees_it(policy: str) -> None:
    holder, _ = holder_and_newcomers(policy, 0)
    assert holder.slot == Slot.RUNNING
    finish(holder)
    assert reread(holder).slot is None
    assert deliver(make_run(holder.job))


def test_skip_skips_the_newcomer_and_names_the_holder() -> None:
    holder, [newcomer] = holder_and_newcomers("skip")
    assert deliver(newcomer) is None
    after = reread(newcomer)
    assert after.state == State.SKIPPED
    assert str(holder.pk) in after.reason
    assert "running" in after.reason
    assert after.job.statistics.skipped == 1


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_run_is_not_skipped_because_of_a_holder_whose_worker_is_gone(max_attempts: int) -> None:
    """One run waits, and starts once the holder has been declared lost, or after its retry."""
    holder, [newcomer, another] = holder_and_newcomers("skip", 2, max_attempts=max_attempts)
    long_ago = F("heartbeat_at") - 2 * dcron_settings.RUN_LEASE
    Run.objects.filter(pk=holder.pk).update(heartbeat_at=long_ago)
    assert deliver(newcomer) is None
    assert deliver(another) is None
    assert [reread(each).state for each in (newcomer, another)] == [State.WAITING, State.SKIPPED]
    assert rescue(range(dcron_settings.SHARDS), newcomer.due_at, dcron_settings.RUN_LEASE)
    if max_attempts > 1:
        assert reread(newcomer).state == State.WAITING
        Run.objects.filter(pk=holder.pk).update(due_at=holder.due_at)
        assert deliver(reread(holder))
        finish(reread(holder))
    else:
        assert reread(holder).state == State.FAILED
    assert reread(newcomer).state == State.PENDING
    assert deliver(reread(newcomer))


def test_run_that_waits_for_a_silent_holder_starts_after_it_has_ended_nevertheless() -> None:
    """The run isn't overtaken: the end of the holder, which was only suspended, wakes it."""
    holder, [newcomer] = holder_and_newcomers("skip")
    long_ago = F("heartbeat_at") - 2 * dcron_settings.RUN_LEASE
    Run.objects.filter(pk=holder.pk).update(heartbeat_at=long_ago, started_at=long_ago)
    assert deliver(newcomer) is None
    token = Attempt.objects.get(run=holder).token
    succeeded = {"outcome": "succeeded"}
    assert endings.finish(reread(holder), AttemptEnd(1, succeeded, token), State.SUCCEEDED, "")
    woken = reread(newcomer)
    assert (woken.state, woken.slot) == (State.PENDING, Slot.RUNNING)
    assert deliver(woken)


def test_holder_in_an_unknown_state_counts_as_unfinished() -> None:
    holder, [newcomer] = holder_and_newcomers("skip")
    Run.objects.filter(pk=holder.pk).update(state="suspended")
    assert deliver(newcomer) is None
    assert reread(newcomer).state == State.SKIPPED


@pytest.mark.parametrize("policy", EXCLUSIVE)
def test_jobs_do_not_share_a_slot(policy: str) -> None:
    holder_and_newcomers(policy)
    assert deliver(make_run(make_idle_job(overlap_policy=policy)))


def test_queue_one_lets_one_run_wait_and_skips_others() -> None:
    holder, [first, second] = holder_and_newcomers("queue_one", 2)
    assert deliver(first) is None
    assert deliver(second) is None
    assert state_of(first) == State.WAITING
    assert state_of(second) == State.SKIPPED
    assert str(first.pk) in reread(second).reason

    finish(holder)

    woken = reread(first)
    assert (woken.state, woken.slot) == (State.PENDING, Slot.RUNNING)
    assert deliver(woken)


def test_queue_all_lets_all_runs_wait_in_order() -> None:
    holder, newcomers = holder_and_newcomers("queue_all", 3)
    for run in newcomers:
        assert deliver(run) is None
    for run in newcomers:
        assert [state_of(each) for each in newcomers].count("pending") == 0
        finish(holder)
        assert state_of(run) == State.PENDING
        assert deliver(run)
        holder = reread(run)


def test_newcomer_cannot_overtake_a_woken_run() -> None:
    holder, [waiting, newcomer] = holder_and_newcomers("queue_all", 2)
    deliver(waiting)
    finish(holder)
    assert deliver(newcomer) is None
    assert state_of(newcomer) == State.WAITING
    assert deliver(waiting)


def test_cancel_running_cancels_the_holder_and_takes_the_slot() -> None:
    holder, [newcomer] = holder_and_newcomers("cancel_running")
    assert deliver(newcomer) is None
    assert state_of(newcomer) == State.WAITING
    asked = reread(holder)
    assert asked.state == State.RUNNING
    assert asked.cancel_requested_at is not None
    assert str(newcomer.pk) in asked.reason

    finish(holder, State.CANCELLED)

    assert deliver(newcomer)
    assert reread(newcomer).slot == Slot.RUNNING


def test_cancel_running_also_replaces_the_waiting_run() -> None:
    holder, [older, newer] = holder_and_newcomers("cancel_running", 2)
    deliver(older)
    deliver(newer)
    assert state_of(older) == State.SKIPPED
    assert str(newer.pk) in reread(older).reason
    assert state_of(newer) == State.WAITING
    finish(holder, State.CANCELLED)
    assert deliver(newer)


def wait_for_retry(holder: Run, now: datetime) -> None:
    assert endings.retry(holder, AttemptEnd(1, {"outcome": "failed"}), now + MINUTE, "failed")


@pytest.mark.parametrize(
    ("policy", "state"),
    [("skip", State.SKIPPED), ("queue_one", State.WAITING), ("queue_all", State.WAITING)],
)
def test_holder_keeps_the_slot_while_it_waits_for_its_retry(
    now: datetime, policy: str, state: State
) -> None:
    holder, [newcomer] = holder_and_newcomers(policy, max_attempts=2)
    wait_for_retry(holder, now)
    assert deliver(newcomer) is None
    assert state_of(newcomer) == state
    assert deliver(reread(holder))


def test_cancel_running_cancels_a_holder_that_waits_for_its_retry(now: datetime) -> None:
    holder, [newcomer] = holder_and_newcomers("cancel_running", max_attempts=2)
    wait_for_retry(holder, now)
    assert deliver(newcomer)
    assert state_of(holder) == State.CANCELLED
    assert str(newcomer.pk) in reread(holder).reason
    assert reread(newcomer).slot == Slot.RUNNING


def test_cancel_running_lets_a_backfilled_holder_finish() -> None:
    holder, [older, newer, oldest] = holder_and_newcomers("cancel_running", 3)
    Run.objects.filter(pk=holder.pk).update(trigger="backfill")
    Run.objects.filter(pk=oldest.pk).update(scheduled_at=older.scheduled_at - MINUTE)
    for run, state in ((older, State.WAITING), (newer, State.WAITING), (oldest, State.SKIPPED)):
        assert deliver(run) is None
        assert state_of(run) == state
    assert (state_of(older), reread(newer).slot) == (
        State.SKIPPED,
        Slot.NEXT_IN_LINE,
    )
    assert str(newer.pk) in reread(older).reason
    assert reread(holder).cancel_requested_at is None
    finish(holder)
    assert deliver(newer)


def test_cancel_running_skips_a_run_older_than_the_waiting_run() -> None:
    holder, [older, newer] = holder_and_newcomers("cancel_running", 2)
    deliver(newer)
    assert deliver(older) is None
    assert (state_of(older), state_of(newer)) == (State.SKIPPED, State.WAITING)
    assert str(newer.pk) in reread(older).reason
    assert str(newer.pk) in reread(holder).reason


def test_waiting_run_is_read_again_at_each_try_for_the_slot(now: datetime) -> None:
    holder, [woken, late, newcomer] = holder_and_newcomers("queue_all", 3, max_attempts=2)
    deliver(woken)
    wait_for_retry(holder, now)
    Job.objects.update(overlap_policy="cancel_running")
    original, is_second_try = start_facts._lock_holder, iter((False, True))

    def lock_holder(run: Run) -> Run | None:
        if next(is_second_try, False):  # the first try has ended the holder
            assert transitions.mark_waiting(late, slot=Slot.NEXT_IN_LINE, reason="")
        return original(run)

    with mock.patch.object(start_facts, "_lock_holder", lock_holder):
        assert deliver(newcomer)
    states = [state_of(run) for run in (holder, woken, late)]
    assert states == [State.CANCELLED, State.CANCELLED, State.SKIPPED]


def test_skip_lets_one_run_wait_for_a_backfilled_holder() -> None:
    holder, [first, second] = holder_and_newcomers("skip", 2)
    Run.objects.filter(pk=holder.pk).update(trigger="backfill")
    assert deliver(first) is None
    assert deliver(second) is None
    assert (state_of(first), reread(first).slot) == (
        State.WAITING,
        Slot.NEXT_IN_LINE,
    )
    assert state_of(second) == State.SKIPPED
    assert str(first.pk) in reread(second).reason


def test_backfilled_run_waits_again_if_the_slot_is_taken() -> None:
    holder, [newcomer] = holder_and_newcomers("skip")
    Run.objects.filter(pk=newcomer.pk).update(trigger="backfill")
    assert deliver(newcomer) is None
    after = reread(newcomer)
    assert (after.state, after.slot, after.slot_number) == (
        State.WAITING,
        Slot.BACKFILL,
        backfill_number(after.scheduled_at),
    )
    assert str(holder.pk) in after.reason


def test_cancel_running_replaces_runs_queued_under_another_policy(now: datetime) -> None:
    holder, [first, second, newcomer] = holder_and_newcomers("queue_all", 3, max_attempts=2)
    deliver(first)
    deliver(second)
    wait_for_retry(holder, now)
    Job.objects.update(overlap_policy="cancel_running")

    assert deliver(newcomer)

    assert {state_of(run) for run in (holder, first, second)} == {State.CANCELLED}


def test_long_queue_is_replaced_over_several_deliveries(now: datetime) -> None:
    holder, runs = holder_and_newcomers("queue_all", module.MAX_TRIES + 2, max_attempts=2)
    *waiting, newcomer = runs
    for run in waiting:
        deliver(run)
    wait_for_retry(holder, now)
    Job.objects.update(overlap_policy="cancel_running")
    assert deliver(newcomer) is None
    assert state_of(newcomer) == State.QUEUED
    assert deliver(newcomer)


@pytest.mark.parametrize("slot_taken", [True, False])
@pytest.mark.parametrize("policy", ["queue_one", "cancel_running", "skip"])
def test_duplicate_delivery_does_not_end_the_waiting_run(policy: str, slot_taken: bool) -> None:
    """The second delivery read the run before the first one made it wait."""
    _, [newcomer] = holder_and_newcomers("queue_one")
    Job.objects.update(overlap_policy=policy)
    read = module.read_run(newcomer.pk)
    assert transitions.mark_waiting(newcomer, slot=Slot.NEXT_IN_LINE, reason="")
    assert deliver_as_read(read, slot_taken=slot_taken) is None
    assert state_of(newcomer) == State.WAITING


@pytest.mark.parametrize("meanwhile", [{"state": "cancelled"}, {"attempt": 2}])
def test_run_that_changed_meanwhile_does_not_cancel_the_holder(meanwhile: dict[str, Any]) -> None:
    holder, [newcomer] = holder_and_newcomers("cancel_running")
    read = module.read_run(newcomer.pk)
    Run.objects.filter(pk=newcomer.pk).update(**meanwhile)
    before = Run.objects.filter(pk=newcomer.pk).values().get()
    assert deliver_as_read(read, slot_taken=True) is None
    assert reread(holder).cancel_requested_at is None
    assert Run.objects.filter(pk=newcomer.pk).values().get() == before


@pytest.mark.parametrize(
    ("policy", "trigger", "reads"),
    [
        *((policy, "schedule", 1) for policy in EXCLUSIVE),
        ("skip", "backfill", 1),
        ("allow", "schedule", 0),
    ],
)
def test_holder_of_the_slot_is_read_once(policy: str, trigger: str, reads: int) -> None:
    _, [newcomer] = holder_and_newcomers(policy)
    Run.objects.filter(pk=newcomer.pk).update(trigger=trigger)
    with mock.patch.object(start_facts, "_lock_holder", wraps=start_facts._lock_holder) as holder:
        started = deliver(newcomer)
    assert (holder.call_count, bool(started)) == (reads, policy == "allow")


def test_holder_of_the_slot_is_read_once_for_a_cancelled_run() -> None:
    _, [newcomer] = holder_and_newcomers("skip")
    read = module.read_run(newcomer.pk)
    control.cancel(newcomer)
    with mock.patch.object(start_facts, "_lock_holder", wraps=start_facts._lock_holder) as holder:
        deliver_as_read(read, slot_taken=True)
    assert holder.call_count == 1


@pytest.mark.parametrize("policy", EXCLUSIVE)
def test_free_slot_is_taken_without_reading_the_holder(policy: str) -> None:
    with mock.patch.object(start_facts, "_lock_holder") as holder:
        assert deliver(make_run(make_idle_job(overlap_policy=policy), "queued"))
    assert not holder.called


@pytest.mark.parametrize("policy", EXCLUSIVE)
def test_run_that_holds_the_slot_starts(policy: str) -> None:
    job = make_idle_job(overlap_policy=policy)
    run = make_run(job, "queued", slot=Slot.RUNNING)
    assert deliver_as_read(module.read_run(run.pk), slot_taken=True)
    assert state_of(run) == State.RUNNING


def test_cancel_running_skips_a_run_older_than_the_holder() -> None:
    holder, [older] = holder_and_newcomers("cancel_running")
    Run.objects.filter(pk=older.pk).update(scheduled_at=holder.scheduled_at - MINUTE)
    assert deliver(older) is None
    assert state_of(older) == State.SKIPPED
    assert str(holder.pk) in reread(older).reason
    assert reread(holder).cancel_requested_at is None


def test_lock_on_the_slot_is_limited_to_the_run_lease(settings: Settings) -> None:
    settings.DCRON_RUN_LEASE = timedelta(seconds=7)
    _, [newcomer] = holder_and_newcomers("skip")
    brief_transaction = mock.Mock(wraps=module.brief_transaction)
    with mock.patch.object(module, "brief_transaction", brief_transaction):
        deliver(newcomer)
    # The newcomer ends within the transaction of the first call.
    lookup, end = brief_transaction.mock_calls
    lease = timedelta(seconds=7)
    lock = transitions.LOCK_TIMEOUT
    assert lookup == mock.call("default", lease, lock=lock, savepoint=True)
    assert end == mock.call("default", lease, lock=lock, savepoint=False)


@pytest.mark.parametrize(
    ("policy", "state"), [("skip", State.SKIPPED), ("queue_all", State.WAITING)]
)
def test_slot_taken_since_the_run_was_read_is_noticed(policy: str, state: State) -> None:
    _, [newcomer] = holder_and_newcomers(policy)
    read = module.read_run(newcomer.pk)
    assert read
    assert read.slot_taken
    assert deliver_as_read(read, slot_taken=False) is None
    assert state_of(newcomer) == state
    assert not Attempt.objects.filter(run=newcomer).exists()


def test_slot_taken_is_read_with_the_run() -> None:
    holder, [newcomer] = holder_and_newcomers("skip")
    of_another_job = make_run(make_idle_job())
    taken = [module.read_run(run.pk).slot_taken for run in (holder, newcomer, of_another_job)]  # type: ignore[union-attr]
    assert taken == [False, True, False], "the holder's own slot doesn't count as taken"


def test_slot_freed_since_the_run_was_read_is_taken() -> None:
    holder, [newcomer] = holder_and_newcomers("skip")
    read = module.read_run(newcomer.pk)
    assert read
    finish(holder)
    assert read.slot_taken
    assert deliver_as_read(read)
    assert not module.read_run(newcomer.pk).slot_taken  # the run holds the slot itself


def test_run_that_loses_the_race_for_the_slot_tries_again() -> None:
    holder, [newcomer] = holder_and_newcomers("skip")
    with mock.patch.object(start_facts, "_lock_holder", side_effect=[None, holder]):
        assert deliver(newcomer) is None
    assert state_of(newcomer) == State.SKIPPED


def test_start_gives_up_after_losing_the_slot_repeatedly() -> None:
    _, [newcomer] = holder_and_newcomers("skip")
    with (
        mock.patch.object(start_facts, "_lock_holder", return_value=None) as holder,
        pytest.raises(IntegrityError),
    ):
        deliver(newcomer)
    assert holder.call_count == module.MAX_TRIES
    assert state_of(newcomer) == State.QUEUED
    assert not Attempt.objects.filter(run=newcomer).exists()


# --- races --------------------------------------------------------------------------------------


def concurrently(*works: Callable[[], Any]) -> list[Any]:
    """Run all callables at the same time, each in its own thread and connection."""
    barrier = threading.Barrier(len(works))
    answers: list[Any] = [None] * len(works)

    def race(index: int, work: Callable[[], Any]) -> None:
        try:
            barrier.wait(TIMEOUT)
            answers[index] = retry_until_available(work, "a racer", "default", give_up_after=20)
        except BaseException as error:
            answers[index] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=race, args=item) for item in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    return answers


def deliveries(*runs: Run) -> list[Callable[[], Any]]:
    def delivery(run: Run) -> Callable[[], bool]:
        token = uuid4()
        return lambda: deliver(run, token=token) is not None

    return [delivery(run) for run in runs]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("policy", ["allow", *EXCLUSIVE])
def test_exactly_one_of_two_concurrent_deliveries_starts(policy: str) -> None:
    job = make_idle_job(overlap_policy=policy)
    for _ in range(3):
        run = make_run(job, "queued")
        assert sorted(concurrently(*deliveries(run, run))) == [False, True]
        assert Attempt.objects.filter(run=run).count() == 1
        finish(run)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("policy", "loser"),
    [
        ("skip", {"skipped"}),
        ("queue_one", {"waiting"}),
        ("queue_all", {"waiting"}),
        ("cancel_running", {"waiting", "skipped"}),  # the newer run waits, the older one is skipped
    ],
)
def test_exactly_one_of_two_concurrent_runs_starts(policy: str, loser: set[str]) -> None:
    for _ in range(3):
        job = make_idle_job(overlap_policy=policy)
        runs = [make_run(job, "queued") for _ in range(2)]
        assert sorted(concurrently(*deliveries(*runs))) == [False, True]
        states = {state_of(run) for run in runs}
        assert len(states) == 2
        assert states <= {"running"} | loser
        assert Run.objects.in_slot(Slot.RUNNING, job.pk).count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "policies",
    [
        {"overlap_policy": "queue_all", "misfire_grace": HOUR},
        {"overlap_policy": "skip", "misfire_policy": "run_all"},
    ],
    ids=["queue_all", "run_all"],
)
def test_oldest_of_several_concurrent_runs_starts(policies: dict[str, Any], now: datetime) -> None:
    for _ in range(3):
        job = make_idle_job(**policies)
        runs = [queued_since(job, now - i * MINUTE) for i in range(3)]
        assert concurrently(*deliveries(*runs)) == [False, False, True]
        assert [state_of(run) for run in runs] == ["waiting", "waiting", "running"]


@pytest.mark.django_db(transaction=True)
def test_allow_starts_both_of_two_concurrent_runs() -> None:
    job = make_idle_job(overlap_policy="allow")
    assert concurrently(*deliveries(make_run(job, "queued"), make_run(job, "queued"))) == [
        True,
        True,
    ]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("policy", EXCLUSIVE)
def test_concurrent_finish_and_start_strand_no_run(policy: str) -> None:
    """The newcomer finds the slot free or is woken. It never waits for a run that has ended."""
    for _ in range(3):
        holder, [newcomer] = holder_and_newcomers(policy)
        [delivery] = deliveries(newcomer)
        _, started = concurrently(lambda holder=holder: finish(holder), delivery)  # type: ignore[misc]
        after = reread(newcomer)
        if started is True:
            assert (after.state, after.slot) == (State.RUNNING, Slot.RUNNING)
        elif policy == "skip":
            assert after.state == State.SKIPPED
        else:
            assert (after.state, after.slot) == (State.PENDING, Slot.RUNNING)


# --- the fencing token --------------------------------------------------------------------------


def fence_of(run: Run, token: UUID) -> int:
    started = start_attempt(run.pk, run.attempt, token=token, worker="w")
    assert started is not None
    return started.fence


def test_each_start_has_a_greater_fence_than_all_starts_before() -> None:
    first = make_run(make_idle_job(max_attempts=3), "queued")
    fences = [fence_of(first, uuid4())]
    for attempt in (1, 2):
        assert endings.retry(reread(first), AttemptEnd(attempt, {"outcome": "lost"}), NOON, "lost")
        fences.append(fence_of(reread(first), uuid4()))
    assert endings.finish(reread(first), AttemptEnd(3, {"outcome": "lost"}), State.FAILED, "")
    first.delete()  # as retention does
    fences.append(fence_of(make_run(first.job, "queued"), uuid4()))
    fences.append(fence_of(make_run(make_idle_job(), "queued"), uuid4()))
    assert fences == sorted(set(fences))
    assert fences[0] > 0


def test_repeated_start_has_the_same_fence() -> None:
    run, token = make_run(make_idle_job(), "queued"), uuid4()
    assert fence_of(run, token) == fence_of(run, token) == attempt_of(run).pk


@pytest.mark.postgresql
def test_driver_parses_the_query_of_a_start_only_once() -> None:
    sql = start_facts._READ.compiled_for(connection).sql
    assert len(sql) < _queries.MAX_CACHED_STATEMENT_LENGTH


def test_columns_that_a_start_does_not_read_are_loaded_on_access() -> None:
    job = make_job(description="what it does")
    read = start_facts.read_run(make_run(job).pk)
    assert read is not None
    assert read.run.job.get_deferred_fields() == start_facts._NOT_READ
    assert read.run.job.description == "what it does"
    assert read.run.job.declared is None
