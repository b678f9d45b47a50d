"""The history of an object from the audit log: who changed which field, when, from what to what.

Invariants:

- The history shows every entry of the object, oldest first, in pages of ``ON_PAGE`` entries.
- Everyone who may view the object may view its history, without the addresses of users. The list of
  all entries needs its own permission (``admin.audit_entry``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.admin.views.main import PAGE_VAR
from django.core.paginator import Page
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_dcron.admin.base import BaseAdmin, M
from django_dcron.admin.display import EMPTY
from django_dcron.jobs.audit.differences import OTHER_TIMES, FieldChange, stored_value
from django_dcron.jobs.audit.entries import LoggedChange, entries_of, read_change
from django_dcron.jobs.representation import FIELDS, JOB_FIELDS, DocumentField, ValueFormat
from django_dcron.models import AuditEntry
from django_dcron.utils.time_format import format_site_time

ON_PAGE = 100
OTHER_LABELS = {
    "runs": gettext_lazy("runs"),
    "first": gettext_lazy("first"),
    "last": gettext_lazy("last"),
    "until": gettext_lazy("until"),
    "rerun_of": gettext_lazy("rerun of"),
}
"""The labels of values that aren't fields of the object."""


class AuditedAdmin(BaseAdmin[M]):
    """Admin of rows whose history is in the audit log."""

    object_history_template = "admin/django_dcron/audit_log.html"

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().history_view(request, object_id, extra_context)
        context = getattr(response, "context_data", None)
        if context:
            row = context["object"]
            entries = entries_of(row).order_by("at", "pk")
            paginator = self.get_paginator(request, entries, ON_PAGE)
            page = paginator.get_page(request.GET.get(PAGE_VAR, 1))
            context |= {
                "action_list": page,
                "page_range": paginator.get_elided_page_range(page.number),
                "pagination_required": paginator.count > ON_PAGE,
                "lines": self.history_lines(request, row, page),
                "unlogged_changes_since": (
                    "" if page.has_next() else unlogged_changes_since(page, row)
                ),
                "media": self.media,
            }
        return response

    def history_lines(
        self, request: HttpRequest, obj: M, page: Page[AuditEntry]
    ) -> Sequence[LogLine]:
        """Return a line for each entry of the page, oldest first."""
        return list(log_lines(page, self.model, first_page=not page.has_previous()))


# --- the page -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangedField:
    label: str
    old: str
    new: str
    is_code: bool


@dataclass(frozen=True, slots=True)
class LogLine:
    """An entry of the log, and the number of changes without an entry before it."""

    change: LoggedChange
    fields: tuple[ChangedField, ...]
    unlogged_before: str
    revert_url: str = ""
    """The page that reverts the entry's change, if the user can revert it."""


def log_lines(
    entries: Iterable[AuditEntry], model: type[Model], *, first_page: bool
) -> Iterator[LogLine]:
    """Yield a line for each entry.

    ``entries`` belong to one row of ``model``, oldest first, without a gap. ``first_page`` is true
    if the first entry is the oldest one in the log.
    """
    version = 1 if first_page else None
    for entry in entries:
        change = read_change(entry)
        unlogged = ""
        if change.version is not None:
            if version is not None:
                unlogged = _unlogged_text(change.version - version - 1)
            version = change.version
        yield LogLine(change, changed_fields(change, model), unlogged)


def unlogged_changes_since(entries: Iterable[AuditEntry], row: Model) -> str:
    """Return a text with the number of changes of ``row`` without an entry, after the last entry.

    Empty if the row has no versions.
    """
    version = getattr(row, "version", None)
    if version is None:
        return ""
    versions = [entry.version for entry in entries if entry.version is not None]
    return _unlogged_text(version - (versions[-1] if versions else 1))


def _unlogged_text(number: int) -> str:
    if number <= 0:
        return ""
    return ngettext(
        "%(count)d change without an entry",
        "%(count)d changes without an entry",
        number,
    ) % {"count": number}


def changed_fields(change: LoggedChange, model: type[Model]) -> tuple[ChangedField, ...]:
    """Return the changed fields of a row of ``model`` for display, without the reason."""
    return tuple(
        shown_change(model, each)
        for each in change.fields
        if each.field != "pause_reason" or each.new != change.reason
    )


def shown_change(model: type[Model], change: FieldChange) -> ChangedField:
    """Return one changed field of a row of ``model`` for display."""
    label = capfirst(str(_label(change.field, FIELDS.get(model, JOB_FIELDS).get(change.field))))
    old = shown_value(model, change.field, change.old)
    new = shown_value(model, change.field, change.new)
    return ChangedField(label, old, new, is_code(model, change.field))


def is_code(model: type[Model], name: str) -> bool:
    """Return whether values of the field are shown as code."""
    field = FIELDS.get(model, JOB_FIELDS).get(name)
    is_json = field is not None and field.format is ValueFormat.JSON
    return is_json or name in ("schedule", "target", "timezone", "queue")


def shown_value(model: type[Model], name: str, value: Any) -> str:
    """Return a JSON value for display, without secrets."""
    field = FIELDS.get(model, JOB_FIELDS).get(name)
    if field is None:
        return _format_moment(value, {}) if name in OTHER_TIMES else _display_value(value, {})
    choices = dict(getattr(field.model_field, "flatchoices", ()))
    display = _format_moment if field.format is ValueFormat.TIME else _display_value
    return display(stored_value(field, value), choices)


def _label(name: str, field: DocumentField | None) -> object:
    return field.model_field.verbose_name if field else OTHER_LABELS.get(name, name)


def _format_moment(value: Any, choices: dict[Any, Any]) -> str:
    try:
        return format_site_time(datetime.fromisoformat(value))
    except (TypeError, ValueError, OverflowError):
        # The value is empty, isn't a time, or is beyond the range of datetime.
        return _display_value(value, choices)


def _display_value(value: Any, choices: dict[Any, Any]) -> str:
    if value is None or value == "":
        return EMPTY
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return str(choices.get(value, value))
