"""AMQP's publisher confirms, awaited once per batch.

Without confirms, a message in a socket's buffer counts as published. If the broker is killed,
suspended or out of memory, its run would wait for ``DCRON_REDELIVER_AFTER``. A refusal would be
reported only at a later call.

Invariants:

- Confirms are awaited at the end of a batch, which costs almost nothing. Awaiting each message,
  like kombu's ``confirm_publish``, is at least five times as slow.
- A nacked message isn't accepted now: for example, its queue is full or has no leader.
- The broker also confirms messages without a queue and drops them. Messages are therefore
  mandatory, so that the broker returns them.
- The first message on a connection is awaited alone. While a broker accepts nothing, each try
  leaves one message in its socket, not a batch. The broker may read these messages later.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Rejections(NamedTuple):
    """The task ids of the messages that the broker hasn't accepted."""

    nacked: set[str]
    returned: set[str]
    """The messages without a queue, which the broker has returned."""

    @property
    def task_ids(self) -> set[str]:
        return self.nacked | self.returned


class Confirms:
    """The confirms of one channel.

    Replaces ``basic_publish`` of the channel to count its messages, as the broker does, from 1.
    """

    def __init__(self, channel: Any, timeout: float):
        self._connection = channel.connection
        self._timeout = timeout
        self._sent = 0
        self._awaited: dict[int, str | None] = {}
        """Maps the number of a message to its correlation id, which is Celery's task id."""
        self._nacked: set[str] = set()
        self._returned: set[str] = set()
        self._publish = channel.basic_publish
        # Messages of other senders on this channel count, too, for example Celery's events.
        channel.basic_publish = self._publish_and_count
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        channel.confirm_select()

    @classmethod
    def of(cls, producer: Any, timeout: float) -> Confirms | None:
        """Return the confirms of the producer's channel, or None if they aren't supported."""
        if producer.connection.transport.driver_type != "amqp":
            return None
        channel = producer.channel
        if not hasattr(channel, "confirm_select"):
            return None
        supported = channel.connection.server_capabilities.get("publisher_confirms")
        return cls(channel, timeout) if supported else None

    def wait(self) -> Rejections:
        """Wait until the broker has confirmed or returned all messages. Return the rejected ones.

        The constructor's ``timeout`` applies to each wait for the broker. Errors of the connection
        propagate.
        """
        self._drain()
        rejections = Rejections(self._nacked, self._returned)
        self._nacked, self._returned = set(), set()
        return rejections

    def _drain(self) -> None:
        while self._awaited:
            self._connection.drain_events(timeout=self._timeout)

    def _publish_and_count(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        self._sent += 1
        # Set before publishing, because ``confirm_publish`` awaits the confirmation there.
        self._awaited[self._sent] = message.properties.get("correlation_id")
        result = self._publish(message, *args, **kwargs)
        if self._sent == 1:
            self._drain()
        return result

    def _on_ack(self, number: int, multiple: bool) -> None:
        self._take_confirmed(number, multiple)

    def _on_nack(self, number: int, multiple: bool) -> None:
        confirmed = self._take_confirmed(number, multiple)
        self._nacked.update(task_id for task_id in confirmed if task_id)

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        if task_id := message.properties.get("correlation_id"):
            self._returned.add(task_id)

    def _take_confirmed(self, number: int, multiple: bool) -> list[str | None]:
        numbers = (
            [awaited for awaited in self._awaited if awaited <= number] if multiple else [number]
        )
        return [self._awaited.pop(confirmed, None) for confirmed in numbers]
