"""Lay out the dashboard's timeline: the positions of bars, marks and ticks.

Invariants:

- Horizontal positions are percentages of the image's width, from 0 to 100. Vertical positions are
  pixels. The image fills the page's width without scaling its text.
- The timeline shows everything that happened until now. The time of the axis is rounded down to a
  multiple of ``TIME_STEP``, so that refreshes without news draw the same image.
- A lane has at most one bar per minute and state, and at most one tick per future minute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin
from django.utils.timezone import get_current_timezone_name, localtime
from django.utils.translation import gettext as _

from django_dcron.admin.dashboard.timeline_texts import (
    caption,
    note,
    runs_title,
    time_of,
    upcoming_title,
    was_executed,
    without_run_title,
)
from django_dcron.admin.dashboard.viewer import Viewer
from django_dcron.admin.display import change_url, list_url, text_anchor
from django_dcron.diagnosis.timeline import (
    Lane,
    OccurrenceStretch,
    RunStretch,
    Timeline,
    minute_of,
    timeline,
)
from django_dcron.models import Job, Run
from django_dcron.models.run import STATE_LABELS
from django_dcron.policies.lifecycle import State

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

TIME_STEP = timedelta(seconds=15)
GRID = timedelta(minutes=15)
NO_RUN = UUID(int=0)
"""Takes the place of a run's id in the pattern of its URL."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LANE, BAR = 24, 12
"""Height of a lane and of a bar in it, in pixels."""
AXIS = 26
MIN_WIDTH = 0.35
SYMBOLS = {
    State.FAILED: "\N{MULTIPLICATION SIGN}",
    State.MISSED: "!",
    State.CANCELLED: "\N{EN DASH}",
    State.RUNNING: "\N{HORIZONTAL ELLIPSIS}",
}
"""The signs of the states, most important first.

A bar without a sign has succeeded, and a square is a skipped run.
"""
MIN_HEIGHT = 4.0


@dataclass(frozen=True, slots=True)
class TimelineShape:
    """A shape at ``x``.

    It's a bar, a mark for runs that didn't start, or a tick or band for future occurrences.
    """

    x: float
    y: float
    title: str
    state: str = ""
    width: float = 0
    height: float = 0
    url: str = ""
    symbol: str = ""
    """The sign of the state for people who can't distinguish the colors."""

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 2)


@dataclass(frozen=True, slots=True)
class LaneRow:
    name: str
    url: str
    title: str
    y: int
    bars: tuple[TimelineShape, ...]
    marks: tuple[TimelineShape, ...]
    upcoming: tuple[TimelineShape, ...]
    without_run: tuple[TimelineShape, ...]
    """Ticks and bands for expected occurrences without a run."""
    note: str
    """The next occurrence after the end, or why there is none; empty if a tick shows it."""
    counts: tuple[tuple[StrOrPromise, int], ...]
    """Number of runs in each state."""
    next_at: datetime | None

    @property
    def text_y(self) -> int:
        return self.y + LANE - 8

    @property
    def symbol_y(self) -> int:
        """The baseline of the signs above the bars."""
        return self.y + 7


@dataclass(frozen=True, slots=True)
class GridLine:
    x: float
    label: str

    @property
    def anchor(self) -> str:
        """The text anchor, which keeps the labels at both ends inside the image."""
        return text_anchor(self.x, margin=3)


@dataclass(frozen=True, slots=True)
class LegendEntry:
    state: str
    label: StrOrPromise
    symbol: str


@dataclass(frozen=True, slots=True)
class TimelinePicture:
    rows: tuple[LaneRow, ...]
    lines: tuple[GridLine, ...]
    now: GridLine
    caption: str
    legend: tuple[LegendEntry, ...]
    """The states that occur in the timeline."""
    has_without_run: bool
    shows_runs: bool
    zone: str
    axis = AXIS

    @property
    def bottom(self) -> int:
        return AXIS + LANE * len(self.rows)

    @property
    def lanes_height(self) -> int:
        return LANE * len(self.rows)

    @property
    def future_width(self) -> float:
        """The width of the future part, in percent."""
        return 100 - self.now.x

    @property
    def height(self) -> int:
        return self.bottom + 18


def context(viewer: Viewer) -> dict[str, Any]:
    if not viewer.may_view(Job):
        return {"timeline": None}
    with_runs = viewer.may_view(Run)
    data = timeline(viewer.now, viewer.chosen, with_runs=with_runs, scope=viewer.scope)
    return {"timeline": _Drawing(data, viewer.site, with_runs).picture()}


class _Span(NamedTuple):
    left: float
    right: float


class _Drawing:
    def __init__(self, data: Timeline, site: admin.AdminSite, shows_runs: bool) -> None:
        self._timeline = data
        excess = (data.now - EPOCH) % TIME_STEP
        self._since = data.since - excess
        self._now = data.now - excess
        self._until = data.until - excess
        self._site = site
        self._shows_runs = shows_runs
        # A picture has thousands of links. Reversing a URL for each link would take a tenth of the
        # time of the whole picture.
        self._list_url = list_url(Run, site)
        self._run_url = change_url(Run(pk=NO_RUN), site)

    def picture(self) -> TimelinePicture:
        data = self._timeline
        rows = tuple(
            self._lane_row(lane, AXIS + LANE * index) for index, lane in enumerate(data.lanes)
        )
        states = {runs.state for lane in data.lanes for runs in lane.runs}
        return TimelinePicture(
            rows=rows,
            lines=tuple(self._grid()),
            now=GridLine(self._x(self._now), _("now %(time)s") % {"time": time_of(self._now)}),
            caption=caption(data, self._shows_runs),
            legend=tuple(
                LegendEntry(state, label, SYMBOLS.get(State(state), ""))
                for state, label in STATE_LABELS
                if state in states
            ),
            has_without_run=any(row.without_run for row in rows),
            shows_runs=self._shows_runs,
            zone=get_current_timezone_name(),
        )

    def _x(self, instant: datetime) -> float:
        whole = self._until - self._since
        return round(min(max((instant - self._since) / whole, 0), 1) * 100, 2)

    def _grid(self) -> Iterator[GridLine]:
        at = self._since + -(self._since - EPOCH) % GRID
        while at <= self._until:
            yield GridLine(self._x(at), f"{localtime(at):%H:%M}")
            at += GRID

    def _lane_row(self, lane: Lane, y: int) -> LaneRow:
        executed = [runs for runs in lane.runs if was_executed(runs)]
        counts: Counter[str] = Counter()
        for runs in lane.runs:
            counts[runs.state] += runs.number
        return LaneRow(
            name=str(lane.job),
            url=change_url(lane.job, self._site),
            title=f"{lane.job}\n{lane.job.schedule}",
            y=y,
            bars=tuple(self._bars(lane.job, executed, y + (LANE - BAR) / 2)),
            marks=tuple(
                self._mark(lane.job, runs, y) for runs in lane.runs if not was_executed(runs)
            ),
            upcoming=tuple(
                self._tick(upcoming_title(lane.job, each), each, y) for each in lane.upcoming
            ),
            without_run=tuple(
                self._tick(without_run_title(lane.job, each), each, y) for each in lane.without_run
            ),
            note="" if lane.upcoming else note(lane),
            counts=tuple((label, counts[state]) for state, label in STATE_LABELS if counts[state]),
            next_at=lane.next_at,
        )

    def _bars(self, job: Job, executed: Sequence[RunStretch], y: float) -> Iterator[TimelineShape]:
        """Yield the bars of a lane.

        Runs of one minute in several states are stacked, with the rarest state on top.
        """
        for _minute, group in groupby(executed, minute_of):
            stack = sorted(group, key=lambda runs: runs.number)
            spans = [self._span(runs) for runs in stack]
            if stack[-1].number > 1:
                # A bar of several runs has no exact times, so the whole stack gets one width.
                left = min(span.left for span in spans)
                right = max(span.right for span in spans)
                spans = [_Span(left, right)] * len(spans)
            top = y
            symbol = _symbol(runs.state for runs in stack)
            heights = _heights([runs.number for runs in stack])
            for runs, span, height in zip(stack, spans, heights, strict=True):
                width = max(round(span.right - span.left, 2), MIN_WIDTH)
                yield TimelineShape(
                    x=min(span.left, 100 - width),
                    y=top,
                    title=runs_title(job, runs),
                    state=runs.state,
                    width=width,
                    height=height,
                    url=self._url(job, runs),
                    symbol=symbol,
                )
                symbol = ""
                top = round(top + height, 1)

    def _span(self, runs: RunStretch) -> _Span:
        assert runs.started_at is not None  # noqa: S101 (else it has no bar)
        return _Span(self._x(runs.started_at), self._x(runs.finished_at or self._now))

    def _mark(self, job: Job, runs: RunStretch, y: int) -> TimelineShape:
        middle = y + LANE / 2
        return TimelineShape(
            self._x(runs.scheduled_at),
            middle,
            runs_title(job, runs),
            runs.state,
            url=self._url(job, runs),
            symbol=_symbol([runs.state]),
        )

    def _tick(self, title: str, stretch: OccurrenceStretch, y: int) -> TimelineShape:
        left, right, top = self._x(stretch.first), self._x(stretch.last), y + (LANE - BAR) / 2
        width = 0 if stretch.first == stretch.last else max(round(right - left, 2), MIN_WIDTH)
        return TimelineShape(left, top, title, width=width, height=BAR)

    def _url(self, job: Job, runs: RunStretch) -> str:
        if runs.run_id:
            return self._run_url.replace(str(NO_RUN), str(runs.run_id))
        lookups = {
            "job__id__exact": str(job.pk),
            "state__exact": runs.state,
            "scheduled_at__gte": str(runs.scheduled_at),
            "scheduled_at__lte": str(runs.last_scheduled_at),
        }
        return f"{self._list_url}?{urlencode(lookups)}"


def _symbol(states: Iterable[str]) -> str:
    """Return the sign of the most important of the states."""
    found = {*states}
    return next((symbol for state, symbol in SYMBOLS.items() if state in found), "")


def _heights(numbers: Sequence[int]) -> list[float]:
    """Divide the height of a bar in proportion to ``numbers``, with a visible minimum height."""
    shares = [max(BAR * number / sum(numbers), MIN_HEIGHT) for number in numbers]
    return [round(BAR * share / sum(shares), 1) for share in shares]
