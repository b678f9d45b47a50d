"""Each rule accepts a good history and finds what breaks it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.verdict.history import Counters, History
from tests.verdict.judgement import RULES, judge
from tests.verdict.tests.good import (
    BACKFILLED,
    FOLLOWER,
    LATE,
    ONCE,
    PLAIN,
    RETRIED,
    SECOND,
    UNTIL,
    T,
    change,
    drop,
    good_history,
    repeat,
)

GOOD = good_history()
Corrupt = Callable[[History], History]


def job(job_id: int) -> int:
    """The index of a job."""
    return next(index for index, each in enumerate(GOOD.jobs) if each.id == job_id)


def run(job_id: int, number: int = 0) -> int:
    """The index of a job's run."""
    return [index for index, each in enumerate(GOOD.runs) if each.job == job_id][number]


def attempt(job_id: int, number: int = 0) -> int:
    """The index of a job's attempt, and of its start."""
    own = {each.id for each in GOOD.runs if each.job == job_id}
    return [index for index, each in enumerate(GOOD.attempts) if each.run in own][number]


def changed(kind: str, index: int, /, **fields: Any) -> Corrupt:
    return lambda history: change(history, kind, index, **fields)


def moved(kind: str, index: int, field: str, by: timedelta) -> Corrupt:
    time = getattr(getattr(GOOD, kind)[index], field)
    return changed(kind, index, **{field: time + by})


def dropped(kind: str, index: int) -> Corrupt:
    return lambda history: drop(history, kind, index)


def repeated(kind: str, index: int, /, **fields: Any) -> Corrupt:
    return lambda history: repeat(history, kind, index, **fields)


CORRUPTIONS: list[tuple[str, str, Corrupt]] = [
    ("not_judged", "holidays", changed("jobs", job(PLAIN), calendar="holidays DE")),
    ("off_schedule", "excluded", changed("jobs", job(PLAIN), calendar="2026-03-01 11:00-13:00")),
    ("not_judged", "last day", changed("jobs", job(PLAIN), schedule="0 0 L * *")),
    ("not_judged", "weekday", changed("jobs", job(PLAIN), schedule="0 0 15W * *")),
    ("not_judged", "nth weekday", changed("jobs", job(PLAIN), schedule="0 0 * * 5#3")),
    ("not_judged", "H in a range", changed("jobs", job(PLAIN), schedule="H(0-9) 0 * * *")),
    ("not_judged", "pause", changed("jobs", job(PLAIN), enabled=False)),
    ("not_judged", "quarantine", changed("jobs", job(PLAIN), problem="unreadable")),
    ("not_judged", "unknown job", dropped("jobs", job(ONCE))),
    ("lost", "row", dropped("runs", run(PLAIN, 4))),
    ("lost", "row of @at", dropped("runs", run(ONCE))),
    ("lost", "missed occurrence", changed("runs", run(LATE, 1), missed_from=None, missed_before=0)),
    ("duplicated", "row", repeated("runs", run(PLAIN, 4), id="another")),
    ("duplicated", "id", repeated("runs", run(PLAIN, 4), scheduled_at=T)),
    ("duplicated", "row and count", changed("runs", run(LATE, 1), missed_from=T + 4 * SECOND)),
    ("off_schedule", "run", moved("runs", run(PLAIN, 4), "scheduled_at", SECOND)),
    ("off_schedule", "fraction", moved("runs", run(PLAIN, 4), "scheduled_at", SECOND / 2)),
    ("off_schedule", "backfilled", moved("runs", run(BACKFILLED), "scheduled_at", SECOND)),
    ("off_schedule", "chain", changed("runs", run(FOLLOWER), scheduled_at=T)),
    ("off_schedule", "cursor", changed("jobs", job(PLAIN), next_at=UNTIL + 3 * SECOND)),
    ("behind", "cursor", changed("jobs", job(PLAIN), next_at=UNTIL)),
    ("behind", "cursor too far", changed("jobs", job(PLAIN), next_at=UNTIL + 6 * SECOND)),
    ("behind", "stopped", changed("jobs", job(PLAIN), next_at=None)),
    ("behind", "claimed run lost", dropped("runs", run(PLAIN, 10))),
    ("unfinished", "pending", changed("runs", run(PLAIN), state="pending", finished_at=None)),
    ("unfinished", "no time", changed("runs", run(PLAIN), finished_at=None)),
    ("unfinished", "slot", changed("runs", run(RETRIED), slot="running")),
    ("misfires", "too many", changed("runs", run(LATE, 1), missed_before=2)),
    ("misfires", "off schedule", moved("runs", run(LATE, 1), "missed_from", SECOND)),
    ("misfires", "not since when", changed("runs", run(LATE, 1), missed_from=None)),
    ("misfires", "in time", changed("runs", run(LATE, 3), finished_at=UNTIL + 2 * SECOND)),
    ("misfires", "covered in time", changed("runs", run(LATE, 1), claimed_at=T + 13 * SECOND)),
    ("misfires", "run_all", changed("jobs", job(LATE), misfire_policy="run_all")),
    ("starts", "twice", repeated("starts", attempt(PLAIN))),
    ("starts", "no row", dropped("attempts", attempt(PLAIN))),
    ("starts", "no start", dropped("starts", attempt(PLAIN))),
    ("starts", "no end", changed("starts", attempt(PLAIN), ended_at=None)),
    ("starts", "early", moved("starts", attempt(PLAIN), "began_at", -SECOND)),
    ("starts", "late end", moved("starts", attempt(PLAIN), "ended_at", SECOND)),
    ("starts", "other occurrence", moved("starts", attempt(PLAIN), "scheduled_at", SECOND)),
    ("starts", "other job", changed("starts", attempt(PLAIN), job="late")),
    ("attempts", "gap", changed("attempts", attempt(RETRIED, 2), number=4)),
    ("attempts", "from zero", changed("attempts", attempt(PLAIN), number=0)),
    ("attempts", "too many", changed("jobs", job(RETRIED), max_attempts=2)),
    ("attempts", "run's number", changed("runs", run(RETRIED), attempt=2)),
    ("attempts", "open", changed("attempts", attempt(PLAIN), outcome="", finished_at=None)),
    ("attempts", "two successes", changed("attempts", attempt(RETRIED), outcome="succeeded")),
    ("attempts", "contradiction", changed("attempts", attempt(PLAIN), outcome="failed")),
    ("attempts", "missed after a start", changed("runs", run(PLAIN), state="missed")),
    ("attempts", "backwards", moved("attempts", attempt(PLAIN), "finished_at", -SECOND)),
    ("attempts", "no run", changed("attempts", attempt(PLAIN), run="another")),
    ("retries", "early", moved("attempts", attempt(PLAIN), "started_at", -SECOND)),
    ("retries", "too soon", changed("jobs", job(RETRIED), retry_backoff=4 * SECOND)),
    ("retries", "factor", changed("jobs", job(RETRIED), retry_backoff_factor=3.0)),
    ("retries", "due early", changed("attempts", attempt(RETRIED, 2), due_at=T + 15 * SECOND)),
    ("retries", "overlap", changed("attempts", attempt(RETRIED), finished_at=T + 14 * SECOND)),
    (
        "late_starts",
        "skip",
        changed("jobs", job(LATE), misfire_policy="skip", overlap_policy="allow"),
    ),
    ("late_starts", "deadline", changed("jobs", job(LATE), start_deadline=3 * SECOND)),
    ("order", "backfill", moved("attempts", attempt(BACKFILLED), "started_at", 10 * SECOND)),
    ("order", "attempts", moved("starts", attempt(RETRIED), "began_at", 5 * SECOND)),
    ("deletions", "started", changed("jobs", job(PLAIN), deleted_at=T - 3600 * SECOND)),
    ("overlaps", "runs", changed("starts", attempt(BACKFILLED), ended_at=T + 3 * SECOND)),
    ("overlaps", "attempts", changed("starts", attempt(RETRIED), ended_at=T + 14 * SECOND)),
    ("turns", "second comes later", changed("changes", 1, due_at=T + 4 * SECOND)),
    ("turns", "third was due first", changed("changes", 2, due_at=T)),
    ("limits", "two of a key", changed("changes", 13, key="customer:7")),
    ("limits", "before the end", changed("changes", 17, number=15)),
    ("limits", "three starts", changed("limits", 1, max_started=1)),
    ("limits", "no definition", lambda history: replace(history, limits=[])),
    ("fences", "of a later attempt", changed("attempts", attempt(RETRIED), fence=2**40)),
    ("fences", "twice", changed("attempts", attempt(RETRIED), fence=7)),
    ("attempts", "late and open", changed("attempts", attempt(PLAIN), late_outcome="succeeded")),
    ("statistics", "late", changed("attempts", attempt(RETRIED, 1), late_outcome="")),
    ("chains", "no follower", dropped("runs", run(FOLLOWER))),
    ("chains", "two followers", repeated("runs", run(FOLLOWER), id="another")),
    ("chains", "follows nothing", changed("runs", run(FOLLOWER), idempotency_key="after run x")),
    ("chains", "made early", moved("runs", run(FOLLOWER), "claimed_at", -SECOND)),
    ("chains", "began early", moved("starts", attempt(FOLLOWER), "began_at", -SECOND)),
    ("chains", "other condition", changed("links", 0, on="succeeded")),
    *(
        (
            "statistics",
            f"{state} {by:+d}",
            changed("counters", index, **{state: getattr(GOOD.counters[index], state) + by}),
        )
        for index, state in ((0, "succeeded"), (1, "failed"), (2, "skipped"), (2, "missed"))
        for by in (-1, 1)
    ),
    ("statistics", "cancelled", changed("counters", 0, cancelled=1)),
    ("statistics", "in a row", changed("counters", 1, consecutive_failures=2)),
    ("statistics", "none", dropped("counters", 0)),
    ("statistics", "twice", repeated("counters", 0)),
]


def test_good_history_has_no_findings() -> None:
    verdict = judge(GOOD)
    assert verdict.findings == ()
    totals = verdict.totals
    assert (totals.occurrences, totals.runs, totals.starts) == (18, 18, 18)
    assert (totals.lost, totals.duplicated) == (0, 0)


@pytest.mark.parametrize(
    ("rule", "corrupt"),
    [pytest.param(rule, corrupt, id=f"{rule}: {what}") for rule, what, corrupt in CORRUPTIONS],
)
def test_corrupted_history_is_found(rule: str, corrupt: Corrupt) -> None:
    found = {finding.rule for finding in judge(corrupt(GOOD)).findings}
    assert rule in found


def test_every_rule_has_a_corruption() -> None:
    assert {rule.__name__ for rule in RULES} == {rule for rule, _, _ in CORRUPTIONS}


def test_late_run_starts_under_run_latest_only_if_no_newer_run_has_started() -> None:
    late = attempt(LATE, 0)
    history = change(GOOD, "jobs", job(LATE), overlap_policy="allow")
    alone = change(history, "attempts", late, started_at=T + 12 * SECOND)
    assert "late_starts" not in {finding.rule for finding in judge(alone).findings}
    after_newer = change(history, "attempts", late, started_at=T + 17 * SECOND)
    assert "late_starts" in {finding.rule for finding in judge(after_newer).findings}
    waited = change(after_newer, "jobs", job(LATE), limited=True)
    assert "late_starts" not in {finding.rule for finding in judge(waited).findings}


def test_run_that_began_to_wait_after_the_slot_was_free_has_not_been_passed_over() -> None:
    late = changed("changes", 2, due_at=T, number=4)(changed("changes", 3, number=3)(GOOD))
    assert judge(late).findings == ()


def test_overlap_with_a_lost_attempt_is_no_finding() -> None:
    """A worker that was declared lost may still run its code."""
    lost = attempt(RETRIED, 1)
    history = change(GOOD, "starts", lost, ended_at=T + 19 * SECOND)
    assert judge(history).findings == ()


def test_rows_that_retention_may_have_deleted_are_no_loss() -> None:
    without = replace(GOOD, runs=[each for each in GOOD.runs if each is not GOOD.runs[0]])
    pruned = change(without, "jobs", job(PLAIN), keep_runs=9, witnessed=False)
    kept = {each.id for each in pruned.runs}
    pruned = replace(
        pruned,
        attempts=[each for each in pruned.attempts if each.run in kept],
        starts=[each for each in pruned.starts if each.run in kept],
    )
    assert judge(pruned).findings == ()
    behind = change(pruned, "counters", 0, succeeded=9)
    assert {finding.rule for finding in judge(behind).findings} == {"lost"}
    gap = drop(pruned, "runs", 4)
    assert "lost" in {finding.rule for finding in judge(gap).findings}


def test_empty_history_has_no_findings() -> None:
    assert judge(History(T, UNTIL, counters=[Counters(1)])).findings == ()
