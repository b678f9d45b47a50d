"""The settings of django-dcron: typed, with defaults, read from Django's settings at each use.

``from django_dcron.conf import settings`` and then ``settings.LEASE`` reads ``DCRON_LEASE``. Nothing is read at
import, so ``override_settings`` works. Durations are ``timedelta``. ``checks.py`` reports values of the wrong type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any, Generic, TypeVar

from django.conf import settings as django_settings

from django_dcron.url_credentials import without_urls

T = TypeVar("T")


class Setting(Generic[T]):
    """One setting: its default, the types it may have and what else must hold of it."""

    name: str

    def __init__(
        self,
        default: T,
        kind: type | tuple[type, ...],
        *,
        allowed: str,
        valid: Callable[[Any], bool],
        names: Sequence[str] = (),
        is_secret: bool = False,
    ):
        self.default = default
        self.kind = kind
        self.allowed = allowed
        self.valid = valid
        self.names = names
        """The values it may have, as far as they can be listed."""
        self.is_secret = is_secret
        """Nobody is shown its value: it has, or may have, a password or key in it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"DCRON_{name}"

    def __get__(self, instance: object, owner: type | None = None) -> T:
        value: T = getattr(django_settings, self.name, self.default)
        return value

    def problem(self) -> str | None:
        """What is wrong with the value the project set, or None."""
        value: Any = getattr(django_settings, self.name, self.default)
        if isinstance(value, bool) or not isinstance(value, self.kind) or not self.valid(value):
            said = (
                f"a {type(value).__name__} that cannot be taken"
                if self.is_secret
                else without_urls(repr(value))
            )
            return f"{self.name} is {said}; allowed: {self.allowed}"
        return None


def duration(seconds: float, *, at_least: float) -> Setting[timedelta]:
    floor = timedelta(seconds=at_least)
    return Setting(
        timedelta(seconds=seconds),
        timedelta,
        allowed=f"a timedelta of at least {at_least:g} s",
        valid=lambda value: value >= floor,
    )


def whole_number(default: int, *, low: int, high: int) -> Setting[int]:
    return Setting(
        default, int, allowed=f"a whole number from {low} to {high}", valid=lambda value: low <= value <= high
    )


def duration_within(days: float, *, longest: float) -> Setting[timedelta]:
    limit = timedelta(days=longest)
    return Setting(
        timedelta(days=days),
        timedelta,
        allowed=f"a timedelta of at least 1 s, at most {longest:g} days",
        valid=lambda value: timedelta(seconds=1) <= value <= limit,
    )


def duration_or_none(*, at_least: float) -> Setting[timedelta | None]:
    floor = timedelta(seconds=at_least)
    return Setting(
        None,
        (timedelta, NoneType),
        allowed=f"a timedelta of at least {at_least:g} s, or None",
        valid=lambda value: value is None or value >= floor,
    )


def number_or_none(*, low: int) -> Setting[int | None]:
    return Setting(
        None,
        (int, NoneType),
        allowed=f"a whole number from {low} on, or None",
        valid=lambda value: value is None or value >= low,
    )


def text(default: str, *, allowed: str = "a non-empty text") -> Setting[str]:
    return Setting(default, str, allowed=allowed, valid=bool)


def url(example: str, *, is_secret: bool = False) -> Setting[str]:
    return Setting(
        "",
        str,
        is_secret=is_secret,
        allowed=f"a URL such as {example}, or nothing",
        valid=lambda value: not value or value.startswith(("http://", "https://")),
    )


def choice(default: str, *others: str, kind: str) -> Setting[str]:
    """One of the names, or the dotted path of a class of this ``kind``."""
    names = (default, *others)
    quoted = ", ".join(f'"{name}"' for name in names)
    return Setting(
        default,
        str,
        allowed=f"{quoted} or the dotted path of a {kind} class",
        valid=lambda value: value in names or "." in value,
        names=names,
    )


def texts(default: Sequence[str], *, allowed: str) -> Setting[Sequence[str]]:
    return Setting(
        default, (list, tuple), allowed=allowed, valid=lambda value: all(isinstance(v, str) for v in value)
    )


ALL_ARGUMENTS = "__all__"
"""In ``DCRON_COMMANDS``: the command takes whatever its parser takes."""
ARGUMENTS_PLACE = "{}"
"""In ``DCRON_SHELL``: the word that a job's own arguments replace."""


def _is_command_table(value: Sequence[Any] | Mapping[Any, Any]) -> bool:
    allowed = value.values() if isinstance(value, Mapping) else ()
    return all(isinstance(name, str) for name in value) and all(
        each == ALL_ARGUMENTS
        or (isinstance(each, (list, tuple)) and all(isinstance(name, str) for name in each))
        for each in allowed
    )


def _is_shell_table(value: Mapping[Any, Any]) -> bool:
    return all(
        isinstance(name, str)
        and isinstance(argv, (list, tuple))
        and argv
        and all(isinstance(a, str) for a in argv)
        and argv[0] != ARGUMENTS_PLACE  # or a job's arguments would name the program
        for name, argv in value.items()
    )


CHANNEL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,50}")


def _are_channels(value: Mapping[Any, Any]) -> bool:
    """No two differ in case alone: for some databases that is the same name."""
    return len({str(name).lower() for name in value}) == len(value) and all(
        isinstance(name, str) and CHANNEL_NAME.fullmatch(name) and _is_channel(channel)
        for name, channel in value.items()
    )


def _is_channel(value: Any) -> bool:
    if not isinstance(value, dict) or not value.keys() <= {"mail", "apprise", "every"}:
        return False
    every = value.get("every", timedelta())
    addresses = [value[kind] for kind in ("mail", "apprise") if kind in value]
    return (
        isinstance(every, timedelta)
        and every >= timedelta()
        and len(addresses) == 1
        and isinstance(addresses[0], (list, tuple))
        and bool(addresses[0])
        and all(isinstance(address, str) and address for address in addresses[0])
    )


class Settings:
    """All settings, in the order a run meets them."""

    # The scheduler.
    TICK = duration(0.5, at_least=0.05)
    """How often, at least, a node looks for work to claim."""
    LOOK_AHEAD = duration(10, at_least=0.1)
    """How far ahead of its due time an occurrence is claimed."""
    BACKFILL_CONCURRENCY = whole_number(2, low=1, high=1000)
    """How many backfilled runs of one job may be under way at once."""
    LEASE = duration(6, at_least=0.5)
    """After how long without a heartbeat a node is taken for dead."""
    SHARDS = whole_number(64, low=1, high=4096)
    """Into how many slices the jobs are cut; each slice is led by one node. The same on every node."""
    DATABASE_GRACE = duration(300, at_least=1)
    """How long the database may let no tick through before a node is unfit."""
    HANG_AFTER = duration(60, at_least=1)
    """After how long without a sign of life a thread of a node is taken to hang: the node is unfit, others lead its shards."""

    # The lock.
    LOCK = choice("redis", "database", "file", kind="Lock")
    CACHE = text("default", allowed="the alias of a django-redis cache in CACHES")
    """The cache whose Redis holds the shard locks."""
    LOCK_DIR: Setting[str | Path] = Setting(
        "",
        (str, Path),
        allowed="a directory, or nothing for one of its own per database",
        valid=lambda value: True,
    )
    """Where the file lock keeps its leases."""

    # Dispatch.
    DISPATCHER = choice("celery", "thread", "tasks", kind="Dispatcher")
    TASKS_BACKEND = text("default", allowed="the alias of a backend in TASKS")
    """The backend of Django's own tasks that runs are handed to."""
    THREADS = whole_number(8, low=1, high=1024)
    """How many runs the thread dispatcher executes at once."""
    REDELIVER_AFTER = duration(60, at_least=1)
    """How long a queued run may wait for a worker before it is handed over again; doubled at each delivery."""
    QUEUES: Setting[Sequence[str] | None] = Setting(
        None,
        (list, tuple, NoneType),
        allowed='a list of queue names or patterns such as "reports-*", or None',
        valid=lambda value: value is None or all(isinstance(name, str) and name for name in value),
    )
    """The queues that jobs may name. None: those that the project declares, and the default queue."""

    # Execution.
    RUN_LEASE = duration(15, at_least=1)
    """After how long without a heartbeat a running attempt is declared lost."""
    STOP_UNHEARD_AFTER = duration_or_none(at_least=1)
    """After how long without a heartbeat that could be written a worker stops its own run. None: it goes on."""
    MIDDLEWARE = texts(
        [
            "django_dcron.execution.log_capture.capture_log",
            "django_dcron.execution.time_limit.limit_time",
        ],
        allowed="a list of dotted paths of middleware factories",
    )
    HARD_TIMEOUT_AFTER = duration(10, at_least=0.1)
    """How long after its timeout, or a cancel, a run that does not stop is ended by force."""
    LOG_LIMIT = whole_number(64 * 1024, low=0, high=16 * 1024 * 1024)
    """How many characters of an attempt's log, traceback and message are kept."""
    RESULT_LIMIT = whole_number(64 * 1024, low=0, high=16 * 1024 * 1024)
    """How many characters of an attempt's result, as JSON, are kept."""

    # Alerts.
    ALERT_CHANNELS: Setting[Mapping[str, Mapping[str, Any]]] = Setting(
        {},
        dict,
        allowed="a dict from name (ASCII letters, digits and any of _ . -; at most 50; no two that differ in case alone) to "
        'channel: {"mail": [addresses]} or {"apprise": [URLs]}, and perhaps "every": a timedelta, how long at least lies '
        "between two messages",
        valid=_are_channels,
        is_secret=True,
    )
    """Where alerts go, by name."""
    ALERTS: Setting[Sequence[Mapping[str, Any]]] = Setting(
        (), (list, tuple), allowed="a list of rules", valid=lambda value: True
    )
    """The rules for jobs that have none of their own, and for the cluster."""
    SITE_URL = url("https://example.com")
    """Where the admin is, for links in alerts. Empty: no links."""
    HEALTHCHECKS_URL = url("https://hc-ping.com/PING-KEY", is_secret=True)
    """Below which ``check_in_healthchecks`` finds a check for each job, by its name."""

    # Retention.
    KEEP_FOR = duration_within(30, longest=36_500)
    """How long finished runs are kept, for jobs that do not say it themselves."""
    KEEP_FAILED_FOR = duration_within(90, longest=36_500)
    """How long failed runs are kept; if it is shorter than for others, as long as those."""
    KEEP_RUNS = number_or_none(low=1)
    """How many finished runs of a job are kept at most, and as many failed ones. None: any number."""

    # Metrics.
    METRICS_JOBS = whole_number(1000, low=0, high=100_000)
    """How many jobs, the first ones by their keys, have counters of their own."""
    METRICS_TOKEN = Setting("", str, allowed="a text, or nothing", valid=lambda value: True, is_secret=True)
    """Who sends this as a bearer token may scrape Django's metrics. Empty: nobody may by a token."""

    # The REST API.
    REST_QUERYSET = Setting(
        "",
        str,
        allowed="the dotted path of a function, or nothing",
        valid=lambda value: not value or "." in value,
    )
    """The function that narrows what a request to the REST API may see: ``(request, queryset) -> queryset``. Empty: nothing is narrowed."""

    # Targets.
    ARGUMENTS_LIMIT = whole_number(64 * 1024, low=0, high=16 * 1024 * 1024)
    """How many characters a job's or a run's arguments may have, as JSON, by position and by name together."""
    REDACT = texts(
        (
            "password",
            "passwd",
            "passphrase",
            "secret",
            "token",
            "key",
            "credential",
            "authorization",
            "cookie",
            "signature",
        ),
        allowed="a list of words",
    )
    """An argument is a secret if its name contains one of these, in any case. Whoever may only look sees no secrets."""
    COMMANDS: Setting[Sequence[str] | Mapping[str, Sequence[str] | str]] = Setting(
        (),
        (list, tuple, dict),
        allowed="a list of management command names, which then take no arguments, or a dict from name to "
        'a list of the arguments that the command may get, such as {"dumpdata": ["args", "--indent"]}, or to "__all__"',
        valid=_is_command_table,
    )
    """The management commands a job may run, and with which arguments."""
    SHELL: Setting[Mapping[str, Sequence[str]]] = Setting(
        {},
        dict,
        allowed='a dict from name to argument list, such as {"backup": ["pg_dump", "shop"]}; its first word is not "{}"',
        valid=_is_shell_table,
        is_secret=True,
    )
    """The shell commands a job may run, by name."""

    @classmethod
    def all(cls) -> Iterator[Setting[Any]]:
        return (value for value in vars(cls).values() if isinstance(value, Setting))


settings = Settings()
