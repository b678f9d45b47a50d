"""Deliberately broken guards: each removes one guard of the real code or swaps two of its steps.

A simulator that doesn't find them proves nothing. ``python -m tests.simulation --broken all`` tells
how many simulated hours it takes to find each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from django.db import transaction
from django.db.models import Q

from django_dcron.conf import settings
from django_dcron.db.change_sequence import ChangeSequence
from django_dcron.db.clock import ClusterClock
from django_dcron.db.read_and_change import ReadAndChange
from django_dcron.db.statements import Placeholder, Select, Update
from django_dcron.dispatch.base import DispatchFailed
from django_dcron.jobs import placement
from django_dcron.models import Attempt, Run
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.lifecycle import State
from django_dcron.policies.retry import RetryPolicy
from django_dcron.policies.start_decision import Start
from django_dcron.runs import (
    chains,
    creation,
    deliveries,
    endings,
    limits,
    ordinary_start,
    slot_queue,
    start,
    start_facts,
    transitions,
)
from django_dcron.runs.start import Started
from django_dcron.scheduler import agenda, claim, publishing, rescue, tick
from django_dcron.schedules.rules import AnyOf
from django_dcron.schedules.timetable import Timetable
from django_dcron.schedules.windows import Windowed
from tests.simulation import primitives

Breaking = Callable[[ExitStack], None]
GUARDS: dict[str, Breaking] = {}
POSTGRESQL_GUARDS: dict[str, Breaking] = {}
"""Guards of the statement that reads a run and starts it. Only PostgreSQL executes it."""


def guard(breaking: Breaking) -> Breaking:
    GUARDS[breaking.__name__] = breaking
    return breaking


def postgresql_guard(breaking: Breaking) -> Breaking:
    POSTGRESQL_GUARDS[breaking.__name__] = breaking
    return breaking


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Break this guard within the block."""
    with ExitStack() as stack:
        endings._finish_statements.cache_clear()
        (GUARDS | POSTGRESQL_GUARDS)[name](stack)
        stack.callback(endings._finish_statements.cache_clear)
        yield


def put(stack: ExitStack, owner: Any, name: str, value: Any) -> Any:
    """Replace the attribute, and return what it was."""
    real = getattr(owner, name)
    stack.enter_context(patch.object(owner, name, value))
    return real


# --- claim ----------------------------------------------------------------------------------------


@guard
def cursors_move_from_now(stack: ExitStack) -> None:
    """The claim continues from now instead of the cursor."""

    class FromNow(Timetable):
        def plan_claim(self, next_at: datetime, **given: Any) -> Any:
            return super().plan_claim(max(next_at, given["late_before"]), **given)

    put(stack, claim, "Timetable", FromNow)


@guard
def runs_are_inserted_after_the_cursors_are_committed(stack: ExitStack) -> None:
    """The claim commits its cursors, and inserts the runs in a second transaction."""
    real = creation.insert_runs

    def later(rows: list[creation.NewRun], using: str) -> None:
        transaction.on_commit(lambda: real(rows, using), using=using)

    put(stack, claim, "insert_runs", later)


@guard
def missed_occurrences_are_not_counted(stack: ExitStack) -> None:
    """The row of the latest occurrence doesn't account for the missed ones before it."""

    def without(planned: Any, **given: Any) -> Any:
        row = real(planned, **given)
        row.missed_before, row.missed_from = 0, None
        return row

    real = put(stack, claim, "new_run", without)


@guard
def an_edit_leaves_claimed_runs(stack: ExitStack) -> None:
    """An edit doesn't withdraw the runs of the earlier definition that are still ahead."""

    def nothing(*arguments: Any) -> int:
        return 0

    put(stack, deliveries, "delete_claimed_ahead", nothing)


@guard
def an_edit_drops_due_occurrences(stack: ExitStack) -> None:
    """An edit doesn't create the runs that were due by the earlier definition."""
    put(stack, placement, "_claim_due", lambda *arguments: [])


@guard
def later_lines_of_a_schedule_are_ignored(stack: ExitStack) -> None:
    """Only the first line of a schedule has occurrences."""

    def of_first_line(self: AnyOf, instant: datetime) -> datetime | None:
        return self.lines[0].rule.next_after(instant)

    put(stack, AnyOf, "next_after", of_first_line)


@guard
def occurrences_do_not_move_to_the_end_of_an_excluded_time(stack: ExitStack) -> None:
    """The policy ``window_end`` drops the occurrences within an excluded time."""

    def dropping(self: Windowed, instant: datetime) -> datetime | None:
        if not self.moves:
            return real(self, instant)  # type: ignore[no-any-return]
        until = instant + timedelta(days=2)  # a calendar may exclude all later dates
        found = self.rule.next_after(instant)
        while found is not None and self.excludes(found):
            found = self.rule.next_after(found) if found < until else None
        return found

    real = put(stack, Windowed, "next_after", dropping)


# --- dispatch -------------------------------------------------------------------------------------


@guard
def nodes_adopt_no_run(stack: ExitStack) -> None:
    """A node ignores pending runs that other processes have left or made."""
    put(stack, tick, "adopt", lambda *arguments, **options: [])


@guard
def nodes_do_not_look_for_their_own_runs(stack: ExitStack) -> None:
    """A node doesn't look for runs of its own that are missing from its agenda."""

    def without_own(*arguments: Any, also_own: bool = False, **options: Any) -> Any:
        return real(*arguments, also_own=False, **options)

    real = put(stack, tick, "adopt", without_own)


@guard
def a_failed_publish_drops_its_batch(stack: ExitStack) -> None:
    """Runs don't return to the agenda when the broker is unreachable."""

    def careless(batch: Any, dispatcher: Any) -> Any:
        try:
            return real(batch, dispatcher)
        except DispatchFailed:
            return publishing.PublishOutcome([], [], [])

    real = put(stack, agenda, "publish_batch", careless)


@guard
def runs_are_dispatched_early(stack: ExitStack) -> None:
    """The agenda dispatches runs a minute before they are due."""

    def early(self: Any, runs: Any) -> Any:
        entries = real(self, runs)
        minute = timedelta(minutes=1)
        self._heap[:] = [each._replace(due_at=each.due_at - minute) for each in self._heap]
        return entries

    real = put(stack, agenda.Agenda, "add", early)


@guard
def nodes_trust_their_wall_clock(stack: ExitStack) -> None:
    """Cluster time is the wall clock of the node's machine."""

    def now(self: ClusterClock) -> datetime:
        return datetime.fromtimestamp(primitives.wall(), UTC)

    put(stack, ClusterClock, "now", now)


@guard
def lost_messages_are_not_dispatched_again(stack: ExitStack) -> None:
    """The rescue leaves queued runs alone."""
    put(stack, rescue, "_redeliver_overdue", lambda shards, now: 0)


# --- start ----------------------------------------------------------------------------------------


@guard
def messages_of_earlier_attempts_start_the_current_one(stack: ExitStack) -> None:
    """The start compares neither the message's attempt with the run's, nor its time with now.

    Without the first comparison alone, an old message does no harm: the worker waits until the
    current attempt is due.
    """

    def any_attempt(facts: Any) -> Any:
        if facts.is_current_attempt:
            return real(facts)
        return real(replace(facts, is_current_attempt=True, due_in=timedelta(0)))

    real = put(stack, start, "decide_start", any_attempt)


@guard
def a_second_delivery_resumes_a_running_attempt(stack: ExitStack) -> None:
    """A start whose answer was lost isn't recognized by its token, but by its state."""

    def resume(run: Run, token: Any) -> Started | None:
        attempt = Attempt.objects.filter(run=run, number=run.attempt).first()
        return Started(run, attempt.started_at, attempt.pk) if attempt else None

    put(stack, start, "_resume", resume)


@guard
def runs_start_without_the_slot(stack: ExitStack) -> None:
    """A run of a job without overlaps doesn't take the job's slot."""

    def without_slot(facts: Any) -> Any:
        decided = real(facts)
        return Start(takes_slot=False) if isinstance(decided, Start) else decided

    real = put(stack, start, "decide_start", without_slot)


@guard
def silent_runs_skip_other_runs(stack: ExitStack) -> None:
    """Under the policy ``skip``, a run is skipped although the run in the slot is silent."""

    def as_fact(run: Any, now: Any) -> Any:
        fact = real(run, now)
        return None if fact is None else replace(fact, is_silent=False)

    real = put(stack, start_facts, "_as_fact", as_fact)


@guard
def runs_start_during_a_freeze(stack: ExitStack) -> None:
    """Neither the decision nor the UPDATE asks whether a freeze holds back the run."""

    def careless(facts: Any) -> Any:
        return real(replace(facts, is_frozen=False))

    real = put(stack, start, "decide_start", careless)
    statement = ChangeSequence(
        Update(
            Run,
            lambda: transitions.run_that_may_become(
                State.RUNNING, Placeholder(Run, "id"), Placeholder(Run, "attempt")
            ),
            **transitions.start_columns(Placeholder(Run, "slot")),
        ),
        transitions._START._changes[1],
    )

    def insert(*, namespace: str, **values: Any) -> int | None:
        return statement.insert(**values)

    put(stack, transitions, "_START", SimpleNamespace(insert=insert))


# --- start by one statement, on PostgreSQL --------------------------------------------------------


def omit_conditions(stack: ExitStack, *names: str) -> None:
    """Let the statement start runs that don't meet these conditions."""

    def fewer(*conditions: Any, **given: Any) -> Q:
        if "attempt" in given and "in_time" in names:
            conditions = ()
        return Q(*conditions, **{name: given[name] for name in given if name not in names})

    def reading() -> Any:
        with patch.object(ordinary_start, "Q", fewer):
            return real()

    real = ordinary_start._reading
    replace_statement(stack, reading=reading)


def replace_statement(stack: ExitStack, **parts: Any) -> None:
    """Replace some of the parts of the statement: ``reading``, ``condition`` or ``update``."""
    part = {name: getattr(ordinary_start, f"_{name}") for name in ("reading", "condition")} | parts
    statement = ReadAndChange(
        Select(Run, part["reading"]),
        (*start_facts.READ_COLUMNS, ordinary_start.ORDINARY),
        part["condition"],
        part.get("update", ordinary_start._update),
        ordinary_start._insert,
        lock_timeout=transitions.LOCK_TIMEOUT,
    )
    put(stack, ordinary_start, "_START", statement)


@postgresql_guard
def one_statement_starts_runs_that_are_too_late(stack: ExitStack) -> None:
    """The statement asks neither for the misfire grace nor for the start deadline."""
    omit_conditions(stack, "in_time")


@postgresql_guard
def one_statement_ignores_limits(stack: ExitStack) -> None:
    """The statement starts a run of a job with a limit."""
    omit_conditions(stack, "job__limit", "limited")


@postgresql_guard
def one_statement_ignores_freezes(stack: ExitStack) -> None:
    """The statement starts a run that a freeze holds back."""

    def condition(seen: Any) -> str:
        names = {"is_frozen": "false"}
        return real(lambda name: names.get(name) or seen(name))

    real = ordinary_start._condition
    replace_statement(stack, condition=condition)


@postgresql_guard
def one_statement_takes_no_slot(stack: ExitStack) -> None:
    """The statement neither looks at the slot nor takes it."""

    def condition(seen: Any) -> str:
        return f"{seen(ordinary_start.ORDINARY)} AND NOT {seen('is_frozen')}"

    def update(seen: Any) -> Update:
        rows = transitions.run_that_may_become
        return Update(
            Run,
            lambda: rows(State.RUNNING, Placeholder(Run, "id"), Placeholder(Run, "attempt")),
            **transitions.start_columns(None),
        )

    replace_statement(stack, condition=condition, update=update)


# --- limits ---------------------------------------------------------------------------------------


@guard
def runs_start_without_a_place_in_their_limit(stack: ExitStack) -> None:
    """A run of a job with a limit starts whether or not the limit has a place."""
    put(stack, limits, "take_place", lambda run: "")


@guard
def numbers_of_a_limit_are_given_again(stack: ExitStack) -> None:
    """A run may get a number that another run has. UNIQUE prevents that for places, not starts."""

    def all_places(facts: Any, number: int) -> list[int]:
        return list(range(1, number + 1))

    put(stack, limits, "places_to_give", all_places)


@guard
def runs_with_the_same_key_count_separately(stack: ExitStack) -> None:
    """A run counts under a key of its own instead of the key that its arguments yield."""
    put(stack, limits, "_key_of", lambda run, limit: str(run.pk))


@guard
def edits_of_a_limit_are_not_noticed(stack: ExitStack) -> None:
    """Processes keep each limit as they have read it first."""
    kept: dict[str, Any] = {}
    engines: list[Any] = []

    def lock(names: Collection[str]) -> dict[str, Any]:
        if engines[-1:] != [primitives.engine]:  # another simulation
            engines.append(primitives.engine)
            kept.clear()
        return {name: kept.setdefault(name, row) for name, row in real(names).items()}

    real = put(stack, limits, "_lock", lock)


@guard
def starts_within_an_interval_are_not_counted(stack: ExitStack) -> None:
    """A run starts without taking a number of its limit's interval."""
    put(stack, limits, "_count_start", lambda line, limit: True)


@guard
def ended_runs_keep_their_place_in_a_limit(stack: ExitStack) -> None:
    """The end of a run doesn't free its place, so the runs that wait never start."""
    put(stack, limits, "free_places", lambda run_ids: [])


# --- end ------------------------------------------------------------------------------------------


@guard
def the_end_of_an_attempt_is_not_guarded(stack: ExitStack) -> None:
    """An outcome is written whatever the run's state and attempt."""

    def any_run(run_id: Any, attempt: Any, last_heartbeat: Any = None) -> Any:
        return transitions.runs().filter(pk=run_id)

    put(stack, endings, "_executing", any_run)


@guard
def the_end_of_an_attempt_ignores_its_number(stack: ExitStack) -> None:
    """A worker that was declared lost ends the attempt that followed its own."""

    def any_attempt(run_id: Any, attempt: Any, last_heartbeat: Any = None) -> Any:
        if isinstance(attempt, int):
            return transitions.runs().running().filter(pk=run_id)
        return real(run_id, attempt, last_heartbeat)

    real = put(stack, endings, "_executing", any_attempt)
    put(stack, endings, "_others_may_wait", lambda run: True)


@guard
def attempts_stay_open(stack: ExitStack) -> None:
    """A failed attempt isn't closed when its run is retried."""
    put(stack, endings, "_close_attempt", lambda *arguments: None)


@guard
def attempts_are_closed_after_the_commit(stack: ExitStack) -> None:
    """The end of a run and the end of its attempt are two transactions."""

    def later(*arguments: Any) -> None:
        transaction.on_commit(lambda: real(*arguments))

    real = put(stack, endings, "_close_attempt", later)
    put(stack, endings, "_others_may_wait", lambda run: True)  # no end takes a single statement


@guard
def an_ended_run_keeps_the_slot(stack: ExitStack) -> None:
    """A run that ends doesn't free its slot."""

    def final(state: Any, reason: Any) -> Any:
        columns = real(state, reason)
        del columns["slot"], columns["slot_number"]
        return columns

    real = put(stack, endings, "final_columns", final)


@guard
def waiting_runs_are_not_woken(stack: ExitStack) -> None:
    """Neither the end of a run nor the rescue wakes the run that waits for the slot."""
    put(stack, slot_queue, "wake_next", lambda job_id: None)


@guard
def the_newest_waiting_run_is_woken(stack: ExitStack) -> None:
    """The slot goes to the run that has waited for the shortest time."""

    class Newest(RunQuerySet):
        def order_by(self, *fields: Any) -> Any:
            return super().order_by(*(f"-{field}" for field in fields))

    def wake(job_id: int) -> Any:
        with patch.object(slot_queue, "runs", lambda: Newest(Run)):
            return real(job_id)

    real = put(stack, slot_queue, "wake_next", wake)


@guard
def statistics_are_counted_after_the_commit(stack: ExitStack) -> None:
    """The end of a run and its count are two transactions."""

    def later(*arguments: Any) -> None:
        transaction.on_commit(lambda: real(*arguments))

    real = put(stack, endings, "count_ended_runs", later)


@guard
def followers_are_made_after_the_commit(stack: ExitStack) -> None:
    """The end of a run and the runs that follow it are two transactions."""

    def later(run: Run, state: Any) -> list[Run]:
        transaction.on_commit(lambda: real(run, state) and None)
        return []

    real = put(stack, chains, "create_followers", later)


@guard
def retries_do_not_wait(stack: ExitStack) -> None:
    """The next attempt is due at once."""

    def at_once(self: RetryPolicy, *arguments: Any) -> timedelta | None:
        wait = real(self, *arguments)
        return None if wait is None else timedelta(0)

    real = put(stack, RetryPolicy, "retry_after", at_once)


@guard
def one_attempt_too_many(stack: ExitStack) -> None:
    """The retry policy counts attempts from 0."""

    def off_by_one(self: RetryPolicy, failure: Any, attempt: int) -> Any:
        return real(self, failure, attempt - 1) if attempt > 1 else real(self, failure, attempt)

    real = put(stack, RetryPolicy, "retry_after", off_by_one)


@guard
def a_cancelled_run_is_retried(stack: ExitStack) -> None:
    """A retry doesn't look whether the run was asked to stop."""

    class Careless(RunQuerySet):
        def filter(self, *conditions: Any, **given: Any) -> Any:
            if given == {"cancel_requested_at": None}:
                return self
            return super().filter(*conditions, **given)

    def executing(*arguments: Any) -> Any:
        found = real(*arguments)
        found.__class__ = Careless
        return found

    real = put(stack, endings, "_executing", executing)


# --- rescue ---------------------------------------------------------------------------------------


@guard
def lost_attempts_are_not_rescued(stack: ExitStack) -> None:
    """Nobody ends the attempt of a dead worker."""
    put(stack, rescue, "_recover_lost_attempts", lambda *arguments: 0)


@guard
def attempts_are_declared_lost_too_early(stack: ExitStack) -> None:
    """An attempt is lost after half a lease without a heartbeat."""

    def silent(shards: Any, since: datetime) -> Any:
        return real(shards, since + settings.RUN_LEASE / 2)

    real = put(stack, rescue, "_silent_runs", silent)


@guard
def a_late_heartbeat_does_not_save_an_attempt(stack: ExitStack) -> None:
    """A node declares an attempt lost even if a heartbeat arrives just before."""

    def stale(run_id: Any, attempt: Any, last_heartbeat: Any = None) -> Any:
        return real(run_id, attempt)

    real = put(stack, endings, "_executing", stale)


@guard
def nodes_rescue_right_after_an_outage(stack: ExitStack) -> None:
    """A node doesn't wait for a lease after the database was unreachable."""
    put(stack, tick.Ticker, "_may_rescue", lambda self: self._leads())
