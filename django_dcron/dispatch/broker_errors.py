"""What a broker's errors say: that it is away, or that it refuses something."""

from __future__ import annotations

import re
from typing import Any

from kombu.exceptions import KombuError

TAKES_NOTHING_NOW = re.compile(
    "^(OutOfMemory|ReadOnly|MasterDown|ClusterDown|TryAgain)Error|MISCONF|NOREPLICAS|BUSY Redis|permissions to run"
)
"""Redis's answers that tell of the server, not of the queue or the message."""


def is_away(error: Exception, broker: Any) -> bool:
    """Whether the error of a connection just made means that the broker is away, not that it refuses something.

    ``broker``: a connection to it, which knows its driver's errors.
    """
    error = cause_of(error)
    # To kombu a LookupError is an error of Redis's connections; here it is a name that nobody knows.
    if isinstance(error, LookupError):
        return False
    # AMQP's connections that are lost for good are lost by what was sent.
    lost = isinstance(error, broker.connection_errors)
    lost = lost and isinstance(error, broker.recoverable_connection_errors)
    return lost or isinstance(error, OSError) or bool(TAKES_NOTHING_NOW.search(in_words(error)))


def cause_of(error: Exception) -> Exception:
    """The driver's own error, where kombu wraps it."""
    while isinstance(error, KombuError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def in_words(error: Exception) -> str:
    error = cause_of(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")
