"""A job as JSON, and as it is written.

The job itself is its definition alone, which its version, and so its ETag, stands for. How it stands changes without that: the list
tells it beside each, and ``stats/`` in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from rest_framework import serializers

from django_dcron.models import Job
from django_dcron.models.database import alias_for, database_now
from django_dcron.rest import fields
from django_dcron.rest.serializing import AnySerializer, OfModel

if TYPE_CHECKING:
    from datetime import datetime

WRITTEN = tuple(field.name for field in Job._meta.concrete_fields if field.editable and not field.primary_key)
BY_OTHERS = ("id", "version", "declared", "created_at", "updated_at")


class JobSerializer(OfModel):
    """What runs, when, and by which policies. Durations are numbers of seconds."""

    args = fields.JsonList(required=False, help_text="Positional arguments.")
    kwargs = fields.JsonObject(required=False, help_text="Keyword arguments.")
    tags = fields.JsonTexts(required=False)
    after = fields.JsonObject(
        required=False, help_text="After which jobs it also runs, by name, and how their run has to end."
    )
    retry_on = fields.JsonTexts(required=False, help_text="Exception names. Empty: on any.")
    never_retry_on = fields.JsonTexts(required=False, help_text="Exception names that end the run.")
    declared = fields.JsonObject(
        read_only=True, allow_null=True, help_text="As @cron declared it; null for a job made by people."
    )

    class Meta:
        model = Job
        fields = (*BY_OTHERS, *WRITTEN)
        read_only_fields = BY_OTHERS

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """As the admin's form does: a job that is enabled has no pause, and no pause ends in the past."""
        job = self.instance or Job()
        if attrs.get("enabled", (job if self.partial else Job()).enabled):
            _check_reason(attrs.get("pause_reason", ""))  # though it is dropped then
            return attrs | {"pause_reason": "", "paused_until": None}
        until = attrs.get("paused_until")
        if until != job.paused_until and _has_passed(until):
            raise serializers.ValidationError({"paused_until": _("It has passed.")})
        return attrs


def _check_reason(reason: str) -> None:
    try:
        Job._meta.get_field("pause_reason").run_validators(reason)
    except ValidationError as error:
        raise serializers.ValidationError({"pause_reason": error.messages}) from error


def _has_passed(until: datetime | None) -> bool:
    return until is not None and until <= database_now(alias_for(Job))


class StandingSerializer(AnySerializer):
    """How a job stands."""

    next_at = fields.Instant(
        read_only=True, allow_null=True, help_text="The next occurrence that is not claimed yet."
    )
    problem = serializers.CharField(
        read_only=True, help_text="Why it is out of scheduling; empty: it is not."
    )
    last_state = serializers.CharField(read_only=True, help_text="Of its last finished run; empty: none yet.")
    last_finished_at = fields.Instant(read_only=True, allow_null=True)


LONG = ("args", "kwargs", "declared")
"""What a list leaves out."""


class ListedJobSerializer(JobSerializer):
    """A job of a list: without its arguments, which may be long, and without its declaration, which repeats them."""

    # REST framework's way to leave out a field that the class above declares.
    args = None  # type: ignore[assignment]
    kwargs = None  # type: ignore[assignment]
    declared = None  # type: ignore[assignment]
    standing = StandingSerializer(read_only=True)

    class Meta(JobSerializer.Meta):
        fields = (*(name for name in JobSerializer.Meta.fields if name not in LONG), "standing")


class JobPageSerializer(AnySerializer):
    next = serializers.URLField(read_only=True, allow_null=True, help_text="Null: this is the last page.")
    results = ListedJobSerializer(many=True, read_only=True)


def standing_of(job: Job) -> dict[str, Any]:
    """``job``: with its cursor and its statistics selected; it may have neither yet."""
    cursor, statistics = getattr(job, "cursor", None), getattr(job, "statistics", None)
    return {
        "next_at": cursor.next_at if cursor else None,
        "problem": cursor.problem if cursor else "",
        "last_state": statistics.last_state if statistics else "",
        "last_finished_at": statistics.last_finished_at if statistics else None,
    }
