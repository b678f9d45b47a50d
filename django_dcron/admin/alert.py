"""Alerts: what was told, to whom, and what could not be. Read-only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_dcron.admin.display import badge, moment, moment_column, preformatted, quiet
from django_dcron.admin.lists.base import HistoryAdmin
from django_dcron.admin.visibility import is_withheld, scope_of
from django_dcron.domain.alerting import Kind
from django_dcron.models import Alert, Job

SENT, WAITING, GIVEN_UP = "sent", "waiting", "given_up"
LATEST = 100_000
"""Alerts that the list looks at."""
ABOUT_NODES = (Kind.NODE_LOST, Kind.DEGRADED)


class DeliveryFilter(admin.SimpleListFilter):
    title = _("delivery")
    parameter_name = "delivery"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(SENT, _("Sent")), (WAITING, _("To be sent")), (GIVEN_UP, _("Given up"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Alert]) -> QuerySet[Alert]:
        match self.value():
            case "sent":
                return queryset.filter(sent_at__isnull=False)
            case "waiting":
                return queryset.filter(try_at__isnull=False)
            case "given_up":
                return queryset.filter(sent_at=None, try_at=None)
        return queryset


@admin.register(Alert)
class AlertAdmin(HistoryAdmin[Alert]):
    list_display = ("subject", "channel", "created", "delivery")
    list_filter = (DeliveryFilter, "kind")
    search_fields = ("subject", "channel")
    searched = _("A word of the subject, or a channel.")
    nothing_yet = _("Nothing was worth an alert of late. Say what is, and who is told, in DCRON_ALERTS.")
    fieldsets = (
        (None, {"fields": ("subject", "full_text", "kind")}),
        (_("Delivery"), {"fields": ("channel", "created", "delivery", "tries")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Alert]:
        """Where jobs are narrowed, those about visible jobs and about nodes. A deleted job can't be told from a hidden one."""
        alerts = super().get_queryset(request)
        scope = scope_of(request, self.admin_site)
        if not scope.narrows(Job):
            return alerts
        return alerts.filter(Q(job__in=scope.keys(Job)) | Q(kind__in=ABOUT_NODES))

    def has_view_permission(self, request: HttpRequest, obj: Alert | None = None) -> bool:
        withheld = obj is not None and obj.job is not None and is_withheld(request, obj.job, self.admin_site)
        return super().has_view_permission(request, obj) and not withheld

    created = moment_column("created_at", _("created"))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Alert], search_term: str
    ) -> tuple[QuerySet[Alert], bool]:
        """No index finds a word, or what was given up."""
        latest = Alert.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        return super().get_search_results(request, queryset.filter(pk__gt=latest - LATEST), search_term)

    @admin.display(description=_("text"))
    def full_text(self, alert: Alert) -> str:
        return preformatted(alert.text)

    @admin.display(description=_("delivery"))
    def delivery(self, alert: Alert) -> str:
        if alert.sent_at is not None:
            return format_html("{} {}", badge("succeeded", gettext("sent")), moment(alert.sent_at))
        error = quiet(alert.error) if alert.error else ""
        if alert.try_at is not None:
            state = badge("pending", gettext("to be sent"))
            return format_html("{} {}{}", state, moment(alert.try_at), error)
        return format_html("{}{}", badge("failed", gettext("given up")), error)
