"""Dispatching runs to a backend of Django's own tasks, and executing them on a real worker."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from ssl import SSLCertVerificationError
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import DataError, OperationalError, ProgrammingError, connection
from pytest_django import Settings

from django_dcron import control
from django_dcron.dispatch import Dispatcher, DispatchFailed, DueRun, Undeliverable, make_dispatcher
from django_dcron.dispatch.base import PartlyPublished
from django_dcron.models import Attempt, Job, Run
from django_dcron.scheduler.agenda import Agenda
from tests.app.models import Witness
from tests.conftest import StartProcess
from tests.execution.conftest import attempt_of, reread, state_of
from tests.factories import make_idle_job, make_job, make_run
from tests.logs import events, logged
from tests.scheduler.stand_ins import StillClock, due_run
from tests.services import Process, Server
from tests.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.django_tasks

LONG = 60.0
"""Seconds that a run takes if nothing stops it."""
SHORT = {"TICK": 0.1, "LEASE": 2, "RUN_LEASE": 2, "HARD_TIMEOUT_AFTER": 0.5, "REDELIVER_AFTER": 3}
SITE = {
    "DJANGO_SETTINGS_MODULE": "tests.dispatch.settings_with_django_tasks",
    "DCRON_TEST_SETTINGS": json.dumps(SHORT),
}


def dispatcher() -> Dispatcher:
    return make_dispatcher("tasks", lambda *args, **options: None)


def due(**fields: Any) -> DueRun:
    return replace(due_run("a"), **fields)


def enqueued() -> list[dict[str, Any]]:
    """The enqueued runs in the order in which workers take them."""
    from django_tasks_db.models import DBTaskResult

    return [
        {"queue": row.queue_name, "priority": row.priority, "args": row.args_kwargs["args"]}
        for row in DBTaskResult.objects.order_by(*DBTaskResult._meta.ordering)
    ]


def publish_runs(*runs: DueRun) -> None:
    to = dispatcher()
    to.publish([to.prepare(run) for run in runs])


@pytest.fixture
def backend(settings: Settings) -> Callable[..., None]:
    """Configure the backend of this test."""

    def configure(kind: str, *, alias: str = "default", **params: Any) -> None:
        settings.TASKS = {**settings.TASKS, alias: {"BACKEND": kind, **params}}
        settings.DCRON_TASKS_BACKEND = alias

    return configure


class TestMessages:
    pytestmark = pytest.mark.django_db

    def test_run_is_enqueued_with_id_and_attempt(self) -> None:
        run = due(attempt=3)
        publish_runs(run)
        assert enqueued() == [{"queue": "default", "priority": 0, "args": [str(run.run_id), 3]}]

    def test_queue_and_priority_of_the_job_are_used(self) -> None:
        for priority in (0, 4, 5, 9):
            publish_runs(due(queue="reports", priority=priority))
        found = [(each["queue"], each["priority"]) for each in enqueued()]
        assert found == [("reports", 100), ("reports", 11), ("reports", -11), ("reports", -100)]

    def test_queue_and_priority_of_the_target_are_the_default(self) -> None:
        target = "tests.tasked.tasks.report"
        publish_runs(due(target=target), due(target=f"shadow:{target}"))
        publish_runs(due(target=target, queue="default", priority=9))
        publish_runs(due(target="tests.app.tasks.ok"), due(target="gone"))
        found = [(each["queue"], each["priority"]) for each in enqueued()]
        assert found == [
            ("default", 100),
            ("reports", 7),
            ("reports", 7),
            ("default", 0),
            ("default", 0),
        ]

    def test_queue_of_the_target_is_ignored_on_another_backend(
        self, backend: Callable[..., None]
    ) -> None:
        backend("django_tasks_db.DatabaseBackend", alias="other", QUEUES=["nightly"])
        publish_runs(due(target="tests.tasked.tasks.report"))
        assert [(each["queue"], each["priority"]) for each in enqueued()] == [("nightly", 0)]

    def test_no_priority_is_set_on_a_backend_without_priorities(
        self, backend: Callable[..., None]
    ) -> None:
        backend("tests.dispatch.backends.BackendWithoutPriorities", QUEUES=[])
        publish_runs(due(priority=9, queue="any"), due(target="tests.tasked.tasks.report"))
        assert [(each["queue"], each["priority"]) for each in enqueued()] == [
            ("any", 0),
            ("reports", 0),
        ]

    def test_unknown_queue_is_undeliverable(self) -> None:
        to = dispatcher()
        text = (
            r"'nowhere' .*task backend 'default' \(django_tasks_db.*"
            r"\(allowed: 'default', 'poison', 'reports'\)"
        )
        with pytest.raises(Undeliverable, match=text):
            to.prepare(due(queue="nowhere"))

    def test_missing_default_queue_is_undeliverable(self, backend: Callable[..., None]) -> None:
        backend("django_tasks_db.DatabaseBackend", alias="other", QUEUES=["a", "b"])
        with pytest.raises(Undeliverable, match="'default'"):
            dispatcher().prepare(due())


class TestErrors:
    pytestmark = pytest.mark.django_db

    @pytest.mark.parametrize(
        "error", [OperationalError("away"), ProgrammingError("no such table"), Exception("?")]
    )
    def test_runs_enqueued_before_an_outage_are_not_enqueued_again(
        self, backend: Callable[..., None], error: Exception
    ) -> None:
        remaining = [1, 1]
        backend(
            "tests.dispatch.backends.FailingBackend",
            OPTIONS={"remaining": remaining, "final_error": error},
        )
        to = dispatcher()
        runs = [due_run(name) for name in "abcd"]
        prepared = [to.prepare(run) for run in runs]
        with pytest.raises(PartlyPublished, match=f"{type(error).__name__}: ") as taken:
            to.publish(prepared)
        assert taken.value.rejected == {2, 3}
        for rest in (prepared[2:], prepared[2:3]):
            with pytest.raises(DispatchFailed, match=f"{type(error).__name__}: ") as raised:
                to.publish(rest)
            assert not isinstance(raised.value, PartlyPublished)
            assert raised.value.__cause__ is error
        assert len(enqueued()) == 2
        remaining.extend([1, 1])
        to.publish(prepared[2:])
        assert sorted(each["args"][0] for each in enqueued()) == sorted(
            str(run.run_id) for run in runs
        )

    @pytest.mark.parametrize("error", [DataError("too long"), ValueError("poison")])
    def test_refused_run_does_not_block_the_others(
        self, backend: Callable[..., None], error: Exception
    ) -> None:
        backend(
            "tests.dispatch.backends.FailingBackend",
            QUEUES=["default", "poison"],
            OPTIONS={"errors_by_queue": {"poison": error}},
        )
        to = dispatcher()
        prepared = [to.prepare(due(queue=queue)) for queue in ("default", "poison", "default")]
        with pytest.raises(PartlyPublished, match="'poison'") as raised:
            to.publish(prepared)
        assert [position in raised.value.rejected for position in range(3)] == [False, True, False]
        assert len(enqueued()) == 2
        with pytest.raises(Undeliverable, match="'poison'"):
            to.publish(prepared[1:2])
        assert len(enqueued()) == 2

    @pytest.mark.parametrize(
        "error",
        [
            SSLCertVerificationError("certificate has expired"),
            json.JSONDecodeError("Expecting value", "<html>", 0),
            KeyError("id"),
        ],
    )
    def test_value_error_of_an_outage_does_not_fail_runs(
        self, backend: Callable[..., None], error: Exception
    ) -> None:
        backend(
            "tests.dispatch.backends.FailingBackend",
            OPTIONS={"errors_by_queue": {"default": error}},
        )
        to = dispatcher()
        for number in (1, 2):
            with pytest.raises(DispatchFailed) as raised:
                to.publish([to.prepare(due()) for _ in range(number)])
            assert raised.value.__cause__ is error

    def test_unreachable_backend_is_tried_for_a_few_runs_only(
        self, backend: Callable[..., None]
    ) -> None:
        attempted: list[str] = []
        options = {"errors_by_queue": {"default": RuntimeError("away")}, "attempted": attempted}
        backend("tests.dispatch.backends.FailingBackend", OPTIONS=options)
        to = dispatcher()
        prepared = [to.prepare(due(run_id=uuid4())) for _ in range(50)]
        for _ in range(2):
            with pytest.raises(DispatchFailed, match="RuntimeError: away"):
                to.publish(prepared)
        assert attempted == [item.run_id for item in prepared[:6]], (
            "the second call tries other runs"
        )

    def test_runs_that_cannot_be_enqueued_stay_and_block_no_others(
        self, backend: Callable[..., None], caplog: pytest.LogCaptureFixture
    ) -> None:
        """The agenda publishes the failing runs first: several of one target, one of another."""
        bad = [due_run(name, -1) for name in "pqrs"] + [due_run("t", -1, target="other")]
        errors_by_run = {str(run.run_id): RuntimeError("not this one") for run in bad}
        backend("tests.dispatch.backends.FailingBackend", OPTIONS={"errors_by_run": errors_by_run})
        clock = StillClock()
        agenda = Agenda(dispatcher(), clock)
        assert agenda.add([*bad, *(due_run("good") for _ in range(20))]) == []
        for _ in range(40):
            agenda.publish_due()
            clock.advance(2)
        assert len(enqueued()) == 20
        caplog.clear()
        agenda.add(
            [due_run("later"), due_run("later", target="other"), due_run("later", target="third")]
        )
        for _ in range(10):
            agenda.publish_due()
            clock.advance(2)
        assert len(enqueued()) == 23
        assert [run.job_name for run in agenda.take_dispatched()] == ["good"] * 20 + ["later"] * 3
        assert events(caplog, "broker_unreachable") == [], (
            "the backend is reachable, and no other run waits"
        )
        assert (agenda.take_refused(), len(agenda)) == ([], len(bad))
        errors_by_run.clear()
        for _ in range(10):
            agenda.publish_due()
            clock.advance(2)
        assert (len(enqueued()), len(agenda)) == (28, 0)

    def test_agenda_reports_activity_while_many_runs_are_enqueued(
        self, backend: Callable[..., None]
    ) -> None:
        attempted: list[str] = []
        backend("tests.dispatch.backends.FailingBackend", OPTIONS={"attempted": attempted})
        seen: list[int] = []
        agenda = Agenda(
            dispatcher(),
            StillClock(),
            on_dispatched=lambda: agenda.stop(),
            on_activity=lambda rest: seen.append(len(attempted)),
        )
        agenda.add(due_run("a") for _ in range(250))
        agenda.run()
        assert (seen, len(attempted)) == ([0, 100, 200], 250)


class TestSetup:
    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            (
                "django.tasks.backends.immediate.ImmediateBackend",
                "executes tasks immediately",
            ),
            ("django.tasks.backends.dummy.DummyBackend", "executes nothing"),
            ("tests.dispatch.backends.Gone", "InvalidTaskBackend: Could not find backend"),
        ],
    )
    def test_backend_that_cannot_execute_runs_is_refused(
        self, backend: Callable[..., None], kind: str, text: str
    ) -> None:
        backend(kind, alias="other")
        with pytest.raises(ImproperlyConfigured, match=f"task backend 'other'.* {text}"):
            dispatcher()

    def test_unknown_backend_is_refused(self, settings: Settings) -> None:
        settings.DCRON_TASKS_BACKEND = "nowhere"
        with pytest.raises(ImproperlyConfigured, match="'nowhere': InvalidTaskBackend: "):
            dispatcher()

    def test_node_does_not_start_with_an_unsuitable_backend(
        self, backend: Callable[..., None], settings: Settings
    ) -> None:
        settings.DCRON_DISPATCHER = "tasks"
        backend("django.tasks.backends.dummy.DummyBackend")
        with pytest.raises(CommandError, match=" 'default' "):
            call_command("runcron", once=True)

    @pytest.mark.django_db
    def test_unsuitable_backend_leaves_a_triggered_run_to_a_node(
        self,
        backend: Callable[..., None],
        settings: Settings,
        caplog: pytest.LogCaptureFixture,
        django_capture_on_commit_callbacks: Any,
    ) -> None:
        settings.DCRON_DISPATCHER = "tasks"
        backend("django.tasks.backends.immediate.ImmediateBackend")
        with django_capture_on_commit_callbacks(execute=True):
            run = control.trigger(make_idle_job())
        assert state_of(run) == "pending"
        assert logged(caplog, "dispatch_deferred", "task backend 'default'", run=str(run.pk))


# --- real nodes and workers ---------------------------------------------------------------------


@pytest.fixture
def start_task_worker(start_process: StartProcess) -> Callable[..., Process]:
    """Start a worker of the backend, which executes one run at a time in its main thread."""

    def start(**environment: str) -> Process:
        quick = ["--interval", "0.05", "--no-startup-delay", "--queue-name", "*"]
        worker = start_process(
            "db_worker", "-m", "django", "db_worker", *quick, env=SITE | environment
        )
        worker.wait_for_log("Starting worker", TIMEOUT)
        return worker

    return start


@pytest.fixture
def trigger(settings: Settings) -> Callable[..., Run]:
    """Trigger a run. This process dispatches it, as a web server would."""
    settings.DCRON_DISPATCHER = "tasks"

    def made(target: str, *args: Any, **fields: Any) -> Run:
        return control.trigger(make_idle_job(target=target, args=list(args), **fields))

    return made


def start_node(start_runcron: StartProcess, **environment: str) -> Process:
    node = start_runcron("--name", "a", env=SITE | environment)
    node.wait_for_log("node=a shards=64/64", TIMEOUT)
    return node


def wait_for_state(run: Run, state: str) -> Run:
    wait_until(lambda: state_of(run) == state, TIMEOUT, what=f"{run} to be {state}")
    return reread(run)


def wait_for_end(run: Run, number: int = 1) -> Attempt:
    ended = Attempt.objects.filter(run=run, number=number).exclude(outcome="")
    wait_until(ended.exists, TIMEOUT, what=f"the end of {run}, attempt {number}")
    return attempt_of(run, number)


def publish_attempt(run: Run, times: int = 1) -> None:
    """Publish the current attempt of the run directly, without a node."""
    publish_runs(
        *[DueRun(run.pk, run.attempt, run.due_at, run.job_id, str(run.job), run.job.target)] * times
    )


def test_job_runs_on_a_worker(
    start_task_worker: Callable[..., Process], start_runcron: StartProcess
) -> None:
    echo = make_job(target="tests.app.tasks.echo", args=[1], kwargs={"city": "Berlin"})
    own = make_job(target="tests.tasked.tasks.describe", args=["x"], queue="reports", priority=9)
    worker = start_task_worker()
    node = start_node(start_runcron)
    for job in (echo, own):
        runs = Run.objects.filter(job=job, state="succeeded")
        wait_until(lambda runs=runs: runs.count() >= 3, TIMEOUT, what="three runs")
    node.terminate()
    assert node.wait(TIMEOUT) == 0
    worker.terminate()
    assert worker.wait(TIMEOUT) == 0
    run = Run.objects.filter(job=echo, state="succeeded").first()
    assert run is not None
    attempt = attempt_of(run)
    assert (attempt.outcome, attempt.result) == (
        "succeeded",
        '{"args": [1], "kwargs": {"city": "Berlin"}}',
    )
    assert attempt.worker.endswith(f"/{worker.pid}")
    run = Run.objects.filter(job=own, state="succeeded").first()
    assert run is not None
    seen = json.loads(attempt_of(run).result)
    assert (seen["id"], seen["attempt"], seen["workers"]) == (str(run.pk), 1, [attempt.worker])
    assert node.log.count("broker") == 0, "the node needs no broker"


@pytest.mark.slow
def test_failed_run_is_retried(
    start_task_worker: Callable[..., Process],
    start_runcron: StartProcess,
    trigger: Callable[..., Run],
) -> None:
    start_task_worker()
    start_node(start_runcron)
    run = trigger("tests.tasked.tasks.fail", max_attempts=2, retry_backoff=timedelta())
    assert wait_for_state(run, "failed").attempt == 2
    assert [wait_for_end(run, number).exception_class for number in (1, 2)] == ["RuntimeError"] * 2


def test_duplicate_deliveries_start_once(
    start_task_worker: Callable[..., Process], trigger: Callable[..., Run]
) -> None:
    workers = [start_task_worker(), start_task_worker()]
    run = trigger("tests.app.tasks.witness", 0.3)
    publish_attempt(run, times=5)
    assert wait_for_end(run).outcome == "succeeded"
    publish_attempt(run, times=2)
    behind = trigger("tests.app.tasks.ok")
    assert wait_for_end(behind).outcome == "succeeded"
    assert (
        Witness.objects.filter(run_id=str(run.pk)).count()
        == Attempt.objects.filter(run=run).count()
        == 1
    )
    assert all(worker.running for worker in workers)


def test_timeout_is_recorded_and_the_worker_survives(
    start_task_worker: Callable[..., Process], trigger: Callable[..., Run]
) -> None:
    """A timeout is raised in the job's code. If the code continues, it is recorded at its end.

    Nothing ends the worker, because nothing could replace it.
    """
    worker = start_task_worker()
    asleep = trigger("tests.app.tasks.slow", LONG, timeout=timedelta(seconds=1))
    attempt = wait_for_end(asleep)
    assert (attempt.outcome, attempt.exception_class) == (
        "timed_out",
        "django_dcron.exceptions.RunTimedOut",
    )
    assert "in slow" in attempt.traceback
    uninterruptible = trigger(
        "tests.app.tasks.ignore_exceptions", 4.0, timeout=timedelta(seconds=1)
    )
    attempt = wait_for_end(uninterruptible)
    assert attempt.outcome == "timed_out"
    assert "did not stop within" in attempt.message
    assert wait_for_end(trigger("tests.app.tasks.ok")).outcome == "succeeded", (
        "after the code has returned"
    )
    assert worker.running


def test_cancel_stops_a_running_run(
    start_task_worker: Callable[..., Process], trigger: Callable[..., Run]
) -> None:
    """The worker gets no control command. It learns of the cancel from its next heartbeat."""
    worker = start_task_worker()
    run = trigger("tests.app.tasks.slow", LONG, max_attempts=3)
    wait_for_state(run, "running")
    control.cancel(reread(run), "by hand")
    attempt = wait_for_end(run)
    assert (attempt.outcome, state_of(run), reread(run).attempt) == ("cancelled", "cancelled", 1)
    assert wait_for_end(trigger("tests.app.tasks.ok")).outcome == "succeeded"
    assert worker.running


def test_cancelled_enqueued_run_is_dropped(
    start_task_worker: Callable[..., Process], trigger: Callable[..., Run]
) -> None:
    run = trigger("tests.app.tasks.witness")
    assert state_of(run) == "queued"
    control.cancel(reread(run), "by hand")
    start_task_worker()
    assert wait_for_end(trigger("tests.app.tasks.ok")).outcome == "succeeded"
    assert (state_of(run), Witness.objects.count()) == ("cancelled", 0)


@pytest.mark.slow
def test_run_of_a_killed_worker_is_retried(
    start_task_worker: Callable[..., Process],
    start_runcron: StartProcess,
    trigger: Callable[..., Run],
) -> None:
    start_node(start_runcron)
    worker = start_task_worker()
    run = trigger("tests.app.tasks.witness", LONG, max_attempts=2, retry_backoff=timedelta())
    wait_until(Witness.objects.exists, TIMEOUT, what="a start")
    worker.kill()
    attempt = wait_for_end(run)
    assert (attempt.outcome, attempt.worker.endswith(f"/{worker.pid}")) == ("lost", True)
    Job.objects.filter(pk=run.job_id).update(args=[0])
    start_task_worker()
    assert wait_for_state(run, "succeeded").attempt == 2


def test_stopped_worker_finishes_its_run(
    start_task_worker: Callable[..., Process], trigger: Callable[..., Run]
) -> None:
    worker = start_task_worker()
    run = trigger("tests.app.tasks.witness", 1.0)
    wait_until(Witness.objects.exists, TIMEOUT, what="a start")
    worker.terminate()
    assert worker.wait(TIMEOUT) == 0
    assert attempt_of(run).outcome == "succeeded"


@contextmanager
def tables_of_the_backend_missing() -> Iterator[None]:
    from django_tasks_db.models import DBTaskResult

    def rename(old: str, new: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")

    name = DBTaskResult._meta.db_table
    rename(name, f"{name}_away")
    try:
        yield
    finally:
        rename(f"{name}_away", name)


@pytest.mark.slow
def test_no_run_is_lost_while_the_backend_is_unreachable(
    start_task_worker: Callable[..., Process], start_runcron: StartProcess
) -> None:
    node = start_node(start_runcron)
    with tables_of_the_backend_missing():
        runs = [make_run(make_idle_job(target="tests.app.tasks.witness")) for _ in range(5)]
        node.wait_for_log("broker unreachable: ", TIMEOUT)
        assert {state_of(run) for run in runs} == {"pending"}
    node.wait_for_log("broker reachable again: ", TIMEOUT)
    start_task_worker()
    for run in runs:
        wait_for_state(run, "succeeded")
    assert Witness.objects.count() == len(runs)


@pytest.mark.slow
def test_triggered_run_is_left_to_a_node_while_backend_is_unreachable(
    start_task_worker: Callable[..., Process],
    start_runcron: StartProcess,
    trigger: Callable[..., Run],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "django_dcron.dispatch.best_effort._broker_unreachable_until", float("-inf")
    )
    with tables_of_the_backend_missing():
        run = trigger("tests.app.tasks.ok")
    assert state_of(run) == "pending"
    assert events(caplog, "dispatch_deferred")
    start_task_worker()
    start_node(start_runcron)
    wait_for_state(run, "succeeded")


def test_unknown_queue_fails_only_its_run(
    start_task_worker: Callable[..., Process], start_runcron: StartProcess
) -> None:
    start_task_worker()
    start_node(start_runcron)
    lost, fine = (make_run(make_idle_job(queue=queue)) for queue in ("nowhere", "reports"))
    wait_for_state(fine, "succeeded")
    assert (
        "queue 'nowhere' isn't a queue of the task backend" in wait_for_state(lost, "failed").reason
    )


@pytest.mark.postgresql
@pytest.mark.slow
def test_runs_are_enqueued_again_after_a_database_restart(
    start_task_worker: Callable[..., Process], start_runcron: StartProcess, database_server: Server
) -> None:
    node = start_node(start_runcron)
    first = make_run(make_idle_job())
    wait_for_state(first, "queued")
    connection.close()
    database_server.stop()
    database_server.start()
    second = make_run(make_idle_job())
    wait_for_state(second, "queued")
    start_task_worker()
    for run in (first, second):
        wait_for_state(run, "succeeded")
    assert node.running
