"""``manage.py dcron health``: ask the health file of a node on this machine; needs no database.

Exit codes: 0 the node is fit (or stops cleanly just now); 1 it is unfit, dead or frozen, or there is no such file.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.management.dcron.exits import no
from django_dcron.management.dcron.plain_text import printable
from django_dcron.scheduler.health_file import probe

HELP = "Say whether the node that keeps this health file is fit. Exit code 1: it is not, it is dead or frozen, or not there."
EXAMPLES = "health --file /run/dcron/health.json"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--file", required=True, metavar="PATH", help="what runcron was given as --health-file"
    )


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    answer = probe(options["file"])
    if not answer.fit:
        raise no(answer.reason)
    command.stdout.write(printable(answer.reason))
