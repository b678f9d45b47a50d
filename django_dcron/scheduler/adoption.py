"""Adoption: find the pending runs that are missing from this node's agenda.

These are due retries, manual runs, woken runs, and runs that a dead node left. All are pending rows
due within the horizon, and one query finds them. Nothing else recovers pending runs.

Frozen runs of other nodes are adopted only after the freeze.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from datetime import datetime
from functools import lru_cache
from itertools import starmap
from uuid import UUID

from django_dcron.conf import settings
from django_dcron.db.statements import Placeholder, Select
from django_dcron.dispatch.base import DueRun
from django_dcron.models import Run
from django_dcron.models.run import RunQuerySet
from django_dcron.runs import deliveries, transitions
from django_dcron.utils.batches import in_batches

ADOPTED_AT_ONCE = 10_000
ASSIGNED_AT_ONCE = 1000

Key = tuple[UUID, int]

COLUMNS = (  # in the order of the fields of ``DueRun``
    "pk",
    "attempt",
    "due_at",
    "job_id",
    "job__name",
    "job__target",
    "job__queue",
    "job__priority",
    "job__timeout",
)


@lru_cache(maxsize=64)
def _any_of_other_nodes(shards: frozenset[int], of: int, namespace: str) -> Select:
    """Return the query that finds out whether there may be a run to adopt.

    The shards of a node seldom change, so its statements stay the same.
    """
    return Select(Run, lambda: _pending_of_other_nodes(shards, of, namespace).values_list("pk")[:1])


@lru_cache(maxsize=64)
def _oldest_of_other_nodes(shards: frozenset[int], of: int, namespace: str, number: int) -> Select:
    """Return the query for the oldest ``number`` runs to adopt, with ``COLUMNS``."""
    return Select(
        Run, lambda: _pending_of_other_nodes(shards, of, namespace).values_list(*COLUMNS)[:number]
    )


def _pending_of_other_nodes(shards: frozenset[int], of: int, namespace: str) -> RunQuerySet:
    pending = (
        Run.objects.pending().due(Placeholder(Run, "due_at")).exclude(node=Placeholder(Run, "node"))
    )
    pending = pending.in_shards(sorted(shards), of).not_frozen().order_by("due_at")
    return pending.filter(job__namespace=namespace) if namespace else pending


def adopt(
    shards: Collection[int],
    horizon: datetime,
    *,
    node: str,
    namespace: str = "",
    also_own: bool = False,
    known: Callable[[Key], bool] = lambda key: False,
    on_locked: Callable[[DueRun], None] = lambda run: None,
) -> list[DueRun]:
    """Return the pending runs of ``shards`` due by ``horizon``, and assign them to ``node``.

    - Of the runs of other nodes, one call adopts at most ``ADOPTED_AT_ONCE``, oldest first.
    - Runs already assigned to ``node`` are returned only with ``also_own``, and then all of them.
      The node may not know that a claim succeeded, or may have given runs back. This includes
      runs that jitter makes due after ``horizon``, because no later call would look for them. It
      also includes frozen runs: the worker that gets one gives it back, and it is adopted after the
      freeze.
    - A locked run is passed to ``on_locked`` and left for a later call.
    - Runs for which ``known`` returns True aren't adopted. The agenda has dispatched such a run
      already, and a worker may have consumed the message and returned the run. If this call
      assigned the run, the agenda's record of that dispatch would set it to queued without a
      message. A later call adopts the run, once the agenda has forgotten it.
    """
    led = frozenset(shards), settings.SHARDS, namespace
    if not shards:
        return []
    if not also_own and not _any_of_other_nodes(*led).rows(due_at=horizon, node=node):
        return []
    oldest = _oldest_of_other_nodes(*led, ADOPTED_AT_ONCE).rows(due_at=horizon, node=node)
    unknown = [run for run in starmap(DueRun, oldest) if not known(run.key)]
    adopted = _assign(unknown, node, on_locked)
    if also_own:
        adopted_ids = {run.run_id for run in adopted}
        own = transitions.runs().pending().filter(node=node).in_shards(shards, settings.SHARDS)
        if namespace:
            own = own.filter(job__namespace=namespace)
        rows = own.values_list(*COLUMNS).iterator(ADOPTED_AT_ONCE)
        adopted += [DueRun(*row) for row in rows if row[0] not in adopted_ids]
    return adopted


def _assign(runs: list[DueRun], node: str, on_locked: Callable[[DueRun], None]) -> list[DueRun]:
    """Assign the runs that aren't locked to ``node``, and return them.

    Locked runs are left for a later call and don't delay the others. A run that is at another
    attempt by now isn't assigned either, because the agenda would get the attempt that was read. A
    later call adopts it.
    """
    assigned: list[DueRun] = []
    for batch in in_batches(runs, ASSIGNED_AT_ONCE):
        assigned_ids: set[UUID] = set()
        with deliveries.lock_unlocked([run.run_id for run in batch]) as free:
            by_attempt: defaultdict[int, list[UUID]] = defaultdict(list)
            for run in batch:
                if run.run_id in free:
                    by_attempt[run.attempt].append(run.run_id)
                else:
                    on_locked(run)
            for attempt, run_ids in by_attempt.items():
                current = transitions.runs().pending().filter(pk__in=run_ids, attempt=attempt)
                if current.update(node=node) == len(run_ids):
                    assigned_ids.update(run_ids)
                else:  # some runs have changed since they were read
                    assigned_ids.update(current.filter(node=node).values_list("pk", flat=True))
        assigned += [run for run in batch if run.run_id in assigned_ids]
    return assigned


def return_pending(node: str) -> int:
    """Return the pending runs of ``node`` to all nodes. Returns their number.

    The next tick of each shard's leader adopts them.
    """
    return transitions.runs().pending().filter(node=node).update(node=transitions.NOBODY)
