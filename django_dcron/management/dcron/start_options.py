"""Store how a node was started, next to its pid file, for ``restart`` and ``state``.

The file remains after the node has stopped.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from django_dcron.management.dcron.pid_file import PidFile
from django_dcron.utils.safe_files import write_nofollow


@dataclass(frozen=True, slots=True)
class StartOptions:
    daemon: bool
    directory: str
    """The working directory; paths in the project's settings may be relative to it."""
    log_file: str
    """Empty if the node writes to its terminal or to its supervisor."""
    health_file: str
    """Empty if the node has none."""
    started_at: str
    """An ISO 8601 time. Empty until the node starts."""
    settings: str
    """The project's settings module."""
    arguments: list[str]
    """The arguments of ``runcron``."""


def store_options(pid_file: PidFile, options: StartOptions) -> None:
    path = options_path(pid_file)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write_nofollow(temporary, json.dumps(asdict(options), indent=2) + "\n")
    temporary.replace(path)


def load_options(pid_file: PidFile) -> StartOptions | None:
    """Return the stored options, or None if there are none or they are unreadable."""
    try:
        return StartOptions(**json.loads(options_path(pid_file).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def options_path(pid_file: PidFile) -> Path:
    return pid_file.beside("options")
