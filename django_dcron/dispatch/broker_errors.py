"""Classification of broker errors: the broker is unreachable, or it refuses a queue or message."""

from __future__ import annotations

import re
from typing import Any

from kombu.exceptions import KombuError

SERVER_ERRORS = re.compile(
    "^(OutOfMemory|ReadOnly|MasterDown|ClusterDown|TryAgain)Error"
    "|MISCONF|NOREPLICAS|BUSY Redis|permissions to run|requests? limit exceeded"
)
"""Redis's replies that concern the server, not the queue or the message.

The last one is that of a hosted server whose quota is used up.
"""


def means_unreachable(error: Exception, broker: Any) -> bool:
    """Return whether an error on a new connection means that the broker is unreachable.

    Otherwise, the broker refuses something. ``broker`` is a connection, which knows its driver's
    errors.
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


def cause_of(error: Exception) -> Exception:
    """Return the driver's own error if kombu has wrapped it."""
    while isinstance(error, KombuError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def broker_error_text(error: Exception) -> str:
    error = cause_of(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")
