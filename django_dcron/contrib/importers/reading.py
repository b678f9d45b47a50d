"""The contents of a source: each entry as the fields of a job, or why it isn't imported."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from django.apps import apps
from django.conf import settings
from django.db import DatabaseError

from django_dcron.db.errors import in_one_line
from django_dcron.exceptions import DcronError, InvalidSchedule

LONGEST_REASON = 300
SECOND = timedelta(seconds=1)
NEXT_DUE = "next_due"
"""The key of ``SourceEntry.next_due`` among the values that ``translate_entry`` gets."""
LAST_RUN = "last_run"
"""The key of ``SourceEntry.last_run`` among the values that ``translate_entry`` gets."""
CRONTAB = "crontab "
"""The start of the source of each crontab. Its path follows."""
LONG_INTERVAL = timedelta(minutes=10)
"""Intervals from this length on keep the phase of the source."""


class SourceProblem(DcronError):
    """The source as a whole can't be read. The message is the reason."""


class EntryRefused(Exception):
    """An entry can't be imported. The message is the reason, and what to do instead."""


class OneOffPassed(EntryRefused):
    """The only run time of an entry has passed."""


class EntryOmitted(Exception):
    """An entry need not be imported. The message is the reason."""


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """One entry of a source."""

    origin: str
    """The entry's name in the source."""
    name: str
    """The job's name, once ``names.with_distinct_names`` has processed it."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The job's fields that the source has. Empty if the entry is refused or omitted."""
    warnings: tuple[str, ...] = ()
    refused: str = ""
    """Why the entry can't be imported. Empty if it can."""
    has_passed: bool = False
    """Whether the entry is refused because its only run time has passed."""
    omitted: str = ""
    """Why the entry need not be imported. Empty if it isn't omitted."""
    namespace: str = ""
    """Empty: the requested namespace."""
    suffix: str = ""
    """Distinguishes the entry from others with the same name. Empty: derived from ``origin``."""
    key: str = ""
    """Identifies the entry in the source, even if its name changes. Empty: ``origin``."""
    next_due: datetime | None = None
    """When the source would run an interval next. The job starts then, once it is enabled."""
    last_run: datetime | None = None
    """The time up to which the source has run the entry. None: unknown, or an interval."""
    has_only_edits: bool = False
    """Whether the values are the edits of a job that code declares, and not a whole job."""
    calendars: frozenset[str] = frozenset()
    """The calendars of a refused entry.

    There may be several if the source has the entry several times.
    """


@dataclass(frozen=True, slots=True)
class SourceCalendar:
    """One calendar of a source."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """The calendar's other fields. Empty if the calendar is refused."""
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
    source: str = ""
    """Identifies the source. Empty for an export, whose values always replace those of the jobs."""


WRITE_DELAY = timedelta(minutes=5)
"""How long a scheduler that stores only the latest run may take to write it.

Beat takes up to three minutes.
"""


@dataclass(frozen=True, slots=True)
class SourceRuns:
    """When the other scheduler ran its entries."""

    times: Mapping[str, Collection[datetime]]
    """Times by ``origin``."""
    complete: bool
    """Whether the scheduler stores each run, or only the latest one."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Entries whose runs can't be read, by ``origin``, with the reason."""
    indistinct: Mapping[str, str] = field(default_factory=dict)
    """Entries that can't be compared, because others have the same task: tasks by ``origin``."""
    absence_counts: bool = True
    """Whether a run that isn't in ``times`` didn't happen."""


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
) -> SourceEntry:
    """Translate one entry of a source.

    ``translate`` gets a function that records warnings. It returns the fields of the job, and
    possibly ``NEXT_DUE`` and ``LAST_RUN``. It may raise ``EntryRefused`` or ``EntryOmitted``. Any
    other exception, except those of the database, refuses this entry and no other.
    """
    warnings: list[str] = []
    try:
        values = translate(warnings.append)
    except (EntryRefused, InvalidSchedule) as error:
        passed = isinstance(error, OneOffPassed)
        return SourceEntry(
            origin, name, refused=str(error), has_passed=passed, suffix=suffix, key=key
        )
    except EntryOmitted as error:
        return SourceEntry(origin, name, omitted=str(error), suffix=suffix, key=key)
    except DatabaseError:
        raise
    except Exception as error:
        return SourceEntry(
            origin, name, refused=unexpected_error_text(error), suffix=suffix, key=key
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
    """Return the reason for an entry whose reading raised an unexpected exception."""
    return f"can't be read: {in_one_line(error)}"[:LONGEST_REASON]


RowReader = Callable[[], Any]
"""Returns a row, or raises the exception of reading it."""


def read_rows(rows: Any, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the primary key, the named columns and a ``RowReader`` for each row.

    A row that can't be read affects only its own entry.
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
    """Return all rows of a model. Raises ``SourceProblem``.

    ``label``: the app's label, if it isn't ``app``.
    """
    if not apps.is_installed(app):
        raise SourceProblem(f"{package} is not installed: {app!r} is missing in INSTALLED_APPS.")
    return apps.get_model(label or app, model)._default_manager.all()


def interval_text(length: timedelta) -> str:
    if length < SECOND or length % SECOND:
        raise EntryRefused(
            f"the interval {length.total_seconds():g} s is not supported; intervals are "
            "whole seconds of at least 1"
        )
    minutes, seconds = divmod(length // SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (seconds, "s"))
    return "@every " + "".join(f"{number}{unit}" for number, unit in parts if number)


def next_due(last: datetime | None, length: timedelta, now: datetime) -> dict[str, datetime]:
    """Return ``NEXT_DUE`` for an interval that ran at ``last``; empty if it's short or never ran.

    An interval that is overdue is due at once, as the source would run it.
    """
    if last is None or length < LONG_INTERVAL:
        return {}
    return {NEXT_DUE: whole_second(max(last + length, now))}


def iso_in_site_zone(at: datetime, timespec: str = "seconds") -> str:
    """Return an ISO time in the site's zone, as in schedules of jobs that run once."""
    local = at.astimezone(UTC).astimezone(ZoneInfo(settings.TIME_ZONE))
    return local.isoformat(timespec=timespec).replace("+00:00", "Z")


def whole_second(at: datetime) -> datetime:
    """Return the first whole second that isn't earlier than ``at``."""
    whole = at.replace(microsecond=0)
    return whole + SECOND if at.microsecond else whole


def warn_about_workers(setting: str, value: str, warn: Warn) -> None:
    """Warn that a setting of the source chose the workers, which jobs choose by their queue."""
    warn(
        f"{setting} {value!r} has no equivalent; set the job's queue to the queue of these workers"
    )


def one_off_schedule(at: datetime, now: datetime, warn: Warn) -> dict[str, str]:
    """Return the fields of a job that runs once. Raises ``EntryRefused`` if ``at`` has passed.

    Fractions of a second are rounded up, so the run is never early.
    """
    if at <= now:
        raise OneOffPassed(
            f"its only run time, {iso_in_site_zone(at)}, has passed; if the other "
            "scheduler hasn't run it (some record a run minutes later), run it manually or set "
            "another time"
        )
    if at.microsecond:
        warn(f"the time {iso_in_site_zone(at, 'auto')} is rounded up to a whole second")
    # Rounded in UTC, because a local time of the hour that repeats would change to the other one.
    text = iso_in_site_zone(whole_second(at.astimezone(UTC)))
    return {"schedule": f"@at {text}", "timezone": settings.TIME_ZONE}


def interval_fields(length: timedelta) -> dict[str, str]:
    """Return the fields of a job that runs at an interval. Its times are shown in the site's zone.

    Raises ``EntryRefused``.
    """
    return {"schedule": interval_text(length), "timezone": settings.TIME_ZONE}


def zone_name(zone: Any) -> str:
    """Return the name of a time zone. Raises ``EntryRefused`` if it has none."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if name is None and datetime.now(zone).utcoffset() == timedelta() and type(zone) is type(UTC):
        name = "UTC"
    if not isinstance(name, str):
        raise EntryRefused(
            f"the time zone {zone!s:.60} is not in the tz database; use a name such as "
            "Europe/Berlin"
        )
    return name


def check_json(field_name: str, value: Any) -> Any:
    """Return ``value`` as JSON decodes it, with lists for tuples. Raises ``EntryRefused``."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise EntryRefused(f"{field_name}: {value!r:.80} is not a JSON value ({error})") from None
