"""Middleware that enforces the job's timeout.

At the timeout, it raises an exception in the job's code: ``SoftTimeLimitExceeded`` in a Celery
worker. If the code doesn't stop within ``DCRON_HARD_TIMEOUT_AFTER``, the attempt is recorded as
timed out. The process is then killed if it belongs to a pool that replaces it.

The timeout covers only the job's code. The start of the attempt and the recording of its outcome
don't count, because they may wait for the database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django_dcron.conf import settings
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.termination import terminate
from django_dcron.policies.lifecycle import Outcome
from django_dcron.runs.completion import WITHOUT_EXCEPTION, Ending
from django_dcron.utils.durations import write_duration


def limit_time(call_next: Callable[[CurrentRun], Any]) -> Callable[[CurrentRun], Any]:
    def limited(run: CurrentRun) -> Any:
        if run.timeout is None:
            return call_next(run)
        seconds = run.timeout.total_seconds()
        timers = [
            threading.Timer(seconds, run.interruption.interrupt, [run.timeout_exception]),
            threading.Timer(
                seconds + settings.HARD_TIMEOUT_AFTER.total_seconds(),
                _terminate_after_timeout,
                [run, run.timeout],
            ),
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


def _terminate_after_timeout(run: CurrentRun, timeout: timedelta) -> None:
    message = (
        f"did not stop within {write_duration(settings.HARD_TIMEOUT_AFTER)} "
        f"after the timeout of {write_duration(timeout)}"
    )
    ending = Ending(Outcome.TIMED_OUT, WITHOUT_EXCEPTION, message=message, output=run.output())
    terminate(run, ending)
