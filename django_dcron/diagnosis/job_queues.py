"""Find jobs by the queue that their runs are published to.

A job without a queue follows the route of its target, which only this process's Celery app or task
backend knows. So one query reads the distinct targets of such jobs.
"""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Q, QuerySet

from django_dcron.dispatch.queues import queue_name
from django_dcron.models import Job

Jobs = TypeVar("Jobs", bound=QuerySet[Job])

PAIRS_READ_LIMIT = 1_000
"""The maximum number of pairs of target and queue to read for the choices of a filter."""


def jobs_in_queue(jobs: Jobs, queue: str) -> Jobs:
    """Return the jobs that name the queue, and those without a queue whose target leads there."""
    targets = jobs.filter(queue="").order_by().values_list("target", flat=True).distinct()
    routed = [target for target in targets if queue_name(target, "") == queue]
    return jobs.filter(Q(queue=queue) | Q(queue="", target__in=routed))


def queues_in_use(jobs: QuerySet[Job]) -> set[str]:
    """Return the queues to which the runs of ``jobs`` are published.

    The result may be incomplete if there are more than ``PAIRS_READ_LIMIT`` distinct pairs of
    target and queue.
    """
    pairs = jobs.order_by().values_list("target", "queue").distinct()
    return {queue_name(*pair) for pair in pairs[:PAIRS_READ_LIMIT]} - {""}
