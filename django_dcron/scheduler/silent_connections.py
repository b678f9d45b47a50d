"""Database connections of a node's threads that have fallen silent: each is found and shut, so that its thread connects anew.

The watch thread looks, again and again, whether a thread of this node has been in one and the same call of Django's database
backend for longer than ``DCRON_LEASE``. If so, a new connection asks the server what it does for that thread. If the server
answers, and does nothing for it, no answer will come: the connection is shut.

Invariants:

- A statement that the server is at work on is left alone, however long it takes.
- While the database answers no new connection either, nothing is shut: it stalls, and may go on.
- What is shut belongs to a thread that is still in the same call after the server was asked.
- The watch thread never waits: a thread of its own asks, one at a time, and is itself ended if it gets no answer.
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
from django_dcron.models import Run
from django_dcron.models.connection_sockets import (
    end_waiting,
    is_at_work,
    limit_connecting,
    new_connection,
    notice_silence,
    session_of,
    socket_of,
)
from django_dcron.models.database import alias_for, in_one_line
from django_dcron.scheduler.watchdog import LOOK_EVERY

logger = logging.getLogger("django_dcron.scheduler")


@dataclass(eq=False)
class _Thread:
    name: str
    alias: str
    session: int | None = None
    """The server's number for its connection. Noted when it connects, as some drivers don't tell while they wait."""
    socket: int | None = None
    call: FrameType | None = None
    """Of Django's database backend, in which it was at the last look."""
    waited: float = 0.0
    """Seconds that it has been in this very call, as far as looks have shown."""


class SilentConnections:
    def __init__(self, node: str, monotonic: Callable[[], float]):
        self._node = node
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._threads: dict[int, _Thread] = {}
        self._asking: threading.Thread | None = None
        self._asked_by: int | None = None
        """The socket of the connection that asks."""
        self._asking_since = 0.0
        connection_created.connect(self._connected)

    def watch_this_thread(self, name: str) -> None:
        """From now on the calling thread's connection is bounded, and looked at."""
        connection = connections[alias_for(Run)]
        limit_connecting(connection, settings.LEASE)
        self._threads[threading.get_ident()] = _Thread(name, connection.alias)

    def forget_this_thread(self) -> None:
        self._threads.pop(threading.get_ident(), None)

    def look(self) -> None:
        now, patience = self._monotonic(), settings.LEASE.total_seconds()
        # A process that was suspended has nothing to reproach the database with.
        passed = min(now - self._looked_at, 2 * LOOK_EVERY)
        self._looked_at = now
        threads = dict(self._threads)
        for ident, thread in threads.items():
            call = _database_call(ident)
            same = call is not None and call is thread.call
            thread.waited = thread.waited + passed if same else 0.0
            thread.call = call
        if self._asking is not None and self._asking.is_alive():
            if now - self._asking_since > 2 * patience and self._asked_by is not None:
                end_waiting(self._asked_by, lambda: self._asked_by is not None)
            return
        suspects = {ident: each for ident, each in threads.items() if each.waited >= patience}
        if suspects:
            self._asking_since = now
            self._asking = threading.Thread(
                target=self._ask, args=(suspects,), name="dcron-silent-connections", daemon=True
            )
            self._asking.start()

    def _ask(self, suspects: dict[int, _Thread]) -> None:
        for ident, thread in suspects.items():
            call, session = thread.call, thread.session
            if call is None or session is None:  # it is still connecting, which has a limit of its own
                continue
            try:
                if not self._is_at_work(session, thread.alias):
                    self._end_waiting(ident, thread, call)
            except (DatabaseError, InterfaceError) as error:
                extra = {"event": "database_stalls", "node": self._node}
                text = "%s: its %s thread waits for the database, which answers no new connection either: %s"
                logger.info(text, self._node, thread.name, in_one_line(error), extra=extra)
                return

    def _is_at_work(self, session: int, alias: str) -> bool:
        connection = new_connection(alias, settings.LEASE)
        try:
            connection.ensure_connection()
            self._asked_by = socket_of(connection)
            return is_at_work(session, connection)
        finally:
            self._asked_by = None
            with suppress(Exception):
                connection.close()

    def _end_waiting(self, ident: int, thread: _Thread, call: FrameType) -> None:
        number = thread.socket
        if number is not None and end_waiting(number, lambda: _database_call(ident) is call):
            logger.warning(
                "%s: the database connection of its %s thread fell silent and is made anew: waited=%.0fs",
                self._node,
                thread.name,
                thread.waited,
                extra={"event": "connection_silent", "node": self._node},
            )

    def _connected(self, connection: BaseDatabaseWrapper, **kwargs: object) -> None:
        thread = self._threads.get(threading.get_ident())
        if thread is not None and thread.alias == connection.alias:
            notice_silence(connection, settings.LEASE)
            thread.session, thread.socket = session_of(connection), socket_of(connection)


def _database_call(ident: int) -> FrameType | None:
    """The outermost call of Django's database backend in which the thread is now. Two calls never are the same object."""
    frame, call = sys._current_frames().get(ident), None
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("django.db.backends."):
            call = frame
        frame = frame.f_back
    return call
