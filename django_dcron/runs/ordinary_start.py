"""Read a run, and start it in the same statement if it is ordinary.

Most runs are ordinary: due, in time, not cancelled, not frozen, and not in a queue of their job
(``queue_all``). The slot is free, and the job has no limit and isn't deleted. On PostgreSQL, one
statement reads such a run and starts it. The same statement only reads any other run, and
``policies.start_decision`` decides from the facts that it returns.

Invariants:

- The statement starts only runs for which ``decide_start`` would return ``Start``, with the same
  slot. It need not start all of them: ``decide_start`` decides about the rest.
- It changes and locks only the same rows as ``transitions.mark_running``.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import BooleanField, Case, F, Q, When

from django_dcron.db.now import UtcNow
from django_dcron.db.read_and_change import ColumnSql, ReadAndChange, raw_expression
from django_dcron.db.statements import Insert, Placeholder, Select, Update
from django_dcron.models import Attempt, Run
from django_dcron.policies.freezing import AUTOMATIC
from django_dcron.policies.lifecycle import State, Trigger, states_before
from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.policies.overlap import OverlapPolicy
from django_dcron.policies.slots import Slot
from django_dcron.runs import transitions
from django_dcron.runs.release import current_release
from django_dcron.runs.start_facts import (
    READ_COLUMNS,
    RunAsRead,
    read_run,
    run_as_read,
    run_query,
)

ORDINARY = "can_start"
_IS_QUEUEING = Q(job__overlap_policy=OverlapPolicy.QUEUE_ALL) | Q(
    ~Q(job__overlap_policy=OverlapPolicy.ALLOW), job__misfire_policy=MisfirePolicy.RUN_ALL
)
"""Covers ``Job.is_queueing``."""


def _reading() -> Any:
    in_time = Q(due_at__gte=UtcNow() - F("job__misfire_grace")) & (
        Q(job__start_deadline=None) | Q(due_at__gte=UtcNow() - F("job__start_deadline"))
    )
    ordinary = Q(
        Q(attempt__gt=1) | Q(trigger=Trigger.BACKFILL) | in_time,
        attempt=Placeholder(Run, "attempt"),
        state__in=states_before(State.RUNNING),
        cancel_requested_at=None,
        due_at__lte=UtcNow(),
        job__deleted_at=None,
        job__limit=None,
        limited=False,
    ) & (~Q(trigger=Trigger.SCHEDULE) | ~_IS_QUEUEING)
    query = run_query().annotate(
        can_start=Case(When(ordinary, then=True), default=False, output_field=BooleanField())
    )
    return query.values_list(*READ_COLUMNS, ORDINARY)


def _condition(seen: ColumnSql) -> str:
    automatic = ", ".join(f"'{trigger}'" for trigger in sorted(AUTOMATIC))
    return (
        f"{seen(ORDINARY)} AND NOT ({seen('is_frozen')} AND {seen('trigger')} IN ({automatic})) "
        f"AND (NOT {seen('slot_taken')} OR {seen('slot')} = '{Slot.RUNNING}' "
        f"OR {seen('job__overlap_policy')} = '{OverlapPolicy.ALLOW}')"
    )


def _update(seen: ColumnSql) -> Update:
    is_exclusive = f"{seen('job__overlap_policy')} <> '{OverlapPolicy.ALLOW}'"
    slot = f"(SELECT CASE WHEN {is_exclusive} THEN '{Slot.RUNNING}' END FROM seen)"  # noqa: S608 - our own names  # nosec B608
    return Update(
        Run,
        lambda: transitions.runs().filter(
            pk=Placeholder(Run, "id"),
            attempt=Placeholder(Run, "attempt"),
            state__in=states_before(State.RUNNING),
        ),
        **transitions.start_columns(raw_expression(slot, Run._meta.get_field("slot"))),
    )


def _insert(seen: ColumnSql) -> Insert:
    names = ("run_id", "number", "token", "worker", "release")
    own = {name: Placeholder(Attempt, name) for name in names}
    dispatched_at = f"CASE WHEN {seen('deliveries')} > 0 THEN {seen('queued_at')} END"
    read = {
        "definition_id": seen("definition"),
        "due_at": seen("due_at"),
        "queued_at": dispatched_at,
        "started_at": seen("read_at"),
    }
    values = {
        name: raw_expression(sql, Attempt._meta.get_field(name)) for name, sql in read.items()
    }
    return Insert(Attempt, lambda: Attempt(**own, **values))


_START = ReadAndChange(
    Select(Run, _reading),
    (*READ_COLUMNS, ORDINARY),
    _condition,
    _update,
    _insert,
    lock_timeout=transitions.LOCK_TIMEOUT,
)


class ReadOrStarted(NamedTuple):
    read: RunAsRead | None
    """The run as it was before its start. None if it doesn't exist."""
    fence: int | None
    """The key of the attempt's row, if the run has been started."""


def read_or_start(run_id: UUID, attempt: int, *, token: UUID, worker: str) -> ReadOrStarted:
    """Start the attempt if the run is ordinary, and return the run as it was.

    Raises ``IntegrityError`` if another run has just taken the slot.
    """
    if not _START.is_supported():
        return ReadOrStarted(read_run(run_id), None)
    fence: int | None = None

    def query() -> list[Any] | None:
        nonlocal fence
        row, fence = _START.execute(
            id=run_id,
            attempt=attempt,
            run_id=run_id,
            number=attempt,
            token=token,
            worker=worker,
            release=current_release(),
        )
        return row and row[:-1]

    return ReadOrStarted(run_as_read(query), fence)
