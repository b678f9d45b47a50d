"""Jobs as a document: JSON or YAML that another installation can read, that stays the same as long as the jobs do, and that
shows in a diff what has changed.

The format, version 1::

    {"format": "django-dcron", "version": 1, "calendars": [{"name": "bank days", ...}],
     "jobs": [{"namespace": "default", "name": "nightly-report", "calendar": "bank days", ...}]}

Invariants:

- Every field of a job's definition is in it, those at their defaults too; what the scheduler and the workers write is not, nor
  numbers that mean nothing elsewhere. Reading what was written gives the same definitions.
- The calendars that its jobs name are in it, and jobs name them; where no job does, ``calendars`` is left out. One that a document
  does not have, as those of an earlier release do, has to exist where it is read.
- Jobs come in the order of namespace and name, fields in the model's: no time of writing, nothing that differs by itself.
- Durations are texts (``90s``, ``1h30m``, ``2d``), times are ISO in UTC with a ``Z``; everything else is as JSON has it.
- Reading is strict: an unknown field, a value of another type, a job named twice is a problem that names job, field and value. A
  field that is not mentioned is at its default. A later version of the format is refused, fields only ever being added to this one.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import models

from django_dcron import untrusted
from django_dcron.exceptions import DcronError
from django_dcron.models import Calendar, Job
from django_dcron.models.job_validation import definition_errors
from django_dcron.sync import portable_calendars
from django_dcron.sync.portable_values import Problem, read_values, shown, written

FORMAT = "django-dcron"
VERSION = 1
NOT_DEFINITION = frozenset({"id", "version", "created_at", "updated_at"})
FIELDS: tuple[models.Field[Any, Any], ...] = tuple(
    each for each in Job._meta.concrete_fields if each.name not in NOT_DEFINITION
)
"""Of a job's definition."""
NAMES = tuple(each.name for each in FIELDS)
_STEERING = re.compile(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What steers a terminal, or turns a line round, and JSON may have as it is."""


class Syntax(StrEnum):
    JSON = "json"
    YAML = "yaml"


class Unreadable(DcronError, ValueError):
    """The document as a whole makes no sense; the message says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One job of a document, with the fields that it mentions."""

    values: Mapping[str, Any]
    calendar: Calendar | None = None
    """The one it names, as the document has it; None: the document has none of that name."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.values["namespace"], self.values["name"]

    def job(self) -> Job:
        """As a new row, not saved."""
        job = Job(**{attname_of(name): value for name, value in self.values.items()})
        if self.calendar is not None:
            job.calendar = self.calendar
        return job


@dataclass(slots=True)
class Reading:
    entries: list[Entry] = field(default_factory=list)
    """The jobs without a problem."""
    problems: list[Problem] = field(default_factory=list)
    calendars: portable_calendars.Reading = field(default_factory=portable_calendars.Reading)
    named_by_refused: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The calendars of the jobs with a problem, by what these are called in ``problems``."""


def write(jobs: Iterable[Job], syntax: Syntax = Syntax.JSON) -> str:
    """Ends with a line end. Raises ``ImproperlyConfigured`` if the syntax needs what is not installed."""
    ordered = sorted(jobs, key=lambda job: (job.namespace, job.name))
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    if calendars := portable_calendars.named_by(ordered):
        document["calendars"] = [portable_calendars.definition_of(each) for each in calendars]
    document["jobs"] = [definition_of(job) for job in ordered]
    if syntax is Syntax.JSON:
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    dumped: str = _yaml().safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    return dumped


def definition_of(job: Job) -> dict[str, Any]:
    """Its entry in a document."""
    return {each.name: written(getattr(job, each.attname)) for each in FIELDS}


def read(text: str, syntax: Syntax = Syntax.JSON) -> Reading:
    """What can be told without the jobs that exist: fields, types, and the own rules of each job and calendar. Raises ``Unreadable``, or
    ``ImproperlyConfigured`` as ``write`` does."""
    calendars, items = _items(_parsed(text, syntax))
    reading = Reading(calendars=portable_calendars.read(calendars))
    for number, item in enumerate(items, 1):
        _read_item(item, number, reading)
    named = Counter(entry.key for entry in reading.entries)
    for key, times in named.items():
        if times > 1:
            reading.problems.append(Problem("/".join(key), "", None, f"it is there {times} times"))
    for entry in reading.entries:
        if named[entry.key] > 1 and (calendar := entry.values.get("calendar")):
            reading.named_by_refused["/".join(entry.key)].add(calendar)
    reading.entries = [entry for entry in reading.entries if named[entry.key] == 1]
    return reading


def _parsed(text: str, syntax: Syntax) -> Any:
    if syntax is Syntax.JSON:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"It is not JSON: {error}") from error
    _yaml()
    try:
        with untrusted.Reader() as reader:
            return reader.read("yaml", text.encode())
    except (untrusted.Unreadable, UnicodeEncodeError) as error:
        raise Unreadable(f"It is not YAML: {error}") from error


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ImproperlyConfigured("YAML needs PyYAML: pip install django-dcron[yaml]") from None
    return yaml


def _items(document: Any) -> tuple[list[Any], list[Any]]:
    """Calendars and jobs."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise Unreadable(f'It is no export of jobs: "format" has to be "{FORMAT}".')
    if document.get("version") != VERSION:
        raise Unreadable(
            f'"version" is {shown(document.get("version"))}; this release reads {VERSION}. Export or import with another one.'
        )
    calendars: Any = document.get("calendars", [])
    jobs: Any = document.get("jobs")
    for name, items in (("calendars", calendars), ("jobs", jobs)):
        if not isinstance(items, list):
            raise Unreadable(f'"{name}" has to be a list.')
    if unknown := sorted(map(str, document.keys() - {"format", "version", "calendars", "jobs"})):
        raise Unreadable(
            f'{shown(unknown[0])} is not known (allowed: "format", "version", "calendars", "jobs").'
        )
    return calendars, jobs


def _read_item(item: Any, number: int, reading: Reading) -> None:
    if not isinstance(item, dict):
        reading.problems.append(Problem(f"job {number}", "", item, f"{shown(item)} is no object with fields"))
        return
    label = _label(item, number)
    values, problems = read_values(item, FIELDS, ("name", "target", "schedule"), label)
    if not problems:
        own_namespace = {"namespace": Job._meta.get_field("namespace").get_default()}
        entry = Entry(own_namespace | values, reading.calendars.sound.get(values.get("calendar", "")))
        problems = list(_rules_broken(entry, label, reading.calendars))
        if not problems:
            reading.entries.append(entry)
    if problems and isinstance(calendar := item.get("calendar"), str):
        reading.named_by_refused[label].add(calendar)
    reading.problems += problems


def _rules_broken(entry: Entry, label: str, calendars: portable_calendars.Reading) -> Iterator[Problem]:
    job = entry.job()
    if why := calendars.why_not(job.calendar_id):
        yield Problem(label, "calendar", job.calendar_id, why)
        job.calendar = None
    try:
        check_rules(job)
    except ValidationError as error:
        for name, messages in error.message_dict.items():
            for message in messages:
                yield Problem(label, name, written(getattr(job, attname_of(name), None)), message)


def check_rules(job: Job) -> None:
    """Of its fields alone. Its calendar need not be saved yet, if it is at hand. Raises ``ValidationError``."""
    if (
        not Job._meta.get_field("calendar").is_cached(job)
        or not job.calendar
        or not job.calendar._state.adding
    ):
        job.clean_fields()
        return
    job.clean_fields(exclude={"calendar"})
    if errors := definition_errors(job):
        raise ValidationError(errors)


def attname_of(name: str) -> str:
    """The attribute of a job with the value that a document has for it: of a calendar, its name."""
    return next((each.attname for each in FIELDS if each.name == name), name)


def _label(item: dict[Any, Any], number: int) -> str:
    name, namespace = item.get("name"), item.get("namespace", "default")
    if not isinstance(name, str) or not isinstance(namespace, str) or not name:
        return f"job {number}"
    return name if namespace == "default" else f"{namespace}/{name}"
