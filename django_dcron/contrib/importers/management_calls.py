"""Recognize calls of management commands in the commands of crontabs.

Invariants:

- ``plain_call`` accepts only a command that does the same without a shell.
- ``reduced_call`` also accepts one that does more than the call, and lists what a job leaves out.
- Neither accepts anything that a shell would expand, or a second program.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django_dcron.policies.overlap import OverlapPolicy

_NAME = r"(?P<name>[A-Za-z_][\w-]*)"
_NAMED = re.compile(r"(?:^|[\s/])(?:manage\.py|django-admin)\s+([A-Za-z_][\w-]*)")
_PLAIN = re.compile(
    r"(?:cd\s+[\w./-]+\s*&&\s*)?(?:[\w./-]*python[\d.]*\s+)?(?:[\w./-]*/)?manage\.py\s+"
    rf"{_NAME}(?P<args>(?:\s+[\w./:=@,+-]+)*)"
    r"(?:\s+[1&]?>>?\s*/dev/null(?:\s+2>\s*(?:&1|/dev/null))?)?\s*"
)
"""A line that a shell runs without expanding anything or setting variables. It may discard output,
which the run of a job keeps.
"""
_PREFIX = re.compile(
    r"""
    (?: cd\s+[\w./~-]+\s*(?:&&|;)
    | (?:\.|source)\s+[\w./~-]+/activate\s*(?:&&|;)
    | (?P<variable>[A-Za-z_]\w*)=(?:"[^"$`\\]*"|'[^']*'|[\w./:@,+-]*)
    | (?:/usr/bin/)?env
    | exec
    | (?:/usr/bin/)?nice(?:\s+-n?\s*-?\d+)?
    | (?:/usr/bin/)?ionice(?:\s+-[cn]\s*\d|\s+-t)*
    | (?:/usr/bin/)?flock(?P<flock>(?:\s+-\S+|\s+\d+)*)\s+(?P<file>[\w./~-]+)
    | (?:uv|poetry|pipenv)\s+run
    )(?:\s+|(?<=[;&]))
    """,
    re.VERBOSE,
)
"""What may precede the call."""
_CALL = re.compile(
    r"(?:[\w./~-]*python[\d.]*\s+(?:-[uBO]+\s+)?)?(?:[\w./~-]*/)?(?:manage\.py|django-admin)\s+"
    rf"{_NAME}(?P<args>(?:\s+(?:[\w./:=@,+-]|\"[^\"$`\\]*\"|'[^']*')+)*)"
)
_REDIRECTION = re.compile(r"\s*(?:2>&1|[12&]?>>?\s*(?P<file>[\w./~:@,+-]+))")
_NOT_NEEDED = frozenset({"PATH"})
"""Variables that a job doesn't get: its worker has already found Python."""
_OF_THE_PROJECT = ("--settings", "--pythonpath")
"""Options that the job's worker has chosen already."""


@dataclass(frozen=True, slots=True)
class ManagementCall:
    command: str
    """The name of the management command."""
    arguments: list[str]
    left_out: tuple[str, ...] = ()
    """What the line does and a job doesn't."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the job that follow from the line."""


def called_command(command: str) -> str:
    """Return the management command that is called, possibly among other things, or ""."""
    match = _NAMED.search(command)
    return match[1] if match else ""


def plain_call(command: str, variables: Collection[str]) -> ManagementCall | None:
    """Return the call if the command does nothing else.

    ``variables``: names of the variables that the crontab sets.
    """
    match = _PLAIN.fullmatch(command)
    if match is None or set(variables) - _NOT_NEEDED:
        return None
    arguments = match["args"].split()
    if any(_is_of_the_project(word) for word in arguments):
        return None
    left_out = [f"its {name}" for name in variables]
    left_out += ["its redirection to /dev/null"] if ">" in command else []
    return ManagementCall(match["name"], arguments, tuple(left_out))


def reduced_call(command: str, variables: Collection[str]) -> ManagementCall | None:
    """Return the call without the variables, locks and redirections of the command."""
    start, fields, left_out = 0, {}, [f"its {name}" for name in variables]
    while prefix := _PREFIX.match(command, start):
        start = prefix.end()
        if prefix["variable"]:
            left_out.append(f"its {prefix['variable']}")
        if prefix["file"]:
            left_out.append(f"its lock {prefix['file']}")
            gives_up = any(map(_gives_up, prefix["flock"].split()))
            policy = OverlapPolicy.SKIP if gives_up else OverlapPolicy.QUEUE_ALL
            fields["overlap_policy"] = policy.value
    match = _CALL.match(command, start)
    if match is None:
        return None
    end = match.end()
    while redirection := _REDIRECTION.match(command, end):
        end = redirection.end()
        if redirection["file"]:
            left_out.append(f"its redirection to {redirection['file']}")
    if command[end:].strip():
        return None
    arguments = list(_without_options_of_the_project(shlex.split(match["args"])))
    if len(arguments) < len(shlex.split(match["args"])):
        left_out.append("its settings module")
    return ManagementCall(match["name"], arguments, tuple(dict.fromkeys(left_out)), fields)


def _gives_up(option: str) -> bool:
    """Return whether ``flock`` then ends without the lock instead of waiting for it."""
    if option.startswith("--"):
        return option.startswith(("--n", "--w", "--timeout"))
    return option.startswith("-") and bool({"n", "w"} & {*option})


def _is_of_the_project(word: str) -> bool:
    return word.partition("=")[0] in _OF_THE_PROJECT


def _without_options_of_the_project(words: list[str]) -> Iterator[str]:
    skips_value = False
    for word in words:
        if skips_value:
            skips_value = False
        elif _is_of_the_project(word):
            skips_value = "=" not in word
        else:
            yield word
