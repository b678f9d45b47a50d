"""Deleting a job whose history may be a million runs: neither the confirmation nor the deletion loads it whole. And deleting
many jobs: not more at once than a form can carry (``DATA_UPLOAD_MAX_NUMBER_FIELDS``)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from django.contrib import admin, messages
from django.contrib.admin import actions
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron import control
from django_dcron.admin import verbs
from django_dcron.admin.base import BaseAdmin
from django_dcron.admin.lists.bounded import in_words
from django_dcron.exceptions import Conflict
from django_dcron.models import Job, Link, Run
from django_dcron.observability.scope import Scope

MOST_LISTED = 100


def what_goes_too(jobs: Sequence[Job], scope: Scope) -> tuple[list[str], dict[str, str]]:
    """The lines and the counts of the confirmation page."""
    runs = in_words(Run.objects.filter(job__in=jobs))
    lines = [_("Job: %(job)s") % {"job": job} for job in jobs[:MOST_LISTED]]
    lines.append(_("All their runs, with their attempts and logs: %(count)s") % {"count": runs})
    followers = Link.objects.filter(after__in=jobs).exclude(job__in=jobs).select_related("job", "after")
    lines += [
        _("%(job)s will no longer run after %(after)s") % {"job": link.job, "after": link.after}
        for link in scope.of_jobs(followers, "job").order_by("pk")[:MOST_LISTED]
    ]
    if scope.narrows(Job) and (hidden := followers.exclude(job__in=scope.jobs.values("pk")).count()):
        text = ngettext(
            "%(count)d job that you may not see will no longer run after these",
            "%(count)d jobs that you may not see will no longer run after these",
            hidden,
        )
        lines.append(text % {"count": hidden})
    return lines, {
        str(Job._meta.verbose_name_plural): str(len(jobs)),
        str(Run._meta.verbose_name_plural): runs,
    }


@admin.action(
    permissions=["delete_several"],
    description=actions.delete_selected.short_description,  # type: ignore[attr-defined]
)
def delete_selected(
    model_admin: BaseAdmin[Job], request: HttpRequest, jobs: QuerySet[Job]
) -> HttpResponse | None:
    """Django's, which this replaces by its name, for the first of the jobs: as many as a verb handles at once."""
    most = verbs.MOST_AT_ONCE
    if (found := jobs.count()) > most:
        text = _("Chosen: %(found)s. At most %(most)s are handled at once: these are the first.")
        model_admin.message_user(request, text % {"found": found, "most": most}, messages.WARNING)
    return actions.delete_selected(model_admin, request, jobs[:most])


def delete(job: Job) -> None:
    with suppress(Conflict):  # somebody else has deleted it meanwhile: that is what was asked for
        control.delete(job)
