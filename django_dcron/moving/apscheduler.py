"""APScheduler's Django store (django-apscheduler): its rows hold pickles.

A pickle can run any code when it is read. So ``untrusted`` reads each in a process of its own, as data. The function is a text
in it, which is compared with the targets that exist.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django_dcron.domain.fields import DAY_OF_MONTH, DAY_OF_WEEK, HOUR, MINUTE, MONTH, SECOND, YEAR, FieldKind
from django_dcron.moving.cron_text import FRIDAY_13TH, Part, Parts, cron_text
from django_dcron.moving.found import (
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
    zone_name,
)
from django_dcron.untrusted import Reader, Record, Unreadable

WAS_PAUSED = "was paused in APScheduler"
HINTS = {"AndTrigger": "one schedule may say the same", "OrTrigger": "make a job of each of its triggers"}
FIELDS: dict[str, FieldKind] = {
    "second": SECOND,
    "minute": MINUTE,
    "hour": HOUR,
    "day": DAY_OF_MONTH,
    "month": MONTH,
    "day_of_week": DAY_OF_WEEK,
    "year": YEAR,
}


NAMES = {"day": "day_of_month"}


def read(now: datetime) -> Reading:
    rows = rows_of("django_apscheduler", "DjangoJob", "django-apscheduler").order_by("pk")
    with Reader() as reader:
        return Reading(
            [entry(_origin(key), key, partial(_job, row, now, reader)) for key, row in each_row(rows)]
        )


def ran(since: datetime) -> Ran:
    """From the executions it keeps, by the times they were meant for."""
    executions = rows_of("django_apscheduler", "DjangoJobExecution", "django-apscheduler")
    times = defaultdict(list)
    for job, at in executions.filter(run_time__gte=since).values_list("job_id", "run_time"):
        times[_origin(job)].append(at)
    return Ran(times, complete=True)


def _origin(key: str) -> str:
    return f"job {key!r}"


def state_of(pickled: bytes, reader: Reader) -> dict[str, Any]:
    """Raises ``Refused``."""
    try:
        state = reader.read("pickle", pickled)
    except Unreadable as error:
        raise Refused(f"its state cannot be read: {error}") from None
    if not isinstance(state, dict) or not {"func", "trigger"} <= state.keys():
        raise Refused("its state is not that of an APScheduler job")
    return state


def _job(row: Row, now: datetime, reader: Reader, warn: Warn) -> dict[str, Any]:
    state = state_of(bytes(row().job_state), reader)
    paused = state.get("next_run_time") is None
    executor = state.get("executor", "default")
    if executor != "default":
        warn(f"its executor {executor!r} has no equivalent: give the job the queue of its workers")
    instances = state.get("max_instances") or 1
    if instances > 1:
        warn(
            f"it ran up to {instances} times at once; here there is one, or any number, and it gets the latter"
        )
    trigger = state["trigger"]
    jitter = getattr(trigger, "jitter", None)
    return {
        "target": str(state["func"]).replace(":", "."),
        "args": check_json("args", list(state.get("args") or ())),
        "kwargs": check_json("kwargs", state.get("kwargs") or {}),
        "jitter": timedelta(seconds=jitter or 0),
        "overlap_policy": "allow" if instances > 1 else "skip",
        "enabled": not paused,
        "pause_reason": WAS_PAUSED if paused else "",
        "starts_at": getattr(trigger, "start_date", None),
        "ends_at": getattr(trigger, "end_date", None),
        **_when(trigger, now, warn),
    }


def _when(trigger: Any, now: datetime, warn: Warn) -> dict[str, Any]:
    kind = _kind(trigger)
    if kind == "DateTrigger":
        if trigger.run_date <= now:
            raise Refused(
                f"it was due once, at {trigger.run_date.isoformat()}, which has passed: run it by hand, or give it another time"
            )
        return {"schedule": once_text(trigger.run_date, warn), "timezone": "UTC"}
    if kind == "IntervalTrigger":
        return {"schedule": interval_text(trigger.interval), "timezone": "UTC"}
    if kind == "CronTrigger":
        return {"schedule": _cron(trigger), "timezone": zone_name(trigger.timezone)}
    raise Refused(
        f"there is no schedule here like its {kind}: {HINTS.get(kind, 'give the job one of its own')}"
    )


def _cron(trigger: Any) -> str:
    """All fields of APScheduler must match."""
    found = {}
    for field in trigger.fields:
        kind = FIELDS.get(field.name)
        if kind:
            found[NAMES.get(field.name, field.name)] = _part(kind, field)
        elif any(getattr(expression, "first", None) or expression.step for expression in field.expressions):
            raise Refused("it names weeks of the year, which no schedule here can")
    parts = Parts(**found)
    days = parts.day_of_month
    positions = tuple(special for special in days.specials if special != "L")
    if not positions:
        return cron_text(parts)
    if len(parts.day_of_week.values) < 7:
        raise Refused(FRIDAY_13TH)
    # Weekdays of a month are for the other field here; with further days, either will do.
    rest = Part(days.values, "", tuple(special for special in days.specials if special == "L"))
    alone = not rest.values and not rest.specials
    month_days = Part(range(1, 32)) if alone else rest
    return cron_text(
        replace(parts, day_of_month=month_days, day_of_week=Part((), "", positions)), both_days=alone
    )


def _part(kind: FieldKind, field: Any) -> Part:
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
    return Part(values, "", tuple(specials))


def _values(kind: FieldKind, expression: Any) -> set[int]:
    """Of ``*``, ``a``, ``a-b``, with a step or without; weekdays count from Monday there."""
    first = getattr(expression, "first", kind.low)
    last = getattr(expression, "last", None)
    step = expression.step or 1
    if not all(isinstance(number, int) for number in (first, last or 0, step)) or first < 0 or step < 1:
        raise Refused(f"its field {kind.name} has the range {first!r:.20} to {last!r:.20} by {step!r:.20}")
    values = range(first, (kind.top if last is None else min(last, kind.top)) + 1, step)
    return {(value + 1) % 7 for value in values} if kind is DAY_OF_WEEK else set(values)


def _kind(thing: Any) -> str:
    return thing.kind if isinstance(thing, Record) else type(thing).__name__
