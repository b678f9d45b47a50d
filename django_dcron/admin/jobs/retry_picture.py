"""Draw a retry policy: the attempts on a time axis, the waits between them, and the jitter.

Invariants:

- An attempt is drawn at the sum of the waits before it.
- The range of an attempt reaches from the sum of the shortest waits to the sum of the longest waits
  that jitter allows.
- The duration of the attempts is unknown and takes no space on the axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import accumulate

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from django_dcron.policies.retry import RetryPolicy
from django_dcron.utils.durations import write_duration

WIDTH, HEIGHT = 360, 56
LEFT, RIGHT = 12, 12
CHARACTER_WIDTH = 6.5
"""The approximate width of a character."""
WAITS_NAMED = 5
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class PlannedAttempt:
    number: int
    wait: timedelta
    """Time since the previous attempt failed."""
    after: timedelta
    """The sum of all waits since the first attempt failed."""
    x: float
    earliest_x: float
    latest_x: float
    label: str
    """The wait, or an empty string if there is no room for it between the two attempts."""
    label_x: float
    is_numbered: bool
    is_last: bool

    @property
    def range_width(self) -> float:
        return self.latest_x - self.earliest_x

    @property
    def wait_text(self) -> str:
        return format_wait(self.wait)

    @property
    def after_text(self) -> str:
        return format_wait(self.after)


@dataclass(frozen=True)
class RetryPicture:
    policy: RetryPolicy

    width, height = WIDTH, HEIGHT
    left, right = LEFT, WIDTH - RIGHT

    @cached_property
    def waits(self) -> list[timedelta]:
        return [self.policy.delay(number) for number in range(1, self.policy.max_attempts)]

    @cached_property
    def total(self) -> timedelta:
        return sum(self.waits, timedelta())

    @property
    def sentence(self) -> str:
        if not self.waits:
            return _("One attempt, no retries.")
        if not self.total:
            return _("Up to %(count)d attempts, without waiting in between.") % {
                "count": self.policy.max_attempts
            }
        return _(
            "Up to %(count)d attempts, with waits of %(waits)s. Gives up after about %(total)s."
        ) % {
            "count": self.policy.max_attempts,
            "waits": self._waits_text(),
            "total": format_wait(self.total),
        }

    @property
    def jitter_text(self) -> str:
        """The effect of jitter in words; empty if it has none."""
        if not self.policy.jitter or not self.total:
            return ""
        percent = number_format(f"{self.policy.jitter * 100:g}")
        return _("Each wait varies randomly by up to %(percent)s%%.") % {"percent": percent}

    @cached_property
    def attempts(self) -> list[PlannedAttempt]:
        """All attempts to draw; empty if there are no waits."""
        if not self.total:
            return []
        offsets = [timedelta(), *accumulate(self.waits)]
        xs = [self._x(offset) for offset in offsets]
        attempts = []
        numbered_x = -CHARACTER_WIDTH * 4
        for index, (offset, x) in enumerate(zip(offsets, xs, strict=True)):
            wait = self.waits[index - 1] if index else timedelta()
            label = format_wait(wait) if index else ""
            room = x - xs[index - 1] - CHARACTER_WIDTH if index else 0.0
            is_numbered = x - numbered_x >= CHARACTER_WIDTH * (len(str(index + 1)) + 1)
            numbered_x = x if is_numbered else numbered_x
            attempts.append(
                PlannedAttempt(
                    number=index + 1,
                    wait=wait,
                    after=offset,
                    x=x,
                    earliest_x=self._x(offset * (1 - self.policy.jitter)),
                    latest_x=self._x(offset * (1 + self.policy.jitter)),
                    label=label if room >= len(label) * CHARACTER_WIDTH else "",
                    label_x=round(x - (x - xs[index - 1]) / 2, 1) if index else x,
                    is_numbered=is_numbered,
                    is_last=index == len(xs) - 1,
                )
            )
        return attempts

    def _x(self, offset: timedelta) -> float:
        longest = self.total * (1 + self.policy.jitter)
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (offset / longest), 1)

    def _waits_text(self) -> str:
        first_waits = ", ".join(map(format_wait, self.waits[:WAITS_NAMED]))
        if len(self.waits) <= WAITS_NAMED:
            return first_waits
        return f"{first_waits} … {format_wait(self.waits[-1])}"


def format_wait(wait: timedelta) -> str:
    """Format a wait such as 10s or 1m 20s. From ten seconds on, it's in whole seconds."""
    return write_duration(wait if wait < 10 * _SECOND else wait // _SECOND * _SECOND, " ")
