"""The health file: what a node thinks of itself, for whoever may read a file.

It is replaced as a whole every few seconds and removed at the end. So a file that is old means a process that is dead or
frozen, whatever the file says. Its age is told by its modification time: reader and writer share one machine.

It is one node's. Two that were given the same path by mistake both notice, and neither removes what the other wrote last.

    python -m django_dcron.scheduler.health_file /run/dcron/health.json

is the probe without Django, for a supervisor that is impatient.
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

from django_dcron.own_files import write_own
from django_dcron.scheduler.health import Status

INTERVALS = 5
"""How many of its intervals old a file may be."""


class HealthFile:
    def __init__(self, path: str | Path):
        self.path = Path(path)
        # One of its own for each process (two containers may both have pid 1), beside the file: only within a directory
        # is a rename atomic.
        self._draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        self._id: str | None = None
        """Of the node that has written it here."""
        self.shared = False
        """At the last writing there was one of another node, written since this node's own."""

    def prepare(self) -> None:
        """Raise ``OSError`` if it cannot be written here."""
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a directory")
        try:
            write_own(self._draft, "")
        finally:
            self._draft.unlink(missing_ok=True)

    def write(self, content: Mapping[str, Any], interval: float) -> None:
        """Replace it; the next time is to be in ``interval`` seconds. Raises ``OSError``."""
        write_own(self._draft, json.dumps({**content, "interval": interval}) + "\n")
        self.shared = self._id is not None and self._writer() not in (None, self._id)
        self._draft.replace(self.path)
        self._id = content["id"]

    def remove(self) -> None:
        self._draft.unlink(missing_ok=True)
        if self._id is not None and self._writer() == self._id:
            self.path.unlink(missing_ok=True)

    def _writer(self) -> str | None:
        """The node that wrote the file that is there."""
        try:
            return str(json.loads(self.path.read_bytes())["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Answer(NamedTuple):
    fit: bool
    reason: str
    """One line."""


def probe(path: str | Path) -> Answer:
    """Whether the node that writes this file is fit; never raises for what is there or not."""
    try:
        with open(path, encoding="utf-8") as file:
            age = time.time() - os.fstat(file.fileno()).st_mtime
            content = json.load(file)
        name, status, interval = content["name"], Status(content["status"]), float(content["interval"])
        said = "; ".join(content["reasons"]).replace("\n", " ")
    except FileNotFoundError:
        return Answer(False, f"{path} is not there: no node is up")
    except OSError as error:
        return Answer(False, f"{path} cannot be read: {error}")
    except (ValueError, KeyError, TypeError):
        return Answer(False, f"{path} is not a health file")
    if abs(age) > INTERVALS * interval:  # also one from the future: the clock was set, and nobody wrote since
        return Answer(False, f"{path} is {age:.0f} s old: {name} is dead or frozen")
    return Answer(status.fit, f"{name} is {status}" + (f": {said}" if said else ""))


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m django_dcron.scheduler.health_file FILE", file=sys.stderr)  # noqa: T201
        return 1
    answer = probe(arguments[0])
    print(answer.reason)  # noqa: T201
    return 0 if answer.fit else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
