"""Ending by force code that does not stop when it is told to: what became of it is recorded, whatever the pool, and then
a process that a pool will replace is killed."""

from __future__ import annotations

from django.db import connections

from django_dcron.conclusion import Ending, conclude
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.outage import wait_out
from django_dcron.models import Run
from django_dcron.models.database import alias_for


def end_by_force(run: CurrentRun, ending: Ending) -> None:
    """In a thread of its own, which ends with it."""
    try:
        wait_out(
            lambda: conclude(run.run, run.attempt, ending, run.token), f"the end of {run.job}", alias_for(Run)
        )
        if run.end_process is not None and run.interruption.armed:  # still in the job's code
            run.end_process()
    finally:
        connections.close_all()  # this thread's own
