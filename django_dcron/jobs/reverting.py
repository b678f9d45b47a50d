"""Revert an edit of a job: set the fields of an entry of the audit log back to their old values.

Invariants:

- All fields of the edit are reverted or none.
- A field that no longer has the value of the edit isn't overwritten.
- Whether a job is paused, why and until when, belong together: if one of them was changed after
  the edit, none of them is overwritten. So a revert never ends a later pause.
- A revert is an edit, with the same validation and an entry of its own. So it can be reverted, too.
- The job is saved only in the version for which the decision was made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.utils import translation

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import InvalidValue, NotPossible
from django_dcron.jobs.audit.differences import (
    FieldChange,
    differences,
    is_whole,
    values_of,
    whole_value,
)
from django_dcron.jobs.audit.entries import (
    AUTOMATIC_CHANGES,
    READ,
    LoggedChange,
    changing_entries_of,
    entries_of,
    read_change,
)
from django_dcron.jobs.batch_reading import JobToSave
from django_dcron.jobs.locking import check_version
from django_dcron.jobs.pausing import require_future
from django_dcron.jobs.representation import JOB_FIELDS, to_json
from django_dcron.jobs.row_arguments import require_row
from django_dcron.jobs.saving import save_change
from django_dcron.jobs.switching import SWITCH_FIELDS
from django_dcron.models import AuditAction, AuditEntry, Job, Via
from django_dcron.models.audit_entry import AuditEntryQuerySet
from django_dcron.utils.bounded_text import with_ellipsis
from django_dcron.utils.json_values import same_json
from django_dcron.utils.messages import TranslatableText, all_of
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.time_format import format_site_time, format_time_to_store

LONGEST_SHOWN = 40
"""The maximum number of characters of a value in an error."""


@dataclass(frozen=True, slots=True)
class RevertDecision:
    """The old values of an edit as values of the row, or the fields that prevent the revert."""

    values: Mapping[str, Any]
    incomplete: tuple[str, ...] = ()
    """Fields whose whole old value isn't in the log."""
    changed: tuple[str, ...] = ()
    """Fields that were changed again."""

    @property
    def is_possible(self) -> bool:
        return not (self.incomplete or self.changed)


@dataclass(frozen=True, slots=True)
class PlannedRevert:
    row: Job
    """The stored job with the old values, to be saved. The save may still refuse them."""
    reason: str
    """The reason of the audit entry."""


def is_edit(change: LoggedChange) -> bool:
    """Return whether the change of a job only set fields that people set."""
    fields = [JOB_FIELDS.get(each.field) for each in change.fields]
    is_settable = all(field is not None and field.writable for field in fields)
    return change.action is AuditAction.CHANGE and bool(fields) and is_settable


def edit_of(job: Job, version: int) -> AuditEntry | None:
    """Return the entry of the change that made this version of the job."""
    return _changes_of(job).filter(version=version).last()


def latest_edit_of(job: Job, *, or_automatic: bool = False) -> AuditEntry | None:
    """Return the entry of the latest edit that a person or the project's code made.

    ``or_automatic``: also consider the changes of fields by the scheduler, by syncs, imports and
    handovers, and by the new name or the deletion of a job that the job follows.
    """
    changes = _changes_of(job)
    if not or_automatic:
        changes = changes.exclude(via=Via.SCHEDULER).exclude(reason__in=AUTOMATIC_CHANGES)
    latest_first = changes.reverse().iterator()
    return next((each for each in latest_first if is_edit(read_change(each))), None)


def _changes_of(job: Job) -> AuditEntryQuerySet:
    """Return the entries of changes of the job, oldest first."""
    return entries_of(job).filter(action=AuditAction.CHANGE).order_by("pk")


def decide_revert(
    edit: LoggedChange, present: Mapping[str, Any], changed_later: Collection[str]
) -> RevertDecision:
    """Decide whether the edit of a job can be reverted.

    ``present`` has the values of the row by field. ``changed_later`` has the fields of the entries
    after the edit. They matter for a pause, and for a new value that the log has shortened or
    masked, because the present value may differ from it in the missing part.
    """
    values: dict[str, Any] = {}
    incomplete: list[str] = []
    is_switch = any(change.field in SWITCH_FIELDS for change in edit.fields)
    changed = [name for name in SWITCH_FIELDS if is_switch and name in changed_later]
    for change in edit.fields:
        field = JOB_FIELDS[change.field]
        try:
            old = values[field.name] = whole_value(field, change.old)
        except ValueError:
            incomplete.append(field.name)
            continue
        is_unsure = field.name in changed_later and not is_whole(field, change.new)
        if field.name not in changed and (
            is_unsure or not _leads_to(change, old, present[field.name])
        ):
            changed.append(field.name)
    return RevertDecision(values, tuple(incomplete), tuple(changed))


def _leads_to(change: FieldChange, old: Any, present: Any) -> bool:
    """Return whether an edit from ``old`` to ``present`` would be logged as this change."""
    name = change.field
    return any(
        same_json(change.new, each.new) for each in differences(Job, {name: old}, {name: present})
    )


def revert(
    job: Job, entry: AuditEntry, *, check: Callable[[Job], object] = lambda job: None
) -> Job:
    """Revert an edit of ``job``: set each field of the edit's audit entry back to its old value.

    The revert is an edit with its own entry, so it can be reverted, too. Raises ``NotPossible`` if
    the entry isn't an edit of the job, if the log doesn't have the whole old values, or if a field
    was changed again. Raises ``ValidationError`` by field if an old value isn't valid anymore, or
    ``Conflict`` if the job was deleted or is changed at the same time. Then nothing is changed.

    ``check`` is called with the reverted job before it is saved. It may raise an error, for example
    if the user may not save such a job.
    """
    planned = plan_revert(job, entry)
    check(planned.row)
    save_change(JobToSave(planned.row, reason=planned.reason))
    job.refresh_from_db(using=alias_for(Job))
    return job


def plan_revert(job: Job, entry: AuditEntry) -> PlannedRevert:
    """Return what ``revert`` saves. Raises its errors, except for those of the save."""
    require_row(job, Job)
    require_row(entry, AuditEntry)
    using = alias_for(Job)
    stored = entries_of(job).filter(pk=entry.pk).first()
    edit = read_change(stored) if stored is not None else None
    if stored is None or edit is None or not is_edit(edit):
        raise _not_an_edit(job, entry)
    row = check_version(Job.objects.using(using).filter(pk=job.pk).first(), None)
    later = later_changes(job, entry)
    decision = decide_revert(edit, values_of(row), later)
    if decision.incomplete:
        raise _incomplete(row, edit, decision.incomplete)
    if decision.changed:
        raise _changed(row, edit, decision.changed, later)
    for name, value in decision.values.items():
        setattr(row, JOB_FIELDS[name].attname, value)
    if row.paused_until is not None and "paused_until" in decision.values:
        _require_future_end(row.paused_until, using)
    author = stored.actor or stored.via
    reason = f"reverts version {edit.version} ({author}, {format_time_to_store(edit.at)})"
    return PlannedRevert(row, reason)


def _require_future_end(paused_until: datetime, using: str) -> None:
    """Refuse the past end of a pause, as ``control.pause`` does: a node would enable the job."""
    try:
        require_future(paused_until, database_now(using))
    except InvalidValue as error:
        raise ValidationError({"paused_until": error.problem.translate(translation)}) from None


def later_changes(job: Job, entry: AuditEntry) -> dict[str, AuditEntry]:
    """Return the last entry after ``entry`` that changed each field."""
    later = _changes_after(entry, job).order_by("pk").only("after", "version", "actor", "via", "at")
    return {name: each for each in later.iterator() for name in each.after}


def fields_changed_later(job: Job, entry: AuditEntry) -> set[str] | None:
    """Return the fields that changes after ``entry`` set; None with over ``READ`` changes."""
    later = _changes_after(entry, job).values_list("after", flat=True)
    changes = list(later[: READ + 1])
    return None if len(changes) > READ else {name for after in changes for name in after}


def _changes_after(entry: AuditEntry, job: Job) -> AuditEntryQuerySet:
    return changing_entries_of(job).filter(pk__gt=entry.pk)


def _not_an_edit(job: Job, entry: AuditEntry) -> NotPossible:
    text = _("“%(entry)s” isn't an edit of %(job)s. Only an edit of fields can be reverted.")
    if entry.action == AuditAction.PAUSE:
        text = _(
            "“%(entry)s” isn't an edit of %(job)s. Only an edit of fields can be reverted. To "
            "end a pause, resume the job."
        )
    return NotPossible(text, entry=str(entry), job=str(job), code="not_an_edit")


def _incomplete(job: Job, edit: LoggedChange, names: Sequence[str]) -> NotPossible:
    return NotPossible(
        _(
            "The edit that made version %(version)s of %(job)s can't be reverted, because the "
            "audit log doesn't have the whole old values of %(fields)s. It shortens long values "
            "and masks secrets. Set the fields yourself."
        ),
        job=str(job),
        version=edit.version,
        fields=all_of(names),
        code="incomplete",
    )


def _changed(
    job: Job, edit: LoggedChange, names: Collection[str], later: Mapping[str, AuditEntry]
) -> NotPossible:
    return NotPossible(
        _(
            "The edit that made version %(version)s of %(job)s can't be reverted, because fields "
            "were changed again: %(fields)s. First revert the later edits, or set the fields "
            "yourself."
        ),
        job=str(job),
        version=edit.version,
        fields=all_of([_present_text(job, name, later.get(name)) for name in names]),
        code="changed",
    )


def _present_text(job: Job, name: str, later: AuditEntry | None) -> TranslatableText:
    """Return the present value of the field, and who set it."""
    field = JOB_FIELDS[name]
    value = with_ellipsis(field.text(to_json(field.value_of(job))), LONGEST_SHOWN)
    if later is None:
        return TranslatableText(_("%(field)s (now %(value)s)"), field=name, value=value)
    return TranslatableText(
        _("%(field)s (now %(value)s, since version %(version)s by %(user)s at %(time)s)"),
        field=name,
        value=value,
        version=later.version,
        user=later.actor or later.via,
        time=format_site_time(later.at),
    )
