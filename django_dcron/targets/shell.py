"""The commands in ``DCRON_SHELL``, as targets with the key ``shell:NAME``.

The setting defines each command as a list of arguments. No shell interprets them.

Invariants:

- The child leads its own process group. No process of the group survives an interruption, or the
  death of the process that started it.
- A job's arguments replace ``"{}"`` in the list. Without ``"{}"``, the command accepts none.
- An argument that begins with ``-`` could be an option of the program. It is accepted only if the
  list has ``"--"`` before ``"{}"``, which ends the options for programs that follow POSIX.
- Both rules are checked when the arguments are saved, and again when the command runs.
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

from django_dcron.conf import ARGUMENTS_PLACEHOLDER, settings
from django_dcron.exceptions import DcronError, InvalidArguments
from django_dcron.targets.base import Invocation, Target, TargetKind
from django_dcron.targets.process_guard import ProcessGuard
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _

PREFIX = "shell:"
END_OF_OPTIONS = "--"
POLL_SECONDS = 0.2
"""How often a thread that waits for output wakes up. Only a thread that executes Python code
receives an asynchronous exception, such as a timeout.
"""
TERMINATION_SECONDS = 5.0
"""How long an interrupted command may take to end before it is killed."""
CHUNK_SIZE = 64 * 1024
"""The number of bytes to read at once. A longer line is passed on in parts."""
LAST_LINE_LIMIT = 500


class ShellFailed(DcronError):
    """A command exited with a code other than 0, or a signal ended it.

    ``exit_code`` is the negative signal number if a signal ended the command.
    """

    def __init__(self, name: str, exit_code: int, last_line: str):
        self.exit_code = exit_code
        self.last_line = last_line
        how = (
            f"exited with code {exit_code}"
            if exit_code > 0
            else f"was terminated by {_signal_name(-exit_code)}"
        )
        super().__init__(f"{name} {how}{last_line and f': {last_line}'}")


class ShellTarget(Target):
    kind = TargetKind.SHELL

    def __init__(self, name: str, argv: Sequence[str]):
        self.key = f"{PREFIX}{name}"
        self.name = name
        self.argv = argv

    @property
    def description(self) -> str:
        return f"Runs {os.path.basename(self.argv[0])}"  # the rest may contain secrets

    def check_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        if kwargs:
            raise InvalidArguments(
                _("Shell commands don't accept keyword arguments. Remove %(name)s."),
                "kwargs",
                name=repr(next(iter(kwargs))),
                code="by_name",
            )
        if args and ARGUMENTS_PLACEHOLDER not in self.argv:
            raise InvalidArguments(
                _(
                    '%(target)s doesn\'t accept arguments. To allow them, add "%(place)s" '
                    "to its list in DCRON_SHELL."
                ),
                "args",
                target=self.key,
                place=ARGUMENTS_PLACEHOLDER,
                code="no_arguments",
            )
        for argument in args:
            self._check_argument(argument)

    def _check_argument(self, argument: Any) -> None:
        is_word = isinstance(argument, str | int | float) and not isinstance(argument, bool)
        if not is_word or "\0" in str(argument):
            raise InvalidArguments(
                _(
                    "%(value)s can't be passed on a command line. Use text without NUL "
                    "characters, or a number."
                ),
                "args",
                value=repr(argument),
                code="not_text",
            )
        if str(argument).startswith("-") and not self._has_end_of_options():
            raise InvalidArguments(
                _(
                    "%(value)s begins with a hyphen, so the program could treat it as "
                    'an option. To allow it, add "%(end)s" before "%(place)s" to the '
                    "list in DCRON_SHELL."
                ),
                "args",
                value=repr(argument),
                end=END_OF_OPTIONS,
                place=ARGUMENTS_PLACEHOLDER,
                code="option",
            )

    def _has_end_of_options(self) -> bool:
        """Return whether ``"--"`` comes before the job's arguments, so that they aren't options."""
        before = self.argv[: self.argv.index(ARGUMENTS_PLACEHOLDER)]
        return END_OF_OPTIONS in before

    def call(self, invocation: Invocation) -> None:
        """Run the command and copy its output to ``sys.stdout``, line by line.

        Raises ``ShellFailed`` or ``InvalidArguments``.
        """
        self.check_arguments(invocation.args, invocation.kwargs)
        process = subprocess.Popen(  # noqa: S603 (the argument list is the project's own)
            self._argv_with(invocation.args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        guard = None
        try:
            guard = ProcessGuard(process.pid, TERMINATION_SECONDS)
            last = _copy_output(process)
        except BaseException:
            _end_group(process)
            raise
        finally:
            if guard is not None:
                guard.dismiss()
            _output(process).close()
        if process.returncode:
            raise ShellFailed(self.name, process.returncode, last[:LAST_LINE_LIMIT])

    def _argv_with(self, args: list[Any]) -> list[str]:
        """Return the argument list with ``args`` in place of ``"{}"``."""
        argv: list[str] = []
        for word in self.argv:
            argv += map(str, args) if word == ARGUMENTS_PLACEHOLDER else [word]
        return argv


def _copy_output(process: subprocess.Popen[bytes]) -> str:
    """Copy the output to ``sys.stdout`` until the process ends. Returns the last non-empty line."""
    last = ""
    for line in _lines(process):
        sys.stdout.write(line)
        last = line.strip() or last
    while process.poll() is None:  # it has closed its output but is still running
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
    return last


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield the output in lines with their line ends. A very long line is split."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    for chunk in _chunks(process):
        *lines, rest = (rest + decoder.decode(chunk)).splitlines(keepends=True) or [""]
        yield from lines
        if rest.endswith("\n") or len(rest) > CHUNK_SIZE:
            yield rest
            rest = ""
    if rest := rest + decoder.decode(b"", final=True):
        yield rest


def _chunks(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield the output until end of file, or until the process has ended and its output stops.

    It doesn't wait for end of file, because a child of the process may keep the pipe open.
    """
    descriptor = _output(process).fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if selector.select(POLL_SECONDS):
                if not (chunk := os.read(descriptor, CHUNK_SIZE)):
                    return
                yield chunk
            elif process.poll() is not None:
                return


def _output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    return cast(IO[bytes], process.stdout)  # never None, because stdout is a pipe


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the process group. Send SIGKILL once the command has ended or timed out.

    The command gets ``TERMINATION_SECONDS`` to end.
    """
    try:
        _signal_group(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATION_SECONDS)
    finally:  # even if another asynchronous exception interrupts the wait
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # The errors mean that no process is left, or on macOS only zombies.
    with suppress(ProcessLookupError, PermissionError):
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


def why_unknown(key: str) -> TranslatableText:
    return TranslatableText(
        _("DCRON_SHELL doesn't define %(name)s. Add it there, or use another target"),
        name=repr(key.removeprefix(PREFIX)),
    )
