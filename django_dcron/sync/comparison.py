"""Code against database: three states are merged, the row, the code, and what the code said last. Writes nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Q

from django_dcron import definition, targets
from django_dcron.domain import clock
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Job
from django_dcron.models.database import alias_for
from django_dcron.sync.changes import Change, ChangeKind, messages_of, shown
from django_dcron.sync.stored import decoded, encoded, field_of, wanted_by

NO_LONGER_DECLARED = "no longer declared in code"
DECLARED_DISABLED = "declared disabled in code"
TIMING = frozenset({"schedule", "timezone", "calendar_id", "calendar_policy", "starts_at", "ends_at"})


def plan(only: tuple[str, str] | None = None) -> list[Change]:
    """The differences between code and database, in the order of declaration; reads, and writes nothing.

    ``only``: the namespace and name of the one job to compare.
    """
    problem = targets.discovery_problem()  # first: it imports task modules, which may declare jobs
    declared = {said.key: said for said in targets.declarations() if only in (None, said.key)}
    rows = {(job.namespace, job.name): job for job in _rows(list(declared), only)}
    changes = [change for key, said in declared.items() for change in _compare(said, rows.get(key))]
    if problem:
        why = (f"could not all be imported: {problem}",)
        return changes if only else [*changes, Change(ChangeKind.INVALID, "task modules", why)]
    gone = [
        job
        for key, job in rows.items()
        if key not in declared and job.declared is not None and _runs_or_will(job)
    ]
    return [*changes, *(_disabling(job) for job in gone)]


def _rows(declared: list[tuple[str, str]], only: tuple[str, str] | None) -> Iterable[Job]:
    """The jobs that code has declared or now declares, people's of the same names among them."""
    rows = Job.objects.using(alias_for(Job))
    if only:
        return rows.filter(namespace=only[0], name=only[1])
    return rows.filter(Q(declared__isnull=False) | Q(name__in={name for _, name in declared}))


def _compare(declaration: targets.Declaration, job: Job | None) -> list[Change]:
    try:
        wanted = wanted_by(declaration)
        if job is None:
            return [_creation(declaration, wanted)]
        if job.declared is not None:
            return _merge(declaration, job, wanted)
    except ValidationError as error:
        return [Change(ChangeKind.INVALID, str(declaration), messages_of(error), declaration.key)]
    why = "a job of this name was made by people; delete or rename one of the two"
    return [Change(ChangeKind.CONFLICT, str(declaration), (why,), declaration.key)]


def _creation(declaration: targets.Declaration, wanted: dict[str, Any]) -> Change:
    namespace, name = declaration.key
    values = {"declared": wanted, **decoded(wanted)}
    if values.get("enabled") is False:
        values["pause_reason"] = DECLARED_DISABLED
    elif _is_exhausted(Job(namespace=namespace, name=name, **values)):
        values |= {"enabled": False, "pause_reason": definition.EXHAUSTED}
    # Whether the name is taken is asked when it is written: another node may be creating this job at this moment.
    Job(namespace=namespace, name=name, **values).full_clean(validate_constraints=False)
    details = (f"{wanted['schedule']} ({wanted['timezone']})", *_disabled_because(values))
    return Change(ChangeKind.CREATE, str(declaration), details, declaration.key, values)


def _merge(declaration: targets.Declaration, job: Job, wanted: dict[str, Any]) -> list[Change]:
    updates, kept = _merged(job, wanted)
    if job.enabled and _is_exhausted(job) and not decoded(updates).keys() & TIMING:
        if not updates:
            return []
        why = "all changes wait: its last occurrence has passed and is not claimed yet"
        return [Change(ChangeKind.KEEP, str(job), (why,), declaration.key)]
    values: dict[str, Any] = {"declared": wanted, **decoded(updates)}
    values |= _switch(job, wanted, values)
    changes = []
    switched_on = values.get("enabled") is True and not job.enabled
    if updates or switched_on or wanted != job.declared:
        candidate = copy.copy(job)
        assign(candidate, values)
        candidate.full_clean()
        details = [
            f"{name}: {shown(getattr(job, attname))} -> {shown(values[attname])}"
            for name, attname in ((name, field_of(name).attname) for name in updates)
        ]
        details += _disabled_because(values)
        kind = ChangeKind.ENABLE if switched_on else ChangeKind.UPDATE
        if kind is ChangeKind.UPDATE and not details:
            details.append("what the code says, for later comparisons")
        change = Change(kind, str(job), tuple(details), declaration.key, values, job.pk, job.version)
        changes.append(change)
    if kept:
        details = [
            f"{name}: {shown(getattr(job, field_of(name).attname))} (changed in the admin)" for name in kept
        ]
        changes.append(Change(ChangeKind.KEEP, str(job), tuple(details), declaration.key))
    return changes


def _merged(job: Job, wanted: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The fields to write, in stored form, and the names of those a person has changed.

    A field the code did not mention before, or does not any more, stands at the model's default there.
    """
    last: dict[str, Any] = job.declared or {}
    updates, kept = {}, []
    for name in {**last, **wanted}:
        default = encoded(field_of(name).get_default())
        before, now = last.get(name, default), wanted.get(name, default)
        current = encoded(getattr(job, field_of(name).attname))
        if name == "enabled" and _switched_off_by_us(job):
            current = before
        if current != now:
            if current == before:
                updates[name] = now
            else:
                kept.append(name)
    return updates, kept


def _switch(job: Job, wanted: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """What becomes of ``enabled`` and its reason. People's own pauses stay; those made here or at the end of a
    schedule are lifted when their cause is gone."""
    returning = not job.enabled and job.pause_reason == NO_LONGER_DECLARED
    resting = not job.enabled and job.pause_reason == definition.EXHAUSTED
    retimed = bool(values.keys() & TIMING)
    said_off = wanted.get("enabled") is False and (job.declared or {}).get("enabled", True)
    ends_by_itself = job.paused_until is not None
    if "enabled" in values or returning or (resting and retimed) or (ends_by_itself and said_off):
        enabled = bool(values.get("enabled", wanted.get("enabled", True)))
        reason = "" if enabled else DECLARED_DISABLED
    else:
        enabled, reason = job.enabled, job.pause_reason
    candidate = copy.copy(job)
    assign(candidate, {**values, "enabled": enabled})
    if enabled and _is_exhausted(candidate):
        enabled, reason = False, definition.EXHAUSTED
    same = (enabled, reason) == (job.enabled, job.pause_reason)
    if same and "enabled" not in values:
        return {}
    return {"enabled": enabled, "pause_reason": reason, "paused_until": None}


def _runs_or_will(job: Job) -> bool:
    """Nobody has to enable it; a pause may end by itself."""
    return job.enabled or job.paused_until is not None


def _switched_off_by_us(job: Job) -> bool:
    return not job.enabled and job.pause_reason in (NO_LONGER_DECLARED, definition.EXHAUSTED)


def _disabling(job: Job) -> Change:
    return Change(
        ChangeKind.DISABLE,
        str(job),
        (NO_LONGER_DECLARED,),
        (job.namespace, job.name),
        {"enabled": False, "pause_reason": NO_LONGER_DECLARED},
        job.pk,
        job.version,
    )


def _is_exhausted(job: Job) -> bool:
    if definition.runs_otherwise(job):
        return False
    try:
        return definition.timetable_of(job).first_after(clock.now()) is None
    except InvalidSchedule:
        return False  # validation will say so


def _disabled_because(values: Mapping[str, Any]) -> list[str]:
    return [f"disabled: {values['pause_reason']}"] if values.get("enabled") is False else []


def assign(job: Job, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(job, name, value)
