"""Test a node's HTTP server: its responses and its resistance to bad clients."""

import errno
import json
import logging
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
from django_dcron.monitoring.http.answer import Answer, Route
from django_dcron.monitoring.http.routes import routes
from django_dcron.monitoring.http.server import Address, HttpServer
from django_dcron.scheduler.health import Facts, judge
from tests.scheduler.test_health import WELL
from tests.waiting import wait_until

TIMEOUT = 30.0
ANY = Address("127.0.0.1", 0)


class Node:
    """Supplies the node's facts, which the test changes."""

    def __init__(self) -> None:
        self.facts: Facts = WELL

    def is_(self, **facts: Any) -> None:
        self.facts = replace(WELL, **facts)


@pytest.fixture
def node() -> Node:
    return Node()


Serve = Callable[[dict[str, Route]], HttpServer]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setattr(module, "LOOK_EVERY", 0.02)
    servers: list[HttpServer] = []

    def served(table: dict[str, Route]) -> HttpServer:
        servers.append(HttpServer(ANY, table, "a"))
        servers[-1].start()
        return servers[-1]

    yield served
    for server in servers:
        server.stop()
        server.join(TIMEOUT)


@pytest.fixture
def server(serve: Serve, node: Node) -> HttpServer:
    return serve(routes(lambda: judge(node.facts, 300.0)))


def ask(server: HttpServer, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
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
        ({"look_age": 11.0}, 503, 503, 503),
        ({"draining": True}, 200, 503, 200),
    ],
)
def test_each_question_has_its_own_answer(
    server: HttpServer, node: Node, facts: dict[str, Any], livez: int, readyz: int, health: int
) -> None:
    node.is_(**facts)
    answers = {path: ask(server, path) for path in ("/livez", "/readyz", "/health")}
    assert [status for status, _, _ in answers.values()] == [livez, readyz, health]
    shown = json.loads(answers["/health"][2])
    assert shown == judge(node.facts, 300.0).as_json()
    line = f"a is {shown['status']}" + "".join(f": {reason}" for reason in shown["reasons"]) + "\n"
    assert answers["/livez"][2] == answers["/readyz"][2] == line.encode()


def test_the_kinds_of_its_answers(server: HttpServer) -> None:
    _, headers, _ = ask(server, "/health?pretty=1")
    assert headers["Content-Type"] == "application/json"
    assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
    assert headers["Server"] == "django-dcron", "nothing of the Python it runs on"
    assert ask(server, "/livez")[1]["Content-Type"] == "text/plain; charset=utf-8"


def test_a_reason_of_several_lines_is_one(server: HttpServer, node: Node) -> None:
    node.is_(tick_age=301.0, database_error="no\nroute\r\nX: y")
    assert ask(server, "/livez")[2].count(b"\n") == 1


def test_a_head_has_no_body(server: HttpServer) -> None:
    status, headers, body = ask(server, "/health", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 100


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_is_changed_here(server: HttpServer, method: str) -> None:
    status, headers, _ = ask(server, "/health", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/health/", "/livez/../health", "/%6civez", "*"])
def test_other_paths_are_reported_where_to_ask(server: HttpServer, path: str) -> None:
    status, _, body = ask(server, path)
    assert status == 404
    assert b" /livez, /readyz, /health" in body


def test_an_address_that_is_none_is_reported_so_too(server: HttpServer) -> None:
    with closing(say(server, b"GET http://[ HTTP/1.0\r\n\r\n")) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.0 404 ")


def test_a_question_that_fails_is_logged_and_the_next_is_answered(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = iter([ZeroDivisionError("the password is x")])

    def route(accept: str) -> Answer:
        for error in secrets:
            raise error
        return Answer(200, "text/plain", b"well\n")

    server = serve({"/": route})
    assert ask(server, "/")[::2] == (500, b"Internal error. See the log of the node.\n")
    assert ask(server, "/")[::2] == (200, b"well\n")
    assert "the password is x" in caplog.text


# --- bad clients ----------------------------------------------------------------------------------


def say(server: HttpServer, text: bytes) -> socket.socket:
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
def test_nonsense_is_refused_and_the_next_is_answered(server: HttpServer, text: bytes) -> None:
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
    assert ask(server, "/livez")[0] == 200


@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", b"GET /livez HTTP/1.0\r\nA: "])
def test_a_slow_request_is_cut_off(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """A client that sends a byte now and then never reaches a socket's timeout."""
    monkeypatch.setattr(module, "REQUEST_WITHIN", 0.1)
    with closing(say(server, sent)) as connection:

        def is_cut_off() -> bool:
            try:
                connection.sendall(b"T")
            except ConnectionError:
                return True
            return False

        wait_until(is_cut_off, TIMEOUT, what="the end of a connection")
    wait_until(lambda: not server._server._asking, TIMEOUT, what="its place to be free")


def test_a_slow_reader_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve({"/": lambda accept: Answer(200, "text/plain", b"x" * 50_000_000)})
    with closing(say(server, b"GET / HTTP/1.0\r\n\r\n")) as connection:
        assert connection.recv(15) == b"HTTP/1.0 200 OK"
        monkeypatch.setattr(module, "ANSWER_TIMEOUT", 0.0)
        wait_until(lambda: not server._server._answering, TIMEOUT, what="the end of the answer")


@pytest.mark.parametrize("sent", [b"", b"GET /li", b"GET /livez HTTP/1.0\r\nA: b\r\n"])
def test_a_probe_takes_the_place_of_the_oldest_unfinished_request(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(module, "CONNECTIONS", 3)
    monkeypatch.setattr(module, "REQUEST_WITHIN", TIMEOUT)
    idle = [say(server, sent) for _ in range(3)]
    wait_until(lambda: len(server._server._asking) == 3, TIMEOUT, what="three connections")
    try:
        assert [ask(server, path)[0] for path in ("/livez", "/readyz", "/health")] == [
            200,
            200,
            200,
        ]
        assert idle[0].recv(100) == b"", "the oldest was not closed"
        assert len(server._server._asking) == 2, "more than one was closed"
    finally:
        for connection in idle:
            connection.close()


def test_a_probe_is_answered_while_other_answers_wait(
    serve: Serve, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECTIONS", 2)
    monkeypatch.setattr(module, "ANSWER_TIMEOUT", TIMEOUT)
    database = threading.Event()

    def metrics(accept: str) -> Answer:
        database.wait(TIMEOUT)
        return Answer(200, "text/plain", b"")

    server = serve({**routes(lambda: judge(node.facts, 300.0)), "/metrics": metrics})
    slow = [say(server, b"GET /metrics HTTP/1.0\r\n\r\n") for _ in range(2)]
    wait_until(lambda: len(server._server._limited) == 2, TIMEOUT, what="two answers that wait")
    assert ask(server, "/metrics")[0] == 503
    assert ask(server, "/livez")[0] == 200
    database.set()
    for connection in slow:
        assert connection.recv(15) == b"HTTP/1.0 200 OK"
        connection.close()
    wait_until(lambda: not server._server._limited, TIMEOUT, what="their places to be free")
    assert ask(server, "/metrics")[0] == 200


def test_it_ends_without_waiting_for_anybody(node: Node, serve: Serve) -> None:
    server = serve(routes(lambda: judge(node.facts, 300.0)))
    with closing(say(server, b"GET /")):
        server.stop()
        server.join(TIMEOUT)
        HttpServer(server.address, {}, "b").stop()  # the port is free again


def test_one_that_never_started_lets_go_of_its_port() -> None:
    server = HttpServer(ANY, {}, "a")
    with pytest.raises(OSError, match="in use"):
        HttpServer(server.address, {}, "b")
    server.stop()
    server.join(TIMEOUT)
    HttpServer(server.address, {}, "b").stop()


def test_questions_are_no_news(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ask(server, "/livez")
    ask(server, "/nothing")
    assert [record.__dict__["event"] for record in caplog.records] in ([], ["http"])


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
def test_where_it_listens(text: str, address: tuple[str, int], shown: str) -> None:
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
def test_what_is_no_address(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        Address.parse(text)
    assert repr(text) in str(refused.value)


def test_an_ipv6_address() -> None:
    try:
        server = HttpServer(
            Address("::1", 0), {"/": lambda accept: Answer(200, "text/plain", b"")}, "a"
        )
    except OSError as error:  # a machine without IPv6
        assert error.errno in (97, 99)  # noqa: PT017 (what it is when it comes)
        return
    server.start()
    try:
        assert ask(server, "/")[0] == 200
    finally:
        server.stop()
        server.join(TIMEOUT)


def test_a_port_in_use_is_reported_at_the_start() -> None:
    taken = HttpServer(ANY, {}, "b")
    try:
        with pytest.raises(CommandError, match=rf"--http .*{taken.address}: .*in use"):
            call_command("runcron", embedded=True, http=taken.address)
    finally:
        taken.stop()


def test_a_host_nobody_knows_is_reported_at_the_start() -> None:
    with pytest.raises(CommandError, match=r"--http .*no\.such\.host\.invalid:1: .+"):
        call_command("runcron", embedded=True, http=Address("no.such.host.invalid", 1))


def test_one_pass_answers_nobody() -> None:
    with pytest.raises(CommandError, match=r"--http .*--once"):
        call_command("runcron", embedded=True, once=True, http=ANY)


def test_what_it_answers_is_documented() -> None:
    document = (
        Path(__file__).resolve().parents[2] / "docs" / "reference" / "observability.md"
    ).read_text()
    assert all(f"`{path}`" in document for path in routes(lambda: judge(WELL, 300.0)))
