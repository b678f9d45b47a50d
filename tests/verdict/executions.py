"""Rules about starts, attempts and their order.

The witnesses' times come from one clock that all processes of the machine share, so they can be
compared exactly. Overlaps are therefore judged by witnesses alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise

from tests.verdict.finding import TOLERANCE, Finding
from tests.verdict.history import Attempt, History, Job, Run, Start, grouped
from tests.verdict.occurrences import name_of, run_name

FAILED = frozenset({"failed", "timed_out", "lost"})
"""Outcomes after which another attempt may follow."""
CONTENTION = timedelta(seconds=1)
"""The longest wait after one of the first three database contention errors."""
EXTRA_ATTEMPTS = {
    "running": {0},
    "succeeded": {0},
    "failed": {0, -1},  # -1: it couldn't be dispatched
    "cancelled": {0, -1},
}
"""The number of a run's attempts minus the number of its current attempt, by state.

For all other states, it is -1: the current attempt hasn't started.
"""


def starts(history: History) -> list[Finding]:
    """Each witnessed start has its attempt, each attempt starts once, each success has a start."""
    found = []
    for (run_id, number), times in Counter(
        (start.run, start.attempt) for start in history.starts
    ).items():
        about = f"run {run_id} attempt {number}"
        if times > 1:
            found.append(Finding("starts", about, f"started {times} times"))
        if (run_id, number) not in history.attempt_by_key:
            found.append(Finding("starts", about, "started without a row"))
    witnessed = {(start.run, start.attempt) for start in history.starts}
    for attempt in history.attempts:
        run = history.run_by_id.get(attempt.run)
        job = history.job_by_id.get(run.job) if run else None
        is_missing = (attempt.run, attempt.number) not in witnessed
        if job and job.witnessed and attempt.outcome == "succeeded" and is_missing:
            about = f"run {attempt.run} attempt {attempt.number}"
            found.append(Finding("starts", about, "succeeded without a start"))
    return [*found, *_mistaken_starts(history)]


def _mistaken_starts(history: History) -> Iterator[Finding]:
    for start in history.starts:
        run = history.run_by_id.get(start.run)
        attempt = history.attempt_by_key.get((start.run, start.attempt))
        if run is None or attempt is None:
            continue
        about = f"run {start.run} attempt {start.attempt}"
        given = start.job, start.scheduled_at
        recorded = name_of(history, run.job), run.scheduled_at
        if given != recorded and run.trigger != "rerun":  # a rerun has the time of the first run
            yield Finding("starts", about, f"received {given}, not {recorded}")
        if start.began_at < attempt.started_at - TOLERANCE:
            message = (
                f"began at {start.began_at}, before the start in its row: {attempt.started_at}"
            )
            yield Finding("starts", about, message)
        if attempt.outcome == "succeeded" and attempt.finished_at is not None:
            if start.ended_at is None:
                yield Finding("starts", about, "succeeded, but its code never ended")
            elif start.ended_at > attempt.finished_at + TOLERANCE:
                message = f"succeeded before its code ended at {start.ended_at}"
                yield Finding("starts", about, message)


def attempts(history: History) -> list[Finding]:
    """Attempts are numbered without gaps, no more than allowed, and agree with their run."""
    found = []
    for run in history.runs:
        job = history.job_by_id.get(run.job)
        tried = history.attempts_by_run.get(run.id, [])
        found += [
            Finding("attempts", run_name(history, run), message)
            for message in _wrong_attempts(run, job, tried)
        ]
    found += [
        Finding("attempts", f"run {attempt.run}", f"attempt {attempt.number} without a run")
        for attempt in history.attempts
        if attempt.run not in history.run_by_id
    ]
    return found


def _wrong_attempts(run: Run, job: Job | None, tried: list[Attempt]) -> Iterator[str]:
    numbers = [attempt.number for attempt in tried]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"numbers {numbers}"
    if job is not None and len(tried) > job.max_attempts:
        yield f"{len(tried)} attempts of at most {job.max_attempts}"
    if len(tried) - run.attempt not in EXTRA_ATTEMPTS.get(run.state, {-1}):
        yield f"{run.state} at attempt {run.attempt} with {len(tried)} attempts"
    if not tried:
        return
    *earlier, last = tried
    for attempt in earlier:
        if attempt.outcome not in FAILED:
            yield f"attempt {attempt.number} is followed, but {attempt.outcome or 'open'}"
    is_right = {
        "succeeded": last.outcome == "succeeded",
        "failed": last.outcome in FAILED,
        "running": last.outcome == "",
        "cancelled": last.outcome in FAILED | {"cancelled"},
    }.get(run.state, last.outcome in FAILED)
    if not is_right:
        yield f"{run.state}, but attempt {last.number} is {last.outcome or 'open'}"
    if run.started_at is None or run.started_at < last.started_at - TOLERANCE:
        yield f"started at {run.started_at}, but attempt {last.number} at {last.started_at}"
    for attempt in tried:
        if bool(attempt.outcome) != (attempt.finished_at is not None):
            yield f"attempt {attempt.number} is {attempt.outcome or 'open'}, finished_at disagrees"
        if attempt.finished_at and attempt.finished_at < attempt.started_at - TOLERANCE:
            yield f"attempt {attempt.number} ended before it started"
        if attempt.late_outcome and attempt.outcome in ("", attempt.late_outcome):
            outcome = attempt.outcome or "open"
            yield f"attempt {attempt.number} is {outcome}, late {attempt.late_outcome}"


def retries(history: History) -> list[Finding]:
    """No attempt starts before it is due, before the previous one ended, or within the backoff."""
    found = []
    for run in history.runs:
        job = history.job_by_id.get(run.job)
        tried = history.attempts_by_run.get(run.id, [])
        about = run_name(history, run)
        too_early = _early_attempts(history, run, job, tried)
        found += [Finding("retries", about, message) for message in too_early]
    return found


def _early_attempts(
    history: History, run: Run, job: Job | None, tried: list[Attempt]
) -> Iterator[str]:
    for attempt in tried:
        due_at = attempt.due_at or run.scheduled_at
        if attempt.started_at < max(due_at, run.scheduled_at) - TOLERANCE:
            yield f"attempt {attempt.number} started before it was due: {attempt.started_at}"
    for earlier, later in pairwise(tried):
        if earlier.finished_at and later.started_at < earlier.finished_at - TOLERANCE:
            yield f"attempt {later.number} started before attempt {earlier.number} ended"
        if job is None or earlier.started_at < job.since:
            continue
        wait = least_wait(job, earlier)
        base = _known_end(history, earlier)
        for what, at in (("started", later.started_at), ("was due", later.due_at)):
            if at is not None and at < base + wait - TOLERANCE:
                yield f"attempt {later.number} {what} {at - base} after the last one, not {wait}"


def least_wait(job: Job, failed: Attempt) -> timedelta:
    """Return the shortest wait after this attempt that the job's policy allows."""
    if failed.exception_class.rpartition(".")[2] == "RetryLater":
        return timedelta(0)
    wait = job.retry_backoff * job.retry_backoff_factor ** (failed.number - 1)
    wait = min(wait, job.retry_backoff_max)
    if failed.exception_class and failed.number <= 3:  # it may be contention
        wait = min(wait, CONTENTION)
    return wait * (1 - job.retry_jitter)


def _known_end(history: History, attempt: Attempt) -> datetime:
    """Return an instant before which the attempt can't have ended.

    The wait begins when a process decides that the attempt has ended. It may write the row's
    ``finished_at`` much later, if the database doesn't answer.
    """
    if attempt.outcome == "failed":
        for start in history.starts_by_run.get(attempt.run, ()):
            if start.attempt == attempt.number and start.ended_at is not None:
                return max(start.ended_at, attempt.started_at)
    return attempt.started_at


def late_starts(history: History) -> list[Finding]:
    """No run starts later than its policies allow.

    The policies don't limit retries, or a run that has waited for its slot or its limit.
    """
    found = []
    for run in history.runs:
        job = history.job_by_id.get(run.job)
        tried = history.attempts_by_run.get(run.id, [])
        if job is None or not tried or tried[0].started_at < job.since:
            continue
        first = tried[0]
        late = first.started_at - (first.due_at or run.due_at)
        about = run_name(history, run)
        deadline = job.start_deadline
        if deadline is not None and run.trigger != "backfill" and late > deadline + TOLERANCE:
            found.append(Finding("late_starts", about, f"{late} late, after its deadline"))
        if run.trigger != "schedule" or late <= job.misfire_grace + TOLERANCE:
            continue
        if job.overlap_policy != "allow" or job.limited:
            continue  # it may have waited
        if job.misfire_policy == "skip":
            found.append(Finding("late_starts", about, f"{late} late under skip"))
        newer = _newer_started(history, run, first.started_at - TOLERANCE)
        if job.misfire_policy == "run_latest" and newer:
            message = f"{late} late under run_latest, after that of {newer.scheduled_at}"
            found.append(Finding("late_starts", about, message))
    return found


def _newer_started(history: History, run: Run, before: datetime) -> Run | None:
    """Return a later run of the schedule that had started before, if there is one."""
    for other in history.runs_by_job[run.job]:
        if other.trigger == "schedule" and other.scheduled_at > run.scheduled_at:
            tried = history.attempts_by_run.get(other.id)
            if tried and tried[0].started_at < before:
                return other
    return None


def order(history: History) -> list[Finding]:
    """Backfilled runs that must not overlap start oldest first; attempts start by number."""
    found = []
    for run_id, witnesses in history.starts_by_run.items():
        numbers = [start.attempt for start in witnesses]
        if numbers != sorted(numbers):
            found.append(Finding("order", f"run {run_id}", f"attempts started as {numbers}"))
    backfilled = (run for run in history.runs if run.trigger == "backfill")
    for (job_id, _), runs in grouped(backfilled, lambda run: (run.job, run.claimed_at)).items():
        job = history.job_by_id.get(job_id)
        if job is None or job.overlap_policy == "allow":
            continue
        started = [
            (history.attempts_by_run[run.id][0].started_at, run.scheduled_at)
            for run in runs
            if run.id in history.attempts_by_run
        ]
        for (_, earlier), (at, later) in pairwise(sorted(started)):
            if later < earlier:
                message = f"the backfilled run of {later} started at {at}, after that of {earlier}"
                found.append(Finding("order", job.name, message))
    return found


def fences(history: History) -> list[Finding]:
    """An attempt that starts after another one has ended has the greater fencing token.

    No two attempts have the same token. That holds for all jobs together.
    """
    known = [attempt for attempt in history.attempts if attempt.fence is not None]
    found = [
        Finding("fences", f"token {fence}", f"{times} attempts have it")
        for fence, times in Counter(attempt.fence for attempt in known).items()
        if times > 1
    ]
    ended = sorted(
        (attempt for attempt in known if attempt.finished_at),
        key=lambda attempt: (attempt.finished_at, attempt.fence),
    )
    highest, index = 0, 0
    for attempt in sorted(known, key=lambda attempt: attempt.started_at):
        while index < len(ended) and _ends_before(ended[index], attempt):
            highest, index = max(highest, ended[index].fence or 0), index + 1
        if (attempt.fence or 0) < highest:
            about = f"run {attempt.run} attempt {attempt.number}"
            message = f"token {attempt.fence}, but an attempt before it had {highest}"
            found.append(Finding("fences", about, message))
    return found


def _ends_before(earlier: Attempt, later: Attempt) -> bool:
    finished_at = earlier.finished_at
    return finished_at is not None and finished_at < later.started_at - TOLERANCE


def deletions(history: History) -> list[Finding]:
    """No attempt starts after its job was deleted."""
    found = []
    for attempt in history.attempts:
        run = history.run_by_id.get(attempt.run)
        job = history.job_by_id.get(run.job) if run else None
        if job and job.deleted_at and attempt.started_at > job.deleted_at + TOLERANCE:
            about = f"run {attempt.run} attempt {attempt.number}"
            found.append(Finding("deletions", about, f"started after {job.deleted_at}"))
    return found


def overlaps(history: History) -> list[Finding]:
    """No two runs of a job overlap unless it allows that, and no two attempts of a run ever do.

    The exception is an attempt that was declared lost, or stopped, and whose code still runs.
    """
    found = []
    exclusive = {job.id for job in history.jobs if job.overlap_policy != "allow"}
    known = (start for start in history.starts if start.run in history.run_by_id)
    of_job = grouped(known, lambda start: history.run_by_id[start.run].job)
    for job, witnesses in of_job.items():
        groups = [witnesses]
        if job not in exclusive:
            groups = list(grouped(witnesses, lambda start: start.run).values())
        for group in groups:
            for earlier, later in _overlapping(group):
                if not _given_up(history, earlier, later.began_at):
                    message = (
                        f"run {later.run} attempt {later.attempt} began at {later.began_at}, but "
                        f"run {earlier.run} attempt {earlier.attempt} ended at {earlier.ended_at}"
                    )
                    found.append(Finding("overlaps", name_of(history, job), message))
    return found


def _overlapping(witnesses: Iterable[Start]) -> Iterator[tuple[Start, Start]]:
    """Yield the pairs that overlap.

    If a process died, the end of its code is unknown. Such a start counts as an instant.
    """
    running: list[Start] = []
    for start in sorted(witnesses, key=lambda start: start.began_at):
        running = [other for other in running if other.ended_at and other.ended_at > start.began_at]
        for other in running:
            yield other, start
        running.append(start)


def _given_up(history: History, start: Start, at: datetime) -> bool:
    """Return whether the start's attempt was declared lost or stopped before ``at``."""
    attempt = history.attempt_by_key.get((start.run, start.attempt))
    if attempt is None or attempt.outcome not in ("lost", "timed_out"):
        return False
    return attempt.finished_at is not None and attempt.finished_at <= at + TOLERANCE
