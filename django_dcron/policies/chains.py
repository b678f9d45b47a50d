"""Chains: jobs that start after other jobs have ended.

Invariants:

- Whether a run starts followers depends only on its final state. A cancelled run counts only if an
  attempt of it had started.
- Links between jobs form no cycle. ``find_cycle`` finds a cycle that contains a given job.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from enum import StrEnum
from typing import TypeVar

from django_dcron.policies.lifecycle import State

Key = TypeVar("Key", bound=Hashable)


class ChainCondition(StrEnum):
    """How the previous run must end."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The run failed and no attempt is left."""
    ENDED = "ended"
    """The run succeeded, failed, or was cancelled after it had started."""


def conditions_met_by(state: State, *, started: bool) -> frozenset[ChainCondition]:
    """Return the conditions that a run in ``state`` meets.

    ``started``: whether any attempt of the run has started.
    """
    match state:
        case State.SUCCEEDED:
            return frozenset({ChainCondition.SUCCEEDED, ChainCondition.ENDED})
        case State.FAILED:
            return frozenset({ChainCondition.FAILED, ChainCondition.ENDED})
        case State.CANCELLED if started:
            return frozenset({ChainCondition.ENDED})
    return frozenset()


def find_cycle(before: Mapping[Key, Collection[Key]], job: Key) -> list[Key]:
    """Return a cycle of links from ``job`` back to itself, or an empty list.

    ``before`` maps each job to its predecessors. In the result, each job comes before its follower.
    """
    followed_by: dict[Key, Key] = {}
    to_visit = [job]
    while to_visit:
        current = to_visit.pop()
        for earlier in before.get(current, ()):
            if earlier == job:
                path = [job]
                while current != job:
                    path.append(current)
                    current = followed_by[current]
                return [*path, job]
            if earlier not in followed_by:
                followed_by[earlier] = current
                to_visit.append(earlier)
    return []


def in_dependency_order(before: Mapping[Key, Collection[Key]]) -> list[Key]:
    """Sort jobs so that predecessors come first, and keep the given order otherwise.

    The jobs of a cycle have no such order. The first of them in the given order comes last.
    """
    ordered: dict[Key, None] = {}
    visited: set[Key] = set()
    for job in before:
        to_visit = [job]
        while to_visit:
            current = to_visit[-1]
            predecessors = [
                earlier
                for earlier in before[current]
                if earlier in before and earlier not in visited
            ]
            visited.add(current)
            if predecessors:
                to_visit.append(predecessors[0])
            else:
                ordered.setdefault(to_visit.pop())
    return list(ordered)
