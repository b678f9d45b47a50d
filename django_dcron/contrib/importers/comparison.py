"""Compare a source with the existing jobs, for the fields that the source has, without writing.

Invariants:

- A job that was imported before is merged with the source (``merging``).
- A job that was deleted here isn't created again, unless ``restore`` names it.
- A new entry takes over the job of an entry that is gone from the source and did the same work: the
  source has renamed the entry. Otherwise, the work would be done twice.
- A line of a crontab isn't imported if a job of another crontab does the same work.
- An export has no origin. All its values replace those of the jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from django.db import DatabaseError

from django_dcron.contrib.importers.entry_plans import (
    DEFAULT_OPTIONS,
    PAUSE,
    PROBLEMS,
    ComparisonOptions,
    EntryPlan,
    ImportOutcome,
    differing_values,
    pause_of_finished,
    store_origin,
    validated,
    with_values,
)
from django_dcron.contrib.importers.merging import plan_merge
from django_dcron.contrib.importers.origins import (
    EntryMatch,
    imported_jobs_of,
    match_entries,
)
from django_dcron.contrib.importers.same_work import with_duplicates, with_renamed
from django_dcron.contrib.importers.source_contents import (
    CRONTAB,
    SourceEntry,
    unexpected_error_text,
)
from django_dcron.jobs.pausing import is_left_to_source
from django_dcron.jobs.representation import portable_document
from django_dcron.models import Job
from django_dcron.models.job_states import ARRIVED_PAUSED, WAITS_FOR_HANDOVER
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE
from django_dcron.targets.shadow import PREFIX, is_shadow

DECLARED_LATER = (
    "code declares the job, and someone changed {fields}; to get these changes, run "
    "manage.py dcron sync, which creates the job, and import again"
)
DECLARED_ELSEWHERE = (
    "the project that wrote the export declares this job in code, but the job with this name here "
    "isn't declared; declare it with @cron, or rename one of the two"
)
DECLARED = "code declares a job with this name (@cron); rename or delete one of the two"
NOT_IMPORTED = (
    "a person created the job with this name; rename or delete one of the two, or take the "
    "source's values with --overwrite"
)
OTHER_CRONTAB = (
    "the job {name!r} was imported from {source} and runs the same command at the same times; to "
    "update it, import that crontab again; to import this one instead, delete the job first"
)
OTHER_SOURCE = (
    "the job with this name was imported from {}; if both entries are the same work, import only "
    "one of the sources, otherwise rename or delete one of the two"
)
FINISHED_HERE = "its only run time has passed, and the job here is finished"
DELETED_HERE = "the job was deleted here; to create it again, use dcron import with --restore"


NOT_HANDED_OVER = PROBLEMS | {ImportOutcome.OMITTED, ImportOutcome.DELETED}


def compare_entries(
    entries: Iterable[SourceEntry],
    namespace: str = DEFAULT_NAMESPACE,
    options: ComparisonOptions = DEFAULT_OPTIONS,
) -> list[EntryPlan]:
    """Compare jobs, in the order of ``entries``."""
    matches = list(match_entries(entries, namespace, options.source))
    if options.source.startswith(CRONTAB):
        matches = with_duplicates(matches, namespace, options)
    if not (options.take_over or options.shadow) and any(map(_waits, matches)):
        options = replace(options, new_jobs_wait=True)
    if options.source:
        matches = with_renamed(matches, namespace, options)
    return [
        _plan_safely(_as_shadow(each) if _stays_shadow(each, options) else each, namespace, options)
        for each in matches
    ]


def jobs_without_entry(source: str, plans: Iterable[EntryPlan]) -> list[Job]:
    """Return the jobs of the source that match no entry, because the source no longer has them."""
    matched = {job.pk for plan in plans for job in (plan.existing, plan.job) if job is not None}
    return [job for job in imported_jobs_of(source) if job.pk not in matched]


def shadows_left(plans: Iterable[EntryPlan]) -> list[Job]:
    """Return the matched jobs that stay shadows after a handover and still have work to do.

    A finished one-off that the source has run has none.
    """
    return [
        plan.existing
        for plan in plans
        if plan.existing is not None
        and is_shadow(plan.existing.target)
        and (plan.outcome in NOT_HANDED_OVER or "target" in plan.kept)
        and not (plan.outcome is ImportOutcome.OMITTED and plan.existing.is_finished)
    ]


def awaiting_handover(plans: Iterable[EntryPlan]) -> list[Job]:
    """Return the matched jobs that a later handover turns from a shadow into a job, or enables."""
    plans = list(plans)
    remaining = {job.pk for job in shadows_left(plans)}
    jobs = [
        plan.job or plan.existing
        for plan in plans
        if plan.existing is not None
        and plan.existing.pk not in remaining
        and plan.outcome not in NOT_HANDED_OVER
    ]
    return [job for job in jobs if is_left_to_source(job)]


def _waits(matched: EntryMatch) -> bool:
    """Return whether the entry's job waits for a handover, because the source still does its work.

    The source doesn't run a disabled entry, or one that is omitted because it has already run.
    """
    job = matched.job
    return (
        job is not None
        and not matched.entry.omitted
        and matched.entry.is_enabled
        and is_left_to_source(job)
    )


def _stays_shadow(matched: EntryMatch, options: ComparisonOptions) -> bool:
    """Return whether the entry is imported as a shadow. Only a handover ends a shadow."""
    if options.shadow:
        return True
    was_shadow = matched.job is not None and is_shadow(matched.job.target)
    return was_shadow and not options.take_over and "target" not in options.overwrite


def _as_shadow(matched: EntryMatch) -> EntryMatch:
    job = matched.job
    may_be_shadow = job is None or is_left_to_source(job)
    if not matched.entry.values or matched.entry.has_only_edits or not may_be_shadow:
        return matched
    target = f"{PREFIX}{matched.entry.values['target']}"
    return replace(
        matched, entry=replace(matched.entry, values={**matched.entry.values, "target": target})
    )


def _plan_safely(matched: EntryMatch, namespace: str, options: ComparisonOptions) -> EntryPlan:
    """Compare one entry. Refuse it if its values raise any error except a database error."""
    unchanged = EntryPlan(
        ImportOutcome.SAME,
        matched.entry,
        matched.entry.namespace or namespace,
        existing=matched.job,
        other=matched.name_owner or matched.duplicate,
    )
    try:
        return _plan(matched, unchanged, options)
    except DatabaseError:
        raise
    except Exception as error:
        return replace(
            unchanged, outcome=ImportOutcome.REFUSED, reasons=(unexpected_error_text(error),)
        )


def _plan(matched: EntryMatch, unchanged: EntryPlan, options: ComparisonOptions) -> EntryPlan:
    entry, before = matched.entry, matched.job
    if entry.has_passed and _has_finished(before):
        return replace(unchanged, outcome=ImportOutcome.OMITTED, reasons=(FINISHED_HERE,))
    if entry.refused:
        return replace(unchanged, outcome=ImportOutcome.REFUSED, reasons=(entry.refused,))
    if entry.omitted:
        return replace(unchanged, outcome=ImportOutcome.OMITTED, reasons=(entry.omitted,))
    if entry.has_only_edits:
        return _plan_edits(before, unchanged, options)
    if matched.name_owner is not None:
        return _conflict_with(matched.name_owner, unchanged, options)
    if before is None:
        if matched.deletion is not None and not matches_name(unchanged, options.restore):
            return replace(unchanged, outcome=ImportOutcome.DELETED, reasons=(DELETED_HERE,))
        if (other := matched.duplicate) is not None:
            reason = OTHER_CRONTAB.format(name=str(other), source=other.import_source)
            return replace(unchanged, outcome=ImportOutcome.CONFLICT, reasons=(reason,))
        return _plan_creation(matched, unchanged, options)
    if not options.source or before.declared is not None:
        return _plan_replacement(before, unchanged, options)
    if not before.import_source:
        return _plan_adoption(matched, before, unchanged, options)
    return plan_merge(matched, before, unchanged, options)


def _has_finished(job: Job | None) -> bool:
    """Return whether the job, and not the source, did the work."""
    return job is not None and job.is_finished and not is_shadow(job.target)


def matches_name(plan: EntryPlan, patterns: Iterable[str]) -> bool:
    """Return whether the name of the plan's job, with or without namespace, matches a pattern.

    A job that is about to be renamed also matches by its current name.
    """
    names = {plan.name, f"{plan.namespace}/{plan.name}"}
    if plan.existing is not None:
        names |= {plan.existing.name, f"{plan.existing.namespace}/{plan.existing.name}"}
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _conflict_with(other: Job, unchanged: EntryPlan, options: ComparisonOptions) -> EntryPlan:
    """Compare with a job of the same name from another source, which is never changed."""
    changes = differing_values(
        other, with_values(other, unchanged.entry.values, options), unchanged.entry.values
    )
    if not changes:
        return unchanged
    reason = OTHER_SOURCE.format(other.import_source)
    return replace(unchanged, outcome=ImportOutcome.CONFLICT, reasons=(reason,), changes=changes)


def _plan_replacement(before: Job, unchanged: EntryPlan, options: ComparisonOptions) -> EntryPlan:
    """Take all values of the source.

    If code declares the job, only edits that the export has are applied.
    """
    values = dict(unchanged.entry.values)
    if options.disabled or before.enabled == values.get("enabled"):
        # The person who paused a job decides on the reason and the end of the pause.
        for name in ("pause_reason", "paused_until"):
            values.pop(name, None)
    if options.disabled:
        values.pop("enabled", None)
    job = with_values(before, values, options)
    values |= pause_of_finished(before, job, unchanged.entry.values, options)
    job = with_values(before, values, options)
    changes = differing_values(before, job, values)
    if not changes:
        return unchanged
    if before.declared is not None and not unchanged.entry.has_only_edits:
        return replace(
            unchanged, outcome=ImportOutcome.CONFLICT, reasons=(DECLARED,), changes=changes
        )
    return validated(replace(unchanged, outcome=ImportOutcome.CHANGE, changes=changes, job=job))


def _plan_edits(before: Job | None, unchanged: EntryPlan, options: ComparisonOptions) -> EntryPlan:
    """Repeat the edits of a declared job."""
    if before is not None and before.declared is not None:
        return _plan_replacement(before, unchanged, options)
    fields = ", ".join(sorted(unchanged.entry.values))
    reason = DECLARED_ELSEWHERE if before else DECLARED_LATER.format(fields=fields)
    return replace(unchanged, outcome=ImportOutcome.CONFLICT, reasons=(reason,))


def _plan_creation(
    matched: EntryMatch, unchanged: EntryPlan, options: ComparisonOptions
) -> EntryPlan:
    entry = matched.entry
    values = dict(entry.values)
    if entry.next_due is not None:
        values["starts_at"] = entry.next_due
    job = with_values(Job(namespace=unchanged.namespace, name=entry.name), values, options)
    waits = options.disabled or options.new_jobs_wait
    if waits and job.enabled:
        reason = ARRIVED_PAUSED if options.disabled else WAITS_FOR_HANDOVER
        job.enabled, job.pause_reason = False, reason
    written = portable_document(job)
    names = [*values, *(["enabled"] if waits else [])]
    if options.source:
        store_origin(job, matched, options, {name: written[name] for name in {*names, *PAUSE[:2]}})
    changes = {name: (None, written[name]) for name in names}
    since = entry.last_run if options.take_over and job.enabled else None
    return validated(
        replace(
            unchanged,
            outcome=ImportOutcome.CREATE,
            changes=changes,
            job=job,
            ran_until=since,
            deletion=matched.deletion,
        )
    )


def _plan_adoption(
    matched: EntryMatch, before: Job, unchanged: EntryPlan, options: ComparisonOptions
) -> EntryPlan:
    """Merge with a job that a person created, if ``overwrite`` names all fields that differ."""
    values = {name: value for name, value in unchanged.entry.values.items() if name not in PAUSE}
    if not values.get("description"):
        values.pop("description", None)  # a source without descriptions doesn't remove the job's
    differing = differing_values(before, with_values(before, values, options), values)
    if kept := {name: both for name, both in differing.items() if name not in options.overwrite}:
        return replace(
            unchanged, outcome=ImportOutcome.CONFLICT, reasons=(NOT_IMPORTED,), changes=kept
        )
    return plan_merge(matched, before, unchanged, options)
