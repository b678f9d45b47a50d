"""Follow a run to its end: show its log and progress as the worker writes them with each heartbeat.

Invariants:

- No stored text is lost or shown twice.
- Without a time limit, the wait ends if the database, or the node or worker that the run needs
  (``run_absence``), is missing for ``ABSENCE_TIMEOUT``.
- A log grows. Once it exceeds its limit, its middle is removed and the number of removed characters
  recorded. The number of new characters is therefore known.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import connections

from django_dcron.conf import settings
from django_dcron.db.errors import UNAVAILABLE, in_one_line
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.cluster import how_to_start_node
from django_dcron.dispatch.queues import queue_name
from django_dcron.management.dcron.exits import negative_result
from django_dcron.management.dcron.output import (
    BAD,
    GOOD,
    QUIET,
    WARNING,
    Output,
    duration_text,
    time_text,
)
from django_dcron.management.dcron.progress_bar import ProgressBar
from django_dcron.management.dcron.run_absence import (
    Absence,
    FoundAbsence,
    absence_for,
    unsuitable_workers_of,
)
from django_dcron.models import Attempt, Node, Run
from django_dcron.policies.lifecycle import Outcome, State
from django_dcron.utils.bounded_text import OMISSION_MARK

CHECK_EVERY = 0.5
"""Seconds between two reads of the run."""
EXPLAIN_WAIT_AFTER = 5.0
"""Seconds after which the possible cause of the wait is shown."""
CHECK_ABSENCE_EVERY = 5.0
"""Seconds between two checks for a missing node or worker."""
ABSENCE_TIMEOUT = 60.0
"""Seconds without a database, node or worker after which the wait ends. A restart takes less time.
"""
STYLES = {Outcome.SUCCEEDED: GOOD, Outcome.FAILED: BAD, Outcome.TIMED_OUT: BAD, Outcome.LOST: BAD}


@dataclass(frozen=True, slots=True)
class WatchResult:
    run: Run
    """The run as it was last read."""
    absence: Absence | None = None
    """The missing node or worker, if the wait ended because of it."""
    message: str = ""
    """The absence in words."""
    has_no_output: bool = False
    """Whether the run has ended without logging text or reporting progress."""


def watch_run(output: Output, run: Run, seconds: float | None) -> WatchResult:
    """Watch the run until it finishes, for at most ``seconds``.

    Without ``seconds``, the wait also ends if the database, a node or a worker is missing for
    ``ABSENCE_TIMEOUT``.
    """
    began = time.monotonic()
    absences = _Absences()
    with ProgressBar(output) as bar:
        printer = _Printer(bar, may_give_up=seconds is None)
        outage = DatabaseOutage(bar, str(run.pk), may_give_up=seconds is None)
        while True:
            waited = time.monotonic() - began
            try:
                run = _read(run.pk)
                # The run is read before its attempts: once it has ended, all of their data is
                # written.
                printer.show_attempts(_attempts(run.pk, printer.number))
                if run.is_final:
                    return WatchResult(run, has_no_output=not printer.has_output)
                if run.state != State.RUNNING and (run.attempt > 1 or waited >= EXPLAIN_WAIT_AFTER):
                    printer.explain_wait(run)
                if seconds is None and (absent := absences.lasting(run, waited)):
                    return WatchResult(run, absent.absence, absent.message)
                outage.end()
            except UNAVAILABLE as error:
                outage.go_on(error, waited)
                absences.forget()
            if seconds is not None and waited >= seconds:
                return WatchResult(run)
            time.sleep(
                CHECK_EVERY if seconds is None else max(min(CHECK_EVERY, seconds - waited), 0.01)
            )


class DatabaseOutage:
    """An outage of the database during a wait. The end of the wait doesn't affect the runs."""

    def __init__(self, bar: ProgressBar, history: str, *, may_give_up: bool) -> None:
        """``history``: the arguments of ``dcron history`` that show the runs."""
        self._bar = bar
        self._history = history
        self._may_give_up = may_give_up
        self._since: float | None = None

    def end(self) -> None:
        self._since = None

    def go_on(self, error: Exception, waited: float) -> None:
        """Keep waiting. Raises ``CommandError`` if the outage has lasted too long.

        ``waited``: how many seconds the wait has lasted.
        """
        connections[alias_for(Run)].close()
        if self._since is None:
            self._since = waited
            self._bar.line(f"waiting for the database: {in_one_line(error)}", WARNING)
        if self._may_give_up and waited - self._since >= ABSENCE_TIMEOUT:
            raise negative_result(
                f"The database hasn't answered for {ABSENCE_TIMEOUT:.0f} s. Stopped waiting; no "
                f"run is affected. To see how it ended: manage.py dcron history {self._history}"
            ) from error


class _Absences:
    """Measures how long a node or worker has been missing."""

    def __init__(self) -> None:
        self._checked_at = 0.0
        self._since: float | None = None

    def forget(self) -> None:
        """Measure from the next check on: nobody writes heartbeats in an outage of the database."""
        self._since = None

    def lasting(self, run: Run, waited: float) -> FoundAbsence | None:
        """Return what has been missing for ``ABSENCE_TIMEOUT``, after ``waited`` seconds."""
        if waited - self._checked_at < CHECK_ABSENCE_EVERY:
            return None
        absent = absence_for(run)
        self._checked_at = waited  # if the query fails, it is repeated at once
        if absent is None:
            self._since = None
            return None
        if self._since is None:
            self._since = waited
        return absent if waited - self._since >= ABSENCE_TIMEOUT else None


def _read(run_id: UUID) -> Run:
    run = Run.objects.using(alias_for(Run)).select_related("job").filter(pk=run_id).first()
    if run is None:
        raise negative_result(f"Run {run_id} was deleted.")
    return run


def _attempts(run_id: UUID, since: int) -> Sequence[Attempt]:
    attempts = Attempt.objects.using(alias_for(Attempt)).filter(run=run_id, number__gte=since)
    return list(attempts.defer("traceback", "result").order_by("number"))


class _Printer:
    def __init__(self, bar: ProgressBar, *, may_give_up: bool) -> None:
        """``may_give_up``: whether the wait ends while a node or worker is missing."""
        self._bar = bar
        self._may_give_up = may_give_up
        self.number = 0
        """The number of the latest attempt shown."""
        self._log = ""
        self._ended = False
        self.has_output = False
        """Whether an attempt has logged text or reported progress."""
        self._explained = 0
        """The number of the latest attempt whose wait was explained."""

    def show_attempts(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            if attempt.number > self.number:
                self.number, self._log, self._ended = attempt.number, "", False
                self._bar.line(f"attempt {attempt.number} runs on {attempt.worker}", QUIET)
            self._print_log(attempt.log)
            self.has_output |= bool(attempt.log) or attempt.progress_done is not None
            if attempt.progress_done is not None:
                self._bar.show(attempt.progress_done, attempt.progress_total, attempt.progress_note)
            if attempt.outcome and not self._ended:
                self._ended = True
                self._bar.line(_end(attempt), STYLES.get(Outcome(attempt.outcome), WARNING))

    def _print_log(self, log: str) -> None:
        if new := new_log_text(self._log, log).rstrip("\n"):
            self._bar.line(new)
        self._log = log

    def explain_wait(self, run: Run) -> None:
        """Show, only once per attempt, why the attempt hasn't started or when it is due."""
        if self._explained >= run.attempt:
            return
        if run.attempt == 1:
            text = f"not started: {_cause_of_wait(run)}"
        else:
            ahead = (run.due_at - database_now(alias_for(Run))).total_seconds()
            if -EXPLAIN_WAIT_AFTER < ahead <= 0:
                return
            text = f"attempt {run.attempt} "
            text += _due_in(run, ahead) if ahead > 0 else f"not started: {_cause_of_wait(run)}"
        if self._may_give_up and absence_for(run):
            text = f"{text.rstrip('.')}; waiting up to {ABSENCE_TIMEOUT:.0f} s"
        self._explained = run.attempt
        self._bar.line(text, WARNING)


def _due_in(run: Run, seconds: float) -> str:
    return f"is due in {duration_text(timedelta(seconds=seconds))}, at {time_text(run.due_at)}"


def _cause_of_wait(run: Run) -> str:
    has_node = Node.objects.using(alias_for(Node)).live(settings.LEASE).exists()
    if run.state == State.QUEUED:
        if unsuitable := unsuitable_workers_of(run):
            return unsuitable.rstrip(".")
        queue = queue_name(run.job.target, run.job.queue)
        text = "queued, no worker has started it yet"
        text += f"; start a worker for queue {queue}" if queue else ""
        return text + ("" if has_node else f"; no node is running, either. {how_to_start_node()}")
    if run.state == State.WAITING:
        return run.reason or "waiting for another run of the job"
    if not has_node:
        return f"no node is running. {how_to_start_node()}"
    if absent := absence_for(run):
        return absent.message
    return f"{run.state}" + (f": {run.reason}" if run.reason else "")


def new_log_text(printed: str, log: str) -> str:
    """Return the text of ``log`` that isn't in ``printed``, its previous value."""
    mark = _mark(log)
    kept = log[mark.end() :] if mark else log
    added = _written(log) - _written(printed)
    if mark and added > len(kept):  # Some text was removed before it could be shown.
        return log[min(len(printed), mark.start()) :]
    return kept[len(kept) - added :]


def _mark(log: str) -> re.Match[str] | None:
    return OMISSION_MARK.match(log, settings.LOG_LIMIT // 2)


def _written(log: str) -> int:
    """Return the length of the log, including removed characters."""
    mark = _mark(log)
    return len(log) - len(mark[0]) + int(mark[1].replace(",", "")) if mark else len(log)


def _end(attempt: Attempt) -> str:
    text = f"attempt {attempt.number} {Outcome(attempt.outcome).value.replace('_', ' ')}"
    if attempt.duration is not None:
        text += f" after {duration_text(attempt.duration)}"
    if attempt.exception_class:
        text += f": {attempt.exception_class}: {attempt.message}"
    return text
