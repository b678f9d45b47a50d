"""Cancel a batch of runs in one transaction, in a fixed number of statements.

Invariants:

- The effect on each run is that of ``control.cancel``. A refused run doesn't stop the others.
- Rows are locked in the order of ``endings``: the runs by their keys, the runs that are woken,
  the jobs that follow, statistics, limits. A batch may contain a run of a job that follows.
  Saving that job locks the job before its runs, so the two transactions may deadlock. The database
  then ends one of them, and that one is repeated.
- Runs are woken after all runs of the batch have ended, so that no run wakes only to be cancelled.
- Runs follow only the runs that had started (``chains``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, prefetch_related_objects

from django_dcron.conf import settings
from django_dcron.db.contention import supports_no_key_update
from django_dcron.db.now import UtcNow
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.models import Link, Run
from django_dcron.models.run import REASON_LIMIT
from django_dcron.models.statistics import count_ended_runs
from django_dcron.policies.chains import conditions_met_by
from django_dcron.policies.lifecycle import UNFINISHED, State
from django_dcron.policies.slots import Slot
from django_dcron.runs import cancellation, chains, limits
from django_dcron.runs.endings import final_columns
from django_dcron.runs.slot_queue import wake_next
from django_dcron.runs.transitions import runs


@dataclass(slots=True)
class CancelledBatch:
    refused: dict[UUID, State] = field(default_factory=dict)
    """The runs that had already ended or were in another state, with their states."""
    changed: set[UUID] = field(default_factory=set)
    """The runs that were cancelled or asked to stop."""
    deleted: set[UUID] = field(default_factory=set)


def cancel_batch(
    run_ids: Collection[UUID], reason: str, states: Collection[str] = UNFINISHED
) -> CancelledBatch:
    """Cancel the runs that haven't started, and ask the running ones to stop.

    Runs that aren't in one of ``states`` when they are locked are refused.
    """
    using = alias_for(Run)
    reason = reason[:REASON_LIMIT]
    with brief_transaction(using, settings.RUN_LEASE):
        rows = _lock(run_ids, using)
        allowed = UNFINISHED.intersection(states)
        batch = CancelledBatch(
            refused={pk: State(row.state) for pk, row in rows.items() if row.state not in allowed},
            deleted={*run_ids} - {*rows},
        )
        accepted = [row for row in rows.values() if row.state in allowed]
        running = [row.pk for row in accepted if row.state == State.RUNNING]
        unstarted = [row for row in accepted if row.state != State.RUNNING]
        to_ask = runs().running().filter(pk__in=running, cancel_requested_at=None)
        asked = list(to_ask.values_list("pk", flat=True))
        if asked:
            to_ask.filter(pk__in=asked).update(cancel_requested_at=UtcNow(), reason=reason)
            transaction.on_commit(partial(cancellation.notify_workers, asked), using=using)
        _end(unstarted, reason)
        batch.changed = {*asked, *(row.pk for row in unstarted)}
    return batch


def _lock(run_ids: Collection[UUID], using: str) -> dict[UUID, Run]:
    rows = runs().filter(pk__in=run_ids).order_by("pk")
    locked = rows.select_for_update(no_key=supports_no_key_update(using))
    columns = ("state", "attempt", "job_id", "started_at", "scheduled_at", "limited")
    return {row.pk: row for row in locked.only(*columns)}


def _end(rows: Sequence[Run], reason: str) -> None:
    """Pending, queued or waiting -> cancelled, for locked runs. Nodes dispatch their followers."""
    if not rows:
        return
    cancelled = final_columns(State.CANCELLED, reason) | {"limited": False}
    runs().filter(pk__in=[row.pk for row in rows]).update(**cancelled)
    ended = Counter(row.job_id for row in rows)
    for job_id in _jobs_with_free_slot(ended):
        wake_next(job_id)
    _create_followers(rows)
    jobs_by_number = defaultdict(list)
    for job_id, number in ended.items():
        jobs_by_number[number].append(job_id)
    for number, job_ids in jobs_by_number.items():
        count_ended_runs(job_ids, State.CANCELLED, number)
    if limited := [row.pk for row in rows if row.limited]:
        limits.free_places(limited)
    if delivered := [(row.pk, row.attempt) for row in rows if row.state == State.QUEUED]:
        transaction.on_commit(
            partial(cancellation.revoke_unstarted, delivered), using=alias_for(Run)
        )


def _create_followers(rows: Sequence[Run]) -> None:
    using = alias_for(Run)
    started = [row for row in rows if row.started_at is not None]
    conditions = sorted(conditions_met_by(State.CANCELLED, started=True))
    job_ids = {row.job_id for row in started}
    links = Link.objects.using(using).filter(after__in=job_ids, on__in=conditions)
    followed = {*links.values_list("after", flat=True)} if started else set()
    if ended := [row for row in started if row.job_id in followed]:
        prefetch_related_objects(ended, "job")  # for its name
        chains.create_followers_of_started(ended, State.CANCELLED)


def _jobs_with_free_slot(job_ids: Collection[int]) -> list[int]:
    """Return the jobs whose slot is free and whose runs wait for it."""
    holder = runs().in_slot(Slot.RUNNING, OuterRef("job"))
    waiting = runs().waiting_for_slot().filter(job__in=job_ids)
    free = waiting.exclude(Exists(holder)).order_by("job_id").values_list("job", flat=True)
    return list(free.distinct())
