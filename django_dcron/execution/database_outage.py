"""Wait out database outages in a worker."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import connections

from django_dcron.conf import settings
from django_dcron.db.connection_sockets import enable_keepalive, set_connect_timeout
from django_dcron.db.errors import UNAVAILABLE

logger = logging.getLogger("django_dcron.runs")

T = TypeVar("T")
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
"""Seconds. The pause doubles from first to longest and is randomized to spread the workers."""


def retry_until_available(
    work: Callable[[], T], what: str, using: str, *, give_up_after: float | None = None
) -> T:
    """Call ``work`` again and again until the database is available. Return its result.

    A lock timeout counts as unavailable. Each further try uses a new connection.
    ``work`` must be safe to repeat, even if it was committed and only the answer was lost. After
    ``give_up_after`` seconds, the error is raised; by default, never. ``what`` names the work in
    the log.
    """
    began = time.monotonic()
    pause = FIRST_PAUSE
    while True:
        try:
            _limit_silence(using)
            return work()
        except UNAVAILABLE as error:
            waited = time.monotonic() - began
            if give_up_after is not None and waited > give_up_after:
                raise
            if pause >= 1:
                logger.warning(
                    "waiting for the database: step=%s waited=%.0fs error=%s",
                    what,
                    waited,
                    error,
                    extra={"event": "waits_for_database"},
                )
            connections[using].close()
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 (spreads, keeps no secret)
            pause = min(2 * pause, LONGEST_PAUSE)


_limited = threading.local()
"""``connection``: the driver's connection of this thread whose silence is limited."""


def _limit_silence(using: str) -> None:
    """Connect, and let the kernel end the connection after about two run leases of silence."""
    connection = connections[using]
    connection.close_if_health_check_failed()
    if connection.connection is None:
        set_connect_timeout(connection, settings.RUN_LEASE)
        connection.ensure_connection()
    if connection.connection is not getattr(_limited, "connection", None):
        enable_keepalive(connection, settings.RUN_LEASE)
        _limited.connection = connection.connection
