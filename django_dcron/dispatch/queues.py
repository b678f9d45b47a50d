"""The name of the queue that a job's runs go to."""

from __future__ import annotations

from contextlib import suppress

from django_dcron.conf import settings
from django_dcron.dispatch import shared_dispatcher


def queue_name(target: str, queue: str) -> str:
    """The job's own queue; else the queue of its target. Empty if this process cannot tell."""
    if queue or settings.DISPATCHER not in ("celery", "tasks"):
        return queue
    with suppress(
        Exception
    ):  # the project's own router, or a setting that is wrong: the sentence does without the name
        find = getattr(shared_dispatcher(), "queue_of", None)
        return str(find(target)) if find else ""
    return ""
