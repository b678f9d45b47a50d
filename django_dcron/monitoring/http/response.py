"""Answers to GET requests, for a node's HTTP server and for Django."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple


class RenderedResponse(NamedTuple):
    status: int
    content_type: str
    body: bytes


Route = Callable[[str], RenderedResponse]
"""Takes the ``Accept`` header and returns a response from memory, or raises.

It must not block, because probes have short timeouts. ``/metrics`` is an exception: it waits a
moment for the database.
"""


def text_response(text: str, *, healthy: bool) -> RenderedResponse:
    """Return a one-line response for a probe, which only checks the status."""
    line = " ".join(text.split()) + "\n"
    return RenderedResponse(
        _status(healthy), "text/plain; charset=utf-8", line.encode(errors="replace")
    )


def json_response(content: Mapping[str, Any], *, healthy: bool) -> RenderedResponse:
    return RenderedResponse(
        _status(healthy), "application/json", json.dumps(content).encode() + b"\n"
    )


def _status(healthy: bool) -> HTTPStatus:
    return HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE
