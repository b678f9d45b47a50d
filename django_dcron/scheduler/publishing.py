"""Publish one batch, and return the outcome of each of its runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from django_dcron import tracing
from django_dcron.dispatch.base import (
    Dispatcher,
    DispatchFailed,
    DueRun,
    PartlyPublished,
    Undeliverable,
)
from django_dcron.scheduler.backlog import AgendaEntry
from django_dcron.utils.bounded_text import replace_unstorable
from django_dcron.utils.exception_text import exception_text

logger = logging.getLogger("django_dcron.scheduler")


class RefusedDispatch(NamedTuple):
    """A run that can't be dispatched."""

    run: DueRun
    reason: str


class PublishOutcome(NamedTuple):
    published: Sequence[AgendaEntry]
    refused: Sequence[RefusedDispatch]
    left: Sequence[AgendaEntry]
    """Runs to try again, separately from other runs."""
    rejection: str = ""
    """The broker's answer if it rejected the runs in ``left``. Empty if one of these runs caused an
    error that isn't the broker's.
    """
    by_error: bool = False
    """Whether the broker rejected the runs because of an error, not because it had no room. Other
    runs of the same kind may succeed.
    """

    @property
    def runs(self) -> list[DueRun]:
        """The published runs."""
        return [entry.run for entry in self.published]


@tracing.trace_dispatch
def publish_batch(batch: list[AgendaEntry], dispatcher: Dispatcher) -> PublishOutcome:
    """Publish a batch. Raises ``DispatchFailed`` if all of it has to be tried again."""
    try:
        dispatcher.publish([entry.message for entry in batch])
    except PartlyPublished as error:
        left = [entry for position, entry in enumerate(batch) if position in error.rejected]
        published = [
            entry for position, entry in enumerate(batch) if position not in error.rejected
        ]
        return PublishOutcome(published, [], left, str(error), error.by_error)
    except DispatchFailed:
        raise
    except Exception as error:
        if len(batch) > 1:
            return PublishOutcome([], [], batch)
        run = batch[0].run
        return PublishOutcome([], [RefusedDispatch(run, reason_of(run, error))], [])
    return PublishOutcome(batch, [], [])


def reason_of(run: DueRun, error: Exception) -> str:
    """Return why the run can't be dispatched, as text that every database can store.

    An unexpected error is also logged with its traceback.
    """
    text = replace_unstorable(exception_text(error))
    if isinstance(error, Undeliverable):
        return text
    extra = {
        "event": "dispatch_failed",
        "job": run.job_name,
        "run": str(run.run_id),
        "attempt": run.attempt,
    }
    logger.error(
        "dispatch failed: job=%s run=%s", run.job_name, run.run_id, exc_info=error, extra=extra
    )
    return f"{type(error).__name__}: {text}"
