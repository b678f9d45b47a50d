"""The executor records the outcome of an attempt, whatever the job's code does."""

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast
from unittest import mock
from uuid import uuid4

import pytest
from django.db import (
    DatabaseError,
    DataError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
    connection,
    transaction,
)

import django_dcron
from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.exceptions import PermanentFailure, RetryLater, UnknownRun
from django_dcron.execution import database_outage, executor, unrecorded_outcome
from django_dcron.execution.executor import execute
from django_dcron.execution.heartbeat import Heartbeats
from django_dcron.execution.pending_outcomes import PendingOutcomes
from django_dcron.execution.storage_errors import Refusal, refusal_of
from django_dcron.execution.unrecorded_outcome import UnrecordedOutcome
from django_dcron.models import Attempt, Job, Run
from django_dcron.policies.lifecycle import Outcome, State
from django_dcron.runs import deliveries, endings
from django_dcron.runs.completion import Ending
from django_dcron.runs.endings import AttemptEnd
from django_dcron.targets import functions
from django_dcron.utils.threads import DcronThread
from tests.execution.conftest import RunFunction, attempt_of, cut_connection, reread, state_of
from tests.factories import make_idle_job, make_run

pytestmark = pytest.mark.django_db(transaction=True)


def test_success_is_recorded_with_its_result() -> None:
    run = make_run(
        make_idle_job(target="tests.app.tasks.echo", args=[1], kwargs={"city": "Köln"}), "queued"
    )
    assert execute(run.pk, 1, worker="w1@host")
    attempt = attempt_of(run)
    assert state_of(run) == State.SUCCEEDED
    assert json.loads(attempt.result) == {"args": [1], "kwargs": {"city": "Köln"}}
    assert attempt.worker == "w1@host"


def test_run_whose_arguments_do_not_fit_the_code_of_the_worker_says_so(
    run_function: RunFunction,
) -> None:
    def charge(amount: int = 0) -> None:
        raise AssertionError("must not be called")

    run, attempt = run_function(charge, run={"kwargs": {"amount": 1, "currency": "EUR"}})
    assert run.state == State.FAILED
    assert attempt.exception_class == "django_dcron.exceptions.SignatureMismatch"
    assert "restart the nodes and workers" in attempt.message
    assert "'currency'" in attempt.message
    assert "unexpected keyword argument" in attempt.traceback, "Python's error is the cause"


def test_size_of_the_arguments_is_no_mismatch(run_function: RunFunction, settings: Any) -> None:
    """The limit applies when a job is saved. It may have been lowered since."""

    def fails(text: str) -> None:
        raise TypeError(f"not {len(text)}")

    settings.DCRON_ARGUMENTS_LIMIT = 10
    _, attempt = run_function(fails, run={"args": ["x" * 100], "kwargs": {}}, args=["x"])
    assert attempt.exception_class == "TypeError"


def test_failing_check_of_the_arguments_does_not_replace_the_error(
    run_function: RunFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_fails(*_arguments: Any) -> None:
        raise LookupError("of the parser")

    def fails() -> None:
        monkeypatch.setattr(functions.FunctionTarget, "check_arguments", check_fails)
        raise TypeError("of the code")

    _, attempt = run_function(fails)
    assert (attempt.exception_class, attempt.message) == ("TypeError", "of the code")


def test_type_error_of_the_code_itself_is_recorded_as_it_is(run_function: RunFunction) -> None:
    _, attempt = run_function(lambda: len(1))  # type: ignore[arg-type]
    assert attempt.exception_class == "TypeError"


def test_mismatch_of_a_task_that_retries_by_itself_is_recorded_as_mismatch() -> None:
    run = make_run(
        make_idle_job(target="tests.app.tasks.retry_for_any_error", args=[1], max_attempts=3),
        "queued",
        kwargs={"currency": "EUR"},
    )
    assert execute(run.pk, 1, worker="w")
    assert attempt_of(run).exception_class == "django_dcron.exceptions.SignatureMismatch"
    assert reread(run).attempt == 2, "another worker may accept them"


def test_each_attempt_stores_due_at_and_queued_at(make_target: Any) -> None:
    job = make_idle_job(
        target=make_target(lambda: 1 / 0), max_attempts=2, retry_backoff=timedelta()
    )
    run = make_run(job, "queued")
    assert execute(run.pk, 1, worker="w")
    between = reread(run)
    dispatched = between.due_at + timedelta(milliseconds=2)
    assert deliveries.mark_queued([(run.pk, 2)], dispatched) == 1
    assert execute(run.pk, 2, worker="w")

    first, second = attempt_of(run, 1), attempt_of(run, 2)
    assert (first.due_at, first.queued_at) == (run.due_at, run.queued_at)
    assert (second.due_at, second.queued_at) == (between.due_at, dispatched)
    assert run.due_at < between.due_at
    assert state_of(run) == State.FAILED


def test_arguments_of_the_run_override_those_of_the_job(run_function: RunFunction) -> None:
    def add(a: int, b: int = 0) -> int:
        return a + b

    _, attempt = run_function(add, {"args": [2], "kwargs": {"b": 3}}, args=[10])
    assert attempt.result == "5"


def test_empty_arguments_override_those_of_the_job(run_function: RunFunction) -> None:
    def count(*args: int) -> int:
        return len(args)

    assert run_function(count, {"args": []}, args=[1, 2])[1].result == "0"


def test_duplicate_or_unknown_run_is_not_executed(make_target: Any) -> None:
    calls = []
    job = make_idle_job(target=make_target(lambda: calls.append(1)))
    run = make_run(job, "queued")
    assert execute(run.pk, 1, worker="w")
    assert not execute(run.pk, 1, worker="w")
    with pytest.raises(UnknownRun):
        execute(uuid4(), 1, worker="w")
    assert calls == [1]


def test_failure_is_recorded_with_traceback_and_log(run_function: RunFunction) -> None:
    def fail() -> None:
        print("about to fail")  # noqa: T201
        raise LookupError("no shop")

    run, attempt = run_function(fail)
    assert (run.state, run.reason) == (State.FAILED, "LookupError: no shop")
    assert (attempt.outcome, attempt.exception_class) == (Outcome.FAILED, "LookupError")
    assert "in fail" in attempt.traceback
    assert attempt.log == "about to fail\n"


def first_frames(traceback: str) -> list[str]:
    """The function in which each traceback of the text begins."""
    lines = traceback.splitlines()
    return [
        lines[number + 1].rpartition(" in ")[2]
        for number, line in enumerate(lines)
        if line.strip(" |+-").startswith(
            ("Traceback (most recent", "Exception Group Traceback (most recent")
        )
    ]


def test_traceback_omits_frames_of_django_dcron(run_function: RunFunction) -> None:
    def outer() -> None:
        inner()

    def inner() -> None:
        raise LookupError("no shop")

    assert first_frames(run_function(outer)[1].traceback) == ["outer"]


def test_tracebacks_of_causes_and_groups_omit_frames_of_django_dcron(
    run_function: RunFunction, settings: Any
) -> None:
    def fail() -> None:
        raise LookupError("no shop")

    def several() -> None:
        try:
            fail()
        except LookupError as error:
            raise ExceptionGroup("several", [error, ValueError("never raised")]) from error

    assert first_frames(run_function(several)[1].traceback) == ["several"] * 3
    settings.DCRON_MIDDLEWARE = ["tests.execution.test_executor.chaining"]
    assert first_frames(run_function(fail)[1].traceback) == ["fail", "chained"], (
        "the frames of django-dcron are omitted"
    )


def chaining(call_next: Any) -> Any:
    """Middleware that raises its own exception, caused by the target's."""

    def chained(run: Any) -> Any:
        try:
            return call_next(run)
        except LookupError as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            raise RuntimeError("wrapped") from error

    return chained


def test_traceback_with_only_frames_of_django_dcron_is_kept(run_function: RunFunction) -> None:
    traceback = run_function(lambda: None, {"kwargs": {"unknown": 1}})[1].traceback
    assert first_frames(traceback) == ["_call_target", "_call"]
    assert "in call" in traceback


def test_retry_later_schedules_the_next_attempt(run_function: RunFunction) -> None:
    def later() -> None:
        raise RetryLater("busy", after=timedelta(hours=1))

    run, attempt = run_function(later, max_attempts=2)
    assert (run.state, run.attempt) == (State.PENDING, 2)
    assert run.due_at - attempt.started_at > timedelta(minutes=59)


def test_permanent_failure_is_not_retried(run_function: RunFunction) -> None:
    def refuse() -> None:
        raise PermanentFailure("no such shop")

    assert run_function(refuse, max_attempts=5)[0].state == State.FAILED


def test_missing_target_fails_the_run_without_retry() -> None:
    job = make_idle_job(max_attempts=5)
    Job.objects.update(target="gone.after.deploy")
    run = make_run(job)
    assert execute(run.pk, 1, worker="w")
    assert state_of(run) == State.FAILED
    assert "'gone.after.deploy'" in reread(run).reason


class WorkerShutdown(SystemExit):
    """The same kind of exception as Celery's shutdown exceptions."""


def test_system_exit_in_a_job_is_a_failure(make_target: Any) -> None:
    run = make_run(make_idle_job(target=make_target(lambda: sys.exit(3))))
    assert execute(run.pk, 1, worker="w")
    assert state_of(run) == State.FAILED
    assert attempt_of(run).exception_class == "SystemExit"


@pytest.mark.parametrize("fatal", [WorkerShutdown, KeyboardInterrupt])
def test_exception_that_ends_the_process_is_recorded_and_raised(
    make_target: Any, fatal: type[BaseException]
) -> None:
    def leave() -> None:
        raise fatal

    run = make_run(make_idle_job(target=make_target(leave)))
    with pytest.raises(fatal):
        execute(run.pk, 1, worker="w")
    assert state_of(run) == State.FAILED
    assert attempt_of(run).exception_class.endswith(fatal.__name__)


# --- results and logs ---------------------------------------------------------------------------


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


class Endless:
    def __repr__(self) -> str:
        return repr([self])


class Fancy:
    def __repr__(self) -> str:
        return "<a fancy \ud800 thing \x00>"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, ""),
        (0, "0"),
        ("", '""'),
        ([1, {"a": None}], '[1, {"a": null}]'),
        (timedelta(hours=1), '"P0DT01H00M00S"'),
        ({1, 2}, '{"repr": "{1, 2}"}'),
        (b"\x00", '{"repr": "b\'\\\\x00\'"}'),
        (Unprintable(), '{"repr": "<Unprintable: repr() raises RuntimeError>"}'),
        (Endless(), '{"repr": "<Endless: repr() raises RecursionError>"}'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_result_is_recorded(run_function: RunFunction, value: Any, stored: str) -> None:
    run, attempt = run_function(lambda: value)
    assert run.state == State.SUCCEEDED
    assert attempt.result == stored
    assert attempt.return_value == (json.loads(stored) if stored else None)


def test_result_with_invalid_characters_is_recorded(run_function: RunFunction) -> None:
    run, attempt = run_function(lambda: [Fancy(), "\x00\ud800"])
    assert run.state == State.SUCCEEDED
    assert "fancy" in attempt.result


def test_huge_result_is_truncated_with_a_mark(run_function: RunFunction, settings: Any) -> None:
    settings.DCRON_RESULT_LIMIT = 1000
    run, attempt = run_function(lambda: "x" * 5_000_000)
    assert run.state == State.SUCCEEDED
    assert len(attempt.result) < 1100
    assert "characters omitted" in attempt.result
    with pytest.raises(ValueError, match="DCRON_RESULT_LIMIT"):
        _ = attempt.return_value


def test_huge_log_is_truncated_with_a_mark(run_function: RunFunction) -> None:
    def chatter() -> None:
        for i in range(20_000):
            print(f"line {i}", "x" * 200)  # noqa: T201
        print("nearly \x00 done \ud800")  # noqa: T201

    run, attempt = run_function(chatter)
    assert run.state == State.SUCCEEDED
    assert len(attempt.log) < 65_700
    assert attempt.log.startswith("line 0")
    assert "characters omitted" in attempt.log
    assert attempt.log.endswith("nearly \ufffd done \ufffd\n")


# --- middleware ---------------------------------------------------------------------------------

calls: list[str] = []


def outer(call_next: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(run: Any) -> Any:
        calls.append(f"outer sees {run.job}")
        try:
            return f"<{call_next(run)}>"
        finally:
            calls.append("outer after")

    return call


def inner(call_next: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(run: Any) -> Any:
        calls.append("inner before")
        return call_next(run)

    return call


def broken(call_next: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(run: Any) -> Any:
        raise ArithmeticError("the middleware fails")

    return call


def skipping(call_next: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda run: "not called"


def use(settings: Any, *names: str) -> None:
    settings.DCRON_MIDDLEWARE = [f"{__name__}.{name}" for name in names]
    calls.clear()


def test_middleware_is_called_outermost_first_and_can_change_the_result(
    run_function: RunFunction, settings: Any
) -> None:
    use(settings, "outer", "inner")
    run, attempt = run_function(lambda: calls.append("target"))
    assert calls == [f"outer sees {run.job}", "inner before", "target", "outer after"]
    assert attempt.result == '"<None>"'


def test_middleware_can_skip_the_target(run_function: RunFunction, settings: Any) -> None:
    use(settings, "skipping")
    assert run_function(lambda: calls.append("target"))[1].result == '"not called"'
    assert not calls


def test_exception_in_middleware_is_a_failure(run_function: RunFunction, settings: Any) -> None:
    use(settings, "outer", "broken")
    run, attempt = run_function(lambda: None)
    assert (run.state, attempt.exception_class) == (State.FAILED, "ArithmeticError")


def test_missing_middleware_is_a_failure(run_function: RunFunction, settings: Any) -> None:
    use(settings, "nowhere")
    run, attempt = run_function(lambda: None)
    assert run.state == State.FAILED
    assert "nowhere" in attempt.message


def test_target_is_called_without_middleware(run_function: RunFunction, settings: Any) -> None:
    settings.DCRON_MIDDLEWARE = []
    assert run_function(lambda: 1)[1].result == "1"


# --- the database -------------------------------------------------------------------------------


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pauses of an outage take no time."""
    monkeypatch.setattr(database_outage.time, "sleep", lambda seconds: None)


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_connection_lost_during_the_run_is_replaced(run_function: RunFunction) -> None:
    def lose_connection() -> str:
        cut_connection()
        return "done"

    run, attempt = run_function(lose_connection)
    assert (run.state, attempt.result) == (State.SUCCEEDED, '"done"')


def test_outcome_is_committed_if_the_job_leaves_a_transaction_open(
    run_function: RunFunction,
) -> None:
    def leave_open() -> None:
        transaction.set_autocommit(False)
        make_idle_job()

    run, _ = run_function(leave_open)
    connection.close()
    assert state_of(run) == State.SUCCEEDED


def failing(times: int, error: Exception, real: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``real`` so that its first ``times`` calls raise ``error``."""
    left = [times]

    def call(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        return real(*args, **kwargs)

    return call


@pytest.mark.usefixtures("no_pauses")
def test_start_and_outcome_wait_for_the_database(
    run_function: RunFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = OperationalError("server closed the connection unexpectedly")
    monkeypatch.setattr(executor, "start_attempt", failing(10, gone, executor.start_attempt))
    monkeypatch.setattr(unrecorded_outcome, "_is_reachable", lambda using: False)
    monkeypatch.setattr(
        unrecorded_outcome, "end_attempt", failing(30, gone, unrecorded_outcome.end_attempt)
    )
    run, attempt = run_function(lambda: "kept")
    assert (run.state, attempt.result) == (State.SUCCEEDED, '"kept"')
    assert Attempt.objects.count() == 1


@pytest.mark.usefixtures("no_pauses")
def test_start_and_outcome_are_recorded_once_if_the_response_is_lost(
    run_function: RunFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers to the start and to the outcome are lost, once each."""

    def response_lost(real: Callable[..., Any]) -> Callable[..., Any]:
        shown = []

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = real(*args, **kwargs)
            if not shown:
                shown.append(1)
                raise InterfaceError("connection already closed")
            return answer

        return call

    monkeypatch.setattr(executor, "start_attempt", response_lost(executor.start_attempt))
    monkeypatch.setattr(
        unrecorded_outcome, "end_attempt", response_lost(unrecorded_outcome.end_attempt)
    )
    calls.clear()
    run, attempt = run_function(lambda: calls.append("once"))
    assert (run.state, attempt.outcome, attempt.late_outcome) == (
        State.SUCCEEDED,
        Outcome.SUCCEEDED,
        "",
    )
    assert run.job.statistics.succeeded == 1
    assert calls == ["once"]


@pytest.mark.parametrize("declared_lost", [False, True])
def test_code_is_not_called_if_the_attempt_was_lost_while_the_process_was_suspended(
    make_target: Any, monkeypatch: pytest.MonkeyPatch, declared_lost: bool
) -> None:
    calls: list[int] = []
    target = make_target(lambda: calls.append(1))
    run = make_run(make_idle_job(target=target, max_attempts=2), "queued")
    long_ago, monotonic = database_now("default") - timedelta(hours=1), executor.time.monotonic
    beats: list[Any] = []

    def suspend(point: str) -> None:
        if point == "start.done":
            monkeypatch.setattr(executor.time, "monotonic", lambda: monotonic() + 3600)
            Run.objects.update(heartbeat_at=long_ago)
            if declared_lost:
                endings.retry(reread(run), AttemptEnd(1, {"outcome": "lost"}), long_ago, "")
        elif point == "work.done":
            beats.append(reread(run).heartbeat_at)

    monkeypatch.setattr(executor, "reach_sync_point", suspend)
    assert (execute(run.pk, 1, worker="w") is None) == declared_lost
    assert calls == [1] * (not declared_lost)
    assert [beat > long_ago for beat in beats] == [True] * (not declared_lost)
    assert (attempt_of(run).outcome == "lost") == declared_lost


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("declared_lost", [False, True])
def test_repeated_start_renews_the_heartbeat(
    make_target: Any, monkeypatch: pytest.MonkeyPatch, declared_lost: bool
) -> None:
    """The first heartbeat may be outdated. The run may even have been declared lost."""
    real, run = (
        executor.start_attempt,
        make_run(make_idle_job(target=make_target(lambda: None), max_attempts=2), "queued"),
    )
    long_ago = database_now("default") - timedelta(hours=1)

    def response_lost(*given: Any, **how: Any) -> Any:
        assert real(*given, **how) is not None
        Run.objects.update(heartbeat_at=long_ago)
        if declared_lost:
            endings.retry(reread(run), AttemptEnd(1, {"outcome": "lost"}), long_ago, "")
        monkeypatch.setattr(executor, "start_attempt", real)
        raise InterfaceError("connection already closed")

    monkeypatch.setattr(executor, "start_attempt", response_lost)
    beats: list[Any] = []
    monkeypatch.setattr(
        executor,
        "_call",
        lambda _: beats.append(reread(run).heartbeat_at) or (Ending(Outcome.SUCCEEDED), None),
    )
    assert (execute(run.pk, 1, worker="w") is None) == declared_lost
    assert [beat > long_ago for beat in beats] == [True] * (not declared_lost)


@pytest.mark.usefixtures("no_pauses")
def test_start_gives_up_after_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "START_TIMEOUT", 0.0)
    monkeypatch.setattr(
        executor, "start_attempt", failing(9, OperationalError("gone"), executor.start_attempt)
    )
    run = make_run(make_idle_job(), "queued")
    with pytest.raises(OperationalError):
        execute(run.pk, 1, worker="w")
    assert state_of(run) == State.QUEUED


def test_run_delivered_early_starts_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    due_at = database_now("default") + timedelta(seconds=1.5)
    run = make_run(make_idle_job(), "queued", due_at=due_at)
    waited: list[float] = []

    def wait(seconds: float) -> None:
        assert not connection.in_atomic_block
        assert state_of(run) == State.QUEUED
        waited.append(seconds)
        Run.objects.update(due_at=database_now("default"))  # as if the time had passed

    monkeypatch.setattr(executor.time, "sleep", wait)
    assert execute(run.pk, 1, worker="w")
    assert len(waited) == 1
    assert 0 < waited[0] <= 1.5
    assert state_of(run) == State.SUCCEEDED


def test_run_cancelled_before_its_due_time_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(
        make_idle_job(), "queued", due_at=database_now("default") + timedelta(seconds=1.5)
    )
    monkeypatch.setattr(executor.time, "sleep", lambda seconds: control.cancel(run, "by hand"))
    assert not execute(run.pk, 1, worker="w")
    assert state_of(run) == State.CANCELLED
    assert not Attempt.objects.exists()


def test_run_withdrawn_before_its_due_time_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(
        make_idle_job(), "queued", due_at=database_now("default") + timedelta(seconds=1.5)
    )
    monkeypatch.setattr(executor.time, "sleep", lambda seconds: Run.objects.all().delete())
    assert not execute(run.pk, 1, worker="w")


@pytest.mark.parametrize("state", ["pending", "queued"])
def test_run_delivered_much_too_early_returns_to_the_nodes(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens when the database's clock was set back. No worker waits for such a run."""
    run = make_run(
        make_idle_job(), state, node="a", due_at=database_now("default") + timedelta(minutes=1)
    )
    monkeypatch.setattr(executor.time, "sleep", lambda seconds: pytest.fail("it waits"))
    assert not execute(run.pk, 1, worker="w")
    assert (state_of(run), reread(run).node) == (State.PENDING, "")
    assert deliveries.mark_queued([(run.pk, 1)], run.due_at, node="a") == 0, (
        "the run no longer belongs to node a"
    )


def refusing(error: Exception, real: Callable[..., Any]) -> Callable[..., Any]:
    """Behave like a database that refuses attempts with a log."""

    def end_attempt(run: Run, attempt: int, ending: Any, token: Any) -> Any:
        if ending.output:
            raise error
        return real(run, attempt, ending, token)

    return end_attempt


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(
    "error",
    [
        DataError("invalid byte sequence \ud800"),
        OperationalError(1366, "Incorrect string value: '\\xF0\\x9F'"),
        OperationalError(1153, "Got a packet bigger than 'max_allowed_packet' bytes"),
        TypeError("an unexpected error"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("job", [lambda: "a result", lambda: 1 / 0], ids=["success", "failure"])
def test_outcome_is_recorded_if_the_database_refuses_its_texts(
    run_function: RunFunction,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    job: Callable[[], Any],
) -> None:
    monkeypatch.setattr(
        unrecorded_outcome, "end_attempt", refusing(error, unrecorded_outcome.end_attempt)
    )
    run, attempt = run_function(job)
    assert run.state == attempt.outcome
    assert run.state in {State.SUCCEEDED, State.FAILED}
    assert "texts could not be recorded" in attempt.message
    assert type(error).__name__ in attempt.message


def caused(error: DatabaseError, **about: Any) -> DatabaseError:
    """Chain ``error`` to a driver's exception with these attributes, as Django does."""
    error.__cause__ = type("DriversOwn", (Exception,), about)()
    return error


FULL = caused(OperationalError("could not extend file: No space left on device"), sqlstate="53100")
READ_ONLY = caused(
    InternalError("cannot execute UPDATE in a read-only transaction"), sqlstate="25006"
)
FORBIDDEN = caused(ProgrammingError("permission denied for table dcron_attempt"), sqlstate="42501")


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(
    "error",
    [
        FULL,
        READ_ONLY,
        FORBIDDEN,
        caused(OperationalError("server closed the connection unexpectedly"), sqlstate=None),
        caused(OperationalError("attempt to write a readonly database"), sqlite_errorcode=8),
        caused(OperationalError("database or disk is full"), sqlite_errorcode=13),
        OperationalError(1114, "The table 'dcron_attempt' is full"),
        OperationalError(1290, "The server is running with the --read-only option"),
        OperationalError(2013, "Lost connection to server during query"),
    ],
    ids=repr,
)
def test_outcome_with_texts_is_retried_until_the_database_can_write(
    run_function: RunFunction, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    # An odd number: a record without texts after each refusal would be the one that succeeds.
    monkeypatch.setattr(
        unrecorded_outcome, "end_attempt", failing(51, error, unrecorded_outcome.end_attempt)
    )
    run, attempt = run_function(lambda: "kept")
    assert (run.state, attempt.result, attempt.message) == (State.SUCCEEDED, '"kept"', "")


@pytest.mark.usefixtures("no_pauses")
def test_outcome_without_texts_is_retried_until_recorded(
    run_function: RunFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = iter(
        [DataError("invalid byte sequence"), FORBIDDEN, DataError("invalid byte sequence")]
    )
    real = unrecorded_outcome.end_attempt

    def end_attempt(*args: Any) -> bool:
        if error := next(errors, None):
            raise error
        return real(*args)

    monkeypatch.setattr(unrecorded_outcome, "end_attempt", end_attempt)
    run, attempt = run_function(lambda: "a result")
    assert run.state == State.SUCCEEDED
    assert "texts could not be recorded" in attempt.message


@pytest.mark.usefixtures("no_pauses")
def test_unknown_database_error_records_the_outcome_without_texts(
    run_function: RunFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        unrecorded_outcome,
        "end_attempt",
        refusing(OperationalError("unknown reason"), unrecorded_outcome.end_attempt),
    )
    run, attempt = run_function(lambda: "a result")
    assert run.state == State.SUCCEEDED
    assert "unknown reason" in attempt.message


@pytest.mark.mariadb
@pytest.mark.parametrize(
    "lost",
    [
        lambda: OperationalError(2006, "Server has gone away"),
        # from ``cursor.close()``, whose exceptions Django doesn't wrap
        lambda: cast(Any, connection).Database.ProgrammingError(2014, "Commands out of sync"),
    ],
)
def test_lost_connection_blames_the_texts_only_if_they_are_too_large(
    lost: Callable[[], Exception],
) -> None:
    small, large = (
        Ending(Outcome.SUCCEEDED, result="x" * size) for size in (1000, 32 * 1024 * 1024)
    )
    assert refusal_of(lost(), small, "default") is Refusal.TEMPORARY
    assert refusal_of(lost(), large, "default") is Refusal.TEXTS


@pytest.mark.usefixtures("no_pauses")
def test_outcome_with_texts_is_retried_after_contention(
    run_function: RunFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = OperationalError("deadlock detected")
    monkeypatch.setattr(
        unrecorded_outcome, "end_attempt", failing(10, busy, unrecorded_outcome.end_attempt)
    )
    assert run_function(lambda: "kept")[1].result == '"kept"'


def test_database_is_reachable_if_it_responds() -> None:
    assert unrecorded_outcome._is_reachable("default")
    with mock.patch.object(unrecorded_outcome, "database_now", side_effect=OperationalError):
        assert not unrecorded_outcome._is_reachable("default")


def test_outcome_is_recorded_by_the_worker_itself_if_no_thread_can_keep_it(
    make_target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows were locked, and the system has too many threads."""
    run = make_run(make_idle_job(target=make_target(lambda: "done")), "queued")
    record, start = UnrecordedOutcome.record_unless_locked, DcronThread.start
    locked = iter([True, True])

    def refuse(thread: DcronThread) -> None:
        if thread.name == "dcron-outcomes":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(executor, "process_outcomes", PendingOutcomes)
    monkeypatch.setattr(DcronThread, "start", refuse)
    monkeypatch.setattr(
        UnrecordedOutcome,
        "record_unless_locked",
        lambda outcome: not next(locked, False) and record(outcome),
    )
    assert execute(run.pk, 1, worker="w") is Outcome.SUCCEEDED
    assert state_of(run) == State.SUCCEEDED


def test_attempt_is_lost_at_once_if_no_thread_can_write_its_heartbeats(
    make_target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without heartbeats, a node would declare it lost later, while its code still runs."""

    def refuse(thread: DcronThread) -> None:
        raise RuntimeError("can't start new thread")

    executed: list[int] = []
    target = make_target(lambda: executed.append(1))
    run = make_run(make_idle_job(target=target, max_attempts=2), "queued")
    monkeypatch.setattr(DcronThread, "start", refuse)
    assert execute(run.pk, 1, worker="w", heartbeats=Heartbeats()) is Outcome.LOST
    assert not executed
    assert (state_of(run), reread(run).attempt) == (State.PENDING, 2), "the retry policy decides"
    attempt = attempt_of(run)
    assert (attempt.outcome, attempt.log) == ("lost", "")
    assert "can't start new thread" in attempt.message


def test_late_outcome_of_a_run_declared_lost_is_only_recorded(make_target: Any) -> None:
    def be_lost() -> str:
        current = django_dcron.current_run()
        endings.retry(current.run, AttemptEnd(1, {"outcome": "lost"}), current.started_at, "lost")
        return "too late"

    run = make_run(make_idle_job(target=make_target(be_lost), max_attempts=2))
    assert execute(run.pk, 1, worker="w")
    assert (state_of(run), reread(run).attempt) == (State.PENDING, 2)
    attempt = attempt_of(run)
    assert (attempt.outcome, attempt.late_outcome, attempt.result) == ("lost", "succeeded", "")
