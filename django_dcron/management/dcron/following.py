"""Watching a run to its end: what it logs and how far it is, as a worker writes that down at each of its heartbeats.

Nothing that is kept is lost, and nothing told twice: a log grows, and when it has outgrown its limit, loses its middle, which
is counted. So it is known how much of it is new.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from uuid import UUID

from django_dcron.conf import settings
from django_dcron.domain.lifecycle import Outcome, State
from django_dcron.management.dcron.exits import no
from django_dcron.management.dcron.output import BAD, GOOD, ODD, QUIET, Output, span
from django_dcron.management.dcron.progress_bar import ProgressBar
from django_dcron.models import Attempt, Node, Run
from django_dcron.models.database import alias_for

LOOK_EVERY = 0.5
PATIENCE = 5.0
"""Seconds after which it is said for what it may be waiting."""
MARK = re.compile(r"\n\[\.\.\. ([0-9,]+) characters left out \.\.\.\]\n")
"""In the middle of a log that has outgrown its limit."""
STYLES = {Outcome.SUCCEEDED: GOOD, Outcome.FAILED: BAD, Outcome.TIMED_OUT: BAD, Outcome.LOST: BAD}


def follow(output: Output, run: Run, seconds: float | None) -> Run | None:
    """The run as it ended. None: it has not ended within ``seconds``."""
    begun = time.monotonic()
    with ProgressBar(output) as bar:
        told = _Told(bar)
        while True:
            now = _read(run.pk)
            # In this order: of a run that has ended, all has been written.
            told.attempts(_attempts(run.pk, told.number))
            if now.is_final:
                return now
            waited = time.monotonic() - begun
            if waited >= PATIENCE and now.state != State.RUNNING:
                told.wait(now)
            if seconds is not None and waited >= seconds:
                return None
            time.sleep(LOOK_EVERY if seconds is None else max(min(LOOK_EVERY, seconds - waited), 0.01))


def _read(run_id: UUID) -> Run:
    run = Run.objects.using(alias_for(Run)).select_related("job").filter(pk=run_id).first()
    if run is None:
        raise no(f"Run {run_id} was deleted meanwhile.")
    return run


def _attempts(run_id: UUID, since: int) -> Sequence[Attempt]:
    attempts = Attempt.objects.using(alias_for(Attempt)).filter(run=run_id, number__gte=since)
    return list(attempts.defer("traceback", "result").order_by("number"))


class _Told:
    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self.number = 0
        """The latest attempt of which something was told."""
        self._log = ""
        self._ended = False
        self._waits = False

    def attempts(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            if attempt.number > self.number:
                self.number, self._log, self._ended = attempt.number, "", False
                self._bar.line(f"attempt {attempt.number} runs on {attempt.worker}", QUIET)
            self._tell_log(attempt.log)
            if attempt.progress_done is not None:
                self._bar.show(attempt.progress_done, attempt.progress_total, attempt.progress_note)
            if attempt.outcome and not self._ended:
                self._ended = True
                self._bar.line(_end(attempt), STYLES.get(Outcome(attempt.outcome), ODD))

    def _tell_log(self, log: str) -> None:
        if new := news(self._log, log).rstrip("\n"):
            self._bar.line(new)
        self._log = log

    def wait(self, run: Run) -> None:
        """Once: why it may be that it has not started."""
        if self._waits:
            return
        self._waits = True
        if run.state == State.QUEUED:
            said = "it is handed over, and no worker has taken it yet"
        elif run.state == State.WAITING:
            said = run.reason or "it is held back"
        elif Node.objects.using(alias_for(Node)).live(settings.LEASE).exists():
            said = f"it is {run.state}" + (f": {run.reason}" if run.reason else "")
        else:
            said = "no node runs (manage.py runcron)"
        self._bar.line(f"waits: {said}", ODD)


def news(told: str, log: str) -> str:
    """What ``log`` says beyond ``told``, which is what it said before."""
    mark = _mark(log)
    kept = log[mark.end() :] if mark else log
    fresh = _written(log) - _written(told)
    if mark and fresh > len(kept):  # some was left out before it could be told
        return log[min(len(told), mark.start()) :]
    return kept[len(kept) - fresh :]


def _mark(log: str) -> re.Match[str] | None:
    return MARK.match(log, settings.LOG_LIMIT // 2)


def _written(log: str) -> int:
    """How many characters it was, with those that were left out."""
    mark = _mark(log)
    return len(log) - len(mark[0]) + int(mark[1].replace(",", "")) if mark else len(log)


def _end(attempt: Attempt) -> str:
    said = f"attempt {attempt.number} {Outcome(attempt.outcome).value.replace('_', ' ')}"
    if attempt.duration is not None:
        said += f" after {span(attempt.duration)}"
    if attempt.exception_class:
        said += f": {attempt.exception_class}: {attempt.message}"
    return said
