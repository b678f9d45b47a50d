"""Parse schedule text and a time zone into a ``Schedule``, which computes occurrences.

There are five kinds of lines:

- cron fields or a macro: wall-clock times of the zone (see ``daylight``)
- ``@rrule``: wall-clock times on the days of a recurrence rule (see ``recurrence``)
- ``@every``: elapsed time, counted from the previous occurrence
- ``@at``: one instant
- ``@never``: no occurrences; the job runs only manually or after other jobs

A text of several lines has the occurrences of all its lines. ``@every`` and ``@never`` stand alone.

Invariants:

- A schedule is a value: frozen, hashable, safe to share between threads, a pure function of (text,
  zone, hash key, calendar).
- Occurrences are aware UTC datetimes. They strictly increase, and are strictly after (or before)
  the given instant. An instant of several lines is one occurrence.
- Text and zone raise no error but ``InvalidSchedule``. Beyond the supported dates, the result is
  None, never an ``OverflowError``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice

from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.calendar import ExcludedDates, ExclusionPolicy
from django_dcron.schedules.cron import draw_fields
from django_dcron.schedules.rule_text import parse_rule
from django_dcron.schedules.rules import AnyOf, Every, Never, Once, Rule, WallClock
from django_dcron.schedules.special_days import NthWorkingDay
from django_dcron.schedules.windows import Windowed
from django_dcron.schedules.zones import FIRST, LAST, check_zone
from django_dcron.utils.messages import TOO_LONG
from django_dcron.utils.messages import gettext_noop as _

MAX_LENGTH = 1000
"""The maximum number of characters of all lines."""
MAX_LINE_LENGTH = 255
MAX_LINES = 20

_HASHED = re.compile(r"(?:^|[ ,\n])H", re.IGNORECASE)
_PREFIX = re.compile(r"(?:CRON_)?TZ=(\S*) ?")


@dataclass(frozen=True)
class Schedule:
    """A job's schedule, created by ``parse_schedule``.

    Schedules are equal if their text, zone, calendar and (for ``H``) hash key are equal. ``text``
    is the given text with single spaces. ``timezone`` is the effective zone (a ``CRON_TZ=`` prefix
    takes precedence). If the lines have different zones, it is the given zone.
    ``exclusion.apply_calendar`` creates schedules with a ``calendar``.
    """

    text: str
    timezone: str
    hash_key: str
    rule: Rule = field(compare=False, repr=False)
    calendar: ExcludedDates | None = None
    exclusion: ExclusionPolicy = ExclusionPolicy.SKIP

    @property
    def interval(self) -> timedelta | None:
        """The interval of an ``@every`` schedule, else None."""
        return self.rule.interval if isinstance(self.rule, Every) else None

    @property
    def lines(self) -> tuple[Schedule, ...]:
        """A schedule for each line of the text."""
        return self.rule.lines if isinstance(self.rule, AnyOf) else (self,)

    @property
    def wall_clock(self) -> WallClock | None:
        """The cron fields of a line, before a calendar with times is applied."""
        rule = self.rule.rule if isinstance(self.rule, Windowed) else self.rule
        return rule if isinstance(rule, WallClock) else None

    @property
    def without_calendar(self) -> Schedule:
        """The schedule of the text alone."""
        return self if self.calendar is None else _parse(self.text, self.timezone, self.hash_key)

    @property
    def at(self) -> datetime | None:
        """The instant of an ``@at`` before a calendar moves it (aware UTC), else None."""
        rule = self.without_calendar.rule
        return rule.at.replace(tzinfo=UTC) if isinstance(rule, Once) else None

    @property
    def counts_every_date(self) -> bool:
        """Whether ``WD#n`` counts every date as a working day, because of the calendar."""
        if self.calendar is None or not any(map(_counts_working_days, self.lines)):
            return False
        return not self.calendar.excludes_dates

    @property
    def is_never(self) -> bool:
        """Whether this is an ``@never`` schedule."""
        return isinstance(self.rule, Never)

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first occurrence strictly after an aware ``instant``, in UTC.

        Returns None if there is none within 50 years. For ``@every`` this is ``instant`` plus the
        interval. A naive datetime raises ``ValueError``.
        """
        utc = _naive_utc(instant)
        return utc and _aware(self.rule.next_after(utc))

    def previous_before(self, instant: datetime) -> datetime | None:
        """Return the last occurrence strictly before ``instant``; mirrors ``next_after``."""
        utc = _naive_utc(instant)
        return utc and _aware(self.rule.previous_before(utc))

    def occurrences(
        self, after: datetime, until: datetime, limit: int | None = None
    ) -> Iterator[datetime]:
        """Yield at most ``limit`` occurrences in ``(after, until]``."""
        for instant in (after, until):
            _naive_utc(instant)  # Raise here, not at the first item.
        return islice(self._between(after, until), limit)

    def __str__(self) -> str:
        return self.text

    def _between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        found = self.next_after(after)
        while found is not None and found <= until:
            yield found
            found = self.next_after(found)


def parse_schedule(text: str, timezone: str = "UTC", *, hash_key: str = "") -> Schedule:
    """Parse schedule text; the result is cached.

    ``timezone`` is a zone of the tz database. ``hash_key`` is the job's identity, from which ``H``
    draws.

    Raises ``InvalidSchedule``, whose message names the field, the value and what is allowed.
    """
    plain = _plain_text(text)
    # Only schedules with an ``H`` depend on the key. All jobs share the others.
    return _parse(plain, check_zone(timezone), hash_key if has_hash(plain) else "")


def parse_with_drawn_values(text: str, timezone: str = "UTC", *, hash_key: str) -> Schedule:
    """Return the schedule with each ``H`` in the text replaced by its drawn values.

    It is equal for all keys that draw the same values.
    """
    drawn = "\n".join(_drawn_line(line, hash_key) for line in _plain_text(text).split("\n"))
    return _parse(drawn, check_zone(timezone), "")


def _drawn_line(line: str, hash_key: str) -> str:
    if not has_hash(line):
        return line
    prefix = _PREFIX.match(line)
    start = prefix.end() if prefix else 0
    return line[:start] + draw_fields(line[start:], hash_key)


def has_hash(text: str) -> bool:
    """Return whether schedule text contains an ``H``."""
    return _HASHED.search(text) is not None


def _plain_text(text: object) -> str:
    """Return the lines with single spaces; rejects non-text, long text and non-ASCII text."""
    if not isinstance(text, str):
        raise InvalidSchedule(
            _("Schedule %(value)s is not text. Use a string, such as '*/5 * * * *'."),
            value=f"{text!r:.80}",
            code="not_text",
        )
    _check_length(text, MAX_LENGTH if "\n" in text else MAX_LINE_LENGTH)
    if not text.isascii():
        first_non_ascii = next(char for char in text if not char.isascii())
        raise InvalidSchedule(
            _("The schedule contains %(value)s. Use ASCII characters only."),
            value=ascii(first_non_ascii),
            code="not_ascii",
        )
    if "\n" not in text:
        return " ".join(text.split())
    lines = [plain for line in text.split("\n") if (plain := " ".join(line.split()))]
    if len(lines) > MAX_LINES:
        raise InvalidSchedule(
            _("The schedule has %(count)d lines. Use at most %(most)d."),
            count=len(lines),
            most=MAX_LINES,
            code="too_many_lines",
        )
    for line in lines:
        _check_length(line, MAX_LINE_LENGTH)
    return "\n".join(lines)


def _check_length(text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidSchedule(TOO_LONG, count=len(text), most=most, code="too_long")


@lru_cache(maxsize=4096)
def _parse(text: str, zone: str, hash_key: str) -> Schedule:
    if "\n" in text:
        return _parse_lines(text, zone, hash_key)
    body = text
    if prefix := _PREFIX.match(text):
        zone, body = check_zone(prefix[1]), text[prefix.end() :]
    return Schedule(text, zone, hash_key, parse_rule(body, zone, hash_key))


def _parse_lines(text: str, zone: str, hash_key: str) -> Schedule:
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            schedule = _parse(line, zone, hash_key if has_hash(line) else "")
        except InvalidSchedule as error:
            raise InvalidSchedule(
                _("Line %(line)d: %(problem)s"), line=number, problem=error.text, code=error.code
            ) from None
        if isinstance(schedule.rule, Every | Never):
            raise InvalidSchedule(
                _("Line %(line)d: %(value)s can't be combined with other lines."),
                line=number,
                value=repr(line),
                code="not_combinable",
            )
        lines.append(schedule)
    zones = {line.timezone for line in lines}
    return Schedule(text, zones.pop() if len(zones) == 1 else zone, hash_key, AnyOf(tuple(lines)))


def _counts_working_days(line: Schedule) -> bool:
    """Return whether the line has a ``WD#n``."""
    specials = line.wall_clock.cron.day_of_month.specials if line.wall_clock else ()
    return any(isinstance(special, NthWorkingDay) for special in specials)


def _naive_utc(instant: datetime) -> datetime | None:
    """Return the instant in naive UTC, or None outside the supported dates."""
    if not isinstance(instant, datetime):
        raise TypeError(f"Expected an aware datetime, not {type(instant).__name__}")
    if instant.utcoffset() is None:
        raise ValueError(f"{instant!r} has no time zone. Use an aware datetime.")
    try:
        utc = instant.astimezone(UTC).replace(tzinfo=None)
    except OverflowError:
        return None
    return utc if FIRST <= utc < LAST else None


def _aware(found: datetime | None) -> datetime | None:
    return found and found.replace(tzinfo=UTC)
