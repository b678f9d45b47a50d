"""The settings and code that entries of ``dcron import`` need, as lines that can be pasted."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from django_dcron import targets
from django_dcron.conf import settings
from django_dcron.contrib.importers.crontab_settings import missing_commands
from django_dcron.contrib.importers.entry_plans import EntryPlan, ImportOutcome
from django_dcron.contrib.importers.source_contents import SourceContents
from django_dcron.exceptions import InvalidValue
from django_dcron.management.dcron.output import WARNING, Output
from django_dcron.targets import commands, shell
from django_dcron.utils.counts import number_of

PATTERN_CHARACTERS = {*"*?["}
"""The special characters of a pattern in ``DCRON_QUEUES``, such as ``reports-*``."""


def warn_about_missing_settings(
    out: Output, contents: SourceContents, plans: Sequence[EntryPlan]
) -> None:
    """Warn about entries that need settings, which are printed below the plans."""
    allowed_later = {
        *(f"{shell.PREFIX}{name}" for name in missing_commands(contents)),
        *(f"{commands.PREFIX}{name}" for name in contents.commands),
    }
    queues = missing_queues(plans)
    waiting = [
        plan
        for plan in plans
        if plan.entry.values.get("target") in allowed_later or _queue_of(plan) in queues
    ]
    if waiting:
        out.line(
            f"! {number_of(len(waiting), 'entry needs', 'entries need')} the settings that are "
            "printed below. Add them, and import again.",
            WARNING,
        )
    if queues:
        out.line(f"! Queues that the project doesn't declare: {', '.join(queues)}", WARNING)


def print_missing_settings(
    out: Output, contents: SourceContents, plans: Iterable[EntryPlan]
) -> None:
    """Print the settings and code that the jobs need, complete, so that they can be pasted.

    The entries of ``DCRON_SHELL`` may contain secrets, so the present ones aren't printed.
    """
    if contents.registrations:
        out.line("Register these functions in cron.py of an installed app:")
        for line in contents.registrations:
            out.line(line)
    if missing := missing_commands(contents):
        present = ["**DCRON_SHELL"] if settings.SHELL else []
        where = ", below DCRON_SHELL" if settings.SHELL else ""
        out.line(f"Add these commands to your settings{where}:")
        entries = [f"{name!r}: {argv!r}" for name, argv in missing.items()]
        _print_setting(out, "DCRON_SHELL", [*present, *entries])
    if contents.commands:
        out.line("Allow these management commands in your settings:")
        allowed = _allowed_commands(contents.commands)
        if any(allowed.values()):
            entries = [f"{name!r}: {arguments!r}" for name, arguments in allowed.items()]
            _print_setting(out, "DCRON_COMMANDS", entries)
        else:
            out.line(f"DCRON_COMMANDS = {list(allowed)!r}")
    if missing_names := missing_queues(plans):
        names = [*(targets.allowed_queues() or ()), *missing_names]
        out.line("If workers consume these queues, add them to your settings:")
        out.line(f"DCRON_QUEUES = {names!r}")
        if settings.DISPATCHER == "celery":
            queues = ",".join(name for name in names if not {*name} & PATTERN_CHARACTERS)
            out.line(f"Start a Celery worker that serves all of them: -Q {shlex.quote(queues)}")


def _allowed_commands(added: Mapping[str, list[str]]) -> dict[str, list[str] | str]:
    """Return ``DCRON_COMMANDS`` with the added entries. The value is what a command accepts."""
    present = settings.COMMANDS
    known = present if isinstance(present, Mapping) else dict.fromkeys(present, ())
    return {
        **{name: value if isinstance(value, str) else list(value) for name, value in known.items()},
        **added,
    }


def _print_setting(out: Output, name: str, entries: Iterable[str]) -> None:
    out.line(f"{name} = {{")
    for entry in entries:
        out.line(f"    {entry},")
    out.line("}")


def missing_queues(plans: Iterable[EntryPlan]) -> list[str]:
    """Return the queues of refused entries that ``DCRON_QUEUES`` would have to name."""
    refused = {_queue_of(plan) for plan in plans if plan.outcome is ImportOutcome.REFUSED}
    return sorted(filter(_is_undeclared, refused))


def _queue_of(plan: EntryPlan) -> str:
    return str(plan.entry.values.get("queue") or "")


def _is_undeclared(queue: str) -> bool:
    try:
        targets.check_queue(queue)
    except InvalidValue as error:
        return error.code == "unknown_queue"
    return False
