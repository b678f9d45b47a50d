"""Read a history from the raw tables, by plain SQL on any DB-API cursor.

SQLite stores times as text in UTC, durations as microseconds and UUIDs as hexadecimal digits.
MariaDB has times without a zone, in UTC. PostgreSQL has a type for each.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from tests.verdict.history import (
    Attempt,
    Change,
    Counters,
    History,
    Job,
    Limit,
    Link,
    Run,
    Start,
)
from tests.verdict.limits import key_of


class Cursor(Protocol):
    """The part of a DB-API cursor that is needed."""

    @property
    def description(self) -> Any: ...

    def execute(self, statement: str, /) -> Any: ...

    def fetchall(self) -> list[tuple[Any, ...]]: ...


Row = Mapping[str, Any]


def read_history(
    cursor: Cursor,
    after: datetime,
    until: datetime,
    starts: Collection[Start] = (),
    *,
    witnessed: Collection[str] = (),
    is_steady: bool = False,
    keep_for: timedelta | None = timedelta(days=30),
    keep_runs: int | None = None,
    with_changes: bool = False,
    jobs: tuple[int, int] | None = None,
) -> History:
    """Read all jobs with their runs. No process may write meanwhile.

    ``witnessed``: the targets whose code appends its starts to the witness log. ``is_steady``: each
    job had the same occurrences throughout the window, even if it was saved. ``keep_for`` and
    ``keep_runs``: the retention of jobs that don't have their own. ``with_changes``: triggers have
    recorded the changes (``tests.verdict.changes``). ``jobs``: the smallest and the largest id
    of the jobs to read, if not all. Links and limits must not connect them with other jobs.
    """
    of_jobs = _between(jobs)
    of_runs = f"run_id IN (SELECT id FROM django_dcron_run WHERE job_id {of_jobs})"  # noqa: S608
    cursors = {row["job_id"]: row for row in _rows(cursor, "cursor", f"job_id {of_jobs}")}
    calendars = {row["name"]: row["dates"] for row in _rows(cursor, "calendar")}
    read_jobs = []
    for row in _rows(cursor, "job", f"id {of_jobs}"):
        position = cursors.get(row["id"], {})
        placed_at = _instant(position.get("placed_at"))
        since = after if is_steady or placed_at is None else placed_at
        read_jobs.append(_job(row, position, since, witnessed, keep_for, keep_runs, calendars))
    return History(
        after=after,
        until=until,
        jobs=read_jobs,
        links=[
            Link(row["job_id"], row["after_id"], row["on"])
            for row in _rows(cursor, "link", f"job_id {of_jobs}")
        ],
        runs=[_run(row) for row in _rows(cursor, "run", f"job_id {of_jobs}")],
        attempts=[_attempt(row) for row in _rows(cursor, "attempt", of_runs)],
        starts=list(starts),
        counters=_counters(
            _rows(cursor, "statistics", f"job_id {of_jobs}"),
            _rows(cursor, "pendingcount", f"job_id {of_jobs}"),
        ),
        changes=read_changes(cursor) if with_changes else [],
        limits=_limits(cursor) if with_changes else [],
    )


def read_changes(cursor: Cursor) -> list[Change]:
    """Read the recorded changes, also while processes write."""
    rows = _read(cursor, "SELECT * FROM verdict_change ORDER BY number")
    return [_change(**{**row, "run": _id(row["run"])}) for row in rows]


def _change(*, template: Any, args: Any, kwargs: Any, limit: Any, **fields: Any) -> Change:
    if limit is None:
        return Change(**fields)
    key = key_of(template, json.loads(args), json.loads(kwargs))
    return Change(**fields, limit=limit, key=key)


def _limits(cursor: Cursor) -> list[Limit]:
    rows = _read(cursor, "SELECT * FROM verdict_limit ORDER BY number")
    return [Limit(**{**row, "interval": _duration(row["interval"])}) for row in rows]


def _between(jobs: tuple[int, int] | None) -> str:
    """Return the SQL condition for the id of a job. Every job has an id."""
    return "IS NOT NULL" if jobs is None else f"BETWEEN {jobs[0]:d} AND {jobs[1]:d}"


def _rows(cursor: Cursor, table: str, condition: str = "1 = 1") -> list[Row]:
    # Without values from outside: literals and numbers of ours.
    return _read(cursor, f"SELECT * FROM django_dcron_{table} WHERE {condition}")  # noqa: S608


def _read(cursor: Cursor, statement: str) -> list[Row]:
    cursor.execute(statement)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _instant(value: Any) -> datetime | None:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if value is None:
        return None
    at: datetime = value
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _required_instant(value: Any) -> datetime:
    found = _instant(value)
    assert found is not None
    return found


def _duration(value: Any) -> timedelta | None:
    return timedelta(microseconds=value) if isinstance(value, int) else value


def _id(value: Any) -> str:
    return str(UUID(str(value)))


def _job(
    row: Row,
    position: Row,
    since: datetime,
    witnessed: Collection[str],
    keep_for: timedelta | None,
    keep_runs: int | None,
    calendars: dict[str, str],
) -> Job:
    own_keep_for = _duration(row["keep_for"])
    durations = ("misfire_grace", "start_deadline", "retry_backoff", "retry_backoff_max")
    values = ("misfire_policy", "catchup_limit", "overlap_policy", "max_attempts")
    return Job(
        id=row["id"],
        name=_label(row),
        schedule=row["schedule"],
        timezone=row["timezone"],
        since=since,
        enabled=bool(row["enabled"]),
        deleted_at=_instant(row["deleted_at"]),
        starts_at=_instant(row["starts_at"]),
        ends_at=_instant(row["ends_at"]),
        calendar=calendars.get(row["calendar_id"]),
        calendar_policy=row["calendar_policy"],
        witnessed=row["target"] in witnessed,
        limited=row["limit_id"] is not None,
        next_at=_instant(position.get("next_at")),
        previous_at=_instant(position.get("previous_at")),
        problem=position.get("problem", "it has no cursor"),
        keep_for=keep_for if own_keep_for is None else own_keep_for,
        keep_runs=keep_runs if row["keep_runs"] is None else row["keep_runs"],
        retry_backoff_factor=row["retry_backoff_factor"],
        retry_jitter=row["retry_jitter"],
        **{name: _duration(row[name]) for name in durations},  # type: ignore[arg-type]
        **{name: row[name] for name in values},
    )


def _text(value: str | bytes | None) -> str | None:
    """Return a text that MariaDB stores as bytes, so that it compares them exactly."""
    return value.decode() if isinstance(value, bytes) else value


def _label(row: Row) -> str:
    namespace, name = row["namespace"], row["name"]
    if row["deleted_at"] is not None:  # the name that the job had when its runs started
        name = name.removesuffix(f" (deleted {row['id']})")
    return str(name) if namespace == "default" else f"{namespace}/{name}"


def _run(row: Row) -> Run:
    return Run(
        id=_id(row["id"]),
        job=row["job_id"],
        scheduled_at=_required_instant(row["scheduled_at"]),
        due_at=_required_instant(row["due_at"]),
        claimed_at=_required_instant(row["claimed_at"]),
        started_at=_instant(row["started_at"]),
        finished_at=_instant(row["finished_at"]),
        missed_from=_instant(row["missed_from"]),
        idempotency_key=_text(row["idempotency_key"]),
        **{
            name: row[name]
            for name in (
                "trigger",
                "state",
                "attempt",
                "missed_before",
                "slot",
                "reason",
            )
        },
    )


def _attempt(row: Row) -> Attempt:
    return Attempt(
        run=_id(row["run_id"]),
        number=row["number"],
        started_at=_required_instant(row["started_at"]),
        finished_at=_instant(row["finished_at"]),
        due_at=_instant(row["due_at"]),
        outcome=row["outcome"],
        exception_class=row["exception_class"],
        late_outcome=row["late_outcome"],
        fence=row["id"],
    )


COUNTERS = ("succeeded", "failed", "skipped", "missed", "cancelled", "late_successes")


def _counters(statistics: list[Row], pending: list[Row]) -> list[Counters]:
    """Return the counters, with the counts that no node has added to them yet."""
    waiting: Counter[tuple[int, str]] = Counter()
    for row in pending:
        waiting[row["job_id"], row["counter"]] += row["number"]
    return [
        Counters(
            row["job_id"],
            consecutive_failures=row["consecutive_failures"],
            **{name: row[name] + waiting[row["job_id"], name] for name in COUNTERS},
        )
        for row in statistics
    ]
