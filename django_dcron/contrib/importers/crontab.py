"""Import crontabs of users and of the system. A line of a system crontab names its user.

Invariants:

- No shell command is copied from a file to the database. A command becomes an entry of
  ``DCRON_SHELL``, which the project must add to its settings.
- A line that only calls a management command that ``DCRON_COMMANDS`` allows becomes its target,
  with the arguments of the line. ``DCRON_COMMANDS`` decides whether they are allowed.
- The schedule keeps its text, because the syntax is cron's.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

from django.core.management import get_commands

from django_dcron.conf import settings
from django_dcron.contrib.importers.names import clean_name, name_digest
from django_dcron.contrib.importers.reading import (
    EntryRefused,
    Omitted,
    Reading,
    SourceEntry,
    Warn,
    translate_entry,
)
from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.rule_text import MACROS
from django_dcron.schedules.schedule import has_hash, parse_schedule
from django_dcron.targets import commands, shell
from django_dcron.utils.counts import number_of

DEFAULT_SHELL = "/bin/sh"
_MANAGEMENT = re.compile(r"(?:^|[\s/])(?:manage\.py|django-admin)\s+([A-Za-z_][\w-]*)")
_PLAIN_MANAGEMENT = re.compile(
    r"(?:cd\s+[\w./-]+\s*&&\s*)?(?:[\w./-]*python[\d.]*\s+)?(?:[\w./-]*/)?manage\.py\s+"
    r"(?P<name>[A-Za-z_][\w-]*)(?P<args>(?:\s+[\w./:=@,+-]+)*)"
    r"(?:\s+[1&]?>>?\s*/dev/null(?:\s+2>\s*(?:&1|/dev/null))?)?\s*"
)
"""A line that a shell runs without expanding anything or setting variables. It may discard output,
which the run of a job keeps.
"""
_NOT_NEEDED_BY_CALLS = frozenset({"PATH"})
"""Variables that a job doesn't get: its worker has already found Python."""
_NOT_FOR_CALLS = re.compile(r"--(?:settings|pythonpath)\b")
_VARIABLE = re.compile(r"""(?P<name>[^\s=]+|"[^"]*"|'[^']*')\s*=""")
_SCRIPT_ENDING = re.compile(r"\.(?:bash|js|ksh|php|pl|py|rb|sh|zsh)$")
_PROGRAM = re.compile(r"[\w.@:-]+")
_BEFORE_COMMAND = re.compile(
    r"""
    cd\s+\S+\s*(?:&&|;)\s*
    | \w+=(?:"[^"]*"|'[^']*'|\S*)\s+                # a variable
    | (?:\S*/)?(?:exec|sudo|nice|env)\s+
    | -\S+\s+                                       # an option of the word before
    | (?:\S*/)?(?:python[\d.]*|ba?sh|perl|php|ruby|node)\s+(?=[\w./-]+\.\w+(?:\s|$))  # of a script
    """,
    re.VERBOSE,
)
"""One of the words that may precede a command, such as the interpreter of a script."""
_TIME_FIELD = re.compile(r"[\d*/,-]+")
_STEP_AFTER_VALUE = re.compile(r"(?:^|,)[0-9]+/")
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
AT_BOOT = (
    "@reboot runs when a machine starts, not at a set time; keep the line in the crontab, or use "
    "systemd or the command that starts your containers"
)


class ManagementCall(NamedTuple):
    command: str
    """The name of the management command."""
    arguments: list[str]


@dataclass(frozen=True, slots=True)
class CrontabLine:
    number: int
    schedule: str
    timezone: str
    user: str
    program: str
    """The name of the program or of the management command."""
    command: str
    """The command for the shell, including its standard input."""
    environment: tuple[tuple[str, str], ...]
    shell: str
    comment: str

    @property
    def management_call(self) -> ManagementCall | None:
        """The call of a management command; None if the line does anything else."""
        match = _PLAIN_MANAGEMENT.fullmatch(self.command)
        needed = {name for name, _value in self.environment} - _NOT_NEEDED_BY_CALLS
        if match is None or needed or _NOT_FOR_CALLS.search(match["args"]):
            return None
        return ManagementCall(match["name"], match["args"].split())

    @property
    def argv(self) -> list[str]:
        call = [self.shell, "-c", self.command]
        if not self.environment:
            return call
        return ["/usr/bin/env", *(f"{name}={value}" for name, value in self.environment), *call]


def read(text: str, timezone: str, *, system: bool = False, path: str = "-") -> Reading:
    """Parse a crontab.

    ``timezone``: the zone of the crontab's machine, which applies to lines without a preceding
    ``CRON_TZ``. ``path``: identifies the crontab among others.
    """
    reading = Reading(source=f"crontab {path}")
    lines = list(_lines(text, timezone, system, reading))
    shell_names = _shell_names(lines)
    lines_by_command = Counter(tuple(line.argv) for line in lines)
    times: Counter[str] = Counter()
    for line in lines:
        shell_name = shell_names[tuple(line.argv)]
        entry = _entry_of(line, shell_name, lines_by_command[tuple(line.argv)] > 1, times)
        reading.entries.append(entry)
        if entry.values and entry.values["target"].startswith(shell.PREFIX):
            reading.shell[shell_name] = line.argv
    _suggest_commands(reading, lines, shell_names)
    if any(line.timezone == timezone for line in lines):
        reading.notes.append(
            f"Times without CRON_TZ are in the time zone {timezone}. To use another one, "
            "pass --timezone."
        )
    return reading


def _shell_names(lines: list[CrontabLine]) -> dict[tuple[str, ...], str]:
    """Return the name in ``DCRON_SHELL`` of each command.

    A command that the setting has keeps its name there, whatever lines are added or removed.
    """
    defined: dict[tuple[str, ...], str] = {}
    for name in sorted(settings.SHELL):
        defined.setdefault(tuple(settings.SHELL[name]), name)
    programs = {tuple(line.argv): line.program for line in lines}
    times = Counter(programs.values())
    return {
        argv: defined.get(argv)
        or (program if times[program] == 1 else f"{program}-{name_digest(str(list(argv)))}")
        for argv, program in programs.items()
    }


def _suggest_commands(
    reading: Reading, lines: list[CrontabLine], shell_names: dict[tuple[str, ...], str]
) -> None:
    """Add a note about the lines that could become ``command:NAME``, and the setting for them."""
    candidates = [
        line
        for line in lines
        if _MANAGEMENT.search(line.command)
        and line.schedule.lower() != "@reboot"
        and not _runs_as_command(line, shell_names[tuple(line.argv)])
    ]
    if not candidates:
        return
    for line in candidates:
        call = line.management_call
        if call is None or call.command not in get_commands() or call.command in settings.COMMANDS:
            continue
        allowed = reading.commands.setdefault(call.command, [])
        allowed += [name for name in _argument_names(call) if name not in allowed]
    reading.notes.append(_command_note(min(candidates, key=lambda line: line.program)))


def _command_note(line: CrontabLine) -> str:
    """Return how the line could run its management command without a shell."""
    if line.management_call is not None:
        return (
            "A job can run a management command without a shell, such as the target "
            f"command:{line.program}. To import the line that way, add {line.program!r} to "
            "DCRON_COMMANDS first."
        )
    return (
        "A job can run a management command without a shell: with the command in "
        f"DCRON_COMMANDS, set the job's target to command:{line.program}. The import does this "
        "for lines without quotes, variables other than PATH, and redirections to files."
    )


def _argument_names(call: ManagementCall) -> list[str]:
    """Return the names of the arguments that ``DCRON_COMMANDS`` must list for the call.

    A word that isn't an option may be a positional argument, so all of these are listed.
    """
    names = [word.partition("=")[0] for word in call.arguments if word.startswith("-")]
    if len(names) < len(call.arguments):
        loaded = commands.load_command(call.command)
        known = commands.argument_names(loaded)
        hidden = set(loaded.stealth_options)
        names += [name for name in known if not name.startswith("-") and name not in hidden]
    return names


def _runs_as_command(line: CrontabLine, target: str) -> bool:
    """Return whether the line becomes ``command:NAME``. A command in ``DCRON_SHELL`` stays one."""
    call = line.management_call
    return call is not None and call.command in settings.COMMANDS and target not in settings.SHELL


def _entry_of(
    line: CrontabLine, target: str, is_repeated: bool, times: Counter[str]
) -> SourceEntry:
    """Translate a line.

    ``is_repeated``: whether other lines have the same command. ``times``: how often each key and
    suffix was found before.

    The key doesn't contain the schedule, so a job follows its line when the schedule changes. The
    suffix is that of the command in ``DCRON_SHELL``, unless the command is repeated. Key and suffix
    don't depend on lines with other commands.
    """
    digest = name_digest(str(line.argv))
    command = f"{line.program} {digest}"
    when = f"{command} {line.schedule} {line.timezone}"
    times.update((command, when))
    return translate_entry(
        f"line {line.number}",
        line.program,
        partial(_job, line, target),
        suffix=name_digest(_numbered(when, times[when])) if is_repeated else digest,
        key=_numbered(command, times[command]),
    )


def _job(line: CrontabLine, target: str, warn: Warn) -> dict[str, Any]:
    """Return the fields of the line's job. ``target``: the name of its command in a shell."""
    check_schedule(line.schedule, line.timezone, warn)
    if line.user:
        warn(
            f"cron runs this command as user {line.user}, but a job runs as the user of its worker"
        )
    if settings.SHELL.get(target, line.argv) not in (line.argv, tuple(line.argv)):
        raise EntryRefused(
            f"DCRON_SHELL already defines another command named {target!r}; rename that entry"
        )
    call = line.management_call
    if call is not None and _runs_as_command(line, target):
        key, args = f"{commands.PREFIX}{call.command}", call.arguments
        dropped = [f"its {name}" for name, _value in line.environment]
        dropped += ["its redirection to /dev/null"] if ">" in line.command else []
        without = f" and {' and '.join(dropped)}" if dropped else ""
        warn(f"the line becomes {key} of this project, without a shell{without}")
    else:
        key, args = f"{shell.PREFIX}{target}", []
    return {
        "description": line.comment,
        "target": key,
        "args": args,
        "kwargs": {},
        "schedule": line.schedule,
        "timezone": line.timezone,
    }


def _numbered(text: str, number: int) -> str:
    return text if number == 1 else f"{text} {number}"


def check_schedule(schedule: str, timezone: str, warn: Warn) -> None:
    """Raise ``EntryRefused``, ``Omitted`` or ``InvalidSchedule`` unless a job can have it."""
    if schedule.lower() == "@reboot":
        raise Omitted(AT_BOOT)
    if schedule.startswith("@") and schedule.lower() not in MACROS:
        raise EntryRefused(f"{schedule} is not a cron schedule")
    if "~" in schedule:
        raise EntryRefused(
            f"{schedule}: random times (~) are not supported; H or H(0-29) selects a fixed time "
            "per job"
        )
    if has_hash(schedule):
        raise EntryRefused(f"{schedule}: cron doesn't support H")
    parse_schedule(schedule, timezone)
    if any(_STEP_AFTER_VALUE.search(field) for field in schedule.split()):
        warn(
            f"{schedule}: a step after a single value continues to the end of the "
            "range, but some crons use only the value"
        )


def _lines(text: str, timezone: str, system: bool, reading: Reading) -> Iterator[CrontabLine]:
    """Yield the entries. Add invalid lines and notes to ``reading``."""
    variables: dict[str, str] = {}
    comment: list[str] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("#"):
            text = line.lstrip("# ").rstrip()
            if not _is_disabled_line(text, system):
                comment.append(text)
            continue
        description, comment = "\n".join(filter(None, comment)), []
        if not line:
            continue
        if (variable := _variable(line)) is not None:
            _set_variable(variables, *variable, reading)
            continue
        parts = _split_line(line, system)
        if parts is None:
            reading.entries.append(
                SourceEntry(f"line {number}", f"line {number}", refused=_why_invalid(line, system))
            )
            continue
        yield CrontabLine(
            number=number,
            schedule=parts.schedule,
            timezone=variables.get("CRON_TZ") or timezone,
            user=parts.user,
            program=_program_name(parts.command),
            command=_with_stdin(parts.command),
            environment=tuple(
                (name, value) for name, value in variables.items() if name not in OWN_VARIABLES
            ),
            shell=variables.get("SHELL") or DEFAULT_SHELL,  # nosec B604
            comment=description,
        )


def _why_invalid(line: str, system: bool) -> str:
    """Return why a line isn't an entry: often, one of the five fields is missing."""
    parts = "a time, a user and a command" if system else "a time and a command"
    fields = len(list(takewhile(_TIME_FIELD.fullmatch, line.split())))
    if 0 < fields < 5 and not line.startswith("@"):
        has = number_of(fields, "time field")
        return f"{line!r:.80} is not {parts}: it has {has}, and cron needs five"
    return f"{line!r:.80} is not {parts}"


def _is_disabled_line(comment: str, system: bool) -> bool:
    """Return whether a comment is a line of a crontab that someone disabled."""
    if _variable(comment) is not None:
        return True
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


def _set_variable(variables: dict[str, str], name: str, value: str, reading: Reading) -> None:
    variables[name] = value
    if name == "MAILTO" and value:
        reading.notes.append(
            f"MAILTO={value} is ignored. Output is stored with each run and not mailed. To "
            "get alerts, see docs/how-to/alerts.md."
        )
    if name == "TZ":
        reading.notes.append(
            "TZ only sets an environment variable of the commands. Schedules use CRON_TZ, "
            "as in cron."
        )
    if name == "RANDOM_DELAY":
        reading.notes.append("RANDOM_DELAY is ignored. Set the jitter of a job instead.")


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
    """Return the name of the management command, or of the program without a script's ending."""
    if management := _MANAGEMENT.search(command):
        return clean_name(management[1])
    start = 0
    while before := _BEFORE_COMMAND.match(command, start):
        start = before.end()
    text = (command[start:].split(maxsplit=1) or [""])[0].strip("'\"()").rsplit("/", 1)[-1]
    match = _PROGRAM.search(text)
    return clean_name(_SCRIPT_ENDING.sub("", match[0])) if match else "command"


def _with_stdin(command: str) -> str:
    r"""Return the command with its standard input as a pipe.

    The input follows the first ``%``. Any further ``%`` is a line break, and ``\%`` is a literal
    one.
    """
    program, *rest = (part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", command))
    if not rest:
        # The closing parenthesis is on its own line, because the command may end in a comment.
        return program
    return f"printf '%s\\n' {' '.join(map(shlex.quote, rest))} | ({program}\n)"
