"""The occurrences of a schedule by brute force: is this second one of them?

A cron expression is a set of values per field. An instant is an occurrence if its local time
matches, with the two daylight-saving rules of Vixie cron for a job at fixed times. (No time field
starts with ``*``.) If the clock skips its time, it runs at the first instant after the gap. If the
clock repeats its time, it runs in the first pass. Both rules apply to changes of at most three
hours.

``H`` stands for one value that nobody but the scheduler knows. It is taken to be the value that
explains most of the job's rows.

A recurrence rule names days (``recurrence``) and times, with the same two rules. Several lines have
the occurrences of each line. Working days (``WD#3``) are the dates that the calendar doesn't
exclude. Without a calendar, they are Monday to Friday.

A calendar excludes local times (``calendars``). If its occurrences move to the next date, the times
in the fields move, and the two rules apply to the new date.

``NotJudged`` is raised for text beyond this: ``L``, ``W``, ``#``, ``H`` in a range or a list, ``H``
in one of several lines, and ``@at`` that moves to the next date.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from tests.verdict.calendars import DAY, Calendar, with_calendar
from tests.verdict.recurrence import Rule

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
SMALL_SHIFT = timedelta(hours=3)
MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


class NotJudged(Exception):
    """The verdict doesn't know this kind of schedule."""


@dataclass(frozen=True)
class Field:
    low: int
    high: int
    names: tuple[str, ...]
    value_at: Callable[[datetime], int]
    """The field's value at a local time."""

    def number(self, text: str) -> int:
        if text in self.names:
            return self.low + self.names.index(text)
        if not text.isdigit():
            raise NotJudged(f"{text!r} in a cron field")
        return int(text)


FIELDS = (
    Field(0, 59, (), lambda at: at.second),
    Field(0, 59, (), lambda at: at.minute),
    Field(0, 23, (), lambda at: at.hour),
    Field(1, 31, (), lambda at: at.day),
    Field(1, 12, tuple(MONTHS), lambda at: at.month),
    Field(0, 6, tuple(WEEKDAYS), lambda at: at.isoweekday() % 7),
    Field(1970, 2099, (), lambda at: at.year),
)
DAY_OF_MONTH, DAY_OF_WEEK = 3, 5


class Timetable:
    """Whether an instant is an occurrence.

    ``phase``: an instant from which ``@every`` counts. ``known``: instants of the job's rows, from
    which the value of ``H`` is taken.
    """

    def __init__(
        self,
        schedule: str,
        timezone: str = "UTC",
        *,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        phase: datetime | None = None,
        known: Iterable[datetime] = (),
        calendar: str | None = None,
        calendar_policy: str = "skip",
    ) -> None:
        self._starts_at, self._ends_at = starts_at, ends_at
        try:
            self._occurs, self._step = _rules(
                schedule, timezone, starts_at, phase, known, calendar, calendar_policy
            )
        except ValueError as error:
            raise NotJudged(str(error)) from error

    def occurs_at(self, instant: datetime) -> bool:
        """Return whether the aware ``instant`` is an occurrence."""
        if self._starts_at is not None and instant < self._starts_at:
            return False
        if self._ends_at is not None and instant > self._ends_at:
            return False
        return self._occurs(instant)

    def between(self, first: datetime, last: datetime) -> list[datetime]:
        """Return the occurrences from ``first`` to ``last``, both included: try each instant."""
        at = first.replace(microsecond=0)
        if at < first:
            at += SECOND
        if self._step == MINUTE:
            at += (60 - at.second) % 60 * SECOND
        found = []
        while at <= last:
            if self.occurs_at(at):
                found.append(at)
            at += self._step
        return found


def _rules(
    schedule: str,
    timezone: str,
    starts_at: datetime | None,
    phase: datetime | None,
    known: Iterable[datetime],
    calendar: str | None,
    policy: str,
) -> tuple[Callable[[datetime], bool], timedelta]:
    """Return a check for occurrences, and the distance of the instants to try."""
    lines = schedule.strip().split("\n")
    if len(lines) > 1 and re.search(r"(?:^|[ ,\n])H", schedule.upper()):
        raise NotJudged("H in one of several lines")
    rules, steps = [], []
    for line in lines:
        occurs, step = _rule(line, timezone, starts_at, phase, known)
        if calendar is not None:
            prefix = re.match(r"(?:CRON_)?TZ=(\S+) ", line.strip())
            zone = ZoneInfo(prefix[1] if prefix else timezone)
            occurs = _in_calendar(occurs, Calendar(calendar), zone, policy, step)
        rules.append(occurs)
        steps.append(step)
    return (lambda instant: any(occurs(instant) for occurs in rules)), min(steps)


def _in_calendar(
    occurs: Callable[[datetime], bool],
    calendar: Calendar,
    zone: ZoneInfo,
    policy: str,
    step: timedelta,
) -> Callable[[datetime], bool]:
    """Return a check for the occurrences that the calendar leaves or moves."""
    # The times in the fields are known for cron expressions and recurrence rules.
    rule = getattr(occurs, "__self__", None)
    fields = rule if isinstance(rule, _Cron) else None
    if fields is not None:
        fields.calendar = calendar
    if policy != "next_day":
        times_of = fields.times_of if fields is not None else None
        return with_calendar(occurs, calendar, partial(_local, zone=zone), policy, step, times_of)
    if fields is None:
        raise NotJudged("a move to the next date without fields")
    fields.moves_to_next_date = True
    return occurs


def _rule(
    schedule: str,
    timezone: str,
    starts_at: datetime | None,
    phase: datetime | None,
    known: Iterable[datetime],
) -> tuple[Callable[[datetime], bool], timedelta]:
    """Return a check for occurrences, and the distance of the instants to try."""
    prefix = re.match(r"(?:CRON_)?TZ=(\S+) ", schedule)
    zone = ZoneInfo(prefix[1] if prefix else timezone)
    text = " ".join(schedule[prefix.end() :].split() if prefix else schedule.split())
    word, _, rest = text.partition(" ")
    word = word.lower()
    if word == "@never":
        return (lambda instant: False), MINUTE
    if word == "@at":
        once = _moment(rest, zone)
        return (lambda instant: instant == once), SECOND
    if word == "@every":
        return _every(rest, starts_at or phase), SECOND
    if word == "@rrule":
        recurring = _Recurring(rest, zone)
        return recurring.occurs_at, MINUTE if recurring.rule.times["BYSECOND"] == {0} else SECOND
    cron = _Cron(MACROS.get(text.lower(), text).upper().split(), zone)
    cron.draw(known)
    # The clocks have changed at whole minutes since 1973.
    return cron.occurs_at, MINUTE if cron.values[0] == {0} else SECOND


def _every(text: str, phase: datetime | None) -> Callable[[datetime], bool]:
    parts = re.fullmatch(r"(?:(\d+)W)?(?:(\d+)D)?(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?", text.upper())
    if parts is None or phase is None:
        raise NotJudged(f"@every {text} that counts from {phase}")
    weeks, days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    interval = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    if not interval:
        raise NotJudged("@every without a length")
    begin = phase + SECOND if phase.microsecond else phase
    begin = begin.replace(microsecond=0)
    return lambda instant: (instant - begin) % interval == timedelta(0)


def _moment(text: str, zone: ZoneInfo) -> datetime:
    given = datetime.fromisoformat(text.upper())
    if given.tzinfo is not None:
        return given.astimezone(UTC)
    at = given.replace(tzinfo=zone).astimezone(UTC)
    if _local(at, zone) == given:
        return at
    while _local(at - SECOND, zone) > given:  # the clock skips this time
        at -= SECOND
    return at


def _local(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None)


class _Cron:
    def __init__(self, texts: list[str], zone: ZoneInfo) -> None:
        if not 5 <= len(texts) <= 7:
            raise NotJudged(f"a schedule of {len(texts)} fields")
        self.texts = texts if len(texts) > 5 else ["0", *texts]
        self.zone = zone
        self.is_fixed = not any(text.startswith("*") for text in self.texts[:3])
        self.values: list[set[int]] = []
        self.working_day = ""
        self.calendar: Calendar | None = None
        self.moves_to_next_date = False

    def draw(self, known: Iterable[datetime]) -> None:
        """Compute the values of each field. ``H`` becomes what most known instants agree with."""
        local = [_local(instant, self.zone) for instant in known]
        if re.fullmatch(r"WD#(\d+|L(-\d+)?)", self.texts[DAY_OF_MONTH]):
            self.working_day = self.texts[DAY_OF_MONTH]
            self.texts[DAY_OF_MONTH] = "1"  # replaced in ``fits``
        for field, text in zip(FIELDS, self.texts, strict=False):
            seen = Counter(map(field.value_at, local))
            choices = [_values(field, text, drawn) for drawn in _possible_draws(field, text)]
            self.values.append(
                max(choices, key=lambda values: sum(seen[value] for value in values))
            )

    def occurs_at(self, instant: datetime) -> bool:
        if instant.microsecond:
            return False
        zoned = instant.astimezone(self.zone)
        local = zoned.replace(tzinfo=None)
        if not self.is_fixed:
            return self.matches(local)
        earlier, later = (zoned.replace(fold=fold).utcoffset() for fold in (0, 1))
        assert earlier is not None
        assert later is not None
        if zoned.fold and earlier - later <= SMALL_SHIFT:  # the second pass
            return False
        return self.matches(local) or any(map(self.matches, self._skipped_before(instant, local)))

    def times_of(self, instant: datetime) -> list[datetime]:
        """Return the local times in the fields that lead to the occurrence at ``instant``."""
        local = _local(instant, self.zone)
        skipped = self._skipped_before(instant, local) if self.is_fixed else []
        return [time for time in (local, *skipped) if self.matches(time)]

    def _skipped_before(self, instant: datetime, local: datetime) -> list[datetime]:
        """Return the local times that the clock skipped just before ``instant``."""
        expected = _local(instant - SECOND, self.zone) + SECOND
        if not timedelta(0) < local - expected <= SMALL_SHIFT:
            return []
        return [expected + number * SECOND for number in range((local - expected) // SECOND)]

    def matches(self, local: datetime) -> bool:
        """Return whether the job runs at the local time, apart from clock changes."""
        if self.calendar is None or not self.moves_to_next_date:
            return self.fits(local)
        if self.calendar.excludes_date(local.date()):
            return False
        source = local
        while not self.fits(source):
            source -= DAY
            if not self.calendar.excludes_date(source.date()):
                return False
        return True

    def fits(self, local: datetime) -> bool:
        """Return whether the fields name the local time."""
        starred = False
        day_fits = []
        for number, (field, values) in enumerate(zip(FIELDS, self.values, strict=False)):
            fits = field.value_at(local) in values
            if number == DAY_OF_MONTH and self.working_day:
                fits = _is_working_day(local.date(), self.working_day[3:], self.calendar)
            if number in (DAY_OF_MONTH, DAY_OF_WEEK):
                starred |= self.texts[number][0] in "*?"
                day_fits.append(fits)
            elif not fits:
                return False
        return all(day_fits) if starred else any(day_fits)


class _Recurring(_Cron):
    """The times of a recurrence rule, with the daylight-saving rules of a job at fixed times."""

    def __init__(self, text: str, zone: ZoneInfo) -> None:
        try:
            self.rule = Rule(text)
        except ValueError as error:
            raise NotJudged(str(error)) from error
        self.zone, self.is_fixed = zone, True
        self.calendar, self.moves_to_next_date = None, False

    def fits(self, local: datetime) -> bool:
        times = self.rule.times
        return (
            local.hour in times["BYHOUR"]
            and local.minute in times["BYMINUTE"]
            and local.second in times["BYSECOND"]
            and self.rule.falls_on(local.date())
        )


def _is_working_day(day: date, wanted: str, calendar: Calendar | None) -> bool:
    """Return whether the day is the n-th, or the last but n, working day of its month."""
    month = [day.replace(day=1) + number * DAY for number in range(31)]
    days = [each for each in month if each.month == day.month and _is_open(each, calendar)]
    if wanted.startswith("L"):
        days, wanted = days[::-1], str(int(wanted[2:] or "0") + 1)
    return day in days[int(wanted) - 1 : int(wanted)]


def _is_open(day: date, calendar: Calendar | None) -> bool:
    return day.weekday() < 5 if calendar is None else not calendar.excludes_date(day)


def _possible_draws(field: Field, text: str) -> range:
    """Return the values that ``H`` may stand for."""
    step = re.fullmatch(r"H(?:/(\d+))?", text)
    if step is None:
        return range(1)
    if step[1] is not None:
        return range(field.low, field.low + int(step[1]))
    return range(field.low, min(field.high, 28 if field is FIELDS[DAY_OF_MONTH] else 9999) + 1)


def _values(field: Field, text: str, drawn: int) -> set[int]:
    """Return the values of a field's text, with ``H`` replaced by ``drawn``."""
    if step := re.fullmatch(r"H(?:/(\d+))?", text):
        highest = 28 if field is FIELDS[DAY_OF_MONTH] else field.high
        return set(range(drawn, highest + 1, int(step[1]))) if step[1] else {drawn}
    values: set[int] = set()
    for item in text.split(","):
        span, _, step_text = item.partition("/")
        low, dash, high = span.partition("-")
        if span in ("*", "?"):
            bounds = field.low, field.high
        elif dash:
            bounds = field.number(low), field.number(high)
            if high == "SUN" and bounds[0]:
                bounds = bounds[0], 7
        else:
            first = field.number(low)
            bounds = first, max(field.high, first) if step_text else first
        values.update(range(bounds[0], bounds[1] + 1, int(step_text or 1)))
    return {value % 7 for value in values} if field is FIELDS[DAY_OF_WEEK] else values
