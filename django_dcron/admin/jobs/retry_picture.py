"""A retry policy as a picture: the attempts on a time axis, the waits between them, and how far jitter may move them.

Invariant: an attempt is drawn where the sum of the waits before it puts it, between the places where all of them were
as short and as long as jitter allows. How long the attempts themselves take is not known, and not drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import accumulate

from django.utils.translation import gettext as _

from django_dcron.domain.durations import write_duration
from django_dcron.domain.retry import RetryPolicy

WIDTH, HEIGHT = 360, 56
LEFT, RIGHT = 12, 12
DIGIT = 6.5
"""About how wide a character is."""
WAITS_NAMED = 5
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Attempt:
    number: int
    wait: timedelta
    """Since the one before it failed."""
    after: timedelta
    """Since the first one failed; all waits together."""
    x: float
    earliest_x: float
    latest_x: float
    label: str
    """The wait, if there is room for it between the two."""
    label_x: float
    is_numbered: bool
    is_last: bool

    @property
    def range_width(self) -> float:
        return self.latest_x - self.earliest_x

    @property
    def wait_in_words(self) -> str:
        return in_words(self.wait)

    @property
    def after_in_words(self) -> str:
        return in_words(self.after)


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
            return _("Tried once: a run that fails stays failed.")
        if not self.total:
            return _("%(count)d attempts, one right after the other.") % {"count": self.policy.max_attempts}
        return _("%(count)d attempts: after %(waits)s; gives up after about %(total)s.") % {
            "count": self.policy.max_attempts,
            "waits": self._waits_in_words(),
            "total": in_words(self.total),
        }

    @property
    def spread(self) -> str:
        """What jitter does, if it does anything."""
        if not self.policy.jitter or not self.total:
            return ""
        percent = f"{self.policy.jitter * 100:g}"
        return _("Each wait is up to %(percent)s %% shorter or longer, at random.") % {"percent": percent}

    @cached_property
    def attempts(self) -> list[Attempt]:
        """All of them; empty if there is nothing to see."""
        if not self.total:
            return []
        places = [timedelta(), *accumulate(self.waits)]
        xs = [self._x(place) for place in places]
        drawn = []
        numbered_x = -DIGIT * 4
        for index, (place, x) in enumerate(zip(places, xs, strict=True)):
            wait = self.waits[index - 1] if index else timedelta()
            label = in_words(wait) if index else ""
            room = x - xs[index - 1] - DIGIT if index else 0.0
            is_numbered = x - numbered_x >= DIGIT * (len(str(index + 1)) + 1)
            numbered_x = x if is_numbered else numbered_x
            drawn.append(
                Attempt(
                    number=index + 1,
                    wait=wait,
                    after=place,
                    x=x,
                    earliest_x=self._x(place * (1 - self.policy.jitter)),
                    latest_x=self._x(place * (1 + self.policy.jitter)),
                    label=label if room >= len(label) * DIGIT else "",
                    label_x=round(x - (x - xs[index - 1]) / 2, 1) if index else x,
                    is_numbered=is_numbered,
                    is_last=index == len(xs) - 1,
                )
            )
        return drawn

    def _x(self, place: timedelta) -> float:
        longest = self.total * (1 + self.policy.jitter)
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (place / longest), 1)

    def _waits_in_words(self) -> str:
        named = ", ".join(map(in_words, self.waits[:WAITS_NAMED]))
        if len(self.waits) <= WAITS_NAMED:
            return named
        return f"{named} … {in_words(self.waits[-1])}"


def in_words(wait: timedelta) -> str:
    """10s, 1m20s; to the second from ten seconds on."""
    return write_duration(wait if wait < 10 * _SECOND else wait // _SECOND * _SECOND)
