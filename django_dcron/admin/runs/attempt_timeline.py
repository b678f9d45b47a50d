"""The picture of a run's attempts: where each bar, tick and word goes.

Invariants:

- Along the axis everything is in percent of the picture's width and lies within 0 and 100; down it, in pixels. So it is as
  wide as there is room, and its words stay as large as the page's.
- Bars of a lane do not overlap but by the least width, which keeps an instant visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron.admin.display import span
from django_dcron.domain.lifecycle import FINAL, State
from django_dcron.models.attempt import OUTCOME_LABELS
from django_dcron.models.run import STATE_LABELS
from django_dcron.observability.phases import Course, Kind, Phase

LEAST_WIDTH = 0.4
LABELLED_FROM = 15
"""The least width of a bar that says how long it lasted."""
LANE, BAR = 38, 14
"""Heights: of a lane, which has a line of words above its bar, and of the bar."""
AXIS = 22
MOST_STEPS = 5
SHORTEST = timedelta(milliseconds=5)

WORDS = {
    Kind.EARLY: gettext_lazy("not due yet"),
    Kind.UNCLAIMED: gettext_lazy("due, claimed by no node yet"),
    Kind.TURN: gettext_lazy("until its turn"),
    Kind.BACKOFF: gettext_lazy("backoff"),
    Kind.BETWEEN: gettext_lazy("backoff, and until it started"),
    Kind.DUE: gettext_lazy("due, until handed over"),
    Kind.QUEUED: gettext_lazy("handed over, until a worker started it"),
    Kind.START: gettext_lazy("due, until it started"),
    Kind.RUNNING: gettext_lazy("running"),
}
COLOURS = {
    Kind.UNCLAIMED: "missed",
    Kind.TURN: "waiting",
    Kind.QUEUED: "queued",
}
HATCHED = {Kind.BACKOFF, Kind.BETWEEN}
MEANINGS = {
    "missed": gettext_lazy("claimed by no node"),
    "waiting": gettext_lazy("waiting for its turn"),
    "queued": gettext_lazy("waiting for a worker"),
    "hatched": gettext_lazy("backoff"),
    "pending": gettext_lazy("waiting to be handed over"),
}
"""Of the looks of waits; several kinds may have the same. What an attempt's bar means its lane says."""
_LABELS = dict([*STATE_LABELS, *OUTCOME_LABELS])

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
STEPS = [
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7)),
]
"""Milliseconds from tick to tick."""


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    width: float
    colour: str
    """A state or an outcome."""
    words: str
    phase: Phase

    @property
    def solid(self) -> bool:
        return self.phase.kind is Kind.RUNNING

    @property
    def hatched(self) -> bool:
        return self.phase.kind in HATCHED

    @property
    def meaning(self) -> str:
        return str(MEANINGS["hatched" if self.hatched else self.colour])

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 2)

    @property
    def label(self) -> str:
        return "" if self.solid or self.width < LABELLED_FROM else span(self.phase.length)

    @property
    def title(self) -> str:
        return _("%(what)s: %(time)s, from %(since)s to %(until)s") % {
            "what": self.words,
            "time": span(self.phase.length),
            "since": _exactly(self.phase.since),
            "until": _exactly(self.phase.until),
        }


@dataclass(frozen=True, slots=True)
class Lane:
    number: int
    y: int
    """Of its bars' upper edge."""
    words: str
    bars: tuple[Bar, ...]
    claimed: str
    """In words; empty if it is another attempt that tells of it."""

    @property
    def words_y(self) -> int:
        """Their base line."""
        return self.y - 5

    @property
    def label_y(self) -> int:
        return self.y + BAR - 3


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    label: str
    title: str

    @property
    def anchor(self) -> str:
        """So that the outer ones' words stay inside."""
        return "start" if self.x < 8 else "end" if self.x > 92 else "middle"


@dataclass(frozen=True, slots=True)
class Timeline:
    since: datetime
    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    now: float | None
    """None: it has ended."""
    bar = BAR

    @property
    def bottom(self) -> int:
        """Where the lanes end and the axis begins."""
        return len(self.lanes) * LANE + 4

    @property
    def height(self) -> int:
        return self.bottom + AXIS

    @property
    def legend(self) -> list[Bar]:
        """One wait of each look."""
        waits = {bar.meaning: bar for lane in self.lanes for bar in lane.bars if not bar.solid}
        return list(waits.values())


def draw(courses: Sequence[Course], state: str, now: datetime | None) -> Timeline | None:
    """``state``: the run's. ``now``: None if it has ended. Returns None if no time has passed that could be shown."""
    instants = [at for course in courses for phase in course.phases for at in (phase.since, phase.until)]
    if not instants:
        return None
    if now is not None:
        instants.append(now)
    since = min(instants)
    scale = _Scale(since, max(max(instants) - since, SHORTEST))
    lanes = (_lane(place, course, state, scale) for place, course in enumerate(courses))
    return Timeline(since, tuple(lanes), tuple(_ticks(scale)), scale.x(now) if now else None)


@dataclass(frozen=True, slots=True)
class _Scale:
    since: datetime
    length: timedelta

    def x(self, at: datetime) -> float:
        return round(min(max((at - self.since) / self.length, 0.0), 1.0) * 100, 2)


def _lane(place: int, course: Course, state: str, scale: _Scale) -> Lane:
    y = place * LANE + LANE - BAR
    bars = tuple(_bar(phase, course, scale) for phase in course.phases)
    return Lane(course.number, y, _lane_words(course, state), bars, _claim_words(course))


def _claim_words(course: Course) -> str:
    if course.claimed is None:
        return ""
    said = _("claimed %(time)s late") if course.claimed > timedelta() else _("claimed %(time)s ahead")
    return said % {"time": span(abs(course.claimed))}


def _lane_words(course: Course, state: str) -> str:
    """A list of facts: what it is, after which wait, how it ended, how long it took."""
    facts = [_("Attempt %(number)d") % {"number": course.number}]
    waited = sum((phase.length for phase in course.phases if phase.kind is not Kind.RUNNING), timedelta())
    if waited and (course.number > 1 or course.attempt):
        facts.append(_("after %(time)s") % {"time": span(waited)})
    if course.attempt is None:
        facts += [_("not started")] if state in FINAL else []
        return " · ".join([*facts, str(_LABELS.get(state, state))])
    outcome = course.attempt.outcome or State.RUNNING
    return " · ".join([*facts, str(_LABELS.get(outcome, outcome)), span(course.phases[-1].length)])


def _bar(phase: Phase, course: Course, scale: _Scale) -> Bar:
    x = scale.x(phase.since)
    width = max(scale.x(phase.until) - x, LEAST_WIDTH)
    if phase.kind is Kind.RUNNING:
        colour = str((course.attempt and course.attempt.outcome) or State.RUNNING)
        words = str(_LABELS.get(colour, colour))
    else:
        colour = COLOURS.get(phase.kind, "pending")
        words = str(WORDS[phase.kind])
    return Bar(round(min(x, 100 - width), 2), round(width, 2), colour, words, phase)


def _ticks(scale: _Scale) -> Iterator[Tick]:
    milliseconds = scale.length / timedelta(milliseconds=1)
    week = STEPS[-1]
    longer = ceil(milliseconds / MOST_STEPS / week) * week
    step = timedelta(milliseconds=next((step for step in STEPS if milliseconds <= step * MOST_STEPS), longer))
    for place in range(int(scale.length / step) + 1):
        after = place * step
        at = scale.since + after
        label = f"+{span(after)}".replace(".0 s", " s") if place else f"{localtime(at):%H:%M:%S}"
        yield Tick(scale.x(at), label, _exactly(at))


def _exactly(at: datetime) -> str:
    local = localtime(at)
    return f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03d}"
