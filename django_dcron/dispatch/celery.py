"""Dispatch to Celery workers, many runs per batch.

Invariants:

- Messages are built and serialized ahead of time. Publishing them is ten times as fast as
  ``apply_async``. On Redis, they are appended without kombu, which takes an eighth of that time
  (``redis_queue``).
- If Celery's publish signals have receivers, such as a tracing library, or sent events are enabled,
  ``send_task_message`` publishes the messages. Only it sends the signals and events.
- Connecting takes longer than publishing thousands of messages, so a node connects before a run is
  due. It also checks a connection that has been idle, because the server may have cut it.
- AMQP returns a message whose queue is missing. The queue is then declared again, and the message
  is published again.
- The broker counts as unreachable if it can't be connected to, if a new connection is lost, or if
  it accepts nothing now.
- After any other error on a new connection, ``broker_errors`` decides whether the run ends or is
  tried again.
- A message that AMQP nacks, or returns although its queue was declared, is tried again.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from amqp.exceptions import MessageNacked
from celery import Celery, current_app, signals
from kombu import Queue

from django_dcron import tracing
from django_dcron.dispatch.base import DispatchFailed, DueRun, PartlyPublished, WorkerReply
from django_dcron.dispatch.broker_connection import (
    TIMEOUT,
    BrokerConnection,
    batch_size_for,
    connect_to_broker,
    new_broker_connection,
)
from django_dcron.dispatch.broker_errors import broker_error_text, cause_of, publish_error
from django_dcron.dispatch.confirms import Rejections
from django_dcron.dispatch.message_templates import MessageTemplates
from django_dcron.dispatch.messages import (
    TASK,
    MessageContent,
    build_message,
    builds_like_celery,
    rebuild_message,
    task_id_of,
)
from django_dcron.dispatch.redis_queue import (
    QueueDestination,
    RedisQueues,
    destination_of,
    encode_message,
    is_known_broker,
    new_delivery_tag,
)
from django_dcron.dispatch.remote_control import ask_workers, publish_revoke
from django_dcron.dispatch.routes import Route, Routes

logger = logging.getLogger("django_dcron.scheduler")

BATCH = 500
"""The maximum number of messages in a batch of kombu."""


@dataclass(slots=True)
class PreparedMessage:
    run: DueRun
    route: Route
    options: dict[str, Any]
    content: MessageContent | None = None
    """None if ``text`` has the whole message. Keeping only one of them halves the memory."""
    destination: QueueDestination | None = None
    """None if kombu has to publish the message."""
    text: bytes | None = None
    """The message for Redis. It is used for one delivery."""

    @property
    def task_id(self) -> str:
        return task_id_of(self.run.run_id, self.run.attempt)


class CeleryDispatcher:
    """Publishes runs to Celery. Thread-safe, and safe after a fork."""

    node = ""
    """The id of the node that publishes through this dispatcher; empty in other processes."""

    def __init__(self, app: Celery | None = None):
        self._app = app
        self._routes = Routes(default_task=TASK)
        self._connection = BrokerConnection(lambda: self.app)
        self._templates = MessageTemplates()
        _dispatchers.add(self)

    @property
    def app(self) -> Celery:
        return self._app or current_app

    @property
    def address(self) -> str:
        try:
            return str(self.app.connection_for_write().as_uri())
        except Exception:
            return "(invalid broker URL)"

    def prepare(self, run: DueRun) -> PreparedMessage:
        route = self._routes.find(self.app, run.target, run.queue)
        options = (
            route.options if run.priority is None else {**route.options, "priority": run.priority}
        )
        item = PreparedMessage(run, route, options)
        if self._encodes and not self._celery_must_send():
            self._encode(item)
        if item.text is None:
            item.content = self._build(run)
        return item

    def connect_ahead(self, prepared: PreparedMessage) -> None:
        if not self._connection.lock.acquire(blocking=False):
            return  # another thread is using the connection
        try:
            if self._connection.needs_check:
                # Declaring the queue again shows whether the connection still works.
                self._connection.redeclare(prepared.route)
        except Exception as error:
            logger.debug("not connected ahead: error=%s", broker_error_text(error))
        finally:
            self._connection.lock.release()

    def publish(self, prepared: Sequence[PreparedMessage]) -> None:
        with self._connection.lock:
            try:
                rejected = self._connection.use(lambda producer: self._send_all(producer, prepared))
            except DispatchFailed:
                raise
            except Exception as error:
                broker, queues = self.app.connection_for_write(), _queue_names(prepared)
                raise publish_error(error, broker, queues, len(prepared)) from cause_of(error)
        if rejected:
            positions = {index for index, item in enumerate(prepared) if item.task_id in rejected}
            queues = _queue_names(prepared[index] for index in positions)
            raise PartlyPublished(
                f"the broker's queue is full or doesn't exist: {queues}", positions
            )

    def publish_again(self, request: Any, headers: dict[str, Any]) -> None:
        """Publish a received message again, with the exchange and routing key of its delivery.

        ``request``: Celery's context of the task. ``headers``: the message's headers that aren't
        Celery's own. Raises ``DispatchFailed``.
        """
        delivery = request.delivery_info or {}
        exchange, routing_key = delivery.get("exchange") or "", delivery.get("routing_key") or ""
        content = rebuild_message(self.app, request, headers, self._serializer)
        priority = delivery.get("priority")
        options = {} if priority is None else {"priority": priority}
        route = Route(Queue(routing_key), exchange, routing_key, options)
        with self._connection.lock:
            try:
                rejected = self._connection.use(
                    lambda producer: self._send_one(producer, route, content)
                )
            except DispatchFailed:
                raise
            except Exception as error:
                raise DispatchFailed(broker_error_text(error)) from cause_of(error)
        if rejected:
            raise DispatchFailed(f"the broker's queue is full or doesn't exist: {routing_key!r}")

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        self._revoke(task_id_of(run_id, attempt), worker)

    def revoke_many(self, attempts: Sequence[tuple[UUID, int]]) -> None:
        self._revoke([task_id_of(run_id, attempt) for run_id, attempt in attempts])

    def _revoke(self, task_id: str | list[str], worker: str = "") -> None:
        if not self.app.conf.worker_enable_remote_control:
            return
        if not self._connection.lock.acquire(timeout=TIMEOUT):
            raise DispatchFailed("other threads are already waiting for the broker")
        try:
            self._connection.use(
                lambda producer: publish_revoke(producer, self.app, task_id, worker)
            )
        except DispatchFailed:
            raise
        except Exception as error:
            raise DispatchFailed(broker_error_text(error)) from cause_of(error)
        finally:
            self._connection.lock.release()

    def ask_workers(self) -> list[WorkerReply] | None:
        if not self.app.conf.worker_enable_remote_control:
            return None
        connection: Any = None  # if the broker URL is invalid
        try:
            connection = new_broker_connection(self.app)
            if not connection.supports_exchange_type("fanout"):
                return None
            connect_to_broker(connection)
            replies = ask_workers(self.app, connection, TASK)
        except Exception as error:
            with suppress(Exception):
                connection.collect()  # without a handshake, which a suspended broker would block
            raise DispatchFailed(broker_error_text(error)) from cause_of(error)
        with suppress(Exception):
            connection.release()
        return replies

    def queue_of(self, target: str) -> str:
        """Return the target's default queue, for jobs without a queue. Raises ``Undeliverable``."""
        return str(self._routes.find(self.app, target, "").queue.name)

    def take_unstarted(self) -> list[tuple[UUID, int]]:
        return []  # the messages are with the broker or the workers

    def executing(self) -> list[str]:
        return []

    def close(self, wait: bool = True) -> None:
        with self._connection.lock:
            self._connection.close()

    def _send_all(self, producer: Any, prepared: Sequence[PreparedMessage]) -> set[str]:
        """Publish the messages. Return the ids of the messages that the broker hasn't accepted."""
        first = self._send_each(producer, prepared)
        if not first.returned:
            return first.nacked
        self._connection.forget_declarations()  # A declared queue is missing.
        again = [item for item in prepared if item.task_id in first.returned]
        return first.nacked | self._send_each(producer, again).task_ids

    def _send_each(self, producer: Any, prepared: Sequence[PreparedMessage]) -> Rejections:
        """Publish each message once. Return the messages that the broker hasn't accepted."""
        for route in {id(item.route): item.route for item in prepared}.values():
            self._connection.declare(route)
        celery_must_send = self._celery_must_send()
        redis_queues, confirms = self._connection.redis_queues, self._connection.confirms
        if redis_queues and not celery_must_send and redis_queues.bypass_only_kombu:
            prepared = self._append(redis_queues, prepared)
        with producer.batch(max_size=BATCH) if _supports_batches(producer) else nullcontext():
            for item in prepared:
                content = item.content or self._build(item.run)
                # With ``confirm_publish``, a nack is raised here. ``Confirms`` has recorded it.
                with suppress(MessageNacked):
                    if celery_must_send:
                        self._send_with_signals(producer, item, content)
                    else:
                        self._send(producer, item.route, item.options, content)
        return confirms.wait() if confirms else Rejections(set(), set())

    def _append(
        self, queues: RedisQueues, prepared: Sequence[PreparedMessage]
    ) -> list[PreparedMessage]:
        """Append the messages to their queues in Redis. Return those that kombu has to publish."""
        messages, others = [], []
        for item in prepared:
            if item.text is None:
                self._encode(item)
            if item.text is None or item.destination is None:
                others.append(item)
            else:
                messages.append((item.destination, item.text))
                item.text = None
        queues.append(messages)
        return others

    def _encode(self, item: PreparedMessage) -> None:
        """Encode the message for one delivery, if kombu doesn't have to publish it."""
        destination = item.destination = destination_of(item.route, item.options)
        if destination is None:
            return
        run, options = item.run, item.options

        def encode(run: DueRun, tag: str) -> bytes:
            return encode_message(*self._build(run), destination, options, tag)

        tag = new_delivery_tag()
        if builds_like_celery(self.app) and not tracing.headers_for(run.run_id):
            kind = destination, options.get("delivery_mode"), run.timeout, run.attempt, self.node
            item.text = self._templates.encode(kind, run, tag, encode)
        else:
            item.text = encode(run, tag)
        item.content = None

    def _build(self, run: DueRun) -> MessageContent:
        return build_message(self.app, run, self.node, self._serializer)

    def _send_one(self, producer: Any, route: Route, content: MessageContent) -> set[str]:
        """Publish one message without declaring its queue, which may belong to another project.

        Return its id if the broker hasn't accepted it.
        """
        with suppress(MessageNacked):
            self._send(producer, route, route.options, content)
        confirms = self._connection.confirms
        return confirms.wait().task_ids if confirms else set()

    def _send(
        self, producer: Any, route: Route, options: dict[str, Any], content: MessageContent
    ) -> None:
        content_type, content_encoding, body = content.body
        properties = {**content.message.properties, **options, **self._flags}
        producer.publish(
            body,
            exchange=route.exchange,
            routing_key=route.routing_key,
            content_type=content_type,
            content_encoding=content_encoding,
            headers=content.message.headers,
            **properties,
        )

    def _send_with_signals(
        self, producer: Any, item: PreparedMessage, content: MessageContent
    ) -> None:
        with tracing.sending_context(item.run.run_id):
            self.app.amqp.send_task_message(
                producer,
                TASK,
                content.message,
                queue=item.route.queue,
                exchange=item.route.exchange,
                routing_key=item.route.routing_key,
                retry=False,
                **item.options,
                **self._flags,
            )

    @property
    def _flags(self) -> dict[str, bool]:
        return {"mandatory": True} if self._connection.confirms else {}

    def _celery_must_send(self) -> bool:
        """Whether ``send_task_message`` has to publish.

        It has to if signals have receivers or sent events are enabled.
        """
        return bool(
            signals.before_task_publish.receivers
            or signals.after_task_publish.receivers
            or self._sends_events
        )

    # Reading Celery's configuration takes as long as building a message, so it's read once.

    @cached_property
    def batch_size(self) -> int:
        return batch_size_for(self.app)

    @cached_property
    def _sends_events(self) -> bool:
        return bool(self.app.conf.task_send_sent_event)

    @cached_property
    def _serializer(self) -> str:
        return str(self.app.conf.task_serializer)

    @cached_property
    def _encodes(self) -> bool:
        """Whether messages are encoded ahead of time, which only ``RedisQueues`` uses."""
        try:
            return is_known_broker(new_broker_connection(self.app))
        except Exception:  # an invalid URL, which ``publish`` reports
            return False

    def _reset_after_fork(self) -> None:
        self._connection.reset_after_fork()
        self._templates.clear()  # messages contain the process id


_dispatchers: weakref.WeakSet[CeleryDispatcher] = weakref.WeakSet()


def _reset_dispatchers() -> None:
    for dispatcher in _dispatchers:
        dispatcher._reset_after_fork()


os.register_at_fork(after_in_child=_reset_dispatchers)


def _queue_names(prepared: Iterable[PreparedMessage]) -> str:
    return ", ".join(sorted({repr(item.route.queue.name) for item in prepared}))


def _supports_batches(producer: Any) -> bool:
    """Return whether kombu (5.7 or later) and the transport support batch publishing."""
    return bool(getattr(producer, "supports_batch_publish", False))
