"""What a comparison of code and database finds, job by job, and how it reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.core.exceptions import ValidationError

from django_dcron.targets import redacted


class ChangeKind(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    ENABLE = "enable"
    DISABLE = "disable"
    KEEP = "keep"
    CONFLICT = "conflict"
    INVALID = "invalid"


DIFFERENCES = frozenset({ChangeKind.CREATE, ChangeKind.UPDATE, ChangeKind.ENABLE, ChangeKind.DISABLE})
PROBLEMS = frozenset({ChangeKind.CONFLICT, ChangeKind.INVALID})


@dataclass(frozen=True)
class Change:
    """What is to be done to one job, or why it is not."""

    kind: ChangeKind
    job: str
    details: tuple[str, ...] = ()
    """One line each: ``schedule: @daily -> @hourly``."""
    key: tuple[str, str] = ("", "")
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The fields to write, ``declared`` among them."""
    pk: int = 0
    version: int = 0
    """The row that was compared; 0 if there was none."""

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


def shown(value: Any) -> str:
    if isinstance(value, str):
        return value or "(empty)"
    if isinstance(value, list | dict):
        return json.dumps(redacted(value))
    return str(value)


def messages_of(error: ValidationError) -> tuple[str, ...]:
    return tuple(
        f"{name}: {message}" if name != "__all__" else message
        for name, messages in error.message_dict.items()
        for message in messages
    )
