"""Backfill: create runs for past occurrences that have none."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.history import entry_of
from django_dcron.contrib.rest.jobs.editing import the_job
from django_dcron.contrib.rest.schema import Operation
from django_dcron.contrib.rest.serializing import AnySerializer, Strict
from django_dcron.contrib.rest.view import View
from django_dcron.jobs import audit_messages
from django_dcron.jobs.audit_log import note_action
from django_dcron.jobs.backfill import LARGEST_LIMIT, LIMIT
from django_dcron.jobs.differences import values_of


class RangeSerializer(Strict):
    start = fields.Instant(help_text="The start of the range (included).")
    end = fields.Instant(help_text="The end of the range (excluded).")
    limit = fields.WholeNumber(
        min_value=1,
        max_value=LARGEST_LIMIT,
        default=LIMIT,
        help_text="The maximum number of runs to create.",
    )
    dry_run = fields.YesOrNo(
        default=False, help_text="Return what would be created, without creating it."
    )
    over_pruned = fields.YesOrNo(
        default=False,
        help_text="Include occurrences whose runs may have been pruned. Occurrences that "
        "ran before then run again.",
    )


class BackfillSerializer(AnySerializer):
    dry_run = serializers.BooleanField(
        read_only=True, help_text="Whether this was a dry run, which creates nothing."
    )
    occurrences = serializers.ListField(
        child=fields.Instant(),
        read_only=True,
        help_text="The occurrences that get a run, oldest first.",
    )
    have_run = serializers.IntegerField(
        read_only=True,
        help_text="The number of other occurrences in the range that already have a run.",
    )
    continue_from = fields.Instant(
        read_only=True,
        allow_null=True,
        help_text="The `start` of the next request if there may be "
        "more occurrences; otherwise null.",
    )
    until = fields.Instant(
        read_only=True,
        help_text="The end of the range that was considered: the requested end, now, or "
        "the job's next scheduled occurrence, whichever is earliest.",
    )


class Backfill(View):
    operations = {
        "POST": Operation(
            "backfill_job",
            "Create runs for past occurrences that have none",
            {200: BackfillSerializer()},
            needs=("view_job", "trigger_job"),
            body=RangeSerializer(),
            refusals={
                409: "The job can't be backfilled in its current state, or was "
                "changed at the same time."
            },
        )
    }

    def post(self, request: Request, job_id: str) -> Response:
        job, asked = the_job(job_id, self.scope), self.validated(RangeSerializer, request.data)
        found = control.backfill(job, asked.pop("start"), asked.pop("end"), **asked)
        data: dict[str, Any] = {
            "dry_run": asked["dry_run"],
            "occurrences": found.occurrences,
            "have_run": found.have_run,
            "continue_from": found.continue_from,
            "until": found.until,
        }
        if found.occurrences and not asked["dry_run"]:
            with entry_of(job):
                note_action(request.user, job, values_of(job), audit_messages.backfilled(found))
        return Response(BackfillSerializer(data).data)
