"""Rules about what follows the end of a run: runs of the jobs after it, and statistics."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from datetime import datetime
from itertools import takewhile

from tests.verdict.finding import TOLERANCE, Finding
from tests.verdict.history import FINAL, Counters, History, Job, Link, Run
from tests.verdict.occurrences import existing_jobs, name_of, pruned, run_name

KEY_PREFIX = "after run "
"""The idempotency key of a run that follows another one is this and the other run's id."""
COUNTED_BY_ROW = ("succeeded", "failed", "skipped", "cancelled")


def chains(history: History) -> list[Finding]:
    """Each run that meets the condition of a link is followed by exactly one run of the link's job.

    Only runs that ended after the last change of both jobs are judged. The following jobs must not
    be paused.
    """
    followers = Tally(
        (run.job, run.idempotency_key) for run in history.runs if run.trigger == "chain"
    )
    found = []
    for link in history.links:
        for run in history.runs_by_job.get(link.after, ()):
            number = followers[link.job, KEY_PREFIX + run.id]
            about = run_name(history, run)
            wanted = _is_followed(history, run, link)
            if (wanted and number != 1) or number > 1:
                message = f"{number} runs of {name_of(history, link.job)} follow"
                found.append(Finding("chains", about, message))
    for run in history.runs:
        if run.trigger == "chain":
            about = run_name(history, run)
            found += [Finding("chains", about, text) for text in _wrong_follower(history, run)]
    return found


def _is_followed(history: History, run: Run, link: Link) -> bool:
    if run.finished_at is None or run.state not in FINAL:
        return False
    jobs = [history.job_by_id.get(link.job), history.job_by_id.get(link.after)]
    if any(job is None or run.finished_at < job.since for job in jobs):
        return False
    return meets(run, link.on)


def meets(run: Run, condition: str) -> bool:
    """Return whether a run that ended like this has the followers that wait for ``condition``."""
    ended = run.state in ("succeeded", "failed")
    ended |= run.state == "cancelled" and run.started_at is not None
    return ended if condition == "ended" else run.state == condition


def _wrong_follower(history: History, run: Run) -> Iterator[str]:
    key = run.idempotency_key or ""
    before = history.run_by_id.get(key.removeprefix(KEY_PREFIX))
    if before is None:
        if not any(pruned(history, job) for job in history.jobs):
            yield f"follows no run: {key!r}"
        return
    links = [link for link in history.links if link.job == run.job and link.after == before.job]
    if links and not any(meets(before, link.on) for link in links):
        yield f"follows a run that is {before.state}"
    if before.finished_at is None or run.claimed_at < before.finished_at - TOLERANCE:
        yield f"was made at {run.claimed_at}, before the run that it follows ended"
    end = _success(history, before)
    begins = [start.began_at for start in history.starts_by_run.get(run.id, ())]
    if end is not None and begins and min(begins) < end:
        yield "began before the code of the run that it follows ended"


def _success(history: History, run: Run) -> datetime | None:
    """Return when the code of the run's successful attempt ended. Lost attempts may end later."""
    for start in history.starts_by_run.get(run.id, ()):
        if run.state == "succeeded" and start.attempt == run.attempt:
            return start.ended_at
    return None


def statistics(history: History) -> list[Finding]:
    """Each job's counters are those of its rows, or higher if retention may have deleted rows."""
    counted = {each.job: each for each in history.counters}
    found = []
    for job in existing_jobs(history):
        own = counted.get(job.id, Counters(job.id))
        found += [
            Finding("statistics", job.name, message) for message in _miscounted(history, job, own)
        ]
    found += [
        Finding("statistics", f"job {each.job}", "two rows of statistics")
        for each in history.counters
        if counted[each.job] is not each
    ]
    return found


def _miscounted(history: History, job: Job, counted: Counters) -> Iterator[str]:
    runs = history.runs_by_job.get(job.id, [])
    states = Tally(run.state for run in runs)
    rows = {state: states[state] for state in COUNTED_BY_ROW}
    rows["missed"] = states["missed"] + sum(run.missed_before for run in runs)
    rows["late_successes"] = sum(
        attempt.late_outcome == "succeeded"
        for run in runs
        for attempt in history.attempts_by_run.get(run.id, ())
    )
    may_be_higher = pruned(history, job) > 0
    for state, number in rows.items():
        own = getattr(counted, state)
        if own < number or (own > number and not may_be_higher):
            yield f"{own} counted as {state}, but {number} in the rows"
    if counted.consecutive_failures > counted.failed:
        yield f"{counted.consecutive_failures} failures in a row of {counted.failed}"
    if job.overlap_policy != "allow" and not may_be_higher:  # others may end at the same time
        in_a_row = failures_in_a_row(runs)
        if counted.consecutive_failures > in_a_row:
            yield f"{counted.consecutive_failures} failures in a row, but {in_a_row} in the rows"


def failures_in_a_row(runs: list[Run]) -> int:
    """Return how many runs have failed since the last success."""
    ended = [run for run in runs if run.state in ("succeeded", "failed")]
    ended.sort(key=lambda run: run.finished_at or run.scheduled_at, reverse=True)
    return len(list(takewhile(lambda run: run.state == "failed", ended)))
