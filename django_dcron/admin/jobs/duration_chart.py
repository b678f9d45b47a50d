"""Draw a bar chart of the durations of a job's latest runs.

Invariants:

- The module computes geometry only. Coordinates refer to an image of ``WIDTH`` by ``HEIGHT`` with
  the origin at the top left.
- The page stretches the image to its width, so the image contains no text. Ticks are at fixed
  heights: bottom, middle and top.
- The scale is linear from zero, unless the longest run takes more than ``LOG_SCALE_RATIO`` times
  the median. Then the scale is logarithmic, which a label indicates.
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

from django_dcron.admin.display import EMPTY, duration_or_empty
from django_dcron.diagnosis.run_durations import (
    ended_before_next_attempt,
    run_duration,
    start_delay,
)
from django_dcron.models import Run
from django_dcron.models.run import STATE_LABELS
from django_dcron.policies.lifecycle import State
from django_dcron.targets.shadow import NOT_EXECUTED
from django_dcron.utils.durations import write_duration

WIDTH = 1000.0
HEIGHT = 100.0
LANE = 9.0
"""Height of the lane below the bars, which marks each run that didn't succeed."""
MARK_Y, MARK_HEIGHT = HEIGHT + LANE / 3, LANE * 2 / 3
LEGEND_MARK_WIDTH = 12.0
MIN_SLOTS = 40
"""The width is divided into at least this many slots, so that a few bars stay narrow."""
MIN_HEIGHT = 1.5
"""The minimum height of a bar, so that it's visible and clickable."""
LOG_SCALE_RATIO = 30
GAP = 0.25
"""The share of a run's slot that stays empty."""

SECOND, MINUTE, HOUR, DAY = 1.0, 60.0, 3600.0, 86400.0
SCALE_ENDS = (
    *(digit * 10.0**power for power in range(-3, 1) for digit in (1, 2, 4)),
    *(10.0, 20.0, 30.0, MINUTE, 2 * MINUTE, 4 * MINUTE, 10 * MINUTE, 20 * MINUTE, 30 * MINUTE),
    *(HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 12 * HOUR, DAY),
    *(digit * 10**power * DAY for power in range(5) for digit in (2, 4, 10)),
)
"""Ends of a linear scale in seconds. They and their halves are round numbers."""


@dataclass(frozen=True, slots=True)
class Bar:
    run: Run
    title: str
    x: float
    y: float
    width: float
    height: float
    """Zero if the run has only its mark in the lane."""
    mark: str
    """The path of the mark in the lane; empty if the run succeeded."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """The texts of a bar, for screen readers and for its title."""

    run: Run
    state: str
    scheduled: str
    duration: str
    start_delay: str


@dataclass(frozen=True, slots=True)
class ChartLegendEntry:
    state: str
    number: int
    mark: str
    """The path of the state's mark, at x = 0; empty if it has none."""


@dataclass(frozen=True, slots=True)
class Chart:
    bars: tuple[Bar, ...]
    rows: tuple[RunRow, ...]
    ticks: tuple[str, str, str]
    """Labels of the ticks, from top to bottom."""
    logarithmic: bool
    median: str
    median_y: float | None
    """None if no run has started."""
    legend: tuple[ChartLegendEntry, ...]
    """The most frequent state first."""
    width: float = WIDTH
    height: float = HEIGHT
    middle: float = HEIGHT / 2
    full_height: float = HEIGHT + LANE
    mark_y: float = MARK_Y
    mark_height: float = MARK_HEIGHT
    mark_width: float = LEGEND_MARK_WIDTH
    """The width of the marks in the legend."""


@dataclass(frozen=True, slots=True)
class Scale:
    bottom: float
    """Seconds at the bottom of the scale; zero if the scale is linear."""
    top: float

    @classmethod
    def for_durations(cls, seconds: Sequence[float]) -> Scale:
        longest = max(seconds, default=SECOND)
        if longest <= LOG_SCALE_RATIO * median(seconds or [SECOND]):
            return cls(0.0, next((top for top in SCALE_ENDS if top >= longest), longest))
        shortest = min(second for second in seconds if second > 0)
        low = floor(log10(shortest))
        high = max(ceil(log10(longest)), low + 1)  # one positive duration may be a power of ten
        # The middle is a power of ten seconds only if the number of decades is even.
        return cls(10.0 ** (low - (high - low) % 2), 10.0**high)

    @property
    def logarithmic(self) -> bool:
        return self.bottom > 0

    def share(self, seconds: float) -> float:
        """Return the height of a duration, from 0 at the bottom to 1 at the top."""
        if not self.logarithmic:
            return seconds / self.top
        return max(
            log10(max(seconds, self.bottom) / self.bottom) / log10(self.top / self.bottom), 0.0
        )

    @property
    def ticks(self) -> tuple[str, str, str]:
        middle = (self.bottom * self.top) ** 0.5 if self.logarithmic else self.top / 2
        return _tick(self.top), _tick(middle), _tick(self.bottom)


def draw_duration_chart(runs: Sequence[Run]) -> Chart | None:
    """Draw the finished ``runs``, which are sorted newest first. Return None if there are none.

    The runs of a shadow are omitted, because they execute nothing.
    """
    runs = [run for run in runs if run.reason != NOT_EXECUTED]
    if not runs:
        return None
    rows = [_run_row(run) for run in reversed(runs)]
    durations = [
        duration.total_seconds() for run in runs if (duration := run_duration(run)) is not None
    ]
    scale = Scale.for_durations(durations)
    slot = WIDTH / max(len(runs), MIN_SLOTS)
    median_text, median_y = EMPTY, None
    if durations:
        median_seconds = median(durations)
        median_text = duration_or_empty(timedelta(seconds=median_seconds))
        median_y = round(HEIGHT * (1 - scale.share(median_seconds)), 2)
    return Chart(
        bars=tuple(_bar(row, number, slot, scale) for number, row in enumerate(rows)),
        rows=tuple(rows),
        ticks=scale.ticks,
        logarithmic=scale.logarithmic,
        median=median_text,
        median_y=median_y,
        legend=tuple(
            ChartLegendEntry(state, number, mark_path(state, 0, LEGEND_MARK_WIDTH))
            for state, number in Counter(run.state for run in runs).most_common()
        ),
    )


def _bar(row: RunRow, number: int, slot: float, scale: Scale) -> Bar:
    duration = run_duration(row.run)
    height = 0.0
    if duration is not None:
        height = max(HEIGHT * scale.share(duration.total_seconds()), MIN_HEIGHT)
    x, width = round((number + GAP / 2) * slot, 2), round(slot * (1 - GAP), 2)
    return Bar(
        run=row.run,
        title=_title(row),
        x=x,
        y=round(HEIGHT - height, 2),
        width=width,
        height=round(height, 2),
        mark=mark_path(row.run.state, x, width),
    )


def mark_path(state: str, x: float, width: float) -> str:
    """Return the path of the mark of a state, whose shape differs from that of other states.

    Failed: a block. Missed: its outline. Cancelled: a bar. Skipped: two blocks.
    """
    third, edge = width / 3, MARK_HEIGHT / 4
    if state == State.SUCCEEDED:
        return ""
    if state == State.SKIPPED:
        return _box(x, MARK_Y, third) + _box(x + 2 * third, MARK_Y, third)
    if state == State.CANCELLED:
        return _box(x, MARK_Y + MARK_HEIGHT / 3, width, MARK_HEIGHT / 3)
    block = _box(x, MARK_Y, width)
    if state == State.MISSED:
        hole = _box(x + width / 5, MARK_Y + edge, width * 3 / 5, MARK_HEIGHT - 2 * edge)
        return block + hole  # the fill rule is evenodd
    return block


def _box(x: float, y: float, width: float, height: float = MARK_HEIGHT) -> str:
    return f"M{x:.2f} {y:.2f}h{width:.2f}v{height:.2f}h{-width:.2f}z"


def _run_row(run: Run) -> RunRow:
    scheduled = f"{localtime(run.scheduled_at):%Y-%m-%d %H:%M:%S}"
    return RunRow(
        run=run,
        state=str(dict(STATE_LABELS).get(run.state, run.state)),
        scheduled=scheduled,
        duration=duration_or_empty(run_duration(run)),
        start_delay=duration_or_empty(start_delay(run)),
    )


def _title(row: RunRow) -> str:
    values: dict[str, object] = {
        "scheduled": row.scheduled,
        "state": row.state,
        "lasted": row.duration,
        "late": row.start_delay,
    }
    if row.run.started_at is None:
        return _("%(scheduled)s: %(state)s, not started") % values
    if ended_before_next_attempt(row.run):
        values["attempt"] = row.run.attempt
        return _("%(scheduled)s: %(state)s before attempt %(attempt)d started") % values
    return _("%(scheduled)s: %(state)s, took %(lasted)s, started %(late)s late") % values


def _tick(seconds: float) -> str:
    if not seconds:
        return "0"
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    return write_duration(timedelta(seconds=round(seconds, 3)), " ")
