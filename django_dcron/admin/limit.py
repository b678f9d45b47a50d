"""The admin of limits, which are edited through ``control``.

Invariants:

- The form carries the version that it was rendered from. A save never silently overwrites another
  user's change.
- The list counts only runs that the user may see.
"""

from __future__ import annotations

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_dcron import control
from django_dcron.admin.audit_log import AuditedAdmin
from django_dcron.admin.conflicts import MultilineFormField, VersionedForm
from django_dcron.admin.durations import DurationFormField, configured_duration
from django_dcron.admin.lists.base import ListAdmin
from django_dcron.admin.named_rows import NamedRowAdmin
from django_dcron.admin.visibility import admin_scope
from django_dcron.diagnosis.limit_usage import with_usage
from django_dcron.jobs.representation import to_json
from django_dcron.models import Limit

LIMIT_FIELDS = ("max_running", "max_started", "interval")


class LimitForm(VersionedForm[Limit]):
    class Meta:
        model = Limit
        fields = ("name", "description", "max_running", "max_started", "interval", "key")
        field_classes = {"interval": DurationFormField, "description": MultilineFormField}
        widgets = {
            "description": forms.Textarea({"rows": 3, "class": "vLargeTextField"}),
            "key": forms.TextInput({"class": "vTextField", "spellcheck": "false"}),
        }

    def conflict(self) -> ValidationError:
        text = gettext(
            "This limit was changed in another window or by someone else, so your changes were "
            "not saved. It is now: %(values)s. Save again to replace the values with yours."
        )
        limit = self.instance
        names = ("description", "max_running", "max_started", "interval", "key")
        values = {Limit._meta.get_field(name): getattr(limit, name) for name in names}
        shown = [
            f"{field.verbose_name} {to_json(value)}"  # type: ignore[union-attr]  # our own fields
            for field, value in values.items()
            if value not in (None, "")
        ]
        params = {"values": ", ".join(shown)}
        return ValidationError(text, code="conflict", params=params)


@admin.register(Limit)
class LimitAdmin(NamedRowAdmin[Limit], AuditedAdmin[Limit], ListAdmin[Limit]):
    form = LimitForm
    field_of_jobs = "limit"
    list_display = (
        "name",
        "description",
        "max_running",
        "max_started",
        "within",
        "key",
        "running",
        "waiting",
    )
    ordering = ("name",)  # the annotations drop the model's ordering
    search_fields = ("name", "description")
    search_note = _("Searches names and descriptions.")
    empty_text = _("No limits yet. Add one here, then select it in a job.")
    fields = ("name", "description", *LIMIT_FIELDS, "key", "running", "waiting", "seen_version")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Limit]:
        return with_usage(super().get_queryset(request), admin_scope(request, self.admin_site))

    def get_fields(self, request: HttpRequest, obj: Limit | None = None) -> tuple[str, ...]:
        if obj is not None:
            return self.fields
        return ("name", "description", *LIMIT_FIELDS, "key", "seen_version")

    def get_readonly_fields(
        self, request: HttpRequest, obj: Limit | None = None
    ) -> tuple[str, ...]:
        return () if obj is None else ("name", "running", "waiting")

    def save_row(self, row: Limit, expected_version: int | None) -> None:
        control.save_limit(row, expected_version=expected_version)

    def delete_row(self, row: Limit) -> None:
        control.delete_limit(row)

    @admin.display(description=_("interval"), ordering="interval")
    def within(self, limit: Limit) -> str:
        return configured_duration(limit.interval)

    @admin.display(description=_("running"), ordering="running")
    def running(self, limit: Limit) -> int:
        return int(limit.running)  # type: ignore[attr-defined]  # annotated

    @admin.display(description=_("waiting"), ordering="waiting")
    def waiting(self, limit: Limit) -> int:
        return int(limit.waiting)  # type: ignore[attr-defined]  # annotated
