"""The month at hand and the next one, with a job's occurrences, excluded days and freezes.

Invariants:

- The months are those of the schedule's time zone.
- Only users who may view the job's calendar see which entries exclude a day.
- A day shows the time of its only occurrence, or the number of its occurrences. Past days show
  none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

from django.http import HttpRequest
from django.utils.formats import date_format, number_format
from django.utils.functional import cached_property
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.admin.display import may_view, site_of
from django_dcron.admin.freeze import freezes_in_force
from django_dcron.admin.month_grid import MonthDay, MonthGrid, exclusion_note, exclusion_reasons
from django_dcron.admin.visibility import admin_scope
from django_dcron.db import clock
from django_dcron.jobs import placement
from django_dcron.models import Calendar, Freeze, Job
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.exclusion_reasons import NO_REASONS
from django_dcron.schedules.upcoming_days import (
    DayOccurrences,
    FrozenPeriod,
    UpcomingDay,
    days_of_months,
    occurrences_per_day,
    upcoming_days,
)
from django_dcron.utils.time_format import format_site_time

MONTHS = 2


def months_for(request: HttpRequest, job: Job, first: datetime) -> UpcomingMonths:
    """Return the job's months with what the user may see of freezes and of the calendar."""
    site = site_of(request)
    names_reasons = may_view(request, Calendar, site) and (
        job.calendar is None or admin_scope(request, site).sees(job.calendar)
    )
    return UpcomingMonths(job, first, freezes_in_force(request), names_reasons=names_reasons)


class UpcomingMonths:
    """The months of a job whose next occurrence is ``first``.

    ``freezes``: freezes in force, also those of other namespaces. ``names_reasons``: whether the
    days name the entries of the calendar that exclude them.
    """

    def __init__(
        self, job: Job, first: datetime, freezes: Iterable[Freeze], *, names_reasons: bool = True
    ):
        timetable = placement.timetable_of(job)
        schedule = timetable.schedule
        self.zone = schedule.timezone
        self._zone, self._exclusion = ZoneInfo(self.zone), schedule.exclusion
        self._freezes = [
            FrozenPeriod(each.since, each.until, each.reason)
            for each in freezes
            if each.extent.covers(job.namespace)
        ]
        now = clock.now()
        self._today = now.astimezone(self._zone).date()
        days = days_of_months(self._today, MONTHS)
        planned = upcoming_days(
            days,
            now=now,
            timetable=timetable,
            occurrences=occurrences_per_day(timetable, first, days[-1]),
            reasons_on=exclusion_reasons(schedule.calendar.text)
            if schedule.calendar and names_reasons
            else lambda _day: NO_REASONS,
            freezes=self._freezes,
        )
        self._days = {each.day: each for each in planned}

    @cached_property
    def grid(self) -> MonthGrid:
        return MonthGrid(self._today, MONTHS, lambda day: self._month_day(self._days[day]))

    @property
    def policy_text(self) -> str:
        """What happens to occurrences at excluded times; empty if none are excluded."""
        if not (self.grid.has_excluded or self.grid.has_partly_excluded):
            return ""
        texts = {
            ExclusionPolicy.SKIP: _("Occurrences at excluded times are skipped."),
            ExclusionPolicy.NEXT_DAY: _(
                "Occurrences on excluded days move to the same time on the next open day."
            ),
            ExclusionPolicy.WINDOW_END: _(
                "Occurrences at excluded times become one, at the end of the excluded time."
            ),
        }
        return texts[self._exclusion]

    @property
    def freeze_texts(self) -> list[str]:
        return [capfirst(_freeze_note(each)) for each in self._freezes]

    def _month_day(self, planned: UpcomingDay) -> MonthDay:
        return MonthDay(
            planned.day.day,
            is_today=planned.day == self._today,
            is_past=planned.is_past or planned.is_outside,
            is_excluded=planned.is_excluded,
            is_partly_excluded=bool(planned.excluded) and not planned.is_excluded,
            is_frozen=bool(planned.freezes),
            label=self._label(planned.occurrences) if planned.occurrences else "",
            notes=tuple(filter(None, self._notes(planned))),
            reasons=planned.reasons.names,
        )

    def _label(self, occurrences: DayOccurrences) -> str:
        if occurrences.number == 1:
            return self._time(occurrences.first, "H:i")
        return _("%(count)s×") % {"count": _format_count(occurrences.number)}  # noqa: RUF001

    def _notes(self, planned: UpcomingDay) -> Iterator[str]:
        if occurrences := planned.occurrences:
            text = ngettext(
                "one occurrence, at %(time)s",
                "%(count)s occurrences, the first at %(time)s",
                occurrences.number,
            )
            clock_format = "H:i:s" if occurrences.first.second else "H:i"
            yield text % {
                "count": _format_count(occurrences.number),
                "time": self._time(occurrences.first, clock_format),
            }
        if planned.is_outside:
            yield _("before the start or after the end of the job")
        yield exclusion_note(planned.excluded, planned.reasons)
        yield from map(_freeze_note, planned.freezes)

    def _time(self, at: datetime, clock_format: str) -> str:
        return date_format(at.astimezone(self._zone).replace(tzinfo=None), clock_format)


def _freeze_note(freeze: FrozenPeriod) -> str:
    if freeze.end is None:
        return _("frozen without a planned end: %(reason)s") % {"reason": freeze.reason}
    until = format_site_time(freeze.end)
    return _("frozen until %(until)s: %(reason)s") % {"until": until, "reason": freeze.reason}


def _format_count(number: int) -> str:
    return number_format(number, use_l10n=True, force_grouping=True)
