"""Delete jobs whose history may have a million runs.

Invariants:

- The confirmation page doesn't load the whole history. Neither does the deletion.
- One action deletes at most ``MAX_ROWS`` jobs. The confirmation form has a field for each job, and
  Django limits the number of fields (``DATA_UPLOAD_MAX_NUMBER_FIELDS``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from django.contrib import admin, messages
from django.contrib.admin import actions
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron import control
from django_dcron.admin import actions as admin_actions
from django_dcron.admin.base import BaseAdmin
from django_dcron.admin.lists.bounded import bounded_count_text
from django_dcron.diagnosis.scope import Scope
from django_dcron.exceptions import Conflict
from django_dcron.models import Job, Link, Run

MAX_LISTED = 100
ERASE = "erase"
"""The name of the checkbox that also deletes the history."""


class DeletionSummary(NamedTuple):
    """What the confirmation page shows."""

    lines: list[str]
    """The jobs, and the jobs that will no longer run after them."""
    counts: dict[str, str]
    """The numbers of jobs and runs, by the plural names of their models."""


def deletion_summary(jobs: Sequence[Job], scope: Scope) -> DeletionSummary:
    """Return what the confirmation page shows about the deletion of the jobs."""
    runs = bounded_count_text(Run.objects.filter(job__in=jobs))
    lines = [_("Job: %(job)s") % {"job": job} for job in jobs[:MAX_LISTED]]
    lines += _more_line(len(jobs) - MAX_LISTED)
    followers = (
        Link.objects.filter(after__in=jobs).exclude(job__in=jobs).select_related("job", "after")
    )
    visible = scope.of_jobs(followers, "job")
    listed = list(visible.order_by("pk")[: MAX_LISTED + 1])
    lines += [
        _("%(job)s will no longer run after %(after)s") % {"job": link.job, "after": link.after}
        for link in listed[:MAX_LISTED]
    ]
    if len(listed) > MAX_LISTED:
        lines += _more_line(visible.count() - MAX_LISTED)
    hidden = 0
    if scope.narrows(Job):
        others = followers.exclude(job__in=scope.jobs.values("pk"))
        hidden = others.order_by().values("job").distinct().count()
    if hidden:
        text = ngettext(
            "%(count)d job that you don't have permission to view will no longer run after these "
            "jobs",
            "%(count)d jobs that you don't have permission to view will no longer run after "
            "these jobs",
            hidden,
        )
        lines.append(text % {"count": hidden})
    counts = {
        str(Job._meta.verbose_name_plural): str(len(jobs)),
        str(Run._meta.verbose_name_plural): runs,
    }
    return DeletionSummary(lines, counts)


def _more_line(more: int) -> list[str]:
    return [_("… and %(count)d more") % {"count": more}] if more > 0 else []


@admin.action(
    permissions=["delete_several"],
    description=actions.delete_selected.short_description,  # type: ignore[attr-defined]
)
def delete_selected(
    model_admin: BaseAdmin[Job], request: HttpRequest, jobs: QuerySet[Job]
) -> HttpResponse | None:
    """Delete at most ``MAX_ROWS`` of the jobs. Replaces Django's action of the same name."""
    limit = admin_actions.MAX_ROWS
    if (count := jobs.count()) > limit:
        text = _(
            "%(found)s jobs are selected, but at most %(most)s can be deleted at once. This page "
            "lists the first %(most)s jobs."
        )
        model_admin.message_user(request, text % {"found": count, "most": limit}, messages.WARNING)
    return actions.delete_selected(model_admin, request, jobs[:limit])


def delete_unless_gone(job: Job, *, erase: bool = False) -> None:
    with suppress(Conflict):  # another user has deleted the job already
        control.delete(job, erase=erase)
