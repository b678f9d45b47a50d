"""The read-only admin of alerts and their delivery."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, pgettext
from django.utils.translation import gettext_lazy as _

from django_dcron.admin.alert_groups import (
    AlertChangeList,
    AlertGroup,
    GroupingFilter,
    is_grouped,
)
from django_dcron.admin.display import (
    EMPTY,
    badge,
    link,
    list_url,
    may_view,
    moment_column,
    preformatted,
    render_muted,
    render_time,
)
from django_dcron.admin.lists.base import HistoryAdmin, rows_to_show
from django_dcron.admin.visibility import admin_scope, is_hidden
from django_dcron.models import Alert, Incident, Job, Node, Run
from django_dcron.policies.alerting import AlertKind
from django_dcron.policies.lifecycle import State

LATEST = 100_000
"""The number of latest alerts that the list contains."""
ABOUT_NODES = (AlertKind.NODE_LOST, AlertKind.DEGRADED)
REPORTED_STATES: dict[str, State] = {
    AlertKind.FAILED: State.FAILED,
    AlertKind.PAUSED: State.FAILED,
    AlertKind.MISSED: State.MISSED,
    AlertKind.RECOVERED: State.SUCCEEDED,
}
"""The state of the runs that an alert reports. Other alerts report runs in any state."""


class AlertDelivery(StrEnum):
    SENT = "sent"
    WAITING = "waiting"
    GIVEN_UP = "given_up"


class DeliveryFilter(admin.SimpleListFilter):
    title = _("delivery")
    parameter_name = "delivery"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            (AlertDelivery.SENT, _("Sent")),
            (AlertDelivery.WAITING, _("Pending")),
            (AlertDelivery.GIVEN_UP, _("Not delivered")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Alert]) -> QuerySet[Alert]:
        match self.value():
            case AlertDelivery.SENT:
                return queryset.filter(sent_at__isnull=False)
            case AlertDelivery.WAITING:
                return queryset.filter(try_at__isnull=False)
            case AlertDelivery.GIVEN_UP:
                return queryset.filter(sent_at=None, try_at=None)
        return queryset


def _runs_query(alert: Alert) -> dict[str, str]:
    """Return the query parameters that list the runs in the state that the alert reports."""
    state = REPORTED_STATES.get(alert.kind)  # a newer release may have other kinds
    return {"state__exact": state.value} if state else {}


def _find_runs(alerts: Sequence[Any]) -> None:
    """Set ``has_run`` of each alert: whether the run that it reports is still stored."""
    keys = {alert.run for alert in alerts if alert.run}
    stored = set(Run.objects.filter(pk__in=keys).values_list("pk", flat=True))
    for alert in alerts:
        alert.has_run = alert.run in stored


@admin.register(Alert)
class AlertAdmin(HistoryAdmin[Alert]):
    list_display = ("subject", "channel", "created", "delivery")
    list_filter = (GroupingFilter, DeliveryFilter, "kind")
    search_fields = ("subject", "channel")
    search_note = _("Lists the 100,000 latest alerts. Searches their subjects and channels.")
    empty_text = _("No alerts yet. Configure events and channels in the DCRON_ALERTS setting.")
    fieldsets = (
        (None, {"fields": ("subject", "full_text", "kind")}),
        (_("Delivery"), {"fields": ("channel", "created", "delivery", "tries")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Alert]:
        """Return the alerts that the user may see.

        If jobs are narrowed, these are alerts about visible jobs and about nodes. All others are
        hidden: they may name hidden jobs, or their jobs are no longer stored.
        """
        alerts = super().get_queryset(request).prefetch_related("job")
        scope = admin_scope(request, self.admin_site)
        if not scope.narrows(Job):
            return alerts
        return alerts.filter(Q(job__in=scope.keys(Job)) | Q(kind__in=ABOUT_NODES))

    def has_view_permission(self, request: HttpRequest, obj: Alert | None = None) -> bool:
        job = obj.job if obj is not None else None
        hidden = job is not None and is_hidden(request, job, self.admin_site)
        return super().has_view_permission(request, obj) and not hidden

    def get_list_display(self, request: HttpRequest) -> Any:
        links = self._link_columns(request)
        if is_grouped(request):
            return ["subject", "number", *links, "channels", "last_created", "deliveries"]
        subject, *columns = super().get_list_display(request)
        return [subject, *links, *columns]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[AlertChangeList]:
        return AlertChangeList

    def get_fieldsets(self, request: HttpRequest, obj: Alert | None = None) -> Any:
        (title, options), *others = super().get_fieldsets(request, obj)
        fields = (*options["fields"], *self._link_columns(request))
        return [(title, {**options, "fields": fields}), *others]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().changelist_view(request, extra_context)
        if "run_column" in self._link_columns(request):
            _find_runs(rows_to_show(response))
        return response

    def _link_columns(self, request: HttpRequest) -> list[str]:
        return [*self._about_column(request), *self._incident_and_run_columns(request)]

    def _about_column(self, request: HttpRequest) -> list[str]:
        """Return the column with the links to jobs, runs and nodes, for users who may view them."""
        linked = (Job, Run, Node)
        return ["about"] if all(may_view(request, each, self.admin_site) for each in linked) else []

    def _incident_and_run_columns(self, request: HttpRequest) -> list[str]:
        """Return the columns of the incident and of the run, for users who may view them.

        If runs are narrowed, there is no column of runs, because it could name a hidden run. The
        incident's page links to the visible runs.
        """
        site = self.admin_site
        columns = ["incident_column"] if may_view(request, Incident, site) else []
        if may_view(request, Run, site) and not admin_scope(request, site).narrows(Run):
            columns.append("run_column")
        return columns

    created = moment_column("created_at", _("created"))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Alert], search_term: str
    ) -> tuple[QuerySet[Alert], bool]:
        """List only the latest alerts: no index supports the search, the filters and the groups."""
        latest = Alert.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        return super().get_search_results(
            request, queryset.filter(pk__gt=latest - LATEST), search_term
        )

    @admin.display(description=_("alerts"))
    def number(self, alert: Any) -> int:
        return int(alert.group.number)

    @admin.display(description=_("channel"))
    def channels(self, alert: Any) -> str:
        group: AlertGroup = alert.group
        is_one = group.first_channel == group.last_channel
        return group.first_channel if is_one else gettext("Several channels")

    @admin.display(description=_("created"))
    def last_created(self, alert: Any) -> str:
        last = render_time(alert.created_at)
        if alert.group.number == 1:
            return last
        first = render_time(alert.group.first, near=alert.created_at)
        return format_html("{}{}", last, render_muted(format_html(gettext("first {}"), first)))

    @admin.display(description=_("delivery"))
    def deliveries(self, alert: Any) -> str:
        """Show how many alerts of the group are in each state, and the newest one's error."""
        group: AlertGroup = alert.group
        if group.number == 1:
            return self.delivery(alert)
        states = (
            (badge("succeeded", gettext("Sent")), group.sent),
            (badge("pending", gettext("Pending")), group.pending),
            (badge("failed", gettext("Not delivered")), group.given_up),
        )
        lines = ((state, number) for state, number in states if number)
        return format_html(
            "{}{}", format_html_join("", "<div>{} {}</div>", lines), render_muted(alert.error)
        )

    @admin.display(description=_("about"))
    def about(self, alert: Alert) -> str:
        """Link to the job and to its runs that the alert reports, or to the nodes."""
        site = self.admin_site
        if alert.kind in ABOUT_NODES:
            return format_html('<a href="{}">{}</a>', list_url(Node, site), gettext("Nodes"))
        if alert.job is None:
            return EMPTY
        runs = list_url(Run, site, job__id__exact=str(alert.job_id), **_runs_query(alert))
        return format_html(
            '{}<div class="dcron-quiet"><a href="{}">{}</a></div>',
            link(alert.job, site),
            runs,
            gettext("Runs"),
        )

    @admin.display(description=_("incident"))
    def incident_column(self, alert: Alert) -> str:
        if alert.incident_id is None:
            return EMPTY
        return link(Incident(pk=alert.incident_id), self.admin_site, gettext("Incident"))

    @admin.display(description=_("run"))
    def run_column(self, alert: Any) -> str:
        """Link to the run, unless it was pruned."""
        if not hasattr(alert, "has_run"):  # the page of one alert
            _find_runs([alert])
        return (
            link(Run(pk=alert.run), self.admin_site, pgettext("of a job", "Run"))
            if alert.has_run
            else EMPTY
        )

    @admin.display(description=_("text"))
    def full_text(self, alert: Alert) -> str:
        return preformatted(alert.text)

    @admin.display(description=_("delivery"))
    def delivery(self, alert: Alert) -> str:
        if alert.sent_at is not None:
            return format_html(
                "{} {}", badge("succeeded", gettext("Sent")), render_time(alert.sent_at)
            )
        error = render_muted(alert.error) if alert.error else ""
        if alert.try_at is not None:
            state = badge("pending", gettext("Pending"))
            return format_html("{} {}{}", state, render_time(alert.try_at), error)
        return format_html("{}{}", badge("failed", gettext("Not delivered")), error)
