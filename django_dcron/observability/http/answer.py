"""What is answered to a GET, whoever serves it: a node's own server or Django."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


Route = Callable[[str], Answer]
"""Given the ``Accept`` header, answers from memory, or raises: it waits for nothing, as whoever asks has little patience. (But
``/metrics``, which gives the database a moment.)"""


def in_one_line(said: str, *, well: bool) -> Answer:
    """For a probe, which goes by the status; the line is for people."""
    line = " ".join(said.split()) + "\n"
    return Answer(_status(well), "text/plain; charset=utf-8", line.encode(errors="replace"))


def as_json(content: Mapping[str, Any], *, well: bool) -> Answer:
    return Answer(_status(well), "application/json", json.dumps(content).encode() + b"\n")


def _status(well: bool) -> HTTPStatus:
    return HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
