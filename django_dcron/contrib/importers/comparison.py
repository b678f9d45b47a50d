"""Compare a source with the existing jobs, for the fields that the source has, without writing.

Invariants:

- The comparison merges three states: the job, the source, and the source as last imported
  (``Job.imported``). A field follows the source only while the job has the value last imported. A
  field that a person changed stays, and is listed, until ``overwrite`` names it.
- A pause ends only if the import itself, or the end of the schedule, caused it.
- The start of an interval that keeps its phase is written only when the import creates, enables or
  reschedules the job. A run of the source in between changes nothing.
- A job that was deleted here isn't created again, unless ``restore`` names it.
- An export has no origin. All its values replace those of the jobs.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DatabaseError

from django_dcron.contrib.importers.origins import (
    Match,
    imported_jobs_of,
    match_entries,
    stored_key,
    stored_source,
)
from django_dcron.contrib.importers.reading import SourceEntry, unexpected_error_text
from django_dcron.jobs.cursors import EXHAUSTED
from django_dcron.jobs.portable import check_rules
from django_dcron.jobs.representation import JOB_FIELDS, definition_of
from django_dcron.jobs.sync.changes import messages_of
from django_dcron.jobs.sync.comparison import TIMING
from django_dcron.models import Calendar, Job
from django_dcron.targets.shadow import PREFIX
from django_dcron.utils.json_values import same_json

ARRIVED_PAUSED = "imported with --disabled"
DECLARED = "the code declares a job with this name with @cron; rename or delete one of the two"
NOT_IMPORTED = (
    "a person created the job with this name; rename or delete one of the two, or take the "
    "source's values with --overwrite"
)
OTHER_SOURCE = "the job with this name was imported from {}; rename or delete one of the two"
DELETED_HERE = "the job was deleted here; to create it again, use dcron import with --restore"
HANDED_BACK = "handed back with dcron handover --back"
PAUSE = ("enabled", "pause_reason", "paused_until")


class ImportOutcome(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    SAME = "same"
    KEPT = "kept"
    OMITTED = "omitted"
    DELETED = "deleted here"
    CONFLICT = "conflict"
    REFUSED = "refused"


PROBLEMS = frozenset({ImportOutcome.CONFLICT, ImportOutcome.REFUSED})
NOT_HANDED_OVER = PROBLEMS | {ImportOutcome.OMITTED, ImportOutcome.DELETED}
DIFFERENCES = frozenset({ImportOutcome.CREATE, ImportOutcome.CHANGE})
Changes = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """The action for one entry, or why there is none."""

    outcome: ImportOutcome
    entry: SourceEntry
    namespace: str
    reasons: tuple[str, ...] = ()
    changes: Changes = field(default_factory=dict)
    """Maps fields to old and new values, as in an export.

    For a new job, all fields of the source, with None as the old value.
    """
    kept: Changes = field(default_factory=dict)
    """Maps fields that a person changed to the job's value and the source's."""
    job: Job | None = field(default=None, repr=False)
    """The job to save."""
    existing: Job | None = field(default=None, repr=False)
    """The job that the entry matches, as read."""
    ran_until: datetime | None = None
    """Until when the source ran the entry. The job continues from there; None: from now."""

    @property
    def name(self) -> str:
        return self.entry.name

    def __str__(self) -> str:
        return self.name if self.namespace == "default" else f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """How to compare.

    ``disabled``: new jobs are paused, and whether existing jobs are enabled isn't compared.
    ``shadow``: new jobs are shadows. ``overwrite``: fields that the source's values replace even if
    a person changed them. ``restore``: patterns of the names of deleted jobs to create again, ``*``
    for all. ``calendars``: the imported calendars to save, by name. ``take_over``:
    shadows become jobs, jobs that were imported paused or handed back are enabled, and jobs that
    start now continue from the source's last run.
    """

    source: str = ""
    disabled: bool = False
    shadow: bool = False
    overwrite: Collection[str] = ()
    restore: Collection[str] = ()
    calendars: Mapping[str, Calendar] = field(default_factory=dict)
    take_over: bool = False


def compare_entries(
    entries: Iterable[SourceEntry],
    namespace: str = "default",
    *,
    source: str = "",
    disabled: bool = False,
    shadow: bool = False,
    overwrite: Collection[str] = (),
    restore: Collection[str] = (),
    calendars: Mapping[str, Calendar] = MappingProxyType({}),
    take_over: bool = False,
) -> list[EntryPlan]:
    """Compare jobs, in the order of ``entries``. ``ComparisonOptions`` describes the arguments.

    ``source``: the source's name, which the jobs store. Empty for an export.
    """
    options = ComparisonOptions(source, disabled, shadow, overwrite, restore, calendars, take_over)
    return [
        _plan_safely(_as_shadow(each) if _stays_shadow(each, options) else each, namespace, options)
        for each in match_entries(entries, namespace, source)
    ]


def jobs_without_entry(source: str, plans: Iterable[EntryPlan]) -> list[Job]:
    """Return the jobs of the source that no entry matches: deleted there."""
    matched = {job.pk for plan in plans for job in (plan.existing, plan.job) if job is not None}
    return [job for job in imported_jobs_of(source) if job.pk not in matched]


def shadows_left(plans: Iterable[EntryPlan]) -> list[Job]:
    """Return the matched shadows that a handover doesn't turn into jobs."""
    return [
        plan.existing
        for plan in plans
        if plan.existing is not None
        and plan.existing.target.startswith(PREFIX)
        and (plan.outcome in NOT_HANDED_OVER or "target" in plan.kept)
    ]


def awaiting_handover(plans: Iterable[EntryPlan]) -> list[Job]:
    """Return the jobs that a handover turns from a shadow into a job, or enables."""
    plans = list(plans)
    remaining = {job.pk for job in shadows_left(plans)}
    return [
        plan.existing
        for plan in plans
        if plan.existing is not None
        and plan.existing.pk not in remaining
        and plan.outcome not in NOT_HANDED_OVER
        and (plan.existing.target.startswith(PREFIX) or _awaits_handover(plan.existing))
    ]


def _awaits_handover(job: Job) -> bool:
    return not job.enabled and job.pause_reason in (ARRIVED_PAUSED, HANDED_BACK)


def _stays_shadow(matched: Match, options: ComparisonOptions) -> bool:
    """Return whether the entry is imported as a shadow. Only a handover ends a shadow."""
    if options.shadow:
        return True
    is_shadow = matched.job is not None and matched.job.target.startswith(PREFIX)
    return is_shadow and not options.take_over and "target" not in options.overwrite


def _as_shadow(matched: Match) -> Match:
    job = matched.job
    may_be_shadow = job is None or job.target.startswith(PREFIX) or _awaits_handover(job)
    if not matched.entry.values or not may_be_shadow:
        return matched
    target = f"{PREFIX}{matched.entry.values['target']}"
    return replace(
        matched, entry=replace(matched.entry, values={**matched.entry.values, "target": target})
    )


def _plan_safely(matched: Match, namespace: str, options: ComparisonOptions) -> EntryPlan:
    """Compare one entry. Refuse it if its values raise any error except one of the database."""
    unchanged = EntryPlan(
        ImportOutcome.SAME,
        matched.entry,
        matched.entry.namespace or namespace,
        existing=matched.job,
    )
    try:
        return _plan(matched, unchanged, options)
    except DatabaseError:
        raise
    except Exception as error:
        return replace(
            unchanged, outcome=ImportOutcome.REFUSED, reasons=(unexpected_error_text(error),)
        )


def _plan(matched: Match, unchanged: EntryPlan, options: ComparisonOptions) -> EntryPlan:
    entry, before = matched.entry, matched.job
    if entry.refused:
        return replace(unchanged, outcome=ImportOutcome.REFUSED, reasons=(entry.refused,))
    if entry.omitted:
        return replace(unchanged, outcome=ImportOutcome.OMITTED, reasons=(entry.omitted,))
    if matched.name_owner is not None:
        return _conflict_with(matched.name_owner, unchanged, options)
    if before is None:
        if matched.deleted and not _matches(unchanged, options.restore):
            return replace(unchanged, outcome=ImportOutcome.DELETED, reasons=(DELETED_HERE,))
        return _plan_creation(matched, unchanged, options)
    if not options.source or before.declared is not None:
        return _plan_replacement(before, unchanged, options)
    if not before.import_source:
        return _plan_adoption(matched, before, unchanged, options)
    return _plan_merge(matched, before, unchanged, options)


def _matches(plan: EntryPlan, patterns: Iterable[str]) -> bool:
    """Return whether the name of the plan's job, with or without namespace, matches a pattern."""
    names = {plan.name, f"{plan.namespace}/{plan.name}"}
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _conflict_with(other: Job, unchanged: EntryPlan, options: ComparisonOptions) -> EntryPlan:
    """Compare with a job of the same name from another source, which is never changed."""
    changes = _differences(
        other, _with_values(other, unchanged.entry.values, options), unchanged.entry.values
    )
    if not changes:
        return unchanged
    reason = OTHER_SOURCE.format(other.import_source)
    return replace(unchanged, outcome=ImportOutcome.CONFLICT, reasons=(reason,), changes=changes)


def _plan_replacement(before: Job, unchanged: EntryPlan, options: ComparisonOptions) -> EntryPlan:
    """Take all values of the source, unless code declares the job."""
    values = dict(unchanged.entry.values)
    if options.disabled or before.enabled == values.get("enabled"):
        # Why and until when a job is paused is up to the person who paused it.
        for name in ("pause_reason", "paused_until"):
            values.pop(name, None)
    if options.disabled:
        values.pop("enabled", None)
    job = _with_values(before, values, options)
    changes = _differences(before, job, values)
    if not changes:
        return unchanged
    if before.declared is not None:
        return replace(
            unchanged, outcome=ImportOutcome.CONFLICT, reasons=(DECLARED,), changes=changes
        )
    return _validated(replace(unchanged, outcome=ImportOutcome.CHANGE, changes=changes, job=job))


def _plan_creation(matched: Match, unchanged: EntryPlan, options: ComparisonOptions) -> EntryPlan:
    entry = matched.entry
    values = dict(entry.values)
    if entry.next_due is not None:
        values["starts_at"] = entry.next_due
    job = _with_values(Job(namespace=unchanged.namespace, name=entry.name), values, options)
    if options.disabled and job.enabled:
        job.enabled, job.pause_reason = False, ARRIVED_PAUSED
    written = definition_of(job)
    names = [*values, *(["enabled"] if options.disabled else [])]
    if options.source:
        _store_origin(job, matched, options, {name: written[name] for name in {*names, *PAUSE[:2]}})
    changes = {name: (None, written[name]) for name in names}
    since = entry.last_run if options.take_over and job.enabled else None
    return _validated(
        replace(unchanged, outcome=ImportOutcome.CREATE, changes=changes, job=job, ran_until=since)
    )


def _plan_adoption(
    matched: Match, before: Job, unchanged: EntryPlan, options: ComparisonOptions
) -> EntryPlan:
    """Compare with a job that a person created. If it differs, only ``overwrite`` changes it."""
    values = {name: value for name, value in unchanged.entry.values.items() if name not in PAUSE}
    updated = _with_values(before, values, options)
    differing = _differences(before, updated, values)
    if kept := {name: both for name, both in differing.items() if name not in options.overwrite}:
        return replace(
            unchanged, outcome=ImportOutcome.CONFLICT, reasons=(NOT_IMPORTED,), changes=kept
        )
    new_values = definition_of(updated)
    base = {name: new_values[name] for name in (*values, *PAUSE[:2])}
    _store_origin(updated, matched, options, base)
    outcome = ImportOutcome.CHANGE if differing else ImportOutcome.SAME
    return _validated(replace(unchanged, outcome=outcome, changes=differing, job=updated))


def _plan_merge(
    matched: Match, before: Job, unchanged: EntryPlan, options: ComparisonOptions
) -> EntryPlan:
    base: dict[str, Any] = (before.imported or {}).get("values", {})
    pause = {name: value for name, value in unchanged.entry.values.items() if name in PAUSE}
    values = {name: value for name, value in unchanged.entry.values.items() if name not in PAUSE}
    updates, kept = _merged(before, values, base, options)
    source_values = definition_of(_with_values(before, values, options))
    new_base = base | {name: source_values[name] for name in values}
    state = _new_state(before, pause, base, {*updates} & TIMING, options)
    if state.kept and state.values:
        kept |= _differences(before, _with_values(before, state.values, options), ["enabled"])
    elif state.values:
        updates |= state.values
    if not options.disabled and not state.kept:
        new_base |= {name: pause.get(name, base.get(name, "")) for name in PAUSE[:2]}
    if unchanged.entry.next_due is not None and _takes_phase(before, updates):
        due = {"starts_at": unchanged.entry.next_due}
        taken, also_kept = _merged(before, due, base, options)
        updates, kept = updates | taken, kept | also_kept
        new_base |= {"starts_at": definition_of(_with_values(before, due, options))["starts_at"]}
    job = _with_values(before, updates, options)
    changes = _differences(before, job, updates)
    if (renamed := _rename(matched, before)) is not None:
        if "name" in options.overwrite:
            job.name, changes["name"] = renamed, (before.name, renamed)
            unchanged = replace(unchanged, entry=replace(unchanged.entry, name=renamed))
        else:
            kept["name"] = (before.name, renamed)
    _store_origin(job, matched, options, new_base)
    outcome = (
        ImportOutcome.CHANGE if changes else ImportOutcome.KEPT if kept else ImportOutcome.SAME
    )
    plan = replace(unchanged, outcome=outcome, changes=changes, kept=kept)
    if options.take_over and _takes_over(before, updates):
        plan = replace(plan, ran_until=unchanged.entry.last_run)
    if not changes and _origin_of(job) == _origin_of(before):
        return plan
    return _validated(replace(plan, job=job))


def _merged(
    before: Job, values: Mapping[str, Any], base: Mapping[str, Any], options: ComparisonOptions
) -> tuple[dict[str, Any], dict[str, tuple[Any, Any]]]:
    """Return the values to write, and the fields that a person changed."""
    updates, kept = {}, {}
    for name, both in _differences(before, _with_values(before, values, options), values).items():
        if name in options.overwrite or (name in base and base[name] == both[0]):
            updates[name] = values[name]
        else:
            kept[name] = both
    return updates, kept


@dataclass(frozen=True, slots=True)
class _NewState:
    values: Mapping[str, Any] = field(default_factory=dict)
    kept: bool = False
    """Whether a person's decision stays instead of ``values``."""


def _new_state(
    before: Job,
    pause: Mapping[str, Any],
    base: Mapping[str, Any],
    schedule_changes: Collection[str],
    options: ComparisonOptions,
) -> _NewState:
    """Return the new values of ``enabled`` and its reason."""
    enabled = pause.get("enabled", before.enabled)
    if options.disabled or enabled == before.enabled:
        return _NewState()
    overwritten = "enabled" in options.overwrite
    starts = options.take_over or options.shadow
    if _awaits_handover(before) and not (starts or overwritten):
        return _NewState()
    values = {"enabled": enabled, "pause_reason": pause.get("pause_reason", "")}
    values |= {"paused_until": None}
    if overwritten:
        return _NewState(values)
    if before.enabled:
        set_by_source = base.get("enabled", True)
    else:
        reasons = {EXHAUSTED} if schedule_changes else set()
        if starts:
            reasons |= {ARRIVED_PAUSED, HANDED_BACK}
        if not base.get("enabled", True):
            reasons |= {str(base.get("pause_reason"))} - {""}
        set_by_source = before.pause_reason in reasons
        if before.pause_reason == EXHAUSTED and not schedule_changes:
            return _NewState()
    return _NewState(values, kept=not set_by_source)


def _takes_phase(before: Job, updates: Mapping[str, Any]) -> bool:
    return "schedule" in updates or _takes_over(before, updates)


def _takes_over(before: Job, updates: Mapping[str, Any]) -> bool:
    """Return whether the job starts to do the work."""
    becomes_job = before.target.startswith(PREFIX) and "target" in updates
    return becomes_job or updates.get("enabled") is True


def _rename(matched: Match, before: Job) -> str | None:
    """Return the name that the source has for the job, if it was renamed here or there."""
    known = before.imported or {}
    renamed_here = before.name != known.get("as", before.name)
    renamed_there = matched.source_name != known.get("name", matched.source_name)
    return (
        matched.proposed
        if (renamed_here or renamed_there) and (matched.proposed != before.name)
        else None
    )


def _store_origin(
    job: Job, matched: Match, options: ComparisonOptions, base: Mapping[str, Any]
) -> None:
    """Store the origin and the values of the source."""
    job.import_source, job.import_key = stored_source(options.source), stored_key(matched.entry)
    name = job.name
    if matched.job is not None and matched.job.name == name:  # a person may have renamed it
        name = (matched.job.imported or {}).get("as", name)
    job.imported = {"name": matched.source_name, "as": name, "values": dict(sorted(base.items()))}


def _origin_of(job: Job) -> tuple[Any, ...]:
    return job.import_source, job.import_key, job.imported


def _with_values(before: Job, values: Mapping[str, Any], options: ComparisonOptions) -> Job:
    """Return a copy of the job with the values."""
    job = copy.copy(before)
    for name, value in values.items():
        setattr(job, JOB_FIELDS[name].attname, value)
    if (calendar := options.calendars.get(job.calendar_id or "")) is not None:
        job.calendar = calendar
    return job


def _differences(before: Job, after: Job, names: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    old_values, new_values = definition_of(before), definition_of(after)
    pairs = {name: (old_values[name], new_values[name]) for name in names}
    return {name: pair for name, pair in pairs.items() if not same_json(*pair)}


def _validated(plan: EntryPlan) -> EntryPlan:
    """Refuse the job if its fields are invalid. The caller has checked that its name is free."""
    assert plan.job is not None  # noqa: S101 (for the type checker)
    try:
        check_rules(plan.job)
    except ValidationError as error:
        return replace(
            plan,
            outcome=ImportOutcome.REFUSED,
            reasons=messages_of(error),
            changes={},
            kept={},
            job=None,
        )
    return plan
