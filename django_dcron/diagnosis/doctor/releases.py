"""Check that all workers run the project's current code.

A worker that wasn't restarted after a deployment runs old code, and fails runs of targets that are
new or have new parameters. The recent attempts show it: by the release (``DCRON_RELEASE``), or by
such a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db.models import Q

from django_dcron import targets
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.doctor.findings import CLUSTER, Code, Findings
from django_dcron.diagnosis.doctor.window import Window, format_moment
from django_dcron.exceptions import SignatureMismatch, UnknownTarget
from django_dcron.models import Attempt, Definition, Run
from django_dcron.policies.retry import exception_name

SAMPLE = 500
"""The number of latest attempts to read."""
RECENT = timedelta(minutes=10)
UNKNOWN_TARGET = exception_name(UnknownTarget)
SIGNATURE_MISMATCH = exception_name(SignatureMismatch)
WORKERS_NAMED = 3
GAPS_WITHOUT_START = 2
"""A release has been replaced if it has started no attempt for this many times its longest gap."""
GAPS_MEASURED_IN = 2 * RECENT
"""The time in which gaps are measured. It is longer than ``RECENT``, so that a release doesn't seem
to have started a single attempt only because the earlier ones aren't recent.
"""


class _Start(NamedTuple):
    at: datetime
    release: str
    worker: str
    definition: UUID | None
    target: str | None
    """None if no definition is recorded."""
    exception_class: str
    run: UUID

    @property
    def refused(self) -> str | UUID | None:
        """The target, or the definition whose arguments the worker's code doesn't accept."""
        if self.exception_class == UNKNOWN_TARGET:
            return self.target
        return self.definition if self.exception_class == SIGNATURE_MISMATCH else None

    @property
    def accepted(self) -> tuple[str | UUID | None, ...]:
        """The target and the definition, if the worker's code accepts them."""
        if self.exception_class == UNKNOWN_TARGET:
            return ()
        is_mismatch = self.exception_class == SIGNATURE_MISMATCH
        return (self.target,) if is_mismatch else (self.target, self.definition)


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

        A single start says nothing about that. If it is recent, assume that there will be others.
        """
        is_single, silent_for = self.first == self.last, now - self.last
        return silent_for < RECENT and (
            is_single or silent_for < GAPS_WITHOUT_START * self.longest_gap
        )

    def __str__(self) -> str:
        named = ", ".join(sorted(self.workers)[:WORKERS_NAMED])
        more = ", ..." if len(self.workers) > WORKERS_NAMED else ""
        return f"{self.release} ({named}{more}; last start at {format_moment(self.last)})"


def examine_releases(window: Window, findings: Findings) -> None:
    target = "definition__content__target"  # the job may have another one by now
    columns = ("started_at", "release", "worker", "definition", target, "exception_class", "run")
    latest = Attempt.objects.using(alias_for(Attempt)).order_by("-pk").values_list(*columns)
    starts = [_Start(*row) for row in latest[:SAMPLE]]
    recent = [start for start in starts if start.at > window.now - RECENT]
    if workers := _outdated_workers(_without_own_arguments(recent)):
        named = "; ".join(
            f"{worker} (such as {start.target}, last at {format_moment(start.at)})"
            for worker, start in sorted(workers.items())
        )
        ends_at = max(start.at for start in workers.values()) + RECENT
        findings.add(
            Code.WORKER_OUTDATED,
            CLUSTER,
            f"Workers failed runs that this process's code accepts: {named}. They don't know the "
            "target or its parameters. Restart these workers, so that they load the new code. If "
            f"you have restarted them since, this finding ends by {format_moment(ends_at)}.",
        )
    since = window.now - GAPS_MEASURED_IN
    named_starts = [start for start in starts if start.release and start.at > since]
    if mixed := _releases_side_by_side(named_starts, window.now):
        findings.add(
            Code.WORKER_RELEASES_DIFFER,
            CLUSTER,
            f"Workers run different releases of the project: {'; '.join(map(str, mixed))}. If no "
            "deployment is in progress, restart the workers of the older release.",
        )


def _outdated_workers(starts: Iterable[_Start]) -> dict[str, _Start]:
    """Return the workers that failed a run because their code is older than the code here.

    ``starts``: the latest first. Only the worker's latest attempt counts, per target or definition.
    The worker counts as replaced if another one accepted the same target or definition later, and
    none had before. The result has the latest such attempt of each worker.
    """
    latest: dict[tuple[str, str | UUID], tuple[int, _Start]] = {}
    first_accepted: dict[str | UUID, int] = {}  # the position of the earliest such attempt
    for position, start in enumerate(starts):
        for each in (*start.accepted, start.refused):
            if each is not None:
                latest.setdefault((start.worker, each), (position, start))
        first_accepted |= {each: position for each in start.accepted if each is not None}
    return {
        worker: start
        for (worker, each), (position, start) in reversed(latest.items())
        if start.refused == each
        and position < first_accepted.get(each, SAMPLE)
        and _is_accepted_here(start)
    }


def _is_accepted_here(start: _Start) -> bool:
    """Return whether the code of this process accepts what the worker refused."""
    if start.exception_class == UNKNOWN_TARGET:
        return not _is_unknown_here(start.target or "")
    if start.definition is None:
        return False
    recorded = Definition.objects.using(alias_for(Definition)).filter(pk=start.definition).first()
    if recorded is None:
        return False
    job = recorded.content
    try:
        targets.get(job["target"]).check_arguments(job["args"], job["kwargs"])
    except Exception:  # the check runs the parser of a command, which is the project's code
        return False
    return True


def _is_unknown_here(target: str) -> bool:
    try:
        targets.get(target)
    except UnknownTarget:
        return True
    return False


def _without_own_arguments(starts: Sequence[_Start]) -> list[_Start]:
    """Return the starts without the definition for runs whose arguments replace those of the job.

    Such a run says nothing about the arguments of the definition.
    """
    if all(start.exception_class != SIGNATURE_MISMATCH for start in starts):
        return list(starts)
    own = Q(args__isnull=False) | Q(kwargs__isnull=False)
    runs = Run.objects.using(alias_for(Run)).filter(own, pk__in={start.run for start in starts})
    replaced = set(runs.values_list("pk", flat=True))
    return [start._replace(definition=None) if start.run in replaced else start for start in starts]


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
