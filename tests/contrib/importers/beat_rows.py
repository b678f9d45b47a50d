"""Create any number of django-celery-beat rows of every kind through its own models."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any
from zoneinfo import ZoneInfo

from django.db import transaction

QUEUES = ("celery", "slow", "reports")
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "America/St_Johns",
)
STEPS = (
    "*/2",
    "*/3",
    "*/7",
    "*/13",
    "1-59/2",
    "3-57/6",
    "0,7,14,21,28,35,42,49,56",
    "*/4,*/5",
    "30-59/3",
)
HOURS = ("*", "*/1", "0-23", "*/2,1-23/2")
DAYS = (
    ("1-7", "mon"),
    ("1,15", "fri"),
    ("*", "mon-fri"),
    ("*/2", "*"),
    ("28-31", "sunday"),
    ("*", "fri-mon"),
)
EVENTS = ("sunrise", "sunset", "solar_noon", "dawn_civil", "dusk_civil")
FAR = timedelta(days=400)
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Window:
    """The time during which the rows are watched.

    One-off rows run within it, and rows with an end expire within it.
    """

    begin: datetime
    end: datetime

    def at(self, n: int, second: int) -> datetime:
        """Return a different minute for each ``n``, at this second.

        Minutes repeat if the window has too few of them.
        """
        first = self.begin.replace(second=second, microsecond=0)
        first += MINUTE if first <= self.begin else timedelta()
        minutes = max((self.end - first) // MINUTE, 0) + 1
        return first + n % minutes * MINUTE


Row = Callable[[int, Window], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    share: int
    """The number of rows of this kind per 1,000 rows."""
    row: Row
    """The function that returns the fields of the n-th row."""
    outcome: str = "create"
    """The outcome of an import of the row."""


def interval(every: int, period: str) -> dict[str, Any]:
    from django_celery_beat.models import IntervalSchedule

    return {"interval": IntervalSchedule.objects.get_or_create(every=every, period=period)[0]}


def crontab(n: int = 0, **fields: str) -> dict[str, Any]:
    """Return the fields of a crontab in the n-th time zone."""
    from django_celery_beat.models import CrontabSchedule

    every = dict.fromkeys(("minute", "hour", "day_of_month", "month_of_year", "day_of_week"), "*")
    made, _ = CrontabSchedule.objects.get_or_create(
        timezone=ZONES[n % len(ZONES)], **every | fields
    )
    return {"crontab": made}


def clocked(at: datetime) -> dict[str, Any]:
    from django_celery_beat.models import ClockedSchedule

    return {"clocked": ClockedSchedule.objects.create(clocked_time=at), "one_off": True}


def solar(n: int) -> dict[str, Any]:
    from django_celery_beat.models import SolarSchedule

    event = EVENTS[n % len(EVENTS)]
    return {"solar": SolarSchedule.objects.create(event=event, latitude=n % 50, longitude=n)}


def daily(n: int, window: Window) -> dict[str, Any]:
    """Return a crontab for a time of day within the window, or one or two hours later."""
    at = (window.at(n, 0) + timedelta(hours=n % 3)).astimezone(ZoneInfo(ZONES[n % len(ZONES)]))
    return crontab(n, minute=str(at.minute), hour=str(at.hour))


KINDS = (
    Kind(
        "interval of seconds", 50, lambda n, w: interval((10, 15, 20, 30, 45, 90)[n % 6], "seconds")
    ),
    Kind("interval of minutes", 120, lambda n, w: interval((1, 2, 3, 5, 7)[n % 5], "minutes")),
    Kind(
        "interval of hours or days", 40, lambda n, w: interval(1 + n % 9, ("hours", "days")[n % 2])
    ),
    Kind("interval below a second", 2, lambda n, w: interval(1_500_000, "microseconds"), "refused"),
    Kind(
        "interval with a start",
        10,
        lambda n, w: interval(30, "seconds") | {"start_time": w.at(n, 0)},
    ),
    Kind(
        "interval, one-off",
        10,
        lambda n, w: interval(1, "minutes") | {"one_off": True, "start_time": w.at(n, 35)},
    ),
    Kind("crontab of every minute", 170, lambda n, w: crontab(n)),
    Kind(
        "crontab of odd steps", 170, lambda n, w: crontab(n, minute=STEPS[n % 9], hour=HOURS[n % 4])
    ),
    Kind("crontab of a time of day", 90, daily),
    Kind(
        "crontab of days and weekdays",
        60,
        lambda n, w: crontab(
            n, minute="*/2", day_of_month=DAYS[n % 6][0], day_of_week=DAYS[n % 6][1]
        ),
    ),
    Kind(
        "crontab of a Friday the 13th",
        3,
        lambda n, w: crontab(n, day_of_month="13", day_of_week="fri"),
        "refused",
    ),
    Kind(
        "crontab of months",
        15,
        lambda n, w: crontab(n, month_of_year=("jan", "nov-feb", "*/2")[n % 3]),
    ),
    Kind("crontab with a start", 15, lambda n, w: crontab(n) | {"start_time": w.at(n, 0)}),
    Kind("crontab with an end", 10, lambda n, w: crontab(n) | {"expires": w.at(n, 30)}),
    Kind("crontab, one-off", 10, lambda n, w: daily(3 * n, w) | {"one_off": True}),
    Kind("clocked", 20, lambda n, w: clocked(w.at(n, 20))),
    Kind("clocked, in a year", 20, lambda n, w: clocked(w.end + FAR + n * MINUTE)),
    Kind("solar", 8, lambda n, w: solar(n), "refused"),
    Kind("with seconds to expire", 40, lambda n, w: crontab(n) | {"expire_seconds": 120 + n}),
    Kind(
        "of a queue",
        45,
        lambda n, w: crontab(n, minute="*/2") | {"queue": QUEUES[n % 3], "priority": n % 12},
    ),
    Kind(
        "of a routing key alone",
        3,
        lambda n, w: interval(9, "days") | {"routing_key": "elsewhere"},
        "refused",
    ),
    Kind(
        "with headers",
        30,
        lambda n, w: crontab(n, minute="*/3") | {"headers": json.dumps({"tenant": n})},
    ),
    Kind(
        "with arguments",
        30,
        lambda n, w: (
            crontab(n) | {"args": json.dumps([n, "ü"]), "kwargs": json.dumps({"city": ["Ulm"]})}
        ),
    ),
    Kind(
        "disabled",
        25,
        lambda n, w: (crontab(n) if n % 2 else interval(20, "seconds")) | {"enabled": False},
    ),
    Kind(
        "of a task that is gone",
        4,
        lambda n, w: interval(9, "days") | {"task": "tests.app.tasks.gone"},
        "refused",
    ),
)


def fill(number: int, window: Window) -> dict[str, Kind]:
    """Create this number of rows and return the kind of each row by its name."""
    from django_celery_beat.models import PeriodicTask

    made = {}
    # Without a transaction, a running beat would reload all rows after each insert.
    with transaction.atomic():
        for kind, size in sizes(number).items():
            for n in range(size):
                # Realistic names, some of which are invalid for jobs.
                name = f"{kind.name} <{n}> ü" if n % 10 == 0 else f"{kind.name} {n}"
                fields = {"task": "tests.app.tasks.echo"} | kind.row(n, window)
                PeriodicTask.objects.create(name=name, **fields)
                made[name] = kind
    return made


def sizes(number: int) -> Counter[Kind]:
    """Return the number of rows of each kind: at least one each, and ``number`` in total."""
    found = Counter({kind: max(kind.share * number // 1000, 1) for kind in KINDS})
    largest = sorted(KINDS, key=lambda kind: -kind.share)
    for n in count():
        missing = number - found.total()
        if not missing:
            return found
        found[largest[n % 5]] += 1 if missing > 0 else -1
    raise AssertionError
