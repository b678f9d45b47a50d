"""``control.cancel_many`` does what ``cancel`` of each run does, in few statements."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pytest_django import Settings

from django_dcron import control, dispatch
from django_dcron.dispatch import best_effort
from django_dcron.exceptions import InvalidValue, NotPossible
from django_dcron.models import Attempt, Run
from django_dcron.policies.lifecycle import FINAL, UNFINISHED, State, Trigger
from django_dcron.policies.slots import Slot, backfill_number
from django_dcron.testing import set_clock
from tests.depth import examples
from tests.factories import make_idle_job, make_run
from tests.jobs.test_save_many import NOW, snapshot, undone
from tests.refusals import refusal
from tests.scheduler.stand_ins import MemoryDispatcher

SLOT = {"slot": Slot.RUNNING}
STARTED = {"started_at": NOW - timedelta(minutes=5), "attempt": 2}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "pending": ("skip", "pending", {}),
    "queued": ("skip", "queued", {}),
    "running": ("skip", "running", SLOT),
    "asked before": ("allow", "running", {"cancel_requested_at": NOW, "reason": "earlier"}),
    "finished": ("skip", "succeeded", {}),
    "retrying": ("retries", "pending", STARTED | SLOT),
    "retrying and followed": ("followed", "pending", STARTED | SLOT),
    "retrying and followed too": ("followed-too", "pending", STARTED),
    "followed but not started": ("followed", "queued", {}),
    "holder": ("queue", "queued", SLOT),
    "first in line": ("queue", "waiting", {"due_at": NOW - timedelta(minutes=2)}),
    "second in line": ("queue", "waiting", {"due_at": NOW - timedelta(minutes=1)}),
    "waits for a running one": ("busy", "waiting", {}),
    "running before it": ("busy", "running", SLOT),
    "backfilled": ("backfill", "waiting", {"trigger": Trigger.BACKFILL}),
    "deleted": ("skip", "pending", {}),
}


def set_up() -> dict[str, Run]:
    jobs = {
        name: make_idle_job(name=name, overlap_policy=policy)
        for name, policy in {
            "skip": "skip",
            "allow": "allow",
            "retries": "skip",
            "followed": "skip",
            "followed-too": "skip",
            "queue": "queue_all",
            "busy": "queue_all",
            "backfill": "skip",
        }.items()
    }
    make_idle_job(name="follower", after={"followed": "ended", "retries": "failed"})
    make_idle_job(name="second follower", after={"followed-too": "ended"})
    make_idle_job(name="paused follower", after={"followed": "ended"}, enabled=False)
    runs = {}
    for number, (name, (job, state, fields)) in enumerate(KINDS.items()):
        at = NOW - timedelta(hours=1) + timedelta(microseconds=number)
        place: dict[str, Any] = {"scheduled_at": at, "due_at": NOW, "claimed_at": NOW}
        if name == "backfilled":
            place |= {"slot": Slot.BACKFILL, "slot_number": backfill_number(at)}
        runs[name] = make_run(jobs[job], state, **place | fields)
    return runs


def cancel_one_by_one(runs: Sequence[Run]) -> dict[int, Exception]:
    errors: dict[int, Exception] = {}
    for position, run in enumerate(runs):
        try:
            control.cancel(run, "incident")
        except NotPossible as error:
            errors[position] = error
    return errors


@pytest.mark.django_db
@settings(max_examples=examples(60))
@given(
    names=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, unique=True),
    at_once=st.sampled_from((1, 4, 500)),
)
@example(names=sorted(KINDS), at_once=500)
def test_results_equal_those_of_single_calls(names: list[str], at_once: int) -> None:
    found: list[Any] = []
    with undone(), set_clock(NOW), pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "CANCELLED_AT_ONCE", at_once)
        for many in (False, True):
            with undone():
                runs = set_up()
                chosen = [runs[name] for name in names]
                Run.objects.filter(pk=runs["deleted"].pk).delete()
                errors = (
                    control.cancel_many(chosen, "incident") if many else cancel_one_by_one(chosen)
                )
                ids = {str(run.pk): name for name, run in runs.items()}
                text = repr(
                    (
                        {at: (type(error), str(error)) for at, error in errors.items()},
                        snapshot(),
                        [(run.state, run.reason, run.cancel_requested_at) for run in chosen],
                    )
                )
                for run_id, name in ids.items():
                    text = text.replace(run_id, name)
                found.append(text)
    assert found[1] == found[0]


@pytest.fixture
def recording_dispatcher(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MemoryDispatcher]:
    monkeypatch.setattr(best_effort, "_broker_unreachable_until", float("-inf"))
    settings.DCRON_DISPATCHER = "tests.scheduler.stand_ins.MemoryDispatcher"
    dispatch._shared.cache_clear()
    dispatcher = dispatch.shared_dispatcher()
    assert isinstance(dispatcher, MemoryDispatcher)
    yield dispatcher
    dispatch._shared.cache_clear()


@pytest.mark.django_db(transaction=True)
def test_only_attempts_that_cannot_start_again_are_revoked(
    recording_dispatcher: MemoryDispatcher,
) -> None:
    job = make_idle_job(overlap_policy="allow")
    states = ("pending", "queued", "running", "waiting", "queued")
    runs = {f"{number} {state}": make_run(job, state) for number, state in enumerate(states)}
    assert control.cancel_many(runs.values()) == {}
    revoked: set[tuple[UUID, int]] = set(recording_dispatcher.revoked)
    assert len(recording_dispatcher.revoked) == len(revoked) == 3
    assert revoked == {(runs[name].pk, 1) for name in ("1 queued", "2 running", "4 queued")}


@pytest.mark.django_db(transaction=True)
def test_statements_do_not_grow_with_the_runs(recording_dispatcher: MemoryDispatcher) -> None:
    """Also not with the runs that started before and have followers."""
    counts = []
    for number in (4, 20):  # SQLite limits the rows of an INSERT
        job = make_idle_job(name=f"job-{number}", overlap_policy="allow")
        make_idle_job(after={job.name: "ended"})
        runs = [make_run(job, state) for state in ("queued", "running") for _ in range(number)]
        runs += [make_run(job, **STARTED) for _ in range(number)]
        with CaptureQueriesContext(connection) as queries:
            assert control.cancel_many(runs) == {}
        counts.append(len(queries))
    assert counts[0] == counts[1] < 30
    assert Attempt.objects.filter(outcome="").count() == 24
    followers = Run.objects.filter(trigger=Trigger.CHAIN)
    assert followers.count() == 24
    assert set(Run.objects.exclude(trigger=Trigger.CHAIN).values_list("state", flat=True)) == {
        "cancelled",
        "running",
    }


@pytest.mark.django_db
@pytest.mark.parametrize("states", [set(), {State.QUEUED}, {"queued", "waiting"}, {*UNFINISHED}])
def test_only_runs_in_the_given_states_are_cancelled(states: set[str]) -> None:
    runs = [make_run(make_idle_job(name=state), state) for state in State]
    refused = control.cancel_many(runs, states=states)
    codes = [error.code for error in refused.values() if isinstance(error, NotPossible)]
    for position, state in enumerate(State):
        run = Run.objects.get(pk=runs[position].pk)
        is_cancelled = state in states and state in UNFINISHED
        assert (position not in refused) == is_cancelled
        if is_cancelled and state is not State.RUNNING:
            assert run.state == "cancelled"
        else:
            assert (run.state, run.cancel_requested_at is not None) == (state, is_cancelled)
    assert codes.count("finished") == len(FINAL)
    assert codes.count("state") == len(UNFINISHED - states)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ("queued", "'queued'"),
        (["queued", "qeued"], "['qeued', 'queued']"),
        ("", "''"),
        (b"queued", "b'queued'"),
        (None, "None"),
        (5, "5"),
        ([["queued"]], "[['queued']]"),
        (["succeeded"], "['succeeded']"),
    ],
)
def test_states_that_are_no_list_of_states_are_refused(states: Any, shown: str) -> None:
    run = make_run(make_idle_job(), "queued")
    allowed = "pending, queued, running, waiting"
    with refusal(InvalidValue, "invalid_states", field="states", value=shown, allowed=allowed):
        control.cancel_many([run], states=states)
    assert Run.objects.get().state == "queued"


@pytest.mark.django_db
def test_states_are_read_once_for_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CANCELLED_AT_ONCE", 1)
    runs = [make_run(make_idle_job(), "queued") for _ in range(3)]
    assert control.cancel_many(runs, states=iter(["queued"])) == {}


@pytest.mark.django_db
def test_progress_is_reported_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CANCELLED_AT_ONCE", 2)
    job = make_idle_job()
    seen: list[int] = []
    control.cancel_many([make_run(job) for _ in range(5)], on_progress=seen.append)
    assert seen == [2, 4, 5]
