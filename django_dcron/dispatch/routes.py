"""Routes of targets and queues, as Celery's router returns them, cached for a minute."""

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
"""Seconds for which a route is cached. A project's router may return another route later."""
ROUTE_OPTIONS = ("compression", "delivery_mode", "expiration", "priority")
"""The options of a route that apply to the message. Celery's ``countdown``, ``eta``, ``expires``
and time limits don't apply, because the scheduler decides about them.
"""


class Route(NamedTuple):
    queue: Queue
    exchange: str
    routing_key: str
    options: dict[str, Any]


class Routes:
    def __init__(self, default_task: str):
        """``default_task``: the task whose route applies to a target without a route."""
        self._default_task = default_task
        self._cache: dict[tuple[str, str], tuple[float, Route]] = {}

    def find(self, app: Celery, target: str, queue: str) -> Route:
        """Return the route to the job's queue, or else the route of the target's task.

        Without either, the route is Celery's default.

        Raises ``Undeliverable``.
        """
        key = (target, queue)
        until, route = self._cache.get(key, (0.0, None))
        if route is None or until < monotonic():
            route = self._look_up(app, target, queue)
            self._cache[key] = (monotonic() + ROUTE_LIFE, route)
        return route

    def _look_up(self, app: Celery, target: str, queue: str) -> Route:
        if queue and targets.is_reserved(queue):  # saved without validation
            raise Undeliverable(f"queue {queue!r} is reserved by Celery or its broker")
        amqp: Any = app.amqp  # The stubs lack its attributes.
        try:
            name = targets.get(target).route_name or self._default_task
        except UnknownTarget:
            name = self._default_task  # The worker reports the missing target on the run.
        try:
            options = amqp.router.route({"queue": queue} if queue else {}, name)
        except (QueueNotFound, KeyError) as error:
            raise Undeliverable(
                f"queue {queue!r} isn't in Celery's task_queues: {error}"
            ) from error
        if queue:  # The job's queue replaces the target's own route.
            options.pop("exchange", None)
            options.pop("routing_key", None)
        routed = options.pop("queue", None) or amqp.default_queue
        routed = amqp.queues[routed] if isinstance(routed, str) else routed
        exchange, routing_key = options.pop("exchange", None), options.pop("routing_key", None)
        options = {name: options[name] for name in ROUTE_OPTIONS if name in options}
        if exchange is None and routed.exchange.type == "direct":
            # The default exchange always leads to the queue of that name, regardless of other
            # bindings.
            return Route(routed, "", routed.name, options)
        return Route(
            routed, exchange or routed.exchange.name, routing_key or routed.routing_key, options
        )
