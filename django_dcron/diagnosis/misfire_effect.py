"""Describe the effects of a job's misfire policy and start deadline in words."""

from __future__ import annotations

from django.utils.translation import gettext as _

from django_dcron.models import Job
from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.utils.durations import write_duration


def misfire_effect(job: Job) -> str:
    """Return which of the job's late occurrences run, with the job's own values."""
    texts = {
        MisfirePolicy.SKIP: _(
            "An occurrence that is more than %(grace)s late is recorded as missed and doesn't run."
        ),
        MisfirePolicy.RUN_LATEST: _(
            "If occurrences are more than %(grace)s late, only the latest one runs. Its run "
            "counts the others as missed."
        ),
        MisfirePolicy.RUN_ALL: _(
            "Occurrences that are more than %(grace)s late still run: oldest first, at most "
            "%(limit)d. The rest are recorded as missed."
        ),
    }
    grace = write_duration(job.misfire_grace, " ")
    return texts[job.misfire.policy] % {"grace": grace, "limit": job.catchup_limit}


def start_deadline_effect(job: Job) -> str:
    """Return when the job's runs start no longer; empty without a start deadline."""
    if job.start_deadline is None:
        return ""
    deadline = write_duration(job.start_deadline, " ")
    text = _("No run starts later than %(deadline)s after it's due, except backfilled runs.")
    return text % {"deadline": deadline}
