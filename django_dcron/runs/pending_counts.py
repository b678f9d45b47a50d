"""Add pending counts to the statistics, once no other transaction locks them.

Invariants:

- One transaction locks the statistics, adds the counts and deletes their rows. So no count is lost
  or added twice, even if the node dies.
- Locked statistics are left for later.
- A job's counts are added in the order in which its runs ended. A count that is older than the
  latest counted end changes neither the last outcome nor the number of consecutive failures.
"""

from __future__ import annotations

from collections.abc import Collection

from django.db import transaction

from django_dcron.conf import settings
from django_dcron.db.contention import can_skip_locked_rows, supports_no_key_update
from django_dcron.db.routing import alias_for
from django_dcron.db.statements import Select
from django_dcron.models import Job, PendingCount, Statistics
from django_dcron.models.statistics import LATE_SUCCESSES, SHADOW_RUNS
from django_dcron.policies.lifecycle import FINAL, State

JOBS_AT_ONCE = 500
COUNTS_AT_ONCE = 5000

_CHANGED = (
    *sorted(FINAL),
    LATE_SUCCESSES,
    SHADOW_RUNS,
    "consecutive_failures",
    "last_state",
    "last_finished_at",
    "last_was_shadow",
)

_ANY = Select(PendingCount, lambda: PendingCount.objects.order_by().values_list("pk")[:1])
"""Building the full query takes longer than this check, which usually finds nothing."""


def add_pending_counts(shards: Collection[int]) -> int:
    """Add pending counts of jobs in ``shards`` to the statistics. Return their number."""
    if not _ANY.rows():
        return 0
    using = alias_for(PendingCount)
    pending = PendingCount.objects.using(using).in_shards(shards, settings.SHARDS)
    job_ids = list(
        pending.order_by("job_id").values_list("job_id", flat=True).distinct()[:JOBS_AT_ONCE]
    )
    with transaction.atomic(using=using):
        statistics = _lock_unlocked(job_ids, using)
        counts = list(
            PendingCount.objects.using(using)
            .filter(job__in=statistics)
            .order_by("pk")
            .select_for_update()[:COUNTS_AT_ONCE]
        )
        for count in counts:
            _add(count, statistics[count.job_id])
        changed = sorted({count.job_id for count in counts})
        rows = [statistics[job_id] for job_id in changed]
        Statistics.objects.using(using).bulk_update(rows, _CHANGED)
        PendingCount.objects.using(using).filter(pk__in=[count.pk for count in counts]).delete()
    return len(counts)


def _lock_unlocked(job_ids: Collection[int], using: str) -> dict[int, Statistics]:
    """Lock and return the statistics that no other transaction has locked, by job."""
    jobs = set(Job.objects.using(using).filter(pk__in=job_ids).values_list("pk", flat=True))
    if deleted := set(job_ids) - jobs:
        PendingCount.objects.using(using).filter(job__in=deleted).delete()
    rows = Statistics.objects.using(using)
    present = set(rows.filter(pk__in=jobs).values_list("pk", flat=True))
    rows.bulk_create(
        [Statistics(job_id=job_id) for job_id in sorted(jobs - present)], ignore_conflicts=True
    )
    unlocked = rows.select_for_update(
        skip_locked=can_skip_locked_rows(using), no_key=supports_no_key_update(using)
    )
    return {row.pk: row for row in unlocked.filter(pk__in=jobs).order_by("pk")}


def _add(count: PendingCount, statistics: Statistics) -> None:
    name, number = count.counter, count.number
    setattr(statistics, name, getattr(statistics, name) + number)
    if name == LATE_SUCCESSES:
        return
    was_shadow = name == SHADOW_RUNS
    if was_shadow:
        statistics.succeeded += number
    state = State.SUCCEEDED if was_shadow else State(name)
    last = statistics.last_finished_at
    if last is not None and count.ended_at < last:
        return
    statistics.last_state, statistics.last_finished_at = state, count.ended_at
    statistics.last_was_shadow = was_shadow
    if state is State.SUCCEEDED:
        statistics.consecutive_failures = 0
    elif state is State.FAILED:
        statistics.consecutive_failures += number
