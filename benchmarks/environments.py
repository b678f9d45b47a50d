"""Each contestant's own virtual environment, made once below ``.bench/`` from the versions of requirements/bench.txt."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".bench"
LOCK = ROOT / "requirements" / "bench.txt"
STAMP = ".made-from"
MARIADB_LOCK = ROOT / "requirements" / "mariadb.txt"


def environment(name: str, packages: Sequence[str]) -> Path:
    """The interpreter of an environment that holds ``packages`` in the lock's versions, and what they need."""
    directory = CACHE / name
    python = directory / "bin" / "python"
    if _is_fresh(directory, LOCK.read_text() + " ".join(packages)):
        return python
    print(f"making {directory.relative_to(ROOT)} (once)", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
    # The lock as constraints: the same versions for all, and of its packages only those that are needed here.
    _pip(python, "install", "-c", LOCK, *packages)
    _freshen(directory, LOCK.read_text() + " ".join(packages))
    return python


def is_made(name: str) -> bool:
    return (CACHE / name / STAMP).exists()


def mariadb_driver() -> Path | None:
    """Where MariaDB's driver is, if this environment does not have it; it is compiled here."""
    if find_spec("MySQLdb"):
        return None
    directory = CACHE / "mysqlclient"
    if not _is_fresh(directory, MARIADB_LOCK.read_text()):
        _pip(sys.executable, "install", "--upgrade", "--target", directory, "-r", MARIADB_LOCK)
        _freshen(directory, MARIADB_LOCK.read_text())
    return directory


def _pip(python: Path | str, *arguments: Path | str) -> None:
    """Quiet, unless it fails: then all that it said."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"pip failed:\n{done.stdout[-4000:]}")


def versions(python: Path | str, packages: Sequence[str]) -> dict[str, str]:
    """What an environment really holds."""
    program = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    names = [package.partition("[")[0] for package in packages]
    found = subprocess.run([python, "-c", program, *names], check=True, capture_output=True, text=True)
    return dict(zip(names, found.stdout.split(), strict=True))


def _is_fresh(directory: Path, content: str) -> bool:
    stamp = directory / STAMP
    return stamp.exists() and stamp.read_text() == _digest(content)


def _freshen(directory: Path, content: str) -> None:
    (directory / STAMP).write_text(_digest(content))


def _digest(content: str) -> str:
    return hashlib.sha256((sys.version + content).encode()).hexdigest()
