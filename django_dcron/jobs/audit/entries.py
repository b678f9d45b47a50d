"""Read the changes of a job, and past freezes, from the audit log.

Invariants:

- Each entry has the row's ``version``. A gap between the versions therefore shows changes without
  an entry, such as the end of a schedule. Writes without ``control`` don't change the version.
- The entries about a job's runs belong to the runs, so they don't slow down reading the job's
  changes.
- A backfill or a rerun of a selection has an entry of the job but changes no field of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Model
from django.utils.translation import gettext as _

from django_dcron.db.routing import alias_for
from django_dcron.jobs.audit.differences import FieldChange, names_of_changes
from django_dcron.jobs.locking import batches_of_keys
from django_dcron.models import AuditAction, AuditEntry, AuditKind, Deletion, Freeze, Job, Via
from django_dcron.models.audit_entry import AuditEntryQuerySet
from django_dcron.utils.time_parsing import parse_datetime

READ = 500
"""The maximum number of entries to read, the latest ones."""
SYNCED = "as declared in code"
IMPORTED = "as in the imported source"
FOLLOWED_RENAMED = "a job that it follows was renamed"
FOLLOWED_DELETED = "a job that it follows was deleted"
AUTOMATIC_CHANGES = (SYNCED, IMPORTED, FOLLOWED_RENAMED, FOLLOWED_DELETED)
"""The reasons of changes that nobody made as an edit of the job."""
_SWITCHES = (AuditAction.PAUSE, AuditAction.RESUME, AuditAction.CHANGE)
"""The actions that may enable or disable a job that exists."""
ABOUT_NEW_RUNS = (AuditAction.BACKFILL, AuditAction.RERUN)
"""The actions of a job's entries that create runs and don't change the job."""


@dataclass(frozen=True, slots=True)
class LoggedChange:
    at: datetime
    by: str
    """Who acted, as text for people."""
    action: AuditAction
    reason: str = ""
    fields: tuple[FieldChange, ...] = ()
    version: int | None = None
    """The row's version after the change."""

    @property
    def is_addition(self) -> bool:
        return self.action is AuditAction.CREATE

    def of(self, field: str) -> FieldChange | None:
        return next((change for change in self.fields if change.field == field), None)

    @property
    def switched(self) -> bool | None:
        """Whether the change enabled or paused the job; None if neither."""
        change = self.of("enabled")
        return bool(change.new) if change and not self.is_addition else None


def entries_of(row: Model) -> AuditEntryQuerySet:
    """Return the entries of a job, run, calendar, limit, freeze or incident, unordered."""
    entries = AuditEntry.objects.using(alias_for(AuditEntry)).order_by()
    return entries.filter(kind=str(row._meta.model_name), object_id=str(row.pk))


def changing_entries_of(job: Job) -> AuditEntryQuerySet:
    """Return the entries of the job except those about new runs, unordered."""
    return entries_of(job).exclude(action__in=ABOUT_NEW_RUNS)


def logged_changes_of(job: Job) -> list[LoggedChange]:
    """Return the changes of the job, oldest first."""
    latest = changing_entries_of(job).order_by("-at", "-pk")[:READ]
    return [read_change(entry) for entry in reversed(latest)]


@dataclass(frozen=True, slots=True)
class LoggedPause:
    at: datetime
    reason: str
    user: str
    """Empty if the scheduler or a program paused the job."""


def pauses_of(jobs: Iterable[Job]) -> dict[int, LoggedPause]:
    """Return the pause of each job for its present reason, if the log has it.

    It may be an edit that disabled the job, and it may have no reason. A sync or an import that
    disabled the job isn't a pause. A job that was restored as paused has the pause of the deleted
    job.
    """
    return _pauses({job.pk: job.pause_reason for job in jobs})


def pauses_by_users(jobs: Iterable[Job]) -> dict[int, LoggedPause]:
    """Return ``pauses_of`` for which the log names a user."""
    return {key: pause for key, pause in pauses_of(jobs).items() if pause.user}


def _pauses(reasons: Mapping[int, str]) -> dict[int, LoggedPause]:
    latest: dict[int, LoggedPause | None] = {}  # None if the last switch isn't a pause
    for keys in batches_of_keys(reasons.keys()):
        switches = AuditEntry.objects.using(alias_for(AuditEntry)).filter(
            action__in=_SWITCHES,
            kind=AuditKind.JOB,
            object_id__in=[*map(str, keys)],
            # Other entries change other fields, or only the end of the pause.
            after__has_any_keys=["enabled", "pause_reason"],
        )
        columns = ("object_id", "at", "actor", "action", "reason", "after")
        for entry in switches.order_by("at", "pk").only(*columns):
            key, reason = int(entry.object_id), entry.reason
            is_pause = entry.action == AuditAction.PAUSE
            is_automatic = not is_pause and reason in AUTOMATIC_CHANGES
            if entry.after.get("enabled") or is_automatic:
                latest[key] = None
                continue
            if not is_pause:
                reason = entry.after.get("pause_reason", reasons[key])
            latest[key] = LoggedPause(entry.at, reason, entry.actor)
    pauses = {
        key: pause
        for key, pause in latest.items()
        if pause is not None and pause.reason == reasons[key]
    }
    if deleted := _deleted_jobs_of(reasons.keys() - latest.keys()):
        earlier = _pauses({old: reasons[key] for key, old in deleted.items()})
        pauses |= {key: earlier[old] for key, old in deleted.items() if old in earlier}
    return pauses


def _deleted_jobs_of(restored: Collection[int]) -> dict[int, int]:
    """Return the id of the deleted job by the id of the restored job, for restored jobs."""
    deletions = Deletion.objects.using(alias_for(Deletion))
    return {
        restored_id: job_id
        for keys in batches_of_keys(restored)
        for job_id, restored_id in deletions.filter(restored_job_id__in=keys).values_list(
            "job_id", "restored_job_id"
        )
        if restored_id is not None
    }


def pause_authors(jobs: Iterable[Job]) -> dict[int, str]:
    """Return the user who paused each job for its present reason, if the log names one."""
    return {key: pause.user for key, pause in pauses_by_users(jobs).items()}


def earlier_freezes(latest: Freeze) -> list[Freeze]:
    """Return the logged freezes before ``latest``, oldest first, as unsaved rows.

    Each namespace has one row, and so has the freeze of all namespaces. A new freeze overwrites it.
    """
    entries = entries_of(latest).filter(at__lt=latest.since).order_by("-at", "-pk")[:READ]
    found: list[Freeze] = []
    for entry in reversed(entries):
        freeze = found[-1] if found and found[-1].extent.is_in_force(entry.at) else None
        if entry.action == AuditAction.UNFREEZE:
            if freeze is not None:
                freeze.until = entry.at
            continue
        if freeze is None:
            freeze = Freeze(namespace=latest.namespace, since=entry.at)
            found.append(freeze)
        freeze.reason, freeze.frozen_by = entry.reason, entry.actor
        freeze.until = parse_datetime(entry.after["until"]) if "until" in entry.after else None
    if found and found[-1].extent.is_in_force(latest.since):
        found[-1].until = latest.since
    return found


def read_change(entry: AuditEntry) -> LoggedChange:
    return LoggedChange(
        at=entry.at,
        by=actor_text(entry),
        action=AuditAction(entry.action),
        reason=entry.reason,
        fields=tuple(
            FieldChange(name, entry.before.get(name), entry.after.get(name))
            for name in names_of_changes(entry.before, entry.after)
        ),
        version=entry.version,
    )


def actor_text(entry: AuditEntry) -> str:
    """Return who acted, for people."""
    if entry.actor:
        if entry.via == Via.CLI:
            return _("%(user)s (command line)") % {"user": entry.actor}
        return entry.actor
    return _("The scheduler") if entry.via == Via.SCHEDULER else _("A program")
