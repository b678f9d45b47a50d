"""The name of the queue that a job's runs are published to."""

from __future__ import annotations

from contextlib import suppress

from django_dcron.conf import settings
from django_dcron.dispatch import shared_dispatcher


def queue_name(target: str, queue: str) -> str:
    """Return the job's queue, or else the queue of its target.

    Empty if the dispatcher has no queues, or if this process can't determine the queue.
    """
    if queue or settings.DISPATCHER not in ("celery", "tasks"):
        return queue
    # The project's router may fail or a setting may be wrong.
    with suppress(Exception):
        find = getattr(shared_dispatcher(), "queue_of", None)
        return str(find(target)) if find else ""
    return ""
