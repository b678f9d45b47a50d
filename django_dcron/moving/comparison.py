"""What a source has against the jobs that exist: field by field, as far as the source has these fields. Writes nothing."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DatabaseError

from django_dcron.models import Calendar, Job
from django_dcron.models.database import alias_for
from django_dcron.moving.found import Found, unforeseen
from django_dcron.moving.names import distinct
from django_dcron.sync.changes import messages_of
from django_dcron.sync.portable import attname_of, check_rules, definition_of
from django_dcron.targets.shadow import PREFIX

ARRIVED_PAUSED = "imported with --disabled"
DECLARED = "the code declares it with @cron: change or delete one of the two"
NAMES_AT_ONCE = 500


class MoveKind(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    SAME = "same"
    LEFT = "left out"
    CONFLICT = "conflict"
    REFUSED = "refused"


PROBLEMS = frozenset({MoveKind.CONFLICT, MoveKind.REFUSED})
DIFFERENCES = frozenset({MoveKind.CREATE, MoveKind.CHANGE})


@dataclass(frozen=True, slots=True)
class Move:
    """What is to be done with one entry, or why nothing is."""

    kind: MoveKind
    found: Found
    namespace: str
    reasons: tuple[str, ...] = ()
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Field, what it is, what it is to be; as in an export. Of a new job: all of the source's fields, from None."""
    job: Job | None = field(default=None, repr=False)
    """As it is to be saved."""

    @property
    def name(self) -> str:
        return self.found.name

    def __str__(self) -> str:
        return self.name if self.namespace == "default" else f"{self.namespace}/{self.name}"


def compare(
    found: Iterable[Found],
    namespace: str = "default",
    *,
    disabled: bool = False,
    shadow: bool = False,
    calendars: Mapping[str, Calendar] = MappingProxyType({}),
) -> list[Move]:
    """In the order of ``found``. ``calendars``: as those that come with them are to be, by name. ``disabled``: new jobs arrive paused, and it is not asked whether existing ones are.
    ``shadow``: new jobs are shadows, and those that are stay so."""
    entries = distinct(found)
    existing = existing_jobs(entries, namespace)
    moves = []
    for each in entries:
        space = each.namespace or namespace
        before = existing.get((space, each.name))
        if shadow and each.values and (before is None or before.target.startswith(PREFIX)):
            each = replace(each, values={**each.values, "target": f"{PREFIX}{each.values['target']}"})
        moves.append(_move_by_itself(each, space, before, disabled, calendars))
    return moves


def existing_jobs(entries: list[Found], namespace: str) -> dict[tuple[str, str], Job]:
    """Those of their names, by namespace and name."""
    names = defaultdict(list)
    for each in entries:
        names[each.namespace or namespace].append(each.name)
    rows = Job.objects.using(alias_for(Job))
    return {
        (job.namespace, job.name): job
        for space, wanted in names.items()
        for start in range(0, len(wanted), NAMES_AT_ONCE)
        for job in rows.filter(namespace=space, name__in=wanted[start : start + NAMES_AT_ONCE])
    }


def _move_by_itself(
    found: Found, namespace: str, before: Job | None, disabled: bool, calendars: Mapping[str, Calendar]
) -> Move:
    """Refused, whatever the values of this one entry make Django or the domain raise."""
    try:
        return _move(found, namespace, before, disabled, calendars)
    except DatabaseError:
        raise
    except Exception as error:
        return Move(MoveKind.REFUSED, found, namespace, (unforeseen(error),))


def _move(
    found: Found, namespace: str, before: Job | None, disabled: bool, calendars: Mapping[str, Calendar]
) -> Move:
    if found.refused:
        return Move(MoveKind.REFUSED, found, namespace, (found.refused,))
    if found.left:
        return Move(MoveKind.LEFT, found, namespace, (found.left,))
    if before is None:
        return _creation(found, namespace, disabled, calendars)
    values = dict(found.values)
    if disabled or before.enabled == values.get("enabled"):
        # Why it is paused, and until when, is for those to say who paused it.
        for name in ("pause_reason", "paused_until"):
            values.pop(name, None)
    if disabled:
        values.pop("enabled", None)
    job = copy.copy(before)
    _assign(job, values, calendars)
    was, is_to_be = definition_of(before), definition_of(job)
    changes = {name: (was[name], is_to_be[name]) for name in values if was[name] != is_to_be[name]}
    if not changes:
        return Move(MoveKind.SAME, found, namespace)
    if before.declared is not None:
        return Move(MoveKind.CONFLICT, found, namespace, (DECLARED,), changes)
    return _checked(Move(MoveKind.CHANGE, found, namespace, changes=changes, job=job))


def _creation(found: Found, namespace: str, disabled: bool, calendars: Mapping[str, Calendar]) -> Move:
    job = Job(namespace=namespace, name=found.name)
    _assign(job, found.values, calendars)
    if disabled and job.enabled:
        job.enabled, job.pause_reason = False, ARRIVED_PAUSED
    written = definition_of(job)
    changes = {name: (None, written[name]) for name in [*found.values, *(["enabled"] if disabled else [])]}
    return _checked(Move(MoveKind.CREATE, found, namespace, changes=changes, job=job))


def _checked(move: Move) -> Move:
    """Its fields alone: whether its name is free was asked for all at once."""
    assert move.job is not None  # noqa: S101 (for the type checker)
    try:
        check_rules(move.job)
    except ValidationError as error:
        return Move(MoveKind.REFUSED, move.found, move.namespace, messages_of(error))
    return move


def _assign(job: Job, values: Mapping[str, Any], calendars: Mapping[str, Calendar]) -> None:
    for name, value in values.items():
        setattr(job, attname_of(name), value)
    if (calendar := calendars.get(job.calendar_id or "")) is not None:
        job.calendar = calendar
