"""Chains: a job that starts after others have ended.

Invariants:

- Whether a run is followed depends on its final state alone, and for a cancelled one on whether it had started: what never
  ran has no end that anything could come after.
- Links never lead round in a circle. ``circle`` finds one, if there is one, from any job on it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from enum import StrEnum
from typing import TypeVar

from django_dcron.domain.lifecycle import State

Key = TypeVar("Key", bound=Hashable)


class On(StrEnum):
    """How the run before has to end."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """For good: its attempts are used up."""
    ENDED = "ended"
    """Succeeded, failed, or was cancelled after it had started."""


def met_by(state: State, *, started: bool) -> frozenset[On]:
    """What the end of a run in ``state`` is. ``started``: whether any attempt of it had."""
    match state:
        case State.SUCCEEDED:
            return frozenset({On.SUCCEEDED, On.ENDED})
        case State.FAILED:
            return frozenset({On.FAILED, On.ENDED})
        case State.CANCELLED if started:
            return frozenset({On.ENDED})
    return frozenset()


def key_of(label: str) -> tuple[str, str]:
    """Namespace and name of the job that is called so: ``name``, or ``namespace/name``."""
    namespace, slash, name = label.partition("/")
    return (namespace, name) if slash else ("default", namespace)


def label_of(namespace: str, name: str) -> str:
    return name if namespace == "default" else f"{namespace}/{name}"


def circle(before: Mapping[Key, Collection[Key]], job: Key) -> list[Key]:
    """A way from ``job`` back to itself, each followed by one that comes after it; empty: there is none. ``before``: the jobs that
    each comes after."""
    followed_by: dict[Key, Key] = {}
    to_visit = [job]
    while to_visit:
        at = to_visit.pop()
        for earlier in before.get(at, ()):
            if earlier == job:
                way = [job]
                while at != job:
                    way.append(at)
                    at = followed_by[at]
                return [*way, job]
            if earlier not in followed_by:
                followed_by[earlier] = at
                to_visit.append(earlier)
    return []


def earlier_first(before: Mapping[Key, Collection[Key]]) -> list[Key]:
    """The jobs in their order, but each behind those it comes after; in a circle somebody has to begin."""
    ordered: dict[Key, None] = {}
    begun: set[Key] = set()
    for job in before:
        to_visit = [job]
        while to_visit:
            at = to_visit[-1]
            ahead = [each for each in before[at] if each in before and each not in begun]
            begun.add(at)
            if ahead:
                to_visit.append(ahead[0])
            else:
                ordered.setdefault(to_visit.pop())
    return list(ordered)
