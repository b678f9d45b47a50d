"""Handing runs to Celery workers, many in one batch.

Messages are built and serialized ahead of time and published past ``apply_async``: that is ten times as fast. When
something listens to Celery's publish signals (tracing libraries do), they go through ``send_task_message`` instead, which
sends them. Queues are declared once on each connection; AMQP returns what finds none, and then they are declared anew, so
that a message is never published into the void.

The broker is away if it cannot be connected to, if a connection just made is lost, or if it says that it can take nothing
now. Any other error of a connection just made is a refusal, of a queue or a message. What AMQP nacks, or returns although
the queues were declared, is tried again.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from math import ceil
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from amqp.exceptions import MessageNacked
from celery import Celery, current_app, signals
from celery.app.amqp import task_message
from kombu import Queue
from kombu.serialization import dumps

from django_dcron import tracing
from django_dcron.conf import settings
from django_dcron.dispatch.base import DispatchFailed, DueRun, TakenInPart, Undeliverable, WorkerAnswer
from django_dcron.dispatch.broker_errors import cause_of, in_words, is_away
from django_dcron.dispatch.confirms import Confirms
from django_dcron.dispatch.remote_control import ask_workers, publish_revoke
from django_dcron.dispatch.routes import Route, Routes

logger = logging.getLogger("django_dcron.scheduler")

TASK = "django_dcron.execute"
NODE_HEADER = "dcron_node"
"""The id of the node that published a message; workers look it up in their database."""
BATCH = 500
TIMEOUT = 4
"""Seconds for each answer of the broker, and to connect: then it is away, and the agenda tries again."""
TIMEOUT_OPTIONS: dict[str, dict[str, Any]] = {
    "redis": {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT},
    "py-amqp": {"read_timeout": TIMEOUT, "write_timeout": TIMEOUT},
}
"""By the name of the transport's driver. Their own default is to wait without end."""
BACKSTOP = timedelta(hours=1)
"""How long after we should have ended a run by force Celery kills it. Late, for Celery's clock starts when the message is
accepted and runs while a worker waits for the database; only for code that never lets go of the interpreter."""


Answer = TypeVar("Answer")


class Prepared(NamedTuple):
    route: Route
    message: task_message
    body: tuple[str, str, bytes | str]
    """Content type, content encoding and the serialized body."""
    options: dict[str, Any]

    @property
    def task_id(self) -> str:
        return str(self.message.headers["id"])

    @property
    def run_id(self) -> UUID:
        return UUID(self.task_id.partition(".")[0])


class CeleryDispatcher:
    """Thread-safe; survives a fork."""

    batch_size = 2000
    node = ""
    """The id of the node that publishes through this dispatcher; empty in other processes."""

    def __init__(self, app: Celery | None = None):
        self._app = app
        self._routes = Routes(default_task=TASK)
        self._lock = threading.Lock()
        self._producer: Any = None  # a kombu Producer; the stubs do not know batches
        self._confirms: Confirms | None = None
        self._declared: set[str] = set()
        self._parents: Any = None
        _dispatchers.add(self)

    @property
    def app(self) -> Celery:
        return self._app or current_app

    @property
    def address(self) -> str:
        try:
            return str(self.app.connection_for_write().as_uri())
        except Exception:
            return "(its URL cannot be used)"

    def prepare(self, run: DueRun) -> Prepared:
        route = self._routes.find(self.app, run.target, run.queue)
        args = (str(run.run_id), run.attempt)
        message = self.app.amqp.as_task_v2(
            _task_id(run.run_id, run.attempt),
            TASK,
            args,
            shadow=run.job_name,
            time_limit=_hard_limit(run),
            argsrepr=repr(args),
            kwargsrepr="{}",
            ignore_result=True,
        )
        message.headers.update({"dcron_job": run.job_name}, **tracing.headers_for(run.run_id))
        if self.node:
            message.headers[NODE_HEADER] = self.node
        options = route.options if run.priority is None else {**route.options, "priority": run.priority}
        return Prepared(route, message, dumps(message.body, self.app.conf.task_serializer), options)

    def publish(self, prepared: Sequence[Prepared]) -> None:
        with self._lock:
            try:
                left = self._with_producer(lambda producer: self._send_all(producer, prepared))
            except DispatchFailed:
                raise
            except Exception as error:
                if is_away(error, self.app.connection_for_write()):
                    raise DispatchFailed(in_words(error)) from cause_of(error)
                raise Undeliverable(
                    f"the broker refuses it, in queue {_queues(prepared)}: {in_words(error)}"
                ) from error
        if left:
            positions = {position for position, item in enumerate(prepared) if item.task_id in left}
            queues = _queues(prepared[position] for position in positions)
            raise TakenInPart(f"the broker has no room now, or no queue, for queue {queues}", positions)

    def publish_again(self, request: Any, headers: dict[str, Any]) -> None:
        """Publish a message that a worker received to where it came from. Raises ``DispatchFailed``.

        ``request``: Celery's context of the task. ``headers``: the message's headers that aren't Celery's own.
        """
        delivery = request.delivery_info or {}
        exchange, routing_key = delivery.get("exchange") or "", delivery.get("routing_key") or ""
        message = self.app.amqp.as_task_v2(
            request.id,
            TASK,
            request.args,
            shadow=request.shadow,
            time_limit=(request.timelimit or (None,))[0],
            argsrepr=repr(tuple(request.args)),
            kwargsrepr="{}",
            ignore_result=True,
        )
        message.headers.update(headers)
        priority = delivery.get("priority")
        options = {} if priority is None else {"priority": priority}
        route = Route(Queue(routing_key), exchange, routing_key, options)
        item = Prepared(route, message, dumps(message.body, self.app.conf.task_serializer), options)
        with self._lock:
            try:
                left = self._with_producer(lambda producer: self._send_one(producer, item))
            except DispatchFailed:
                raise
            except Exception as error:
                raise DispatchFailed(in_words(error)) from cause_of(error)
        if left:
            raise DispatchFailed(f"the broker has no room now, or no queue, for {_queues([item])}")

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        if not self.app.conf.worker_enable_remote_control:
            return
        task_id = _task_id(run_id, attempt)
        if not self._lock.acquire(timeout=TIMEOUT):
            raise DispatchFailed("others wait for the broker already")
        try:
            self._with_producer(lambda producer: publish_revoke(producer, self.app, task_id, worker))
        except DispatchFailed:
            raise
        except Exception as error:
            raise DispatchFailed(in_words(error)) from cause_of(error)
        finally:
            self._lock.release()

    def ask_workers(self) -> list[WorkerAnswer] | None:
        if not self.app.conf.worker_enable_remote_control:
            return None
        connection = self._new_connection()
        try:
            if not connection.supports_exchange_type("fanout"):
                return None
            self._ensure(connection)
            answers = ask_workers(self.app, connection, TASK)
        except Exception as error:
            with suppress(Exception):
                connection.collect()  # without a goodbye, see below
            raise DispatchFailed(in_words(error)) from cause_of(error)
        with suppress(Exception):
            connection.release()
        return answers

    def queue_of(self, target: str) -> str:
        """The queue of a target whose job names none. Raises ``Undeliverable``."""
        return str(self._routes.find(self.app, target, "").queue.name)

    def take_back(self) -> list[tuple[UUID, int]]:
        return []  # the workers have them

    def executing(self) -> list[str]:
        return []

    def close(self, wait: bool = True) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
            if producer is not None:
                with suppress(Exception):
                    producer.connection.release()

    def _with_producer(self, send: Callable[[Any], Answer]) -> Answer:
        """Raises ``DispatchFailed`` if it cannot connect; else what a new connection raises."""
        if self._producer is not None:
            try:
                return send(self._producer)
            except Exception as error:
                # It says nothing of what was sent: the connection may have been cut while it was idle, and AMQP tells
                # of what it refused at the next call only. So once more, on a new connection.
                logger.debug("the broker is connected to anew, after %s", in_words(error))
                self._drop_connection()
        try:
            self._connect()
        except Exception as error:
            raise DispatchFailed(in_words(error)) from cause_of(error)
        try:
            return send(self._producer)
        except Exception:
            self._drop_connection()
            raise

    def _send_all(self, producer: Any, prepared: Sequence[Prepared]) -> set[str]:
        """Returns the ids of those that the broker has not taken."""
        nacked, lost = self._send_each(producer, prepared)
        if lost:
            self._declared.clear()  # a queue is gone that was there
            again = [item for item in prepared if item.task_id in lost]
            nacked_then, lost = self._send_each(producer, again)
            nacked |= nacked_then
        return nacked | lost

    def _send_each(self, producer: Any, prepared: Sequence[Prepared]) -> tuple[set[str], set[str]]:
        """Returns the ids of those that were nacked, and of those that found no queue."""
        for route in {id(item.route): item.route for item in prepared}.values():
            self._declare(producer, route)
        send = self._send_signalling if self._someone_listens() else self._send
        with producer.batch(max_size=BATCH) if _batches(producer) else nullcontext():
            for item in prepared:
                with suppress(MessageNacked):  # with ``confirm_publish``; it is counted
                    send(producer, item)
        return self._confirms.wait() if self._confirms else (set(), set())

    def _send_one(self, producer: Any, item: Prepared) -> set[str]:
        """Without declaring its queue, which may be another project's. Returns its id if the broker hasn't taken it."""
        with suppress(MessageNacked):
            self._send(producer, item)
        return set.union(*self._confirms.wait()) if self._confirms else set()

    def _send(self, producer: Any, item: Prepared) -> None:
        content_type, content_encoding, body = item.body
        properties = {**item.message.properties, **item.options, **self._flags}
        producer.publish(
            body,
            exchange=item.route.exchange,
            routing_key=item.route.routing_key,
            content_type=content_type,
            content_encoding=content_encoding,
            headers=item.message.headers,
            **properties,
        )

    def _send_signalling(self, producer: Any, item: Prepared) -> None:
        with tracing.sending(item.run_id):
            self.app.amqp.send_task_message(
                producer,
                TASK,
                item.message,
                queue=item.route.queue,
                exchange=item.route.exchange,
                routing_key=item.route.routing_key,
                retry=False,
                **item.options,
                **self._flags,
            )

    @property
    def _flags(self) -> dict[str, bool]:
        return {"mandatory": True} if self._confirms else {}

    def _someone_listens(self) -> bool:
        return bool(
            signals.before_task_publish.receivers
            or signals.after_task_publish.receivers
            or self.app.conf.task_send_sent_event
        )

    def _new_connection(self) -> Any:
        connection = self.app.connection_for_write()
        ours = TIMEOUT_OPTIONS.get(connection.get_transport_cls().driver_name, {})
        connection.transport_options = {**ours, **(connection.transport_options or {})}
        return connection

    def _ensure(self, connection: Any) -> None:
        tries = max(len(connection.alt), 1)  # each of the URLs, if there are several, once
        connection.ensure_connection(max_retries=tries - 1, interval_start=0, timeout=TIMEOUT)

    def _connect(self) -> None:
        connection = self._new_connection()
        self._ensure(connection)
        self._producer = self.app.amqp.Producer(connection, auto_declare=False)
        self._confirms = Confirms.of(self._producer, TIMEOUT)
        self._declared.clear()

    def _forked(self) -> None:
        """In the child: the lock may be held by a thread that is not here, and the connection is the parent's."""
        self._lock = threading.Lock()
        # Kept, or its end would say goodbye on the parent's socket.
        self._parents, self._producer = self._producer, None

    def _drop_connection(self) -> None:
        """Without a goodbye: the broker may be frozen, and would be waited for."""
        producer, self._producer = self._producer, None
        with suppress(Exception):
            producer.connection.collect()

    def _declare(self, producer: Any, route: Route) -> None:
        if route.queue.name not in self._declared:
            route.queue(producer.channel).declare()
            self._declared.add(route.queue.name)


_dispatchers: weakref.WeakSet[CeleryDispatcher] = weakref.WeakSet()


def _forget_parents() -> None:
    for dispatcher in _dispatchers:
        dispatcher._forked()


os.register_at_fork(after_in_child=_forget_parents)


def _queues(prepared: Iterable[Prepared]) -> str:
    return ", ".join(sorted({repr(item.route.queue.name) for item in prepared}))


def _task_id(run_id: UUID, attempt: int) -> str:
    return f"{run_id}.{attempt}"


def _hard_limit(run: DueRun) -> int | None:
    """When Celery kills the run, in whole seconds. Its timeout is ours to enforce, in any pool."""
    if run.timeout is None:
        return None
    return ceil((run.timeout + settings.HARD_TIMEOUT_AFTER + BACKSTOP).total_seconds())


def _batches(producer: Any) -> bool:
    """Whether kombu (from 5.7 on) and the transport can send many messages in one go."""
    return bool(getattr(producer, "supports_batch_publish", False))
