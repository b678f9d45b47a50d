"""Count the missed occurrences that a freeze held back. Nobody is alerted about them."""

from __future__ import annotations

from django_dcron.contrib.alerts.failures import LATEST
from django_dcron.db.routing import alias_for
from django_dcron.models import Freeze, Job, Run
from django_dcron.policies.lifecycle import State


def count_frozen(job: Job, number: int) -> int:
    """Return how many of the job's ``number`` latest missed occurrences a freeze made late.

    Only its ``LATEST`` latest runs are searched. An occurrence that isn't found doesn't count.
    """
    freezes = Freeze.objects.using(alias_for(Freeze)).covering(job.namespace)
    extents = [freeze.extent for freeze in freezes]
    if not extents:
        return 0
    late_after = min(job.misfire_grace, job.start_deadline or job.misfire_grace)
    latest = Run.objects.using(alias_for(Run)).filter(job=job.pk).order_by("-scheduled_at")
    found = frozen = 0
    for run in latest[:LATEST]:
        missed = run.missed_before + (run.state == State.MISSED)
        found += missed
        if found > number:
            break
        oldest = run.missed_from or run.due_at
        if any(extent.made_late(oldest, run.due_at, late_after) for extent in extents):
            frozen += missed
    return frozen
