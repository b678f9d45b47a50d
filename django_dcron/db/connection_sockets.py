"""Sockets of database connections: limits on how long a silent connection blocks its thread.

A network may drop packets, or a server may disappear without closing its connections. A statement
would then wait forever. These functions limit the time to connect, let the kernel detect a silent
peer, and end a connection that another thread waits for. The project's ``OPTIONS`` take precedence.
SQLite has no sockets.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from math import ceil
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

KEEPALIVE_OPTIONS = frozenset(
    {"keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"}
)
"""libpq options. If the project sets one, its connections aren't changed."""
KEEPALIVE_PROBES = 3


def set_connect_timeout(connection: BaseDatabaseWrapper, timeout: timedelta) -> None:
    """Set the connect timeout of ``connection``: ``timeout`` in whole seconds, at least 2 s.

    Does nothing if the project sets ``connect_timeout``, a libpq service or a pool.
    """
    options = connection.settings_dict["OPTIONS"]
    if connection.vendor not in ("postgresql", "mysql") or options.keys() & {
        "connect_timeout",
        "pool",
        "service",
    }:
        return
    seconds = max(ceil(timeout.total_seconds()), 2)
    # A copy, because threads share the original.
    connection.settings_dict = connection.settings_dict | {
        "OPTIONS": {**options, "connect_timeout": seconds}
    }


def enable_keepalive(connection: BaseDatabaseWrapper, timeout: timedelta) -> None:
    """Let the kernel end a TCP connection after its peer was silent for about twice ``timeout``.

    A peer is silent if it acknowledges nothing. Does nothing if the project sets one of
    ``KEEPALIVE_OPTIONS``.
    """
    descriptor = socket_descriptor(connection)
    if descriptor is None or connection.settings_dict["OPTIONS"].keys() & KEEPALIVE_OPTIONS:
        return
    seconds = max(ceil(timeout.total_seconds()), KEEPALIVE_PROBES)
    with suppress(OSError), closing(socket.socket(fileno=os.dup(descriptor))) as sock:
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in {
            "TCP_KEEPIDLE": seconds,
            "TCP_KEEPINTVL": seconds // KEEPALIVE_PROBES,
            "TCP_KEEPCNT": KEEPALIVE_PROBES,
            "TCP_USER_TIMEOUT": 2 * seconds * 1000,
        }.items():
            if option := getattr(socket, name, None):  # Some systems lack some of these options.
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def new_connection(alias: str, timeout: timedelta) -> BaseDatabaseWrapper:
    """Return a separate connection to database ``alias``, not pooled and not open yet.

    The caller closes it.
    """
    connection = connections.create_connection(alias)
    options = {
        name: value for name, value in connection.settings_dict["OPTIONS"].items() if name != "pool"
    }
    connection.settings_dict = connection.settings_dict | {"OPTIONS": options}
    set_connect_timeout(connection, timeout)
    return connection


def session_id(connection: BaseDatabaseWrapper) -> int | None:
    """Return the id that the server gave this connection's session. None if it is unknown."""
    driver: Any = connection.connection
    try:
        if connection.vendor == "postgresql" and driver is not None:
            return int(driver.info.backend_pid)
        if connection.vendor == "mysql" and driver is not None:
            return int(driver.thread_id())
    except Exception:  # The connection was closed, or the driver has another attribute for the id.
        return None
    return None


def is_executing(session: int, connection: BaseDatabaseWrapper) -> bool:
    """Ask over ``connection`` whether the server is executing a statement of ``session``.

    Returns False if the server doesn't know the session: after a failover, or behind a pooler with
    its own ids.
    """
    query = {
        "postgresql": "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'active'"
        " AND wait_event_type IS DISTINCT FROM 'Client'",
        "mysql": "SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = %s"
        " AND COMMAND <> 'Sleep'",
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(query, [session])
        return cursor.fetchone() is not None


def socket_descriptor(connection: BaseDatabaseWrapper) -> int | None:
    """Return the file descriptor of the connection's socket, or None.

    Some drivers don't return it while a statement is executing.
    """
    driver: Any = connection.connection
    try:
        return int(driver.fileno())
    except Exception:  # The connection is closed, or its driver has no sockets.
        return None


def shut_down_socket(descriptor: int, is_waiting: Callable[[], bool]) -> bool:
    """Shut down the socket ``descriptor``, so that the thread that waits for it gets an error.

    Does nothing and returns False if ``is_waiting`` returns False: the descriptor may belong to
    another socket by now. Also returns False if the socket is closed.
    """
    with suppress(OSError), closing(socket.socket(fileno=os.dup(descriptor))) as sock:
        if is_waiting():
            sock.shutdown(socket.SHUT_RDWR)
            return True
    return False
