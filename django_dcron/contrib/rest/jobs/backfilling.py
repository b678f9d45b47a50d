"""The request and the response of a backfill."""

from __future__ import annotations

from rest_framework import serializers

from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.base_serializers import (
    AnySerializer,
    StrictSerializer,
)
from django_dcron.jobs.backfill import DEFAULT_LIMIT, MAX_LIMIT


class RangeSerializer(StrictSerializer):
    start = fields.UtcTimeField(help_text="The start of the range (included).")
    end = fields.UtcTimeField(help_text="The end of the range (excluded).")
    limit = fields.StrictIntegerField(
        min_value=1,
        max_value=MAX_LIMIT,
        default=DEFAULT_LIMIT,
        help_text="The maximum number of runs to create.",
    )
    dry_run = fields.StrictBooleanField(
        default=False, help_text="Return what would be created, without creating it."
    )
    over_pruned = fields.StrictBooleanField(
        default=False,
        help_text="Include occurrences whose runs may have been pruned. Occurrences that "
        "ran before then run again.",
    )


class BackfillSerializer(AnySerializer):
    dry_run = serializers.BooleanField(
        read_only=True, help_text="Whether this was a dry run, which creates nothing."
    )
    occurrences = serializers.ListField(
        child=fields.UtcTimeField(),
        read_only=True,
        help_text="The occurrences that get a run, oldest first.",
    )
    existing_runs = serializers.IntegerField(
        read_only=True,
        help_text="The number of other occurrences in the range that already have a run.",
    )
    continue_from = fields.UtcTimeField(
        read_only=True,
        allow_null=True,
        help_text="The `start` of the next request if there may be "
        "more occurrences; otherwise null.",
    )
    until = fields.UtcTimeField(
        read_only=True,
        help_text="The end of the range that was considered: the requested end, now, or "
        "the job's next scheduled occurrence, whichever is earliest.",
    )
