"""Test the chart of a run's attempts: bars, ticks and labels."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from django_dcron.admin.runs.attempt_timeline import (
    LEGEND_LABELS,
    MIN_WIDTH,
    WAITING_TO_START,
    AttemptTimeline,
    draw_attempt_timeline,
)
from django_dcron.diagnosis.phases import AttemptPhases, Phase, PhaseKind
from django_dcron.models import Attempt
from django_dcron.models.attempt import OUTCOME_LABELS
from django_dcron.models.run import STATE_LABELS

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def make_attempt_phases(*lengths: float) -> list[AttemptPhases]:
    """Build phases from pairs of lengths: the seconds of a wait and of the attempt after it."""
    found, at = [], NOON
    for number, (waited, ran) in enumerate(zip(lengths[::2], lengths[1::2], strict=True), start=1):
        started, ended = at + waited * SECOND, at + (waited + ran) * SECOND
        attempt = Attempt(number=number, outcome="failed", started_at=started, finished_at=ended)
        kind = PhaseKind.BACKOFF_OR_LATER if number > 1 else PhaseKind.DUE_OR_QUEUED
        phases = (Phase(kind, at, started), Phase(PhaseKind.RUNNING, started, ended))
        found.append(AttemptPhases(number, attempt, phases))
        at = ended
    return found


def draw_timeline(*args: Any) -> AttemptTimeline:
    timeline = draw_attempt_timeline(*args)
    assert timeline is not None
    return timeline


@pytest.mark.parametrize(
    "lengths",
    [
        (0, 0),
        (0, 0.0004),
        (0.02, 0.25),
        (10, 0.001, 3600, 0.001),
        (0.01, 5, 30, 5, 60, 5),
        (86400 * 90, 1),
        (0, 86400 * 400, 7, 0),
        tuple([1.5] * 20),
    ],
)
def test_bars_and_ticks_are_ordered_and_within_bounds(lengths: tuple[float, ...]) -> None:
    timeline = draw_timeline(make_attempt_phases(*lengths), "failed", None)

    bars = [bar for lane in timeline.lanes for bar in lane.bars]
    assert all(
        bar.x >= 0 and bar.width >= MIN_WIDTH and bar.x + bar.width <= 100.01 for bar in bars
    )
    assert all(before.x <= after.x for before, after in pairwise(bars))
    assert all(
        after.x >= before.x + before.width - MIN_WIDTH - 0.02 for before, after in pairwise(bars)
    )
    assert [lane.y for lane in timeline.lanes] == sorted({lane.y for lane in timeline.lanes})
    assert all(
        0 < lane.text_y < lane.y < timeline.bottom < timeline.height for lane in timeline.lanes
    )
    assert 2 <= len(timeline.ticks) <= 6
    assert [tick.x for tick in timeline.ticks] == sorted({tick.x for tick in timeline.ticks})
    assert all(0 <= tick.x <= 100 for tick in timeline.ticks)
    assert len({tick.label for tick in timeline.ticks}) == len(timeline.ticks)


def test_ticks_are_round_offsets_from_start() -> None:
    def labels(*lengths: float) -> list[str]:
        return [
            tick.label
            for tick in draw_timeline(make_attempt_phases(*lengths), "failed", None).ticks
        ]

    assert labels(0, 42) == ["12:00:00", "+10 s", "+20 s", "+30 s", "+40 s"]
    assert labels(0, 0.25) == ["12:00:00", "+50 ms", "+100 ms", "+150 ms", "+200 ms", "+250 ms"]
    assert labels(0, 7200) == ["12:00:00", "+30m 00s", "+1h 00m", "+1h 30m", "+2h 00m"]


def test_now_marker_is_drawn_only_for_unfinished_run() -> None:
    waiting = [AttemptPhases(1, None, (Phase(PhaseKind.BACKOFF, NOON, NOON + 100 * SECOND),))]

    assert draw_timeline(waiting, "pending", NOON + 25 * SECOND).now == 25
    assert draw_timeline(make_attempt_phases(0, 5), "failed", None).now is None


def test_legend_does_not_claim_that_a_run_waited_to_be_sent_if_that_is_unknown() -> None:
    """Waits of one style have one entry, even if some of them are known better."""

    def legend(*kinds: PhaseKind) -> list[str]:
        phases = tuple(
            Phase(kind, NOON + number * SECOND, NOON + (number + 1) * SECOND)
            for number, kind in enumerate(kinds)
        )
        timeline = draw_timeline([AttemptPhases(1, None, phases)], "pending", None)
        return [bar.legend_label for bar in timeline.legend]

    assert legend(PhaseKind.EARLY) == [LEGEND_LABELS["pending"]]
    assert legend(PhaseKind.EARLY, PhaseKind.DUE_OR_QUEUED) == [WAITING_TO_START]
    assert legend(PhaseKind.DUE_OR_QUEUED, PhaseKind.EARLY) == [WAITING_TO_START]


def test_lane_shows_outcome_and_duration_of_attempt() -> None:
    running = Attempt(number=2, started_at=NOON)
    timeline = draw_timeline(
        [
            *make_attempt_phases(0, 5),
            AttemptPhases(
                2, running, (Phase(PhaseKind.RUNNING, NOON + 5 * SECOND, NOON + 8 * SECOND),)
            ),
        ],
        "running",
        NOON + 8 * SECOND,
    )

    first, second = (lane.text for lane in timeline.lanes)
    assert "1" in first
    assert first.endswith(f"{dict(OUTCOME_LABELS)['failed']} · 5.0 s")
    assert "2" in second
    assert second.endswith(f"{dict(STATE_LABELS)['running']} · 3.0 s")
    assert [bar.color for lane in timeline.lanes for bar in lane.bars][-1] == "running"
    title = timeline.lanes[0].bars[-1].title
    for value in (dict(OUTCOME_LABELS)["failed"], "5.0 s", "2026-03-01 12:00:00.000"):
        assert str(value) in title


def test_wait_is_labeled_only_if_label_fits() -> None:
    bars = [
        bar
        for lane in draw_timeline(make_attempt_phases(1, 1, 98, 1), "failed", None).lanes
        for bar in lane.bars
    ]

    assert [bar.label for bar in bars] == ["", "", "1m 38s", ""]


def test_timeline_without_elapsed_time_is_none() -> None:
    assert draw_attempt_timeline([AttemptPhases(1, None, ())], "skipped", None) is None
