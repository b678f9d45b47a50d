"""Answers to GET requests, for a node's HTTP server and for Django."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple


class HttpAnswer(NamedTuple):
    status: int
    content_type: str
    body: bytes


Route = Callable[[str], HttpAnswer]
"""Takes the ``Accept`` header and returns an answer from memory, or raises.

It must not block, because probes have short timeouts. ``/metrics`` is an exception: it waits a
moment for the database.
"""


def text_answer(text: str, *, healthy: bool) -> HttpAnswer:
    """Return a one-line answer for a probe, which only checks the status."""
    line = " ".join(text.split()) + "\n"
    return HttpAnswer(_status(healthy), "text/plain; charset=utf-8", line.encode(errors="replace"))


def json_answer(content: Mapping[str, Any], *, healthy: bool) -> HttpAnswer:
    return HttpAnswer(_status(healthy), "application/json", json.dumps(content).encode() + b"\n")


def _status(healthy: bool) -> HTTPStatus:
    return HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE
