"""Find jobs by the queues that their runs are published to.

A job without a queue follows the route of its target, which only this process's Celery app or task
backend knows. So one query reads the distinct targets of such jobs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from django.db.models import Q, QuerySet

from django_dcron.dispatch.queues import queue_name
from django_dcron.models import Job

Jobs = TypeVar("Jobs", bound=QuerySet[Job])

JOBS_READ_LIMIT = 5_000
"""The maximum number of jobs to read for the choices of a filter."""


def jobs_in_queues(jobs: Jobs, queues: Collection[str]) -> Jobs:
    """Return the jobs that name a queue, and those without a queue whose target leads to one."""
    return jobs.filter(condition_of_queues(jobs, queues))


def condition_of_queues(jobs: QuerySet[Job], queues: Collection[str]) -> Q:
    """Return the condition that selects the jobs of the queues. Reads the targets of ``jobs``."""
    targets = jobs.filter(queue="").order_by().values_list("target", flat=True).distinct()
    routed = [target for target in targets if queue_name(target, "") in queues]
    return Q(queue__in=queues) | Q(queue="", target__in=routed)


def queues_in_use(jobs: QuerySet[Job]) -> set[str]:
    """Return the queues to which the runs of the latest ``JOBS_READ_LIMIT`` jobs are published."""
    pairs = jobs.order_by("-pk").values_list("target", "queue")[:JOBS_READ_LIMIT]
    return {queue_name(*pair) for pair in set(pairs)} - {""}
