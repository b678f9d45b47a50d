"""Retention: the decision page by page, compared with a naive implementation of the rules."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.policies import retention as module
from django_dcron.policies.lifecycle import FINAL, State
from django_dcron.policies.retention import (
    LONGEST,
    FinishedRun,
    HistoryBounds,
    Retention,
    select_expired,
)

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
MONTH = Retention(30 * DAY, 90 * DAY)


def row(days: float, state: State = State.SUCCEEDED, **facts: object) -> FinishedRun:
    """Return a run that was scheduled ``days`` ago and ended at the same instant."""
    at = NOW - days * DAY
    return FinishedRun(UUID(int=int(days * 1000)), at, state, at)._replace(**facts)


def bounds_of(history: list[FinishedRun], retention: Retention) -> HistoryBounds | None:
    def nth(rows: list[FinishedRun], number: int | None) -> datetime | None:
        return rows[-number].scheduled_at if number and len(rows) >= number else None

    finished = [each for each in history if each.state in FINAL]
    if not finished:
        return None
    failed = [each for each in history if each.state == State.FAILED]
    number = retention.keep_runs
    return HistoryBounds(finished[-1].scheduled_at, nth(finished, number), nth(failed, number))


def expired(
    history: list[FinishedRun], retention: Retention, *, page: int = 500
) -> list[FinishedRun]:
    """Return the expired runs. As in pruning, each page is deleted before the next one."""
    bounds = bounds_of(history, retention)
    deleted: list[UUID] = []
    position, left = None, list(history)
    while bounds:
        rows = [each for each in left if position is None or each.scheduled_at > position][:page]
        selection = select_expired(rows, retention, bounds, NOW)
        deleted += selection.expired
        left = [each for each in left if each.run_id not in selection.expired]
        if selection.is_done or not rows:
            break
        position = selection.position
    return [each for each in history if each.run_id in deleted]


def days(rows: list[FinishedRun]) -> list[float]:
    return [(NOW - each.scheduled_at) / DAY for each in rows]


@pytest.mark.parametrize("state", sorted(FINAL))
def test_failed_runs_are_kept_longer_than_others(state: State) -> None:
    history = [row(100, state), row(60, state), row(10)]
    assert days(expired(history, MONTH)) == ([100] if state is State.FAILED else [100, 60])


def test_latest_finished_run_is_kept_at_any_age() -> None:
    assert expired([row(1000)], MONTH) == []
    assert days(expired([row(1000), row(900), row(1, State.RUNNING)], MONTH)) == [1000]
    assert expired([row(1, State.RUNNING)], MONTH) == []


def test_age_is_measured_from_the_end_of_the_run() -> None:
    long = row(60, ended_at=NOW - DAY)
    assert days(expired([row(61), long, row(10)], MONTH)) == [61]


def test_run_of_exactly_the_maximum_age_is_kept() -> None:
    assert days(expired([row(31), row(30), row(1)], MONTH)) == [31]
    assert days(expired([row(91, State.FAILED), row(90, State.FAILED), row(1)], MONTH)) == [91]


def test_runs_after_a_kept_run_are_kept() -> None:
    """Otherwise, the gap between the two would look like a lost occurrence."""
    after = [row(50), row(49, State.FAILED, ended_at=NOW - 100 * DAY), row(10)]
    assert days(expired([row(61), row(60, State.RUNNING), *after], MONTH)) == [61]
    assert days(expired([row(61), row(60, is_needed=True), *after], MONTH)) == [61]
    assert days(expired([row(61), row(60, ended_at=NOW), *after], MONTH)) == [61]


@pytest.mark.parametrize(
    "other",
    [
        row(60, State.FAILED),
        row(60, State.FAILED, is_needed=True, ended_at=NOW - 100 * DAY),
        row(60, State.WAITING, is_backfilled=True),
        row(60, is_backfilled=True, ended_at=NOW),
    ],
)
def test_kept_failed_and_backfilled_runs_do_not_keep_later_runs(other: FinishedRun) -> None:
    assert days(expired([row(61), other, row(59), row(10)], MONTH)) == [61, 59]


def test_keep_runs_limits_all_runs_and_failed_runs_separately() -> None:
    history = [
        row(9, State.FAILED),
        row(8, State.FAILED),
        row(7),
        row(6, State.FAILED),
        row(5),
        row(4),
    ]
    assert days(expired(history, Retention(30 * DAY, 90 * DAY, 2))) == [9, 7]
    assert days(expired(history, Retention(30 * DAY, 90 * DAY, 3))) == [7]
    assert expired(history, Retention(30 * DAY, 90 * DAY, 6)) == []


def test_failed_run_is_kept_at_least_as_long_as_any_other() -> None:
    assert expired([row(40, State.FAILED), row(39), row(1)], Retention(60 * DAY, 10 * DAY)) == []


def test_unlimited_retention_does_not_overflow_datetime() -> None:
    assert expired([row(100), row(1)], Retention(timedelta.max, timedelta.max)) == []
    assert Retention(timedelta.max, DAY).age_of(State.FAILED) == LONGEST


def test_batch_size_counts_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 10)
    history = [row(60 - n, attempts=4) for n in range(5)] + [row(1)]
    bounds = bounds_of(history, MONTH)
    assert bounds
    selection = select_expired(history, MONTH, bounds, NOW)
    assert (len(selection.expired), selection.position, selection.is_done) == (
        2,
        history[1].scheduled_at,
        False,
    )
    assert len(select_expired([row(60, attempts=100), row(1)], MONTH, bounds, NOW).expired) == 1, (
        "at least one run"
    )
    assert len(expired(history, MONTH)) == 5


# --- all rules together -------------------------------------------------------------------------

STATES = [
    State.SUCCEEDED,
    State.SUCCEEDED,
    State.FAILED,
    State.SKIPPED,
    State.MISSED,
    State.CANCELLED,
]


@st.composite
def histories(draw: st.DrawFn) -> list[FinishedRun]:
    found = []
    for number in range(draw(st.integers(0, 25)), 0, -1):
        state = draw(st.sampled_from([*STATES, *STATES, State.RUNNING, State.PENDING]))
        at = NOW - number * DAY
        ended = at + draw(st.sampled_from([0, 0, 0, 1, 5, 20])) * DAY
        found.append(
            FinishedRun(
                UUID(int=number),
                at,
                state,
                min(ended, NOW),
                is_backfilled=draw(st.integers(0, 9)) == 0,
                attempts=draw(st.integers(0, 3)),
                is_needed=draw(st.integers(0, 15)) == 0,
            )
        )
    return found


def runs_to_keep(history: list[FinishedRun], retention: Retention) -> list[FinishedRun]:
    """Return the runs to keep, decided row by row as documented."""
    finished = [each for each in history if each.state in FINAL]

    def is_wanted(each: FinishedRun) -> bool:
        if each not in finished or each.is_needed or each == finished[-1]:
            return True
        alike = (
            [one for one in finished if one.state == State.FAILED]
            if each.state == State.FAILED
            else finished
        )
        later = [one for one in alike if one.scheduled_at > each.scheduled_at]
        if retention.keep_runs is not None and len(later) >= retention.keep_runs:
            return False
        keep_failed = max(retention.keep_for, retention.keep_failed_for)
        return each.ended_at >= NOW - (
            keep_failed if each.state == State.FAILED else retention.keep_for
        )

    for index, each in enumerate(history):
        if is_wanted(each) and each.state != State.FAILED and not each.is_backfilled:
            return [one for one in history[:index] if is_wanted(one)] + history[index:]
    return [each for each in history if is_wanted(each)]


@given(
    histories(),
    st.builds(
        Retention,
        st.integers(1, 20).map(lambda number: number * DAY),
        st.integers(1, 30).map(lambda number: number * DAY),
        st.none() | st.integers(1, 12),
    ),
    st.integers(1, 6),
)
def test_kept_runs_match_the_naive_implementation(
    history: list[FinishedRun], retention: Retention, page: int
) -> None:
    deleted = expired(history, retention, page=page)
    kept = [each for each in history if each not in deleted]
    assert kept == runs_to_keep(history, retention)
    whole_from = [
        each.scheduled_at for each in kept if each.state != State.FAILED and not each.is_backfilled
    ]
    assert not whole_from or all(each.scheduled_at < whole_from[0] for each in deleted), (
        "no gap that looks like a loss"
    )
    assert expired(kept, retention) == [], "a second pass deletes nothing"
