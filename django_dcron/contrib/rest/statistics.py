"""Statistics of all jobs.

Each request does a bounded amount of work (``diagnosis.figures``).
"""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.base_serializers import AnySerializer
from django_dcron.contrib.rest.schema import operation
from django_dcron.contrib.rest.viewsets import BaseViewSet
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.figures import percentile, read_figures
from django_dcron.models import Job

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
    finished = serializers.IntegerField(read_only=True)
    quarantined = serializers.IntegerField(read_only=True)
    due_soon = CountSerializer(
        read_only=True,
        help_text="Jobs with an occurrence within the next hour, or with a claimed run that isn't "
        "dispatched yet.",
    )
    next_at = fields.UtcTimeField(read_only=True, allow_null=True)


class StartDelaySerializer(AnySerializer):
    """How late the latest runs started, in seconds. Null if there are none."""

    p50 = fields.SecondsField(read_only=True, allow_null=True)
    p95 = fields.SecondsField(read_only=True, allow_null=True)
    p99 = fields.SecondsField(read_only=True, allow_null=True)


class RunFiguresSerializer(AnySerializer):
    """Runs since `since`. The numbers of running, queued and waiting runs are current."""

    since = fields.UtcTimeField(read_only=True)
    running = CountSerializer(read_only=True)
    queued = CountSerializer(read_only=True)
    waiting = CountSerializer(read_only=True)
    succeeded = CountSerializer(read_only=True)
    failed = CountSerializer(read_only=True)
    skipped = CountSerializer(read_only=True)
    missed = CountSerializer(read_only=True)
    missed_occurrences = serializers.IntegerField(
        read_only=True,
        help_text="Missed occurrences, including those that later runs count. At least this many.",
    )
    success_rate = SuccessRateSerializer(read_only=True)
    start_delay = StartDelaySerializer(read_only=True)


class StatsSerializer(AnySerializer):
    jobs = JobFiguresSerializer(read_only=True)
    runs = RunFiguresSerializer(read_only=True)


class StatsViewSet(BaseViewSet):
    @operation(
        "get_stats",
        "Get statistics of all jobs and of the runs of the last 24 hours",
        {200: StatsSerializer()},
        permissions=("view_job", "view_run"),
    )
    def list(self, request: Request) -> Response:
        now = database_now(alias_for(Job))
        figures = read_figures(now, self.scope)
        runs = figures.runs
        shown = {name: getattr(runs, name) for name in (*STATES, "since", "success_rate")}
        shown["missed_occurrences"] = runs.missed_occurrences
        shown["start_delay"] = {
            f"p{percent}": percentile(runs.starts.start_delays, percent) for percent in (50, 95, 99)
        }
        return Response(StatsSerializer({"jobs": figures.jobs, "runs": shown}).data)
