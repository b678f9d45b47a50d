"""The health file: a node's own health, for probes that read a file.

Invariants:

- The node replaces the whole file every few seconds and removes it when it stops. An old file
  therefore means that the process is dead or suspended.
- The file's modification time gives its age, because reader and writer share one machine.
- Each file belongs to one node. If two nodes use the same path by mistake, both log an error, and
  neither removes a file that the other node wrote last.

This probe doesn't load Django, for supervisors with a short timeout::

    python -m django_dcron.scheduler.health_file /run/dcron/health.json
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from django_dcron.scheduler.health import HealthStatus
from django_dcron.utils.safe_files import write_nofollow

MAX_AGE_IN_INTERVALS = 5
"""The maximum age of a file, as a multiple of the interval between two writes."""


class HealthFile:
    def __init__(self, path: str | Path):
        self.path = Path(path)
        # The name is random, because processes in two containers may have the same pid. The file is
        # in the same directory, because a rename is atomic only within a file system.
        self._temporary_path = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        self._id: str | None = None
        """The id of the node that wrote the file through this object."""
        self.shared = False
        """Whether another node had replaced the file before this node's last write."""

    def prepare(self) -> None:
        """Raise ``OSError`` if the file can't be written."""
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a directory")
        try:
            write_nofollow(self._temporary_path, "")
        finally:
            self._temporary_path.unlink(missing_ok=True)

    def write(self, content: Mapping[str, Any], interval: float) -> None:
        """Replace the file. The next write follows in ``interval`` seconds. Raises ``OSError``."""
        write_nofollow(self._temporary_path, json.dumps({**content, "interval": interval}) + "\n")
        self.shared = self._id is not None and self._writer() not in (None, self._id)
        self._temporary_path.replace(self.path)
        self._id = content["id"]

    def remove(self) -> None:
        self._temporary_path.unlink(missing_ok=True)
        if self._id is not None and self._writer() == self._id:
            self.path.unlink(missing_ok=True)

    def _writer(self) -> str | None:
        """Return the id of the node that wrote the current file."""
        try:
            return str(json.loads(self.path.read_bytes())["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


class ProbeResult(NamedTuple):
    fit: bool
    reason: str
    """One line of text."""


def probe(path: str | Path) -> ProbeResult:
    """Return whether the node that writes this file is fit.

    Doesn't raise an exception for a missing or invalid file.
    """
    try:
        with open(path, encoding="utf-8") as file:
            age = time.time() - os.fstat(file.fileno()).st_mtime
            content = json.load(file)
        name, interval = content["name"], float(content["interval"])
        status = HealthStatus(content["status"])
        text = "; ".join(content["reasons"]).replace("\n", " ")
    except FileNotFoundError:
        return ProbeResult(False, f"{path} doesn't exist: no node is running")
    except OSError as error:
        return ProbeResult(False, f"{path} isn't readable: {error}")
    except (ValueError, KeyError, TypeError):
        return ProbeResult(False, f"{path} isn't a health file")
    # A file from the future is stale, too: the clock was set back, and no node has written since.
    if abs(age) > MAX_AGE_IN_INTERVALS * interval:
        return ProbeResult(False, f"{path} is {age:.0f} s old: {name} is dead or suspended")
    return ProbeResult(status.fit, f"{name} is {status}" + (f": {text}" if text else ""))


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m django_dcron.scheduler.health_file FILE", file=sys.stderr)  # noqa: T201
        return 1
    result = probe(arguments[0])
    print(result.reason)  # noqa: T201
    return 0 if result.fit else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
