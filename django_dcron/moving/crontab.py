"""Crontabs: a user's, or the system's, whose lines name a user.

What cron hands to a shell becomes an entry of ``DCRON_SHELL``, which the project has to add to its settings: no command is ever
taken from a file into the database. The schedule is cron's own and stays as it is written.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django_dcron.conf import settings
from django_dcron.domain.schedule import MACROS, has_hash, parse_schedule
from django_dcron.moving.found import Found, Reading, Refused, Warn, entry
from django_dcron.moving.names import clean, digest

DEFAULT_SHELL = "/bin/sh"
_VARIABLE = re.compile(r"""(?P<name>[^\s=]+|"[^"]*"|'[^']*')\s*=""")
_NAMED = re.compile(r"[\w.@:-]+")
_BEFORE_COMMAND = re.compile(
    r"""cd\s+\S+\s*(?:&&|;)\s*|\w+=(?:"[^"]*"|'[^']*'|\S*)\s+|(?:exec|sudo|nice|env)\s+|-\S+\s+"""
)
"""One of the words that may precede a command."""
_ONWARDS = re.compile(r"(?:^|,)[0-9]+/")
OWN_VARIABLES = {
    "SHELL",
    "MAILTO",
    "MAILFROM",
    "CRON_TZ",
    "RANDOM_DELAY",
    "CONTENT_TYPE",
    "CONTENT_TRANSFER_ENCODING",
}
"""Those that cron itself reads; the others are the command's environment."""
AT_BOOT = "@reboot is when a machine starts, and a job belongs to no machine: let systemd do it, or what starts your containers"


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    schedule: str
    timezone: str
    user: str
    word: str
    """The name of the program."""
    command: str
    """As the shell gets it, its standard input included."""
    environment: tuple[tuple[str, str], ...]
    shell: str
    comment: str

    @property
    def argv(self) -> list[str]:
        call = [self.shell, "-c", self.command]
        if not self.environment:
            return call
        return ["/usr/bin/env", *(f"{name}={value}" for name, value in self.environment), *call]


def read(text: str, timezone: str, *, system: bool = False) -> Reading:
    """``timezone``: that of the machine whose crontab it is, in which lines are meant that no ``CRON_TZ`` precedes."""
    reading = Reading()
    lines = list(_lines(text, timezone, system, reading))
    programs = {
        word: {tuple(line.argv) for line in lines if line.word == word}
        for word in {line.word for line in lines}
    }
    names = [
        f"{line.word}-{digest(str(line.argv))}" if len(programs[line.word]) > 1 else line.word
        for line in lines
    ]
    times = Counter(names)
    for line, target in zip(lines, names, strict=True):
        when = f"{line.schedule} {line.timezone}"
        found = _found(line, target, f"{target}-{digest(when)}" if times[target] > 1 else target)
        reading.found.append(found)
        if not found.refused:
            reading.shell[target] = line.argv
    if any(line.timezone == timezone for line in lines):
        reading.notes.append(f"Times without CRON_TZ are read in {timezone}; --timezone names another zone.")
    return reading


def _found(line: Line, target: str, name: str) -> Found:
    def job(warn: Warn) -> dict[str, Any]:
        _check(line, warn)
        if line.user:
            warn(f"cron runs it as {line.user}; a job runs as the user of its worker")
        if settings.SHELL.get(target, line.argv) not in (line.argv, tuple(line.argv)):
            raise Refused(f"DCRON_SHELL has another command under the name {target!r}; rename that entry")
        return {
            "description": line.comment,
            "target": f"shell:{target}",
            "args": [],
            "kwargs": {},
            "schedule": line.schedule,
            "timezone": line.timezone,
        }

    return entry(
        f"line {line.number}", name, job, suffix=digest(f"{line.schedule} {line.timezone} {line.number}")
    )


def _check(line: Line, warn: Warn) -> None:
    """Raises ``Refused``, or ``InvalidSchedule``."""
    if line.schedule.lower() == "@reboot":
        raise Refused(AT_BOOT)
    if line.schedule.startswith("@") and line.schedule.lower() not in MACROS:
        raise Refused(f"{line.schedule} is no schedule of cron")
    if "~" in line.schedule:
        raise Refused(
            f"{line.schedule}: cron draws a time at random; H, or H(0-29), is a time drawn once and for all"
        )
    if has_hash(line.schedule):
        raise Refused(f"{line.schedule}: cron knows no H")
    parse_schedule(line.schedule, line.timezone)
    if any(_ONWARDS.search(field) for field in line.schedule.split()):
        warn(
            f"{line.schedule}: a step from a single value goes on to the end here; some crons take the value alone"
        )


def _lines(text: str, timezone: str, system: bool, reading: Reading) -> Iterator[Line]:
    """The entries; what is none, and what is odd, goes to ``reading``."""
    variables: dict[str, str] = {}
    comment: list[str] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("#"):
            comment.append(line.lstrip("# ").rstrip())
            continue
        said, comment = "\n".join(filter(None, comment)), []
        if not line:
            continue
        if (variable := _variable(line)) is not None:
            _set(variables, *variable, reading)
            continue
        found = _entry(line, system)
        if found is None:
            expected = "a time, a user and a command" if system else "a time and a command"
            reading.found.append(
                Found(f"line {number}", f"line {number}", refused=f"{line!r:.80} is not {expected}")
            )
            continue
        schedule, user, command = found
        environment = tuple(item for item in variables.items() if item[0] not in OWN_VARIABLES)
        zone, shell = variables.get("CRON_TZ") or timezone, variables.get("SHELL") or DEFAULT_SHELL
        yield Line(
            number, schedule, zone, user, _word(command), _with_input(command), environment, shell, said
        )


def _variable(line: str) -> tuple[str, str] | None:
    """Name and value of an assignment. ``line`` has no space around it."""
    match = _VARIABLE.match(line)
    if match is None:
        return None
    value = line[match.end() :].strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return match["name"].strip("'\""), value


def _set(variables: dict[str, str], name: str, value: str, reading: Reading) -> None:
    variables[name] = value
    if name == "MAILTO" and value:
        reading.notes.append(
            f"MAILTO={value}: output is kept with each run, and mailed to nobody; alerts are in docs/alerts.md."
        )
    if name == "TZ":
        reading.notes.append(
            "TZ is a variable for the commands; cron's times, and so these, do not follow it (CRON_TZ would)."
        )
    if name == "RANDOM_DELAY":
        reading.notes.append("RANDOM_DELAY is left out: a job's jitter does that.")


def _entry(line: str, system: bool) -> tuple[str, str, str] | None:
    """Schedule, user and command."""
    line = line.removeprefix("-")  # some crons: do not log this one
    fields = 1 if line.startswith("@") else 5
    parts = line.split(None, fields + system)
    if len(parts) <= fields + system:
        return None
    return " ".join(parts[:fields]), parts[fields] if system else "", parts[-1]


def _word(command: str) -> str:
    start = 0
    while before := _BEFORE_COMMAND.match(command, start):
        start = before.end()
    program = (command[start:].split(maxsplit=1) or [""])[0].strip("'\"()").rsplit("/", 1)[-1]
    found = _NAMED.search(program)
    return clean(found[0]) if found else "command"


def _with_input(command: str) -> str:
    r"""What follows the first ``%`` is the command's standard input, further ones are its line ends; ``\%`` is a plain one."""
    program, *rest = (part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", command))
    if not rest:
        return program
    return f"printf '%s\\n' {' '.join(map(shlex.quote, rest))} | ({program}\n)"  # a line of its own: the command may end in a comment
