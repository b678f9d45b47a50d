"""The processes of the demo. Each has its own process group and a log file.

The demo shows the most interesting lines of each log.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

COLORS = {"demo": 1, "redis": 90, "web": 35, "worker": 32, "node-a": 36, "node-b": 34}
LINE = re.compile(
    r"\d{4}-\d\d-\d\d (?P<time>\d\d:\d\d:\d\d),\d+ (?P<level>[A-Z]+) (?P<logger>[\w.]+): "
    r"(?P<message>.*)"
)


class Feed:
    """Print one line per interesting event, with the time and the name of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._colored = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def say(self, message: str, name: str = "demo", at: str = "") -> None:
        prefix = f"{at or time.strftime('%H:%M:%S', time.gmtime())} {name:>6} |"
        if self._colored:
            prefix = f"\033[{COLORS.get(name, 0)}m{prefix}\033[0m"
        # The reader of the output may have exited (`make demo | head`). That must not stop the
        # demo.
        with self._lock, suppress(OSError):
            print(prefix, message, flush=True)

    def pass_on(self, name: str, line: str) -> None:
        """Show a log line of the shop or of django-dcron, or of any logger from WARNING on."""
        found = LINE.fullmatch(line)
        if found and self._matters(found["level"], found["logger"]):
            self.say(found["message"], name, found["time"])

    def _matters(self, level: str, logger: str) -> bool:
        if logger == "django.request":  # django.server logs the same
            return False
        return level not in ("DEBUG", "INFO") or logger.partition(".")[0] in (
            "shop",
            "django_dcron",
        )


class Service:
    """A process with its children."""

    def __init__(
        self,
        name: str,
        command: Iterable[str | Path],
        *,
        environment: Mapping[str, str],
        directory: Path,
        log: Path,
        feed: Feed,
    ) -> None:
        self.name = name
        self._killed = False
        self.last_lines: deque[str] = deque(maxlen=15)
        self._feed = feed
        self._process = subprocess.Popen(
            [str(part) for part in command],
            cwd=directory,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches only the demo, which stops the others in order
        )
        self._reader = threading.Thread(
            target=self._read, args=(log,), name=f"read {name}", daemon=True
        )
        self._reader.start()

    def _read(self, log: Path) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines, log.open("w") as file:
            for line in lines:
                file.write(line)
                file.flush()
                self.last_lines.append(line)
                self._feed.pass_on(self.name, line.rstrip())

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def has_logged(self, text: str) -> bool:
        return any(text in line for line in list(self.last_lines))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the process to exit. Doesn't wait."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and its children."""
        if self._killed:
            return
        with suppress(ProcessLookupError, PermissionError):  # all have exited
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(1)
        self._killed = True
