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

from django_dcron.contrib.importers.found import Found, unforeseen
from django_dcron.contrib.importers.origins import (
    Match,
    jobs_of,
    match,
    stored_key,
    stored_source,
)
from django_dcron.jobs.portable import check_rules
from django_dcron.jobs.representation import JOB_FIELDS, definition_of
from django_dcron.jobs.saving import EXHAUSTED
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


class MoveKind(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    SAME = "same"
    KEPT = "kept"
    LEFT = "left out"
    DELETED = "deleted here"
    CONFLICT = "conflict"
    REFUSED = "refused"


PROBLEMS = frozenset({MoveKind.CONFLICT, MoveKind.REFUSED})
NOT_HANDED_OVER = PROBLEMS | {MoveKind.LEFT, MoveKind.DELETED}
DIFFERENCES = frozenset({MoveKind.CREATE, MoveKind.CHANGE})
Changes = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Move:
    """The action for one entry, or why there is none."""

    kind: MoveKind
    found: Found
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
    """Up to when the source ran the entry. The job continues from there. None: from now."""

    @property
    def name(self) -> str:
        return self.found.name

    def __str__(self) -> str:
        return self.name if self.namespace == "default" else f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Options:
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


def compare(
    found: Iterable[Found],
    namespace: str = "default",
    *,
    source: str = "",
    disabled: bool = False,
    shadow: bool = False,
    overwrite: Collection[str] = (),
    restore: Collection[str] = (),
    calendars: Mapping[str, Calendar] = MappingProxyType({}),
    take_over: bool = False,
) -> list[Move]:
    """Compare jobs, in the order of ``found``. ``Options`` describes the arguments.

    ``source``: the source's name, which the jobs store. Empty for an export.
    """
    options = Options(source, disabled, shadow, overwrite, restore, calendars, take_over)
    return [
        _move_by_itself(
            _as_shadow(each) if _stays_shadow(each, options) else each, namespace, options
        )
        for each in match(found, namespace, source)
    ]


def gone_from(source: str, moves: Iterable[Move]) -> list[Job]:
    """Return the jobs of the source that no entry matches: deleted there."""
    matched = {job.pk for move in moves for job in (move.existing, move.job) if job is not None}
    return [job for job in jobs_of(source) if job.pk not in matched]


def shadows_left(moves: Iterable[Move]) -> list[Job]:
    """Return the matched shadows that a handover doesn't turn into jobs."""
    return [
        move.existing
        for move in moves
        if move.existing is not None
        and move.existing.target.startswith(PREFIX)
        and (move.kind in NOT_HANDED_OVER or "target" in move.kept)
    ]


def awaiting_handover(moves: Iterable[Move]) -> list[Job]:
    """Return the jobs that a handover turns from a shadow into a job, or enables."""
    moves = list(moves)
    left = {job.pk for job in shadows_left(moves)}
    return [
        move.existing
        for move in moves
        if move.existing is not None
        and move.existing.pk not in left
        and move.kind not in NOT_HANDED_OVER
        and (move.existing.target.startswith(PREFIX) or _awaits_handover(move.existing))
    ]


def _awaits_handover(job: Job) -> bool:
    return not job.enabled and job.pause_reason in (ARRIVED_PAUSED, HANDED_BACK)


def _stays_shadow(each: Match, options: Options) -> bool:
    """Return whether the entry is imported as a shadow. Only a handover ends a shadow."""
    if options.shadow:
        return True
    is_shadow = each.job is not None and each.job.target.startswith(PREFIX)
    return is_shadow and not options.take_over and "target" not in options.overwrite


def _as_shadow(each: Match) -> Match:
    if not each.found.values or not (each.job is None or each.job.target.startswith(PREFIX)):
        return each
    target = f"{PREFIX}{each.found.values['target']}"
    return replace(each, found=replace(each.found, values={**each.found.values, "target": target}))


def _move_by_itself(each: Match, namespace: str, options: Options) -> Move:
    """Compare one entry. Refuse it if its values raise any error except one of the database."""
    plain = Move(MoveKind.SAME, each.found, each.found.namespace or namespace, existing=each.job)
    try:
        return _move(each, plain, options)
    except DatabaseError:
        raise
    except Exception as error:
        return replace(plain, kind=MoveKind.REFUSED, reasons=(unforeseen(error),))


def _move(each: Match, plain: Move, options: Options) -> Move:
    found, before = each.found, each.job
    if found.refused:
        return replace(plain, kind=MoveKind.REFUSED, reasons=(found.refused,))
    if found.left:
        return replace(plain, kind=MoveKind.LEFT, reasons=(found.left,))
    if each.taken_by is not None:
        return _beside_another(each.taken_by, plain, options)
    if before is None:
        if each.deleted and not _matches(plain, options.restore):
            return replace(plain, kind=MoveKind.DELETED, reasons=(DELETED_HERE,))
        return _creation(each, plain, options)
    if not options.source or before.declared is not None:
        return _replacement(before, plain, options)
    if not before.import_source:
        return _adoption(each, before, plain, options)
    return _merge(each, before, plain, options)


def _matches(move: Move, patterns: Iterable[str]) -> bool:
    """Return whether the name of the move's job, with or without namespace, matches a pattern."""
    names = {move.name, f"{move.namespace}/{move.name}"}
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _beside_another(other: Job, plain: Move, options: Options) -> Move:
    """Compare with a job of the same name from another source, which is never changed."""
    changes = _differences(other, _with(other, plain.found.values, options), plain.found.values)
    if not changes:
        return plain
    reason = OTHER_SOURCE.format(other.import_source)
    return replace(plain, kind=MoveKind.CONFLICT, reasons=(reason,), changes=changes)


def _replacement(before: Job, plain: Move, options: Options) -> Move:
    """Take all values of the source, unless code declares the job."""
    values = dict(plain.found.values)
    if options.disabled or before.enabled == values.get("enabled"):
        # Why and until when a job is paused is up to the person who paused it.
        for name in ("pause_reason", "paused_until"):
            values.pop(name, None)
    if options.disabled:
        values.pop("enabled", None)
    job = _with(before, values, options)
    changes = _differences(before, job, values)
    if not changes:
        return plain
    if before.declared is not None:
        return replace(plain, kind=MoveKind.CONFLICT, reasons=(DECLARED,), changes=changes)
    return _check_move(replace(plain, kind=MoveKind.CHANGE, changes=changes, job=job))


def _creation(each: Match, plain: Move, options: Options) -> Move:
    found = each.found
    values = dict(found.values)
    if found.next_due is not None:
        values["starts_at"] = found.next_due
    job = _with(Job(namespace=plain.namespace, name=found.name), values, options)
    if options.disabled and job.enabled:
        job.enabled, job.pause_reason = False, ARRIVED_PAUSED
    written = definition_of(job)
    names = [*values, *(["enabled"] if options.disabled else [])]
    if options.source:
        _remember(job, each, options, {name: written[name] for name in {*names, *PAUSE[:2]}})
    changes = {name: (None, written[name]) for name in names}
    since = found.last_run if options.take_over and job.enabled else None
    return _check_move(
        replace(plain, kind=MoveKind.CREATE, changes=changes, job=job, ran_until=since)
    )


def _adoption(each: Match, before: Job, plain: Move, options: Options) -> Move:
    """Compare with a job that a person created. If it differs, only ``overwrite`` changes it."""
    values = {name: value for name, value in plain.found.values.items() if name not in PAUSE}
    wanted = _with(before, values, options)
    differing = _differences(before, wanted, values)
    if kept := {name: both for name, both in differing.items() if name not in options.overwrite}:
        return replace(plain, kind=MoveKind.CONFLICT, reasons=(NOT_IMPORTED,), changes=kept)
    is_to_be = definition_of(wanted)
    base = {name: is_to_be[name] for name in (*values, *PAUSE[:2])}
    _remember(wanted, each, options, base)
    kind = MoveKind.CHANGE if differing else MoveKind.SAME
    return _check_move(replace(plain, kind=kind, changes=differing, job=wanted))


def _merge(each: Match, before: Job, plain: Move, options: Options) -> Move:
    base: dict[str, Any] = (before.imported or {}).get("values", {})
    pause = {name: value for name, value in plain.found.values.items() if name in PAUSE}
    values = {name: value for name, value in plain.found.values.items() if name not in PAUSE}
    updates, kept = _merged(before, values, base, options)
    wanted = definition_of(_with(before, values, options))
    new_base = base | {name: wanted[name] for name in values}
    switched = _switch(before, pause, base, {*updates} & TIMING, options)
    if switched.kept and switched.values:
        kept |= _differences(before, _with(before, switched.values, options), ["enabled"])
    elif switched.values:
        updates |= switched.values
    if not options.disabled and not switched.kept:
        new_base |= {name: pause.get(name, base.get(name, "")) for name in PAUSE[:2]}
    if plain.found.next_due is not None and _takes_the_phase(before, updates):
        due = {"starts_at": plain.found.next_due}
        taken, held = _merged(before, due, base, options)
        updates, kept = updates | taken, kept | held
        new_base |= {"starts_at": definition_of(_with(before, due, options))["starts_at"]}
    job = _with(before, updates, options)
    changes = _differences(before, job, updates)
    if (renamed := _rename(each, before)) is not None:
        if "name" in options.overwrite:
            job.name, changes["name"] = renamed, (before.name, renamed)
            plain = replace(plain, found=replace(plain.found, name=renamed))
        else:
            kept["name"] = (before.name, renamed)
    _remember(job, each, options, new_base)
    kind = MoveKind.CHANGE if changes else MoveKind.KEPT if kept else MoveKind.SAME
    move = replace(plain, kind=kind, changes=changes, kept=kept)
    if options.take_over and _takes_over(before, updates):
        move = replace(move, ran_until=plain.found.last_run)
    if not changes and _origin_of(job) == _origin_of(before):
        return move
    return _check_move(replace(move, job=job))


def _merged(
    before: Job, values: Mapping[str, Any], base: Mapping[str, Any], options: Options
) -> tuple[dict[str, Any], dict[str, tuple[Any, Any]]]:
    """Return the values to write, and the fields that a person changed."""
    updates, kept = {}, {}
    for name, both in _differences(before, _with(before, values, options), values).items():
        if name in options.overwrite or (name in base and base[name] == both[0]):
            updates[name] = values[name]
        else:
            kept[name] = both
    return updates, kept


@dataclass(frozen=True, slots=True)
class _Switched:
    values: Mapping[str, Any] = field(default_factory=dict)
    kept: bool = False
    """Whether a person's decision stays instead of ``values``."""


def _switch(
    before: Job,
    pause: Mapping[str, Any],
    base: Mapping[str, Any],
    retimed: Collection[str],
    options: Options,
) -> _Switched:
    """Return the new values of ``enabled`` and its reason."""
    wanted = pause.get("enabled", before.enabled)
    if options.disabled or wanted == before.enabled:
        return _Switched()
    overwritten = "enabled" in options.overwrite
    if _awaits_handover(before) and not (options.take_over or overwritten):
        return _Switched()
    values = {"enabled": wanted, "pause_reason": pause.get("pause_reason", "")}
    values |= {"paused_until": None}
    if overwritten:
        return _Switched(values)
    if before.enabled:
        by_the_source = base.get("enabled", True)
    else:
        reasons = {EXHAUSTED} if retimed else set()
        if options.take_over:
            reasons |= {ARRIVED_PAUSED, HANDED_BACK}
        if not base.get("enabled", True):
            reasons |= {str(base.get("pause_reason"))} - {""}
        by_the_source = before.pause_reason in reasons
        if before.pause_reason == EXHAUSTED and not retimed:
            return _Switched()
    return _Switched(values, kept=not by_the_source)


def _takes_the_phase(before: Job, updates: Mapping[str, Any]) -> bool:
    return "schedule" in updates or _takes_over(before, updates)


def _takes_over(before: Job, updates: Mapping[str, Any]) -> bool:
    """Return whether the job starts to do the work."""
    turned = before.target.startswith(PREFIX) and "target" in updates
    return turned or updates.get("enabled") is True


def _rename(each: Match, before: Job) -> str | None:
    """Return the name that the source has for the job, if it was renamed here or there."""
    known = before.imported or {}
    renamed_here = before.name != known.get("as", before.name)
    renamed_there = each.source_name != known.get("name", each.source_name)
    return (
        each.proposed
        if (renamed_here or renamed_there) and (each.proposed != before.name)
        else None
    )


def _remember(job: Job, each: Match, options: Options, base: Mapping[str, Any]) -> None:
    """Store the origin and the values of the source."""
    job.import_source, job.import_key = stored_source(options.source), stored_key(each.found)
    name = job.name
    if each.job is not None and each.job.name == name:  # a person may have renamed it
        name = (each.job.imported or {}).get("as", name)
    job.imported = {"name": each.source_name, "as": name, "values": dict(sorted(base.items()))}


def _origin_of(job: Job) -> tuple[Any, ...]:
    return job.import_source, job.import_key, job.imported


def _with(before: Job, values: Mapping[str, Any], options: Options) -> Job:
    """Return a copy of the job with the values."""
    job = copy.copy(before)
    for name, value in values.items():
        setattr(job, JOB_FIELDS[name].attname, value)
    if (calendar := options.calendars.get(job.calendar_id or "")) is not None:
        job.calendar = calendar
    return job


def _differences(before: Job, after: Job, names: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    was, is_to_be = definition_of(before), definition_of(after)
    both = {name: (was[name], is_to_be[name]) for name in names}
    return {name: pair for name, pair in both.items() if not same_json(*pair)}


def _check_move(move: Move) -> Move:
    """Refuse the job if its fields are invalid. Whether its name is free is already known."""
    assert move.job is not None  # noqa: S101 (for the type checker)
    try:
        check_rules(move.job)
    except ValidationError as error:
        return replace(
            move, kind=MoveKind.REFUSED, reasons=messages_of(error), changes={}, kept={}, job=None
        )
    return move
