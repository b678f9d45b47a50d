"""Enable or pause a batch of jobs in one transaction, in a fixed number of statements.

``switch_batch`` reads what the decisions need, decides about each job in turn on plain data, and
writes the accepted jobs. ``pausing`` decides which jobs to switch.

Invariants:

- A refused job changes nothing, and neither does a batch that raises an exception.
- A job that is already in the wanted state isn't written.
- The instances get the new state. An instance that was outdated keeps its version, so that saving
  it raises ``Conflict``.
- Rows are locked in the order cursors, jobs, runs, statistics (``locking``).
- ``pre_save`` and ``post_save`` of ``Job`` are sent for each written job, as by ``Job.save``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Exists, F, OuterRef
from django.db.models.signals import post_save, pre_save
from django.utils import timezone

from django_dcron.conf import settings
from django_dcron.db.now import database_now
from django_dcron.db.updates import update_each
from django_dcron.exceptions import Conflict, InvalidSchedule, NotPossible
from django_dcron.jobs.audit.recording import record_switches
from django_dcron.jobs.batching import BatchResult
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.jobs.locking import check_version, lock_cursors, lock_jobs
from django_dcron.jobs.placement import (
    Placement,
    decide_placement,
    runs_without_schedule,
    timetable_of,
    write_placements,
)
from django_dcron.models import Calendar, Cursor, Job
from django_dcron.models.job_states import AUTOMATIC_PAUSES, EXHAUSTED
from django_dcron.policies.slots import Slot
from django_dcron.runs import transitions
from django_dcron.schedules.timetable import MICROSECOND
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _

logger = logging.getLogger("django_dcron.scheduler")

SWITCH_FIELDS = ("enabled", "pause_reason", "paused_until")
SWITCH_COLUMNS = [field for field in Job._meta.concrete_fields if field.name in SWITCH_FIELDS]


@dataclass(frozen=True, slots=True)
class SwitchRequest:
    """The wanted state of jobs."""

    enabled: bool
    reason: str = ""
    until: datetime | None = None
    replaces: bool = True
    """Whether a pause replaces an earlier pause. Otherwise, a paused job is refused.

    Automatic pauses are always replaced, so that the job doesn't start without a person. A job that
    a sync disabled or that awaits a handover is refused if the pause has an end, because the end
    would enable the job. A job that awaits a handover counts as paused: if its reason were
    replaced, the resumption of many jobs would start it while the old scheduler still runs its
    work.
    """
    replaces_wait: bool = False
    """Whether a pause that doesn't replace others replaces the wait for a handover, so that the
    handover doesn't enable the job.
    """

    def may_pause(self, row: Job) -> bool:
        """Return whether the job is enabled or this pause replaces its earlier pause."""
        if self.replaces or row.enabled or row.pause_reason in AUTOMATIC_PAUSES:
            return True
        return self.replaces_wait and row.awaits_handover

    def is_done(self, row: Job, cursor: Cursor | None, now: datetime) -> bool:
        """Return whether the stored job already is in the wanted state."""
        wanted = (self.enabled, self.reason, self.until)
        if (row.enabled, row.pause_reason, row.paused_until) != wanted:
            return False
        # A node may have enabled the job ahead of the end of its pause. A resume takes effect now.
        return not (self.enabled and cursor is not None and cursor.is_resumed_early(now))


@dataclass(slots=True)
class _Accepted:
    """A job to write, and its cursor."""

    row: Job
    before: Job
    placed: Placement
    is_exhausted: bool = False
    """Whether its schedule has no further occurrence, so that the job stays disabled. It may have
    backfilled runs that wait.
    """


def switch_batch(jobs: Sequence[Job], switch: SwitchRequest, using: str) -> BatchResult:
    """Switch ``jobs`` in one transaction, up to the first job that is repeated in the list.

    The jobs from there on need another call. If there is only one job, raises its error instead of
    returning it.
    """
    jobs = _until_repeated(jobs)
    with transaction.atomic(using=using):
        batch = _Batch(jobs, switch, using)
        refused = batch.decide()
        batch.write()
    batch.update_instances(refused)
    return BatchResult(len(jobs), refused)


def _until_repeated(jobs: Sequence[Job]) -> Sequence[Job]:
    """Return the jobs before the first job that is in the list for the second time."""
    keys: set[int] = set()
    for position, job in enumerate(jobs):
        if job.pk in keys:
            return jobs[:position]
        keys.add(job.pk)
    return jobs


class _Batch:
    def __init__(self, jobs: Sequence[Job], switch: SwitchRequest, using: str) -> None:
        self.jobs, self.switch, self.using = jobs, switch, using
        keys = {job.pk for job in jobs}
        self.cursors = lock_cursors(keys, using)
        self.rows = lock_jobs(keys, using)
        self.now = database_now(using)
        self.versions = {pk: row.version for pk, row in self.rows.items()}
        """The versions before the switch."""
        self.accepted: list[_Accepted] = []
        _set_calendars(self.rows, using)

    def decide(self) -> dict[int, Exception]:
        """Decide about the jobs in turn. Returns the errors by position."""
        refused: dict[int, Exception] = {}
        backfills = _WaitingBackfills(self.jobs, self.using)
        for position, job in enumerate(self.jobs):
            try:
                self._decide_one(job, backfills)
            except (Conflict, NotPossible) as error:
                # Only a rollback undoes what receivers of the signal have written.
                if len(self.jobs) == 1 or pre_save.has_listeners(Job):
                    raise
                refused[position] = error
        return refused

    def _decide_one(self, job: Job, backfills: _WaitingBackfills) -> None:
        """Decide about one job. Raises ``Conflict`` or ``NotPossible``."""
        row = check_version(self.rows.get(job.pk), None)
        cursor = self.cursors.get(row.pk)
        if self.switch.is_done(row, cursor, self.now):
            return
        if not self.switch.may_pause(row):
            raise NotPossible(_("%(job)s is already paused."), job=str(row), code="paused")
        if self.switch.until:
            _require_start_at_end(row)
        before = copy(row)
        _set(row, self.switch, self.using)
        placed = decide_placement(row, cursor, self.now, before, resumes=self.switch.enabled)
        accepted = _Accepted(row, before, placed)
        cursor = placed.cursor
        if self.switch.enabled and cursor.next_at is None and not runs_without_schedule(row):
            if cursor.problem or not backfills.exist_for(row.pk):
                why = _why_no_occurrence(row, cursor)
                is_sentence = str(why).endswith((".", "?"))
                raise NotPossible(
                    _("%(job)s can't be resumed. %(why)s")
                    if is_sentence
                    else _("%(job)s can't be resumed: %(why)s."),
                    job=str(row),
                    why=why,
                    code="nothing_to_run",
                )
            accepted.is_exhausted = True
        self.accepted.append(accepted)

    def write(self) -> None:
        _write(self.accepted, self.now, self.using)

    def update_instances(self, refused: Mapping[int, Exception]) -> None:
        for position, job in enumerate(self.jobs):
            if position in refused:
                continue
            row = self.rows[job.pk]
            for name in SWITCH_FIELDS:
                setattr(job, name, getattr(row, name))
            if job.version == self.versions[job.pk]:
                # Otherwise, its other fields are outdated, and saving it must conflict.
                job.version = row.version


def _require_start_at_end(row: Job) -> None:
    """Raise ``NotPossible`` if the end of a pause must not enable the job."""
    if row.is_disabled_by_sync:
        raise NotPossible(
            _(
                "A sync disabled %(job)s, and the end of a pause would enable it. "
                "Pause it without an end."
            ),
            job=str(row),
            code="disabled_by_sync",
        )
    if row.awaits_handover:
        raise NotPossible(
            _(
                "%(job)s waits for the handover, and the end of a pause would start it before. "
                "Pause it without an end."
            ),
            job=str(row),
            code="awaits_handover",
        )


def _set(row: Job, switch: SwitchRequest, using: str) -> None:
    row.enabled, row.pause_reason, row.paused_until = switch.enabled, switch.reason, switch.until
    row.version += 1
    pre_save.send(sender=Job, instance=row, raw=False, **_signal_arguments(using))


def _write(accepted: Sequence[_Accepted], now: datetime, using: str) -> None:
    """Write jobs and cursors. ``now``: the instant of the decisions."""
    if not accepted:
        return
    rows, saved_at = [each.row for each in accepted], timezone.now()
    jobs = Job.objects.using(using)
    update_each(jobs, rows, SWITCH_COLUMNS, version=F("version") + 1, updated_at=saved_at)
    for row in rows:
        row.updated_at = saved_at
        post_save.send(
            sender=Job, instance=row, raw=False, created=False, **_signal_arguments(using)
        )
    write_placements([each.placed for each in accepted], now, using)
    record_switches([(each.row, each.before) for each in accepted], using)
    if exhausted := [each.row for each in accepted if each.is_exhausted]:
        disable_exhausted([row.pk for row in exhausted], using)
        for row in exhausted:
            row.enabled, row.pause_reason, row.version = False, EXHAUSTED, row.version + 1


def _signal_arguments(using: str) -> dict[str, Any]:
    fields = frozenset({*SWITCH_FIELDS, "version", "updated_at"})
    return {"using": using, "update_fields": fields}


@dataclass(frozen=True, slots=True)
class EndedPause:
    job: Job
    until: datetime


def end_pauses_of(job_ids: Sequence[int], using: str) -> list[EndedPause]:
    """Resume the jobs whose pauses are over or soon will be, in one transaction.

    Their occurrences count from the ends of the pauses. A job that is locked, deleted or changed
    meanwhile is omitted. A job whose schedule is invalid is quarantined.
    """
    ended: list[EndedPause] = []
    quarantined: list[tuple[Job, InvalidSchedule]] = []
    with transaction.atomic(using=using):
        cursors = lock_cursors(job_ids, using, skip_locked=True)
        present = Cursor.objects.using(using).filter(pk__in=job_ids)
        locked_elsewhere = {*present.values_list("pk", flat=True)} - {*cursors}
        rows = lock_jobs({*job_ids} - locked_elsewhere, using, skip_locked=True)
        now = database_now(using)
        _set_calendars(rows, using)
        accepted = []
        for pk in job_ids:
            row = rows.get(pk)
            until = row.paused_until if row is not None and not row.enabled else None
            if row is None or until is None or until > now + settings.LOOK_AHEAD:
                continue
            try:
                timetable_of(row)
            except InvalidSchedule as error:
                if leave_paused(pk, str(error), using):
                    quarantined.append((row, error))
                continue
            accepted.append(_resume_at(until, row, cursors.get(pk), now, using))
            ended.append(EndedPause(row, until))
        _write(accepted, now, using)
    for row, invalid in quarantined:
        logger.error(
            "job quarantined, pause can't end: job=%s error=%s",
            row,
            invalid,
            extra={"event": "quarantined", "job": str(row)},
        )
    return ended


def _resume_at(
    until: datetime, row: Job, cursor: Cursor | None, now: datetime, using: str
) -> _Accepted:
    """Resume a locked job whose occurrences count from ``until``, the end of its pause.

    Unlike ``resume``, this disables a job without occurrences, because nobody would read an error.
    """
    before = copy(row)
    _set(row, SwitchRequest(enabled=True), using)
    placed = decide_placement(row, cursor, now, since=until - MICROSECOND)
    has_no_occurrence = placed.cursor.next_at is None and not placed.cursor.problem
    return _Accepted(row, before, placed, has_no_occurrence and not runs_without_schedule(row))


def leave_paused(job_id: int, problem: str, using: str) -> bool:
    """Quarantine the job until its pause can end, for example after its definition is corrected.

    When the pause ends, the job gets the occurrences since its planned end. The caller has locked
    the job, and its pause is over or soon will be. Returns whether the quarantine begins.
    """
    cursor = Cursor.objects.using(using).filter(pk=job_id, enabled=False, problem="")
    return bool(cursor.update(problem=problem))


class _WaitingBackfills:
    """Which jobs have waiting backfilled runs. The runs are read once a decision needs them."""

    def __init__(self, jobs: Sequence[Job], using: str) -> None:
        self._jobs, self._using = jobs, using
        self._waiting: set[int] | None = None

    def exist_for(self, job_id: int) -> bool:
        if self._waiting is None:
            keys = [job.pk for job in self._jobs]
            line = transitions.runs().in_slot(Slot.BACKFILL, OuterRef("pk"))
            rows = Job.objects.using(self._using).filter(Exists(line), pk__in=keys)
            self._waiting = set(rows.values_list("pk", flat=True))
        return job_id in self._waiting


def _set_calendars(rows: Mapping[int, Job], using: str) -> None:
    """Read the calendars of all jobs at once. Placing a cursor needs them."""
    names = {row.calendar_id for row in rows.values() if row.calendar_id is not None}
    calendars = Calendar.objects.using(using).in_bulk(names) if names else {}
    for row in rows.values():
        if row.calendar_id in calendars:
            row.calendar = calendars[row.calendar_id]


def _why_no_occurrence(job: Job, cursor: Cursor) -> TranslatableText:
    try:
        timetable_of(job)
    except InvalidSchedule as error:
        return error.text
    return TranslatableText(cursor.problem or EXHAUSTED)
