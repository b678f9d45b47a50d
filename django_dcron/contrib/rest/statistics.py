"""Statistics of all jobs and of one job.

Each request does a bounded amount of work (``diagnosis.figures``).
"""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.jobs.representation import JobStatusSerializer
from django_dcron.contrib.rest.schema import Operation
from django_dcron.contrib.rest.serializing import AnySerializer
from django_dcron.contrib.rest.view import View, number_or_404, row_or_404
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import job_status
from django_dcron.diagnosis.figures import SuccessRate, job_figures, percentile, run_figures
from django_dcron.diagnosis.job_list import status_of
from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Job, Statistics
from django_dcron.policies.lifecycle import FINAL

STATES = ("running", "queued", "waiting", "succeeded", "failed", "skipped", "missed")


class CountSerializer(AnySerializer):
    count = serializers.IntegerField(read_only=True, source="number")
    truncated = serializers.BooleanField(
        read_only=True,
        help_text="True if counting stopped at `count`. The real number is higher.",
    )


class SuccessRateSerializer(AnySerializer):
    succeeded = serializers.IntegerField(read_only=True)
    failed = serializers.IntegerField(read_only=True)
    percent = serializers.FloatField(read_only=True, allow_null=True)
    sampled = serializers.BooleanField(
        read_only=True, help_text="True if only the latest runs were counted."
    )


class JobFiguresSerializer(AnySerializer):
    total = serializers.IntegerField(read_only=True)
    enabled = serializers.IntegerField(read_only=True)
    paused = serializers.IntegerField(read_only=True)
    quarantined = serializers.IntegerField(read_only=True)
    due_soon = CountSerializer(read_only=True, help_text="Occurrences within the next hour.")
    next_at = fields.Instant(read_only=True, allow_null=True)


class StartDelaySerializer(AnySerializer):
    """How late the latest runs started, in seconds. Null if there are none."""

    p50 = fields.Seconds(read_only=True, allow_null=True)
    p95 = fields.Seconds(read_only=True, allow_null=True)
    p99 = fields.Seconds(read_only=True, allow_null=True)


class RunFiguresSerializer(AnySerializer):
    """Runs since `since`. The numbers of running, queued and waiting runs are current."""

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
        help_text="Missed occurrences, including those covered by another run. At least this many.",
    )
    success_rate = SuccessRateSerializer(read_only=True)
    start_delay = StartDelaySerializer(read_only=True)


class StatsSerializer(AnySerializer):
    jobs = JobFiguresSerializer(read_only=True)
    runs = RunFiguresSerializer(read_only=True)


class Stats(View):
    operations = {
        "GET": Operation(
            "get_stats",
            "Get statistics of all jobs and of the last 24 hours' runs",
            {200: StatsSerializer()},
            needs=("view_job", "view_run"),
        )
    }

    def get(self, request: Request) -> Response:
        now = database_now(alias_for(Job))
        runs = run_figures(now, self.scope)
        shown = {name: getattr(runs, name) for name in (*STATES, "since", "success_rate")}
        shown["missed_occurrences"] = runs.missed_occurrences
        shown["start_delay"] = {
            f"p{percent}": percentile(runs.starts.start_delays, percent) for percent in (50, 95, 99)
        }
        return Response(StatsSerializer({"jobs": job_figures(now, self.scope), "runs": shown}).data)


class JobStatsSerializer(JobStatusSerializer):
    """The status of a job, and statistics of its runs."""

    enabled = serializers.BooleanField(read_only=True)
    finished_by_state = serializers.DictField(
        child=serializers.IntegerField(),
        read_only=True,
        help_text="The number of finished runs by state, including pruned runs.",
    )
    consecutive_failures = serializers.IntegerField(read_only=True)
    success_rate = SuccessRateSerializer(
        read_only=True, help_text="The success rate of all of the job's runs."
    )
    latest_success_rate = SuccessRateSerializer(
        read_only=True,
        help_text=f"The success rate of the {job_status.LATEST} latest finished runs.",
    )
    running = serializers.ListField(
        child=serializers.UUIDField(),
        read_only=True,
        help_text="Ids of running runs. The list is truncated if there are many.",
    )


class JobStats(View):
    operations = {
        "GET": Operation(
            "get_job_stats",
            "Get the status of a job and the statistics of its runs",
            {200: JobStatsSerializer()},
            needs=("view_job", "view_run"),
        )
    }

    def get(self, request: Request, job_id: str) -> Response:
        jobs = self.scope.jobs.select_related("cursor", "statistics", "calendar")
        job = row_or_404(jobs, number_or_404(job_id))
        return Response(JobStatsSerializer(_of(job, self.scope)).data)


def _of(job: Job, scope: Scope) -> dict[str, Any]:
    statistics = getattr(job, "statistics", None) or Statistics()
    latest: SuccessRate = job_status.rate_of(job_status.latest_finished(job, scope))
    return status_of(job) | {
        "enabled": job.enabled,
        "finished_by_state": {
            state.value: getattr(statistics, state.value) for state in sorted(FINAL)
        },
        "success_rate": job_status.rate_of_all(statistics),
        "latest_success_rate": latest,
        "running": [run.pk for run in job_status.running(job, scope)],
    }
