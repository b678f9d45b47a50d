"""Give runs their places in a shared limit, and pass freed places on to the runs that wait.

Invariants:

- A place is given or freed under the lock of the limit's row, in the transaction that starts or
  ends the attempt. So no more runs execute than the limit allows, even if a process dies.
- UNIQUE (limit, key, number) also ensures that no two runs have the same place.
- With ``max_started``, a run takes a number for the interval when it starts. A woken run that
  hasn't started yet counts towards the maximum, so that a number is left for it.
- A freed place passes directly to the run that has waited longest, by due time. No newcomer gets in
  between: while others wait, it joins their line.
- Runs that a freeze holds back are passed over. They don't block the runs of other namespaces.
- Rows are locked in this order: the run itself and the rows that ``endings`` locks, then the
  limit. A transaction that has locked a limit waits for no other lock: it passes over locked runs.
  The start of a run whose job has meanwhile got another limit locks both limits, in the order of
  their names.
- If a process dies before it wakes runs, or a limit is raised, a node wakes them
  (``scheduler.limit_lines``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Q, QuerySet

from django_dcron.db.contention import can_skip_locked_rows, supports_no_key_update
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.models import Limit, LimitPlace, LimitStart, Run
from django_dcron.models.freeze import job_is_frozen
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.freezing import AUTOMATIC
from django_dcron.policies.lifecycle import STARTABLE, State
from django_dcron.policies.limits import LineFacts, limit_key, places_to_give
from django_dcron.policies.slots import Slot
from django_dcron.runs.transitions import runs
from django_dcron.utils.durations import write_duration
from django_dcron.utils.sync_points import reach_sync_point

WOKEN_AT_ONCE = 100
"""How many runs one transaction wakes at most, so that it is short."""
SPARE = 10
"""How many more waiting runs are read than places are free, because some may be locked."""


class LimitDeleted(Exception):
    """The limit of the run's job was deleted after the run had been read."""


class LimitLine(NamedTuple):
    """The runs that count together: those of one limit and key."""

    limit_id: str
    key: str


class _OwnPlace(NamedTuple):
    """The place of one run, or its wait for one."""

    limit_id: str
    key: str
    number: int | None
    """None while the run waits."""
    max_started: int | None
    """The limit's ``max_started``."""

    @property
    def line(self) -> LimitLine:
        return LimitLine(self.limit_id, self.key)


def take_slot(run: Run, slot: Slot | None) -> bool:
    """Let a pending or queued run take its slot before it asks for a place in its job's limit.

    The run stays locked for the transaction. Returns False if the run is no longer pending or
    queued. Raises ``IntegrityError`` if another run has ``slot``.
    """
    run.limited = run.job.limit_id is not None
    startable = runs().filter(pk=run.pk, attempt=run.attempt, state__in=STARTABLE)
    return bool(startable.update(slot=slot, slot_number=0, limited=run.limited))


def take_place(run: Run) -> str:
    """Give the run a place in its job's limit, or let it join the line.

    The caller has locked the run. Returns why the run must wait, or an empty text if it has a place
    or needs none. Raises ``LimitDeleted``.
    """
    own, name = _own_place(run), run.job.limit_id
    line = None  # set if the run got its place while it waited
    if own is not None and own.limit_id == name and own.number is not None:
        if own.max_started is None:
            return ""
        line = own.line
    limits = _lock({each for each in (own and own.limit_id, name) if each is not None})
    if name is not None and name not in limits:
        raise LimitDeleted(name)
    if own is not None and line is None:  # a wait, or a place in a limit that the job had before
        _places().filter(run=run.pk).delete()
        _pass_on(own.line, limits)
    if name is None:
        return ""
    limit = limits[name]
    if line is None:
        line = LimitLine(name, _key_of(run, limit))
        _places().create(run_id=run.pk, limit_id=name, key=line.key, due_at=run.due_at)
        reach_sync_point("limit.joined")
        if run.pk not in _pass_on(line, limits, joining=run.pk):
            return _why_full(line, limit)
    if _count_start(line, limit):
        return ""
    _places().filter(run=run.pk).update(number=None)  # ``max_started`` was lowered
    return _why_full(line, limit)


def _own_place(run: Run) -> _OwnPlace | None:
    columns = "limit_id", "key", "number", "limit__max_started"
    own = _places().filter(run=run.pk).values_list(*columns).first()
    return own and _OwnPlace(*own)


def _count_start(line: LimitLine, limit: Limit) -> bool:
    """Take a number for a start now. Returns False if the interval has no number left."""
    if limit.max_started is None or limit.interval is None:
        return True
    now = database_now(alias_for(LimitStart))
    numbers = dict(_starts(line).values_list("number", "started_at"))
    recent = {number for number, at in numbers.items() if at > now - limit.interval}
    # Starts take their numbers by the same rule as runs take their places.
    free = places_to_give(LineFacts(limit.max_started, None, recent), 1)
    for number in free:
        row = _starts(line).filter(number=number)
        # A node may have deleted the row of an earlier start meanwhile.
        if number not in numbers or not row.update(started_at=now):
            _starts(line).create(**line._asdict(), number=number, started_at=now)
    return bool(free)


def leave_line(run: Run) -> None:
    """Free the place of a run that was about to start but doesn't, or end its wait for one."""
    if run.limited and runs().filter(pk=run.pk, limited=True).update(limited=False):
        run.limited = False
        free_places([run.pk])


def free_places(run_ids: Collection[UUID]) -> list[Run]:
    """Free the places of the runs, or let them leave their lines. Return the runs that are woken.

    The caller has locked the runs and unmarked them.
    """
    own = _places().filter(run__in=run_ids)
    lines = [LimitLine(*row) for row in own.order_by().values_list("limit_id", "key").distinct()]
    limits = _lock({line.limit_id for line in lines})
    own.delete()
    reach_sync_point("limit.freed")
    woken = [run_id for line in lines for run_id in _pass_on(line, limits)]
    return list(runs().filter(pk__in=woken).select_related("job")) if woken else []


def update_and_unmark(run: Run, guarded: RunQuerySet, **columns: Any) -> bool | None:
    """Update the run and clear ``limited``. The caller then frees its place (``free_places``).

    Returns whether the run has a place or waits for one, or None if no row matched, because another
    process was first. ``run`` may be outdated: it may have got or freed a place since it was read.
    """
    for limited in (run.limited, not run.limited):
        if guarded.filter(limited=limited).update(limited=False, **columns):
            return limited
    return None


def wake_line(line: LimitLine) -> int:
    """Wake the runs whose turn has come, and return their number. Call it in a transaction."""
    return len(_pass_on(line, _lock({line.limit_id})))


def _pass_on(
    line: LimitLine, limits: Mapping[str, Limit], joining: UUID | None = None
) -> list[UUID]:
    """Give the free places to the runs that have waited longest, and wake them.

    ``joining``: a run that has just joined the line in order to start, and so needs no waking.
    Returns the runs that got a place.
    """
    limit = limits.get(line.limit_id)
    if limit is None:
        return []
    free = places_to_give(_facts(line, limit), WOKEN_AT_ONCE)
    chosen = _next_in_line(line, len(free), joining) if free else []
    for run_id, number in zip(chosen, free, strict=False):
        _places().filter(run=run_id).update(number=number)
    if woken := [run_id for run_id in chosen if run_id != joining]:
        # None has been sent since it began to wait.
        runs().waiting().filter(pk__in=woken).update(
            state=State.PENDING, node="", queued_at=None, deliveries=0, reason=""
        )
    return chosen


def _next_in_line(line: LimitLine, room: int, joining: UUID | None) -> list[UUID]:
    """Lock and return at most ``room`` runs, in order. Omits runs that others have locked."""
    is_frozen = Q(job_is_frozen("run__job_id", "run__job__namespace"), run__trigger__in=AUTOMATIC)
    may_start = Q(run__state=State.WAITING) & ~is_frozen
    if joining is not None:
        may_start |= Q(run=joining)
    waiting = _places_in(line).filter(may_start, number=None).order_by("due_at", "run_id")
    first = list(waiting.values_list("run_id", flat=True)[: room + SPARE])
    unlocked = runs().waiting().filter(pk__in=first).order_by()
    using = alias_for(Run)
    if can_skip_locked_rows(using):
        unlocked = unlocked.select_for_update(
            skip_locked=True, no_key=supports_no_key_update(using)
        )
    can_start = {*unlocked.values_list("pk", flat=True), joining} if first else set()
    return [run_id for run_id in first if run_id in can_start][:room]


def _key_of(run: Run, limit: Limit) -> str:
    args = run.job.args if run.args is None else run.args
    kwargs = run.job.kwargs if run.kwargs is None else run.kwargs
    return limit_key(limit.key, args, kwargs)


def _why_full(line: LimitLine, limit: Limit) -> str:
    key = f" ({line.key})" if line.key else ""
    facts = _facts(line, limit)
    text, running = "", len(facts.taken)
    if limit.max_running is not None:
        text = f"{running} of {limit.max_running} running"
    if limit.interval is not None and (not text or running < (limit.max_running or 0)):
        within = write_duration(limit.interval)
        text = f"{facts.started} of {limit.max_started} started within {within}"
    return f"waits for limit {limit}{key}: {text}"


def _facts(line: LimitLine, limit: Limit) -> LineFacts:
    given = _places_in(line).filter(number__isnull=False)
    if limit.max_started is None or limit.interval is None:
        return LineFacts(limit.max_running, None, _numbers(given.values_list("number", flat=True)))
    states = dict(given.values_list("number", "run__state"))
    since = database_now(alias_for(LimitStart)) - limit.interval
    return LineFacts(
        limit.max_running,
        limit.max_started,
        _numbers(states),
        unstarted=sum(state != State.RUNNING for state in states.values()),
        started=_starts(line).filter(started_at__gt=since).count(),
    )


def _numbers(numbers: Iterable[int | None]) -> set[int]:
    return {number for number in numbers if number is not None}


def _starts(line: LimitLine) -> QuerySet[LimitStart]:
    starts = LimitStart.objects.using(alias_for(LimitStart))
    return starts.filter(limit=line.limit_id, key=line.key)


def _places_in(line: LimitLine) -> QuerySet[LimitPlace]:
    return _places().filter(limit=line.limit_id, key=line.key)


def _places() -> QuerySet[LimitPlace]:
    return LimitPlace.objects.using(alias_for(LimitPlace))


def _lock(names: Collection[str]) -> dict[str, Limit]:
    """Lock the limits in the order of their names."""
    using = alias_for(Limit)
    rows = Limit.objects.using(using).filter(pk__in=names).order_by("pk")
    return {row.pk: row for row in rows.select_for_update(no_key=supports_no_key_update(using))}
