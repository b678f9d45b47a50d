"""django-q2: the rows of ``Schedule``.

All but ``Minutes``, ``Hourly`` and ``Cron`` are given by one time, the next run's, in the zone of the cluster: daily and so on at that
time of day. What follows from the next run moves on with it, so it is only used where the same comes of each of them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings

from django_dcron.domain.schedule import parse_schedule
from django_dcron.domain.timetable import END, INSTANT, Timetable
from django_dcron.moving.croniter_text import from_croniter
from django_dcron.moving.found import (
    Left,
    Ran,
    Reading,
    Refused,
    Row,
    Warn,
    check_json,
    each_row,
    entry,
    interval_text,
    once_text,
    rows_of,
)

MONTHS = {"M": 1, "BM": 2, "Q": 3, "Y": 12}
SAME_IN_ALL_MONTHS = 28
NEVER = "has no next run in django-q2"
HIDDEN = "q_options"
"""The keyword that django-q2 takes for itself."""
LONGEST_LITERAL = 100_000
MOST_REPEATS = 20_000
"""How many occurrences are counted ahead, one by one, for the end of a schedule."""
UNREADABLE = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)
"""What ``ast.literal_eval`` raises."""


def read(now: datetime) -> Reading:
    rows = _rows().order_by("pk")
    return Reading(
        [
            entry(_origin(key), name or function, partial(_job, row, now), suffix=str(key))
            for key, name, function, row in each_row(rows, "name", "func")
        ]
    )


def ran(since: datetime) -> Ran:
    """From the tasks it keeps, which are in a group of their schedule's name or number."""
    started = rows_of("django_q", "Task", "django-q2").filter(started__gte=since)
    times = defaultdict(list)
    for group, at in started.values_list("group", "started"):
        times[group].append(at)
    named = _rows().values_list("pk", "name")
    return Ran({_origin(pk): times.get(name or str(pk), []) for pk, name in named}, complete=True)


def _rows() -> Any:
    return rows_of("django_q", "Schedule", "django-q2")


def _origin(number: int) -> str:
    return f"schedule {number}"


def _job(get_row: Row, now: datetime, warn: Warn) -> dict[str, Any]:
    row = get_row()
    if row.repeats == 0:
        raise Left("it has run as often as it should")
    if row.intended_date_kwarg:
        raise Refused(
            f"it gives its function the time that was meant, as {row.intended_date_kwarg!r}; let the function ask "
            "django_dcron.current_run().scheduled_at, and clear the field"
        )
    if row.hook:
        warn(f"its hook {row.hook} has no equivalent: let the function call it, or a chain of jobs")
    if row.cluster:
        warn(f"its cluster {row.cluster!r} has no equivalent: give the job the queue of its workers")
    kwargs = _kwargs(row)
    own = kwargs.pop(HIDDEN, {})
    if others := sorted(set(own) - {"timeout"}):
        warn(f"these of its q_options have no equivalent: {', '.join(others)}")
    timeout = own.get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise Refused(f"q_options: timeout: {timeout!r:.40} is no number of seconds")
    return {
        "target": row.func,
        "args": check_json("args", _args(row)),
        "kwargs": check_json("kwargs", kwargs),
        "timeout": timedelta(seconds=timeout) if timeout else None,
        "enabled": row.next_run is not None,
        "pause_reason": "" if row.next_run is not None else NEVER,
        "starts_at": None,
        "ends_at": None,
        **_when(row, now, warn),
    }


def _args(row: Any) -> list[Any]:
    if not row.args:
        return []
    value = _literal("args", row.args)
    return list(value) if isinstance(value, tuple) else [value]


def _kwargs(row: Any) -> dict[str, Any]:
    """As django-q2 reads them: a dict, or as in a call."""
    if not row.kwargs:
        return {}
    _check_length("kwargs", row.kwargs)
    try:
        value = ast.literal_eval(row.kwargs)
    except UNREADABLE:
        value = _keywords(row.kwargs)
    if not isinstance(value, dict) or not isinstance(value.get(HIDDEN, {}), dict):
        raise Refused(f"kwargs: {row.kwargs!r:.80} is no dict")
    return dict(value)


def _keywords(text: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not all(word.arg for word in call.keywords):
            raise ValueError("these are not keywords with values")
        return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except UNREADABLE as error:
        raise Refused(f"kwargs: {text!r:.80} cannot be read ({error})") from None


def _literal(name: str, text: str) -> Any:
    _check_length(name, text)
    try:
        return ast.literal_eval(text)
    except UNREADABLE as error:
        raise Refused(f"{name}: {text!r:.80} cannot be read ({error})") from None


def _check_length(name: str, text: str) -> None:
    """Python's parser takes hundreds of bytes of memory for each character."""
    if len(text) > LONGEST_LITERAL:
        raise Refused(f"{name}: {len(text)} characters are too many (allowed: {LONGEST_LITERAL})")


def _when(row: Any, now: datetime, warn: Warn) -> dict[str, Any]:
    if row.schedule_type == "O" or (row.repeats == 1 and row.next_run):
        return _once(row, now, warn)
    zone = _zone()
    if row.schedule_type == "C":
        found = {"schedule": from_croniter(row.cron or ""), "timezone": zone}
    elif row.schedule_type == "I":
        found = {"schedule": interval_text(timedelta(minutes=row.minutes or 1)), "timezone": "UTC"}
    elif row.next_run is None:
        raise Refused("it has no next run, from which its time of day could be told")
    elif row.schedule_type == "BW":
        found = {"schedule": interval_text(timedelta(weeks=2)), "timezone": "UTC", "starts_at": row.next_run}
        warn("every two weeks are 336 hours here: when the clocks change, it moves by an hour")
    else:
        found = _by_calendar(row, zone)
    return found | (_bounded(row, found) if row.repeats > 0 and row.next_run else {})


def _zone() -> str:
    own: dict[str, Any] = getattr(settings, "Q_CLUSTER", {})
    return str(own.get("time_zone") or settings.TIME_ZONE)


def _once(row: Any, now: datetime, warn: Warn) -> dict[str, Any]:
    if row.next_run is None:
        raise Left("it is to run once, and has no time for it")
    if row.next_run <= now:
        raise Refused(
            f"it was due once, at {row.next_run.isoformat()}, which has passed: run it by hand, or give it another time"
        )
    return {"schedule": once_text(row.next_run, warn), "timezone": "UTC"}


def _by_calendar(row: Any, zone: str) -> dict[str, Any]:
    if row.schedule_type == "H":  # elapsed hours
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
        raise Refused(f"its type {row.schedule_type!r} is not known")
    return {"schedule": _with_second(at, text), "timezone": zone}


def _day_and_months(at: datetime, step: int) -> str:
    if at.day > SAME_IN_ALL_MONTHS and (step < 12 or (at.month, at.day) == (2, 29)):
        raise Refused(
            f"it is for the {at.day}th, and django-q2 moves it forward for good where a month has none; give the job a schedule of its "
            "own: L in the day's place is the last day of a month"
        )
    months = sorted((at.month - 1 + ahead) % 12 + 1 for ahead in range(0, 12, step))
    return f"{at.day} {'*' if step == 1 else ','.join(map(str, months))} *"


def _with_second(at: datetime, text: str) -> str:
    return f"{at.second} {text}" if at.second else text


def _bounded(row: Any, found: dict[str, Any]) -> dict[str, Any]:
    """It runs ``repeats`` times more: up to the last of them."""
    schedule = parse_schedule(found["schedule"], found["timezone"])
    starts_at = row.next_run if schedule.interval else None
    timetable = Timetable(schedule, starts_at)
    last = timetable.first_after(row.next_run - INSTANT)
    if schedule.interval:
        return {"starts_at": starts_at, "ends_at": last and _after(last, schedule.interval, row.repeats - 1)}
    if row.repeats > MOST_REPEATS:
        raise Refused(
            f"it is to run {row.repeats} times more, and at most {MOST_REPEATS} are counted ahead; give the schedule fewer, or -1 for "
            "no end"
        )
    for _more in range(row.repeats - 1):
        if last is None:
            break
        last = timetable.next_after(last)
    return {"starts_at": starts_at, "ends_at": last}


def _after(first: datetime, interval: timedelta, times: int) -> datetime | None:
    """None: that is after all times that are scheduled."""
    try:
        last = first + interval * times
    except OverflowError:
        return None
    return last if last < END else None
