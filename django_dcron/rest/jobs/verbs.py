"""What an operator does to a job besides editing: pause, resume, run it now."""

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
from django_dcron.control import LONGEST_KEY
from django_dcron.domain.json_values import same_json
from django_dcron.models import Job, Run
from django_dcron.models.database import alias_for, despite_contention
from django_dcron.observability import deeds
from django_dcron.observability.differences import values_of
from django_dcron.observability.noting import note_deed
from django_dcron.observability.scope import EVERYTHING
from django_dcron.rest import fields
from django_dcron.rest.authorship import LONGEST_REASON, signed
from django_dcron.rest.concurrency import ETAG
from django_dcron.rest.history import entry_of
from django_dcron.rest.jobs.editing import answer, the_job
from django_dcron.rest.jobs.representation import JobSerializer
from django_dcron.rest.permissions import require_other_arguments
from django_dcron.rest.problems import KeyReused
from django_dcron.rest.schema import LOCATION, Operation
from django_dcron.rest.serializing import AnySerializer, Strict
from django_dcron.rest.view import View, address_of, row_or_404

KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[!-~]+$"},
    OpenApiParameter.HEADER,
    description="Of the caller's choosing. Sent again with the same arguments it makes no second run: 200 with the first.",
)


class PauseSerializer(Strict):
    reason = fields.Text(
        required=False,
        allow_blank=True,
        default="",
        max_length=LONGEST_REASON,
        help_text="Who asks is noted beside it.",
    )
    until = fields.Instant(
        required=False,
        allow_null=True,
        default=None,
        help_text="It resumes by itself then. Null: by hand only.",
    )


class Pause(View):
    operations = {
        "POST": Operation(
            "pause_job",
            "Pause a job: it has no new runs, what runs goes on",
            {200: JobSerializer()},
            needs=("view_job", "pause_job"),
            body=PauseSerializer(),
            headers=(ETAG,),
            refusals={409: "The job was deleted meanwhile."},
        )
    }

    def post(self, request: Request, job_id: str) -> Response:
        job, asked = the_job(job_id, self.scope), self.asked(PauseSerializer, request.data)
        before = values_of(job)
        control.pause(job, signed(asked["reason"], request.user), asked["until"])
        with entry_of(job):
            note_deed(request.user, job, before, deeds.paused(job))
        return answer(job)


class Nothing(Strict):
    """Nothing is asked for."""


class Resume(View):
    operations = {
        "POST": Operation(
            "resume_job",
            "Resume a job, from now on",
            {200: JobSerializer()},
            needs=("view_job", "pause_job"),
            body=Nothing(),
            headers=(ETAG,),
            refusals={409: "It has no further occurrence, cannot be read, or was deleted meanwhile."},
        )
    }

    def post(self, request: Request, job_id: str) -> Response:
        self.asked(Nothing, request.data)
        job = the_job(job_id, self.scope)
        before = values_of(job)
        control.resume(job)
        with entry_of(job):
            note_deed(request.user, job, before, deeds.resumed())
        return answer(job)


OTHER_ARGUMENTS = "If they differ, the permission run_job_with_arguments is needed, too."


class TriggerSerializer(Strict):
    args = fields.JsonList(required=False, help_text=f"Instead of the job's own. {OTHER_ARGUMENTS}")
    kwargs = fields.JsonObject(required=False, help_text=f"Instead of the job's own. {OTHER_ARGUMENTS}")


class ReceiptSerializer(AnySerializer):
    """The run that was made. What becomes of it is at `url`, for who may see runs."""

    id = serializers.UUIDField(read_only=True)
    job = serializers.IntegerField(source="job_id", read_only=True)
    scheduled_at = fields.Instant(read_only=True)
    url = serializers.CharField(read_only=True)


class Trigger(View):
    operations = {
        "POST": Operation(
            "trigger_job",
            "Run a job now, paused or not",
            {201: ReceiptSerializer(), 200: ReceiptSerializer()},
            needs=("view_job", "trigger_job"),
            body=TriggerSerializer(),
            headers=(KEY, LOCATION),
            refusals={
                409: "Its target is not registered, or it was deleted meanwhile.",
                422: "The key has been used with other arguments.",
            },
        )
    }

    def post(self, request: Request, job_id: str) -> Response:
        job, key = the_job(job_id, self.scope), _key(request)
        asked = self.asked(TriggerSerializer, request.data)
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
                note_deed(request.user, run, {}, deeds.triggered(run))
        url = address_of(request, "run", run.pk)
        receipt = ReceiptSerializer(
            {"id": run.pk, "job_id": run.job_id, "scheduled_at": run.scheduled_at, "url": url}
        ).data
        return Response(receipt, status=201, headers={"Location": url}) if is_new else Response(receipt)


def _key(request: Request) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not 0 < len(key) <= LONGEST_KEY or not all("!" <= character <= "~" for character in key):
        told = _("%(key)r is no key (allowed: 1 to %(most)d visible ASCII characters, no spaces).")
        raise ValidationError({"Idempotency-Key": [told % {"key": key, "most": LONGEST_KEY}]})
    return key


def _once(
    job: Job, args: list[Any] | None, kwargs: dict[str, Any] | None, key: str, using: str
) -> tuple[Run, bool]:
    """The run of this key, and whether it was made now. Two that come at once are told apart by the lock."""
    with transaction.atomic(using=using):
        row_or_404(EVERYTHING.jobs.select_for_update(), job.pk)
        made = EVERYTHING.runs.filter(job=job.pk, idempotency_key=key).first()
        run = made or control.trigger(job, args=args, kwargs=kwargs, idempotency_key=key)
    if not (same_json(run.args, args) and same_json(run.kwargs, kwargs)):
        told = _("The key %(key)s was used for run %(run)s, with other arguments; nothing was done.")
        raise KeyReused(told % {"key": key, "run": run.pk})
    return run, made is None
