"""Wake runs that wait for a limit with a free place.

Usually, a run that ends passes its place on (``runs.limits``). This step handles the other cases:
an interval is over, a limit was raised, a freeze has ended, a job was deleted, or a row was locked.

Invariants:

- A few statements find the lines with a free place and a waiting run, however many runs wait.
- The node that leads a limit's shard wakes its runs. If two nodes consider themselves the leader,
  the lock of the limit's row decides.
- A locked limit is left for the next call.
- One call wakes the runs of ``LINES_AT_ONCE`` lines at most. If there are more, they are chosen at
  random, so lines whose runs can't be woken don't exclude the others for long.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable
from functools import reduce
from operator import or_
from typing import NamedTuple
from zlib import crc32

from django.db import transaction
from django.db.models import Count, Exists, Q

from django_dcron.conf import settings
from django_dcron.db.contention import skipping_if_locked
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.db.statements import Select
from django_dcron.models import Job, Limit, LimitPlace, LimitStart, Run
from django_dcron.policies.lifecycle import State
from django_dcron.policies.limits import LineFacts, places_to_give
from django_dcron.runs.limits import LimitLine, wake_line
from django_dcron.scheduler.backfill_release import FIRST_JOB

LINES_AT_ONCE = 100
PRUNED_AT_ONCE = 1000


class WaitingRunKinds(NamedTuple):
    """Whether any run waits in a backfill, or for a limit."""

    in_backfill: bool
    for_limit: bool


_WAITING = Select(
    Job,
    lambda: Job.with_deleted.order_by().values_list(
        Exists(Run.objects.waiting_in_backfill_from(FIRST_JOB)),
        Exists(LimitPlace.objects.filter(number=None)),
    )[:1],
)


def find_waiting() -> WaitingRunKinds:
    """Return which kinds of runs wait, in one statement, because usually none does."""
    row = _WAITING.first()
    return WaitingRunKinds(False, False) if row is None else WaitingRunKinds(*map(bool, row))


def wake_runs_with_place(shards: Collection[int]) -> int:
    """Give free places in the limits of ``shards`` to waiting runs. Return how many are woken."""
    using = alias_for(LimitPlace)
    woken = 0
    for line in _lines_to_wake(shards, using):
        with skipping_if_locked(f"limit {line.limit_id}", using), transaction.atomic(using=using):
            woken += wake_line(line)
    return woken


def _lines_to_wake(shards: Collection[int], using: str) -> list[LimitLine]:
    """Return lines with a waiting run and a free place. A freeze may hold the run back."""
    limits = {
        row.pk: row for row in Limit.objects.using(using).all() if limit_shard(row.pk) in shards
    }
    places = LimitPlace.objects.using(using).filter(limit__in=limits).order_by()
    in_lines = places.values_list("limit_id", "key")
    # The places alone answer this. A join with the runs would read each run that waits.
    waiting = in_lines.filter(number=None).distinct()
    counted = in_lines.exclude(number=None).annotate(
        taken=Count("pk"), unstarted=Count("pk", filter=~Q(run__state=State.RUNNING))
    )
    numbers = {(limit, key): (taken, unstarted) for limit, key, taken, unstarted in counted}
    started = _recent_starts(limits.values(), using)
    lines = []
    for line in map(LimitLine._make, waiting):
        limit, (taken, unstarted) = limits[line.limit_id], numbers.get(line, (0, 0))
        facts = LineFacts(
            limit.max_running, limit.max_started, range(taken), unstarted, started[line]
        )
        if places_to_give(facts, 1):
            lines.append(line)
    return lines if len(lines) <= LINES_AT_ONCE else random.sample(lines, LINES_AT_ONCE)


def _recent_starts(limits: Iterable[Limit], using: str) -> Counter[LimitLine]:
    """Return how many runs have started in each line within the interval of its limit."""
    now = database_now(using)
    recent = [
        Q(limit=limit.pk, started_at__gt=now - limit.interval)
        for limit in limits
        if limit.interval is not None
    ]
    if not recent:
        return Counter()
    starts = LimitStart.objects.using(using).filter(reduce(or_, recent))
    counted = starts.order_by().values_list("limit_id", "key").annotate(number=Count("pk"))
    return Counter({LimitLine(limit_id, key): number for limit_id, key, number in counted})


def prune_starts(shards: Collection[int]) -> bool:
    """Delete the starts whose interval is over, so that unused keys take no space.

    One call deletes at most ``PRUNED_AT_ONCE`` starts of each limit. Returns whether there may be
    more.
    """
    using, may_be_more = alias_for(LimitStart), False
    for limit in Limit.objects.using(using).exclude(interval=None):
        if limit_shard(limit.pk) in shards and limit.interval is not None:
            over = database_now(using) - limit.interval
            rows = LimitStart.objects.using(using).filter(limit=limit.pk, started_at__lt=over)
            keys = list(rows.values_list("pk", flat=True)[:PRUNED_AT_ONCE])
            rows.filter(pk__in=keys).delete()
            may_be_more |= len(keys) == PRUNED_AT_ONCE
    return may_be_more


def limit_shard(name: str) -> int:
    """Return the shard whose leader wakes the runs that wait for the limit ``name``."""
    return crc32(name.encode()) % settings.SHARDS
