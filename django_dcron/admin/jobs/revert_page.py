"""The page that confirms the revert of an edit, and the links to it in the history of a job.

Invariants:

- A user reverts only what the user can change in the form of the job. This depends on the
  permission to change the job, and on the fields of the form.
- As after a save of the form, the job is visible. So are its calendar, its limit and its
  predecessors, unless they belonged to the job before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
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
from django_dcron.admin.audit_log import LogLine, shown_change
from django_dcron.admin.display import change_url
from django_dcron.admin.jobs.job_actions import NOT_VISIBLE, job_error_text
from django_dcron.admin.visibility import admin_scope
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.job_references import require_visible_references
from django_dcron.diagnosis.scope import Scope
from django_dcron.jobs.audit.differences import FieldChange, values_of
from django_dcron.jobs.audit.entries import LoggedChange, read_change
from django_dcron.jobs.reverting import decide_revert, edit_of, is_edit, plan_revert
from django_dcron.models import AuditEntry, Job

if TYPE_CHECKING:
    from django_dcron.admin.jobs.admin import JobAdmin

TITLE = gettext_lazy("Revert an edit")
URL_NAME = "django_dcron_job_revert"


def with_revert_urls(
    model_admin: JobAdmin,
    request: HttpRequest,
    job: Job,
    lines: Sequence[LogLine],
    changed_later: Collection[str] | None,
) -> Sequence[LogLine]:
    """Return the lines of the job's history, oldest first, with links to revert the edits.

    An edit has a link if the user may revert it, the log has its old values, and its fields weren't
    changed again. ``changed_later`` has the fields of the entries after the lines. If it is None,
    too many changes follow to read them, and no line has a link.
    """
    if changed_later is None:
        return lines
    editable, present = _editable_fields(model_admin, request, job), values_of(job)
    changed_later = {*changed_later}
    linked: list[LogLine] = []
    for line in reversed(lines):
        edit, names = line.change, {each.field for each in line.change.fields}
        if (
            is_edit(edit)
            and names <= editable
            and decide_revert(edit, present, changed_later).is_possible
        ):
            url = _url(model_admin, URL_NAME, job.pk, edit.version)
            linked.append(replace(line, revert_url=url))
        else:
            linked.append(line)
        changed_later |= names
    return linked[::-1]


def revert_view(
    model_admin: JobAdmin, request: HttpRequest, object_id: str, version: int
) -> HttpResponse:
    if not model_admin.has_change_permission(request):
        raise PermissionDenied
    if request.method not in ("GET", "HEAD", "POST"):
        return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
    job = model_admin.get_object(request, unquote(object_id))
    if job is None:
        raise Http404
    entry = edit_of(job, version)
    editable = _editable_fields(model_admin, request, job)
    if not editable or (entry is not None and not entry.after.keys() <= editable):
        raise PermissionDenied
    if entry is None:
        raise Http404
    scope = admin_scope(request, model_admin.admin_site)
    if request.method != "POST":
        refusal = _refusal_of(partial(_check, job, entry, scope))
        return _page(model_admin, request, job, read_change(entry), refusal)
    if refusal := _refusal_of(partial(_revert, job, entry, scope)):
        model_admin.message_user(request, f"“{job}”: {refusal}", messages.ERROR)
    else:
        text = _("Reverted the edit that made version %(version)s") % {"version": version}
        model_admin.message_user(request, f"“{job}”: {text}", messages.SUCCESS)
    return HttpResponseRedirect(
        _url(model_admin, f"{model_admin.opts.app_label}_job_history", job.pk)
    )


def _editable_fields(model_admin: JobAdmin, request: HttpRequest, job: Job) -> set[str]:
    """Return the fields that the user can change in the form of the job."""
    if not model_admin.has_view_permission(request, job):
        return set()
    if not model_admin.has_change_permission(request, job):
        return set()
    return {*model_admin.get_form(request, job, change=True).base_fields}


def _refusal_of(attempt: Callable[[], object]) -> str:
    """Return the error of ``attempt``, or an empty text."""
    try:
        attempt()
    except REFUSALS as error:
        return job_error_text(error)
    return ""


def _check(job: Job, entry: AuditEntry, scope: Scope) -> None:
    """Raise the error that ``_revert`` would probably raise. Nothing is changed."""
    row = plan_revert(job, entry).row
    require_visible_references(row, before=job, scope=scope)
    row.full_clean()


def _revert(job: Job, entry: AuditEntry, scope: Scope) -> None:
    """Revert the edit if the user may see the result. Raises an error that changes nothing."""
    check = partial(require_visible_references, before=copy(job), scope=scope)
    if not scope.narrows(Job):
        control.revert(job, entry, check=check)
        return
    with transaction.atomic(using=alias_for(Job)):
        control.revert(job, entry, check=check)
        if not scope.sees(job):
            raise ValidationError(NOT_VISIBLE)


def _page(
    model_admin: JobAdmin, request: HttpRequest, job: Job, edit: LoggedChange, refusal: str
) -> HttpResponse:
    fields = [FieldChange(each.field, each.new, each.old) for each in edit.fields]
    context = {
        "title": TITLE,
        "submit_label": _("Revert"),
        "subtitle": str(job),
        "original": job,
        "back": change_url(job, model_admin.admin_site),
        "edit": edit,
        "refusal": refusal,
        "fields": [shown_change(Job, each) for each in fields],
    }
    return model_admin.render_page(request, "job/revert.html", context)


def _url(model_admin: JobAdmin, name: str, *args: object) -> str:
    return reverse(f"admin:{name}", args=args, current_app=model_admin.admin_site.name)
