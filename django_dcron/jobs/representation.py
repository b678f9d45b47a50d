"""Represent jobs, calendars and limits as JSON: their fields, formats and secrets.

Exports, imports, the sync of declared jobs, the REST API, the command line, the admin's export and
the change history all use these fields. A new field of a model appears in all of them.

Invariants:

- A field has the same name, format and unit everywhere. Durations are texts such as ``1h30m``,
  times are ISO 8601 in UTC with a ``Z``, and a calendar or a limit is its name.
- Reading what was written gives the same value.
- Reading is strict: a format accepts one JSON type. The model checks all other rules.
- A confidential field may hold secrets. ``redact_document`` redacts them. Lists omit such fields,
  because they may be long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from django.db import models

from django_dcron.exceptions import DcronError, TranslatableError
from django_dcron.models import Calendar, Job, Limit
from django_dcron.schedules.timetable import BEGIN, END
from django_dcron.targets import redact_changed_secrets, redact_secrets
from django_dcron.targets.declared_fields import OTHER_NAMES, field_meant_by
from django_dcron.utils.control_characters import escape_line_breaks
from django_dcron.utils.durations import parse_duration_text, write_duration
from django_dcron.utils.json_values import check_storable, same_json
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.suggestions import nearest
from django_dcron.utils.time_format import format_site_time
from django_dcron.utils.time_parsing import parse_datetime, parse_duration

CONFIDENTIAL = ("args", "kwargs", "declared", "imported")
_LOCAL = frozenset(
    {
        *("import_source", "import_key", "imported"),
        *("id", "version", "created_at", "updated_at", "deleted_at"),
    }
)
"""Fields that mean nothing in another installation."""


class InvalidField(TranslatableError, DcronError, ValueError):
    """A JSON value is invalid for a field, or the field is unknown. ``code`` is the reason."""


class ValueFormat(StrEnum):
    """How a value is written in JSON."""

    TEXT = "text"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    DURATION = "duration"
    """Text such as ``90s`` or ``1h30m``."""
    TIME = "time"
    """ISO 8601 with an offset."""
    NAME = "name"
    """The name of another row."""
    JSON = "JSON"


@dataclass(frozen=True, slots=True)
class DocumentField:
    """One field of a job, a calendar or a limit, and its format in JSON documents."""

    model_field: models.Field[Any, Any]
    name: str
    """The name in documents."""
    attname: str
    """The attribute of the row."""
    format: ValueFormat
    nullable: bool
    writable: bool
    """Whether people and programs set it; otherwise, it is read-only."""
    portable: bool
    """Whether it is part of the definition, which another installation can read."""
    confidential: bool

    def value_of(self, row: models.Model) -> Any:
        return getattr(row, self.attname)

    def json_of(self, row: models.Model) -> Any:
        return to_json(getattr(row, self.attname))

    def read(self, json_value: Any) -> Any:
        """Return the value of the row's attribute. Raises ``InvalidField``."""
        if json_value is None:
            if not self.nullable:
                raise InvalidField(_("The field can't be null."), code="null")
            return None
        return from_json(self.format, json_value)

    def is_same(self, value: Any, other: Any) -> bool:
        """Return whether two values of the attribute have the same representation."""
        return same_json(to_json(value), to_json(other))

    def redacted(self, json_value: Any) -> Any:
        """Return the JSON value without secrets."""
        return redact_secrets(json_value) if self.confidential else json_value

    def redacted_change(self, old: Any, new: Any) -> tuple[Any, Any]:
        """Return both JSON values without secrets. The new one marks the secrets that changed."""
        if not self.confidential:
            return old, new
        return redact_secrets(old), redact_changed_secrets(new, old)

    def text(self, json_value: Any) -> str:
        """Return the JSON value as text for a person, without secrets.

        Times are in the site's time zone, which the text names.
        """
        if self.format is ValueFormat.TIME:
            return text_of_time(json_value)
        return text_of(self.redacted(json_value))

    def change_texts(self, old: Any, new: Any) -> tuple[str, str]:
        """Return both JSON values as ``text`` does, each in one line.

        The new one marks the secrets that changed.
        """
        if self.format is ValueFormat.TIME:
            return text_of_time(old), text_of_time(new)
        old_text, new_text = map(text_of, self.redacted_change(old, new))
        return escape_line_breaks(old_text), escape_line_breaks(new_text)


Document = dict[str, Any]


def _describe_field(field: models.Field[Any, Any]) -> DocumentField:
    return DocumentField(
        model_field=field,
        name=field.name,
        attname=field.attname,
        format=_value_format(field),
        nullable=field.null,
        writable=field.editable and not isinstance(field, models.AutoField),
        portable=field.name not in _LOCAL,
        confidential=field.name in CONFIDENTIAL,
    )


def _value_format(field: models.Field[Any, Any]) -> ValueFormat:
    """Return the format in which values of the model field are written."""
    for kind, value_format in _FORMATS.items():
        if isinstance(field, kind):
            return value_format
    raise TypeError(f"{field} has no format")


_FORMATS: Mapping[type[models.Field[Any, Any]], ValueFormat] = {
    models.BooleanField: ValueFormat.BOOLEAN,
    models.FloatField: ValueFormat.NUMBER,
    models.IntegerField: ValueFormat.INTEGER,
    models.DurationField: ValueFormat.DURATION,
    models.DateTimeField: ValueFormat.TIME,
    models.JSONField: ValueFormat.JSON,
    models.CharField: ValueFormat.TEXT,
    models.TextField: ValueFormat.TEXT,
    models.ForeignKey: ValueFormat.NAME,
}

FIELDS: Mapping[type[models.Model], Mapping[str, DocumentField]] = MappingProxyType(
    {
        model: MappingProxyType(
            {field.name: _describe_field(field) for field in model._meta.concrete_fields}
        )
        for model in (Job, Calendar, Limit)
    }
)
"""The fields of jobs, calendars and limits by name, in the order of the model."""

JOB_FIELDS = FIELDS[Job]
PORTABLE_JOB_FIELDS = tuple(field for field in JOB_FIELDS.values() if field.portable)
PORTABLE_CALENDAR_FIELDS = tuple(field for field in FIELDS[Calendar].values() if field.portable)


# --- whole rows ---------------------------------------------------------------------------------


def document_of(row: Job | Calendar | Limit) -> Document:
    """Return all fields of the row."""
    return {name: field.json_of(row) for name, field in FIELDS[type(row)].items()}


def portable_document(row: Job | Calendar | Limit) -> Document:
    """Return the fields of the row that another installation can read."""
    fields = FIELDS[type(row)].values()
    return {field.name: field.json_of(row) for field in fields if field.portable}


def summary_of(job: Job) -> Document:
    """Return the fields of the job that a list of jobs shows."""
    fields = JOB_FIELDS.values()
    return {field.name: field.json_of(job) for field in fields if not field.confidential}


def redact_document(document: Document) -> Document:
    """Return the document without secrets."""
    return {
        name: redact_secrets(json_value) if name in CONFIDENTIAL else json_value
        for name, json_value in document.items()
    }


class ParsedFields(NamedTuple):
    """The fields of a document, by name."""

    values: Document
    """The valid values, as values of a row."""
    errors: dict[str, InvalidField]
    """The errors of invalid, unknown and missing fields."""


def read_fields(
    document: Mapping[Any, Any], fields: Sequence[DocumentField], required: Iterable[str]
) -> ParsedFields:
    """Return the valid values and the errors of the document."""
    known = {field.name: field for field in fields}
    values: Document = {}
    errors: dict[str, InvalidField] = {}
    for name, json_value in document.items():
        try:
            if name not in known:
                raise unknown_field(str(name), known)
            values[name] = known[name].read(json_value)
        except InvalidField as error:
            errors[str(name)] = error
    for name in required:
        if name not in values and name not in errors:
            errors[name] = InvalidField(_("The field is missing."), code="required")
    return ParsedFields(values, errors)


def unknown_field(name: str, known: Iterable[str], *, suggest: bool = True) -> InvalidField:
    """Return the error, with similar fields, or what to use for a name in another scheduler."""
    known = list(known)
    if (meant := field_meant_by(name)) in known:
        use = OTHER_NAMES[name]
        hint = use if use == meant else TranslatableText(use)
        return InvalidField(_("Unknown field. Use %(hint)s."), code="unknown", hint=hint)
    near = nearest(name, known) if suggest else ""
    if not near:
        return InvalidField(_("Unknown field."), code="unknown")
    return InvalidField(_("Unknown field. Did you mean %(near)s?"), code="unknown", near=near)


# --- single values ------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Return a value of a row as JSON."""
    if isinstance(value, timedelta):
        return write_duration(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    if isinstance(value, UUID):
        return str(value)
    return value


def from_json(value_format: ValueFormat, json_value: Any) -> Any:
    """Return a JSON value as a value of a row. Raises ``InvalidField``."""
    return _READERS[value_format](json_value)


def text_of(json_value: Any) -> str:
    """Return a JSON value as text for a person."""
    if isinstance(json_value, str):
        return json_value or "(empty)"
    return json.dumps(json_value, ensure_ascii=False)


def text_of_time(json_value: Any) -> str:
    """Return a JSON value that is a time as text for a person, in the site's time zone."""
    try:
        return format_site_time(datetime.fromisoformat(json_value))
    except (TypeError, ValueError, OverflowError):  # empty, or beyond the range of datetime
        return text_of(json_value)


def _read_text(json_value: Any) -> str:
    if not isinstance(json_value, str):
        raise InvalidField(_("Enter text in quotes."))
    _check_storable(json_value)
    return json_value


def _read_boolean(json_value: Any) -> bool:
    if not isinstance(json_value, bool):
        raise InvalidField(_("Enter true or false."))
    return json_value


def _read_integer(json_value: Any) -> int:
    if isinstance(json_value, bool) or not isinstance(json_value, int):
        raise InvalidField(_("Enter a whole number, such as 3."))
    return json_value


def _read_number(json_value: Any) -> float:
    try:
        if not isinstance(json_value, bool) and isinstance(json_value, int | float):
            number = float(json_value)
            if abs(number) < float("inf"):  # false for NaN, too
                return number
    except OverflowError:
        pass
    raise InvalidField(_("Enter a number, such as 1.5."))


def _read_duration(json_value: Any) -> timedelta:
    if isinstance(json_value, str):
        try:
            duration = parse_duration_text(json_value)
            duration = parse_duration(json_value) if duration is None else duration
        except OverflowError:
            duration = None
        if duration is not None:
            return duration
    raise InvalidField(_("Enter a duration such as 90s, 1h30m or 2d."))


def _read_time(json_value: Any) -> datetime:
    try:  # YAML documents contain datetimes
        instant = json_value if isinstance(json_value, datetime) else parse_datetime(json_value)
    except (TypeError, ValueError):
        instant = None
    if instant is None:
        raise InvalidField(_("Enter a time such as 2026-12-01T09:00:00Z."))
    if instant.utcoffset() is None:
        raise InvalidField(
            _(
                "The time zone is missing. Enter a time such as 2026-12-01T09:00:00Z or "
                "2026-12-01T09:00:00+01:00."
            ),
            code="naive",
        )
    try:
        instant = instant.astimezone(UTC)
    except OverflowError:
        instant = None
    if instant is None or not BEGIN <= instant < END:
        raise InvalidField(
            _("The time is out of range. Use a year from 1970 to 2199."), code="out_of_range"
        )
    return instant


def _read_json(json_value: Any) -> Any:
    """Refuse YAML values that JSON doesn't have: sets, dates, keys that aren't strings."""
    try:
        same = json.loads(json.dumps(json_value, allow_nan=False)) == json_value
    except TypeError:
        same = False
    except (ValueError, RecursionError) as error:
        raise _unstorable(error) from None
    if not same:
        raise InvalidField(_("Enter a JSON value, whose keys are text in quotes."))
    _check_storable(json_value)
    return json_value


def _check_storable(json_value: Any) -> None:
    try:
        check_storable(json_value)
    except ValueError as error:
        raise _unstorable(error) from None


def _unstorable(error: Exception) -> InvalidField:
    text = _("The value can't be stored: %(problem)s.")
    return InvalidField(text, code="unstorable", problem=str(error))


_READERS: Mapping[ValueFormat, Callable[[Any], Any]] = {
    ValueFormat.TEXT: _read_text,
    ValueFormat.BOOLEAN: _read_boolean,
    ValueFormat.INTEGER: _read_integer,
    ValueFormat.NUMBER: _read_number,
    ValueFormat.DURATION: _read_duration,
    ValueFormat.TIME: _read_time,
    ValueFormat.NAME: _read_text,
    ValueFormat.JSON: _read_json,
}
