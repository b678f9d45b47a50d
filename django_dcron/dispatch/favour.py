"""Favours: what a process that is no node asks of the broker at once, and what happens anyway, if later, without it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from django_dcron.dispatch import Dispatcher, DispatchFailed, shared_dispatcher

BROKER_PAUSE = 10.0
"""Seconds for which nothing is asked once the broker was away: a request that makes or cancels many runs waits for it once."""
_broker_away_until = float("-inf")
"""Of this process, on the monotonic clock."""


def at_once(favour: Callable[[Dispatcher], None], refused: Callable[[Exception], None]) -> None:
    """Never raises: what it is about is committed, and whoever asked for that must not be told otherwise."""
    global _broker_away_until
    if monotonic() < _broker_away_until:
        return
    try:
        dispatcher = shared_dispatcher()
        if dispatcher is not None:
            favour(dispatcher)
    except Exception as error:
        refused(error)
        if isinstance(error, DispatchFailed):
            _broker_away_until = monotonic() + BROKER_PAUSE
