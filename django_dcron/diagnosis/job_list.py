"""List jobs: filter them, and determine each job's next run and state.

Only the filter for running jobs reads runs, of which few are running. All other data of a row comes
with the job: cursor and statistics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db import connections
from django.db.models import Q

from django_dcron.db import clock
from django_dcron.diagnosis.job_queues import jobs_in_queues
from django_dcron.diagnosis.job_source import jobs_from_source
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.diagnosis.tags import jobs_with_tag
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs import placement
from django_dcron.models import Cursor, Job, Statistics
from django_dcron.models.job import JobQuerySet
from django_dcron.models.job_states import (
    IS_ENABLED,
    IS_FAILING,
    IS_FINISHED,
    IS_PAUSED,
    IS_QUARANTINED,
)
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE


class JobState(StrEnum):
    """A job's state, for programs; a value is never renamed."""

    ENABLED = "enabled"
    PAUSED = "paused"
    FINISHED = "finished"
    """Its schedule has no further occurrence."""
    QUARANTINED = "quarantined"
    """Not scheduled because of a problem: an invalid schedule, or a pause that can't end."""


class JobCondition(StrEnum):
    """Filters for jobs, other than their names."""

    ENABLED = "enabled"
    PAUSED = "paused"
    FINISHED = "finished"
    QUARANTINED = "quarantined"
    RUNNING = "running"
    FAILING = "failing"
    """Enabled, and has failed since its last success."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter for jobs; empty fields match all jobs."""

    namespace: str = ""
    tags: tuple[str, ...] = ()
    """The job must have all of these tags."""
    text: str = ""
    """A part of the name, target or description, case-insensitive."""
    pattern: str = ""
    """``NAMESPACE/NAME`` with ``*`` for any text and ``?`` for one character.

    A pattern without a namespace matches jobs of ``namespace``, or of the namespace ``default``.
    """
    condition: JobCondition | None = None
    source: str = ""
    """What created the job. See ``jobs_from_source``."""
    queue: str = ""
    """The queue to which the runs are published. See ``jobs_in_queues``."""


def jobs(chosen: JobFilter, scope: Scope = EVERYTHING) -> JobQuerySet:
    """Return the matching visible jobs in the order of their names, with cursor and statistics."""
    found: JobQuerySet = scope.jobs.select_related("cursor", "statistics", "calendar")
    if chosen.namespace:
        found = found.filter(namespace=chosen.namespace)
    if chosen.text:
        fields = ("name", "target", "description")
        part = Q()
        for field in fields:
            part |= Q(**{f"{field}__icontains": chosen.text})
        found = found.filter(part)
    if chosen.pattern:
        namespace, slash, name = chosen.pattern.rpartition("/")
        vendor = connections[found.db].vendor
        found = found.filter(name__regex=_regex(name, vendor))
        if slash:
            found = found.filter(namespace__regex=_regex(namespace, vendor))
        elif not chosen.namespace:
            found = found.filter(namespace=DEFAULT_NAMESPACE)
    if chosen.source:
        found = jobs_from_source(found, chosen.source)
    if chosen.queue:
        found = jobs_in_queues(found, [chosen.queue])
    for tag in chosen.tags:
        found = jobs_with_tag(found, tag)  # type: ignore[assignment]  # it filters, and keeps the class
    if chosen.condition:
        found = found.filter(query_of(chosen.condition, scope))
    return found.order_by("namespace", "name")


def _regex(pattern: str, vendor: str) -> str:
    """Return the pattern as a regular expression for a database of this ``vendor``.

    MariaDB compares bytes, so one character is a first byte and its continuation bytes in UTF-8.
    """
    wildcards = {"*": ".*", "?": r"[^\x80-\xBF][\x80-\xBF]*" if vendor == "mysql" else "."}
    return f"^{''.join(wildcards.get(char) or re.escape(char) for char in pattern)}$"


def query_of(condition: JobCondition, scope: Scope) -> Q:
    """Return the query of a condition. The runs of ``scope`` decide which jobs are running."""
    match condition:
        case JobCondition.ENABLED:
            return IS_ENABLED
        case JobCondition.PAUSED:
            return IS_PAUSED
        case JobCondition.FINISHED:
            return IS_FINISHED
        case JobCondition.QUARANTINED:
            return IS_QUARANTINED
        case JobCondition.RUNNING:
            return Q(pk__in=scope.runs.using(None).running().order_by().values("job"))
        case JobCondition.FAILING:
            return IS_FAILING


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
