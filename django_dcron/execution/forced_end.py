"""Recording the end of an attempt whose process is gone, from the process that watched it."""

from __future__ import annotations

import logging
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connections

from django_dcron import transitions
from django_dcron.conclusion import UNEXPLAINED, Ending, conclude
from django_dcron.domain.lifecycle import Outcome

logger = logging.getLogger("django_dcron.runs")


def end_by_force(run_id: UUID, attempt: int, outcome: Outcome, message: str, *, worker: str) -> None:
    """Conclude ``attempt`` if it is still running on ``worker``: what died may have been a second delivery of it.

    Does not wait for a database that is away: the scheduler rescues.
    """
    try:
        running = transitions.runs().running().filter(pk=run_id, attempt=attempt)
        here = running.filter(attempts__number=attempt, attempts__worker=worker)
        run = here.select_related("job").first()
        if run is not None:
            conclude(run, attempt, Ending(outcome, UNEXPLAINED, message=message))
    except (DatabaseError, InterfaceError) as error:
        logger.warning(
            "the end of run %s could not be recorded, the scheduler will: %s",
            run_id,
            error,
            extra={"event": "forced_end_failed", "run": str(run_id), "attempt": attempt, "worker": worker},
        )
    finally:
        connections.close_all()  # a worker's main process keeps none, so that its children inherit none
