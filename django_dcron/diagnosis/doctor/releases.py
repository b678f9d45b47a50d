"""Check that all workers run the project's current code.

A worker that wasn't restarted after a deployment fails runs of new targets, and runs old code. The
recent attempts show it: by the release (``DCRON_RELEASE``), or by a failure for an unknown target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

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
"""The number of latest attempts per worker that tell which releases still start attempts."""


class _Start(NamedTuple):
    at: datetime
    release: str
    worker: str
    target: str
    exception_class: str


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
    starts = [_Start(*row) for row in latest[:SAMPLE]]
    recent = [start for start in starts if start.at > window.now - RECENT]
    if workers := _workers_without_targets(recent):
        named = "; ".join(
            f"{worker} (such as {target})" for worker, target in sorted(workers.items())
        )
        findings.add(
            Code.TARGET_UNKNOWN_TO_WORKER,
            CLUSTER,
            f"Workers don't know targets that the code here has: {named}. If the targets are new, "
            "restart these workers.",
        )
    if mixed := _releases_side_by_side([start for start in recent if start.release]):
        findings.add(
            Code.WORKER_RELEASES_DIFFER,
            CLUSTER,
            f"Workers run different releases of the project: {'; '.join(map(str, mixed))}. If no "
            "deployment is in progress, restart the workers of the older release.",
        )


def _workers_without_targets(starts: Iterable[_Start]) -> dict[str, str]:
    """Return the workers that failed a run because they don't know its target, which exists here.

    ``starts``: the latest first. Only the latest attempt of each target counts. The result has one
    such target for each worker.
    """
    latest: dict[str, _Start] = {}
    for start in starts:
        latest.setdefault(start.target, start)
    return {
        start.worker: target
        for target, start in latest.items()
        if start.exception_class == UNKNOWN_TARGET and _is_known(target)
    }


def _is_known(target: str) -> bool:
    with suppress(UnknownTarget):
        targets.get(target)
        return True
    return False


def _releases_side_by_side(starts: Iterable[_Start]) -> Sequence[ReleaseStarts]:
    """Return the releases whose workers start attempts at the same time, the latest start first.

    ``starts``: the latest first. Only the latest release of each worker counts. Returns nothing if
    each release has replaced the one before it. During a deployment, two releases start attempts at
    the same time for a while. The older one has been replaced once its workers have started none of
    the latest attempts, ``STARTS_PER_WORKER`` for each worker.
    """
    release_of: dict[str, str] = {}
    found: dict[str, ReleaseStarts] = {}
    for later, (at, release, worker, *_) in enumerate(starts):
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
