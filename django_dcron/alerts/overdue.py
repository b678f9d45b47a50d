"""What did not happen: runs that have not ended in time, and jobs of which none succeeds any more.

Of one run, and of one silence, each channel is told once; a silence is over with the next success, or a change of the job.

Each look takes the next page of what may be worth an alert, and begins anew after the last: what was told of, and stays as it is,
keeps nobody from the rest, however many they are. What stays for longer than its alert is kept is not told of anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q

from django_dcron.alerts import rules, wording
from django_dcron.alerts.outbox import KEPT, Message, put_new
from django_dcron.alerts.successes import last_success
from django_dcron.conf import settings
from django_dcron.domain.alerting import Kind, Rule
from django_dcron.domain.lifecycle import UNFINISHED, State, Trigger
from django_dcron.models import Job, Notice, Run, Statistics
from django_dcron.models.database import alias_for
from django_dcron.models.job import JobQuerySet

LOOKED_AT_ONCE = 1000

Rules = dict[int, tuple[Rule, ...]]


class Overdue:
    """Of one node: it remembers how far it has looked."""

    def __init__(self) -> None:
        self._late: tuple[datetime, UUID] | None = None
        self._silent = 0

    def look(self, shards: Collection[int], namespace: str, general: Collection[Rule], now: datetime) -> None:
        jobs = Job.objects.using(alias_for(Job)).in_shards(shards, settings.SHARDS).order_by()
        if namespace:
            jobs = jobs.filter(namespace=namespace)
        own = {
            job.pk: rules.of_job(str(job), job.alerts, general)
            for job in jobs.filter(alerts__isnull=False).only("namespace", "name", "alerts")
        }
        self._look_for_late(jobs, own, rules.about(general, Kind.LATE), now)
        self._look_for_silent(jobs, own, rules.about(general, Kind.SILENT), now)

    def _look_for_late(self, jobs: JobQuerySet, own: Rules, general: tuple[Rule, ...], now: datetime) -> None:
        asked = _asked(own, general, Kind.LATE)
        spans = _spans(asked, general)
        if not spans:
            return
        runs = Run.objects.using(alias_for(Run)).filter(
            state__in=UNFINISHED, claimed_at__lte=now - min(spans)
        )
        runs = runs.exclude(state=State.WAITING, trigger=Trigger.BACKFILL)  # its turn has not come
        runs = runs.filter(job__in=jobs) if general else runs.filter(job__in=list(asked))
        if self._late is not None:
            due_at, pk = self._late
            runs = runs.filter(Q(due_at__gt=due_at) | Q(pk__gt=pk), due_at__gte=due_at)
        page = list(runs.select_related("job").order_by("due_at", "pk")[:LOOKED_AT_ONCE])
        put_new(message for run in page for message in _latenesses(run, asked.get(run.job_id, general), now))
        self._late = (page[-1].due_at, page[-1].pk) if len(page) == LOOKED_AT_ONCE else None

    def _look_for_silent(
        self, jobs: JobQuerySet, own: Rules, general: tuple[Rule, ...], now: datetime
    ) -> None:
        asked = _asked(own, general, Kind.SILENT)
        spans = _spans(asked, general)
        if not spans:
            return
        watched = jobs.filter(enabled=True) if general else jobs.filter(enabled=True, pk__in=list(asked))
        _begin(watched, now)
        begun = now - min(spans)
        notices = Notice.objects.using(alias_for(Notice)).filter(job__in=watched, job__updated_at__lt=begun)
        quiet = notices.filter(success_at__lt=begun, pk__gt=self._silent).order_by("pk")
        page = list(quiet.select_related("job", "job__statistics")[:LOOKED_AT_ONCE])
        put_new(
            message
            for notice in page
            if not _has_succeeded(notice, now)
            for message in _silences(notice, asked.get(notice.job_id, general), now)
        )
        self._silent = page[-1].pk if len(page) == LOOKED_AT_ONCE else 0


def _asked(own: Rules, general: tuple[Rule, ...], kind: Kind) -> Rules:
    """The rules of this kind of the jobs that have their own."""
    return {pk: asked for pk, given in own.items() if (asked := rules.about(given, kind)) or general}


def _spans(own: Rules, general: tuple[Rule, ...]) -> list[timedelta]:
    return [rule.span for given in (*own.values(), general) for rule in given if rule.span is not None]


def _is_told_of(rule: Rule, lasts: timedelta) -> bool:
    return rule.span is not None and rule.span < lasts <= rule.span + KEPT


# --- late -------------------------------------------------------------------------------------------------------------


def _latenesses(run: Run, asked: Collection[Rule], now: datetime) -> Iterator[Message]:
    for rule in asked:
        if rule.span is not None and _is_told_of(rule, now - _begun(run)):
            subject, text = wording.late(run, rule.span)
            key = f"{Kind.LATE}:{run.pk}:{rule.span.total_seconds():g}"
            yield Message(Kind.LATE, key, subject, text, run.job_id, rule.to)


def _begun(run: Run) -> datetime:
    """Since when it is on its way: one made by hand or backfilled stands for a time of its own."""
    if run.trigger == Trigger.SCHEDULE:
        return run.scheduled_at
    return max(run.claimed_at, run.due_at) if run.trigger == Trigger.BACKFILL else run.claimed_at


# --- silent -----------------------------------------------------------------------------------------------------------


def _begin(jobs: JobQuerySet, now: datetime) -> None:
    without = jobs.filter(notice=None).values_list("pk", flat=True)[:LOOKED_AT_ONCE]
    made = [Notice(job_id=pk, success_at=now) for pk in without]
    Notice.objects.using(alias_for(Notice)).bulk_create(made, ignore_conflicts=True)


def _has_succeeded(notice: Notice, now: datetime) -> bool:
    """Successes are noticed here, when a silence would be told of: not one by one. Notes what it found."""
    counted: Statistics | None = getattr(notice.job, "statistics", None)
    if counted is None or counted.succeeded <= notice.succeeded:
        return False
    success_at = max(notice.success_at, last_success(counted, otherwise=now))
    rows = Notice.objects.using(alias_for(Notice)).filter(pk=notice.pk, succeeded=notice.succeeded)
    rows.update(succeeded=counted.succeeded, success_at=success_at)
    return True


def _silences(notice: Notice, asked: Collection[Rule], now: datetime) -> Iterator[Message]:
    """Counted from the last success, or the last change of the job: it may have been paused until then."""
    since = max(notice.success_at, notice.job.updated_at)
    for rule in asked:
        if rule.span is not None and _is_told_of(rule, now - since):
            subject, text = wording.silent(notice.job, since, rule.span)
            key = f"{Kind.SILENT}:{notice.pk}:{since.isoformat()}:{rule.span.total_seconds():g}"
            yield Message(Kind.SILENT, key, subject, text, notice.pk, rule.to)
