"""Query parameters and filters of the list of jobs."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.pagination import PageOrder, PageQuery
from django_dcron.diagnosis.job_filters.job_filter import JobCondition, query_of
from django_dcron.diagnosis.job_filters.queues import jobs_in_queues
from django_dcron.diagnosis.job_filters.tags import jobs_with_tag
from django_dcron.diagnosis.scope import Scope
from django_dcron.jobs.representation import CONFIDENTIAL
from django_dcron.models.job import JobQuerySet

ORDERS = {
    order.name: order
    for order in (
        PageOrder("name", ("namespace", "name")),
        PageOrder("-name", ("namespace", "name"), descending=True),
        PageOrder("id", ("id",)),
        PageOrder("-id", ("id",), descending=True),
    )
}
QUEUE_HELP = (
    "Only jobs whose runs are published to this queue. A job without a queue uses the queue of its "
    "target."
)


class JobQuery(PageQuery):
    namespace = serializers.CharField(required=False, max_length=64)
    name = serializers.CharField(
        required=False,
        max_length=120,
        help_text="The exact name. Jobs of several namespaces may have it.",
    )
    tag = serializers.CharField(required=False, max_length=255)
    calendar = serializers.CharField(
        required=False, max_length=120, help_text="The name of the job's calendar."
    )
    queue = serializers.CharField(required=False, max_length=120, help_text=QUEUE_HELP)
    state = fields.StrictChoiceField(
        [condition.value for condition in JobCondition],
        required=False,
        help_text="`quarantined`: not scheduled because of a problem, such as an invalid schedule. "
        "`failing`: enabled, and has failed since its last success.",
    )
    search = serializers.CharField(
        required=False, max_length=120, help_text="Text that the name contains, such as `import`."
    )
    ordering = fields.StrictChoiceField(
        list(ORDERS), default="name", help_text="`name` orders by namespace and name."
    )


def filter_jobs(scope: Scope, query: dict[str, Any]) -> JobQuerySet:
    """Apply the filters. They need no index, because there are thousands of jobs, not millions."""
    jobs: JobQuerySet = scope.jobs.select_related("cursor", "statistics", "calendar").defer(
        *CONFIDENTIAL
    )
    if "namespace" in query:
        jobs = jobs.filter(namespace=query["namespace"])
    if "name" in query:
        jobs = jobs.filter(name=query["name"])
    if "calendar" in query:
        jobs = jobs.filter(calendar=query["calendar"])
    if "search" in query:
        jobs = jobs.filter(name__icontains=query["search"])
    if "state" in query:
        jobs = jobs.filter(query_of(JobCondition(query["state"]), scope))
    if "tag" in query:
        jobs = jobs_with_tag(jobs, query["tag"])  # type: ignore[assignment]  # it keeps the class
    return jobs_in_queues(jobs, [query["queue"]]) if "queue" in query else jobs
