"""A job's cursor: the next unclaimed occurrence, and the definition that yields it.

Invariants:

- The scheduler writes the cursor, and so does each save of a job, in the same transaction
  (``jobs/placement.py``).
- The row has a copy of the definition. Comparing it with the job's row finds jobs that were changed
  without ``control.save``.
- No occurrence is claimed from a schedule that the job no longer has.
- Pruning never changes the cursor.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import models
from django.db.models import Case, Exists, F, OuterRef, Q, When
from django.utils.translation import gettext_lazy as _

from django_dcron.db.statements import Placeholder
from django_dcron.models.calendar import Calendar
from django_dcron.models.exact_text import ExactText
from django_dcron.models.freeze import job_is_frozen
from django_dcron.models.job import Job
from django_dcron.models.parsed_schedule import ParsedScheduleMixin
from django_dcron.models.shards import ShardedQuerySet
from django_dcron.schedules.schedule import MAX_LENGTH

OWN_FIELDS = (
    "namespace",
    "name",
    "schedule",
    "timezone",
    "calendar_policy",
    "starts_at",
    "ends_at",
    "enabled",
)
COPIED_FIELDS = (*OWN_FIELDS, "calendar_dates")
"""The fields that decide a job's occurrences, with its calendar's text. Namespace and name count
because of ``H``.
"""


class CursorQuerySet(ShardedQuerySet["Cursor"]):
    def due(self, horizon: datetime | Placeholder) -> CursorQuerySet:
        """Cursors with an occurrence at or before ``horizon``, oldest first.

        Quarantined cursors are omitted.
        """
        return self.filter(next_at__lte=horizon, problem="").order_by("next_at", "pk")

    def not_frozen(self) -> CursorQuerySet:
        """Cursors whose namespace isn't frozen."""
        return self.filter(~job_is_frozen("pk", "namespace"))

    def current(self) -> CursorQuerySet:
        """Cursors that match their job's definition."""
        # PostgreSQL would multiply the probabilities of these conditions, expect one row, and
        # compare all due cursors for each batch. It expects a CASE to be true for half the rows.
        same = When(same_definition("", "job__"), then=True)
        return self.filter(Case(same, default=False, output_field=models.BooleanField()))


def same_definition(cursor: str, job: str) -> Q:
    """Return the condition that the cursor was computed from the job's current definition.

    ``cursor`` and ``job`` are the lookup prefixes that lead to them.
    """
    same = Q()
    for field in OWN_FIELDS:
        of_job: Any = F(f"{job}{field}")
        if isinstance(Job._meta.get_field(field), models.CharField):
            of_job = ExactText(of_job)
        equal = Q(**{f"{cursor}{field}": of_job})
        if Job._meta.get_field(field).null:
            equal |= Q(**{f"{cursor}{field}__isnull": True, f"{job}{field}__isnull": True})
        same &= equal
    # A subquery instead of a join: where FOR UPDATE can't name tables, a join would also lock the
    # calendars, which other jobs use, too.
    calendar = Calendar.objects.filter(
        pk=OuterRef(f"{job}calendar"), dates=ExactText(OuterRef(f"{cursor}calendar_dates"))
    )
    neither = Q(**{f"{cursor}calendar_dates__isnull": True, f"{job}calendar__isnull": True})
    return same & (neither | Q(Exists(calendar)))


class Cursor(ParsedScheduleMixin, models.Model):
    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, primary_key=True, related_name="cursor"
    )
    next_at = models.DateTimeField(
        _("next occurrence"),
        null=True,
        help_text=_("Null if there is no further occurrence or the job is paused."),
    )
    previous_at = models.DateTimeField(
        _("previous occurrence"),
        null=True,
        help_text=_("The last processed occurrence. @every counts from it."),
    )
    placed_at = models.DateTimeField(
        _("placed at"),
        help_text=_(
            "When the cursor was set for the current definition. Later occurrences follow this "
            "definition."
        ),
    )
    resumes_at = models.DateTimeField(
        _("resumes at"),
        null=True,
        help_text=_("The end of the job's pause, if a node has ended the pause ahead of time."),
    )
    problem = models.TextField(
        _("problem"),
        blank=True,
        help_text=_("Why the job isn't scheduled. Empty if there is no problem."),
    )

    namespace = models.CharField(max_length=64)
    name = models.CharField(max_length=120)
    schedule = models.CharField(max_length=MAX_LENGTH)
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
        default_permissions = ()
        indexes = (models.Index(fields=("next_at", "job"), name="dcron_cursor_due"),)

    def __str__(self) -> str:
        return f"{self.name}: {self.next_at}"

    def is_resumed_early(self, now: datetime) -> bool:
        """Return whether a node has ended the job's pause early, and its end is after ``now``.

        Until then, only the occurrences from the end of the pause on may be claimed.
        """
        return self.resumes_at is not None and self.resumes_at > now
