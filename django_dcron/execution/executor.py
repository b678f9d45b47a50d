"""The execution of one attempt: start -> middleware -> target -> conclusion.

Called by the Celery task and by the thread dispatcher alike. A delivery that is not to be executed is dropped quietly;
an outcome is never dropped, however long the database is away.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid4

from django.core.serializers.json import DjangoJSONEncoder
from django.db import OperationalError, ProgrammingError, connections
from django.utils.module_loading import import_string

from django_dcron import targets, tracing, transitions
from django_dcron.conclusion import UNEXPLAINED, Ending, conclude
from django_dcron.conf import settings
from django_dcron.domain.lifecycle import Outcome
from django_dcron.exceptions import RunCancelled, RunTimedOut, UnknownRun
from django_dcron.execution.bounded_text import truncated
from django_dcron.execution.current import CurrentRun, as_current
from django_dcron.execution.failure import ending_of
from django_dcron.execution.heart import Heart, heart
from django_dcron.execution.outage import own_transactions_only, wait_out
from django_dcron.execution.refusals import Refusal, refusal_of
from django_dcron.execution.start import NotDueYet, start
from django_dcron.models import Run
from django_dcron.models.database import AWAY, alias_for, database_now, in_one_line, is_contention
from django_dcron.sync_points import reach

logger = logging.getLogger("django_dcron.runs")

START_PATIENCE = 60.0
"""Seconds a delivery waits for a database that is away; then the scheduler will deliver it again."""

LONGEST_WAIT_UNTIL_DUE = 2.0
"""Seconds that a worker waits for a run to become due; one that is further ahead goes back to the nodes."""

REFUSALS = 10
"""After how many refusals, for no known reason, of a database that is there an outcome is recorded without its texts."""

Handler = Callable[[CurrentRun], Any]


def execute(
    run_id: UUID,
    attempt: int,
    *,
    worker: str,
    timeout_exception: type[Exception] = RunTimedOut,
    end_process: Callable[[], None] | None = None,
    keeper: Heart | None = None,
) -> bool:
    """Execute ``attempt`` of the run; False if it was not to be executed. Raises only what ends the whole process, and
    ``UnknownRun`` if this database doesn't have the run.

    ``timeout_exception``: what is raised in the job's code at its timeout. ``end_process``: ends this process, with code
    that does not stop then; None: it cannot be ended for that. ``keeper``: who keeps it alive in the database; None: this process's heart.
    """
    using = alias_for(Run)
    token = uuid4()
    keeper = keeper or heart()
    looks = keeper.looks
    started = wait_out(
        lambda: _start_when_due(run_id, attempt, token, worker),
        f"the start of run {run_id}",
        using,
        give_up_after=START_PATIENCE,
    )
    if started is None:
        extra = {"event": "dropped", "run": str(run_id), "attempt": attempt, "worker": worker}
        logger.debug("run %s attempt %d: not to be executed", run_id, attempt, extra=extra)
        return False
    reach("start.done")
    run = CurrentRun(
        *started, token=token, worker=worker, timeout_exception=timeout_exception, end_process=end_process
    )
    with keeper.watching(run, looks=looks), _traced(run) as ended:
        with own_transactions_only():
            ending, fatal = _call(run)
        if run.unheard and ending.outcome is Outcome.CANCELLED:
            message = "stopped by its worker, which could not write its heartbeat"
            ending = Ending(Outcome.LOST, UNEXPLAINED, message=message, kept=run.output())
        ended(ending)
        reach("work.done")
        _record(run, ending, using)
    reach("record.done")
    if fatal is not None:
        raise fatal
    return True


def _start_when_due(run_id: UUID, attempt: int, token: UUID, worker: str) -> tuple[Run, datetime] | None:
    """A node's clock may be a little ahead of the database's, by which runs start."""
    ahead = 0.0
    while True:
        try:
            return start(run_id, attempt, token=token, worker=worker, punctual=True)
        except NotDueYet as early:
            ahead = early.ahead.total_seconds()
        except UnknownRun:
            if not ahead:
                raise
            return None  # it was withdrawn while it waited
        if ahead > LONGEST_WAIT_UNTIL_DUE:
            extra = {"event": "not_due_yet", "run": str(run_id), "attempt": attempt, "worker": worker}
            logger.warning("run %s was delivered %.1f s too early; handed back", run_id, ahead, extra=extra)
            transitions.hand_back(run_id, attempt)
            return None
        time.sleep(ahead)


def _traced(run: CurrentRun) -> AbstractContextManager[Callable[[Ending], None]]:
    job = run.job
    about = {"job": str(job), "target": job.target, "queue": job.queue, "worker": run.worker}
    return tracing.executing(run.id, run.attempt, run.run.rerun_of_id, **about)


def _record(run: CurrentRun, ending: Ending, using: str) -> None:
    """Conclude the attempt, however long that takes; without its texts only if the database can never store them."""
    refusals = 0

    def record() -> bool:
        nonlocal refusals
        try:
            return conclude(run.run, run.attempt, ending, run.token)
        except Exception as error:
            match refusal_of(error, ending, using):
                case Refusal.NOW:
                    raise _waited_out(error) from error
                case Refusal.UNKNOWN if isinstance(error, AWAY):
                    if not is_contention(error) and _answers(using):
                        refusals += 1
                    if refusals < REFUSALS:
                        raise
            return record_bare(error)

    def record_bare(error: Exception) -> bool:
        extra = {"event": "texts_refused", "job": str(run.job), "run": str(run.id), "attempt": run.attempt}
        logger.error("the outcome of %s is recorded without its texts", run.job, exc_info=error, extra=extra)
        why = ascii(f"its texts could not be recorded: {type(error).__name__}: {error}")[1:-1][:1000]
        try:
            return conclude(run.run, run.attempt, ending.without_texts(why), run.token)
        except ProgrammingError as refused:
            raise _waited_out(refused) from refused

    wait_out(record, f"the outcome of {run.job}", using)


def _waited_out(error: Exception) -> Exception:
    """As an error that ``wait_out`` waits for."""
    return error if isinstance(error, AWAY) else OperationalError(in_one_line(error))


def _answers(using: str) -> bool:
    connections[using].close()
    try:
        database_now(using)
    except AWAY:
        return False
    return True


def _call(run: CurrentRun) -> tuple[Ending, BaseException | None]:
    """Run the target; how it ended, and what has to be raised on because it ends the process."""
    with as_current(run):
        try:
            try:
                _arm(run)
                result = _chain(tuple(settings.MIDDLEWARE))(run)
            finally:
                run.interruption.disarm()
        except BaseException as exception:
            # Recorded, whatever it is; what ends the process goes on afterwards.
            run.interruption.disarm()  # it may have been interrupted on the very way out
            return ending_of(exception, run), exception if _ends_process(exception) else None
    # Code that was told to stop and returns has stopped. Whether its work was done nobody knows.
    outcome = Outcome.CANCELLED if run.cancelled else Outcome.SUCCEEDED
    return Ending(outcome, result=_as_json(result), kept=run.output()), None


def _arm(run: CurrentRun) -> None:
    """From here on it can be interrupted."""
    run.interruption.arm()
    if run.cancelled:  # while it could not be
        raise RunCancelled


def _ends_process(exception: BaseException) -> bool:
    """Whether it is the worker that is to end: Celery derives its own from ``SystemExit``. A job's ``sys.exit`` is not."""
    return isinstance(exception, (SystemExit, KeyboardInterrupt)) and type(exception) is not SystemExit


@lru_cache(maxsize=8)
def _chain(paths: tuple[str, ...]) -> Handler:
    """The middleware, outermost first, around the call of the target."""
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
    return targets.get(job.target).call(invocation)


def _as_json(result: Any) -> str:
    """The result as JSON, or as ``{"repr": ...}`` if it is none; empty for None. Never raises."""
    if result is None:
        return ""
    try:
        text = json.dumps(result, cls=DjangoJSONEncoder)
    except Exception:  # not JSON, or an object whose methods fail
        text = json.dumps({"repr": _repr(result)})
    return truncated(text, settings.RESULT_LIMIT)


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # a __repr__ of somebody else's may do anything
        return f"<{type(value).__name__}: its repr raises {type(error).__name__}>"
