"""The read-only admin of the audit log, with filters, search and exports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron.admin.audit_log import ChangedField, changed_fields
from django_dcron.admin.display import (
    EMPTY,
    badge,
    change_url,
    may_view,
    moment_column,
    render_muted,
    render_time,
    with_site_zone,
)
from django_dcron.admin.jobs import restore_page
from django_dcron.admin.lists.base import HistoryAdmin
from django_dcron.admin.lists.export import (
    JSON_LINES_EXPORTS,
    JSON_LINES_LINKS,
    ExportedAdmin,
    fields_of,
)
from django_dcron.admin.lists.time_filter import TimeFilter
from django_dcron.admin.visibility import admin_scope, is_hidden
from django_dcron.db import clock
from django_dcron.diagnosis.audit_log import COLUMNS, visible_entries
from django_dcron.jobs.audit.differences import LONGEST
from django_dcron.jobs.audit.entries import actor_text, read_change
from django_dcron.models import AuditAction, AuditEntry, Calendar, Freeze, Incident, Job, Limit, Run
from django_dcron.utils.bounded_text import with_ellipsis

SEARCH_LIMIT = 100_000
"""Number of latest entries that a search covers."""
BADGE_STATES = {
    AuditAction.DELETE: "failed",
    AuditAction.PAUSE: "paused",
    AuditAction.FREEZE: "paused",
    AuditAction.CANCEL: "cancelled",
}
"""The run or job state whose color the badge of an action has."""
FIELDS_SHOWN = 4
"""The maximum number of changed fields in a row of the list."""
MAX_LENGTH_IN_LIST = 40
"""The maximum number of characters of a value in a row of the list."""


class EntryTimeFilter(TimeFilter):
    column = "at"

    def searched_rows(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


@admin.register(AuditEntry)
class AuditEntryAdmin(HistoryAdmin[AuditEntry], ExportedAdmin[AuditEntry]):
    list_display = ("time", "actor_column", "action_column", "object_name", "changes")
    list_display_links = ("time",)
    list_filter = ("action", EntryTimeFilter, "via", "kind")
    search_fields = ("actor", "address", "label", "reason")
    search_note = gettext_lazy(
        "Searches users, addresses, objects and reasons of the 100,000 latest entries."
    )
    ordering = ("-at", "-pk")
    empty_text = gettext_lazy("No entries yet. Each change of a job or a run has an entry here.")
    fields = (
        "moment",
        "actor_column",
        "action_column",
        "object_name",
        "object_id",
        "version",
        "reason",
        "all_changes",
    )
    exported = fields_of(AuditEntry, *COLUMNS)
    export_links = JSON_LINES_LINKS
    actions = JSON_LINES_EXPORTS

    moment = moment_column("at", with_site_zone(gettext_lazy("time")))

    def get_list_display(self, request: HttpRequest) -> Any:
        return self._with_links(request, super().get_list_display(request))

    def get_fields(self, request: HttpRequest, obj: AuditEntry | None = None) -> Any:
        names = self._with_links(request, self.fields)
        if obj is not None and restore_page.can_restore(request, obj, self.admin_site):
            names.append("restore_link")
        return names

    def _with_links(self, request: HttpRequest, names: Sequence[Any]) -> list[Any]:
        """Link to the objects if the user may view every kind of object."""
        kinds = (Job, Run, Calendar, Limit, Freeze, Incident)
        if not all(may_view(request, model, self.admin_site) for model in kinds):
            return [*names]
        return ["object_link" if name == "object_name" else name for name in names]

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEntry]:
        entries: Any = super().get_queryset(request)
        return visible_entries(entries, admin_scope(request, self.admin_site))

    def has_view_permission(self, request: HttpRequest, obj: AuditEntry | None = None) -> bool:
        if not super().has_view_permission(request, obj):
            return False
        return obj is None or not any(
            is_hidden(request, row, self.admin_site) for row in _objects_of(obj)
        )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditEntry], search_term: str
    ) -> tuple[QuerySet[AuditEntry], bool]:
        """Search only the latest entries, because no index supports the search."""
        if search_term.strip():
            latest = AuditEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
            queryset = queryset.filter(pk__gt=latest - SEARCH_LIMIT)
        return super().get_search_results(request, queryset, search_term)

    @admin.display(description=with_site_zone(gettext_lazy("time")))
    def time(self, entry: AuditEntry) -> str:
        return render_time(entry.at, near=clock.now())

    @admin.display(description=gettext_lazy("user"))
    def actor_column(self, entry: AuditEntry) -> str:
        source = " · ".join(filter(None, (str(entry.get_via_display()), entry.address)))
        return format_html("{}{}", entry.actor or actor_text(entry), render_muted(source))

    @admin.display(description=gettext_lazy("action"))
    def action_column(self, entry: AuditEntry) -> str:
        kind = BADGE_STATES.get(AuditAction(entry.action), "enabled")
        return badge(kind, entry.get_action_display())

    @admin.display(description=gettext_lazy("object"))
    def object_name(self, entry: AuditEntry) -> str:
        return format_html("{}{}", entry.label, render_muted(str(entry.get_kind_display())))

    @admin.display(description=gettext_lazy("object"))
    def object_link(self, entry: AuditEntry) -> str:
        return format_html(
            "{}{}", self._linked_label(entry), render_muted(str(entry.get_kind_display()))
        )

    def _linked_label(self, entry: AuditEntry) -> str:
        """Return the label with a link to the object's page, unless the object was deleted."""
        model = _model_of(entry)
        if entry.action == AuditAction.DELETE or not self.admin_site.is_registered(model):
            return entry.label
        url = change_url(model(pk=_key_of(entry)), self.admin_site)
        return format_html('<a href="{}">{}</a>', url, entry.label)

    @admin.display(description=gettext_lazy("changes"))
    def changes(self, entry: AuditEntry) -> str:
        fields = _changes_of(entry)
        more = len(fields) - FIELDS_SHOWN
        shown = _render_changes(fields[:FIELDS_SHOWN], MAX_LENGTH_IN_LIST)
        rest = _("… and %(count)d more") % {"count": more} if more > 0 else ""
        return format_html("{}{}{}", entry.reason, shown, render_muted(rest)) or EMPTY

    @admin.display(description=gettext_lazy("changes"))
    def all_changes(self, entry: AuditEntry) -> str:
        return _render_changes(_changes_of(entry), LONGEST) or EMPTY

    @admin.display(description=gettext_lazy("undo"))
    def restore_link(self, entry: AuditEntry) -> str:
        url = restore_page.restore_url(entry, self.admin_site)
        return format_html('<a href="{}">{}</a>', url, restore_page.TITLE)


def _model_of(entry: AuditEntry) -> type[Model]:
    return apps.get_model("django_dcron", entry.kind)


def _objects_of(entry: AuditEntry) -> list[Model]:
    """Return the entry's object, and the job if the object is a run, unless they were deleted."""
    model = _model_of(entry)
    rows: list[Model] = list(model._default_manager.filter(pk=_key_of(entry)))
    rows += [row.job for row in rows if isinstance(row, Run)]
    return rows


def _key_of(entry: AuditEntry) -> Any:
    return entry.run_id or entry.object_id


def _changes_of(entry: AuditEntry) -> tuple[ChangedField, ...]:
    return changed_fields(read_change(entry), _model_of(entry))


def _render_changes(fields: tuple[ChangedField, ...], longest: int) -> str:
    """Render each field in a line, with values of at most ``longest`` characters."""
    lines = (
        (each.label, with_ellipsis(each.old, longest), with_ellipsis(each.new, longest))
        for each in fields
    )
    return format_html_join("", '<div class="dcron-quiet">{}: {} → {}</div>', lines)
