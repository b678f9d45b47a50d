"""``manage.py dcron freeze``: freeze the scheduling of all jobs or of a namespace."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import InvalidValue, NotPossible
from django_dcron.management.dcron import option_values
from django_dcron.management.dcron.command_line_user import user_name
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.freezes import freeze_document, scope_text
from django_dcron.management.dcron.output import GOOD, WARNING, Output, add_json, time_text
from django_dcron.models import Freeze

HELP = (
    "Freeze scheduling, for example during a deploy or an incident. Until the end of the freeze, "
    "no scheduled, backfilled or chained run starts. Running runs continue, and manual runs start. "
    "Afterwards, the misfire policy of each job decides about its occurrences. Freezing again "
    "with the same reason extends the freeze: the later end applies. Exit code 1: a freeze with "
    "another reason is in force, and --replace is missing. Exit code 2: invalid input. In both "
    "cases, nothing was frozen."
)
EXAMPLES = """
freeze --reason "deploy 2.1" --for 30m
freeze --reason "database maintenance" --until 2026-12-01T09:00
freeze --namespace shop --reason incident-4711
freeze --reason rollback --for 1h --replace
"""
NO_END = (
    "The freeze has no end, so it lasts until someone runs manage.py dcron unfreeze. To end it "
    "automatically, freeze with --for or --until."
)


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("--reason", required=True, metavar="TEXT", help="shown with the freeze")
    add_namespace(parser)
    option_values.add_end(parser, "the freeze", "when you unfreeze")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="replace a freeze in force that has another reason or a later end",
    )
    add_json(parser)


def add_namespace(parser: CommandParser) -> None:
    parser.add_argument("--namespace", default="", help="only this namespace (default: all)")


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output, now = Output(command, options), database_now(alias_for(Freeze))
    until = option_values.parse_end(options, now)
    try:
        made = control.freeze(
            options["reason"],
            options["namespace"],
            until,
            replace=options["replace"],
            by=user_name(),
        )
    except NotPossible as error:
        raise negative_result(f"Nothing was frozen. {error} Use --replace.") from None
    except InvalidValue as error:
        raise usage_error(f"Nothing was frozen. {error}.") from None
    if output.is_json:
        output.json({"version": 1, "freeze": freeze_document(made)})
        return
    output.line(f"{scope_text(made)}: frozen {_how_long(made)}: {made.reason}", GOOD)
    if made.until is None:
        output.line(NO_END, WARNING)
    replaced = made.replaced
    if replaced and (replaced.until, replaced.reason) != (made.until, made.reason):
        output.line(f"It was frozen {_how_long(replaced)}: {replaced.reason}")


def _how_long(freeze: Freeze) -> str:
    return f"until {time_text(freeze.until)}" if freeze.until else "until unfrozen"
