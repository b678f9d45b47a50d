"""Messages about actions on jobs, runs and freezes, for their history and the person who acts."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.jobs.backfill import Backfill
from django_dcron.models import Freeze, Job, Run
from django_dcron.utils.time_format import plain_moment


def triggered(run: Run) -> str:
    if run.args is None and run.kwargs is None:
        return _("Started run %(id)s") % {"id": run.pk}
    return _("Started run %(id)s with other arguments") % {"id": run.pk}


def paused(job: Job) -> str:
    if job.paused_until is None:
        return _("Paused: %(reason)s") % {"reason": job.pause_reason}
    values = {"until": plain_moment(job.paused_until), "reason": job.pause_reason}
    return _("Paused until %(until)s: %(reason)s") % values


def resumed() -> str:
    return _("Resumed")


def frozen(freeze: Freeze) -> str:
    if freeze.until is None:
        return _("Frozen: %(reason)s") % {"reason": freeze.reason}
    values = {"until": plain_moment(freeze.until), "reason": freeze.reason}
    return _("Frozen until %(until)s: %(reason)s") % values


def unfrozen() -> str:
    return _("Freeze ended")


def backfilled(made: Backfill) -> str:
    """Describe a backfill of at least one run."""
    text = ngettext(
        "Backfilled %(count)d run, from %(first)s to %(last)s",
        "Backfilled %(count)d runs, from %(first)s to %(last)s",
        len(made.occurrences),
    )
    first, last = (plain_moment(made.occurrences[place]) for place in (0, -1))
    return text % {"count": len(made.occurrences), "first": first, "last": last}


def cancelled(run: Run) -> str:
    return _("Cancelled") if run.is_final else _("Cancellation requested")


def rerun(made: Run) -> str:
    return _("Started rerun %(id)s") % {"id": made.pk}
