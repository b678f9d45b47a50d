"""Create the runs that follow another run, in the transaction that ends it.

Invariants:

- When a run ends with an outcome that a link names, exactly one run is created of each following
  job that isn't paused.
- The followers are created in the transaction that ends the run, and a run ends once
  (``endings``). So a crash, a second delivery or a late report neither loses nor duplicates a
  follower.
- The idempotency key of a follower names the run it follows, UNIQUE (job, idempotency_key).
- Links and pauses are read when the run ends. Later changes don't affect the followers. A pause
  ends at its time, even if a node has enabled the job ahead of time or hasn't enabled it yet.
- A follower is due immediately. Its ``scheduled_at`` is a time that no other run of the job has. No
  node's agenda contains it yet. The process that ended the run may dispatch it after the commit.
  Otherwise, a node does so within a tick.
- The following jobs are locked in the order of their primary keys, before the statistics of the
  ended run's job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections
from django.db.models import Exists, F, OuterRef, Q

from django_dcron.db.contention import supports_no_key_update
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.db.statements import Placeholder, Select
from django_dcron.models import Cursor, Job, Link, Run
from django_dcron.models.run import REASON_LIMIT, new_run_id
from django_dcron.policies.chains import conditions_met_by
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.policies.slots import Slot
from django_dcron.schedules.timetable import MICROSECOND
from django_dcron.utils.sync_points import reach_sync_point
from django_dcron.utils.time_format import format_time_to_store

FOLLOWER_KEY_PREFIX = "after run "
MAX_TRIES = 20
"""Maximum number of instants to try for a run. The distance between them doubles each time."""


def follower_key(run_id: UUID) -> str:
    """Return the idempotency key of a run that follows ``run_id``.

    ``control.trigger`` rejects keys with this prefix, so no other run has one.
    """
    return f"{FOLLOWER_KEY_PREFIX}{run_id}"


def parse_follower_key(key: str | None) -> UUID | None:
    """Return the id of the run that the run with this idempotency key follows, if any."""
    if key is None or not key.startswith(FOLLOWER_KEY_PREFIX):
        return None
    try:
        return UUID(key.removeprefix(FOLLOWER_KEY_PREFIX))
    except ValueError:
        return None


class SlotAndFollowers(NamedTuple):
    slot_taken: bool
    """Whether a run has the job's slot."""
    next_in_line: bool
    """Whether a run is next in line for the slot."""
    followed: bool
    """Whether any job follows a run that started and ended in the given state."""


def slot_and_followers(job_id: int, state: State) -> SlotAndFollowers:
    """Return the facts that the end of a run of the job in ``state`` depends on, in one query."""
    facts = _slot_and_followers_after(state).first(id=job_id)
    if facts is None:
        raise Job.DoesNotExist(f"job {job_id} doesn't exist")
    return SlotAndFollowers(*map(bool, facts))


@cache
def _slot_and_followers_after(state: State) -> Select:
    job_id, conditions = OuterRef("pk"), sorted(conditions_met_by(state, started=True))
    slot = Exists(Run.objects.in_slot(Slot.RUNNING, job_id))
    line = Exists(Run.objects.in_slot(Slot.NEXT_IN_LINE, job_id))
    follower = Exists(Link.objects.filter(after=job_id, on__in=conditions))
    job = Job.with_deleted.filter(pk=Placeholder(Job, "id"))
    return Select(Job, lambda: job.values_list(slot, line, follower))


def create_followers(run: Run, state: State) -> list[Run]:
    """Create the runs that follow ``run``, which this transaction has just changed to ``state``."""
    using = alias_for(Run)
    started = Run.objects.using(using).filter(pk=run.pk).exclude(started_at=None)
    conditions = conditions_met_by(state, started=state is not State.CANCELLED or started.exists())
    return _create([run], state, conditions, using) if conditions else []


def create_followers_of_started(ended: Sequence[Run], state: State) -> list[Run]:
    """Create the runs that follow runs which had started, in a fixed number of statements.

    This transaction has just changed the runs to ``state``. Their jobs are loaded.
    """
    return _create(ended, state, conditions_met_by(state, started=True), alias_for(Run))


def _create(
    ended: Sequence[Run], state: State, conditions: Collection[str], using: str
) -> list[Run]:
    now = database_now(using)
    following = _lock_following({run.job_id for run in ended}, conditions, now, using)
    followers = _insert(_rows_of_followers(ended, state, following, now), using)
    reach_sync_point("follow.made")
    return followers


def _lock_following(
    job_ids: Collection[int], conditions: Collection[str], now: datetime, using: str
) -> dict[int, list[Job]]:
    """Lock the jobs that follow ``job_ids`` and aren't paused. Return them by the followed job."""
    features = connections[using].features
    unpaused = Q(enabled=True) | Q(paused_until__lte=now)
    following = Job.objects.using(using).filter(
        unpaused, links__after__in=job_ids, links__on__in=sorted(conditions)
    )
    locked = following.select_for_update(
        of=("self",) if features.has_select_for_update_of else (),
        no_key=supports_no_key_update(using),  # others may still insert runs of these jobs
    )
    jobs: Any = [*locked.annotate(followed=F("links__after")).order_by("pk")]
    resumed_later = _resumed_later(jobs, now, using)
    followers = defaultdict(list)
    for job in jobs:
        if job.pk not in resumed_later:
            followers[job.followed].append(job)
    return followers


def _rows_of_followers(
    ended: Sequence[Run], state: State, following: dict[int, list[Job]], now: datetime
) -> list[Run]:
    """Return the unsaved runs of the following jobs, each at a separate instant."""
    first_instant = avoid_whole_second(now)
    number: Counter[int] = Counter()
    rows = []
    for run in ended:
        reason = (
            f"Started because the run of {run.job} at {format_time_to_store(run.scheduled_at)} "
            f"{'was ' if state is State.CANCELLED else ''}{state} (run {run.pk})"
        )
        for job in following.get(run.job_id, ()):
            rows.append(
                Run(
                    id=new_run_id(),
                    job=job,
                    scheduled_at=avoid_whole_second(first_instant + number[job.pk] * MICROSECOND),
                    due_at=now,
                    claimed_at=now,
                    trigger=Trigger.CHAIN,
                    idempotency_key=follower_key(run.pk),
                    reason=reason[:REASON_LIMIT],
                )
            )
            number[job.pk] += 1
    return rows


def _resumed_later(jobs: list[Job], now: datetime, using: str) -> set[int]:
    """Return the keys of the locked ``jobs`` that a node has enabled before the end of a pause.

    The cursors are read after the jobs are locked, because the end of a pause changes both rows.
    """
    keys = [job.pk for job in jobs if job.enabled]
    ended = Cursor.objects.using(using).filter(pk__in=keys, enabled=True, resumes_at__gt=now)
    return set(ended.values_list("pk", flat=True)) if keys else set()


def _insert(rows: list[Run], using: str) -> list[Run]:
    """Insert the runs and return them. A taken instant is replaced by a later one."""
    inserted: list[Run] = []
    runs = Run.objects.using(using)
    for number in range(MAX_TRIES):
        if not rows:
            return inserted
        runs.bulk_create(rows, ignore_conflicts=True)
        present = set(runs.filter(pk__in=[row.pk for row in rows]).values_list("pk", flat=True))
        inserted += [row for row in rows if row.pk in present]
        rows = [row for row in rows if row.pk not in present and not _exists(row, using)]
        for row in rows:  # another run of its job has this instant
            row.scheduled_at = avoid_whole_second(row.scheduled_at + MICROSECOND * 2**number)
    raise RuntimeError(
        f"Can't create the run of {rows[0].job} {rows[0].idempotency_key}: {MAX_TRIES} instants "
        "are taken"
    )


def _exists(row: Run, using: str) -> bool:
    return (
        Run.objects.using(using)
        .filter(job=row.job_id, idempotency_key=row.idempotency_key)
        .exists()
    )


def avoid_whole_second(instant: datetime) -> datetime:
    """Return an instant that isn't a whole second. Whole seconds are reserved for schedules."""
    return instant if instant.microsecond else instant + MICROSECOND
