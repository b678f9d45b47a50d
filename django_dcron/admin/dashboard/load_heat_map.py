"""The dashboard's heat map: the occurrences of each hour, with advice about crowded minutes.

Invariants:

- It shows seven days, beginning with today. A cell represents one hour, which may be over.
- The opacity of a cell shows its number of occurrences on a linear scale. The legend names the
  numbers at both ends of the scale.
- The scale ends at the greatest number. It starts at the least number above zero, or at half of the
  greatest if that is lower. Hours with similar numbers therefore look similar.
- Horizontal positions are percentages of the image's width. Vertical positions are pixels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from django.contrib import admin
from django.utils.dateformat import format as format_date
from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone, get_current_timezone_name, localtime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.admin.dashboard.viewer import Viewer
from django_dcron.admin.display import list_url
from django_dcron.diagnosis.job_filters.selection import JobSelection
from django_dcron.diagnosis.load import DAYS, Load, planned_load
from django_dcron.models import Job
from django_dcron.schedules.crowding import CrowdedMinute

HOURS = 24
COLUMN = 100 / HOURS
"""The width of an hour's column, in percent."""
GAP = 0.2
"""The gap between two columns, in percent."""
ROW, AXIS = 26, 22
"""The heights of a day's row and of the row of hours above it, in pixels."""
MIN_OPACITY, SINGLE_VALUE_OPACITY = 0.2, 0.6
SWATCHES = 5
MAX_LINKED_SCHEDULES = 3
ZONE_PREFIXES = ("TZ=", "CRON_TZ=")


@dataclass(frozen=True, slots=True)
class HourCell:
    x: float
    y: int
    number: int
    opacity: float
    """Zero if the hour has no occurrences."""
    title: str
    is_now: bool


@dataclass(frozen=True, slots=True)
class Day:
    label: str
    y: int
    cells: tuple[HourCell | None, ...]
    """The cells by hour. A cell is None if the clock skips that hour."""


@dataclass(frozen=True, slots=True)
class Advice:
    text: str
    remedy: SafeString
    links: tuple[tuple[str, str], ...]
    """URL and text of a link to the jobs of each of the most common schedules.

    The linked list includes jobs that already use jitter, because no filter excludes them.
    """


@dataclass(frozen=True, slots=True)
class LoadHeatMap:
    days: tuple[Day, ...]
    scale: tuple[tuple[float, str], ...]
    """The horizontal position (percent) and the label of each hour."""
    busiest: str
    least: str
    greatest: str
    swatches: tuple[float, ...]
    advice: tuple[Advice, ...]
    jobs: int
    zone: str
    cell_width = round(COLUMN - GAP, 2)
    cell_height = ROW - 2
    axis = AXIS

    @property
    def height(self) -> int:
        return AXIS + ROW * len(self.days)


def context(viewer: Viewer) -> dict[str, Any]:
    if not viewer.may_view(Job):
        return {"load": None}
    zone, chosen = get_current_timezone(), viewer.chosen
    now = localtime(viewer.now, zone)
    load = planned_load(now.date(), zone, chosen, viewer.scope)
    advice = tuple(_advice(crowd, load, viewer.site, chosen) for crowd in load.crowded_minutes)
    return {"load": _draw_heat_map(load, now, advice)}


def _draw_heat_map(load: Load, now: datetime, advice: tuple[Advice, ...]) -> LoadHeatMap:
    planned = [number for number in load.hours if number] or [0]
    least, greatest = min(planned), max(planned)
    if least < greatest:
        least = min(least, greatest // 2)
    return LoadHeatMap(
        days=tuple(_days(load, now, least, greatest)),
        scale=tuple((round(COLUMN * hour, 2), f"{hour:02}") for hour in range(HOURS)),
        busiest=_busiest(load),
        least=_number(least),
        greatest=_number(greatest),
        swatches=_legend_opacities() if least < greatest else (SINGLE_VALUE_OPACITY,),
        advice=advice,
        jobs=load.jobs,
        zone=get_current_timezone_name(),
    )


def _days(load: Load, now: datetime, least: int, greatest: int) -> Iterator[Day]:
    """Yield the days. An hour that occurs twice in a day is one cell."""
    numbers: Counter[tuple[date, int]] = Counter()
    for index, number in enumerate(load.hours):
        start = load.start_of(index)
        numbers[start.date(), start.hour] += number
    first = load.start_of(0).date()
    for row in range(DAYS):
        day, y = first + timedelta(days=row), AXIS + ROW * row
        cells: list[HourCell | None] = []
        for hour in range(HOURS):
            if (day, hour) not in numbers:
                cells.append(None)
                continue
            number = numbers[day, hour]
            title = ngettext(
                "%(when)s: %(number)s occurrence", "%(when)s: %(number)s occurrences", number
            ) % {"when": f"{format_date(day, 'D')} {hour:02}:00", "number": _number(number)}
            opacity = _opacity(number, least, greatest)
            is_now = (day, hour) == (now.date(), now.hour)
            cells.append(HourCell(round(COLUMN * hour, 2), y, number, opacity, title, is_now))
        yield Day(format_date(day, "D j M"), y, tuple(cells))


def _opacity(number: int, least: int, greatest: int) -> float:
    if not number:
        return 0
    if least == greatest:
        return SINGLE_VALUE_OPACITY
    return round(
        MIN_OPACITY + (1 - MIN_OPACITY) * (min(number, greatest) - least) / (greatest - least), 2
    )


def _legend_opacities() -> tuple[float, ...]:
    return tuple(_opacity(1 + index, 1, SWATCHES) for index in range(SWATCHES))


def _busiest(load: Load) -> str:
    greatest, total = max(load.hours), sum(load.hours)
    values = {
        "number": _number(greatest),
        "total": _number(total),
        "average": _number(round(total / len(load.hours))),
    }
    if not total:
        return _("No occurrences in the 7 days from today.")
    if min(load.hours) == greatest:
        return _("%(total)s occurrences, %(number)s per hour.") % values
    values["when"] = _weekday_and_time(load.start_of(load.hours.index(greatest)))
    return (
        _(
            "%(total)s occurrences. Busiest hour: %(when)s (%(number)s). Average per hour: "
            "%(average)s."
        )
        % values
    )


def _advice(
    crowd: CrowdedMinute, load: Load, site: admin.AdminSite, chosen: JobSelection
) -> Advice:
    remedy = format_html(
        _("Use {} in the minute field. Then at most {} of these jobs start in any minute."),
        format_html_join(SafeString(", "), "<code>{}</code>", ((form,) for form in crowd.forms)),
        _number(crowd.at_most),
    )
    links = []
    for text, zone, number in crowd.texts[:MAX_LINKED_SCHEDULES]:
        words = ngettext("%(number)s job: %(schedule)s", "%(number)s jobs: %(schedule)s", number)
        names_zone = text.startswith(ZONE_PREFIXES)  # the job's zone then has no effect
        schedule = text if names_zone or zone == get_current_timezone_name() else f"{text} ({zone})"
        lookups = chosen.lookups() | {"state": "enabled", "schedule__exact": text}
        if not names_zone:
            lookups["timezone__exact"] = zone
        url = list_url(Job, site, **lookups)
        links.append((url, words % {"number": _number(number), "schedule": schedule}))
    return Advice(_crowd_text(crowd, load), remedy, tuple(links))


def _jobs_text(crowd: CrowdedMinute) -> str:
    if crowd.fewest == crowd.jobs:
        return _number(crowd.jobs)
    numbers = {"fewest": _number(crowd.fewest), "most": _number(crowd.jobs)}
    return _("%(fewest)s to %(most)s") % numbers


def _crowd_text(crowd: CrowdedMinute, load: Load) -> str:
    starts = [load.start_of(hour) + timedelta(minutes=crowd.minute) for hour in sorted(crowd.hours)]
    times = {(start.hour, start.minute) for start in starts}
    days = {start.date() for start in starts}
    fullest = load.start_of(crowd.hours[0]) + timedelta(minutes=crowd.minute)
    values = {
        "jobs": _jobs_text(crowd),
        "minute": fullest.minute,
        "hours": len(starts),
        "time": f"{fullest:%H:%M}",
        "fullest": _weekday_and_time(fullest),
        "days": ", ".join(format_date(start, "l") for start in starts),
    }
    if len(starts) == len(load.hours):
        return _("%(jobs)s jobs start at minute %(minute)d of every hour.") % values
    if len(times) == 1 and len(days) == DAYS:
        return _("%(jobs)s jobs start at %(time)s every day.") % values
    if len(times) == 1:
        return _("%(jobs)s jobs start at %(time)s on %(days)s.") % values
    if crowd.fewest == crowd.jobs:
        return (
            _(
                "%(jobs)s jobs start at minute %(minute)d of %(hours)d hours in the 7 days from "
                "today."
            )
            % values
        )
    return (
        _(
            "%(jobs)s jobs start at minute %(minute)d of %(hours)d hours in the 7 days from today. "
            "Peak: %(fullest)s."
        )
        % values
    )


def _weekday_and_time(instant: datetime) -> str:
    return f"{format_date(instant, 'l')} {instant:%H:%M}"


def _number(value: int) -> str:
    return number_format(value, force_grouping=True)
