"""Import crontabs of users and of the system. A line of a system crontab names its user.

Invariants:

- No shell command is copied from a file to the database. A command becomes an entry of
  ``DCRON_SHELL``, which the project must add to its settings.
- A line that only calls a management command of this project becomes a job with the target
  ``command:NAME`` and the line's arguments. ``DCRON_COMMANDS`` decides whether they are allowed.
  A line needs an entry in one of the two settings, never in both.
- A line that also sets variables, redirects output or takes a lock becomes such a job only if the
  user asks for it (``without_shell``).
- Schedules are copied unchanged, because jobs use cron syntax.
"""

from __future__ import annotations

import pwd
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import Any

from django_dcron.conf import settings
from django_dcron.contrib.importers.crontab_lines import ENV, CrontabLine, read_lines
from django_dcron.contrib.importers.crontab_settings import (
    SECRET,
    add_notes_about_shell,
    runs_as_command,
    suggest_commands,
)
from django_dcron.contrib.importers.management_calls import OtherProject
from django_dcron.contrib.importers.names import clean_name, folded, name_digest
from django_dcron.contrib.importers.source_contents import (
    CRONTAB,
    EntryOmitted,
    EntryRefused,
    SourceContents,
    SourceEntry,
    Warn,
    translate_entry,
)
from django_dcron.db.routing import alias_for
from django_dcron.models import Job
from django_dcron.schedules.rule_text import MACROS
from django_dcron.schedules.schedule import has_hash, parse_schedule
from django_dcron.targets import commands, shadow, shell

LONGEST_ARGUMENTS = 40
_RELATIVE = re.compile(r"(?:cd\s+)?(?:\.{1,2}/|[\w.-]+/\w)|cd\s+[\w.]")
_IN_HOME = re.compile(r"(?:^|[\s=;&|(\"'])~(?:/|\s|$)|\$\{?HOME\b")
_STEP_AFTER_VALUE = re.compile(r"(?:^|,)[0-9]+/")
AT_BOOT = (
    "@reboot runs when a machine starts, not at a set time; keep the line in the crontab, or use "
    "systemd or the command that starts your containers"
)


class ZoneOrigin(Enum):
    """What determines the time zone of lines without ``CRON_TZ``."""

    OPTION = auto()
    LAST_IMPORT = auto()
    SETTING = auto()


def read(
    text: str,
    timezone: str,
    *,
    system: bool = False,
    path: str = "-",
    zone_origin: ZoneOrigin = ZoneOrigin.SETTING,
    without_shell: bool = False,
) -> SourceContents:
    """Parse a crontab.

    ``timezone``: the zone of the crontab's machine, which applies to lines without a preceding
    ``CRON_TZ``. ``zone_origin``: who chose it. ``path``: identifies the crontab among others.
    ``without_shell``: see ``crontab_lines.read_lines``.
    """
    contents = SourceContents(source=f"{CRONTAB}{path}")
    lines = list(read_lines(text, timezone, contents, system=system, without_shell=without_shell))
    lines = _with_known_projects(lines)
    suffixes = _suffixes(lines)
    shell_names = _shell_names(lines, suffixes)
    lines_by_command = Counter(tuple(line.argv) for line in lines)
    times: Counter[str] = Counter()
    imported: list[CrontabLine] = []
    for line in lines:
        argv = tuple(line.argv)
        shell_name = shell_names[argv]
        suffix = "" if lines_by_command[argv] > 1 else suffixes[argv]
        entry = _entry_of(line, shell_name, suffix, times)
        contents.entries.append(entry)
        if entry.values:
            imported.append(line)
        if entry.values and entry.values["target"].startswith(shell.PREFIX):
            contents.shell[shell_name] = line.argv
    suggest_commands(contents, imported, shell_names, without_shell=without_shell)
    add_notes_about_shell(contents, imported, timezone)
    if not system:
        _warn_about_users(contents, lines)
    if zones := sorted({line.timezone for line in lines if line.states_timezone} - {timezone}):
        contents.notes.append(
            f"Lines below CRON_TZ are in the time zone {', '.join(zones)}, as in cronie. The cron "
            "of Debian and Ubuntu ignores CRON_TZ. If it runs the lines, remove CRON_TZ from the "
            "file."
        )
    if not all(line.states_timezone for line in lines):
        text = f"Times without CRON_TZ are in the time zone {timezone}"
        if zone_origin is ZoneOrigin.LAST_IMPORT:
            text += ", as in the last import"
        if zone_origin is not ZoneOrigin.OPTION:
            text += ". To use another one, pass --timezone"
        contents.notes.append(f"{text}.")
    return contents


def _with_known_projects(lines: list[CrontabLine]) -> list[CrontabLine]:
    """Take lines as calls of this project if their commands were imported as such calls before.

    A line may call this project in another directory. The job then keeps its target. Jobs of all
    crontabs count, so that a line of a copied crontab has the same target.
    """
    if not any(line.other_project for line in lines):
        return lines
    prefixes = (commands.PREFIX, f"{shadow.PREFIX}{commands.PREFIX}")
    jobs = Job.objects.using(alias_for(Job)).filter(
        import_source__startswith=CRONTAB, import_key__isnull=False
    )
    keys = {
        _without_number(key)
        for key, target in jobs.values_list("import_key", "target")
        if target.startswith(prefixes)
    }
    return [
        replace(line, other_project=None) if _command_key(line) in keys else line for line in lines
    ]


def _suffixes(lines: list[CrontabLine]) -> dict[tuple[str, ...], str]:
    """Return what distinguishes each command from others of the same program in their names.

    These are its arguments, if they are short and don't lead to the name of another command.
    """
    programs = {tuple(line.argv): line.program for line in lines}
    texts = {tuple(line.argv): _arguments_as_name(line) for line in lines}
    names = {argv: folded(f"{programs[argv]}-{text}") for argv, text in texts.items() if text}
    times = Counter([*names.values(), *map(folded, {*programs.values()})])
    return {
        argv: text if text and times[names[argv]] == 1 else name_digest(str(list(argv)))
        for argv, text in texts.items()
    }


def _arguments_as_name(line: CrontabLine) -> str:
    """Return the arguments as a part of a name, or "" if they are long or may be secret."""
    if line.call is None or any(SECRET.search(word) for word in line.call.arguments):
        return ""
    text = clean_name(" ".join(line.call.arguments).replace("--", "")).replace(" ", "-")
    return text if line.call.arguments and len(text) <= LONGEST_ARGUMENTS else ""


def _warn_about_users(contents: SourceContents, lines: list[CrontabLine]) -> None:
    """Warn if commands begin with a user, as each line of a system crontab does."""
    words = {line.command.split(maxsplit=1)[0] for line in lines if line.command.strip()}
    users = sorted(filter(_is_user, words))
    if users:
        contents.notes.append(
            f"Commands begin with the name of a user: {', '.join(users)}. If each line names its "
            "user, as in /etc/cron.d, use --format system-crontab."
        )


def _is_user(word: str) -> bool:
    """Return whether the word is a user of this machine, and not a program."""
    try:
        pwd.getpwnam(word)
    except (KeyError, ValueError):  # a word with a NUL character
        return False
    return shutil.which(word) is None


def _shell_names(
    lines: list[CrontabLine], suffixes: dict[tuple[str, ...], str]
) -> dict[tuple[str, ...], str]:
    """Return the ``DCRON_SHELL`` name of each command.

    A command that is already in the setting keeps its name, even if lines are added or removed.
    """
    defined: dict[tuple[str, ...], str] = {}
    for name in sorted(settings.SHELL):
        defined.setdefault(tuple(settings.SHELL[name]), name)
    programs = {tuple(line.argv): line.program for line in lines}
    times = Counter(programs.values())
    return {
        argv: defined.get(argv)
        or _name_of_prefixed(argv)
        or (program if times[program] == 1 else f"{program}-{suffixes[argv]}")
        for argv, program in programs.items()
    }


def _name_of_prefixed(argv: tuple[str, ...]) -> str:
    """Return the ``DCRON_SHELL`` name of the command after ``env -u NAME``, or ""."""
    names = (name for name in sorted(settings.SHELL) if _is_prefixed(settings.SHELL[name], argv))
    return next(names, "")


def _is_prefixed(defined: Sequence[Any], argv: Sequence[str]) -> bool:
    prefix, rest = list(defined[: -len(argv)]), list(defined[-len(argv) :])
    return rest == list(argv) and prefix[:2] == [ENV, "-u"] and ENV not in prefix[2:]


def _entry_of(line: CrontabLine, shell_name: str, suffix: str, times: Counter[str]) -> SourceEntry:
    """Translate a line.

    ``suffix``: that of the command's name, or "" if several lines run this command. ``times``: how
    often each key and suffix was found before.

    The key doesn't contain the schedule, so a job follows its line when the schedule changes. It
    doesn't depend on lines with other commands.
    """
    command = _command_key(line)
    when = f"{command} {line.schedule} {line.timezone}"
    times.update((command, when))
    return translate_entry(
        f"line {line.number}",
        line.program,
        partial(_job, line, shell_name),
        suffix=suffix or name_digest(_with_number(when, times[when])),
        key=_with_number(command, times[command]),
    )


def _command_key(line: CrontabLine) -> str:
    """Return the key of the first line with this command. It contains one space."""
    return f"{line.outer_program} {name_digest(str(line.argv))}"


def _job(line: CrontabLine, shell_name: str, warn: Warn) -> dict[str, Any]:
    """Return the fields of the job. ``shell_name``: the name of its command in ``DCRON_SHELL``."""
    check_schedule(line.schedule, line.timezone, warn)
    if line.user:
        warn(
            f"cron runs this command as user {line.user}, but a job runs as the user of its worker"
        )
    defined = settings.SHELL.get(shell_name, line.argv)
    if list(defined) != line.argv and not _is_prefixed(defined, line.argv):
        raise EntryRefused(
            f"DCRON_SHELL has another command named {shell_name!r}. If this line has changed, "
            "remove that entry, import again, and add the entry that is then printed. Otherwise, "
            f"add this line's command under another name: {line.argv!r}"
        )
    if (other := line.other_project) is not None:
        warn(_why_in_shell(other))
    call = line.call
    more: Mapping[str, Any] = {}
    if call is not None and runs_as_command(line, shell_name):
        key, args, more = f"{commands.PREFIX}{call.command}", call.arguments, call.fields
        omitted = f", {', '.join(call.omitted)}" if call.omitted else ""
        warn(f"the line becomes {key} of this project. The job omits: the shell{omitted}")
    else:
        key, args = f"{shell.PREFIX}{shell_name}", []
        if _depends_on_home(line):
            warn(
                "cron starts this command in the home directory of its user, but a job runs in the "
                "directory of its worker and as the worker's user; use absolute paths"
            )
    return {
        **more,
        "description": line.comment,
        "target": key,
        "args": args,
        "kwargs": {},
        "schedule": line.schedule,
        "timezone": line.timezone,
    }


def _why_in_shell(other: OtherProject) -> str:
    if other.is_accessible:
        return (
            f"the line calls the manage.py in {other.directory}, but this project is in "
            f"{other.own_directory}. The job runs the line in a shell, because the projects may "
            f"differ. If they are the same, import in {other.directory} to run it without a shell"
        )
    return (
        f"the line calls the manage.py in {other.directory}, which this user can't access. The job "
        "runs the line in a shell, because it may call another project. To run it without a shell, "
        "import as a user who can access that directory"
    )


def _depends_on_home(line: CrontabLine) -> bool:
    """Return whether the command begins with a relative path, or names the home directory."""
    sets_home = "HOME" in dict(line.environment)
    uses_home = bool(_IN_HOME.search(line.command)) and not sets_home
    return uses_home or bool(_RELATIVE.match(line.command))


def _with_number(text: str, number: int) -> str:
    return text if number == 1 else f"{text} {number}"


def _without_number(key: str) -> str:
    """Return the key of the first line that has the same command as the line with this key."""
    return " ".join(key.split(" ")[:2])


def check_schedule(schedule: str, timezone: str, warn: Warn) -> None:
    """Raise ``EntryRefused``, ``EntryOmitted`` or ``InvalidSchedule`` unless a job can have it."""
    if schedule.lower() == "@reboot":
        raise EntryOmitted(AT_BOOT)
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
