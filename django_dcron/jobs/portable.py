"""Export and import jobs as a JSON or YAML document.

Another installation can read the document. It changes only when the jobs change, and a diff shows
what has changed.

The format, version 1::

    {"format": "django-dcron", "version": 1, "calendars": [{"name": "bank days", ...}],
     "jobs": [{"namespace": "default", "name": "nightly-report", "calendar": "bank days", ...}]}

Invariants:

- A document has every field of a job's definition, defaults included. It has no columns of the
  scheduler or the workers, and no ids of the database. A document that was written and read again
  gives the same definitions.
- A document has the calendars that its jobs name. If no job names one, ``calendars`` is omitted. A
  calendar missing from the document must exist where it is read. So must the limits that the jobs
  name, because each installation has its own capacity.
- Jobs are ordered by namespace and name, fields as in the model. There is no timestamp and nothing
  else that differs between two exports.
- The names and formats of the fields are those of ``representation``.
- Reading is strict: an unknown field, a value of another type or a duplicate job is a problem that
  names job, field and value. A duplicate key makes the document unreadable. A missing field gets
  its default.
- A later version of the format is refused. Version 1 changes only by added fields.
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

from django_dcron.db.routing import alias_for
from django_dcron.exceptions import DcronError
from django_dcron.jobs.representation import (
    FIELDS,
    JOB_FIELDS,
    PORTABLE_CALENDAR_FIELDS,
    PORTABLE_JOB_FIELDS,
    DocumentField,
    portable_document,
    read_fields,
    to_json,
)
from django_dcron.models import Calendar, Job
from django_dcron.models.job_validation import definition_errors
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE, label_of
from django_dcron.utils import untrusted
from django_dcron.utils.bounded_text import with_ellipsis
from django_dcron.utils.json_values import duplicate_key

FORMAT = "django-dcron"
VERSION = 1
VALUE_SHOWN = 80
_CONTROL_CHARACTERS = re.compile(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that control a terminal or reverse text, and that JSON allows unescaped."""


class DocumentSyntax(StrEnum):
    JSON = "json"
    YAML = "yaml"


class UnreadableDocument(DcronError, ValueError):
    """The document as a whole is invalid. The message is the reason."""


@dataclass(frozen=True, slots=True)
class DocumentProblem:
    """A problem with one job or calendar of a document."""

    job: str
    """Label of the job or calendar."""
    field: str
    """Empty if the problem concerns the job as a whole."""
    value: Any
    message: str
    code: str = "invalid"

    def __str__(self) -> str:
        if not self.field:
            return f"{self.job}: {self.message}"
        if self.code == "required":
            return f"{self.job}: {self.field}: {self.message}"
        return f"{self.job}: {self.field}: {quoted_json(self.value)}: {self.message}"


@dataclass(slots=True)
class DocumentCalendars:
    """The calendars of a document."""

    valid: dict[str, Calendar] = field(default_factory=dict)
    """The calendars without a problem, by name, as new, unsaved rows."""
    problems: list[DocumentProblem] = field(default_factory=list)
    mentioned: set[str] = field(default_factory=set)
    """The names of all calendars in the document, with or without a problem."""

    def why_unusable(self, name: str | None) -> str:
        """Return why no job can name the calendar; empty if jobs can."""
        if name is None or name in self.valid:
            return ""
        if name in self.mentioned:
            return "this calendar has a problem itself"
        if Calendar.objects.using(alias_for(Calendar)).filter(pk=name).exists():
            return ""
        return "unknown calendar; it is neither in the database nor in the document"


@dataclass(frozen=True, slots=True)
class DocumentEntry:
    """One job of a document, with the fields that it names."""

    values: Mapping[str, Any]
    calendar: Calendar | None = None
    """The calendar that the job names, from the document; None if the document doesn't have it."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.values["namespace"], self.values["name"]

    def job(self) -> Job:
        """Return the job as a new, unsaved row."""
        job = Job(**{JOB_FIELDS[name].attname: value for name, value in self.values.items()})
        if self.calendar is not None:
            job.calendar = self.calendar
        return job


@dataclass(slots=True)
class DocumentReading:
    entries: list[DocumentEntry] = field(default_factory=list)
    """The jobs without a problem."""
    problems: list[DocumentProblem] = field(default_factory=list)
    calendars: DocumentCalendars = field(default_factory=DocumentCalendars)
    named_by_refused: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Calendars named by the jobs with a problem, by the labels of these jobs in ``problems``."""


def write_document(jobs: Iterable[Job], syntax: DocumentSyntax = DocumentSyntax.JSON) -> str:
    """Return the document, with a final newline.

    Raises ``ImproperlyConfigured`` if the syntax needs a package that isn't installed.
    """
    ordered = sorted(jobs, key=lambda job: (job.namespace, job.name))
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    if calendars := _calendars_of(ordered):
        document["calendars"] = [portable_document(each) for each in calendars]
    document["jobs"] = [portable_document(job) for job in ordered]
    if syntax is DocumentSyntax.JSON:
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        return _CONTROL_CHARACTERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    dumped: str = _yaml().safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    return dumped


def _calendars_of(jobs: Iterable[Job]) -> list[Calendar]:
    """Return the calendars that the jobs name, ordered by name."""
    one_of_each = {job.calendar_id: job for job in jobs if job.calendar_id is not None}
    return [job.calendar for _name, job in sorted(one_of_each.items()) if job.calendar]


def read_document(text: str, syntax: DocumentSyntax = DocumentSyntax.JSON) -> DocumentReading:
    """Read a document, and check each job and calendar on its own.

    The check doesn't consider the jobs in the database. Raises ``UnreadableDocument``, or
    ``ImproperlyConfigured`` like ``write_document``.
    """
    calendars, items = _items(_parse_document(text, syntax))
    reading = DocumentReading(calendars=_read_calendars(calendars))
    for number, item in enumerate(items, 1):
        _read_job(item, number, reading)
    named = Counter(entry.key for entry in reading.entries)
    for key, times in named.items():
        if times > 1:
            reading.problems.append(_duplicate("/".join(key), times))
    for entry in reading.entries:
        if named[entry.key] > 1 and (calendar := entry.values.get("calendar")):
            reading.named_by_refused["/".join(entry.key)].add(calendar)
    reading.entries = [entry for entry in reading.entries if named[entry.key] == 1]
    return reading


def _parse_document(text: str, syntax: DocumentSyntax) -> Any:
    if syntax is DocumentSyntax.JSON:
        try:
            return json.loads(text, object_pairs_hook=_object)
        except UnreadableDocument:  # a ``ValueError``, but the JSON is valid
            raise
        except (ValueError, RecursionError) as error:
            raise UnreadableDocument(f"The document is not valid JSON: {error}") from error
    _yaml()
    try:
        with untrusted.Reader() as reader:
            return reader.read("yaml", text.encode())
    except (untrusted.Unreadable, UnicodeEncodeError) as error:
        raise UnreadableDocument(f"The document is not valid YAML: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the JSON object. Raises ``UnreadableDocument`` if it has a key more than once."""
    found = dict(pairs)
    if (key := duplicate_key(pairs)) is not None:
        name = f" {quoted_json(found['name'])}" if isinstance(found.get("name"), str) else ""
        raise UnreadableDocument(f"The object{name} has the key {quoted_json(key)} more than once.")
    return found


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ImproperlyConfigured("YAML needs PyYAML: pip install django-dcron[yaml]") from None
    return yaml


def _items(document: Any) -> tuple[list[Any], list[Any]]:
    """Return the calendars and the jobs of the document."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UnreadableDocument(
            f'The document is not an export of jobs: "format" must be "{FORMAT}".'
        )
    if document.get("version") != VERSION:
        raise UnreadableDocument(
            f'"version" is {quoted_json(document.get("version"))}, but this release reads version '
            f"{VERSION}. Export and import with the same release."
        )
    calendars: Any = document.get("calendars", [])
    jobs: Any = document.get("jobs")
    for name, items in (("calendars", calendars), ("jobs", jobs)):
        if not isinstance(items, list):
            raise UnreadableDocument(f'"{name}" must be a list.')
    if unknown := sorted(map(str, document.keys() - {"format", "version", "calendars", "jobs"})):
        raise UnreadableDocument(
            f'Unknown key {quoted_json(unknown[0])} (allowed: "format", "version", '
            '"calendars", "jobs").'
        )
    return calendars, jobs


def _read_job(item: Any, number: int, reading: DocumentReading) -> None:
    label = _label(item, number)
    values, problems = _read_item(item, label, PORTABLE_JOB_FIELDS, ("name", "target", "schedule"))
    if not problems:
        default_namespace = {"namespace": Job._meta.get_field("namespace").get_default()}
        entry = DocumentEntry(
            default_namespace | values, reading.calendars.valid.get(values.get("calendar", ""))
        )
        problems = list(_broken_rules(entry, label, reading.calendars))
        if not problems:
            reading.entries.append(entry)
    if problems and isinstance(item, dict) and isinstance(name := item.get("calendar"), str):
        reading.named_by_refused[label].add(name)
    reading.problems += problems


def _read_calendars(items: list[Any]) -> DocumentCalendars:
    read = DocumentCalendars()
    parsed = [_read_calendar(item, number, read) for number, item in enumerate(items, 1)]
    named = Counter(calendar.name for calendar in parsed if calendar)
    for name, times in named.items():
        if times > 1:
            read.problems.append(_duplicate(f"calendar {name}", times))
    read.valid = {each.name: each for each in parsed if each and named[each.name] == 1}
    return read


def _read_calendar(item: Any, number: int, read: DocumentCalendars) -> Calendar | None:
    label = f"calendar {number}"
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        read.mentioned.add(item["name"])
        label = f"calendar {item['name']}"
    values, problems = _read_item(item, label, PORTABLE_CALENDAR_FIELDS, ("name", "dates"))
    calendar = Calendar(**values) if not problems else None
    if calendar is not None:
        try:
            calendar.clean_fields()
        except ValidationError as error:
            problems += _problems_of(error, label, calendar)
    read.problems += problems
    return None if problems else calendar


def _read_item(
    item: Any, label: str, fields: tuple[DocumentField, ...], required: tuple[str, ...]
) -> tuple[dict[str, Any], list[DocumentProblem]]:
    if not isinstance(item, dict):
        why = f"{quoted_json(item)} isn't an object with fields"
        return {}, [DocumentProblem(label, "", item, why, "not_an_object")]
    parsed = read_fields(item, fields, required)
    return parsed.values, [
        DocumentProblem(label, name, item.get(name), str(error), error.code)
        for name, error in parsed.errors.items()
    ]


def _broken_rules(
    entry: DocumentEntry, label: str, calendars: DocumentCalendars
) -> Iterator[DocumentProblem]:
    job = entry.job()
    if why := calendars.why_unusable(job.calendar_id):
        yield DocumentProblem(label, "calendar", job.calendar_id, why, "unknown_calendar")
        job.calendar = None
    try:
        check_rules(job)
    except ValidationError as error:
        yield from _problems_of(error, label, job)


def _problems_of(
    error: ValidationError, label: str, row: Job | Calendar
) -> Iterator[DocumentProblem]:
    for name, errors in error.error_dict.items():
        field = FIELDS[type(row)].get(name)
        value = to_json(getattr(row, field.attname if field else name, None))
        for each in errors:
            for message in each.messages:
                yield DocumentProblem(label, name, value, message, each.code or "invalid")


def _duplicate(label: str, times: int) -> DocumentProblem:
    return DocumentProblem(label, "", None, f"appears {times} times", "duplicate")


def check_rules(job: Job) -> None:
    """Check the job's own fields. A calendar set on ``job`` may be unsaved.

    Raises ``ValidationError``.
    """
    is_loaded = Job._meta.get_field("calendar").is_cached(job)
    if not (is_loaded and job.calendar and job.calendar._state.adding):
        job.clean_fields()
        return
    # The validation of the field would look for the calendar in the database.
    job.clean_fields(exclude={"calendar"})
    if errors := definition_errors(job):
        raise ValidationError(errors)


def quoted_json(value: Any) -> str:
    """Return the value as JSON, shortened."""
    return with_ellipsis(json.dumps(value, ensure_ascii=False, default=str), VALUE_SHOWN)


def _label(item: Any, number: int) -> str:
    """Return the label of a job in messages, or its number (from 1) if it has no name."""
    if not isinstance(item, dict):
        return f"job {number}"
    name, namespace = item.get("name"), item.get("namespace", DEFAULT_NAMESPACE)
    if not isinstance(name, str) or not isinstance(namespace, str) or not name:
        return f"job {number}"
    return label_of(namespace, name)
