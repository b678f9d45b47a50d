"""The endpoints of calendars. Each change of a calendar requires its current version."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Q
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest import concurrency
from django_dcron.contrib.rest.calendars.serializers import (
    WRITABLE,
    CalendarContentSerializer,
    CalendarPageSerializer,
    CalendarSerializer,
    ListedCalendarSerializer,
)
from django_dcron.contrib.rest.concurrency import (
    ETAG,
    IF_MATCH,
    check_match,
    conflict_is_mismatch,
    etag,
)
from django_dcron.contrib.rest.pagination import Order, PageQuery, next_url, page_of, read_cursor
from django_dcron.contrib.rest.permissions import may
from django_dcron.contrib.rest.problems import ActionRefused
from django_dcron.contrib.rest.schema import LOCATION, operation
from django_dcron.contrib.rest.scope import must_stay_visible
from django_dcron.contrib.rest.viewsets import BaseViewSet, row_or_404, row_url
from django_dcron.exceptions import NotPossible
from django_dcron.models import Calendar, Job
from django_dcron.utils.json_values import check_storable

ORDERS = {
    order.name: order
    for order in (Order("name", ("name",)), Order("-name", ("name",), descending=True))
}


class CalendarQuery(PageQuery):
    search = serializers.CharField(
        required=False, max_length=120, help_text="Text that the name contains, such as `import`."
    )
    ordering = serializers.ChoiceField(list(ORDERS), default="name")


class CalendarViewSet(BaseViewSet):
    lookup_url_kwarg = "calendar_name"

    @operation(
        "list_calendars",
        "List calendars, with the number of jobs that use each",
        {200: CalendarPageSerializer()},
        permissions=("view_calendar",),
        query=CalendarQuery,
    )
    def list(self, request: Request) -> Response:
        query = self.validate(CalendarQuery, request.query_params)
        order = ORDERS[query["ordering"]]
        seen = Q(jobs__in=self.scope.keys(Job)) if self.scope.narrows(Job) else None
        calendars = self.scope.rows(Calendar).annotate(number_of_jobs=Count("jobs", filter=seen))
        if "search" in query:
            calendars = calendars.filter(name__icontains=query["search"])
        after = read_cursor(query["cursor"], order, Calendar) if "cursor" in query else None
        page = page_of(calendars, order, limit=query["limit"], after=after)
        results = ListedCalendarSerializer(page.rows, many=True).data
        return Response({"next": next_url(request, page, order), "results": results})

    @operation(
        "create_calendar",
        "Create a calendar",
        {201: CalendarSerializer()},
        permissions=("add_calendar",),
        body=CalendarSerializer(),
        headers=(ETAG, LOCATION),
    )
    def create(self, request: Request) -> Response:
        calendar = Calendar(**self.validate(CalendarSerializer, request.data))
        with must_stay_visible(calendar, self.scope):
            control.save_calendar(calendar)
        headers = {"ETag": etag(calendar), "Location": row_url(request, "calendar", calendar.pk)}
        data: Any = CalendarSerializer(calendar).data
        return Response(data, status=201, headers=headers)

    @operation(
        "read_calendar",
        "A calendar",
        {200: CalendarSerializer()},
        permissions=("view_calendar",),
        headers=(ETAG,),
    )
    def retrieve(self, request: Request, calendar_name: str) -> Response:
        return _response(self._calendar(calendar_name))

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
        calendar = self._calendar(calendar_name)
        check_match(request, calendar)
        try:
            with conflict_is_mismatch():
                control.delete_calendar(calendar, expected_version=calendar.version)
        except NotPossible:
            if may(request.user, "view_job") and not self.scope.narrows(Job):
                raise
            message = _("%(calendar)s can't be deleted, because a job uses it.")
            raise ActionRefused(message % {"calendar": calendar_name}) from None
        return Response(status=204)

    def _calendar(self, name: str) -> Calendar:
        try:
            check_storable(name)
        except ValueError:
            raise NotFound from None
        return row_or_404(self.scope.rows(Calendar), name)

    def _save(self, request: Request, name: str, *, partial: bool) -> Response:
        calendar = self._calendar(name)
        check_match(request, calendar)
        blank = Calendar()
        serializer = CalendarContentSerializer(calendar, data=request.data, partial=partial)
        serializer.is_valid(raise_exception=True)
        omitted = {} if partial else {field: getattr(blank, field) for field in WRITABLE}
        for field, value in (omitted | serializer.validated_data).items():
            setattr(calendar, field, value)
        with conflict_is_mismatch(), must_stay_visible(calendar, self.scope):
            control.save_calendar(calendar, expected_version=calendar.version)
        return _response(calendar)


def _response(calendar: Calendar) -> Response:
    return Response(CalendarSerializer(calendar).data, headers={"ETag": etag(calendar)})
