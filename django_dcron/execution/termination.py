"""End the execution of a job's code that hasn't stopped after its timeout or cancellation.

The outcome is recorded first, in every kind of pool. Then the process is killed if its pool will
replace it.
"""

from __future__ import annotations

from django.db import connections

from django_dcron.db.routing import alias_for
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.database_outage import wait_out
from django_dcron.jobs.attempt_end import end_attempt
from django_dcron.models import Run
from django_dcron.runs.completion import Ending


def terminate(run: CurrentRun, ending: Ending) -> None:
    """Record ``ending`` and end the process. Runs in its own thread, which ends afterwards."""
    try:
        wait_out(
            lambda: end_attempt(run.run, run.attempt, ending, run.token),
            f"record end of {run.job}",
            alias_for(Run),
        )
        if run.end_process is not None and run.interruption.armed:  # the job's code still runs
            run.end_process()
    finally:
        connections.close_all()  # of this thread
