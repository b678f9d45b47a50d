"""The job form's fields in groups: four that every job needs, and the others folded away until they are of interest.

A group opens by itself if it has an error, or a value that is not the default.
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

_FOLDED = ("collapse",)

FIELDSETS: list[tuple[StrOrPromise | None, Any]] = [
    (None, {"fields": ("name", "target", "schedule", "timezone")}),
    (
        _("Arguments"),
        {
            "fields": ("args", "kwargs"),
            "classes": _FOLDED,
            "description": _("What the target is called with."),
        },
    ),
    (
        _("Late, or still running"),
        {
            "fields": (
                "misfire_policy",
                ("misfire_grace", "start_deadline", "catchup_limit"),
                "overlap_policy",
            ),
            "classes": _FOLDED,
            "description": _("What happens after an outage, and when runs overlap."),
        },
    ),
    (
        _("Timeout and retry"),
        {
            "fields": (
                ("timeout", "max_attempts"),
                ("retry_backoff", "retry_backoff_factor"),
                ("retry_backoff_max", "retry_jitter"),
                "retry_on",
                "never_retry_on",
            ),
            "classes": _FOLDED,
            "description": _("How long a run may take, and how often it is tried."),
        },
    ),
    (
        _("First, last, jitter"),
        {
            "fields": ("starts_at", "ends_at", "jitter"),
            "classes": _FOLDED,
            "description": _("From when until when it runs, and how far its runs are spread."),
        },
    ),
    (
        _("Calendar"),
        {
            "fields": ("calendar", "calendar_policy"),
            "classes": _FOLDED,
            "description": _("On which dates it does not run, and what it does instead."),
        },
    ),
    (
        _("Chain"),
        {
            "fields": ("after",),
            "classes": _FOLDED,
            "description": _("After which other jobs it runs."),
        },
    ),
    (
        _("Queue"),
        {
            "fields": (("queue", "priority"),),
            "classes": _FOLDED,
            "description": _("Which workers take it, and before which others."),
        },
    ),
    (
        _("Pause"),
        {
            "fields": ("enabled", "pause_reason", "paused_until", "pause_after_failures"),
            "classes": _FOLDED,
            "description": _("Whether it runs at all, and when it stops by itself."),
        },
    ),
    (
        _("Alerts"),
        {
            "fields": ("alerts",),
            "classes": _FOLDED,
            "description": _("Who is told, and of what."),
        },
    ),
    (
        _("History"),
        {
            "fields": ("keep_for", "keep_failed_for", "keep_runs"),
            "classes": _FOLDED,
            "description": _("How long its finished runs, with their logs, can be looked at."),
        },
    ),
    (
        _("About"),
        {
            "fields": ("namespace", "description", "tags"),
            "classes": _FOLDED,
            "description": _("Where it belongs, what it is for and who to ask."),
        },
    ),
]

_FIELDS = {field.name: field for field in Job._meta.concrete_fields}
_PREVIEWED = {"overlap_policy": "policies", "max_attempts": "retry", "keep_for": "retention"}
"""The field whose group shows this piece of the preview."""


@dataclass(frozen=True, slots=True)
class Group:
    title: StrOrPromise
    about: StrOrPromise
    fieldset: Fieldset
    is_open: bool
    piece: str
    """The piece of the preview it shows, if any."""


def groups(form: AdminForm) -> Iterator[Group]:
    """The groups that are folded; the fieldsets are without the titles, which the groups show themselves."""
    fieldset: Any
    for fieldset in form:
        if "collapse" not in fieldset.classes:
            continue
        title, about = fieldset.name or "", fieldset.description or ""
        fieldset.name, fieldset.description, fieldset.classes = None, None, ""
        names = flatten(fieldset.fields)
        piece = next((_PREVIEWED[name] for name in names if name in _PREVIEWED), "")
        yield Group(title, about, fieldset, any(_of_interest(form.form, name) for name in names), piece)


def _of_interest(form: Any, name: str) -> bool:
    if name in form.errors:
        return True
    value = getattr(form.instance, name)
    if not form.is_bound:
        value = form.initial.get(name, value)
    return bool(value != _FIELDS[name].get_default())
