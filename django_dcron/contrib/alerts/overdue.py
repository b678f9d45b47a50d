"""Detect overdue work: runs that haven't ended in time, and jobs without a recent success.

Invariants:

- For each time in its rules, a channel gets one alert per late run and per silence. A silence ends
  with the next success or a change of the job.
- Each check reads the next page of candidates. After the last page, the next check starts over. So
  candidates that are already reported don't hide others.
- A run or a job that is still late or silent when its alert is deleted isn't reported again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q

from django_dcron.conf import settings
from django_dcron.contrib.alerts import messages, rules
from django_dcron.contrib.alerts.last_success import last_success
from django_dcron.contrib.alerts.outbox import RETENTION, Message, store_new_alerts
from django_dcron.db.routing import alias_for
from django_dcron.models import AlertCheck, Job, Run, Statistics
from django_dcron.models.job import JobQuerySet
from django_dcron.policies.alerting import AlertKind, Rule
from django_dcron.policies.lifecycle import UNFINISHED, State, Trigger

BATCH_SIZE = 1000

RulesByJob = dict[int, tuple[Rule, ...]]


@dataclass(frozen=True, slots=True)
class _KindRules:
    """The rules of one kind."""

    own: RulesByJob
    """The rules of jobs that have their own."""
    default: tuple[Rule, ...]
    """The rules of all other jobs."""

    @classmethod
    def select(
        cls, kind: AlertKind, own_rules: RulesByJob, default_rules: Collection[Rule]
    ) -> _KindRules:
        """Select the rules of ``kind``.

        If there are default rules, a job that has only own rules of other kinds is included, too:
        the default rules don't apply to it.
        """
        default = rules.rules_of_kinds(default_rules, kind)
        own = {
            job_id: selected
            for job_id, job_rules in own_rules.items()
            if (selected := rules.rules_of_kinds(job_rules, kind)) or default
        }
        return cls(own, default)

    @property
    def shortest_span(self) -> timedelta | None:
        spans = [
            rule.span
            for job_rules in (*self.own.values(), self.default)
            for rule in job_rules
            if rule.span is not None
        ]
        return min(spans, default=None)

    def narrow(self, jobs: JobQuerySet) -> JobQuerySet:
        """Return the ``jobs`` to which a rule may apply."""
        return jobs if self.default else jobs.filter(pk__in=list(self.own))

    def of_job(self, job_id: int) -> tuple[Rule, ...]:
        return self.own.get(job_id, self.default)


class OverdueCheck:
    """Finds late runs and silent jobs. Each check continues after the previous page."""

    def __init__(self) -> None:
        self._late_after: tuple[datetime, UUID] | None = None
        """``due_at`` and id of the last run of the previous page. None: start over."""
        self._silent_after = 0
        """The id of the last job of the previous page. 0: start over."""

    def check(
        self,
        shards: Collection[int],
        namespace: str,
        default_rules: Collection[Rule],
        now: datetime,
    ) -> None:
        """Store alerts about late runs and silent jobs in ``shards``."""
        jobs = Job.objects.using(alias_for(Job)).in_shards(shards, settings.SHARDS).order_by()
        if namespace:
            jobs = jobs.filter(namespace=namespace)
        own_rules = {
            job.pk: rules.rules_of_job(str(job), job.alerts, default_rules)
            for job in jobs.filter(alerts__isnull=False).only("namespace", "name", "alerts")
        }
        for kind, check in (
            (AlertKind.LATE, self._check_late),
            (AlertKind.SILENT, self._check_silent),
        ):
            applicable = _KindRules.select(kind, own_rules, default_rules)
            if (span := applicable.shortest_span) is not None:
                check(applicable.narrow(jobs), applicable, now - span, now)

    def _check_late(
        self, jobs: JobQuerySet, applicable: _KindRules, before: datetime, now: datetime
    ) -> None:
        runs = Run.objects.using(alias_for(Run)).filter(
            state__in=UNFINISHED, claimed_at__lte=before, job__in=jobs
        )
        runs = runs.exclude(state=State.WAITING, trigger=Trigger.BACKFILL)  # not released yet
        if self._late_after is not None:
            due_at, pk = self._late_after
            runs = runs.filter(Q(due_at__gt=due_at) | Q(pk__gt=pk), due_at__gte=due_at)
        page = list(runs.select_related("job").order_by("due_at", "pk")[:BATCH_SIZE])
        store_new_alerts(
            message
            for run in page
            for message in _late_messages(run, applicable.of_job(run.job_id), now)
        )
        self._late_after = (page[-1].due_at, page[-1].pk) if len(page) == BATCH_SIZE else None

    def _check_silent(
        self, jobs: JobQuerySet, applicable: _KindRules, before: datetime, now: datetime
    ) -> None:
        watched = jobs.filter(enabled=True)
        _create_missing_checks(watched, now)
        checks = AlertCheck.objects.using(alias_for(AlertCheck)).filter(
            job__in=watched, job__updated_at__lt=before
        )
        silent = checks.filter(success_at__lt=before, pk__gt=self._silent_after).order_by("pk")
        page = list(silent.select_related("job", "job__statistics")[:BATCH_SIZE])
        store_new_alerts(
            message
            for last_check in page
            if not _record_success(last_check, now)
            for message in _silent_messages(last_check, applicable.of_job(last_check.job_id), now)
        )
        self._silent_after = page[-1].pk if len(page) == BATCH_SIZE else 0


def _needs_alert(rule: Rule, duration: timedelta) -> bool:
    """Return whether a state that has lasted for ``duration`` must be reported.

    After ``rule.span + RETENTION``, its alert may have been deleted, so it isn't reported again.
    """
    return rule.span is not None and rule.span < duration <= rule.span + RETENTION


# --- late -----------------------------------------------------------------------------------------


def _late_messages(run: Run, applicable: Collection[Rule], now: datetime) -> Iterator[Message]:
    for rule in applicable:
        if rule.span is not None and _needs_alert(rule, now - _late_from(run)):
            subject, text = messages.late_message(run, rule.span)
            key = f"{AlertKind.LATE}:{run.pk}:{rule.span.total_seconds():g}"
            yield Message(AlertKind.LATE, key, subject, text, run.job_id, rule.to)


def _late_from(run: Run) -> datetime:
    """Return the time from which the lateness of a run is measured.

    The ``scheduled_at`` of a manual or backfilled run may be long past.
    """
    if run.trigger == Trigger.SCHEDULE:
        return run.scheduled_at
    if run.trigger == Trigger.BACKFILL:
        return max(run.claimed_at, run.due_at)
    return run.claimed_at


# --- silent ---------------------------------------------------------------------------------------


def _create_missing_checks(jobs: JobQuerySet, now: datetime) -> None:
    """Create the missing rows. The silence of these jobs is measured from ``now``."""
    job_ids = jobs.filter(alert_check=None).values_list("pk", flat=True)[:BATCH_SIZE]
    checks = [AlertCheck(job_id=pk, success_at=now) for pk in job_ids]
    AlertCheck.objects.using(alias_for(AlertCheck)).bulk_create(checks, ignore_conflicts=True)


def _record_success(last_check: AlertCheck, now: datetime) -> bool:
    """Record a success since the last check, if nothing else records it.

    Return whether there was one. ``job_alerts`` records a success that ended failures, with its
    alert, or that came with a change of another counter.
    """
    statistics: Statistics | None = getattr(last_check.job, "statistics", None)
    if statistics is None or statistics.succeeded <= last_check.succeeded:
        return False
    others = ("failed", "missed", "consecutive_failures")
    if last_check.unrecovered_failures or any(
        getattr(statistics, name) != getattr(last_check, name) for name in others
    ):
        return True
    success_at = max(last_check.success_at, last_success(statistics, otherwise=now))
    rows = AlertCheck.objects.using(alias_for(AlertCheck)).filter(
        pk=last_check.pk, succeeded=last_check.succeeded
    )
    rows.update(
        succeeded=statistics.succeeded,
        shadow_runs=statistics.shadow_runs,
        success_at=success_at,
    )
    return True


def _silent_messages(
    last_check: AlertCheck, applicable: Collection[Rule], now: datetime
) -> Iterator[Message]:
    """Yield the alerts about a silence.

    The silence is measured from the last success or the last change of the job, because a change
    may have resumed the job.
    """
    since = max(last_check.success_at, last_check.job.updated_at)
    for rule in applicable:
        if rule.span is not None and _needs_alert(rule, now - since):
            subject, text = messages.silence_message(last_check.job, since, rule.span)
            span = f"{rule.span.total_seconds():g}"
            key = f"{AlertKind.SILENT}:{last_check.pk}:{since.isoformat()}:{span}"
            yield Message(AlertKind.SILENT, key, subject, text, last_check.pk, rule.to)
