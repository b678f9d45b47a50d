"""Import from django-q2: the rows of ``Schedule``.

All schedule types except ``Minutes``, ``Hourly`` and ``Cron`` are defined by the time of the next
run, in the cluster's time zone. That time moves with each run, so it is used only where every next
run yields the same schedule.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings

from django_dcron.contrib.importers.croniter_text import from_croniter
from django_dcron.contrib.importers.schedule_fields import (
    interval_fields,
    next_due,
    one_off_schedule,
)
from django_dcron.contrib.importers.source_contents import (
    NEXT_DUE,
    EntryOmitted,
    EntryRefused,
    RowReader,
    SourceContents,
    SourceRuns,
    Warn,
    check_json,
    read_rows,
    rows_of,
    translate_entry,
    warn_about_workers,
)
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import END, MICROSECOND, Timetable
from django_dcron.utils.messages import TOO_LONG, TranslatableText

SOURCE = "django-q2"
MONTHS = {"M": 1, "BM": 2, "Q": 3, "Y": 12}
SAME_IN_ALL_MONTHS = 28
NEVER = "has no next run in django-q2"
OPTIONS_KEYWORD = "q_options"
"""The keyword argument that django-q2 uses itself."""
LONGEST_LITERAL = 100_000
MAX_REPEATS = 20_000
"""The maximum number of occurrences counted one by one to find the end of a schedule."""
UNREADABLE = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)
"""The exceptions of ``ast.literal_eval``."""


def read(now: datetime) -> SourceContents:
    rows = _rows().order_by("pk")
    return SourceContents(
        [
            translate_entry(
                _origin(key),
                name or function,
                partial(_job, row, now),
                suffix=str(key),
                key=str(key),
                disabled=next_run is None,
            )
            for key, name, function, next_run, row in read_rows(rows, "name", "func", "next_run")
        ],
        source=SOURCE,
    )


def runs_since(since: datetime) -> SourceRuns:
    """Return the start times of the stored tasks.

    A task's group is its schedule's name or number.
    """
    started = rows_of("django_q", "Task", "django-q2").filter(started__gte=since)
    times = defaultdict(list)
    for group, at in started.values_list("group", "started"):
        times[group].append(at)
    named = _rows().values_list("pk", "name")
    return SourceRuns(
        {_origin(pk): times.get(name or str(pk), []) for pk, name in named}, complete=True
    )


def _rows() -> Any:
    return rows_of("django_q", "Schedule", "django-q2")


def _origin(number: int) -> str:
    return f"schedule {number}"


def _job(get_row: RowReader, now: datetime, warn: Warn) -> dict[str, Any]:
    row = get_row()
    if row.repeats == 0:
        raise EntryOmitted("the schedule has no repeats left")
    if row.intended_date_kwarg:
        raise EntryRefused(
            f"intended_date_kwarg ({row.intended_date_kwarg!r}) is not supported; use "
            "django_dcron.current_run().scheduled_at in the function, and clear the field"
        )
    if row.hook:
        warn(f"hook {row.hook} has no equivalent; call it in the function, or use a chain of jobs")
    if row.cluster:
        warn_about_workers("cluster", row.cluster, warn)
    kwargs = _kwargs(row)
    options = kwargs.pop(OPTIONS_KEYWORD, {})
    if others := sorted(set(options) - {"timeout"}):
        warn(f"q_options without an equivalent are ignored: {', '.join(others)}")
    timeout = options.get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise EntryRefused(f"q_options: timeout {timeout!r:.40} is not a number of seconds")
    values = {
        "target": row.func,
        "args": check_json("args", _args(row)),
        "kwargs": check_json("kwargs", kwargs),
        "timeout": timedelta(seconds=timeout) if timeout else None,
        "enabled": row.next_run is not None,
        "pause_reason": "" if row.next_run is not None else NEVER,
        "starts_at": None,
        "ends_at": None,
        **_schedule_fields(row, now, warn),
    }
    if NEXT_DUE in values:
        values.pop("starts_at")
    return values


def _args(row: Any) -> list[Any]:
    if not row.args:
        return []
    value = _literal("args", row.args)
    return list(value) if isinstance(value, tuple) else [value]


def _kwargs(row: Any) -> dict[str, Any]:
    """Parse keyword arguments like django-q2: a dict, or the arguments of a call."""
    if not row.kwargs:
        return {}
    _check_length("kwargs", row.kwargs)
    try:
        value = ast.literal_eval(row.kwargs)
    except UNREADABLE:
        value = _keywords(row.kwargs)
    if not isinstance(value, dict) or not isinstance(value.get(OPTIONS_KEYWORD, {}), dict):
        raise EntryRefused(f"kwargs: {row.kwargs!r:.80} is not a dict")
    return dict(value)


def _keywords(text: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if (
            not isinstance(call, ast.Call)
            or call.args
            or not all(word.arg for word in call.keywords)
        ):
            raise ValueError("expected keywords with values")
        return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except UNREADABLE as error:
        raise EntryRefused(f"kwargs: {text!r:.80} can't be read ({error})") from None


def _literal(name: str, text: str) -> Any:
    _check_length(name, text)
    try:
        return ast.literal_eval(text)
    except UNREADABLE as error:
        raise EntryRefused(f"{name}: {text!r:.80} can't be read ({error})") from None


def _check_length(name: str, text: str) -> None:
    """Limit the length, because Python's parser needs hundreds of bytes of memory per character."""
    if len(text) > LONGEST_LITERAL:
        too_long = TranslatableText(TOO_LONG, count=len(text), most=LONGEST_LITERAL)
        raise EntryRefused(f"{name}: {too_long}")


def _schedule_fields(row: Any, now: datetime, warn: Warn) -> dict[str, Any]:
    if row.schedule_type == "O" or (row.repeats == 1 and row.next_run):
        return _one_off_values(row, now, warn)
    zone = _zone()
    fields: dict[str, Any]
    if row.schedule_type == "C":
        fields = {"schedule": from_croniter(row.cron or ""), "timezone": zone}
    elif row.schedule_type == "I":
        length = timedelta(minutes=row.minutes or 1)
        fields = {**interval_fields(length)}
        if row.next_run and row.repeats < 0:
            fields |= next_due(row.next_run - length, length, now)
    elif row.next_run is None:
        raise EntryRefused("the schedule has no next run, so its time of day is unknown")
    elif row.schedule_type == "BW":
        fields = {**interval_fields(timedelta(weeks=2)), "starts_at": row.next_run}
        warn(
            "biweekly becomes an interval of 336 hours, so its local time moves by an "
            "hour when the clocks change"
        )
    else:
        fields = _by_calendar(row, zone)
    return fields | (_end_after_repeats(row, fields) if row.repeats > 0 and row.next_run else {})


def _zone() -> str:
    options: dict[str, Any] = getattr(settings, "Q_CLUSTER", {})
    return str(options.get("time_zone") or settings.TIME_ZONE)


def _one_off_values(row: Any, now: datetime, warn: Warn) -> dict[str, Any]:
    if row.next_run is None:
        raise EntryOmitted("a one-off schedule without a run time")
    return dict(one_off_schedule(row.next_run, now, warn))


def _by_calendar(row: Any, zone: str) -> dict[str, Any]:
    if row.schedule_type == "H":  # every hour of elapsed time
        utc = row.next_run.astimezone(UTC)
        return {"schedule": _with_second(utc, f"{utc.minute} * * * *"), "timezone": "UTC"}
    at = row.next_run.astimezone(ZoneInfo(zone))
    time = f"{at.minute} {at.hour}"
    if row.schedule_type == "D":
        text = f"{time} * * *"
    elif row.schedule_type == "W":
        text = f"{time} * * {at.isoweekday() % 7}"
    elif row.schedule_type in MONTHS:
        text = f"{time} {_day_and_months(at, MONTHS[row.schedule_type])}"
    else:
        raise EntryRefused(f"unknown schedule type {row.schedule_type!r}")
    return {"schedule": _with_second(at, text), "timezone": zone}


def _day_and_months(at: datetime, step: int) -> str:
    if at.day > SAME_IN_ALL_MONTHS and (step < 12 or (at.month, at.day) == (2, 29)):
        raise EntryRefused(
            f"day {at.day} doesn't exist in every month, and django-q2 then moves the "
            "schedule to an earlier day; choose another schedule, such as L as the day for "
            "the last day of the month"
        )
    months = sorted((at.month - 1 + offset) % 12 + 1 for offset in range(0, 12, step))
    return f"{at.day} {'*' if step == 1 else ','.join(map(str, months))} *"


def _with_second(at: datetime, text: str) -> str:
    return f"{at.second} {text}" if at.second else text


def _end_after_repeats(row: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that end the schedule after ``repeats`` more runs."""
    schedule = parse_schedule(fields["schedule"], fields["timezone"])
    starts_at = row.next_run if schedule.interval else None
    timetable = Timetable(schedule, starts_at)
    last = timetable.first_after(row.next_run - MICROSECOND)
    if schedule.interval:
        return {
            "starts_at": starts_at,
            "ends_at": last and _last_run_time(last, schedule.interval, row.repeats - 1),
        }
    if row.repeats > MAX_REPEATS:
        raise EntryRefused(
            f"repeats is {row.repeats} (allowed: at most {MAX_REPEATS}, or -1 for no limit)"
        )
    for _more in range(row.repeats - 1):
        if last is None:
            break
        last = timetable.next_after(last)
    return {"starts_at": starts_at, "ends_at": last}


def _last_run_time(first: datetime, interval: timedelta, times: int) -> datetime | None:
    """Return the time of the last run, or None if it is beyond the supported range."""
    try:
        last = first + interval * times
    except OverflowError:
        return None
    return last if last < END else None
