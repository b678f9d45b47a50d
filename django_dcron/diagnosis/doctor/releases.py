"""Check that all workers run the same release of the project (``DCRON_RELEASE``).

A worker that wasn't restarted after a deployment fails runs of new targets, and runs old code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.doctor.findings import CLUSTER, Code, Findings
from django_dcron.diagnosis.doctor.window import Window, format_moment
from django_dcron.models import Attempt

SAMPLE = 500
"""The number of latest attempts to read."""
RECENT = timedelta(minutes=10)
WORKERS_NAMED = 3
STARTS_PER_WORKER = 2
"""Workers are probably gone if they have started none of the latest attempts, this many per worker.
"""


@dataclass(slots=True)
class ReleaseStarts:
    """The recent starts of attempts by workers of one release."""

    release: str
    first: datetime
    last: datetime
    later: int
    """How many attempts were started after ``last``."""
    workers: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        named = ", ".join(sorted(self.workers)[:WORKERS_NAMED])
        more = ", ..." if len(self.workers) > WORKERS_NAMED else ""
        return f"{self.release} ({named}{more}; last start at {format_moment(self.last)})"


def examine_releases(window: Window, findings: Findings) -> None:
    columns = ("release", "worker", "started_at")
    latest = Attempt.objects.using(alias_for(Attempt)).order_by("-pk").values_list(*columns)
    starts = [row for row in latest[:SAMPLE] if row[0] and row[2] > window.now - RECENT]
    if mixed := releases_side_by_side(starts):
        findings.add(
            Code.WORKER_RELEASES_DIFFER,
            CLUSTER,
            f"Workers run different releases of the project: {'; '.join(map(str, mixed))}. If no "
            "deployment is in progress, restart the workers of the older release.",
        )


def releases_side_by_side(starts: Iterable[tuple[str, str, datetime]]) -> Sequence[ReleaseStarts]:
    """Return the releases whose workers start attempts at the same time, the latest start first.

    ``starts`` are releases, workers and times, the latest first. Only the latest release of each
    worker counts. Returns nothing if each release has replaced the one before it. During a
    deployment, they start attempts at the same time for a while. A release whose workers have
    started none of the latest attempts, twice as many as there are workers, has been replaced.
    """
    release_of: dict[str, str] = {}
    found: dict[str, ReleaseStarts] = {}
    for later, (release, worker, at) in enumerate(starts):
        if release_of.setdefault(worker, release) == release:
            of_release = found.setdefault(release, ReleaseStarts(release, at, at, later))
            of_release.first = min(of_release.first, at)
            of_release.workers.add(worker)
    if len(found) < 2:
        return []
    newest = max(each.first for each in found.values())
    current = [
        each
        for each in found.values()
        if each.last >= newest and each.later < STARTS_PER_WORKER * len(release_of)
    ]
    return current if len(current) > 1 else []
