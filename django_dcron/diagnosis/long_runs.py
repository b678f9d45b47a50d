"""Find running runs that take far longer than their jobs usually do, or than their timeout.

Of a job whose usual durations are unknown, a run without a timeout is too long once it keeps
another run of the job from starting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median_low
from uuid import UUID

from django.db.models import Exists, F, OuterRef

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.overdue import executing_runs
from django_dcron.models import Attempt, Run
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.health.facts import LongRun
from django_dcron.policies.lifecycle import State
from django_dcron.targets.shadow import NOT_EXECUTED
from django_dcron.utils.durations import parse_duration_text

SHORTEST_LONG_RUN = timedelta(minutes=10)
"""A run that has run for less time is never reported as too long."""
LONG_RUN_FACTOR = 5
"""A run is too long if it has run for more than this many times the longest usual duration."""
USUAL_DURATION_OF = 20
"""A job's usual durations are those of its latest successful runs, at most this many."""
USUAL_DURATION_NEEDS = 5
"""A job with fewer successful runs has no usual durations."""
LONG_RUNS_EXAMINED = 5
"""The number of running runs that are compared with their jobs' usual durations."""


@dataclass(frozen=True, slots=True)
class UsualDurations:
    """How long the latest successful runs of a job took."""

    median: timedelta
    longest: timedelta


def running_for_long(runs: RunQuerySet, now: datetime) -> RunQuerySet:
    """Return the executing runs that are long enough to be compared with their jobs' durations.

    A run without a current heartbeat has lost its worker, so nobody knows how long it took.
    """
    return executing_runs(runs, now).filter(started_at__lt=now - SHORTEST_LONG_RUN)


def find_long_runs(runs: RunQuerySet, now: datetime) -> tuple[LongRun, ...]:
    """Return the oldest running runs that take too long, as the module's docstring defines.

    A thread can't be ended, so code that ignores its timeout goes on.
    """
    running = running_for_long(runs, now).order_by("due_at").select_related("job")
    running = running.only(
        "started_at", "due_at", "job__namespace", "job__name", "job__overlap_policy"
    )
    examined = list(running[:LONG_RUNS_EXAMINED])
    timeouts = recorded_timeouts(examined)
    usual = {job: usual_durations(job) for job in {run.job_id for run in examined}}
    unlimited = [
        run
        for run in examined
        if run.pk in timeouts and timeouts[run.pk] is None and not usual[run.job_id]
    ]
    blocking = _blocking(unlimited)
    found = []
    for run in examined:
        elapsed, timeout = now - (run.started_at or now), timeouts.get(run.pk)
        durations = usual[run.job_id]
        if timeout is not None and elapsed > timeout + 2 * settings.HARD_TIMEOUT_AFTER:
            found.append(LongRun(str(run.job), elapsed, timeout))
        elif durations is not None and elapsed > LONG_RUN_FACTOR * durations.longest:
            found.append(LongRun(str(run.job), elapsed, durations.longest))
        elif run.pk in blocking:
            found.append(LongRun(str(run.job), elapsed, None))
    return tuple(found)


def _blocking(running: Sequence[Run]) -> set[UUID]:
    """Return the keys of the runs because of which a later run of their job was skipped or waits.

    Under an exclusive overlap policy, nearly every later run is one of these, so the database reads
    few rows.
    """
    exclusive = [run.pk for run in running if run.job.overlap.exclusive]
    if not exclusive:
        return set()
    runs = Run.objects.using(alias_for(Run)).order_by()
    later = runs.filter(job=OuterRef("job"), scheduled_at__gt=OuterRef("started_at"))
    blocked = later.filter(state=State.SKIPPED) | later.waiting_for_slot()
    return set(runs.filter(Exists(blocked), pk__in=exclusive).values_list("pk", flat=True))


def recorded_timeouts(runs: Sequence[Run]) -> dict[UUID, timedelta | None]:
    """Return the timeout of each run's current attempt by the run's key; None if it has none.

    The job may have been edited since the attempt started, so its recorded definition counts. Runs
    without a recorded definition are left out.
    """
    attempts = Attempt.objects.using(alias_for(Attempt)).order_by()
    attempts = attempts.filter(run__in=[run.pk for run in runs], number=F("run__attempt"))
    return {
        run: parse_duration_text(content["timeout"]) if content.get("timeout") else None
        for run, content in attempts.values_list("run", "definition__content")
        if content
    }


def usual_durations(job_id: int) -> UsualDurations | None:
    """Return how long the job's latest successful runs took, or None if there are too few.

    The runs of a shadow don't count, because they execute nothing.
    """
    runs = Run.objects.using(alias_for(Run)).filter(job=job_id, started_at__isnull=False)
    columns = ("state", "reason", "started_at", "finished_at")
    latest = runs.order_by("-scheduled_at").values_list(*columns)[: 3 * USUAL_DURATION_OF]
    ended = [
        end - start
        for state, reason, start, end in latest
        if state == State.SUCCEEDED and reason != NOT_EXECUTED and start and end
    ]
    ended = ended[:USUAL_DURATION_OF]
    if len(ended) < USUAL_DURATION_NEEDS:
        return None
    return UsualDurations(median_low(ended), max(ended))
