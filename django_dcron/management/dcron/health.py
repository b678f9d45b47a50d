"""``manage.py dcron health``: check a local node's health file, without a database.

Exit codes:

- 0: the node is fit, or is stopping cleanly.
- 1: the node is unfit, dead or suspended, or the file doesn't exist.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.management.dcron.exits import negative_result
from django_dcron.scheduler.health_file import probe
from django_dcron.utils.control_characters import escape_control_characters

HELP = (
    "Check a node's health by its health file. Exit code 1: the node is unfit, dead or "
    "suspended, or the file is missing."
)
EXAMPLES = "health --file /run/dcron/health.json"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--file", required=True, metavar="PATH", help="path given to runcron as --health-file"
    )


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    result = probe(options["file"])
    if not result.fit:
        raise negative_result(result.reason)
    command.stdout.write(escape_control_characters(result.reason))
