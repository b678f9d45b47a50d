"""The worker probe: when a node asks the workers, what it records, and what it dispatches again."""

import logging
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from pytest_django import DjangoAssertNumQueries, Settings

from django_dcron.db.now import database_now
from django_dcron.dispatch.base import DispatchFailed, UnknownRunReport, WorkerReply
from django_dcron.dispatch.celery import CeleryDispatcher
from django_dcron.locks.file import FileLock
from django_dcron.models import Job, Node
from django_dcron.runs import deliveries, transitions
from django_dcron.scheduler.runner import Runner
from django_dcron.scheduler.worker_probe import (
    ASK_EVERY,
    ASK_IDLE_EVERY,
    WaitingRun,
    WorkerProbe,
    dropped_runs,
    foreign_workers,
)
from tests.celery_app import app
from tests.factories import make_idle_job, make_run
from tests.scheduler.stand_ins import START, StillClock

SECOND = timedelta(seconds=1)
GOOD = WorkerReply("good", ("celery",), executes=True)
RUN = UUID(int=7)


def foreign(
    run_id: UUID = RUN, age: float = 5.0, dropped: bool = True, queue: str = "celery"
) -> WorkerReply:
    return WorkerReply(
        "foreign", (queue,), executes=True, unknown_runs=(UnknownRunReport(run_id, age, dropped),)
    )


def waiting(queued_before: float) -> WaitingRun:
    return WaitingRun(RUN, 1, START - queued_before * SECOND, 1)


@pytest.mark.parametrize(
    ("answers", "queued_before", "again"),
    [
        pytest.param([foreign(), GOOD], 10, True, id="dropped after it was queued"),
        pytest.param(
            [foreign(age=5), GOOD], 4, True, id="dropped just before it was marked as queued"
        ),
        pytest.param([foreign(age=20), GOOD], 10, False, id="dropped before its latest delivery"),
        pytest.param(
            [foreign(age=5), foreign(age=20), GOOD], 10, True, id="dropped by two workers in turn"
        ),
        pytest.param([foreign(dropped=False), GOOD], 10, False, id="returned to the queue"),
        pytest.param([foreign()], 10, False, id="no other worker"),
        pytest.param([foreign(queue="other"), GOOD], 10, False, id="no other worker of this queue"),
        pytest.param(
            [foreign(), WorkerReply("w", ("celery",), False)], 10, False, id="none that executes"
        ),
        pytest.param([foreign(run_id=UUID(int=8)), GOOD], 10, False, id="another run"),
        pytest.param([GOOD], 10, False, id="no foreign worker"),
    ],
)
def test_run_dropped_by_a_foreign_worker_is_dispatched_again(
    answers: list[WorkerReply], queued_before: float, again: bool
) -> None:
    run = waiting(queued_before)
    named = foreign_workers(answers, {RUN, UUID(int=8)})
    assert dropped_runs(answers, [run], START, named) == ([run] if again else [])


@pytest.mark.django_db
def test_dropped_run_waits_for_a_worker_of_its_own_queue(clock: StillClock, node: Node) -> None:
    unserved, served = (
        queued_run(clock.now(), 20, job=make_idle_job(queue=queue)) for queue in ("mail", "celery")
    )
    unknown = tuple(UnknownRunReport(run.pk, 5.0, True) for run in (unserved, served))
    foreign_of_both = WorkerReply("foreign", ("celery", "mail"), True, unknown)
    probe = WorkerProbe(Leader(), clock, Workers([foreign_of_both, GOOD]))
    clock.advance(ASK_EVERY)
    assert probe.check()
    unserved.refresh_from_db()
    served.refresh_from_db()
    assert (unserved.state, served.state) == ("queued", "pending")


def test_worker_that_only_misses_deleted_runs_is_not_foreign() -> None:
    assert foreign_workers([foreign()], known_here=set()) == set()


class Leader:
    id = "n-1"
    name = "n"
    shards = frozenset(range(64))


class Workers:
    """A dispatcher whose workers give the answers that the test chooses."""

    node = ""

    def __init__(self, answers: list[WorkerReply] | Exception | None) -> None:
        self.answers = answers
        self.asked = 0

    def ask_workers(self) -> list[WorkerReply] | None:
        self.asked += 1
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers


@pytest.fixture
def clock(settings: Settings) -> StillClock:
    settings.DCRON_REDELIVER_AFTER = 60 * SECOND
    return StillClock(database_now("default"))


@pytest.fixture
def node(clock: StillClock) -> Node:
    now = clock.now()
    return Node.objects.create(
        id=Leader.id, name="n", host="h", pid=1, version="0", started_at=now, heartbeat_at=now
    )


def queued_run(at: datetime, age: float, job: Job | None = None, **fields: Any) -> Any:
    then = at - age * SECOND
    return make_run(job or make_idle_job(), "queued", due_at=then, queued_at=then, **fields)


@pytest.mark.django_db
def test_workers_are_asked_more_often_while_a_run_waits(clock: StillClock) -> None:
    workers = Workers(None)
    probe = WorkerProbe(Leader(), clock, workers)
    queued_run(clock.now(), 16 - ASK_EVERY)  # a quarter of DCRON_REDELIVER_AFTER is 15 s
    assert not probe.check()
    clock.advance(ASK_EVERY)
    assert probe.check()
    assert not probe.check()
    clock.advance(ASK_EVERY)
    assert probe.check()
    transitions.runs().update(state="succeeded")
    clock.advance(ASK_EVERY)
    assert not probe.check()
    clock.advance(ASK_IDLE_EVERY)
    assert probe.check()
    assert workers.asked == 3


@pytest.mark.django_db
def test_waiting_runs_are_read_only_if_workers_may_be_asked(
    clock: StillClock, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    probe = WorkerProbe(Leader(), clock, Workers(None))
    queued_run(clock.now(), 20)
    with django_assert_num_queries(0):
        assert not probe.check()
    clock.advance(ASK_EVERY)
    with django_assert_num_queries(1):
        assert probe.check()


@pytest.mark.django_db
def test_probe_stores_answers_and_redelivers_dropped_runs(
    clock: StillClock, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    run, deleted = queued_run(clock.now(), 20, deliveries=3), uuid4()
    unknown = tuple(UnknownRunReport(each, 5.0, True) for each in (run.pk, deleted))
    bad = WorkerReply("bad", ("celery",), True, unknown)
    mute = WorkerReply("mute", ("celery", "mail"), False)
    probe = WorkerProbe(Leader(), clock, Workers([bad, GOOD, mute]))
    for _ in range(2):  # the first because a run waits, the second by its interval
        clock.advance(ASK_IDLE_EVERY)
        probe.check()

    node.refresh_from_db()
    assert node.workers == {
        "at": clock.now().isoformat(),
        "replies": [
            {"name": "bad", "queues": ["celery"], "executes": True, "unknown_runs": [str(run.pk)]},
            {"name": "good", "queues": ["celery"], "executes": True, "unknown_runs": []},
            {"name": "mute", "queues": ["celery", "mail"], "executes": False, "unknown_runs": []},
        ],
    }
    run.refresh_from_db()
    assert (run.state, run.attempt, run.node, run.deliveries) == ("pending", 1, "", 2)
    events = [
        getattr(record, "event", "")
        for record in caplog.records
        if record.levelno == logging.WARNING
    ]
    assert events == ["foreign_worker", "redelivered"]


@pytest.mark.django_db
def test_run_that_changed_meanwhile_is_not_redelivered(clock: StillClock) -> None:
    run = queued_run(clock.now(), 20)
    for stale in ({"queued_at": run.queued_at - SECOND}, {"attempt": 2}, {"deliveries": 2}):
        values = {"attempt": 1, "queued_at": run.queued_at, "deliveries": 1} | stale
        assert not deliveries.redeliver_dropped(run.pk, **values)
    transitions.runs().update(state="running")
    assert not deliveries.redeliver_dropped(run.pk, 1, run.queued_at, 1)


@pytest.mark.django_db
@pytest.mark.parametrize("answers", [None, DispatchFailed("away")])
def test_probe_changes_nothing_without_answers(
    clock: StillClock, node: Node, answers: Exception | None
) -> None:
    probe = WorkerProbe(Leader(), clock, Workers(answers))
    clock.advance(ASK_IDLE_EVERY)
    if answers is None:
        assert probe.check()
    else:
        with pytest.raises(DispatchFailed):
            probe.check()
    node.refresh_from_db()
    assert node.workers is None


@pytest.mark.django_db
def test_thread_survives_errors_and_logs_the_first(
    clock: StillClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_dcron.scheduler.worker_probe.connections.close_all", lambda: None)
    workers = Workers(DispatchFailed("away"))
    probe = WorkerProbe(Leader(), clock, workers)
    caplog.set_level(logging.INFO, "django_dcron.scheduler")

    class Stopping:
        def wait(self, seconds: float) -> bool:
            clock.advance(ASK_IDLE_EVERY / 2)  # every second check asks
            return workers.asked == 3

    class Watchdog:
        def record_activity(self, thread: str, rest: float = 0.0) -> None:
            pass

    probe.run(Stopping(), Watchdog(), "workers")  # type: ignore[arg-type]
    assert [getattr(record, "event", "") for record in caplog.records] == ["workers_not_asked"]


def test_dispatcher_of_a_runner_knows_the_node() -> None:
    dispatcher = CeleryDispatcher(app)
    runner = Runner(name="n", namespace="", lock=FileLock(), dispatcher=dispatcher)
    assert dispatcher.node == runner.membership.id
