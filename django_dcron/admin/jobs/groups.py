"""Group the fields of the job's form.

Invariants:

- Four fields that every job needs come first. The other groups are collapsed.
- A group is open if one of its fields has an error or a value other than the default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib.admin.helpers import AdminForm, Fieldset
from django.contrib.admin.utils import flatten
from django.utils.translation import gettext_lazy as _

from django_dcron.models import Job

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

_COLLAPSED = ("collapse",)

FIELDSETS: list[tuple[StrOrPromise | None, Any]] = [
    (None, {"fields": ("name", "target", "schedule", "timezone")}),
    (
        _("Arguments"),
        {
            "fields": ("args", "kwargs"),
            "classes": _COLLAPSED,
            "description": _("Values passed to the target"),
        },
    ),
    (
        _("Missed and overlapping runs"),
        {
            "fields": (
                "misfire_policy",
                ("misfire_grace", "start_deadline", "catchup_limit"),
                "overlap_policy",
            ),
            "classes": _COLLAPSED,
            "description": _("What happens after an outage or while an earlier run is unfinished"),
        },
    ),
    (
        _("Timeout and retries"),
        {
            "fields": (
                ("timeout", "max_attempts"),
                ("retry_backoff", "retry_backoff_factor"),
                ("retry_backoff_max", "retry_jitter"),
                "retry_on",
                "never_retry_on",
            ),
            "classes": _COLLAPSED,
            "description": _("How long an attempt may take, and when to retry"),
        },
    ),
    (
        _("Start, end and jitter"),
        {
            "fields": ("starts_at", "ends_at", "jitter"),
            "classes": _COLLAPSED,
            "description": _(
                "Period in which the job is scheduled, and how far to spread its runs"
            ),
        },
    ),
    (
        _("Calendar"),
        {
            "fields": ("calendar", "calendar_policy"),
            "classes": _COLLAPSED,
            "description": _("Dates and times without runs"),
        },
    ),
    (
        _("Chain"),
        {
            "fields": ("after",),
            "classes": _COLLAPSED,
            "description": _("Run after other jobs"),
        },
    ),
    (
        _("Queue"),
        {
            "fields": (("queue", "priority"),),
            "classes": _COLLAPSED,
            "description": _("Queue and priority of the runs"),
        },
    ),
    (
        _("Pause"),
        {
            "fields": ("enabled", "pause_reason", "paused_until", "pause_after_failures"),
            "classes": _COLLAPSED,
            "description": _("Pause the job now or after repeated failures"),
        },
    ),
    (
        _("Alerts"),
        {
            "fields": ("alerts",),
            "classes": _COLLAPSED,
            "description": _("Who gets notified, and about which events"),
        },
    ),
    (
        _("Retention"),
        {
            "fields": ("keep_for", "keep_failed_for", "keep_runs"),
            "classes": _COLLAPSED,
            "description": _("How long to keep finished runs and their logs"),
        },
    ),
    (
        _("About"),
        {
            "fields": ("namespace", "description", "tags"),
            "classes": _COLLAPSED,
            "description": _("Namespace, description and tags"),
        },
    ),
]

_FIELDS = {field.name: field for field in Job._meta.concrete_fields}
_PREVIEWED = {"overlap_policy": "policies", "max_attempts": "retry", "keep_for": "retention"}
"""Maps a field to the preview piece that the field's group shows."""


@dataclass(frozen=True, slots=True)
class FieldGroup:
    title: StrOrPromise
    about: StrOrPromise
    fieldset: Fieldset
    is_open: bool
    piece: str
    """The name of the preview piece in this group; empty if there is none."""


def groups(form: AdminForm) -> Iterator[FieldGroup]:
    """Yield the collapsible groups. The page shows the group's title instead of the fieldset's."""
    fieldset: Any
    for fieldset in form:
        if "collapse" not in fieldset.classes:
            continue
        title, about = fieldset.name or "", fieldset.description or ""
        fieldset.name, fieldset.description, fieldset.classes = None, None, ""
        names = flatten(fieldset.fields)
        piece = next((_PREVIEWED[name] for name in names if name in _PREVIEWED), "")
        yield FieldGroup(
            title, about, fieldset, any(_opens_group(form.form, name) for name in names), piece
        )


def _opens_group(form: Any, name: str) -> bool:
    if name in form.errors:
        return True
    value = getattr(form.instance, name)
    if not form.is_bound:
        value = form.initial.get(name, value)
    return bool(value != _FIELDS[name].get_default())
