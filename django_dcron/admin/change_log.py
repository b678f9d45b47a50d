"""The history of a job's definition, or a calendar's: who changed what, when, and from what to what.

It is Django's own log, so that Django's pages and other tools go on reading it; ``observability.changes`` says what it holds
beside. What a field was is what its row held when it was read for the change, and ``control.save`` sees to it that nobody has
saved in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.admin.models import LogEntry
from django.db.models import DateTimeField, JSONField, Model
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.admin.base import BaseAdmin, M
from django_dcron.admin.display import EMPTY
from django_dcron.models import Calendar, Job
from django_dcron.observability.changes import Change, FieldChange, read, write
from django_dcron.observability.differences import FIELDS, changed, differences, values_of
from django_dcron.observability.wording import plain_moment


def after_edit(
    parts: list[dict[str, Any]], form: Form, row: Job | Calendar, *, add: bool
) -> list[dict[str, Any]]:
    """``parts``: the message as Django makes it of the form."""
    changes = [] if add else differences(dict(form.initial), values_of(row))
    others = [part for part in parts if add or "changed" not in part]
    return write(([changed(type(row), changes)] if changes else []) + others, changes, row.version)


class LoggedAdmin(BaseAdmin[M]):
    """Of rows whose edits are logged field by field, and shown so."""

    object_history_template = "admin/django_dcron/change_log.html"

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
            context["unseen_since"] = "" if page.has_next() else unseen_since(page, row)
            context["media"] = self.media
        return response


# --- the page ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownField:
    label: str
    old: str
    new: str
    is_code: bool


@dataclass(frozen=True, slots=True)
class Line:
    """An entry of the log; and how often the row was changed before it without one."""

    change: Change
    user: str
    fields: tuple[ShownField, ...]
    unseen_before: str


def lines(entries: Iterable[LogEntry], model: type[Model], *, first_page: bool) -> Iterator[Line]:
    """``entries``: of a row of ``model``, oldest first, without a gap; ``first_page``: the first of them is the oldest there is."""
    version = 1 if first_page else None
    for entry in entries:
        change = read(entry)
        unseen = ""
        if change.version is not None:
            if version is not None:
                unseen = _unseen(change.version - version - 1)
            version = change.version
        yield Line(change, _user(entry), tuple(_shown(model, each) for each in change.fields), unseen)


def unseen_since(entries: Iterable[LogEntry], row: Job | Calendar) -> str:
    """How often ``row`` was changed since the last of ``entries`` without leaving one."""
    versions = [version for entry in entries if (version := read(entry).version) is not None]
    return _unseen(row.version - (versions[-1] if versions else 1))


def _unseen(number: int) -> str:
    if number <= 0:
        return ""
    return ngettext(
        "%(count)d change past the admin: by code, by sync, or by the scheduler itself.",
        "%(count)d changes past the admin: by code, by sync, or by the scheduler itself.",
        number,
    ) % {"count": number}


def _user(entry: LogEntry) -> str:
    name, full = entry.user.get_username(), getattr(entry.user, "get_full_name", str)()
    return f"{name} ({full})" if full else name


def _shown(model: type[Model], change: FieldChange) -> ShownField:
    field = FIELDS[model].get(change.field)
    label = capfirst(str(field.verbose_name)) if field else change.field
    choices = dict(getattr(field, "flatchoices", ()))
    is_code = isinstance(field, JSONField) or change.field in ("schedule", "target", "timezone", "queue")
    worded = _worded_moment if isinstance(field, DateTimeField) else _worded
    return ShownField(label, worded(change.old, choices), worded(change.new, choices), is_code)


def _worded_moment(value: Any, choices: dict[Any, Any]) -> str:
    try:
        return plain_moment(datetime.fromisoformat(value))
    except (TypeError, ValueError, OverflowError):  # empty, no time, or one at the end of the calendar
        return _worded(value, choices)


def _worded(value: Any, choices: dict[Any, Any]) -> str:
    if value is None or value == "":
        return EMPTY
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return str(choices.get(value, value))
