"""The requests and the response of previews: description, next occurrences and cautions."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.base_serializers import (
    AnySerializer,
    StrictModelSerializer,
    StrictSerializer,
)
from django_dcron.diagnosis.lookahead import OCCURRENCES
from django_dcron.models import Job

MAX_OCCURRENCES = 100
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


class PreviewQuery(StrictSerializer):
    count = serializers.IntegerField(
        min_value=1,
        max_value=MAX_OCCURRENCES,
        default=OCCURRENCES,
        help_text="The number of occurrences.",
    )


class DefinitionSerializer(StrictModelSerializer):
    """The definition of a job that need not exist.

    Without its name, the values of `H` may differ.
    """

    count = fields.StrictIntegerField(min_value=1, max_value=MAX_OCCURRENCES, default=OCCURRENCES)

    class Meta:
        model = Job
        fields = (*READ, "count")
        extra_kwargs: ClassVar = {"name": {"required": False, "allow_blank": True}}

    def get_fields(self) -> Any:
        found = super().get_fields()
        del found["count"].run_validators  # not a field of the model
        return found


class OccurrenceSerializer(AnySerializer):
    at = fields.UtcTimeField(read_only=True)
    local = fields.LocalTimeField(read_only=True)


class CautionSerializer(AnySerializer):
    code = serializers.CharField(read_only=True)
    message = serializers.CharField(read_only=True)


class LookaheadSerializer(AnySerializer):
    words = serializers.CharField(
        read_only=True, help_text="A description of the schedule. Empty if there is none."
    )
    timezone = serializers.CharField(source="zone", read_only=True)
    counts_from_saving = serializers.BooleanField(
        read_only=True,
        help_text="The interval starts when the job is saved, so these occurrences shift "
        "until then.",
    )
    occurrences = OccurrenceSerializer(many=True, read_only=True)
    cautions = CautionSerializer(many=True, read_only=True)


def job_of(values: dict[str, Any]) -> Job:
    """Return an unsaved job with the values of a request. Raises ``ValidationError`` by field."""
    # Paused, because an enabled job without further occurrences would be refused.
    job = Job(**values, enabled=False)
    unread = {field.name for field in Job._meta.get_fields()} - {*READ}
    job.clean_fields(exclude=unread | ({"name"} if not job.name else set()))
    return job
