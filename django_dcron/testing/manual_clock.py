"""A clock that a test sets and that replaces every clock of django-dcron in this process.

Invariants:

- While the clock is set, time advances only on the test's request.
- After the block, the previous time applies again, also after an exception.
- Nothing is published to a broker meanwhile, because workers would use another time. Runs wait for
  ``run_due``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from django.test import override_settings

from django_dcron.db import clock
from django_dcron.exceptions import NAIVE_DATETIME, InvalidValue


class ManualClock:
    """The clock that ``set_clock`` returns. It is valid until the end of its block."""

    def __init__(self) -> None:
        self._over = False

    def __repr__(self) -> str:
        return (
            "<a clock that is no longer set>"
            if self._over
            else f"<clock set to {self.now().isoformat()}>"
        )

    def now(self) -> datetime:
        """Return the current time as an aware UTC datetime."""
        self._check()
        return clock.now()

    def set_to(self, at: datetime) -> None:
        """Set the time to ``at``, an aware datetime. It may be earlier than the current time."""
        self._check()
        clock.fixed_at = utc_time("at", at)

    def advance(self, by: timedelta) -> None:
        """Move the time forward without running anything, as in an outage.

        To run everything that is due until a time, use ``run_due(at=...)`` instead.
        """
        if not isinstance(by, timedelta):
            raise TypeError(f"advance: {by!r} is not a timedelta")
        if by < timedelta():
            raise ValueError(f"advance: {by} is negative. To move the clock back, use set_to.")
        self.set_to(self.now() + by)

    def _check(self) -> None:
        if self._over:
            raise RuntimeError("This clock can't be used after its set_clock block has ended.")


@contextmanager
def set_clock(at: datetime) -> Iterator[ManualClock]:
    """Set the current time of django-dcron in this process to ``at``, an aware datetime.

    Also usable as a decorator. For example::

        with set_clock(datetime(2026, 3, 1, 9, tzinfo=UTC)) as clock:
            clock.advance(timedelta(hours=1))

    ``django.utils.timezone.now`` and the functions of the database aren't affected.
    """
    at = utc_time("at", at)
    before = clock.fixed_at
    manual_clock = ManualClock()
    # With this dispatcher, only nodes dispatch runs, so this process publishes none.
    with override_settings(DCRON_DISPATCHER="thread"):
        clock.fixed_at = at
        try:
            yield manual_clock
        finally:
            manual_clock._over = True
            clock.fixed_at = before


def utc_time(name: str, at: datetime) -> datetime:
    """Return the instant ``at`` of a test in UTC."""
    if not isinstance(at, datetime):
        raise TypeError(f"{name}: {at!r} is not a datetime")
    if at.utcoffset() is None:
        raise InvalidValue(name, NAIVE_DATETIME, value=at.isoformat(), code="naive")
    return at.astimezone(UTC)
