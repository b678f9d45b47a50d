"""Lay out the timeline of a run's attempts: the positions of bars, ticks and labels.

Invariants:

- Horizontal positions are percentages of the image's width, from 0 to 100. Vertical positions are
  pixels. The image fills the page's width without scaling its text.
- Bars of a lane don't overlap, except by the minimum width that keeps an instant visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron.admin.display import duration_or_empty, text_anchor
from django_dcron.diagnosis.phases import AttemptPhases, Phase, PhaseKind
from django_dcron.models.attempt import OUTCOME_LABELS
from django_dcron.models.run import STATE_LABELS
from django_dcron.policies.lifecycle import FINAL, State

MIN_WIDTH = 0.4
"""The minimum width of a bar, so that an instant stays visible."""
MIN_LABELED_WIDTH = 15
"""The minimum width of a bar with a duration label."""
LANE, BAR = 38, 14
"""Height of a lane with a line of text above its bar, and height of the bar, in pixels."""
AXIS = 22
"""Height of the axis in pixels."""
MAX_STEPS = 5
"""The maximum number of steps between ticks."""
SHORTEST = timedelta(milliseconds=5)
"""The minimum length of the timeline."""

PHASE_LABELS = {
    PhaseKind.EARLY: gettext_lazy("Not due yet"),
    PhaseKind.UNCLAIMED: gettext_lazy("Due, not claimed by a node yet"),
    PhaseKind.EARLIER_RUNS: gettext_lazy("Waiting for earlier runs"),
    PhaseKind.BACKOFF: gettext_lazy("Backoff"),
    PhaseKind.BACKOFF_OR_LATER: gettext_lazy("Backoff and waiting to start"),
    PhaseKind.DUE: gettext_lazy("Due, not sent to a worker yet"),
    PhaseKind.QUEUED: gettext_lazy("Sent, waiting for a worker"),
    PhaseKind.DUE_OR_QUEUED: gettext_lazy("Due, not started yet"),
    PhaseKind.RUNNING: gettext_lazy("Running"),
}
WAIT_COLORS = {
    PhaseKind.UNCLAIMED: "missed",
    PhaseKind.EARLIER_RUNS: "waiting",
    PhaseKind.QUEUED: "queued",
}
HATCHED = {PhaseKind.BACKOFF, PhaseKind.BACKOFF_OR_LATER}
LEGEND_LABELS = {
    "missed": gettext_lazy("Not claimed by a node"),
    "waiting": gettext_lazy("Waiting for earlier runs"),
    "queued": gettext_lazy("Waiting for a worker"),
    "hatched": gettext_lazy("Backoff"),
    "pending": gettext_lazy("Waiting to be sent"),
}
"""Legend of the styles of waits. Several kinds may share a style.

The text of a lane explains the bar of its attempt.
"""
WAITING_TO_START = gettext_lazy("Waiting to start")
"""Legend of the style ``pending`` if some bars don't show when the run was sent."""
CLAIMED_EARLY = gettext_lazy("claimed %(time)s early")
CLAIMED_LATE = gettext_lazy("claimed %(time)s late")
_LABELS = dict([*STATE_LABELS, *OUTCOME_LABELS])

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
STEPS = [
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7)),
]
"""Allowed distances between two ticks, in milliseconds."""


@dataclass(frozen=True, slots=True)
class AttemptBar:
    x: float
    width: float
    color: str
    """A state or an outcome."""
    text: str
    phase: Phase

    @property
    def solid(self) -> bool:
        return self.phase.kind is PhaseKind.RUNNING

    @property
    def hatched(self) -> bool:
        return self.phase.kind in HATCHED

    @property
    def style(self) -> str:
        return "hatched" if self.hatched else self.color

    @property
    def legend_label(self) -> str:
        if self.phase.kind is PhaseKind.DUE_OR_QUEUED:
            return str(WAITING_TO_START)
        return str(LEGEND_LABELS[self.style])

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 2)

    @property
    def label(self) -> str:
        has_room = self.width >= MIN_LABELED_WIDTH
        return duration_or_empty(self.phase.length) if has_room and not self.solid else ""

    @property
    def title(self) -> str:
        return _("%(what)s: %(time)s, from %(since)s to %(until)s") % {
            "what": self.text,
            "time": duration_or_empty(self.phase.length),
            "since": _format_exact(self.phase.since),
            "until": _format_exact(self.phase.until),
        }


@dataclass(frozen=True, slots=True)
class AttemptLane:
    number: int
    y: int
    """The upper edge of the lane's bars."""
    text: str
    bars: tuple[AttemptBar, ...]
    claimed: str
    """When the run was claimed, in words; empty if another attempt's lane shows it."""

    @property
    def text_y(self) -> int:
        """The baseline of the lane's text."""
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
        """The text anchor, which keeps the labels at both ends inside the image."""
        return text_anchor(self.x, margin=8)


@dataclass(frozen=True, slots=True)
class AttemptTimeline:
    since: datetime
    lanes: tuple[AttemptLane, ...]
    ticks: tuple[Tick, ...]
    now: float | None
    """The position of the current time, or None if the run has ended."""
    bar = BAR

    @property
    def bottom(self) -> int:
        """The position at which the lanes end and the axis begins."""
        return len(self.lanes) * LANE + 4

    @property
    def height(self) -> int:
        return self.bottom + AXIS

    @property
    def legend(self) -> list[AttemptBar]:
        """One wait of each style. A general label replaces a precise one of its style."""
        waits = [bar for lane in self.lanes for bar in lane.bars if not bar.solid]
        general = [bar for bar in waits if bar.phase.kind is PhaseKind.DUE_OR_QUEUED]
        return list({bar.style: bar for bar in [*waits, *general]}.values())


def draw_attempt_timeline(
    attempts: Sequence[AttemptPhases], state: str, now: datetime | None
) -> AttemptTimeline | None:
    """Lay out the timeline, or return None if there is no phase to show.

    ``state`` is the state of the run. ``now`` is None if the run has ended.
    """
    instants = [
        at for attempt in attempts for phase in attempt.phases for at in (phase.since, phase.until)
    ]
    if not instants:
        return None
    if now is not None:
        instants.append(now)
    since = min(instants)
    scale = _Scale(since, max(max(instants) - since, SHORTEST))
    lanes = (_lane(index, attempt, state, scale) for index, attempt in enumerate(attempts))
    return AttemptTimeline(since, tuple(lanes), tuple(_ticks(scale)), scale.x(now) if now else None)


@dataclass(frozen=True, slots=True)
class _Scale:
    since: datetime
    length: timedelta

    def x(self, at: datetime) -> float:
        return round(min(max((at - self.since) / self.length, 0.0), 1.0) * 100, 2)


def _lane(index: int, attempt: AttemptPhases, state: str, scale: _Scale) -> AttemptLane:
    y = index * LANE + LANE - BAR
    bars = tuple(_bar(phase, attempt, scale) for phase in attempt.phases)
    return AttemptLane(attempt.number, y, _lane_text(attempt, state), bars, _claim_text(attempt))


def _claim_text(attempt: AttemptPhases) -> str:
    if attempt.claim_delay is None:
        return ""
    text = CLAIMED_LATE if attempt.claim_delay > timedelta() else CLAIMED_EARLY
    return text % {"time": duration_or_empty(abs(attempt.claim_delay))}


def _lane_text(attempt: AttemptPhases, state: str) -> str:
    """Describe a lane: the number of the attempt, the wait before it, its outcome and duration."""
    facts = [_("Attempt %(number)d") % {"number": attempt.number}]
    waits = (each.length for each in attempt.phases if each.kind is not PhaseKind.RUNNING)
    waited = sum(waits, timedelta())
    if waited and (attempt.number > 1 or attempt.row):
        facts.append(_("waited %(time)s") % {"time": duration_or_empty(waited)})
    if attempt.row is None:
        facts += [_("not started")] if state in FINAL else []
        return " · ".join([*facts, str(_LABELS.get(state, state))])
    outcome = attempt.row.outcome or State.RUNNING
    return " · ".join(
        [*facts, str(_LABELS.get(outcome, outcome)), duration_or_empty(attempt.phases[-1].length)]
    )


def _bar(phase: Phase, attempt: AttemptPhases, scale: _Scale) -> AttemptBar:
    x = scale.x(phase.since)
    width = max(scale.x(phase.until) - x, MIN_WIDTH)
    if phase.kind is PhaseKind.RUNNING:
        color = str((attempt.row and attempt.row.outcome) or State.RUNNING)
        text = str(_LABELS.get(color, color))
    else:
        color = WAIT_COLORS.get(phase.kind, "pending")
        text = str(PHASE_LABELS[phase.kind])
    return AttemptBar(round(min(x, 100 - width), 2), round(width, 2), color, text, phase)


def _tick_step(length: timedelta) -> timedelta:
    """Return the shortest step that divides ``length`` into at most ``MAX_STEPS`` steps.

    Steps of more than a week are whole weeks.
    """
    milliseconds = length / timedelta(milliseconds=1)
    week = STEPS[-1]
    weeks = ceil(milliseconds / MAX_STEPS / week) * week
    step = next((step for step in STEPS if milliseconds <= step * MAX_STEPS), weeks)
    return timedelta(milliseconds=step)


def _ticks(scale: _Scale) -> Iterator[Tick]:
    step = _tick_step(scale.length)
    for index in range(int(scale.length / step) + 1):
        after = index * step
        at = scale.since + after
        label = f"{localtime(at):%H:%M:%S}"
        if index:
            label = f"+{duration_or_empty(after)}".replace(".0 s", " s")
        yield Tick(scale.x(at), label, _format_exact(at))


def _format_exact(at: datetime) -> str:
    local = localtime(at)
    return f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03d}"
