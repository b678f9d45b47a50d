"""One batch is handed over: what became of each run of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from django_dcron import tracing
from django_dcron.dispatch.base import Dispatcher, DispatchFailed, DueRun, TakenInPart, Undeliverable
from django_dcron.scheduler.backlog import Entry

logger = logging.getLogger("django_dcron.scheduler")


class Outcome(NamedTuple):
    taken: Sequence[Entry]
    refused: Sequence[tuple[DueRun, str]]
    left: Sequence[Entry]
    """To be tried again apart from all others."""
    no_room: str = ""
    """What the broker said, if it has no room for those left. Else there was an error, of one of them."""
    by_error: bool = False
    """It was an error that it said, not want of room: others of their kind may have none."""


@tracing.publishing
def hand_over(batch: list[Entry], dispatcher: Dispatcher) -> Outcome:
    """Raises ``DispatchFailed`` if all of it is to be tried again."""
    try:
        dispatcher.publish([prepared for _, _, _, prepared in batch])
    except TakenInPart as error:
        left = [entry for position, entry in enumerate(batch) if position in error.left]
        taken = [entry for position, entry in enumerate(batch) if position not in error.left]
        return Outcome(taken, [], left, str(error), error.by_error)
    except DispatchFailed:
        raise
    except Exception as error:
        if len(batch) > 1:
            return Outcome([], [], batch)
        run = batch[0][2]
        return Outcome([], [(run, reason_of(run, error))], [])
    return Outcome(batch, [], [])


def reason_of(run: DueRun, error: Exception) -> str:
    """Why this run cannot be handed over. An error nobody expected is also logged, with its traceback."""
    if isinstance(error, Undeliverable):
        return str(error)
    extra = {"event": "hand_over_failed", "job": run.job_name, "run": str(run.run_id), "attempt": run.attempt}
    logger.error("run %s of %s cannot be handed over", run.run_id, run.job_name, exc_info=error, extra=extra)
    return f"{type(error).__name__}: {error}"
