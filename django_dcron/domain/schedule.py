"""Schedule text and time zone -> `Schedule`: the instants at which a job falls due.

Four kinds of text: cron fields or a macro (wall-clock times of the zone, see `daylight`), `@every` (elapsed time,
counted from the previous occurrence), `@at` (one instant) and `@never` (a job that runs by hand or after others only). Invariants:
- a schedule is a value: frozen, hashable, shared between threads, a pure function of (text, zone, hash key, calendar);
- occurrences are aware UTC datetimes, strictly increasing, strictly after (before) what was asked;
- the only error text or zone can raise is `InvalidSchedule`; the calendar's end is None, never an OverflowError.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from django_dcron.domain.calendar import Calendar, ExclusionPolicy
from django_dcron.domain.cron import Cron, draw_fields, parse_cron
from django_dcron.domain.daylight import next_instant, previous_instant
from django_dcron.domain.days import HORIZON
from django_dcron.domain.zones import FIRST, LAST, SECOND, SLACK, check_zone
from django_dcron.exceptions import InvalidSchedule
from django_dcron.phrases import ENGLISH, Language
from django_dcron.phrases import gettext_noop as _

MAX_LENGTH = 255
MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
NEVER = "@never"

_HASHED = re.compile("(?:^|[ ,])H", re.IGNORECASE)
_PREFIX = re.compile(r"(?:CRON_)?TZ=(\S*) ?")


class WallClock(NamedTuple):
    """Cron fields read by the clocks of a zone."""

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
    """`@every`: elapsed time; the phase is that of the caller's instant, to the microsecond."""

    interval: timedelta

    def next_after(self, instant: datetime) -> datetime | None:
        return instant + self.interval if self.interval < LAST - instant else None

    def previous_before(self, instant: datetime) -> datetime | None:
        return instant - self.interval if self.interval < instant - FIRST else None


class Once(NamedTuple):
    """`@at`: one instant (naive UTC)."""

    at: datetime

    def next_after(self, instant: datetime) -> datetime | None:
        return self.at if self.at > instant else None

    def previous_before(self, instant: datetime) -> datetime | None:
        return self.at if self.at < instant else None


class Never(NamedTuple):
    """`@never`: no instant at all."""

    def next_after(self, instant: datetime) -> None:
        return None

    def previous_before(self, instant: datetime) -> None:
        return None


@dataclass(frozen=True)
class Schedule:
    """When a job falls due. Made by `parse_schedule`; equal if text, zone, (for `H`) hash key and calendar are.

    `text` is the text as given, with single spaces; `timezone` the zone in effect (a `CRON_TZ=` prefix wins). One with a
    `calendar` is made by `exclusion.excluding`.
    """

    text: str
    timezone: str
    hash_key: str
    rule: WallClock | Every | Once | Never = field(compare=False, repr=False)
    calendar: Calendar | None = None
    exclusion: ExclusionPolicy = ExclusionPolicy.SKIP

    @property
    def interval(self) -> timedelta | None:
        """The interval of an `@every` schedule, else None."""
        return self.rule.interval if isinstance(self.rule, Every) else None

    @property
    def without_calendar(self) -> "Schedule":
        """The schedule as its text alone has it."""
        return self if self.calendar is None else _parse(self.text, self.timezone, self.hash_key)

    @property
    def at(self) -> datetime | None:
        """The instant of an `@at` schedule (aware UTC), else None."""
        return self.rule.at.replace(tzinfo=UTC) if isinstance(self.rule, Once) else None

    @property
    def is_never(self) -> bool:
        """Whether it was said that it has no occurrence."""
        return isinstance(self.rule, Never)

    def next_after(self, instant: datetime) -> datetime | None:
        """The first occurrence strictly after an aware `instant`, in UTC; None if none within 50 years.

        For `@every` this is `instant` plus the interval. A naive datetime raises ValueError.
        """
        utc = _naive_utc(instant)
        return utc and _aware(self.rule.next_after(utc))

    def previous_before(self, instant: datetime) -> datetime | None:
        """The last occurrence strictly before an aware `instant`: the mirror of `next_after`."""
        utc = _naive_utc(instant)
        return utc and _aware(self.rule.previous_before(utc))

    def occurrences(self, after: datetime, until: datetime, limit: int | None = None) -> Iterator[datetime]:
        """Yield occurrences strictly after `after`, up to and including `until`, at most `limit` of them."""
        for instant in (after, until):
            _naive_utc(instant)  # complain here, not at the first item
        return islice(self._between(after, until), limit)

    def describe(self, language: Language = ENGLISH) -> str:
        """The schedule in words, with its zone unless that is UTC: "At 03:30 (Europe/Berlin)"."""
        from django_dcron.domain.describe import describe

        return describe(self, language)

    def __str__(self) -> str:
        return self.text

    def _between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        found = self.next_after(after)
        while found is not None and found <= until:
            yield found
            found = self.next_after(found)


def parse_schedule(text: str, timezone: str = "UTC", *, hash_key: str = "") -> Schedule:
    """Parse schedule text; the result is cached.

    `timezone` names the tz database zone whose clocks are meant; `hash_key`, from which `H` draws, is the job's
    identity.
    Raises `InvalidSchedule`, whose message names the field, the value and what is allowed.
    """
    plain = _one_line(text)
    # Only what draws from it may depend on the key: other schedules are shared by all jobs.
    return _parse(plain, check_zone(timezone), hash_key if has_hash(plain) else "")


def parse_drawn(text: str, timezone: str = "UTC", *, hash_key: str) -> Schedule:
    """The same schedule with every `H` of the text drawn: equal for all keys that draw the same."""
    plain = _one_line(text)
    if has_hash(plain):
        prefix = _PREFIX.match(plain)
        start = prefix.end() if prefix else 0
        plain = plain[:start] + draw_fields(plain[start:], hash_key)
    return _parse(plain, check_zone(timezone), "")


def has_hash(text: str) -> bool:
    """Whether there is an `H` in schedule text."""
    return _HASHED.search(text) is not None


def _one_line(text: object) -> str:
    """The text with single spaces, if it is text and of a size and alphabet worth parsing."""
    if not isinstance(text, str):
        raise InvalidSchedule(_("schedule: %(value)s is not text (allowed: a string)"), value=f"{text!r:.80}")
    if len(text) > MAX_LENGTH:
        raise InvalidSchedule(
            _("schedule: %(count)d characters are too many (allowed: at most %(most)d)"),
            count=len(text),
            most=MAX_LENGTH,
        )
    if not text.isascii():
        strange = next(char for char in text if not char.isascii())
        raise InvalidSchedule(
            _("schedule: %(value)s is not allowed (allowed: ASCII characters only)"), value=ascii(strange)
        )
    return " ".join(text.split())


@lru_cache(maxsize=4096)
def _parse(text: str, zone: str, hash_key: str) -> Schedule:
    body = text
    if prefix := _PREFIX.match(text):
        zone, body = check_zone(prefix[1]), text[prefix.end() :]
    word, _space, rest = body.partition(" ")
    rule: WallClock | Every | Once | Never
    if word.lower() == "@every":
        rule = Every(_interval(rest))
    elif word.lower() == "@at":
        rule = Once(_moment(rest, zone))
    elif body.lower() == NEVER:
        rule = Never()
    else:
        rule = WallClock(parse_cron(_expanded(body), hash_key), zone)
    return Schedule(text, zone, hash_key, rule)


def _expanded(body: str) -> str:
    """The fields a macro stands for; fields stay as they are."""
    if not body.startswith("@"):
        return body
    try:
        return MACROS[body.lower()]
    except KeyError:
        allowed = ", ".join([*MACROS, NEVER, "@every 1h30m", "@at 2026-12-01T09:00"])
        raise InvalidSchedule(
            _("schedule: %(value)s is not a known macro (allowed: %(allowed)s)"),
            value=repr(body),
            allowed=allowed,
        ) from None


def _interval(text: str) -> timedelta:
    match = re.fullmatch(r"(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?", text.lower())
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    interval = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if not SECOND <= interval <= HORIZON:
        raise InvalidSchedule(
            _(
                "@every: %(value)s is not an interval (allowed: whole hours, minutes and seconds such as 1h30m or 45s, "
                "from 1s to %(most)dh)"
            ),
            value=repr(text),
            most=HORIZON.days * 24,
        )
    return interval


_MOMENT = re.compile(
    r"((?:19[789]|20[0-9])[0-9]-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(Z|[+-]\d\d:\d\d)?", re.IGNORECASE
)


def _moment(text: str, zone: str) -> datetime:
    match = _MOMENT.fullmatch(text)
    try:
        at = datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3] or ''}".upper()) if match else None
    except ValueError:
        at = None
    if at is None:
        raise InvalidSchedule(
            _(
                "@at: %(value)s is not a time (allowed: years 1970-2099 as 2026-12-01T09:00, also with seconds "
                "and with an offset such as Z or +02:00)"
            ),
            value=repr(text),
        )
    if at.tzinfo is not None:
        return at.astimezone(UTC).replace(tzinfo=None)
    # A single local time is a fixed-time job that happens once: a gap or an overlap is resolved as there.
    found = next_instant(parse_cron(f"{at:%S %M %H %d %m ? %Y}"), zone, at - SLACK)
    if found is None:
        raise InvalidSchedule(
            _("@at: %(value)s does not exist in %(zone)s (allowed: a time its clocks show)"),
            value=text,
            zone=zone,
        )
    return found


def _naive_utc(instant: datetime) -> datetime | None:
    """The instant in naive UTC; None near the ends of the calendar, where there is nothing to find."""
    if not isinstance(instant, datetime):
        raise TypeError(f"an aware datetime is needed, not {type(instant).__name__}")
    if instant.utcoffset() is None:
        raise ValueError(f"an aware datetime is needed, {instant!r} has no time zone")
    try:
        utc = instant.astimezone(UTC).replace(tzinfo=None)
    except OverflowError:
        return None
    return utc if FIRST <= utc < LAST else None


def _aware(found: datetime | None) -> datetime | None:
    return found and found.replace(tzinfo=UTC)
