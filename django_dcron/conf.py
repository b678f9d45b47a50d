"""Typed settings with defaults, read from Django's settings at each access.

``from django_dcron.conf import settings`` and then ``settings.LEASE`` reads ``DCRON_LEASE``.
Importing this module reads no setting, so ``override_settings`` works. Durations are ``timedelta``.
``checks`` reports invalid values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from django_dcron.utils.alert_channels import AlertChannels
from django_dcron.utils.setting_kinds import (
    OptionalDuration,
    Setting,
    SettingChoice,
    duration_at_least,
    duration_within,
    flag,
    number_or_none,
    text,
    texts,
    url,
    whole_number,
)

ALL_ARGUMENTS = "__all__"
"""In ``DCRON_COMMANDS``: the command accepts every argument that its parser accepts."""
ARGUMENTS_PLACEHOLDER = "{}"
"""In ``DCRON_SHELL``: the placeholder that a job's arguments replace."""


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
        and all(isinstance(word, str) for word in argv)
        # Otherwise, a job's arguments would choose the program.
        and argv[0] != ARGUMENTS_PLACEHOLDER
        for name, argv in value.items()
    )


class Settings:
    """All settings, grouped as in ``docs/reference/settings.md``."""

    # Scheduler
    AUTOSTART = flag()
    """Whether each process of a web server runs a node. ``LOCK`` and ``DISPATCHER`` then default to
    "database" and "thread".
    """
    TICK = duration_at_least(0.5, at_least=0.05)
    """The longest pause between two ticks of a node."""
    LOOK_AHEAD = duration_at_least(10, at_least=0.1)
    """How long before its scheduled time an occurrence is claimed."""
    BACKFILL_CONCURRENCY = whole_number(2, low=1, high=1000)
    """The maximum number of backfilled runs of one job in progress at once."""
    LEASE = duration_at_least(6, at_least=0.5)
    """A node without a heartbeat for this long is considered dead."""
    SHARDS = whole_number(64, low=1, high=4096)
    """The number of shards. It must be the same on every node."""
    DATABASE_GRACE = duration_at_least(300, at_least=1)
    """How long a node may go without a successful tick before it is unfit."""
    HANG_AFTER = duration_at_least(60, at_least=1)
    """A node's thread that shows no activity for this long is considered hung. The node is then
    unfit if runs need the thread, otherwise degraded.
    """

    # Lock
    LOCK = SettingChoice(
        "redis",
        "database",
        "file",
        kind="Lock",
        autostart="database",
        autostarts=AUTOSTART,
    )
    CACHE = text("default", allowed="the alias of a django-redis cache in CACHES")
    """The cache whose Redis stores the shard locks."""
    LOCK_DIR: Setting[str | Path] = Setting(
        "",
        (str, Path),
        allowed="a directory, or an empty string for a default directory per database",
        valid=lambda value: True,
    )
    """The directory of the file lock's leases."""

    # Dispatch
    DISPATCHER = SettingChoice(
        "celery",
        "thread",
        "tasks",
        kind="Dispatcher",
        autostart="thread",
        autostarts=AUTOSTART,
    )
    TASKS_BACKEND = text("default", allowed="the alias of a backend in TASKS")
    """The backend of Django's tasks that runs are published to."""
    THREADS = whole_number(8, low=1, high=1024)
    """The maximum number of runs that the thread dispatcher executes at once in threads."""
    COROUTINES = whole_number(100, low=1, high=1024)
    """The maximum number of runs of coroutine functions that it executes at once in addition."""
    REDELIVER_AFTER = duration_at_least(60, at_least=1)
    """How long a queued run waits for a worker before it is dispatched again. The time doubles with
    each delivery.
    """
    QUEUES: Setting[Sequence[str] | None] = Setting(
        None,
        (list, tuple, NoneType),
        allowed='a list of queue names or patterns such as "reports-*", or None',
        valid=lambda value: value is None or all(isinstance(name, str) and name for name in value),
    )
    """The queues that jobs may name. None allows the queues that the project declares, and the
    default queue.
    """

    # Execution
    RUN_LEASE = duration_at_least(15, at_least=1)
    """A running attempt without a heartbeat for this long is declared lost."""
    STOP_WITHOUT_HEARTBEAT_AFTER = OptionalDuration(RUN_LEASE, at_least=1)
    """A worker that hasn't written a heartbeat for this long stops its run. Defaults to
    ``RUN_LEASE``. None: it never stops the run.
    """
    MIDDLEWARE = texts(
        [
            "django_dcron.execution.log_capture.capture_log",
            "django_dcron.execution.time_limit.limit_time",
        ],
        allowed="a list of dotted paths of middleware factories",
    )
    HARD_TIMEOUT_AFTER = duration_at_least(10, at_least=0.1)
    """How long a run may continue after its timeout or cancellation before it is terminated."""
    RELEASE: Setting[str | None] = Setting(
        None,
        (str, NoneType),
        allowed="a string of at most 64 characters, or None",
        valid=lambda value: len(value or "") <= 64,
    )
    """The release of the project's code. Each attempt records it. None: the Git commit of the
    checkout that contains the settings module, if there is one.
    """
    LOG_LIMIT = whole_number(64 * 1024, low=0, high=16 * 1024 * 1024)
    """The maximum number of characters of an attempt's log, of its message and of its traceback."""
    RESULT_LIMIT = whole_number(64 * 1024, low=0, high=16 * 1024 * 1024)
    """The maximum number of characters of an attempt's result, as JSON."""

    # Alerts
    ALERT_CHANNELS = AlertChannels()
    """The alert channels, by name."""
    ALERTS: Setting[Sequence[Mapping[str, Any]]] = Setting(
        (), (list, tuple), allowed="a list of rules", valid=lambda value: True
    )
    """The alert rules for the cluster, and for jobs without their own rules."""
    SITE_URL = url("https://example.com")
    """The base URL of the admin, for links in alerts. Titles of alerts name its host. Empty: no
    links.
    """
    HEALTHCHECKS_URL = url("https://hc-ping.com/PING-KEY", is_secret=True)
    """The base URL of the checks of ``check_in_healthchecks``, one check per job name."""

    # Retention
    KEEP_FOR = duration_within(30, longest=36_500)
    """How long finished runs are kept, unless the job sets its own time."""
    KEEP_FAILED_FOR = duration_within(90, longest=36_500)
    """How long failed runs are kept. The time is at least ``KEEP_FOR``."""
    KEEP_RUNS = number_or_none(low=1)
    """The maximum number of finished runs kept per job, and separately of failed runs. None:
    unlimited.
    """
    KEEP_AUDIT_FOR = duration_within(365, longest=36_500)
    """How long the entries of the audit log are kept."""

    # Metrics
    METRICS_JOBS = whole_number(1000, low=0, high=100_000)
    """The number of jobs, in order of primary key, that have their own counters."""
    METRICS_TOKEN = Setting(
        "", str, allowed="a string, which may be empty", valid=lambda value: True, is_secret=True
    )
    """The bearer token that allows scraping Django's metrics. Empty: no token is accepted."""

    # REST API
    REST_QUERYSET = Setting(
        "",
        str,
        allowed="the dotted path of a function, or an empty string",
        valid=lambda value: not value or "." in value,
    )
    """The function ``(request, queryset) -> queryset`` that limits what a request to the REST API
    can see. Empty: no limit.
    """

    # Targets
    ARGUMENTS_LIMIT = whole_number(64 * 1024, low=0, high=16 * 1024 * 1024)
    """The maximum number of characters of a job's or run's arguments: positional and keyword
    arguments together, as JSON.
    """
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
    """An argument whose name contains one of these words, in upper or lower case, is a secret.
    Users who have only view permission don't see secrets.
    """
    COMMANDS: Setting[Sequence[str] | Mapping[str, Sequence[str] | str]] = Setting(
        (),
        (list, tuple, dict),
        allowed="a list of management command names, which then accept no arguments, or a "
        'dict from name to a list of allowed arguments or "__all__", such as '
        '{"dumpdata": ["args", "--indent"], "check": "__all__"}',
        valid=_is_command_table,
    )
    """The management commands that jobs may run, and their allowed arguments."""
    SHELL: Setting[Mapping[str, Sequence[str]]] = Setting(
        {},
        dict,
        allowed="a dict from name to argument list, such as "
        '{"backup": ["pg_dump", "shop"]}, whose first word is not "{}"',
        valid=_is_shell_table,
        is_secret=True,
    )
    """The shell commands that jobs may run, by name."""

    @classmethod
    def all(cls) -> Iterator[Setting[Any]]:
        return (value for value in vars(cls).values() if isinstance(value, Setting))


settings = Settings()
