"""A job's cursor: the next occurrence nobody has considered yet, and the definition it was computed from.

The scheduler writes it, and whoever saves a job, in the same transaction (``definition.py``). Because the row says which
definition it stands for, a job that was changed past ``control.save`` is found by comparing two rows, and no occurrence
is ever claimed from a schedule that the job no longer has. Pruning never touches it.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from django.db import models
from django.db.models import Exists, F, OuterRef, Q
from django.utils.translation import gettext_lazy as _

from django_dcron.models.calendar import Calendar
from django_dcron.models.job import Job
from django_dcron.models.scheduled import Scheduled
from django_dcron.models.statement import Given

OWN_FIELDS = (
    "namespace", "name", "schedule", "timezone", "calendar_policy", "starts_at", "ends_at", "enabled",
)  # fmt: skip
COPIED_FIELDS = (*OWN_FIELDS, "calendar_dates")
"""What decides a job's occurrences: its own fields (namespace and name by way of ``H``), and the text of its calendar."""


class CursorQuerySet(models.QuerySet["Cursor"]):
    def due(self, horizon: datetime | Given) -> CursorQuerySet:
        """Those with an occurrence at or before ``horizon``, oldest first; not those in quarantine."""
        return self.filter(next_at__lte=horizon, problem="").order_by("next_at", "pk")

    def in_shards(self, shards: Collection[int], of: int) -> CursorQuerySet:
        if len(shards) == of:
            return self
        return self.alias(shard=F("job_id") % of).filter(shard__in=shards)

    def current(self) -> CursorQuerySet:
        """Those that stand for their job's definition."""
        return self.filter(same_definition("", "job__"))


class _Exactly(models.Func):
    """Letter by letter: MariaDB's collations take ``a`` for ``A``, which ``H`` and whoever compares in Python do not."""

    template = "%(expressions)s"
    arity = 1

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="BINARY %(expressions)s", **context)


def same_definition(cursor: str, job: str) -> Q:
    """The cursor was computed from the definition that the job has. ``cursor``, ``job``: the lookups that lead to them."""
    same = Q()
    for field in OWN_FIELDS:
        of_job: Any = F(f"{job}{field}")
        if isinstance(Job._meta.get_field(field), models.CharField):
            of_job = _Exactly(of_job)
        equal = Q(**{f"{cursor}{field}": of_job})
        if Job._meta.get_field(field).null:
            equal |= Q(**{f"{cursor}{field}__isnull": True, f"{job}{field}__isnull": True})
        same &= equal
    # A subquery, not a join: where rows cannot be named, FOR UPDATE would lock the calendars, and with them their other jobs.
    calendar = Calendar.objects.filter(
        pk=OuterRef(f"{job}calendar"), dates=_Exactly(OuterRef(f"{cursor}calendar_dates"))
    )
    neither = Q(**{f"{cursor}calendar_dates__isnull": True, f"{job}calendar__isnull": True})
    return same & (neither | Q(Exists(calendar)))


class Cursor(Scheduled, models.Model):
    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="cursor")
    next_at = models.DateTimeField(
        _("next occurrence"), null=True, help_text=_("Null: nothing to come, or the job is paused.")
    )
    previous_at = models.DateTimeField(
        _("previous occurrence"),
        null=True,
        help_text=_("The occurrence considered last; @every counts on from it."),
    )
    placed_at = models.DateTimeField(
        _("placed at"),
        help_text=_("Since when it stands for this definition: later occurrences are its own."),
    )
    problem = models.TextField(
        _("problem"),
        blank=True,
        help_text=_("Why the job was taken out of scheduling; empty when all is well."),
    )

    namespace = models.CharField(max_length=64)
    name = models.CharField(max_length=120)
    schedule = models.CharField(max_length=255)
    timezone = models.CharField(max_length=64)
    calendar_dates = models.TextField(null=True)
    calendar_policy = models.CharField(max_length=12)
    starts_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField(null=True)
    enabled = models.BooleanField()

    objects = CursorQuerySet.as_manager()

    class Meta:
        verbose_name = _("cursor")
        verbose_name_plural = _("cursors")
        indexes = (models.Index(fields=("next_at",), name="dcron_cursor_due"),)

    def __str__(self) -> str:
        return f"{self.name}: {self.next_at}"
