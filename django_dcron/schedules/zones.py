"""Represent time zones as periods of constant UTC offset.

``zoneinfo`` returns only the offset at an instant. To find the transitions of a block of years,
this module compares the offsets in steps of ``SLACK``. It bisects each step that has a change.

Invariants:

- The periods of a block are contiguous and cover the block.
- A block's edge is also a period's edge. An edge isn't necessarily a transition: the offset may
  stay the same.
- No zone of the tz database changes twice within ``SLACK``. The closest changes are Freetown's in
  1939, four days apart.
- No transition shifts local time by ``SLACK`` or more.
- Instants are naive UTC datetimes in whole seconds, from ``FIRST`` (included) to ``LAST``
  (excluded).
"""

# ruff: noqa: DTZ001 -- a naive datetime is UTC here

import re
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

from django_dcron.exceptions import InvalidTimeZone
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.suggestions import similar_names

FIRST = datetime(2, 1, 1)
LAST = datetime(9999, 1, 1)
SLACK = timedelta(days=2)
"""Shorter than the time between any two transitions, longer than any shift of local time."""
SECOND = timedelta(seconds=1)

_BLOCK_YEARS = 8
# Names that some systems offer although they depend on the machine or aren't time zones.
_NOT_ZONES = {"localtime", "posixrules", "Factory"}

_OFFSET = re.compile(r"(?:Etc/)?(?:GMT|UTC)\s*[+-]\s*\d", re.IGNORECASE)
"""A name that means an offset. Similar names of zones mean other ones: Etc/GMT+1 is UTC-1."""

_UNKNOWN = _("Unknown time zone %(value)s. Use a name from the tz database, such as Europe/Berlin.")
_MISSPELLED = _("Unknown time zone %(value)s. Did you mean %(near)s?")


@dataclass(frozen=True, slots=True)
class OffsetPeriod:
    """A period ``start <= instant < end`` in UTC, its UTC offset and the offset just before it."""

    start: datetime
    end: datetime
    offset: timedelta
    offset_before: timedelta

    @property
    def shown_before(self) -> datetime:
        """The local time at the start by the old offset; naive."""
        return self.start + self.offset_before

    @property
    def shown_after(self) -> datetime:
        """The local time at the start by the new offset; naive."""
        return self.start + self.offset


def check_zone(name: object) -> str:
    """Return the name if it is a zone of the tz database; otherwise raise ``InvalidTimeZone``."""
    if isinstance(name, str) and name in _zone_names():
        return str(name)
    may_be_misspelled = isinstance(name, str) and not _OFFSET.match(name)
    known = similar_names(str(name), _zone_names(), most=1) if may_be_misspelled else []
    if not known:
        raise InvalidTimeZone(_UNKNOWN, value=f"{name!r:.80}", code="unknown_zone")
    raise InvalidTimeZone(
        _MISSPELLED, value=f"{name!r:.80}", near=repr(known[0]), code="unknown_zone"
    )


def date_in(zone: str, instant: datetime) -> date:
    """Return the date of ``instant``, an aware time, in ``zone``, or in UTC if it is unknown."""
    name = zone if zone in _zone_names() else "UTC"
    return instant.astimezone(ZoneInfo(name)).date()


def offset_period_at(zone: str, instant: datetime) -> OffsetPeriod:
    """Return the period of ``zone`` that contains ``instant`` (``FIRST <= instant < LAST``)."""
    starts, periods = _block(zone, instant.year // _BLOCK_YEARS)
    return periods[bisect_right(starts, instant) - 1]


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    return frozenset(available_timezones() - _NOT_ZONES)


@lru_cache(maxsize=4096)
def _block(zone: str, number: int) -> tuple[tuple[datetime, ...], tuple[OffsetPeriod, ...]]:
    """Return the starts of a block's periods, for bisecting, and the periods."""
    tz = ZoneInfo(zone)
    begin = max(FIRST, datetime(max(1, number * _BLOCK_YEARS), 1, 1))
    end = min(LAST, datetime(min(9999, (number + 1) * _BLOCK_YEARS), 1, 1))
    edges = [begin, *_transitions(tz, begin, end), end]
    periods = tuple(
        OffsetPeriod(start, stop, _offset(tz, start), _offset(tz, start - SECOND))
        for start, stop in pairwise(edges)
    )
    return tuple(period.start for period in periods), periods


def _transitions(tz: ZoneInfo, begin: datetime, end: datetime) -> list[datetime]:
    """Return the instants strictly between ``begin`` and ``end`` at which a new offset begins."""
    found = []
    left = begin
    while left < end:
        right = min(left + SLACK, end)
        if _offset(tz, left) != _offset(tz, right):
            found.append(_bisect(tz, left, right))
        left = right
    return [edge for edge in found if edge < end]


def _bisect(tz: ZoneInfo, left: datetime, right: datetime) -> datetime:
    """Return the first instant after ``left`` whose offset differs from that of ``left``."""
    before = _offset(tz, left)
    while right - left > SECOND:
        middle = left + (right - left) // SECOND // 2 * SECOND
        if _offset(tz, middle) == before:
            left = middle
        else:
            right = middle
    return right


def _offset(tz: ZoneInfo, instant: datetime) -> timedelta:
    local = instant.replace(tzinfo=UTC).astimezone(tz)
    return local.replace(tzinfo=None) - instant
