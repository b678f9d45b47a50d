"""How things stand, in a few figures, whatever the tables hold.

Invariants:

- No query reads more than ``LIMIT`` + 1 rows of runs, or of cursors; each by an index. What is more is called more.
- The jobs' rows are counted: there are thousands of those, not millions.
- A narrowed scope counts the visible rows alone. Its figures still read no runs but those in the state or the window they're about.
- A figure of the last 24 hours goes by ``due_at``, of which (state, due_at) is an index; a retry moves it to the latest attempt's.
- Percentiles are of the latest ``SAMPLE`` starts at the most. So is the success rate, if there are too many runs to count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from django.db.models import Count as Number
from django.db.models import Exists, Min, OuterRef, Q, QuerySet, Sum

from django_dcron.domain.lifecycle import State, Trigger
from django_dcron.models import Attempt, Cursor, Run
from django_dcron.models.database import alias_for
from django_dcron.observability.bounded import LIMIT, count_up_to
from django_dcron.observability.scope import EVERYTHING, Scope

SAMPLE = 1_000
ATTEMPTS_LOOKED_AT = 20_000
DAY = timedelta(days=1)
SOON = timedelta(hours=1)
UNSTARTED = (State.PENDING, State.QUEUED, State.WAITING)


@dataclass(frozen=True, slots=True)
class Count:
    number: int
    """At most ``LIMIT``."""
    more: bool = False
    """There are more than ``number``."""

    @classmethod
    def of(cls, queryset: QuerySet[Any]) -> Count:
        return cls.up_to_limit(count_up_to(queryset, LIMIT))

    @classmethod
    def up_to_limit(cls, found: int) -> Count:
        return cls(min(found, LIMIT), found > LIMIT)


@dataclass(frozen=True, slots=True)
class JobFigures:
    total: int
    paused: int
    out_of_scheduling: int
    """Not paused, but in quarantine."""
    due_soon: Count
    """Jobs with an occurrence within the next hour, or with one that is claimed and not handed over yet."""
    next_at: datetime | None
    """The first of those."""

    @property
    def enabled(self) -> int:
        return self.total - self.paused - self.out_of_scheduling


@dataclass(frozen=True, slots=True)
class Starts:
    """The latest attempts that have started within the window, each once its run's latest."""

    number: int
    cut: bool
    """There may have been more."""
    succeeded: int
    failed: int
    missed_before: int
    lateness: tuple[timedelta, ...]
    """Ascending."""


@dataclass(frozen=True, slots=True)
class SuccessRate:
    succeeded: int
    failed: int
    sampled: bool
    """Of the latest starts alone."""

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed

    @property
    def percent(self) -> float | None:
        """Rounded down to one digit: 100 is all of them. None if there are none."""
        return self.succeeded * 1000 // self.ended / 10 if self.ended else None


@dataclass(frozen=True, slots=True)
class RunFigures:
    since: datetime
    running: Count
    queued: Count
    waiting: Count
    # The others are of the window.
    succeeded: Count
    failed: Count
    skipped: Count
    missed: Count
    missed_before: int
    """Occurrences that the latest ``SAMPLE`` missed runs stand for besides their own."""
    unstarted: int
    """Runs that have not started yet; at most ``LIMIT`` + 1."""
    missed_before_unstarted: int
    """Missed occurrences that these stand for."""
    starts: Starts

    @property
    def counted_elsewhere(self) -> int:
        """Missed occurrences without a row: they are counted on later runs, whether these are missed, started or waiting."""
        return self.missed_before + self.missed_before_unstarted + self.starts.missed_before

    @property
    def missed_occurrences(self) -> int:
        return self.missed.number + self.counted_elsewhere

    @property
    def counted_at_least(self) -> bool:
        """There may be more of those, on runs that were not looked at."""
        return self.starts.cut or self.missed.number > SAMPLE or self.unstarted > LIMIT

    @property
    def success_rate(self) -> SuccessRate:
        if self.succeeded.more or self.failed.more:
            return SuccessRate(self.starts.succeeded, self.starts.failed, sampled=True)
        return SuccessRate(self.succeeded.number, self.failed.number, sampled=False)


def window_start(now: datetime) -> datetime:
    """Where the last 24 hours begin: at a whole minute, so that figures and links stay the same for as long."""
    return (now - DAY).replace(second=0, microsecond=0)


def job_figures(now: datetime, scope: Scope = EVERYTHING) -> JobFigures:
    jobs = scope.jobs.aggregate(
        total=Number("pk"),
        paused=Number("pk", filter=Q(enabled=False)),
        out_of_scheduling=Number("pk", filter=Q(enabled=True, cursor__problem__gt="")),
    )
    number, next_at = _due(now + SOON, scope)
    return JobFigures(**jobs, due_soon=Count.up_to_limit(number), next_at=next_at)


def _due(horizon: datetime, scope: Scope) -> tuple[int, datetime | None]:
    """How many jobs are due, and when first. A cursor is ahead of the occurrences that are claimed: those are pending runs, of which
    the first ``LIMIT`` are looked at. No join, so that a database begins with the times."""
    due = Cursor.objects.using(alias_for(Cursor)).due(horizon)  # a paused job's has no next occurrence
    cursors = scope.of_jobs(due, "pk")
    coming = cursors.order_by("next_at")[: LIMIT + 1].aggregate(number=Number("pk"), first=Min("next_at"))
    pending = scope.runs.pending().due(horizon).order_by("due_at")
    counted = Exists(cursors.order_by().filter(pk=OuterRef("job_id")))
    occurrence = Q(attempt=1, trigger=Trigger.SCHEDULE)
    claimed = pending.annotate(counted=counted)[: LIMIT + 1].aggregate(
        number=Number("job_id", filter=occurrence & Q(counted=False), distinct=True),
        first=Min("due_at", filter=occurrence),
    )
    first = [each["first"] for each in (coming, claimed) if each["first"]]
    return coming["number"] + claimed["number"], min(first, default=None)


def run_figures(now: datetime, scope: Scope = EVERYTHING) -> RunFigures:
    runs = scope.runs
    since = window_start(now)
    ended = runs.filter(due_at__gte=since)
    missed = ended.filter(state=State.MISSED)
    unstarted = _unstarted(runs.filter(due_at__gte=since))
    return RunFigures(
        since=since,
        running=Count.of(runs.running()),
        queued=Count.of(runs.queued()),
        waiting=Count.of(runs.waiting()),
        succeeded=Count.of(ended.filter(state=State.SUCCEEDED)),
        failed=Count.of(ended.filter(state=State.FAILED)),
        skipped=Count.of(ended.filter(state=State.SKIPPED)),
        missed=Count.of(missed),
        missed_before=_missed_before(missed),
        unstarted=unstarted["number"],
        missed_before_unstarted=unstarted["before"],
        starts=_starts(since, scope),
    )


def occurrences_missed(runs: QuerySet[Run], since: datetime) -> int:
    """Occurrences that no run has been started for: with a row of their own, or counted on another row. Starts ``since`` then are
    left out. A lower bound where more than ``LIMIT`` runs are concerned."""
    late = runs.filter(due_at__gte=since)
    missed = late.filter(state=State.MISSED)
    rows: int = count_up_to(missed, LIMIT)
    unstarted: int = _unstarted(late)["before"]
    return rows + _missed_before(missed) + unstarted


def _missed_before(missed: QuerySet[Run]) -> int:
    found = missed.order_by("-due_at")[:SAMPLE].aggregate(before=Sum("missed_before", default=0))
    return int(found["before"])


def _unstarted(runs: QuerySet[Run]) -> dict[str, int]:
    rows = runs.filter(state__in=UNSTARTED).order_by().values("pk", "missed_before")[: LIMIT + 1]
    return rows.aggregate(number=Number("pk"), before=Sum("missed_before", default=0))


def _starts(since: datetime, scope: Scope) -> Starts:
    """Attempts are made when they start, in the order of their keys. Two queries without a join: with one a database may
    begin with the runs, all of them.

    A run's ``due_at`` is that of its latest attempt, and of the next one if it waits for a retry: an earlier attempt, and
    one before that retry, say nothing of lateness."""
    attempts = latest_attempts(scope).order_by("-pk").values_list("run", "number")[:SAMPLE]
    latest: dict[Any, int] = {}
    for run, number in (found := list(attempts)):
        latest.setdefault(run, number)
    columns = ("pk", "attempt", "state", "missed_before", "due_at", "started_at")
    runs = Run.objects.using(alias_for(Run)).filter(pk__in=latest, started_at__gte=since)
    rows = [row for row in runs.values_list(*columns) if row[1] == latest[row[0]]]
    states = [row[2] for row in rows]
    return Starts(
        number=len(rows),
        cut=len(found) == SAMPLE,
        succeeded=states.count(State.SUCCEEDED),
        failed=states.count(State.FAILED),
        missed_before=sum(row[3] for row in rows if row[2] != State.MISSED),
        lateness=tuple(sorted(max(row[5] - row[4], timedelta()) for row in rows)),
    )


def latest_attempts(scope: Scope) -> QuerySet[Attempt]:
    """Of a narrowed reader's attempts those among the ``ATTEMPTS_LOOKED_AT`` latest of all: no index leads to them."""
    if not (scope.narrows(Run) or scope.narrows(Attempt)):
        return scope.attempts
    last = Attempt.objects.using(alias_for(Attempt)).order_by("-pk").values_list("pk", flat=True).first() or 0
    return scope.of_runs(scope.attempts.filter(pk__gt=last - ATTEMPTS_LOOKED_AT), "run")


def percentile(ascending: Sequence[timedelta], percent: int) -> timedelta | None:
    """The nearest rank: a lateness that there was. None of none."""
    return ascending[ceil(len(ascending) * percent / 100) - 1] if ascending else None
