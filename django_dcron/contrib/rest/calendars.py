"""Calendars: list, read, create, change and delete them."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Q
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
from django_dcron.models import Calendar, Job


class CalendarSerializer(DocumentSerializer):
    """Dates and times at which the jobs that use it have no occurrences."""

    class Meta:
        model = Calendar
        fields: tuple[str, ...] = ("name", "version", *writable_fields(Calendar))
        read_only_fields: tuple[str, ...] = ("version",)


class CalendarContentSerializer(ContentSerializer):
    """The content of a calendar."""

    class Meta(CalendarSerializer.Meta):
        read_only_fields = ("name", "version")


class ListedCalendarSerializer(CalendarSerializer):
    number_of_jobs = serializers.IntegerField(
        read_only=True, help_text="The number of jobs that use the calendar."
    )

    class Meta(CalendarSerializer.Meta):
        fields = (*CalendarSerializer.Meta.fields, "number_of_jobs")

    def to_representation(self, instance: Any) -> dict[str, Any]:
        number = {"number_of_jobs": instance.number_of_jobs}
        return super().to_representation(instance) | number


class CalendarPageSerializer(AnySerializer):
    next = NextPage()
    results = ListedCalendarSerializer(many=True, read_only=True)


class CalendarViewSet(NamedRowViewSet[Calendar]):
    lookup_url_kwarg = "calendar_name"
    model = Calendar
    url_name = "calendar"
    serializer_class = CalendarSerializer
    content_serializer_class = CalendarContentSerializer
    listed_serializer_class = ListedCalendarSerializer
    save_row = staticmethod(control.save_calendar)
    delete_row = staticmethod(control.delete_calendar)

    in_use_text = _("%(name)s can't be deleted, because a job uses it.")

    @operation(
        "list_calendars",
        "List calendars, with the number of jobs that use each",
        {200: CalendarPageSerializer()},
        permissions=("view_calendar",),
        query=NamedRowQuery,
    )
    def list(self, request: Request) -> Response:
        seen = Q(jobs__in=self.scope.keys(Job)) if self.scope.narrows(Job) else None
        calendars = self.scope.rows(Calendar).annotate(number_of_jobs=Count("jobs", filter=seen))
        return self._list(request, calendars)

    @operation(
        "create_calendar",
        "Create a calendar",
        {201: CalendarSerializer()},
        permissions=("add_calendar",),
        body=CalendarSerializer(),
        headers=(ETAG, LOCATION),
    )
    def create(self, request: Request) -> Response:
        return self._create(request)

    @operation(
        "read_calendar",
        "Get a calendar",
        {200: CalendarSerializer()},
        permissions=("view_calendar",),
        headers=(ETAG,),
    )
    def retrieve(self, request: Request, calendar_name: str) -> Response:
        return self._retrieve(calendar_name)

    @operation(
        "replace_calendar",
        "Replace a calendar; its jobs follow it immediately",
        {200: CalendarSerializer()},
        permissions=("change_calendar",),
        body=CalendarContentSerializer(),
        headers=(ETAG, IF_MATCH),
        error_responses=concurrency.ERROR_RESPONSES,
    )
    def update(self, request: Request, calendar_name: str) -> Response:
        return self._save(request, calendar_name, partial=False)

    @operation(
        "change_calendar",
        "Update fields of a calendar; its jobs follow it immediately",
        {200: CalendarSerializer()},
        permissions=("change_calendar",),
        body=CalendarContentSerializer(partial=True),
        headers=(ETAG, IF_MATCH),
        error_responses=concurrency.ERROR_RESPONSES,
    )
    def partial_update(self, request: Request, calendar_name: str) -> Response:
        return self._save(request, calendar_name, partial=True)

    @operation(
        "delete_calendar",
        "Delete a calendar that no job uses",
        {204: None},
        permissions=("delete_calendar",),
        headers=(IF_MATCH,),
        error_responses=concurrency.ERROR_RESPONSES | {409: "A job uses the calendar."},
    )
    def destroy(self, request: Request, calendar_name: str) -> Response:
        return self._destroy(request, calendar_name)
