"""Messages that are encoded ahead of time and appended to Redis's lists in one pipeline.

kombu's Redis transport stores a message as a JSON text in a list. kombu builds this text when the
message is published. Building takes more than ten times as long as appending.

Invariants:

- The text and its list are those of kombu. ``tests/dispatch/test_redis_queue.py`` compares them
  with what kombu publishes, byte for byte.
- Messages of one list are appended in the given order. kombu publishes its messages afterwards.
- Each delivery has its own delivery tag, because a worker acknowledges a message by its tag. A
  message that may have been sent is encoded again.
- kombu connects, declares queues, names the lists and adds the key prefix.
- kombu publishes everything else, such as messages for another transport, version or body encoding,
  and messages with another exchange or other options.
- kombu also publishes if the client repeats commands, or if an instrumentation replaced one of
  kombu's methods.
- Redis's own error is raised, so it is classified like an error of kombu.
"""

from __future__ import annotations

from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable
from types import FunctionType
from typing import Any, NamedTuple

import kombu
from celery.app.amqp import task_message
from kombu.entity import maybe_delivery_mode
from kombu.utils.json import dumps
from kombu.utils.uuid import uuid

from django_dcron.dispatch.routes import Route
from django_dcron.utils.batches import in_batches

KNOWN_VERSIONS = frozenset({(5, 5), (5, 6), (5, 7)})
"""The versions of kombu whose messages have been compared with those of ``encode_message``."""
KNOWN_OPTIONS = frozenset({"priority", "delivery_mode"})
APPENDED_AT_ONCE = 500
"""Messages per LPUSH, so that Redis's other clients wait for at most a few milliseconds."""
PRODUCER_METHODS = ("publish", "_publish", "_prepare", "_delivery_details")
CHANNEL_METHODS = (
    "basic_publish",
    "prepare_message",
    "encode_body",
    "_inplace_augment_message",
    "_next_delivery_tag",
    "_put",
)
"""The methods of kombu that these messages bypass."""
REPEAT_OPTIONS = ("retry", "retry_on_error", "retry_on_timeout")
"""The options that make a Redis client repeat commands whose reply was lost."""


class QueueDestination(NamedTuple):
    queue: str
    priority: int


def is_known_broker(connection: Any) -> bool:
    """Return whether messages for the connection's broker can be encoded. Doesn't connect."""
    transport = connection.get_transport_cls()
    return (
        version_of_kombu() in KNOWN_VERSIONS
        and _is_of_kombu(transport, "Transport")
        and _is_of_kombu(transport.Channel, "Channel")
        and "body_encoding" not in connection.transport_options
    )


def version_of_kombu() -> tuple[int, int]:
    version: str = kombu.__version__  # type: ignore[attr-defined]  # not in the stubs
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def destination_of(route: Route, options: dict[str, Any]) -> QueueDestination | None:
    """Return where the message goes, or None if kombu has to publish it.

    kombu also publishes to queues that expire, because it has to extend their life.
    """
    priority = options.get("priority") or 0
    queue: Any = route.queue  # The stubs lack its attributes.
    if (
        route.exchange
        or queue.expires is not None
        or "x-expires" in (queue.queue_arguments or ())
        or not options.keys() <= KNOWN_OPTIONS
        or not isinstance(priority, int)
    ):
        return None
    return QueueDestination(route.routing_key, priority)


def new_delivery_tag() -> str:
    return uuid()


def encode_message(
    message: task_message,
    body: tuple[str, str, bytes | str],
    destination: QueueDestination,
    options: dict[str, Any],
    tag: str,
) -> bytes:
    """Return the text of the message.

    ``body``: content type, content encoding and serialized body. ``tag``: see ``new_delivery_tag``.
    """
    content_type, content_encoding, content = body
    if isinstance(content, str):
        content = content.encode(content_encoding)
    properties = {
        **message.properties,
        "delivery_mode": maybe_delivery_mode(options.get("delivery_mode")),
        "delivery_info": {"exchange": "", "routing_key": destination.queue},
        "priority": destination.priority,
        "body_encoding": "base64",
        "delivery_tag": tag,
    }
    text = dumps(
        {
            "body": b64encode(content).decode(),
            "content-encoding": content_encoding,
            "content-type": content_type,
            "headers": message.headers,
            "properties": properties,
        }
    )
    return text.encode()


class RedisQueues:
    """The lists of one kombu channel."""

    def __init__(self, channel: Any):
        self._channel = channel
        self._keys: dict[QueueDestination, str] = {}

    @classmethod
    def of(cls, producer: Any) -> RedisQueues | None:
        """Return the lists of a connected producer, or None if kombu has to publish."""
        if type(producer) is not kombu.Producer:
            return None
        channel: Any = producer.channel
        known = (
            is_known_broker(producer.connection)
            and _is_of_kombu(type(channel), "Channel")
            and not any(channel.pool.connection_kwargs.get(option) for option in REPEAT_OPTIONS)
        )
        return cls(channel) if known else None

    @property
    def bypass_only_kombu(self) -> bool:
        """Whether the bypassed methods are those of kombu, so that no instrumentation is lost."""
        return all(
            _is_function_of_kombu(getattr(owner, name))
            for owner, names in (
                (kombu.Producer, PRODUCER_METHODS),
                (type(self._channel), CHANNEL_METHODS),
            )
            for name in names
        )

    def append(self, messages: Iterable[tuple[QueueDestination, bytes]]) -> None:
        """Append the texts to their lists. After an error, some may have been appended."""
        texts_by_key: defaultdict[str, list[bytes]] = defaultdict(list)
        for destination, text in messages:
            texts_by_key[self._key(destination)].append(text)
        with (
            self._channel.conn_or_acquire() as client,
            client.pipeline(transaction=False) as pipeline,
        ):
            for key, texts in texts_by_key.items():
                for batch in in_batches(texts, APPENDED_AT_ONCE):
                    pipeline.lpush(key, *batch)
            replies = pipeline.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply

    def _key(self, destination: QueueDestination) -> str:
        key = self._keys.get(destination)
        if key is None:
            queue, priority = destination
            level = self._channel._get_message_priority({"properties": {"priority": priority}})
            key = self._keys[destination] = self._channel._q_for_pri(queue, level)
        return key


def _is_of_kombu(cls: type, name: str) -> bool:
    return (cls.__module__, cls.__qualname__) == ("kombu.transport.redis", name)


def _is_function_of_kombu(function: Any) -> bool:
    """Return whether ``function`` is defined in kombu. A wrapper is defined somewhere else."""
    return type(function) is FunctionType and function.__globals__["__name__"].startswith("kombu.")
