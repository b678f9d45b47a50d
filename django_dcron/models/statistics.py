"""Counters of a job's ended runs. Pruning runs doesn't change them.

A run is counted by the transaction that ends it (``runs/transitions.py``, ``runs/creation.py``).
``followed`` is in this table because the end of a run updates the row anyway. Only
``jobs/chains.py`` writes ``followed``, together with the links.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db import models
from django.db.models import F
from django.utils.translation import gettext_lazy as _

from django_dcron.db.now import UtcNow
from django_dcron.db.routing import alias_for
from django_dcron.models.job import Job
from django_dcron.policies.lifecycle import State


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
    consecutive_failures = models.PositiveIntegerField(_("consecutive failures"), default=0)
    last_state = models.CharField(_("last outcome"), max_length=10, blank=True)
    last_finished_at = models.DateTimeField(_("last finished"), null=True)
    followed = models.BooleanField(
        default=False, editable=False, help_text=_("Whether other jobs run after this job.")
    )

    class Meta:
        verbose_name = _("statistics")
        verbose_name_plural = _("statistics")

    def __str__(self) -> str:
        return f"{self.job_id}: {self.succeeded} succeeded, {self.failed} failed"


def count(job_ids: Collection[int], state: State, number: int = 1) -> None:
    """Add ``number`` runs or occurrences that ended in ``state`` to each job's statistics."""
    using = alias_for(Statistics)
    rows = Statistics.objects.using(using).filter(pk__in=job_ids)
    columns = counter_updates(state, number)
    if rows.update(**columns) < len(job_ids):
        missing = list(
            Job.objects.using(using)
            .filter(pk__in=job_ids, statistics=None)
            .values_list("pk", flat=True)
        )
        new = [Statistics(job_id=job_id) for job_id in missing]
        Statistics.objects.using(using).bulk_create(new, ignore_conflicts=True)
        rows.filter(pk__in=missing).update(**columns)


def count_late_success(job_id: int) -> None:
    """Count an attempt that succeeded after it had been closed with another outcome."""
    rows = Statistics.objects.using(alias_for(Statistics)).filter(pk=job_id)
    rows.update(late_successes=F("late_successes") + 1)


def counter_updates(state: State, number: int = 1) -> dict[str, Any]:
    """Return the columns of an UPDATE that counts ``number`` runs."""
    columns: dict[str, Any] = {
        state.value: F(state.value) + number,
        "last_state": state,
        "last_finished_at": UtcNow(),
    }
    if state is State.SUCCEEDED:
        columns["consecutive_failures"] = 0
    elif state is State.FAILED:
        columns["consecutive_failures"] = F("consecutive_failures") + number
    return columns
