"""Read a job's columns as values: its policies, and the text of its calendar."""

from __future__ import annotations

from datetime import timedelta

from django_dcron.exceptions import InvalidCalendar
from django_dcron.models.calendar import Calendar
from django_dcron.policies.misfire import Misfire, MisfirePolicy
from django_dcron.policies.overlap import OverlapPolicy, is_queueing, read_overlap_policy
from django_dcron.policies.retry import RetryPolicy
from django_dcron.utils.messages import gettext_noop as _

_NO_CALENDAR = _("calendar: unknown calendar “%(name)s”. Use the name of an existing calendar.")


class JobPoliciesMixin:
    """Mixin for ``Job``."""

    calendar: Calendar | None
    calendar_id: str | None
    misfire_policy: str
    misfire_grace: timedelta
    catchup_limit: int
    overlap_policy: str
    max_attempts: int
    retry_backoff: timedelta
    retry_backoff_factor: float
    retry_backoff_max: timedelta
    retry_jitter: float
    retry_on: list[str]
    never_retry_on: list[str]

    @property
    def calendar_dates(self) -> str | None:
        """The calendar's text, or None without a calendar.

        Raises ``InvalidCalendar`` if an unsaved job names a calendar that doesn't exist.
        """
        try:
            return self.calendar.dates if self.calendar else None
        except Calendar.DoesNotExist:
            raise InvalidCalendar(_NO_CALENDAR, name=self.calendar_id) from None

    @property
    def misfire(self) -> Misfire:
        return Misfire(MisfirePolicy(self.misfire_policy), self.misfire_grace, self.catchup_limit)

    @property
    def overlap(self) -> OverlapPolicy:
        return read_overlap_policy(self.overlap_policy)

    @property
    def is_queueing(self) -> bool:
        """Whether runs of the schedule may wait for each other, in the order they are due."""
        runs_backlog = self.misfire_policy == MisfirePolicy.RUN_ALL
        return is_queueing(self.overlap, runs_backlog=runs_backlog)

    @property
    def retry(self) -> RetryPolicy:
        return RetryPolicy(
            max_attempts=self.max_attempts,
            backoff=self.retry_backoff,
            factor=self.retry_backoff_factor,
            backoff_max=self.retry_backoff_max,
            jitter=self.retry_jitter,
            retry_on=self.retry_on,
            never_retry_on=self.never_retry_on,
        )
