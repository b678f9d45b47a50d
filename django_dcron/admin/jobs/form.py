"""The job's form: friendly fields, and no lost update.

The form carries the version of the job as it was rendered. If the row has another one when it comes back, somebody
else (a person, ``sync``, the job's own circuit) saved in between: the form then says what differs and saves nothing,
and carries the fresh version, so that saving once more is a decision and not an accident.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zoneinfo import available_timezones

from django import forms
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.forms.fields import InvalidJSONInput
from django.utils.formats import date_format
from django.utils.text import capfirst, format_lazy
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron import chaining, targets
from django_dcron.admin.durations import DurationInput
from django_dcron.admin.jobs.target_note import TargetNote
from django_dcron.domain.json_values import storable
from django_dcron.models import Calendar, Job
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability.scope import EVERYTHING, Scope

if TYPE_CHECKING:
    JobModelForm = forms.ModelForm[Job]
else:
    JobModelForm = forms.ModelForm


class SuggestingInput(forms.TextInput):
    """A text input with suggestions: HTML's own ``datalist``, no script."""

    template_name = "django_dcron/widgets/suggesting_input.html"

    def __init__(self, suggestions: Callable[[], Iterable[str]], attrs: dict[str, Any] | None = None):
        super().__init__({"class": "vTextField", "autocomplete": "off", **(attrs or {})})
        self.suggestions = suggestions

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        context = super().get_context(name, value, attrs)
        context["widget"]["attrs"]["list"] = context["list_id"] = f"suggestions-{name}"
        context["suggestions"] = sorted(self.suggestions())
        return context


class TargetInput(SuggestingInput):
    """With a note on what the target is."""

    template_name = "django_dcron/widgets/target_input.html"

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        return super().get_context(name, value, attrs) | {"note": TargetNote.of(str(value or ""))}


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    """Those named after a place, and UTC; any other that exists may be typed too."""
    return frozenset(name for name in available_timezones() if "/" in name or name == "UTC")


def json_input(rows: int = 2) -> forms.Textarea:
    return forms.Textarea({"rows": rows, "class": "vLargeTextField dcron-code", "spellcheck": "false"})


def _code_input() -> forms.TextInput:
    return forms.TextInput({"class": "vTextField dcron-code", "spellcheck": "false", "autocomplete": "off"})


_FIELDS = [field for field in Job._meta.concrete_fields if field.editable]
_JSON = {field.name: field for field in _FIELDS if isinstance(field, models.JSONField)}
_DURATIONS = [field.name for field in _FIELDS if isinstance(field, models.DurationField)]
_EXAMPLES = gettext_lazy("Such as 90s, 5m, 1h30m or 2d.")


_NOT_READ = (RecursionError, ValueError)
"""What Python raises of JSON that is nested too deep, or has a number of thousands of digits."""


class JsonInput(forms.JSONField):
    def prepare_value(self, value: Any) -> Any:
        return "" if value is None else super().prepare_value(value)

    def to_python(self, value: Any) -> Any:
        try:
            return storable(super().to_python(value))
        except _NOT_READ:
            raise ValidationError(self.error_messages["invalid"], code="invalid") from None

    def bound_data(self, data: Any, initial: Any) -> Any:
        try:
            return storable(super().bound_data(data, initial))
        except _NOT_READ:
            return InvalidJSONInput(data)


def _label_both(field: forms.SplitDateTimeField) -> None:
    """Django's one label names neither the date nor the time."""
    date, time = field.widget.widgets
    date.attrs["aria-label"] = _("%(field)s: date") % {"field": field.label}
    time.attrs["aria-label"] = _("%(field)s: time") % {"field": field.label}


class JobForm(JobModelForm):
    scope: Scope = EVERYTHING
    """What the user may see: the job may name no other calendar, and come after no other job."""
    seen_version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    class Media:
        css = {"all": ["django_dcron/job_form.css"]}
        js = [forms.Script("django_dcron/job_form.js", defer=True)]

    class Meta:
        model = Job
        fields = "__all__"
        field_classes = {**dict.fromkeys(_DURATIONS, DurationInput), **dict.fromkeys(_JSON, JsonInput)}
        widgets = {
            "schedule": _code_input(),
            "timezone": SuggestingInput(_zones),
            "target": TargetInput(targets.available),
            "description": forms.Textarea({"rows": 3, "class": "vLargeTextField"}),
            **{name: json_input() for name in _JSON},
        }

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not self.instance._state.adding:
            self.initial["seen_version"] = self.instance.version
        if "calendar" in self.fields and self.scope.narrows(Calendar):
            own = Q(pk=self.instance.calendar_id)
            offered = Calendar.objects.filter(Q(pk__in=self.scope.keys(Calendar)) | own)
            self.fields["calendar"].queryset = offered  # type: ignore[attr-defined]
        for name in self.fields.keys() & _JSON.keys():
            # Django would have the page carry the default along, to tell a change from it; the row tells it better.
            self.fields[name].show_hidden_initial = False
        for name in self.fields.keys() & _DURATIONS:
            self.fields[name].help_text = format_lazy("{} {}", self.fields[name].help_text, _EXAMPLES)
        for field in self.fields.values():
            if isinstance(field, forms.SplitDateTimeField):
                _label_both(field)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        for name in cleaned.keys() & _JSON.keys():
            if cleaned[name] is None:  # an emptied text area
                cleaned[name] = _JSON[name].get_default()
        if cleaned.get("enabled"):
            cleaned["pause_reason"], cleaned["paused_until"] = "", None
        elif "paused_until" in self.changed_data and _has_passed(cleaned.get("paused_until")):
            self.add_error("paused_until", _("It has passed."))
        if not self.instance._state.adding and cleaned.get("seen_version") != self.instance.version:
            self._refuse(cleaned)
        return cleaned

    def _post_clean(self) -> None:
        """What the model's own validation cannot tell: it knows of no other job."""
        super()._post_clean()  # type: ignore[misc]  # the stubs leave it out
        if not self.errors:
            try:
                visible = self.scope.jobs if self.scope.narrows(Job) else None
                chaining.check(self.instance, alias_for(Job), visible, self.initial.get("after", ()))
            except ValidationError as error:
                self.add_error(None, error)

    def _refuse(self, cleaned: dict[str, Any]) -> None:
        intro = _(
            "This job was changed meanwhile by someone else, so nothing was saved. If you save again, your values "
            "replace theirs."
        )
        self.add_error(None, ValidationError([intro, *self._differences(cleaned)], code="conflict"))
        sent = self.data.copy()  # type: ignore[attr-defined]  # a QueryDict
        sent[self.add_prefix("seen_version")] = str(self.instance.version)
        self.data = sent

    def _differences(self, cleaned: dict[str, Any]) -> Iterator[str]:
        """The instance is still as the database has it: its fields are set after ``clean``."""
        for name, field in self.fields.items():
            if name == "seen_version" or name not in cleaned:
                continue
            theirs, yours = getattr(self.instance, name), cleaned[name]
            if theirs != yours:
                yield _("%(field)s: theirs is %(theirs)s, yours is %(yours)s.") % {
                    "field": capfirst(str(field.label)),
                    "theirs": _shown(field, theirs),
                    "yours": _shown(field, yours),
                }


def _has_passed(until: datetime | None) -> bool:
    return until is not None and until <= database_now(alias_for(Job))


def _shown(field: forms.Field, value: Any) -> str:
    if value is None or value == "":
        return _("empty")
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, datetime):
        return date_format(localtime(value), "DATETIME_FORMAT")
    if isinstance(field, forms.JSONField):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(field, forms.TypedChoiceField):
        return f"“{dict(field.choices).get(value, value)}”"  # type: ignore[arg-type]
    return f"“{field.prepare_value(value)}”"
