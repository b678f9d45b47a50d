"""Where the messages of a target and a queue go: Celery's router is asked, and its answer kept for a while."""

from __future__ import annotations

from time import monotonic
from typing import Any, NamedTuple

from celery import Celery
from celery.exceptions import QueueNotFound
from kombu import Queue

from django_dcron import targets
from django_dcron.dispatch.base import Undeliverable
from django_dcron.exceptions import UnknownTarget

ROUTE_LIFE = 60.0
"""Seconds until a route is asked for again: a project's router may have changed its mind."""
ROUTE_OPTIONS = ("compression", "delivery_mode", "expiration", "priority")
"""What of a route's options goes along. Not what delays, expires or limits a task: that is the scheduler's."""


class Route(NamedTuple):
    queue: Queue
    exchange: str
    routing_key: str
    options: dict[str, Any]


class Routes:
    def __init__(self, default_task: str):
        """``default_task``: whose route is that of a target which has none of its own."""
        self._default_task = default_task
        self._found: dict[tuple[str, str], tuple[float, Route]] = {}

    def find(self, app: Celery, target: str, queue: str) -> Route:
        """The job's queue; else the target task's own route; else Celery's default. Raises ``Undeliverable``."""
        key = (target, queue)
        until, route = self._found.get(key, (0.0, None))
        if route is None or until < monotonic():
            route = self._ask(app, target, queue)
            self._found[key] = (monotonic() + ROUTE_LIFE, route)
        return route

    def _ask(self, app: Celery, target: str, queue: str) -> Route:
        if queue and targets.is_reserved(queue):  # written past the job's validation
            raise Undeliverable(f"queue {queue!r} is a name that Celery or its broker keeps for itself")
        amqp: Any = app.amqp  # of which the stubs know too little
        try:
            name = targets.get(target).route_name or self._default_task
        except UnknownTarget:
            name = self._default_task  # the worker will say so, on the run
        try:
            options = amqp.router.route({"queue": queue} if queue else {}, name)
        except (QueueNotFound, KeyError) as error:
            raise Undeliverable(f"queue {queue!r} is not one of Celery's task_queues: {error}") from error
        if queue:  # where the target's own route leads is of no interest then
            options.pop("exchange", None), options.pop("routing_key", None)
        found = options.pop("queue", None) or amqp.default_queue
        found = amqp.queues[found] if isinstance(found, str) else found
        exchange, routing_key = options.pop("exchange", None), options.pop("routing_key", None)
        options = {name: options[name] for name in ROUTE_OPTIONS if name in options}
        if exchange is None and found.exchange.type == "direct":
            # The default exchange leads to the queue of that name, whatever else is bound.
            return Route(found, "", found.name, options)
        return Route(found, exchange or found.exchange.name, routing_key or found.routing_key, options)
