"""Forms of the admin's actions: reason and end of a pause."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.forms.utils import from_current_timezone
from django.utils.timezone import get_current_timezone, get_current_timezone_name, localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron.admin.durations import parse_storable_duration
from django_dcron.admin.row_input import RowInputs
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.jobs.action_texts import LONGEST_REASON
from django_dcron.models import Job
from django_dcron.models.job_fields import MAX_DURATION
from django_dcron.schedules.timetable import BEGIN, END
from django_dcron.utils.time_ahead import next_time_of_day
from django_dcron.utils.time_format import format_site_time
from django_dcron.utils.time_parsing import MAX_LENGTH


class ObjectActionForm(forms.Form):
    """Base class of the forms of actions.

    ``row`` is the action's object, or None if the action applies to several rows of a list.
    ``rows`` are those that the user may look up; None if a page offers no lookup.
    """

    def __init__(
        self,
        data: Any = None,
        *,
        row: Model | None = None,
        rows: RowInputs | None = None,
        **options: Any,
    ):
        super().__init__(data, **options)
        self.row = row
        self.rows = rows


class ReasonForm(ObjectActionForm):
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=LONGEST_REASON,
        required=False,
        widget=forms.TextInput({"class": "vTextField", "autocomplete": "off"}),
        help_text=gettext_lazy("Optional. Your user name is added to the reason."),
    )


class InstantField(forms.DateTimeField):
    """A date and time from 1970 to 2199, which every time zone can represent."""

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

    Raises ``ValidationError`` for a time that the site's clock skips, for a date with a time that
    it repeats, and for a time too far in the future.
    """
    if len(text) > MAX_LENGTH:
        return None
    if text[-1].isalpha() and (wait := parse_storable_duration(text)) is not None:
        MAX_DURATION(wait)
        return now + wait
    if (of_day := next_time_of_day(text, now, get_current_timezone())) is not None:
        shown = of_day.astimezone(UTC).astimezone(of_day.tzinfo)
        if shown.replace(tzinfo=None) == of_day.replace(tzinfo=None):
            return of_day
        return from_current_timezone(of_day.replace(tzinfo=None))  # raises the error
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
            "someone resumes it. Due runs and retries still start. Cancel them to prevent this."
        ) % {"zone": get_current_timezone_name()}


class EditPauseForm(PauseForm):
    """The form for a paused job. An empty reason keeps the current reason.

    As an exception, it replaces the reason of a job that awaits its handover, so that the handover
    doesn't enable the job.
    """

    def __init__(self, data: Any = None, *, row: Job, **options: Any):
        until = localtime(row.paused_until).isoformat(" ", "seconds") if row.paused_until else ""
        super().__init__(data, row=row, initial={"until": until}, **options)
        if row.pause_reason and not row.awaits_handover:
            self.fields["reason"].help_text = _("Leave empty to keep “%(reason)s”.") % {
                "reason": row.pause_reason
            }
