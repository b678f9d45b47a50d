"""Shared limits: never more runs at once than allowed, in order of due time, whatever ends them."""

from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.jobs.attempt_end import declare_lost, end_attempt
from django_dcron.models import Attempt, Freeze, Job, Limit, LimitPlace, LimitStart, Run
from django_dcron.policies.lifecycle import FINAL, Outcome, State, Trigger
from django_dcron.policies.limits import LineFacts, places_to_give
from django_dcron.policies.slots import Slot
from django_dcron.runs import limits
from django_dcron.runs import start as start_module
from django_dcron.runs.bulk_cancellation import cancel_batch
from django_dcron.runs.completion import WITHOUT_EXCEPTION, Ending
from django_dcron.runs.start import start_attempt
from django_dcron.scheduler import limit_lines
from django_dcron.scheduler.limit_lines import prune_starts, wake_runs_with_place
from django_dcron.scheduler.rescue import rescue
from django_dcron.testing import set_clock
from django_dcron.utils import sync_points
from tests.execution.conftest import deliver, reread, state_of
from tests.factories import make_idle_job, make_run
from tests.threads import in_threads, repeat_after_contention
from tests.waiting import TIMEOUT

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
ALL = range(64)
SUCCEEDED = Ending(Outcome.SUCCEEDED)
FAILED = Ending(Outcome.FAILED, WITHOUT_EXCEPTION, exception_class="ValueError", message="no")


@pytest.fixture
def limit() -> Limit:
    return control.save_limit(Limit(name="api", max_running=2))


def make_limited(limit: Limit, number: int, *, job: Job | None = None, **fields: Any) -> list[Run]:
    """Make runs of one job, each due a second after the one before it."""
    job = job or make_idle_job(limit=limit, overlap_policy="allow", **fields)
    now = database_now("default") - HOUR
    return [make_run(job, due_at=now + each * SECOND, trigger="manual") for each in range(number)]


def end(run: Run, ending: Ending = SUCCEEDED) -> bool:
    token = Attempt.objects.get(run=run, number=run.attempt).token
    return end_attempt(run, run.attempt, ending, token)


def states(*runs: Run) -> list[str]:
    return [state_of(run) for run in runs]


def numbers() -> dict[Any, int | None]:
    check_places()
    return dict(LimitPlace.objects.values_list("run", "number"))


def check_places() -> None:
    """Check that places and runs agree: see ``models.limit``."""
    rows = {place.run_id: place for place in LimitPlace.objects.all()}
    assert {*Run.objects.filter(limited=True).values_list("pk", flat=True)} == rows.keys()
    for run in Run.objects.filter(pk__in=rows):
        assert run.state not in FINAL
        assert (rows[run.pk].number is None) == (run.state == State.WAITING)


# --- start ----------------------------------------------------------------------------------------


def test_runs_wait_once_the_limit_is_reached_and_start_in_order_of_due_time(limit: Limit) -> None:
    *others, last = make_limited(limit, 4)
    other_job = make_idle_job(limit=limit)
    soon = make_run(other_job, due_at=others[0].due_at - SECOND, trigger="manual")
    first, second = others[0], others[1]
    assert deliver(first)
    assert deliver(second)
    for waiting in (last, others[2], soon):
        assert deliver(waiting) is None
    assert states(*others, last, soon) == ["running"] * 2 + ["waiting"] * 3
    assert numbers() == {
        first.pk: 1,
        second.pk: 2,
        last.pk: None,
        others[2].pk: None,
        soon.pk: None,
    }
    assert reread(last).reason == "waits for limit api: 2 of 2 running"

    assert end(reread(second))
    assert states(soon, others[2], last) == ["pending", "waiting", "waiting"]
    assert numbers()[soon.pk] == 2
    newcomer, *_ = make_limited(limit, 1)
    assert deliver(newcomer) is None, "no newcomer gets in between"
    assert deliver(reread(soon))
    assert end(reread(first))
    assert end(reread(soon))
    assert {state_of(others[2]), state_of(newcomer)} == {"pending"}
    assert state_of(last) == "waiting"


def test_woken_run_has_not_been_sent(limit: Limit) -> None:
    """A worker took the message before the run waited. Nothing but another message starts it."""
    runs = make_limited(limit, 3)
    Run.objects.update(state="queued", queued_at=database_now("default"), deliveries=1)
    for run in runs:
        deliver(reread(run))
    assert end(reread(runs[0]))
    woken = reread(runs[2])
    assert (woken.state, woken.deliveries, woken.sent_at) == (State.PENDING, 0, None)


def test_each_key_has_its_own_places() -> None:
    limit = control.save_limit(
        Limit(name="customers", max_running=1, key="customer:{kwargs[customer_id]}")
    )
    job = make_idle_job(limit=limit, overlap_policy="allow", target="tests.app.tasks.echo")
    given = [{"customer_id": 1}, {"customer_id": 1}, {"customer_id": 2}, None]
    runs = [make_run(job, kwargs=kwargs, trigger="manual") for kwargs in given]
    assert [bool(deliver(run)) for run in runs] == [True, False, True, True]
    assert reread(runs[1]).reason == "waits for limit customers (customer:1): 1 of 1 running"
    assert end(reread(runs[2]))
    assert state_of(runs[1]) == "waiting"
    assert end(reread(runs[0]))
    assert state_of(runs[1]) == "pending"


def test_repeated_delivery_resumes_and_takes_no_second_place(limit: Limit) -> None:
    (run,) = make_limited(limit, 1)
    token = uuid4()
    for _ in range(2):
        assert start_attempt(run.pk, 1, token=token, worker="w")
    assert deliver(run) is None
    assert numbers() == {run.pk: 1}


def test_run_that_waited_is_not_too_late(limit: Limit) -> None:
    job = make_idle_job(
        limit=limit, overlap_policy="allow", misfire_policy="skip", misfire_grace=HOUR
    )
    now = database_now("default")
    holders = make_limited(limit, 2)
    assert all(map(deliver, holders))
    late = make_run(job, due_at=now)
    assert deliver(late) is None
    Run.objects.filter(pk=late.pk).update(due_at=now - 2 * HOUR)
    assert end(reread(holders[0]))
    assert deliver(reread(late))


# --- end ------------------------------------------------------------------------------------------

ENDS: dict[str, Callable[[Run], Any]] = {
    "succeeded": lambda run: end(run),
    "failed": lambda run: end(run, FAILED),
    "lost": lambda run: declare_lost(run, "gone"),
    "stopped": lambda run: end(run, Ending(Outcome.CANCELLED)),
    "rescued": lambda run: rescue(ALL, database_now("default") + HOUR, SECOND),
}


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("outdated", [True, False])
@pytest.mark.parametrize("how", ENDS)
def test_end_of_an_attempt_passes_the_place_on(
    limit: Limit, how: str, outdated: bool, attempts: int
) -> None:
    """This holds for retries, too, and if the ending process read the run before its start."""
    first, second, third = make_limited(limit, 3, max_attempts=attempts)
    read_before = reread(first)
    assert deliver(first)
    assert deliver(second)
    assert deliver(third) is None
    if how == "rescued":
        Run.objects.filter(pk=second.pk).update(heartbeat_at=F("heartbeat_at") + 2 * HOUR)
    run = reread(first)
    if outdated:
        run.limited = read_before.limited
    assert ENDS[how](run)
    assert states(second, third) == ["running", "pending"]
    assert numbers() == {second.pk: 2, third.pk: 1}
    retried = attempts == 2 and how in ("failed", "lost", "rescued")
    assert (state_of(first) == "pending") is retried
    if retried:
        assert deliver(reread(third))
        Run.objects.filter(pk=first.pk).update(due_at=database_now("default"))
        assert deliver(reread(first)) is None
        assert state_of(first) == "waiting"


@pytest.mark.parametrize("in_bulk", [True, False])
def test_cancelled_runs_leave_the_line_and_free_their_places(limit: Limit, in_bulk: bool) -> None:
    first, second, third, fourth, fifth = make_limited(limit, 5)
    assert deliver(first)
    assert deliver(second)
    for run in (third, fourth, fifth):
        assert deliver(run) is None
    assert end(reread(first))
    assert state_of(third) == "pending"
    cancelled = [third.pk, fourth.pk]
    if in_bulk:
        assert cancel_batch(cancelled, "no").changed == {*cancelled}
    else:
        for run_id in cancelled:
            control.cancel(Run.objects.get(pk=run_id))
    assert states(third, fourth, fifth) == ["cancelled", "cancelled", "pending"]
    assert numbers() == {second.pk: 2, fifth.pk: 1}


def test_each_end_is_counted_and_closed_once(limit: Limit) -> None:
    (run,) = make_limited(limit, 1)
    assert deliver(run)
    assert end(reread(run))
    assert not end(reread(run))
    assert not declare_lost(reread(run), "gone")
    assert numbers() == {}


# --- with overlap policies ------------------------------------------------------------------------


def test_run_keeps_its_slot_while_it_waits_for_a_place(limit: Limit) -> None:
    assert all(map(deliver, make_limited(limit, 2)))
    job = make_idle_job(limit=limit, overlap_policy="queue_one")
    first, second = (make_run(job, trigger="manual") for _ in range(2))
    assert deliver(first) is None
    assert deliver(second) is None
    first, second = reread(first), reread(second)
    assert (first.state, first.slot, first.limited) == ("waiting", Slot.RUNNING, True)
    assert (second.state, second.slot, second.limited) == ("waiting", Slot.NEXT_IN_LINE, False)
    rescue(ALL, database_now("default"), HOUR)
    assert states(first, second) == ["waiting", "waiting"]
    control.cancel(first)
    assert state_of(second) == "pending"
    assert second.pk not in numbers(), "a run that waits for a slot has no place"


@pytest.mark.parametrize("policy", ["skip", "cancel_running", "queue_all", "allow"])
def test_policies_treat_a_run_that_waits_for_a_place_as_unfinished(
    limit: Limit, policy: str
) -> None:
    assert all(map(deliver, make_limited(limit, 2)))
    job = make_idle_job(limit=limit, overlap_policy=policy)
    first, second = (make_run(job, trigger="manual") for _ in range(2))
    assert deliver(first) is None
    assert deliver(second) is None
    expected = {
        "skip": ["waiting", "skipped"],
        "cancel_running": ["cancelled", "waiting"],
        "queue_all": ["waiting", "waiting"],
        "allow": ["waiting", "waiting"],
    }
    assert states(first, second) == expected[policy]
    limited = {"skip": {first.pk}, "cancel_running": {second.pk}, "queue_all": {first.pk}}
    waiting = {run_id for run_id, number in numbers().items() if number is None}
    assert waiting == limited.get(policy, {first.pk, second.pk})


def test_run_that_must_wait_for_a_slot_after_all_gives_its_place_back(limit: Limit) -> None:
    """Its job allowed overlapping runs when it got the place."""
    first, second = make_limited(limit, 2)
    assert all(map(deliver, (first, second)))
    job = make_idle_job(limit=limit, overlap_policy="allow")
    third = make_run(job, trigger="manual")
    assert deliver(third) is None
    assert end(reread(first))
    Job.objects.filter(pk=job.pk).update(overlap_policy="queue_all")
    make_run(job, "running", slot=Slot.RUNNING)
    assert deliver(reread(third)) is None
    assert (state_of(third), reread(third).limited) == ("waiting", False)
    assert numbers() == {second.pk: 2}


@pytest.mark.parametrize("policy", ["allow", "skip"])
def test_released_backfilled_run_waits_for_a_place_as_well(limit: Limit, policy: str) -> None:
    holders = make_limited(limit, 2)
    assert all(map(deliver, holders))
    job = make_idle_job(limit=limit, overlap_policy=policy)
    run = make_run(job, trigger=Trigger.BACKFILL)
    assert deliver(run) is None
    assert run.pk in numbers()
    assert end(reread(holders[0]))
    assert deliver(reread(run))
    assert end(reread(run))
    assert numbers() == {holders[1].pk: 2}


# --- changes --------------------------------------------------------------------------------------


def test_lowered_limit_lets_runs_end_and_raised_limit_wakes_runs(limit: Limit) -> None:
    runs = make_limited(limit, 6)
    for run in runs:
        deliver(run)
    limit.max_running = 1
    control.save_limit(limit)
    assert end(reread(runs[0]))
    assert states(*runs) == ["succeeded", "running", *["waiting"] * 4]
    limit.max_running = 3
    control.save_limit(limit)
    assert wake_runs_with_place(()) == 0, "other nodes lead the limit"
    assert wake_runs_with_place(ALL) == 2
    assert states(*runs)[1:] == ["running", "pending", "pending", "waiting", "waiting"]
    assert sorted(number for number in numbers().values() if number) == [1, 2, 3]
    assert wake_runs_with_place(ALL) == 0


def test_job_that_changes_its_limit_moves_its_runs(limit: Limit) -> None:
    first, second, third = make_limited(limit, 3)
    job = make_idle_job(limit=limit, overlap_policy="allow")
    moved = make_run(job, trigger="manual", due_at=first.due_at)
    assert all(map(deliver, (first, second)))
    assert deliver(moved) is None
    assert deliver(third) is None
    assert end(reread(first))
    other = control.save_limit(Limit(name="another", max_running=1))
    job.limit = other
    control.save(job)
    assert deliver(reread(moved))
    assert state_of(third) == "pending"
    assert LimitPlace.objects.get(run=moved.pk).limit_id == "another"
    check_places()


def test_job_without_its_former_limit_frees_the_place(limit: Limit) -> None:
    first, second, third = make_limited(limit, 3)
    assert all(map(deliver, (first, second)))
    assert deliver(third) is None
    Job.objects.filter(pk=first.job_id).update(limit=None)
    assert end(reread(first))
    assert deliver(reread(third))
    assert reread(third).limited is False
    assert end(reread(second))
    assert numbers() == {}


def test_run_returns_to_the_nodes_if_its_limit_is_deleted_during_its_start(
    limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_idle_job(limit=limit, overlap_policy="allow")
    run = make_run(job, "queued", trigger="manual", node="a")
    read = start_module.read_or_start

    def read_before_deletion(*args: Any, **options: Any) -> Any:
        result = read(*args, **options)
        Job.objects.filter(pk=job.pk).update(limit=None)
        control.delete_limit(limit)
        return result

    with monkeypatch.context() as patched:
        patched.setattr(start_module, "read_or_start", read_before_deletion)
        assert deliver(run) is None
    assert (state_of(run), reread(run).node) == ("pending", "")
    assert numbers() == {}
    assert deliver(reread(run))


def test_deleted_job_frees_its_places(limit: Limit) -> None:
    job = make_idle_job(limit=limit, overlap_policy="allow")
    make_limited(limit, 2, job=job)
    for run in Run.objects.filter(job=job):
        assert deliver(run)
    (waiting,) = make_limited(limit, 1)
    assert deliver(waiting) is None
    control.delete(job)
    assert wake_runs_with_place(ALL) == 1
    assert state_of(waiting) == "pending"


def test_runs_held_back_by_a_freeze_are_passed_over(limit: Limit) -> None:
    holders = make_limited(limit, 2)
    assert all(map(deliver, holders))
    frozen = make_run(make_idle_job(limit=limit, namespace="shop"), due_at=holders[0].due_at)
    (free,) = make_limited(limit, 1)
    assert deliver(frozen) is None
    assert deliver(free) is None
    freeze = Freeze.objects.create(
        namespace="shop", since=database_now("default"), reason="deployment"
    )
    assert end(reread(holders[0]))
    assert states(frozen, free) == ["waiting", "pending"]
    assert end(reread(holders[1]))
    assert wake_runs_with_place(ALL) == 0
    freeze.delete()
    assert wake_runs_with_place(ALL) == 1

    Freeze.objects.create(namespace="shop", since=database_now("default"), reason="deployment")
    assert deliver(reread(frozen)) is None
    assert (state_of(frozen), reread(frozen).limited) == ("pending", False)
    assert numbers() == {free.pk: 1}, "it passes its place on"


# --- crashes and concurrency ----------------------------------------------------------------------


@pytest.mark.parametrize("point", ["limit.joined", "limit.freed", "finish.ended", "retry.written"])
def test_process_that_dies_in_the_middle_changes_nothing(
    limit: Limit, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = make_limited(limit, 3, max_attempts=2)
    ended = {"finish.ended": SUCCEEDED, "limit.freed": SUCCEEDED}.get(point, FAILED)
    assert deliver(first)
    if point != "limit.joined":
        assert deliver(second)
        assert deliver(third) is None
    before = (states(first, second, third), numbers())

    class Killed(BaseException):
        pass

    def kill(passed: str) -> None:
        if passed == point:
            raise Killed

    monkeypatch.setattr(sync_points, "listener", kill)
    with pytest.raises(Killed), transaction.atomic():
        deliver(second) if point == "limit.joined" else end(reread(first), ended)
    monkeypatch.setattr(sync_points, "listener", None)
    assert (states(first, second, third), numbers()) == before
    assert deliver(second) if point == "limit.joined" else end(reread(first), ended)


def test_database_refuses_a_second_run_in_a_place(limit: Limit) -> None:
    first, second, third = make_limited(limit, 3)
    for run in (first, second, third):
        deliver(run)
    with pytest.raises(IntegrityError), transaction.atomic():
        LimitPlace.objects.filter(run=third).update(number=2)


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("erase", [False, True])
def test_deletion_of_a_job_whose_run_waits_does_not_deadlock_with_the_end_of_another_run(
    monkeypatch: pytest.MonkeyPatch, erase: bool
) -> None:
    """The end of a run gives its place to the run that is being deleted, unless that is locked."""
    limit = control.save_limit(Limit(name="api", max_running=1))
    (first,), (second,) = make_limited(limit, 1), make_limited(limit, 1)
    assert deliver(first)
    assert deliver(second) is None
    place_freed, place_deleted, next_chosen = Event(), Event(), Event()
    deletions: list[str] = []

    def execute_deletion(execute: Any, sql: str, *given: Any) -> Any:
        result = execute(sql, *given)
        if sql.startswith("DELETE") and LimitPlace._meta.db_table in sql:
            deletions.append(sql)
            place_deleted.set()
            assert next_chosen.wait(TIMEOUT)
        return result

    def execute_end(execute: Any, sql: str, *given: Any) -> Any:
        chooses = place_freed.is_set() and "SKIP LOCKED" in sql
        if chooses:
            assert place_deleted.wait(TIMEOUT)
        result = execute(sql, *given)
        if chooses:
            next_chosen.set()
        return result

    def delete() -> None:
        with connection.execute_wrapper(execute_deletion):
            control.delete(second.job, erase=erase)

    def finish() -> None:
        with connection.execute_wrapper(execute_end):
            assert end(reread(first))

    def reached(point: str) -> None:
        if point == "limit.freed":
            place_freed.set()

    monkeypatch.setattr(sync_points, "listener", reached)
    in_threads(delete, finish)
    assert len(deletions) == 1, "the deletion was repeated after a deadlock"
    assert Run.objects.filter(pk=second.pk).exists() is not erase
    assert not LimitPlace.objects.exists()


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_concurrent_workers_never_exceed_the_limit(limit: Limit) -> None:
    """Eight threads start and end runs of two jobs, and cancel some, as fast as they can."""
    limit.max_running = 3
    control.save_limit(limit)
    runs = [*make_limited(limit, 20), *make_limited(limit, 20)]
    queued = make_idle_job(limit=limit, overlap_policy="queue_all")
    runs += make_limited(limit, 8, job=queued)
    most: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            ready = Run.objects.filter(state__in=("pending", "queued")).order_by("due_at")
            own_runs = [run for run in ready if run.pk.int % 8 == number % 8 or number >= 4]
            for run in own_runs[:3]:
                started = repeat_after_contention(lambda run=run: deliver(run, worker=str(number)))
                most.append(Run.objects.running().filter(limited=True).count())
                if started:
                    repeat_after_contention(lambda started=started: end(started))
            if not Run.objects.exclude(state__in=FINAL).exists():
                return
            if number == 0:
                rescue(ALL, database_now("default"), HOUR)

    in_threads(*(lambda number=number: work(number) for number in range(8)))
    assert max(most) <= 3
    assert not Run.objects.exclude(state="succeeded").exists()
    assert numbers() == {}


# --- cost -----------------------------------------------------------------------------------------


def test_number_of_statements_does_not_grow_with_the_line(limit: Limit) -> None:
    def statements(waiting: int) -> tuple[int, int, int]:
        with transaction.atomic():
            first, second, *others = make_limited(limit, 3 + waiting)
            for run in (first, second, *others):
                deliver(run)
            with CaptureQueriesContext(connection) as tick:
                wake_runs_with_place(ALL)
                rescue(ALL, database_now("default"), HOUR)
            with CaptureQueriesContext(connection) as ended:
                assert end(reread(first))
            with CaptureQueriesContext(connection) as started:
                assert deliver(reread(others[0]))
            transaction.set_rollback(True)
        return len(tick), len(ended), len(started)

    assert statements(1) == statements(30)


def test_ordinary_runs_take_no_place() -> None:
    run = make_run(make_idle_job())
    with mock.patch("django_dcron.runs.limits.take_slot", side_effect=AssertionError):
        assert deliver(run)
    with mock.patch("django_dcron.runs.limits.free_places", side_effect=AssertionError):
        assert end(reread(run))


@pytest.mark.parametrize("frozen", ["first", "last"])
def test_lines_that_a_freeze_holds_back_do_not_exclude_other_lines(
    monkeypatch: pytest.MonkeyPatch, frozen: str
) -> None:
    limit = control.save_limit(Limit(name="api", max_running=1, key="{kwargs[key]}"))
    waiting = {}
    for key in ("first", "last"):
        job = make_idle_job(limit=limit, namespace="shop" if key == frozen else "default")
        run = waiting[key] = make_run(job, "waiting", limited=True)
        LimitPlace.objects.create(run=run, limit=limit, key=key, due_at=run.due_at)
    Freeze.objects.create(namespace="shop", since=database_now("default"), reason="deployment")
    monkeypatch.setattr(limit_lines, "LINES_AT_ONCE", 1)
    assert any(wake_runs_with_place(ALL) for _ in range(100))
    held_back = waiting.pop(frozen)
    assert states(held_back, *waiting.values()) == ["waiting", "pending"]


# --- starts within an interval --------------------------------------------------------------------


def test_no_more_runs_start_within_any_interval_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = control.save_limit(Limit(name="mail", max_started=2, interval=60 * SECOND))
    start = database_now("default")
    runs = make_limited(limit, 6)
    with set_clock(start):
        assert [bool(deliver(run)) for run in runs[:3]] == [True, True, False]
        assert reread(runs[2]).reason == "waits for limit mail: 2 of 2 started within 1m"
        assert end(reread(runs[0]))
        assert state_of(runs[2]) == "waiting", "the end of a run is no reason to start another"
    with set_clock(start + 30 * SECOND):
        assert deliver(runs[3]) is None
        assert wake_runs_with_place(ALL) == 0
    with set_clock(start + 60 * SECOND):
        assert wake_runs_with_place(ALL) == 2
        assert deliver(runs[4]) is None, "woken runs count before they have started"
        assert deliver(reread(runs[2]))
    with set_clock(start + 100 * SECOND):
        assert deliver(reread(runs[3]))
        assert wake_runs_with_place(ALL) == 0
    with set_clock(start + 130 * SECOND):
        assert wake_runs_with_place(ALL) == 1, "the interval counts from the start, not the wake"
        assert state_of(runs[4]) == "pending"
        assert deliver(reread(runs[4]))
    prune_starts(())
    assert LimitStart.objects.count() == 2
    with set_clock(start + HOUR):
        with monkeypatch.context() as patched:
            patched.setattr(limit_lines, "PRUNED_AT_ONCE", 1)
            assert prune_starts(ALL), "there are more"
        assert LimitStart.objects.count() == 1
        assert not prune_starts(ALL)
    assert not LimitStart.objects.exists()


def test_start_counts_if_a_node_deletes_the_row_of_an_earlier_start_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = control.save_limit(Limit(name="mail", max_started=1, interval=60 * SECOND))
    start = database_now("default")
    first, second, third = make_limited(limit, 3)

    def delete_and_choose(facts: LineFacts, at_most: int) -> list[int]:
        if facts.max_started is None:  # the numbers of the starts have been read
            LimitStart.objects.filter(started_at=start).delete()
        return places_to_give(facts, at_most)

    with set_clock(start):
        assert deliver(first)
    with set_clock(start + HOUR):
        with monkeypatch.context() as patched:
            patched.setattr(limits, "places_to_give", delete_and_choose)
            assert deliver(second)
        assert deliver(third) is None
    assert LimitStart.objects.get().started_at == start + HOUR


def test_woken_run_waits_again_if_the_maximum_was_lowered_meanwhile() -> None:
    limit = control.save_limit(Limit(name="mail", max_started=2, interval=60 * SECOND))
    start = database_now("default")
    runs = make_limited(limit, 4)
    with set_clock(start):
        for run in runs:
            deliver(run)
    with set_clock(start + 60 * SECOND):
        assert wake_runs_with_place(ALL) == 2
        limit.max_started = 1
        control.save_limit(limit)
        assert deliver(reread(runs[2]))
        assert deliver(reread(runs[3])) is None
        assert state_of(runs[3]) == "waiting"
    check_places()


def test_both_maxima_apply() -> None:
    limit = control.save_limit(
        Limit(name="api", max_running=1, max_started=2, interval=60 * SECOND)
    )
    start = database_now("default")
    runs = make_limited(limit, 3)
    with set_clock(start):
        assert deliver(runs[0])
        assert deliver(runs[1]) is None
        assert reread(runs[1]).reason.endswith("1 of 1 running")
        assert end(reread(runs[0]))
        assert deliver(reread(runs[1]))
        assert end(reread(runs[1]))
        assert deliver(runs[2]) is None
        assert reread(runs[2]).reason.endswith("2 of 2 started within 1m")
