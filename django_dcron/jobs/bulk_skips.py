"""Jobs that a pause or resume of selected jobs leaves unchanged.

A pattern or a filter may select jobs that the user didn't think of. A job that is selected by its
name or id is never skipped.
"""

from __future__ import annotations

from django_dcron.conf import settings
from django_dcron.db import clock
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.placement import is_exhausted
from django_dcron.models import Job
from django_dcron.models.job_states import NO_LONGER_DECLARED
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _

_FINISHED = _("The job is finished. To schedule it again, edit its schedule.")


def may_start_again(job: Job) -> bool:
    """Return whether the job is finished but has occurrences again.

    This happens if its calendar was changed, for example. A job finishes when a node claims its
    last occurrence, up to ``DCRON_LOOK_AHEAD`` before it is due. That occurrence doesn't count.
    """
    return job.is_finished and not is_exhausted(job, clock.now() + settings.LOOK_AHEAD)


def why_not_paused(job: Job) -> TranslatableText | None:
    """Return why the job isn't paused again, or None. A paused job keeps its reason and end."""
    if job.is_finished:
        return TranslatableText(_FINISHED)
    if job.awaits_handover:
        return TranslatableText(
            _(
                "The job is paused until the handover, which enables it. To keep it paused then, "
                "pause it by its name or on its page."
            )
        )
    return None if job.enabled else TranslatableText(_("The job is already paused."))


def is_paused_already(error: Exception | None) -> bool:
    """Return whether ``pause_many`` refused the job because it is paused."""
    return isinstance(error, NotPossible) and error.code == "paused"


def why_not_resumable(job: Job) -> TranslatableText | None:
    """Return why nobody can resume the job, or None."""
    if job.is_finished and not may_start_again(job):
        return TranslatableText(_FINISHED)
    return TranslatableText(_("The job isn't paused.")) if job.enabled else None


def why_not_resumed(job: Job) -> TranslatableText | None:
    """Return why the job isn't resumed, or None.

    A job that code no longer declares is resumed only by a sync, or by a person who names the job.
    A job that awaits a handover is resumed only by the handover, or by a person who names the job.
    """
    if (text := why_not_resumable(job)) is not None:
        return text
    if job.pause_reason == NO_LONGER_DECLARED:
        return TranslatableText(
            _("Code no longer declares the job. Resume it by its name or on its page.")
        )
    if job.awaits_handover:
        return TranslatableText(
            _(
                "The job is paused until the handover, because another scheduler runs its work. "
                "To resume it earlier, resume it by its name or on its page."
            )
        )
    return None
