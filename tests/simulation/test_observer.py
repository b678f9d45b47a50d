"""What the observer reports about single changes."""

from __future__ import annotations

from random import Random
from typing import cast

from tests.simulation.engine import Engine
from tests.simulation.observer import CommittedRows, Observer

RUN = "019ca7c0-6b82-73f6-95e5-ee69ccde57c9"


class Rows:
    """A job with one run that was claimed ahead."""

    scheduled_at = "2026-03-01 00:10:00"

    def claimed_ahead(self, job: int, now: str) -> list[str]:
        return [RUN] if self.scheduled_at > now else []


def findings(*, placed_at: str, seconds: float) -> list[str]:
    """Return what the observer reports if the job is edited this long after the beginning."""
    engine = Engine(Random(0), lambda task, error: None)
    observer = Observer(engine, lambda text: None, cast(CommittedRows, Rows()))
    engine.now = seconds
    observer.changed("redefined", (1, placed_at))
    return observer.findings


def test_edit_that_leaves_a_run_that_was_claimed_ahead_is_reported() -> None:
    found = findings(placed_at="2026-03-01 00:05:00", seconds=300.0)
    assert found == ["job 1: run de57c9 of the earlier definition remains"]


def test_edit_leaves_due_runs() -> None:
    assert not findings(placed_at="2026-03-01 00:10:00", seconds=600.0)
    assert not findings(placed_at="2026-03-01 00:05:00", seconds=600.0)


def test_node_whose_clock_is_ahead_may_leave_a_run_that_is_due_by_its_clock() -> None:
    assert not findings(placed_at="2026-03-01 00:10:01", seconds=590.0)
