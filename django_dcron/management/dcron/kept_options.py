"""Store how a node was started, next to its pid file, for ``restart`` and ``state``.

The file remains after the node has stopped.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from django_dcron.management.dcron.pid_file import PidFile
from django_dcron.utils.safe_files import write_own


@dataclass(frozen=True, slots=True)
class Kept:
    daemon: bool
    directory: str
    """The working directory; paths in the project's settings may be relative to it."""
    log_file: str
    """Empty if the node writes to its terminal or to its supervisor."""
    health_file: str
    """Empty if the node has none."""
    started_at: str
    settings: str
    """The project's settings module."""
    arguments: list[str]
    """The arguments of ``runcron``."""


def keep(pid_file: PidFile, kept: Kept) -> None:
    path = path_of(pid_file)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    write_own(draft, json.dumps(asdict(kept), indent=2) + "\n")
    draft.replace(path)


def read(pid_file: PidFile) -> Kept | None:
    """Return the stored options, or None if there are none or they are unreadable."""
    try:
        return Kept(**json.loads(path_of(pid_file).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def path_of(pid_file: PidFile) -> Path:
    return pid_file.beside("options")
