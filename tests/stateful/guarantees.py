"""Check the guarantees on the rows after every transaction, compared with the rows before it.

Between two checks, at most one transaction is committed and no time passes. So each change is
checked alone, and "now" is known exactly.

Invariants:

- One run per occurrence: each occurrence has its own row or is counted as missed by another row,
  but never both.
- One start per attempt: each execution reports its start (``record_start``). Each attempt is
  reported at most once, and only after its row exists.
- No silent loss: the transaction that moves a cursor past an occurrence also accounts for it. The
  same applies to due occurrences when the definition changes.
- A cursor moves from occurrence to occurrence. Only a change of the definition places it again.
- Only legal transitions happen. A final row never changes, and only runs that were claimed ahead
  are withdrawn.
- A running run of a job with an exclusive policy has the job's slot. A run that has ended has none.
- No run starts that a freeze holds back.
- No more runs of a limit and key execute than the limit allows. A run has a place while it
  executes. A run that waits for the limit has one as soon as its wait ends, before it starts. A run
  that waits for a slot has none.
- The end of a run makes one run of each unpaused job that follows such an end, in the same
  transaction. Nothing else makes these runs.
- A queued run was dispatched. A run that is declared lost had no heartbeat for a lease, or its
  worker was seen to die.
- The statistics equal the counted rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from uuid import UUID

from django_dcron.conf import settings
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.policies.chains import conditions_met_by
from django_dcron.policies.freezing import is_frozen
from django_dcron.policies.lifecycle import (
    FINAL,
    TRANSITIONS,
    UNFINISHED,
    Outcome,
    State,
    Trigger,
)
from django_dcron.policies.overlap import OverlapPolicy
from django_dcron.policies.slots import Slot, backfill_number
from django_dcron.schedules.timetable import MICROSECOND
from tests.scheduler.stand_ins import StillClock
from tests.stateful.rows import FINAL_STATES, LIMITS, AttemptRow, JobRow, Rows, RunRow

IN_PROGRESS = (State.PENDING, State.QUEUED, State.RUNNING)
START_TOLERANCE = timedelta(milliseconds=1)
"""The time by which a run may start before it is due.

Runs that were made at the same instant are due some microseconds apart.
"""


class Guarantees:
    def __init__(self, clock: StillClock):
        self._clock = clock
        self.rows = Rows()
        self.owed: defaultdict[int, set[datetime]] = defaultdict(set)
        """The occurrences of each job for which a row must account."""
        self.policies: defaultdict[int, list[str]] = defaultdict(list)
        """The overlap policies of each job, in their order."""
        self.changed_at = clock.now()
        """From this instant on, all rows belong to the latest definition."""
        self.dispatched: set[tuple[UUID, int]] = set()
        """Attempts with a message that was sent since they became pending."""
        self.killed: set[tuple[UUID, int]] = set()
        """Attempts whose worker was seen to die."""
        self._witnesses: dict[tuple[UUID, int], UUID] = {}
        self.limits: defaultdict[int, list[str | None]] = defaultdict(list)
        """The limits of each job, in their order."""
        self._starts: defaultdict[str, list[datetime]] = defaultdict(list)
        """The latest starts of runs with each limit."""
        self._limits_before: dict[UUID, int] = {}
        """Like ``_policies_before``, for the job's limits."""
        self._policies_before: dict[UUID, int] = {}
        """For runs that are about to start: the number of the job's policies when the run
        was read.
        """

    def record_start(self, run_id: UUID, attempt: int, token: UUID) -> None:
        """Record that an execution begins."""
        other = self._witnesses.setdefault((run_id, attempt), token)
        assert other == token, f"run {run_id} attempt {attempt} was started twice"

    @contextmanager
    def starting(self, run_id: UUID) -> Iterator[None]:
        """Record the time in which an execution reads the run and its job and may start it."""
        run = self.rows.runs.get(run_id)
        if run is None or run_id in self._policies_before:
            yield
            return
        self._policies_before[run_id] = len(self.policies[run.job_id])
        self._limits_before[run_id] = len(self.limits[run.job_id])
        try:
            yield
        finally:
            del self._policies_before[run_id], self._limits_before[run_id]

    def check(self) -> None:
        """Compare the rows with those of the last check."""
        before, self.rows = self.rows, Rows.read()
        for job_id, job in self.rows.jobs.items():
            if self.policies[job_id][-1:] != [job.overlap_policy]:
                self.policies[job_id].append(job.overlap_policy)
            if self.limits[job_id][-1:] != [limit := self.rows.limit_of.get(job_id)]:
                self.limits[job_id].append(limit)
        placed_again = {
            job for job in before.jobs.keys() & self.rows.jobs if self._follow(before, job)
        }
        for job_id in self.rows.jobs.keys() - before.jobs:
            self._check_new_cursor(self.rows.jobs[job_id])
        for run in self.rows.runs.values():
            assert not (run.job_id in placed_again and self._is_withdrawn(run)), (
                f"not withdrawn: {run}"
            )
        for run_id in before.runs.keys() | self.rows.runs:
            old, new = before.runs.get(run_id), self.rows.runs.get(run_id)
            if old is None:
                assert new is not None
                self._check_made(new)
            elif new is None:
                self._check_withdrawn(old, placed_again)
            elif old != new:
                self._check_moved(old, new, before)
        self._check_followers(before)
        self._check_places(before)
        self._check_attempts(before)
        self._check_accounts()

    # --- runs ------------------------------------------------------------------------------------

    def _check_made(self, run: RunRow) -> None:
        made = (
            (State.WAITING,) if run.trigger == Trigger.BACKFILL else (State.PENDING, State.MISSED)
        )
        assert run.state in made, f"made as {run.state}: {run}"
        assert run.attempt == 1, run
        if run.trigger == Trigger.SCHEDULE:
            assert run.scheduled_at <= self._clock.now() + settings.LOOK_AHEAD, (
                f"past the horizon: {run}"
            )
            assert run.due_at >= run.scheduled_at, run
        elif run.trigger == Trigger.BACKFILL:
            assert run.scheduled_at < self._clock.now(), f"backfilled ahead: {run}"
        else:
            assert run.scheduled_at.microsecond, f"takes the place of an occurrence: {run}"
        self._check_slot_and_end(run)

    def _check_places(self, before: Rows) -> None:
        """Check the limits. Runs that have started keep their places if a limit is lowered."""
        places = self.rows.places
        assert {run.pk for run in self.rows.runs.values() if run.limited} == places.keys()
        for place in places.values():
            run = self.rows.runs[place.run_id]
            assert run.state in UNFINISHED, f"a place of an ended run: {place} {run}"
            assert (place.number is None) == (run.state == State.WAITING), f"{place} {run}"
        taken, taken_before = _taken(self.rows), _taken(before)
        for line, number in taken.items():
            maximum, _ = self.rows.limits[line[0]]
            allowed = max(maximum, taken_before[line]) if maximum else number
            assert number <= allowed, f"{number} places of {line} are taken, allowed: {allowed}"

    def _check_number_of_starts(self, run: RunRow) -> None:
        """Check that a run which has just started isn't one too many within the interval."""
        if not run.limited:
            return
        limit = self.rows.places[run.pk].limit_id
        _, maximum = self.rows.limits[limit]
        if maximum is not None:
            since = self._clock.now() - LIMITS[limit]["interval"]
            recent = [at for at in self._starts[limit] if at > since]
            assert len(recent) < maximum, f"started after {recent}: {run}"
            self._starts[limit] = [*recent, self._clock.now()]

    def _check_followers(self, before: Rows) -> None:
        ended = [
            run
            for run in self.rows.runs.values()
            if run.state in FINAL and not _was_final(before, run)
        ]
        owed = [
            (job_id, run.pk)
            for run in ended
            for job_id, after, on in self.rows.links
            if after == run.job_id and job_id in self.rows.enabled
            if on in conditions_met_by(State(run.state), started=run.started_at is not None)
        ]
        made = Counter(self.rows.followers) - Counter(before.followers)
        assert made == Counter(owed), f"made {made}, owed {owed}"
        assert len(set(self.rows.followers)) == len(self.rows.followers), "followed twice"

    def _check_withdrawn(self, run: RunRow, placed_again: set[int]) -> None:
        if run.job_id not in self.rows.jobs:
            return
        assert run.job_id in placed_again, f"deleted without a change of its job: {run}"
        assert self._is_withdrawn(run), f"deleted although it was due or started: {run}"

    def _is_withdrawn(self, run: RunRow) -> bool:
        """Whether the run is deleted when its job changes."""
        ahead = run.trigger == Trigger.SCHEDULE and run.scheduled_at > self._clock.now()
        return ahead and (run.state, run.attempt) == (State.PENDING, 1)

    def _check_moved(self, old: RunRow, new: RunRow, before: Rows) -> None:
        if old.state in FINAL:
            assert _ended_ahead(old), f"a final row has changed: {old} -> {new}"
            stands_for_more = old._replace(
                missed_before=new.missed_before, missed_from=new.missed_from
            )
            assert stands_for_more == new, f"a final row has changed: {old} -> {new}"
            return
        assert (old.job_id, old.scheduled_at, old.trigger) == (
            new.job_id,
            new.scheduled_at,
            new.trigger,
        )
        if old.state != new.state:
            assert State(new.state) in TRANSITIONS[State(old.state)], f"illegal: {old} -> {new}"
        tried_again = (old.state, new.state) == (State.RUNNING, State.PENDING)
        assert new.attempt == old.attempt + tried_again, f"{old} -> {new}"
        moved = tried_again or (
            old.trigger == Trigger.BACKFILL and State.WAITING in (old.state, new.state)
        )
        assert moved or new.due_at == old.due_at, f"{old} -> {new}"
        if new.state == State.PENDING != old.state:
            self.dispatched.discard((new.pk, new.attempt))
        if new.state == State.QUEUED != old.state:
            assert (new.pk, new.attempt) in self.dispatched, f"queued but not dispatched: {new}"
        if new.state == State.RUNNING != old.state:
            assert new.cancel_requested_at is None, f"started despite a cancel request: {new}"
            assert new.due_at - self._clock.now() < START_TOLERANCE, f"started early: {new}"
            assert new.started_at == self._clock.now(), new
            assert not is_frozen(
                before.freezes,
                namespace=self.rows.jobs[new.job_id].namespace,
                trigger=Trigger(new.trigger),
                now=self._clock.now(),
            ), f"started during a freeze: {new} {before.freezes}"
            self._check_slot(new)
            self._check_number_of_starts(new)
            limits = self.limits[new.job_id][self._limits_before[new.pk] - 1 :]
            assert new.limited or None in limits, f"runs without a place under {limits}: {new}"
        self._check_slot_and_end(new)

    def _check_slot_and_end(self, run: RunRow) -> None:
        if run.state in FINAL:
            assert (run.slot, run.slot_number) == (None, 0), f"a final run has a slot: {run}"
            assert run.finished_at is not None, run
        else:
            assert (run.slot, run.slot_number) in _possible_slots(run), run
            assert run.finished_at is None, run

    def _check_slot(self, run: RunRow) -> None:
        """Check that a started run has the slot, unless it may have read a policy without slots."""
        policies = self.policies[run.job_id][self._policies_before[run.pk] - 1 :]
        assert run.slot or OverlapPolicy.ALLOW in policies, (
            f"runs without the slot under {policies}: {run}"
        )

    def _check_attempts(self, before: Rows) -> None:
        attempts = self.rows.attempts
        for key in before.attempts.keys() - attempts:
            assert key[0] not in self.rows.runs, f"an attempt's row was deleted: {key}"
        opened: defaultdict[UUID, list[int]] = defaultdict(list)
        for (run_id, number), attempt in attempts.items():
            old = before.attempts.get((run_id, number))
            assert old is None or not old.outcome or old == attempt, (
                f"a closed attempt has changed: {old} -> {attempt}"
            )
            if attempt.outcome == Outcome.LOST and not (old and old.outcome):
                self._check_lost(before.runs.get(run_id), attempt)
            if not attempt.outcome:
                opened[run_id].append(number)
        for run in self.rows.runs.values():
            expected = [run.attempt] if run.state == State.RUNNING else []
            assert opened[run.pk] == expected, f"open attempts {opened[run.pk]} of {run}"
        for (run_id, number), token in self._witnesses.items():
            if run_id in self.rows.runs:
                recorded = attempts.get((run_id, number))
                assert recorded is not None, f"unrecorded start: {run_id} {number}"
                assert recorded.token == token, f"another start is recorded: {run_id} {number}"

    def _check_lost(self, run: RunRow | None, attempt: AttemptRow) -> None:
        if (attempt.run_id, attempt.number) not in self.killed:
            assert run is not None, attempt
            assert run.heartbeat_at is not None, run
            silent = self._clock.now() - run.heartbeat_at
            assert silent > settings.RUN_LEASE, f"declared lost after {silent}: {run}"

    # --- jobs ------------------------------------------------------------------------------------

    def _follow(self, before: Rows, job_id: int) -> bool:
        """Record the occurrences that the job owes. Return whether its cursor was placed again."""
        old, new = before.jobs[job_id], self.rows.jobs[job_id]
        if old[5:15] == new[5:15]:
            return False
        now, owed = self._clock.now(), self.owed[job_id]
        over = _pause_ends(old, by=now)
        # A user may resume a job whose pause a node has ended ahead: it is then placed from now on.
        same_place = old.placed_at == new.placed_at
        if old.definition == new.definition and same_place and not over:
            if old.problem == new.problem:
                assert new.next_at is not None, f"the cursor was cleared: {old} -> {new}"
                passed = list(_walk(old, until=new.next_at))
                assert passed, f"the cursor moved backwards: {old} -> {new}"
                owed.update(passed)
            return False
        if _became_exhausted(old, new):
            owed.update(_walk(old, until=None))
            return False
        owed.intersection_update([instant for instant in owed if instant <= now])
        owed.update(instant for instant in _walk(old, until=None, limit=now) if instant <= now)
        # If the new cursor is due, the pause has just ended, and the occurrences will be claimed.
        if over and not (new.next_at and new.next_at <= now):
            owed.update(_since_pause(old, now))
        early = _pause_ends(old, by=now + settings.LOOK_AHEAD)
        self._check_new_cursor(new, _end_of_pause(old) if early else now)
        return True

    def _check_new_cursor(self, job: JobRow, since: datetime | None = None) -> None:
        """Check where a new cursor is placed.

        Occurrences count from ``since`` on if the pause ended by itself, otherwise from now on.
        """
        # There may be runs already, such as runs cancelled ahead.
        kept = [run.scheduled_at for run in self.rows.runs.values() if run.job_id == job.pk]
        self.changed_at = max(
            self.changed_at, self._clock.now(), *kept, *([since] if since else [])
        )
        expected: set[datetime | None] = {None}
        if job.enabled and (timetable := job.timetable):
            possible = {self._clock.now(), since or self._clock.now()}
            expected = {timetable.first_after(instant, job.previous_at) for instant in possible}
        assert job.next_at in expected, f"the cursor should be at {expected}: {job}"
        # Nothing reads the schedule of a paused job, unless a node has tried to end its pause.
        may_be_read = job.enabled or _pause_ends(job, by=self._clock.now() + settings.LOOK_AHEAD)
        assert not job.problem or (job.timetable is None and may_be_read), job
        assert job.problem or not job.enabled or job.timetable is not None, job

    def _check_accounts(self) -> None:
        runs: defaultdict[int, list[RunRow]] = defaultdict(list)
        for run in self.rows.runs.values():
            runs[run.job_id].append(run)
        for job_id, job in self.rows.jobs.items():
            _check_occurrences(job, self.owed[job_id], runs[job_id])
            _check_statistics(job, runs[job_id])
            backfilled = [
                run
                for run in runs[job_id]
                if run.trigger == Trigger.BACKFILL
                and (run.state in IN_PROGRESS or (run.state == State.WAITING and run.limited))
            ]
            assert len(backfilled) <= settings.BACKFILL_CONCURRENCY, backfilled


def _taken(rows: Rows) -> Counter[tuple[str, str]]:
    held = (place for place in rows.places.values() if place.number is not None)
    return Counter((place.limit_id, place.key) for place in held)


def _possible_slots(run: RunRow) -> set[tuple[str | None, int]]:
    """The slots that an unfinished run may have, with their numbers."""
    if run.state != State.WAITING or run.limited:
        return {(None, 0), (Slot.RUNNING, 0)}
    if run.trigger == Trigger.BACKFILL:
        return {(Slot.BACKFILL, backfill_number(run.scheduled_at))}
    return {(None, 0), (Slot.NEXT_IN_LINE, 0)}


def _pause_ends(job: JobRow, *, by: datetime) -> bool:
    return not job.enabled and job.paused_until is not None and job.paused_until <= by


def _since_pause(job: JobRow, now: datetime) -> Iterator[datetime]:
    """The occurrences of a paused job between the end of its pause and ``now``."""
    timetable = job.timetable
    instant = timetable.first_after(_end_of_pause(job), job.previous_at) if timetable else None
    while timetable and instant and instant <= now:
        yield instant
        instant = timetable.next_after(instant)


def _end_of_pause(job: JobRow) -> datetime:
    """The instant just before the end of the pause, or the job's last change if that was later."""
    assert job.paused_until is not None
    return max(job.paused_until - MICROSECOND, job.placed_at)


def _was_final(before: Rows, run: RunRow) -> bool:
    return run.pk in before.runs and before.runs[run.pk].state in FINAL


def _ended_ahead(run: RunRow) -> bool:
    """Whether the run ended before its time, because it was cancelled or the broker's client
    refused it.

    After a change of the job, the cursor passes the occurrence again.
    """
    return run.state in FINAL and run.finished_at is not None and run.finished_at < run.scheduled_at


def _walk(
    job: JobRow, *, until: datetime | None, limit: datetime | None = None
) -> Iterator[datetime]:
    """Yield the occurrences from the cursor to before ``until``, and at least to ``limit``."""
    timetable = job.timetable
    instant = job.next_at if job.enabled and timetable else None
    while instant is not None and instant != until and (limit is None or instant <= limit):
        assert until is None or instant < until, f"{until} is no occurrence of {job}"
        yield instant
        assert timetable is not None
        instant = timetable.next_after(instant)


def _became_exhausted(old: JobRow, new: JobRow) -> bool:
    """Whether the only change of the job is that it has no occurrences left."""
    disabled = old.enabled and not new.enabled and new.pause_reason == EXHAUSTED
    return disabled and old.definition[1:] == new.definition[1:]


def _check_occurrences(job: JobRow, owed: set[datetime], runs: list[RunRow]) -> None:
    times = Counter(run.scheduled_at for run in runs if run.trigger == Trigger.SCHEDULE)
    for run in runs:
        if run.missed_before:
            assert run.missed_from is not None, run
            covered = [instant for instant in owed if run.missed_from <= instant < run.scheduled_at]
            times.update(covered)
    ended_ahead = {run.scheduled_at for run in runs if _ended_ahead(run)}
    for instant in owed:
        assert times[instant], f"lost: the occurrence of {instant} of {job}"
        if instant not in ended_ahead:
            assert times[instant] == 1, f"accounted for {times[instant]} times: {instant} of {job}"


def _check_statistics(job: JobRow, runs: list[RunRow]) -> None:
    ended = Counter(run.state for run in runs if run.state in FINAL)
    ended[State.MISSED] += sum(run.missed_before for run in runs)
    counted = dict(zip(FINAL_STATES, job[15:], strict=True))
    assert counted == {state: ended[state] for state in FINAL_STATES}, (
        f"the statistics count {counted}, but the runs are {ended}: {job}"
    )
