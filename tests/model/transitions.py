"""The transitions of a run that the model allows: a table, and the comparison of a trace with it.

``tests.model.check`` compares the table with what the model does, and the simulator compares each
change with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

STATES = (
    *("absent", "pending", "queued", "running", "waiting"),
    *("succeeded", "failed", "skipped", "missed", "cancelled"),
)
"""In the order of the model's constants."""
_TO: dict[str, tuple[str, ...]] = {
    "absent": ("pending", "waiting"),
    "pending": (
        *("pending", "queued", "running", "waiting"),
        *("failed", "skipped", "missed", "cancelled"),
    ),
    "queued": ("pending", "running", "waiting", "skipped", "missed", "cancelled"),
    "waiting": ("pending", "skipped", "missed", "cancelled"),
    "running": ("succeeded", "failed", "cancelled"),
}


class Transition(NamedTuple):
    old: str
    new: str
    attempts: int = 0
    """The increase of the run's attempt number."""


ALLOWED = frozenset(
    [
        *(Transition(old, new) for old, targets in _TO.items() for new in targets),
        Transition("running", "pending", 1),
    ]
)


def is_outcome_of_a_claim(made: Transition) -> bool:
    """Return whether a run was missed or skipped when it was claimed. The model omits such runs."""
    return made.old == "absent" and made.new in ("missed", "skipped")


def not_allowed(transitions: Iterable[Transition]) -> set[Transition]:
    """Return the transitions that the model doesn't allow. It allows any that change nothing."""
    return {each for each in transitions if each not in ALLOWED and each != (each.old, each.old, 0)}
