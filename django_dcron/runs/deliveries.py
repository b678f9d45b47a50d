"""Change the state of runs on their way from a node to a worker, each time by one guarded UPDATE.

The invariants are those of ``transitions``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q

from django_dcron.conf import settings
from django_dcron.db.bulk import with_keys
from django_dcron.db.contention import can_skip_locked_rows, supports_no_key_update
from django_dcron.db.now import UtcNow
from django_dcron.db.routing import alias_for
from django_dcron.db.statements import Placeholder, Update
from django_dcron.models import Freeze, Run
from django_dcron.models.run import claimed_ahead
from django_dcron.policies.freezing import AUTOMATIC
from django_dcron.policies.lifecycle import State
from django_dcron.runs import limits
from django_dcron.runs.transitions import NOBODY, runs
from django_dcron.utils.batches import in_batches

MARKED_AT_ONCE = 1000
DOUBLINGS = 10
"""The limit doubles at most this often: up to 1,024 times ``DCRON_REDELIVER_AFTER``."""

_MARK_ONE = Update(
    Run,
    lambda: (
        runs()
        .pending()
        .filter(
            pk=Placeholder(Run, "id"),
            attempt=Placeholder(Run, "attempt"),
            node=Placeholder(Run, "node"),
        )
    ),
    state=State.QUEUED,
    queued_at=Placeholder(Run, "queued_at"),
    deliveries=F("deliveries") + 1,
)
"""The usual case: the node that has dispatched a run marks it."""


def overdue(now: datetime) -> Q:
    """Return a filter for runs that no worker has started for too long since their last delivery.

    The limit depends on the number of deliveries and has a maximum.
    """
    condition = Q(queued_at__lt=now - settings.REDELIVER_AFTER * 2**DOUBLINGS)
    for number in range(DOUBLINGS + 1):
        condition |= Q(deliveries=number, queued_at__lt=now - redelivery_delay(number))
    return condition


def redelivery_delay(deliveries: int) -> timedelta:
    """Return the time from a run's last delivery, if no worker starts it, to the next one."""
    doublings = min(max(deliveries - 1, 0), DOUBLINGS)
    return settings.REDELIVER_AFTER * (1 << doublings)


def mark_queued(
    delivered: Iterable[tuple[UUID, int]], at: datetime | UtcNow, **unchanged: Any
) -> int:
    """Pending -> queued for all dispatched (run, attempt). Runs that have started stay as they are.

    ``unchanged`` names columns that must have kept these values. After the dispatch, a run may have
    waited for the slot and been woken. It is then pending again and has the slot, but it is on no
    node's agenda and has *not* been dispatched.
    """
    keys = list(delivered)
    if len(keys) == 1 and unchanged.keys() == {"node"} and isinstance(at, datetime):
        ((run_id, attempt),) = keys
        return _MARK_ONE.execute(id=run_id, attempt=attempt, queued_at=at, **unchanged)
    pending = runs().pending().filter(**unchanged)
    by_attempt: defaultdict[int, list[UUID]] = defaultdict(list)
    for run_id, attempt in keys:
        by_attempt[attempt].append(run_id)
    return sum(
        with_keys(pending.filter(attempt=attempt), batch).update(
            state=State.QUEUED, queued_at=at, deliveries=F("deliveries") + 1
        )
        for attempt, ids in by_attempt.items()
        for batch in in_batches(ids, MARKED_AT_ONCE)
    )


@contextmanager
def lock_unlocked(run_ids: Collection[UUID]) -> Iterator[set[UUID]]:
    """Lock and yield the runs that no other transaction has locked, or that no longer exist.

    Their rows stay locked within the block. On a database without row locks, yields all runs.
    """
    using = alias_for(Run)
    if not run_ids or not can_skip_locked_rows(using):
        yield set(run_ids)
        return
    no_key = supports_no_key_update(using)
    with transaction.atomic(using=using):
        rows = runs().filter(pk__in=run_ids).order_by().values_list("pk", flat=True)
        existing = set(rows)
        locked = existing - set(rows.select_for_update(skip_locked=True, no_key=no_key))
        yield set(run_ids) - locked


def redeliver(run_id: UUID, attempt: int, queued_at: datetime | None) -> bool:
    """Queued -> pending, same attempt, because no worker has started it since ``queued_at``."""
    lost = runs().queued().filter(pk=run_id, attempt=attempt, queued_at=queued_at)
    return bool(lost.update(state=State.PENDING, node=NOBODY))


def redeliver_dropped(run_id: UUID, attempt: int, queued_at: datetime, deliveries: int) -> bool:
    """Queued -> pending, same attempt, because a worker of another database dropped the message.

    ``queued_at`` identifies the dropped delivery. The delivery no longer counts, because the broker
    has no message of it.
    """
    dropped = (
        runs()
        .queued()
        .filter(pk=run_id, attempt=attempt, queued_at=queued_at, deliveries=deliveries)
    )
    return bool(dropped.update(state=State.PENDING, node=NOBODY, deliveries=max(deliveries - 1, 0)))


def return_queued(unstarted: Iterable[tuple[UUID, int]]) -> int:
    """Return dispatched runs to the nodes: queued -> pending without a node. Returns their number.

    ``unstarted``: (run, attempt) of each run whose delivery won't be started.
    """
    return sum(
        runs().queued().filter(pk=run_id, attempt=attempt).update(state=State.PENDING, node=NOBODY)
        for run_id, attempt in unstarted
    )


def return_to_nodes(run_id: UUID, attempt: int) -> bool:
    """Return a run that can't start now: it becomes pending without a node.

    Its delivery still counts. A node dispatches the run again.
    """
    # Pending runs first: a node marks a run as queued only if the run has the node's name.
    pending = runs().pending().filter(pk=run_id, attempt=attempt)
    return bool(pending.update(node=NOBODY) or return_queued([(run_id, attempt)]))


def hold(run: Run) -> bool:
    """Return a run that a freeze holds back: it becomes pending without a node.

    Its delivery doesn't count: a node dispatches the run after the freeze. ``queued_at`` remains,
    so that the run shows when it was sent. A place in a limit is passed on to another run.
    """
    current = runs().filter(pk=run.pk, attempt=run.attempt)
    undelivered = {"node": NOBODY, "deliveries": 0}
    with transaction.atomic(using=alias_for(Run)):
        # Pending runs first: a node marks a run as queued only if the run has the node's name.
        held = bool(
            current.pending().update(**undelivered)
            or current.queued().update(state=State.PENDING, **undelivered)
        )
        if held:
            limits.leave_line(run)
    return held


def hold_if_frozen(run: Run) -> bool:
    """Call ``hold`` if a freeze holds back the run. Returns whether the run is held."""
    return is_run_frozen(run) and hold(run)


def is_run_frozen(run: Run) -> bool:
    """Return whether a freeze holds back the run."""
    freezes = Freeze.objects.using(alias_for(Freeze)).in_force().covering(run.job.namespace)
    return run.trigger in AUTOMATIC and freezes.exists()


def delete_claimed_ahead(job_ids: Collection[int], now: datetime, using: str) -> int:
    """Delete the runs that nodes claimed ahead for occurrences after ``now``.

    Their jobs have been changed or deleted since.
    """
    ahead = Run.objects.using(using).filter(claimed_ahead(now), job__in=job_ids)
    # One guarded DELETE. QuerySet.delete() would read the rows first and then delete them in
    # whatever state they are. No row refers to a run that hasn't started.
    return ahead._raw_delete(using)
