"""Summarize the current state in a few figures, at bounded cost.

Invariants:

- No query reads more than ``MAX_COUNTED`` + 1 rows of runs or cursors, each through an index. A
  higher count is reported as "more".
- Jobs are counted in full: there are thousands of them, not millions.
- A narrowed scope counts only the visible rows. Its figures read no runs outside their state or
  window.
- Figures of the last 24 hours use ``due_at``, because (state, due_at) is an index. A retry moves
  ``due_at`` to the latest attempt.
- Percentiles cover at most the latest ``SAMPLE`` starts. If there are too many runs to count, the
  success rate also covers at most these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, When

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.bounded_count import MAX_COUNTED
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.diagnosis.summaries import (
    Summary,
    SummaryQuery,
    count,
    count_distinct,
    summarize,
    total,
)
from django_dcron.models import Attempt, Cursor, Run
from django_dcron.models.freeze import job_is_frozen
from django_dcron.models.job_states import IS_FINISHED, IS_PAUSED, IS_QUARANTINED
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.targets.shadow import NOT_EXECUTED

SAMPLE = 1_000
MISSED_BEFORE = "missed_before"
ATTEMPTS_READ_LIMIT = 20_000
"""The number of latest attempts that a narrowed scope searches."""
DAY = timedelta(days=1)
SOON = timedelta(hours=1)
UNSTARTED = (State.PENDING, State.QUEUED, State.WAITING)


@dataclass(frozen=True, slots=True)
class LimitedCount:
    number: int
    """At most ``MAX_COUNTED``."""
    truncated: bool = False
    """Whether the real number is higher."""

    @classmethod
    def up_to_limit(cls, found: int) -> LimitedCount:
        return cls(min(found, MAX_COUNTED), found > MAX_COUNTED)


@dataclass(frozen=True, slots=True)
class JobFigures:
    total: int
    paused: int
    finished: int
    """Jobs whose schedule has no further occurrence."""
    quarantined: int
    """Jobs that aren't scheduled because of a problem, such as an invalid schedule."""
    due_soon: LimitedCount
    """Jobs with an occurrence within the next hour, or with a claimed run not dispatched yet."""
    held_back: int
    """The number of these jobs that a freeze holds back; at most ``MAX_COUNTED``."""
    next_at: datetime | None
    """The earliest of these occurrences, including those that a freeze holds back."""

    @property
    def enabled(self) -> int:
        return self.total - self.paused - self.finished - self.quarantined


@dataclass(frozen=True, slots=True)
class RecentStarts:
    """The latest attempts that started in the window, each only if it is its run's latest."""

    number: int
    truncated: bool
    """Whether there may be more starts."""
    succeeded: int
    """Without shadow runs, which execute nothing."""
    failed: int
    shadows: int
    """Shadow runs."""
    missed_before: int
    start_delays: tuple[timedelta, ...]
    """In ascending order."""


@dataclass(frozen=True, slots=True)
class SuccessRate:
    succeeded: int
    failed: int
    sampled: bool
    """Whether the rate covers only the latest starts."""

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed

    @property
    def percent(self) -> float | None:
        """The rate, rounded down to one decimal, so that 100 means all; None without runs."""
        return self.succeeded * 1000 // self.ended / 10 if self.ended else None


def success_rate_of(outcomes: Iterable[tuple[str, str]]) -> SuccessRate:
    """Return the rate of runs, given by state and reason, without shadow runs.

    Shadow runs execute nothing.
    """
    states = [state for state, reason in outcomes if reason != NOT_EXECUTED]
    return SuccessRate(states.count(State.SUCCEEDED), states.count(State.FAILED), sampled=True)


@dataclass(frozen=True, slots=True)
class RunFigures:
    since: datetime
    running: LimitedCount
    queued: LimitedCount
    waiting: LimitedCount
    # The following counts cover the window.
    succeeded: LimitedCount
    """Without shadow runs, which execute nothing."""
    failed: LimitedCount
    skipped: LimitedCount
    missed: LimitedCount
    missed_before: int
    """Earlier missed occurrences that the latest ``SAMPLE`` missed runs count."""
    unstarted: int
    """Runs that haven't started yet; at most ``MAX_COUNTED`` + 1."""
    missed_before_unstarted: int
    """Earlier missed occurrences that these runs count."""
    starts: RecentStarts

    @property
    def counted_by_later_runs(self) -> int:
        """The number of missed occurrences without a row.

        Later runs count them, whether these are missed, started or waiting.
        """
        return self.missed_before + self.missed_before_unstarted + self.starts.missed_before

    @property
    def missed_occurrences(self) -> int:
        return self.missed.number + self.counted_by_later_runs

    @property
    def is_lower_bound(self) -> bool:
        """Whether runs that weren't read may count more missed occurrences."""
        return self.starts.truncated or self.missed.number > SAMPLE or self.unstarted > MAX_COUNTED

    @property
    def success_rate(self) -> SuccessRate:
        if self.succeeded.truncated or self.failed.truncated:
            return SuccessRate(self.starts.succeeded, self.starts.failed, sampled=True)
        return SuccessRate(self.succeeded.number, self.failed.number, sampled=False)


def window_start(now: datetime) -> datetime:
    """Return the start of the last 24 hours.

    It is at a whole minute, so that figures and links stay stable within the minute.
    """
    return (now - DAY).replace(second=0, microsecond=0)


@dataclass(frozen=True, slots=True)
class SystemFigures:
    jobs: JobFigures
    runs: RunFigures


def job_figures(now: datetime, scope: Scope = EVERYTHING) -> JobFigures:
    return _job_figures(summarize(*_job_rows(now, scope)))


def run_figures(now: datetime, scope: Scope = EVERYTHING) -> RunFigures:
    return _run_figures(summarize(*_run_rows(now, scope)), now, scope)


def read_figures(now: datetime, scope: Scope = EVERYTHING) -> SystemFigures:
    """Return all figures, with one query fewer than ``job_figures`` and ``run_figures``."""
    jobs = _job_rows(now, scope)
    found = summarize(*jobs, *_run_rows(now, scope))
    return SystemFigures(
        _job_figures(found[: len(jobs)]), _run_figures(found[len(jobs) :], now, scope)
    )


def _job_figures(found: Sequence[Summary]) -> JobFigures:
    jobs, coming, claimed = found
    return JobFigures(
        total=jobs.number,
        paused=jobs.numbers["paused"],
        finished=jobs.numbers["finished"],
        quarantined=jobs.numbers["quarantined"],
        due_soon=LimitedCount.up_to_limit(coming.number + claimed.numbers["jobs"]),
        held_back=min(coming.numbers["frozen"] + claimed.numbers["frozen_jobs"], MAX_COUNTED),
        next_at=min(filter(None, (coming.first, claimed.first)), default=None),
    )


def _job_rows(now: datetime, scope: Scope) -> tuple[SummaryQuery, ...]:
    """Return the jobs by state, and the cursors and runs due within the hour.

    Cursors are ahead of claimed occurrences, which are pending runs. At most ``MAX_COUNTED`` + 1 of
    these are read. Their queries have no join, so that the database starts with the times.
    """
    jobs, horizon = scope.jobs.order_by(), now + SOON
    # The cursor of a disabled job has no next occurrence.
    due = Cursor.objects.using(alias_for(Cursor)).due(horizon)
    cursors = scope.of_jobs(due, "pk")
    pending = scope.runs.pending().due(horizon).order_by("due_at")
    counted = Exists(cursors.order_by().filter(pk=OuterRef("job_id")))
    all_cursors = Cursor.objects.using(alias_for(Cursor))
    frozen = Exists(all_cursors.filter(job_is_frozen("pk", "namespace"), pk=OuterRef("job_id")))
    occurrence = Q(attempt=1, trigger=Trigger.SCHEDULE)
    not_counted = occurrence & Q(counted=False)
    return (
        SummaryQuery(
            jobs,
            numbers={
                "paused": count(Case(When(IS_PAUSED, then=F("pk")))),
                "finished": count(Case(When(IS_FINISHED, then=F("pk")))),
                "quarantined": count(Case(When(IS_QUARANTINED, then=F("pk")))),
            },
        ),
        SummaryQuery(
            cursors.order_by("next_at"),
            MAX_COUNTED + 1,
            numbers={
                "frozen": count(
                    Case(When(job_is_frozen("pk", "namespace", "next_at"), then=F("pk")))
                )
            },
            first="next_at",
        ),
        SummaryQuery(
            pending.annotate(counted=counted, frozen=frozen),
            MAX_COUNTED + 1,
            numbers={
                "jobs": count_distinct(Case(When(not_counted, then=F("job_id")))),
                "frozen_jobs": count_distinct(
                    Case(When(not_counted & Q(frozen=True), then=F("job_id")))
                ),
            },
            first=Case(When(occurrence, then=F("due_at"))),
        ),
    )


def _run_rows(now: datetime, scope: Scope) -> tuple[SummaryQuery, ...]:
    runs = scope.runs
    ended = runs.filter(due_at__gte=window_start(now))
    counted = (
        runs.running(),
        runs.queued(),
        runs.waiting(),
        ended.filter(state=State.SUCCEEDED).exclude(reason=NOT_EXECUTED),
        ended.filter(state=State.FAILED),
        ended.filter(state=State.SKIPPED),
    )
    return (
        *_missed_rows(ended),
        *(SummaryQuery(rows.order_by(), MAX_COUNTED + 1) for rows in counted),
    )


def _run_figures(found: Sequence[Summary], now: datetime, scope: Scope) -> RunFigures:
    missed, before, unstarted, *states = found
    running, queued, waiting, succeeded, failed, skipped = (
        LimitedCount.up_to_limit(each.number) for each in states
    )
    return RunFigures(
        since=window_start(now),
        running=running,
        queued=queued,
        waiting=waiting,
        succeeded=succeeded,
        failed=failed,
        skipped=skipped,
        missed=LimitedCount.up_to_limit(missed.number),
        missed_before=before.numbers[MISSED_BEFORE],
        unstarted=unstarted.number,
        missed_before_unstarted=unstarted.numbers[MISSED_BEFORE],
        starts=_starts(window_start(now), scope),
    )


def count_missed_occurrences(runs: QuerySet[Run], since: datetime) -> int:
    """Return the number of occurrences since ``since`` for which no run was started.

    An occurrence counts if its run is missed, or if a later run that was missed or hasn't started
    counts it. The number is a lower bound if more than ``MAX_COUNTED`` runs are involved.
    """
    missed, before, unstarted = summarize(*_missed_rows(runs.filter(due_at__gte=since)))
    return missed.number + before.numbers[MISSED_BEFORE] + unstarted.numbers[MISSED_BEFORE]


def _missed_rows(late: QuerySet[Run]) -> tuple[SummaryQuery, SummaryQuery, SummaryQuery]:
    """Return the missed runs, the latest of them, and the runs that haven't started."""
    missed = late.filter(state=State.MISSED)
    counted_by_runs = {MISSED_BEFORE: total(MISSED_BEFORE)}
    return (
        SummaryQuery(missed.order_by(), MAX_COUNTED + 1),
        SummaryQuery(missed.order_by("-due_at"), SAMPLE, counted_by_runs),
        SummaryQuery(late.filter(state__in=UNSTARTED).order_by(), MAX_COUNTED + 1, counted_by_runs),
    )


class _StartedRun(NamedTuple):
    pk: UUID
    attempt: int
    state: str
    reason: str
    missed_before: int
    due_at: datetime
    started_at: datetime


def _starts(since: datetime, scope: Scope) -> RecentStarts:
    """Return the starts since ``since`` among the latest attempts.

    The keys of attempts are in the order of their starts. Two queries avoid a join, for which a
    database may read all runs first.

    A run's ``due_at`` belongs to its latest attempt, or to the next one if it waits for a retry.
    The start delay of earlier attempts is therefore unknown.
    """
    attempts = list(latest_attempts(scope).order_by("-pk").values_list("run", "number")[:SAMPLE])
    latest: dict[Any, int] = {}
    for run_id, number in attempts:
        latest.setdefault(run_id, number)
    runs = Run.objects.using(alias_for(Run)).filter(pk__in=latest, started_at__gte=since)
    started = map(_StartedRun._make, runs.values_list(*_StartedRun._fields))
    rows = [run for run in started if run.attempt == latest[run.pk]]
    states = [run.state for run in rows if run.reason != NOT_EXECUTED]
    return RecentStarts(
        number=len(rows),
        truncated=len(attempts) == SAMPLE,
        succeeded=states.count(State.SUCCEEDED),
        failed=states.count(State.FAILED),
        shadows=len(rows) - len(states),
        missed_before=sum(run.missed_before for run in rows if run.state != State.MISSED),
        start_delays=tuple(sorted(max(run.started_at - run.due_at, timedelta()) for run in rows)),
    )


def latest_attempts(scope: Scope) -> QuerySet[Attempt]:
    """Return the visible attempts.

    For a narrowed scope, only the latest ``ATTEMPTS_READ_LIMIT`` of all attempts are searched,
    because no index finds them.
    """
    if not (scope.narrows(Run) or scope.narrows(Attempt)):
        return scope.attempts
    last = (
        Attempt.objects.using(alias_for(Attempt))
        .order_by("-pk")
        .values_list("pk", flat=True)
        .first()
        or 0
    )
    return scope.of_runs(scope.attempts.filter(pk__gt=last - ATTEMPTS_READ_LIMIT), "run")


def percentile(ascending: Sequence[timedelta], percent: int) -> timedelta | None:
    """Return the nearest-rank percentile, or None for an empty sequence."""
    return ascending[ceil(len(ascending) * percent / 100) - 1] if ascending else None
