"""Committed rows: what the observer queries right after a commit, and all rows for the verdict."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.simulation.servers import server

WITH_PRUNED = {
    "SELECT * FROM django_dcron_run": (
        "SELECT * FROM django_dcron_run UNION ALL SELECT * FROM pruned_run"
    ),
    "SELECT * FROM django_dcron_attempt": (
        "SELECT * FROM django_dcron_attempt UNION ALL SELECT * FROM pruned_attempt"
    ),
}


ACCOUNTED = f"""
SELECT 1 FROM ({WITH_PRUNED["SELECT * FROM django_dcron_run"]}) AS either
WHERE job_id = %s AND (scheduled_at = %s OR (missed_from <= %s AND scheduled_at > %s))
"""  # noqa: S608 (no values from outside)


def is_accounted_for(job: int, scheduled_at: str) -> bool:
    """Return whether the job's occurrence has a run, or a later run that counts it as missed."""
    return bool(server.query(ACCOUNTED, (job, scheduled_at, scheduled_at, scheduled_at)))


CLAIMED_AHEAD = """
SELECT r.id FROM django_dcron_run r
WHERE r.job_id = %s AND r.scheduled_at > %s AND r.state = 'pending' AND r.attempt = 1
AND r."trigger" = 'schedule'
"""


def claimed_ahead(job: int, now: str) -> list[str]:
    """Return the job's pending runs that were claimed for occurrences after ``now``."""
    return [str(key) for (key,) in server.query(CLAIMED_AHEAD, (job, now))]


FOLLOWERS = f"""
SELECT l.job_id FROM django_dcron_link l
JOIN django_dcron_job j ON j.id = l.job_id JOIN django_dcron_cursor c ON c.job_id = l.job_id
WHERE l.after_id = %s AND l."on" IN (%s, 'ended') AND j.enabled AND c.resumes_at IS NULL
AND NOT EXISTS (SELECT 1 FROM ({WITH_PRUNED["SELECT * FROM django_dcron_run"]}) f
    WHERE f.job_id = l.job_id AND f.idempotency_key = 'after run ' || %s)
"""  # noqa: S608 (no values from outside)


def missing_followers(run: str, job: int, state: str) -> list[int]:
    """Return the jobs that should follow the ended run, but have no run that does.

    Jobs that are paused, or that a node has enabled ahead of time, are omitted.
    """
    return [key for (key,) in server.query(FOLLOWERS, (job, state, str(UUID(run))))]


FROZEN = """
SELECT 1 FROM django_dcron_run r, django_dcron_freeze f
WHERE r.id = %s AND r."trigger" IN ('schedule', 'chain', 'backfill')
AND (f.until IS NULL OR f.until > %s)
"""


def is_frozen(run: str, now: str) -> bool:
    """Return whether a freeze holds back the run. Simulated freezes apply to all namespaces."""
    return bool(server.query(FROZEN, (run, now)))


class AllRows:
    """A cursor for ``tests.verdict`` that also reads the rows that retention has deleted."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    @property
    def description(self) -> Any:
        return self._cursor.description

    def execute(self, statement: str, /) -> Any:
        return self._cursor.execute(WITH_PRUNED.get(statement, statement))

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._cursor.fetchall()
        return rows
