"""One calendar: read, replace, change and delete it. Each change requires the current version."""

from __future__ import annotations

from django.utils.translation import gettext as _
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest import concurrency
from django_dcron.contrib.rest.calendars.representation import (
    WRITTEN,
    CalendarContentSerializer,
    CalendarSerializer,
)
from django_dcron.contrib.rest.concurrency import (
    ETAG,
    IF_MATCH,
    check_match,
    conflict_is_mismatch,
    etag,
)
from django_dcron.contrib.rest.history import entry_of
from django_dcron.contrib.rest.permissions import may
from django_dcron.contrib.rest.problems import Refused
from django_dcron.contrib.rest.schema import Operation
from django_dcron.contrib.rest.scope import kept_in_sight
from django_dcron.contrib.rest.view import View, row_or_404
from django_dcron.diagnosis.scope import Scope
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.audit_log import note_deletion, note_edit
from django_dcron.jobs.differences import values_of
from django_dcron.models import Calendar, Job
from django_dcron.utils.json_values import check_storable


def the_calendar(name: str, scope: Scope) -> Calendar:
    try:
        check_storable(name)
    except ValueError:
        raise NotFound from None
    return row_or_404(scope.rows(Calendar), name)


def answer(calendar: Calendar) -> Response:
    return Response(CalendarSerializer(calendar).data, headers={"ETag": etag(calendar)})


class CalendarDetail(View):
    operations = {
        "GET": Operation(
            "read_calendar",
            "A calendar",
            {200: CalendarSerializer()},
            needs=("view_calendar",),
            headers=(ETAG,),
        ),
        "PUT": Operation(
            "replace_calendar",
            "Replace a calendar; its jobs follow it immediately",
            {200: CalendarSerializer()},
            needs=("change_calendar",),
            body=CalendarContentSerializer(),
            headers=(ETAG, IF_MATCH),
            refusals=concurrency.REFUSALS,
        ),
        "PATCH": Operation(
            "change_calendar",
            "Update fields of a calendar; its jobs follow it immediately",
            {200: CalendarSerializer()},
            needs=("change_calendar",),
            body=CalendarContentSerializer(partial=True),
            headers=(ETAG, IF_MATCH),
            refusals=concurrency.REFUSALS,
        ),
        "DELETE": Operation(
            "delete_calendar",
            "Delete a calendar that no job uses",
            {204: None},
            needs=("delete_calendar",),
            headers=(IF_MATCH,),
            refusals=concurrency.REFUSALS | {409: "A job uses the calendar."},
        ),
    }

    def get(self, request: Request, calendar_name: str) -> Response:
        return answer(the_calendar(calendar_name, self.scope))

    def put(self, request: Request, calendar_name: str) -> Response:
        return self._save(request, calendar_name, partial=False)

    def patch(self, request: Request, calendar_name: str) -> Response:
        return self._save(request, calendar_name, partial=True)

    def delete(self, request: Request, calendar_name: str) -> Response:
        calendar = the_calendar(calendar_name, self.scope)
        check_match(request, calendar)
        try:
            with conflict_is_mismatch():
                control.delete_calendar(calendar, expected_version=calendar.version)
        except NotPossible:
            if may(request.user, "view_job") and not self.scope.narrows(Job):
                raise
            message = _("%(calendar)s can't be deleted, because a job uses it.")
            raise Refused(message % {"calendar": calendar_name}) from None
        with entry_of(calendar):
            note_deletion(request.user, calendar, calendar_name)
        return Response(status=204)

    def _save(self, request: Request, calendar_name: str, *, partial: bool) -> Response:
        calendar = the_calendar(calendar_name, self.scope)
        check_match(request, calendar)
        before, blank = values_of(calendar), Calendar()
        sent = CalendarContentSerializer(calendar, data=request.data, partial=partial)
        sent.is_valid(raise_exception=True)
        left_out = {} if partial else {name: getattr(blank, name) for name in WRITTEN}
        for name, value in (left_out | sent.validated_data).items():
            setattr(calendar, name, value)
        with conflict_is_mismatch(), kept_in_sight(calendar, self.scope):
            control.save_calendar(calendar, expected_version=calendar.version)
        with entry_of(calendar):
            note_edit(request.user, calendar, before)
        return answer(calendar)
