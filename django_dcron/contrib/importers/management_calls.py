"""Recognize calls of management commands in the commands of crontabs.

Invariants:

- ``plain_call`` accepts only a command that does the same without a shell, apart from its
  directory.
- ``reduced_call`` also accepts one that does more than the call, and lists what the job omits.
- Neither accepts arguments that a shell would expand, or another program after the call.
- Only the caller considers which project's ``manage.py`` a command calls (``other_project_of``).
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django_dcron.policies.overlap import OverlapPolicy

_NAME = r"(?P<name>[A-Za-z_][\w-]*)"
_CALLED = re.compile(r"(?:^|[\s/])(?:manage\.py|django-admin)\s+([A-Za-z_][\w-]*)")
_PLAIN = re.compile(
    r"(?:cd\s+(?P<directory>[\w./-]+)\s*&&\s*)?(?:[\w./-]*python[\d.]*\s+)?(?:[\w./-]*/)?manage\.py\s+"
    rf"{_NAME}(?P<args>(?:\s+[\w./:=@,+-]+)*)"
    r"(?:\s+[1&]?>>?\s*/dev/null(?:\s+2>\s*(?:&1|/dev/null))?)?\s*"
)
"""A line that a shell runs without expanding anything or setting variables. It may discard output,
which the run of a job keeps.
"""
_PREFIX = re.compile(
    r"""
    (?: cd\s+(?P<directory>[\w./~-]+)\s*(?:&&|;)
    | (?:\.|source)\s+[\w./~-]+/activate\s*(?:&&|;)
    | (?P<variable>[A-Za-z_]\w*)=(?:"[^"$`\\]*"|'[^']*'|[\w./:@,+-]*)
    | (?:/usr/bin/)?env
    | exec
    | (?:/usr/bin/)?(?P<priority>nice(?:\s+-n?\s*-?\d+)?|ionice(?:\s+-[cn]\s*\d|\s+-t)*)
    | (?:/usr/bin/)?flock(?P<flock>(?:\s+-\S+|\s+\d+)*)\s+(?P<file>[\w./~-]+)
    | (?:uv|poetry|pipenv)\s+run
    )(?:\s+|(?<=[;&]))
    """,
    re.VERBOSE,
)
"""What may precede the call."""
_CALL = re.compile(
    r"(?:[\w./~-]*python[\d.]*\s+(?:-[uBO]+\s+)?)?(?:[\w./~-]*/)?(?:manage\.py|django-admin)\s+"
    rf"{_NAME}(?P<args>(?:\s+(?!\d+>)(?:[\w./:=@,+-]|\"[^\"$`\\]*\"|'[^']*')++)*+)"
)
"""The call. A number before ``>`` belongs to a redirection."""
_REDIRECTION = re.compile(r"\s*(?:2>&1|[12&]?>>?\s*(?P<file>[\w./~:@,+-]+))")
_FAILING_OPTIONS = frozenset({"--nb", "--nonblock", "--wait", "--timeout"})
"""Options with which ``flock`` exits if it doesn't get the lock."""
_NOT_EXCLUSIVE = re.compile(r"(?:^|\s)(?:-\w*[su]|--shared|--unlock)")
"""Options with which a lock doesn't exclude another call of the line."""
MANAGE_PY = "manage.py"
_WORDS = re.compile(r"[\s;&|()\"']+")
_NOT_NEEDED = frozenset({"PATH"})
"""Variables that a job doesn't get: its worker has already found Python."""
_PROJECT_OPTIONS = ("--settings", "--pythonpath")
"""Options that the job's worker has chosen already."""


@dataclass(frozen=True, slots=True)
class ManagementCall:
    command: str
    """The name of the management command."""
    arguments: list[str]
    omitted: tuple[str, ...] = ()
    """What the line does and its job doesn't."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the job that follow from the line."""


@dataclass(frozen=True, slots=True)
class OtherProject:
    """The project of another ``manage.py`` than this project's. It may be a copy of this one."""

    directory: str
    own_directory: str
    """The directory of the ``manage.py`` of this project."""
    is_accessible: bool = True
    """Whether the user of this process can access the ``manage.py`` of the other project."""


def called_command(command: str) -> str:
    """Return the management command that is called, possibly among other things, or ""."""
    match = _CALLED.search(command)
    return match[1] if match else ""


def other_project_of(command: str) -> OtherProject | None:
    """Return the project whose ``manage.py`` the command calls, unless it is certainly this one.

    Equal files prove nothing: ``startproject`` writes them, and a copy may have another database.
    Returns None if one of the files isn't here, because a crontab may come from another machine.
    """
    try:
        called = _called_file(command)
        own = Path(sys.argv[0])
        own = own if own.name == MANAGE_PY else Path.cwd() / MANAGE_PY
        if called is None:
            return None
        own_status, status = own.stat(), _status_of(called)
        if status is not None and os.path.samestat(status, own_status):
            return None
        directory, own_directory = called.resolve().parent, own.resolve().parent
        is_own = _are_releases(directory, own_directory)
    except (OSError, RuntimeError, ValueError):  # no such file or user, or an invalid path
        return None
    if is_own:
        return None
    return OtherProject(str(called.parent), str(own_directory), is_accessible=status is not None)


def _status_of(path: Path) -> os.stat_result | None:
    """Return the status of the file, or None if this process can't access it."""
    try:
        return path.stat()
    except PermissionError:
        return None


def _are_releases(directory: Path, other: Path) -> bool:
    """Return whether the directories belong to two releases of one project.

    The releases are in a directory ``releases``, beside a link ``current`` to one of them.
    """
    parts, other_parts = directory.parts, other.parts
    if len(parts) != len(other_parts):
        return False
    differing = [at for at, part in enumerate(parts) if part != other_parts[at]]
    if len(differing) != 1:
        return False
    releases = Path(*parts[: differing[0]])
    return (
        releases.name == "releases" and releases in (releases.parent / "current").resolve().parents
    )


def _called_file(command: str) -> Path | None:
    """Return the absolute path of the ``manage.py`` that the command calls, or None."""
    parts: list[str] = []  # joined once, so that the time is linear
    before = ""
    for word in _WORDS.split(command):
        if before == "cd":
            parts.append(word)
        elif word == MANAGE_PY or word.endswith(f"/{MANAGE_PY}"):
            called = Path(*(Path(part).expanduser() for part in (*parts, word)))
            return called if called.is_absolute() else None
        before = word
    return None


def plain_call(command: str, variables: Collection[str]) -> ManagementCall | None:
    """Return the call if the command does nothing else.

    ``variables``: names of the variables that the crontab sets.
    """
    match = _PLAIN.fullmatch(command)
    if match is None or set(variables) - _NOT_NEEDED:
        return None
    arguments = match["args"].split()
    if any(_is_project_option(word) for word in arguments):
        return None
    omitted = [f"its variable {name}" for name in variables]
    omitted += [f"its directory {match['directory']}"] if match["directory"] else []
    omitted += ["its redirection to /dev/null"] if ">" in command else []
    return ManagementCall(match["name"], arguments, tuple(omitted))


def reduced_call(command: str, variables: Collection[str]) -> ManagementCall | None:
    """Return the call without the variables, locks and redirections of the command."""
    start, omitted = 0, [f"its variable {name}" for name in variables]
    fields: dict[str, Any] = {}
    while prefix := _PREFIX.match(command, start):
        start = prefix.end()
        if prefix["directory"]:
            omitted.append(f"its directory {prefix['directory']}")
        if prefix["variable"]:
            omitted.append(f"its variable {prefix['variable']}")
        if prefix["priority"]:
            omitted.append(f"its {prefix['priority']}")
        if prefix["file"]:
            if fields or _NOT_EXCLUSIVE.search(prefix["flock"]):
                return None
            omitted.append(f"its lock {prefix['file']}")
            fails = any(map(_fails_without_lock, prefix["flock"].split()))
            policy = OverlapPolicy.SKIP if fails else OverlapPolicy.QUEUE_ALL
            fields["overlap_policy"] = policy.value
    match = _CALL.match(command, start)
    if match is None:
        return None
    end = match.end()
    while redirection := _REDIRECTION.match(command, end):
        end = redirection.end()
        if redirection["file"]:
            omitted.append(f"its redirection to {redirection['file']}")
    if command[end:].strip():
        return None
    words = shlex.split(match["args"])
    omitted += [f"its {word.partition('=')[0]}" for word in words if _is_project_option(word)]
    arguments = list(_without_project_options(words))
    return ManagementCall(match["name"], arguments, tuple(dict.fromkeys(omitted)), fields)


def _fails_without_lock(option: str) -> bool:
    """Return whether the option makes ``flock`` exit instead of waiting for the lock."""
    if option.startswith("--"):
        return option.partition("=")[0] in _FAILING_OPTIONS
    return option.startswith("-") and bool({"n", "w"} & {*option})


def _is_project_option(word: str) -> bool:
    return word.partition("=")[0] in _PROJECT_OPTIONS


def _without_project_options(words: list[str]) -> Iterator[str]:
    skips_value = False
    for word in words:
        if skips_value:
            skips_value = False
        elif _is_project_option(word):
            skips_value = "=" not in word
        else:
            yield word
