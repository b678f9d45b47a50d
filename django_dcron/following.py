"""The runs that follow another one: made in the very transaction that ends it.

Invariants:

- A run that ends as a link says makes exactly one run of each job that comes after its own and is not paused. It is made with the
  end or not at all, and an end happens once (``transitions``): so nothing that dies in between, comes twice or is told late loses
  or doubles one. The key of a follower names the run it follows, UNIQUE (job, idempotency_key).
- What counts is the links, and who is paused, as they are when the run ends.
- A follower is due at once, at an instant of its own. It is on nobody's agenda: whoever ended the run may hand it over after the
  commit, and a node takes it up within a tick if nobody does.
- Jobs that follow are locked in the order of their keys, before the statistics of the one that ended.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db import connections
from django.db.models import Exists

from django_dcron.domain.chains import met_by
from django_dcron.domain.lifecycle import State, Trigger
from django_dcron.domain.timetable import INSTANT
from django_dcron.models import Job, Link, Run
from django_dcron.models.database import alias_for, database_now
from django_dcron.models.run import REASON_LIMIT, new_run_id
from django_dcron.sync_points import reach

FOLLOWS = "after run "
TRIES = 20
"""How often another instant is tried; each step is twice as far as the one before."""


def key_after(run_id: UUID) -> str:
    """The idempotency key of a run that follows ``run_id``. No other run has one that begins like it
    (``control.trigger``)."""
    return f"{FOLLOWS}{run_id}"


def followed(key: str | None) -> UUID | None:
    """The run that the one with this idempotency key follows."""
    if key is None or not key.startswith(FOLLOWS):
        return None
    try:
        return UUID(key.removeprefix(FOLLOWS))
    except ValueError:
        return None


def any_after(state: State, job_id: int) -> Exists:
    """Whether jobs come after a run of the job that had started and ended in ``state``."""
    return Exists(Link.objects.filter(after=job_id, on__in=sorted(met_by(state, started=True))))


def make(run: Run, state: State) -> list[Run]:
    """Make the runs that follow ``run``, which has just been given ``state`` in this transaction."""
    using = alias_for(Run)
    started = Run.objects.using(using).filter(pk=run.pk).exclude(started_at=None)
    ends = met_by(state, started=state is not State.CANCELLED or started.exists())
    if not ends:
        return []
    features = connections[using].features
    jobs = Job.objects.using(using).filter(enabled=True, links__after=run.job_id, links__on__in=sorted(ends))
    locked = jobs.select_for_update(
        of=("self",) if features.has_select_for_update_of else (),
        no_key=features.has_select_for_no_key_update,  # others may go on making runs of them
    )
    now = database_now(using)
    reason = f"after the run of {run.job} of {run.scheduled_at:%Y-%m-%d %H:%M:%S} UTC ({run.pk}) {state}"
    rows = [
        Run(
            id=new_run_id(),
            job=job,
            scheduled_at=off_the_second(now),
            due_at=now,
            claimed_at=now,
            trigger=Trigger.CHAIN,
            idempotency_key=key_after(run.pk),
            reason=reason[:REASON_LIMIT],
        )
        for job in locked.order_by("pk")
    ]
    made = _insert(rows, using)
    reach("follow.made")
    return made


def _insert(rows: list[Run], using: str) -> list[Run]:
    made: list[Run] = []
    runs = Run.objects.using(using)
    for number in range(TRIES):
        if not rows:
            return made
        runs.bulk_create(rows, ignore_conflicts=True)
        present = set(runs.filter(pk__in=[row.pk for row in rows]).values_list("pk", flat=True))
        made += [row for row in rows if row.pk in present]
        rows = [row for row in rows if row.pk not in present and not _is_there(row, using)]
        for row in rows:  # another run of its job is at this very instant
            row.scheduled_at = off_the_second(row.scheduled_at + INSTANT * 2**number)
    raise RuntimeError(
        f"no free instant was found for the run of {rows[0].job} after {rows[0].idempotency_key}"
    )


def _is_there(row: Run, using: str) -> bool:
    return Run.objects.using(using).filter(job=row.job_id, idempotency_key=row.idempotency_key).exists()


def off_the_second(instant: datetime) -> datetime:
    """Occurrences fall on whole seconds: a run that no schedule made keeps off them."""
    return instant if instant.microsecond else instant + INSTANT
