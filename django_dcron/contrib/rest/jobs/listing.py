"""The list of jobs, and the creation of a job."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron.contrib.rest.concurrency import ETAG, etag
from django_dcron.contrib.rest.history import entry_of
from django_dcron.contrib.rest.jobs.editing import save
from django_dcron.contrib.rest.jobs.representation import (
    JobPageSerializer,
    JobSerializer,
    ListedJobSerializer,
)
from django_dcron.contrib.rest.pagination import Order, PageQuery, next_url, page_of, read_cursor
from django_dcron.contrib.rest.schema import LOCATION, Operation
from django_dcron.contrib.rest.view import View, address_of
from django_dcron.diagnosis.tags import with_tag
from django_dcron.jobs.audit_log import note_addition
from django_dcron.jobs.representation import CONFIDENTIAL
from django_dcron.models import Job

ORDERS = {
    order.name: order
    for order in (
        Order("name", ("namespace", "name")),
        Order("-name", ("namespace", "name"), descending=True),
        Order("id", ("id",)),
        Order("-id", ("id",), descending=True),
    )
}
STATE_FILTERS = {
    "enabled": Q(enabled=True) & (Q(cursor=None) | Q(cursor__problem="")),
    "paused": Q(enabled=False),
    "quarantined": Q(enabled=True, cursor__problem__gt=""),
}


class JobQuery(PageQuery):
    namespace = serializers.CharField(required=False, max_length=64)
    tag = serializers.CharField(required=False, max_length=255)
    calendar = serializers.CharField(
        required=False, max_length=120, help_text="The name of the job's calendar."
    )
    state = serializers.ChoiceField(
        list(STATE_FILTERS),
        required=False,
        help_text="`quarantined`: not scheduled, because the definition is invalid.",
    )
    search = serializers.CharField(
        required=False, max_length=120, help_text="Text that the name contains, such as `import`."
    )
    ordering = serializers.ChoiceField(
        list(ORDERS), default="name", help_text="`name` orders by namespace and name."
    )


class Jobs(View):
    operations = {
        "GET": Operation(
            "list_jobs",
            "List jobs, with the status of each",
            {200: JobPageSerializer()},
            needs=("view_job",),
            query=JobQuery,
        ),
        "POST": Operation(
            "create_job",
            "Create a job",
            {201: JobSerializer()},
            needs=("add_job",),
            body=JobSerializer(),
            headers=(ETAG, LOCATION),
        ),
    }

    def get(self, request: Request) -> Response:
        asked = self.query(request)
        order = ORDERS[asked["ordering"]]
        after = read_cursor(asked["cursor"], order, Job) if "cursor" in asked else None
        page = page_of(
            _filter_jobs(self.scope.jobs, asked), order, limit=asked["limit"], after=after
        )
        results = ListedJobSerializer(page.rows, many=True).data
        return Response({"next": next_url(request, page, order), "results": results})

    def post(self, request: Request) -> Response:
        job = Job(**self.validated(JobSerializer, request.data))
        save(job, self.scope)
        with entry_of(job):
            note_addition(request.user, job)
        headers = {"ETag": etag(job), "Location": address_of(request, "job", job.pk)}
        return Response(JobSerializer(job).data, status=201, headers=headers)


def _filter_jobs(visible: QuerySet[Job], asked: dict[str, Any]) -> QuerySet[Job]:
    """Apply the filters. They need no index, because there are thousands of jobs, not millions."""
    jobs = visible.select_related("cursor", "statistics", "calendar").defer(*CONFIDENTIAL)
    if "namespace" in asked:
        jobs = jobs.filter(namespace=asked["namespace"])
    if "calendar" in asked:
        jobs = jobs.filter(calendar=asked["calendar"])
    if "search" in asked:
        jobs = jobs.filter(name__icontains=asked["search"])
    if "state" in asked:
        jobs = jobs.filter(STATE_FILTERS[asked["state"]])
    return with_tag(jobs, asked["tag"]) if "tag" in asked else jobs
