"""Jobs that a pause or resume of selected jobs leaves unchanged.

A selection by a pattern or a filter may contain jobs that its user doesn't know. A job that is
named, by its name or id, is never skipped.
"""

from __future__ import annotations

from django_dcron.jobs.sync.comparison import NO_LONGER_DECLARED
from django_dcron.models import Job
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _


def why_not_paused(job: Job) -> TranslatableText | None:
    """Return why the job is skipped, or None. Its pause keeps its reason and end."""
    return None if job.enabled else TranslatableText(_("The job is already paused."))


def why_not_resumed(job: Job) -> TranslatableText | None:
    """Return why the job is skipped, or None. Only a sync or a person resumes an undeclared job."""
    if job.enabled:
        return TranslatableText(_("The job isn't paused."))
    if job.pause_reason == NO_LONGER_DECLARED:
        return TranslatableText(
            _("Code no longer declares the job. To resume it, name it instead of using a filter.")
        )
    return None
