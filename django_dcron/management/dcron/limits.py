"""``manage.py dcron limits``: list the shared limits with their running and waiting runs."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.diagnosis.limit_usage import LimitUsage, limit_usage
from django_dcron.jobs.representation import to_json
from django_dcron.management.dcron.output import (
    EMPTY,
    WARNING,
    Cell,
    Column,
    Output,
    StyledText,
    add_json,
    iso,
    time_text,
)
from django_dcron.models import Limit
from django_dcron.utils.durations import write_duration

HELP = (
    "List the shared limits with the runs that have a place and the runs that wait. A limit with a "
    "key has one row for each value of the key."
)
EXAMPLES = """
limits
limits --json
"""


def add_arguments(parser: CommandParser) -> None:
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out, found = Output(command, options), limit_usage()
    if out.is_json:
        out.json({"version": 1, "limits": [_document(usage) for usage in found]})
    elif found:
        columns: list[Column | str] = [
            Column("Limit", wraps=True),
            Column("Key", wraps=True),
            "Maximum",
            Column("Running", right=True),
            Column("Waiting", right=True),
            "Waiting since",
        ]
        out.table(columns, (_cells(usage) for usage in found))
    else:
        out.line("There are no limits.")


def _cells(usage: LimitUsage) -> list[Cell]:
    waiting = StyledText(str(usage.waiting), WARNING if usage.waiting else "")
    since = time_text(usage.waiting_since) if usage.waiting_since else EMPTY
    key = usage.key or EMPTY
    return [usage.limit.name, key, maximum_text(usage.limit), usage.running, waiting, since]


def maximum_text(limit: Limit) -> str:
    maxima = []
    if limit.max_running is not None:
        maxima.append(f"{limit.max_running} running")
    if limit.interval is not None:
        maxima.append(f"{limit.max_started} started in {write_duration(limit.interval)}")
    return ", ".join(maxima)


def _document(usage: LimitUsage) -> dict[str, Any]:
    return {
        "name": usage.limit.name,
        "max_running": usage.limit.max_running,
        "max_started": usage.limit.max_started,
        "interval": to_json(usage.limit.interval),
        "key": usage.key,
        "running": usage.running,
        "waiting": usage.waiting,
        "waiting_since": iso(usage.waiting_since),
    }
