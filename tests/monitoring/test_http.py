"""Test a node's HTTP server: its responses and its resistance to bad clients."""

import errno
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_dcron.monitoring.http import server as module
from django_dcron.monitoring.http.response import RenderedResponse, Route
from django_dcron.monitoring.http.routes import routes
from django_dcron.monitoring.http.server import Address, HttpServer
from django_dcron.scheduler.health import NodeFacts, judge
from tests.scheduler.test_health import WELL
from tests.waiting import TIMEOUT, wait_until

ANY = Address("127.0.0.1", 0)


class Node:
    """Supplies the facts of a node. A test changes them."""

    def __init__(self) -> None:
        self.facts: NodeFacts = WELL

    def change(self, **facts: Any) -> None:
        self.facts = replace(WELL, **facts)


@pytest.fixture
def node() -> Node:
    return Node()


Serve = Callable[[dict[str, Route]], HttpServer]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setattr(module, "POLL_INTERVAL", 0.02)
    servers: list[HttpServer] = []

    def start_server(table: dict[str, Route]) -> HttpServer:
        servers.append(HttpServer(ANY, table, "a"))
        servers[-1].start()
        return servers[-1]

    yield start_server
    for server in servers:
        server.stop()
        server.join(TIMEOUT)


@pytest.fixture
def server(serve: Serve, node: Node) -> HttpServer:
    return serve(routes(lambda: judge(node.facts, 300.0)))


def get(server: HttpServer, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    with closing(HTTPConnection(*server.address, timeout=TIMEOUT)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()


# --- responses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "livez", "readyz", "health"),
    [
        ({}, 200, 200, 200),
        ({"broker_unreachable": True}, 200, 200, 200),
        ({"at": None, "since": None}, 200, 503, 200),
        ({"ticked": False}, 200, 503, 200),
        ({"tick_age": 301.0}, 200, 503, 503),
        ({"hanging": {"tick": 61.0}}, 503, 503, 503),
        ({"check_age": 11.0}, 503, 503, 503),
        ({"draining": True}, 200, 503, 200),
    ],
)
def test_probes_answer_according_to_facts_of_node(
    server: HttpServer, node: Node, facts: dict[str, Any], livez: int, readyz: int, health: int
) -> None:
    node.change(**facts)
    answers = {path: get(server, path) for path in ("/livez", "/readyz", "/health")}
    assert [status for status, _, _ in answers.values()] == [livez, readyz, health]
    shown = json.loads(answers["/health"][2])
    assert shown == judge(node.facts, 300.0).as_json()
    line = f"a is {shown['status']}" + "".join(f": {reason}" for reason in shown["reasons"]) + "\n"
    assert answers["/livez"][2] == answers["/readyz"][2] == line.encode()


def test_responses_have_content_type_and_security_headers(server: HttpServer) -> None:
    _, headers, _ = get(server, "/health?pretty=1")
    assert headers["Content-Type"] == "application/json"
    assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
    assert headers["Server"] == "django-dcron", "the Python version isn't revealed"
    assert get(server, "/livez")[1]["Content-Type"] == "text/plain; charset=utf-8"


def test_multiline_reason_is_joined(server: HttpServer, node: Node) -> None:
    node.change(tick_age=301.0, database_error="no\nroute\r\nX: y")
    assert get(server, "/livez")[2].count(b"\n") == 1


def test_head_response_has_no_body(server: HttpServer) -> None:
    status, headers, body = get(server, "/health", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 100


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods_are_not_allowed(server: HttpServer, method: str) -> None:
    status, headers, _ = get(server, "/health", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/health/", "/livez/../health", "/%6civez", "*"])
def test_unknown_path_returns_404_with_valid_paths(server: HttpServer, path: str) -> None:
    status, _, body = get(server, path)
    assert status == 404
    assert b" /livez, /readyz, /health" in body


def test_invalid_url_returns_404(server: HttpServer) -> None:
    with closing(send(server, b"GET http://[ HTTP/1.0\r\n\r\n")) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.0 404 ")


def test_failed_request_is_logged_and_hides_error(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    errors = iter([ZeroDivisionError("the password is x")])

    def route(accept: str) -> RenderedResponse:
        for error in errors:
            raise error
        return RenderedResponse(200, "text/plain", b"well\n")

    server = serve({"/": route})
    assert get(server, "/")[::2] == (500, b"Internal error. See the log of the node.\n")
    assert get(server, "/")[::2] == (200, b"well\n")
    assert "the password is x" in caplog.text


# --- bad clients ----------------------------------------------------------------------------------


def send(server: HttpServer, text: bytes) -> socket.socket:
    connection = socket.create_connection(server.address, timeout=TIMEOUT)
    connection.sendall(text)
    return connection


@pytest.mark.parametrize(
    "text",
    [
        b"\r\n",
        b"nonsense\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /" + b"x" * 70_000,
        b"A: " * 40_000,
    ],
)
def test_malformed_request_is_refused(server: HttpServer, text: bytes) -> None:
    message = b""
    with closing(socket.create_connection(server.address, timeout=TIMEOUT)) as connection:
        try:
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            message = connection.recv(100)
        except OSError as error:
            # The server closes without reading data that is too long. The system may then reset the
            # connection at any of these steps.
            assert error.errno in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)  # noqa: PT017
    assert not message or message.startswith((b"400 ", b"HTTP/1.0 400 ", b"HTTP/1.0 414 "))
    assert get(server, "/livez")[0] == 200


@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", b"GET /livez HTTP/1.0\r\nA: "])
def test_slow_request_is_closed(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """A client that sends a byte now and then never reaches a socket's timeout."""
    monkeypatch.setattr(module, "REQUEST_TIMEOUT", 0.1)
    with closing(send(server, sent)) as connection:

        def is_closed() -> bool:
            try:
                connection.sendall(b"T")
            except ConnectionError:
                return True
            return False

        wait_until(is_closed, TIMEOUT, what="the end of a connection")
    wait_until(lambda: not server._server._asking, TIMEOUT, what="the connection to be released")


def test_slow_reader_is_closed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve({"/": lambda accept: RenderedResponse(200, "text/plain", b"x" * 50_000_000)})
    with closing(send(server, b"GET / HTTP/1.0\r\n\r\n")) as connection:
        assert connection.recv(15) == b"HTTP/1.0 200 OK"
        monkeypatch.setattr(module, "RESPONSE_TIMEOUT", 0.0)
        wait_until(lambda: not server._server._answering, TIMEOUT, what="the end of the answer")


@pytest.mark.parametrize("sent", [b"", b"GET /li", b"GET /livez HTTP/1.0\r\nA: b\r\n"])
def test_probe_replaces_oldest_unfinished_request(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(module, "CONNECTIONS", 3)
    monkeypatch.setattr(module, "REQUEST_TIMEOUT", TIMEOUT)
    idle = [send(server, sent) for _ in range(3)]
    wait_until(lambda: len(server._server._asking) == 3, TIMEOUT, what="three connections")
    try:
        assert [get(server, path)[0] for path in ("/livez", "/readyz", "/health")] == [
            200,
            200,
            200,
        ]
        assert idle[0].recv(100) == b"", "the oldest was not closed"
        assert len(server._server._asking) == 2, "more than one was closed"
    finally:
        for connection in idle:
            connection.close()


def test_probe_is_answered_while_metrics_wait(
    serve: Serve, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECTIONS", 2)
    monkeypatch.setattr(module, "RESPONSE_TIMEOUT", TIMEOUT)
    database = threading.Event()

    def metrics(accept: str) -> RenderedResponse:
        database.wait(TIMEOUT)
        return RenderedResponse(200, "text/plain", b"")

    server = serve({**routes(lambda: judge(node.facts, 300.0)), "/metrics": metrics})
    slow = [send(server, b"GET /metrics HTTP/1.0\r\n\r\n") for _ in range(2)]
    wait_until(lambda: len(server._server._limited) == 2, TIMEOUT, what="two answers that wait")
    assert get(server, "/metrics")[0] == 503
    assert get(server, "/livez")[0] == 200
    database.set()
    for connection in slow:
        assert connection.recv(15) == b"HTTP/1.0 200 OK"
        connection.close()
    wait_until(lambda: not server._server._limited, TIMEOUT, what="the answers to be released")
    assert get(server, "/metrics")[0] == 200


def test_stop_does_not_wait_for_clients(node: Node, serve: Serve) -> None:
    server = serve(routes(lambda: judge(node.facts, 300.0)))
    with closing(send(server, b"GET /")):
        server.stop()
        server.join(TIMEOUT)
        HttpServer(server.address, {}, "b").stop()  # the port is free again


def test_stop_releases_port_of_unstarted_server() -> None:
    server = HttpServer(ANY, {}, "a")
    with pytest.raises(OSError, match=re.escape(os.strerror(errno.EADDRINUSE))) as refused:
        HttpServer(server.address, {}, "b")
    assert refused.value.errno == errno.EADDRINUSE
    server.stop()
    server.join(TIMEOUT)
    HttpServer(server.address, {}, "b").stop()


def test_requests_are_not_logged(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    get(server, "/livez")
    get(server, "/nothing")
    assert [record.__dict__["event"] for record in caplog.records] in ([], ["http_listening"])


# --- option of runcron ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("9105", ("127.0.0.1", 9105), "127.0.0.1:9105"),
        ("0", ("127.0.0.1", 0), "127.0.0.1:0"),
        ("0.0.0.0:9105", ("0.0.0.0", 9105), "0.0.0.0:9105"),  # noqa: S104
        ("localhost:65535", ("localhost", 65535), "localhost:65535"),
        ("[::1]:9105", ("::1", 9105), "[::1]:9105"),
    ],
)
def test_address_is_parsed_and_printed(text: str, address: tuple[str, int], shown: str) -> None:
    assert Address.parse(text) == address
    assert str(Address.parse(text)) == shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "number from 0"),
        ("http", "number from 0"),
        ("65536", "number from 0"),
        ("-1", "number from 0"),
        ("٣", "number from 0"),
        ("a:", "number from 0"),
        (":9105", "0.0.0.0:9105"),
        ("::1:9105", "brackets"),
        ("[::1:9105", "brackets"),
    ],
)
def test_invalid_address_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        Address.parse(text)
    assert repr(text) in str(refused.value)


def test_server_listens_on_ipv6_address() -> None:
    try:
        server = HttpServer(
            Address("::1", 0), {"/": lambda accept: RenderedResponse(200, "text/plain", b"")}, "a"
        )
    except OSError as error:  # a machine without IPv6
        assert error.errno in (97, 99)  # noqa: PT017 (what it is when it comes)
        return
    server.start()
    try:
        assert get(server, "/")[0] == 200
    finally:
        server.stop()
        server.join(TIMEOUT)


def test_port_in_use_is_reported_at_start() -> None:
    taken = HttpServer(ANY, {}, "b")
    try:
        with pytest.raises(
            CommandError, match=rf"--http .*{taken.address}: .*{os.strerror(errno.EADDRINUSE)}"
        ):
            call_command("runcron", embedded=True, http=taken.address)
    finally:
        taken.stop()


def test_unknown_host_is_reported_at_start() -> None:
    with pytest.raises(CommandError, match=r"--http .*no\.such\.host\.invalid:1: .+"):
        call_command("runcron", embedded=True, http=Address("no.such.host.invalid", 1))


def test_http_with_once_is_refused() -> None:
    with pytest.raises(CommandError, match=r"--http .*--once") as refused:
        call_command("runcron", embedded=True, once=True, http=ANY)
    assert refused.value.returncode == 2


def test_paths_are_documented() -> None:
    document = (
        Path(__file__).resolve().parents[2] / "docs" / "reference" / "observability.md"
    ).read_text()
    assert all(f"`{path}`" in document for path in routes(lambda: judge(WELL, 300.0)))
