"""The history of a job as a picture: a bar for each of its latest runs, as high as it lasted.

Only geometry, in units of the picture's own: ``WIDTH`` by ``HEIGHT``, from the top left, stretched to the page's width. So there
is no text in it; ticks are at fixed heights, at the bottom, the middle and the top.

The scale is linear, from zero, as long as a typical run can be seen on it. If the longest one lasted more than ``CROWDED`` times
as long as the median, it is logarithmic, and says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil, floor, log10
from statistics import median

from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from django_dcron.admin.display import EMPTY, span
from django_dcron.domain.durations import write_duration
from django_dcron.domain.lifecycle import State
from django_dcron.models import Run
from django_dcron.models.run import STATE_LABELS
from django_dcron.observability.lengths import lateness

WIDTH = 1000.0
HEIGHT = 100.0
LANE = 9.0
"""Below the bars: a mark for each run that did not succeed, or never started."""
FEWEST_PLACES = 40
"""The width is parted for so many runs at least: a bar is a bar, not a wall."""
LOWEST = 1.5
"""No bar is lower: it must be seen, and hit."""
CROWDED = 30
GAP = 0.25
"""Of a run's place, left free."""

SECOND, MINUTE, HOUR, DAY = 1.0, 60.0, 3600.0, 86400.0
TOPS = (
    *(digit * 10.0**power for power in range(-3, 1) for digit in (1, 2, 4)),
    *(10.0, 20.0, 30.0, MINUTE, 2 * MINUTE, 4 * MINUTE, 10 * MINUTE, 20 * MINUTE, 30 * MINUTE),
    *(HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 12 * HOUR, DAY),
    *(digit * 10**power * DAY for power in range(5) for digit in (2, 4, 10)),
)
"""Ends of a linear scale, in seconds: they and their halves are round."""


@dataclass(frozen=True, slots=True)
class Bar:
    run: Run
    title: str
    x: float
    y: float
    width: float
    height: float
    """Zero: the run has only its mark in the lane."""
    has_mark: bool


@dataclass(frozen=True, slots=True)
class Row:
    """The same in words."""

    run: Run
    state: str
    scheduled: str
    lasted: str
    late: str


@dataclass(frozen=True, slots=True)
class Chart:
    bars: tuple[Bar, ...]
    rows: tuple[Row, ...]
    ticks: tuple[str, str, str]
    """From the top down."""
    logarithmic: bool
    median: str
    median_y: float | None
    """None: no run has started."""
    counts: tuple[tuple[str, int], ...]
    """The states there are, the most frequent first."""
    width: float = WIDTH
    height: float = HEIGHT
    middle: float = HEIGHT / 2
    full_height: float = HEIGHT + LANE
    mark_y: float = HEIGHT + LANE / 3
    mark_height: float = LANE * 2 / 3


@dataclass(frozen=True, slots=True)
class Scale:
    bottom: float
    """Seconds at the bottom; zero if it is linear."""
    top: float

    @classmethod
    def for_durations(cls, seconds: Sequence[float]) -> Scale:
        longest = max(seconds, default=SECOND)
        if longest <= CROWDED * median(seconds or [SECOND]):
            return cls(0.0, next((top for top in TOPS if top >= longest), longest))
        shortest = min(second for second in seconds if second > 0)
        low, high = floor(log10(shortest)), ceil(log10(longest))
        return cls(
            10.0 ** (low - (high - low) % 2), 10.0**high
        )  # an even number of decades has a round middle

    @property
    def logarithmic(self) -> bool:
        return self.bottom > 0

    def share(self, seconds: float) -> float:
        """How far up it is, from 0 to 1."""
        if not self.logarithmic:
            return seconds / self.top
        return max(log10(max(seconds, self.bottom) / self.bottom) / log10(self.top / self.bottom), 0.0)

    @property
    def ticks(self) -> tuple[str, str, str]:
        middle = (self.bottom * self.top) ** 0.5 if self.logarithmic else self.top / 2
        return _tick(self.top), _tick(middle), _tick(self.bottom)


def draw(runs: Sequence[Run]) -> Chart | None:
    """``runs``: finished ones, newest first. None if there are none."""
    if not runs:
        return None
    rows = [_row(run) for run in reversed(runs)]
    lasted = [duration.total_seconds() for run in runs if (duration := _lasted(run)) is not None]
    scale = Scale.for_durations(lasted)
    place = WIDTH / max(len(runs), FEWEST_PLACES)
    typical = median(lasted) if lasted else None
    return Chart(
        bars=tuple(_bar(row, number, place, scale) for number, row in enumerate(rows)),
        rows=tuple(rows),
        ticks=scale.ticks,
        logarithmic=scale.logarithmic,
        median=EMPTY if typical is None else span(timedelta(seconds=typical)),
        median_y=None if typical is None else round(HEIGHT * (1 - scale.share(typical)), 2),
        counts=tuple(Counter(run.state for run in runs).most_common()),
    )


def _bar(row: Row, number: int, place: float, scale: Scale) -> Bar:
    duration = _lasted(row.run)
    height = 0.0 if duration is None else max(HEIGHT * scale.share(duration.total_seconds()), LOWEST)
    return Bar(
        run=row.run,
        title=_title(row),
        x=round((number + GAP / 2) * place, 2),
        y=round(HEIGHT - height, 2),
        width=round(place * (1 - GAP), 2),
        height=round(height, 2),
        has_mark=row.run.state != State.SUCCEEDED,
    )


def _lasted(run: Run) -> timedelta | None:
    """Of the latest attempt; None if it never started."""
    if run.started_at is None or run.finished_at is None:
        return None
    return max(run.finished_at - run.started_at, timedelta())


def _row(run: Run) -> Row:
    scheduled = f"{localtime(run.scheduled_at):%Y-%m-%d %H:%M:%S}"
    return Row(
        run,
        str(dict(STATE_LABELS).get(run.state, run.state)),
        scheduled,
        span(_lasted(run)),
        span(lateness(run)),
    )


def _title(row: Row) -> str:
    said = {"scheduled": row.scheduled, "state": row.state, "lasted": row.lasted, "late": row.late}
    if row.run.started_at is None:
        return _("%(scheduled)s: %(state)s, never started") % said
    return _("%(scheduled)s: %(state)s, lasted %(lasted)s, started %(late)s late") % said


def _tick(seconds: float) -> str:
    if not seconds:
        return "0"
    return f"{seconds * 1000:g} ms" if seconds < 1 else write_duration(timedelta(seconds=round(seconds, 3)))
