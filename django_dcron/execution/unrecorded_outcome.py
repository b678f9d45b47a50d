"""The outcome of an attempt, and one try to record it. Callers repeat the try until it succeeds.

Invariants:

- An outcome is recorded with its texts, unless the database can never store them.
- Recording is safe to repeat, even if it was committed and only the answer was lost.
"""

from __future__ import annotations

import logging
import time

from django.db import OperationalError, ProgrammingError, connections

from django_dcron.db.contention import can_skip_locked_rows, is_contention
from django_dcron.db.errors import UNAVAILABLE, in_one_line
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.storage_errors import Refusal, refusal_of
from django_dcron.jobs.attempt_end import end_attempt
from django_dcron.models import Run
from django_dcron.runs import transitions
from django_dcron.runs.completion import Ending

logger = logging.getLogger("django_dcron.runs")

MAX_REFUSALS = 10
"""After this many refusals for an unknown reason, while the database is reachable, an outcome is
recorded without its texts."""


class UnrecordedOutcome:
    """The ending of an attempt that this process has executed, until it is recorded."""

    def __init__(self, run: CurrentRun, ending: Ending) -> None:
        self.run = run
        self._ending = ending
        self._using = alias_for(Run)
        self._refusals = 0

    def record_unless_locked(self) -> bool:
        """Try to record the outcome.

        Returns False if another session has locked the rows of the run. Raises an exception of
        ``UNAVAILABLE`` if the database can't store the outcome now.
        """
        began = time.monotonic()
        try:
            self._record()
        except OperationalError as error:
            if is_lock_timeout(error, since=began):
                return False
            raise
        return True

    def _record(self) -> None:
        run = self.run
        try:
            end_attempt(run.run, run.attempt, self._ending, run.token)
        except Exception as error:
            match refusal_of(error, self._ending, self._using):
                case Refusal.TEMPORARY if isinstance(error, UNAVAILABLE):
                    raise
                case Refusal.TEMPORARY:  # callers try again only after an exception of UNAVAILABLE
                    raise OperationalError(in_one_line(error)) from error
                case Refusal.UNKNOWN if isinstance(error, UNAVAILABLE):
                    if not is_contention(error) and _is_reachable(self._using):
                        self._refusals += 1
                    if self._refusals < MAX_REFUSALS:
                        raise
            # The database can't store the texts, or it has refused them too often.
            self._record_without_texts(error)

    def _record_without_texts(self, error: Exception) -> None:
        run = self.run
        extra = {
            "event": "texts_refused",
            "job": str(run.job),
            "run": str(run.id),
            "attempt": run.attempt,
        }
        logger.error(
            "texts of the outcome not recorded: job=%s", run.job, exc_info=error, extra=extra
        )
        why = ascii(f"texts could not be recorded: {type(error).__name__}: {error}")[1:-1][:1000]
        try:
            end_attempt(run.run, run.attempt, self._ending.without_texts(why), run.token)
        except ProgrammingError as refusal:
            raise OperationalError(in_one_line(refusal)) from refusal


def is_lock_timeout(error: OperationalError, since: float) -> bool:
    """Return whether a start or an end that began at ``since`` has waited for locked rows.

    ``since``: on the monotonic clock. Always False on a database that can't skip locked rows.
    """
    waited = time.monotonic() - since >= 0.9 * transitions.LOCK_TIMEOUT.total_seconds()
    return waited and is_contention(error) and can_skip_locked_rows(alias_for(Run))


def _is_reachable(using: str) -> bool:
    connections[using].close()
    try:
        database_now(using)
    except UNAVAILABLE:
        return False
    return True
