"""What follows from the end of an attempt: the run is done, or tried again, or given up.

The worker that executed it, the rescue of a lost one and a forced end all come through ``conclude``, so that they are
decided alike. Invariants:

- One of them wins (``transitions``, guarded by run, attempt and running); for the others nothing changes but a note.
- A lost or timed out attempt counts as a failed one: the retry policy decides.
- A run whose cancel was requested is not tried again, however late the request came.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django_dcron import pausing, transitions
from django_dcron.domain.lifecycle import Outcome, State
from django_dcron.domain.retry import Failure, FailureClass
from django_dcron.handing_over import hand_over
from django_dcron.models import Job, Run
from django_dcron.models.database import alias_for, database_now
from django_dcron.transitions import LastSign

logger = logging.getLogger("django_dcron.runs")

UNEXPLAINED = Failure(FailureClass.TRANSIENT)
"""An attempt that ended without an exception of its own: lost, or ended by force."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended, and what to keep of it."""

    outcome: Outcome
    failure: Failure | None = None
    """None for an attempt that succeeded or was cancelled."""
    exception_class: str = ""
    message: str = ""
    traceback: str = ""
    result: str = ""
    kept: dict[str, Any] = field(default_factory=dict)
    """Further columns of the attempt: its log and progress, where they are known."""

    @property
    def reason(self) -> str:
        if self.outcome is Outcome.FAILED:
            return f"{self.exception_class}: {self.message}".strip(": ")
        return self.message or self.exception_class

    def without_texts(self, why: str) -> Ending:
        """The bare outcome, for a database that refuses the texts."""
        return replace(self, exception_class="", message=why, traceback="", result="", kept={})

    def columns(self) -> dict[str, Any]:
        """What to write on the attempt's row."""
        return {
            "outcome": self.outcome,
            "exception_class": self.exception_class,
            "message": self.message,
            "traceback": self.traceback,
            "result": self.result,
            **self.kept,
        }


def conclude(
    run: Run, attempt: int, ending: Ending, token: UUID | None = None, last_sign: LastSign | None = None
) -> bool:
    """Record how ``attempt`` ended and decide what comes next. False: somebody else had concluded it before, or it has given a
    sign of life since ``last_sign``.

    ``token``: of the execution itself; None for whoever concludes it from outside.
    """
    retry_at = None
    match ending.outcome:
        case Outcome.SUCCEEDED:
            won = _finish(run, attempt, State.SUCCEEDED, "", ending, token, last_sign)
        case Outcome.CANCELLED:
            won = _finish(run, attempt, State.CANCELLED, _why_cancelled(run), ending, token, last_sign)
        case _:
            won, retry_at = _after_failure(run, attempt, ending, token, last_sign)
    if not won and token is not None:
        transitions.note_late_outcome(run.pk, attempt, token, ending.outcome)
    _log(run, attempt, ending, won, retry_at)
    return won


def lose(run: Run, reason: str, last_sign: LastSign | None = None) -> bool:
    """The worker of the running attempt is gone. ``last_sign``: what that was decided on; if there is a later one by now, the
    attempt goes on and False is returned."""
    return conclude(run, run.attempt, Ending(Outcome.LOST, UNEXPLAINED, message=reason), last_sign=last_sign)


def _after_failure(
    run: Run, attempt: int, ending: Ending, token: UUID | None, last_sign: LastSign | None
) -> tuple[bool, datetime | None]:
    """Whether it was ours to conclude, and when the next attempt is due; None: there is none."""
    wait = run.job.retry.retry_after(ending.failure or UNEXPLAINED, attempt)
    if wait is not None:
        due_at = database_now(alias_for(Run)) + wait
        if transitions.retry(run, attempt, due_at, ending.reason, ending.columns(), token, last_sign):
            return True, due_at
    if transitions.runs().filter(pk=run.pk).exclude(cancel_requested_at=None).exists():
        why = _why_cancelled(run)
        return _finish(run, attempt, State.CANCELLED, why, ending, token, last_sign), None
    if wait is not None:
        return False, None
    won = _finish(run, attempt, State.FAILED, ending.reason, ending, token, last_sign)
    # Even if not won: maybe an earlier call finished it and got no further.
    pausing.open_circuits(Job.objects.using(alias_for(Job)).filter(pk=run.job_id))
    return won, None


def _finish(
    run: Run,
    attempt: int,
    state: State,
    reason: str,
    ending: Ending,
    token: UUID | None,
    last_sign: LastSign | None,
) -> bool:
    """The execution itself hands over at once what follows. What others conclude, in a node or in the main process of a worker, is
    followed by what nodes take up."""
    at_once = None if token is None else hand_over
    return transitions.finish(run, attempt, state, reason, ending.columns(), token, at_once, last_sign)


def _why_cancelled(run: Run) -> str:
    """What was said when the cancel was requested; the code may also have ended it by itself."""
    said = transitions.runs().filter(pk=run.pk).values_list("reason", flat=True).first()
    return said or "its code raised RunCancelled"


def _log(run: Run, attempt: int, ending: Ending, won: bool, retry_at: datetime | None) -> None:
    if not won:
        consequence = " (too late: the attempt was concluded otherwise, or its worker is back)"
    elif retry_at is not None:
        consequence = f"; attempt {attempt + 1} of {run.job.max_attempts} at {retry_at:%H:%M:%S} UTC"
    else:
        consequence = ""
    level = logging.INFO if ending.outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED) else logging.WARNING
    logger.log(
        level,
        "%s: attempt %d %s%s%s",
        run.job,
        attempt,
        ending.outcome.replace("_", " "),
        f": {ending.reason}" if ending.reason else "",
        consequence,
        extra={
            "event": "attempt_ended",
            "job": str(run.job),
            "run": str(run.pk),
            "attempt": attempt,
            "outcome": ending.outcome.value,
            "won": won,
        },
    )
