"""``manage.py dcron limit``: create, change or delete a shared limit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import Conflict, NotPossible
from django_dcron.jobs.representation import document_of
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.limits import maximum_text
from django_dcron.management.dcron.option_values import parse_duration_option, parse_whole_number
from django_dcron.management.dcron.output import GOOD, Output, add_json
from django_dcron.models import Limit
from django_dcron.models.limit import LARGEST_MAXIMUM
from django_dcron.utils.messages import any_of
from django_dcron.utils.suggestions import similar_names

HELP = (
    "Create a shared limit, change it, or delete it. A change keeps the values of the options that "
    "you leave out. Exit code 1: the limit is in use and can't be deleted. Exit code 2: invalid "
    "input, and nothing was changed."
)
EXAMPLES = """
limit payment-api --max-running 3
limit sms --max-started 100 --interval 1m
limit customers --max-running 1 --key "customer:{kwargs[customer_id]}"
limit sms --max-running 5 --max-started none --interval none
limit payment-api --delete
"""
NO_VALUE = "none"
FIELDS = ("max_running", "max_started", "interval", "key", "description")
_parse_maximum = parse_whole_number(1, LARGEST_MAXIMUM)


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("name", help="the limit")
    for option, what in (
        ("--max-running", "how many runs may execute at the same time"),
        ("--max-started", "how many runs may start within the interval"),
    ):
        parser.add_argument(
            option,
            type=_maximum,
            metavar="NUMBER",
            help=f"{what}: 1 to {LARGEST_MAXIMUM}, or {NO_VALUE}",
        )
    parser.add_argument(
        "--interval",
        metavar="DURATION",
        help=f"the interval for --max-started, such as 1m, or {NO_VALUE}",
    )
    parser.add_argument(
        "--key",
        metavar="TEXT",
        help='count each value of an argument separately: "customer:{kwargs[customer_id]}" or '
        '"{args[0]}". "" counts all runs together',
    )
    parser.add_argument("--description", metavar="TEXT", help="what the limit protects")
    parser.add_argument("--delete", action="store_true", help="delete the limit")
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output, name = Output(command, options), options["name"]
    values = _values(options)
    if options["delete"] and values:
        raise usage_error(f"--delete can't be combined with {_option_names()}.")
    if not options["delete"] and not values:
        raise usage_error(f"Nothing to change. Use {_option_names()}, or --delete.")
    limit = Limit.objects.using(alias_for(Limit)).filter(pk=name).first()
    try:
        if options["delete"]:
            outcome = "deleted"
            limit = _delete(name, limit)
        else:
            outcome = "created" if limit is None else "changed"
            limit = _save(limit or Limit(name=name), values)
    except NotPossible as error:
        raise negative_result(str(error)) from None
    except Conflict as error:
        raise usage_error(str(error)) from None
    except ValidationError as error:
        raise usage_error(f"Nothing was changed. {_problems(error)}") from None
    if output.is_json:
        output.json({"version": 1, "outcome": outcome, "limit": document_of(limit)})
    elif outcome == "deleted":
        output.line(f"{limit.name}: deleted", GOOD)
    else:
        key = f", per {limit.key}" if limit.key else ""
        output.line(f"{limit.name}: {outcome}: {maximum_text(limit)}{key}", GOOD)


def _values(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the options set."""
    given = {field: options[field] for field in FIELDS if options[field] is not None}
    if "interval" in given:
        given["interval"] = _interval(given["interval"])
    return {field: None if value == NO_VALUE else value for field, value in given.items()}


def _interval(text: str) -> timedelta | str:
    return text if text == NO_VALUE else parse_duration_option("--interval", text)


def _maximum(text: str) -> int | str:
    return text if text == NO_VALUE else _parse_maximum(text)


def _save(limit: Limit, values: dict[str, Any]) -> Limit:
    for field, value in values.items():
        setattr(limit, field, value)
    return control.save_limit(limit)


def _delete(name: str, limit: Limit | None) -> Limit:
    if limit is None:
        names = Limit.objects.using(alias_for(Limit)).values_list("pk", flat=True)
        near = similar_names(name, names, most=3)
        hint = f" Did you mean {any_of(near)}?" if near else " To list all: manage.py dcron limits"
        raise usage_error(f"Unknown limit {name!r}.{hint}")
    control.delete_limit(limit, expected_version=limit.version)
    return limit


def _option_names() -> str:
    return ", ".join(f"--{field.replace('_', '-')}" for field in FIELDS)


def _problems(error: ValidationError) -> str:
    """Return the errors with their fields."""
    return " ".join(
        f"{field}: {message}"
        for field, messages in error.message_dict.items()
        for message in messages
    )
