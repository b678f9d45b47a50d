"""Texts about actions on jobs, runs and freezes, for the person who acts."""

from __future__ import annotations

from collections.abc import Iterable

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.jobs.audit.entries import pause_authors
from django_dcron.jobs.backfill import Backfill
from django_dcron.jobs.sync import is_no_longer_declared
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import State
from django_dcron.utils.bounded_text import with_ellipsis
from django_dcron.utils.messages import gettext_noop
from django_dcron.utils.time_format import format_site_time

LONGEST_REASON = 150
"""The maximum number of characters of a reason, without the user's name."""
LONGEST_SIGNATURE = 100
"""The user's name is shortened to this number of characters. The column has 255 for both."""

_SIGNATURES = (" ({})", "\uff08{}\uff09")
"""The names that ``signed_reason`` adds in any language. Chinese has full-width parentheses."""

STATE_NAMES = {
    State.PENDING: gettext_noop("pending"),
    State.QUEUED: gettext_noop("queued"),
    State.RUNNING: gettext_noop("running"),
    State.WAITING: gettext_noop("waiting"),
    State.SUCCEEDED: gettext_noop("succeeded"),
    State.FAILED: gettext_noop("failed"),
    State.SKIPPED: gettext_noop("skipped"),
    State.MISSED: gettext_noop("missed"),
    State.CANCELLED: gettext_noop("cancelled"),
}
"""Names of states for use within a sentence. Labels begin with a capital letter."""


def triggered_text(run: Run) -> str:
    if run.args is None and run.kwargs is None:
        return _("Created run %(id)s") % {"id": run.pk}
    return _("Created run %(id)s with other arguments") % {"id": run.pk}


def paused_text(job: Job) -> str:
    if job.paused_until is None:
        return _("Paused: %(reason)s") % {"reason": job.pause_reason}
    values = {"until": format_site_time(job.paused_until), "reason": job.pause_reason}
    return _("Paused until %(until)s: %(reason)s") % values


def resumed_text(job: Job) -> str:
    if is_no_longer_declared(job):
        return _(
            "Resumed until the next sync, which pauses the job because code no longer "
            "declares it. To keep the schedule running, duplicate the job and resume the copy."
        )
    return _("Resumed")


def unfrozen_text() -> str:
    return _("Freeze ended")


def backfilled_text(backfill: Backfill) -> str:
    """Describe a backfill of at least one run."""
    text = ngettext(
        "Backfilled %(count)d run, from %(first)s to %(last)s",
        "Backfilled %(count)d runs, from %(first)s to %(last)s",
        len(backfill.occurrences),
    )
    first, last = map(format_site_time, (backfill.occurrences[0], backfill.occurrences[-1]))
    return text % {"count": len(backfill.occurrences), "first": first, "last": last}


def cancelled_text(run: Run) -> str:
    # A run that was asked to stop may have succeeded by now.
    return _("Cancelled") if run.state == State.CANCELLED else _("Cancellation requested")


def rerun_text(rerun: Run) -> str:
    return _("Created rerun %(id)s") % {"id": rerun.pk}


def signed_reason(reason: str, name: str) -> str:
    """Return ``reason (name)``, or ``by name`` without a reason, in the active language."""
    name = with_ellipsis(name, LONGEST_SIGNATURE)
    if not reason:
        return _("by %(user)s") % {"user": name}
    return _("%(reason)s (%(user)s)") % {"reason": reason, "user": name}


def unsigned_reason(reason: str, name: str) -> str:
    """Return the reason without the name that ``signed_reason`` added, in the active language."""
    if reason == signed_reason("", name):
        return ""
    _start, _mark, signature = signed_reason("\0", name).partition("\0")
    return reason.removesuffix(signature)


def paused_for(jobs: Iterable[Job], reason: str) -> list[Job]:
    """Return the jobs that are paused for this reason, with or without the name of who paused."""
    candidates = [job for job in jobs if not job.enabled and job.pause_reason.startswith(reason)]
    authors = pause_authors([job for job in candidates if job.pause_reason != reason])
    return [
        job
        for job in candidates
        if job.pause_reason == reason
        or (job.pk in authors and _is_signed(job.pause_reason, reason, authors[job.pk]))
    ]


def _is_signed(text: str, reason: str, name: str) -> bool:
    """Return whether the text is the reason with this name, in any language."""
    name = with_ellipsis(name, LONGEST_SIGNATURE)
    return any(text == f"{reason}{signature.format(name)}" for signature in _SIGNATURES)
