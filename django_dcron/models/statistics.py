"""Counters of a job's ended runs. Pruning runs doesn't change them.

A run is counted by the transaction that ends it (``runs/endings.py``, ``runs/creation.py``).
``followed`` is in this table because the end of a run updates the row anyway. Only
``jobs/chains.py`` writes ``followed``, together with the links.

Invariants:

- Counting never waits for a locked row of statistics. If the row is locked, the count is stored as
  a ``PendingCount``, and a node adds it later (``runs/pending_counts.py``).
- Counts of a job are added in the order in which its runs ended. While the job has pending counts,
  further counts are stored behind them. If two runs end within the time of a commit, their counts
  may be added in reverse order. In that case, only the number of consecutive failures may be wrong,
  until the next success.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import cache
from typing import Any

from django.db import models, transaction
from django.db.models import Exists, F, OuterRef
from django.utils.translation import gettext_lazy as _

from django_dcron.db.change_sequence import FirstPossible
from django_dcron.db.contention import can_skip_locked_rows, supports_no_key_update
from django_dcron.db.now import UtcNow
from django_dcron.db.routing import alias_for
from django_dcron.db.statements import Insert, Placeholder, UpdateUnlocked
from django_dcron.models.job import Job
from django_dcron.models.shards import ShardedQuerySet
from django_dcron.policies.lifecycle import State

COUNTED_STATES = (State.SUCCEEDED, State.FAILED, State.SKIPPED, State.MISSED, State.CANCELLED)
"""The states that the statistics count, in the order in which people read them."""


class Statistics(models.Model):
    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, primary_key=True, related_name="statistics"
    )
    succeeded = models.PositiveBigIntegerField(_("succeeded"), default=0)
    failed = models.PositiveBigIntegerField(_("failed"), default=0)
    skipped = models.PositiveBigIntegerField(_("skipped"), default=0)
    missed = models.PositiveBigIntegerField(_("missed"), default=0)
    cancelled = models.PositiveBigIntegerField(_("cancelled"), default=0)
    late_successes = models.PositiveBigIntegerField(
        _("late successes"),
        default=0,
        help_text=_(
            "Attempts that succeeded after they were declared lost or had timed out. They don't "
            "count as succeeded."
        ),
    )
    shadow_runs = models.PositiveBigIntegerField(
        _("runs of a shadow"),
        default=0,
        help_text=_(
            "Runs that succeeded without calling the target, because the job was a shadow. They "
            "also count as succeeded."
        ),
    )
    consecutive_failures = models.PositiveIntegerField(_("consecutive failures"), default=0)
    last_state = models.CharField(_("last outcome"), max_length=10, blank=True)
    last_finished_at = models.DateTimeField(_("last finished"), null=True)
    last_was_shadow = models.BooleanField(
        default=False,
        editable=False,
        help_text=_("Whether the last run was one of a shadow, which executed nothing."),
    )
    followed = models.BooleanField(
        default=False, editable=False, help_text=_("Whether other jobs run after this job.")
    )

    class Meta:
        verbose_name = _("statistics")
        verbose_name_plural = _("statistics")
        default_permissions = ()
        indexes = (models.Index(fields=("consecutive_failures",), name="dcron_statistics_failing"),)

    def __str__(self) -> str:
        return f"{self.job_id}: {self.succeeded} succeeded, {self.failed} failed"

    def shown_count(self, state: State) -> int:
        """Return the number of runs that ended in ``state``, without the successes of a shadow."""
        counted: int = getattr(self, state.value)
        return counted - self.shadow_runs if state is State.SUCCEEDED else counted


class PendingCountQuerySet(ShardedQuerySet["PendingCount"]):
    pass


class PendingCount(models.Model):
    """A count of runs that ended while another transaction locked the job's statistics."""

    # Without a constraint in the database, because checking it would wait for a locked job.
    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="pending_counts", db_constraint=False
    )
    counter = models.CharField(max_length=14)
    """The name of the column in ``Statistics``."""
    number = models.PositiveIntegerField(default=1)
    ended_at = models.DateTimeField()

    objects = PendingCountQuerySet.as_manager()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.job_id}: {self.number} {self.counter}"


LATE_SUCCESSES = "late_successes"
"""A counter that doesn't belong to a state. It doesn't change a job's last outcome."""
SHADOW_RUNS = "shadow_runs"
"""A counter of successes. They also count as ``State.SUCCEEDED``."""


def count_ended_runs(job_ids: Collection[int], state: State, number: int = 1) -> None:
    """Add ``number`` runs or occurrences that ended in ``state`` to each job's statistics."""
    if len(job_ids) == number == 1 and _counting_one(state).execute(job_id=next(iter(job_ids))):
        return
    _count(job_ids, state.value, number, counter_updates(state, number))


def count_late_success(job_id: int) -> None:
    """Count an attempt that succeeded after it had been closed with another outcome."""
    _count([job_id], LATE_SUCCESSES, 1, {LATE_SUCCESSES: F(LATE_SUCCESSES) + 1})


def count_shadow_run(job_id: int) -> None:
    """Count a success of a shadow, instead of ``count_ended_runs``."""
    columns = counter_updates(State.SUCCEEDED) | {"last_was_shadow": True}
    _count([job_id], SHADOW_RUNS, 1, columns | {SHADOW_RUNS: F(SHADOW_RUNS) + 1})


def _count(job_ids: Collection[int], counter: str, number: int, columns: dict[str, Any]) -> None:
    using = alias_for(Statistics)
    rows = Statistics.objects.using(using)
    with transaction.atomic(using=using, savepoint=False):
        countable = lock_countable(job_ids, using)
        if rows.filter(pk__in=countable).update(**columns) == len(job_ids):
            return
        others = set(job_ids).difference(countable)
        locked = set(rows.filter(pk__in=others).values_list("pk", flat=True))
        missing = Job.objects.using(using).filter(pk__in=others - locked)
        new = [Statistics(job_id=job_id) for job_id in missing.values_list("pk", flat=True)]
        rows.bulk_create(new, ignore_conflicts=True)
        rows.filter(pk__in=[each.job_id for each in new]).update(**columns)
        PendingCount.objects.using(using).bulk_create(
            PendingCount(job_id=job_id, counter=counter, number=number, ended_at=UtcNow())
            for job_id in sorted(locked)
        )


def prepared_count(state: State, job_id: Placeholder) -> FirstPossible:
    """Return the prepared form of ``count_ended_runs``, for a job that has a row."""
    pending = Insert(
        PendingCount,
        lambda: PendingCount(job_id=job_id, counter=state.value, ended_at=UtcNow()),
    )
    return FirstPossible(_update_of(state, job_id), pending)


@cache
def _counting_one(state: State) -> UpdateUnlocked:
    return _update_of(state, Placeholder(PendingCount, "job_id"))


def _update_of(state: State, job_id: Placeholder) -> UpdateUnlocked:
    return UpdateUnlocked(
        Statistics,
        job_id,
        lambda: Statistics.objects.filter(without_pending_counts()),
        **counter_updates(state),
    )


def lock_countable(job_ids: Collection[int], using: str) -> list[int]:
    """Lock the jobs' rows without waiting, and return the jobs whose rows are now locked.

    Jobs with pending counts are omitted.
    """
    rows = Statistics.objects.using(using).filter(without_pending_counts(), pk__in=job_ids)
    unlocked = rows.order_by("pk").select_for_update(
        skip_locked=can_skip_locked_rows(using), no_key=supports_no_key_update(using)
    )
    return list(unlocked.values_list("pk", flat=True))


def without_pending_counts() -> Any:
    """Return a condition on statistics: the job has no pending counts."""
    return ~Exists(PendingCount.objects.filter(job=OuterRef("pk")))


def pending_counts(job_ids: Collection[int]) -> dict[int, Counter[str]]:
    """Return the pending counts of each job that has any, by column."""
    rows = PendingCount.objects.using(alias_for(PendingCount)).filter(job__in=job_ids)
    counts: dict[int, Counter[str]] = {}
    for job_id, counter, number in rows.values_list("job_id", "counter", "number"):
        of_job = counts.setdefault(job_id, Counter())
        of_job[counter] += number
        if counter == SHADOW_RUNS:
            of_job[State.SUCCEEDED.value] += number
    return counts


def counter_updates(state: State, number: int = 1) -> dict[str, Any]:
    """Return the columns of an UPDATE that counts ``number`` runs."""
    columns: dict[str, Any] = {
        state.value: F(state.value) + number,
        "last_state": state,
        "last_finished_at": UtcNow(),
        "last_was_shadow": False,
    }
    if state is State.SUCCEEDED:
        columns["consecutive_failures"] = 0
    elif state is State.FAILED:
        columns["consecutive_failures"] = F("consecutive_failures") + number
    return columns
