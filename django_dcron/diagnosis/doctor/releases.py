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
GAPS_WITHOUT_START = 2
"""A release has been replaced if it has started no attempt for this many times its longest gap."""


class _Start(NamedTuple):
    at: datetime
    release: str
    worker: str
    target: str | None
    """None if no definition is recorded."""
    exception_class: str


@dataclass(slots=True)
class ReleaseStarts:
    """The recent starts of attempts by workers of one release."""

    release: str
    first: datetime
    last: datetime
    longest_gap: timedelta = timedelta()
    """The longest time between two of its starts."""
    workers: set[str] = field(default_factory=set)

    def continues(self, now: datetime) -> bool:
        """Return whether the workers still start attempts, as often as before.

        A single start says nothing about that. Assume that there will be others.
        """
        is_single = self.first == self.last
        return is_single or now - self.last < GAPS_WITHOUT_START * self.longest_gap

    def __str__(self) -> str:
        named = ", ".join(sorted(self.workers)[:WORKERS_NAMED])
        more = ", ..." if len(self.workers) > WORKERS_NAMED else ""
        return f"{self.release} ({named}{more}; last start at {format_moment(self.last)})"


def examine_releases(window: Window, findings: Findings) -> None:
    target = "definition__content__target"  # the job may have another one by now
    columns = ("started_at", "release", "worker", target, "exception_class")
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
    if mixed := _releases_side_by_side([start for start in recent if start.release], window.now):
        findings.add(
            Code.WORKER_RELEASES_DIFFER,
            CLUSTER,
            f"Workers run different releases of the project: {'; '.join(map(str, mixed))}. If no "
            "deployment is in progress, restart the workers of the older release.",
        )


def _workers_without_targets(starts: Iterable[_Start]) -> dict[str, str]:
    """Return the workers that failed a run because they don't know its target, which exists here.

    ``starts``: the latest first. Only the worker's latest attempt of a target counts. The worker
    has been replaced if the target was found after that attempt, and never before it. The result
    has one such target for each worker.
    """
    latest: dict[tuple[str, str], tuple[int, _Start]] = {}
    first_found: dict[str, int] = {}  # the position of the earliest such attempt
    for position, start in enumerate(starts):
        target = start.target or ""
        latest.setdefault((start.worker, target), (position, start))
        if start.exception_class != UNKNOWN_TARGET:
            first_found[target] = position
    return {
        worker: target
        for (worker, target), (position, start) in latest.items()
        if start.exception_class == UNKNOWN_TARGET
        and position < first_found.get(target, SAMPLE)
        and _is_known(target)
    }


def _is_known(target: str) -> bool:
    with suppress(UnknownTarget):
        targets.get(target)
        return True
    return False


def _releases_side_by_side(starts: Iterable[_Start], now: datetime) -> Sequence[ReleaseStarts]:
    """Return the releases whose workers start attempts at the same time, the latest start first.

    ``starts``: the latest first. Only the latest release of each worker counts. Returns nothing if
    each release has replaced the one before it. During a deployment, two releases start attempts at
    the same time for a while, until the older one doesn't continue.
    """
    release_of: dict[str, str] = {}
    found: dict[str, ReleaseStarts] = {}
    for at, release, worker, *_ in starts:
        if release_of.setdefault(worker, release) == release:
            of_release = found.setdefault(release, ReleaseStarts(release, at, at))
            of_release.longest_gap = max(of_release.longest_gap, of_release.first - at)
            of_release.first = min(of_release.first, at)
            of_release.workers.add(worker)
    if len(found) < 2:
        return []
    newest = max(each.first for each in found.values())
    current = [each for each in found.values() if each.last >= newest and each.continues(now)]
    return current if len(current) > 1 else []
