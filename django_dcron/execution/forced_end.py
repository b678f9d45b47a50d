"""Record the end of an attempt whose process has died, from the process that watched it."""

from __future__ import annotations

import logging
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connections

from django_dcron.jobs.attempt_end import end_attempt
from django_dcron.policies.lifecycle import Outcome
from django_dcron.runs import transitions
from django_dcron.runs.completion import WITHOUT_EXCEPTION, Ending

logger = logging.getLogger("django_dcron.runs")


def record_forced_end(
    run_id: UUID, attempt: int, outcome: Outcome, message: str, *, worker: str
) -> None:
    """End ``attempt`` if it is still running on ``worker``.

    The worker is checked because the dead process may have had a second delivery of an attempt that
    another worker executes. Doesn't wait for an unreachable database: the scheduler rescues the
    run.
    """
    try:
        running = transitions.runs().running().filter(pk=run_id, attempt=attempt)
        here = running.filter(attempts__number=attempt, attempts__worker=worker)
        run = here.select_related("job").first()
        if run is not None:
            end_attempt(run, attempt, Ending(outcome, WITHOUT_EXCEPTION, message=message))
    except (DatabaseError, InterfaceError) as error:
        logger.warning(
            "end of killed run not recorded, a node will record it: run=%s error=%s",
            run_id,
            error,
            extra={
                "event": "termination_not_recorded",
                "run": str(run_id),
                "attempt": attempt,
                "worker": worker,
            },
        )
    finally:
        # The main process of a worker keeps no connections, so that its children inherit none.
        connections.close_all()
