"""Filter jobs by their names, texts, tags, sources, queues and states.

Only the filter for running jobs reads runs, of which few are running.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from django.db import connections
from django.db.models import Q

from django_dcron.diagnosis.job_filters.queues import jobs_in_queues
from django_dcron.diagnosis.job_filters.source import jobs_from_source
from django_dcron.diagnosis.job_filters.tags import jobs_with_tag
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.models.job import JobQuerySet
from django_dcron.models.job_states import (
    IS_ENABLED,
    IS_FAILING,
    IS_FINISHED,
    IS_PAUSED,
    IS_QUARANTINED,
)
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE


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


def jobs_matching(chosen: JobFilter, scope: Scope = EVERYTHING) -> JobQuerySet:
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
