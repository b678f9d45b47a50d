"""Build messages of checks: add links to the documentation, and choose their severity."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from django.core.checks import CheckMessage, Error, Warning

from django_dcron.utils.docs_links import with_link
from django_dcron.utils.url_credentials import without_urls

SETTINGS_BY_SECTION = {
    "scheduler": (
        "DCRON_AUTOSTART",
        "DCRON_TICK",
        "DCRON_LOOK_AHEAD",
        "DCRON_BACKFILL_CONCURRENCY",
        "DCRON_LEASE",
        "DCRON_SHARDS",
        "DCRON_DATABASE_GRACE",
        "DCRON_HANG_AFTER",
    ),
    "locks": (
        "DCRON_LOCK",
        "DCRON_CACHE",
        "DCRON_LOCK_DIR",
    ),
    "dispatch": (
        "DCRON_DISPATCHER",
        "DCRON_TASKS_BACKEND",
        "DCRON_THREADS",
        "DCRON_COROUTINES",
        "DCRON_REDELIVER_AFTER",
        "DCRON_QUEUES",
    ),
    "execution": (
        "DCRON_RUN_LEASE",
        "DCRON_STOP_WITHOUT_HEARTBEAT_AFTER",
        "DCRON_MIDDLEWARE",
        "DCRON_HARD_TIMEOUT_AFTER",
        "DCRON_RELEASE",
        "DCRON_LOG_LIMIT",
        "DCRON_RESULT_LIMIT",
    ),
    "alerts": (
        "DCRON_ALERT_CHANNELS",
        "DCRON_ALERTS",
        "DCRON_SITE_URL",
        "DCRON_HEALTHCHECKS_URL",
    ),
    "retention": (
        "DCRON_KEEP_FOR",
        "DCRON_KEEP_FAILED_FOR",
        "DCRON_KEEP_RUNS",
        "DCRON_KEEP_AUDIT_FOR",
    ),
    "metrics": (
        "DCRON_METRICS_JOBS",
        "DCRON_METRICS_TOKEN",
    ),
    "rest-api": ("DCRON_REST_QUERYSET",),
    "targets-and-arguments": (
        "DCRON_ARGUMENTS_LIMIT",
        "DCRON_REDACT",
        "DCRON_COMMANDS",
        "DCRON_SHELL",
    ),
}
"""The settings in each section of the settings reference."""
PAGES = {
    "E002": "reference/checks.md",
    "E003": "reference/settings.md#locks",
    "E004": "tutorial/redis-and-celery.md",
    "E005": "reference/settings.md",
    "E006": "tutorial/redis-and-celery.md",
    "E007": "how-to/alerts.md",
    "E008": "reference/settings.md#alerts",
    "E009": "how-to/django-tasks.md",
    "E010": "how-to/django-tasks.md",
    "E011": "how-to/project-setup.md#a-second-database",
    "E012": "how-to/chains.md",
    "E013": "how-to/chains.md",
    "I001": "how-to/deployment.md#deploy-without-downtime",
    "W001": "reference/settings.md#execution",
    "W002": "tutorial/first-job.md#change-the-settings",
    "W003": "reference/settings.md#how-targets-are-found",
    "W004": "reference/schedules.md",
    "W005": "reference/settings.md",
    "W006": "reference/settings.md#management-commands",
    "W007": "tutorial/first-job.md#change-the-settings",
    "W008": "reference/settings.md#retention",
    "W009": "how-to/alerts.md",
    "W010": "how-to/calendars.md",
    "W011": "how-to/django-tasks.md",
    "W012": "reference/settings.md#queues",
    "W014": "how-to/testing.md#system-checks-with-test-settings",
    "W015": "tutorial/redis-and-celery.md",
    "W016": "reference/settings.md#shell-commands",
    "W017": "how-to/admin.md",
    "W018": "how-to/chains.md",
    "W019": "tutorial/first-job.md",
    "W020": "tutorial/redis-and-celery.md",
    "W021": "reference/python-api.md",
    "W022": "how-to/alerts.md",
    "W023": "reference/settings.md#dispatch",
    "W024": "tutorial/redis-and-celery.md#schedule-a-celery-task",
    "W025": "how-to/alerts.md",
    "W026": "reference/settings.md#how-targets-are-found",
    "W027": "reference/python-api.md",
}
"""The page to which the hint of each check links. E001 links to the section of its setting, and
W013 to the page of the problem that it names.
"""

NO_NODE_STARTS = "django_dcron.W013"

_node_starts: ContextVar[bool] = ContextVar("dcron_node_starts", default=False)


@contextmanager
def as_node_start() -> Iterator[None]:
    """Report problems that keep a node from starting as errors, not as warnings."""
    token = _node_starts.set(True)
    try:
        yield
    finally:
        _node_starts.reset(token)


def node_starts() -> bool:
    """Return whether the checks run at the start of a node."""
    return _node_starts.get()


def is_check_command() -> bool:
    """Return whether the command is ``manage.py check``.

    Django doesn't tell checks which command runs them.
    """
    return sys.argv[1:2] == ["check"]


def node_start_problem(code: str, message: str, hint: str) -> CheckMessage:
    """Return the message about a problem that keeps a node from starting."""
    if node_starts():
        return Error(message, hint=hint, id=f"django_dcron.{code}")
    hint = with_link(hint, PAGES[code])
    return Warning(f"runcron can't start ({code}): {message}", hint=hint, id=NO_NODE_STARTS)


def merge_start_problems(messages: Sequence[CheckMessage]) -> list[CheckMessage]:
    """Merge the problems that keep a node from starting into one warning. Keeps all others."""
    obstacles = [message for message in messages if message.id == NO_NODE_STARTS]
    if len(obstacles) < 2:
        return list(messages)
    text = "\n".join(message.msg for message in obstacles)
    hint = "\n".join(dict.fromkeys(str(message.hint) for message in obstacles))
    others = [message for message in messages if message.id != NO_NODE_STARTS]
    return [*others, Warning(text, hint=hint, id=NO_NODE_STARTS)]


def with_docs_link(message: CheckMessage) -> CheckMessage:
    """Add the link to the documentation to the hint."""
    page = PAGES.get(str(message.id).rpartition(".")[2])
    if page:
        message.hint = with_link(message.hint, page)
    return message


def settings_section(name: str) -> str:
    """Return the page and section of the documentation that describe the setting."""
    section = next(key for key, names in SETTINGS_BY_SECTION.items() if name in names)
    return f"reference/settings.md#{section}"


def without_secrets(message: CheckMessage) -> CheckMessage:
    """Remove URLs from the message, because they may contain passwords."""
    message.msg = without_urls(message.msg)
    return message
