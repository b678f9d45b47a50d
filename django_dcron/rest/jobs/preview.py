"""What a schedule means, stored or only thought of: in words, its next occurrences, and what to be cautious about."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron.models import Job
from django_dcron.observability.lookahead import OCCURRENCES, Lookahead, look_ahead
from django_dcron.rest import fields
from django_dcron.rest.jobs.editing import the_job
from django_dcron.rest.schema import Operation
from django_dcron.rest.serializing import AnySerializer, OfModel, Strict
from django_dcron.rest.view import View

MOST = 100
READ = (
    "namespace",
    "name",
    "schedule",
    "timezone",
    "calendar",
    "calendar_policy",
    "starts_at",
    "ends_at",
    "jitter",
)
UNREADABLE = {409: "The job's schedule cannot be read; the problem says why."}


class PreviewQuery(Strict):
    count = serializers.IntegerField(
        min_value=1, max_value=MOST, default=OCCURRENCES, help_text="How many occurrences."
    )


class DefinitionSerializer(OfModel):
    """Of a job that need not exist. Its name, and so its `H`, may be left out."""

    count = fields.WholeNumber(min_value=1, max_value=MOST, default=OCCURRENCES)

    class Meta:
        model = Job
        fields = (*READ, "count")
        extra_kwargs: ClassVar = {"name": {"required": False, "allow_blank": True}}

    def get_fields(self) -> Any:
        found = super().get_fields()
        del found["count"].run_validators  # it is no field of the model
        return found


class OccurrenceSerializer(AnySerializer):
    at = fields.Instant(read_only=True)
    local = fields.LocalInstant(read_only=True)


class CautionSerializer(AnySerializer):
    code = serializers.CharField(read_only=True)
    message = serializers.CharField(read_only=True)


class LookaheadSerializer(AnySerializer):
    words = serializers.CharField(read_only=True, help_text="Empty if nobody can word it.")
    timezone = serializers.CharField(source="zone", read_only=True)
    counts_from_saving = serializers.BooleanField(
        read_only=True,
        help_text="An interval that starts when the job is saved: these occurrences shift until then.",
    )
    occurrences = OccurrenceSerializer(many=True, read_only=True)
    cautions = CautionSerializer(many=True, read_only=True)


class Preview(View):
    operations = {
        "POST": Operation(
            "preview_schedule",
            "What a schedule would yield; nothing is saved",
            {200: LookaheadSerializer()},
            needs=("view_job",),
            body=DefinitionSerializer(),
        )
    }

    def post(self, request: Request) -> Response:
        asked = self.asked(DefinitionSerializer, request.data)
        count = asked.pop("count")
        # Paused: one that has nothing to come is answered so, and not refused.
        job = Job(**asked, enabled=False)
        unread = {field.name for field in Job._meta.get_fields()} - {*READ}
        job.clean_fields(exclude=unread | ({"name"} if not job.name else set()))
        return _answer(look_ahead(job, count, scope=self.scope))


class JobPreview(View):
    operations = {
        "GET": Operation(
            "preview_job",
            "What comes next of a job, as if it were enabled",
            {200: LookaheadSerializer()},
            needs=("view_job",),
            query=PreviewQuery,
            refusals=UNREADABLE,
        )
    }

    def get(self, request: Request, job_id: str) -> Response:
        return _answer(
            look_ahead(the_job(job_id, self.scope), self.query(request)["count"], scope=self.scope)
        )


def _answer(ahead: Lookahead) -> Response:
    return Response(LookaheadSerializer(ahead).data)
