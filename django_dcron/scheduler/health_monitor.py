"""The health monitor: a thread that checks the other threads and writes the health file.

The health monitor also logs when the node becomes unfit or fit again. No other thread waits for it.
If the disk is full, it logs one line. If the disk hangs, the file becomes old, and probes notice
that.
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
            self._remove(self._file)

    def _report(self, health: NodeHealth) -> None:
        fit, self._was_fit = self._was_fit, health.status.fit
        if fit == health.status.fit:
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
        node = health.facts.name
        extra = {"event": "health_file", "node": node}
        try:
            self._file.write(health.as_json(), CHECK_EVERY)
        except OSError as error:
            if self._last_write_succeeded:
                logger.warning(
                    "health file not written: node=%s error=%s", node, error, extra=extra
                )
            self._last_write_succeeded = False
        else:
            if not self._last_write_succeeded:
                logger.info("health file written again: node=%s", node, extra=extra)
            self._last_write_succeeded = True
            if self._file.shared and not self._sharing_reported:
                path = self._file.path
                logger.error(
                    "health file shared with another node: node=%s path=%s; use one file per node",
                    node,
                    path,
                    extra=extra,
                )
                self._sharing_reported = True

    def _remove(self, file: HealthFile) -> None:
        try:
            file.remove()
        except OSError as error:
            logger.warning(
                "health file not removed: error=%s", error, extra={"event": "health_file"}
            )
