"""Decide whether a run ends or is retried after an attempt, and write it.

``jobs.attempt_end`` calls ``complete_attempt`` and then pauses a job that keeps failing.

Invariants:

- Exactly one caller wins: the UPDATE in ``endings`` is guarded by run, attempt and state. The
  others change nothing, but may record a late outcome.
- A lost or timed out attempt counts as failed: the retry policy decides.
- A run whose cancellation was requested is never retried, regardless of when the request came.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django_dcron.conf import settings
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.models import Attempt, Run
from django_dcron.models.incident import NOT_GROUPED
from django_dcron.models.statistics import count_late_success
from django_dcron.policies.lifecycle import Outcome, State
from django_dcron.policies.retry import Failure, FailureClass
from django_dcron.runs import endings, transitions
from django_dcron.runs.endings import AttemptEnd, LastHeartbeat
from django_dcron.targets.shadow import NOT_EXECUTED, is_shadow

logger = logging.getLogger("django_dcron.runs")

FAILURES = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST})
"""Outcomes that count as failures. ``runs.incidents`` groups such attempts into incidents."""
WITHOUT_EXCEPTION = Failure(FailureClass.TRANSIENT)
"""The failure of an attempt that ended without an exception: it was lost or terminated."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended, and the details to store."""

    outcome: Outcome
    failure: Failure | None = None
    """None: the attempt succeeded, was cancelled, or ended without an exception."""
    exception_class: str = ""
    message: str = ""
    traceback: str = ""
    raised_in: str = ""
    """The place in the job's code that raised the exception."""
    result: str = ""
    output: dict[str, Any] = field(default_factory=dict)
    """The columns of the attempt with its log and progress, if they are known."""

    @property
    def reason(self) -> str:
        if self.outcome is Outcome.FAILED:
            return f"{self.exception_class}: {self.message}".strip(": ")
        return self.message or self.exception_class

    def without_texts(self, why: str) -> Ending:
        """Return the outcome without texts, for a database that refuses them."""
        return Ending(self.outcome, self.failure, message=why)

    def columns(self) -> dict[str, Any]:
        """Return the columns to write to the attempt's row."""
        failure = {"incident": NOT_GROUPED} if self.outcome in FAILURES else {}
        return {
            **failure,
            "outcome": self.outcome,
            "exception_class": self.exception_class,
            "message": self.message,
            "traceback": self.traceback,
            "raised_in": self.raised_in,
            "result": self.result,
            **self.output,
        }


@dataclass(frozen=True, slots=True)
class Completion:
    """The result of ``complete_attempt``."""

    won: bool
    """Whether this call ended the attempt. Otherwise, another process did, or it continues."""
    check_auto_pause: bool = False
    """Whether the job may have to be paused. Also set if this call didn't end the run: an earlier
    call may have ended it and failed before it could pause the job.
    """


def complete_attempt(
    run: Run,
    attempt: int,
    ending: Ending,
    token: UUID | None = None,
    last_heartbeat: LastHeartbeat | None = None,
) -> Completion:
    """Record how ``attempt`` ended and decide what comes next.

    This call doesn't win if another process has ended the attempt, or if the attempt has sent a
    heartbeat since ``last_heartbeat``.

    ``token``: the token of the execution itself; None if another process ends the attempt.
    """
    end = AttemptEnd(attempt, ending.columns(), token, last_heartbeat)
    retry_in, check_auto_pause = None, False
    match ending.outcome:
        case Outcome.SUCCEEDED:
            reason = NOT_EXECUTED if is_shadow(run.job.target) else ""
            won = endings.finish(run, end, State.SUCCEEDED, reason)
        case Outcome.CANCELLED:
            won = endings.finish(run, end, State.CANCELLED, _why_cancelled(run))
        case _:
            won, retry_in, check_auto_pause = _retry_or_fail(run, end, ending)
    if won:
        _log_ended(run, attempt, ending, retry_in)
    elif token is not None and record_late_outcome(run, token, ending.outcome):
        _log_late(run, attempt, ending)
    else:
        endings.close_own_attempt(run, end)
        _log_ignored(run, attempt, ending)
    return Completion(won, check_auto_pause)


class _AfterFailure(NamedTuple):
    won: bool
    retry_in: timedelta | None = None
    """The wait until the next attempt; None if there is none."""
    check_auto_pause: bool = False
    """See ``Completion.check_auto_pause``."""


def _retry_or_fail(run: Run, end: AttemptEnd, ending: Ending) -> _AfterFailure:
    """Retry the run if its job's policy says so and it isn't cancelled; otherwise finish it."""
    wait = run.job.retry.retry_after(ending.failure or WITHOUT_EXCEPTION, end.number)
    if wait is not None:
        due_at = database_now(alias_for(Run)) + wait
        if endings.retry(run, end, due_at, ending.reason):
            return _AfterFailure(won=True, retry_in=wait)
    if transitions.runs().filter(pk=run.pk).exclude(cancel_requested_at=None).exists():
        return _AfterFailure(endings.finish(run, end, State.CANCELLED, _why_cancelled(run)))
    if wait is not None:
        return _AfterFailure(won=False)
    won = endings.finish(run, end, State.FAILED, ending.reason)
    return _AfterFailure(won, check_auto_pause=True)


def _why_cancelled(run: Run) -> str:
    """Return the reason given with the cancel request, or that the code itself cancelled."""
    requested = transitions.runs().filter(pk=run.pk).exclude(cancel_requested_at=None)
    reason = requested.values_list("reason", flat=True).first()
    return "the code raised RunCancelled" if reason is None else reason


def record_late_outcome(run: Run, token: UUID, outcome: Outcome) -> bool:
    """Record the outcome that a worker reports after its attempt was closed with another one.

    A success is also counted in the job's statistics. Returns False if nothing was recorded.
    """
    own = Attempt.objects.using(alias_for(Attempt)).filter(run=run.pk, token=token, late_outcome="")
    closed = own.exclude(outcome__in=("", outcome))
    with brief_transaction(alias_for(Run), settings.RUN_LEASE, lock=transitions.LOCK_TIMEOUT):
        recorded = bool(closed.update(late_outcome=outcome))
        if recorded and outcome is Outcome.SUCCEEDED:
            count_late_success(run.job_id)
    return recorded


def _log_late(run: Run, attempt: int, ending: Ending) -> None:
    logger.warning(
        "late outcome recorded, without effect: job=%s attempt=%d/%d outcome=%s run=%s",
        run.job,
        attempt,
        run.job.max_attempts,
        ending.outcome.value,
        run.pk,
        extra={"event": "late_outcome", **_log_fields(run, attempt, ending)},
    )


def _retry_text(run: Run, attempt: int, ending: Ending, retry_in: timedelta | None) -> str:
    if retry_in is not None:
        return f" retry_in={retry_in.total_seconds():.1f}".removesuffix(".0") + "s"
    if ending.outcome not in FAILURES or attempt >= run.job.max_attempts:
        return ""
    why = run.job.retry.why_not_retried(ending.failure or WITHOUT_EXCEPTION)
    return f" no_retry={why!r}" if why else ""


def _log_ended(run: Run, attempt: int, ending: Ending, retry_in: timedelta | None) -> None:
    level = _level(ending)
    if not logger.isEnabledFor(level):
        return
    text = f"run {ending.outcome.replace('_', ' ')}: job=%s attempt=%d/%d%s%s%s"
    if is_shadow(run.job.target):
        text += " (shadow, not executed)"
    logger.log(
        level,
        text,
        run.job,
        attempt,
        run.job.max_attempts,
        _retry_text(run, attempt, ending, retry_in),
        # The traceback isn't logged here: `dcron history RUN` shows it.
        f" run={run.pk}" if level == logging.WARNING else "",
        f" error={ending.reason}" if ending.reason else "",
        extra={"event": "attempt_ended", **_log_fields(run, attempt, ending)},
    )


def _log_ignored(run: Run, attempt: int, ending: Ending) -> None:
    """Log that another process ended the attempt, or that it has sent a newer heartbeat."""
    logger.log(
        _level(ending),
        "outcome ignored, attempt has ended or is alive: job=%s attempt=%d/%d outcome=%s run=%s%s",
        run.job,
        attempt,
        run.job.max_attempts,
        ending.outcome.value,
        run.pk,
        f" error={ending.reason}" if ending.reason else "",
        extra={"event": "outcome_ignored", **_log_fields(run, attempt, ending)},
    )


def _log_fields(run: Run, attempt: int, ending: Ending) -> dict[str, str | int]:
    """Return the structured fields for log records about the outcome."""
    return {
        "job": str(run.job),
        "run": str(run.pk),
        "attempt": attempt,
        "outcome": ending.outcome.value,
    }


def _level(ending: Ending) -> int:
    expected = ending.outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED)
    return logging.INFO if expected else logging.WARNING
