"""Create each contestant's virtual environment once below ``.bench/``.

The versions come from requirements/bench.txt.
"""

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
    """Return the interpreter of an environment with ``packages`` in the locked versions."""
    directory = CACHE / name
    python = directory / "bin" / "python"
    if _is_fresh(directory, LOCK.read_text() + " ".join(packages)):
        return python
    print(f"making {directory.relative_to(ROOT)} (once)", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
    # With the lock as constraints, an environment gets the locked versions of needed packages only.
    _pip(python, "install", "-c", LOCK, *packages)
    _write_stamp(directory, LOCK.read_text() + " ".join(packages))
    return python


def is_made(name: str) -> bool:
    return (CACHE / name / STAMP).exists()


def mariadb_driver() -> Path | None:
    """Return the directory of the compiled MariaDB driver, or None if this environment has one."""
    if find_spec("MySQLdb"):
        return None
    directory = CACHE / "mysqlclient"
    if not _is_fresh(directory, MARIADB_LOCK.read_text()):
        _pip(sys.executable, "install", "--upgrade", "--target", directory, "-r", MARIADB_LOCK)
        _write_stamp(directory, MARIADB_LOCK.read_text())
    return directory


def _pip(python: Path | str, *arguments: Path | str) -> None:
    """Run pip quietly. If it fails, raise with its output."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"pip failed:\n{done.stdout[-4000:]}")


def versions(python: Path | str, packages: Sequence[str]) -> dict[str, str]:
    """Return the installed versions."""
    program = (
        "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    )
    names = [package.partition("[")[0] for package in packages]
    found = subprocess.run(
        [python, "-c", program, *names], check=True, capture_output=True, text=True
    )
    return dict(zip(names, found.stdout.split(), strict=True))


def _is_fresh(directory: Path, content: str) -> bool:
    stamp = directory / STAMP
    return stamp.exists() and stamp.read_text() == _digest(content)


def _write_stamp(directory: Path, content: str) -> None:
    (directory / STAMP).write_text(_digest(content))


def _digest(content: str) -> str:
    return hashlib.sha256((sys.version + content).encode()).hexdigest()
