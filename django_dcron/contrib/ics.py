"""Convert iCalendar files (RFC 5545, ``.ics``) to the dates of a calendar.

The package ``icalendar`` parses the file (``django-dcron[ics]``). It is imported on first use.

Invariants:

- An event is converted exactly or omitted with the reason. Only dates before ``first`` and after
  ``last`` are left out.
- An event that recurs in a way that a calendar entry can express, such as each year on the same
  date, becomes that entry. Each date of any other recurring event becomes an entry.
- A file can't make the conversion slow: its length, its events and their dates are limited.
- The resulting text contains only dates, times and one-line comments of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import chain, starmap
from typing import Any

from django_dcron.exceptions import InvalidCalendar, InvalidSchedule, TranslatableError
from django_dcron.schedules.calendar_entries import (
    MIDNIGHT,
    clock_range,
    entries_of_time,
    entry_lines,
)
from django_dcron.schedules.calendar_text import WEEKDAYS
from django_dcron.schedules.days import DAY, FIRST_DAY, LAST_DAY
from django_dcron.schedules.recurrence import Recurrence
from django_dcron.schedules.recurrence_text import parse_recurrence
from django_dcron.utils.bounded_text import with_ellipsis
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _

LONGEST_FILE = 1_000_000
"""The maximum length of a file, in bytes."""
YEARS_READ, MAX_YEARS = 5, 20
"""How far ahead events are read by default, and at most."""
MAX_EVENTS = 2000
MAX_DATES = 2000
"""The maximum number of dates of one event."""
MAX_ENTRIES = 10_000
"""The maximum number of entries of a file, such as dates."""
LONGEST_COMMENT = 60

_MISSING = _("iCalendar files need the package “icalendar”: pip install django-dcron[ics]")
_TOO_LARGE = _("The file has %(count)d bytes (allowed: %(most)d).")
_NO_CALENDAR = _("The file is not an iCalendar file: %(problem)s")
_NO_EVENTS = _("The file contains no event from %(first)s to %(last)s.")
_TOO_MANY_ENTRIES = _("The file has events on more than %(most)d dates.")
_OUT_OF_RANGE = _("a date of it is out of range")
_TOO_MANY_EVENTS = _("The file has %(count)d events (allowed: %(most)d).")
_INVALID = _("its %(name)s is invalid")
_NO_DURATION = _("it has no duration")
_TOO_MANY_DATES = _("it has more than %(most)d dates")
_SEVERAL_RULES = _("it has several recurrence rules")
_UNSUPPORTED_RULE = _("its recurrence rule isn't supported: %(problem)s")


@dataclass(frozen=True, slots=True)
class OmittedEvent:
    summary: str
    reason: TranslatableText
    starts_on: date | None = None
    """The date of the first occurrence; None if it's missing or malformed."""

    @property
    def name(self) -> str:
        """The summary, or else the date of the first occurrence. Empty without both."""
        return self.summary or (self.starts_on.isoformat() if self.starts_on else "")


@dataclass(frozen=True, slots=True)
class IcsResult:
    dates: str
    """Entries for ``Calendar.dates``, one per line."""
    omitted: tuple[OmittedEvent, ...]
    """Events that a calendar can't express."""


def can_read_ics() -> bool:
    try:
        _package()
    except InvalidCalendar:
        return False
    return True


def years_later(day: date, years: int) -> date:
    try:
        return day.replace(year=day.year + years)
    except ValueError:  # February 29
        return day.replace(year=day.year + years, day=28)


def read_ics(content: bytes, *, zone: tzinfo, first: date, last: date) -> IcsResult:
    """Convert the events of an iCalendar file from ``first`` to ``last``, both included.

    Times are converted to ``zone``, in which the jobs of the calendar should be scheduled. Events
    that were cancelled are left out. Raises ``InvalidCalendar`` if the content isn't an iCalendar
    file, is larger than ``LONGEST_FILE``, or has no event in this time.
    """
    if len(content) > LONGEST_FILE:
        raise InvalidCalendar(_TOO_LARGE, count=len(content), most=LONGEST_FILE, code="too_long")
    events = _events(content)
    replaced = {_key_of_replaced(event) for event in events if "RECURRENCE-ID" in event}
    lines: dict[str, None] = {}
    omitted = []
    number = 0
    for event in events:
        if str(event.get("STATUS", "")).upper() == "CANCELLED":
            continue
        summary = _summary(event)
        try:
            entries = _Event(event, zone, replaced).entries(first, last)
        except _NotExpressible as error:
            omitted.append(OmittedEvent(summary, error.text, _start_of(event)))
            continue
        except OverflowError:
            text = TranslatableText(_OUT_OF_RANGE)
            omitted.append(OmittedEvent(summary, text, _start_of(event)))
            continue
        number += len(entries)
        if number > MAX_ENTRIES:
            raise InvalidCalendar(_TOO_MANY_ENTRIES, most=MAX_ENTRIES, code="too_many_entries")
        if entries:
            lines |= dict.fromkeys(entry_lines(entries, summary))
    if not lines and not omitted:
        raise InvalidCalendar(
            _NO_EVENTS, first=first.isoformat(), last=last.isoformat(), code="no_events"
        )
    return IcsResult("\n".join(lines), tuple(omitted))


class _NotExpressible(TranslatableError):
    """A calendar can't express the event."""


class _Event:
    def __init__(self, event: Any, zone: tzinfo, replaced: set[tuple[str, date]]):
        self._event = event
        self._zone = zone
        self._replaced = replaced
        for name, _problem in getattr(event, "errors", ()):
            raise _NotExpressible(_INVALID, name=with_ellipsis(str(name), LONGEST_COMMENT))
        start, end = _read(event, "start", "DTSTART"), _read(event, "end", "DTEND")
        self._timed = isinstance(start, datetime)
        self._zone_of_event = start.tzinfo or zone if self._timed else None
        self._time = start.time() if self._timed else MIDNIGHT
        self._day = _date_of(start)
        self._length = _length(start, end)
        if self._length <= timedelta():
            raise _NotExpressible(_NO_DURATION)

    def entries(self, first: date, last: date) -> list[str]:
        """Return the calendar entries of the event, for the dates from ``first`` to ``last``."""
        rule, end, count = self._rule()
        removed = set(map(self._local, _read(self._event, "exdates", "EXDATE")))
        if "RECURRENCE-ID" not in self._event:
            uid = str(self._event.get("UID", ""))
            removed |= {self._local(begin) for key, begin in self._replaced if key == uid}
        added = dict(self._added(*each) for each in _read(self._event, "rdates", "RDATE"))
        is_plain = end == LAST_DAY and count is None and not removed and not added
        recurring = self._recurring_entry(rule) if is_plain and self._day <= first else None
        if recurring is not None:
            return [recurring]
        days = {self._day, *self._days(rule, end, count, first, last)}
        lengths = {datetime.combine(day, self._time): self._length for day in days} | added
        for begin in removed:
            if lengths.pop(begin, None) is None:
                lengths.pop(datetime.combine(begin.date(), self._time), None)
        found: list[str] = []
        for begin, stop in starmap(self._in_zone, sorted(lengths.items())):
            if stop > datetime.combine(first, MIDNIGHT) and begin.date() <= last:
                found += entries_of_time(begin, stop)
        return found

    def _local(self, begin: date) -> datetime:
        """Return the begin of an occurrence in the event's time zone, without the time zone."""
        if not isinstance(begin, datetime):
            return datetime.combine(_date_of(begin), self._time)
        if begin.tzinfo and self._zone_of_event:
            begin = begin.astimezone(self._zone_of_event)
        return begin.replace(tzinfo=None)

    def _added(self, begin: date, end: date | None) -> tuple[datetime, timedelta]:
        """Return the begin and the duration of an additional date."""
        local = self._local(begin)
        length = self._length if end is None else _length(begin, end)
        if length <= timedelta() or not (self._timed or local.time() == MIDNIGHT):
            raise _NotExpressible(_INVALID, name="RDATE")
        return local, length

    def _rule(self) -> tuple[Recurrence | None, date, int | None]:
        """Return the event's rule, its last date and its number of dates, if it has any."""
        rules = _read(self._event, "rrules", "RRULE")
        if not rules:
            return None, LAST_DAY, None
        if len(rules) > 1:
            raise _NotExpressible(_SEVERAL_RULES)
        parts = {str(name).upper(): values for name, values in rules[0].items()}
        until, count = parts.pop("UNTIL", [LAST_DAY])[0], parts.pop("COUNT", [None])[0]
        text = ";".join(f"{name}={','.join(map(str, values))}" for name, values in parts.items())
        if not FIRST_DAY <= self._day <= LAST_DAY:
            raise _NotExpressible(_INVALID, name="DTSTART")
        try:
            rule = parse_recurrence(f"{self._day} {text}").days
        except InvalidSchedule as error:
            raise _NotExpressible(_UNSUPPORTED_RULE, problem=error.text) from None
        if isinstance(until, datetime) and until.tzinfo and self._zone_of_event:
            until = until.astimezone(self._zone_of_event)
            last = until.date() if until.time() >= self._time else until.date() - DAY
        else:
            last = _date_of(until)
        return rule, min(last, LAST_DAY), count

    def _days(
        self, rule: Recurrence | None, end: date, count: int | None, first: date, last: date
    ) -> Iterator[date]:
        """Yield the dates of the rule on which the event may touch ``first`` to ``last``.

        With ``count``, also yields all earlier dates, because they count.
        """
        if rule is None:
            return
        start = self._day if count is not None else max(self._day, first - self._length - 2 * DAY)
        day, number = rule.at_or_after(start), 0
        while day is not None and day <= min(end, last) and (count is None or number < count):
            number += 1
            if number > MAX_DATES:
                raise _NotExpressible(_TOO_MANY_DATES, most=MAX_DATES)
            yield day
            day = rule.at_or_after(day + DAY)

    def _recurring_entry(self, rule: Recurrence | None) -> str | None:
        """Return one entry for all dates of the rule, or None if there is none."""
        if (
            rule is None
            or rule.interval != 1
            or rule.positions
            or rule.year_days
            or self._is_in_other_zone
        ):
            return None
        days = self._length // DAY
        if self._timed:
            if self._length > DAY:
                return None
            begin = datetime.combine(self._day, self._time)
            clock = f" {clock_range(begin, begin + self._length)}"
        elif self._length % DAY:
            return None
        else:
            clock = ""
        if rule.frequency == "WEEKLY" and days <= len(WEEKDAYS):
            if rule.months:
                return None
            covered = range(1 if self._timed else days)
            weekdays = {(first + more) % 7 for first, _number in rule.weekdays for more in covered}
            return ", ".join(f"{WEEKDAYS[each]}{clock}" for each in sorted(weekdays))
        is_one_date = len(rule.months) == len(rule.month_days) == 1 and not rule.weekdays
        if rule.frequency != "YEARLY" or not is_one_date:
            return None
        first = f"{rule.months[0]:02}-{rule.month_days[0]:02}"
        if rule.month_days[0] < 1 or first == "02-29":
            return None
        if self._timed or days == 1:
            return f"{first}{clock}"
        # A range over February 29 has another end in a leap year.
        ends = {
            f"{date.fromisoformat(f'{year}-{first}') + (days - 1) * DAY:%m-%d}"
            for year in (1999, 2000, 2001)
        }
        return f"{first}..{ends.pop()}" if len(ends) == 1 and days < 300 else None

    @property
    def _is_in_other_zone(self) -> bool:
        return self._timed and self._zone_of_event != self._zone

    def _in_zone(self, begin: datetime, length: timedelta) -> tuple[datetime, datetime]:
        """Return the begin and end of an occurrence, in local time without a time zone."""
        if not self._is_in_other_zone:
            return begin, begin + length
        instant = begin.replace(tzinfo=self._zone_of_event).astimezone(UTC)
        begin, stop = (
            each.astimezone(self._zone).replace(tzinfo=None, fold=0)
            for each in (instant, instant + length)
        )
        return begin, stop


def _length(start: date, end: date) -> timedelta:
    """Return the duration by the clock of the start's time zone."""
    if isinstance(start, datetime) and isinstance(end, datetime):
        if (start.tzinfo is None) is not (end.tzinfo is None):
            raise _NotExpressible(_INVALID, name="DTEND")
        if end.tzinfo is not None:
            end = end.astimezone(start.tzinfo)
    return end - start


def _events(content: bytes) -> Sequence[Any]:
    try:
        calendars = _package().Calendar.from_ical(content, multiple=True)
        events = list(chain.from_iterable(each.walk("VEVENT") for each in calendars))
    except InvalidCalendar:
        raise
    except Exception as error:  # The package raises errors of many kinds for malformed content.
        problem = with_ellipsis(" ".join(str(error).split()), 200) or type(error).__name__
        raise InvalidCalendar(_NO_CALENDAR, problem=problem, code="not_icalendar") from None
    if len(events) > MAX_EVENTS:
        raise InvalidCalendar(
            _TOO_MANY_EVENTS, count=len(events), most=MAX_EVENTS, code="too_many_events"
        )
    return events


def _read(event: Any, name: str, property_name: str) -> Any:
    try:
        return getattr(event, name)
    except Exception:  # The package raises errors of many kinds for malformed values.
        raise _NotExpressible(_INVALID, name=property_name) from None


def _key_of_replaced(event: Any) -> tuple[str, date]:
    """Return the UID and the begin of the occurrence that this event replaces."""
    begin: date = FIRST_DAY
    try:
        begin = event["RECURRENCE-ID"].dt
        _date_of(begin)
    except Exception:  # a malformed value; the event itself is then omitted
        begin = FIRST_DAY
    return str(event.get("UID", "")), begin


def _summary(event: Any) -> str:
    found = event.get("SUMMARY", "")
    text = " ".join(str(found[0] if isinstance(found, list) else found).split())
    return with_ellipsis("".join(filter(str.isprintable, text)), LONGEST_COMMENT)


def _start_of(event: Any) -> date | None:
    try:
        return _date_of(event["DTSTART"].dt)
    except Exception:  # The package raises errors of many kinds for malformed values.
        return None


def _date_of(value: Any) -> date:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    raise _NotExpressible(_INVALID, name="RDATE")


def _package() -> Any:
    try:
        import icalendar
    except ImportError:
        raise InvalidCalendar(_MISSING, code="not_installed") from None
    return icalendar
