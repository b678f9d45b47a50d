"""Actions on a job: pause, resume, run now."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.concurrency import ETAG
from django_dcron.contrib.rest.history import entry_of
from django_dcron.contrib.rest.jobs.editing import answer, the_job
from django_dcron.contrib.rest.jobs.representation import JobSerializer
from django_dcron.contrib.rest.permissions import require_other_arguments
from django_dcron.contrib.rest.problems import KeyReused
from django_dcron.contrib.rest.schema import LOCATION, Operation
from django_dcron.contrib.rest.serializing import AnySerializer, Strict
from django_dcron.contrib.rest.view import View, address_of, row_or_404
from django_dcron.control import LONGEST_KEY
from django_dcron.db.contention import despite_contention
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.scope import EVERYTHING
from django_dcron.jobs import audit_messages
from django_dcron.jobs.audit_log import note_action
from django_dcron.jobs.audit_reason import LONGEST_REASON, signed_reason
from django_dcron.jobs.differences import values_of
from django_dcron.models import Job, Run
from django_dcron.utils.json_values import same_json

KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[!-~]+$"},
    OpenApiParameter.HEADER,
    description="A key chosen by the caller. Repeating a request with the same key and "
    "arguments creates no second run, and returns the first one with status "
    "200.",
)


class PauseSerializer(Strict):
    reason = fields.Text(
        required=False,
        allow_blank=True,
        default="",
        max_length=LONGEST_REASON,
        help_text="Why. The user's name is added.",
    )
    until = fields.Instant(
        required=False,
        allow_null=True,
        default=None,
        help_text="When the job resumes automatically, such as 2026-12-01T09:00:00Z. Null: "
        "only when someone resumes it.",
    )


class Pause(View):
    operations = {
        "POST": Operation(
            "pause_job",
            "Pause a job; runs in progress continue",
            {200: JobSerializer()},
            needs=("view_job", "pause_job"),
            body=PauseSerializer(),
            headers=(ETAG,),
            refusals={409: "The job has been deleted."},
        )
    }

    def post(self, request: Request, job_id: str) -> Response:
        job, asked = the_job(job_id, self.scope), self.validated(PauseSerializer, request.data)
        before = values_of(job)
        control.pause(
            job, signed_reason(asked["reason"], request.user.get_username()), asked["until"]
        )
        with entry_of(job):
            note_action(request.user, job, before, audit_messages.paused(job))
        return answer(job)


class Nothing(Strict):
    """An empty object."""


class Resume(View):
    operations = {
        "POST": Operation(
            "resume_job",
            "Resume a job; occurrences before now are not run",
            {200: JobSerializer()},
            needs=("view_job", "pause_job"),
            body=Nothing(),
            headers=(ETAG,),
            refusals={
                409: "The job's schedule has no further occurrence or is invalid, or the "
                "job has been deleted."
            },
        )
    }

    def post(self, request: Request, job_id: str) -> Response:
        self.validated(Nothing, request.data)
        job = the_job(job_id, self.scope)
        before = values_of(job)
        control.resume(job)
        with entry_of(job):
            note_action(request.user, job, before, audit_messages.resumed())
        return answer(job)


OTHER_ARGUMENTS = (
    "Arguments that differ from the job's require the permission run_job_with_arguments."
)


class TriggerSerializer(Strict):
    args = fields.JsonList(
        required=False, help_text=f"Replaces the job's arguments. {OTHER_ARGUMENTS}"
    )
    kwargs = fields.JsonObject(
        required=False, help_text=f"Replaces the job's arguments. {OTHER_ARGUMENTS}"
    )


class ReceiptSerializer(AnySerializer):
    """The new run. Its state is at `url`, for users who may see runs."""

    id = serializers.UUIDField(read_only=True)
    job = serializers.IntegerField(source="job_id", read_only=True)
    scheduled_at = fields.Instant(read_only=True)
    url = serializers.CharField(read_only=True)


class Trigger(View):
    operations = {
        "POST": Operation(
            "trigger_job",
            "Run a job now, even if it is paused",
            {201: ReceiptSerializer(), 200: ReceiptSerializer()},
            needs=("view_job", "trigger_job"),
            body=TriggerSerializer(),
            headers=(KEY, LOCATION),
            refusals={
                409: "The job's target is not registered, or the job has been deleted.",
                422: "The key was used with other arguments.",
            },
        )
    }

    def post(self, request: Request, job_id: str) -> Response:
        job, key = the_job(job_id, self.scope), _key(request)
        asked = self.validated(TriggerSerializer, request.data)
        args, kwargs = asked.get("args"), asked.get("kwargs")
        if Run(job=job, args=args, kwargs=kwargs).has_other_arguments:
            require_other_arguments(request)
        if key is None:
            run, is_new = control.trigger(job, args=args, kwargs=kwargs), True
        else:
            using = alias_for(Run)
            run, is_new = despite_contention(lambda: _once(job, args, kwargs, key, using), using)
        if is_new:
            with entry_of(run):
                note_action(request.user, run, {}, audit_messages.triggered(run))
        url = address_of(request, "run", run.pk)
        receipt = ReceiptSerializer(
            {"id": run.pk, "job_id": run.job_id, "scheduled_at": run.scheduled_at, "url": url}
        ).data
        return (
            Response(receipt, status=201, headers={"Location": url})
            if is_new
            else Response(receipt)
        )


def _key(request: Request) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not 0 < len(key) <= LONGEST_KEY or not all("!" <= character <= "~" for character in key):
        message = _(
            "%(key)r is not a valid key (allowed: 1 to %(most)d visible ASCII "
            "characters without spaces)."
        )
        raise ValidationError({"Idempotency-Key": [message % {"key": key, "most": LONGEST_KEY}]})
    return key


def _once(
    job: Job, args: list[Any] | None, kwargs: dict[str, Any] | None, key: str, using: str
) -> tuple[Run, bool]:
    """Return the run with this key, and whether it is new.

    A lock serializes concurrent requests.
    """
    with transaction.atomic(using=using):
        row_or_404(EVERYTHING.jobs.select_for_update(), job.pk)
        made = EVERYTHING.runs.filter(job=job.pk, idempotency_key=key).first()
        run = made or control.trigger(job, args=args, kwargs=kwargs, idempotency_key=key)
    if not (same_json(run.args, args) and same_json(run.kwargs, kwargs)):
        message = _(
            "The key %(key)s was used for run %(run)s with other arguments. Nothing was "
            "done. Use a new key."
        )
        raise KeyReused(message % {"key": key, "run": run.pk})
    return run, made is None
