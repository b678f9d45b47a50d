"""A real webhook service that receives alerts."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pytest_django import Settings

from tests.contrib.alerts.mail_server import MailServer


class Service:
    """An HTTP server that records alerts.

    It answers with ``status``, or doesn't answer until it is closed if ``hangs`` is true.
    """

    def __init__(self, *, hangs: bool = False) -> None:
        self.received: list[dict[str, Any]] = []
        self.status = 200
        self.hangs = hangs
        self.requested, self.closed = threading.Event(), threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.requested.set()
                if service.hangs:
                    service.closed.wait()
                    return
                if service.status == 200:
                    service.received.append(body)
                self.send_response(service.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"json://127.0.0.1:{self.server.server_port}/alerts"
        self.thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self.thread.start()

    @property
    def subjects(self) -> list[str]:
        return [message["title"] for message in self.received]

    def close(self) -> None:
        self.closed.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    server = MailServer()
    yield server
    server.close()


@pytest.fixture
def hanging_service() -> Iterator[Service]:
    service = Service(hangs=True)
    service.url += "?cto=300&rto=300"
    yield service
    service.close()


@pytest.fixture
def service(settings: Settings) -> Iterator[Service]:
    """Serve the channel ``ops``, which has no minimum interval between messages."""
    service = Service()
    settings.DCRON_ALERT_CHANNELS = {"ops": {"apprise": [service.url], "every": timedelta()}}
    yield service
    service.close()
