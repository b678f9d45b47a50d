"""A correct history, with each feature that a rule judges."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.verdict.history import Attempt, Change, Counters, History, Job, Limit, Link, Run, Start

SECOND = timedelta(seconds=1)
MOMENT = timedelta(milliseconds=10)
T = datetime(2026, 3, 1, 12, tzinfo=UTC)
UNTIL = T + 20 * SECOND

PLAIN, RETRIED, LATE, FOLLOWER, BACKFILLED, ONCE = range(1, 7)


def _job(number: int, name: str, schedule: str, next_at: datetime | None, **fields: Any) -> Job:
    given = {"retry_backoff": 2 * SECOND, "retry_jitter": 0.1, "max_attempts": 3} | fields
    return Job(number, name, schedule, "UTC", T - SECOND, next_at=next_at, **given)


class _Rows:
    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.attempts: list[Attempt] = []
        self.starts: list[Start] = []

    def add(
        self,
        job: Job,
        at: datetime,
        *attempts: tuple[datetime, str],
        state: str = "succeeded",
        **fields: Any,
    ) -> Run:
        """Add a run, with its attempts as (start, outcome). Each takes a fifth of a second."""
        run_id = f"{job.name}-{len(self.runs)}"
        due_at = fields.pop("due_at", at)
        for number, (started_at, outcome) in enumerate(attempts, 1):
            ended_at = started_at + SECOND / 5
            self.attempts.append(
                Attempt(run_id, number, started_at, ended_at + MOMENT, due_at, outcome)
            )
            self.starts.append(
                Start(
                    run_id,
                    number,
                    job.name,
                    at,
                    started_at + MOMENT,
                    "42",
                    None if outcome == "lost" else ended_at,
                )
            )
            if number < len(attempts):
                due_at = attempts[number][0] - MOMENT
        last = attempts[-1][0] if attempts else None
        given: dict[str, Any] = {
            "trigger": "schedule",
            "claimed_at": at - 5 * SECOND,
            "started_at": last,
            "finished_at": last + SECOND / 4 if last else at,
        }
        run = Run(
            run_id,
            job.id,
            at,
            state=state,
            attempt=max(len(attempts), 1),
            due_at=due_at,
            **given | fields,
        )
        self.runs.append(run)
        return run


def good_history() -> History:
    rows = _Rows()
    plain = _job(
        PLAIN, "plain", "*/2 * * * * *", UNTIL + 4 * SECOND, overlap_policy="allow", max_attempts=1
    )
    for second in range(2, 21, 2):
        at = T + second * SECOND
        rows.add(plain, at, (at + MOMENT, "succeeded"))
    ahead = UNTIL + 2 * SECOND
    rows.add(plain, ahead, state="pending", finished_at=None)

    retried = _job(RETRIED, "retried", "*/10 * * * * *", UNTIL + 10 * SECOND)
    at = T + 10 * SECOND
    # The second attempt's process is killed.
    second, third = at + 3 * SECOND, at + 8 * SECOND
    rows.add(retried, at, (at + MOMENT, "failed"), (second, "lost"), (third, "succeeded"))
    rows.add(retried, UNTIL, (UNTIL + MOMENT, "failed"), state="failed")
    # This failure is final, because the code requested no retry.

    late = _job(
        LATE,
        "late",
        "*/4 * * * * *",
        UNTIL + 4 * SECOND,
        misfire_grace=3 * SECOND,
        misfire_policy="run_latest",
    )
    back = T + 16 * SECOND
    rows.add(late, T + 4 * SECOND, (T + 4 * SECOND + MOMENT, "succeeded"))
    rows.add(
        late,
        T + 12 * SECOND,
        (back + MOMENT, "succeeded"),
        claimed_at=back,
        missed_before=1,
        missed_from=T + 8 * SECOND,
    )
    rows.add(late, back, state="skipped", claimed_at=back, finished_at=back + MOMENT)
    rows.add(
        late,
        UNTIL,
        state="missed",
        claimed_at=UNTIL + 4 * SECOND,
        finished_at=UNTIL + 4 * SECOND,
    )

    follower = _job(FOLLOWER, "follower", "@never", None)
    for run in [run for run in rows.runs if run.job == RETRIED]:
        assert run.finished_at is not None
        made_at = run.finished_at + MOMENT / 2
        rows.add(
            follower,
            made_at,
            (made_at + MOMENT, "succeeded"),
            trigger="chain",
            claimed_at=made_at,
            idempotency_key=f"after run {run.id}",
        )

    backfilled = _job(BACKFILLED, "backfilled", "0 * * * *", T + 3600 * SECOND)
    for hour in (1, 2, 3):
        started_at = T + hour * SECOND
        rows.add(
            backfilled,
            T - timedelta(days=30, hours=-hour),
            (started_at, "succeeded"),
            trigger="backfill",
            claimed_at=T,
            due_at=started_at - MOMENT,
        )

    moment = T + 7 * SECOND
    once = _job(ONCE, "once", f"@at {moment:%Y-%m-%dT%H:%M:%S}", None, enabled=False)
    rows.add(once, moment, (moment + MOMENT, "succeeded"))

    return History(
        after=T,
        until=UNTIL,
        jobs=[plain, retried, late, follower, backfilled, once],
        links=[Link(FOLLOWER, RETRIED, "ended")],
        runs=rows.runs,
        attempts=with_fences(rows.attempts),
        starts=rows.starts,
        changes=[*_changes(), *_changes_in_a_limit()],
        limits=LIMITS,
        counters=[
            Counters(PLAIN, succeeded=10),
            Counters(RETRIED, succeeded=1, failed=1, consecutive_failures=1, late_successes=1),
            Counters(LATE, succeeded=2, skipped=1, missed=2),
            Counters(FOLLOWER, succeeded=2),
            Counters(BACKFILLED, succeeded=3),
            Counters(ONCE, succeeded=1),
        ],
    )


def _changes() -> list[Change]:
    """Two runs of a job wait while another has the slot. Then they get it in turn.

    The second one is due again later. It keeps the slot, and waits for its limit.
    """
    rows = [
        ("first", "queued", "running", 1, "takes"),
        ("second", "queued", "waiting", 2, ""),
        ("third", "queued", "waiting", 3, ""),
        ("first", "running", "succeeded", 1, "frees"),
        ("second", "waiting", "pending", 2, "takes"),
        ("second", "pending", "running", 2, ""),
        ("second", "running", "pending", 4, ""),
        ("second", "pending", "waiting", 4, ""),
        ("second", "waiting", "pending", 4, ""),
        ("second", "pending", "running", 4, ""),
        ("second", "running", "failed", 4, "frees"),
        ("third", "waiting", "pending", 3, "takes"),
    ]
    return [
        Change(
            number,
            run,
            LATE,
            old,
            new,
            T + second * SECOND,
            "schedule",
            attempts=int((old, new) == ("running", "pending")),
            frees_slot=slot == "frees",
            takes_slot=slot == "takes",
        )
        for number, (run, old, new, second, slot) in enumerate(rows, 1)
    ]


_LIMIT = Limit(13, "api", "customer:{kwargs[customer]}", 1, max_started=2, interval=10 * SECOND)
LIMITS = [_LIMIT, replace(_LIMIT, number=19, max_running=2)]


def _changes_in_a_limit() -> list[Change]:
    """Runs of two customers start. A second run of the first one waits until the first one ends."""
    rows = [
        (14, "a", "queued", "running", 1, "customer:7"),
        (15, "b", "queued", "running", 2, "customer:8"),
        (16, "c", "queued", "waiting", 2, "customer:7"),
        (17, "a", "running", "succeeded", 3, "customer:7"),
        (18, "c", "waiting", "pending", 3, "customer:7"),
        (20, "c", "pending", "running", 4, "customer:7"),
    ]
    return [
        Change(
            number,
            run,
            PLAIN,
            old,
            new,
            T,
            "manual",
            limited=True,
            at=T + second * SECOND,
            limit="api",
            key=key,
        )
        for number, run, old, new, second, key in rows
    ]


def with_fences(attempts: list[Attempt]) -> list[Attempt]:
    """Return the attempts with tokens in the order of their starts, with gaps.

    The second attempt of the retried job was lost, and its worker has reported a success later.
    """
    in_order = sorted(range(len(attempts)), key=lambda index: attempts[index].started_at)
    fences = {index: 7 + 3 * number for number, index in enumerate(in_order)}
    return [
        replace(
            attempt,
            fence=fences[index],
            late_outcome="succeeded" if attempt.outcome == "lost" else "",
        )
        for index, attempt in enumerate(attempts)
    ]


def change(history: History, kind: str, index: int, /, **fields: Any) -> History:
    """Return the history with other fields of the item ``index`` of the list ``kind``."""
    items = list(getattr(history, kind))
    items[index] = replace(items[index], **fields)
    return replace(history, **{kind: items})


def drop(history: History, kind: str, index: int) -> History:
    items = list(getattr(history, kind))
    del items[index]
    return replace(history, **{kind: items})


def repeat(history: History, kind: str, index: int, /, **fields: Any) -> History:
    """Return the history with a copy of the item, with other fields."""
    items = list(getattr(history, kind))
    return replace(history, **{kind: [*items, replace(items[index], **fields)]})
