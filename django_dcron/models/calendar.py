"""A calendar: dates and times at which the jobs that use it have no occurrences.

The name is the primary key, so that exports and declarations can refer to a calendar by name. The
name never changes.

Use ``django_dcron.control.save_calendar`` to write a calendar, because it also moves the cursors of
its jobs. If a calendar is written in another way, a node moves the cursors later.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from itertools import islice

from django.core.exceptions import ValidationError
from django.core.validators import MaxLengthValidator
from django.db import models
from django.utils import translation
from django.utils.translation import gettext_lazy as _

from django_dcron.exceptions import InvalidCalendar
from django_dcron.models.hidden_characters import NameValidator, validate_text
from django_dcron.schedules import public_holidays
from django_dcron.schedules.calendar import ExcludedDates
from django_dcron.schedules.calendar_text import (
    CalendarEntry,
    find_invalid_entries,
    parse_calendar,
    parse_entries,
)

NAME = NameValidator(
    r"^(?!\.+\Z)[\w.@:-]+(?: [\w.@:-]+)*\Z",
    _(
        "Use only letters, digits, _ . - @ : and single spaces. The name can't consist of "
        "dots only."
    ),
)
"""A name is a segment of URLs. HTTP clients resolve ``.`` and ``..`` as relative paths."""


ERRORS_REPORTED = 5
"""A refused save reports at most this many invalid entries."""
MAX_DESCRIPTION_LENGTH = 10_000
"""The maximum number of characters. It is limited because lists show whole descriptions."""


@lru_cache(maxsize=256)
def read_dates(text: str) -> ExcludedDates:
    """Parse the dates of a calendar. Raises ``InvalidCalendar``."""
    return parse_calendar(text, public_holidays.holidays_in)


@lru_cache(maxsize=256)
def read_entries(text: str) -> tuple[CalendarEntry, ...]:
    """Parse the entries of a calendar. Raises ``InvalidCalendar``."""
    return tuple(parse_entries(text, public_holidays.holidays_in))


class Calendar(models.Model):
    name = models.CharField(
        _("name"),
        max_length=120,
        primary_key=True,
        validators=[NAME],
        help_text=_(
            "The name that jobs refer to, such as bank-holidays. It can't be changed later."
        ),
    )
    description = models.TextField(
        _("description"),
        blank=True,
        validators=[MaxLengthValidator(MAX_DESCRIPTION_LENGTH), validate_text],
        help_text=_(
            "What the calendar is for and whom to contact, such as “Office holidays. Contact: HR”."
        ),
    )
    dates = models.TextField(
        _("excluded dates and times"),
        validators=[validate_text],
        help_text=_(
            "One entry per line: a date (2026-12-24), a range (2026-12-24..2027-01-01), a yearly "
            "date or range (12-25, 12-24..01-01), weekdays (SAT, MON-FRI), or the public "
            "holidays of a country or region (holidays DE, holidays DE-BY). Each may have a time "
            "(SAT 22:00-06:00); a time alone applies to every day. “only MON-FRI 09:00-17:00” "
            "excludes all other times. Text after # is a comment."
        ),
    )

    version = models.PositiveIntegerField(_("version"), default=1, editable=False)

    class Meta:
        verbose_name = _("calendar")
        verbose_name_plural = _("calendars")
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        super().clean_fields(exclude)
        if exclude and "dates" in exclude:
            return
        # Browsers send CRLF line ends. Cursors are compared with this text, so it is normalized.
        self.dates = "\n".join(line.rstrip() for line in self.dates.strip().splitlines())
        try:
            read_dates(self.dates)
        except InvalidCalendar as error:
            entries = find_invalid_entries(self.dates, public_holidays.holidays_in)
            errors = list(islice(entries, ERRORS_REPORTED)) or [error]
            texts = [each.translate(translation) for each in errors]
            raise ValidationError({"dates": texts}) from None
