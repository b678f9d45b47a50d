"""Merge three states of a job: the job, the source, and the source as last imported.

Invariants:

- A field follows the source only while the job has the value last imported (``Job.imported``). A
  field that a person changed stays, and is listed, until ``overwrite`` names it.
- A description that a person wrote isn't listed if the source has none, as most sources do.
- A pause ends only if the import itself, or the end of the schedule, caused it.
- An import of shadows starts no job that waits for its handover and has a target that a person
  changed.
- A job that a person started before the handover isn't paused because its entry is disabled.
- A job that a person created stays enabled or paused until its entry has had the same state.
- The start of an interval that keeps its phase is written only when the import creates, enables or
  reschedules the job. A run of the source in between changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django_dcron.contrib.importers.entry_plans import (
    PAUSE,
    ComparisonOptions,
    EntryPlan,
    ImportOutcome,
    differing_values,
    pause_of_finished,
    store_origin,
    validated,
    with_values,
)
from django_dcron.contrib.importers.origins import (
    EntryMatch,
)
from django_dcron.jobs.batch_reading import origin_of
from django_dcron.jobs.placement import is_retimed
from django_dcron.jobs.representation import portable_document
from django_dcron.models import Job
from django_dcron.models.job_states import EXHAUSTED, HANDOVER_REASONS, WAITS_FOR_HANDOVER
from django_dcron.targets.shadow import is_shadow


def plan_merge(
    matched: EntryMatch, before: Job, unchanged: EntryPlan, options: ComparisonOptions
) -> EntryPlan:
    """Return the plan for a job that was imported before, or that a person created."""
    base: dict[str, Any] = (before.imported or {}).get("values", {})
    pause = {name: value for name, value in unchanged.entry.values.items() if name in PAUSE}
    values = {name: value for name, value in unchanged.entry.values.items() if name not in PAUSE}
    updates, kept = _merged(before, values, base, options)
    source_values = portable_document(with_values(before, values, options))
    new_base = base | {name: source_values[name] for name in values}
    state = _new_state(before, with_values(before, updates, options), pause, base, options)
    if state.kept and state.values:
        kept |= differing_values(before, with_values(before, state.values, options), ["enabled"])
    elif state.values:
        updates |= state.values
    if not options.disabled and not state.kept:
        new_base |= _new_pause_base(before, updates, pause, base, options)
    if unchanged.entry.next_due is not None and _takes_phase(before, updates):
        due = {"starts_at": unchanged.entry.next_due}
        taken, kept_phase = _merged(before, due, base, options)
        updates, kept = updates | taken, kept | kept_phase
        new_base |= {"starts_at": portable_document(with_values(before, due, options))["starts_at"]}
    job = with_values(before, updates, options)
    changes = differing_values(before, job, updates)
    if (renamed := _rename(matched, before)) is not None:
        if "name" in options.overwrite:
            job.name, changes["name"] = renamed, (before.name, renamed)
            unchanged = replace(unchanged, entry=replace(unchanged.entry, name=renamed))
        else:
            kept["name"] = (before.name, renamed)
    store_origin(job, matched, options, new_base)
    if changes:
        outcome = ImportOutcome.CHANGE
    else:
        outcome = ImportOutcome.KEPT if kept else ImportOutcome.SAME
    plan = replace(unchanged, outcome=outcome, changes=changes, kept=kept)
    # A job that stays paused has no occurrences since the source's last run.
    if options.take_over and job.enabled and _takes_over(before, updates):
        plan = replace(plan, ran_until=unchanged.entry.last_run)
    if not changes and origin_of(job) == origin_of(before):
        return plan
    return validated(replace(plan, job=job))


def _merged(
    before: Job, values: Mapping[str, Any], base: Mapping[str, Any], options: ComparisonOptions
) -> tuple[dict[str, Any], dict[str, tuple[Any, Any]]]:
    """Return the values to write, and the fields that a person changed."""
    updates, kept = {}, {}
    for name, both in differing_values(
        before, with_values(before, values, options), values
    ).items():
        if name in options.overwrite or (name in base and base[name] == both[0]):
            updates[name] = values[name]
        elif name != "description" or both[1] or base.get(name):
            kept[name] = both
    return updates, kept


@dataclass(frozen=True, slots=True)
class _NewState:
    values: Mapping[str, Any] = field(default_factory=dict)
    kept: bool = False
    """Whether the state that a person chose stays, instead of ``values``."""


def _new_state(
    before: Job,
    updated: Job,
    pause: Mapping[str, Any],
    base: Mapping[str, Any],
    options: ComparisonOptions,
) -> _NewState:
    """Return the new values of ``enabled`` and its reason.

    ``updated`` is the job with the other new values.
    """
    if pause_of_job := pause_of_finished(before, updated, pause, options):
        return _NewState(pause_of_job)
    retimed = is_retimed(before, updated)
    starts = _ends_wait(updated.target, options)
    overwritten = "enabled" in options.overwrite
    # A source that can't pause (a crontab) leaves a job as it is, unless the job waits for its
    # handover or the user overwrites its state. A finished job counts as enabled.
    becomes_enabled = overwritten or (starts and before.awaits_handover)
    enabled = pause.get("enabled", before.enabled or before.is_finished or becomes_enabled)
    if options.disabled or enabled == before.enabled:
        return _NewState()
    if before.awaits_handover and not (starts or overwritten):
        return _NewState()
    values = {
        "enabled": enabled,
        "pause_reason": pause.get("pause_reason", ""),
        "paused_until": None,
    }
    if overwritten:
        return _NewState(values)
    was_enabled = base.get("enabled")  # None: no import has compared it
    if before.enabled:
        set_by_source = was_enabled is True
    else:
        reasons = {EXHAUSTED} if retimed else set()
        if starts:
            reasons.update(HANDOVER_REASONS)
        if was_enabled is False:
            reasons |= {str(base.get("pause_reason"))} - {""}
        set_by_source = before.pause_reason in reasons
        if before.pause_reason == EXHAUSTED and not retimed:
            return _NewState()
    return _NewState(values, kept=not set_by_source)


def _ends_wait(target: str, options: ComparisonOptions) -> bool:
    """Return whether the import starts a job with this target that waits for its handover.

    The source still runs the work if the import creates shadows.
    """
    return is_shadow(target) if options.shadow else options.take_over


def _new_pause_base(
    before: Job,
    updates: Mapping[str, Any],
    pause: Mapping[str, Any],
    base: Mapping[str, Any],
    options: ComparisonOptions,
) -> dict[str, Any]:
    """Return ``enabled`` and its reason as last imported.

    Before the handover, a job is imported as paused, even if a person starts it. So it stays
    enabled if its entry is disabled, which keeps the source from running it, too.
    """
    target = updates.get("target", before.target)
    if not options.take_over:
        if before.awaits_handover and not _ends_wait(target, options):
            return {"enabled": False, "pause_reason": before.pause_reason}
        if is_shadow(before.target) and not is_shadow(target):
            return {"enabled": False, "pause_reason": WAITS_FOR_HANDOVER}
        was_started = before.enabled and base.get("pause_reason") in HANDOVER_REASONS
        if was_started and updates.get("enabled", True):
            return {}
    known = {**base, **pause}  # a source that can't pause (a crontab) may have neither
    return {name: known[name] for name in PAUSE[:2] if name in known}


def _takes_phase(before: Job, updates: Mapping[str, Any]) -> bool:
    return "schedule" in updates or _takes_over(before, updates)


def _takes_over(before: Job, updates: Mapping[str, Any]) -> bool:
    """Return whether the job starts to do the work."""
    becomes_job = is_shadow(before.target) and "target" in updates
    return becomes_job or updates.get("enabled") is True


def _rename(matched: EntryMatch, before: Job) -> str | None:
    """Return the name that the source has for the job, if it was renamed here or there."""
    known = before.imported or {}
    renamed_here = before.name != known.get("as", before.name)
    renamed_there = matched.source_name != known.get("name", matched.source_name)
    is_renamed = (renamed_here or renamed_there) and matched.proposed != before.name
    return matched.proposed if is_renamed else None
