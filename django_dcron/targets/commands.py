"""Management commands as targets: those ``DCRON_COMMANDS`` allows, under ``command:NAME``.

Arguments are checked by the command's own parser, through the very path that runs it: ``call_command`` with a command
whose execution is left out.
"""

from __future__ import annotations

import sys
from typing import Any

from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError

from django_dcron.conf import settings
from django_dcron.exceptions import InvalidArguments
from django_dcron.phrases import Phrase
from django_dcron.phrases import gettext_noop as _
from django_dcron.targets.base import Invocation, Target, TargetKind, first_line

PREFIX = "command:"
OUTPUT_OPTIONS = ("stdout", "stderr")


class CommandTarget(Target):
    kind = TargetKind.COMMAND

    def __init__(self, name: str):
        self.key = f"{PREFIX}{name}"
        self.name = name

    @property
    def description(self) -> str:
        return first_line(str(self._load().help))

    def check_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        """``args`` are what one would type after the command's name, ``kwargs`` its options by destination name."""
        for argument in args:
            if not isinstance(argument, str | int | float):
                raise InvalidArguments(
                    _("%(value)s cannot stand on a command line"), "args", value=repr(argument)
                )
        for name in OUTPUT_OPTIONS:
            if name in kwargs:
                raise InvalidArguments(
                    _("%(name)s is set by django-dcron: the output goes to the log"),
                    "kwargs",
                    name=repr(name),
                )
        command = self._load()
        command.execute = lambda *args, **options: None  # type: ignore[method-assign]
        try:
            call_command(command, *map(str, args), **kwargs)
        except CommandError as error:
            raise InvalidArguments(str(error), "args") from None
        except (TypeError, ValueError) as error:
            raise InvalidArguments(str(error), "kwargs") from None
        except SystemExit:  # --help, --version
            raise InvalidArguments(
                _("%(words)s shows a text and runs nothing"), "args", words=" ".join(map(str, args))
            ) from None

    def call(self, invocation: Invocation) -> Any:
        """Run it with its output on ``sys.stdout``. Leaving by ``sys.exit`` with a code is a ``CommandError``."""
        output = dict.fromkeys(OUTPUT_OPTIONS, sys.stdout)
        try:
            return call_command(self.name, *map(str, invocation.args), **invocation.kwargs, **output)
        except SystemExit as leaving:
            if leaving.code in (None, 0):
                return None
            raise CommandError(f"{self.name} exited with {leaving.code}") from leaving

    def _load(self) -> BaseCommand:
        app = get_commands()[self.name]
        return app if isinstance(app, BaseCommand) else load_command_class(app, self.name)


def find(key: str) -> CommandTarget | None:
    name = key.removeprefix(PREFIX)
    return CommandTarget(name) if name in settings.COMMANDS and name in get_commands() else None


def keys() -> list[str]:
    return [f"{PREFIX}{name}" for name in settings.COMMANDS if name in get_commands()]


def why_unknown(key: str) -> Phrase:
    name = key.removeprefix(PREFIX)
    if name in settings.COMMANDS:
        text = _("DCRON_COMMANDS allows %(name)s, but there is no such management command")
    else:
        text = _("DCRON_COMMANDS does not allow %(name)s")
    return Phrase(text, name=repr(name))
