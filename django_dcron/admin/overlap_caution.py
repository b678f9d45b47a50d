"""Warn the user who starts a run of a job that is already running."""

from __future__ import annotations

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
    """Return what happens to a run that is started now while another one has the running slot."""
    caution = CAUTIONS.get(read_overlap_policy(job.overlap_policy))
    holder = Run.objects.using(alias_for(Run)).in_slot(Slot.RUNNING, job.pk)
    return str(caution) if caution and holder.exists() else ""
