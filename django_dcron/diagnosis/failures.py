"""List the latest failed runs with their errors, and group the failures that are alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Substr

from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.models import Run
from django_dcron.models.incident import NOT_GROUPED
from django_dcron.policies.incidents import normalize_message
from django_dcron.policies.lifecycle import State

MESSAGE_READ = 500
"""The number of characters of a message that are read. A message may have thousands."""


class _AttemptError(NamedTuple):
    run: UUID
    exception_class: str
    message: str
    incident: int | None


@dataclass(frozen=True, slots=True)
class FailedRun:
    run: Run
    """The run with its job."""
    exception_class: str = ""
    message: str = ""
    incident: int = 0
    """The key of the incident that the failure belongs to; 0 until a node has grouped it."""

    @property
    def first_line(self) -> str:
        return next(iter(self.message.strip().splitlines()), "")


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one job with the same exception and the same message, except for its numbers."""

    failures: tuple[FailedRun, ...]
    """Latest due time first."""

    @property
    def latest(self) -> FailedRun:
        return self.failures[0]

    @property
    def first(self) -> FailedRun:
        return self.failures[-1]

    @property
    def incident(self) -> int:
        """The key of the incident of the failures; 0 until a node has grouped one of them."""
        return next((each.incident for each in self.failures if each.incident), 0)

    @property
    def number(self) -> int:
        return len(self.failures)


def group_failures(failures: Iterable[FailedRun]) -> list[FailureGroup]:
    """Group the failures that are alike. The groups have the order of their latest failures."""
    groups: dict[tuple[int, str, str], list[FailedRun]] = {}
    for failure in failures:
        message = normalize_message(failure.first_line)
        groups.setdefault((failure.run.job_id, failure.exception_class, message), []).append(
            failure
        )
    return [FailureGroup(tuple(group)) for group in groups.values()]


def latest_failures(since: datetime, limit: int, scope: Scope = EVERYTHING) -> list[FailedRun]:
    """Return failed runs due since ``since``, the latest due time first.

    A run whose latest attempt isn't visible has its reason as the message. An index provides the
    order. There are three queries: runs, jobs, attempts.
    """
    failed = scope.runs.filter(state=State.FAILED, due_at__gte=since)
    runs = list(failed.order_by("-due_at").prefetch_related("job")[:limit])
    attempts = (
        scope.attempts.filter(run__in=[run.pk for run in runs], number=F("run__attempt"))
        .order_by()
        .values_list("run", "exception_class", Substr("message", 1, MESSAGE_READ), "incident")
    )
    errors = {row.run: row for row in map(_AttemptError._make, attempts)}
    failures = []
    for run in runs:
        error = errors.get(run.pk) or _AttemptError(run.pk, "", run.reason, None)
        incident = error.incident or NOT_GROUPED
        failures.append(FailedRun(run, error.exception_class, error.message, incident))
    return failures
