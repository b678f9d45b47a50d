"""One statement reads and starts an ordinary run, exactly as ``decide_start`` would decide."""

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_dcron.db.now import database_now
from django_dcron.models import Attempt, Freeze, Job, Limit, Run
from django_dcron.policies.slots import Slot
from django_dcron.policies.start_decision import LoadFact, Start, StartFacts, decide_start
from django_dcron.runs.ordinary_start import ReadOrStarted, read_or_start
from django_dcron.runs.start import start_attempt
from django_dcron.runs.start_facts import Delivery, read_run
from tests.execution.conftest import reread
from tests.factories import make_idle_job, make_run
from tests.lock_holder import keeping_open
from tests.threads import in_threads

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)

CONSIDERED = {
    "state",
    "is_current_attempt",
    "cancel_requested",
    "job_deleted",
    "is_frozen",
    "due_in",
    "is_limited",
    "too_late",
    "overlap",
    "in_queue",
    "slot_taken",
}
WITHOUT_EFFECT = {
    *("scheduled_at", "due_at", "is_backfilled", "holder", "next_in_line", "older_is_due")
}
"""They matter only if the slot is taken or the job has a queue."""

Change = Callable[[Run], object]


def run_changed(**columns: Any) -> Change:
    return lambda run: Run.objects.filter(pk=run.pk).update(**columns)


def job_changed(**columns: Any) -> Change:
    return lambda run: Job.objects.filter(pk=run.job_id).update(**columns)


def due_ago(by: timedelta) -> Change:
    return run_changed_at(lambda run: {"due_at": database_now("default") - by})


def run_changed_at(columns: Callable[[Run], dict[str, Any]]) -> Change:
    return lambda run: Run.objects.filter(pk=run.pk).update(**columns(run))


def freeze(run: Run) -> None:
    Freeze.objects.create(namespace=run.job.namespace, since=database_now("default"), reason="x")


def take_slot(run: Run) -> None:
    make_run(run.job, "running", slot=Slot.RUNNING)


def make_older_run(run: Run) -> None:
    earlier = run.due_at - timedelta(seconds=10)
    make_run(run.job, "queued", scheduled_at=earlier, due_at=earlier)


def set_limit(run: Run) -> None:
    Limit.objects.get_or_create(name="api", max_running=1)
    Job.objects.filter(pk=run.job_id).update(limit="api")


CHANGES: dict[str, Change] = {
    "queued": run_changed(state="queued", deliveries=1),
    "running": run_changed(state="running"),
    "waiting": run_changed(state="waiting"),
    "succeeded": run_changed(state="succeeded"),
    "next attempt": run_changed(attempt=2),
    "cancelled": run_changed_at(lambda run: {"cancel_requested_at": database_now("default")}),
    "job deleted": job_changed(deleted_at=datetime(2026, 1, 1, tzinfo=UTC)),
    "frozen": freeze,
    "not due": due_ago(-HOUR),
    "late": due_ago(HOUR),
    "short deadline": job_changed(start_deadline=timedelta(0)),
    "long deadline": job_changed(start_deadline=2 * HOUR),
    "long grace": job_changed(misfire_grace=2 * HOUR),
    "run_all": job_changed(misfire_policy="run_all"),
    "allow": job_changed(overlap_policy="allow"),
    "queue_all": job_changed(overlap_policy="queue_all"),
    "unknown policy": job_changed(overlap_policy="?"),
    "slot taken": take_slot,
    "older run": make_older_run,
    "limit": set_limit,
    "has a place": run_changed(limited=True),
    "manual": run_changed(trigger="manual"),
    "backfill": run_changed(trigger="backfill"),
    "chain": run_changed(trigger="chain"),
}


LEFT = {"late", "run_all", "queue_all"}
"""With these changes, the statement may leave a run that may start to ``decide_start``."""


def start_at_once(run: Run, attempt: int = 1, token: UUID | None = None) -> ReadOrStarted:
    return read_or_start(run.pk, attempt, token=token or uuid4(), worker="w")


def decision(run: Run) -> object:
    read = read_run(run.pk)
    assert read is not None
    delivery = Delivery(read, 1, token=uuid4(), worker="w", punctual=True)
    while (action := decide_start(delivery.facts)) in (LoadFact.START_DEADLINE, LoadFact.OLDER):
        delivery.load(action)
    return action


@pytest.mark.parametrize("first", CHANGES)
@pytest.mark.django_db(transaction=False)
def test_statement_starts_only_what_the_decision_starts(first: str) -> None:
    """Each pair of changes of an ordinary run. Some runs are left to ``decide_start``."""
    names = list(CHANGES)
    for second in names[names.index(first) :]:
        with transaction.atomic():
            run = make_run(make_idle_job())
            for name in dict.fromkeys((first, second)):
                CHANGES[name](run)
            action, fence = decision(run), start_at_once(run).fence
            about, after = (first, second, action), reread(run)
            if fence is None:
                assert not isinstance(action, Start) or LEFT & {first, second}, about
                assert not Attempt.objects.filter(run=run).exists()
            else:
                assert isinstance(action, Start), about
                assert (after.state, after.reason) == ("running", "")
                assert after.slot == (Slot.RUNNING if action.takes_slot else None), about
                assert Attempt.objects.get(run=run).pk == fence
            transaction.set_rollback(True)


def test_each_fact_of_the_decision_is_considered() -> None:
    """A new fact must be part of the statement's condition, or not matter to an ordinary run."""
    assert {field.name for field in fields(StartFacts)} == CONSIDERED | WITHOUT_EFFECT


@pytest.mark.parametrize("state", ["pending", "queued"])
def test_one_statement_starts_a_run(state: str) -> None:
    run, token = make_run(make_idle_job(), state), uuid4()
    with CaptureQueriesContext(connection) as sent:
        started = start_attempt(run.pk, 1, token=token, worker="w@host", punctual=True)
    assert len(sent) == 1
    assert started is not None
    assert (started.run.pk, started.run.job.name) == (run.pk, run.job.name)
    after, attempt = reread(run), Attempt.objects.get()
    assert (after.state, after.slot, after.started_at) == ("running", "running", started.at)
    assert after.heartbeat_at == started.at == attempt.started_at
    assert (attempt.pk, attempt.number, attempt.token) == (started.fence, 1, token)
    assert (attempt.worker, attempt.due_at) == ("w@host", run.due_at)
    assert attempt.queued_at == (run.queued_at if state == "queued" else None)


def test_repeated_start_finds_its_attempt() -> None:
    """The answer to the first start was lost."""
    run, token = make_run(make_idle_job(), "queued"), uuid4()
    first, again = (start_attempt(run.pk, 1, token=token, worker="w") for _ in range(2))
    assert first is not None
    assert again is not None
    assert (again.at, again.fence) == (first.at, first.fence)
    assert start_attempt(run.pk, 1, token=uuid4(), worker="w") is None


def test_only_one_of_several_deliveries_starts() -> None:
    run = make_run(make_idle_job(), "queued")
    results = in_threads(*[lambda: start_attempt(run.pk, 1, token=uuid4(), worker="w")] * 4)
    assert len([started for started in results if started]) == 1
    assert Attempt.objects.count() == 1


@pytest.mark.parametrize(("policy", "left"), [("skip", "skipped"), ("queue_one", "waiting")])
def test_run_that_loses_the_slot_meanwhile_does_not_start(policy: str, left: str) -> None:
    """The statement waits for the transaction that takes the slot, which it has not seen."""
    job = make_idle_job(overlap_policy=policy)
    first, second = make_run(job, "queued"), make_run(job, "queued")

    def start(run: Run) -> bool:
        return bool(start_attempt(run.pk, 1, token=uuid4(), worker="w"))

    with keeping_open(lambda: start(first)):
        (blocked,) = in_threads(lambda: _is_blocked(second))
    assert start(second) is False
    assert blocked
    assert sorted(run.state for run in Run.objects.all()) == sorted(["running", left])


def _is_blocked(run: Run) -> bool:
    """Return whether the statement waits for the other transaction until it gives up."""
    try:
        start_at_once(run)
    except OperationalError:
        return True
    return False
