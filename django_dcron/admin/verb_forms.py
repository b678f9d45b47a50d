"""What a verb asks for before it does something: a reason, until when, other arguments."""

from __future__ import annotations

import json
from datetime import datetime, time, timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.forms.utils import from_current_timezone
from django.utils import translation
from django.utils.timezone import get_current_timezone_name, localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron import targets
from django_dcron.admin.durations import read_duration
from django_dcron.admin.jobs.form import JsonInput, json_input
from django_dcron.domain.timetable import BEGIN, END
from django_dcron.exceptions import InvalidArguments, UnknownTarget
from django_dcron.models import Job
from django_dcron.models.database import alias_for, database_now
from django_dcron.models.job import CALENDAR
from django_dcron.models.job_validation import TYPE_NAMES
from django_dcron.observability.wording import plain_moment
from django_dcron.time_texts import MAX_LENGTH

LONGEST_REASON = 150


class VerbForm(forms.Form):
    """``row``: what it is about; None if it is about several of a list."""

    def __init__(self, data: Any = None, *, row: Model | None = None, **options: Any):
        super().__init__(data, **options)
        self.row = row


class ReasonForm(VerbForm):
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=LONGEST_REASON,
        required=False,
        widget=forms.TextInput({"class": "vTextField", "autocomplete": "off"}),
        help_text=gettext_lazy("Optional. Your name is noted beside it."),
    )


class InstantField(forms.DateTimeField):
    """A date and time that can be told in every zone: not at the ends of what a datetime can hold."""

    default_error_messages = {"out_of_range": gettext_lazy("Use a year from 1970 to 2199.")}

    def to_python(self, value: Any) -> datetime | None:
        if isinstance(value, str) and len(value) > MAX_LENGTH:
            raise ValidationError(self.error_messages["invalid"], code="invalid")
        instant = super().to_python(value)
        if instant is not None and not BEGIN <= instant < END:
            raise ValidationError(self.error_messages["out_of_range"], code="out_of_range")
        return instant and localtime(instant)


class UntilField(forms.Field):
    """A time ahead as people say it, an aware datetime: 2h, 1d 12h, 18:00, 2026-12-01 09:00. Days and times are the site's,
    unless they say another zone: 18:00Z, 18:00+02:00."""

    widget = forms.TextInput
    default_error_messages = {
        "invalid": gettext_lazy(
            "“%(value)s” is neither a duration nor a time. Allowed: 2h, 1d 12h, 18:00 or 2026-12-01 09:00."
        ),
        "passed": gettext_lazy("%(until)s has passed."),
    }

    def to_python(self, value: Any) -> datetime | None:
        text = str(value or "").strip()
        if not text:
            return None
        now = database_now(alias_for(Job))
        until = _read_time_ahead(text, now)
        if until is None:
            raise ValidationError(
                self.error_messages["invalid"], code="invalid", params={"value": f"{text:.80}"}
            )
        if until <= now:
            params = {"until": plain_moment(until)}
            raise ValidationError(self.error_messages["passed"], code="passed", params=params)
        CALENDAR(until - now)
        return localtime(until)  # of the offset that is typed, PostgreSQL may not take it


def _read_time_ahead(text: str, now: datetime) -> datetime | None:
    """None if it is no such text; raises ``ValidationError`` for a time that the clocks of the site skip or repeat, or that is
    far off."""
    if len(text) > MAX_LENGTH:
        return None
    if text[-1].isalpha() and (wait := read_duration(text)) is not None:
        CALENDAR(wait)
        return now + wait
    of_day = _time_of_day(text)
    if of_day is not None:
        return _next(of_day, now)
    try:
        return InstantField().to_python(text)
    except ValidationError as error:
        if error.code == "invalid":
            return None
        raise


def _time_of_day(text: str) -> time | None:
    """With the zone that it says; Django's ``parse_time`` drops that."""
    if ":" not in text[:3]:
        return None
    try:
        return time.fromisoformat(f"0{text}" if text[1:2] == ":" else text)
    except ValueError:
        return None


def _next(of_day: time, now: datetime) -> datetime:
    if of_day.tzinfo is not None:
        coming = datetime.combine(now.astimezone(of_day.tzinfo), of_day)
        return coming if coming > now else coming + timedelta(days=1)
    today = localtime(now).replace(tzinfo=None)
    coming = datetime.combine(today, of_day)
    return from_current_timezone(coming if coming > today else coming + timedelta(days=1))


class PauseForm(ReasonForm):
    until = UntilField(
        label=gettext_lazy("Until"),
        required=False,
        widget=forms.TextInput(
            {"class": "vTextField", "autocomplete": "off", "placeholder": "2h, 18:00, 2026-12-01 09:00"}
        ),
    )

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.fields["until"].help_text = _(
            "How long from now, or when (%(zone)s). Empty: until somebody resumes it."
        ) % {"zone": get_current_timezone_name()}


class ChangedPauseForm(PauseForm):
    """Of a job that is paused: what is left as it is stays so."""

    def __init__(self, data: Any = None, *, row: Job, **options: Any):
        until = localtime(row.paused_until).isoformat(" ", "seconds") if row.paused_until else ""
        super().__init__(data, row=row, initial={"until": until}, **options)
        if row.pause_reason:
            self.fields["reason"].help_text = _("Empty: it stays “%(reason)s”.") % {
                "reason": row.pause_reason
            }


class ArgumentsForm(VerbForm):
    """Other arguments than the job's own, checked as those are."""

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
        super().__init__(data, row=row, initial=self._own_of(row), **options)
        self.job = row

    @staticmethod
    def _own_of(job: Job) -> dict[str, Any]:
        """Without secrets: to run a job is not to see its definition. What stays masked is the job's own."""
        return {"args": targets.redacted(job.args), "kwargs": targets.redacted(job.kwargs)}

    def clean_args(self) -> Any:
        return self._checked("args", list)

    def clean_kwargs(self) -> Any:
        return self._checked("kwargs", dict)

    def _checked(self, name: str, kind: type) -> Any:
        value = self.cleaned_data[name]
        if value is None:  # an emptied text area
            return kind()
        if not isinstance(value, kind):
            raise ValidationError(
                _("%(value)s is not %(allowed)s.") % {"value": json.dumps(value), "allowed": TYPE_NAMES[kind]}
            )
        return targets.restored(value, getattr(self.job, name))

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if not self.errors:
            try:
                targets.check_arguments(self.job.target, cleaned["args"], cleaned["kwargs"])
            except InvalidArguments as error:
                self.add_error(error.field, error.said(translation))
            except UnknownTarget as error:
                self.add_error(None, error.said(translation))
        return cleaned
