"""Releasing: backfilled runs come to their turn, behind the live schedule and without drowning it.

A backfilled run waits until it is released; then it is pending and due, and goes the way of all runs. Invariants:

- Of one job at most ``DCRON_BACKFILL_CONCURRENCY`` backfilled runs are under way at any moment; and if the job's runs must
  not overlap, one, beside those that waited for a retry when it was released. They are counted and released under the
  lock of the job's cursor, so that this holds also while two nodes take themselves for the leader.
- Of all jobs that a node leads at most ``JOBS_AT_FULL`` times as many are under way, those that wait for a retry included.
- The oldest is released first, and while another run has the job's slot none is.
- Of a paused job nothing is released. What waits then goes on when it is resumed.
- Nobody is waited for: a job whose rows somebody has locked is passed over. A node frozen half way keeps them no longer
  than its shards (``ticking``); and one call is over soon, however many jobs there are.

Nothing is remembered between two calls: whichever node leads the shard goes on where the one before it stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import datetime

from django.db import connections, transaction
from django.db.models import Q

from django_dcron import transitions
from django_dcron.conf import settings
from django_dcron.definition import EXHAUSTED
from django_dcron.domain.lifecycle import UNFINISHED, State, Trigger
from django_dcron.domain.overlap import FIRST_TURN, first_turn_of, read_policy, slot_of
from django_dcron.domain.timetable import INSTANT
from django_dcron.models import Cursor
from django_dcron.models.database import alias_for, leaving_for_later
from django_dcron.models.run import RunQuerySet
from django_dcron.sync_points import reach

LOOKED_AT_ONCE = 100
JOBS_AT_FULL = 4
"""So many jobs may have all their backfilled runs under way at once on each node: few, as live runs queue up behind them."""
BUDGET = 0.5
"""Seconds after which one call begins with no further job: live runs wait for the same thread."""
UNDER_WAY = UNFINISHED - {State.WAITING}


def release(shards: Collection[int], now: datetime, *, namespace: str = "") -> int:
    """Release what may run now of the backfilled runs of ``shards``; returns how many."""
    if not _in_line(transitions.runs(), FIRST_TURN).exists():
        return 0
    ours = _in(shards, namespace)
    busy = Counter(ours.filter(_under_way()).values_list("job_id", flat=True))
    room = JOBS_AT_FULL * settings.BACKFILL_CONCURRENCY - busy.total()
    if room <= 0:
        return 0
    released, until = 0, time.monotonic() + BUDGET
    for job_id, exclusive in _jobs_in_line(ours):
        if busy[job_id] < settings.BACKFILL_CONCURRENCY:
            released += _release_of(job_id, exclusive, now, room - released)
        if released >= room or time.monotonic() >= until:
            break
    return released


def _in(shards: Collection[int], namespace: str) -> RunQuerySet:
    ours = transitions.runs().in_shards(shards, settings.SHARDS)
    return ours.filter(job__namespace=namespace) if namespace else ours


def _jobs_in_line(runs: RunQuerySet) -> Iterator[tuple[int, bool]]:
    """The jobs of which backfilled ones among ``runs`` wait while nobody has the slot, and whether theirs must not overlap:
    a look or less into the index of slots for each, however many wait."""
    turn, able = FIRST_TURN, Q(job__enabled=True) | Q(job__pause_reason=EXHAUSTED)
    while True:
        turns = _in_line(runs.filter(able), turn).values_list("job_id", "job__overlap_policy")
        looked_at = list(turns[:LOOKED_AT_ONCE])
        policies = dict(looked_at)
        held = transitions.runs().filter(slot__in=map(slot_of, policies)).values_list("job_id", flat=True)
        for job_id in sorted(policies.keys() - set(held)):
            yield job_id, read_policy(policies[job_id]).exclusive
        if len(looked_at) < LOOKED_AT_ONCE:
            return
        turn = first_turn_of(max(policies) + 1)


def _in_line(runs: RunQuerySet, from_turn: int) -> RunQuerySet:
    """The backfilled ones of ``runs`` that wait, of all jobs, in the order of their turns."""
    return runs.filter(slot__gte=from_turn).order_by("slot")


def _under_way() -> Q:
    return Q(trigger=Trigger.BACKFILL, state__in=UNDER_WAY)


def _release_of(job_id: int, exclusive: bool, now: datetime, room: int) -> int:
    """Release the oldest runs of a job, at most ``room``; none if somebody is in the way, who may be frozen."""
    using = alias_for(Cursor)
    released = 0
    with leaving_for_later(f"the backfill of job {job_id}", using), transaction.atomic(using=using):
        if _lock(job_id, using):
            released = _release_oldest(job_id, exclusive, now, room)
    return released


def _lock(job_id: int, using: str) -> bool:
    """The job's cursor. False: somebody else has it, or it is not there yet."""
    skip_locked = connections[using].features.has_select_for_update_skip_locked
    cursors = Cursor.objects.using(using).select_for_update(skip_locked=skip_locked)
    return cursors.filter(pk=job_id).first() is not None


def _release_oldest(job_id: int, exclusive: bool, now: datetime, room: int) -> int:
    """The caller holds the lock of the job's cursor."""
    reach("release.locked")
    under_way = transitions.runs().filter(_under_way(), job=job_id)
    room = min(room, settings.BACKFILL_CONCURRENCY - under_way.count())
    if exclusive:  # one that waits for its retry has not got the slot, and need not keep it from the others
        active = under_way.exclude(state=State.PENDING, attempt__gt=1, due_at__gt=now)
        room = min(room, 1 - active.count())
    if room <= 0 or transitions.runs().filter(slot=slot_of(job_id)).exists():
        return 0
    oldest = transitions.runs().in_line(job_id).values_list("pk", flat=True)[:room]
    # Due one after the other: the agenda keeps that order.
    turns = [(run_id, now + place * INSTANT) for place, run_id in enumerate(oldest)]
    return sum(transitions.release(run_id, due_at) for run_id, due_at in turns)
