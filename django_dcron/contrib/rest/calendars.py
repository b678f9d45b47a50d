"""Calendars: list, read, create, change and delete them."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings as django_settings
from django.db.models import Count, Q
from django.utils import translation
from django.utils.translation import gettext_lazy as _
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.ics import LONGEST_FILE, MAX_YEARS, YEARS_READ, read_ics, years_later
from django_dcron.contrib.rest import concurrency, fields
from django_dcron.contrib.rest.base_serializers import (
    AnySerializer,
    DocumentSerializer,
    StrictSerializer,
)
from django_dcron.contrib.rest.concurrency import ETAG, IF_MATCH
from django_dcron.contrib.rest.named_rows import (
    ContentSerializer,
    NamedRowQuery,
    NamedRowViewSet,
    writable_fields,
)
from django_dcron.contrib.rest.pagination import NextPage
from django_dcron.contrib.rest.schema import LOCATION, operation
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import InvalidCalendar, InvalidSchedule
from django_dcron.models import Calendar, Job
from django_dcron.schedules.zones import check_zone


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


class IcsSerializer(StrictSerializer):
    ics = fields.StrictCharField(
        trim_whitespace=False,
        help_text=f"The text of the file (.ics), at most {LONGEST_FILE} bytes.",
    )
    timezone = fields.StrictCharField(
        required=False,
        help_text="The time zone of the schedules that use the calendar. By default the site's.",
    )
    years = fields.StrictIntegerField(
        min_value=1, max_value=MAX_YEARS, default=YEARS_READ, help_text="How far ahead to read."
    )


class OmittedEventSerializer(AnySerializer):
    event = serializers.CharField(source="summary", read_only=True)
    reason = serializers.CharField(read_only=True)


class IcsResultSerializer(AnySerializer):
    dates = serializers.CharField(read_only=True, help_text="The entries for a calendar.")
    omitted = OmittedEventSerializer(
        many=True, read_only=True, help_text="The events that an entry can't express."
    )


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

    @action(detail=False, methods=["post"], url_path="ics/preview")  # no name contains a slash
    @operation(
        "preview_ics",
        "Convert an iCalendar file to the entries of a calendar, without saving them",
        {200: IcsResultSerializer()},
        permissions=("view_calendar",),
        body=IcsSerializer(),
    )
    def preview_ics(self, request: Request) -> Response:
        values = self.validate(IcsSerializer, request.data)
        try:
            zone = ZoneInfo(check_zone(values.get("timezone", django_settings.TIME_ZONE)))
        except InvalidSchedule as error:
            raise serializers.ValidationError({"timezone": error.translate(translation)}) from None
        first = database_now(alias_for(Calendar)).astimezone(zone).date()
        last = years_later(first, values["years"])
        try:
            read = read_ics(values["ics"].encode(), zone=zone, first=first, last=last)
        except InvalidCalendar as error:
            raise serializers.ValidationError({"ics": error.translate(translation)}) from None
        return Response(IcsResultSerializer(read).data)

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
