"""From an exception to how its attempt ended: the outcome, the class of failure and the texts to keep."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import dropwhile
from traceback import FrameSummary, TracebackException

import django_dcron
from django_dcron.conclusion import Ending
from django_dcron.conf import settings
from django_dcron.domain.lifecycle import Outcome
from django_dcron.domain.retry import Failure, FailureClass
from django_dcron.exceptions import (
    InvalidArguments,
    PermanentFailure,
    RetryLater,
    RunCancelled,
    RunTimedOut,
    UnknownTarget,
)
from django_dcron.execution.bounded_text import storable, truncated
from django_dcron.execution.current import CurrentRun
from django_dcron.models.database import is_contention

PERMANENT = (PermanentFailure, UnknownTarget, InvalidArguments)
TIMEOUTS = frozenset({RunTimedOut.__name__, "SoftTimeLimitExceeded"})
"""By name: Celery's own is not imported here."""
OUR_FILES = os.path.join(os.path.dirname(django_dcron.__file__), "")


def ending_of(exception: BaseException, run: CurrentRun) -> Ending:
    """Never raises, whatever the exception's own methods do."""
    names = exception_names(exception)
    if isinstance(exception, RunCancelled):
        outcome = Outcome.CANCELLED
    elif names & TIMEOUTS:
        outcome = Outcome.TIMED_OUT
    else:
        outcome = Outcome.FAILED
    return Ending(
        outcome=outcome,
        failure=None if outcome is Outcome.CANCELLED else _failure(exception, names),
        exception_class=storable(_class_name(type(exception)))[:255],
        message=truncated(_message(exception, outcome, run), settings.LOG_LIMIT),
        traceback=truncated(_traceback(exception), settings.LOG_LIMIT),
        kept=run.output(),
    )


def exception_names(exception: BaseException) -> frozenset[str]:
    """Bare and dotted names of every class in the exception's MRO."""
    classes = type(exception).__mro__[:-1]
    return frozenset(name for cls in classes for name in (cls.__name__, _class_name(cls)))


def _failure(exception: BaseException, names: frozenset[str]) -> Failure:
    if isinstance(exception, PERMANENT):
        return Failure(FailureClass.PERMANENT, names)
    if isinstance(exception, RetryLater):
        # Raised from another exception (as a Celery task's retry is), it stands for that one as well.
        cause = exception.__cause__
        if cause is not None:
            names |= exception_names(cause)
        return Failure(FailureClass.TRANSIENT, names, retry_wanted=True, retry_after=exception.after)
    if _contention(exception):
        return Failure(FailureClass.CONTENTION, names)
    return Failure(FailureClass.TRANSIENT, names)


def _contention(exception: BaseException) -> bool:
    try:
        return is_contention(exception)
    except Exception:  # its text cannot be had
        return False


def _class_name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _message(exception: BaseException, outcome: Outcome, run: CurrentRun) -> str:
    if outcome is Outcome.TIMED_OUT:
        return (
            f"ran longer than its timeout of {run.timeout}"
            if run.timeout
            else "ran into a time limit of Celery's"
        )
    try:
        return str(exception)
    except Exception as error:  # a __str__ of somebody else's may do anything
        return f"(its text cannot be shown: {type(error).__name__})"


def _traceback(exception: BaseException) -> str:
    """Of each exception from where our code called somebody else's: what led there is the same for every run."""
    try:
        shown = TracebackException.from_exception(exception, compact=True)
        for each in _all(shown):
            each.stack[:] = list(dropwhile(_is_ours, each.stack)) or each.stack
        return "".join(shown.format())
    except Exception as error:  # likewise
        return f"(its traceback cannot be shown: {type(error).__name__})"


def _all(shown: TracebackException) -> Iterator[TracebackException]:
    """With its causes and contexts, and the members of groups, however deep; none is there twice."""
    left: list[TracebackException | None] = [shown]
    while left:
        if (each := left.pop()) is not None:
            yield each
            left += [each.__cause__, each.__context__, *(each.exceptions or ())]


def _is_ours(frame: FrameSummary) -> bool:
    return frame.filename.startswith(OUR_FILES)
