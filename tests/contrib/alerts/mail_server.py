"""A mail server for tests: it stores received messages and serves one client at a time."""

from __future__ import annotations

import email
import socket
import threading
from contextlib import suppress
from email.message import EmailMessage
from email.policy import default

from tests.waiting import TIMEOUT


class MailServer:
    """Accepts every message and stores it unchanged in ``received``."""

    def __init__(self) -> None:
        self.received: list[EmailMessage] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):  # the socket is closed
            while True:
                connection, _address = self._listener.accept()
                with connection:
                    connection.settimeout(TIMEOUT)
                    self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        lines = connection.makefile("rb")
        connection.sendall(b"220 here\r\n")
        for line in lines:
            verb = line[:4].upper()
            if verb == b"DATA":
                connection.sendall(b"354 go on\r\n")
                text = b"".join(iter(lines.readline, b".\r\n"))
                self.received.append(email.message_from_bytes(text, policy=default))
            connection.sendall(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
            if verb == b"QUIT":
                return
