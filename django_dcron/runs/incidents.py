"""Group failures into incidents, and resolve the incidents of jobs that succeed again.

The UPDATE that ends a failed attempt sets ``Attempt.incident`` to ``NOT_GROUPED``. A node later
reads these attempts and groups them. Runs that fail without an attempt are grouped by the
transaction that ends them.

Invariants:

- Each failed attempt is counted once. One transaction changes the incident and sets the attempt's
  ``incident``, if that is still ``NOT_GROUPED``. If a process dies, its transaction has changed
  nothing.
- Two processes that group the same attempts lock the same incidents. The second process finds no
  ungrouped attempt and changes nothing.
- Rows are locked in this order: incidents by key, attempts. Nothing that locks an incident locks a
  run afterwards.
- A job has at most ``LIMIT_PER_JOB`` incidents with a message. After that, failures with a new
  message belong to one incident per exception, without a message.
- A success resolves an incident only if it ended after the incident's latest failure, and executed
  the target. The run of a shadow executes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Count, Exists, OuterRef, QuerySet, Subquery
from django.db.models.functions import Substr

from django_dcron.conf import settings
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.db.statements import Select
from django_dcron.models import Attempt, Incident, Statistics
from django_dcron.models.incident import NOT_GROUPED
from django_dcron.models.shards import rows_in_shards
from django_dcron.policies.incidents import (
    MESSAGE_LIMIT,
    RESOLVED_BY_SUCCESS,
    FailureFacts,
    IncidentState,
    extended_trend,
)
from django_dcron.policies.lifecycle import State
from django_dcron.utils.sync_points import reach_sync_point

GROUPED_AT_ONCE = 500
LIMIT_PER_JOB = 200
MESSAGE_READ = 2 * MESSAGE_LIMIT
"""Characters to read of a message, more than are kept: its first line may begin with blanks."""
RETENTION = timedelta(days=90)
"""How long a resolved incident is kept after its latest failure."""
PRUNED_AT_ONCE = 500


_ANY_UNGROUPED = Select(
    Attempt, lambda: Attempt.objects.filter(incident=NOT_GROUPED).order_by().values_list("pk")[:1]
)
_ANY_RECOVERED = Select(Incident, lambda: _recovered().order_by().values_list("pk")[:1])
"""Building the full queries takes longer than these checks, which usually find nothing."""


class _AlreadyGrouped(Exception):
    """Another process has grouped some of the attempts."""


def group_failed_attempts(
    shards: Collection[int] | None = None, namespace: str = "", job_id: int | None = None
) -> int:
    """Group a batch of failed attempts of these jobs, and return their number.

    If the number is ``GROUPED_AT_ONCE``, there may be more. It is 0 if another process has grouped
    some of the attempts meanwhile.
    """
    failures = _ungrouped(shards, namespace, job_id) if _ANY_UNGROUPED.rows() else []
    if failures:
        try:
            with brief_transaction(alias_for(Incident), settings.LEASE):
                _record(failures)
                reach_sync_point("incidents.grouped")
        except _AlreadyGrouped:
            return 0  # the next call reads the rest
    return len(failures)


def record_unstarted_failure(job_id: int, run_id: UUID, reason: str, at: datetime) -> None:
    """Record a run that failed without an attempt, in the transaction that ends it."""
    _record([FailureFacts(job_id, *exception_and_message(reason), at, run_id)])


class ExceptionAndMessage(NamedTuple):
    exception_class: str
    """Empty if the reason names no exception."""
    message: str


def exception_and_message(reason: str) -> ExceptionAndMessage:
    """Split the reason of a run that failed without an attempt."""
    exception_class, colon, message = reason.partition(": ")
    if colon and exception_class.isidentifier():
        return ExceptionAndMessage(exception_class, message)
    return ExceptionAndMessage("", reason)


def resolve_recovered(
    shards: Collection[int] | None = None, namespace: str = "", job_id: int | None = None
) -> int:
    """Resolve the incidents of jobs whose last run succeeded after the latest failure."""
    if not _ANY_RECOVERED.rows():
        return 0
    using = alias_for(Incident)
    rows = _of_jobs(_recovered(), "job", shards, namespace, job_id)
    succeeded_at = Subquery(_later_successes().values("last_finished_at"))
    seen = list(
        rows.order_by("pk").values_list("pk", "last_seen_at", succeeded_at)[:GROUPED_AT_ONCE]
    )
    # A failure that isn't grouped yet may have ended after the success.
    return sum(
        Incident.objects.using(using)
        .filter(pk=key, last_seen_at=last_seen_at, state__in=RESOLVED_BY_SUCCESS)
        .update(
            state=IncidentState.RESOLVED,
            resolved_at=resolved_at,
            changed_by="",
            changed_at=resolved_at,
            note="",
        )
        for key, last_seen_at, resolved_at in seen
        if resolved_at is not None
    )


def _recovered() -> QuerySet[Incident]:
    """Return the open and acknowledged incidents whose jobs have succeeded since."""
    rows = Incident.objects.using(alias_for(Incident))
    return rows.filter(Exists(_later_successes()), state__in=RESOLVED_BY_SUCCESS)


def _later_successes() -> QuerySet[Statistics]:
    return Statistics.objects.filter(
        job=OuterRef("job_id"),
        last_state=State.SUCCEEDED,
        last_was_shadow=False,
        last_finished_at__gt=OuterRef("last_seen_at"),
    )


def prune_incidents(shards: Collection[int], namespace: str = "") -> int:
    """Delete a batch of incidents that were resolved long ago."""
    using = alias_for(Incident)
    expired = Incident.objects.using(using).filter(
        state=IncidentState.RESOLVED, last_seen_at__lt=database_now(using) - RETENTION
    )
    keys = list(
        _of_jobs(expired, "job", shards, namespace, None)
        .order_by("last_seen_at")
        .values_list("pk", flat=True)[:PRUNED_AT_ONCE]
    )
    if keys:
        Incident.objects.using(using).filter(pk__in=keys, state=IncidentState.RESOLVED).delete()
    return len(keys)


def _ungrouped(
    shards: Collection[int] | None, namespace: str, job_id: int | None
) -> list[FailureFacts]:
    rows = Attempt.objects.using(alias_for(Attempt)).filter(incident=NOT_GROUPED)
    rows = _of_jobs(rows, "run__job", shards, namespace, job_id)
    columns = ("run__job_id", "exception_class", Substr("message", 1, MESSAGE_READ))
    read = rows.order_by("pk").values_list(*columns, "finished_at", "started_at", "run_id", "pk")
    oldest = read[:GROUPED_AT_ONCE]
    return [
        FailureFacts(job, exception_class, message, finished_at or started_at, run_id, key)
        for job, exception_class, message, finished_at, started_at, run_id, key in oldest
    ]


def _of_jobs(
    rows: QuerySet[Any],
    job: str,
    shards: Collection[int] | None,
    namespace: str,
    job_id: int | None,
) -> QuerySet[Any]:
    if job_id is not None:
        rows = rows.filter(**{job: job_id})
    if shards is not None:
        rows = rows_in_shards(rows, shards, settings.SHARDS, f"{job}_id")
    return rows.filter(**{f"{job}__namespace": namespace}) if namespace else rows


# --- recording ------------------------------------------------------------------------------------

Key = tuple[int, str]
"""A job and a fingerprint."""


def _record(failures: Sequence[FailureFacts]) -> None:
    """Add the failures to their incidents. Raises ``_AlreadyGrouped``."""
    using = alias_for(Incident)
    grouped = _by_key(failures, using)
    for incident in _locked(grouped, using):
        members = grouped[incident.job_id, incident.fingerprint]
        _add(incident, members)
        incident.save(using=using, update_fields=WRITTEN)
        attempts = [failure.attempt_id for failure in members if failure.attempt_id is not None]
        ungrouped = Attempt.objects.using(using).filter(pk__in=attempts, incident=NOT_GROUPED)
        if attempts and ungrouped.update(incident=incident.pk) < len(attempts):
            raise _AlreadyGrouped


def _by_key(failures: Iterable[FailureFacts], using: str) -> dict[Key, list[FailureFacts]]:
    """Group the failures by incident.

    Once a job has ``LIMIT_PER_JOB`` incidents, failures with a new message lose their message.
    """
    grouped: dict[Key, list[FailureFacts]] = {}
    for failure in failures:
        grouped.setdefault((failure.job_id, failure.fingerprint), []).append(failure)
    new = set(grouped) - set(_existing(grouped, using).values_list("job_id", "fingerprint"))
    if not new:
        return grouped
    jobs = {job_id for job_id, _ in new}
    counts = Incident.objects.using(using).filter(job__in=jobs).order_by().values_list("job_id")
    room = dict.fromkeys(jobs, LIMIT_PER_JOB)
    room |= {job_id: LIMIT_PER_JOB - count for job_id, count in counts.annotate(n=Count("pk"))}
    for key in sorted(new):
        room[key[0]] -= 1
        if room[key[0]] < 0:
            for failure in grouped.pop(key):
                anonymous = replace(failure, message="")
                grouped.setdefault((failure.job_id, anonymous.fingerprint), []).append(anonymous)
    return grouped


def _existing(keys: Collection[Key], using: str) -> QuerySet[Incident]:
    return Incident.objects.using(using).filter(
        job__in={job_id for job_id, _ in keys},
        fingerprint__in={fingerprint for _, fingerprint in keys},
    )


def _locked(grouped: dict[Key, list[FailureFacts]], using: str) -> list[Incident]:
    """Lock and return the incidents of these failures. New ones are inserted first."""
    known = set(_existing(grouped, using).values_list("job_id", "fingerprint"))
    new = [_new_incident(key, grouped[key]) for key in sorted(set(grouped) - known)]
    Incident.objects.using(using).bulk_create(new, ignore_conflicts=True)
    locked = _existing(grouped, using).select_for_update().order_by("pk")
    return [row for row in locked if (row.job_id, row.fingerprint) in grouped]


def _new_incident(key: Key, failures: Sequence[FailureFacts]) -> Incident:
    job_id, fingerprint = key
    first = min(failures, key=lambda failure: failure.at)
    return Incident(
        job_id=job_id,
        fingerprint=fingerprint,
        exception_class=first.exception_class,
        first_seen_at=first.at,
        last_seen_at=first.at,
    )


WRITTEN = (
    "message",
    "state",
    "count",
    "first_seen_at",
    "last_seen_at",
    "returned_at",
    "resolved_at",
    "last_run",
    "last_attempt",
    "trend",
    "changed_by",
    "changed_at",
    "note",
)
"""The columns that failures change."""


def _add(incident: Incident, failures: Sequence[FailureFacts]) -> None:
    """Add the failures to the incident. A failure after its resolution opens the incident again."""
    latest = max(failures, key=lambda failure: failure.at)
    if incident.state == IncidentState.RESOLVED and latest.at > (
        incident.resolved_at or incident.last_seen_at
    ):
        incident.state = IncidentState.OPEN
        incident.returned_at = incident.changed_at = latest.at
        incident.resolved_at, incident.changed_by, incident.note = None, "", ""
    incident.count += len(failures)
    incident.trend = extended_trend(incident.trend, [failure.at for failure in failures])
    incident.first_seen_at = min(incident.first_seen_at, *(failure.at for failure in failures))
    if latest.at >= incident.last_seen_at:
        incident.last_seen_at = latest.at
        incident.message = latest.first_line
        incident.last_run, incident.last_attempt = latest.run_id, latest.attempt_id
