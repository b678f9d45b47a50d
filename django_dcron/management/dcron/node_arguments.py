"""Pass arguments from ``start`` to ``runcron``.

The arguments stay text: ``runcron``'s own parser validates them, and they are stored as text.
"""

from __future__ import annotations

from argparse import Action
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django.core.management import call_command
from django.core.management.base import CommandParser

from django_dcron.management.commands import runcron

SKIP_CHECKS = "--skip-checks"


def add_arguments(parser: CommandParser) -> None:
    """Add all options of ``runcron``, except those of every Django command."""
    there = set(map(id, parser._actions))
    runcron.Command().add_arguments(parser)
    for action in parser._actions:
        if id(action) not in there and callable(action.type):
            action.type = _checked_text(action.type)


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Return the options as command-line arguments for ``runcron``, without defaults."""
    parser = CommandParser(add_help=False)
    runcron.Command().add_arguments(parser)
    given = [part for action in parser._actions for part in _written(action, options[action.dest])]
    unchecked = [SKIP_CHECKS] if options["skip_checks_of_node"] else []
    return [*given, *unchecked, f"--verbosity={options['verbosity']}"]


def check(arguments: Sequence[str]) -> None:
    """Raise ``CommandError`` for arguments that ``runcron`` doesn't accept."""
    runcron.Command().create_parser("manage.py", "runcron").parse_args(arguments)


def run(arguments: Sequence[str]) -> None:
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
