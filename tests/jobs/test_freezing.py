"""Freezes: what starts meanwhile, and what becomes of the occurrences afterwards."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations, product
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.dispatch import best_effort
from django_dcron.exceptions import InvalidValue, NotPossible
from django_dcron.jobs import freezing
from django_dcron.jobs.audit.entries import entries_of
from django_dcron.jobs.representation import to_json
from django_dcron.models import Cursor, Freeze, Job, Run, Statistics
from django_dcron.policies.freezing import FreezeExtent, is_frozen
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.policies.slots import Slot, backfill_number
from django_dcron.runs import endings, transitions
from django_dcron.runs import start as attempt_start
from django_dcron.runs.endings import AttemptEnd
from django_dcron.runs.immediate_dispatch import dispatch_now
from django_dcron.runs.ordinary_start import ReadOrStarted
from django_dcron.scheduler import claim as scheduler_claim
from django_dcron.scheduler.adoption import adopt
from django_dcron.scheduler.backfill_release import release
from django_dcron.scheduler.claim import claim
from django_dcron.scheduler.rescue import rescue
from django_dcron.testing import set_clock
from django_dcron.testing.manual_clock import ManualClock
from django_dcron.utils.time_format import format_time_to_store
from tests.execution.conftest import attempt_of, deliver, reread, state_of
from tests.factories import make_idle_job, make_job, make_run
from tests.lock_holder import keeping_locked
from tests.logs import logged
from tests.scheduler.stand_ins import START, MemoryDispatcher
from tests.threads import in_threads
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db

ALL = range(64)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
AUTOMATIC = [Trigger.SCHEDULE, Trigger.BACKFILL, Trigger.CHAIN]


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    with set_clock(START) as clock:
        yield clock


# --- the row --------------------------------------------------------------------------------------


def test_a_freeze_is_one_row_with_its_reason_and_its_end(clock: ManualClock) -> None:
    made = control.freeze("deploy", until=START + MINUTE, by="ann")
    row = Freeze.objects.get()
    assert row == made
    assert (row.namespace, row.reason, row.frozen_by) == ("", "deploy", "ann")
    assert (row.since, row.until, row.ended_by) == (START, START + MINUTE, "")
    assert list(Freeze.objects.in_force()) == [row]


def test_freezing_a_frozen_scope_replaces_reason_and_end_and_keeps_the_beginning(
    clock: ManualClock,
) -> None:
    control.freeze("deploy", until=START + MINUTE, by="ann")
    clock.advance(SECOND)
    made = control.freeze("incident", replace=True, by="bob")
    row = Freeze.objects.get()
    assert (row.reason, row.frozen_by, row.since, row.until) == ("incident", "bob", START, None)
    assert made.replaced is not None
    assert (made.replaced.reason, made.replaced.until) == ("deploy", START + MINUTE)


@pytest.mark.parametrize(
    ("first", "second", "later"),
    [
        (START + HOUR, START + HOUR, START + HOUR),
        (START + HOUR, START + 2 * HOUR, START + 2 * HOUR),
        (START + HOUR, START + MINUTE, START + HOUR),
        (START + HOUR, None, None),
        (None, START + HOUR, None),
    ],
)
def test_freezing_again_with_the_same_reason_never_shortens_the_freeze(
    clock: ManualClock, first: datetime | None, second: datetime | None, later: datetime | None
) -> None:
    control.freeze("deploy", until=first, by="ann")
    made = control.freeze("deploy", until=second, by="bob")
    assert made == Freeze.objects.get()
    assert (made.until, made.frozen_by, made.since) == (later, "bob", START)
    assert entries_of(made).latest("pk").after == ({"until": to_json(later)} if later else {})
    assert control.freeze("deploy", until=second, replace=True).until == second


@pytest.mark.parametrize("until", [None, START + MINUTE, START + 2 * HOUR])
def test_freeze_with_another_reason_is_refused_without_replace(
    clock: ManualClock, until: datetime | None
) -> None:
    control.freeze("migration", until=START + HOUR, by="ann")
    with pytest.raises(NotPossible) as refused:
        control.freeze("deploy", until=until, by="bob")
    assert refused.value.code == "already_frozen"
    row = Freeze.objects.get()
    assert (row.reason, row.until, row.frozen_by) == ("migration", START + HOUR, "ann")


def test_log_has_the_end_in_the_time_zone_of_the_site(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "django_dcron.control")
    until = START + MINUTE
    with timezone.override("Asia/Tokyo"):  # the zone of a user whose request freezes
        control.freeze("deploy", until=until)
        control.freeze("deploy", until=until - SECOND)  # which doesn't shorten the freeze
    assert len(logged(caplog, "frozen", f"until={format_time_to_store(until)} ", until=until)) == 2


def test_an_ended_scope_can_be_frozen_again(clock: ManualClock) -> None:
    control.freeze("deploy")
    clock.advance(MINUTE)
    ended = control.unfreeze(by="bob")
    assert (ended.until, ended.ended_by) == (START + MINUTE, "bob")
    assert not Freeze.objects.in_force().exists()
    clock.advance(MINUTE)
    again = control.freeze("incident")
    assert (again.pk, again.since, again.ended_by) == (ended.pk, START + 2 * MINUTE, "")
    assert Freeze.objects.in_force().exists()


@pytest.mark.django_db(transaction=True)
def test_freeze_remains_if_waiting_for_running_starts_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("the connection broke")

    monkeypatch.setattr(freezing, "await_starts", fail)
    freezing.freeze("incident")
    assert Freeze.objects.in_force().exists()


def test_freezes_of_a_namespace_and_of_all_are_independent() -> None:
    make_idle_job(namespace="shop")
    control.freeze("deploy")
    control.freeze("incident", "shop")
    control.unfreeze()
    assert [freeze.namespace for freeze in Freeze.objects.in_force()] == ["shop"]
    control.unfreeze("shop")
    assert not Freeze.objects.in_force().exists()


def test_a_freeze_ends_by_the_clock_of_the_database(clock: ManualClock) -> None:
    control.freeze("deploy", until=START + MINUTE)
    clock.advance(MINUTE - SECOND)
    assert Freeze.objects.in_force().exists()
    clock.advance(SECOND)
    assert not Freeze.objects.in_force().exists()
    with pytest.raises(NotPossible) as refused:
        control.unfreeze()
    assert refused.value.code == "not_frozen"
    assert Freeze.objects.get().until == START + MINUTE


def test_unfreeze_with_a_reason_ends_no_freeze_of_someone_else() -> None:
    control.freeze("incident 4711", by="ann")
    with pytest.raises(NotPossible, match="ann: incident 4711") as refused:
        control.unfreeze(reason="deploy")
    assert refused.value.code == "other_reason"
    with pytest.raises(NotPossible):  # MariaDB regards the two as equal
        control.unfreeze(reason="Incident 4711")
    assert Freeze.objects.in_force().exists()
    control.unfreeze(reason="incident 4711")
    assert not Freeze.objects.in_force().exists()


@pytest.mark.parametrize("namespace", [None, "shop"])
def test_unfreeze_without_a_freeze_is_refused(namespace: str | None) -> None:
    make_idle_job(namespace="shop")
    control.freeze("deploy", None if namespace else "shop")
    with pytest.raises(NotPossible) as refused:
        control.unfreeze(namespace)
    assert refused.value.code == "not_frozen"


@pytest.mark.parametrize(
    ("arguments", "field", "code"),
    [
        ({"reason": ""}, "reason", "required"),
        ({"reason": "  "}, "reason", "required"),
        ({"reason": "x" * 256}, "reason", "invalid_length"),
        ({"reason": "a\0b"}, "reason", "not_storable"),
        ({"namespace": "shpo"}, "namespace", "unknown_namespace"),
        ({"namespace": "SHOP"}, "namespace", "unknown_namespace"),
        ({"namespace": "a\0b"}, "namespace", "unknown_namespace"),
        ({"until": START.replace(tzinfo=None)}, "until", "naive"),
        ({"until": START}, "until", "in_the_past"),
        ({"until": datetime(2200, 1, 1, tzinfo=UTC)}, "until", "too_late"),
    ],
)
def test_invalid_freeze_is_refused(
    clock: ManualClock, arguments: dict[str, Any], field: str, code: str
) -> None:
    make_idle_job(namespace="shop")
    with pytest.raises(InvalidValue) as refused:
        control.freeze(**{"reason": "deploy", **arguments})
    assert (refused.value.field, refused.value.code) == (field, code)
    assert not Freeze.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_two_concurrent_freezes_both_succeed() -> None:
    in_threads(
        lambda: control.freeze("deploy", replace=True),
        lambda: control.freeze("incident", replace=True),
    )
    assert Freeze.objects.get().reason in {"deploy", "incident"}


@pytest.mark.django_db(transaction=True)
def test_of_two_concurrent_freezes_with_the_same_reason_the_later_end_applies() -> None:
    ends = [database_now("default") + HOUR + number * SECOND for number in range(4)]
    in_threads(*(partial(control.freeze, "deploy", until=end) for end in reversed(ends)))
    assert Freeze.objects.get().until == ends[-1]


# --- the same rule in SQL -------------------------------------------------------------------------

NAMESPACES = ("a", "A", "b")
ENDS = (None, START - SECOND, START, START + SECOND)
EXTENTS = [
    FreezeExtent(namespace, START - MINUTE, end)
    for namespace, end in product(("", *NAMESPACES), ENDS)
]


def test_database_and_policy_agree_about_frozen_runs() -> None:
    with set_clock(START):
        jobs = {namespace: make_idle_job(namespace=namespace) for namespace in NAMESPACES}
        runs = {
            (namespace, trigger): make_run(job, trigger=trigger)
            for (namespace, job), trigger in product(jobs.items(), Trigger)
        }
        pairs = [pair for pair in combinations(EXTENTS, 2) if len({x.namespace for x in pair}) > 1]
        for extents in [(), *((each,) for each in EXTENTS), *pairs]:
            Freeze.objects.all().delete()
            Freeze.objects.bulk_create(
                Freeze(namespace=x.namespace, reason="deploy", since=x.since, until=x.until)
                for x in extents
            )
            free = {
                (namespace, trigger)
                for namespace, trigger in runs
                if not is_frozen(extents, namespace=namespace, trigger=trigger, now=START)
            }
            found = Run.objects.not_frozen().values_list("pk", flat=True)
            assert set(found) == {runs[key].pk for key in free}, extents
            cursors = Cursor.objects.not_frozen().values_list("namespace", flat=True)
            assert {(namespace, Trigger.SCHEDULE) for namespace in cursors} <= free
            assert len(cursors) == sum(trigger is Trigger.SCHEDULE for _, trigger in free)


# --- the start ------------------------------------------------------------------------------------


@pytest.mark.parametrize("trigger", AUTOMATIC)
@pytest.mark.parametrize("state", ["pending", "queued"])
@pytest.mark.parametrize("namespace", [None, "default"])
def test_frozen_run_returns_to_the_nodes(
    trigger: Trigger, state: str, namespace: str | None
) -> None:
    run = make_run(make_idle_job(), state, trigger=trigger, node="a")
    control.freeze("deploy", namespace)

    assert deliver(run) is None

    after = reread(run)
    assert (after.state, after.attempt, after.node) == ("pending", 1, "")
    assert (after.deliveries, after.queued_at) == (0, run.queued_at)
    assert not after.attempts.exists()
    assert adopt(ALL, database_now("default") + SECOND, node="b") == []

    control.unfreeze(namespace)
    adopted = adopt(ALL, database_now("default") + SECOND, node="b")
    assert [each.run_id for each in adopted] == [run.pk]
    assert deliver(run)
    assert attempt_of(run).number == 1


@pytest.mark.parametrize("trigger", [Trigger.MANUAL, Trigger.RERUN])
def test_manual_runs_start_during_a_freeze(trigger: Trigger) -> None:
    run = make_run(make_idle_job(), trigger=trigger)
    control.freeze("deploy")
    assert [each.run_id for each in adopt(ALL, run.due_at, node="b")] == [run.pk]
    assert deliver(run)


def test_freeze_does_not_affect_other_namespaces() -> None:
    make_idle_job(namespace="shop")
    run = make_run(make_idle_job(), "queued")
    control.freeze("deploy", "shop")
    assert deliver(run)


def test_a_freeze_that_begins_between_the_read_and_the_start_holds_the_run_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_run(make_idle_job(overlap_policy="allow"), "queued", node="a")
    start, read = transitions.mark_running, attempt_start.read_run
    # The statement that reads and starts an ordinary run leaves no time between the two.
    monkeypatch.setattr(
        attempt_start,
        "read_or_start",
        lambda run_id, *given, **options: ReadOrStarted(read(run_id), None),
    )

    def frozen_first(*args: Any, **kwargs: Any) -> bool:
        control.freeze("deploy")
        return start(*args, **kwargs)

    monkeypatch.setattr(transitions, "mark_running", frozen_first)
    assert deliver(run) is None
    after = reread(run)
    assert (after.state, after.node) == ("pending", "")
    assert not after.attempts.exists()


def test_a_running_run_continues_and_its_retry_waits() -> None:
    run = make_run(make_idle_job(max_attempts=2), "queued")
    assert deliver(run)
    control.freeze("deploy")
    assert transitions.renew_heartbeat(run.pk, 1)
    due_at = database_now("default")
    assert endings.retry(reread(run), AttemptEnd(1, {"outcome": "failed"}), due_at, "failed")
    assert deliver(reread(run)) is None
    control.unfreeze()
    assert deliver(reread(run))


def test_a_cancelled_run_ends_during_a_freeze() -> None:
    run = make_run(make_idle_job(), "queued")
    control.freeze("deploy")
    assert control.cancel(run).state == State.CANCELLED


# --- the nodes ------------------------------------------------------------------------------------


def job_due_at(next_at: datetime, **fields: Any) -> Job:
    job = make_job(**{"schedule": "* * * * *", **fields})
    Cursor.objects.filter(pk=job.pk).update(next_at=next_at, previous_at=None)
    return job


def claimed(now: datetime) -> list[Run]:
    claim(ALL, now, node="a")
    return list(Run.objects.order_by("job__namespace", "scheduled_at"))


def test_no_occurrence_is_claimed_during_a_freeze(clock: ManualClock) -> None:
    frozen, free = job_due_at(START, namespace="shop"), job_due_at(START)
    control.freeze("deploy", "shop")
    assert {run.job_id for run in claimed(START)} == {free.pk}
    assert Cursor.objects.get(pk=frozen.pk).next_at == START


GRACE = 90 * SECOND
"""At the end of the freeze, ten minutes later, the occurrences of the last 90 s aren't late."""


@pytest.mark.parametrize(
    ("policy", "states", "missed"),
    [
        ("skip", ["missed", "pending", "pending"], 9),
        ("run_latest", ["pending"] * 3, 8),
        ("run_all", ["pending"] * 3 + ["missed", "pending", "pending"], 6),
    ],
)
def test_after_the_freeze_the_misfire_policy_decides(
    clock: ManualClock, policy: str, states: list[str], missed: int
) -> None:
    job = job_due_at(START, misfire_policy=policy, misfire_grace=GRACE, catchup_limit=3)
    control.freeze("deploy", until=START + 10 * MINUTE)
    for _ in range(10):
        assert claimed(clock.now()) == []
        clock.advance(MINUTE)

    runs = claimed(clock.now())

    assert [run.state for run in runs] == states
    assert sum(run.missed_before + (run.state == "missed") for run in runs) == missed
    assert sum(run.missed_before + 1 for run in runs) == 11
    assert Statistics.objects.get(pk=job.pk).missed == missed
    assert all("deploy" in run.reason for run in runs if run.state == "missed")


@pytest.mark.parametrize(
    ("policy", "starts"), [("skip", False), ("run_latest", True), ("run_all", True)]
)
def test_misfire_policy_decides_about_runs_that_were_claimed_ahead(
    clock: ManualClock, policy: str, starts: bool
) -> None:
    job_due_at(
        START + 5 * SECOND, misfire_policy=policy, misfire_grace=GRACE, schedule="5 * * * * *"
    )
    (run,) = claimed(START)
    control.freeze("deploy", until=START + 10 * MINUTE)
    clock.advance(5 * SECOND)
    assert deliver(run) is None
    assert state_of(run) == "pending"

    clock.advance(10 * MINUTE)
    assert bool(deliver(run)) is starts
    after = reread(run)
    assert after.state == ("running" if starts else "missed")
    assert ("deploy" in after.reason) is not starts


@pytest.mark.parametrize("after_due", [6 * SECOND, MINUTE + SECOND])
def test_freeze_that_began_after_the_run_was_due_is_not_its_reason(
    clock: ManualClock, after_due: timedelta
) -> None:
    """Without workers, the run was already waiting when the freeze began."""
    run = make_run(make_idle_job(misfire_policy="skip", misfire_grace=MINUTE), "queued")
    clock.advance(after_due)
    control.freeze("deploy", until=clock.now() + MINUTE)
    clock.advance(MINUTE)
    assert deliver(run) is None
    after = reread(run)
    assert after.state == "missed"
    assert after.reason.startswith("the run didn't start within 1m")


def test_freeze_that_began_after_the_occurrence_is_not_its_reason(clock: ManualClock) -> None:
    """Without nodes, the occurrence was already due when the freeze began."""
    job_due_at(START, misfire_policy="skip", misfire_grace=MINUTE, schedule="@every 1h")
    clock.advance(6 * SECOND)
    control.freeze("deploy", until=clock.now() + MINUTE)
    clock.advance(MINUTE)
    (run,) = claimed(clock.now())
    assert (run.state, run.reason) == ("missed", "not started within 1m")


def test_freeze_that_ended_before_the_recorded_occurrence_is_not_its_reason(
    clock: ManualClock,
) -> None:
    """After the freeze, no node was running. The record counts the frozen occurrences, too."""
    job_due_at(START, misfire_policy="skip", misfire_grace=MINUTE)
    control.freeze("deploy", until=START + 2 * MINUTE)
    clock.advance(10 * MINUTE)
    missed = claimed(clock.now())[0]
    assert (missed.scheduled_at, missed.missed_before) == (START + 8 * MINUTE, 8)
    assert missed.reason == "not started within 1m"


def test_a_backfilled_run_is_not_released_during_a_freeze() -> None:
    job = make_idle_job()
    at = START - HOUR
    run = make_run(
        job,
        "waiting",
        trigger="backfill",
        scheduled_at=at,
        due_at=at,
        slot=Slot.BACKFILL,
        slot_number=backfill_number(at),
    )
    now = database_now("default")
    control.freeze("deploy")
    assert release(ALL, now) == 0
    control.unfreeze()
    assert release(ALL, now) == 1
    assert state_of(run) == "pending"


def test_a_late_queued_run_does_not_become_missed_during_a_freeze(clock: ManualClock) -> None:
    job = make_idle_job(misfire_policy="skip", misfire_grace=MINUTE)
    run = make_run(job, "queued")
    control.freeze("deploy")
    clock.advance(HOUR)
    assert rescue(ALL, clock.now(), MINUTE) == 0
    assert state_of(run) == "queued"
    control.unfreeze()
    rescue(ALL, clock.now(), MINUTE)
    assert state_of(run) == "missed"


def test_node_with_an_unknown_claim_outcome_adopts_its_frozen_runs() -> None:
    """Otherwise, no call would adopt them after the freeze: they belong to a live node."""
    run = make_run(make_idle_job(), node="a")
    control.freeze("deploy")
    assert [each.run_id for each in adopt(ALL, run.due_at, node="a", also_own=True)] == [run.pk]
    assert deliver(run) is None
    control.unfreeze()
    assert [each.run_id for each in adopt(ALL, run.due_at, node="a")] == [run.pk]


@pytest.mark.parametrize("namespace", [None, "default"])
def test_freeze_adds_no_query_to_a_claim(namespace: str | None) -> None:
    job_due_at(START)
    with CaptureQueriesContext(connection) as without:
        claim(ALL, START - HOUR, node="a")  # nothing is due
    control.freeze("deploy", namespace)
    with CaptureQueriesContext(connection) as frozen:
        claim(ALL, START + HOUR, node="a")
    assert len(frozen) == len(without) == 1
    assert not Run.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif("not connection.features.has_select_for_update_skip_locked")
def test_runs_of_a_claim_in_progress_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The freeze is committed after the claim has read its cursors."""
    now = database_now("default").replace(microsecond=0)
    job_due_at(now, overlap_policy="allow")
    read, frozen = threading.Event(), threading.Event()
    write = scheduler_claim._Batch.write

    def write_after_the_freeze(batch: Any, using: str) -> None:
        read.set()
        assert frozen.wait(TIMEOUT)
        write(batch, using)

    def freeze() -> None:
        assert read.wait(TIMEOUT)
        control.freeze("deploy")
        frozen.set()

    monkeypatch.setattr(scheduler_claim._Batch, "write", write_after_the_freeze)
    in_threads(lambda: claim(ALL, now, node="a"), freeze)
    (run,) = Run.objects.filter(due_at__lte=now)
    assert deliver(run) is None
    control.unfreeze()
    assert deliver(run)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif("not connection.features.has_select_for_update_skip_locked")
@pytest.mark.parametrize("namespace", [None, "default"])
def test_a_freeze_waits_for_starts_in_progress(
    monkeypatch: pytest.MonkeyPatch, namespace: str | None
) -> None:
    run = make_run(make_idle_job(overlap_policy="allow"), "queued")
    started, waits = threading.Event(), threading.Event()
    await_locked = freezing._await_locked

    def begin_to_wait(run_ids: list[UUID], using: str) -> None:
        assert run_ids == [run.pk]
        waits.set()
        await_locked(run_ids, using)

    def start_slowly() -> str:
        with transaction.atomic():
            assert deliver(run)
            started.set()
            assert waits.wait(TIMEOUT)
        return "started"

    def freeze() -> str:
        assert started.wait(TIMEOUT)
        control.freeze("deploy", namespace)
        return state_of(run)

    monkeypatch.setattr(freezing, "_await_locked", begin_to_wait)
    assert in_threads(start_slowly, freeze) == ["started", "running"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif("not connection.features.has_select_for_update_skip_locked")
def test_hanging_start_does_not_prevent_a_freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "START_TIMEOUT", SECOND)
    run = make_run(make_idle_job(), "queued")
    with keeping_locked(Run.objects.filter(pk=run.pk)):
        control.freeze("deploy")
    assert Freeze.objects.in_force().exists()
    assert deliver(run) is None


def test_a_follower_is_not_dispatched_during_a_freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = MemoryDispatcher()
    monkeypatch.setattr(best_effort, "shared_dispatcher", lambda: dispatcher)
    runs = [make_run(make_idle_job(), trigger=trigger) for trigger in ("chain", "manual")]
    control.freeze("deploy")
    for run in runs:
        dispatch_now(run)
    assert [run.run_id for run in dispatcher.dispatched] == [runs[1].pk]
    assert state_of(runs[0]) == "pending"
