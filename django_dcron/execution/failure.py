"""Turn an exception into the ending of its attempt: outcome, class of failure and texts to keep."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from itertools import dropwhile
from traceback import FrameSummary, TracebackException

import django_dcron
from django_dcron.conf import settings
from django_dcron.db.contention import is_contention
from django_dcron.exceptions import (
    InvalidArguments,
    PermanentFailure,
    RetryLater,
    RunCancelled,
    RunTimedOut,
    SignatureMismatch,
    UnknownTarget,
)
from django_dcron.execution.current import CurrentRun
from django_dcron.models.attempt import LONGEST_PLACE
from django_dcron.policies.lifecycle import Outcome
from django_dcron.policies.retry import Failure, FailureClass, exception_name, refused_retry_message
from django_dcron.runs.completion import WITHOUT_EXCEPTION, Ending
from django_dcron.utils.bounded_text import replace_unstorable, truncate_middle, with_ellipsis
from django_dcron.utils.durations import write_duration
from django_dcron.utils.messages import with_full_stop

RESTART = "If the target is new, restart the nodes and workers so that they load the new code."
OLDER_CODE = (
    "If the code has changed, restart the nodes and workers so that they load the new code. "
    "Otherwise, change the job's arguments."
)
PERMANENT = (PermanentFailure, UnknownTarget, InvalidArguments)
TIMEOUTS = frozenset({RunTimedOut.__name__, "SoftTimeLimitExceeded"})
"""Compared by name, so that Celery needn't be imported."""
CELERY_MODULES = ("celery.app.autoretry", "celery.app.task")
"""The modules of Celery that call a task."""
OUR_FILES = os.path.join(os.path.dirname(django_dcron.__file__), "")
ASYNCIO_FILES = os.path.join(os.path.dirname(asyncio.__file__), "")
"""The traceback of a waiting coroutine ends in these files, after the line of the job."""


def ending_of(exception: BaseException, run: CurrentRun) -> Ending:
    """Return how the attempt ended. Never raises, even if methods of the exception do."""
    names = exception_names(exception)
    if isinstance(exception, RunCancelled):
        outcome = Outcome.CANCELLED
    elif names & TIMEOUTS:
        outcome = Outcome.TIMED_OUT
    else:
        outcome = Outcome.FAILED
    traceback, raised_in = _traceback_and_place(exception)
    return Ending(
        outcome=outcome,
        failure=None if outcome is Outcome.CANCELLED else _failure(exception, names),
        exception_class=replace_unstorable(exception_name(type(_recorded_exception(exception))))[
            :255
        ],
        message=truncate_middle(_message(exception, outcome, run), settings.LOG_LIMIT),
        traceback=truncate_middle(traceback, settings.LOG_LIMIT),
        raised_in=with_ellipsis(replace_unstorable(raised_in), LONGEST_PLACE),
        output=run.output(),
    )


def ending_after_heartbeat_loss(run: CurrentRun) -> Ending:
    """Return the ending of an attempt that was stopped because its heartbeats weren't written."""
    limit = settings.STOP_WITHOUT_HEARTBEAT_AFTER
    duration = f" for {write_duration(limit)}" if limit else ""
    message = (
        f"stopped because the worker couldn't write the heartbeat{duration}; the database was "
        "probably unreachable (see DCRON_STOP_WITHOUT_HEARTBEAT_AFTER)"
    )
    return Ending(Outcome.LOST, WITHOUT_EXCEPTION, message=message, output=run.output())


def ending_after_hard_timeout(run: CurrentRun, code: Ending | None = None) -> Ending:
    """Return the ending of an attempt that continued for too long after its timeout.

    ``code``: how the interrupted code ended, or None if it hasn't.
    """
    timeout = f" of {write_duration(run.timeout)}" if run.timeout else ""
    return Ending(
        Outcome.TIMED_OUT,
        WITHOUT_EXCEPTION,
        message=f"did not stop within {write_duration(settings.HARD_TIMEOUT_AFTER)} after the "
        f"timeout{timeout}",
        traceback=code.traceback if code else "",
        raised_in=code.raised_in if code else "",
        output=run.output(),
    )


def ending_without_heartbeats(error: RuntimeError) -> Ending:
    """Return the ending of an attempt whose worker couldn't start the thread for heartbeats."""
    message = f"not executed because the worker couldn't start a thread for heartbeats: {error}"
    return Ending(Outcome.LOST, WITHOUT_EXCEPTION, message=message)


def _recorded_exception(exception: BaseException) -> BaseException:
    """Return the exception whose class and message are recorded.

    That is the cause of a ``RetryLater`` or ``PermanentFailure`` without a message, so that the
    failures of all attempts are one incident. Never raises.
    """
    cause = exception.__cause__
    if cause is None or not isinstance(exception, (PermanentFailure, RetryLater)):
        return exception
    try:
        return exception if str(exception) else cause
    except Exception:  # the message can't be read
        return exception


def exception_names(exception: BaseException) -> frozenset[str]:
    """Return the bare and dotted names of every class in the exception's MRO."""
    classes = type(exception).__mro__[:-1]
    return frozenset(name for cls in classes for name in (cls.__name__, exception_name(cls)))


def _failure(exception: BaseException, names: frozenset[str]) -> Failure:
    if isinstance(exception, PERMANENT):
        return Failure(FailureClass.PERMANENT, names)
    if isinstance(exception, RetryLater):
        # ``never_retry_on`` also applies to the exception that the ``RetryLater`` was raised from.
        cause = exception.__cause__
        if cause is not None:
            names |= exception_names(cause)
        return Failure(
            FailureClass.TRANSIENT, names, retry_wanted=True, retry_after=exception.after
        )
    if _is_contention(exception):
        return Failure(FailureClass.CONTENTION, names)
    return Failure(FailureClass.TRANSIENT, names)


def _is_contention(exception: BaseException) -> bool:
    try:
        return is_contention(exception)
    except Exception:  # the exception's text can't be read
        return False


def _message(exception: BaseException, outcome: Outcome, run: CurrentRun) -> str:
    if outcome is Outcome.TIMED_OUT:
        return (
            f"timed out after {write_duration(run.timeout)}"
            if run.timeout
            else "exceeded a time limit of Celery"
        )
    try:
        text = str(_recorded_exception(exception))
        if isinstance(exception, UnknownTarget):
            if advice := str(exception.params.get("advice", "")):
                otherwise = f"Otherwise, {advice[:1].lower()}{advice[1:]}"
                # The worker may only have older code.
                return text.replace(advice, f"{RESTART} {otherwise}")
            return _with_advice(text, RESTART)
        if isinstance(exception, SignatureMismatch):
            return _with_advice(text, OLDER_CODE)
        if isinstance(exception, RetryLater) and run.attempt >= run.job.max_attempts:
            return ": ".join(filter(None, [refused_retry_message(run.job.max_attempts), text]))
        return text
    except Exception as error:  # a third-party ``__str__`` may raise anything
        return f"(unreadable error message: {type(error).__name__})"


def _with_advice(text: str, advice: str) -> str:
    """Return the cause and then the advice, because lists show only the beginning."""
    return f"{with_full_stop(text)} {advice}"


def _traceback_and_place(exception: BaseException) -> tuple[str, str]:
    """Return the traceback as text, and the place that raised the exception.

    The leading frames of this package and of Celery are left out of each exception, because they
    are the same for every run. An exception that only wraps the target's exception is left out,
    so that the target's exception is the last one.
    """
    try:
        formatted = TracebackException.from_exception(exception, compact=True)
        if _is_wrapper(exception, formatted) and formatted.__cause__ is not None:
            formatted = formatted.__cause__
        for part in _with_causes(formatted):
            part.stack[:] = list(dropwhile(_is_of_framework, part.stack)) or part.stack
        return "".join(formatted.format()), _place(formatted)
    except Exception as error:  # formatting calls third-party code
        return f"(unreadable traceback: {type(error).__name__})", ""


def _place(exception: TracebackException) -> str:
    """Return the last place in the job's code, or else the last place of all, if there is one.

    After a timeout, this is the interrupted line, not the line of this package that raised the
    exception. If this package raised the exception because of another one, that one may have the
    place.
    """
    current: TracebackException | None = exception
    while current is not None:
        if in_job := [frame for frame in current.stack if not _is_of_framework(frame)]:
            return _frame_text(in_job[-1])
        current = current.__cause__ or current.__context__
    return _frame_text(exception.stack[-1]) if exception.stack else ""


def _frame_text(frame: FrameSummary) -> str:
    return f'File "{frame.filename}", line {frame.lineno}, in {frame.name}'


def _is_wrapper(exception: BaseException, formatted: TracebackException) -> bool:
    """Return whether the exception adds nothing to its cause: no message, note or other frame."""
    return (
        _recorded_exception(exception) is not exception
        and not getattr(exception, "__notes__", ())
        and all(map(_is_of_framework, formatted.stack))
    )


def _with_causes(exception: TracebackException) -> Iterator[TracebackException]:
    """Yield the exception, its causes and contexts and the members of groups, each once."""
    remaining: list[TracebackException | None] = [exception]
    while remaining:
        if (current := remaining.pop()) is not None:
            yield current
            remaining += [current.__cause__, current.__context__, *(current.exceptions or ())]


def _is_of_framework(frame: FrameSummary) -> bool:
    if frame.filename.startswith((OUR_FILES, ASYNCIO_FILES)):
        return True
    modules = filter(None, map(sys.modules.get, CELERY_MODULES))
    return any(frame.filename == module.__file__ for module in modules)
