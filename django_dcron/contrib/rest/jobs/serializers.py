"""Jobs as JSON.

A job's representation is its definition only, so that its version, and thus its ETag, identifies
it. The job's status changes without a new version. The list shows the status of each job.
``stats/`` shows the status and the statistics of one job.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.base_serializers import (
    AnySerializer,
    DocumentSerializer,
    StrictSerializer,
)
from django_dcron.contrib.rest.pagination import NextPage
from django_dcron.contrib.rest.viewsets import LARGEST_KEY
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.job_state import JobState, status_of
from django_dcron.jobs.action_texts import LONGEST_REASON
from django_dcron.jobs.placement import is_retimed
from django_dcron.jobs.representation import CONFIDENTIAL, JOB_FIELDS
from django_dcron.models import Job

if TYPE_CHECKING:
    from datetime import datetime

WRITABLE = tuple(name for name, field in JOB_FIELDS.items() if field.writable)


class JobSerializer(DocumentSerializer):
    """What runs, when, and with which policies. Durations are text, such as `1h30m`."""

    args = fields.JsonListField(required=False, help_text="Positional arguments.")
    kwargs = fields.JsonObjectField(required=False, help_text="Keyword arguments.")
    tags = fields.TextListField(required=False)
    after = fields.JsonObjectField(
        required=False,
        help_text="Jobs that start this job when they end, with the required outcome of "
        'their run, such as {"import-orders": "succeeded"}.',
    )
    retry_on = fields.TextListField(
        required=False,
        help_text="Names of exceptions to retry, such as ConnectionError. Empty: any exception.",
    )
    never_retry_on = fields.TextListField(
        required=False, help_text="Names of exceptions that are never retried."
    )
    declared = fields.JsonObjectField(
        read_only=True,
        allow_null=True,
        help_text="The fields declared with @cron. Null if the job isn't declared in code.",
    )

    class Meta:
        model = Job
        fields = tuple(JOB_FIELDS)
        read_only_fields = tuple(name for name in JOB_FIELDS if name not in WRITABLE)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Clear the pause of an enabled job, and refuse a pause that ends in the past.

        The admin's form does the same.
        """
        job = self.instance or Job()
        if attrs.get("enabled", (job if self.partial else Job()).enabled):
            # The reason is checked although it is dropped.
            _check_reason(attrs.get("pause_reason", ""))
            return attrs | {"pause_reason": "", "paused_until": None}
        until = attrs.get("paused_until")
        if until != job.paused_until and _has_passed(until):
            raise serializers.ValidationError(
                {"paused_until": _("The time is in the past. Enter a future time.")}
            )
        if attrs.get("enabled") is False and job.is_finished:
            changed = copy.copy(job)
            for name, value in attrs.items():
                setattr(changed, name, value)
            if is_retimed(job, changed):
                attrs.setdefault("pause_reason", "")  # a pause, so that the job doesn't start
        return attrs


def _check_reason(reason: str) -> None:
    try:
        Job._meta.get_field("pause_reason").run_validators(reason)
    except ValidationError as error:
        raise serializers.ValidationError({"pause_reason": error.messages}) from error


def _has_passed(until: datetime | None) -> bool:
    return until is not None and until <= database_now(alias_for(Job))


class PauseSerializer(StrictSerializer):
    reason = fields.StrictCharField(
        required=False,
        allow_blank=True,
        default="",
        max_length=LONGEST_REASON,
        help_text="Why. The user's name is added.",
    )
    until = fields.UtcTimeField(
        required=False,
        allow_null=True,
        default=None,
        help_text="When the job resumes automatically, such as 2026-12-01T09:00:00Z. Null: "
        "only when someone resumes it.",
    )


class RevertSerializer(StrictSerializer):
    version = fields.StrictIntegerField(
        min_value=1,
        max_value=2**31 - 1,  # the column can't store more
        help_text="The version of the job that the edit made, as in the audit log.",
    )


class RestoreSerializer(StrictSerializer):
    entry = fields.StrictIntegerField(
        min_value=1,
        max_value=LARGEST_KEY,
        help_text="The `id` of the deletion's entry in the audit log.",
    )


class JobStatusSerializer(AnySerializer):
    """The status of a job."""

    state = serializers.ChoiceField(list(JobState), read_only=True)
    problem = serializers.CharField(
        read_only=True, help_text="Why the job isn't scheduled. Empty if it is."
    )
    next_at = fields.UtcTimeField(read_only=True, allow_null=True, help_text="The next occurrence.")
    last_state = serializers.CharField(
        read_only=True, help_text="The state of the last finished run. Empty if there is none."
    )
    last_finished_at = fields.UtcTimeField(read_only=True, allow_null=True)
    consecutive_failures = serializers.IntegerField(read_only=True)


class ListedJobSerializer(JobSerializer):
    """A job in a list, without its arguments and its declaration, which may be long."""

    # REST framework omits a declared field of a base class if it is set to None.
    args = None  # type: ignore[assignment]
    kwargs = None  # type: ignore[assignment]
    declared = None  # type: ignore[assignment]
    status = serializers.SerializerMethodField()

    class Meta(JobSerializer.Meta):
        fields = (*(name for name in JOB_FIELDS if name not in CONFIDENTIAL), "status")

    @extend_schema_field(JobStatusSerializer())
    def get_status(self, job: Job) -> dict[str, Any]:
        # The view reads the database's time once for all jobs.
        return JobStatusSerializer(status_of(job, self.context["now"])).data

    def to_representation(self, instance: Any) -> dict[str, Any]:
        return super().to_representation(instance) | {"status": self.get_status(instance)}


class JobPageSerializer(AnySerializer):
    next = NextPage()
    results = ListedJobSerializer(many=True, read_only=True)
