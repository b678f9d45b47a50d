"""Forms of the admin's actions: reason, end of a pause, arguments."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.forms.utils import from_current_timezone
from django.utils import translation
from django.utils.timezone import get_current_timezone, get_current_timezone_name, localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron import targets
from django_dcron.admin.durations import parse_storable_duration
from django_dcron.admin.json_input import JsonInput, json_input
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import InvalidArguments, UnknownTarget
from django_dcron.jobs.action_texts import LONGEST_REASON
from django_dcron.models import Job
from django_dcron.models.job_fields import MAX_DURATION
from django_dcron.models.job_validation import wrong_type
from django_dcron.schedules.timetable import BEGIN, END
from django_dcron.utils.time_ahead import next_time_of_day
from django_dcron.utils.time_format import format_site_time
from django_dcron.utils.time_parsing import MAX_LENGTH


class ObjectActionForm(forms.Form):
    """``row`` is the action's object, or None if the action applies to several rows of a list."""

    def __init__(self, data: Any = None, *, row: Model | None = None, **options: Any):
        super().__init__(data, **options)
        self.row = row


class ReasonForm(ObjectActionForm):
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=LONGEST_REASON,
        required=False,
        widget=forms.TextInput({"class": "vTextField", "autocomplete": "off"}),
        help_text=gettext_lazy("Optional. Your user name is added to the reason."),
    )


class InstantField(forms.DateTimeField):
    """A date and time that every time zone can represent, which excludes the ends of datetime."""

    default_error_messages = {
        "out_of_range": gettext_lazy("The time is out of range. Use a year from 1970 to 2199.")
    }

    def to_python(self, value: Any) -> datetime | None:
        if isinstance(value, str) and len(value) > MAX_LENGTH:
            raise ValidationError(self.error_messages["invalid"], code="invalid")
        instant = super().to_python(value)
        if instant is not None and not BEGIN <= instant < END:
            raise ValidationError(self.error_messages["out_of_range"], code="out_of_range")
        return instant and localtime(instant)


class UntilField(forms.Field):
    """A future time, cleaned to an aware datetime: 2h, 1d 12h, 18:00, 2026-12-01 09:00.

    Days and times are in the site's time zone, unless they name an offset: 18:00Z, 18:00+02:00.
    """

    widget = forms.TextInput(
        {
            "class": "vTextField",
            "autocomplete": "off",
            "placeholder": "2h, 18:00, 2026-12-01 09:00",
        }
    )
    default_error_messages = {
        "invalid": gettext_lazy(
            "“%(value)s” is neither a duration nor a time. Allowed: 2h, 1d 12h, 18:00 or "
            "2026-12-01 09:00."
        ),
        "passed": gettext_lazy("%(until)s is in the past. Enter a future time."),
    }

    def to_python(self, value: Any) -> datetime | None:
        text = str(value or "").strip()
        if not text:
            return None
        now = database_now(alias_for(Job))
        until = _parse_future_time(text, now)
        if until is None:
            raise ValidationError(
                self.error_messages["invalid"], code="invalid", params={"value": f"{text:.80}"}
            )
        if until <= now:
            params = {"until": format_site_time(until)}
            raise ValidationError(self.error_messages["passed"], code="passed", params=params)
        MAX_DURATION(until - now)
        return localtime(until)  # PostgreSQL may not accept the offset that the user typed


def _parse_future_time(text: str, now: datetime) -> datetime | None:
    """Parse a future time. Return None if ``text`` is neither a duration nor a time.

    Raises ``ValidationError`` for a time that the site's clock skips or repeats, and for a time too
    far in the future.
    """
    if len(text) > MAX_LENGTH:
        return None
    if text[-1].isalpha() and (wait := parse_storable_duration(text)) is not None:
        MAX_DURATION(wait)
        return now + wait
    zone = get_current_timezone()
    if (of_day := next_time_of_day(text, now, zone)) is not None:
        if of_day.tzinfo is not zone:
            return of_day
        return from_current_timezone(of_day.replace(tzinfo=None))
    try:
        return InstantField().to_python(text)
    except ValidationError as error:
        if error.code == "invalid":
            return None
        raise


class PauseForm(ReasonForm):
    until = UntilField(
        label=gettext_lazy("Until"),
        required=False,
    )

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.fields["until"].help_text = _(
            "Enter a duration or a time (%(zone)s). Leave empty to pause the job until "
            "someone resumes it."
        ) % {"zone": get_current_timezone_name()}


class EditPauseForm(PauseForm):
    """The form for a paused job. An empty reason keeps the current reason."""

    def __init__(self, data: Any = None, *, row: Job, **options: Any):
        until = localtime(row.paused_until).isoformat(" ", "seconds") if row.paused_until else ""
        super().__init__(data, row=row, initial={"until": until}, **options)
        if row.pause_reason:
            self.fields["reason"].help_text = _("Leave empty to keep “%(reason)s”.") % {
                "reason": row.pause_reason
            }


class ArgumentsForm(ObjectActionForm):
    """Arguments that replace the job's own, with the same validation."""

    args = JsonInput(
        label=gettext_lazy("Arguments"),
        required=False,
        widget=json_input(rows=3),
        help_text=gettext_lazy("A JSON list of positional arguments, such as [1, true]."),
    )
    kwargs = JsonInput(
        label=gettext_lazy("Keyword arguments"),
        required=False,
        widget=json_input(rows=3),
        help_text=gettext_lazy('A JSON object, such as {"city": "Berlin"}.'),
    )

    def __init__(self, data: Any = None, *, row: Job, **options: Any):
        super().__init__(data, row=row, initial=self._initial_arguments(row), **options)
        self.job = row

    @staticmethod
    def _initial_arguments(job: Job) -> dict[str, Any]:
        """Return the job's arguments without secrets.

        The permission to run a job doesn't include the right to see its definition. Values that
        stay masked are replaced with the job's own values when the form is cleaned.
        """
        return {
            "args": targets.redact_secrets(job.args),
            "kwargs": targets.redact_secrets(job.kwargs),
        }

    def clean_args(self) -> Any:
        return self._json_value("args", list)

    def clean_kwargs(self) -> Any:
        return self._json_value("kwargs", dict)

    def _json_value(self, name: str, kind: type) -> Any:
        value = self.cleaned_data[name]
        if value is None:  # an emptied text area
            return kind()
        if not isinstance(value, kind):
            raise ValidationError(wrong_type(value, kind))
        return targets.restore_secrets(value, getattr(self.job, name))

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if not self.errors:
            try:
                targets.check_arguments(self.job.target, cleaned["args"], cleaned["kwargs"])
            except InvalidArguments as error:
                self.add_error(error.field, error.translate(translation))
            except UnknownTarget as error:
                self.add_error(None, error.translate(translation))
        return cleaned
