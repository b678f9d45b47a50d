"""The paths that a node answers from memory, even if the database or Redis is unreachable."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django_dcron.monitoring.http.response import (
    RenderedResponse,
    Route,
    json_response,
    text_response,
)
from django_dcron.scheduler.health import NodeHealth


def routes(health: Callable[[], NodeHealth]) -> dict[str, Route]:
    return {
        "/livez": partial(_livez, health),
        "/readyz": partial(_readyz, health),
        "/health": partial(_health, health),
    }


def _livez(get_health: Callable[[], NodeHealth], _accept: str) -> RenderedResponse:
    """Answer whether the process is alive. If it isn't, a supervisor restarts it."""
    health = get_health()
    return text_response(str(health), healthy=health.alive)


def _readyz(get_health: Callable[[], NodeHealth], _accept: str) -> RenderedResponse:
    """Answer whether the node is ready. A rollout waits until it is."""
    health = get_health()
    return text_response(str(health), healthy=health.ready)


def _health(get_health: Callable[[], NodeHealth], _accept: str) -> RenderedResponse:
    health = get_health()
    return json_response(health.as_json(), healthy=health.status.fit)
