"""How a node was started: kept beside its pid file, for ``restart`` and ``state``. It stays there when the node has stopped."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from django_dcron.management.dcron.pid_file import PidFile
from django_dcron.own_files import write_own


@dataclass(frozen=True, slots=True)
class Kept:
    daemon: bool
    directory: str
    """The working directory, to which paths in the project's settings may be relative."""
    log_file: str
    """Empty: it writes to its terminal, or wherever its supervisor lets it."""
    health_file: str
    """Empty: it keeps none."""
    started_at: str
    settings: str
    """The module of the project's settings."""
    arguments: list[str]
    """Those of ``runcron``."""


def keep(pid_file: PidFile, kept: Kept) -> None:
    path = path_of(pid_file)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    write_own(draft, json.dumps(asdict(kept), indent=2) + "\n")
    draft.replace(path)


def read(pid_file: PidFile) -> Kept | None:
    """None: nothing was kept, or nothing that can be read."""
    try:
        return Kept(**json.loads(path_of(pid_file).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def path_of(pid_file: PidFile) -> Path:
    return pid_file.beside("options")
