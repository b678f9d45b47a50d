"""Fast reconnection of Celery workers after an outage of their broker.

By default, Celery waits 2 s longer after each failed try, up to 30 s. After an outage of a minute,
workers were idle for up to 16 s more. A worker that has loaded django-dcron's task tries every few
seconds instead.

Invariants:

- The pauses never exceed ``LONGEST_PAUSE``.
- The worker doesn't give up earlier than Celery would: shorter pauses allow more tries.
  ``broker_connection_retry`` still applies.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.signals import celeryd_init

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 3.0
"""The longest pause between two tries, in seconds."""
CELERYS_LONGEST_PAUSE = 30.0
MORE_TRIES = int(CELERYS_LONGEST_PAUSE / LONGEST_PAUSE)
"""The number of tries for each one that ``broker_connection_max_retries`` allows."""


class PromptReconnect(bootsteps.Step):
    """A step of the worker's consumer that shortens its pauses before the first connection."""

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        ensure_connected = parent.ensure_connected
        parent.ensure_connected = lambda connection: ensure_connected(
            _with_short_pauses(connection)
        )


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
def _add_step(instance: Any, **kwargs: Any) -> None:
    instance.app.steps["consumer"].add(PromptReconnect)
