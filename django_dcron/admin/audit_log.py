"""The audit log of a job or a calendar: who changed which field, when, and from what to what.

Invariants:

- Entries are rows of Django's admin log, so that Django's pages and other tools can read them.
  ``jobs.audit.entries`` documents the extra data in an entry.
- The old value of a field is the value that was read for the edit. ``control.save`` guarantees
  that no one saved in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.admin.models import LogEntry
from django.db.models import Model
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.admin.base import BaseAdmin, M
from django_dcron.admin.display import EMPTY
from django_dcron.jobs.audit.differences import changed_message, differences, values_of
from django_dcron.jobs.audit.entries import (
    FieldChange,
    LoggedChange,
    change_message,
    read_change,
)
from django_dcron.jobs.representation import FIELDS, Format
from django_dcron.models import Calendar, Job
from django_dcron.utils.time_format import format_site_time


def after_edit(
    parts: list[dict[str, Any]], form: Form, row: Job | Calendar, *, add: bool
) -> list[dict[str, Any]]:
    """Return the log message of an edit. ``parts`` is the message that Django built."""
    changes = [] if add else differences(type(row), dict(form.initial), values_of(row))
    others = [part for part in parts if add or "changed" not in part]
    return change_message(
        ([changed_message(type(row), changes)] if changes else []) + others, changes, row.version
    )


class LoggedAdmin(BaseAdmin[M]):
    """Admin of rows whose edits are logged field by field."""

    object_history_template = "admin/django_dcron/audit_log.html"

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> list[dict[str, Any]]:
        parts = super().construct_change_message(request, form, formsets, add)
        return after_edit(parts, form, form.instance, add=add)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().history_view(request, object_id, extra_context)
        context = getattr(response, "context_data", None)
        if context:
            page, row = context["action_list"], context["object"]
            context["lines"] = list(lines(page, self.model, first_page=not page.has_previous()))
            context["unlogged_changes_since"] = (
                "" if page.has_next() else unlogged_changes_since(page, row)
            )
            context["media"] = self.media
        return response


# --- the page -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangedField:
    label: str
    old: str
    new: str
    is_code: bool


@dataclass(frozen=True, slots=True)
class LogLine:
    """An entry of the log, and the number of unlogged changes before it."""

    change: LoggedChange
    user: str
    fields: tuple[ChangedField, ...]
    unlogged_before: str


def lines(
    entries: Iterable[LogEntry], model: type[Model], *, first_page: bool
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
        yield LogLine(
            change,
            _user(entry),
            tuple(_changed_field(model, field_change) for field_change in change.fields),
            unlogged,
        )


def unlogged_changes_since(entries: Iterable[LogEntry], row: Job | Calendar) -> str:
    """Return a text with the number of unlogged changes of ``row`` after the last entry."""
    versions = [version for entry in entries if (version := read_change(entry).version) is not None]
    return _unlogged_text(row.version - (versions[-1] if versions else 1))


def _unlogged_text(number: int) -> str:
    if number <= 0:
        return ""
    return ngettext(
        "%(count)d change made outside the admin: by code, by sync or by the scheduler",
        "%(count)d changes made outside the admin: by code, by sync or by the scheduler",
        number,
    ) % {"count": number}


def _user(entry: LogEntry) -> str:
    name, full = entry.user.get_username(), getattr(entry.user, "get_full_name", str)()
    return f"{name} ({full})" if full else name


def _changed_field(model: type[Model], change: FieldChange) -> ChangedField:
    field = FIELDS[model].get(change.field)
    label = capfirst(str(field.model_field.verbose_name)) if field else change.field
    choices = dict(getattr(field.model_field, "flatchoices", ())) if field else {}
    form = field.format if field else Format.TEXT
    is_code = form is Format.JSON or change.field in ("schedule", "target", "timezone", "queue")
    display = _format_moment if form is Format.TIME else _display_value
    return ChangedField(label, display(change.old, choices), display(change.new, choices), is_code)


def _format_moment(value: Any, choices: dict[Any, Any]) -> str:
    try:
        return format_site_time(datetime.fromisoformat(value))
    except (
        TypeError,
        ValueError,
        OverflowError,
    ):  # empty, not a time, or beyond the range of datetime
        return _display_value(value, choices)


def _display_value(value: Any, choices: dict[Any, Any]) -> str:
    if value is None or value == "":
        return EMPTY
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return str(choices.get(value, value))
