"""Committed rows: what the observer queries right after a commit, and all rows for the verdict."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from tests.simulation.servers import server

FROM_TABLE = re.compile(r"\bFROM django_dcron_(run|attempt)\b")
WITH_PRUNED = r"FROM (SELECT * FROM django_dcron_\1 UNION ALL SELECT * FROM pruned_\1) AS all_\1s"


def with_pruned(statement: str) -> str:
    """Return the statement that also reads the runs and attempts that retention has deleted."""
    return FROM_TABLE.sub(WITH_PRUNED, statement)


ACCOUNTED = with_pruned("""
SELECT 1 FROM django_dcron_run
WHERE job_id = %s AND (scheduled_at = %s OR (missed_from <= %s AND scheduled_at > %s))
""")


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


FOLLOWERS = with_pruned("""
SELECT l.job_id FROM django_dcron_link l
JOIN django_dcron_job j ON j.id = l.job_id JOIN django_dcron_cursor c ON c.job_id = l.job_id
WHERE l.after_id = %s AND l."on" IN (%s, 'ended') AND j.enabled AND c.resumes_at IS NULL
AND NOT EXISTS (SELECT 1 FROM django_dcron_run
    WHERE job_id = l.job_id AND idempotency_key = 'after run ' || %s)
""")


def missing_followers(run: str, job: int, state: str) -> list[int]:
    """Return the jobs that should follow the ended run, but have no run that does.

    Jobs that are paused, or that a node has enabled ahead of time, are omitted.
    """
    return [key for (key,) in server.query(FOLLOWERS, (job, state, str(UUID(run))))]


FROZEN = """
SELECT 1 FROM django_dcron_run r JOIN django_dcron_job j ON j.id = r.job_id
JOIN django_dcron_freeze f ON f.namespace IN ('', j.namespace)
WHERE r.id = %s AND r."trigger" IN ('schedule', 'chain', 'backfill')
AND (f.until IS NULL OR f.until > %s)
"""


def is_frozen(run: str, now: str) -> bool:
    """Return whether a freeze holds back the run."""
    return bool(server.query(FROZEN, (run, now)))


SILENT_HOLDER = """
SELECT r.id FROM django_dcron_run r JOIN django_dcron_job j ON j.id = r.job_id
WHERE r.job_id = %s AND j.overlap_policy = 'skip' AND r.slot = 'running' AND r.state = 'running'
AND r.heartbeat_at < %s
AND NOT EXISTS (SELECT 1 FROM django_dcron_run n WHERE n.job_id = r.job_id
    AND n.slot = 'next_in_line')
"""


def silent_holder(job: int, before: str) -> str | None:
    """Return the run that has the slot, had its last heartbeat ``before``, and has no successor.

    Only for jobs with the overlap policy ``skip``.
    """
    found = server.query(SILENT_HOLDER, (job, before))
    return str(found[0][0]) if found else None


class AllRows:
    """A cursor for ``tests.verdict`` that also reads the rows that retention has deleted."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    @property
    def description(self) -> Any:
        return self._cursor.description

    def execute(self, statement: str, /) -> Any:
        return self._cursor.execute(with_pruned(statement))

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._cursor.fetchall()
        return rows
