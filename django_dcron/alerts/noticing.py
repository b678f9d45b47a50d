"""Noticing: a job's counters against what was noticed of them last (``domain.alerting``).

Read are the jobs that ended a run lately and differ in what may be worth an alert; a job of which nothing was ever noticed
has no row, which means zeros. When alerting begins, whatever has been counted before is noticed without a word, but for
streaks that still last: they are told of once. It begins once, with the first job; all jobs there are get their rows then.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Q

from django_dcron.alerts import rules
from django_dcron.alerts.outbox import Message, put
from django_dcron.alerts.successes import last_success
from django_dcron.alerts.wording import of_event
from django_dcron.conf import settings
from django_dcron.domain.alerting import Counts, Event, Kind, Rule, happened
from django_dcron.models import Job, Notice, Statistics
from django_dcron.models.database import alias_for, database_now, keeping_the_others_going
from django_dcron.pausing import PAUSED_ITSELF

OVERLAP = timedelta(minutes=1)
"""How long before it is seen an end may have been dated: its transaction took so long. What took longer, and a circuit that
somebody else had to open, is found when all jobs are looked at, now and then (``alerter``)."""
LOOKED_AT_ONCE = 500
COUNTED = ("succeeded", "failed", "missed")

_OPEN = Q(job__enabled=False, job__pause_reason__startswith=PAUSED_ITSELF)
_QUIET = Q(failed=0, missed=0)
_SAME = Q(
    failed=F("job__notice__failed"),
    missed=F("job__notice__missed"),
    failures_in_a_row=F("job__notice__streak"),
)


def begin(*, from_zero: bool) -> bool:
    """If nothing ever was noticed: notice without a word what has been counted until now; or nothing, if we have looked before
    there was any job (``from_zero``). False: there still is none."""
    using = alias_for(Notice)
    if Notice.objects.using(using).exists():
        return True
    now = database_now(using)
    made = []
    for job in (
        Job.objects.using(using).select_related("statistics").order_by().iterator(chunk_size=LOOKED_AT_ONCE)
    ):
        notice, counted = Notice(job_id=job.pk, success_at=now), getattr(job, "statistics", None)
        if counted is not None and not from_zero:
            notice.succeeded, notice.missed = counted.succeeded, counted.missed
            notice.failed = counted.failed - counted.failures_in_a_row
        made.append(notice)
    Notice.objects.using(using).bulk_create(made, batch_size=LOOKED_AT_ONCE, ignore_conflicts=True)
    return bool(made)


def look(shards: Collection[int], namespace: str, general: Collection[Rule], since: datetime | None) -> bool:
    """Look at the jobs of ``shards`` that ended a run ``since`` (None: ever). False: there is more to look at."""
    using = alias_for(Statistics)
    counted = Statistics.objects.using(using).select_related("job", "job__notice").order_by("pk")
    if since is not None:
        counted = counted.filter(last_finished_at__gte=since - OVERLAP)
    if len(shards) < settings.SHARDS:
        counted = counted.alias(shard=F("pk") % settings.SHARDS).filter(shard__in=shards)
    if namespace:
        counted = counted.filter(job__namespace=namespace)
    differing = counted.filter(
        (Q(job__notice=None) & ~_QUIET)
        | (Q(job__notice__isnull=False) & ~_SAME)
        | (_OPEN & Q(job__notice__circuit_open=False))
    )
    found = list(differing[:LOOKED_AT_ONCE])
    for statistics in found:
        with keeping_the_others_going(f"noticing what job {statistics.job} did", using):
            try:
                _notice(statistics, general, using)
            except IntegrityError:
                if Job.objects.using(using).filter(pk=statistics.pk).exists():
                    raise  # else it was deleted meanwhile
    return len(found) < LOOKED_AT_ONCE


def _notice(statistics: Statistics, general: Collection[Rule], using: str) -> None:
    job = statistics.job
    noticed: Notice | None = getattr(job, "notice", None)
    before = _counts(noticed) if noticed else Counts()
    now = Counts(
        statistics.succeeded,
        statistics.failed,
        statistics.missed,
        statistics.failures_in_a_row,
        _is_open(statistics),
    )
    events = happened(before, now, rules.of_job(str(job), job.alerts, general))
    messages = [_message(event, statistics) for event in events]
    success_at = noticed.success_at if noticed else database_now(using)
    if noticed and now.succeeded > before.succeeded:
        success_at = max(success_at, last_success(statistics, otherwise=database_now(using)))
    with transaction.atomic(using=using):
        if _note(job.pk, success_at, before, now, using):
            put(messages)


def _message(event: Event, statistics: Statistics) -> Message:
    count = statistics.missed if event.rule.on is Kind.MISSED else statistics.failed
    key = f"{event.rule.on}:{statistics.pk}:{count}:{event.rule.after}"
    subject, text = of_event(event, statistics.job)
    return Message(event.rule.on, key, subject, text, statistics.pk, event.rule.to)


def _note(job_id: int, success_at: datetime, before: Counts, now: Counts, using: str) -> bool:
    """False: somebody else has noticed it."""
    rows = Notice.objects.using(using)
    if before == Counts():  # there may be no row yet
        rows.bulk_create([Notice(job_id=job_id, success_at=success_at)], ignore_conflicts=True)
    columns = {name: getattr(now, name) for name in (*COUNTED, "streak", "circuit_open")}
    guard = {name: getattr(before, name) for name in columns}
    return bool(rows.filter(pk=job_id, **guard).update(**columns, success_at=success_at))


def _counts(row: Any) -> Counts:
    return Counts(row.succeeded, row.failed, row.missed, row.streak, row.circuit_open)


def _is_open(statistics: Statistics) -> bool:
    """As ``_OPEN``: what ends after it has opened changes nothing about that, nor does a pause that somebody else made."""
    job = statistics.job
    return not job.enabled and job.pause_reason.startswith(PAUSED_ITSELF)
