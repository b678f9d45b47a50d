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
from django_dcron.scheduler.health import Health


def routes(health: Callable[[], Health]) -> dict[str, Route]:
    return {
        "/livez": partial(_livez, health),
        "/readyz": partial(_readyz, health),
        "/health": partial(_health, health),
    }


def _livez(ask: Callable[[], Health], _accept: str) -> RenderedResponse:
    """Answer whether the process is alive. If it isn't, a supervisor restarts it."""
    health = ask()
    return text_response(str(health), healthy=health.alive)


def _readyz(ask: Callable[[], Health], _accept: str) -> RenderedResponse:
    """Answer whether the node does its work, which a rollout waits for."""
    health = ask()
    return text_response(str(health), healthy=health.ready)


def _health(ask: Callable[[], Health], _accept: str) -> RenderedResponse:
    health = ask()
    return json_response(health.as_json(), healthy=health.status.fit)
