"""The list of jobs, and the making of one."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron.models import Job
from django_dcron.observability.noting import note_addition
from django_dcron.observability.tags import tagged
from django_dcron.rest.concurrency import ETAG, etag
from django_dcron.rest.history import entry_of
from django_dcron.rest.jobs.editing import save
from django_dcron.rest.jobs.representation import (
    LONG,
    JobPageSerializer,
    JobSerializer,
    ListedJobSerializer,
    standing_of,
)
from django_dcron.rest.pagination import Order, PageQuery, next_url, page_of, read_cursor
from django_dcron.rest.schema import LOCATION, Operation
from django_dcron.rest.view import View, address_of

ORDERS = {
    order.name: order
    for order in (
        Order("name", ("namespace", "name")),
        Order("-name", ("namespace", "name"), descending=True),
        Order("id", ("id",)),
        Order("-id", ("id",), descending=True),
    )
}
STANDINGS = {
    "enabled": Q(enabled=True) & (Q(cursor=None) | Q(cursor__problem="")),
    "paused": Q(enabled=False),
    "problem": Q(cursor__problem__gt=""),
}


class JobQuery(PageQuery):
    namespace = serializers.CharField(required=False, max_length=64)
    tag = serializers.CharField(required=False, max_length=255)
    calendar = serializers.CharField(
        required=False, max_length=120, help_text="The name of the one it names."
    )
    state = serializers.ChoiceField(
        list(STANDINGS), required=False, help_text="`problem`: out of scheduling, as it cannot be read."
    )
    search = serializers.CharField(required=False, max_length=120, help_text="A part of the name.")
    ordering = serializers.ChoiceField(
        list(ORDERS), default="name", help_text="`name`: by namespace and name."
    )


class Jobs(View):
    operations = {
        "GET": Operation(
            "list_jobs",
            "Jobs, with how each stands",
            {200: JobPageSerializer()},
            needs=("view_job",),
            query=JobQuery,
        ),
        "POST": Operation(
            "create_job",
            "Make a job",
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
        page = page_of(_filtered(self.scope.jobs, asked), order, limit=asked["limit"], after=after)
        for job in page.rows:
            job.standing = standing_of(job)  # type: ignore[attr-defined]
        results = ListedJobSerializer(page.rows, many=True).data
        return Response({"next": next_url(request, page, order), "results": results})

    def post(self, request: Request) -> Response:
        job = Job(**self.asked(JobSerializer, request.data))
        save(job, self.scope)
        with entry_of(job):
            note_addition(request.user, job)
        headers = {"ETag": etag(job), "Location": address_of(request, "job", job.pk)}
        return Response(JobSerializer(job).data, status=201, headers=headers)


def _filtered(visible: QuerySet[Job], asked: dict[str, Any]) -> QuerySet[Job]:
    """There are thousands of jobs, not millions: these need no index."""
    jobs = visible.select_related("cursor", "statistics").defer(*LONG)
    if "namespace" in asked:
        jobs = jobs.filter(namespace=asked["namespace"])
    if "calendar" in asked:
        jobs = jobs.filter(calendar=asked["calendar"])
    if "search" in asked:
        jobs = jobs.filter(name__icontains=asked["search"])
    if "state" in asked:
        jobs = jobs.filter(STANDINGS[asked["state"]])
    return tagged(jobs, asked["tag"]) if "tag" in asked else jobs
