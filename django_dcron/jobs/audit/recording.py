"""Write entries of the audit log, in the transaction of the change.

Invariants:

- The caller has begun a transaction that contains the change. A change whose entry can't be
  written is rolled back.
- The entries of one call are one INSERT, unless a receiver of ``pre_save`` or ``post_save`` exists.
- Values are redacted and shortened, because everyone who sees the job sees the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from django.db.models import Model
from django.db.models.signals import post_save, pre_save
from django.utils.translation import override

from django_dcron.db.now import UtcNow, database_now
from django_dcron.jobs.audit.actor import current_actor
from django_dcron.jobs.audit.differences import differences, public_value, values_of
from django_dcron.models import (
    AuditAction,
    AuditEntry,
    AuditKind,
    Calendar,
    Incident,
    Job,
    Limit,
    Run,
)
from django_dcron.models.audit_entry import LONGEST_ACTOR, LONGEST_LABEL, LONGEST_REASON
from django_dcron.utils.bounded_text import with_ellipsis

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AuditedChange:
    """One change of one object."""

    action: AuditAction
    row: Model
    before: Values = field(default_factory=dict)
    after: Values = field(default_factory=dict)
    """JSON values, redacted."""
    reason: str = ""


Saved = Job | Calendar | Limit


def record_saves(
    saves: Iterable[tuple[Saved, Saved | None]],
    using: str,
    reasons: Mapping[Any, str] = MappingProxyType({}),
) -> None:
    """Record saved rows, each with the stored row before the save, or None if it is new.

    ``reasons`` has the reasons of saves by the rows' keys.
    """
    changes = [_save_of(row, before, reasons.get(row.pk, "")) for row, before in saves]
    record_changes(changes, using)


def record_switches(switches: Iterable[tuple[Job, Job]], using: str) -> None:
    """Record paused or resumed jobs, each with the job before the switch."""
    record_changes([_switch_of(row, before) for row, before in switches], using)


def record_deletion(row: Saved, using: str) -> None:
    """Record the deletion of a row, with its definition. The row must still have its key."""
    _none, values = _changed_values(type(row)(), row)
    record_changes([AuditedChange(AuditAction.DELETE, row, before=values)], using)


def record_new_runs(runs: Sequence[Run], using: str) -> None:
    """Record runs that were triggered or rerun."""
    record_changes([_start_of(run) for run in runs], using)


def record_changes(changes: Sequence[AuditedChange], using: str, *, by: str = "") -> None:
    """Write an entry for each change. ``by`` names who acts if the actor has no name."""
    if not changes:
        return
    actor = current_actor()
    # Projects may forward entries in receivers. A bulk insertion sends no signals.
    has_listeners = pre_save.has_listeners(AuditEntry) or post_save.has_listeners(AuditEntry)
    at: Any = database_now(using) if has_listeners else UtcNow()
    entries = [
        AuditEntry(
            at=at,
            actor=actor.name or with_ellipsis(by, LONGEST_ACTOR),
            address=actor.address,
            via=actor.via,
            action=change.action,
            kind=_kind_of(change.row),
            object_id=str(change.row.pk),
            label=with_ellipsis(_name_of(change.row), LONGEST_LABEL),
            job_id=_job_id_of(change.row),
            run_id=change.row.pk if isinstance(change.row, Run) else None,
            version=getattr(change.row, "version", None),
            before=change.before,
            after=change.after,
            reason=with_ellipsis(change.reason, LONGEST_REASON),
        )
        for change in changes
    ]
    if has_listeners:
        for entry in entries:
            entry.save(using=using)
    else:
        AuditEntry.objects.using(using).bulk_create(entries)


def _save_of(row: Saved, before: Saved | None, reason: str) -> AuditedChange:
    if before is None:
        return AuditedChange(AuditAction.CREATE, row, *_changed_values(type(row)(), row), reason)
    return AuditedChange(AuditAction.CHANGE, row, *_changed_values(before, row), reason)


def _switch_of(row: Job, before: Job) -> AuditedChange:
    action = AuditAction.RESUME if row.enabled else AuditAction.PAUSE
    return AuditedChange(action, row, *_changed_values(before, row), reason=row.pause_reason)


def _start_of(run: Run) -> AuditedChange:
    arguments = {"args": run.args, "kwargs": run.kwargs}
    after = {
        name: public_value(Job, name, value)
        for name, value in arguments.items()
        if value is not None
    }
    if run.rerun_of_id is None:
        return AuditedChange(AuditAction.TRIGGER, run, after=after)
    return AuditedChange(AuditAction.RERUN, run, after=after | {"rerun_of": str(run.rerun_of_id)})


def _changed_values(before: Model, after: Model) -> tuple[Values, Values]:
    """Return the old and the new values of the changed fields."""
    changes = differences(type(after), values_of(before), values_of(after))
    return (
        {change.field: change.old for change in changes},
        {change.field: change.new for change in changes},
    )


def _name_of(row: Model) -> str:
    with override(None):  # not in the language of the user
        return str(row)


def _kind_of(row: Model) -> AuditKind:
    return AuditKind(str(row._meta.model_name))


def _job_id_of(row: Model) -> int | None:
    if isinstance(row, Job):
        return int(row.pk)
    return row.job_id if isinstance(row, Run | Incident) else None
