"""Explain which entries of ``DCRON_SHELL`` and ``DCRON_COMMANDS`` the lines of a crontab need."""

from __future__ import annotations

import re
from collections.abc import Sequence

from django.core.management import get_commands

from django_dcron.conf import settings
from django_dcron.contrib.importers.crontab_lines import CrontabLine
from django_dcron.contrib.importers.missing_targets import needed_arguments
from django_dcron.contrib.importers.source_contents import SourceContents
from django_dcron.targets import MASK, redact_secrets

SECRET = re.compile(r"pass|pwd|token|secret|key|auth|sig|cred|dsn|bearer|@|://", re.IGNORECASE)
SHORT_PASSWORD = re.compile(r"\s-p\S")
"""An option such as ``-pVALUE``."""


def missing_commands(contents: SourceContents) -> dict[str, list[str]]:
    """Return the commands that ``DCRON_SHELL`` doesn't have yet."""
    return {name: argv for name, argv in contents.shell.items() if name not in settings.SHELL}


def add_notes_about_shell(
    contents: SourceContents, lines: list[CrontabLine], timezone: str
) -> None:
    """Explain the environment of the commands, and warn about secrets in the printed settings."""
    missing = missing_commands(contents)
    if missing:
        contents.notes.append(
            "Commands in DCRON_SHELL get the environment of their worker, in which Django sets TZ "
            "to TIME_ZONE, and DJANGO_SETTINGS_MODULE to the settings of this project. If a "
            "command depends on TZ or calls another Django project, add to its beginning: "
            f"'/usr/bin/env', '-u', 'DJANGO_SETTINGS_MODULE', 'TZ={timezone}'."
        )
    printed = {tuple(argv) for argv in missing.values()}
    secret = {
        name
        for line in lines
        if tuple(line.argv) in printed
        for name, _value in line.environment
        if SECRET.search(name)
    }
    for name in sorted(secret):
        contents.notes.append(
            f"DCRON_SHELL below contains the value of {name}. If it is secret, replace it: "
            f"f\"{name}={{os.environ['{name}']}}\"."
        )
    words = " ".join(word for argv in missing.values() for word in argv).split()
    shown = redact_secrets(words)
    masked = {
        f"{words[at - 1]} {MASK}" if shown[at] == MASK else shown[at]
        for at in range(len(words))
        if shown[at] != words[at] and words[at].partition("=")[0] not in secret
    }
    if masked:
        contents.notes.append(
            f"DCRON_SHELL below contains the values of {', '.join(sorted(masked))}. If they are "
            "secret, read them from os.environ there."
        )


def suggest_commands(
    contents: SourceContents,
    lines: list[CrontabLine],
    shell_names: dict[tuple[str, ...], str],
    *,
    without_shell: bool,
) -> None:
    """Add the entries of ``DCRON_COMMANDS`` that lines need, and notes about ``command:NAME``.

    ``lines``: those that are imported.
    """
    missing, in_shell, other = [], [], []
    for line in sorted(lines, key=lambda line: line.program):
        if not line.called_command or line.other_project:
            continue
        call, shell_name = line.call, shell_names[tuple(line.argv)]
        if call is not None and runs_as_command(line, shell_name):
            if call.command not in settings.COMMANDS:
                missing.append(line)
                allowed = contents.commands.setdefault(call.command, [])
                needed = needed_arguments(call.command, call.arguments)
                allowed += [name for name in needed if name not in allowed]
        elif shell_name not in settings.SHELL and (call is None or not without_shell):
            other.append(line)
        elif call is not None and call.command in settings.COMMANDS:
            in_shell.append(shell_name)
    if missing:
        contents.notes.append(
            "A management command needs no shell, so the import proposes targets such as "
            f"command:{missing[0].program}. To run such a line in a shell instead, add it to "
            f"DCRON_SHELL: {missing[0].program!r}: {_shown_argv(missing[0].argv)!r}"
        )
    for name in in_shell:
        contents.notes.append(
            f"DCRON_SHELL and DCRON_COMMANDS both allow {name!r}. The job uses DCRON_SHELL. To "
            f"run it without a shell, remove {name!r} from DCRON_SHELL, and import again."
        )
    if other and without_shell:
        contents.notes.append(
            "These commands need a shell, because of what precedes or follows the call, or because "
            f"of its arguments: {', '.join(dict.fromkeys(line.program for line in other))}."
        )
    elif other:
        contents.notes.append(
            "A job can run a management command without a shell: with the command in "
            f"DCRON_COMMANDS, set the job's target to command:{other[0].program}. The import does "
            "this for lines that have no quotes, no redirections to files and no variables except "
            "PATH. With --without-shell, it does this for more lines, and lists what each job "
            "omits."
        )


def _shown_argv(argv: Sequence[str]) -> list[str]:
    """Return the words of the command, or only the first one if the others may have a secret."""
    text = " ".join(argv)
    return [argv[0], "..."] if SECRET.search(text) or SHORT_PASSWORD.search(text) else [*argv]


def runs_as_command(line: CrontabLine, shell_name: str) -> bool:
    """Return whether the line becomes ``command:NAME``, once ``DCRON_COMMANDS`` allows it.

    A command that is already in ``DCRON_SHELL`` keeps its shell target.
    """
    call = line.call
    return (
        call is not None
        and line.other_project is None
        and shell_name not in settings.SHELL
        and (call.command in settings.COMMANDS or call.command in get_commands())
    )
