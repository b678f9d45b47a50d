"""The status of a job, and the statistics of its runs."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from django_dcron.contrib.rest.jobs.serializers import JobStatusSerializer
from django_dcron.contrib.rest.statistics import SuccessRateSerializer
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import job_status
from django_dcron.diagnosis.figures import SuccessRate
from django_dcron.diagnosis.job_state import status_of
from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Job, Statistics
from django_dcron.policies.lifecycle import FINAL


class JobStatsSerializer(JobStatusSerializer):
    """The status of a job, and statistics of its runs."""

    enabled = serializers.BooleanField(read_only=True)
    finished_by_state = serializers.DictField(
        child=serializers.IntegerField(),
        read_only=True,
        help_text="The number of finished runs by state, including pruned runs, without the "
        "successes of a shadow.",
    )
    consecutive_failures = serializers.IntegerField(read_only=True)
    success_rate = SuccessRateSerializer(
        read_only=True,
        help_text="The success rate of all of the job's runs, without the successes of a shadow.",
    )
    latest_success_rate = SuccessRateSerializer(
        read_only=True,
        help_text=f"The success rate of the {job_status.LATEST} latest finished runs, without "
        "those of a shadow.",
    )
    running = serializers.ListField(
        child=serializers.UUIDField(),
        read_only=True,
        help_text="Ids of running runs. The list is truncated if there are many.",
    )


def statistics_document(job: Job, scope: Scope) -> dict[str, Any]:
    statistics = getattr(job, "statistics", None) or Statistics()
    latest: SuccessRate = job_status.success_rate_of_runs(job_status.latest_finished(job, scope))
    return status_of(job, database_now(alias_for(Job))) | {
        "enabled": job.enabled,
        "finished_by_state": {
            state.value: statistics.shown_count(state) for state in sorted(FINAL)
        },
        "success_rate": job_status.success_rate_of_statistics(statistics),
        "latest_success_rate": latest,
        "running": [run.pk for run in job_status.running_runs(job, scope)],
    }
