"""Adoption: taking up pending runs that are on nobody's agenda here.

Due retries, runs made by hand, runs a waiting one was woken to, and what a dead node left: they are all pending rows
with a due time inside the horizon, and this one query finds them. There is no other recovery of pending runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from itertools import starmap
from uuid import UUID

from django_dcron import transitions
from django_dcron.conf import settings
from django_dcron.dispatch.base import DueRun
from django_dcron.models import Run
from django_dcron.models.statement import Given, Select

_OTHERS = Select(
    Run,
    lambda: (
        Run.objects.pending()
        .due(Given(Run, "due_at"))
        .exclude(node=Given(Run, "node"))
        .order_by("due_at")
        .values_list("pk")[:1]
    ),
)
"""Whether there may be anything: the whole query takes longer to build than to find nothing."""

ADOPTED_AT_ONCE = 10_000
MARKED_AT_ONCE = 1000

Key = tuple[UUID, int]

# In the order of ``DueRun``'s fields.
COLUMNS = (
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


def adopt(
    shards: Collection[int],
    horizon: datetime,
    *,
    node: str,
    namespace: str = "",
    also_own: bool = False,
    known: Callable[[Key], bool] = lambda key: False,
) -> list[DueRun]:
    """The pending runs of ``shards`` due by ``horizon``, which from now on are on ``node``'s agenda.

    Of others' only so many at once, oldest first: the rest is found by the next call. Those that say already that they
    are ``node``'s are left out, unless ``also_own``, and then they are all there: for a node that may have claimed
    without hearing that its claim went through, or has given runs back.

    One that is ``known`` is left alone: the agenda may have handed it over already, and it was held back and woken
    since. Named as ours, it would be marked as queued by the hand-over whose message is used up. The agenda forgets it
    with that mark, and the next call takes it up.
    """
    if not also_own and not _OTHERS.rows(due_at=horizon, node=node):
        return []
    pending = transitions.runs().pending().due(horizon).in_shards(shards, settings.SHARDS)
    if namespace:
        pending = pending.filter(job__namespace=namespace)
    others = pending.exclude(node=node).order_by("due_at").values_list(*COLUMNS)[:ADOPTED_AT_ONCE]
    adopted = [run for run in starmap(DueRun, others) if not known(run.key)]
    _name_node([run.run_id for run in adopted], node)
    if also_own:
        names = {run.run_id for run in adopted}
        own = pending.filter(node=node).values_list(*COLUMNS)
        adopted += [DueRun(*row) for row in own.iterator(ADOPTED_AT_ONCE) if row[0] not in names]
    return adopted


def _name_node(run_ids: list[UUID], node: str) -> None:
    for start in range(0, len(run_ids), MARKED_AT_ONCE):
        transitions.runs().pending().filter(pk__in=run_ids[start : start + MARKED_AT_ONCE]).update(node=node)


def give_back(node: str) -> int:
    """What is pending on ``node``'s agenda is on nobody's: the next tick of whoever leads its shard takes it up."""
    return transitions.runs().pending().filter(node=node).update(node=transitions.NOBODY)
