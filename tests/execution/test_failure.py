"""From an exception to an ending, even if the exception's own methods fail."""

import re
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError

from django_dcron import exceptions, targets
from django_dcron.exceptions import (
    InvalidArguments,
    PermanentFailure,
    RetryLater,
    RunCancelled,
    RunTimedOut,
    SignatureMismatch,
    UnknownTarget,
)
from django_dcron.execution.failure import OLDER_CODE, RESTART, ending_of, exception_names
from django_dcron.models.attempt import LONGEST_PLACE
from django_dcron.policies.incidents import message_line
from django_dcron.policies.lifecycle import Outcome
from django_dcron.policies.retry import FailureClass
from django_dcron.runs.completion import Ending


def ending(exception: BaseException, attempt: int = 1, max_attempts: int = 2) -> Ending:
    """Raise the exception and return its ending."""
    run = mock.Mock(attempt=attempt)
    run.job.max_attempts = max_attempts
    run.output.return_value = {"log": "printed"}
    run.timeout = timedelta(seconds=2)
    try:
        raise exception
    except BaseException as raised:
        return ending_of(raised, run)


@pytest.mark.parametrize(
    ("exception", "outcome"),
    [
        (ValueError(), Outcome.FAILED),
        (TimeoutError(), Outcome.FAILED),
        (SystemExit(1), Outcome.FAILED),
        (KeyboardInterrupt(), Outcome.FAILED),
        (RunTimedOut(), Outcome.TIMED_OUT),
        (SoftTimeLimitExceeded(), Outcome.TIMED_OUT),
        (RunCancelled(), Outcome.CANCELLED),
    ],
    ids=repr,
)
def test_exception_determines_the_outcome(exception: BaseException, outcome: Outcome) -> None:
    assert ending(exception).outcome == outcome


@pytest.mark.parametrize(
    ("exception", "kind"),
    [
        (ValueError(), FailureClass.TRANSIENT),
        (PermanentFailure(), FailureClass.PERMANENT),
        (UnknownTarget("x"), FailureClass.PERMANENT),
        (InvalidArguments("x", "args"), FailureClass.PERMANENT),
        (OperationalError("deadlock detected"), FailureClass.CONTENTION),
        (
            OperationalError("could not serialize access due to concurrent update"),
            FailureClass.CONTENTION,
        ),
        (OperationalError(1213, "Deadlock found when trying to get lock"), FailureClass.CONTENTION),
        (OperationalError(1205, "Lock wait timeout exceeded"), FailureClass.CONTENTION),
        (OperationalError("database is locked"), FailureClass.CONTENTION),
        (OperationalError("server closed the connection unexpectedly"), FailureClass.TRANSIENT),
        (RuntimeError("deadlock"), FailureClass.TRANSIENT),
    ],
    ids=repr,
)
def test_exception_determines_the_failure_class(exception: Exception, kind: FailureClass) -> None:
    failure = ending(exception).failure
    assert failure is not None
    assert failure.kind == kind


def test_unknown_target_first_advises_a_restart() -> None:
    assert ending(UnknownTarget("x")).message == f"x. {RESTART}"


def test_restart_is_advised_before_the_registration_of_a_function() -> None:
    """The function may be registered in newer code than that of the worker."""
    key = f"{__name__}.{test_exception_determines_the_failure_class.__name__}"
    with pytest.raises(UnknownTarget) as unknown:
        targets.get(key)
    assert str(unknown.value.params["advice"]) in str(unknown.value)
    message = ending(unknown.value).message
    cause, restart, advice = message.partition(RESTART)
    assert f"the module {__name__} exists." in cause
    assert restart
    assert advice.startswith(" Otherwise, register the function with shared_task")
    assert advice.endswith("imports.")


def test_name_of_a_target_is_not_taken_for_advice() -> None:
    with pytest.raises(UnknownTarget) as unknown:
        targets.get("tills. Register")
    assert ending(unknown.value).message == f"{unknown.value} {RESTART}"


def test_advice_follows_a_question_without_a_period() -> None:
    message = ending(UnknownTarget("Did you mean 'x'?")).message
    assert message == f"Did you mean 'x'? {RESTART}"


def test_mismatch_of_arguments_advises_a_restart_and_is_tried_again() -> None:
    mismatch = ending(SignatureMismatch("x"))
    assert mismatch.message == f"x. {OLDER_CODE}"
    assert mismatch.failure is not None
    assert mismatch.failure.kind == FailureClass.TRANSIENT, "another worker may accept them"
    assert "TypeError" in mismatch.failure.exception_names


def test_cancelled_run_has_no_failure() -> None:
    assert ending(RunCancelled()).failure is None


def test_retry_later_sets_the_delay() -> None:
    failure = ending(RetryLater("busy", after=timedelta(minutes=5))).failure
    assert failure is not None
    assert (failure.retry_wanted, failure.retry_after) == (True, timedelta(minutes=5))


@pytest.mark.parametrize(("attempt", "allowed"), [(1, "one attempt"), (3, "3 attempts")])
def test_message_states_that_the_job_allows_no_retry(attempt: int, allowed: str) -> None:
    message = ending(RetryLater("busy"), attempt, attempt).message
    assert allowed in message
    assert message.endswith("busy")
    assert ending(RetryLater("busy"), attempt, attempt + 1).message == "busy"
    assert ending(ValueError("busy"), attempt, attempt).message == "busy"


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_retry_later_without_a_message_is_recorded_as_its_cause(max_attempts: int) -> None:
    def recorded(message: str) -> Ending:
        later = RetryLater(message)
        later.__cause__ = ConnectionError("no answer")
        return ending(later, 1, max_attempts)

    assert recorded("").exception_class == "ConnectionError"
    assert message_line(recorded("").message) == "no answer"
    assert ("one attempt" in recorded("").message) == (max_attempts == 1)
    assert recorded("busy").exception_class == "django_dcron.exceptions.RetryLater"
    assert message_line(recorded("busy").message) == "busy"
    failure = recorded("").failure
    assert failure is not None
    assert failure.retry_wanted


@pytest.mark.parametrize("cause", [None, TimeoutError()])
def test_attempts_without_a_message_are_one_incident(cause: Exception | None) -> None:
    later = RetryLater()
    later.__cause__ = cause
    first, last = ending(later, 1, 2), ending(later, 2, 2)
    assert first.exception_class == last.exception_class
    assert message_line(first.message) == message_line(last.message) == ""


def test_cause_that_is_false_is_recorded() -> None:
    class Empty(Exception):
        def __len__(self) -> int:
            return 0

    later = PermanentFailure()
    later.__cause__ = Empty("nothing")
    recorded = ending(later)
    assert recorded.message == "nothing"
    assert recorded.failure is not None
    assert recorded.failure.kind is FailureClass.PERMANENT


def test_message_whose_methods_fail_is_recorded() -> None:
    class Weird(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    for later in (RetryLater(Weird()), RetryLater()):  # type: ignore[arg-type]
        later.__cause__ = Weird()
        assert ending(later).exception_class


def test_retry_later_includes_the_names_of_its_cause() -> None:
    try:
        raise RetryLater from ConnectionError("x")
    except RetryLater as later:
        failure = ending(later).failure
    assert failure is not None
    assert failure.exception_names >= {"RetryLater", "ConnectionError", "OSError"}


@pytest.mark.parametrize("after", [60, 1.5, "soon"])
def test_retry_later_refuses_an_invalid_duration(after: Any) -> None:
    with pytest.raises(TypeError, match="timedelta"):
        RetryLater(after=after)


def test_exception_names_include_all_base_classes() -> None:
    class Special(ConnectionResetError): ...

    dotted = f"{__name__}.{Special.__qualname__}"
    assert exception_names(Special()) == {
        "Special",
        dotted,
        "ConnectionResetError",
        "ConnectionError",
        "OSError",
        "Exception",
        "BaseException",
    }


def test_class_message_and_traceback_are_recorded() -> None:
    kept = ending(PermanentFailure("no such shop"))
    assert kept.exception_class == "django_dcron.exceptions.PermanentFailure"
    assert kept.message == "no such shop"
    assert "raise exception" in kept.traceback
    assert kept.output == {"log": "printed"}
    assert kept.reason == "django_dcron.exceptions.PermanentFailure: no such shop"


def test_place_is_the_last_one_in_the_code_of_the_job() -> None:
    """Wherever this package is installed: the code calls into it, and it raises the exception."""

    def refresh() -> None:
        RetryLater(after="soon")  # type: ignore[arg-type]

    with pytest.raises(TypeError) as raised:
        refresh()
    kept = ending(raised.value)
    assert exceptions.__file__ in kept.traceback
    assert re.fullmatch(rf'File "{re.escape(__file__)}", line \d+, in refresh', kept.raised_in)


def test_long_place_is_cut() -> None:
    names: dict[str, Any] = {}
    exec(compile("def f(): 1 / 0", "\udcff" * 1000, "exec"), names)  # noqa: S102
    with pytest.raises(ZeroDivisionError) as raised:
        names["f"]()
    place = ending(raised.value).raised_in
    assert (place[:6], len(place)) == ('File "', LONGEST_PLACE)
    assert place.encode()


def test_huge_message_keeps_its_beginning_and_end(settings: Any) -> None:
    settings.DCRON_LOG_LIMIT = 1000
    kept = ending(ValueError("begin" + "x" * 5_000_000 + "end"))
    for text in (kept.message, kept.traceback):
        assert len(text) < 1100
        assert "characters omitted" in text
    assert kept.message.startswith("begin")
    assert kept.message.endswith("end")


def test_invalid_characters_are_replaced() -> None:
    kept = ending(ValueError("NUL \x00, surrogate \udcff"))
    assert kept.message == "NUL \ufffd, surrogate \ufffd"
    assert kept.traceback.encode()
    assert "\x00" not in kept.traceback


class Hostile(OperationalError):
    """An exception whose methods all raise."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attribute")


def test_exception_whose_methods_fail_is_recorded() -> None:
    kept = ending(Hostile())
    assert kept.outcome == Outcome.FAILED
    assert kept.message == "(unreadable error message: RuntimeError)"
    assert kept.traceback


def test_traceback_that_cannot_be_formatted_is_replaced_by_a_note() -> None:
    with mock.patch("traceback.TracebackException.from_exception", side_effect=RecursionError):
        kept = ending(ValueError())
    assert (kept.traceback, kept.raised_in) == ("(unreadable traceback: RecursionError)", "")


def test_exception_class_with_an_invalid_name_is_recorded() -> None:
    strange = type("Strange", (ValueError,), {"__module__": "a\ud800", "__qualname__": "x" * 500})
    kept = ending(strange())
    assert kept.exception_class.encode()
    assert len(kept.exception_class) == 255


def test_traceback_contains_grouped_exceptions() -> None:
    group = ExceptionGroup("several", [ValueError("one"), KeyError("two")])
    assert "one" in ending(group).traceback
    assert "two" in ending(group).traceback
