"""Load the rows that explain one time of a job, in this order: database time, cursor, runs."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from zoneinfo import ZoneInfo

from django.utils import translation

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import cluster
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.diagnosis.why import requested_time
from django_dcron.diagnosis.why.nearby import Nearby, nearby
from django_dcron.diagnosis.why.requested_time import SECOND
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs.audit.entries import LoggedChange, earlier_freezes, logged_changes_of
from django_dcron.jobs.placement import timetable_of
from django_dcron.models import Cursor, Freeze, Job, Node, Run
from django_dcron.policies.freezing import USUAL_START_DELAY
from django_dcron.policies.lifecycle import Trigger
from django_dcron.schedules.timetable import Timetable
from django_dcron.utils import time_format

OTHER_RUNS_READ_LIMIT = 200
"""The maximum number of runs loaded for one minute besides those of its occurrences."""
OCCURRENCE_TRIGGERS = (Trigger.SCHEDULE, Trigger.BACKFILL)
"""The triggers of runs that belong to an occurrence of the schedule."""


def is_of_occurrence(run: Run) -> bool:
    """Return whether the run belongs to an occurrence of the schedule.

    A rerun doesn't, although the reruns of an incident have the trigger of a backfill.
    """
    return run.shown_trigger in OCCURRENCE_TRIGGERS


def schedule_zone_of(job: Job) -> ZoneInfo:
    """Return the schedule's time zone, or UTC if the schedule is invalid."""
    try:
        return ZoneInfo(job.parsed_schedule.timezone)
    except InvalidSchedule:
        return ZoneInfo("UTC")


class ExplanationData:
    """The rows that explain one time of a job. Each row is loaded at most once."""

    def __init__(
        self,
        job: Job,
        instant: datetime,
        *,
        show_nodes: bool,
        scope: Scope = EVERYTHING,
        exact: bool = False,
    ):
        self.job = job
        self.show_nodes = show_nodes
        self.scope = scope
        self.show_others = not scope.narrows(Run)
        """Whether sentences may count the runs of all other jobs."""
        self.zone = schedule_zone_of(job)
        self.timetable: Timetable | None = None
        self.schedule_error = ""
        """The error if the schedule is invalid."""
        try:
            self.timetable = timetable_of(job)
        except InvalidSchedule as error:
            self.schedule_error = error.translate(translation)
        self.requested = requested_time.interpret_requested_time(
            instant, self.zone, self.timetable, exact=exact
        )
        self.now = database_now(alias_for(Run))
        self.cursor = Cursor.objects.using(alias_for(Cursor)).filter(pk=job.pk).first()
        self.runs = Run.objects.using(alias_for(Run)).filter(job=job.pk)
        self.runs_by_occurrence = self._runs_by_occurrence()
        """The runs of occurrences, by occurrence."""
        others = self._load_other_runs()
        self.other_runs = others[:OTHER_RUNS_READ_LIMIT]
        """The first other visible runs: manual and chained runs, and reruns."""
        self.has_more_other_runs = len(others) > OTHER_RUNS_READ_LIMIT
        self.nearby = self._nearby()

    def _runs_by_occurrence(self) -> dict[datetime, Run]:
        """Load the runs of occurrences, of which each second has at most one."""
        start, end = self.requested.start, self.requested.end
        seconds = [start + number * SECOND for number in range((end - start) // SECOND)]
        rows = self.runs.filter(scheduled_at__in=seconds).order_by("scheduled_at")
        return {row.scheduled_at: row for row in rows if is_of_occurrence(row)}

    def _load_other_runs(self) -> list[Run]:
        rows = self.scope.runs.filter(
            job=self.job.pk,
            scheduled_at__gte=self.requested.start,
            scheduled_at__lt=self.requested.end,
        ).exclude(pk__in=[run.pk for run in self.runs_by_occurrence.values()])
        return list(rows.order_by("scheduled_at")[: OTHER_RUNS_READ_LIMIT + 1])

    def reruns_of(self, run: Run) -> list[Run]:
        """Return the visible reruns of the run, or of its original, as they were created."""
        reruns = self.scope.runs.filter(rerun_of=run.rerun_of_id or run.pk)
        return list(reruns.order_by("claimed_at", "pk"))

    def _nearby(self) -> Nearby:
        if self.timetable is None:
            return Nearby()
        phase = (self.cursor.next_at or self.cursor.previous_at) if self.cursor else None
        return nearby(self.timetable, phase, self.requested.start, self.requested.end)

    @cached_property
    def changes(self) -> list[LoggedChange]:
        return logged_changes_of(self.job)

    @cached_property
    def nodes(self) -> list[Node]:
        """The nodes that serve the job, live or not."""
        return cluster.nodes(self.job.namespace)

    @cached_property
    def freezes(self) -> list[Freeze]:
        """The latest freezes of the job's namespace and of all namespaces, in force or not."""
        return list(Freeze.objects.using(alias_for(Freeze)).covering(self.job.namespace))

    def freezes_in_force(self, at: datetime | None = None) -> list[Freeze]:
        """The freezes in force now. With ``at``, a later time, only those that last beyond it."""
        return [freeze for freeze in self.freezes if freeze.extent.is_in_force(at or self.now)]

    def past_freezes(self, due_at: datetime) -> list[Freeze]:
        """The ended freezes that delayed an occurrence."""
        return self.freezes_met(due_at, until=due_at)

    def freezes_met(self, due_at: datetime, until: datetime) -> list[Freeze]:
        """The ended freezes that delayed an occurrence, and those that began before ``until``."""
        return [
            freeze
            for freeze in self._freezes_around(due_at)
            if due_at < freeze.since < until
            or (freeze.extent.delayed(due_at) and not freeze.extent.is_in_force(self.now))
        ]

    def delaying_freezes(self, due_at: datetime) -> list[Freeze]:
        """The freezes that delayed an occurrence, in force or not."""
        return [each for each in self._freezes_around(due_at) if each.extent.delayed(due_at)]

    def _freezes_around(self, due_at: datetime) -> list[Freeze]:
        """The latest freezes, and those before them if the latest ones began later."""
        found = list(self.freezes)
        for freeze in self.freezes:
            if freeze.since > due_at + USUAL_START_DELAY:  # it may have met an earlier one
                found += earlier_freezes(freeze)
        return found

    @property
    def live_nodes(self) -> list[Node]:
        return [node for node in self.nodes if cluster.is_live(node)]

    @property
    def definition_may_be_newer(self) -> bool:
        """Whether the current definition may be newer than the time in question."""
        return self.cursor is None or self.requested.start <= self.cursor.placed_at

    def format_time(self, instant: datetime) -> str:
        return time_format.format_time_in_both(instant, self.zone)
