"""Read the lines of crontabs: their times, users and commands, with the variables that apply."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import NamedTuple

from django_dcron.contrib.importers.management_calls import (
    ManagementCall,
    OtherProject,
    called_command,
    other_project_of,
    plain_call,
    reduced_call,
)
from django_dcron.contrib.importers.names import clean_name
from django_dcron.contrib.importers.source_contents import SourceContents, SourceEntry
from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.utils.counts import number_of
from django_dcron.utils.docs_links import ALERTS_PAGE, with_link

DEFAULT_SHELL = "/bin/sh"
ENV = "/usr/bin/env"
_VARIABLE = re.compile(r"""(?P<name>[^\s=]+|"[^"]*"|'[^']*')\s*=""")
_DISABLED_VARIABLE = re.compile(r"[A-Za-z_]\w*\s*=")
_SCRIPT_ENDING = re.compile(r"\.(?:bash|js|ksh|php|pl|py|rb|sh|zsh)$")
_PROGRAM = re.compile(r"[\w.@:-]+")
_BEFORE_COMMAND = re.compile(
    r"""
    cd\s+\S+\s*(?:&&|;)\s*
    | \w+=(?:"[^"]*"|'[^']*'|\S*)\s+                # a variable
    | (?:\S*/)?(?:exec|sudo|nice|env)\s+
    | -\S+\s+                                       # an option of the preceding word
    | (?:\S*/)?(?:python[\d.]*|ba?sh|perl|php|ruby|node)\s+(?=[\w./-]+\.\w+(?:\s|$))  # interpreter
    """,
    re.VERBOSE,
)
"""One of the words that may precede a command, such as the interpreter of a script."""
_WRAPPER = re.compile(
    r"""
    (?:\S*/)?flock\s+(?:-\S+\s+|\d+\s+)*\S+\s+
    | (?:\S*/)?timeout\s+(?:-(?:[ks]\s*\S+|[^\sks]\S*)\s+)*\d[\d.]*[smhd]?\s+
    | (?:\S*/)?ionice\s+(?:-[cn]\s*\w+\s+|-t\s+)*
    | (?:\S*/)?chronic\s+
    | (?:(?:\.|source)\s+[^\s;&]+|set(?:\s+[-+]?\w+)+)\s*(?:&&|;)\s*
    | -?\d[\d.]*[smhd]?\s+                          # of ``nice -n 10``, or a second duration
    """,
    re.VERBOSE,
)
"""A program that runs the following command, or a preparation of the shell that precedes it."""
_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
_TIME_FIELD = re.compile(r"[\d*/,-]+")
_LEGEND = re.compile(r"[|┌│└]|[.+]-|m(?:in\w*)?\s+h(?:our\w*)?\s+(?:dom|day)", re.IGNORECASE)
"""The beginning of a comment that names the time fields, as in the templates of crontabs."""
OWN_VARIABLES = {
    "SHELL",
    "MAILTO",
    "MAILFROM",
    "CRON_TZ",
    "RANDOM_DELAY",
    "CONTENT_TYPE",
    "CONTENT_TRANSFER_ENCODING",
}
"""Variables that cron reads itself. All others are the command's environment."""


@dataclass(frozen=True, slots=True)
class CrontabLine:
    number: int
    schedule: str
    timezone: str
    states_timezone: bool
    """Whether a ``CRON_TZ`` precedes the line."""
    user: str
    program: str
    """The name of the program or of the management command."""
    outer_program: str
    """Like ``program``, but for ``sh -c`` or ``flock`` that program itself. It identifies the
    imported jobs.
    """
    command: str
    """The command without its standard input."""
    script: str
    """What the shell executes: the command, and its standard input as a pipe."""
    environment: tuple[tuple[str, str], ...]
    shell: str
    comment: str
    call: ManagementCall | None
    """The call of a management command that the line can be reduced to, or None."""
    called_command: str
    """The management command that the line calls, possibly among other things, or ""."""
    other_project: OtherProject | None
    """The project that the line calls instead of this one. The job then needs the shell."""

    @property
    def argv(self) -> list[str]:
        call = [self.shell, "-c", self.script]
        if not self.environment:
            return call
        return [ENV, *(f"{name}={value}" for name, value in self.environment), *call]


def read_lines(
    text: str,
    timezone: str,
    contents: SourceContents,
    *,
    system: bool = False,
    without_shell: bool = False,
) -> Iterator[CrontabLine]:
    """Yield the entries. Add invalid lines and notes to ``contents``.

    ``without_shell``: whether a line that calls a management command is reduced to that call.
    """
    read_call = reduced_call if without_shell else plain_call
    variables: dict[str, str] = {}
    comments: list[list[str]] = [[]]
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("#"):
            _add_comment(comments, line.lstrip("# ").rstrip(), system)
            continue
        description, comments = "\n".join(next(filter(None, reversed(comments)), [])), [[]]
        if not line:
            continue
        if (variable := _variable(line)) is not None:
            _set_variable(variables, *variable, contents)
            continue
        parts = _split_line(line, system)
        if parts is None:
            contents.entries.append(
                SourceEntry(f"line {number}", f"line {number}", refused=_why_invalid(line, system))
            )
            continue
        environment = {
            name: value for name, value in variables.items() if name not in OWN_VARIABLES
        }
        command, *stdin = _split_at_percent(parts.command)
        script = _with_stdin(command, stdin)
        yield CrontabLine(
            number=number,
            schedule=parts.schedule,
            timezone=variables.get("CRON_TZ") or timezone,
            states_timezone=bool(variables.get("CRON_TZ")),
            user=parts.user,
            program=_program_name(command),
            outer_program=_outer_program_name(parts.command),
            command=command,
            script=script,
            environment=tuple(environment.items()),
            shell=variables.get("SHELL") or DEFAULT_SHELL,  # nosec B604
            comment=description,
            call=read_call(script, environment),
            called_command=called_command(command),
            other_project=other_project_of(command),
        )


def _add_comment(blocks: list[list[str]], comment: str, system: bool) -> None:
    """Add a comment to the last block above a line. The last block that isn't empty describes it.

    A disabled entry ends a block: a comment below it doesn't belong to the comments above it. A
    disabled variable is skipped.
    """
    if _LEGEND.match(comment):
        blocks[:] = [[]]
    elif _is_disabled_entry(comment, system):
        blocks.append([])
    elif comment and _DISABLED_VARIABLE.match(comment) is None:
        blocks[-1].append(comment)


def _why_invalid(line: str, system: bool) -> str:
    """Return why a line isn't an entry: often, one of the five fields is missing."""
    parts = "a time, a user and a command" if system else "a time and a command"
    fields = len(list(takewhile(_TIME_FIELD.fullmatch, line.split())))
    if 0 < fields < 5 and not line.startswith("@"):
        has = number_of(fields, "time field")
        return f"{line!r:.80} is not {parts}: it has {has}, and cron needs five"
    return f"{line!r:.80} is not {parts}"


def _is_disabled_entry(comment: str, system: bool) -> bool:
    """Return whether a comment is an entry of a crontab that someone disabled."""
    parts = _split_line(comment, system)
    if parts is None:
        return False
    if parts.schedule.lower() == "@reboot":
        return True
    try:
        parse_schedule(parts.schedule)
    except InvalidSchedule:
        return False
    return True


def _variable(line: str) -> tuple[str, str] | None:
    """Return name and value of an assignment, or None. ``line`` has no surrounding spaces."""
    match = _VARIABLE.match(line)
    if match is None:
        return None
    value = line[match.end() :].strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return match["name"].strip("'\""), value


def _set_variable(
    variables: dict[str, str], name: str, value: str, contents: SourceContents
) -> None:
    variables[name] = value
    if name == "MAILTO" and value:
        contents.notes.append(
            with_link(
                f"MAILTO={value} is ignored. Output is stored with each run and not mailed. Use "
                "alerts instead.",
                ALERTS_PAGE,
            )
        )
    if name == "TZ":
        contents.notes.append(
            "TZ only sets an environment variable of the commands. Schedules use CRON_TZ, "
            "as in cron."
        )
    if name == "RANDOM_DELAY":
        contents.notes.append("RANDOM_DELAY is ignored. Set the jitter of a job instead.")


class _LineParts(NamedTuple):
    schedule: str
    user: str
    command: str


def _split_line(line: str, system: bool) -> _LineParts | None:
    """Split a line into its parts. Return None if a part is missing."""
    line = line.removeprefix("-")  # in some crons, this means: don't log the command
    fields = 1 if line.startswith("@") else 5
    parts = line.split(None, fields + system)
    if len(parts) <= fields + system:
        return None
    return _LineParts(" ".join(parts[:fields]), parts[fields] if system else "", parts[-1])


def _program_name(command: str) -> str:
    """Return the name of the program, or of the one that ``sh -c``, ``flock`` or ``nice`` runs."""
    call = command[_start_of_program(command) :]
    wrapper = _WRAPPER.match(call)
    inner = call[wrapper.end() :] if wrapper else _command_of_shell(call)
    return _program_name(inner) if inner and inner.strip() else _outer_program_name(command)


def _command_of_shell(call: str) -> str | None:
    """Return the command that a shell gets, as in ``sh -c 'cd /srv && ./backup.sh'``."""
    try:
        program, *words = shlex.split(call)
    except ValueError:  # an open quote, or nothing
        return None
    if program.rsplit("/", 1)[-1] not in _SHELLS:
        return None
    for option, word in pairwise(words):
        if not option.startswith("-"):
            return None
        if option.endswith("c"):
            return word
    return None


def _outer_program_name(command: str) -> str:
    """Return the name of the management command, or of the program without a script's ending."""
    if management := called_command(command):
        return clean_name(management)
    words = command[_start_of_program(command) :].split(maxsplit=1) or [""]
    match = _PROGRAM.search(words[0].strip("'\"()").rsplit("/", 1)[-1])
    return clean_name(_SCRIPT_ENDING.sub("", match[0])) if match else "command"


def _start_of_program(command: str) -> int:
    """Return where the program's name starts, after ``cd``, variables and interpreters."""
    start = 0
    while before := _BEFORE_COMMAND.match(command, start):
        start = before.end()
    return start


def _split_at_percent(text: str) -> list[str]:
    r"""Return the command and the lines of its standard input.

    The input follows the first ``%``. Any further ``%`` is a line break, and ``\%`` is a literal
    one.
    """
    return [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", text)]


def _with_stdin(command: str, stdin: list[str]) -> str:
    """Return the command with its standard input as a pipe."""
    if not stdin:
        return command
    # The closing parenthesis is on its own line, because the command may end in a comment.
    return f"printf '%s\\n' {' '.join(map(shlex.quote, stdin))} | ({command}\n)"
