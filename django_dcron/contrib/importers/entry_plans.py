"""What an import does with each entry of a source, and helpers to change and compare jobs."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.core.exceptions import ValidationError

from django_dcron.contrib.importers.origins import (
    EntryMatch,
    stored_key,
    stored_source,
)
from django_dcron.contrib.importers.source_contents import SourceEntry
from django_dcron.jobs.placement import is_retimed
from django_dcron.jobs.portable import check_rules
from django_dcron.jobs.representation import JOB_FIELDS, portable_document
from django_dcron.jobs.sync.changes import messages_of
from django_dcron.models import Calendar, Job
from django_dcron.models.job_states import ARRIVED_PAUSED, EXHAUSTED
from django_dcron.policies.job_labels import label_of
from django_dcron.utils.json_values import same_json

PAUSE = ("enabled", "pause_reason", "paused_until")

WORK = frozenset({"target", "args", "kwargs"})
"""The fields that decide what a job executes."""


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
    """The job that the entry matches, as read, or one that took its name during the import.

    The latter does the entry's work.
    """
    other: Job | None = field(default=None, repr=False)
    """The job from another source that has the entry's name or does the same work."""
    ran_until: datetime | None = None
    """The time until which the source ran the entry. The job continues from there. None: now."""
    deletion: int | None = None
    """The key of the ``DeletedImport`` of a job that is created again."""
    is_write_refused: bool = False
    """Whether the entry could be imported when it was compared, but not when it was written."""

    @property
    def name(self) -> str:
        return self.entry.name

    def __str__(self) -> str:
        return label_of(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """How to compare."""

    source: str = ""
    """The source's name, which the jobs store. Empty for an export."""
    disabled: bool = False
    """Pause new jobs, and don't compare whether existing jobs are enabled."""
    shadow: bool = False
    """Create new jobs as shadows."""
    overwrite: Collection[str] = ()
    """The fields that get the source's values even if a person changed them."""
    restore: Collection[str] = ()
    """Patterns of the names of deleted jobs to create again, ``*`` for all."""
    calendars: Mapping[str, Calendar] = field(default_factory=dict)
    """The imported calendars to save, by name."""
    take_over: bool = False
    """Turn shadows into jobs, and enable jobs that were imported paused or handed back.

    The jobs that start now continue from the source's last run.
    """
    new_jobs_wait: bool = False
    """Pause new jobs until a handover, because the source still runs other jobs' work."""


DEFAULT_OPTIONS = ComparisonOptions()


def working_job(plan: EntryPlan) -> Job | None:
    """Return the job that does the entry's work after the import, if it is enabled.

    A job that wasn't imported from the source only has the entry's name. It does the entry's work
    unless its target or arguments differ.
    """
    if plan.outcome not in PROBLEMS and plan.job:
        return plan.job
    existing = plan.existing
    if existing is not None and existing.import_source:
        return existing
    if plan.outcome in (ImportOutcome.OMITTED, ImportOutcome.DELETED):
        return None
    if plan.outcome is ImportOutcome.REFUSED:
        return existing
    return None if WORK & {*plan.changes} else existing or plan.other


def has_work_of(plan: EntryPlan, job: Job) -> bool:
    """Return whether the job executes what the job of the plan would execute."""
    return plan.job is not None and not differing_values(job, plan.job, WORK)


def store_origin(
    job: Job, matched: EntryMatch, options: ComparisonOptions, base: Mapping[str, Any]
) -> None:
    """Store the origin and the values of the source.

    ``as`` is the name that the job would have without a rename here, and without a rename there
    that the import hasn't followed.
    """
    job.import_source, job.import_key = stored_source(options.source), stored_key(matched.entry)
    name = job.name
    if matched.job is not None and matched.job.name == name:  # a person may have renamed it
        known = matched.job.imported or {}
        renamed_there = matched.source_name != known.get("name", matched.source_name)
        name = matched.proposed if renamed_there else known.get("as", name)
    job.imported = {"name": matched.source_name, "as": name, "values": dict(sorted(base.items()))}


def with_values(before: Job, values: Mapping[str, Any], options: ComparisonOptions) -> Job:
    """Return a copy of the job with the values."""
    job = copy.copy(before)
    for name, value in values.items():
        setattr(job, JOB_FIELDS[name].attname, value)
    if (calendar := options.calendars.get(job.calendar_id or "")) is not None:
        job.calendar = calendar
    return job


def pause_of_finished(
    before: Job, job: Job, values: Mapping[str, Any], options: ComparisonOptions
) -> dict[str, Any]:
    """Return the fields that pause a finished job whose timing the import changes.

    Otherwise, the save would start it, although the source has paused it (``values``) or
    ``options.disabled`` is set. Empty if the job may start, or if its timing stays.
    """
    is_paused_there = not values.get("enabled", True) and values.get("pause_reason") != EXHAUSTED
    if not (is_paused_there or options.disabled):
        return {}
    if not (before.is_finished and is_retimed(before, job)):
        return {}
    if is_paused_there:
        reason, until = values.get("pause_reason", ""), values.get("paused_until")
    else:
        reason, until = ARRIVED_PAUSED, None
    return {"enabled": False, "pause_reason": reason, "paused_until": until}


def differing_values(before: Job, after: Job, names: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    old_values, new_values = portable_document(before), portable_document(after)
    pairs = {name: (old_values[name], new_values[name]) for name in names}
    return {name: pair for name, pair in pairs.items() if not same_json(*pair)}


def validated(plan: EntryPlan) -> EntryPlan:
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
