"""How things stand in a few figures: of all jobs, and of one. Each is bounded, whatever the tables hold (``figures``)."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron.domain.lifecycle import FINAL
from django_dcron.models import Job, Statistics
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability import standing
from django_dcron.observability.figures import SuccessRate, job_figures, percentile, run_figures
from django_dcron.observability.scope import Scope
from django_dcron.rest import fields
from django_dcron.rest.jobs.representation import StandingSerializer, standing_of
from django_dcron.rest.schema import Operation
from django_dcron.rest.serializing import AnySerializer
from django_dcron.rest.view import View, number_or_404, row_or_404

STATES = ("running", "queued", "waiting", "succeeded", "failed", "skipped", "missed")


class CountSerializer(AnySerializer):
    number = serializers.IntegerField(read_only=True)
    more = serializers.BooleanField(read_only=True, help_text="There are more than so many.")


class SuccessRateSerializer(AnySerializer):
    succeeded = serializers.IntegerField(read_only=True)
    failed = serializers.IntegerField(read_only=True)
    percent = serializers.FloatField(read_only=True, allow_null=True)
    sampled = serializers.BooleanField(read_only=True, help_text="Of the latest alone.")


class JobFiguresSerializer(AnySerializer):
    total = serializers.IntegerField(read_only=True)
    enabled = serializers.IntegerField(read_only=True)
    paused = serializers.IntegerField(read_only=True)
    out_of_scheduling = serializers.IntegerField(read_only=True)
    due_soon = CountSerializer(read_only=True, help_text="Within the next hour.")
    next_at = fields.Instant(read_only=True, allow_null=True)


class LatenessSerializer(AnySerializer):
    """Seconds, of the latest starts; null if there are none."""

    p50 = fields.Seconds(read_only=True, allow_null=True)
    p95 = fields.Seconds(read_only=True, allow_null=True)
    p99 = fields.Seconds(read_only=True, allow_null=True)


class RunFiguresSerializer(AnySerializer):
    """Since `since`; what is running, queued and waiting is so now."""

    since = fields.Instant(read_only=True)
    running = CountSerializer(read_only=True)
    queued = CountSerializer(read_only=True)
    waiting = CountSerializer(read_only=True)
    succeeded = CountSerializer(read_only=True)
    failed = CountSerializer(read_only=True)
    skipped = CountSerializer(read_only=True)
    missed = CountSerializer(read_only=True)
    missed_occurrences = serializers.IntegerField(
        read_only=True,
        help_text="Also those that are counted on other runs, missed, started or waiting; at least so many.",
    )
    success_rate = SuccessRateSerializer(read_only=True)
    lateness = LatenessSerializer(read_only=True)


class StatsSerializer(AnySerializer):
    jobs = JobFiguresSerializer(read_only=True)
    runs = RunFiguresSerializer(read_only=True)


class Stats(View):
    operations = {
        "GET": Operation(
            "read_stats",
            "Figures of all jobs, and of the runs of the last 24 hours",
            {200: StatsSerializer()},
            needs=("view_job", "view_run"),
        )
    }

    def get(self, request: Request) -> Response:
        now = database_now(alias_for(Job))
        runs = run_figures(now, self.scope)
        shown = {name: getattr(runs, name) for name in (*STATES, "since", "success_rate")}
        shown["missed_occurrences"] = runs.missed_occurrences
        shown["lateness"] = {
            f"p{percent}": percentile(runs.starts.lateness, percent) for percent in (50, 95, 99)
        }
        return Response(StatsSerializer({"jobs": job_figures(now, self.scope), "runs": shown}).data)


class JobStatsSerializer(StandingSerializer):
    """How one job stands, and how its runs went."""

    enabled = serializers.BooleanField(read_only=True)
    counted = serializers.DictField(
        child=serializers.IntegerField(),
        read_only=True,
        help_text="How many runs have ended in each state, also of those that were pruned.",
    )
    failures_in_a_row = serializers.IntegerField(read_only=True)
    success_rate = SuccessRateSerializer(read_only=True, help_text="Of all its runs.")
    latest_success_rate = SuccessRateSerializer(
        read_only=True, help_text=f"Of its {standing.LATEST} latest finished runs."
    )
    running = serializers.ListField(
        child=serializers.UUIDField(), read_only=True, help_text="Runs; not all, if there are many."
    )


class JobStats(View):
    operations = {
        "GET": Operation(
            "read_job_stats",
            "How a job stands, and how its runs went",
            {200: JobStatsSerializer()},
            needs=("view_job", "view_run"),
        )
    }

    def get(self, request: Request, job_id: str) -> Response:
        jobs = self.scope.jobs.select_related("cursor", "statistics")
        job = row_or_404(jobs, number_or_404(job_id))
        return Response(JobStatsSerializer(_of(job, self.scope)).data)


def _of(job: Job, scope: Scope) -> dict[str, Any]:
    statistics = getattr(job, "statistics", None) or Statistics()
    latest: SuccessRate = standing.rate_of(standing.latest_finished(job, scope))
    return standing_of(job) | {
        "enabled": job.enabled,
        "counted": {state.value: getattr(statistics, state.value) for state in sorted(FINAL)},
        "failures_in_a_row": statistics.failures_in_a_row,
        "success_rate": standing.rate_of_all(statistics),
        "latest_success_rate": latest,
        "running": [run.pk for run in standing.running(job, scope)],
    }
