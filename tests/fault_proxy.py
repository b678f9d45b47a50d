"""Proxy TCP connections to a server, and break them as networks and firewalls do.

``SilentProxy`` is simpler: it cuts connections, or silences them for good.
"""

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""``SO_LINGER`` with this value makes ``close`` send RST instead of FIN."""

Address = Path | tuple[str, int]


class Way(Enum):
    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


BOTH_WAYS = (Way.TO_SERVER, Way.TO_CLIENT)


@dataclass(eq=False)
class _Connection:
    client: socket.socket
    server: socket.socket
    half_open: bool = False
    """Whether the server's end is gone and the client hasn't noticed."""


class FaultProxy:
    """Listens on a port of 127.0.0.1 and connects each client to ``server``."""

    def __init__(self, server: Address) -> None:
        self.server = server
        """New connections go there."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        """Guards ``_connections``: each connection that is accepted is also closed."""
        self._connections: set[_Connection] = set()
        self._made: list[_Connection] = []
        """All connections ever made, to close their sockets in the end."""
        self._pumps: list[threading.Thread] = []
        self._passing = {way: threading.Event() for way in Way}
        self._closed = threading.Event()
        self._delay = 0.0
        self._cut = False
        self.resets = 0
        """How many connections were reset in the middle of an answer."""
        self._resets_left = 0
        self.restore()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    # --- faults ----------------------------------------------------------------------------------

    def hold(self, *ways: Way) -> None:
        """Pass no more data in these directions until ``restore``, on old and new connections.

        That is a network that drops all packets for a while: TCP sends them again later.
        """
        for way in ways:
            self._passing[way].clear()

    def slow_down(self, seconds: float) -> None:
        """Pass each piece of data so many seconds later, in both directions, until ``restore``."""
        self._delay = seconds

    def cut(self) -> None:
        """Close all connections, and new ones at once, until ``restore``."""
        self._cut = True
        self._end_all()

    def half_open(self) -> None:
        """End all open connections at the server only. Their clients wait for answers forever.

        That is a server that lost its power, or a failover behind a firewall. New connections work.
        """
        with self._lock:
            for connection in self._connections:
                connection.half_open = True
                with suppress(OSError):
                    connection.server.shutdown(socket.SHUT_RDWR)

    def reset_next_answers(self, number: int) -> None:
        """Reset the connections of the next answers in the middle of these answers."""
        with self._lock:
            self._resets_left = number

    def restore(self) -> None:
        """End all faults. Connections that were broken for good stay broken."""
        self._cut, self._delay = False, 0.0
        for passing in self._passing.values():
            passing.set()

    def close(self) -> None:
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._accepting.join()
        self._listener.close()
        self.restore()
        self._end_all()
        for pump in self._pumps:
            pump.join()
        for connection in self._made:
            connection.client.close()
            connection.server.close()

    # --- data ------------------------------------------------------------------------------------

    def _end_all(self) -> None:
        with self._lock:
            ended, self._connections = self._connections, set()
        for connection in ended:
            for end in (connection.client, connection.server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    if self._cut or not self._connect(client):
                        client.close()

    def _connect(self, client: socket.socket) -> bool:
        is_path = isinstance(self.server, Path)
        server = socket.socket(socket.AF_UNIX if is_path else socket.AF_INET)
        try:
            server.connect(str(self.server) if is_path else self.server)
        except OSError:
            server.close()
            return False
        connection = _Connection(client, server)
        self._connections.add(connection)
        self._made.append(connection)
        for way in Way:
            pump = threading.Thread(target=self._pump, args=(connection, way), daemon=True)
            pump.start()
            self._pumps.append(pump)
        return True

    def _pump(self, connection: _Connection, way: Way) -> None:
        source, sink = connection.client, connection.server
        if way is Way.TO_CLIENT:
            source, sink = sink, source
        with suppress(OSError):
            while data := source.recv(65536):
                if self._delay:
                    self._closed.wait(self._delay)
                self._passing[way].wait()
                if connection.half_open:
                    continue
                if way is Way.TO_CLIENT and self._take_reset():
                    sink.sendall(data[: len(data) // 2])
                    self._reset(connection)
                    return
                sink.sendall(data)
        if way is Way.TO_CLIENT and connection.half_open:
            return
        for end in (sink, source):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _take_reset(self) -> bool:
        with self._lock:
            if not self._resets_left:
                return False
            self._resets_left -= 1
            self.resets += 1
            return True

    def _reset(self, connection: _Connection) -> None:
        client = connection.client
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RD)  # wakes the other pump, which would keep it open
        client.close()
        with suppress(OSError):
            connection.server.shutdown(socket.SHUT_RDWR)
