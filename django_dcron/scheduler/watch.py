"""The watch: a thread that looks after the others, says when the node becomes unfit and when it is fit again, and writes
the health file.

Nothing waits for it. A disk that is full costs one line in the log; one that hangs lets the file grow old, which tells.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django_dcron.scheduler.health import Health
from django_dcron.scheduler.health_file import HealthFile
from django_dcron.scheduler.watchdog import LOOK_EVERY, Watchdog

logger = logging.getLogger("django_dcron.scheduler")


class Watch:
    def __init__(
        self,
        watchdog: Watchdog,
        health: Callable[[], Health],
        file: HealthFile | None,
        also: Callable[[], None] = lambda: None,
    ):
        """``also``: called at each look; never waits."""
        self._also = also
        self._watchdog = watchdog
        self._health = health
        self._file = file
        self._fit = True
        self._written = True
        self._shared = False

    def run(self, closed: threading.Event) -> None:
        """The thread: until the node is ``closed``."""
        while True:
            self._watchdog.look()
            self._also()
            health = self._health()
            self._report(health)
            self._write(health)
            if closed.wait(LOOK_EVERY):
                break
        if self._file:
            self._remove(self._file)

    def _report(self, health: Health) -> None:
        fit, self._fit = self._fit, health.status.fit
        if fit == health.status.fit:
            return
        node = health.facts.name
        if health.status.fit:
            logger.info("%s is fit again", node, extra={"event": "fit", "node": node})
        else:
            reasons = "; ".join(health.reasons)
            logger.error("%s is unfit: %s", node, reasons, extra={"event": "unfit", "node": node})

    def _write(self, health: Health) -> None:
        if self._file is None:
            return
        node = health.facts.name
        extra = {"event": "health_file", "node": node}
        try:
            self._file.write(health.as_json(), LOOK_EVERY)
        except OSError as error:
            if self._written:
                logger.warning("%s: its health file cannot be written: %s", node, error, extra=extra)
            self._written = False
        else:
            if not self._written:
                logger.info("%s: its health file can be written again", node, extra=extra)
            self._written = True
            if self._file.shared and not self._shared:
                path = self._file.path
                logger.error(
                    "%s: another node writes %s too: give each a file of its own", node, path, extra=extra
                )
                self._shared = True

    def _remove(self, file: HealthFile) -> None:
        try:
            file.remove()
        except OSError as error:
            logger.warning("its health file cannot be removed: %s", error, extra={"event": "health_file"})
