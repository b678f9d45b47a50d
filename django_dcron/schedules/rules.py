"""The rules of schedule lines: each computes the occurrences of one kind of line.

Instants are naive UTC. Results of cron fields are within the horizon.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from django_dcron.schedules.cron import Cron
from django_dcron.schedules.daylight import next_instant, previous_instant
from django_dcron.schedules.days import HORIZON
from django_dcron.schedules.windows import Windowed
from django_dcron.schedules.zones import FIRST, LAST, SECOND

if TYPE_CHECKING:
    from django_dcron.schedules.schedule import Schedule


class WallClock(NamedTuple):
    """Cron fields in the local time of a zone."""

    cron: Cron
    zone: str

    def next_after(self, instant: datetime) -> datetime | None:
        found = next_instant(self.cron, self.zone, instant.replace(microsecond=0) + SECOND)
        return found if found is not None and found - instant <= HORIZON else None

    def previous_before(self, instant: datetime) -> datetime | None:
        whole = instant.replace(microsecond=0)
        found = previous_instant(self.cron, self.zone, whole if whole < instant else whole - SECOND)
        return found if found is not None and instant - found <= HORIZON else None


class Every(NamedTuple):
    """``@every``: elapsed time from the caller's instant, exact to the microsecond."""

    interval: timedelta

    def next_after(self, instant: datetime) -> datetime | None:
        return instant + self.interval if self.interval < LAST - instant else None

    def previous_before(self, instant: datetime) -> datetime | None:
        return instant - self.interval if self.interval < instant - FIRST else None


class Once(NamedTuple):
    """``@at``: one instant (naive UTC)."""

    at: datetime

    def next_after(self, instant: datetime) -> datetime | None:
        return self.at if self.at > instant else None

    def previous_before(self, instant: datetime) -> datetime | None:
        return self.at if self.at < instant else None


class Never(NamedTuple):
    """``@never``: no occurrences."""

    def next_after(self, instant: datetime) -> None:
        return None

    def previous_before(self, instant: datetime) -> None:
        return None


class AnyOf(NamedTuple):
    """Several lines: the occurrences of each of them."""

    lines: tuple[Schedule, ...]

    def next_after(self, instant: datetime) -> datetime | None:
        found = (line.rule.next_after(instant) for line in self.lines)
        return min(filter(None, found), default=None)

    def previous_before(self, instant: datetime) -> datetime | None:
        found = (line.rule.previous_before(instant) for line in self.lines)
        return max(filter(None, found), default=None)


Rule = WallClock | Every | Once | Never | Windowed | AnyOf
