"""Detect what didn't happen: runs that haven't ended in time, and jobs without a recent success.

Invariants:

- Each channel gets one alert about a late run or a silence. A silence ends with the next success or
  a change of the job.
- Each check reads the next page of candidates and starts over after the last. So reported
  candidates don't hide others.
- A lasting state isn't reported again after its alert is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q

from django_dcron.conf import settings
from django_dcron.contrib.alerts import messages, rules
from django_dcron.contrib.alerts.last_success import last_success
from django_dcron.contrib.alerts.outbox import KEPT, Message, put_new
from django_dcron.db.routing import alias_for
from django_dcron.models import Job, Notice, Run, Statistics
from django_dcron.models.job import JobQuerySet
from django_dcron.policies.alerting import Kind, Rule
from django_dcron.policies.lifecycle import UNFINISHED, State, Trigger

BATCH_SIZE = 1000

Rules = dict[int, tuple[Rule, ...]]


class Overdue:
    """Finds late runs and silent jobs. Each check continues after the previous page."""

    def __init__(self) -> None:
        self._late: tuple[datetime, UUID] | None = None
        self._silent = 0

    def look(
        self, shards: Collection[int], namespace: str, general: Collection[Rule], now: datetime
    ) -> None:
        jobs = Job.objects.using(alias_for(Job)).in_shards(shards, settings.SHARDS).order_by()
        if namespace:
            jobs = jobs.filter(namespace=namespace)
        own = {
            job.pk: rules.of_job(str(job), job.alerts, general)
            for job in jobs.filter(alerts__isnull=False).only("namespace", "name", "alerts")
        }
        self._look_for_late(jobs, own, rules.about(general, Kind.LATE), now)
        self._look_for_silent(jobs, own, rules.about(general, Kind.SILENT), now)

    def _look_for_late(
        self, jobs: JobQuerySet, own: Rules, general: tuple[Rule, ...], now: datetime
    ) -> None:
        asked = _rules_of_kind(own, general, Kind.LATE)
        spans = _spans(asked, general)
        if not spans:
            return
        runs = Run.objects.using(alias_for(Run)).filter(
            state__in=UNFINISHED, claimed_at__lte=now - min(spans)
        )
        runs = runs.exclude(state=State.WAITING, trigger=Trigger.BACKFILL)  # not released yet
        runs = runs.filter(job__in=jobs) if general else runs.filter(job__in=list(asked))
        if self._late is not None:
            due_at, pk = self._late
            runs = runs.filter(Q(due_at__gt=due_at) | Q(pk__gt=pk), due_at__gte=due_at)
        page = list(runs.select_related("job").order_by("due_at", "pk")[:BATCH_SIZE])
        put_new(
            message
            for run in page
            for message in _late_messages(run, asked.get(run.job_id, general), now)
        )
        self._late = (page[-1].due_at, page[-1].pk) if len(page) == BATCH_SIZE else None

    def _look_for_silent(
        self, jobs: JobQuerySet, own: Rules, general: tuple[Rule, ...], now: datetime
    ) -> None:
        asked = _rules_of_kind(own, general, Kind.SILENT)
        spans = _spans(asked, general)
        if not spans:
            return
        watched = (
            jobs.filter(enabled=True) if general else jobs.filter(enabled=True, pk__in=list(asked))
        )
        _begin(watched, now)
        begun = now - min(spans)
        notices = Notice.objects.using(alias_for(Notice)).filter(
            job__in=watched, job__updated_at__lt=begun
        )
        quiet = notices.filter(success_at__lt=begun, pk__gt=self._silent).order_by("pk")
        page = list(quiet.select_related("job", "job__statistics")[:BATCH_SIZE])
        put_new(
            message
            for notice in page
            if not _has_succeeded(notice, now)
            for message in _silences(notice, asked.get(notice.job_id, general), now)
        )
        self._silent = page[-1].pk if len(page) == BATCH_SIZE else 0


def _rules_of_kind(own: Rules, general: tuple[Rule, ...], kind: Kind) -> Rules:
    """Return the rules of this kind for the jobs that have their own rules."""
    return {
        pk: asked for pk, given in own.items() if (asked := rules.about(given, kind)) or general
    }


def _spans(own: Rules, general: tuple[Rule, ...]) -> list[timedelta]:
    return [
        rule.span for given in (*own.values(), general) for rule in given if rule.span is not None
    ]


def _needs_alert(rule: Rule, lasts: timedelta) -> bool:
    return rule.span is not None and rule.span < lasts <= rule.span + KEPT


# --- late -----------------------------------------------------------------------------------------


def _late_messages(run: Run, asked: Collection[Rule], now: datetime) -> Iterator[Message]:
    for rule in asked:
        if rule.span is not None and _needs_alert(rule, now - _begun(run)):
            subject, text = messages.late(run, rule.span)
            key = f"{Kind.LATE}:{run.pk}:{rule.span.total_seconds():g}"
            yield Message(Kind.LATE, key, subject, text, run.job_id, rule.to)


def _begun(run: Run) -> datetime:
    """Return the time from which a run counts as late.

    The ``scheduled_at`` of a manual or backfilled run may be long past.
    """
    if run.trigger == Trigger.SCHEDULE:
        return run.scheduled_at
    return max(run.claimed_at, run.due_at) if run.trigger == Trigger.BACKFILL else run.claimed_at


# --- silent ---------------------------------------------------------------------------------------


def _begin(jobs: JobQuerySet, now: datetime) -> None:
    without = jobs.filter(notice=None).values_list("pk", flat=True)[:BATCH_SIZE]
    made = [Notice(job_id=pk, success_at=now) for pk in without]
    Notice.objects.using(alias_for(Notice)).bulk_create(made, ignore_conflicts=True)


def _has_succeeded(notice: Notice, now: datetime) -> bool:
    """Whether the job has succeeded since the notice was written. Update the notice if so.

    The silence check calls this before it reports a silence, because a success alone doesn't update
    the notice.
    """
    counted: Statistics | None = getattr(notice.job, "statistics", None)
    if counted is None or counted.succeeded <= notice.succeeded:
        return False
    success_at = max(notice.success_at, last_success(counted, otherwise=now))
    rows = Notice.objects.using(alias_for(Notice)).filter(pk=notice.pk, succeeded=notice.succeeded)
    rows.update(succeeded=counted.succeeded, success_at=success_at)
    return True


def _silences(notice: Notice, asked: Collection[Rule], now: datetime) -> Iterator[Message]:
    """Yield the alerts about a silence.

    It begins with the last success or the last change of the job, which may have been paused until
    then.
    """
    since = max(notice.success_at, notice.job.updated_at)
    for rule in asked:
        if rule.span is not None and _needs_alert(rule, now - since):
            subject, text = messages.silent(notice.job, since, rule.span)
            key = f"{Kind.SILENT}:{notice.pk}:{since.isoformat()}:{rule.span.total_seconds():g}"
            yield Message(Kind.SILENT, key, subject, text, notice.pk, rule.to)
