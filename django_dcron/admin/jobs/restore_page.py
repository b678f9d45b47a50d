"""The page that confirms the undoing of a deletion, and the URL of its links.

Invariants:

- A user restores only what the user could create in the form for a new job. So the calendar and the
  limit of the job are visible.
- Users whose jobs are narrowed can't restore a job: they don't see the entries of deleted jobs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from django.contrib import messages
from django.contrib.admin import AdminSite, ModelAdmin
from django.core.exceptions import PermissionDenied
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron import control
from django_dcron.admin.actions import REFUSALS
from django_dcron.admin.audit_log import shown_change
from django_dcron.admin.display import change_url, list_url
from django_dcron.admin.jobs.job_actions import job_error_text
from django_dcron.admin.visibility import admin_scope
from django_dcron.diagnosis.audit_log import visible_entries
from django_dcron.diagnosis.job_references import require_visible_references
from django_dcron.diagnosis.start_caution import restore_cautions
from django_dcron.jobs.audit.entries import read_change
from django_dcron.jobs.representation import JOB_FIELDS
from django_dcron.jobs.restoring import (
    deletions,
    has_missed_handover,
    is_undoable,
    require_undoable,
)
from django_dcron.models import AuditAction, AuditEntry, AuditKind, Job
from django_dcron.models.audit_entry import AuditEntryQuerySet

if TYPE_CHECKING:
    from django_dcron.admin.jobs.admin import JobAdmin

TITLE = gettext_lazy("Restore a deleted job")
URL_NAME = "django_dcron_job_restore"


def url_after_deletion(model_admin: JobAdmin, request: HttpRequest, job_id: int) -> str:
    """Return the URL of the page that undoes the deletion, or an empty text if the user can't."""
    entries = _visible_deletions(model_admin, request).filter(job_id=job_id)
    entry = entries.order_by("pk").last()
    if entry is None or not can_restore(request, entry, model_admin.admin_site):
        return ""
    return restore_url(entry, model_admin.admin_site)


def can_restore(request: HttpRequest, entry: AuditEntry, site: AdminSite) -> bool:
    """Return whether the entry is a deletion that the user can undo."""
    if (entry.kind, entry.action) != (AuditKind.JOB, AuditAction.DELETE):
        return False
    if not site.is_registered(Job) or not _may_create(site.get_model_admin(Job), request, entry):
        return False
    return is_undoable(entry)


def _has_permission(model_admin: ModelAdmin[Job], request: HttpRequest) -> bool:
    return model_admin.has_view_permission(request) and model_admin.has_add_permission(request)


def _may_create(model_admin: ModelAdmin[Job], request: HttpRequest, entry: AuditEntry) -> bool:
    """Return whether the form for a new job has all fields of the deleted job that people set."""
    if not _has_permission(model_admin, request):
        return False
    fields = {name for name in entry.before if name in JOB_FIELDS and JOB_FIELDS[name].writable}
    return fields <= model_admin.get_form(request).base_fields.keys()


def restore_url(entry: AuditEntry, site: AdminSite) -> str:
    return reverse(f"admin:{URL_NAME}", args=[entry.pk], current_app=site.name)


def _visible_deletions(model_admin: JobAdmin, request: HttpRequest) -> AuditEntryQuerySet:
    return visible_entries(deletions(), admin_scope(request, model_admin.admin_site))


def restore_view(model_admin: JobAdmin, request: HttpRequest, entry_id: int) -> HttpResponse:
    if not _has_permission(model_admin, request):
        raise PermissionDenied
    if request.method not in ("GET", "HEAD", "POST"):
        return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
    entry = _visible_deletions(model_admin, request).filter(pk=entry_id).first()
    if entry is None:
        raise Http404
    if not _may_create(model_admin, request, entry):
        raise PermissionDenied
    try:
        if request.method != "POST":
            require_undoable(entry)
            return _page(model_admin, request, entry)
        scope = admin_scope(request, model_admin.admin_site)
        check = partial(require_visible_references, before=Job(), scope=scope)
        missed_handover = has_missed_handover(entry)
        job = control.restore(entry, check=check)
    except REFUSALS as error:
        _report(model_admin, request, entry, job_error_text(error), messages.ERROR)
    else:
        text = _("Restored without its history")
        _report(model_admin, request, entry, text, messages.SUCCESS)
        for caution in restore_cautions(job, scope, missed_handover=missed_handover):
            _report(model_admin, request, entry, caution, messages.WARNING)
        if model_admin.has_view_permission(request, job):
            return HttpResponseRedirect(change_url(job, model_admin.admin_site))
    return HttpResponseRedirect(list_url(Job, model_admin.admin_site))


def _report(
    model_admin: JobAdmin, request: HttpRequest, entry: AuditEntry, text: str, level: int
) -> None:
    model_admin.message_user(request, f"“{entry.label}”: {text}", level)


def _page(model_admin: JobAdmin, request: HttpRequest, entry: AuditEntry) -> HttpResponse:
    deletion = read_change(entry)
    context = {
        "title": TITLE,
        "submit_label": _("Restore"),
        "subtitle": entry.label,
        "original": entry.label,
        "back": list_url(Job, model_admin.admin_site),
        "deletion": deletion,
        "fields": [shown_change(Job, each) for each in deletion.fields],
    }
    return model_admin.render_page(request, "job/restore.html", context)
