"""Compare code and database by merging the row, the code and the previous declaration.

Nothing is written.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet

from django_dcron import targets
from django_dcron.db import clock
from django_dcron.db.routing import alias_for
from django_dcron.jobs.pausing import LONGEST_STORED_REASON
from django_dcron.jobs.placement import (
    TIMING,
    is_exhausted,
    runs_without_schedule,
    timetable_of,
)
from django_dcron.jobs.representation import JOB_FIELDS
from django_dcron.jobs.sync.changes import ChangeKind, SyncChange, kept_text, messages_of
from django_dcron.jobs.sync.edits import is_paused_by_person
from django_dcron.jobs.sync.predecessors import refuse_unknown_predecessors
from django_dcron.jobs.sync.stored import (
    from_stored,
    stored_declaration,
    stored_default,
    to_stored,
    value_in_declaration,
)
from django_dcron.models import Job
from django_dcron.models.job_states import (
    DECLARED_DISABLED,
    EXHAUSTED,
    NO_LONGER_DECLARED,
)
from django_dcron.targets.shadow import PREFIX, is_shadow
from django_dcron.utils.bounded_text import with_ellipsis
from django_dcron.utils.control_characters import escape_line_breaks
from django_dcron.utils.json_values import json_identity, same_json

WORKING_DAYS_CAUTION = (
    "caution: the calendar excludes no whole dates, so every date counts as a working day"
)


def plan(only: tuple[str, str] | None = None) -> list[SyncChange]:
    """Return the differences between code and database, in the order of declaration.

    ``only`` restricts the comparison to the job with this namespace and name. Nothing is written.
    """
    problem = targets.discovery_problem()  # first, as it imports task modules, which declare jobs
    declared = {
        declaration.key: declaration
        for declaration in targets.declarations()
        if only in (None, declaration.key)
    }
    rows = {(job.namespace, job.name): job for job in _rows(list(declared), only)}
    new = {declaration.target for key, declaration in declared.items() if key not in rows}
    imported = _imported_jobs(Job.objects.using(alias_for(Job)), new)
    changes = refuse_unknown_predecessors(
        [
            change
            for key, declaration in declared.items()
            for change in _compare(declaration, rows.get(key), imported)
        ]
    )
    if problem:
        why = (f"some can't be imported: {problem}",)
        return changes if only else [*changes, SyncChange(ChangeKind.INVALID, "task modules", why)]
    gone = [
        job
        for key, job in rows.items()
        if key not in declared and job.declared is not None and _is_or_becomes_enabled(job)
    ]
    return [*changes, *(_disable_change(job) for job in gone)]


def is_still_declared(job: Job) -> bool:
    """Return whether this process's code declares the job.

    If the job is deleted, the next sync creates it again. A job that was declared counts as
    declared if task modules can't be imported.
    """
    if job.declared is None:
        return False
    problem = targets.discovery_problem()  # first, as it imports task modules, which declare jobs
    declared = {declaration.key for declaration in targets.declarations()}
    return bool(problem) or (job.namespace, job.name) in declared


def is_no_longer_declared(job: Job) -> bool:
    """Return whether code declared the job once, and this process's code no longer does."""
    return job.declared is not None and not is_still_declared(job)


def _rows(declared: list[tuple[str, str]], only: tuple[str, str] | None) -> Iterable[Job]:
    """Return all jobs that were or are declared, and other jobs with the same names."""
    rows = Job.objects.using(alias_for(Job))
    if only:
        return rows.filter(namespace=only[0], name=only[1])
    return rows.filter(Q(declared__isnull=False) | Q(name__in={name for _, name in declared}))


def enabled_twins(jobs: Iterable[Job], rows: QuerySet[Job]) -> dict[int, Job]:
    """Return an enabled job that does the same work, by the key of each job that has one.

    The twin of a declared job is an imported one, and the twin of an imported job a declared one.
    Twins are sought among ``rows``, and have only the fields of their work and origin.
    """
    jobs = list(jobs)
    declared = [job for job in jobs if job.declared is not None and not is_shadow(job.target)]
    imported = [job for job in jobs if job.import_source]
    enabled = rows.filter(enabled=True)
    targets_of_imported = {job.target.removeprefix(PREFIX) for job in imported}
    candidates = (
        (declared, _imported_jobs(enabled, {job.target for job in declared})),
        (imported, _by_work(enabled.filter(declared__isnull=False), targets_of_imported)),
    )
    return {
        job.pk: twins[work]
        for group, twins in candidates
        if twins
        for job in group
        if (work := _work_of(job)) in twins
    }


def _imported_jobs(rows: QuerySet[Job], executed: set[str]) -> dict[Hashable, Job]:
    """Return the imported jobs, and shadows of them, with these targets. See ``_by_work``."""
    imported = rows.exclude(import_source="")
    return _by_work(imported, executed | {f"{PREFIX}{target}" for target in executed})


def _by_work(rows: QuerySet[Job], wanted: Collection[str]) -> dict[Hashable, Job]:
    """Return the oldest job with these targets for each work: the target and its arguments."""
    found = rows.filter(target__in=wanted).order_by("-pk")
    fields = ("namespace", "name", "target", "args", "kwargs", "import_source")
    return {_work_of(job): job for job in found.only(*fields)}


def _work_of(job: Job) -> Hashable:
    return _work(job.target.removeprefix(PREFIX), job.args, job.kwargs)


def _work(target: str, args: Any, kwargs: Any) -> Hashable:
    return target, json_identity(args), json_identity(kwargs)


def _compare(
    declaration: targets.Declaration, job: Job | None, imported: Mapping[Hashable, Job]
) -> list[SyncChange]:
    """Compare a declaration with its job. ``imported``: see ``_imported_jobs``."""
    try:
        wanted = stored_declaration(declaration)
        if job is None:
            arguments = (
                value_in_declaration(JOB_FIELDS[name], wanted) for name in ("args", "kwargs")
            )
            same = imported.get(_work(wanted["target"], *arguments))
            return [_creation(declaration, wanted, same)]
        if job.declared is not None:
            return _merge(declaration, job, wanted)
    except ValidationError as error:
        return [
            SyncChange(ChangeKind.INVALID, str(declaration), messages_of(error), declaration.key)
        ]
    why = (
        f"the job with this name was imported from {job.import_source}; to declare it in code "
        f"instead, delete the job and sync again; if {job.import_source} still has its entry, "
        "remove it there first"
        if job.import_source
        else "a job with this name was created by a person; delete or rename one of the two"
    )
    return [SyncChange(ChangeKind.CONFLICT, str(declaration), (why,), declaration.key)]


def _creation(
    declaration: targets.Declaration, wanted: dict[str, Any], imported: Job | None
) -> SyncChange:
    """Return the creation of the job. It is paused if ``imported`` has its target and arguments."""
    namespace, name = declaration.key
    values = {"declared": wanted, **from_stored(wanted)}
    how_to_resume = ""
    if values.get("enabled") is False:
        values["pause_reason"] = DECLARED_DISABLED
    elif imported is not None:
        reason = (
            f"the job {str(imported)!r}, imported from {imported.import_source}, has the same "
            "target and arguments"
        )
        values |= {"enabled": False, "pause_reason": with_ellipsis(reason, LONGEST_STORED_REASON)}
        command = shlex.join(["manage.py", "dcron", "resume", str(declaration)])
        how_to_resume = f"; to run both: {command}"
    elif is_exhausted(Job(namespace=namespace, name=name, **values), clock.now()):
        values |= {"enabled": False, "pause_reason": EXHAUSTED}
    # The write checks the constraint, because another node may be creating this job right now.
    job = Job(namespace=namespace, name=name, **values)
    job.full_clean(validate_constraints=False)
    details = (
        f"{escape_line_breaks(wanted['schedule'])} ({wanted['timezone']})",
        *(f"{each}{how_to_resume}" for each in _disabled_because(values)),
        *_cautions(job),
    )
    return SyncChange(ChangeKind.CREATE, str(declaration), details, declaration.key, values)


def _merge(declaration: targets.Declaration, job: Job, wanted: dict[str, Any]) -> list[SyncChange]:
    updates, kept = _merge_fields(job, wanted)
    retimed = bool(from_stored(updates).keys() & TIMING)
    if job.enabled and not retimed and is_exhausted(job, clock.now()):
        if not updates:
            return []
        why = "changes are postponed until a node has claimed the last occurrence, which has passed"
        return [SyncChange(ChangeKind.KEEP, str(job), (why,), declaration.key)]
    values: dict[str, Any] = {"declared": wanted, **from_stored(updates)}
    values |= _switch(job, wanted, values)
    changes = []
    switched_on = values.get("enabled") is True and not job.enabled
    loses_only_end = "paused_until" in values and "enabled" not in values
    if updates or switched_on or loses_only_end or wanted != job.declared:
        candidate = copy.copy(job)
        assign(candidate, values)
        candidate.full_clean(validate_constraints=False)  # its names don't change
        details = []
        for name in [*updates, *(["paused_until"] if loses_only_end else [])]:
            field = JOB_FIELDS[name]
            old, new = field.change_texts(field.json_of(job), field.json_of(candidate))
            details.append(f"{name}: {old} -> {new}")
        details += _disabled_because(values)
        if retimed:
            details += _cautions(candidate)
        kind = ChangeKind.ENABLE if switched_on else ChangeKind.UPDATE
        if kind is ChangeKind.UPDATE and not details:
            details.append("only its stored declaration; the job keeps its values")
        change = SyncChange(
            kind, str(job), tuple(details), declaration.key, values, job.pk, job.version
        )
        changes.append(change)
    if kept:
        details = [
            kept_text(job, JOB_FIELDS[name], value, "code" if name in wanted else "default")
            for name, value in kept.items()
        ]
        changes.append(SyncChange(ChangeKind.KEEP, str(job), tuple(details), declaration.key))
    return changes


def _merge_fields(job: Job, wanted: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields to write, and those that a person changed, each with its declared value.

    If the present or the previous declaration omits a field, the field's default counts.
    """
    last: dict[str, Any] = job.declared or {}
    updates, kept = {}, {}
    for name in {**last, **wanted}:
        field = JOB_FIELDS[name]
        declared = wanted.get(name, stored_default(field))
        declared_before = value_in_declaration(field, last)
        current = to_stored(field.value_of(job))
        if name == "enabled" and _is_undeclared_or_finished(job):
            current = declared_before
        is_edited = not same_json(current, declared_before)
        if name == "enabled" and is_paused_by_person(job):
            is_edited = True  # even if the previous declaration disabled the job, too
        if not same_json(current, declared):
            if is_edited:
                kept[name] = declared
            else:
                updates[name] = declared
    return updates, kept


def _switch(job: Job, wanted: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the new values of ``enabled`` and its reason, or nothing if they stay.

    A person's pause stays, but loses its end if code disables the job. A pause by a sync or by the
    end of a schedule ends when its cause is gone. Until then, a pause by a sync has no end.
    """
    is_declared_again = not job.enabled and job.pause_reason == NO_LONGER_DECLARED
    was_finished = job.is_finished
    retimed = bool(values.keys() & TIMING)
    was_enabled_in_code = (job.declared or {}).get("enabled", True)
    is_disabled_now = wanted.get("enabled") is False and was_enabled_in_code
    ends_automatically = job.paused_until is not None
    if ends_automatically and is_disabled_now and is_paused_by_person(job):
        return {"paused_until": None}
    if (
        "enabled" in values
        or is_declared_again
        or (was_finished and retimed)
        or (ends_automatically and is_disabled_now)
    ):
        enabled = bool(values.get("enabled", wanted.get("enabled", True)))
        reason = "" if enabled else DECLARED_DISABLED
    else:
        enabled, reason = job.enabled, job.pause_reason
    candidate = copy.copy(job)
    assign(candidate, {**values, "enabled": enabled})
    if enabled and is_exhausted(candidate, clock.now()):
        enabled, reason = False, EXHAUSTED
    same = (enabled, reason) == (job.enabled, job.pause_reason)
    if same and "enabled" not in values:
        return {"paused_until": None} if ends_automatically and job.is_disabled_by_sync else {}
    return {"enabled": enabled, "pause_reason": reason, "paused_until": None}


def _is_or_becomes_enabled(job: Job) -> bool:
    """Return whether the job is enabled, or paused with an end."""
    return job.enabled or job.paused_until is not None


def _is_undeclared_or_finished(job: Job) -> bool:
    return not job.enabled and job.pause_reason in (NO_LONGER_DECLARED, EXHAUSTED)


def _disable_change(job: Job) -> SyncChange:
    """Return the pause of a job that code no longer declares. A pause of a person loses its end."""
    values: dict[str, Any] = {"enabled": False, "pause_reason": NO_LONGER_DECLARED}
    detail = NO_LONGER_DECLARED
    if not job.enabled:
        values = {"paused_until": None}
        end = JOB_FIELDS["paused_until"]
        removed = end.text(end.json_of(job))
        detail += f"; already paused, and the end of the pause is removed ({removed})"
    key = (job.namespace, job.name)
    return SyncChange(ChangeKind.DISABLE, str(job), (detail,), key, values, job.pk, job.version)


def _disabled_because(values: Mapping[str, Any]) -> list[str]:
    return [f"disabled: {values['pause_reason']}"] if values.get("enabled") is False else []


def _cautions(job: Job) -> list[str]:
    """Return what a person should check, although it isn't an error."""
    timed = not runs_without_schedule(job)
    counts_every_date = timed and timetable_of(job).schedule.counts_every_date
    return [WORKING_DAYS_CAUTION] if counts_every_date else []


def assign(job: Job, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(job, name, value)
