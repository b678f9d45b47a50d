"""What was done to a job or a run, in the words that its history and its author read."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.backfill import Backfill
from django_dcron.models import Job, Run
from django_dcron.observability.wording import plain_moment


def triggered(run: Run) -> str:
    if run.args is None and run.kwargs is None:
        return _("run now, as run %(id)s") % {"id": run.pk}
    return _("run now with other arguments, as run %(id)s") % {"id": run.pk}


def paused(job: Job) -> str:
    if job.paused_until is None:
        return _("paused: %(reason)s") % {"reason": job.pause_reason}
    told = {"until": plain_moment(job.paused_until), "reason": job.pause_reason}
    return _("paused until %(until)s: %(reason)s") % told


def resumed() -> str:
    return _("resumed")


def backfilled(made: Backfill) -> str:
    """``made``: of one run at least."""
    text = ngettext(
        "backfilled %(count)d run, from %(first)s to %(last)s",
        "backfilled %(count)d runs, from %(first)s to %(last)s",
        len(made.occurrences),
    )
    first, last = (plain_moment(made.occurrences[place]) for place in (0, -1))
    return text % {"count": len(made.occurrences), "first": first, "last": last}


def cancelled(run: Run) -> str:
    return _("cancelled") if run.is_final else _("told to stop")


def rerun(made: Run) -> str:
    return _("runs again, as run %(id)s") % {"id": made.pk}
