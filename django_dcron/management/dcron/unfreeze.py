"""``manage.py dcron unfreeze``: end a freeze of scheduling."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import NotPossible
from django_dcron.management.dcron.command_line_user import user_name
from django_dcron.management.dcron.exits import negative_result
from django_dcron.management.dcron.freeze import add_namespace
from django_dcron.management.dcron.freezes import freeze_document, scope_text
from django_dcron.management.dcron.output import GOOD, WARNING, Output, add_json
from django_dcron.models import Freeze

HELP = (
    "End a freeze. Nodes continue within a second. The misfire policy of each job decides about "
    "the occurrences during the freeze. A freeze of one namespace and a freeze of all namespaces "
    "are separate. Exit code 1: there is no such freeze, or none with the reason of --reason."
)
EXAMPLES = """
unfreeze
unfreeze --namespace shop
unfreeze --reason "deploy 2.1"
"""


def add_arguments(parser: CommandParser) -> None:
    add_namespace(parser)
    parser.add_argument("--reason", help="don't end a freeze with another reason")
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output = Output(command, options)
    try:
        ended = control.unfreeze(options["namespace"], reason=options["reason"], by=user_name())
    except NotPossible as error:
        raise negative_result(str(error)) from None
    remaining = list(Freeze.objects.using(alias_for(Freeze)).in_force())
    if output.is_json:
        output.json(
            {
                "version": 1,
                "freeze": freeze_document(ended),
                "in_force": [freeze_document(freeze) for freeze in remaining],
            }
        )
        return
    output.line(f"{scope_text(ended)}: unfrozen", GOOD)
    for freeze in remaining:
        output.line(f"{scope_text(freeze)}: still frozen: {freeze.reason}", WARNING)
