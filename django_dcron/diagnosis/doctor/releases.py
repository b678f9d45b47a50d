"""Check that all workers run the project's current code.

A worker that wasn't restarted after a deployment fails runs of new targets, and runs old code. The
recent attempts show it: by the release (``DCRON_RELEASE``), or by a failure for an unknown target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django_dcron import targets
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.doctor.findings import CLUSTER, Code, Findings
from django_dcron.diagnosis.doctor.window import Window, format_moment
from django_dcron.exceptions import UnknownTarget
from django_dcron.models import Attempt
from django_dcron.policies.retry import exception_name

SAMPLE = 500
"""The number of latest attempts to read."""
RECENT = timedelta(minutes=10)
UNKNOWN_TARGET = exception_name(UnknownTarget)
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
    columns = ("started_at", "release", "worker", "run__job__target", "exception_class")
    latest = Attempt.objects.using(alias_for(Attempt)).order_by("-pk").values_list(*columns)
    recent = [row for row in latest[:SAMPLE] if row[0] > window.now - RECENT]
    if workers := _workers_without_targets((row[2], row[3], row[4]) for row in recent):
        named = "; ".join(
            f"{worker} (such as {target})" for worker, target in sorted(workers.items())
        )
        findings.add(
            Code.TARGET_UNKNOWN_TO_WORKER,
            CLUSTER,
            f"Workers don't know targets that the code here has: {named}. If the targets are new, "
            "restart these workers.",
        )
    if mixed := releases_side_by_side((row[1], row[2], row[0]) for row in recent if row[1]):
        findings.add(
            Code.WORKER_RELEASES_DIFFER,
            CLUSTER,
            f"Workers run different releases of the project: {'; '.join(map(str, mixed))}. If no "
            "deployment is in progress, restart the workers of the older release.",
        )


def _workers_without_targets(attempts: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Return the workers that failed a run of a known target because they don't know it.

    ``attempts`` are workers, targets and exceptions, the latest first. Only the latest attempt of
    each target counts. The result has a target of each worker.
    """
    latest: dict[str, tuple[str, str]] = {}
    for worker, target, exception_class in attempts:
        latest.setdefault(target, (worker, exception_class))
    return {
        worker: target
        for target, (worker, exception_class) in latest.items()
        if exception_class == UNKNOWN_TARGET and _is_known(target)
    }


def _is_known(target: str) -> bool:
    with suppress(UnknownTarget):
        targets.get(target)
        return True
    return False


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
