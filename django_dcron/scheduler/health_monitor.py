"""The health monitor: a thread that checks the other threads and writes the health file.

The monitor logs when the node becomes unfit, and when it is fit again. If several writes fail in a
row, it logs only the first failure. No other thread waits for the monitor: if the disk hangs, the
node continues to work, but the health file becomes old, and probes report the node as unfit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django_dcron.scheduler.health import NodeHealth
from django_dcron.scheduler.health_file import HealthFile
from django_dcron.scheduler.watchdog import CHECK_EVERY, Watchdog

logger = logging.getLogger("django_dcron.scheduler")


class HealthMonitor:
    def __init__(
        self,
        watchdog: Watchdog,
        health: Callable[[], NodeHealth],
        file: HealthFile | None,
        on_check: Callable[[], None] = lambda: None,
    ):
        """Create the health monitor. ``on_check`` is called at each check. It must not block."""
        self._on_check = on_check
        self._watchdog = watchdog
        self._health = health
        self._file = file
        self._was_fit = True
        self._last_write_succeeded = True
        self._sharing_reported = False

    def run(self, closed: threading.Event) -> None:
        """Check until the node is ``closed``. This is the body of the thread."""
        while True:
            self._watchdog.check()
            self._on_check()
            health = self._health()
            self._report(health)
            self._write(health)
            if closed.wait(CHECK_EVERY):
                break
        if self._file:
            self._remove(self._file, health.facts.name)

    def _report(self, health: NodeHealth) -> None:
        was_fit, self._was_fit = self._was_fit, health.status.fit
        if was_fit == health.status.fit:
            return
        node = health.facts.name
        if health.status.fit:
            logger.info("node fit again: node=%s", node, extra={"event": "fit", "node": node})
        else:
            reasons = "; ".join(health.reasons)
            extra = {"event": "unfit", "node": node}
            logger.error("node unfit: node=%s reasons=%s", node, reasons, extra=extra)

    def _write(self, health: NodeHealth) -> None:
        if self._file is None:
            return
        node, path = health.facts.name, str(self._file.path)
        try:
            self._file.write(health.as_json(), CHECK_EVERY)
        except OSError as error:
            if self._last_write_succeeded:
                logger.warning(
                    "health file not written: node=%s path=%s error=%s",
                    node,
                    path,
                    error,
                    extra={
                        "event": "health_file_failed",
                        "node": node,
                        "path": path,
                        "error": str(error),
                    },
                )
            self._last_write_succeeded = False
        else:
            if not self._last_write_succeeded:
                logger.info(
                    "health file written again: node=%s path=%s",
                    node,
                    path,
                    extra={"event": "health_file_restored", "node": node, "path": path},
                )
            self._last_write_succeeded = True
            if self._file.shared and not self._sharing_reported:
                logger.error(
                    "health file shared with another node, use one file per node: node=%s path=%s",
                    node,
                    path,
                    extra={"event": "health_file_shared", "node": node, "path": path},
                )
                self._sharing_reported = True

    def _remove(self, file: HealthFile, node: str) -> None:
        path = str(file.path)
        try:
            file.remove()
        except OSError as error:
            logger.warning(
                "health file not removed: node=%s path=%s error=%s",
                node,
                path,
                error,
                extra={
                    "event": "health_file_not_removed",
                    "node": node,
                    "path": path,
                    "error": str(error),
                },
            )
