"""Shell commands as targets: those ``DCRON_SHELL`` names, under ``shell:NAME``.

The setting fixes the argument list and no shell ever reads it. The child leads a process group of its own, and however the
call ends, none of the group outlives an interruption.

Invariants:

- A job's own arguments go where the list has ``"{}"``. Without it the command takes none.
- An argument that begins with ``-`` could be an option of the program. It is taken only where the list has ``"--"`` before
  ``"{}"``, which ends the options for programs that follow POSIX.
- Both are checked when the arguments are saved, and again when the command runs.
"""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Any, cast

from django_dcron.conf import ARGUMENTS_PLACE, settings
from django_dcron.exceptions import DcronError, InvalidArguments
from django_dcron.phrases import Phrase
from django_dcron.phrases import gettext_noop as _
from django_dcron.targets.base import Invocation, Target, TargetKind

PREFIX = "shell:"
END_OF_OPTIONS = "--"
POLL_SECONDS = 0.2
"""How often a silent command's thread wakes, as an exception sent to it only arrives while it runs Python."""
TERMINATION_SECONDS = 5.0
"""How long an interrupted command may take to end before it is killed."""
CHUNK = 64 * 1024
LAST_LINE_LIMIT = 500


class ShellFailed(DcronError):
    """A shell command ended with another exit code than 0. ``exit_code`` is negative for a signal."""

    def __init__(self, name: str, exit_code: int, last_line: str):
        self.exit_code = exit_code
        self.last_line = last_line
        how = f"exited with {exit_code}" if exit_code > 0 else f"was ended by {_signal_name(-exit_code)}"
        super().__init__(f"{name} {how}{last_line and f': {last_line}'}")


class ShellTarget(Target):
    kind = TargetKind.SHELL

    def __init__(self, name: str, argv: Sequence[str]):
        self.key = f"{PREFIX}{name}"
        self.name = name
        self.argv = argv

    @property
    def description(self) -> str:
        return f"runs {os.path.basename(self.argv[0])}"  # no more: the rest may hold secrets

    def check_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        if kwargs:
            raise InvalidArguments(
                _("%(name)s: a shell command takes no arguments by name"),
                "kwargs",
                name=repr(next(iter(kwargs))),
            )
        if args and ARGUMENTS_PLACE not in self.argv:
            raise InvalidArguments(
                _('%(target)s takes no arguments; DCRON_SHELL allows them where its list has "%(place)s"'),
                "args",
                target=self.key,
                place=ARGUMENTS_PLACE,
            )
        for argument in args:
            if (
                isinstance(argument, bool)
                or not isinstance(argument, str | int | float)
                or "\0" in str(argument)
            ):
                raise InvalidArguments(
                    _("%(value)s is neither text nor a number"), "args", value=repr(argument)
                )
            if str(argument).startswith("-") and not self._ends_options():
                raise InvalidArguments(
                    _(
                        "%(value)s begins with a hyphen, so the program could take it for an option; "
                        'DCRON_SHELL allows that where its list has "%(end)s" before "%(place)s"'
                    ),
                    "args",
                    value=repr(argument),
                    end=END_OF_OPTIONS,
                    place=ARGUMENTS_PLACE,
                )

    def _ends_options(self) -> bool:
        """Whether the program reads no options where a job's own arguments stand."""
        before = self.argv[: self.argv.index(ARGUMENTS_PLACE)]
        return END_OF_OPTIONS in before

    def call(self, invocation: Invocation) -> None:
        """Run it with its output, line by line, on ``sys.stdout``; raises ``ShellFailed`` or ``InvalidArguments``."""
        self.check_arguments(invocation.args, invocation.kwargs)
        process = subprocess.Popen(  # noqa: S603 (the argument list is the project's own)
            self._filled_in(invocation.args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            last = _pass_on_output(process)
        except BaseException:
            _end_group(process)
            raise
        finally:
            _output(process).close()
        if process.returncode:
            raise ShellFailed(self.name, process.returncode, last[:LAST_LINE_LIMIT])

    def _filled_in(self, args: list[Any]) -> list[str]:
        given = [str(argument) for argument in args]
        return [part for word in self.argv for part in (given if word == ARGUMENTS_PLACE else [word])]


def _pass_on_output(process: subprocess.Popen[bytes]) -> str:
    """Copy the output to ``sys.stdout`` until the process has ended, and return its last line that says something."""
    last = ""
    for line in _lines(process):
        sys.stdout.write(line)
        last = line.strip() or last
    while process.poll() is None:  # it has closed its output but goes on
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
    return last


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """The output in lines with their ends; a line that never ends comes in pieces."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    for chunk in _chunks(process):
        *lines, rest = (rest + decoder.decode(chunk)).splitlines(keepends=True) or [""]
        yield from lines
        if rest.endswith("\n") or len(rest) > CHUNK:
            yield rest
            rest = ""
    if rest := rest + decoder.decode(b"", final=True):
        yield rest


def _chunks(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """What is read until the output's end, or until the process has ended and left the pipe to a child of its own."""
    descriptor = _output(process).fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if selector.select(POLL_SECONDS):
                if not (chunk := os.read(descriptor, CHUNK)):
                    return
                yield chunk
            elif process.poll() is not None:
                return


def _output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    return cast(IO[bytes], process.stdout)  # there is one: it was asked for


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask the process group to end, and kill what is left of it after ``TERMINATION_SECONDS``."""
    try:
        _signal_group(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATION_SECONDS)
    finally:  # whatever else arrives meanwhile
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # none left; on macOS only zombies left
        os.killpg(process.pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def find(key: str) -> ShellTarget | None:
    name = key.removeprefix(PREFIX)
    argv = settings.SHELL.get(name)
    return ShellTarget(name, argv) if argv else None


def keys() -> list[str]:
    return [f"{PREFIX}{name}" for name in settings.SHELL]


def why_unknown(key: str) -> Phrase:
    return Phrase(_("DCRON_SHELL names no %(name)s"), name=repr(key.removeprefix(PREFIX)))
