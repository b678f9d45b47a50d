"""``manage.py dcron freezes``: list the freezes of scheduling that are in force."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.db.routing import alias_for
from django_dcron.management.dcron.output import (
    WARNING,
    Column,
    Output,
    add_json,
    iso,
    time_text,
)
from django_dcron.models import Freeze

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


def warn_of_freezes(out: Output, namespace: str = "") -> None:
    """Print a line for each freeze in force, or for those that cover ``namespace``."""
    found = Freeze.objects.using(alias_for(Freeze)).in_force()
    for freeze in found.covering(namespace) if namespace else found:
        until = time_text(freeze.until) if freeze.until else "unfrozen"
        out.line(f"Frozen: {scope_text(freeze)}, until {until}: {freeze.reason}", WARNING)


def scope_text(freeze: Freeze) -> str:
    return freeze.namespace or "(all)"


def _cells(freeze: Freeze) -> list[str]:
    until = time_text(freeze.until) if freeze.until else "(open)"
    return [scope_text(freeze), time_text(freeze.since), until, freeze.frozen_by, freeze.reason]
