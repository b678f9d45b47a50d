"""What a job and its cursor have in common: the text of a schedule and of a calendar, and how they are read.

``read_schedule`` is the one place where these become a schedule: whatever reads one of a row reads it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_dcron.domain.calendar import ExclusionPolicy
from django_dcron.domain.exclusion import excluding
from django_dcron.domain.schedule import Schedule, parse_schedule
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models.calendar import read_dates
from django_dcron.phrases import gettext_noop as _


def read_schedule(
    text: str, timezone: str, hash_key: str, calendar_dates: str | None, calendar_policy: str
) -> Schedule:
    """``calendar_dates``: the calendar's text; None: there is no calendar. Raises ``InvalidSchedule``."""
    return kept_off(parse_schedule(text, timezone, hash_key=hash_key), calendar_dates, calendar_policy)


def kept_off(schedule: Schedule, calendar_dates: str | None, calendar_policy: str) -> Schedule:
    """The schedule with the calendar. Raises ``InvalidSchedule``."""
    if calendar_dates is None:
        return schedule
    return excluding(schedule, read_dates(calendar_dates), read_policy(calendar_policy))


def read_policy(text: str) -> ExclusionPolicy:
    try:
        return ExclusionPolicy(text)
    except ValueError:
        raise InvalidSchedule(
            _("calendar_policy: %(value)s is not known (allowed: %(allowed)s)"),
            value=f"{text!r:.80}",
            allowed=", ".join(ExclusionPolicy),
        ) from None


class Scheduled:
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
        """The job's identity, from which ``H`` in its schedule is hashed."""
        return f"{self.namespace}/{self.name}"

    @property
    def parsed_schedule(self) -> Schedule:
        """Raises ``InvalidSchedule``."""
        return read_schedule(
            self.schedule, self.timezone, self.hash_key, self.calendar_dates, self.calendar_policy
        )
