"""The connection of a dispatcher to Celery's broker.

Invariants:

- Queues are declared once per connection.
- A request that fails is repeated once on a new connection. The idle connection may have been cut,
  or AMQP may have reported the refusal of an earlier message. Only the second error is raised.
- A dropped connection isn't closed with a handshake, because a suspended broker would block it.
- A forked child uses neither the lock nor the connection of its parent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from django_dcron.dispatch.base import DispatchFailed
from django_dcron.dispatch.broker_errors import KNOWN_DRIVERS, broker_error_text, cause_of
from django_dcron.dispatch.confirms import Confirms
from django_dcron.dispatch.redis_queue import RedisQueues
from django_dcron.dispatch.routes import Route

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger("django_dcron.scheduler")

TIMEOUT = 4
"""Seconds to wait for a connection and for each reply. After that, the broker counts as
unreachable, and the agenda tries again.
"""
IDLE_AFTER = 5.0
"""After this many idle seconds, the connection is checked before the next run is due."""
TIMEOUT_OPTIONS: dict[str, dict[str, Any]] = {
    "redis": {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT},
    "py-amqp": {"read_timeout": TIMEOUT, "write_timeout": TIMEOUT},
    "sqs": {
        "client-config": {
            "connect_timeout": TIMEOUT,
            "read_timeout": TIMEOUT,
            "retries": {"total_max_attempts": 2},
        }
    },
}
"""The timeouts of each driver, by its name. Without them, the drivers wait forever, or for minutes
(Amazon SQS), and the agenda's thread looks hung.
"""

BATCH_SIZE = 2000
BATCH_SIZE_OF_OTHERS = 100
"""The batch size for other drivers. Most of them send each message alone and await the answer."""

Result = TypeVar("Result")


def new_broker_connection(app: Celery) -> Any:
    """Return a connection with timeouts that isn't connected yet."""
    try:
        connection = app.connection_for_write()
        driver = connection.get_transport_cls().driver_name
    except ValueError:  # The error might quote a part of the password.
        raise ValueError("the broker URL can't be read") from None
    options = connection.transport_options or {}
    connection.transport_options = _with_timeouts(options, TIMEOUT_OPTIONS.get(driver, {}))
    return connection


def _with_timeouts(options: dict[str, Any], timeouts: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the timeouts that they, or the dictionaries in them, don't set."""
    merged = {**timeouts, **options}
    for name in timeouts.keys() & options.keys():
        if isinstance(options[name], dict) and isinstance(timeouts[name], dict):
            merged[name] = {**timeouts[name], **options[name]}
    return merged


def batch_size_for(app: Celery) -> int:
    """Return how many messages the broker of ``app`` accepts within a few seconds.

    Doesn't connect.
    """
    try:
        driver = new_broker_connection(app).get_transport_cls().driver_name
    except Exception:  # an invalid URL, which ``publish`` reports
        return BATCH_SIZE_OF_OTHERS
    return BATCH_SIZE if driver in KNOWN_DRIVERS else BATCH_SIZE_OF_OTHERS


def connect_to_broker(connection: Any) -> None:
    tries = max(len(connection.alt), 1)  # one try for each broker URL
    connection.ensure_connection(max_retries=tries - 1, interval_start=0, timeout=TIMEOUT)


class BrokerConnection:
    """Connects at first use and again after a failure. Callers acquire ``lock`` for each use."""

    def __init__(self, app: Callable[[], Celery]) -> None:
        self._app = app
        self.lock = threading.Lock()
        self.producer: Any = None  # a kombu Producer; the stubs lack its batches
        self.confirms: Confirms | None = None
        self.redis_queues: RedisQueues | None = None
        self._declared: set[str] = set()
        self._used_at = 0.0
        """When the connection last worked, on the monotonic clock."""
        self._parent_producer: Any = None

    @property
    def needs_check(self) -> bool:
        """Whether there is no connection, or the broker may have cut it because it was idle."""
        return self.producer is None or time.monotonic() - self._used_at > IDLE_AFTER

    def use(self, send: Callable[[Any], Result]) -> Result:
        """Call ``send`` with a connected producer. If that fails, call it on a new connection.

        Raises ``DispatchFailed`` if the broker can't be connected to. Otherwise, raises the error
        of ``send`` on the new connection.
        """
        if self.producer is not None:
            try:
                return self._use_once(send)
            except Exception as error:
                logger.debug(
                    "broker request failed, retrying on a new connection: error=%s",
                    broker_error_text(error),
                )
                self._drop()
        try:
            self._connect()
        except Exception as error:
            raise DispatchFailed(broker_error_text(error)) from cause_of(error)
        try:
            return self._use_once(send)
        except Exception:
            self._drop()
            raise

    def declare(self, route: Route) -> None:
        """Declare the queue of the route, unless that was done on this connection."""
        if route.queue.name not in self._declared:
            route.queue(self.producer.channel).declare()
            self._declared.add(route.queue.name)

    def redeclare(self, route: Route) -> None:
        self._declared.discard(route.queue.name)
        self.use(lambda _producer: self.declare(route))

    def forget_declarations(self) -> None:
        self._declared.clear()

    def close(self) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            with suppress(Exception):
                producer.connection.release()

    def reset_after_fork(self) -> None:
        """Reset in a forked child. A thread that doesn't exist in the child may hold the lock."""
        self.lock = threading.Lock()
        # Keep the parent's producer: its destructor would send a close frame on its socket.
        self._parent_producer, self.producer = self.producer, None

    def _use_once(self, send: Callable[[Any], Result]) -> Result:
        result = send(self.producer)
        self._used_at = time.monotonic()
        return result

    def _connect(self) -> None:
        app = self._app()
        connection = new_broker_connection(app)
        connect_to_broker(connection)
        self.producer = app.amqp.Producer(connection, auto_declare=False)
        self.confirms = Confirms.of(self.producer, TIMEOUT)
        self.redis_queues = RedisQueues.of(self.producer)
        self._declared.clear()

    def _drop(self) -> None:
        producer, self.producer = self.producer, None
        with suppress(Exception):
            producer.connection.collect()
