"""The admin of incidents, which is read-only except for their state and the rerun of their runs.

Invariants:

- Users see the incidents of jobs that they may see. Texts of attempts need the permission to view
  attempts.
- Users rerun only runs that they may see, and only with the permission to rerun runs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_dcron import control
from django_dcron.admin.action_forms import ReasonForm
from django_dcron.admin.actions import ActionAdmin, as_list_action
from django_dcron.admin.display import EMPTY, may_view, render_muted, render_time
from django_dcron.admin.incident_badge import LABELS, incident_badge
from django_dcron.admin.incidents import page, rerun_page
from django_dcron.admin.incidents.trend import render_trend
from django_dcron.admin.lists.base import HistoryAdmin
from django_dcron.admin.lists.filters import NamespaceFilter, filter_by_jobs
from django_dcron.admin.object_action import ActionResult, Button, ObjectAction
from django_dcron.admin.visibility import admin_scope, is_hidden
from django_dcron.db import clock
from django_dcron.diagnosis.visible_rows import visible_incidents
from django_dcron.models import Incident, Job, Run
from django_dcron.policies.incidents import STATES_BEFORE, IncidentState
from django_dcron.utils.bounded_text import with_ellipsis

PAUSE_FORM = "dcron-do-pause"
"""The id of the form of the job's pause action."""


def _state_action(
    name: str, label: Any, state: IncidentState, result_text: Any, explanation: Any
) -> ObjectAction[Incident]:
    def apply(request: HttpRequest, incident: Incident) -> ActionResult:
        note = request.POST.get("reason", "").strip()
        control.set_incident_state(incident, state, by=request.user.get_username(), note=note)
        text = str(result_text)
        return ActionResult(f"{text}: {note}" if note else text)

    def refusal(incident: Incident) -> str:
        if IncidentState(incident.state) in STATES_BEFORE[state]:
            return ""
        current = str(LABELS[incident.state])
        return gettext("The incident's state is “%(state)s”.") % {"state": current}

    return ObjectAction(
        name,
        label,
        apply,
        "acknowledge",
        refusal=refusal,
        form=ReasonForm,
        explanation=explanation,
    )


ACTIONS: tuple[ObjectAction[Incident], ...] = (
    _state_action(
        "acknowledge",
        _("Acknowledge"),
        IncidentState.ACKNOWLEDGED,
        _("Acknowledged"),
        _("Shows that someone is working on it. A success of the job resolves the incident."),
    ),
    _state_action(
        "mute",
        _("Mute"),
        IncidentState.MUTED,
        _("Muted"),
        _("Further failures send no alerts, until someone opens or resolves the incident."),
    ),
    _state_action(
        "resolve",
        _("Resolve"),
        IncidentState.RESOLVED,
        _("Resolved"),
        _("The next failure opens the incident again as returning."),
    ),
    _state_action(
        "reopen",
        _("Open again"),
        IncidentState.OPEN,
        _("Opened again"),
        _("Alerts are sent again."),
    ),
)


class IncidentNamespaceFilter(NamespaceFilter):
    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not self.value():
            return queryset
        return filter_by_jobs(queryset, Job.objects.filter(namespace=self.value()))


@admin.register(Incident)
class IncidentAdmin(ActionAdmin[Incident], HistoryAdmin[Incident]):
    change_form_template = "admin/django_dcron/incident/change_form.html"
    object_actions = ACTIONS
    actions = [as_list_action(action) for action in ACTIONS]
    list_display = ("error", "state_column", "failures", "last_seen")
    list_filter = ("state", IncidentNamespaceFilter)
    search_fields = ("exception_class", "message", "job__name", "job__namespace")
    search_note = _("Enter up to eight words of an exception, a message or a job name.")
    empty_text = _(
        "No incidents. Failed attempts appear here, grouped by job, exception and message."
    )
    ordering = ("-last_seen_at", "-pk")
    quick_links = (
        (_("Open or acknowledged"), "state__in=open%2Cacknowledged"),
        (_("Returning"), "state__in=open%2Cacknowledged%2Cmuted&returned_at__isnull=False"),
        (_("Muted"), "state__exact=muted"),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Incident]:
        rows = super().get_queryset(request).select_related("job")
        return visible_incidents(rows, admin_scope(request, self.admin_site))

    def has_view_permission(self, request: HttpRequest, obj: Incident | None = None) -> bool:
        hidden = obj is not None and is_hidden(request, obj.job, self.admin_site)
        return super().has_view_permission(request, obj) and not hidden

    def lookup_allowed(self, lookup: str, value: str, request: Any = None) -> bool:
        return lookup == "job__id__exact" or super().lookup_allowed(lookup, value, request)

    def may_rerun(self, request: HttpRequest, incident: Incident) -> bool:
        """Return whether the user may rerun the runs of the incident."""
        site = self.admin_site
        if not (may_view(request, Run, site) and self.has_view_permission(request, incident)):
            return False
        run_admin: Any = site.get_model_admin(Run)
        return bool(run_admin.has_rerun_permission(request))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(partial(rerun_page.rerun_view, self))
        return [
            path("<path:object_id>/rerun/", view, name="django_dcron_incident_rerun"),
            *super().get_urls(),
        ]

    def buttons(self, request: HttpRequest, obj: Incident) -> list[Button]:
        site, buttons = self.admin_site, super().buttons(request, obj)
        if may_view(request, Job, site):
            job_admin: Any = site.get_model_admin(Job)
            of_job = job_admin.buttons(request, obj.job)
            label = gettext("Pause job")
            pause = [replace(each, label=label) for each in of_job if each.form_id == PAUSE_FORM]
            buttons = [*pause, *buttons]
        if self.may_rerun(request, obj):
            url = reverse("admin:django_dcron_incident_rerun", args=[obj.pk], current_app=site.name)
            buttons.insert(0, Button(rerun_page.TITLE, url, has_page=True, is_primary=True))
        return buttons

    def state_label(self, obj: Incident) -> str:
        return incident_badge(obj.state)

    @admin.display(description=_("incident"))
    def error(self, incident: Incident) -> str:
        message = with_ellipsis(incident.message, 200)
        text = format_html(
            '<span class="dcron-error"><strong>{}</strong> {}</span>', incident.exception, message
        )
        return format_html(
            "{}{}", text if incident.title != EMPTY else EMPTY, render_muted(str(incident.job))
        )

    @admin.display(description=_("state"))
    def state_column(self, incident: Incident) -> str:
        note = gettext("Returning") if incident.is_returning else ""
        by = incident.changed_by
        return format_html(
            "{}{}{}", self.state_label(incident), render_muted(note), render_muted(by)
        )

    @admin.display(description=_("failed attempts"))
    def failures(self, incident: Incident) -> str:
        trend = render_trend(incident.trend, clock.now(), 1, 24)
        return format_html("{}{}", incident.count, format_html("<div>{}</div>", trend))

    @admin.display(description=_("last seen"))
    def last_seen(self, incident: Incident) -> str:
        near = clock.now()
        first = format_html(
            gettext("first {}"), render_time(incident.first_seen_at, near=incident.last_seen_at)
        )
        return format_html(
            "{}{}", render_time(incident.last_seen_at, near=near), render_muted(first)
        )

    def get_fieldsets(self, request: HttpRequest, obj: Incident | None = None) -> Any:
        return []

    def add_form_context(
        self, request: HttpRequest, context: dict[str, Any], obj: Incident | None
    ) -> None:
        super().add_form_context(request, context, obj)
        if obj is not None:
            context["buttons"] = self.buttons(request, obj)
            context["incident_page"] = page.IncidentPage(obj, request, self.admin_site)
            context["badge"] = self.state_label(obj)
