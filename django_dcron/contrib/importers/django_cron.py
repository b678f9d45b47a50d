"""Import from django-cron: the classes that the setting ``CRON_CLASSES`` names.

``manage.py runcrons``, which a crontab calls every few minutes, runs each class that is due. A
class may have an interval, times of day or both, and days on which it may run.

A class becomes one job for its interval, and one for each line of cron text that its times need.
One job of several lines would run the times differently: its attempts would be the same for each
time, and a handover would continue after the last time that has run, also if an earlier one hasn't.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from django.apps import apps
from django.conf import settings
from django.utils.module_loading import import_string

from django_dcron import targets
from django_dcron.contrib.importers.cron_text import CronPart, CronParts, cron_text
from django_dcron.contrib.importers.retries import constant_wait_fields, max_attempts_of
from django_dcron.contrib.importers.schedule_fields import interval_fields, next_due
from django_dcron.contrib.importers.source_contents import (
    LAST_RUN,
    EntryOmitted,
    EntryRefused,
    SourceContents,
    SourceEntry,
    SourceProblem,
    SourceRuns,
    Warn,
    rows_of,
    translate_entry,
)
from django_dcron.db.errors import in_one_line
from django_dcron.exceptions import UnknownTarget
from django_dcron.utils.docs_links import ALERTS_PAGE, DOCS

SOURCE = "django-cron"
APP = "django_cron"
OWN_CLASSES = "django_cron."
KNOWN_OPTIONS = frozenset(
    {
        "run_every_mins",
        "run_at_times",
        "retry_after_failure_mins",
        "run_on_days",
        "run_weekly_on_days",
        "run_monthly_on_days",
        "run_tolerance_seconds",
    }
)
"""The options of a schedule. A fork renames ``run_on_days`` to ``run_weekly_on_days``. Forks also
have options that aren't supported.
"""
HOUR_MINUTES, DAY_MINUTES = 60, 24 * 60
Time = tuple[int, int]
"""Hour and minute."""


@dataclass(frozen=True, slots=True)
class ClassPart:
    """The part of a class that becomes one job: its interval, or some of its times."""

    path: str
    cron_class: Any
    times: tuple[Time, ...] = ()
    """In ascending order. Empty: the interval."""
    label: str = ""
    """Distinguishes the part from the others. Empty for the first part."""

    @property
    def code(self) -> str:
        return str(self.cron_class.code)

    @property
    def key(self) -> str:
        return f"{self.code}{self.label}"

    @property
    def origin(self) -> str:
        return f"class {self.path!r}{self.label}"


def read(now: datetime) -> SourceContents:
    """Read the setting. Raises ``SourceProblem``."""
    contents = SourceContents(source=SOURCE)
    for path in _paths():
        try:
            parts = _parts(path)
        except EntryOmitted as reason:
            contents.entries.append(SourceEntry(f"class {path!r}", path, omitted=str(reason)))
            continue
        except EntryRefused as reason:
            contents.entries.append(SourceEntry(f"class {path!r}", path, refused=str(reason)))
            continue
        contents.entries += [
            translate_entry(part.origin, part.key, partial(_job, part, now), key=part.key)
            for part in parts
        ]
    return contents


def runs_since(since: datetime) -> SourceRuns:
    """Return the logged runs. Raises ``SourceProblem`` if the logs can't be read."""
    times: dict[str, list[datetime]] = {}
    rows = _logs().filter(start_time__gte=since).order_by("start_time")
    for path in _paths():
        try:
            parts = _parts(path)
        except (EntryOmitted, EntryRefused):
            continue
        for part in parts:
            times[part.origin] = list(_first_tries(_logs_of(rows, part), part))
    return SourceRuns(times, complete=True)


def _paths() -> list[str]:
    setting = getattr(settings, "CRON_CLASSES", None)
    if not isinstance(setting, list | tuple) or not setting:
        raise SourceProblem("The setting CRON_CLASSES is missing or empty.")
    return [str(path) for path in setting]


def _parts(path: str) -> list[ClassPart]:
    """Return the parts of a class. Raises ``EntryOmitted`` or ``EntryRefused``."""
    if path.startswith(OWN_CLASSES):
        raise EntryOmitted(f"django-dcron reports failures without it; see {DOCS}{ALERTS_PAGE}")
    try:
        cron_class = import_string(path)
    except Exception as error:  # the project's code
        raise EntryRefused(f"the class can't be imported: {in_one_line(error)}") from None
    schedule = getattr(cron_class, "schedule", None)
    if schedule is None or not getattr(cron_class, "code", ""):
        raise EntryRefused(
            "the class needs the attributes code and schedule; django-cron can't run it"
        )
    if not callable(getattr(cron_class, "do", None)):
        raise EntryRefused("the class needs the method do(); django-cron can't run it")
    if unknown := sorted(
        name for name, value in vars(schedule).items() if value and name not in KNOWN_OPTIONS
    ):
        raise EntryRefused(f"the schedule has options that can't be imported: {', '.join(unknown)}")
    parts = [ClassPart(path, cron_class)] if schedule.run_every_mins is not None else []
    for group in _groups(_parse_times(schedule.run_at_times or ())):
        label = f" at {group[0][0]:02}:{group[0][1]:02}" if parts else ""
        parts.append(ClassPart(path, cron_class, group, label))
    if not parts:
        raise EntryOmitted(
            "django-cron never runs it: it has neither run_every_mins nor run_at_times"
        )
    return parts


def _parse_times(texts: Iterable[Any]) -> tuple[Time, ...]:
    times = set()
    for text in texts:
        try:
            parsed = time.strptime(text, "%H:%M")
        except (TypeError, ValueError):
            raise EntryRefused(
                f"run_at_times: {text!r:.40} isn't a time; use HH:MM, such as 02:30"
            ) from None
        times.add((parsed.tm_hour, parsed.tm_min))
    return tuple(sorted(times))


def _groups(times: tuple[Time, ...]) -> list[tuple[Time, ...]]:
    """Group times so that each group has the same minutes in each of its hours."""
    hours_of = defaultdict(set)
    for hour, minute in times:
        hours_of[minute].add(hour)
    minutes_of = defaultdict(set)
    for minute, hours in hours_of.items():
        minutes_of[frozenset(hours)].add(minute)
    return sorted(
        tuple(sorted((hour, minute) for hour in hours for minute in minutes))
        for hours, minutes in minutes_of.items()
    )


def _job(part: ClassPart, now: datetime, warn: Warn) -> dict[str, Any]:
    cron_class, schedule = part.cron_class, part.cron_class.schedule
    _warn_about_class(part, warn)
    parallel = getattr(cron_class, "ALLOW_PARALLEL_RUNS", False)
    return {
        "target": part.path,
        "args": [],
        "kwargs": {},
        "overlap_policy": "allow" if parallel else "skip",
        "enabled": True,
        "pause_reason": "",
        **_retries(part, schedule.retry_after_failure_mins, warn),
        **(_at_times(part) if part.times else _every(part, now, warn)),
    }


def _warn_about_class(part: ClassPart, warn: Warn) -> None:
    name = part.path.rpartition(".")[2]
    try:
        targets.get(part.path)
    except UnknownTarget:
        warn(
            "a job runs a function, not a class; declare a task that calls the class: "
            f"@shared_task(name={part.path!r}), with the function: return {name}().do()"
        )
    if "get_prev_success_cron" in getattr(
        getattr(part.cron_class.do, "__code__", None), "co_names", ()
    ):
        warn(
            "get_prev_success_cron() returns nothing; use current_run().previous_scheduled_at, "
            "which is the start of the run's period"
        )
    if part.label:
        warn(
            f"the times of {part.code} become several jobs, whose runs may overlap; if they must "
            "not, give these jobs a limit with max_running=1"
        )


def _retries(part: ClassPart, minutes: Any, warn: Warn) -> dict[str, Any]:
    """Translate the retries. django-cron retries until the class succeeds or the day ends."""
    if not minutes:
        warn(
            "django-cron runs a failed class again at the next call of runcrons; for retries of "
            "the job, set its max_attempts"
        )
        return {}
    remaining = None
    if part.times:
        hour, minute = part.times[-1]
        remaining = int((DAY_MINUTES - hour * HOUR_MINUTES - minute) // minutes)
    attempts = max_attempts_of(remaining, "the number of retries", warn)
    wait = constant_wait_fields(timedelta(minutes=minutes))
    return {"max_attempts": attempts, **wait, "retry_on": [], "never_retry_on": []}


def _every(part: ClassPart, now: datetime, warn: Warn) -> dict[str, Any]:
    minutes = part.cron_class.schedule.run_every_mins
    if not minutes:
        raise EntryRefused(
            "run_every_mins 0 runs the class at each call of runcrons; set it to the number of "
            "minutes between two calls"
        )
    length = timedelta(minutes=minutes)
    fields = interval_fields(length)
    days, weekdays = _days(part.cron_class.schedule)
    if days is None and weekdays is None:
        due = next_due(_last_success(part), length, now)
        return {**fields, **(due or {"starts_at": None})}
    if HOUR_MINUTES % minutes == 0:
        times = tuple(
            (hour, minute) for hour in range(24) for minute in range(0, HOUR_MINUTES, int(minutes))
        )
    elif minutes % HOUR_MINUTES == 0 and DAY_MINUTES % minutes == 0:
        times = tuple((hour, 0) for hour in range(0, 24, int(minutes // HOUR_MINUTES)))
    else:
        raise EntryRefused(
            f"run_every_mins {minutes} can't be combined with days, because no cron schedule has "
            "these times; use run_at_times, or an interval such as 15, 60 or 120"
        )
    warn("the interval counts from midnight of each day, when django-cron first runs the class")
    return {**_cron(times, days, weekdays), "starts_at": None}


def _at_times(part: ClassPart) -> dict[str, Any]:
    days, weekdays = _days(part.cron_class.schedule)
    return {
        **_cron(part.times, days, weekdays),
        "starts_at": None,
        LAST_RUN: _last_success(part),
    }


def _cron(
    times: tuple[Time, ...], days: set[int] | None, weekdays: set[int] | None
) -> dict[str, str]:
    parts = CronParts(
        minute=CronPart({minute for _hour, minute in times}),
        hour=CronPart({hour for hour, _minute in times}),
        day_of_month=CronPart(range(1, 32) if days is None else days),
        month=CronPart(range(1, 13)),
        day_of_week=CronPart(range(7) if weekdays is None else weekdays),
    )
    return {"schedule": cron_text(parts), "timezone": settings.TIME_ZONE}


def _days(schedule: Any) -> tuple[set[int] | None, set[int] | None]:
    """Return the days of month and the weekdays (0 is Sunday), or None for all."""
    options = vars(schedule)
    weekly = "run_on_days" if options.get("run_on_days") is not None else "run_weekly_on_days"
    days = _numbers("run_monthly_on_days", options.get("run_monthly_on_days"), 1, 31)
    weekdays = _numbers(weekly, options.get(weekly), 0, 6)
    return days, None if weekdays is None else {(number + 1) % 7 for number in weekdays}


def _numbers(option: str, value: Any, low: int, high: int) -> set[int] | None:
    if value is None:
        return None
    if not isinstance(value, Iterable):
        raise EntryRefused(f"{option}: {value!r:.40} isn't a list of days; django-cron fails, too")
    numbers = {number for number in value if number in range(low, high + 1)}
    if not numbers:
        raise EntryOmitted(f"django-cron never runs it: {option} has no day from {low} to {high}")
    return numbers


# --- The log --------------------------------------------------------------------------------------


def _logs() -> Any:
    return rows_of(APP, "CronJobLog", SOURCE)


def _logs_of(rows: Any, part: ClassPart) -> Any:
    """Return the log entries of a part. Those of an interval have no ``ran_at_time``."""
    rows = rows.filter(code=part.code)
    if not part.times:
        return rows.filter(ran_at_time__isnull=True)
    return rows.filter(ran_at_time__in=[f"{hour:02}:{minute:02}" for hour, minute in part.times])


def _last_success(part: ClassPart) -> datetime | None:
    if not apps.is_installed(APP):
        return None
    rows = _logs_of(_logs().filter(is_success=True), part).order_by("-start_time")
    last: datetime | None = rows.values_list("start_time", flat=True).first()
    return last


def _first_tries(rows: Any, part: ClassPart) -> Iterator[datetime]:
    """Yield the start times, without retries: later runs of the same time on the same day."""
    seen = set()
    for at, time_of_day in rows.values_list("start_time", "ran_at_time"):
        first_try = (at.astimezone(ZoneInfo(settings.TIME_ZONE)).date(), time_of_day)
        if not part.times or first_try not in seen:
            yield at
        seen.add(first_try)
