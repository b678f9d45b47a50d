"""End attempts: complete the attempt, then pause its job if the job keeps failing.

``runs.completion`` decides what follows the end of an attempt. Workers, the rescue of lost attempts
and forced ends all call this module, so that the same rules apply.
"""

from __future__ import annotations

from uuid import UUID

from django_dcron.db.routing import alias_for
from django_dcron.jobs import pausing
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import Outcome
from django_dcron.runs.completion import Ending, complete_attempt
from django_dcron.runs.endings import LastHeartbeat


def end_attempt(
    run: Run,
    attempt: int,
    ending: Ending,
    token: UUID | None = None,
    last_heartbeat: LastHeartbeat | None = None,
) -> bool:
    """End ``attempt``. Returns whether this call ended it (``Completion.won``).

    The parameters are those of ``complete_attempt``.
    """
    completion = complete_attempt(run, attempt, ending, token, last_heartbeat)
    if completion.check_auto_pause:
        pausing.pause_failing_jobs(Job.objects.using(alias_for(Job)).filter(pk=run.job_id))
    return completion.won


def declare_lost(run: Run, reason: str, last_heartbeat: LastHeartbeat | None = None) -> bool:
    """Declare the running attempt lost, because its worker is gone.

    ``last_heartbeat``: the heartbeat that the decision is based on. If there is a newer one, the
    attempt continues and False is returned.
    """
    return end_attempt(
        run, run.attempt, Ending(Outcome.LOST, message=reason), last_heartbeat=last_heartbeat
    )
