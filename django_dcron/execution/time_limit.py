"""Middleware that enforces the job's timeout.

At the timeout, it raises an exception in the job's code: ``SoftTimeLimitExceeded`` in a Celery
worker. What happens if the code doesn't stop within ``DCRON_HARD_TIMEOUT_AFTER`` depends on the
process:

- A process that its pool replaces is killed. Before that, the attempt is recorded as timed out.
- Elsewhere, the code is interrupted again, with ``RunCancelled``. The attempt is recorded as timed
  out when the code ends. Until then, it keeps its heartbeats, so no other attempt runs beside it.

The timeout covers only the job's code. The start of the attempt and the recording of its outcome
don't count, because they may wait for the database.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from django_dcron.conf import settings
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.failure import ending_after_hard_timeout
from django_dcron.execution.heartbeat_loss import log_fields
from django_dcron.execution.termination import terminate

logger = logging.getLogger("django_dcron.runs")


def limit_time(call_next: Callable[[CurrentRun], Any]) -> Callable[[CurrentRun], Any]:
    def limited(run: CurrentRun) -> Any:
        if run.timeout is None:
            return call_next(run)
        seconds = run.timeout.total_seconds()
        timers = [
            threading.Timer(seconds, run.interruption.interrupt, [run.timeout_exception]),
            threading.Timer(
                seconds + settings.HARD_TIMEOUT_AFTER.total_seconds(),
                _stop_after_hard_timeout,
                [run],
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


def _stop_after_hard_timeout(run: CurrentRun) -> None:
    """Stop the code that has ignored its timeout, unless it has just returned."""
    if run.end_process is not None:
        if run.interruption.armed:
            terminate(run, ending_after_hard_timeout(run))
    elif run.stop_after_hard_timeout():
        logger.warning(
            "timeout ignored, the attempt continues until its code ends: job=%s",
            run.job,
            extra={"event": "timeout_ignored", **log_fields(run)},
        )
