"""Distinguish django-dcron's threads from the project's, and threads from greenlets."""

from __future__ import annotations

import sys
import threading

_current = threading.local()


class DcronThread(threading.Thread):
    """A thread that django-dcron starts, in a node, a worker or a web server."""

    def run(self) -> None:
        mark_dcron_thread()
        super().run()


def mark_dcron_thread() -> None:
    """Mark the calling thread, for pools that create their threads themselves."""
    _current.is_dcron = True


def in_dcron_thread() -> bool:
    return getattr(_current, "is_dcron", False)


def in_greenlet() -> bool:
    """Return whether other greenlets share the calling thread, as in gevent and eventlet pools.

    An event loop that runs in such a greenlet also counts as running in all other greenlets of the
    thread. Django then refuses their queries.
    """
    greenlet = sys.modules.get("greenlet")
    return greenlet is not None and greenlet.getcurrent().parent is not None
