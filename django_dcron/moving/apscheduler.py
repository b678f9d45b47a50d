"""APScheduler's Django store (django-apscheduler): its rows hold pickles.

A pickle can run any code when it is read. Invariants of how these are read:

- Nothing it names is imported or called, but for the times of ``datetime`` and zones by their names. What it says of APScheduler's
  classes is put into plain records of the same names; anything else is refused, by name.
- The function is a text in it, which is compared with the targets there are.
"""

from __future__ import annotations

import datetime as times
import io
import pickle
from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from django_dcron.domain.fields import DAY_OF_MONTH, DAY_OF_WEEK, HOUR, MINUTE, MONTH, SECOND, YEAR, FieldKind
from django_dcron.moving.cron_text import FRIDAY_13TH, Part, Parts, cron_text
from django_dcron.moving.found import (
    Ran,
    Reading,
    Refused,
    Warn,
    check_json,
    entry,
    interval_text,
    once_text,
    rows_of,
    zone_name,
)

WAS_PAUSED = "was paused in APScheduler"
PACKAGE = "apscheduler.triggers."
TIMES: dict[str, Any] = {
    "date": times.date,
    "datetime": times.datetime,
    "timedelta": times.timedelta,
    "timezone": times.timezone,
}
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


class _Record:
    """What a pickle says of an object of APScheduler's."""

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):  # plain attributes, and those of slots
            vars(self).update(part or {})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "datetime" and name in TIMES:
            return TIMES[name]
        if (module, name) in (("zoneinfo", "ZoneInfo"), ("zoneinfo", "ZoneInfo._unpickle")):
            return _zone
        if (module, name) == ("builtins", "getattr"):
            return _attribute
        if (module, name) in (("pytz", "_UTC"), ("pytz", "_p")):
            return _pytz_zone
        if module.startswith(PACKAGE) and name.isidentifier():
            return type(name, (_Record,), {})  # a new one, so that no pickle can spoil it for the next
        raise Refused(f"its state holds a {module}.{name}, and such are not read from a pickle")


def _zone(key: str, *_from_cache: Any) -> ZoneInfo:
    return ZoneInfo(key)


def _pytz_zone(key: str = "UTC", *_offsets: Any) -> ZoneInfo:
    """APScheduler wrote such until 3.10."""
    return ZoneInfo(key)


def _attribute(of: Any, name: str) -> Any:
    """``ZoneInfo._unpickle``, which is how zones are pickled, and nothing else."""
    if of is not _zone or name != "_unpickle":
        raise Refused("its state looks for an attribute, as those do that mean to run code")
    return _zone


def read(now: datetime) -> Reading:
    rows = rows_of("django_apscheduler", "DjangoJob", "django-apscheduler").order_by("pk")
    return Reading([entry(_origin(row.pk), row.pk, partial(_job, bytes(row.job_state), now)) for row in rows])


def ran(since: datetime) -> Ran:
    """From the executions it keeps, by the times they were meant for."""
    executions = rows_of("django_apscheduler", "DjangoJobExecution", "django-apscheduler")
    times = defaultdict(list)
    for job, at in executions.filter(run_time__gte=since).values_list("job_id", "run_time"):
        times[_origin(job)].append(at)
    return Ran(times, complete=True)


def _origin(key: str) -> str:
    return f"job {key!r}"


def state_of(pickled: bytes) -> dict[str, Any]:
    """Raises ``Refused``."""
    try:
        state = _Unpickler(io.BytesIO(pickled)).load()
    except Refused:
        raise
    except Exception as error:  # anything: of a class that has changed since, or of bytes that are no pickle
        raise Refused(f"its state cannot be read: {type(error).__name__}: {error}") from None
    if not isinstance(state, dict) or not {"func", "trigger"} <= state.keys():
        raise Refused("its state is not that of an APScheduler job")
    return state


def _job(pickled: bytes, now: datetime, warn: Warn) -> dict[str, Any]:
    state = state_of(pickled)
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
    kind = type(trigger).__name__
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
        elif any(vars(expression).get("first") or expression.step for expression in field.expressions):
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
        name = type(expression).__name__
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
    values = range(first, (kind.top if last is None else min(last, kind.top)) + 1, expression.step or 1)
    return {(value + 1) % 7 for value in values} if kind is DAY_OF_WEEK else set(values)
