"""Fast reconnection of Celery workers after an outage of their broker.

By default, Celery waits 2 s longer after each failed try, up to 30 s. After an outage of a minute,
workers therefore stay idle for up to 16 s. A worker that has loaded django-dcron's task tries every
few seconds instead.

If the network drops packets, a worker waits on a silent connection: for 51 s with Redis, and for
two minutes or more with RabbitMQ. The kernel of a worker that has loaded django-dcron's task ends
such a connection after ``SILENCE``.

If Redis has dropped a connection while a proxy keeps acknowledging packets, the kernel notices
nothing. By default, a worker then waits forever for the reply to a command, such as an
acknowledgement. This blocks its event loop, and with it kombu's own checks of its connections. A
worker that has loaded django-dcron's task therefore waits at most ``REPLY_TIMEOUT`` for a reply.
This also limits the connections of Celery's pool, which the event loop uses to answer remote
control commands such as ``ping``.

With RabbitMQ, the heartbeats end such a connection. But Celery then closes it with a command, and
waits forever for the reply. Here, it waits at most ``AMQP_REPLY_TIMEOUT``.

Invariants:

- The pauses never exceed ``LONGEST_PAUSE``.
- The worker doesn't give up earlier than Celery would: because its pauses are shorter, it makes
  more tries. ``broker_connection_retry`` still applies.
- A slow or paused RabbitMQ keeps its connections, because its kernel replies. Connections to a
  paused Redis end after ``REPLY_TIMEOUT``.
- The project's ``broker_transport_options`` take precedence.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from celery import Celery, bootsteps
from celery.signals import celeryd_init

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 3.0
"""The longest pause between two tries, in seconds."""
CELERYS_LONGEST_PAUSE = 30.0
MORE_TRIES = int(CELERYS_LONGEST_PAUSE / LONGEST_PAUSE)
"""The number of tries for each one that ``broker_connection_max_retries`` allows."""
SILENCE = 6
"""Seconds after which a connection ends if the broker's machine acknowledges nothing."""
REPLY_TIMEOUT = 5.0
"""Seconds to wait for a reply of Redis. No command of a worker takes Redis longer than 1 s."""
AMQP_REPLY_TIMEOUT = 10.0
"""Seconds to wait for a reply of RabbitMQ, which usually replies within milliseconds.

A connection that waits for messages isn't limited.
"""
_KEEPALIVE = {
    "TCP_KEEPIDLE": SILENCE // 2,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": SILENCE // 2,
    "TCP_USER_TIMEOUT": SILENCE * 1000,
}
SOCKET_OPTIONS = {
    getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)
}
"""Some systems lack some of these options."""
TRANSPORT_OPTIONS: dict[str, dict[str, Any]] = {
    "redis": {
        "socket_keepalive": True,
        "socket_keepalive_options": SOCKET_OPTIONS,
        "socket_timeout": REPLY_TIMEOUT,
        "socket_connect_timeout": REPLY_TIMEOUT,
    },
    "py-amqp": {"socket_settings": SOCKET_OPTIONS, "read_timeout": AMQP_REPLY_TIMEOUT},
}
"""By the name of the transport's driver."""


class PromptReconnect(bootsteps.Step):
    """A step of the worker's consumer: its connections are tried again after short pauses."""

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        ensure_connected = parent.ensure_connected
        parent.ensure_connected = lambda connection: ensure_connected(
            _with_short_pauses(connection)
        )


def set_transport_options(app: Celery) -> None:
    """Give all connections that ``app`` creates in this process the ``TRANSPORT_OPTIONS``."""
    for name in ("connection_for_read", "connection_for_write"):
        setattr(app, name, _with_options(getattr(app, name)))


def _with_options(connect: Callable[..., Any]) -> Callable[..., Any]:
    def connect_with_options(*args: Any, **kwargs: Any) -> Any:
        connection = connect(*args, **kwargs)
        defaults = TRANSPORT_OPTIONS.get(connection.get_transport_cls().driver_name, {})
        connection.transport_options = {**defaults, **(connection.transport_options or {})}
        return connection

    return connect_with_options


def _with_short_pauses(connection: Any) -> Any:
    ensure_connection = connection.ensure_connection

    def ensure(errback: Any = None, max_retries: int | None = None, **options: Any) -> Any:
        tries = max_retries and max_retries * MORE_TRIES
        pauses = {
            "interval_start": FIRST_PAUSE,
            "interval_step": 1.0,
            "interval_max": LONGEST_PAUSE,
        }
        return ensure_connection(errback, tries, **(pauses | options))

    connection.ensure_connection = ensure
    return connection


@celeryd_init.connect(weak=False)
def _prepare_worker(instance: Any, **kwargs: Any) -> None:
    set_transport_options(instance.app)
    instance.app.steps["consumer"].add(PromptReconnect)
