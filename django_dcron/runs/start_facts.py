"""Load the facts that decide about the start of an attempt.

Invariants:

- One query reads the run, its job, and whether the running slot is taken or a freeze is in force.
- Other runs are read only if the decision asks for them. The holder of the slot and the run that
  is next in line stay locked for the transaction.
- Rows are locked in this order: the holder of the slot, the run, the run that is next in line.
- No run is missed because the database's clock jumps. For ten seconds, the time without the jump
  counts, too, because nodes dispatched the run by that time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import OperationalError, ProgrammingError
from django.db.models import Exists, OuterRef, Subquery

from django_dcron.conf import settings
from django_dcron.db import clock
from django_dcron.db.contention import is_contention
from django_dcron.db.now import UtcNow
from django_dcron.db.routing import alias_for, database_name, lacks_table
from django_dcron.db.statements import Placeholder, Select
from django_dcron.exceptions import UnknownRun
from django_dcron.models import Attempt, Definition, Job, Run
from django_dcron.models.freeze import job_is_frozen
from django_dcron.models.run import JOB_DELETED, RunQuerySet
from django_dcron.policies.freezing import AUTOMATIC
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.policies.slots import Slot
from django_dcron.policies.start_decision import (
    UNKNOWN,
    LoadFact,
    OtherRun,
    Reason,
    StartFacts,
)
from django_dcron.runs import transitions
from django_dcron.runs.slot_queue import oldest_in_time
from django_dcron.runs.start_deadline import why_too_late
from django_dcron.utils.sync_points import reach_sync_point
from django_dcron.utils.time_format import format_time_to_store

_clock = clock.ClusterClock()
"""Detects jumps of the database's clock between two starts of runs in this process."""

_clock_lock = threading.Lock()


class RunAsRead(NamedTuple):
    run: Run
    """The run with its job."""
    at: datetime
    """Time of the read, by the database's clock."""
    at_without_jump: datetime
    """The same time without a jump that the database's clock has just made."""
    slot_taken: bool
    """Whether another run had the job's slot at that time."""
    is_frozen: bool
    """Whether a freeze held back the run at that time."""
    definition: UUID | None
    """The job's latest recorded definition (``jobs.definitions``)."""


_RUN = [field.attname for field in Run._meta.concrete_fields]

_NOT_READ = {
    "description",
    "declared",
    "import_source",
    "import_key",
    "imported",
    "pause_reason",
    "paused_until",
    "created_at",
    "updated_at",
}
"""Columns of the job that aren't needed to execute a run. Django loads them if they are accessed.

None of them is part of a definition, because each start compares the definition without a query.
psycopg parses a statement of more than 4,096 characters each time.
"""

_JOB = [field.attname for field in Job._meta.concrete_fields if field.attname not in _NOT_READ]
_JOB_NAMES = frozenset(_JOB)
"""Django looks up each column of the job in these names."""

READ_COLUMNS = (
    *_RUN,
    *(f"job__{name}" for name in _JOB[1:]),  # the run has the job's id
    "definition",
    "is_frozen",
    "read_at",
    "slot_taken",
)


def run_query() -> RunQuerySet:
    """Return the query for a ``Placeholder`` run and its job, with the columns ``READ_COLUMNS``."""
    latest = Definition.objects.filter(job_id=OuterRef("job_id")).order_by("-current_since")
    return (
        transitions.runs()
        .filter(pk=Placeholder(Run, "id"))
        .order_by()
        .annotate(
            definition=Subquery(latest.values("pk")[:1]),
            read_at=UtcNow(),
            slot_taken=Exists(transitions.runs().in_slot(Slot.RUNNING, OuterRef("job_id"))),
            is_frozen=job_is_frozen("job_id", "job__namespace"),
        )
    )


_READ = Select(Run, lambda: run_query().values_list(*READ_COLUMNS))


def read_run(run_id: UUID) -> RunAsRead | None:
    """Return the run as it is now, or None if it doesn't exist."""
    return run_as_read(lambda: _READ.first(id=run_id))


def run_as_read(query: Callable[[], list[Any] | None]) -> RunAsRead | None:
    """Return the run of the row that ``query`` returns, or None if there is no row."""
    using = alias_for(Run)
    queried_at = time.monotonic()
    try:
        row = query()
    except (ProgrammingError, OperationalError) as error:
        # The table is missing in another project's database, or in one without migrations.
        if not is_contention(error) and lacks_table(Run, using):
            raise UnknownRun(f"{database_name(using)} has no table of runs") from error
        raise
    if row is None:
        return None
    *columns, definition, is_frozen, read_at, slot_taken = row
    run = Run.from_db(using, _RUN, columns[: len(_RUN)])
    run.job = Job.from_db(using, _JOB_NAMES, [run.job_id, *columns[len(_RUN) :]])
    at_without_jump = _without_jump(read_at, queried_at, time.monotonic())
    slot_taken = bool(slot_taken) and run.slot != Slot.RUNNING
    is_frozen = bool(is_frozen) and run.trigger in AUTOMATIC
    return RunAsRead(run, read_at, at_without_jump, slot_taken, is_frozen, definition)


def _without_jump(read_at: datetime, queried_at: float, answered_at: float) -> datetime:
    """Return the database's time without a jump that this process has noticed recently."""
    if clock.fixed_at is not None:
        return read_at
    with _clock_lock:
        _clock.add(read_at, queried_at, answered_at)
        return read_at - _clock.doubt


class Delivery:
    """A run that a worker has received, and the facts that have been loaded about it."""

    holder: Run
    """The run that has the slot. Set once ``load`` has found one."""
    next_in_line: Run
    """The run that is next in line. Set once ``load`` has found one."""
    older: Run
    """The oldest run that is due. Set once ``load`` has found one."""
    missed_because: str
    """Why the run is too late, or empty. Set once the start deadline has been checked."""

    def __init__(
        self, read: RunAsRead, attempt: int, *, token: UUID, worker: str, punctual: bool = False
    ) -> None:
        run = self.run = read.run
        self.token = token
        self.worker = worker
        self.read_at = read.at
        self.definition = read.definition
        earliest, latest = sorted((read.at, read.at_without_jump))
        self._attempt = attempt
        self._earliest = earliest
        # Nobody can wait for a clock that stands still (``clock.fixed_at``).
        waits = punctual and clock.fixed_at is None
        self.facts = StartFacts(
            state=State(run.state),
            is_current_attempt=run.attempt == attempt,
            cancel_requested=run.cancel_requested_at is not None,
            job_deleted=run.job.deleted_at is not None,
            is_frozen=read.is_frozen,
            due_in=run.due_at - latest if waits else timedelta(0),
            overlap=run.job.overlap,
            scheduled_at=run.scheduled_at,
            due_at=run.due_at,
            is_backfilled=run.trigger == Trigger.BACKFILL,
            in_queue=run.trigger == Trigger.SCHEDULE and run.slot is None and run.job.is_queueing,
            slot_taken=read.slot_taken,
            is_limited=run.job.limit_id is not None or run.limited,
        )

    def load(self, fact: LoadFact) -> None:
        """Load one fact. Locks the other run, and with the holder also the run itself."""
        match fact:
            case LoadFact.START_DEADLINE:
                self.missed_because = why_too_late(self.run, self._earliest)
                self.facts = replace(self.facts, too_late=bool(self.missed_because))
            case LoadFact.HOLDER:
                holder = _lock_holder(self.run)
                other = _as_fact(holder, self._earliest)
                if holder is not None and other is not None:
                    self.holder = holder
                    if self.facts.in_queue:
                        other = replace(other, executing_since=_first_start(holder))
                    reach_sync_point("start.held")
                    self._lock_run()
                self.facts = replace(self.facts, holder=other)
            case LoadFact.NEXT_IN_LINE:
                next_run = transitions.runs().lock_holder(Slot.NEXT_IN_LINE, self.run.job_id)
                self.facts = replace(self.facts, next_in_line=_as_fact(next_run, self._earliest))
                if next_run is not None:
                    self.next_in_line = next_run
            case LoadFact.OLDER:
                older = oldest_in_time(self.run, self._earliest)
                self.facts = replace(self.facts, older_is_due=older is not None)
                if older is not None:
                    self.older = older

    def _lock_run(self) -> None:
        """Lock the run and read its state again.

        Another process may have withdrawn it, or another delivery may have made it wait.
        """
        row = transitions.runs().select_for_update().filter(pk=self.run.pk)
        state, attempt = row.values_list("state", "attempt").first() or (self.run.state, None)
        self.facts = replace(
            self.facts, state=State(state), is_current_attempt=attempt == self._attempt
        )

    def forget_other_runs(self) -> None:
        """Forget the other runs: the slot has a new holder, which the next try reads and locks."""
        self.facts = replace(
            self.facts,
            slot_taken=True,
            holder=UNKNOWN,
            next_in_line=UNKNOWN,
            older_is_due=UNKNOWN,
        )

    def text_of(self, reason: Reason) -> str:
        """Return the reason as it is stored."""
        match reason:
            case Reason.CANCEL_REQUESTED:
                return self.run.reason
            case Reason.JOB_DELETED:
                return JOB_DELETED
            case Reason.TOO_LATE:
                return self.missed_because
            case Reason.HOLDER_UNFINISHED:
                return _unfinished_reason(self.holder)
            case Reason.LINE_TAKEN:
                holder = _unfinished_reason(self.holder)
                return f"{holder}; run {self.next_in_line.pk} already waits for it"
            case Reason.NEWER_IN_LINE:
                return _unfinished_reason(self.next_in_line)


def _lock_holder(run: Run) -> Run | None:
    """Lock and return the other run that has the job's slot, or None."""
    return transitions.runs().exclude(pk=run.pk).lock_holder(Slot.RUNNING, run.job_id)


def _as_fact(run: Run | None, now: datetime) -> OtherRun | None:
    if run is None:
        return None
    return OtherRun(
        is_running=run.state == State.RUNNING,
        scheduled_at=run.scheduled_at,
        is_backfilled=run.trigger == Trigger.BACKFILL,
        is_silent=run.heartbeat_at is not None and run.heartbeat_at < now - settings.RUN_LEASE,
    )


def _first_start(run: Run) -> datetime | None:
    """Return when the run's first attempt started, or None if it hasn't."""
    if run.attempt == 1:
        return run.started_at
    first = Attempt.objects.using(alias_for(Attempt)).filter(run=run.pk, number=1)
    return first.values_list("started_at", flat=True).first() or run.scheduled_at


def _unfinished_reason(other: Run) -> str:
    return f"{run_label(other)} was unfinished: {other.state}"


def run_label(run: Run) -> str:
    return f"the run of {format_time_to_store(run.scheduled_at)} ({run.pk})"
