"""What a sync has to change, job by job, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.core.exceptions import ValidationError


class ChangeKind(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    ENABLE = "enable"
    DISABLE = "disable"
    KEEP = "keep"
    CONFLICT = "conflict"
    INVALID = "invalid"


DIFFERENCES = frozenset(
    {ChangeKind.CREATE, ChangeKind.UPDATE, ChangeKind.ENABLE, ChangeKind.DISABLE}
)
PROBLEMS = frozenset({ChangeKind.CONFLICT, ChangeKind.INVALID})


@dataclass(frozen=True)
class SyncChange:
    """What to do with one job, or why nothing is done."""

    kind: ChangeKind
    job: str
    details: tuple[str, ...] = ()
    """One line each, such as ``schedule: @daily -> @hourly``."""
    key: tuple[str, str] = ("", "")
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The fields to write, including ``declared``."""
    pk: int = 0
    version: int = 0
    """Version of the compared row; 0 if there was none."""

    @property
    def is_difference(self) -> bool:
        """Whether ``apply`` has something to write."""
        return self.kind in DIFFERENCES

    @property
    def is_problem(self) -> bool:
        """Whether a person has to correct the code or the database."""
        return self.kind in PROBLEMS

    def __str__(self) -> str:
        return f"{self.kind} {self.job}" + (f" {'; '.join(self.details)}" if self.details else "")


def messages_of(error: ValidationError) -> tuple[str, ...]:
    """Return one line for each message, with the name of its field."""
    return tuple(
        f"{name}: {message}" if name != "__all__" else message
        for name, messages in error.message_dict.items()
        for message in messages
    )
