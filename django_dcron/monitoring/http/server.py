"""The node's HTTP server, with one thread that accepts connections and a thread per request.

Invariants:

- The node never waits for the server. All its threads are daemons.
- A probe is never refused because of other connections. If ``CONNECTIONS`` connections haven't sent
  their whole request, a new connection closes the oldest of these. The limit on concurrent
  responses doesn't apply to probes.
- At most ``CONNECTIONS`` connections are sending their request, each for ``REQUEST_TIMEOUT``.
- At most ``CONNECTIONS`` requests call a route other than a probe at once, each for
  ``RESPONSE_TIMEOUT``.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from django_dcron.monitoring.http.response import RenderedResponse, Route
from django_dcron.utils.threads import DcronThread

logger = logging.getLogger("django_dcron.scheduler")

CONNECTIONS = 16
"""Limit on connections that are sending a request, and on concurrent responses except probes."""
PROBES = ("/livez", "/readyz", "/health")
"""Paths with short responses from memory, which never wait for a slow client."""
REQUEST_TIMEOUT = 1.0
"""Seconds from the connection to the end of the request's headers, however slowly they arrive."""
RESPONSE_TIMEOUT = 5.0
"""Seconds from the request to the end of the response, however slowly the client reads it."""
POLL_INTERVAL = 0.5
"""Seconds between checks for slow connections and for a stop."""
LOCALHOST = "127.0.0.1"


class Address(NamedTuple):
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse ``[HOST:]PORT``, with an IPv6 host in brackets. Raises ``ValueError``.

        Without a host, the server accepts connections from this machine only.
        """
        host, separator, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host or "]" in host or "[" in host:
            raise ValueError(
                f"{text!r} isn't a [HOST:]PORT: put an IPv6 host in brackets, as in [::1]:9105"
            )
        if separator and not host:
            raise ValueError(
                f"{text!r} has no host: use 0.0.0.0:{port} to listen on all interfaces"
            )
        if not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ValueError(
                f"{text!r} isn't a [HOST:]PORT: the port is a number from 0 (any free port) to "
                "65535"
            )
        return cls(host or LOCALHOST, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HttpServer:
    """Binds its port when it's created. Answers from ``start`` to ``stop``."""

    def __init__(self, address: Address, routes: Mapping[str, Route], name: str):
        """Raise ``OSError`` if the port isn't available."""
        self._server = _Server(address, routes)
        self._name = name
        self._thread = DcronThread(target=self._serve, name="dcron-http", daemon=True)

    @property
    def address(self) -> Address:
        host, port = self._server.server_address[:2]
        return Address(str(host), int(port))

    def start(self) -> None:
        self._thread.start()
        extra = {"event": "http_listening", "node": self._name}
        logger.info(
            "http server started: node=%s address=http://%s", self._name, self.address, extra=extra
        )

    def stop(self) -> None:
        """Stop the server. Returns at once; the port is free soon after."""
        if self._thread.ident is None:
            self._server.server_close()
        else:
            DcronThread(target=self._server.shutdown, name="dcron-http-stop", daemon=True).start()

    def join(self, seconds: float) -> None:
        """Wait at most this many seconds until the port is free."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _serve(self) -> None:
        with self._server:
            self._server.serve_forever(POLL_INTERVAL)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A TCP server without the DNS lookup of this machine's name that ``HTTPServer`` does."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # with the library's 5, the system refuses probes during a burst

    def __init__(self, address: Address, routes: Mapping[str, Route]):
        self.routes = routes
        self._asking: dict[Any, float] = {}
        """Connections that haven't sent their whole request, with their monotonic start time."""
        self._answering: dict[Any, float] = {}
        """Connections that are being answered, with their monotonic start time."""
        self._limited: set[Any] = set()
        """Connections that are being answered and count toward ``CONNECTIONS``."""
        addresses = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        self.address_family = addresses[0][0]
        super().__init__(addresses[0][4], _Handler)  # type: ignore[arg-type]  # the stubs lack IPv6

    def process_request(self, request: Any, client_address: Any) -> None:
        while len(self._asking) >= CONNECTIONS:
            oldest = next(iter(self._asking.copy()), None)  # dicts keep the insertion order
            if oldest is not None:
                _shut_down_socket(oldest)
                self._asking.pop(oldest, None)
        self._asking[request] = time.monotonic()
        super().process_request(request, client_address)

    def record_request_read(self, request: Any) -> None:
        """Record that the connection has sent its whole request."""
        self._answering[request] = time.monotonic()
        self._asking.pop(request, None)

    def admit(self, request: Any) -> bool:
        """Count a request other than a probe. Return whether the server may answer it."""
        self._limited.add(request)
        return len(self._limited) <= CONNECTIONS

    def shutdown_request(self, request: Any) -> None:
        self._asking.pop(request, None)
        self._answering.pop(request, None)
        self._limited.discard(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close slow connections every ``POLL_INTERVAL`` seconds.

        A socket's own timeout doesn't suffice, because it restarts with each byte.
        """
        now = time.monotonic()
        for connections, limit in (
            (self._asking, REQUEST_TIMEOUT),
            (self._answering, RESPONSE_TIMEOUT),
        ):
            # A copy, because other threads remove their connections meanwhile.
            for request, since in connections.copy().items():
                if now - since > limit:
                    _shut_down_socket(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an exception, which mostly means that the client has closed the connection."""
        extra = {"event": "http_failed"}
        text = "http request not answered: client=%s"
        logger.debug(text, client_address, exc_info=True, extra=extra)  # noqa: LOG014


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = RESPONSE_TIMEOUT
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def parse_request(self) -> bool:
        """Parse the request line, read the headers, and record that the request is complete."""
        has_request = super().parse_request()
        self.server.record_request_read(self.connection)
        return has_request

    def do_GET(self) -> None:
        path = _path(self.path)
        route = self.server.routes.get(path)
        if route is None:
            paths = ", ".join(self.server.routes)
            self._send(
                _error_response(HTTPStatus.NOT_FOUND, f"Not found. Available paths: {paths}.")
            )
            return
        if path not in PROBES and not self.server.admit(self.connection):
            self._send(
                _error_response(
                    HTTPStatus.SERVICE_UNAVAILABLE, "Too many concurrent requests. Try again later."
                )
            )
            return
        try:
            response = route(self.headers.get("Accept", ""))
        except Exception:
            # An error of one request must not affect the next one.
            logger.exception(
                "http request failed: path=%s", self.path, extra={"event": "http_failed"}
            )
            response = _error_response(
                HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error. See the log of the node."
            )
        self._send(response)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _not_allowed(self) -> None:
        self._send(
            _error_response(HTTPStatus.METHOD_NOT_ALLOWED, "Method not allowed. Use GET or HEAD.")
        )

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _not_allowed  # noqa: N815 (the library's names)

    def _send(self, response: RenderedResponse) -> None:
        self.send_response(response.status)
        if response.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def version_string(self) -> str:
        return "django-dcron"

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("http request: " + format, *args, extra={"event": "http_request"})  # noqa: G003 (the library's format)


def _shut_down_socket(request: Any) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def _path(target: str) -> str:
    """Return the path of the request's target, which may have a query or be a whole URL."""
    try:
        return urlsplit(target).path
    except ValueError:
        return target


def _error_response(status: HTTPStatus, why: str) -> RenderedResponse:
    return RenderedResponse(status, "text/plain; charset=utf-8", why.encode() + b"\n")
