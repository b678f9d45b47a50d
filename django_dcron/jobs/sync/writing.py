"""Apply a plan: each job in its own transaction, on the version that was compared."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import replace

from django.core.exceptions import ValidationError
from django.db import IntegrityError, OperationalError

from django_dcron.db.routing import alias_for
from django_dcron.exceptions import Conflict
from django_dcron.jobs import pausing, saving
from django_dcron.jobs.sync.changes import Change, ChangeKind
from django_dcron.jobs.sync.comparison import NO_LONGER_DECLARED, assign, plan
from django_dcron.models import Job
from django_dcron.policies.chains import earlier_first, key_of

TRIES = 5
"""How often a job is compared and written again if other processes write it at the same time."""


def apply(changes: Iterable[Change]) -> list[Change]:
    """Apply a plan. Returns the changes that were applied, kept or refused.

    Changes that another process applied in the meantime are left out.
    """
    done = []
    for change in _earlier_first(list(changes)):
        done += _carry_out(change) if change.is_difference else [change]
    return done


def _earlier_first(changes: list[Change]) -> list[Change]:
    """Order the changes so that a job is created before the jobs that follow it."""
    before: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for change in changes:
        before.setdefault(change.key, []).extend(
            key_of(label) for label in change.values.get("after", ())
        )
    rank = {key: number for number, key in enumerate(earlier_first(before))}
    return sorted(changes, key=lambda change: rank[change.key])


def _carry_out(change: Change) -> list[Change]:
    why: Exception | None = None
    for attempt in range(TRIES):
        try:
            _write(change)
            return [change]
        except (Conflict, IntegrityError, OperationalError, ValidationError) as error:
            why = error
        time.sleep(random.uniform(0, 0.05 * attempt))  # noqa: S311 (spreads nodes that started together)
        again = plan(only=change.key)
        differences = [other for other in again if other.is_difference]
        if not differences:  # another process applied the change, or it has become impossible
            return [other for other in again if other.is_problem]
        change = differences[0]
    return [replace(change, kind=ChangeKind.INVALID, details=(f"couldn't be written: {why}",))]


def _write(change: Change) -> None:
    namespace, name = change.key
    if change.kind is ChangeKind.CREATE:
        saving.save(Job(namespace=namespace, name=name, **change.values))
        return
    job = Job.objects.using(alias_for(Job)).filter(pk=change.pk, version=change.version).first()
    if job is None:
        raise Conflict(f"{change.job} was changed or deleted at the same time.")
    if change.kind is ChangeKind.DISABLE:  # without validation, because its target may be missing
        # A person's pause keeps its reason, but must no longer end on its own.
        pausing.pause(job, NO_LONGER_DECLARED if job.enabled else job.pause_reason)
        return
    assign(job, change.values)
    saving.save(job)
