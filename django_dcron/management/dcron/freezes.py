"""``manage.py dcron freezes``: list the freezes of scheduling that are in force."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils.timezone import localtime

from django_dcron.db.routing import alias_for
from django_dcron.management.dcron.output import (
    WARNING,
    Column,
    Output,
    add_json,
    iso,
    relative_time_text,
    time_text,
)
from django_dcron.models import Freeze, Job
from django_dcron.policies.freezing import FreezeExtent, holding_freeze

HELP = (
    "List the freezes that are in force. During a freeze, no scheduled, backfilled or chained run "
    "of its namespace starts."
)
EXAMPLES = """
freezes
freezes --json
"""


def add_arguments(parser: CommandParser) -> None:
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out = Output(command, options)
    found = list(Freeze.objects.using(alias_for(Freeze)).in_force())
    if out.is_json:
        out.json({"version": 1, "freezes": [freeze_document(freeze) for freeze in found]})
    elif found:
        columns: list[Column | str] = ["Namespace", "Since", "Until", "By"]
        columns.append(Column("Reason", wraps=True))
        out.table(columns, (_cells(freeze) for freeze in found))
    else:
        out.line("No freeze is in force.")


def freeze_document(freeze: Freeze) -> dict[str, Any]:
    """Return the JSON document of a freeze."""
    return {
        "namespace": freeze.namespace,
        "reason": freeze.reason,
        "frozen_by": freeze.frozen_by,
        "since": iso(freeze.since),
        "until": iso(freeze.until),
        "ended_by": freeze.ended_by,
    }


def warn_of_freezes(out: Output, namespace: str = "") -> list[FreezeExtent]:
    """Print a line for each freeze in force, or for those that cover ``namespace``.

    Return these freezes.
    """
    rows = Freeze.objects.using(alias_for(Freeze)).in_force()
    found = list(rows.covering(namespace) if namespace else rows)
    for freeze in found:
        out.line(freeze_text(freeze), WARNING)
    return [freeze.extent for freeze in found]


def freeze_text(freeze: Freeze) -> str:
    until = time_text(freeze.until) if freeze.until else "unfrozen"
    return f"Frozen: {scope_text(freeze)}, until {until}: {freeze.reason}"


def time_until_text(job: Job, at: datetime, now: datetime, freezes: Iterable[FreezeExtent]) -> str:
    """Return how long the job's next run waits, or until when a freeze holds it back."""
    freeze = holding_freeze(freezes, namespace=job.namespace, at=at)
    if freeze is None:
        return relative_time_text(at, now)
    if freeze.until is None:
        return "frozen"
    end = localtime(freeze.until)
    date = "" if end.date() == localtime(now).date() else f"{end:%Y-%m-%d} "
    return f"frozen until {date}{end:%H:%M:%S}"


def scope_text(freeze: Freeze) -> str:
    return freeze.namespace or "(all)"


def _cells(freeze: Freeze) -> list[str]:
    until = time_text(freeze.until) if freeze.until else "(open)"
    return [scope_text(freeze), time_text(freeze.since), until, freeze.frozen_by, freeze.reason]
