"""Backfill: runs for occurrences that have passed and have none."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.backfill import LARGEST_LIMIT, LIMIT
from django_dcron.observability import deeds
from django_dcron.observability.differences import values_of
from django_dcron.observability.noting import note_deed
from django_dcron.rest import fields
from django_dcron.rest.history import entry_of
from django_dcron.rest.jobs.editing import the_job
from django_dcron.rest.schema import Operation
from django_dcron.rest.serializing import AnySerializer, Strict
from django_dcron.rest.view import View


class RangeSerializer(Strict):
    start = fields.Instant(help_text="From there on.")
    end = fields.Instant(help_text="To just before this.")
    limit = fields.WholeNumber(
        min_value=1, max_value=LARGEST_LIMIT, default=LIMIT, help_text="So many runs at once."
    )
    dry_run = fields.YesOrNo(default=False, help_text="Only say what would be made.")
    over_pruned = fields.YesOrNo(
        default=False,
        help_text="Also where older runs were pruned: what has run there, and is forgotten, runs again.",
    )


class BackfillSerializer(AnySerializer):
    dry_run = serializers.BooleanField(read_only=True, help_text="Nothing was made.")
    occurrences = serializers.ListField(
        child=fields.Instant(), read_only=True, help_text="Those that get a run, oldest first."
    )
    have_run = serializers.IntegerField(
        read_only=True, help_text="How many others in the range have a run already."
    )
    continue_from = fields.Instant(
        read_only=True, allow_null=True, help_text="There may be more: the `start` to go on with."
    )
    until = fields.Instant(
        read_only=True, help_text="Where it ended: at its end, now, or where the schedule goes on by itself."
    )


class Backfill(View):
    operations = {
        "POST": Operation(
            "backfill_job",
            "Make runs for occurrences that have passed and have none",
            {200: BackfillSerializer()},
            needs=("view_job", "trigger_job"),
            body=RangeSerializer(),
            refusals={409: "The job cannot be backfilled as it is, or was changed at that moment."},
        )
    }

    def post(self, request: Request, job_id: str) -> Response:
        job, asked = the_job(job_id, self.scope), self.asked(RangeSerializer, request.data)
        found = control.backfill(job, asked.pop("start"), asked.pop("end"), **asked)
        told: dict[str, Any] = {
            "dry_run": asked["dry_run"],
            "occurrences": found.occurrences,
            "have_run": found.have_run,
            "continue_from": found.continue_from,
            "until": found.until,
        }
        if found.occurrences and not asked["dry_run"]:
            with entry_of(job):
                note_deed(request.user, job, values_of(job), deeds.backfilled(found))
        return Response(BackfillSerializer(told).data)
