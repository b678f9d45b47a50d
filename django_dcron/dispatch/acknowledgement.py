"""Acknowledge an ended run's message after the worker has sent the free child its next message.

The worker's main process sends messages to its children in an event loop. An iteration of this loop
calls ready callbacks, fires timers, waits for events, and then sends each free child a message.
Celery acknowledges a message at the start of the next iteration, and the free child waits until the
broker has confirmed that.

Invariants:

- The message of a run isn't acknowledged before the run has ended.
- If another message waits for a child, the worker sends it before the acknowledgement.
- A worker that stops acknowledges at once. If it stops or dies between the end of the run and the
  acknowledgement, the broker delivers the message again, and the start drops it.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

from celery.signals import worker_ready
from celery.worker import state
from celery.worker.request import Request
from kombu.asynchronous import Hub

LONGEST_WAIT = 0.001
"""Maximum number of seconds that the event loop waits for events between the two iterations."""


class DeferredAckRequest(Request):
    """A request whose message is acknowledged one iteration later if another message waits."""

    loop: ClassVar[Hub | None] = None
    """The worker's event loop, or None if its pool needs none. kombu's ``get_event_loop`` returns
    None after the broker connection was lost, although the worker keeps its loop.
    """

    def acknowledge(self) -> None:
        loop = self.loop
        runs_in_this_process = self.worker_pid == os.getpid()  # type: ignore[comparison-overlap]  # stubs
        if loop is None or runs_in_this_process or _is_stopping() or not _is_message_waiting():
            super().acknowledge()
        else:
            loop.call_soon(self._acknowledge_in_next_iteration, loop)

    def _acknowledge_in_next_iteration(self, loop: Hub) -> None:
        super().acknowledge()
        loop.call_later(LONGEST_WAIT, _end_wait)


@worker_ready.connect(weak=False)
def _remember_loop(sender: Any = None, **kwargs: Any) -> None:
    DeferredAckRequest.loop = getattr(sender, "hub", None)


def _is_message_waiting() -> bool:
    return len(state.reserved_requests) > len(state.active_requests)


def _is_stopping() -> bool:
    """Return whether the worker ends after its current runs.

    The flags are None, False, True or an exit code. The exit code 0 also means a stop.
    """
    flags: tuple[Any, ...] = (state.should_stop, state.should_terminate)
    return any(flag is not None and flag is not False for flag in flags)


def _end_wait() -> None:
    """Do nothing. The timer ends the loop's wait for events."""
