"""Count the runs that have a place in each limit, and the runs that wait for one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, F, Min, Q, QuerySet

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Limit, LimitPlace, Run


@dataclass(frozen=True)
class LimitUsage:
    """Usage of a limit by the runs with one value of its key."""

    limit: Limit
    key: str = ""
    """Empty if the limit has no key, or if it has one and no run needs the limit."""
    running: int = 0
    """Runs that have a place: they run, or are about to start."""
    waiting: int = 0
    waiting_since: datetime | None = None
    """The due time of the run that has waited longest; None if no run waits."""


def with_usage(limits: QuerySet[Limit], scope: Scope) -> QuerySet[Limit]:
    """Annotate the limits with the figures of ``LimitUsage`` for all keys together.

    Only runs in ``scope`` count.
    """
    visible = Q(places__run__in=scope.keys(Run)) if scope.narrows(Run) else None
    is_waiting = Q(places__number=None)  # also true for a limit without runs
    return limits.annotate(
        running=Count("places__number", filter=visible),
        waiting=Count("places", filter=visible) - F("running"),
        waiting_since=Min("places__due_at", filter=is_waiting & visible if visible else is_waiting),
    )


def limit_usage() -> list[LimitUsage]:
    """Return the usage of each limit, in two queries, ordered by limit and key."""
    limits = Limit.objects.using(alias_for(Limit)).order_by("pk").in_bulk()
    places = LimitPlace.objects.using(alias_for(LimitPlace)).filter(limit__in=limits)
    is_waiting = Q(number=None)
    counts = places.values_list("limit_id", "key").annotate(
        running=Count("number"),
        waiting=Count("pk", filter=is_waiting),
        waiting_since=Min("due_at", filter=is_waiting),
    )
    usages: dict[str, list[LimitUsage]] = {name: [] for name in limits}
    for name, key, running, waiting, since in counts.order_by("limit_id", "key"):
        usages[name].append(LimitUsage(limits[name], key, running, waiting, since))
    return [each for name in limits for each in usages[name] or [LimitUsage(limits[name])]]
