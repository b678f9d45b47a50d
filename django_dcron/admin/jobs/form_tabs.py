"""Arrange the fields of the job's form in tabs.

Invariants:

- The four fields that every job needs come first.
- The form has at most five tabs. Without JavaScript, they are stacked.
- If fields have errors, the first tab with an error is open.
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

OVERVIEW = "overview"
"""The name of the tab that describes a stored job; it isn't a tab of the form."""
RAW_NOTE = _("If you edit the JSON, it replaces the values of the inputs.")
REQUIRED = ("name", "target", "schedule", "timezone")


@dataclass(frozen=True, slots=True)
class _Tab:
    name: str
    label: StrOrPromise
    fieldsets: list[tuple[StrOrPromise | None, Any]]
    """Title and options of each fieldset, as in Django's ``ModelAdmin.fieldsets``."""


_TABS = [
    _Tab(
        "general",
        _("General"),
        [
            (None, {"fields": REQUIRED}),
            (
                _("Arguments"),
                {
                    "fields": ("args", "kwargs"),
                    "description": _("Values passed to the target"),
                },
            ),
            (
                _("About"),
                {
                    "fields": ("namespace", "description", "tags"),
                    "description": _("Namespace, description and tags"),
                },
            ),
        ],
    ),
    _Tab(
        "timing",
        _("Timing"),
        [
            (
                _("Start, end and jitter"),
                {
                    "fields": ("starts_at", "ends_at", "jitter"),
                    "description": _(
                        "Period in which the job is scheduled, and how far to spread its runs"
                    ),
                },
            ),
            (
                _("Calendar"),
                {
                    "fields": ("calendar", "calendar_policy"),
                    "description": _("Dates and times without runs"),
                },
            ),
            (
                _("Missed and overlapping runs"),
                {
                    "fields": (
                        "misfire_policy",
                        ("misfire_grace", "start_deadline", "catchup_limit"),
                        "overlap_policy",
                        "limit",
                    ),
                    "description": _(
                        "What happens after an outage or while an earlier run is unfinished"
                    ),
                },
            ),
        ],
    ),
    _Tab(
        "failures",
        _("Failures"),
        [
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
                    "description": _("How long an attempt may take, and when to retry"),
                },
            ),
            (
                _("Pause"),
                {
                    "fields": ("enabled", "pause_reason", "paused_until", "pause_after_failures"),
                    "description": _("Pause the job now or after repeated failures"),
                },
            ),
            (
                _("Alerts"),
                {
                    "fields": ("alerts",),
                    "description": _("Who gets notified, and about which events"),
                },
            ),
        ],
    ),
    _Tab(
        "sequence",
        _("Chain and queue"),
        [
            (
                _("Chain"),
                {
                    "fields": ("after",),
                    "description": _("Run after other jobs"),
                },
            ),
            (
                _("Queue"),
                {
                    "fields": (("queue", "priority"),),
                    "description": _("Queue and priority of the runs"),
                },
            ),
        ],
    ),
    _Tab(
        "retention",
        _("Retention"),
        [
            (
                _("Retention"),
                {
                    "fields": ("keep_for", "keep_failed_for", "keep_runs"),
                    "description": _("How long to keep finished runs and their logs"),
                },
            ),
        ],
    ),
]

FIELDSETS = [fieldset for tab in _TABS for fieldset in tab.fieldsets]

_FIELDS = {field.name: field for field in Job._meta.concrete_fields}
_TAB_OF_FIELD = {
    name: tab.name
    for tab in _TABS
    for _title, options in tab.fieldsets
    for name in flatten(options["fields"])
}
_PREVIEWED = {"overlap_policy": "policies", "max_attempts": "retry", "keep_for": "retention"}
"""Maps a field to the preview piece that the field's group shows."""


@dataclass(frozen=True, slots=True)
class FieldGroup:
    fieldset: Fieldset
    names: list[str]

    @property
    def has_arguments(self) -> bool:
        return "kwargs" in self.names

    @property
    def piece(self) -> str:
        """The name of the preview piece in this group; empty if there is none."""
        return next((_PREVIEWED[name] for name in self.names if name in _PREVIEWED), "")


@dataclass(frozen=True, slots=True)
class FormTab:
    name: str
    label: StrOrPromise
    groups: list[FieldGroup]
    errors: int
    """The number of the tab's fields with an error. Each input of an argument is a field."""
    changed: int
    """The number of the tab's optional fields with a value other than the default."""


def form_tabs(form: AdminForm) -> list[FormTab]:
    """Return the tabs of the form. A fieldset that a project adds is in the first tab."""
    groups: dict[str, list[FieldGroup]] = {tab.name: [] for tab in _TABS}
    fieldset: Any
    for fieldset in form:
        names = flatten(fieldset.fields)
        if "kwargs" in names and getattr(form.form, "arguments", None):
            fieldset.name, fieldset.description = None, RAW_NOTE  # below the inputs' heading
        tabs = (_TAB_OF_FIELD[name] for name in names if name in _TAB_OF_FIELD)
        groups[next(tabs, _TABS[0].name)].append(FieldGroup(fieldset, names))
    return [
        _form_tab(tab.name, tab.label, groups[tab.name], form.form)
        for tab in _TABS
        if groups[tab.name]
    ]


def open_tab(tabs: list[FormTab], form: AdminForm, *, has_overview: bool) -> str:
    """Return the name of the tab that is open at first."""
    if form.form.errors:
        return next((tab.name for tab in tabs if tab.errors), tabs[0].name)
    return OVERVIEW if has_overview else tabs[0].name


def _form_tab(name: str, label: StrOrPromise, groups: list[FieldGroup], form: Any) -> FormTab:
    names = [field for group in groups for field in group.names]
    changed = [field for field in _optional(names) if _is_changed(form, field)]
    return FormTab(name, label, groups, _count_errors(form, names), len(changed))


def _count_errors(form: Any, names: list[str]) -> int:
    arguments = getattr(form, "arguments", None)
    inputs = arguments.inputs if arguments and "kwargs" in names else None
    if inputs and inputs.errors:  # ``kwargs`` has no other errors then
        names = [name for name in names if name != "kwargs"]
        return sum(name in form.errors for name in names) + len(inputs.errors)
    return sum(name in form.errors for name in names)


def _optional(names: list[str]) -> Iterator[str]:
    return (name for name in names if name in _FIELDS and name not in REQUIRED)


def _is_changed(form: Any, name: str) -> bool:
    value = getattr(form.instance, name)
    if not form.is_bound:
        value = form.initial.get(name, value)
    return bool(value != _FIELDS[name].get_default())
