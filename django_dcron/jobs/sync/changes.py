"""What a sync has to change, job by job, and how it is shown."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError

from django_dcron.jobs.representation import DocumentField
from django_dcron.models import Job
from django_dcron.utils.control_characters import escape_line_breaks
from django_dcron.utils.json_values import same_json


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
    names_unknown_job: bool = False
    """Whether ``after`` names a job that neither the code nor the database has."""
    waits_for_refused_job: bool = False
    """Whether the declaration is only refused because ``after`` names a job that is refused."""

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
    # ``update_error_dict`` has the messages by field, even if the error has no ``error_dict``.
    return tuple(
        f"{name}: {message}" if name != NON_FIELD_ERRORS else message
        for name, errors in error.update_error_dict({}).items()
        for each in errors
        for message in each.messages
    )


def kept_text(job: Job, field: DocumentField, declared: Any, label: str) -> str:
    """Return the values of a field that a person changed, and the command that resets it.

    Line breaks are escaped, because the output has one line per field.
    ``declared`` is JSON. A value with secrets has no command, because no command may show them.
    ``label`` says where ``declared`` comes from.
    """
    texts = [f"{label}: {escape_line_breaks(field.text(declared))}"]
    if command := _reset_command(str(job), field, declared):
        texts.append(f"to reset: {command}")
    here = escape_line_breaks(field.text(field.json_of(job)))
    return f"{field.name}: {here} ({'; '.join(texts)})"


def _reset_command(job: str, field: DocumentField, declared: Any) -> str:
    if field.name == "enabled":
        return shlex.join(["manage.py", "dcron", "resume" if declared else "pause", job])
    value = declared if isinstance(declared, str) else json.dumps(declared, ensure_ascii=False)
    if not value.isprintable() or not same_json(field.redacted(declared), declared):
        return ""
    return f"{shlex.join(['manage.py', 'dcron', 'set', job])} {field.name}={shlex.quote(value)}"
