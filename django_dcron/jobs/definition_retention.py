"""Delete the definitions that no run or job needs, in small batches.

Invariants:

- A job's latest definition stays for as long as the job exists.
- An earlier definition stays while the job has a run scheduled before the definition was
  superseded. A later run can't have used it, because a run starts after its scheduled time. This
  rule needs no index of attempts by definition.
- A definition that becomes the latest again during the deletion stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.jobs.definitions import definitions
from django_dcron.models import Definition, Job, Run

BATCH_SIZE = 500
CLOCK_TOLERANCE = timedelta(days=1)
"""How far the database's clock may have jumped without a needed definition being deleted."""


class _Stored(NamedTuple):
    job_id: int
    current_since: datetime
    key: UUID
    has_job: bool
    superseded_at: datetime | None
    """When the job's next definition became the latest one."""
    oldest_run_at: datetime | None
    """The scheduled time of the job's oldest run."""

    @property
    def is_needed(self) -> bool:
        if not self.has_job:
            return False
        if self.superseded_at is None:
            return True
        until = self.superseded_at + CLOCK_TOLERANCE
        return self.oldest_run_at is not None and self.oldest_run_at < until


def prune_definitions(*, dry_run: bool = False) -> Iterator[int]:
    """Delete the definitions that aren't needed.

    Yields the number of deleted definitions after each batch. The caller may pause between batches
    or stop. With ``dry_run``, yields the number that would be deleted and deletes nothing.
    """
    rows = _rows()
    page = list(map(_Stored._make, rows[:BATCH_SIZE]))
    while page:
        unneeded = {each.key: each.current_since for each in page if not each.is_needed}
        yield len(unneeded) if dry_run or not unneeded else _delete(unneeded)
        last = page[-1]
        later = Q(current_since__gt=last.current_since) | Q(
            current_since=last.current_since, pk__gt=last.key
        )
        following = rows.filter(Q(job_id__gt=last.job_id) | Q(later, job_id=last.job_id))
        page = list(map(_Stored._make, following[:BATCH_SIZE]))


def _rows() -> QuerySet[Definition, tuple[object, ...]]:
    of_job = Definition.objects.filter(job_id=OuterRef("job_id"))
    later = of_job.filter(current_since__gt=OuterRef("current_since")).order_by("current_since")
    runs = Run.objects.filter(job=OuterRef("job_id")).order_by("scheduled_at")
    return (
        definitions()
        .order_by("job_id", "current_since", "pk")
        .values_list(
            "job_id",
            "current_since",
            "pk",
            Exists(Job.objects.filter(pk=OuterRef("job_id"))),
            Subquery(later.values("current_since")[:1]),
            Subquery(runs.values("scheduled_at")[:1]),
        )
    )


def _delete(unneeded: dict[UUID, datetime]) -> int:
    """Delete the definitions, except those that have become the latest again."""
    with brief_transaction(alias_for(Definition), settings.LEASE):
        rows = definitions().filter(pk__in=unneeded).order_by()
        locked = rows.select_for_update().values_list("pk", "current_since")
        same = [key for key, current_since in locked if unneeded[key] == current_since]
        definitions().filter(pk__in=same)._raw_delete(alias_for(Definition))
    return len(same)
