"""Classification of the errors of publishing, on a new connection.

- The broker is unreachable: all runs wait.
- The broker or its driver refuses a queue or a message: the run ends.
- Any other error, for example of expired credentials: only runs of the same kind wait.
"""

from __future__ import annotations

import re
import struct
from typing import Any

from kombu.exceptions import KombuError

from django_dcron.dispatch.base import DispatchFailed, PartlyPublished, Undeliverable
from django_dcron.exceptions import DcronError

SERVER_ERRORS = re.compile(
    "^(OutOfMemory|ReadOnly|MasterDown|ClusterDown|TryAgain)Error"
    "|MISCONF|NOREPLICAS|BUSY Redis|permissions to run|requests? limit exceeded"
)
"""Redis's replies that concern the server, not the queue or the message.

The last one means that the quota of a hosted server is used up.
"""
KNOWN_DRIVERS = frozenset({"redis", "py-amqp"})
"""The drivers of Redis and RabbitMQ. Their own errors are refusals unless they mean an outage."""
MESSAGE_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError, struct.error, KombuError)
"""The message can't be encoded, an option of its route has an invalid value, or the name of its
queue is unknown or too long.
"""


def publish_error(error: Exception, broker: Any, queues: str, number: int) -> DcronError:
    """Return the exception for an error that publishing ``number`` messages has caused.

    ``broker``: see ``means_unreachable``. ``queues``: the names of the queues, for the text.
    """
    text = broker_error_text(error)
    if means_unreachable(error, broker):
        return DispatchFailed(text)
    # Publishing each of several messages alone shows which of them causes the error.
    if number == 1 and not means_refusal(error, broker):
        return PartlyPublished(f"can't publish to queue {queues}: {text}", {0}, by_error=True)
    return Undeliverable(f"the broker rejects the message, queue {queues}: {text}")


def means_unreachable(error: Exception, broker: Any) -> bool:
    """Return whether an error on a new connection means that the broker is unreachable.

    ``broker`` is a connection, which knows its driver's errors.
    """
    error = cause_of(error)
    # kombu lists LookupError among the connection errors of Redis. Here, it means an unknown name.
    if isinstance(error, LookupError):
        return False
    # A nonrecoverable AMQP connection error is caused by what was sent, not by an outage.
    is_connection_lost = isinstance(error, broker.connection_errors) and isinstance(
        error, broker.recoverable_connection_errors
    )
    return (
        is_connection_lost
        or isinstance(error, OSError)
        or bool(SERVER_ERRORS.search(broker_error_text(error)))
    )


def means_refusal(error: Exception, broker: Any) -> bool:
    """Return whether an error means that the same message would always be refused.

    For most brokers, only one of ``MESSAGE_ERRORS`` does. For example, Amazon SQS reports
    throttling, expired credentials and missing permissions with one class of errors.
    """
    error = cause_of(error)
    if broker.get_transport_cls().driver_name not in KNOWN_DRIVERS:
        return isinstance(error, MESSAGE_ERRORS)
    return isinstance(error, (*MESSAGE_ERRORS, *broker.connection_errors, *broker.channel_errors))


def cause_of(error: Exception) -> Exception:
    """Return the driver's own error if kombu has wrapped it."""
    while isinstance(error, KombuError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def broker_error_text(error: Exception) -> str:
    error = cause_of(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")
