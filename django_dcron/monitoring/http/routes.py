"""The paths that a node answers from memory, even if the database or Redis is unreachable."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django_dcron.monitoring.http.answer import Answer, Route, as_json, in_one_line
from django_dcron.scheduler.health import Health


def routes(health: Callable[[], Health]) -> dict[str, Route]:
    return {
        "/livez": partial(_livez, health),
        "/readyz": partial(_readyz, health),
        "/health": partial(_health, health),
    }


def _livez(ask: Callable[[], Health], _accept: str) -> Answer:
    """Answer whether the process is alive. If it isn't, a supervisor restarts it."""
    health = ask()
    return in_one_line(str(health), well=health.alive)


def _readyz(ask: Callable[[], Health], _accept: str) -> Answer:
    """Answer whether the node does its work, which a rollout waits for."""
    health = ask()
    return in_one_line(str(health), well=health.ready)


def _health(ask: Callable[[], Health], _accept: str) -> Answer:
    health = ask()
    return as_json(health.as_json(), well=health.status.fit)
