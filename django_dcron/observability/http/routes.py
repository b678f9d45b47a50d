"""What a node answers at which path. From its memory alone: the database and Redis may be away."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django_dcron.observability.http.answer import Answer, Route, as_json, in_one_line
from django_dcron.scheduler.health import Health


def routes(health: Callable[[], Health]) -> dict[str, Route]:
    return {
        "/livez": partial(_livez, health),
        "/readyz": partial(_readyz, health),
        "/health": partial(_health, health),
    }


def _livez(ask: Callable[[], Health], _accept: str) -> Answer:
    """Whether the process is to live on; a supervisor starts it again if not."""
    health = ask()
    return in_one_line(str(health), well=health.alive)


def _readyz(ask: Callable[[], Health], _accept: str) -> Answer:
    """Whether it does its work now: a roll-out waits for that."""
    health = ask()
    return in_one_line(str(health), well=health.ready)


def _health(ask: Callable[[], Health], _accept: str) -> Answer:
    health = ask()
    return as_json(health.as_json(), well=health.status.fit)
