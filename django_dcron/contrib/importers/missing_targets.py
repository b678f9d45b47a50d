"""Suggest the code and settings that make functions and management commands known as targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from keyword import iskeyword

from django.core.management import get_commands

from django_dcron import targets
from django_dcron.conf import settings
from django_dcron.contrib.importers.source_contents import SourceContents
from django_dcron.exceptions import UnknownTarget
from django_dcron.targets import commands


def is_target(name: str) -> bool:
    """Return whether a job can run the target now."""
    try:
        targets.get(name)
    except UnknownTarget:
        return False
    return True


def registration_lines(modules: Mapping[str, str]) -> list[str]:
    """Return the lines that register functions. ``modules``: the module of each function.

    The names come from a pickle or a setting, so only those that can't contain other code are in
    the lines.
    """
    safe = {
        name: module
        for name, module in modules.items()
        if module and all(part.isidentifier() and not iskeyword(part) for part in name.split("."))
    }
    if not safe:
        return []
    return [
        "from celery import shared_task",
        *(f"import {module}" for module in sorted({*safe.values()})),
        *(f'shared_task(name="{name}")({name})' for name in safe),
    ]


def needed_arguments(
    command: str, words: Sequence[str], keywords: Collection[str] = ()
) -> list[str]:
    """Return the names of the arguments that ``DCRON_COMMANDS`` must list for a call.

    ``words`` are the words of the command line, ``keywords`` the names of keyword arguments. If
    there is a word that isn't an option, all positional arguments of the command are listed. If the
    command or its arguments can't be loaded, only the options among the words are listed.
    """
    names = [_option_name(word) for word in words if word.startswith("-")]
    try:
        loaded = commands.load_command(command)
        known = commands.argument_names(loaded)
        of_keywords = commands.names_of_keywords(loaded, keywords)
    except Exception:  # the command's code may raise any error
        return list(dict.fromkeys(names))
    if len(names) < len(words):
        hidden = set(loaded.stealth_options)
        names += [name for name in known if not name.startswith("-") and name not in hidden]
    return list(dict.fromkeys([*names, *of_keywords]))


def _option_name(word: str) -> str:
    """Return the name of an option without its value, which may be a secret: ``-pVALUE``."""
    return word.partition("=")[0] if word.startswith("--") else word[:2]


def suggest_targets(contents: SourceContents) -> None:
    """Add the lines and the entries of ``DCRON_COMMANDS`` that the entries' targets need."""
    functions: dict[str, str] = {}
    for entry in contents.entries:
        target = entry.values.get("target", "")
        command = target.removeprefix(commands.PREFIX)
        if not target or is_target(target):
            continue
        if command == target:
            functions[target] = target.rpartition(".")[0]
        elif command in get_commands() and command not in settings.COMMANDS:
            words = [str(word) for word in entry.values["args"]]
            needed = needed_arguments(command, words, entry.values["kwargs"])
            allowed = contents.commands.setdefault(command, [])
            allowed += [name for name in needed if name not in allowed]
    contents.registrations = registration_lines(functions)
