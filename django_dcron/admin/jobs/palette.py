"""The command palette: jump to a page, a job or a run, or apply an action to a job.

Invariants:

- The results contain only pages, rows and actions that the user may open or apply. An action checks
  the permission and the state of the job again.
- The number of results and the number of queries are bounded.
- Opening the palette changes nothing. An action is a form with a CSRF token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from django_dcron.admin.display import change_url, list_url, may_view
from django_dcron.admin.lists.base import search_words
from django_dcron.admin.lists.job_filter import name_has_words
from django_dcron.admin.object_action import ObjectAction
from django_dcron.admin.visibility import admin_scope, may_view_row
from django_dcron.diagnosis.run_ids import id_range_of_text
from django_dcron.models import (
    Alert,
    Attempt,
    AuditEntry,
    Calendar,
    Dashboard,
    Freeze,
    Incident,
    Job,
    Limit,
    Node,
    Run,
)
from django_dcron.models.run import STATE_LABELS

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from django_dcron.admin.jobs.admin import JobAdmin

URL_NAME = "django_dcron_palette"
JOBS_FOUND = 8
JOBS_WITH_ACTIONS = 3
RUNS_FOUND = 5
LONGEST_QUERY = 200
PAGES: tuple[tuple[type[Model], str], ...] = (
    (Dashboard, "gd"),
    (Job, "gj"),
    (Run, "gr"),
    (Incident, "gi"),
    (Attempt, "ga"),
    (Alert, "gl"),
    (Node, "gn"),
    (Calendar, "gc"),
    (Limit, "gm"),
    (Freeze, "gf"),
    (AuditEntry, "gu"),
)
"""The lists, each with the keys that open it."""


@dataclass(frozen=True, slots=True)
class Option:
    label: StrOrPromise
    url: str
    note: StrOrPromise = ""
    keys: str = ""
    """The keyboard shortcut of a page."""
    is_post: bool = False
    """Whether choosing it applies an action instead of opening a page."""


@dataclass(frozen=True, slots=True)
class OptionGroup:
    title: StrOrPromise
    options: list[Option]


def palette_context(request: HttpRequest, site: admin.AdminSite) -> dict[str, Any]:
    """Return the context of the palette's template; empty for users who may not view jobs."""
    if not may_view(request, Job, site):
        return {}
    return {
        "palette_url": reverse(f"admin:{URL_NAME}", current_app=site.name),
        "shortcuts": list(_pages(request, site)),
    }


def palette_view(model_admin: JobAdmin, request: HttpRequest) -> HttpResponse:
    """Return the results for the typed text as options of a list box."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    typed = request.GET.get("q", "").replace("\0", "")[:LONGEST_QUERY].strip()
    runs = list(_runs(request, model_admin.admin_site, typed))
    groups = [
        OptionGroup(_("Runs"), runs),
        *([] if runs else _jobs_and_actions(model_admin, request, typed)),
        OptionGroup(_("Pages"), list(_pages(request, model_admin.admin_site, typed))),
    ]
    groups = [group for group in groups if group.options]
    names_an_action = not groups and any(
        all(_label_contains(action, word) for word in search_words(typed))
        for action in _actions(model_admin, request)
    )
    context = {"groups": groups, "typed": typed, "names_an_action": names_an_action}
    return render(request, "admin/django_dcron/palette_results.html", context)


def _pages(request: HttpRequest, site: admin.AdminSite, typed: str = "") -> Iterator[Option]:
    words = typed.lower().split()
    for model, keys in PAGES:
        label = str(capfirst(model._meta.verbose_name_plural))
        if may_view(request, model, site) and all(word in label.lower() for word in words):
            yield Option(label, list_url(model, site), keys=keys)
    label = str(_("Add job"))
    can_add = site.is_registered(Job) and site.get_model_admin(Job).has_add_permission(request)
    if can_add and all(word in label.lower() for word in words):
        yield Option(label, reverse("admin:django_dcron_job_add", current_app=site.name))


def _runs(request: HttpRequest, site: admin.AdminSite, typed: str) -> Iterator[Option]:
    """Yield the runs with the typed id, which may be incomplete."""
    run_ids = id_range_of_text(typed)
    if run_ids is None or not may_view(request, Run, site):
        return
    runs = admin_scope(request, site).runs
    for run in runs.filter(pk__range=run_ids).select_related("job").order_by("pk")[:RUNS_FOUND]:
        if may_view_row(request, run, site):
            yield Option(str(run), change_url(run, site), dict(STATE_LABELS)[run.state])


def _jobs_and_actions(model_admin: JobAdmin, request: HttpRequest, typed: str) -> list[OptionGroup]:
    """Find jobs by the words that don't name an action, and the named actions of the first jobs."""
    words = search_words(typed)
    if not words:
        return []
    site = model_admin.admin_site
    actions = _actions(model_admin, request)
    verbs = [word for word in words if any(_label_contains(each, word) for each in actions)]
    others = [word for word in words if word not in verbs]
    if not others:
        verbs, others = [], words
    found = admin_scope(request, site).jobs.filter(name_has_words(" ".join(others)))
    jobs = list(found.order_by("namespace", "name").defer("args", "kwargs")[:JOBS_FOUND])
    jobs = [job for job in jobs if model_admin.has_view_permission(request, job)]
    options = [
        Option(
            action.label,
            reverse(
                "admin:django_dcron_job_action", args=[job.pk, action.name], current_app=site.name
            ),
            str(job),
            is_post=not action.has_page,
        )
        for job in jobs[:JOBS_WITH_ACTIONS]
        for action in actions
        if all(_label_contains(action, verb) for verb in verbs)
        and not model_admin.refusal(request, action, job)
    ]
    of_jobs = [Option(str(job), change_url(job, site), job.target) for job in jobs]
    groups = [OptionGroup(_("Jobs"), of_jobs), OptionGroup(_("Actions"), options)]
    return groups[::-1] if verbs else groups


def _actions(model_admin: JobAdmin, request: HttpRequest) -> list[ObjectAction[Job]]:
    return [each for each in model_admin.object_actions if model_admin.may(request, each)]


def _label_contains(action: ObjectAction[Job], word: str) -> bool:
    return word.lower() in str(action.label).lower()
