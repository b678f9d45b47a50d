"""The list of calendars, and the creation of a calendar."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Q
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest.calendars.representation import (
    CalendarPageSerializer,
    CalendarSerializer,
    ListedCalendarSerializer,
)
from django_dcron.contrib.rest.concurrency import ETAG, etag
from django_dcron.contrib.rest.history import entry_of
from django_dcron.contrib.rest.pagination import Order, PageQuery, next_url, page_of, read_cursor
from django_dcron.contrib.rest.schema import LOCATION, Operation
from django_dcron.contrib.rest.scope import kept_in_sight
from django_dcron.contrib.rest.view import View, address_of
from django_dcron.jobs.audit_log import note_addition
from django_dcron.models import Calendar, Job

ORDERS = {
    order.name: order
    for order in (Order("name", ("name",)), Order("-name", ("name",), descending=True))
}


class CalendarQuery(PageQuery):
    search = serializers.CharField(
        required=False, max_length=120, help_text="Text that the name contains, such as `import`."
    )
    ordering = serializers.ChoiceField(list(ORDERS), default="name")


class Calendars(View):
    operations = {
        "GET": Operation(
            "list_calendars",
            "List calendars, with the number of jobs that use each",
            {200: CalendarPageSerializer()},
            needs=("view_calendar",),
            query=CalendarQuery,
        ),
        "POST": Operation(
            "create_calendar",
            "Create a calendar",
            {201: CalendarSerializer()},
            needs=("add_calendar",),
            body=CalendarSerializer(),
            headers=(ETAG, LOCATION),
        ),
    }

    def get(self, request: Request) -> Response:
        asked = self.query(request)
        order = ORDERS[asked["ordering"]]
        seen = Q(jobs__in=self.scope.keys(Job)) if self.scope.narrows(Job) else None
        calendars = self.scope.rows(Calendar).annotate(number_of_jobs=Count("jobs", filter=seen))
        if "search" in asked:
            calendars = calendars.filter(name__icontains=asked["search"])
        after = read_cursor(asked["cursor"], order, Calendar) if "cursor" in asked else None
        page = page_of(calendars, order, limit=asked["limit"], after=after)
        results = ListedCalendarSerializer(page.rows, many=True).data
        return Response({"next": next_url(request, page, order), "results": results})

    def post(self, request: Request) -> Response:
        calendar = Calendar(**self.validated(CalendarSerializer, request.data))
        with kept_in_sight(calendar, self.scope):
            control.save_calendar(calendar)
        with entry_of(calendar):
            note_addition(request.user, calendar)
        headers = {"ETag": etag(calendar), "Location": address_of(request, "calendar", calendar.pk)}
        data: Any = CalendarSerializer(calendar).data
        return Response(data, status=201, headers=headers)
