"""Best-effort requests to the broker from processes other than nodes.

If a request fails, its effect still happens, but later.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from django_dcron.dispatch import Dispatcher, DispatchFailed, shared_dispatcher
from django_dcron.dispatch.base import PartlyPublished

BROKER_PAUSE = 10.0
"""Seconds without requests after the broker was unreachable. A web request that creates or cancels
many runs therefore waits only once.
"""
_broker_unreachable_until = float("-inf")
"""The time until which this process makes no requests, on the monotonic clock."""


def try_request(
    request: Callable[[Dispatcher], None], on_error: Callable[[Exception], None]
) -> None:
    """Make the request now and never raise.

    The change that the request belongs to is already committed.
    """
    global _broker_unreachable_until
    if monotonic() < _broker_unreachable_until:
        return
    try:
        dispatcher = shared_dispatcher()
        if dispatcher is not None:
            request(dispatcher)
    except Exception as error:
        on_error(error)
        # A broker that rejects a run is reachable for others.
        if isinstance(error, DispatchFailed) and not isinstance(error, PartlyPublished):
            _broker_unreachable_until = monotonic() + BROKER_PAUSE
