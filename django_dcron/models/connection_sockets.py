"""The sockets below database connections: so that a connection that falls silent never keeps its thread waiting for good.

A network may drop packets, or lead to a server that is gone, without a word: then a statement that was sent waits for ever.
These functions bound how long it takes to connect, have the kernel notice a silent peer, and end a connection that another
thread waits for. What the project says of that in ``OPTIONS`` counts more. SQLite has no sockets.
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

OWN_CHOICES = frozenset(
    {"keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"}
)
"""Options of libpq: where the project sets one, its connections stay as it says."""
KEEPALIVE_PROBES = 3


def limit_connecting(connection: BaseDatabaseWrapper, patience: timedelta) -> None:
    """From now on it takes ``connection`` no longer than ``patience`` (2 s at least) to connect, unless the project says otherwise."""
    options = connection.settings_dict["OPTIONS"]
    if connection.vendor not in ("postgresql", "mysql") or options.keys() & {"connect_timeout", "pool"}:
        return
    seconds = max(ceil(patience.total_seconds()), 2)
    # A copy, as threads share the original.
    connection.settings_dict = connection.settings_dict | {"OPTIONS": {**options, "connect_timeout": seconds}}


def notice_silence(connection: BaseDatabaseWrapper, patience: timedelta) -> None:
    """Have the kernel end this connection, if it is over TCP, once its peer has acknowledged nothing for about ``patience``."""
    number = socket_of(connection)
    if number is None or connection.settings_dict["OPTIONS"].keys() & OWN_CHOICES:
        return
    seconds = max(ceil(patience.total_seconds()), KEEPALIVE_PROBES)
    with suppress(OSError), closing(socket.socket(fileno=os.dup(number))) as found:
        if found.family not in (socket.AF_INET, socket.AF_INET6):
            return
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in {
            "TCP_KEEPIDLE": seconds,
            "TCP_KEEPINTVL": seconds // KEEPALIVE_PROBES,
            "TCP_KEEPCNT": KEEPALIVE_PROBES,
            "TCP_USER_TIMEOUT": 2 * seconds * 1000,
        }.items():
            if option := getattr(socket, name, None):  # not every system has all of them
                found.setsockopt(socket.IPPROTO_TCP, option, value)


def new_connection(alias: str, patience: timedelta) -> BaseDatabaseWrapper:
    """A connection of its own to database ``alias``, from no pool, not yet made. Its caller closes it."""
    connection = connections.create_connection(alias)
    options = {name: value for name, value in connection.settings_dict["OPTIONS"].items() if name != "pool"}
    connection.settings_dict = connection.settings_dict | {"OPTIONS": options}
    limit_connecting(connection, patience)
    return connection


def session_of(connection: BaseDatabaseWrapper) -> int | None:
    """The number by which the server knows the session of ``connection``; None if there is none."""
    driver: Any = connection.connection
    try:
        if connection.vendor == "postgresql" and driver is not None:
            return int(driver.info.backend_pid)
        if connection.vendor == "mysql" and driver is not None:
            return int(driver.thread_id())
    except Exception:  # it was closed meanwhile, or another driver has another name for it
        return None
    return None


def is_at_work(session: int, asked: BaseDatabaseWrapper) -> bool:
    """Whether the server that ``asked`` leads to is executing a statement of ``session``. It may not know it: after a failover, or
    behind a pooler that has numbers of its own."""
    question = {
        "postgresql": "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'active'"
        " AND wait_event_type IS DISTINCT FROM 'Client'",
        "mysql": "SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = %s AND COMMAND <> 'Sleep'",
    }[asked.vendor]
    with asked.cursor() as cursor:
        cursor.execute(question, [session])
        return cursor.fetchone() is not None


def socket_of(connection: BaseDatabaseWrapper) -> int | None:
    """The file descriptor of its socket; None if it has none. While a statement is under way some drivers don't tell."""
    driver: Any = connection.connection
    try:
        return int(driver.fileno())
    except Exception:  # not connected, or a driver without sockets
        return None


def end_waiting(number: int, is_waiting: Callable[[], bool]) -> bool:
    """Shut socket ``number`` of a connection for whose answer a thread waits: the thread gets an error. False: ``is_waiting`` denies
    that it waits, so the number may be another socket's by now."""
    with suppress(OSError), closing(socket.socket(fileno=os.dup(number))) as found:
        if is_waiting():
            found.shutdown(socket.SHUT_RDWR)
            return True
    return False
