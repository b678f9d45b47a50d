"""The contents of a source: each entry as the fields of a job, or the reason against its import."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.apps import apps
from django.db import DatabaseError

from django_dcron.db.errors import in_one_line
from django_dcron.exceptions import DcronError, InvalidSchedule
from django_dcron.utils.json_values import check_storable, not_json

LONGEST_REASON = 300
NEXT_DUE = "next_due"
"""The key of ``SourceEntry.next_due`` in the values that a source passes to ``translate_entry``."""
LAST_RUN = "last_run"
"""The key of ``SourceEntry.last_run`` in these values."""
CRONTAB = "crontab "
"""The first part of the source of a crontab. The path of the crontab follows."""


class SourceProblem(DcronError):
    """A source can't be read at all. The message is the reason."""


class EntryRefused(Exception):
    """An entry can't be imported. The message says why, and what to do instead."""


class OneOffPassed(EntryRefused):
    """The only run time of an entry has passed."""


class EntryOmitted(Exception):
    """An entry needs no job. The message is the reason."""


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """One entry of a source."""

    origin: str
    """The entry's name in the source."""
    name: str
    """The name for the job. ``names.with_distinct_names`` makes it distinct."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the job. Fields that the source doesn't have are missing.

    Empty if the entry is refused or omitted.
    """
    warnings: tuple[str, ...] = ()
    refused: str = ""
    """Why the entry can't be imported. Empty if it can."""
    has_passed: bool = False
    """Whether the entry is refused because its only run time has passed."""
    disabled: bool = False
    """Whether an entry without ``values`` is disabled in the source."""
    omitted: str = ""
    """Why the entry needs no job. Empty if it isn't omitted."""
    namespace: str = ""
    """Empty: the requested namespace."""
    suffix: str = ""
    """Distinguishes the entry from others with the same name. Empty: derived from ``origin``."""
    key: str = ""
    """Identifies the entry in the source, even if its name changes. Empty: ``origin``."""
    next_due: datetime | None = None
    """When the source would run an interval next. The enabled job runs then for the first time."""
    last_run: datetime | None = None
    """The time up to which the source has run the entry. None if unknown, or for an interval."""
    has_only_edits: bool = False
    """Whether the values are only the edited fields of a job that code declares."""
    calendars: frozenset[str] = frozenset()
    """The calendars that a refused entry names: several if the source has the entry twice."""

    @property
    def is_enabled(self) -> bool:
        """Whether the entry is enabled in the source. A source that can't disable enables all."""
        return bool(self.values.get("enabled", not self.disabled))


@dataclass(frozen=True, slots=True)
class SourceCalendar:
    """One calendar of a source."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """The calendar's fields except the name. Empty if the calendar is refused."""
    refused: str = ""


@dataclass(slots=True)
class SourceContents:
    entries: list[SourceEntry] = field(default_factory=list)
    calendars: list[SourceCalendar] = field(default_factory=list)
    """The calendars that the jobs in ``entries`` name."""
    notes: list[str] = field(default_factory=list)
    """Remarks about the source as a whole."""
    shell: dict[str, list[str]] = field(default_factory=dict)
    """The entries that ``DCRON_SHELL`` must contain for these jobs."""
    commands: dict[str, list[str]] = field(default_factory=dict)
    """The entries that ``DCRON_COMMANDS`` needs to import more lines without a shell."""
    registrations: list[str] = field(default_factory=list)
    """The lines of code that register functions that no job can run yet."""
    source: str = ""
    """Identifies the source. Empty for an export, whose values always replace those of the jobs."""


WRITE_DELAY = timedelta(minutes=5)
"""How long a scheduler that stores only its latest run may take to write it.

Beat takes up to three minutes.
"""


@dataclass(frozen=True, slots=True)
class SourceRuns:
    """When the other scheduler ran its entries."""

    times: Mapping[str, Collection[datetime]]
    """The times of each entry's runs, by ``origin``."""
    complete: bool
    """Whether the scheduler stores all runs. Otherwise, it stores the latest run of each entry."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why the runs of entries can't be read, by ``origin``."""
    shared_tasks: Mapping[str, str] = field(default_factory=dict)
    """The tasks, by ``origin``, of entries that can't be compared: other entries have this task."""
    missing_means_not_run: bool = True
    """Whether the scheduler didn't run an entry at the times that are missing in ``times``."""


class PendingAction(str):
    """A warning that each import shows until a person acts.

    Other warnings are shown only for entries that are new or have changed.
    """


Warn = Callable[[str], None]


def translate_entry(
    origin: str,
    name: str,
    translate: Callable[[Warn], dict[str, Any]],
    *,
    suffix: str = "",
    key: str = "",
    disabled: bool = False,
) -> SourceEntry:
    """Translate one entry of a source. ``disabled``: whether it is disabled in the source.

    ``translate`` gets a function that records warnings. It returns the fields of the job, and
    optionally ``NEXT_DUE`` and ``LAST_RUN``. It may raise ``EntryRefused`` or ``EntryOmitted``. Any
    other exception refuses only this entry, unless it is a ``DatabaseError``, which is raised.
    """
    warnings: list[str] = []
    try:
        values = translate(warnings.append)
    except (EntryRefused, InvalidSchedule) as error:
        passed = isinstance(error, OneOffPassed)
        return SourceEntry(
            origin,
            name,
            refused=str(error),
            has_passed=passed,
            disabled=disabled,
            suffix=suffix,
            key=key,
        )
    except EntryOmitted as error:
        return SourceEntry(
            origin, name, omitted=str(error), disabled=disabled, suffix=suffix, key=key
        )
    except DatabaseError:
        raise
    except Exception as error:
        return SourceEntry(
            origin,
            name,
            refused=unexpected_error_text(error),
            disabled=disabled,
            suffix=suffix,
            key=key,
        )
    due, last = values.pop(NEXT_DUE, None), values.pop(LAST_RUN, None)
    if values.get("schedule", "").startswith("@every"):
        last = None
    return SourceEntry(
        origin,
        name,
        values,
        tuple(warnings),
        suffix=suffix,
        key=key,
        next_due=due,
        last_run=last,
    )


def unexpected_error_text(error: Exception) -> str:
    """Return why an entry is refused whose reading raised an unexpected exception."""
    return f"can't be read: {in_one_line(error)}"[:LONGEST_REASON]


RowReader = Callable[[], Any]
"""Returns a row. Raises an exception if the row can't be read."""


def read_rows(rows: Any, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the primary key, the named columns and a ``RowReader`` for each row.

    If a row can't be read, only its own ``RowReader`` raises an exception.
    """
    try:
        rows_by_key = {row.pk: row for row in rows}
    except DatabaseError:
        raise
    except Exception:  # one row is unreadable, for example due to an unknown time zone
        rows_by_key = {}
    for key, *named in rows.values_list("pk", *columns):
        yield key, *named, partial(_get_row, rows, key, rows_by_key)


def _get_row(rows: Any, key: Any, rows_by_key: Mapping[Any, Any]) -> Any:
    row = rows_by_key.get(key)
    return rows.get(pk=key) if row is None else row


def rows_of(app: str, model: str, package: str, *, label: str = "") -> Any:
    """Return all rows of a model. Raises ``SourceProblem`` if ``app`` isn't installed.

    ``package`` is named in the error. ``label`` is the app's label if it differs from ``app``.
    """
    if not apps.is_installed(app):
        raise SourceProblem(f"{package} is not installed: {app!r} is missing in INSTALLED_APPS.")
    return apps.get_model(label or app, model)._default_manager.all()


def warn_about_workers(setting: str, value: str, warn: Warn) -> None:
    """Warn that a setting of the source chooses workers. A job chooses them by its queue."""
    warn(
        f"{setting} {value!r} has no equivalent; set the job's queue to the queue of these workers"
    )


def check_json(field_name: str, value: Any) -> Any:
    """Return ``value`` after encoding and decoding it as JSON: tuples become lists.

    Raises ``EntryRefused`` if JSON can't represent the value, or no database can store it. Its
    message names the part of the value and what to use instead.
    """
    try:
        decoded = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        if problem := not_json(value):
            raise EntryRefused(f"{field_name}{problem}") from None
        raise EntryRefused(f"{field_name}: {value!r:.80} is not a JSON value ({error})") from None
    try:
        return check_storable(decoded)
    except ValueError as error:
        raise EntryRefused(f"{field_name}: {value!r:.80} can't be stored: {error}") from None
