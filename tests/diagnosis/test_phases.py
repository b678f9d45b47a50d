"""Test the phases of each attempt, computed from unsaved rows of a run."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from django_dcron.diagnosis.phases import AttemptPhases, phases_of_attempts
from django_dcron.models import Attempt, Job, Run

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def run_with(**values: Any) -> Run:
    times = {"scheduled_at": NOON, "due_at": NOON, "claimed_at": at(-10)}
    return Run(job=Job(name="report"), **{**times, **values})


def attempt(
    number: int,
    started: float,
    finished: float | None = None,
    *,
    due: float | None = None,
    queued: float | None = None,
) -> Attempt:
    ended, due_at, queued_at = (
        None if each is None else at(each) for each in (finished, due, queued)
    )
    times = {
        "due_at": due_at,
        "queued_at": queued_at,
        "started_at": at(started),
        "finished_at": ended,
    }
    return Attempt(number=number, outcome="failed" if ended else "", **times)


def shown(found: list[AttemptPhases]) -> list[list[tuple[str, float, float]]]:
    """Return each phase's kind, start and end, in seconds after noon."""
    return [
        [
            (
                phase.kind.value,
                (phase.since - NOON).total_seconds(),
                (phase.until - NOON).total_seconds(),
            )
            for phase in each.phases
        ]
        for each in found
    ]


def test_every_attempt_has_all_phases() -> None:
    """``due_at`` and ``queued_at`` of the run belong to the latest attempt or to the next one."""
    run = run_with(state="pending", attempt=3, due_at=at(40), queued_at=at(13), deliveries=0)
    attempts = [attempt(1, 6, 9, due=3, queued=4), attempt(2, 14, 15, due=12, queued=13)]

    assert shown(phases_of_attempts(run, attempts, at(50))) == [
        [("early", 0, 3), ("due", 3, 4), ("queued", 4, 6), ("running", 6, 9)],
        [("backoff", 9, 12), ("due", 12, 13), ("queued", 13, 14), ("running", 14, 15)],
        [("backoff", 15, 40), ("due", 40, 50)],
    ]


def test_run_that_was_sent_and_returned_is_not_called_unsent() -> None:
    """A freeze returned it. The times at which it was queued and returned aren't both recorded."""
    run = run_with(state="pending", due_at=at(0), queued_at=at(1), deliveries=0)
    assert shown(phases_of_attempts(run, [], at(50)))[0][-1] == ("due_or_queued", 0, 50)


def test_start_before_recorded_delivery_has_no_queued_phase() -> None:
    run = run_with(state="running", attempt=2, due_at=at(20), queued_at=at(1), deliveries=1)
    attempts = [attempt(1, 2, 5, due=0, queued=1), attempt(2, 21, due=20)]

    assert shown(phases_of_attempts(run, attempts, at(25)))[1] == [
        ("backoff", 5, 20),
        ("due_or_queued", 20, 21),
        ("running", 21, 25),
    ]


def test_attempt_that_was_sent_twice_does_not_show_when_it_was_sent_first() -> None:
    run = run_with(state="running", attempt=2, due_at=at(20), queued_at=at(50), deliveries=2)
    attempts = [attempt(1, 2, 5, due=0, queued=1), attempt(2, 51, due=20, queued=50)]

    assert shown(phases_of_attempts(run, attempts, at(55))) == [
        [("due", 0, 1), ("queued", 1, 2), ("running", 2, 5)],
        [("backoff", 5, 20), ("due_or_queued", 20, 51), ("running", 51, 55)],
    ]


@pytest.mark.parametrize(
    ("trigger", "begins"),
    [("schedule", "due_or_queued"), ("manual", "due_or_queued"), ("backfill", "earlier_runs")],
)
def test_attempts_without_due_time_have_start_and_running_phases(trigger: str, begins: str) -> None:
    run = run_with(
        state="failed",
        trigger=trigger,
        claimed_at=NOON,
        attempt=2,
        due_at=at(10),
        finished_at=at(15),
    )

    found = phases_of_attempts(run, [attempt(1, 1, 5), attempt(2, 11, 15)], at(60))

    assert shown(found) == [
        [(begins, 0, 1), ("running", 1, 5)],
        [("backoff_or_later", 5, 11), ("running", 11, 15)],
    ]
    assert [each.claim_delay for each in found] == [None, None]


def test_only_first_attempt_shows_claim() -> None:
    run = run_with(state="failed", attempt=2, due_at=at(12), claimed_at=at(-10), finished_at=at(15))
    attempts = [attempt(1, 6, 9, due=3, queued=4), attempt(2, 14, 15, due=12, queued=13)]

    def claimed(run: Run, attempts: list[Attempt]) -> list[float | None]:
        lengths = [each.claim_delay for each in phases_of_attempts(run, attempts, at(60))]
        return [None if length is None else length.total_seconds() for length in lengths]

    assert claimed(run, attempts) == [-13, None]
    assert claimed(run, attempts[1:]) == [None]
    late = run_with(state="pending", claimed_at=at(7))
    assert claimed(late, []) == [7]
    assert shown(phases_of_attempts(late, [], at(8))) == [[("unclaimed", 0, 7), ("due", 7, 8)]]
    for trigger in ("manual", "rerun", "backfill"):
        assert claimed(run_with(state="pending", trigger=trigger), []) == [None]


def test_next_attempt_is_in_backoff_until_due() -> None:
    run = run_with(state="pending", attempt=2, due_at=at(30))

    assert shown(phases_of_attempts(run, [attempt(1, 0, 5)], at(10))) == [
        [("running", 0, 5)],
        [("backoff", 5, 30)],
    ]
    assert shown(phases_of_attempts(run, [attempt(1, 0, 5)], at(33)))[1] == [
        ("backoff", 5, 30),
        ("due", 30, 33),
    ]


@pytest.mark.parametrize(
    ("values", "phases"),
    [
        ({"state": "pending"}, [("due", 0, 8)]),
        (
            {"state": "pending", "deliveries": 1, "queued_at": at(2)},
            [("due", 0, 2), ("queued", 2, 8)],
        ),  # to be dispatched again
        ({"state": "pending", "deliveries": 2, "queued_at": at(5)}, [("due_or_queued", 0, 8)]),
        ({"state": "queued", "deliveries": 2, "queued_at": at(5)}, [("due_or_queued", 0, 8)]),
        (
            {"state": "queued", "deliveries": 1, "queued_at": at(2)},
            [("due", 0, 2), ("queued", 2, 8)],
        ),
        ({"state": "waiting", "deliveries": 1, "queued_at": at(2)}, [("earlier_runs", 0, 8)]),
        (
            {"state": "waiting", "trigger": "backfill", "claimed_at": at(5)},
            [("earlier_runs", 5, 8)],
        ),
        ({"state": "missed", "claimed_at": at(7), "finished_at": at(7)}, [("unclaimed", 0, 7)]),
        ({"state": "cancelled", "finished_at": at(4)}, [("due_or_queued", 0, 4)]),
    ],
)
def test_run_without_attempt_has_waiting_phases(values: dict[str, Any], phases: list[Any]) -> None:
    assert shown(phases_of_attempts(run_with(**values), [], at(8))) == [phases]


def test_run_claimed_early_has_early_phase() -> None:
    coming = {"scheduled_at": at(10), "due_at": at(10), "claimed_at": at(1)}

    assert shown(phases_of_attempts(run_with(state="pending", **coming), [], at(3))) == [
        [("early", 1, 10)]
    ]
    cancelled = run_with(state="cancelled", finished_at=at(4), **coming)
    assert shown(phases_of_attempts(cancelled, [], at(60))) == [[("early", 1, 4)]]


def test_backfilled_run_starts_at_creation() -> None:
    long_ago = {"scheduled_at": at(-86400), "trigger": "backfill", "claimed_at": at(0)}
    run = run_with(state="running", due_at=at(7), started_at=at(8), **long_ago)

    assert shown(phases_of_attempts(run, [attempt(1, 8, due=7)], at(9))) == [
        [("earlier_runs", 0, 7), ("due_or_queued", 7, 8), ("running", 8, 9)]
    ]


def test_cancelled_retry_has_backoff_only() -> None:
    run = run_with(state="cancelled", attempt=2, due_at=at(60), finished_at=at(20))

    found = phases_of_attempts(run, [attempt(1, 0, 5)], at(90))

    assert [each.row is None for each in found] == [False, True]
    assert shown(found)[1] == [("backoff", 5, 20)]


def test_first_of_latest_attempts_starts_at_its_due_time() -> None:
    run = run_with(state="failed", attempt=12, due_at=at(110), finished_at=at(125))

    latest = [attempt(11, 100, 105, due=97, queued=98), attempt(12, 120, 125, due=110)]
    found = phases_of_attempts(run, latest, at(200))

    assert shown(found) == [
        [("due", 97, 98), ("queued", 98, 100), ("running", 100, 105)],
        [("backoff", 105, 110), ("due_or_queued", 110, 120), ("running", 120, 125)],
    ]


def test_phases_are_contiguous_with_times_out_of_order() -> None:
    """Clocks and transactions differ by a few milliseconds."""
    run = run_with(state="running", due_at=at(5), queued_at=at(4), deliveries=1, started_at=at(3))

    for attempts in (
        [attempt(1, 3, due=5, queued=4)],
        [attempt(1, 3, 2, due=2, queued=9)],
        [attempt(1, -1, -2)],
        [attempt(2, 3, 2, due=4, queued=1)],
    ):
        phases = [
            phase for each in phases_of_attempts(run, attempts, at(2)) for phase in each.phases
        ]
        assert all(phase.since <= phase.until for phase in phases)
        assert all(before.until == after.since for before, after in pairwise(phases))
