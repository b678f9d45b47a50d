"""Execute one attempt: start it, call the middleware and the target, record the outcome.

The Celery task, the Django task and the thread dispatcher call ``execute``.

Invariants:

- A delivery that must not be executed is dropped without an error.
- An outcome is never dropped, however long the database is unreachable.
- If the process was suspended between the start and the call of the code, the code is called only
  if the attempt wasn't declared lost. If the whole machine was suspended, the process may not
  notice, because the monotonic clock may have stood still. Only a fence covers that case
  (``current_run().fence``).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import lru_cache
from inspect import iscoroutine
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError, InterfaceError, OperationalError
from django.utils.module_loading import import_string

from django_dcron import targets, tracing
from django_dcron.conf import settings
from django_dcron.db.open_transactions import drop_idle_connections, own_transactions_only
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.exceptions import (
    InvalidArguments,
    RetryLater,
    RunCancelled,
    RunTimedOut,
    SignatureMismatch,
    UnknownRun,
)
from django_dcron.execution.coroutines import run_coroutine
from django_dcron.execution.current import CurrentRun, as_current
from django_dcron.execution.database_outage import retry_until_available
from django_dcron.execution.failure import (
    ending_after_hard_timeout,
    ending_after_heartbeat_loss,
    ending_of,
    ending_without_heartbeats,
)
from django_dcron.execution.heartbeat import Heartbeats, process_heartbeats
from django_dcron.execution.pending_outcomes import process_outcomes
from django_dcron.execution.unrecorded_outcome import UnrecordedOutcome, is_lock_timeout
from django_dcron.jobs.definitions import definition_id, forget_definition, record_definition
from django_dcron.models import Run
from django_dcron.policies.lifecycle import Outcome
from django_dcron.runs import deliveries, transitions
from django_dcron.runs.completion import Ending
from django_dcron.runs.start import NotDueYet, Started, start_attempt
from django_dcron.utils.bounded_text import truncate_middle
from django_dcron.utils.sync_points import reach_sync_point

logger = logging.getLogger("django_dcron.runs")

START_TIMEOUT = 60.0
"""Seconds a delivery waits for an unreachable database. After that, a node delivers the run again.
"""

RECORDING_TIMEOUT = 10.0
"""Seconds for which a worker tries to record an attempt's definition. After that, the attempt runs
without one.
"""

LONGEST_WAIT_UNTIL_DUE = 2.0
"""Seconds a worker waits for a run to become due. A run due later is returned to the nodes."""

Handler = Callable[[CurrentRun], Any]


def execute(
    run_id: UUID,
    attempt: int,
    *,
    worker: str,
    timeout_exception: type[Exception] = RunTimedOut,
    end_process: Callable[[], None] | None = None,
    heartbeats: Heartbeats | None = None,
) -> Outcome | None:
    """Execute ``attempt`` of the run. Returns how it ended, or None if it must not be executed.

    ``timeout_exception``: Raised in the job's code at its timeout. ``end_process``: Ends this
    process if the job's code doesn't stop. None if that is impossible. ``heartbeats``: By default,
    those of this process.

    Raises ``UnknownRun`` if this database doesn't have the run. Exceptions of the job's code that
    end the worker process are raised again after their outcome is recorded.
    """
    using = alias_for(Run)
    token = uuid4()
    heartbeats = heartbeats or process_heartbeats()
    extra_rounds = heartbeats.extra_rounds
    extra = {"event": "dropped", "run": str(run_id), "attempt": attempt, "worker": worker}
    timed_start = retry_until_available(
        lambda: _start_unless_locked(run_id, attempt, token, worker, heartbeats),
        f"start run {run_id}",
        using,
        give_up_after=START_TIMEOUT,
    )
    if timed_start is None:
        logger.debug("delivery dropped: run=%s attempt=%d", run_id, attempt, extra=extra)
        return None
    reach_sync_point("start.done")
    started = timed_start.started
    if definition_id(started.run.job) != started.definition:
        _record_definition(started, using)
    last_sent_at = _confirm_not_lost(timed_start, attempt, using)
    if last_sent_at is None:
        text = (
            "delivery dropped: run=%s attempt=%d reason=the attempt was declared lost while this "
            "process was suspended"
        )
        logger.warning(text, run_id, attempt, extra=extra)
        return None
    run = CurrentRun(
        started.run,
        started.at,
        token=token,
        fence=started.fence,
        worker=worker,
        timeout_exception=timeout_exception,
        end_process=end_process,
    )
    return _execute_started(
        run, heartbeats.keep_alive(run, extra_rounds=extra_rounds, last_sent_at=last_sent_at)
    )


def _execute_started(run: CurrentRun, kept_alive: AbstractContextManager[None]) -> Outcome:
    """Call the job's code and record the outcome. ``kept_alive`` writes the run's heartbeats."""
    fatal: BaseException | None = None
    with ExitStack() as heartbeat, _trace_attempt(run) as trace_ending:
        try:
            heartbeat.enter_context(kept_alive)
        except RuntimeError as error:  # too many threads; code without heartbeats must not run
            ending = ending_without_heartbeats(error)
        else:
            with own_transactions_only():
                ending, fatal = _call(run)
                if run.interruption.used:
                    drop_idle_connections()
        if ending.outcome is Outcome.CANCELLED:
            if run.lost_heartbeat:
                ending = ending_after_heartbeat_loss(run)
            elif run.ignored_timeout:
                ending = ending_after_hard_timeout(run, ending)
        trace_ending(ending)
        reach_sync_point("work.done")
        _record(UnrecordedOutcome(run, ending), heartbeat)
    reach_sync_point("record.done")
    if fatal is not None:
        raise fatal
    return ending.outcome


class _TimedStart(NamedTuple):
    started: Started
    queried_at: float
    """When the start was requested, on the monotonic clock. The row's heartbeat isn't older."""


def _record_definition(started: Started, using: str) -> None:
    """Let the attempt's row reference the job's current definition.

    If the database refuses to store the definition, the attempt runs without a reference.
    """
    job = started.run.job

    def write(reference: Callable[[], None]) -> None:
        with brief_transaction(using, settings.RUN_LEASE, lock=transitions.LOCK_TIMEOUT):
            reference()

    try:
        retry_until_available(
            lambda: write(lambda: record_definition(job, started.fence)),
            f"record definition of {job}",
            using,
            give_up_after=RECORDING_TIMEOUT,
        )
    except (DatabaseError, InterfaceError) as error:
        extra = {"event": "definition_refused", "job": str(job), "run": str(started.run.pk)}
        logger.error("definition not recorded: job=%s", job, exc_info=error, extra=extra)
        retry_until_available(
            lambda: write(lambda: forget_definition(started.fence)), f"start run of {job}", using
        )


def _confirm_not_lost(timed_start: _TimedStart, attempt: int, using: str) -> float | None:
    """Renew the attempt's heartbeat if this process may have been suspended since the start.

    If more than ``DCRON_RUN_LEASE`` has passed since the start, another attempt may run already.
    Returns a time at which the heartbeat was fresh, in seconds of the monotonic clock, or None if
    the attempt was declared lost.
    """
    queried_at = time.monotonic()
    if queried_at - timed_start.queried_at < settings.RUN_LEASE.total_seconds():
        return timed_start.queried_at
    run = timed_start.started.run
    if retry_until_available(
        lambda: transitions.renew_heartbeat(run.pk, attempt), f"renew heartbeat of {run.pk}", using
    ):
        return queried_at
    return None


def _start_unless_locked(
    run_id: UUID, attempt: int, token: UUID, worker: str, heartbeats: Heartbeats
) -> _TimedStart | None:
    """Start the attempt, unless another session has locked its rows.

    In that case, ``heartbeats`` returns the run to the nodes once its rows are unlocked. Meanwhile,
    this worker starts other runs.
    """
    began = time.monotonic()
    try:
        return _start_when_due(run_id, attempt, token, worker)
    except OperationalError as error:
        if not is_lock_timeout(error, since=began):
            raise
    text = "start blocked: run=%s reason=another session locks the run"
    extra = {"event": "start_blocked", "run": str(run_id), "attempt": attempt, "worker": worker}
    logger.warning(text, run_id, extra=extra)
    heartbeats.return_later(run_id, attempt)
    return None


def _start_when_due(run_id: UUID, attempt: int, token: UUID, worker: str) -> _TimedStart | None:
    """Start the attempt, and wait if it is early: a node's clock may be ahead of the database's."""
    ahead = 0.0
    while True:
        queried_at = time.monotonic()
        try:
            started = start_attempt(run_id, attempt, token=token, worker=worker, punctual=True)
            return started and _TimedStart(started, queried_at)
        except NotDueYet as early:
            ahead = early.ahead.total_seconds()
        except UnknownRun:
            if not ahead:
                raise
            return None  # The run was withdrawn during the wait.
        if ahead > LONGEST_WAIT_UNTIL_DUE:
            extra = {
                "event": "not_due_yet",
                "run": str(run_id),
                "attempt": attempt,
                "worker": worker,
            }
            logger.warning(
                "run delivered too early, returned to the nodes: run=%s early_by=%.1fs",
                run_id,
                ahead,
                extra=extra,
            )
            deliveries.return_to_nodes(run_id, attempt)
            return None
        time.sleep(ahead)


def _trace_attempt(run: CurrentRun) -> AbstractContextManager[Callable[[Ending], None]]:
    job = run.job
    attributes = {"job": str(job), "target": job.target, "queue": job.queue, "worker": run.worker}
    return tracing.attempt_span(run.id, run.attempt, run.run.rerun_of_id, **attributes)


def _record(outcome: UnrecordedOutcome, heartbeat: ExitStack) -> None:
    """Record the outcome, however long the database is unreachable.

    If another session locks the run, the outcome is recorded later, and this process continues.
    ``heartbeat`` is the context that keeps the run alive.
    """
    step = f"record outcome of {outcome.run.job}"
    while not retry_until_available(outcome.record_unless_locked, step, alias_for(Run)):
        if process_outcomes().add(outcome, heartbeat):
            return


def _call(run: CurrentRun) -> tuple[Ending, BaseException | None]:
    """Call the target. Return the ending, and the exception to reraise if it ends the process."""
    with as_current(run):
        try:
            try:
                _arm(run)
                result = _with_middleware(tuple(settings.MIDDLEWARE))(run)
            finally:
                run.interruption.disarm()
        except BaseException as exception:
            # Every exception is recorded. One that ends the process is raised afterwards.
            run.interruption.disarm()  # an interruption may have hit the ``finally`` block
            run.code_ended = True
            return ending_of(exception, run), exception if _ends_process(exception) else None
    run.code_ended = True
    # Code that returns after a request to stop counts as cancelled: its work may be incomplete.
    outcome = Outcome.CANCELLED if run.cancelled else Outcome.SUCCEEDED
    return Ending(outcome, result=_as_json(result), output=run.output()), None


def _arm(run: CurrentRun) -> None:
    """Allow interruptions of the job's code from now on."""
    run.interruption.arm()
    if run.cancelled:  # The cancellation came before the code could be interrupted.
        raise RunCancelled


def _ends_process(exception: BaseException) -> bool:
    """Return whether the exception ends the worker process.

    Celery's exceptions that end a worker are subclasses of ``SystemExit``. A job's ``sys.exit``
    doesn't end the process.
    """
    return (
        isinstance(exception, (SystemExit, KeyboardInterrupt)) and type(exception) is not SystemExit
    )


@lru_cache(maxsize=8)
def _with_middleware(paths: tuple[str, ...]) -> Handler:
    """Return the call of the target, wrapped in the middleware, outermost first."""
    handler: Handler = _call_target
    for path in reversed(paths):
        handler = import_string(path)(handler)
    return handler


def _call_target(run: CurrentRun) -> Any:
    job = run.job
    invocation = targets.Invocation(
        args=job.args if run.run.args is None else run.run.args,
        kwargs=job.kwargs if run.run.kwargs is None else run.run.kwargs,
        call_id=str(run.id),
        attempt=run.attempt,
        worker=run.worker,
        max_attempts=job.max_attempts,
    )
    target = targets.get(job.target)
    try:
        result = target.call(invocation)
        return run_coroutine(result, run.interruption) if iscoroutine(result) else result
    except (TypeError, RetryLater) as error:
        # A task with ``autoretry_for`` also retries for the ``TypeError`` of its own call.
        cause = error if isinstance(error, TypeError) else error.__cause__
        if isinstance(cause, TypeError):
            _check_signature(target, invocation, cause)
        raise


def _check_signature(
    target: targets.Target, invocation: targets.Invocation, cause: TypeError
) -> None:
    """Raise ``SignatureMismatch`` if the target doesn't accept these arguments.

    This runs only after a ``TypeError``, so that it costs other runs nothing.
    """
    try:
        target.check_arguments(invocation.args, invocation.kwargs)
    except InvalidArguments as mismatch:
        raise SignatureMismatch(str(mismatch)) from cause
    except Exception:  # the check runs the parser of a command, which is the project's code
        return


def _as_json(result: Any) -> str:
    """Return the result as JSON, or ``{"repr": ...}`` if it isn't serializable; empty for None.

    Never raises.
    """
    if result is None:
        return ""
    try:
        text = json.dumps(result, cls=DjangoJSONEncoder)
    except Exception:  # not JSON, or an object whose methods fail
        text = json.dumps({"repr": _repr(result)})
    return truncate_middle(text, settings.RESULT_LIMIT)


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # a third-party ``__repr__`` may raise anything
        return f"<{type(value).__name__}: repr() raises {type(error).__name__}>"
