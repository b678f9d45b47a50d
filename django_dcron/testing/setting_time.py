"""A clock that a test sets: what django-dcron takes for now, in this process, whichever clock it would read otherwise.

Invariants:

- While it is set, time stands still, and goes on only as the test says.
- Whatever happens within, the time afterwards is what it was before.
- Nothing is handed to a broker meanwhile, as workers would live in another time: runs wait for ``run_due``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from django.test import override_settings

from django_dcron.domain import clock
from django_dcron.exceptions import NAIVE, InvalidValue


class StandingClock:
    """What ``set_clock`` gives; good for nothing once that is over."""

    def __init__(self) -> None:
        self._over = False

    def __repr__(self) -> str:
        return "<a clock that is no longer set>" if self._over else f"<clock set to {self.now().isoformat()}>"

    def now(self) -> datetime:
        """Aware UTC."""
        self._check()
        return clock.now()

    def set_to(self, at: datetime) -> None:
        """``at``: an aware datetime, also an earlier one."""
        self._check()
        clock.stands_at = checked("at", at)

    def advance(self, by: timedelta) -> None:
        """Nothing is run meanwhile, as in an outage of all nodes and workers; for the contrary: ``run_due(at=...)``."""
        if not isinstance(by, timedelta):
            raise TypeError(f"advance: {by!r} is not a timedelta")
        if by < timedelta():
            raise ValueError(f"advance: {by} is negative (allowed: 0 and more; set_to sets any time)")
        self.set_to(self.now() + by)

    def _check(self) -> None:
        if self._over:
            raise RuntimeError("this clock is no longer set: its set_clock is over")


@contextmanager
def set_clock(at: datetime) -> Iterator[StandingClock]:
    """Set what django-dcron takes for now to ``at``, an aware datetime, in all of this process; also a decorator.

    ::

        with set_clock(datetime(2026, 3, 1, 9, tzinfo=UTC)) as clock:
            clock.advance(timedelta(hours=1))

    Only django-dcron goes by it: ``django.utils.timezone.now`` and the database's own functions go on as ever.
    """
    at, before, standing = checked("at", at), clock.stands_at, StandingClock()
    with override_settings(
        DCRON_DISPATCHER="thread"
    ):  # which only a node has: nobody else hands anything over
        clock.stands_at = at
        try:
            yield standing
        finally:
            standing._over = True
            clock.stands_at = before


def checked(name: str, at: datetime) -> datetime:
    """An instant that a test gives, in UTC."""
    if not isinstance(at, datetime):
        raise TypeError(f"{name}: {at!r} is not a datetime")
    if at.utcoffset() is None:
        raise InvalidValue(name, NAIVE, value=at.isoformat())
    return at.astimezone(UTC)
