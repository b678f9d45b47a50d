"""Determine a job's state and its next run from the job, its cursor and its statistics."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from django_dcron.db import clock
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs import placement
from django_dcron.models import Cursor, Job, Statistics


class JobState(StrEnum):
    """A job's state, for programs; a value is never renamed."""

    ENABLED = "enabled"
    PAUSED = "paused"
    FINISHED = "finished"
    """Its schedule has no further occurrence."""
    QUARANTINED = "quarantined"
    """Not scheduled because of a problem: an invalid schedule, or a pause that can't end."""


def cursor_of(job: Job) -> Cursor | None:
    """Return the job's cursor.

    A job saved without ``control`` has no cursor until a node has processed it.
    """
    return getattr(job, "cursor", None)


def statistics_of(job: Job) -> Statistics | None:
    return getattr(job, "statistics", None)


def problem_of(job: Job) -> str:
    """Return why the job is quarantined, or an empty string. Equals ``IS_QUARANTINED``."""
    cursor = cursor_of(job)
    has_occurrences = job.enabled or job.paused_until is not None
    return cursor.problem if cursor and has_occurrences else ""


def job_state(job: Job) -> JobState:
    if problem_of(job):
        return JobState.QUARANTINED
    if job.is_finished:
        return JobState.FINISHED
    return JobState.ENABLED if job.enabled else JobState.PAUSED


def is_failing(job: Job) -> bool:
    """Return whether the job is failing. Equals ``IS_FAILING``."""
    statistics = statistics_of(job)
    failures = statistics.consecutive_failures if statistics else 0
    return failures > 0 and job_state(job) is JobState.ENABLED


def status_of(job: Job, now: datetime) -> dict[str, Any]:
    """Return the status of the job, which the REST API and the command line show.

    ``now`` is the database's time.
    """
    statistics = statistics_of(job)
    return {
        "state": job_state(job),
        "problem": problem_of(job),
        "next_at": next_run_of(job, now),
        "last_state": statistics.last_state if statistics else "",
        "last_finished_at": statistics.last_finished_at if statistics else None,
        "consecutive_failures": statistics.consecutive_failures if statistics else 0,
    }


def next_run_of(job: Job, now: datetime | None = None) -> datetime | None:
    """Return the job's next occurrence, even if it is already claimed.

    The cursor is ahead of claimed occurrences. ``now`` defaults to this machine's wall clock.
    """
    cursor = cursor_of(job)
    if cursor is None or cursor.next_at is None or cursor.problem or not job.enabled:
        return None
    try:
        coming = placement.timetable_of(job).first_after(now or clock.now(), cursor.next_at)
    except InvalidSchedule:
        coming = None
    return min(coming, cursor.next_at) if coming else cursor.next_at
