"""A calendar: dates on which the schedules that name it are not to fall.

Its name is its key, so that exports and declarations can say it; it is never changed. Use ``django_dcron.control.save_calendar`` to
write one: it also moves the cursors of its jobs. One written past it is noticed by the scheduler, a little later.
"""

from __future__ import annotations

from functools import lru_cache

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models
from django.utils import translation
from django.utils.translation import gettext_lazy as _

from django_dcron import public_holidays
from django_dcron.domain.calendar import Calendar as Dates
from django_dcron.domain.calendar import parse_calendar
from django_dcron.exceptions import InvalidCalendar

NAME = RegexValidator(
    r"^(?!\.+\Z)[\w.@:-]+(?: [\w.@:-]+)*\Z",
    _("Use letters, digits, single spaces and any of _ . - @ : only, and not dots alone."),
)
"""It is a part of addresses: HTTP clients take one of dots alone for the way up."""


@lru_cache(maxsize=256)
def read_dates(text: str) -> Dates:
    """Raises ``InvalidCalendar``."""
    return parse_calendar(text, public_holidays.holidays_in)


class Calendar(models.Model):
    name = models.CharField(
        _("name"),
        max_length=120,
        primary_key=True,
        validators=[NAME],
        help_text=_("Jobs name it so; it cannot be changed later."),
    )
    description = models.TextField(_("description"), blank=True, help_text=_("What it is for; who to ask."))
    dates = models.TextField(
        _("excluded dates"),
        help_text=_(
            "One entry a line: 2026-12-24, 2026-12-24..2027-01-01, each year 12-25 or 12-24..01-01, weekdays SAT or MON-FRI, public "
            "holidays of a country or a part of it: holidays DE, holidays DE-BY. What follows a # is a remark."
        ),
    )

    version = models.PositiveIntegerField(_("version"), default=1, editable=False)

    class Meta:
        verbose_name = _("calendar")
        verbose_name_plural = _("calendars")
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def clean_fields(self, exclude: object = None) -> None:
        super().clean_fields(exclude)  # type: ignore[arg-type]
        # A browser sends its own line ends; the text that cursors are compared with has one form.
        self.dates = "\n".join(line.rstrip() for line in self.dates.strip().splitlines())
        try:
            read_dates(self.dates)
        except InvalidCalendar as error:
            raise ValidationError({"dates": error.said(translation)}) from None
