"""Rerun all failed runs of an incident, batch by batch, and show the progress.

Invariants:

- Opening the page changes nothing.
- A request works for about ``BUDGET`` seconds. The page then submits itself for the next batches.
  Without JavaScript, the user presses a button.
- A repeated request reruns no run twice (``jobs.queued_reruns``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Case, Count, Exists, OuterRef, When
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext_lazy, ngettext

from django_dcron import control
from django_dcron.admin.actions import OTHER_ARGUMENTS, error_text
from django_dcron.admin.display import change_url
from django_dcron.admin.lists.confirmation import MAX_PROGRESS_COUNTED
from django_dcron.admin.visibility import admin_scope, visible_node_cautions
from django_dcron.diagnosis.bounded_count import count_up_to
from django_dcron.diagnosis.start_caution import target_cautions
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.queued_reruns import failed_without_attempt
from django_dcron.models import Attempt, Incident, Run
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.lifecycle import State

if TYPE_CHECKING:
    from django_dcron.admin.incidents.admin import IncidentAdmin

TITLE = gettext_lazy("Rerun all")
BUDGET = 1.5
"""Seconds after which a request starts no further batch."""
NUMBERS = ("after", "until", "created", "total")
"""The hidden fields that the page submits for the next batch."""
LARGEST = 2**63 - 1
"""The largest primary key."""


def rerun_view(model_admin: IncidentAdmin, request: HttpRequest, object_id: str) -> HttpResponse:
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    incident = model_admin.get_object(request, unquote(object_id))
    if incident is None:
        raise Http404
    if not model_admin.may_rerun(request, incident):
        raise PermissionDenied
    if request.method != "POST":
        until = control.latest_failed_attempt_id(incident)
        numbers = {
            "after": 0,
            "until": until,
            "created": 0,
            "total": _count_failed(incident, until),
        }
        return _page(model_admin, request, incident, numbers, is_running=False)
    numbers = {name: _number(request.POST.get(name, "")) for name in NUMBERS}
    try:
        is_done = _rerun(request, model_admin, incident, numbers)
    except NotPossible as error:
        model_admin.message_user(request, error_text(error), messages.ERROR)
        return HttpResponseRedirect(change_url(incident, model_admin.admin_site))
    if not is_done:
        return _page(model_admin, request, incident, numbers, is_running=True)
    text = ngettext(
        "Created %(count)d run. It starts after the due runs of the schedule.",
        "Created %(count)d runs. The oldest starts first, after the due runs of the schedule.",
        numbers["created"],
    ) % {"count": numbers["created"]}
    level = messages.SUCCESS if numbers["created"] else messages.WARNING
    model_admin.message_user(request, text, level)
    return HttpResponseRedirect(change_url(incident, model_admin.admin_site))


def _rerun(
    request: HttpRequest, model_admin: IncidentAdmin, incident: Incident, numbers: dict[str, int]
) -> bool:
    """Rerun batches for ``BUDGET`` seconds. Return whether all are done. Updates ``numbers``."""
    run_admin: Any = model_admin.admin_site.get_model_admin(Run)

    def may_rerun(run: Run) -> bool:
        return bool(
            run_admin.has_view_permission(request, run)
            and run_admin.has_rerun_permission(request, run)
        )

    return _rerun_for(BUDGET, incident, _permitted_runs(request, model_admin), may_rerun, numbers)


def _permitted_runs(request: HttpRequest, model_admin: IncidentAdmin) -> RunQuerySet:
    """Return the runs that the user may rerun, apart from permissions for single objects."""
    runs: RunQuerySet = admin_scope(request, model_admin.admin_site).runs
    if request.user.has_perm(OTHER_ARGUMENTS):
        return runs
    return runs.filter(args__isnull=True, kwargs__isnull=True)


def _rerun_for(
    budget: float,
    incident: Incident,
    runs: RunQuerySet,
    may_rerun: Callable[[Run], bool],
    numbers: dict[str, int],
) -> bool:
    deadline = time.monotonic() + budget
    while True:
        batch = control.rerun_failures(
            incident,
            after=numbers["after"],
            until=numbers["until"],
            runs=runs,
            may_rerun=may_rerun,
        )
        numbers["created"] += batch.created
        if batch.next is None:
            return True
        numbers["after"] = batch.next
        if time.monotonic() >= deadline:
            return False


def _count_failed(incident: Incident, until: int) -> int:
    """Return the number of failed attempts, up to ``MAX_PROGRESS_COUNTED``."""
    attempts = Attempt.objects.filter(incident=incident.pk, pk__lte=until)
    return count_up_to(attempts, MAX_PROGRESS_COUNTED)


def _count_runs(incident: Incident, until: int, runs: RunQuerySet) -> int:
    """Return the number of failed runs among ``runs`` whose last attempt belongs to the incident.

    Only the latest ``MAX_PROGRESS_COUNTED`` attempts are read.
    """
    if incident.last_attempt is None:
        return len(failed_without_attempt(incident, runs))
    attempts = Attempt.objects.filter(incident=incident.pk, pk__lte=until).order_by("-pk")
    failed = runs.filter(pk=OuterRef("run"), state=State.FAILED, attempt=OuterRef("number"))
    has_failed = Case(When(Exists(failed), then=1))
    latest = attempts.annotate(has_failed=has_failed).values("has_failed")[:MAX_PROGRESS_COUNTED]
    found: dict[str, int] = latest.aggregate(runs=Count("has_failed"))
    return found["runs"]


def _number(text: str) -> int:
    return min(int(text), LARGEST) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _page(
    model_admin: IncidentAdmin,
    request: HttpRequest,
    incident: Incident,
    numbers: dict[str, int],
    *,
    is_running: bool,
) -> HttpResponse:
    site = model_admin.admin_site
    done = Attempt.objects.filter(incident=incident.pk, pk__lte=numbers["after"])
    runs = _permitted_runs(request, model_admin)
    context = {
        "title": TITLE,
        "subtitle": str(incident),
        "original": incident,
        "incident": incident,
        "back": change_url(incident, site),
        "numbers": numbers,
        "is_running": is_running,
        "runs": None if is_running else _count_runs(incident, numbers["until"], runs),
        "done": count_up_to(done, MAX_PROGRESS_COUNTED) if is_running else 0,
        "is_paused": incident.job.is_paused,
        "node_cautions": visible_node_cautions(incident.job, request, site),
        "cautions": () if is_running else target_cautions(incident.job.target),
    }
    return model_admin.render_page(request, "incident/rerun.html", context)
