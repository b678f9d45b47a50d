"""The node's HTTP server: one thread accepts connections, and each request has a short-lived thread.

Invariants:

- The node never waits for it. All its threads are daemons.
- A probe is never refused because of other connections: a new connection takes the place of the oldest one that has not sent
  its whole request, and probes are answered however many other requests are being answered.
- It costs little: at most ``CONNECTIONS`` connections that are still sending their request, each for ``REQUEST_WITHIN``, and at
  most ``CONNECTIONS`` answers other than those to probes, each for ``PATIENCE``.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from django_dcron.observability.http.answer import Answer, Route

logger = logging.getLogger("django_dcron.scheduler")

CONNECTIONS = 16
"""How many connections may be sending a request, and how many requests other than probes are answered at once."""
PROBES = ("/livez", "/readyz", "/health")
"""Answered from memory, in a few hundred bytes, so that no answer waits for its reader."""
REQUEST_WITHIN = 1.0
"""Seconds from a connection to the end of its request's headers, however slowly they arrive."""
PATIENCE = 5.0
"""Seconds from the request to the end of its answer, however slowly it is read."""
LOOK_EVERY = 0.5
"""Seconds between looks for who dawdles, and whether to stop."""
LOCALHOST = "127.0.0.1"


class Address(NamedTuple):
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """``[HOST:]PORT``, an IPv6 host in brackets; raises ``ValueError``. Without a host only this machine may ask."""
        host, separator, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host or "]" in host or "[" in host:
            raise ValueError(
                f"{text!r} is no [HOST:]PORT: an IPv6 host is written in brackets, as in [::1]:9105"
            )
        if separator and not host:
            raise ValueError(f"{text!r} names no host: write 0.0.0.0:{port} to be asked from anywhere")
        if not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ValueError(
                f"{text!r} is no [HOST:]PORT: the port is a number from 0 (any that is free) to 65535"
            )
        return cls(host or LOCALHOST, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HttpServer:
    """Holds its port from the moment it is made; answers from ``start`` to ``stop``."""

    def __init__(self, address: Address, routes: Mapping[str, Route], name: str):
        """Raises ``OSError`` if the port cannot be had."""
        self._server = _Server(address, routes)
        self._name = name
        self._thread = threading.Thread(target=self._serve, name="dcron-http", daemon=True)

    @property
    def address(self) -> Address:
        host, port = self._server.server_address[:2]
        return Address(str(host), int(port))

    def start(self) -> None:
        self._thread.start()
        extra = {"event": "http", "node": self._name}
        logger.info("%s answers at http://%s", self._name, self.address, extra=extra)

    def stop(self) -> None:
        """Returns at once; the port is free soon after."""
        if self._thread.ident is None:
            self._server.server_close()
        else:
            threading.Thread(target=self._server.shutdown, name="dcron-http-stop", daemon=True).start()

    def join(self, seconds: float) -> None:
        """Wait for the port to be free."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _serve(self) -> None:
        with self._server:
            self._server.serve_forever(LOOK_EVERY)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Not the library's ``HTTPServer``: that asks the DNS for this machine's name, which may take long."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # the library's 5 would have the system refuse probes during a burst

    def __init__(self, address: Address, routes: Mapping[str, Route]):
        self.routes = routes
        self._asking: dict[Any, float] = {}
        """The connections that have not sent their whole request, and since when on the monotonic clock."""
        self._answering: dict[Any, float] = {}
        """The connections that are being answered, and since when."""
        self._limited: set[Any] = set()
        """Those that are being answered and count against ``CONNECTIONS``."""
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        self.address_family = found[0][0]
        super().__init__(found[0][4], _Handler)  # type: ignore[arg-type]  # the stubs know of IPv4 only

    def process_request(self, request: Any, client_address: Any) -> None:
        while len(self._asking) >= CONNECTIONS:
            oldest = next(iter(self._asking.copy()), None)  # a dict keeps the order of insertion
            if oldest is not None:
                _cut_off(oldest)
                self._asking.pop(oldest, None)
        self._asking[request] = time.monotonic()
        super().process_request(request, client_address)

    def asked(self, request: Any) -> None:
        """Note that the connection has sent its whole request."""
        self._answering[request] = time.monotonic()
        self._asking.pop(request, None)

    def has_room_for(self, request: Any) -> bool:
        """Whether one more request other than a probe is answered."""
        self._limited.add(request)
        return len(self._limited) <= CONNECTIONS

    def shutdown_request(self, request: Any) -> None:
        self._asking.pop(request, None)
        self._answering.pop(request, None)
        self._limited.discard(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Every ``LOOK_EVERY``: cut off slow connections. A socket's own timeout begins again with each byte."""
        now = time.monotonic()
        for connections, limit in ((self._asking, REQUEST_WITHIN), (self._answering, PATIENCE)):
            for request, since in connections.copy().items():  # other threads remove theirs meanwhile
                if now - since > limit:
                    _cut_off(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Called by the library while it handles an error: whoever asked has gone."""
        extra = {"event": "http_failed"}
        logger.debug("no answer to %s", client_address, exc_info=True, extra=extra)  # noqa: LOG014


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def parse_request(self) -> bool:
        """Called with the request line; reads the headers."""
        has_request = super().parse_request()
        self.server.asked(self.connection)
        return has_request

    def do_GET(self) -> None:
        path = _path(self.path)
        route = self.server.routes.get(path)
        if route is None:
            paths = ", ".join(self.server.routes)
            self._send(_refusal(HTTPStatus.NOT_FOUND, f"There is nothing here; ask for {paths}."))
            return
        if path not in PROBES and not self.server.has_room_for(self.connection):
            self._send(
                _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "Too many requests at once; try again later.")
            )
            return
        try:
            answer = route(self.headers.get("Accept", ""))
        except Exception:
            # Of one question: the next one is answered again.
            logger.exception("%s cannot be answered", self.path, extra={"event": "http_failed"})
            answer = _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "It failed; the log says how.")
        self._send(answer)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _not_allowed(self) -> None:
        self._send(_refusal(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD are answered."))

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _not_allowed  # noqa: N815 (the library's names)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def version_string(self) -> str:
        return "django-dcron"

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("http: " + format, *args, extra={"event": "http_request"})  # noqa: G003 (the library's format)


def _cut_off(request: Any) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def _path(target: str) -> str:
    """Of what is asked for: a path with a query, or a whole URL."""
    try:
        return urlsplit(target).path
    except ValueError:
        return target


def _refusal(status: HTTPStatus, why: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", why.encode() + b"\n")
