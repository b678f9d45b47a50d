"""Shared limits: list them with their running and waiting runs, read, create, change, delete."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_lazy as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest import concurrency
from django_dcron.contrib.rest.base_serializers import AnySerializer, DocumentSerializer
from django_dcron.contrib.rest.concurrency import ETAG, IF_MATCH
from django_dcron.contrib.rest.named_rows import (
    ContentSerializer,
    NamedRowQuery,
    NamedRowViewSet,
    writable_fields,
)
from django_dcron.contrib.rest.pagination import NextPage
from django_dcron.contrib.rest.schema import LOCATION, operation
from django_dcron.diagnosis.limit_usage import with_usage
from django_dcron.jobs.representation import to_json
from django_dcron.models import Limit


class LimitSerializer(DocumentSerializer):
    """How many runs of its jobs may execute at once, or start within an interval."""

    class Meta:
        model = Limit
        fields: tuple[str, ...] = ("name", "version", *writable_fields(Limit))
        read_only_fields: tuple[str, ...] = ("version",)


class LimitContentSerializer(ContentSerializer):
    """The content of a limit."""

    class Meta(LimitSerializer.Meta):
        read_only_fields = ("name", "version")


class ListedLimitSerializer(LimitSerializer):
    running = serializers.IntegerField(
        read_only=True, help_text="The number of runs of the limit that run or are starting."
    )
    waiting = serializers.IntegerField(
        read_only=True, help_text="The number of runs that wait for the limit."
    )
    waiting_since = serializers.DateTimeField(
        read_only=True,
        allow_null=True,
        help_text="The due time of the run that has waited longest; null if no run waits.",
    )

    class Meta(LimitSerializer.Meta):
        fields = (*LimitSerializer.Meta.fields, "running", "waiting", "waiting_since")

    def to_representation(self, instance: Any) -> dict[str, Any]:
        usage = {
            "running": instance.running,
            "waiting": instance.waiting,
            "waiting_since": to_json(instance.waiting_since),
        }
        return super().to_representation(instance) | usage


class LimitPageSerializer(AnySerializer):
    next = NextPage()
    results = ListedLimitSerializer(many=True, read_only=True)


class LimitViewSet(NamedRowViewSet[Limit]):
    lookup_url_kwarg = "limit_name"
    model = Limit
    url_name = "limit"
    serializer_class = LimitSerializer
    content_serializer_class = LimitContentSerializer
    listed_serializer_class = ListedLimitSerializer
    save_row = staticmethod(control.save_limit)
    delete_row = staticmethod(control.delete_limit)

    in_use_text = _("%(name)s can't be deleted, because a job or a run uses it.")

    @operation(
        "list_limits",
        "List limits, with the number of their running and waiting runs",
        {200: LimitPageSerializer()},
        permissions=("view_limit",),
        query=NamedRowQuery,
    )
    def list(self, request: Request) -> Response:
        return self._list(request, with_usage(self.scope.rows(Limit), self.scope))

    @operation(
        "create_limit",
        "Create a limit",
        {201: LimitSerializer()},
        permissions=("add_limit",),
        body=LimitSerializer(),
        headers=(ETAG, LOCATION),
    )
    def create(self, request: Request) -> Response:
        return self._create(request)

    @operation(
        "read_limit",
        "Get a limit",
        {200: LimitSerializer()},
        permissions=("view_limit",),
        headers=(ETAG,),
    )
    def retrieve(self, request: Request, limit_name: str) -> Response:
        return self._retrieve(limit_name)

    @operation(
        "replace_limit",
        "Replace a limit; it applies to all starts from then on",
        {200: LimitSerializer()},
        permissions=("change_limit",),
        body=LimitContentSerializer(),
        headers=(ETAG, IF_MATCH),
        error_responses=concurrency.ERROR_RESPONSES,
    )
    def update(self, request: Request, limit_name: str) -> Response:
        return self._save(request, limit_name, partial=False)

    @operation(
        "change_limit",
        "Update fields of a limit; it applies to all starts from then on",
        {200: LimitSerializer()},
        permissions=("change_limit",),
        body=LimitContentSerializer(partial=True),
        headers=(ETAG, IF_MATCH),
        error_responses=concurrency.ERROR_RESPONSES,
    )
    def partial_update(self, request: Request, limit_name: str) -> Response:
        return self._save(request, limit_name, partial=True)

    @operation(
        "delete_limit",
        "Delete a limit that no job or run uses",
        {204: None},
        permissions=("delete_limit",),
        headers=(IF_MATCH,),
        error_responses=concurrency.ERROR_RESPONSES | {409: "A job or a run uses the limit."},
    )
    def destroy(self, request: Request, limit_name: str) -> Response:
        return self._destroy(request, limit_name)
