"""Read the commit that is checked out from Git's files, without the program ``git``."""

from __future__ import annotations

from pathlib import Path

LENGTH = 12
"""The number of digits of a commit."""


def checked_out_commit(directory: Path) -> str:
    """Return the abbreviated commit of the checkout that contains ``directory``.

    Returns an empty string if there is no checkout, or if its files can't be read.
    """
    try:
        for parent in (directory, *directory.parents):
            if (parent / ".git").exists():
                return _commit(_git_directory(parent / ".git"))[:LENGTH]
    except (OSError, ValueError):  # ValueError: not text, or a path with a null character
        pass
    return ""


def _git_directory(path: Path) -> Path:
    """Return the directory that ``.git`` names: in a worktree or submodule, it is a file."""
    return path if path.is_dir() else path.parent / _read(path).removeprefix("gitdir: ")


def _commit(git: Path) -> str:
    head = _read(git / "HEAD")
    if not head.startswith("ref: "):
        return head
    reference = head.removeprefix("ref: ")
    shared = git / "commondir"
    directories = [git, git / _read(shared)] if shared.is_file() else [git]
    for directory in directories:
        if (directory / reference).is_file():
            return _read(directory / reference)
    for line in _read(directories[-1] / "packed-refs").splitlines():
        commit, _space, name = line.partition(" ")
        if name == reference:
            return commit
    return ""


def _read(path: Path) -> str:
    return path.read_text().strip()
