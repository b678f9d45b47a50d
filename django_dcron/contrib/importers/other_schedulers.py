"""Find schedulers that still run the jobs that were imported from them and work here.

Invariants:

- Only a run that the scheduler itself recorded, or a lock that it holds, counts. Schedulers that
  record neither aren't found.
- A recorded run counts if it is clearly later than the job's last change here. Until then, the job
  may have been paused or a shadow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import DatabaseError
from django.db.models import QuerySet

from django_dcron.contrib.importers.origins import match_entries
from django_dcron.contrib.importers.reading import SourceProblem
from django_dcron.contrib.importers.sources import SCHEDULERS
from django_dcron.models import Job
from django_dcron.targets.shadow import PREFIX

MARGIN = timedelta(minutes=1)
"""The tolerance for a switch that overlaps, and for different clocks."""


@dataclass(frozen=True, slots=True)
class OtherRuns:
    """What shows that a scheduler still runs."""

    source: str
    job: Job | None
    """A job that the scheduler ran, too. None: the scheduler holds its lock."""
    at: datetime | None = None
    reason: str = ""
    """Why the scheduler probably runs, without a job."""


def find_other_runs(jobs: QuerySet[Job], since: datetime, now: datetime) -> Iterator[OtherRuns]:
    """Yield what the schedulers recorded since then. A source that can't be read is skipped."""
    working = jobs.filter(enabled=True, import_source__in=[*SCHEDULERS]).exclude(
        target__startswith=PREFIX
    )
    changed = {job_id: (source, at) for job_id, source, at in working.values_list(*_COLUMNS)}
    for source in sorted({source for source, _changed_at in changed.values()}):
        with suppress(SourceProblem, DatabaseError):
            yield from _runs_of(source, changed, since, now)
        with suppress(SourceProblem, DatabaseError):
            why_running = getattr(SCHEDULERS[source], "why_running", None)
            if why_running is not None and (reason := why_running()):
                yield OtherRuns(source, None, reason=reason)


_COLUMNS = ("pk", "import_source", "updated_at")


def _runs_of(
    source: str, changed: dict[int, tuple[str, datetime]], since: datetime, now: datetime
) -> Iterator[OtherRuns]:
    times = SCHEDULERS[source].runs_since(since).times
    if not any(times.values()):
        return
    for matched in match_entries(SCHEDULERS[source].read(now).entries, "default", source):
        job = matched.job
        if job is None or job.pk not in changed or not times.get(matched.entry.origin):
            continue
        at = max(times[matched.entry.origin])
        if at > changed[job.pk][1] + MARGIN:
            yield OtherRuns(source, job, at)
