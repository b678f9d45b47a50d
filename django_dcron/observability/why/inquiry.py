"""What is read to explain one time of a job, once and in this order: clock, cursor, runs."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from zoneinfo import ZoneInfo

from django.utils import translation

from django_dcron.definition import EXHAUSTED, timetable_of
from django_dcron.domain.lifecycle import Trigger
from django_dcron.domain.timetable import Timetable
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Cursor, Job, Node, Run
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability import cluster, wording
from django_dcron.observability.changes import Change, changes_of
from django_dcron.observability.why import named_time
from django_dcron.observability.why.nearby import Nearby, nearby

LOOKED_AT = 200
"""Rows of one minute: one for each second, and what was run by hand."""


def zone_of(job: Job) -> ZoneInfo:
    """In which its schedule is read; UTC if that cannot be told."""
    try:
        return ZoneInfo(job.parsed_schedule.timezone)
    except InvalidSchedule:
        return ZoneInfo("UTC")


class Inquiry:
    def __init__(self, job: Job, instant: datetime, *, tell_nodes: bool):
        self.job = job
        self.tell_nodes = tell_nodes
        self.zone = zone_of(job)
        self.timetable: Timetable | None = None
        self.unreadable = ""
        """Why the schedule cannot be read."""
        try:
            self.timetable = timetable_of(job)
        except InvalidSchedule as error:
            self.unreadable = error.said(translation)
        self.asked = named_time.asked(instant, self.zone, self.timetable)
        self.now = database_now(alias_for(Run))
        self.cursor = Cursor.objects.using(alias_for(Cursor)).filter(pk=job.pk).first()
        self.runs = Run.objects.using(alias_for(Run)).filter(job=job.pk)
        rows = self.runs.filter(scheduled_at__gte=self.asked.start, scheduled_at__lt=self.asked.end)
        found = list(rows.order_by("scheduled_at")[:LOOKED_AT])
        by_itself = (Trigger.SCHEDULE, Trigger.BACKFILL)
        self.own = {row.scheduled_at: row for row in found if row.trigger in by_itself}
        """The runs of occurrences, by these."""
        self.by_hand = [row for row in found if row.trigger not in by_itself]
        self.nearby = self._nearby()

    def _nearby(self) -> Nearby:
        if self.timetable is None:
            return Nearby()
        phase = (self.cursor.next_at or self.cursor.previous_at) if self.cursor else None
        return nearby(self.timetable, phase, self.asked.start, self.asked.end)

    @cached_property
    def changes(self) -> list[Change]:
        return changes_of(self.job)

    @cached_property
    def nodes(self) -> list[Node]:
        """Those that serve the job, live or not."""
        return cluster.nodes(self.job.namespace)

    @property
    def live_nodes(self) -> list[Node]:
        return [node for node in self.nodes if cluster.is_live(node)]

    @property
    def was_another(self) -> bool:
        """The present definition may not have been that of the time asked about."""
        return self.cursor is None or self.asked.start <= self.cursor.placed_at

    @property
    def is_paused(self) -> bool:
        """By somebody, or its circuit."""
        return not self.job.enabled and self.job.pause_reason != EXHAUSTED

    def at(self, instant: datetime) -> str:
        return wording.moment(instant, self.zone)
