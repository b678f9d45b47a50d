"""Every transition from every state: a legal one succeeds, and an illegal one changes nothing."""

import contextlib
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import IntegrityError, connections, transaction
from django.forms.models import model_to_dict
from pytest_django import Settings

from django_dcron.db.now import database_now
from django_dcron.db.session_limits import brief_transaction
from django_dcron.models import Attempt, Job, Run, Statistics
from django_dcron.policies.lifecycle import FINAL, TRANSITIONS, Outcome, State
from django_dcron.policies.slots import Slot, backfill_number
from django_dcron.runs import completion, deliveries, endings, slot_queue, transitions
from django_dcron.runs.endings import AttemptEnd
from tests.factories import make_idle_job, make_run
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
CLOSING = {"outcome": Outcome.FAILED, "message": "as asked"}
BEFORE_START = {State.PENDING, State.QUEUED}


class Case:
    """A transition: its call, its source states and its target state."""

    def __init__(self, call: Callable[[Run], Any], sources: set[State], target: State):
        self.call = call
        self.sources = sources
        self.target = target


def end_unstarted(state: State, sources: set[State]) -> Case:
    return Case(lambda run: endings.end_unstarted(run, state, "why"), sources, state)


def start(run: Run, attempt: int, slot: Slot | None) -> int | None:
    return transitions.mark_running(
        run, attempt, slot=slot, token=uuid4(), worker="w", started_at=database_now("default")
    )


def finish(state: State, token: UUID | None = None) -> Case:
    return Case(
        lambda run: endings.finish(run, AttemptEnd(run.attempt, CLOSING, token), state, "why"),
        {State.RUNNING},
        state,
    )


CASES = {
    "mark_queued": Case(
        lambda run: deliveries.mark_queued([(run.pk, run.attempt)], NOW),
        {State.PENDING},
        State.QUEUED,
    ),
    "redeliver": Case(
        lambda run: deliveries.redeliver(run.pk, run.attempt, run.queued_at or NOW),
        {State.QUEUED},
        State.PENDING,
    ),
    "redeliver_dropped": Case(
        lambda run: deliveries.redeliver_dropped(
            run.pk, run.attempt, run.queued_at or NOW, run.deliveries
        ),
        {State.QUEUED},
        State.PENDING,
    ),
    "return_queued": Case(
        lambda run: deliveries.return_queued([(run.pk, run.attempt)]), {State.QUEUED}, State.PENDING
    ),
    "return_to_nodes": Case(
        lambda run: deliveries.return_to_nodes(run.pk, run.attempt),
        {State.PENDING, State.QUEUED},
        State.PENDING,
    ),
    "mark_running": Case(
        lambda run: start(run, run.attempt, Slot.RUNNING),
        BEFORE_START,
        State.RUNNING,
    ),
    "mark_waiting": Case(
        lambda run: transitions.mark_waiting(run, slot=None, reason="why"),
        BEFORE_START,
        State.WAITING,
    ),
    "mark_waiting_in_backfill": Case(
        lambda run: transitions.mark_waiting_in_backfill(run, reason="why"),
        BEFORE_START,
        State.WAITING,
    ),
    "skip": end_unstarted(State.SKIPPED, {State.PENDING, State.QUEUED, State.WAITING}),
    "miss": end_unstarted(State.MISSED, {State.PENDING, State.QUEUED, State.WAITING}),
    "cancel unstarted": end_unstarted(
        State.CANCELLED, {State.PENDING, State.QUEUED, State.WAITING}
    ),
    "fail undeliverable": end_unstarted(State.FAILED, {State.PENDING}),
    "succeed": finish(State.SUCCEEDED),
    "fail": finish(State.FAILED),
    "cancel": finish(State.CANCELLED),
    "succeed by itself": finish(State.SUCCEEDED, uuid4()),
    "fail by itself": finish(State.FAILED, uuid4()),
    "retry": Case(
        lambda run: endings.retry(run, AttemptEnd(run.attempt, CLOSING), LATER, "why"),
        {State.RUNNING},
        State.PENDING,
    ),
    "wake_next": Case(lambda run: slot_queue.wake_next(run.job_id), {State.WAITING}, State.PENDING),
    "renew_heartbeat": Case(
        lambda run: transitions.renew_heartbeat(run.pk, run.attempt), {State.RUNNING}, State.RUNNING
    ),
    "mark_cancel_requested": Case(
        lambda run: transitions.mark_cancel_requested(run.pk, "why"), {State.RUNNING}, State.RUNNING
    ),
}
TABLE = [(name, state) for name in CASES for state in State]


def all_rows() -> list[Any]:
    """Return all rows that a transition might have changed."""
    return [
        list(model.objects.order_by("pk").values())  # type: ignore[attr-defined]
        for model in (Run, Attempt, Statistics)
    ]


@pytest.mark.parametrize(("name", "state"), TABLE)
def test_transition_succeeds_only_from_its_source_states(name: str, state: State) -> None:
    case = CASES[name]
    run = make_run(make_idle_job(), state)
    before = all_rows()
    won = case.call(run)
    if state in case.sources:
        assert won
        run.refresh_from_db()
        assert run.state == case.target
        assert case.target is state or case.target in TRANSITIONS[state], (
            "the table of legal transitions allows it"
        )
    else:
        assert not won
        assert all_rows() == before


@pytest.mark.parametrize(
    "name",
    [
        *("mark_running", "mark_waiting", "mark_waiting_in_backfill", "mark_queued"),
        *("redeliver", "redeliver_dropped", "return_queued", "return_to_nodes", "renew_heartbeat"),
    ],
)
def test_transition_for_another_attempt_changes_nothing(name: str) -> None:
    case = CASES[name]
    run = make_run(make_idle_job(), min(case.sources), attempt=2)
    before = all_rows()
    run.attempt = 1
    assert not case.call(run)
    assert all_rows() == before


@pytest.mark.parametrize(
    "name", ["succeed", "fail", "cancel", "succeed by itself", "fail by itself", "retry"]
)
def test_outcome_of_an_earlier_attempt_changes_nothing(name: str) -> None:
    run = make_run(make_idle_job(), "running", attempt=2)
    before = all_rows()
    run.attempt = 1
    assert not CASES[name].call(run)
    assert all_rows() == before


@pytest.mark.parametrize("name", CASES)
def test_transition_changes_no_other_run(name: str) -> None:
    case = CASES[name]
    run = make_run(make_idle_job(), min(case.sources))
    others = [make_run(job, min(case.sources)) for job in (run.job, make_idle_job())]

    def rows() -> list[Any]:
        return [
            list(Run.objects.filter(pk__in=[other.pk for other in others]).order_by("pk").values()),
            list(Attempt.objects.filter(run__in=others).order_by("pk").values()),
            Statistics.objects.filter(pk=others[1].job_id).values().get(),
        ]

    before = rows()
    assert case.call(run)
    assert rows() == before


@pytest.mark.parametrize(
    ("name", "written"),
    {
        "mark_queued": {"node": "a", "queued_at": NOW, "deliveries": 3},
        "redeliver": {"node": "", "deliveries": 2},
        "redeliver_dropped": {"node": "", "deliveries": 1},
        "return_queued": {"node": "", "deliveries": 2},
        "mark_waiting": {"slot": None, "reason": "why", "due_at": NOW},
        "mark_waiting_in_backfill": {"reason": "why", "due_at": LATER},
        "retry": {"reason": "why", "due_at": LATER, "deliveries": 0, "node": "", "attempt": 2},
        "wake_next": {"reason": "", "node": "", "due_at": NOW, "queued_at": None},
        "mark_cancel_requested": {"reason": "why"},
    }.items(),
)
def test_transition_writes_its_columns(name: str, written: dict[str, Any]) -> None:
    case = CASES[name]
    run = make_run(
        make_idle_job(),
        min(case.sources),
        node="a",
        deliveries=2,
        reason="earlier",
        scheduled_at=LATER,
        due_at=NOW,
    )
    assert case.call(run)
    assert Run.objects.filter(pk=run.pk).values(*written).get() == written
    run.refresh_from_db()
    assert (run.cancel_requested_at is not None) == (name == "mark_cancel_requested")
    assert (run.slot, run.slot_number) == {
        "mark_waiting_in_backfill": (Slot.BACKFILL, backfill_number(LATER)),
        "wake_next": (Slot.RUNNING, 0),
    }.get(name, (None, 0))


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("trigger", ["backfill", "schedule"])
def test_only_waiting_backfilled_run_is_released(state: State, trigger: str) -> None:
    given = {
        "trigger": trigger,
        "node": "a",
        "queued_at": NOW,
        "deliveries": 2,
        "reason": "why",
    }
    run, other = (
        make_run(make_idle_job(), state, slot=Slot.BACKFILL, slot_number=number, **given)
        for number in (7, 8)
    )
    before = all_rows()
    if state is not State.WAITING or trigger != "backfill":
        assert not transitions.release_backfilled(run.pk, LATER)
        assert all_rows() == before
        return
    assert transitions.release_backfilled(run.pk, LATER)
    run.refresh_from_db(), other.refresh_from_db()
    assert (run.state, run.due_at, run.slot, run.slot_number) == ("pending", LATER, None, 0)
    assert (run.node, run.deliveries, run.sent_at, run.reason) == ("", 0, None, "")
    assert (other.state, other.slot, other.slot_number) == ("waiting", Slot.BACKFILL, 8)


def test_backfilled_run_passes_on_its_slot_while_it_waits_for_a_retry() -> None:
    job = make_idle_job(overlap_policy="skip")
    run = make_run(job, "running", slot=Slot.RUNNING, trigger="backfill")
    waiting = make_run(job, "waiting")
    assert CASES["retry"].call(run)
    run.refresh_from_db(), waiting.refresh_from_db()
    assert (run.state, run.slot) == ("pending", None)
    assert (waiting.state, waiting.slot) == ("pending", Slot.RUNNING)


@pytest.mark.parametrize("policy", ["skip", "allow"])
def test_end_of_a_backfilled_run_wakes_the_waiting_run(policy: str) -> None:
    job = make_idle_job(overlap_policy=policy)
    run = make_run(job, "running", slot=Slot.RUNNING, trigger="backfill")
    waiting = make_run(job, "waiting")
    assert endings.finish(
        run, AttemptEnd(1, CLOSING, Attempt.objects.get().token), State.SUCCEEDED, ""
    )
    waiting.refresh_from_db()
    assert (waiting.state, waiting.slot) == ("pending", Slot.RUNNING)


def test_woken_run_has_not_been_sent() -> None:
    """A worker took the message before the run waited. Nothing but another message starts it."""
    job = make_idle_job(overlap_policy="queue_all")
    run = make_run(job, State.WAITING, queued_at=database_now("default"), deliveries=2)
    assert slot_queue.wake_next(job.pk) == run
    run.refresh_from_db()
    assert (run.state, run.deliveries, run.sent_at) == (State.PENDING, 0, None)


def test_waiting_backfilled_run_is_not_woken_by_wake_next() -> None:
    job = make_idle_job(overlap_policy="queue_all")
    make_run(job, "waiting", trigger="backfill")
    assert not slot_queue.wake_next(job.pk)
    assert not slot_queue.wake_next(make_idle_job().pk)


def test_lowest_key_is_woken_among_runs_due_at_the_same_time() -> None:
    job = make_idle_job(overlap_policy="queue_all")
    for key in (3, 1, 2):
        make_run(job, "waiting", id=UUID(int=key), due_at=NOW)
    assert slot_queue.wake_next(job.pk)
    assert Run.objects.get(state="pending").pk == UUID(int=1)


@pytest.mark.parametrize(
    ("policy", "slot_taken", "wakes"),
    [
        ("queue_all", False, True),
        ("queue_all", True, False),
        ("skip", False, False),
        ("skip", True, False),
    ],
)
def test_wake_next_is_called_only_if_the_slot_is_free_and_runs_wait(
    policy: str, slot_taken: bool, wakes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[int] = []
    monkeypatch.setattr(slot_queue, "wake_next", offered.append)
    job = make_idle_job(overlap_policy=policy)
    if slot_taken:
        make_run(job, "running", slot=Slot.RUNNING)
    assert CASES["succeed"].call(make_run(job, "running"))
    assert offered == ([job.pk] if wakes else [])


def test_suspended_transaction_is_limited_to_the_run_lease(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_RUN_LEASE = timedelta(seconds=7)
    begun: list[tuple[Any, ...]] = []

    def brief(
        using: str, timeout: timedelta, **options: Any
    ) -> contextlib.AbstractContextManager[None]:
        begun.append((using, timeout, options))
        return brief_transaction(using, timeout, **options)

    monkeypatch.setattr(endings, "brief_transaction", brief)
    limit, nested = (
        ("default", timedelta(seconds=7), {"lock": transitions.LOCK_TIMEOUT}),
        ("default", timedelta(seconds=7), {"savepoint": False}),
    )
    expected = {"succeed": [limit, nested], "retry": [limit], "skip": [nested]}
    for name, transactions in expected.items():
        assert CASES[name].call(make_run(make_idle_job(), min(CASES[name].sources)))
        assert begun == transactions
        begun.clear()


def test_waiting_run_keeps_waiting_if_the_slot_is_taken() -> None:
    job = make_idle_job(overlap_policy="queue_all")
    make_run(job, "pending", slot=Slot.RUNNING)
    waiting = make_run(job, "waiting")
    assert not slot_queue.wake_next(job.pk)
    waiting.refresh_from_db()
    assert (waiting.state, waiting.slot) == ("waiting", None)


def test_run_with_a_cancel_request_is_not_retried() -> None:
    run = make_run(make_idle_job(), "running")
    assert transitions.mark_cancel_requested(run.pk, "by hand")
    before = all_rows()
    assert not CASES["retry"].call(run)
    assert all_rows() == before


def test_heartbeat_is_the_time_of_the_database() -> None:
    run = make_run(make_idle_job(), "running", heartbeat_at=NOW)
    before = database_now("default")
    assert transitions.renew_heartbeat(run.pk, 1)
    run.refresh_from_db()
    assert run.heartbeat_at is not None
    assert before <= run.heartbeat_at <= database_now("default")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.target in FINAL])
def test_end_of_run_frees_slot_updates_statistics_and_stores_reason(name: str) -> None:
    case = CASES[name]
    job = make_idle_job()
    run = make_run(job, min(case.sources), slot=Slot.RUNNING)
    assert case.call(run)
    run.refresh_from_db()
    assert (run.slot, run.reason) == (None, "why")
    assert run.finished_at is not None
    statistics = model_to_dict(Statistics.objects.get(pk=job.pk))
    counted = {state.value: statistics[state.value] for state in FINAL}
    assert counted == {state.value: int(state is case.target) for state in FINAL}
    assert statistics["last_state"] == case.target
    assert statistics["consecutive_failures"] == int(case.target is State.FAILED)


@pytest.mark.parametrize("policy", ["queue_one", "queue_all", "cancel_running"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.target in FINAL])
def test_end_of_the_slot_holder_wakes_the_next_run(name: str, policy: str) -> None:
    case = CASES[name]
    job = make_idle_job(overlap_policy=policy)
    holder = make_run(job, min(case.sources), slot=Slot.RUNNING, scheduled_at=NOW, due_at=NOW)
    waiting = [
        make_run(
            job,
            "waiting",
            scheduled_at=LATER + n * timedelta(1),
            due_at=LATER + n * timedelta(1),
            node="b",
        )
        for n in (2, 0, 1)
    ]
    assert case.call(holder)
    states = {run.pk: run.state for run in Run.objects.all()}
    assert [states[run.pk] for run in waiting] == ["waiting", "pending", "waiting"]
    woken = Run.objects.get(state="pending")
    assert (woken.slot, woken.node, woken.reason) == (Slot.RUNNING, transitions.NOBODY, "")


def test_end_of_a_waiting_run_wakes_no_run_if_the_slot_is_taken() -> None:
    job = make_idle_job(overlap_policy="queue_all")
    make_run(job, "running", slot=Slot.RUNNING)
    first = make_run(job, "waiting", scheduled_at=NOW)
    make_run(job, "waiting", scheduled_at=LATER)
    assert endings.end_unstarted(first, State.CANCELLED, "why")
    assert Run.objects.filter(state="waiting").count() == 1
    assert not slot_queue.wake_next(job.pk)


def test_woken_run_exchanges_its_next_in_line_slot() -> None:
    job = make_idle_job(overlap_policy="queue_one")
    waiting = make_run(job, "waiting", slot=Slot.NEXT_IN_LINE)
    assert slot_queue.wake_next(job.pk)
    waiting.refresh_from_db()
    assert (waiting.state, waiting.slot) == ("pending", Slot.RUNNING)


def test_retry_keeps_the_slot_and_the_statistics() -> None:
    job = make_idle_job()
    run = make_run(job, "running", slot=Slot.RUNNING, deliveries=3, node="a")
    assert CASES["retry"].call(run)
    run.refresh_from_db()
    assert (run.state, run.attempt, run.due_at, run.slot) == (
        "pending",
        2,
        LATER,
        Slot.RUNNING,
    )
    assert (run.deliveries, run.node, run.heartbeat_at) == (0, transitions.NOBODY, None)
    assert Statistics.objects.get(pk=job.pk).last_state == ""


@pytest.mark.parametrize("name", ["succeed", "retry"])
def test_attempt_is_closed_only_with_its_own_token(name: str) -> None:
    job = make_idle_job()
    run = make_run(job, "running")
    attempt = Attempt.objects.get()
    current, another = attempt.token, uuid4()
    with transaction.atomic():
        assert endings.finish(run, AttemptEnd(1, CLOSING, another), State.FAILED, "why")
        attempt.refresh_from_db()
        assert attempt.outcome == ""
        transaction.set_rollback(True)
    call = {
        "succeed": lambda: endings.finish(
            run, AttemptEnd(1, CLOSING, current), State.FAILED, "why"
        ),
        "retry": lambda: endings.retry(run, AttemptEnd(1, CLOSING, current), LATER, "why"),
    }[name]
    assert call()
    attempt.refresh_from_db()
    assert (attempt.outcome, attempt.message) == ("failed", "as asked")
    assert attempt.finished_at is not None


def test_start_writes_slot_and_times_and_clears_the_reason() -> None:
    job = make_idle_job()
    run = make_run(job, "queued", reason="was held back")
    assert CASES["mark_running"].call(run)
    run.refresh_from_db()
    assert (run.slot, run.reason) == (Slot.RUNNING, "")
    assert run.started_at == run.heartbeat_at
    assert run.started_at is not None


@pytest.mark.parametrize("name", ["mark_running", "mark_waiting"])
def test_slot_has_at_most_one_holder(name: str) -> None:
    job = make_idle_job()
    make_run(job, "running", slot=Slot.RUNNING, scheduled_at=NOW)
    run = make_run(job, "queued", scheduled_at=LATER)
    call = {
        "mark_running": lambda: start(run, 1, Slot.RUNNING),
        "mark_waiting": lambda: transitions.mark_waiting(run, slot=Slot.RUNNING, reason=""),
    }[name]
    with pytest.raises(IntegrityError), transaction.atomic():
        call()
    run.refresh_from_db()
    assert run.state == "queued"


def test_only_runs_still_owned_by_the_node_are_marked() -> None:
    """A run that was woken before its mark is pending again and must be dispatched again."""
    job = make_idle_job(overlap_policy="queue_all")
    woken, claimed = make_run(job, node="a"), make_run(job, node="a", scheduled_at=NOW)
    assert transitions.mark_waiting(woken, slot=None, reason="")
    assert slot_queue.wake_next(job.pk)
    assert deliveries.mark_queued([(woken.pk, 1), (claimed.pk, 1)], NOW, node="a") == 1
    assert deliveries.mark_queued([(woken.pk, 1)], NOW, slot=None) == 0
    assert {run.pk: run.state for run in Run.objects.all()} == {
        woken.pk: "pending",
        claimed.pk: "queued",
    }


def test_runs_of_different_attempts_are_marked_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "MARKED_AT_ONCE", 2)
    job = make_idle_job()
    runs = [
        make_run(job, scheduled_at=NOW + n * timedelta(seconds=1), attempt=1 + n % 2, deliveries=n)
        for n in range(5)
    ]
    assert deliveries.mark_queued([(run.pk, run.attempt) for run in runs], NOW) == 5
    assert sorted(Run.objects.values_list("deliveries", flat=True)) == [1, 2, 3, 4, 5]
    assert set(Run.objects.values_list("queued_at", flat=True)) == {NOW}


def test_redelivery_with_a_stale_queued_at_changes_nothing() -> None:
    run = make_run(make_idle_job(), "queued")
    assert run.queued_at
    assert not deliveries.redeliver(run.pk, 1, run.queued_at - timedelta(seconds=1))
    assert deliveries.redeliver(run.pk, 1, run.queued_at)


def test_redelivery_of_a_dropped_message_requires_the_same_delivery() -> None:
    run = make_run(make_idle_job(), "queued")
    assert run.queued_at
    assert not deliveries.redeliver_dropped(run.pk, 1, run.queued_at - timedelta(seconds=1), 1)
    assert not deliveries.redeliver_dropped(run.pk, 1, run.queued_at, 2)
    assert deliveries.redeliver_dropped(run.pk, 1, run.queued_at, 1)
    run.refresh_from_db()
    assert run.deliveries == 0


def test_deliveries_never_fall_below_zero() -> None:
    run = make_run(make_idle_job(), "queued", deliveries=0)
    assert run.queued_at
    assert deliveries.redeliver_dropped(run.pk, 1, run.queued_at, 0)
    run.refresh_from_db()
    assert run.deliveries == 0


def test_second_cancel_request_is_ignored() -> None:
    run = make_run(make_idle_job(), "running")
    assert transitions.mark_cancel_requested(run.pk, "first")
    assert not transitions.mark_cancel_requested(run.pk, "second")
    run.refresh_from_db()
    assert run.reason == "first"


@pytest.mark.parametrize(
    ("state", "call"),
    {
        "end_unstarted": (
            "queued",
            lambda run, why: endings.end_unstarted(run, State.MISSED, why),
        ),
        "mark_waiting": (
            "queued",
            lambda run, why: transitions.mark_waiting(run, slot=None, reason=why),
        ),
        "mark_waiting_in_backfill": (
            "queued",
            lambda run, why: transitions.mark_waiting_in_backfill(run, reason=why),
        ),
        "mark_cancel_requested": (
            "running",
            lambda run, why: transitions.mark_cancel_requested(run.pk, why),
        ),
        "retry": (
            "running",
            lambda run, why: endings.retry(run, AttemptEnd(1, CLOSING), LATER, why),
        ),
        "finish": (
            "running",
            lambda run, why: endings.finish(run, AttemptEnd(1, CLOSING), State.FAILED, why),
        ),
        "finish by itself": (
            "running",
            lambda run, why: endings.finish(
                run, AttemptEnd(1, CLOSING, uuid4()), State.FAILED, why
            ),
        ),
    }.values(),
)
def test_long_reasons_are_truncated(state: str, call: Callable[[Run, str], bool]) -> None:
    run = make_run(make_idle_job(), state)
    assert call(run, "x" * 2000)
    run.refresh_from_db()
    assert run.reason == "x" * 500


def test_success_resets_consecutive_failures() -> None:
    job = make_idle_job()
    for state in (State.FAILED, State.FAILED, State.SKIPPED, State.FAILED):
        endings.count_ended_runs([job.pk], state)
    assert Statistics.objects.get(pk=job.pk).consecutive_failures == 3
    endings.count_ended_runs([job.pk], State.SUCCEEDED)
    statistics = Statistics.objects.get(pk=job.pk)
    assert (statistics.consecutive_failures, statistics.failed, statistics.succeeded) == (0, 3, 1)


def test_missing_statistics_are_created() -> None:
    job = make_idle_job()
    Statistics.objects.all().delete()
    another = make_idle_job()
    endings.count_ended_runs([job.pk, another.pk, 10**6], State.MISSED, 7)
    assert list(Statistics.objects.values_list("missed", flat=True)) == [7, 7]


def test_late_outcome_is_recorded_on_its_own_attempt() -> None:
    run = make_run(make_idle_job(), "running")
    attempt = Attempt.objects.get()
    completion.record_late_outcome(run, attempt.token, Outcome.SUCCEEDED)
    attempt.refresh_from_db()
    assert attempt.late_outcome == "", "an open attempt can't have a late outcome"
    assert endings.finish(run, AttemptEnd(1, {"outcome": Outcome.LOST}), State.FAILED, "lost")
    completion.record_late_outcome(run, uuid4(), Outcome.SUCCEEDED)
    completion.record_late_outcome(run, attempt.token, Outcome.LOST)
    attempt.refresh_from_db()
    assert attempt.late_outcome == ""
    completion.record_late_outcome(run, attempt.token, Outcome.SUCCEEDED)
    completion.record_late_outcome(run, attempt.token, Outcome.FAILED)
    attempt.refresh_from_db()
    assert (attempt.outcome, attempt.late_outcome) == ("lost", "succeeded")


@pytest.mark.parametrize(("late", "counted"), [(Outcome.SUCCEEDED, 1), (Outcome.FAILED, 0)])
def test_late_success_is_counted_once_and_not_as_succeeded(late: Outcome, counted: int) -> None:
    run = make_run(make_idle_job(), "running")
    token = Attempt.objects.get().token
    assert endings.finish(run, AttemptEnd(1, {"outcome": Outcome.LOST}), State.FAILED, "lost")
    assert completion.record_late_outcome(run, token, late)
    assert not completion.record_late_outcome(run, token, late), "the answer was lost"
    row = Statistics.objects.get(pk=run.job_id)
    assert (row.late_successes, row.succeeded, row.failed) == (counted, 0, 1)


def test_only_pending_scheduled_runs_ahead_are_deleted() -> None:
    job, other = make_idle_job(), make_idle_job()
    second = timedelta(seconds=1)
    kept = [
        make_run(job, scheduled_at=NOW),
        make_run(job, scheduled_at=NOW - second, due_at=LATER),
        make_run(job, scheduled_at=NOW + 2 * second, attempt=2),
        make_run(job, scheduled_at=NOW + 3 * second, trigger="manual"),
        *(
            make_run(job, state, scheduled_at=NOW + (4 + n) * second)
            for n, state in enumerate(set(State) - {State.PENDING})
        ),
        make_run(other, scheduled_at=NOW + second),
    ]
    make_run(job, scheduled_at=NOW + second)
    assert deliveries.delete_claimed_ahead([job.pk], NOW, "default") == 1
    assert set(Run.objects.values_list("pk", flat=True)) == {run.pk for run in kept}


def test_lock_holder_returns_the_run_with_the_slot() -> None:
    job = make_idle_job()
    holder = make_run(job, "running", slot=Slot.RUNNING, scheduled_at=NOW)
    next_in_line = make_run(job, "waiting", slot=Slot.NEXT_IN_LINE, scheduled_at=LATER)
    with transaction.atomic():
        assert transitions.runs().lock_holder(Slot.NEXT_IN_LINE, job.pk) == next_in_line
        assert transitions.runs().lock_holder(Slot.RUNNING, job.pk) == holder
        assert transitions.runs().exclude(pk=holder.pk).lock_holder(Slot.RUNNING, job.pk) is None
        assert transitions.runs().lock_holder(Slot.RUNNING, job.pk + 1) is None


@pytest.mark.django_db(transaction=True)
def test_lock_holder_waits_for_a_finish_without_blocking_it() -> None:
    """MariaDB detects a deadlock if a transaction locks the slot while it waits for the run."""
    job = make_idle_job()
    holder = make_run(job, "running", slot=Slot.RUNNING)
    found: list[Run | BaseException | None] = []

    def ask() -> None:
        try:
            with transaction.atomic():
                found.append(transitions.runs().lock_holder(Slot.RUNNING, job.pk))
        except BaseException as error:
            found.append(error)
        finally:
            connections.close_all()

    asker = threading.Thread(target=ask)
    with transaction.atomic():
        # This locks the run first, like the end of a run.
        assert transitions.mark_cancel_requested(holder.pk, "")
        asker.start()
        # Then it waits for the run. If it doesn't, this test passes without proving anything.
        asker.join(0.5)
        assert endings.finish(holder, AttemptEnd(1, CLOSING), State.SUCCEEDED, "")
    asker.join(TIMEOUT)
    assert len(found) == 1
    assert found[0] is None or found == [holder], (
        "SQLite doesn't wait, but it reads the state before the end"
    )


@pytest.mark.django_db(transaction=True)
def test_ending_the_holder_and_the_woken_run_do_not_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_idle_job(overlap_policy="queue_all")
    failures: list[BaseException] = []
    original = endings.count_ended_runs

    def concurrently(calls: list[Callable[[], Any]], both_have_counted: threading.Barrier) -> None:
        def count(*args: Any) -> None:
            """Let both transactions lock what precedes the statistics, if the order allows it."""
            with contextlib.suppress(threading.BrokenBarrierError):
                both_have_counted.wait(0.2)
            original(*args)

        def work(call: Callable[[], Any]) -> None:
            try:
                call()
            except BaseException as error:
                failures.append(error)
            finally:
                connections.close_all()

        monkeypatch.setattr(endings, "count_ended_runs", count)
        threads = [threading.Thread(target=work, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)

    for _ in range(5):
        holder = make_run(job, "running", slot=Slot.RUNNING, due_at=NOW)
        waiting = make_run(job, "waiting", due_at=LATER)
        concurrently(
            [
                lambda holder=holder: endings.finish(
                    holder, AttemptEnd(1, CLOSING), State.SUCCEEDED, ""
                ),
                lambda waiting=waiting: endings.end_unstarted(waiting, State.CANCELLED, ""),
            ],
            threading.Barrier(2),
        )
    assert not failures
    assert set(Run.objects.values_list("state", flat=True)) == {"succeeded", "cancelled"}
    statistics = Statistics.objects.get(pk=job.pk)
    assert (statistics.succeeded, statistics.cancelled) == (5, 5)


def test_run_of_a_job_with_an_unknown_policy_ends_normally() -> None:
    """The policy may have been written by a later release. The end of the run must not fail."""
    job = make_idle_job()
    Job.objects.update(overlap_policy="one_per_weekday")
    job.refresh_from_db()
    queued = make_run(job, "queued")
    running = make_run(job, "running", slot=Slot.RUNNING)
    assert endings.end_unstarted(queued, State.MISSED, "no worker started it")
    assert endings.finish(running, AttemptEnd(1, {"outcome": "succeeded"}), State.SUCCEEDED, "")
    assert (Statistics.objects.get().missed, Statistics.objects.get().succeeded) == (1, 1)
