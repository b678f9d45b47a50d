"""Account for every run of a demo: its outcome, its start delay, and whether each job ran when due.

The expected runs are computed from the schedules. The actual runs come from two independent
sources: django-dcron's tables and the site's own witness (`shop/witness.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from math import ceil
from typing import Any

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db.models import Count
from django.utils import timezone

from django_dcron.conf import settings as dcron
from django_dcron.models import Attempt, Job, Node, Run
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.lifecycle import State, Trigger
from shop.models import Execution, Order, Product, Pulse

FAILING = frozenset({"import-prices"})
"""Jobs whose failure is expected: their input never arrives."""
CLOSING = timedelta(seconds=1)
"""The stopping nodes may leave occurrences in this last moment to the next node."""
SETTLING = timedelta(seconds=1)
"""Occurrences this soon after a change may still belong to the previous schedule."""
NOT_RUN = (State.SKIPPED, State.CANCELLED, State.MISSED)
"""The final states of runs that didn't start or were cancelled. The verdict counts them."""


class Account:
    """The account of a demo.

    It begins when all services are running, and `close` ends it just before the nodes stop.
    """

    def __init__(self, nodes: set[str]) -> None:
        self.nodes = nodes
        self.seen: Counter[str] = Counter()
        self.checks = 0
        self.opened_at = self.closed_at = timezone.now()
        jobs = Job.objects.select_related("cursor")
        self.saved_at = {job.name: job.updated_at for job in jobs}
        self.phases = {job.name: job.cursor.next_at for job in jobs}
        self.pause_ends: dict[str, datetime] = {}

    def watch(self) -> None:
        """Record which nodes are alive now, and which pauses will end."""
        self.checks += 1
        pauses = Job.objects.filter(enabled=False, paused_until__isnull=False)
        self.pause_ends.update(pauses.values_list("name", "paused_until"))
        self.seen.update(Node.objects.live(dcron.LEASE).values_list("name", flat=True))

    def close(self) -> None:
        self.closed_at = timezone.now()

    @cached_property
    def jobs(self) -> list[JobAccount]:
        """The accounts of the jobs. They are computed at the first access, after the last run."""
        return [JobAccount(job, self) for job in Job.objects.all()]

    def runs(self) -> RunQuerySet:
        """Return all runs except those that nodes claimed ahead for a time after the end."""
        return Run.objects.filter(scheduled_at__lte=self.closed_at)

    def is_settled(self) -> bool:
        return not self.runs().filter(state__in=(State.QUEUED, State.RUNNING)).exists()

    # --- The verdict -----------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Return the problems of the demo, or an empty list."""
        return [
            *self._absent_nodes(),
            *self._duplicates(),
            *(p for job in self.jobs for p in job.problems()),
        ]

    def _absent_nodes(self) -> Iterator[str]:
        for node in sorted(self.nodes):
            if self.seen[node] < self.checks:
                yield f"{node} was seen alive only {self.seen[node]} times of {self.checks}."

    def _duplicates(self) -> Iterator[str]:
        for run in duplicated(Run.objects, "job__name", "scheduled_at"):
            yield f"{run['job__name']} has {run['rows']} runs at {run['scheduled_at']:%H:%M:%S}."
        for start in duplicated(Execution.objects, "run_id", "attempt"):
            yield (
                f"Attempt {start['attempt']} of run {start['run_id']} was executed "
                f"{start['rows']} times."
            )
        recorded = set(Attempt.objects.values_list("run_id", "number"))
        witnessed = set(Execution.objects.values_list("run_id", "attempt"))
        for run_id, number in recorded ^ witnessed:
            what = (
                "recorded but never executed"
                if (run_id, number) in recorded
                else "executed but never recorded"
            )
            yield f"Attempt {number} of run {run_id} was {what}."

    def verdict(self) -> str:
        """Return the summary of a demo without problems."""
        counts = {state: sum(job.states[state] for job in self.jobs) for state in NOT_RUN}
        exceptions = [f"{count} {state}" for state, count in counts.items() if count]
        if left := sum(job.left for job in self.jobs):
            exceptions.append(f"{left} in the last second that the next node would run")
        summary = "Every due occurrence ran exactly once"
        if exceptions:
            summary += f", except {', '.join(exceptions)}"
        summary += "."
        if waiting := sum(job.waiting for job in self.jobs):
            summary += f" Runs that wait for their next attempt: {waiting}."
        return summary

    # --- The account as text ---------------------------------------------------------------------

    def text(self) -> str:
        seconds = (self.closed_at - self.opened_at).total_seconds()
        lines = [
            f"Occurrences of the {seconds:.0f} s in which the shop was open, and their runs:",
            "",
            *self._table(),
            "",
        ]
        return "\n".join([*lines, *self._evidence()])

    def _table(self) -> Iterator[str]:
        states = [
            state for state in State if state in (State.SUCCEEDED, State.FAILED) or self._any(state)
        ]
        columns = [
            "due",
            *(state.value for state in states),
            "attempts",
            "retried",
            "delay p50",
            "delay p99",
            "other",
        ]
        rows = [[job.name, job.schedule, *job.cells(states)] for job in self.jobs]
        rows.append(["all", "", *self._totals(states)])
        yield from aligned([["job", "schedule", *columns], *rows])
        yield ""
        yield (
            "due       occurrences of the schedule in this time, computed independently of the runs"
        )
        if any(job.changed for job in self.jobs):
            yield "          (*: counted from the latest change of the job)"
        yield "delay     time from due to the start on a worker, of each run's latest attempt"
        yield f"          (time from due to dispatch: {self._dispatch_delay()})"
        yield "other     runs that the schedule didn't create (manual, chained, rerun, backfilled)"
        yield "          (the columns to the left don't count them)"
        counted = sum(len(job.runs) + len(job.other) for job in self.jobs)
        if earlier := self.runs().count() - counted:
            yield (
                "earlier   runs from before the shop was open, or before the latest change of a "
                f"job; not in this table: {earlier}"
            )
        if self._any(State.PENDING):
            yield (
                "pending   runs whose attempt failed; the next attempt would follow if the demo "
                "continued"
            )

    def _dispatch_delay(self) -> str:
        runs = [run for job in self.jobs for run in job.runs]
        late = start_delays(runs, "queued_at")
        text = f"p50 {ms(late, 50)}, p99 {ms(late, 99)} of {len(late)} runs"
        if (others := len(start_delays(runs, "started_at")) - len(late)) > 0:
            text += f"; {others} started before their dispatch was recorded"
        return text

    def _totals(self, states: Sequence[State]) -> list[str]:
        late = start_delays([run for job in self.jobs for run in job.runs], "started_at")
        numbers = [
            sum(len(job.due) for job in self.jobs),
            *(sum(job.states[state] for job in self.jobs) for state in states),
            sum(job.attempts for job in self.jobs),
            sum(job.retried for job in self.jobs),
        ]
        other = sum(len(job.other) for job in self.jobs)
        return [*map(str, numbers), ms(late, 50), ms(late, 99), str(other)]

    def _any(self, state: State) -> bool:
        return any(job.states[state] for job in self.jobs)

    def _evidence(self) -> Iterator[str]:
        counted = Product.objects.filter(counted_at__isnull=False).count()
        reports = len(list(settings.REPORTS_DIR.glob("*.csv")))
        yield "nodes     " + ", ".join(
            f"{name} alive in {self.seen[name]} of {self.checks} checks"
            for name in sorted(self.nodes)
        )
        duplicates = len(list(self._duplicates()))
        yield f"twice     {duplicates} runs, in the database and in the shop's own records"
        sessions = Session.objects.filter(expire_date__lt=timezone.now()).count()
        yield (
            f"the shop  {Order.objects.filter(number__gt=1000).count()} orders imported, "
            f"{Pulse.objects.count()} pulses recorded, {reports} reports written, "
            f"{counted} products counted, {sessions} expired sessions left"
        )


def occurrences(
    job: Job, since: datetime, until: datetime, phase: datetime | None
) -> Iterable[datetime]:
    """Return the instants from `since` to `until` at which the schedule of `job` is due."""
    schedule = job.parsed_schedule
    if (interval := schedule.interval) is None or phase is None:
        return schedule.occurrences(since, until)
    # @every counts from its first occurrence. The cursor provides the phase.
    first = phase - (phase - since) // interval * interval
    return (at for at in (first, *schedule.occurrences(first, until)) if at <= until)


def duplicated(rows: Any, *fields: str) -> Any:
    """Return the combinations of `fields` that more than one row has."""
    return rows.order_by().values(*fields).annotate(rows=Count("pk")).filter(rows__gt=1)


def start_delays(runs: Iterable[Run], moment: str) -> list[float]:
    """Return the milliseconds from due until `moment`, ascending.

    A moment before the run is due belongs to an earlier attempt and isn't counted.
    """
    pairs = ((run.due_at, getattr(run, moment)) for run in runs)
    return sorted((at - due).total_seconds() * 1000 for due, at in pairs if at and at >= due)


def ms(values: Sequence[float], percent: int) -> str:
    """Return a percentile by nearest rank."""
    return f"{values[ceil(len(values) * percent / 100) - 1]:.0f} ms" if values else "-"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table: two columns of words, then columns of numbers.

    Rules separate the header and the total.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    for position, row in enumerate(rows):
        if position in (1, len(rows) - 1):
            yield rule
        words = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        yield "  ".join(words + numbers)


class JobAccount:
    """The row of one job in the table."""

    def __init__(self, job: Job, account: Account) -> None:
        self.name = job.name
        self.schedule = job.schedule
        since, until, phase = account.opened_at, account.closed_at, account.phases.get(job.name)
        # A pause and its end also set `updated_at`. The end of a one-time job, which disables it,
        # doesn't.
        self.changed = account.saved_at.get(job.name) != job.updated_at
        if self.changed:  # by a person, while the demo ran
            since, phase = job.updated_at + SETTLING, job.cursor.next_at
            # A node resumes a job before its pause ends, but the job is due only after the end.
            pause_end = account.pause_ends.get(job.name, since)
            if pause_end <= job.updated_at + dcron.LOOK_AHEAD:
                since = max(since, pause_end - timedelta(microseconds=1))
            if job.starts_at is not None:  # an occurrence at this instant counts
                since = max(since, job.starts_at - timedelta(microseconds=1))
            until = min(until, job.ends_at or until)
        self.due = [] if job.is_paused else list(occurrences(job, since, until, phase))
        self.closing_at = account.closed_at - CLOSING
        runs = account.runs().filter(job=job, scheduled_at__gte=since)
        self.runs = list(runs.filter(trigger=Trigger.SCHEDULE))
        """The runs of the schedule in the time that `due` covers."""
        self.other = list(
            account.runs()
            .filter(job=job, claimed_at__gte=account.opened_at)
            .exclude(trigger=Trigger.SCHEDULE)
        )
        self.states = Counter(State(run.state) for run in self.runs)
        self.attempts = Attempt.objects.filter(run__in=self.runs).count()
        self.waiting = sum(run.state == State.PENDING and run.attempt > 1 for run in self.runs)
        self.retried = sum(run.attempt > 1 for run in self.runs)
        self.late = start_delays(self.runs, "started_at")

    @property
    def left(self) -> int:
        """How many due occurrences the next node would run.

        `problems` reports those before `closing_at`.
        """
        runs = {run.scheduled_at: run for run in self.runs}
        return sum(is_left(runs.get(at)) for at in self.due)

    def problems(self) -> Iterator[str]:
        runs = {run.scheduled_at: run for run in self.runs}
        for at in self.due:
            run = runs.pop(at, None)
            if run is None or run.state == State.MISSED:
                if at <= self.closing_at:
                    yield f"{self.name} was due at {at:%H:%M:%S} UTC but didn't run."
            elif is_left(run) and at <= self.closing_at:
                yield f"{self.name} was due at {at:%H:%M:%S} UTC and is still {run.state}."
        for at in runs:
            yield f"{self.name} has a run at {at:%H:%M:%S} UTC but wasn't due."
        for run in (*self.runs, *self.other):
            if run.state == State.FAILED and self.name not in FAILING:
                yield f"{self.name} failed at {run.scheduled_at:%H:%M:%S} UTC: {run.reason}"

    def cells(self, states: Sequence[State]) -> list[str]:
        due = f"{len(self.due)}{'*' if self.changed else ''}"
        numbers = [*(self.states[state] for state in states), self.attempts, self.retried]
        delays = [ms(self.late, 50), ms(self.late, 99)]
        return [due, *map(str, numbers), *delays, str(len(self.other))]


def is_left(run: Run | None) -> bool:
    """Return whether an occurrence has no run, or one whose first attempt hasn't ended."""
    return run is None or not (run.is_final or run.attempt > 1)
