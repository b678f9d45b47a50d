"""Middleware: the job's timeout.

At the timeout an exception is raised in the job's code (Celery's ``SoftTimeLimitExceeded`` in a Celery worker); code
that does not stop within ``DCRON_HARD_TIMEOUT_AFTER`` is ended by force: the attempt is recorded as timed out, whatever
the pool, and then a process that a pool will replace is killed. Only the job's own code is on the clock: neither the
start nor the recording of the outcome, which may have to wait for the database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from django_dcron.conclusion import UNEXPLAINED, Ending
from django_dcron.conf import settings
from django_dcron.domain.lifecycle import Outcome
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.stubborn import end_by_force


def limit_time(call_next: Callable[[CurrentRun], Any]) -> Callable[[CurrentRun], Any]:
    def limited(run: CurrentRun) -> Any:
        if run.timeout is None:
            return call_next(run)
        seconds = run.timeout.total_seconds()
        timers = [
            threading.Timer(seconds, run.interruption.interrupt, [run.timeout_exception]),
            threading.Timer(seconds + settings.HARD_TIMEOUT_AFTER.total_seconds(), _end_by_force, [run]),
        ]
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            return call_next(run)
        finally:
            for timer in timers:
                timer.cancel()

    return limited


def _end_by_force(run: CurrentRun) -> None:
    message = f"did not stop within {settings.HARD_TIMEOUT_AFTER} after its timeout of {run.timeout}"
    ending = Ending(Outcome.TIMED_OUT, UNEXPLAINED, message=message, kept=run.output())
    end_by_force(run, ending)
