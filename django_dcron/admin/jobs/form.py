"""The job's form.

Invariants:

- A save never silently overwrites another change by a person, by ``sync`` or by the scheduler. The
  form carries the version of the job that it was rendered from.
- If the row has another version, the form lists the differences and saves nothing. It then
  carries the new version, so that a second save is deliberate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zoneinfo import available_timezones

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import models
from django.db.models import Q
from django.utils import translation
from django.utils.dates import WEEKDAYS_ABBR
from django.utils.text import capfirst
from django.utils.timezone import get_current_timezone_name, now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron import targets
from django_dcron.admin.conflicts import MultilineFormField
from django_dcron.admin.durations import DurationFormField
from django_dcron.admin.jobs.argument_inputs import JobArguments
from django_dcron.admin.jobs.target_note import TargetNote
from django_dcron.admin.jobs.text_lists import (
    NameListFormField,
    PredecessorsFormField,
    TextOrJsonFormField,
)
from django_dcron.admin.json_input import JsonFormField, json_textarea
from django_dcron.admin.row_input import RowInputs
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs import chains
from django_dcron.jobs.saving import TAKEN
from django_dcron.models import Calendar, Job, Limit
from django_dcron.models.job_validation import JSON_EXAMPLES, why_pause_has_no_end
from django_dcron.schedules.calendar_text import WEEKDAYS
from django_dcron.schedules.sentences import replace_sentences
from django_dcron.schedules.zones import date_in
from django_dcron.utils.json_values import same_json
from django_dcron.utils.time_format import format_site_time

if TYPE_CHECKING:
    JobModelForm = forms.ModelForm[Job]
else:
    JobModelForm = forms.ModelForm


class SuggestingInput(forms.TextInput):
    """A text input with suggestions in an HTML ``datalist``, without JavaScript."""

    template_name = "django_dcron/widgets/suggesting_input.html"

    def __init__(
        self, suggestions: Callable[[], Iterable[str]], attrs: dict[str, Any] | None = None
    ):
        super().__init__({"class": "vTextField", "autocomplete": "off", **(attrs or {})})
        self.suggestions = suggestions

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        context = super().get_context(name, value, attrs)
        context["widget"]["attrs"]["list"] = context["list_id"] = f"suggestions-{name}"
        context["suggestions"] = sorted(self.suggestions())
        return context


class TargetInput(SuggestingInput):
    """A text input for a target, with a note about that target."""

    template_name = "django_dcron/widgets/target_input.html"

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        return super().get_context(name, value, attrs) | {"note": TargetNote.of(str(value or ""))}


class ScheduleTextarea(forms.Textarea):
    """A text area for a schedule, with a picker for common schedules."""

    template_name = "django_dcron/widgets/schedule_input.html"

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        picker = {
            "minutes": [step for step in range(1, 31) if 60 % step == 0],
            "hours": [step for step in range(1, 13) if 24 % step == 0],
            "weekdays": zip(WEEKDAYS, WEEKDAYS_ABBR.values(), strict=True),
            "monthdays": range(1, 32),
        }
        return super().get_context(name, value, attrs) | {"picker": picker}


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    """Return the suggested time zones: UTC, and zones named after a place."""
    return frozenset(name for name in available_timezones() if "/" in name or name == "UTC")


_CODE = {"class": "vTextField dcron-code", "spellcheck": "false", "autocomplete": "off"}


_FIELDS = [field for field in Job._meta.concrete_fields if field.editable]
_JSON = {field.name: field for field in _FIELDS if isinstance(field, models.JSONField)}
_DURATIONS = [field.name for field in _FIELDS if isinstance(field, models.DurationField)]
_EXAMPLES = {
    "jitter": "30s",
    "misfire_grace": "1m",
    "start_deadline": "10m",
    "timeout": "1h 30m",
    "retry_backoff": "10s",
    "retry_backoff_max": "1h",
    "keep_for": "30d",
    "keep_failed_for": "90d",
}
"""An example of each duration for its help text."""
_JSON_EXAMPLES = {
    **JSON_EXAMPLES,
    "alerts": '[{"on": "failed", "to": ["ops"]}]',
    "after": "import-orders: succeeded",
    "tags": "billing, nightly",
    "retry_on": "ConnectionError, TimeoutError",
    "never_retry_on": "ValueError, TypeError",
}
"""An example of each JSON field for its error message."""


_EXAMPLE_TIME = datetime(2026, 12, 7, 9, tzinfo=UTC)


def _explain_time(field: forms.SplitDateTimeField) -> None:
    """Name the time zone in the help text, and add an example to the errors.

    Label the date and the time input, because Django's label names the whole field only.
    """
    zone = _("In the time zone %(zone)s.") % {"zone": get_current_timezone_name()}
    field.help_text = f"{field.help_text} {zone}"
    date_input, time_input = field.widget.widgets
    date_input.attrs["aria-label"] = _("%(field)s: date") % {"field": field.label}
    time_input.attrs["aria-label"] = _("%(field)s: time") % {"field": field.label}
    examples = [each.format_value(_EXAMPLE_TIME) for each in (date_input, time_input)]
    texts = {
        "invalid_date": _("Enter a valid date, such as %(example)s.") % {"example": examples[0]},
        "invalid_time": _("Enter a valid time, such as %(example)s.") % {"example": examples[1]},
    }
    field.error_messages |= texts
    for part, text in zip(field.fields, texts.values(), strict=True):
        part.error_messages["invalid"] = text


class ScheduleFormField(forms.CharField):
    zone = "UTC"
    """The time zone of the schedule, which decides on the date of "tomorrow"."""

    def to_python(self, value: Any) -> str:
        """Return the text with ``\\n`` as line ends, because browsers send ``\\r\\n``.

        A line that is an English sentence, such as "every weekday at 9:30", becomes schedule text.
        """
        lines = (super().to_python(value) or "").splitlines()
        try:
            return replace_sentences("\n".join(lines), date_in(self.zone, now()))
        except InvalidSchedule as error:
            raise ValidationError(error.translate(translation), code=error.code) from None


class JobForm(JobModelForm):
    scope: Scope = EVERYTHING
    """The rows that the user may see. The form accepts only these calendars, limits and jobs."""
    rows: RowInputs | None = None
    seen_version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    class Media:
        css = {"all": ["django_dcron/job_form.css"]}
        js = [
            forms.Script("django_dcron/job_form.js", defer=True),
            forms.Script("django_dcron/schedule_picker.js", defer=True),
        ]

    class Meta:
        model = Job
        fields = "__all__"
        field_classes = {
            **dict.fromkeys(_DURATIONS, DurationFormField),
            **dict.fromkeys(_JSON, JsonFormField),
            **dict.fromkeys(("tags", "retry_on", "never_retry_on"), NameListFormField),
            "after": PredecessorsFormField,
            "schedule": ScheduleFormField,
            "description": MultilineFormField,
        }
        help_texts = {
            "tags": gettext_lazy("Separated by commas, such as billing, nightly."),
            "retry_on": gettext_lazy(
                "Exception names, separated by commas, such as ConnectionError, TimeoutError. "
                "Empty: all exceptions."
            ),
            "never_retry_on": gettext_lazy(
                "Exception names that are never retried, separated by commas, such as ValueError, "
                "TypeError."
            ),
            "after": gettext_lazy(
                "One job per line with the outcome to wait for, such as import-orders: "
                "succeeded. Outcomes: succeeded (if you enter none), failed, ended. Use the "
                "schedule @never to run the job only then."
            ),
        }
        error_messages = {
            "target": {"required": Job._meta.get_field("target").error_messages["blank"]}
        }
        widgets = {
            "schedule": ScheduleTextarea(_CODE | {"rows": 2}),
            "timezone": SuggestingInput(_zones),
            "target": TargetInput(targets.available),
            "description": forms.Textarea({"rows": 3, "class": "vLargeTextField"}),
            **{name: json_textarea() for name in _JSON},
        }

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not self.instance._state.adding:
            self.initial["seen_version"] = self.instance.version
        self._limit_choices("calendar", Calendar)
        self._limit_choices("limit", Limit)
        self._add_examples()
        for name, field in self.fields.items():
            # Django adds a hidden input to detect changes of a callable default. The stored row or
            # the default itself suffices for that.
            field.show_hidden_initial = False
            if isinstance(field, JsonFormField):
                field.example = _JSON_EXAMPLES.get(name, field.example)
            if isinstance(field, forms.SplitDateTimeField):
                _explain_time(field)
            if isinstance(field, ScheduleFormField):
                field.zone = self._zone()
        has_arguments = self.fields.keys() >= {"args", "kwargs"}
        self.arguments = JobArguments.of_job_form(self) if has_arguments else None

    def _zone(self) -> str:
        """Return the typed time zone of the job, which may be invalid, or the one it has."""
        typed = self["timezone"].value() if "timezone" in self.fields else None
        return typed or self.instance.timezone

    def _limit_choices(self, name: str, model: type[models.Model]) -> None:
        """Offer the visible rows of ``model`` and the row that the job has already."""
        if name in self.fields and self.scope.narrows(model):
            own = Q(pk=getattr(self.instance, f"{name}_id"))
            rows = model._default_manager.filter(Q(pk__in=self.scope.keys(model)) | own)
            self.fields[name].queryset = rows  # type: ignore[attr-defined]

    def _add_examples(self) -> None:
        """Add examples to the help texts of the schedule and of durations."""
        for name in self.fields.keys() & _DURATIONS:
            example = _("Example: %(duration)s.") % {"duration": _EXAMPLES[name]}
            self.fields[name].help_text = f"{self.fields[name].help_text} {example}"
        if "schedule" in self.fields:
            sentence = _("Or an English sentence, such as every weekday at 9:30.")
            self.fields["schedule"].help_text = f"{self.fields['schedule'].help_text} {sentence}"

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        for name in cleaned.keys() & _JSON.keys():
            if cleaned[name] is None:  # the user emptied the text area
                cleaned[name] = _JSON[name].get_default()
        self._keep_unchanged_times(cleaned)
        if self.arguments is not None:
            self.arguments.clean(cleaned)
        if cleaned.get("enabled"):
            cleaned["pause_reason"], cleaned["paused_until"] = "", None
        elif "paused_until" in self.changed_data and _has_passed(cleaned.get("paused_until")):
            text = _("The time is in the past. Enter a future time.")
            self.add_error("paused_until", ValidationError(text, code="passed"))
        elif cleaned.get("paused_until") and (refusal := why_pause_has_no_end(self.instance)):
            self.add_error("paused_until", ValidationError(refusal, code="no_end"))
        if not self.instance._state.adding and cleaned.get("seen_version") != self.instance.version:
            self._add_conflict(cleaned)
        return cleaned

    def _keep_unchanged_times(self, cleaned: dict[str, Any]) -> None:
        """Keep the stored times that the user hasn't changed.

        The inputs show neither microseconds nor which of two equal local times is meant.
        """
        for name, field in self.fields.items():
            if isinstance(field, forms.SplitDateTimeField) and name not in self.changed_data:
                self.errors.pop(name, None)
                cleaned[name] = getattr(self.instance, name)

    def _update_errors(self, errors: ValidationError) -> None:
        """Put the error about a taken name at the field ``name``."""
        if "name" in self.fields and hasattr(errors, "error_dict"):
            others = errors.error_dict.pop(NON_FIELD_ERRORS, [])
            taken = [each for each in others if each.code in TAKEN]
            if others := [each for each in others if each.code not in TAKEN]:
                errors.error_dict[NON_FIELD_ERRORS] = others
            if taken:
                text = _(
                    "A job named %(name)s already exists in the namespace %(namespace)s. Choose "
                    "another name."
                )
                params = {"name": self.instance.name, "namespace": self.instance.namespace}
                error = ValidationError(text, code=taken[0].code, params=params)
                errors.error_dict.setdefault("name", []).append(error)
        super()._update_errors(errors)  # type: ignore[misc]  # the stubs lack it

    def _post_clean(self) -> None:
        """Validate the job's chain, which the model can't do because it needs other jobs."""
        super()._post_clean()  # type: ignore[misc]  # the stubs lack it
        if not self.errors:
            try:
                visible = self.scope.jobs if self.scope.narrows(Job) else None
                chains.check_links(
                    self.instance, alias_for(Job), visible, self.initial.get("after", ())
                )
            except ValidationError as error:
                # The project's admin class may make ``after`` read-only.
                self.add_error(None, error if "after" in self.fields else error.messages)

    def _add_conflict(self, cleaned: dict[str, Any]) -> None:
        """Add the error that lists the differences, and carry the new version."""
        intro = _(
            "This job was changed in another window or by someone else, so your changes were "
            "not saved. Save again to replace its values with yours."
        )
        conflict = ValidationError(intro, code="conflict")
        self.add_error(None, ValidationError([conflict, *self._differences(cleaned)]))
        data = self.data.copy()  # type: ignore[attr-defined]  # a QueryDict
        data[self.add_prefix("seen_version")] = str(self.instance.version)
        self.data = data

    def _differences(self, cleaned: dict[str, Any]) -> Iterator[ValidationError]:
        """Yield the differences to the stored job.

        The instance still has the stored values, because Django sets its fields after ``clean``.
        """
        for name, field in self.fields.items():
            if name == "seen_version" or name not in cleaned:
                continue
            theirs, yours = getattr(self.instance, name), cleaned[name]
            is_same = same_json(theirs, yours) if name in _JSON else theirs == yours
            if not is_same:
                params = {
                    "field": capfirst(str(field.label)),
                    "theirs": _format_value(field, theirs),
                    "yours": _format_value(field, yours),
                }
                text = _("%(field)s: saved value %(theirs)s, your value %(yours)s.")
                yield ValidationError(text, code=f"conflict_{name}", params=params)


def _has_passed(until: datetime | None) -> bool:
    return until is not None and until <= database_now(alias_for(Job))


def _format_value(field: forms.Field, value: Any) -> str:
    if value is None or value == "":
        return _("empty")
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, datetime):
        return format_site_time(value)
    if isinstance(field, TextOrJsonFormField):
        return f"“{field.prepare_value(value)}”" if value else _("empty")
    if isinstance(field, forms.JSONField):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(field, forms.TypedChoiceField):
        return f"“{dict(field.choices).get(value, value)}”"  # type: ignore[arg-type]
    return f"“{field.prepare_value(value)}”"
