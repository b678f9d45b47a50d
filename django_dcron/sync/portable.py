"""Jobs as a document: JSON or YAML that another installation can read, that stays the same as long as the jobs do, and that
shows in a diff what has changed.

The format, version 1::

    {"format": "django-dcron", "version": 1, "jobs": [{"namespace": "default", "name": "nightly-report", ...}]}

Invariants:

- Every field of a job's definition is in it, those at their defaults too; what the scheduler and the workers write is not, nor
  numbers that mean nothing elsewhere. Reading what was written gives the same definitions.
- A calendar is there by its name: it has to exist where the document is read.
- Jobs come in the order of namespace and name, fields in the model's: no time of writing, nothing that differs by itself.
- Durations are texts (``90s``, ``1h30m``, ``2d``), times are ISO in UTC with a ``Z``; everything else is as JSON has it.
- Reading is strict: an unknown field, a value of another type, a job named twice is a problem that names job, field and value. A
  field that is not mentioned is at its default. A later version of the format is refused, fields only ever being added to this one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import models

from django_dcron.domain.durations import write_duration
from django_dcron.exceptions import DcronError
from django_dcron.models import Job
from django_dcron.sync.portable_values import read_value

FORMAT = "django-dcron"
VERSION = 1
NOT_DEFINITION = frozenset({"id", "version", "created_at", "updated_at"})
FIELDS: tuple[models.Field[Any, Any], ...] = tuple(
    each for each in Job._meta.concrete_fields if each.name not in NOT_DEFINITION
)
"""Of a job's definition."""
NAMES = tuple(each.name for each in FIELDS)
VALUE_SHOWN = 80
_STEERING = re.compile(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What steers a terminal, or turns a line round, and JSON may have as it is."""


class Syntax(StrEnum):
    JSON = "json"
    YAML = "yaml"


class Unreadable(DcronError, ValueError):
    """The document as a whole makes no sense; the message says why."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Of one job of a document."""

    job: str
    field: str
    """Empty: of the job as a whole."""
    value: Any
    message: str

    def __str__(self) -> str:
        if not self.field:
            return f"{self.job}: {self.message}"
        return f"{self.job}: {self.field}: {_shown(self.value)}: {self.message}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One job of a document, with the fields that it mentions."""

    values: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.values["namespace"], self.values["name"]

    def job(self) -> Job:
        """As a new row, not saved."""
        return Job(**{attname_of(name): value for name, value in self.values.items()})


@dataclass(slots=True)
class Reading:
    entries: list[Entry] = field(default_factory=list)
    """The jobs without a problem."""
    problems: list[Problem] = field(default_factory=list)


def write(jobs: Iterable[Job], syntax: Syntax = Syntax.JSON) -> str:
    """Ends with a line end. Raises ``ImproperlyConfigured`` if the syntax needs what is not installed."""
    ordered = sorted(jobs, key=lambda job: (job.namespace, job.name))
    document = {"format": FORMAT, "version": VERSION, "jobs": [definition_of(job) for job in ordered]}
    if syntax is Syntax.JSON:
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    dumped: str = _yaml().safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    return dumped


def definition_of(job: Job) -> dict[str, Any]:
    """Its entry in a document."""
    return {each.name: _written(getattr(job, each.attname)) for each in FIELDS}


def read(text: str, syntax: Syntax = Syntax.JSON) -> Reading:
    """What can be told without the database: fields, types, and each job's own rules. Raises ``Unreadable``, or
    ``ImproperlyConfigured`` as ``write`` does."""
    reading = Reading()
    items = _items(_parsed(text, syntax))
    for number, item in enumerate(items, 1):
        _read_item(item, number, reading)
    named = Counter(entry.key for entry in reading.entries)
    for key, times in named.items():
        if times > 1:
            reading.problems.append(Problem("/".join(key), "", None, f"it is there {times} times"))
    reading.entries = [entry for entry in reading.entries if named[entry.key] == 1]
    return reading


def _parsed(text: str, syntax: Syntax) -> Any:
    if syntax is Syntax.JSON:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"It is not JSON: {error}") from error
    yaml = _yaml()
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unreadable(f"It is not YAML: {' '.join(str(error).split())}") from error


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ImproperlyConfigured("YAML needs PyYAML: pip install django-dcron[yaml]") from None
    return yaml


def _items(document: Any) -> list[Any]:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise Unreadable(f'It is no export of jobs: "format" has to be "{FORMAT}".')
    if document.get("version") != VERSION:
        raise Unreadable(
            f'"version" is {_shown(document.get("version"))}; this release reads {VERSION}. Export or import with another one.'
        )
    items = document.get("jobs")
    if not isinstance(items, list):
        raise Unreadable('"jobs" has to be a list.')
    if unknown := sorted(map(str, document.keys() - {"format", "version", "jobs"})):
        raise Unreadable(f'{_shown(unknown[0])} is not known (allowed: "format", "version", "jobs").')
    return items


def _read_item(item: Any, number: int, reading: Reading) -> None:
    if not isinstance(item, dict):
        reading.problems.append(
            Problem(f"job {number}", "", item, f"{_shown(item)} is no object with fields")
        )
        return
    label = _label(item, number)
    values: dict[str, Any] = {"namespace": Job._meta.get_field("namespace").get_default()}
    problems = []
    for name, value in item.items():
        try:
            values[name] = _value(name, value)
        except ValueError as error:
            problems.append(Problem(label, str(name), value, str(error)))
    known = {problem.field for problem in problems}
    missing = [name for name in ("name", "target", "schedule") if name not in values and name not in known]
    problems += [Problem(label, "", None, f"{name} is missing") for name in missing]
    if not problems:
        entry = Entry(values)
        problems = list(_rules_broken(entry, label))
        if not problems:
            reading.entries.append(entry)
    reading.problems += problems


def _rules_broken(entry: Entry, label: str) -> Iterator[Problem]:
    job = entry.job()
    try:
        job.clean_fields()
    except ValidationError as error:
        for name, messages in error.message_dict.items():
            for message in messages:
                yield Problem(label, name, _written(getattr(job, attname_of(name), None)), message)


def attname_of(name: str) -> str:
    """The attribute of a job with the value that a document has for it: of a calendar, its name."""
    return next((each.attname for each in FIELDS if each.name == name), name)


def _label(item: dict[Any, Any], number: int) -> str:
    name, namespace = item.get("name"), item.get("namespace", "default")
    if not isinstance(name, str) or not isinstance(namespace, str) or not name:
        return f"job {number}"
    return name if namespace == "default" else f"{namespace}/{name}"


def _value(name: Any, value: Any) -> Any:
    """Raises ``ValueError``, whose message says what is allowed."""
    if name not in NAMES:
        close = get_close_matches(str(name), NAMES, n=1)
        raise ValueError(f"there is no such field{f'; did you mean {close[0]}?' if close else ''}")
    of = next(each for each in FIELDS if each.name == name)
    if value is None:
        if not of.null:
            raise ValueError("it has to have a value")
        return None
    return read_value(of, value)


def _written(value: Any) -> Any:
    if isinstance(value, timedelta):
        return write_duration(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= VALUE_SHOWN else f"{text[: VALUE_SHOWN - 3]}..."
