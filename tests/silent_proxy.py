"""A way to a server over TCP that may be cut, and whose connections may fall silent: open, as far as either end can see, and
nothing comes through."""

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
        self._silent = threading.Event()
        """Of the connections that are open now; later ones get another."""
        self._cut = False
        self.made = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        """From now on nothing comes through the connections that are open; new ones are as good as ever."""
        self._silent.set()
        self._silent = threading.Event()

    def cut(self) -> None:
        """Nothing is connected any more, nor will be."""
        self._cut = True
        self._end_all()

    def mend(self) -> None:
        self._cut = False

    def close(self) -> None:
        self._listener.close()
        self._end_all()

    def _end_all(self) -> None:
        ended, self._open = self._open, []
        for each in ended:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._cut:
                    near.close()
                    continue
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._target)
                self._open += [near, far]
                self.made += 1
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(*ends, self._silent), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, silent: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not silent.is_set():
                    sink.sendall(data)
            if not silent.is_set():
                sink.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied() -> Iterator[SilentProxy]:
    """Every new connection of this process to its database goes by the proxy."""
    proxy = SilentProxy(SOCKETS[settings.DATABASE])
    given = connections.settings["default"]
    before = {name: given[name] for name in ("HOST", "PORT")}
    given.update(HOST="127.0.0.1", PORT=proxy.port)
    try:
        yield proxy
    finally:
        given.update(before)
        connections["default"].close()
        proxy.close()
