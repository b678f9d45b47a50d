"""Import from APScheduler's Django store (django-apscheduler), whose rows contain pickles.

Loading a pickle can run arbitrary code, so ``untrusted`` reads each pickle as data in a child
process. The pickle names the job's function as text. It is matched against the existing targets.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django_dcron.contrib.importers.cron_text import (
    DAYS_NOT_EXPRESSIBLE,
    CronPart,
    CronParts,
    cron_text,
)
from django_dcron.contrib.importers.missing_targets import is_target, registration_lines
from django_dcron.contrib.importers.schedule_fields import (
    interval_fields,
    one_off_schedule,
    zone_name,
)
from django_dcron.contrib.importers.source_contents import (
    EntryOmitted,
    EntryRefused,
    RowReader,
    SourceContents,
    SourceProblem,
    SourceRuns,
    Warn,
    check_json,
    read_rows,
    rows_of,
    translate_entry,
    warn_about_workers,
)
from django_dcron.models.job_fields import MAX_DURATION
from django_dcron.schedules.fields import (
    DAY_OF_MONTH,
    DAY_OF_WEEK,
    HOUR,
    MINUTE,
    MONTH,
    SECOND,
    YEAR,
    FieldKind,
)
from django_dcron.utils.counts import number_of
from django_dcron.utils.docs_links import with_link
from django_dcron.utils.untrusted import Reader, Record, Unreadable, child

SOURCE = "django-apscheduler"
WAS_PAUSED = "was paused in APScheduler"
HINTS = {
    "AndTrigger": "use one schedule that covers all its triggers",
    "OrTrigger": (
        "only cron triggers with the same time zone, start and end can be combined; create one job "
        "for each of its triggers"
    ),
}
FIELDS: dict[str, FieldKind] = {
    "second": SECOND,
    "minute": MINUTE,
    "hour": HOUR,
    "day": DAY_OF_MONTH,
    "month": MONTH,
    "day_of_week": DAY_OF_WEEK,
    "year": YEAR,
}
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
RENAMED = {"day": "day_of_month"}
LAST_WEEK = 53
WEEKS_NOT_EXPRESSIBLE = (
    "schedules can't select weeks of the year; for every second week, use @rrule with "
    "FREQ=WEEKLY;INTERVAL=2"
)
DEFAULT_MISFIRE_GRACE = 1
"""Seconds."""
CLEANUP = "delete_old_job_executions"
"""The function in the README of django-apscheduler that projects copy."""
REMEDIES = {
    child.OBJECT: (
        ". Arguments can only be JSON values, and triggers only those of APScheduler: let the "
        "job's function create other objects, or choose another trigger"
    ),
    child.BROKEN: ". If the row is damaged, add the job again in APScheduler",
}
"""What to do about a pickle that can't be read, by the status of ``Unreadable``."""
OTHER_STORES = (
    "Of APScheduler's stores, only the Django store (django-apscheduler) can be imported. Declare "
    "the jobs of other stores with @cron."
)
STORE_SECTION = "how-to/migrate-sources.md#apschedulers-django-store"
REGISTER_SECTION = "how-to/migrate-sources.md#register-apschedulers-functions"


def read(now: datetime) -> SourceContents:
    try:
        rows = rows_of("django_apscheduler", "DjangoJob", "django-apscheduler").order_by("pk")
    except SourceProblem as error:
        raise SourceProblem(with_link(f"{error} {OTHER_STORES}", STORE_SECTION)) from None
    modules: dict[str, str] = {}
    with Reader() as reader:
        contents = SourceContents(
            [
                translate_entry(
                    _origin(key),
                    key,
                    partial(_job, row, now, reader, modules),
                    key=key,
                    disabled=next_run is None,
                )
                for key, next_run, row in read_rows(rows, "next_run_time")
            ],
            source=SOURCE,
        )
    if unknown := [name for name in _function_names(contents) if not is_target(name)]:
        note = (
            f"{number_of(len(unknown), 'function')} of APScheduler can't be run by a job yet. "
            "Register each in cron.py of an installed app, as printed below. shared_task works "
            "without a Celery app."
        )
        contents.notes.append(with_link(note, REGISTER_SECTION))
        contents.registrations = registration_lines({name: modules[name] for name in unknown})
    return contents


def _function_names(contents: SourceContents) -> list[str]:
    return sorted({entry.values["target"] for entry in contents.entries if entry.values})


def runs_since(since: datetime) -> SourceRuns:
    """Return the scheduled times of the stored executions."""
    executions = rows_of("django_apscheduler", "DjangoJobExecution", "django-apscheduler")
    times = defaultdict(list)
    for job, at in executions.filter(run_time__gte=since).values_list("job_id", "run_time"):
        times[_origin(job)].append(at)
    return SourceRuns(times, complete=True)


def _origin(key: str) -> str:
    return f"job {key!r}"


def state_of(pickled: bytes, reader: Reader) -> dict[str, Any]:
    """Return the state of a job. Raises ``EntryRefused``."""
    try:
        state = reader.read("pickle", pickled)
    except Unreadable as error:
        remedy = REMEDIES.get(error.status, "")
        raise EntryRefused(f"the job's state can't be read: {error}".rstrip(".") + remedy) from None
    if not isinstance(state, dict) or not {"func", "trigger"} <= state.keys():
        raise EntryRefused("the stored state is not an APScheduler job")
    return state


def _job(
    row: RowReader, now: datetime, reader: Reader, modules: dict[str, str], warn: Warn
) -> dict[str, Any]:
    state = state_of(bytes(row().job_state), reader)
    if str(state["func"]).endswith(f":{CLEANUP}"):
        raise EntryOmitted("it only deletes old executions in APScheduler's own table")
    paused = state.get("next_run_time") is None
    executor = state.get("executor", "default")
    if executor != "default":
        warn_about_workers("executor", executor, warn)
    instances = state.get("max_instances") or 1
    if instances > 1:
        warn(
            f"max_instances={instances} has no equivalent; overlap is set to allow, so any "
            "number of runs may execute at once"
        )
    reference = str(state["func"])
    target = reference.replace(":", ".")
    modules[target] = reference.rpartition(":")[0]
    trigger = state["trigger"]
    jitter = getattr(trigger, "jitter", None)
    return {
        "description": _description(state),
        "target": target,
        "args": check_json("args", list(state.get("args") or ())),
        "kwargs": check_json("kwargs", state.get("kwargs") or {}),
        "jitter": timedelta(seconds=jitter or 0),
        "start_deadline": _start_deadline(state, warn),
        "overlap_policy": "allow" if instances > 1 else "skip",
        "enabled": not paused,
        "pause_reason": WAS_PAUSED if paused else "",
        "starts_at": getattr(trigger, "start_date", None),
        "ends_at": getattr(trigger, "end_date", None),
        **_schedule_fields(trigger, now, warn),
    }


def _start_deadline(state: dict[str, Any], warn: Warn) -> timedelta | None:
    """Return how late a run may start.

    APScheduler's default of a second becomes no deadline. A time that is too long for a job means
    the same there as none.
    """
    grace = state.get("misfire_grace_time", DEFAULT_MISFIRE_GRACE)
    if grace == DEFAULT_MISFIRE_GRACE:
        return None  # coalesce has no effect: an interval is at least as long
    limited = grace is not None and grace <= MAX_DURATION.limit_value.total_seconds()
    if not state.get("coalesce", True):
        within = " within the start deadline" if limited else ""
        warn(
            "coalesce=False has no equivalent; of several late occurrences, only the latest one "
            f"runs. To run each of them{within}, set the job's misfire_policy to run_all"
        )
    return timedelta(seconds=grace) if limited else None


def _description(state: dict[str, Any]) -> str:
    """Return the name, or "" if it is the id or APScheduler's default."""
    name = state.get("name")
    default = str(state["func"]).rpartition(":")[2]
    return "" if name in (None, state.get("id"), default) else str(name)


def _schedule_fields(trigger: Any, now: datetime, warn: Warn) -> dict[str, Any]:
    kind = _kind(trigger)
    if kind == "DateTrigger":
        return dict(one_off_schedule(trigger.run_date, now, warn))
    if kind == "IntervalTrigger":
        return interval_fields(trigger.interval)
    if kind == "CronTrigger":
        _warn_about_weekday_numbers(trigger, warn)
        return {"schedule": _cron(trigger), "timezone": zone_name(trigger.timezone)}
    if kind == "OrTrigger" and (parts := _cron_triggers_of(trigger)):
        return _fields_of_lines(parts, warn)
    raise EntryRefused(
        f"the trigger {kind} has no equivalent; {HINTS.get(kind, 'choose another schedule')}"
    )


def _cron_triggers_of(trigger: Any) -> list[Record]:
    """Return the triggers of an ``OrTrigger`` if the lines of one schedule can express them.

    Otherwise, return an empty list.
    """
    parts = [
        Record(str(reference).rpartition(":")[2], state) for reference, state in trigger.triggers
    ]
    if any(part.kind != "CronTrigger" or part.jitter for part in parts):
        return []
    bounds = {(zone_name(part.timezone), part.start_date, part.end_date) for part in parts}
    return parts if len(bounds) == 1 else []


def _fields_of_lines(parts: list[Record], warn: Warn) -> dict[str, Any]:
    """Return the fields of a schedule with one line for each cron trigger."""
    for part in parts:
        _warn_about_weekday_numbers(part, warn)
    return {
        "schedule": "\n".join(dict.fromkeys(map(_cron, parts))),
        "timezone": zone_name(parts[0].timezone),
        "starts_at": parts[0].start_date,
        "ends_at": parts[0].end_date,
    }


def _warn_about_weekday_numbers(trigger: Any, warn: Warn) -> None:
    """Warn that APScheduler counts weekdays from Monday, because crontabs count from Sunday."""
    (field,) = (field for field in trigger.fields if field.name == "day_of_week")
    numeric = [each for each in field.expressions if _kind(each) != "WeekdayRangeExpression"]
    days = set().union(*(_values(DAY_OF_WEEK, each) for each in numeric))
    if numeric and len(_part(DAY_OF_WEEK, field).values) < len(WEEKDAYS):
        text = ",".join(map(_range_text, numeric))
        names = ", ".join(WEEKDAYS[number] for number in range(7) if (number + 1) % 7 in days)
        warn(
            f"APScheduler counts weekdays from Monday = 0, so {text} is {names}; check whether "
            "that was meant"
        )


def _range_text(expression: Any) -> str:
    """Return a range of numbers as APScheduler writes it, such as ``1-5`` or ``*/2``."""
    first, last = getattr(expression, "first", None), getattr(expression, "last", None)
    text = "*" if first is None else str(first)
    if last not in (None, first):
        text += f"-{last}"
    return f"{text}/{expression.step}" if expression.step else text


def _cron(trigger: Any) -> str:
    """Return cron text for a trigger. In APScheduler, all fields must match."""
    parts_by_name = {}
    for field in trigger.fields:
        kind = FIELDS.get(field.name)
        if kind:
            parts_by_name[RENAMED.get(field.name, field.name)] = _part(kind, field)
        elif not any(map(_is_every_week, field.expressions)):
            raise EntryRefused(WEEKS_NOT_EXPRESSIBLE)
    parts = CronParts(**parts_by_name)
    days = parts.day_of_month
    positions = tuple(special for special in days.specials if special != "L")
    if not positions:
        return cron_text(parts)
    if len(parts.day_of_week.values) < 7:
        raise EntryRefused(DAYS_NOT_EXPRESSIBLE)
    # APScheduler writes weekday positions as days of the month. Here, they belong to the weekday
    # field. With other days of the month, either field may match.
    rest = CronPart(days.values, "", tuple(special for special in days.specials if special == "L"))
    only_positions = not rest.values and not rest.specials
    month_days = CronPart(range(1, 32)) if only_positions else rest
    return cron_text(
        replace(parts, day_of_month=month_days, day_of_week=CronPart((), "", positions)),
        both_days=only_positions,
    )


def _is_every_week(expression: Any) -> bool:
    """Return whether an expression, such as ``*``, ``*/1`` or ``1-53``, matches all weeks."""
    first, last = getattr(expression, "first", None) or 1, getattr(expression, "last", None)
    return first == 1 and (expression.step or 1) == 1 and (last is None or last >= LAST_WEEK)


def _part(kind: FieldKind, field: Any) -> CronPart:
    values: set[int] = set()
    specials: list[str] = []
    for expression in field.expressions:
        name = _kind(expression)
        if name == "LastDayOfMonthExpression":
            specials.append("L")
        elif name == "WeekdayPositionExpression":
            day, nth = (expression.weekday + 1) % 7, expression.option_num
            specials.append(f"{day}L" if nth == 5 else f"{day}#{nth + 1}")
        else:
            values |= _values(kind, expression)
    return CronPart(values, "", tuple(specials))


def _values(kind: FieldKind, expression: Any) -> set[int]:
    """Return the values of ``*``, ``a`` or ``a-b``, with or without a step.

    APScheduler's weekdays start on Monday.
    """
    first = getattr(expression, "first", kind.low)
    last = getattr(expression, "last", None)
    step = expression.step or 1
    if (
        not all(isinstance(number, int) for number in (first, last or 0, step))
        or first < 0
        or step < 1
    ):
        raise EntryRefused(
            f"field {kind.name} has the invalid range {first!r:.20} to {last!r:.20} with "
            f"step {step!r:.20}"
        )
    values = range(first, (kind.top if last is None else min(last, kind.top)) + 1, step)
    return {(value + 1) % 7 for value in values} if kind is DAY_OF_WEEK else set(values)


def _kind(record: Any) -> str:
    return record.kind if isinstance(record, Record) else type(record).__name__
