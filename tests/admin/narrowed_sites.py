"""Admin sites that narrow what their users see and do.

``teams``, ``enabled``, ``runs`` and ``planned`` narrow ``get_queryset``. ``guarded``, ``watched``
and ``locked`` check object permissions. ``only_jobs`` has no other model.
"""

from typing import Any

from django.contrib import admin
from django.urls import include, path

from django_dcron import admin as dcron_admin
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

ADMIN_CLASSES: dict[Any, Any] = {
    Alert: dcron_admin.AlertAdmin,
    Attempt: dcron_admin.AttemptAdmin,
    AuditEntry: dcron_admin.AuditEntryAdmin,
    Calendar: dcron_admin.CalendarAdmin,
    Dashboard: dcron_admin.DashboardAdmin,
    Freeze: dcron_admin.FreezeAdmin,
    Incident: dcron_admin.IncidentAdmin,
    Job: dcron_admin.JobAdmin,
    Limit: dcron_admin.LimitAdmin,
    Node: dcron_admin.NodeAdmin,
    Run: dcron_admin.RunAdmin,
}


class TeamJobAdmin(dcron_admin.JobAdmin):
    """Narrows the jobs only. The admin classes of runs, attempts and alerts aren't narrowed."""

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(namespace="mine")


class EnabledJobAdmin(dcron_admin.JobAdmin):
    """Hides paused jobs."""

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(enabled=True)


class TeamCalendarAdmin(dcron_admin.CalendarAdmin):
    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(name__startswith="mine")


class TeamLimitAdmin(dcron_admin.LimitAdmin):
    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(name__startswith="mine")


class TeamNodeAdmin(dcron_admin.NodeAdmin):
    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(namespace="mine")


class OwnRunAdmin(dcron_admin.RunAdmin):
    """Narrows the runs by a join with ``distinct()``. The jobs aren't narrowed."""

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(job__namespace="mine").distinct()


class PlannedRunAdmin(dcron_admin.RunAdmin):
    """Hides manual runs of visible jobs."""

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).exclude(trigger="manual")


class FirstAttemptAdmin(dcron_admin.AttemptAdmin):
    """Hides all attempts of visible runs but the first."""

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(number=1)


class LockedRunAdmin(dcron_admin.RunAdmin):
    """Lists manual runs, but refuses to show their pages."""

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) and (
            obj is None or obj.trigger != "manual"
        )


class GuardedJobAdmin(dcron_admin.JobAdmin):
    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) and (
            obj is None or obj.namespace == "mine"
        )

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and (
            obj is None or obj.namespace == "mine"
        )

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and (
            obj is None or obj.namespace == "mine"
        )


class WatchedJobAdmin(dcron_admin.JobAdmin):
    """Shows all jobs, but allows a manual run only for jobs of the user's team."""

    def has_trigger_permission(self, request: Any, obj: Any = None) -> bool:
        return super().has_trigger_permission(request, obj) and (
            obj is None or obj.namespace == "mine"
        )


def _site(name: str, *narrowed: Any) -> admin.AdminSite:
    site = admin.AdminSite(name)
    for model, usual in ADMIN_CLASSES.items():
        site.register(model, next((each for each in narrowed if issubclass(each, usual)), usual))
    return site


teams = _site("teams", TeamJobAdmin, TeamCalendarAdmin, TeamLimitAdmin, TeamNodeAdmin)
enabled = _site("enabled", EnabledJobAdmin)
runs = _site("runs", OwnRunAdmin)
planned = _site("planned", PlannedRunAdmin, FirstAttemptAdmin)
locked = _site("locked", LockedRunAdmin)
guarded = _site("guarded", GuardedJobAdmin)
watched = _site("watched", WatchedJobAdmin)
only_jobs = admin.AdminSite("only_jobs")
only_jobs.register(Job, dcron_admin.JobAdmin)


class Urls:
    """Stands in for a URLconf module."""

    def __init__(self, site: admin.AdminSite) -> None:
        self.urlpatterns = [
            path("admin/", site.urls),
            path("dcron/", include("django_dcron.contrib.rest.urls")),
        ]
