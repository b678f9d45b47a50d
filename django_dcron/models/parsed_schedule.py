"""The schedule and calendar texts that a job and its cursor share, and their parsing.

``read_schedule`` parses the schedule of a row with its calendar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_dcron.exceptions import InvalidSchedule
from django_dcron.models.calendar import read_dates
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.exclusion import apply_calendar
from django_dcron.schedules.hashing import hash_key_of
from django_dcron.schedules.schedule import Schedule, parse_schedule
from django_dcron.utils.messages import gettext_noop as _


def read_schedule(
    text: str, timezone: str, hash_key: str, calendar_dates: str | None, calendar_policy: str
) -> Schedule:
    """Parse a schedule. ``calendar_dates`` is the calendar's text, or None without a calendar.

    Raises ``InvalidSchedule``.
    """
    return with_calendar(
        parse_schedule(text, timezone, hash_key=hash_key), calendar_dates, calendar_policy
    )


def with_calendar(schedule: Schedule, calendar_dates: str | None, calendar_policy: str) -> Schedule:
    """Return the schedule with the calendar applied. Raises ``InvalidSchedule``."""
    if calendar_dates is None:
        return schedule
    return apply_calendar(
        schedule, read_dates(calendar_dates), read_exclusion_policy(calendar_policy)
    )


def read_exclusion_policy(text: str) -> ExclusionPolicy:
    """Parse an exclusion policy. Raises ``InvalidSchedule``."""
    try:
        return ExclusionPolicy(text)
    except ValueError:
        raise InvalidSchedule(
            _("calendar_policy: %(value)s isn't known (allowed: %(allowed)s)"),
            value=f"{text!r:.80}",
            allowed=", ".join(ExclusionPolicy),
        ) from None


class ParsedScheduleMixin:
    """Mixin for ``Job`` and ``Cursor``."""

    namespace: str
    name: str
    schedule: str
    timezone: str
    calendar_policy: str

    if TYPE_CHECKING:

        @property
        def calendar_dates(self) -> str | None: ...

    @property
    def hash_key(self) -> str:
        """The job's identity, which seeds ``H`` in its schedule."""
        return hash_key_of(self.namespace, self.name)

    @property
    def parsed_schedule(self) -> Schedule:
        """The parsed schedule. Raises ``InvalidSchedule``."""
        return read_schedule(
            self.schedule, self.timezone, self.hash_key, self.calendar_dates, self.calendar_policy
        )
