"""Count a schedule's occurrences per hour and per minute from its fields, without listing them.

The day rule determines the dates; the fields determine the hours, minutes and seconds. A table for
each time zone maps its local hours to real hours.

Invariants:

- The cost of ``occurrences`` depends on the matching dates and hours only, and on the excluded
  times of each date. A job that runs each second costs as much as an hourly job. For several lines,
  and in ``minutes``, the cost also depends on the matching minutes.
- The counts equal those of ``Schedule.occurrences``, except near a clock change in the schedule's
  time zone. On that day, a fixed-time schedule (see ``daylight``) is counted by the wall clock. The
  same applies to an hour in whose middle the clocks change.
- A calendar with times excludes local times of the fields.
- ``starts_at`` and ``ends_at`` are respected to the hour.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from django_dcron.schedules.cron import Cron
from django_dcron.schedules.rules import AnyOf, Every, Never, Once, WallClock
from django_dcron.schedules.timetable import Timetable
from django_dcron.schedules.windows import Windowed
from django_dcron.schedules.zones import SECOND, offset_period_at

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
_MICROSECOND = timedelta(microseconds=1)


class HourPart(NamedTuple):
    """The part of a real hour that lies in one local hour: the minutes ``low <= minute < high``."""

    hour: int
    low: int
    high: int

    def minutes(self, values: Sequence[int]) -> Sequence[int]:
        """Return the sorted ``values`` that lie in this part."""
        if self.high - self.low == 60:
            return values
        return values[bisect_left(values, self.low) : bisect_left(values, self.high)]

    def real_minute(self, minute: int) -> int:
        """Return the number of the real minute, from 0 over all hours, at this local minute."""
        return self.hour * 60 + (minute - self.low if self.high == 60 else 60 - self.high + minute)


class RealHours:
    """``count`` consecutive real hours, numbered from 0; ``begin`` is aware, at a whole minute."""

    def __init__(self, begin: datetime, count: int) -> None:
        self.begin = begin.astimezone(UTC)
        self.count = count
        self._zones: dict[str, dict[date, dict[int, list[HourPart]]]] = {}

    def number_of(self, instant: datetime) -> int:
        """Return the number of the hour that contains the instant.

        The number is negative or at least ``count`` if the instant is outside.
        """
        return (instant - self.begin) // HOUR

    def occurrences(
        self, timetable: Timetable, phase: datetime | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yield hours with their number of occurrences; hours without occurrences are omitted.

        ``phase`` is one of the occurrences, which sets the phase of an ``@every`` schedule.
        """
        rule = timetable.schedule.rule
        if isinstance(rule, WallClock):
            seconds = len(rule.cron.second.values)
            for part in self.parts(rule, timetable):
                if number := len(part.minutes(rule.cron.minute.values)):
                    yield part.hour, seconds * number
            return
        if isinstance(rule, Windowed) and isinstance(rule.rule, WallClock):
            yield from self._windowed_hours(rule, rule.rule, timetable)
            return
        if isinstance(rule, AnyOf | Windowed):
            hours: Counter[int] = Counter()
            for minute, number in self.minutes(timetable):
                hours[minute // 60] += number
            yield from sorted(hours.items())
            return
        inside = self._inside(timetable)
        if isinstance(rule, Never):
            return
        if isinstance(rule, Every):
            for hour, number in self._occurrences_per_unit(
                rule.interval, phase or self.begin, HOUR, inside
            ):
                if number:
                    yield hour, number
        elif (hour := self.number_of(rule.at.replace(tzinfo=UTC))) in inside:
            yield hour, 1

    def minutes(
        self, timetable: Timetable, phase: datetime | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yield minutes with their number of occurrences; minutes without occurrences are omitted.

        Minutes are numbered from 0 over all hours. ``phase`` is as in ``occurrences``.
        ``starts_at`` and ``ends_at`` are respected to the minute.
        """
        rule = timetable.schedule.rule
        if isinstance(rule, Every):
            for number, occurrences in self._occurrences_per_unit(
                rule.interval, phase or self.begin, MINUTE, self._minutes_inside(timetable)
            ):
                if occurrences:
                    yield number, occurrences
        elif isinstance(rule, AnyOf | Windowed):
            found: dict[int, set[int]] = {}
            for line in timetable.schedule.lines:
                for number, seconds in self._seconds(line.rule, timetable):
                    found.setdefault(number, set()).update(seconds)
            for number in sorted(found):
                yield number, len(found[number])
        else:
            for number, seconds in self._seconds(rule, timetable):
                yield number, len(seconds)

    def _seconds(self, rule: object, timetable: Timetable) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield minutes with the seconds of their occurrences; the rule is one line."""
        bounds = self._minutes_inside(timetable)
        if isinstance(rule, WallClock):
            for part in self.parts(rule, timetable):
                for minute in part.minutes(rule.cron.minute.values):
                    if (number := part.real_minute(minute)) in bounds:
                        yield number, rule.cron.second.values
        elif isinstance(rule, Windowed):
            yield from self._windowed(rule, timetable)
        elif isinstance(rule, Once):
            at = rule.at.replace(tzinfo=UTC)
            if (number := (at - self.begin) // MINUTE) in bounds:
                yield number, (at.second,)

    def _windowed(
        self, rule: Windowed, timetable: Timetable
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield minutes as ``_seconds`` does; the end of an excluded time may be yielded twice."""
        bounds, ends = self._minutes_inside(timetable), self._first_ends(rule)
        if isinstance(rule.rule, WallClock):
            for part, minutes in self._open_minutes(rule, rule.rule, ends):
                for minute in minutes:
                    if (number := part.real_minute(minute)) in bounds:
                        yield number, rule.rule.cron.second.values
        else:
            begin = self.begin.replace(tzinfo=None)
            for number, seconds in self._seconds(rule.rule, Timetable(timetable.schedule)):
                if rule.excludes(begin + number * MINUTE):
                    ends.add(rule.open_from(begin + number * MINUTE))
                elif number in bounds:
                    yield number, seconds
        for number in self._ends_inside(rule, ends, bounds):
            yield number, (0,)

    def _windowed_hours(
        self, rule: Windowed, own: WallClock, timetable: Timetable
    ) -> Iterator[tuple[int, int]]:
        """Yield hours with their number of occurrences, without counting minute by minute."""
        bounds, ends = self._minutes_inside(timetable), self._first_ends(rule)
        seconds = len(own.cron.second.values)
        hours: Counter[int] = Counter()
        for part, minutes in self._open_minutes(rule, own, ends):
            first, last = part.real_minute(part.low), part.real_minute(part.high - 1)
            if first in bounds and last in bounds:
                hours[part.hour] += seconds * len(minutes)
            else:
                inside = sum(part.real_minute(minute) in bounds for minute in minutes)
                hours[part.hour] += seconds * inside
        for number in self._ends_inside(rule, ends, bounds):
            instant = self.begin.replace(tzinfo=None) + number * MINUTE
            local = instant + offset_period_at(own.zone, instant).offset
            hours[number // 60] += not (0 in own.cron.second.values and _matches(own.cron, local))
        yield from sorted((hour, number) for hour, number in hours.items() if number)

    def _first_ends(self, rule: Windowed) -> set[datetime | None]:
        """Return the end of the excluded time in which the hours begin, if it has an occurrence."""
        before = self.begin.replace(tzinfo=None) - SECOND
        if not (rule.moves and rule.excludes(before)):
            return set()
        end = rule.open_from(before)
        return {end} if rule.next_after(before) == end else set()

    def _ends_inside(
        self, rule: Windowed, ends: set[datetime | None], bounds: range
    ) -> Iterator[int]:
        if rule.moves:
            for end in filter(None, ends):
                if (number := (end - self.begin.replace(tzinfo=None)) // MINUTE) in bounds:
                    yield number

    def _open_minutes(
        self, rule: Windowed, own: WallClock, ends: set[datetime | None]
    ) -> Iterator[tuple[HourPart, Sequence[int]]]:
        """Yield the parts of hours with their minutes that aren't excluded.

        Excluded times begin and end at whole minutes. The ends of those with occurrences are added
        to ``ends``.
        """
        for day, hours in self._parts_of(own.zone).items():
            if not own.cron.days.on(day):
                continue
            excluded = rule.calendar.excluded_times(day)
            for hour in own.cron.hour.values:
                for part in hours.get(hour, ()):
                    minutes = part.minutes(own.cron.minute.values)
                    for begin, end in excluded:
                        low = bisect_left(minutes, begin // 60 - hour * 60)
                        high = bisect_left(minutes, end // 60 - hour * 60)
                        if low < high:
                            at = self.begin.replace(tzinfo=None)
                            at += part.real_minute(minutes[low]) * MINUTE
                            if rule.moves:
                                ends.add(rule.open_from(at))
                            minutes = [*minutes[:low], *minutes[high:]]
                    yield part, minutes

    def parts(self, rule: WallClock, timetable: Timetable) -> Iterator[HourPart]:
        """Yield the parts of the local hours that the timetable's cron fields match."""
        inside = self._inside(timetable)
        for day, hours in self._parts_of(rule.zone).items():
            if rule.cron.days.on(day):
                for hour in rule.cron.hour.values:
                    for part in hours.get(hour, ()):
                        if part.hour in inside:
                            yield part

    def _inside(self, timetable: Timetable) -> range:
        """Return the hours from the timetable's start to its end."""
        first = self.number_of(timetable.starts_at) if timetable.starts_at else 0
        last = self.number_of(timetable.ends_at) if timetable.ends_at else self.count
        return range(max(first, 0), min(last + 1, self.count))

    def _minutes_inside(self, timetable: Timetable) -> range:
        """Return the minutes from the timetable's start to its end."""
        first = (timetable.starts_at - self.begin) // MINUTE if timetable.starts_at else 0
        last = (timetable.ends_at - self.begin) // MINUTE if timetable.ends_at else self.count * 60
        return range(max(first, 0), min(last + 1, self.count * 60))

    def _occurrences_per_unit(
        self, interval: timedelta, phase: datetime, unit: timedelta, inside: range
    ) -> Iterator[tuple[int, int]]:
        """Yield each unit of time in ``inside`` with its number of ``@every`` occurrences."""
        step, length = interval // _MICROSECOND, unit // _MICROSECOND
        ahead = (phase - self.begin) // _MICROSECOND
        # The index, counted from ``phase``, of the first occurrence at or after ``inside``'s start.
        before = -((ahead - inside.start * length) // step)
        for number in inside:
            following = -((ahead - (number + 1) * length) // step)
            yield number, following - before
            before = following

    def _parts_of(self, zone: str) -> dict[date, dict[int, list[HourPart]]]:
        """Map each local date and hour of the zone to the parts of real hours in which it occurs.

        A local hour has no parts where clocks go forward, and twice as many where they go back.
        """
        if zone not in self._zones:
            days: dict[date, dict[int, list[HourPart]]] = {}
            begin = self.begin.replace(tzinfo=None)
            for number in range(self.count):
                instant = begin + number * HOUR
                local = instant + offset_period_at(zone, instant).offset
                _add(days, local, HourPart(number, local.minute, 60))
                if local.minute:
                    _add(days, local + HOUR, HourPart(number, 0, local.minute))
            self._zones[zone] = days
        return self._zones[zone]


class RealMinute:
    """One minute of real time."""

    def __init__(self, instant: datetime) -> None:
        self.begin = instant.astimezone(UTC).replace(second=0, microsecond=0)
        self._local: dict[str, datetime] = {}

    def has_start(self, timetable: Timetable, phase: datetime | None = None) -> bool:
        """Return whether an occurrence falls in this minute.

        ``phase`` is as in ``RealHours.occurrences``.
        """
        if timetable.starts_at and timetable.starts_at >= self.begin + MINUTE:
            return False
        if timetable.ends_at and timetable.ends_at < self.begin:
            return False
        rule = timetable.schedule.rule
        if isinstance(rule, AnyOf):
            return any(self.has_start(replace(timetable, schedule=line)) for line in rule.lines)
        if isinstance(rule, Windowed):
            before, last = self.begin - _MICROSECOND, self.begin + MINUTE - _MICROSECOND
            return any(timetable.schedule.occurrences(before, last, 1))
        if isinstance(rule, WallClock):
            return _matches(rule.cron, self._shown(rule.zone))
        if isinstance(rule, Every):
            return -(self.begin - (phase or self.begin)) % rule.interval < MINUTE
        if isinstance(rule, Never):
            return False
        return rule.at.replace(second=0, tzinfo=UTC) == self.begin

    def _shown(self, zone: str) -> datetime:
        """Return the minute in the zone's local time."""
        if zone not in self._local:
            naive = self.begin.replace(tzinfo=None)
            self._local[zone] = naive + offset_period_at(zone, naive).offset
        return self._local[zone]


def _matches(cron: Cron, local: datetime) -> bool:
    """Return whether the fields match the minute."""
    return (
        local.minute in cron.minute.values
        and local.hour in cron.hour.values
        and cron.days.on(local.date())
    )


def _add(days: dict[date, dict[int, list[HourPart]]], local: datetime, part: HourPart) -> None:
    days.setdefault(local.date(), {}).setdefault(local.hour, []).append(part)
