"""A run: read, with what its attempts wrote; cancelled; run again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.models import Run
from django_dcron.observability import deeds
from django_dcron.observability.chains import followed_id, followed_run
from django_dcron.observability.noting import note_deed
from django_dcron.observability.scope import Scope
from django_dcron.rest import fields
from django_dcron.rest.authorship import LONGEST_REASON, signed
from django_dcron.rest.history import entry_of
from django_dcron.rest.jobs.verbs import Nothing
from django_dcron.rest.permissions import may, require_other_arguments
from django_dcron.rest.runs.representation import (
    RunDetailSerializer,
    RunSerializer,
    attempts_of,
)
from django_dcron.rest.schema import LOCATION, Operation
from django_dcron.rest.serializing import Strict
from django_dcron.rest.view import View, address_of, row_or_404

TEXTS = ("log", "message", "traceback", "result")


def the_run(run_id: str, scope: Scope) -> Run:
    try:
        key = UUID(run_id)
    except ValueError:
        raise NotFound from None
    return row_or_404(scope.runs.select_related("job"), key)


class RunDetail(View):
    operations = {
        "GET": Operation(
            "read_run",
            "A run, with its attempts for who may see them",
            {200: RunDetailSerializer()},
            needs=("view_run",),
        )
    }

    def get(self, request: Request, run_id: str) -> Response:
        run: Any = the_run(run_id, self.scope)
        run.shown_attempts = attempts_of(run, self.scope) if may(request.user, "view_attempt") else None
        run.follows_id = followed_id(run)
        if run.follows_id and self.scope.narrows(Run) and followed_run(run, self.scope) is None:
            run.follows_id = run.idempotency_key = None  # both name a run that is hidden, or deleted
        return Response(RunDetailSerializer(run).data)


class LogQuery(Strict):
    attempt = serializers.IntegerField(
        required=False, min_value=1, max_value=32_767, help_text="Its number. By default the latest."
    )
    text = serializers.ChoiceField(TEXTS, default="log", help_text="Which of what the attempt left.")


class Log(View):
    operations = {
        "GET": Operation(
            "read_log",
            "What an attempt wrote, whole, as plain text",
            {(200, "text/plain"): OpenApiResponse(OpenApiTypes.STR)},
            needs=("view_run", "view_attempt"),
            query=LogQuery,
        )
    }

    def get(self, request: Request, run_id: str) -> HttpResponse:
        run, asked = the_run(run_id, self.scope), self.query(request)
        attempts = self.scope.attempts.filter(run=run.pk).order_by("-number")
        if "attempt" in asked:
            attempts = attempts.filter(number=asked["attempt"])
        text: str | None = attempts.values_list(asked["text"], flat=True).first()
        if text is None:
            raise NotFound(_("The run has no such attempt."))
        # Whatever the job wrote, a browser must not take it for a page.
        headers = {"X-Content-Type-Options": "nosniff"}
        return HttpResponse(text, content_type="text/plain; charset=utf-8", headers=headers)


class CancelSerializer(Strict):
    reason = fields.Text(
        required=False,
        allow_blank=True,
        default="",
        max_length=LONGEST_REASON,
        help_text="Who asks is noted beside it.",
    )


class Cancel(View):
    operations = {
        "POST": Operation(
            "cancel_run",
            "End a run that has not started; ask a running one to stop",
            {200: RunSerializer()},
            needs=("view_run", "cancel_run"),
            body=CancelSerializer(),
            refusals={409: "The run has ended already."},
        )
    }

    def post(self, request: Request, run_id: str) -> Response:
        run, asked = the_run(run_id, self.scope), self.asked(CancelSerializer, request.data)
        control.cancel(run, signed(asked["reason"], request.user))
        with entry_of(run):
            note_deed(request.user, run, {}, deeds.cancelled(run))
        return Response(RunSerializer(run).data)


class Rerun(View):
    operations = {
        "POST": Operation(
            "rerun_run",
            "Run a finished run once more, as a run of its own",
            {201: RunSerializer()},
            needs=("view_run", "rerun_run"),
            body=Nothing(),
            headers=(LOCATION,),
            refusals={
                403: "Who asks may not do this; or the run had other arguments than its job, which takes the "
                "permission run_job_with_arguments, too.",
                409: "The run has not ended yet, or its job was deleted meanwhile.",
            },
        )
    }

    def post(self, request: Request, run_id: str) -> Response:
        self.asked(Nothing, request.data)
        run = the_run(run_id, self.scope)
        if run.has_other_arguments:
            require_other_arguments(request)
        made = control.rerun(run)
        with entry_of(run):
            note_deed(request.user, run, {}, deeds.rerun(made))
        told: dict[str, Any] = RunSerializer(made).data
        return Response(told, status=201, headers={"Location": address_of(request, "run", made.pk)})
