"""Check single runs: are the rows of a run and of its attempts consistent and legal?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, NamedTuple

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.doctor.findings import Code, Findings, Subject
from django_dcron.diagnosis.doctor.window import Window, runs_in_namespace
from django_dcron.models import Run
from django_dcron.policies.job_labels import label_of
from django_dcron.policies.lifecycle import FINAL, UNFINISHED, Outcome, State, Trigger
from django_dcron.utils.batches import in_batches
from django_dcron.utils.time_format import format_duration, format_site_time

CLOCK_TOLERANCE = timedelta(milliseconds=50)
"""A node's sample of the database's clock may be wrong by this much."""
REPORT_BUG = "Report a bug, with the logs of the node and the worker."
RUNS_AT_ONCE = 500

COLUMNS = (
    "pk",
    "job__namespace",
    "job__name",
    "scheduled_at",
    "trigger",
    "state",
    "reason",
    "attempt",
    "started_at",
    "finished_at",
    "slot",
)
ATTEMPT_COLUMNS = ("attempts__number", "attempts__outcome")


class Breach(NamedTuple):
    code: Code
    message: str


class StoredAttempt(NamedTuple):
    number: int
    outcome: str
    """Empty while the attempt is open."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The ``COLUMNS`` of a run, and its attempts.

    One statement reads both, so that they are consistent.
    """

    pk: Any
    job__namespace: str
    job__name: str
    scheduled_at: datetime
    trigger: str
    state: str
    reason: str
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    slot: str | None
    attempts: tuple[StoredAttempt, ...]

    @property
    def subject(self) -> Subject:
        return run_subject(self.pk, self.job__namespace, self.job__name, self.scheduled_at)


def run_subject(run_id: Any, namespace: str, name: str, scheduled_at: datetime) -> Subject:
    job = label_of(namespace, name)
    return Subject("run", str(run_id), f"of {job} at {format_site_time(scheduled_at)} ({run_id})")


class ExaminedRuns(NamedTuple):
    """The latest runs of the window, and the unfinished runs."""

    number: int
    """The number of runs checked individually."""
    more: bool
    """Whether there are more such runs, which weren't checked."""
    missed: int
    """How many of the checked runs are missed."""
    skipped: int


def examine_latest_runs(window: Window, findings: Findings) -> ExaminedRuns:
    """Check the latest runs of the window, and the unfinished runs."""
    unfinished = runs_in_namespace(window).filter(state__in=UNFINISHED).order_by("-due_at", "-pk")
    latest = runs_in_namespace(window).filter(
        scheduled_at__gt=window.since, scheduled_at__lte=window.until
    )
    chosen: dict[Any, None] = {}  # keys in order, without duplicates
    more = False
    for runs in (unfinished, latest.order_by("-scheduled_at", "-pk")):
        ids = list(
            runs.values_list("pk", flat=True)[: None if window.runs is None else window.runs + 1]
        )
        more |= window.runs is not None and len(ids) > window.runs
        chosen |= dict.fromkeys(ids[: window.runs])
    states: Counter[str] = Counter()
    for run in _stored_runs(list(chosen)):
        states[run.state] += 1
        for code, message in breaches(run):
            findings.add(code, run.subject, message, at=run.scheduled_at)
    return ExaminedRuns(states.total(), more, states[State.MISSED], states[State.SKIPPED])


def _stored_runs(run_ids: list[Any]) -> Iterator[StoredRun]:
    """Yield the runs in batches and in the order of their keys.

    In this order, the database needn't sort the join. Runs that have been deleted are omitted.
    """
    width = len(COLUMNS)
    for batch in in_batches(run_ids, RUNS_AT_ONCE):
        runs = Run.objects.using(alias_for(Run)).filter(pk__in=batch)
        rows = runs.order_by("-pk", "attempts__number").values_list(*COLUMNS, *ATTEMPT_COLUMNS)
        for columns, attempts in groupby(rows, key=lambda row: row[:width]):
            stored = tuple(
                StoredAttempt(*row[width:]) for row in attempts if row[width] is not None
            )
            yield StoredRun(**dict(zip(COLUMNS, columns, strict=True)), attempts=stored)


def breaches(run: StoredRun) -> Iterator[Breach]:
    if run.state not in set(State):
        yield Breach(Code.STATE_ILLEGAL, f"Unknown state {run.state!r}. {REPORT_BUG}")
        return
    state = State(run.state)
    if state in FINAL and run.finished_at is None:
        yield Breach(
            Code.FINISHED_WITHOUT_TIME, f"The run is {state} but has no finish time. {REPORT_BUG}"
        )
    if (
        run.trigger == Trigger.SCHEDULE
        and run.started_at
        and run.started_at < run.scheduled_at - CLOCK_TOLERANCE
    ):
        yield Breach(
            Code.STARTED_EARLY,
            f"The run started {format_duration(run.scheduled_at - run.started_at)} early: the node "
            "misread the database clock, or that clock was set back. Check the clock of the "
            "database server.",
        )
    yield from _attempt_breaches(run, state)


def _attempt_breaches(run: StoredRun, state: State) -> Iterator[Breach]:
    numbers = [attempt.number for attempt in run.attempts]
    open_attempts = [attempt.number for attempt in run.attempts if not attempt.outcome]
    if open_attempts != ([run.attempt] if state is State.RUNNING else []):
        yield Breach(
            Code.ATTEMPT_OPEN,
            f"The run is {state} at attempt {run.attempt}, but its open attempts are "
            f"{open_attempts or 'none'}. {REPORT_BUG}",
        )
    if numbers != list(range(1, len(numbers) + 1)) or len(numbers) not in _possible_attempt_counts(
        run, state
    ):
        yield Breach(
            Code.ATTEMPTS_WRONG,
            f"The run is {state} at attempt {run.attempt}, but its attempts are "
            f"{numbers or 'none'}: an attempt started twice, or its row was lost. {REPORT_BUG}",
        )
    elif state is State.SUCCEEDED and run.attempts[-1].outcome not in ("", Outcome.SUCCEEDED):
        yield Breach(
            Code.OUTCOME_CONTRADICTS,
            "The run succeeded, but its last attempt is "
            f"{run.attempts[-1].outcome.replace('_', ' ')}. {REPORT_BUG}",
        )


def _possible_attempt_counts(run: StoredRun, state: State) -> set[int]:
    """Return the numbers of attempts that a run in this state may have started."""
    match state:
        case State.RUNNING | State.SUCCEEDED:
            return {run.attempt}
        case State.FAILED:
            # A failed run has no started attempt only if it couldn't be dispatched. Then it has a
            # reason.
            return {run.attempt, run.attempt - 1} if run.reason else {run.attempt}
        case State.CANCELLED:
            return {run.attempt, run.attempt - 1}
        case _:
            return {run.attempt - 1}
