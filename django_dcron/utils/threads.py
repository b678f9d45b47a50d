"""Distinguish django-dcron's threads from the project's, in processes that have both."""

from __future__ import annotations

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
