"""What a source has: each of its entries as the fields of a job, or the reason why it is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.apps import apps
from django.db import DatabaseError

from django_dcron.exceptions import DcronError, InvalidSchedule
from django_dcron.models.database import in_one_line

LONGEST_REASON = 300
SECOND = timedelta(seconds=1)


class SourceProblem(DcronError):
    """The source as a whole cannot be read; the message says why."""


class Refused(Exception):
    """This entry cannot be moved; the message says why, and what to do instead."""


class Left(Exception):
    """Of this entry nothing is to be moved, and that is as it should be; the message says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """One entry of a source."""

    origin: str
    """What it is called there."""
    name: str
    """The job's, once ``names.distinct`` has seen it."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The job's fields, as far as the source has them; empty if there is a reason."""
    warnings: tuple[str, ...] = ()
    refused: str = ""
    left: str = ""
    namespace: str = ""
    """Empty: the one that is asked for."""
    suffix: str = ""
    """What tells it apart from another of the same name. Empty: made from ``origin``."""
    calendars: frozenset[str] = frozenset()
    """Those that it names, of an entry that is refused; of one that is there several times, there may be several."""


@dataclass(frozen=True, slots=True)
class FoundCalendar:
    """One calendar of a source."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """Its other fields; empty if there is a reason."""
    refused: str = ""


@dataclass(slots=True)
class Reading:
    found: list[Found] = field(default_factory=list)
    calendars: list[FoundCalendar] = field(default_factory=list)
    """Which jobs of ``found`` name."""
    notes: list[str] = field(default_factory=list)
    """What concerns the source as a whole."""
    shell: dict[str, list[str]] = field(default_factory=dict)
    """What ``DCRON_SHELL`` has to have for these jobs."""


@dataclass(frozen=True, slots=True)
class Ran:
    """When the other scheduler ran its entries."""

    times: Mapping[str, Collection[datetime]]
    """By ``origin``."""
    complete: bool
    """Whether it keeps each of them, or the latest alone."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """The entries of which this cannot be told, by ``origin``, and why."""


Warn = Callable[[str], None]


def entry(origin: str, name: str, translate: Callable[[Warn], dict[str, Any]], *, suffix: str = "") -> Found:
    """What ``translate`` makes of it, which raises ``Refused`` or ``Left``, and is given a function to warn with.

    Whatever else it raises, except for the database's errors, is about this entry alone: it is refused, and the others go on.
    """
    warnings: list[str] = []
    try:
        values = translate(warnings.append)
    except (Refused, InvalidSchedule) as error:
        return Found(origin, name, refused=str(error), suffix=suffix)
    except Left as error:
        return Found(origin, name, left=str(error), suffix=suffix)
    except DatabaseError:
        raise
    except Exception as error:
        return Found(origin, name, refused=unforeseen(error), suffix=suffix)
    return Found(origin, name, values, tuple(warnings), suffix=suffix)


def unforeseen(error: Exception) -> str:
    """Why an entry is refused whose reading raised what nobody expected."""
    return f"it cannot be read: {in_one_line(error)}"[:LONGEST_REASON]


Row = Callable[[], Any]
"""Returns a row, or raises what its reading raises."""


def each_row(rows: Any, *columns: str) -> Iterator[tuple[Any, ...]]:
    """The primary key and the named columns of each row, and last the row, so that a row that cannot be read ends only its own
    entry."""
    try:
        at_hand = {row.pk: row for row in rows}
    except DatabaseError:
        raise
    except Exception:  # of one of them, such as a time zone that does not exist
        at_hand = {}
    for key, *named in rows.values_list("pk", *columns):
        yield key, *named, partial(_row, rows, key, at_hand)


def _row(rows: Any, key: Any, at_hand: Mapping[Any, Any]) -> Any:
    row = at_hand.get(key)
    return rows.get(pk=key) if row is None else row


def rows_of(app: str, model: str, package: str) -> Any:
    """All of them, as a query. Raises ``SourceProblem``."""
    if not apps.is_installed(app):
        raise SourceProblem(f"{package} is not there: {app!r} is not one of INSTALLED_APPS.")
    return apps.get_model(app, model)._default_manager.all()


def interval_text(length: timedelta) -> str:
    if length < SECOND or length % SECOND:
        raise Refused(
            f"it runs every {length.total_seconds():g} s; intervals here are whole seconds, at least 1"
        )
    minutes, seconds = divmod(length // SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (seconds, "s"))
    return "@every " + "".join(f"{number}{unit}" for number, unit in parts if number)


def once_text(at: datetime, warn: Warn) -> str:
    """A moment is never early: a part of a second is rounded up."""
    whole = at.astimezone(UTC).replace(microsecond=0, tzinfo=None)
    if at.microsecond:
        whole += SECOND
        warn(
            f"it is meant for {at.isoformat()}, and will be a part of a second later: times here are whole seconds"
        )
    return f"@at {whole.isoformat()}Z"


def zone_name(zone: Any) -> str:
    """Raises ``Refused`` for a zone without a name."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if name is None and datetime.now(zone).utcoffset() == timedelta() and type(zone) is type(UTC):
        name = "UTC"
    if not isinstance(name, str):
        raise Refused(
            f"its time zone is {zone!s:.60}, which is no zone of the tz database such as Europe/Berlin"
        )
    return name


def check_json(field_name: str, value: Any) -> Any:
    """``value`` as JSON has it: tuples as lists. Raises ``Refused``."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(f"{field_name}: {value!r:.80} is not what JSON can hold ({error})") from None
