"""Detect events of jobs from the changes of their counters (``policies.alerting``).

Invariants:

- A check reads only jobs whose counters changed in a way that may matter. Most checks also skip
  jobs that ended no run recently.
- An ``AlertCheck`` has the counters of a job at its last check. Without one, they count as zeros.
- The first check that finds a job creates an ``AlertCheck`` for each existing job.
- Earlier events of jobs that exist at the first check aren't reported, except consecutive failures
  that still last. Those of a job that isn't enabled don't last: they count as muted.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import F, Q

from django_dcron.conf import settings
from django_dcron.contrib.alerts import rules
from django_dcron.contrib.alerts.failures import ReportedFailures, read_failures
from django_dcron.contrib.alerts.last_success import last_success
from django_dcron.contrib.alerts.messages import event_message
from django_dcron.contrib.alerts.outbox import Message, store_alerts
from django_dcron.db.contention import isolating_errors
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.jobs.pausing import AUTO_PAUSED
from django_dcron.models import AlertCheck, Job, Statistics
from django_dcron.models.shards import rows_in_shards
from django_dcron.policies.alerting import (
    AlertKind,
    Event,
    JobCounters,
    Rule,
    UnmutedCounters,
    count_unrecovered_failures,
    detect_events,
    without_muted,
)

OVERLAP = timedelta(minutes=1)
"""The maximum time between a run's ``finished_at`` and the commit of its transaction.

The check of all jobs (``alerter``) finds runs of longer transactions, and jobs that another
transaction auto-paused.
"""
BATCH_SIZE = 500
COUNTERS = ("succeeded", "shadow_runs", "failed", "missed")

_RECOVERED = Q(
    job__alert_check__unrecovered_failures__gt=0,
    succeeded__gt=F("job__alert_check__succeeded"),
)
_AUTO_PAUSED = Q(job__enabled=False, job__pause_reason__startswith=AUTO_PAUSED)
_NO_FAILURES = Q(failed=0, missed=0)
_UNCHANGED = Q(
    failed=F("job__alert_check__failed"),
    missed=F("job__alert_check__missed"),
    consecutive_failures=F("job__alert_check__consecutive_failures"),
)


def initialize(*, from_zero: bool) -> bool:
    """Create an ``AlertCheck`` for each job if none exists. Return False if no job exists.

    The rows mark all earlier events as seen. With ``from_zero``, they mark none, because this node
    was running before the first job existed.
    """
    using = alias_for(AlertCheck)
    if AlertCheck.objects.using(using).exists():
        return True
    now = database_now(using)
    checks = []
    jobs = Job.objects.using(using).select_related("statistics").order_by()
    for job in jobs.iterator(chunk_size=BATCH_SIZE):
        last_check = AlertCheck(job_id=job.pk, success_at=now)
        statistics = getattr(job, "statistics", None)
        if statistics is not None and not from_zero:
            last_check.succeeded, last_check.missed = statistics.succeeded, statistics.missed
            last_check.shadow_runs = statistics.shadow_runs
            last_check.failed = statistics.failed
            if job.enabled:
                last_check.failed -= statistics.consecutive_failures
            else:
                last_check.consecutive_failures = statistics.consecutive_failures
                last_check.muted = statistics.consecutive_failures
                last_check.auto_paused = _is_auto_paused(job)
        checks.append(last_check)
    AlertCheck.objects.using(using).bulk_create(
        checks, batch_size=BATCH_SIZE, ignore_conflicts=True
    )
    return bool(checks)


def check_job_alerts(
    shards: Collection[int], namespace: str, default_rules: Collection[Rule], since: datetime | None
) -> bool:
    """Check the jobs of ``shards`` that ended a run after ``since`` (None: all jobs).

    Return False if there are more to check.
    """
    using = alias_for(Statistics)
    rows = Statistics.objects.using(using).select_related("job", "job__alert_check").order_by("pk")
    if since is not None:
        rows = rows.filter(last_finished_at__gte=since - OVERLAP)
    rows = rows_in_shards(rows, shards, settings.SHARDS)
    if namespace:
        rows = rows.filter(job__namespace=namespace)
    differing = rows.filter(
        (Q(job__alert_check=None) & ~_NO_FAILURES)
        | (Q(job__alert_check__isnull=False) & ~_UNCHANGED)
        | _RECOVERED
        | (_AUTO_PAUSED & Q(job__alert_check__auto_paused=False))
    )
    page = list(differing[:BATCH_SIZE])
    for statistics in page:
        with isolating_errors(f"checking job {statistics.job} for alerts", using):
            try:
                _check_job(statistics, default_rules, using)
            except IntegrityError:
                if Job.objects.using(using).filter(pk=statistics.pk).exists():
                    raise  # otherwise, the job was deleted meanwhile
    return len(page) < BATCH_SIZE


def _check_job(statistics: Statistics, default_rules: Collection[Rule], using: str) -> None:
    job = statistics.job
    last_check: AlertCheck | None = getattr(job, "alert_check", None)
    before = _counts(last_check) if last_check else JobCounters()
    now = JobCounters(
        statistics.succeeded,
        statistics.failed,
        statistics.missed,
        statistics.consecutive_failures,
        _is_auto_paused(job),
        pause_after_failures=job.pause_after_failures or 1,
        shadow_runs=statistics.shadow_runs,
    )
    failures = now.failed - before.failed
    found = read_failures(job, failures) if failures > 0 else ReportedFailures()
    unmuted = without_muted(before, now, last_check.muted if last_check else 0, found.muted)
    job_rules = rules.rules_of_job(str(job), job.alerts, default_rules)
    events = detect_events(before, now, job_rules, unmuted)
    messages = [_message(event, statistics, found) for event in events]
    success_at = last_check.success_at if last_check else database_now(using)
    if last_check and now.succeeded > before.succeeded:
        success_at = max(success_at, last_success(statistics, otherwise=database_now(using)))
    with transaction.atomic(using=using):
        if _record_counts(job.pk, success_at, before, now, unmuted, using):
            store_alerts(messages)


def _message(event: Event, statistics: Statistics, found: ReportedFailures) -> Message:
    count = statistics.missed if event.rule.on is AlertKind.MISSED else statistics.failed
    key = f"{event.rule.on}:{statistics.pk}:{count}:{event.rule.after}"
    if event.rule.on is not AlertKind.FAILED:
        found = ReportedFailures()
    subject, text = event_message(event, statistics.job, found)
    return Message(
        event.rule.on,
        key,
        subject,
        text,
        statistics.pk,
        event.rule.to,
        run_id=found.run.pk if found.run else None,
        incident_id=found.incident.pk if found.incident else None,
    )


def _record_counts(
    job_id: int,
    success_at: datetime,
    before: JobCounters,
    now: JobCounters,
    unmuted: UnmutedCounters,
    using: str,
) -> bool:
    """Record the counters as seen. Return False if another process did so first."""
    rows = AlertCheck.objects.using(using)
    if before == JobCounters():  # there may be no row yet
        rows.bulk_create([AlertCheck(job_id=job_id, success_at=success_at)], ignore_conflicts=True)
    columns = {
        name: getattr(now, name) for name in (*COUNTERS, "consecutive_failures", "auto_paused")
    }
    guard = {name: getattr(before, name) for name in columns}
    unrecovered = count_unrecovered_failures(unmuted.before, unmuted.now)
    return bool(
        rows.filter(pk=job_id, **guard).update(
            **columns,
            muted=unmuted.muted,
            unrecovered_failures=unrecovered,
            success_at=success_at,
        )
    )


def _counts(row: AlertCheck) -> JobCounters:
    return JobCounters(
        row.succeeded,
        row.failed,
        row.missed,
        row.consecutive_failures,
        row.auto_paused,
        row.unrecovered_failures,
        shadow_runs=row.shadow_runs,
    )


def _is_auto_paused(job: Job) -> bool:
    """Return whether the job is auto-paused. The condition equals ``_AUTO_PAUSED``.

    It doesn't depend on runs that end after the pause, or on pauses by users.
    """
    return not job.enabled and job.pause_reason.startswith(AUTO_PAUSED)
