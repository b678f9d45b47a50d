"""Detect silent database connections and shut them down, so that their threads reconnect.

The health monitor checks whether a thread has been in the same call of Django's database backend or
of its driver for longer than ``DCRON_LEASE``. If so, a query on a new connection asks the server
whether it is executing a statement for that thread. If it isn't, no answer will come, and the
connection is shut down.

Invariants:

- A statement that the server is executing is left alone, regardless of its duration. Behind a
  pooler that announces its own session ids, the server can't tell, and the node connects again.
- If the database doesn't answer on a new connection either, no connection is shut down: the
  database stalls and may continue.
- A connection is shut down only if its thread is still in the same call after the server has
  answered.
- The health monitor never waits. A separate thread queries the server. Only one such thread runs at
  a time, and it is ended if it gets no answer.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from django.db import DatabaseError, InterfaceError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_dcron.conf import settings
from django_dcron.db.connection_sockets import (
    enable_keepalive,
    is_executing,
    new_connection,
    session_id,
    set_connect_timeout,
    shut_down_socket,
    socket_descriptor,
)
from django_dcron.db.errors import in_one_line
from django_dcron.db.routing import alias_for
from django_dcron.models import Run
from django_dcron.scheduler.watchdog import CHECK_EVERY
from django_dcron.utils.threads import DcronThread

logger = logging.getLogger("django_dcron.scheduler")

DATABASE_MODULES = ("django.db.backends.", "django.db.utils", "psycopg", "MySQLdb")
"""Prefixes of the names of modules that call the database. The drivers are included because rows of
a server-side cursor are fetched without a frame of Django's backend.
"""


@dataclass(eq=False)
class _Thread:
    name: str
    alias: str
    connection: BaseDatabaseWrapper | None = None
    """The connection that was opened last."""
    session: int | None = None
    """The server's id of the session. Recorded on connecting, because some drivers don't return it
    while they wait.
    """
    socket: int | None = None
    call: FrameType | None = None
    """The call of the database backend or driver that the thread was in at the last check."""
    waited: float = 0.0
    """Seconds in this call, as observed by the checks."""

    @property
    def is_connected(self) -> bool:
        return self.connection is not None and self.connection.connection is not None


class SilentConnections:
    def __init__(self, node: str, monotonic: Callable[[], float]):
        self._node = node
        self._monotonic = monotonic
        self._checked_at = monotonic()
        self._threads: dict[int, _Thread] = {}
        self._query_thread: threading.Thread | None = None
        self._query_socket: int | None = None
        """The socket of the connection that queries the server."""
        self._query_started_at = 0.0
        connection_created.connect(self._on_connect)

    def watch_this_thread(self, name: str) -> None:
        """Limit the time to connect for the calling thread, and start to check its connection."""
        connection = connections[alias_for(Run)]
        set_connect_timeout(connection, settings.LEASE)
        self._threads[threading.get_ident()] = _Thread(name, connection.alias)

    def forget_this_thread(self) -> None:
        self._threads.pop(threading.get_ident(), None)

    def check(self) -> None:
        now, timeout = self._monotonic(), settings.LEASE.total_seconds()
        # While the process was suspended, the database wasn't silent.
        passed = min(now - self._checked_at, 2 * CHECK_EVERY)
        self._checked_at = now
        threads = dict(self._threads)
        for ident, thread in threads.items():
            call = _database_call(ident)
            same = call is not None and call is thread.call
            thread.waited = thread.waited + passed if same else 0.0
            thread.call = call
        if self._query_thread is not None and self._query_thread.is_alive():
            if now - self._query_started_at > 2 * timeout and self._query_socket is not None:
                shut_down_socket(self._query_socket, lambda: self._query_socket is not None)
            return
        waiting_threads = {ident: each for ident, each in threads.items() if each.waited >= timeout}
        if waiting_threads:
            self._query_started_at = now
            self._query_thread = DcronThread(
                target=self._query_server,
                args=(waiting_threads,),
                name="dcron-silent-connections",
                daemon=True,
            )
            self._query_thread.start()

    def _query_server(self, waiting_threads: dict[int, _Thread]) -> None:
        for ident, thread in waiting_threads.items():
            call, session = thread.call, thread.session
            # A thread without an open connection is connecting, which has its own limit. The
            # descriptor of its closed connection may belong to another socket by now.
            if call is None or session is None or not thread.is_connected:
                continue
            try:
                if not self._is_executing(session, thread.alias):
                    self._shut_down_socket(ident, thread, call)
            except (DatabaseError, InterfaceError) as error:
                extra = {"event": "database_stalls", "node": self._node}
                text = "database unresponsive, new connections fail: node=%s thread=%s error=%s"
                logger.info(text, self._node, thread.name, in_one_line(error), extra=extra)
                return

    def _is_executing(self, session: int, alias: str) -> bool:
        connection = new_connection(alias, settings.LEASE)
        try:
            connection.ensure_connection()
            self._query_socket = socket_descriptor(connection)
            return is_executing(session, connection)
        finally:
            self._query_socket = None
            with suppress(Exception):
                connection.close()

    def _shut_down_socket(self, ident: int, thread: _Thread, call: FrameType) -> None:
        number = thread.socket
        if number is not None and shut_down_socket(number, lambda: _database_call(ident) is call):
            logger.warning(
                "silent database connection replaced: node=%s thread=%s waited=%.0fs",
                self._node,
                thread.name,
                thread.waited,
                extra={"event": "connection_silent", "node": self._node},
            )

    def _on_connect(self, connection: BaseDatabaseWrapper, **kwargs: object) -> None:
        thread = self._threads.get(threading.get_ident())
        if thread is not None and thread.alias == connection.alias:
            enable_keepalive(connection, settings.LEASE)
            thread.connection = connection
            thread.session, thread.socket = session_id(connection), socket_descriptor(connection)


def _database_call(ident: int) -> FrameType | None:
    """Return the outermost frame of a database backend or driver in the thread's stack.

    Each call has its own frame object.
    """
    frame, call = sys._current_frames().get(ident), None
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(DATABASE_MODULES):
            call = frame
        frame = frame.f_back
    return call
