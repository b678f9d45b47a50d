"""Define the arguments of ``runcron``, and pass them from ``start`` to ``runcron``.

``start`` keeps the arguments as text, because it stores them. The types of ``runcron`` validate
them.
"""

from __future__ import annotations

import platform
from argparse import Action, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser

from django_dcron.monitoring.http.server import LOCALHOST, Address
from django_dcron.utils.bounded_text import replace_unstorable
from django_dcron.utils.durations import parse_duration_text

SKIP_CHECKS = "--skip-checks"


def define(parser: CommandParser) -> None:
    """Add the options of ``runcron``, except those of every Django command."""
    parser.add_argument(
        "--name",
        type=_at_most(120),
        default=platform.node()[:120],
        help="name of the node in logs and the admin (default: host name)",
    )
    parser.add_argument(
        "--namespace",
        type=_at_most(64),
        default="",
        help="serve only the jobs of this namespace (default: all)",
    )
    parser.add_argument("--once", action="store_true", help="process due jobs once, then stop")
    parser.add_argument(
        "--for",
        dest="seconds",
        type=_seconds,
        metavar="DURATION",
        help="stop after this time: seconds, or a duration such as 90s or 1h",
    )
    parser.add_argument(
        "--embedded",
        action="store_true",
        help=(
            "execute runs in threads of this process, with locks in the database; needs no "
            "Redis or Celery"
        ),
    )
    parser.add_argument(
        "--health-file",
        metavar="PATH",
        help=("write the node's health to this JSON file; check it with dcron health --file PATH"),
    )
    parser.add_argument(
        "--http",
        type=_address,
        metavar="[HOST:]PORT",
        help=(f"serve /livez, /readyz, /health and /metrics over HTTP (default HOST: {LOCALHOST})"),
    )


def add_as_text(parser: CommandParser) -> None:
    """Add the options of ``runcron``. Their values are checked, and remain text."""
    existing = set(map(id, parser._actions))
    define(parser)
    for action in parser._actions:
        if id(action) not in existing and callable(action.type):
            action.type = _checked_text(action.type)


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Return the options as command-line arguments for ``runcron``, without defaults."""
    parser = CommandParser(add_help=False)
    define(parser)
    given = [part for action in parser._actions for part in _written(action, options[action.dest])]
    unchecked = [SKIP_CHECKS] if options["skip_checks_of_node"] else []
    return [*given, *unchecked, f"--verbosity={options['verbosity']}"]


def check_runcron_arguments(arguments: Sequence[str]) -> None:
    """Raise ``CommandError`` for arguments that ``runcron`` doesn't accept."""
    parser = BaseCommand().create_parser("manage.py", "runcron")
    define(parser)
    parser.parse_args(arguments)


def run_in_foreground(arguments: Sequence[str]) -> None:
    """Run a node, after the system checks of ``runcron`` unless the arguments skip them.

    Returns, or raises ``SystemExit``, when the node ends.
    """
    call_command("runcron", *arguments, skip_checks=SKIP_CHECKS in arguments)


def _checked_text(read: Callable[[str], Any]) -> Callable[[str], str]:
    def checked(text: str) -> str:
        read(text)
        return text

    return checked


def _written(action: Action, value: Any) -> Iterator[str]:
    option = action.option_strings[-1]
    if action.nargs == 0:
        if value:
            yield option
    elif value != action.default:
        yield f"{option}={value}"


def _at_most(characters: int) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if len(text) > characters:
            raise ArgumentTypeError(f"{text!r} has more than {characters} characters")
        if replace_unstorable(text) != text:  # bytes in another encoding
            raise ArgumentTypeError(f"{text!r} isn't valid UTF-8")
        return text

    return checked


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        length = parse_duration_text(text)
        seconds = length.total_seconds() if length else -1
    if not 0 < seconds < float("inf"):
        raise ArgumentTypeError(
            f"{text!r} isn't a positive number of seconds or a duration such as 90s or 1h"
        )
    return seconds


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
