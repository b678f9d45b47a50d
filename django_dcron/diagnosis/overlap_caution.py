"""Warn users before they start a run of a job that has an unfinished run."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext_lazy

from django_dcron.db.routing import alias_for
from django_dcron.models import Job, Run
from django_dcron.policies.overlap import OverlapPolicy, read_overlap_policy
from django_dcron.policies.slots import Slot

CAUTIONS = {
    OverlapPolicy.SKIP: gettext_lazy(
        "An earlier run is unfinished. The new run is skipped unless the earlier one finishes "
        "first (overlap policy: skip)."
    ),
    OverlapPolicy.QUEUE_ONE: gettext_lazy(
        "An earlier run is unfinished. The new run waits for it, or is skipped if another run "
        "waits already (overlap policy: queue one)."
    ),
    OverlapPolicy.QUEUE_ALL: gettext_lazy(
        "An earlier run is unfinished. The new run waits for it (overlap policy: queue all)."
    ),
    OverlapPolicy.CANCEL_RUNNING: gettext_lazy(
        "An earlier run is unfinished. The new run cancels it (overlap policy: cancel running)."
    ),
}


def overlap_caution(job: Job) -> str:
    """Return what the overlap policy does to a new run; empty if no earlier run is unfinished."""
    return overlap_cautions([job])[job.pk]


def overlap_cautions(jobs: Sequence[Job]) -> dict[int, str]:
    """Return the caution of each job, by its primary key. See ``overlap_caution``."""
    cautions = {job.pk: CAUTIONS.get(read_overlap_policy(job.overlap_policy)) for job in jobs}
    holders = Run.objects.using(alias_for(Run)).filter(
        slot=Slot.RUNNING, job__in=[pk for pk, caution in cautions.items() if caution]
    )
    busy = {*holders.values_list("job_id", flat=True)}
    return {pk: str(caution) if pk in busy else "" for pk, caution in cautions.items()}
