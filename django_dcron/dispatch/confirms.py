"""AMQP's publisher confirms, awaited once for a whole batch.

Without them a message counts as handed over once it is in a socket's buffer: what a broker never reads because it is
killed, frozen or short of memory would wait for ``DCRON_REDELIVER_AFTER``, and a refusal would be told of at some later
call. Awaited message by message, as kombu's ``confirm_publish`` does, they cost a factor of five or more; awaited at the end,
next to nothing. What is nacked the broker does not take now, be it that a queue is full or has no leader.

What no queue takes is confirmed as well, and dropped. So messages are sent as mandatory, and the broker returns those.

The first message on a connection is awaited alone: a broker that takes nothing now, but reads later what has piled up in
its sockets, shall find one copy there from each try, not a batch.
"""

from __future__ import annotations

from typing import Any


class Confirms:
    """Of one channel, whose messages the broker numbers from 1."""

    def __init__(self, channel: Any, timeout: float):
        self._connection = channel.connection
        self._timeout = timeout
        self._sent = 0
        self._awaited: dict[int, str | None] = {}
        """Number -> the message's correlation id, which to Celery is the task's."""
        self._nacked: set[str] = set()
        self._returned: set[str] = set()
        self._publish = channel.basic_publish
        # Also what others send on this channel is numbered, such as Celery's events.
        channel.basic_publish = self._counted
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        channel.confirm_select()

    @classmethod
    def of(cls, producer: Any, timeout: float) -> Confirms | None:
        """None if the transport or the broker has none."""
        if producer.connection.transport.driver_type != "amqp":
            return None
        channel = producer.channel
        if not hasattr(channel, "confirm_select"):
            return None
        supported = channel.connection.server_capabilities.get("publisher_confirms")
        return cls(channel, timeout) if supported else None

    def wait(self) -> tuple[set[str], set[str]]:
        """Until the broker has answered for all that was sent. Returns the correlation ids of what it nacked, and of what
        found no queue. ``timeout`` is for each answer. Raises what the connection raises."""
        self._drain()
        answers = self._nacked, self._returned
        self._nacked, self._returned = set(), set()
        return answers

    def _drain(self) -> None:
        while self._awaited:
            self._connection.drain_events(timeout=self._timeout)

    def _counted(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        self._sent += 1
        # Before it is sent: with ``confirm_publish`` the answer is awaited there.
        self._awaited[self._sent] = message.properties.get("correlation_id")
        answer = self._publish(message, *args, **kwargs)
        if self._sent == 1:
            self._drain()
        return answer

    def _on_ack(self, number: int, multiple: bool) -> None:
        self._answered(number, multiple)

    def _on_nack(self, number: int, multiple: bool) -> None:
        self._nacked.update(name for name in self._answered(number, multiple) if name)

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        if name := message.properties.get("correlation_id"):
            self._returned.add(name)

    def _answered(self, number: int, multiple: bool) -> list[str | None]:
        numbers = [awaited for awaited in self._awaited if awaited <= number] if multiple else [number]
        return [self._awaited.pop(each, None) for each in numbers]
