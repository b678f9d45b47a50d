"""Routes of targets and queues, cached for a minute.

As in Celery, the options of a task, such as ``@shared_task(queue="reports")``, override those of
``task_routes``.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, NamedTuple

from celery import Celery
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
TASK_OPTIONS = ("queue", "exchange", "routing_key", *ROUTE_OPTIONS)
"""The options of a task that apply to the message."""


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

        Raises ``Undeliverable`` if the queue is reserved or isn't in ``task_queues``. An error of
        the project's router is raised unchanged. The caller ends such a run, too.
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
        own_queue = _queue_named(amqp, queue) if queue else None
        options = _options_of(app, name, own_queue)
        exchange, routing_key = options.get("exchange"), options.get("routing_key")
        routed = options.get("queue") or app.conf.task_default_queue
        if own_queue is not None:  # The job's queue replaces the target's own route.
            routed, exchange, routing_key = own_queue, None, None
        routed = _queue_named(amqp, routed) if isinstance(routed, str) else routed
        options = {name: options[name] for name in ROUTE_OPTIONS if name in options}
        if exchange is None and routed.exchange.type == "direct":
            # The default exchange always leads to the queue of that name, regardless of other
            # bindings.
            return Route(routed, "", routed.name, options)
        return Route(
            routed, exchange or routed.exchange.name, routing_key or routed.routing_key, options
        )


def _options_of(app: Celery, name: str, own_queue: Queue | None) -> dict[str, Any]:
    """Return the options of the task ``name`` and of its route, without the job's queue.

    Celery's ``Router.route`` would change the dict that the project's router returns, which may be
    the same dict at each call.
    """
    amqp: Any = app.amqp
    task = app.tasks.get(name)
    declared = {
        option: value
        for option in TASK_OPTIONS
        if (value := getattr(task, option, None)) is not None
    }
    if own_queue is None and isinstance(declared.get("queue"), str):
        declared["queue"] = _queue_named(amqp, declared["queue"])
    given = declared if own_queue is None else {**declared, "queue": own_queue}
    route = amqp.router.lookup_route(name, (), {}, dict(given)) or {}
    options = {"queue": route} if isinstance(route, str) else dict(route)
    return options | declared


def _queue_named(amqp: Any, name: str) -> Queue:
    try:
        queue: Queue = amqp.queues[name]
    except KeyError as error:
        raise Undeliverable(
            f"queue {name!r} isn't in Celery's task_queues. Add it to task_queues."
        ) from error
    return queue
