"""Release backfilled runs in order, without delaying scheduled runs.

A backfilled run waits until it is released. Then it is pending and due, like any other run.

Invariants:

- A job has at most ``DCRON_BACKFILL_CONCURRENCY`` backfilled runs in progress.
- If the job's runs must not overlap, a run is released only while no other backfilled run of the
  job is in progress. Runs that wait for a retry don't count.
- Runs are counted and released under the lock of the job's cursor. The limits therefore hold even
  while two nodes consider themselves the leader.
- The jobs of one node together have at most ``FULL_JOBS_PER_NODE`` times
  ``DCRON_BACKFILL_CONCURRENCY`` backfilled runs in progress. Runs that wait for a retry count.
- The oldest run is released first. No run is released while another run occupies the job's slot.
- No run of a paused job is released. Its waiting runs are released after the job is resumed. If a
  node has enabled the job before the end of its pause, they wait until the end.
- No run is released during a freeze of its job's namespace.
- The release waits for no lock: a job with locked rows is skipped. A suspended node doesn't keep
  its locks: except on SQLite, the database ends its idle transaction (``tick``).
- The duration of a call is bounded, regardless of the number of jobs.
- No state is kept between calls, so any node that leads the shard can continue.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import datetime

from django.db import transaction
from django.db.models import Q

from django_dcron.conf import settings
from django_dcron.db.contention import can_skip_locked_rows, skipping_if_locked
from django_dcron.db.routing import alias_for
from django_dcron.models import Cursor
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.lifecycle import UNFINISHED, State, Trigger
from django_dcron.policies.overlap import read_overlap_policy
from django_dcron.policies.slots import Slot
from django_dcron.runs import transitions
from django_dcron.schedules.timetable import MICROSECOND
from django_dcron.utils.sync_points import reach_sync_point

BATCH_SIZE = 100
FULL_JOBS_PER_NODE = 4
"""The number of jobs of one node that may have ``DCRON_BACKFILL_CONCURRENCY`` backfilled runs in
progress at once. It is small, because scheduled runs queue behind backfilled runs.
"""
BUDGET = 0.5
"""Seconds after which a call starts no further job, because the same thread claims runs."""
FIRST_JOB = 0
"""The lower bound of job ids."""
IN_PROGRESS = UNFINISHED - {State.WAITING}
"""A released run that waits for a limit is in progress, too."""


def release(shards: Collection[int], now: datetime, *, namespace: str = "") -> int:
    """Release the backfilled runs of ``shards`` that may run now, and return their number."""
    if not transitions.runs().waiting_in_backfill_from(FIRST_JOB).exists():
        return 0
    runs = _runs_of_shards(shards, namespace)
    busy = Counter(runs.filter(_is_in_progress()).values_list("job_id", flat=True))
    room = FULL_JOBS_PER_NODE * settings.BACKFILL_CONCURRENCY - busy.total()
    if room <= 0:
        return 0
    released, until = 0, time.monotonic() + BUDGET
    for job_id, exclusive in _jobs_with_room(runs):
        if busy[job_id] < settings.BACKFILL_CONCURRENCY:
            released += _release_for_job(job_id, exclusive, now, room - released)
        if released >= room or time.monotonic() >= until:
            break
    return released


def _runs_of_shards(shards: Collection[int], namespace: str) -> RunQuerySet:
    runs = transitions.runs().in_shards(shards, settings.SHARDS)
    return runs.filter(job__namespace=namespace) if namespace else runs


def _jobs_with_room(runs: RunQuerySet) -> Iterator[tuple[int, bool]]:
    """Yield each job with waiting backfilled runs and a free slot.

    The second value is whether the job's runs must not overlap. A job costs at most one read of the
    slot index, regardless of its number of waiting runs.
    """
    eligible = runs.filter(Q(job__enabled=True) | Q(job__pause_reason=EXHAUSTED)).not_frozen()
    from_job = FIRST_JOB
    while True:
        waiting = eligible.waiting_in_backfill_from(from_job)
        batch = list(waiting.values_list("job_id", "job__overlap_policy")[:BATCH_SIZE])
        policies = dict(batch)
        occupied = (
            transitions.runs()
            .filter(slot=Slot.RUNNING, job__in=policies)
            .values_list("job_id", flat=True)
        )
        for job_id in sorted(policies.keys() - set(occupied)):
            yield job_id, read_overlap_policy(policies[job_id]).exclusive
        if len(batch) < BATCH_SIZE:
            return
        from_job = max(policies) + 1


def _is_in_progress() -> Q:
    released = Q(state__in=IN_PROGRESS) | Q(state=State.WAITING, limited=True)
    return Q(released, trigger=Trigger.BACKFILL)


def _release_for_job(job_id: int, exclusive: bool, now: datetime, room: int) -> int:
    """Release at most ``room`` of a job's oldest runs.

    Releases none if another transaction has locked the job's rows.
    """
    using = alias_for(Cursor)
    released = 0
    with skipping_if_locked(f"backfill of job {job_id}", using), transaction.atomic(using=using):
        cursor = _lock_cursor(job_id, using)
        if cursor is not None and not cursor.is_resumed_early(now):
            released = _release_oldest(job_id, exclusive, now, room)
    return released


def _lock_cursor(job_id: int, using: str) -> Cursor | None:
    """Lock and return the job's cursor. Return None if it is locked or doesn't exist yet."""
    rows = Cursor.objects.using(using)
    cursors = rows.select_for_update(skip_locked=can_skip_locked_rows(using))
    return cursors.filter(pk=job_id).first()


def _release_oldest(job_id: int, exclusive: bool, now: datetime, room: int) -> int:
    """Release at most ``room`` of the oldest runs. The caller has locked the job's cursor."""
    reach_sync_point("release.locked")
    in_progress = transitions.runs().filter(_is_in_progress(), job=job_id)
    room = min(room, settings.BACKFILL_CONCURRENCY - in_progress.count())
    if exclusive:
        # A run that waits for its retry doesn't occupy the slot, so it doesn't block the others.
        active = in_progress.exclude(state=State.PENDING, attempt__gt=1, due_at__gt=now)
        room = min(room, 1 - active.count())
    if room <= 0 or transitions.runs().in_slot(Slot.RUNNING, job_id).exists():
        return 0
    oldest = transitions.runs().waiting_in_backfill(job_id).values_list("pk", flat=True)[:room]
    # The due times increase, so that the agenda keeps the order.
    due_times = [(run_id, now + number * MICROSECOND) for number, run_id in enumerate(oldest)]
    return sum(transitions.release_backfilled(run_id, due_at) for run_id, due_at in due_times)
