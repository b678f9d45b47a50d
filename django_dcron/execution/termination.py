"""End attempts whose code hasn't stopped, and record the end of attempts whose process has died.

``terminate`` runs in the process of an attempt that hasn't stopped after its timeout or
cancellation, if the pool replaces a killed process. It records the outcome, and then kills the
process. ``record_killed_attempt`` runs in a worker's main process, after one of its pool processes
has died.
"""

from __future__ import annotations

import logging
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connections

from django_dcron.db.routing import alias_for
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.database_outage import retry_until_available
from django_dcron.execution.heartbeat_loss import log_fields
from django_dcron.jobs.attempt_end import end_attempt
from django_dcron.models import Run
from django_dcron.policies.lifecycle import Outcome
from django_dcron.runs import transitions
from django_dcron.runs.completion import WITHOUT_EXCEPTION, Ending

logger = logging.getLogger("django_dcron.runs")


def terminate(run: CurrentRun, ending: Ending) -> None:
    """Record ``ending`` and end the process. Runs in its own thread, which ends afterwards.

    If ``ending`` can't be recorded, the process is ended anyway: a node rescues the run.
    """
    try:
        _record(run, ending)
        if run.end_process is not None and run.interruption.armed:  # the job's code still runs
            run.end_process()
    finally:
        connections.close_all()  # of this thread


def _record(run: CurrentRun, ending: Ending) -> None:
    """Record ``ending`` once the database is available. Log any other error."""
    try:
        retry_until_available(
            lambda: end_attempt(run.run, run.attempt, ending, run.token),
            f"record end of {run.job}",
            alias_for(Run),
        )
    except Exception:  # for example, during a migration
        extra = {"event": "outcome_not_recorded", **log_fields(run)}
        logger.exception("outcome not recorded: job=%s", run.job, extra=extra)


def record_killed_attempt(
    run_id: UUID, attempt: int, outcome: Outcome, message: str, *, worker: str
) -> None:
    """End ``attempt`` if it is still running on ``worker``.

    The worker is checked, because the dead process may have received a second delivery of an
    attempt that another worker executes. If the database is unreachable, this function doesn't
    wait: a node rescues the run.
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
