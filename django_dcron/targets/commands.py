"""Management commands that ``DCRON_COMMANDS`` allows as targets, with the key ``command:NAME``.

The command's own parser checks the arguments. The check calls ``call_command``, as a run does, but
with an ``execute`` that does nothing.

Invariants:

- A command gets no argument that ``DCRON_COMMANDS`` doesn't list for it, however the argument is
  written: in full, abbreviated, by name, inside a value, or below a subcommand.
- The arguments are checked when the parser assigns words to them.
- They are checked when they are saved, and again when the command runs.
"""

from __future__ import annotations

import sys
from argparse import Action, ArgumentParser, _SubParsersAction
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError

from django_dcron.conf import ALL_ARGUMENTS, settings
from django_dcron.exceptions import InvalidArguments
from django_dcron.targets.base import Invocation, Target, TargetKind, first_line
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.suggestions import nearest

PREFIX = "command:"
OUTPUT_OPTIONS = ("stdout", "stderr")
COMMON_OPTIONS = frozenset(
    {
        "--help",
        "--version",
        "--verbosity",
        "--traceback",
        "--no-color",
        "--force-color",
        "--skip-checks",
    }
)
"""Options of every command, which ``DCRON_COMMANDS`` needn't list.

They change only the output and whether Django's system checks run. ``check_arguments`` refuses
``--help`` and ``--version``, with which the command would do nothing.
"""


class CommandTarget(Target):
    kind = TargetKind.COMMAND

    def __init__(self, name: str):
        self.key = f"{PREFIX}{name}"
        self.name = name

    @property
    def description(self) -> str:
        """The first line of the command's help, or the error if the command can't be loaded."""
        try:
            return first_line(str(load_command(self.name).help))
        except Exception as error:  # loading imports the project's code
            return f"{type(error).__name__}: {first_line(str(error))}"

    def check_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Check the arguments: ``args`` as on a command line, ``kwargs`` as options by name."""
        for argument in args:
            if not isinstance(argument, str | int | float):
                raise InvalidArguments(
                    _("%(value)s can't be passed on a command line. Use text or a number."),
                    "args",
                    value=repr(argument),
                    code="not_text",
                )
        for name in OUTPUT_OPTIONS:
            if name in kwargs:
                raise InvalidArguments(
                    _(
                        "%(name)s can't be set, because django-dcron writes the output to the "
                        "log. Remove it."
                    ),
                    "kwargs",
                    name=repr(name),
                    code="output_option",
                )
        command = load_command(self.name)
        command.execute = lambda *args, **options: None  # type: ignore[method-assign]
        try:
            self._call(command, args, kwargs)
        except InvalidArguments:
            raise
        except CommandError as error:
            raise InvalidArguments(str(error), "args") from None
        except (TypeError, ValueError) as error:
            raise InvalidArguments(str(error), "kwargs") from None
        except SystemExit:  # --help, --version
            raise InvalidArguments(
                _("%(words)s only prints text and runs nothing. Remove it."),
                "args",
                words=" ".join(map(str, args)),
                code="prints_text",
            ) from None

    def call(self, invocation: Invocation) -> Any:
        """Run the command with its output on ``sys.stdout``.

        ``sys.exit`` with a code other than 0 becomes a ``CommandError``.
        """
        output = dict.fromkeys(OUTPUT_OPTIONS, sys.stdout)
        try:
            return self._call(load_command(self.name), invocation.args, invocation.kwargs, **output)
        except SystemExit as leaving:
            if leaving.code in (None, 0):
                return None
            raise CommandError(f"{self.name} exited with code {leaving.code}") from leaving

    def _call(
        self, command: BaseCommand, args: list[Any], kwargs: dict[str, Any], **output: Any
    ) -> Any:
        """Call the command. Raises ``InvalidArguments`` if ``DCRON_COMMANDS`` forbids arguments."""
        allowed = allowed_arguments(self.name)
        if allowed is not None:
            guard = _Guard(self.name, allowed)
            guard.check_by_name(command, kwargs)
            guard.watch_parsers_of(command)
        return call_command(command, *map(str, args), **kwargs, **output)


class _Guard:
    """Refuses arguments of one command that aren't in ``allowed``."""

    def __init__(self, command: str, allowed: Collection[str]):
        self.command = command
        self.allowed = allowed

    def watch_parsers_of(self, command: BaseCommand) -> None:
        """Make the parsers of ``command`` refuse an argument once words are assigned to it."""
        create_parser = command.create_parser

        def create_watched_parser(*args: Any, **kwargs: Any) -> ArgumentParser:
            parser = create_parser(*args, **kwargs)
            for each in _with_subparsers(parser):
                get_values = each._get_values  # called once for each argument that is used
                each._get_values = partial(self._checked_values, get_values)  # type: ignore[method-assign]
            return parser

        command.create_parser = create_watched_parser  # type: ignore[assignment, method-assign]

    def _checked_values(
        self, get_values: Callable[[Action, list[str]], Any], action: Action, words: list[str]
    ) -> Any:
        if action.option_strings or words:  # a positional without words only gets its default
            self._check(_names_of(action, words), "args")
        return get_values(action, words)

    def check_by_name(self, command: BaseCommand, kwargs: Mapping[str, Any]) -> None:
        """Check options by name. ``call_command`` passes most of them on without the parser."""
        actions = list(_actions(command))
        for name in kwargs:
            matching = [
                action
                for action in actions
                if name == action.dest or name == _name_of_option(action)
            ]
            for action in matching:
                if _is_required_positional(action):
                    raise InvalidArguments(
                        _(
                            "%(name)s is a positional argument. Add it to the list of "
                            "positional arguments."
                        ),
                        "kwargs",
                        name=repr(name),
                        code="positional",
                    )
                self._check(_names_of(action, []), "kwargs")
            if not matching and name in command.stealth_options:
                self._check([name], "kwargs")

    def _check(self, names: Sequence[str], field: str) -> None:
        """Check one argument. ``names`` are all of its names, empty if it is always allowed."""
        if not names or not {*names}.isdisjoint({*self.allowed, *COMMON_OPTIONS}):
            return
        argument = max(names, key=len)
        values = {"argument": argument, "command": self.command}
        if self.allowed:
            raise InvalidArguments(
                _(
                    "DCRON_COMMANDS doesn't allow %(argument)s for %(command)s (allowed: "
                    "%(allowed)s). To allow it, add it to the command's list."
                ),
                field,
                allowed=", ".join(self.allowed),
                **values,
                code="not_allowed",
            )
        raise InvalidArguments(
            _(
                "DCRON_COMMANDS allows no arguments for %(command)s. To allow "
                "%(argument)s, write the setting as a dict with the item %(entry)s."
            ),
            field,
            entry=f'"{self.command}": ["{argument}"]',
            **values,
            code="not_allowed",
        )


def load_command(name: str) -> BaseCommand:
    """Return a new instance of the command, so that callers may change it."""
    app = get_commands()[name]
    return copy(app) if isinstance(app, BaseCommand) else load_command_class(app, name)


def allowed_arguments(name: str) -> Collection[str] | None:
    """Return the arguments that ``DCRON_COMMANDS`` lists for the command; None allows all."""
    commands = settings.COMMANDS
    allowed = commands.get(name, ()) if isinstance(commands, Mapping) else ()
    return None if allowed == ALL_ARGUMENTS else allowed


def argument_names(command: BaseCommand) -> list[str]:
    """Return the names that ``DCRON_COMMANDS`` may list for the command.

    These are options as typed, positionals by name, and subcommands.
    """
    names = [name for action in _actions(command) for name in _names_of(action, [])]
    for parser in _with_subparsers(_parser_of(command)):
        for action in parser._actions:
            if isinstance(action, _SubParsersAction):
                names += action.choices or ()
    return [*names, *command.stealth_options]


def names_of_keywords(command: BaseCommand, keywords: Collection[str]) -> list[str]:
    """Return the names in ``DCRON_COMMANDS`` of the arguments that these keyword arguments set."""
    names = [
        name
        for action in _actions(command)
        if action.dest in keywords or _name_of_option(action) in keywords
        for name in _names_of(action, [])
    ]
    return [*names, *(name for name in command.stealth_options if name in keywords)]


def _parser_of(command: BaseCommand) -> ArgumentParser:
    return command.create_parser("", "")


def _actions(command: BaseCommand) -> Iterator[Action]:
    """Yield the arguments of the command and of its subcommands."""
    for parser in _with_subparsers(_parser_of(command)):
        yield from (
            action for action in parser._actions if not isinstance(action, _SubParsersAction)
        )


def _with_subparsers(parser: ArgumentParser) -> Iterator[ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for below in {id(each): each for each in action.choices.values()}.values():
                yield from _with_subparsers(below)


def _is_required_positional(action: Action) -> bool:
    """Return whether the argument is a required positional.

    ``nargs="*"`` without a default counts as required, as before Python 3.14. Otherwise,
    ``call_command`` wouldn't check its type.
    """
    if action.option_strings:
        return False
    return action.required or (action.nargs == "*" and action.default is None)


def _names_of(action: Action, words: Sequence[str]) -> Sequence[str]:
    """Return an argument's names in ``DCRON_COMMANDS``. ``words`` are the argument's values."""
    if isinstance(action, _SubParsersAction):
        return words[:1] if words and words[0] in action.choices else ()
    return action.option_strings or (action.dest,)


def _name_of_option(action: Action) -> str | None:
    """Return the name of an option that ``call_command`` accepts in addition to its ``dest``."""
    if not action.option_strings:
        return None
    return min(action.option_strings).lstrip("-").replace("-", "_")


def find(key: str) -> CommandTarget | None:
    name = key.removeprefix(PREFIX)
    return CommandTarget(name) if name in settings.COMMANDS and name in get_commands() else None


def keys() -> list[str]:
    return [f"{PREFIX}{name}" for name in settings.COMMANDS if name in get_commands()]


def why_unknown(key: str) -> TranslatableText:
    name = key.removeprefix(PREFIX)
    commands = get_commands()
    near: TranslatableText | str = ""
    if name in commands:
        text = _("DCRON_COMMANDS doesn't list %(name)s. Add it there, or use another target")
    elif name in settings.COMMANDS:
        text = _("DCRON_COMMANDS allows %(name)s, but no management command has this name")
    elif near := nearest(name, commands.keys() - settings.COMMANDS):
        text = _(
            "no management command has this name (similar, but not in DCRON_COMMANDS: %(near)s)"
        )
    else:
        text = _("no management command has this name")
    return TranslatableText(text, name=repr(name), near=near)
