"""Proxy TCP connections to a server, to cut them or to let them fall silent.

A silent connection stays open for both ends, but the proxy passes no data.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from django.db import connections

from tests import settings

SOCKETS = {
    "postgresql": settings.POSTGRESQL_DIRECTORY / ".s.PGSQL.5432",
    "mariadb": settings.MARIADB_SOCKET,
}


class SilentProxy:
    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        """Guards ``_open`` and ``remaining``. Each connection that is accepted is also closed."""
        self._pumps: list[threading.Thread] = []
        self._silent = threading.Event()
        """Silences the connections that are open now. Later connections get another event."""
        self._cut = False
        self.remaining = 0
        """Chunks until silence. 0 for none."""
        self.accepted = 0
        """Number of accepted connections."""
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def fall_silent(self) -> None:
        """Pass no more data through open connections. New connections work."""
        self._silent.set()
        self._silent = threading.Event()

    def fall_silent_after(self, chunks: int) -> None:
        """Fall silent instead of passing the ``chunks``-th piece of data from now, of any end."""
        self.remaining = chunks

    def cut(self) -> None:
        """Close all connections and refuse new ones."""
        self._cut = True
        self._end_all()

    def restore(self) -> None:
        self._cut = False

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._accepting.join()
        self._listener.close()
        self._end_all()
        for pump in self._pumps:
            pump.join()

    def _end_all(self) -> None:
        with self._lock:
            ended, self._open = self._open, []
        for each in ended:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    if self._cut:
                        client.close()
                    else:
                        self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        self._open += [client, server]
        server.connect(self._target)
        self.accepted += 1
        for ends in ((client, server), (server, client)):
            pump = threading.Thread(target=self._pump, args=(*ends, self._silent), daemon=True)
            pump.start()
            self._pumps.append(pump)

    def _pump(self, source: socket.socket, sink: socket.socket, silent: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._count_down()
                if not silent.is_set():
                    sink.sendall(data)
            if not silent.is_set():
                sink.shutdown(socket.SHUT_RDWR)

    def _count_down(self) -> None:
        with self._lock:
            reached = self.remaining == 1
            self.remaining = max(self.remaining - 1, 0)
        if reached:
            self.fall_silent()


@contextmanager
def proxied() -> Iterator[SilentProxy]:
    """Route this process's new database connections through the proxy."""
    proxy = SilentProxy(SOCKETS[settings.DATABASE])
    given = connections.settings["default"]
    before = {name: given[name] for name in ("HOST", "PORT")}
    given.update(HOST="127.0.0.1", PORT=proxy.port)
    own = connections["default"]
    kept, own.settings_dict = own.settings_dict, given  # it may have had a copy
    try:
        yield proxy
    finally:
        given.update(before)
        own.close()
        own.settings_dict = kept
        proxy.close()
