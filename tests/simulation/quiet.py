"""Make quiet ticks cheap: omit only queries that would find nothing.

A node regularly looks for runs to rescue or release, and for changed jobs. In the simulation, it
first checks whether there may be any: one plain statement with the same conditions as the queries
that would follow, or with fewer. All other code is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

from django.db import connection

from django_dcron.conf import settings
from django_dcron.models.cursor import OWN_FIELDS
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.scheduler import backfill_release, rescue, tick
from tests.simulation.servers import server

RESCUABLE = """
SELECT 1 FROM django_dcron_run AS run
WHERE run.job_id %% {shards} IN ({led}) AND (
    (state = 'running' AND heartbeat_at < %s)
    OR (state = 'queued' AND due_at < %s AND queued_at < %s)
    OR (state = 'waiting' AND "trigger" <> 'backfill' AND NOT EXISTS (
        SELECT 1 FROM django_dcron_run AS holder
        WHERE holder.job_id = run.job_id AND holder.slot = 'running')))
LIMIT 1
"""
RELEASABLE = """
SELECT 1 FROM django_dcron_run AS run JOIN django_dcron_job AS job ON job.id = run.job_id
WHERE run.state = 'waiting' AND run."trigger" = 'backfill' AND run.job_id %% {shards} IN ({led})
    AND (job.enabled OR job.pause_reason = %s)
    AND NOT EXISTS (
        SELECT 1 FROM django_dcron_run AS holder
        WHERE holder.job_id = run.job_id AND holder.slot = 'running')
LIMIT 1
"""
CHANGED = f"""
SELECT 1 FROM django_dcron_job AS job
LEFT JOIN django_dcron_cursor AS job_cursor ON job_cursor.job_id = job.id
LEFT JOIN django_dcron_calendar AS calendar ON calendar.name = job.calendar_id
LEFT JOIN django_dcron_statistics AS statistics ON statistics.job_id = job.id
WHERE job_cursor.job_id IS NULL
    OR {" OR ".join(f"job_cursor.{name} {server.DIFFERS} job.{name}" for name in OWN_FIELDS)}
    OR job_cursor.calendar_dates {server.DIFFERS} calendar.dates
    OR statistics.consecutive_failures >= job.pause_after_failures
    OR (NOT job.enabled AND job.paused_until IS NOT NULL)
LIMIT 1
"""  # noqa: S608 (names of our own columns)


def _any(statement: str, *values: Any) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return bool(cursor.fetchall())


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S.%f}"


class _Check:
    """Replaces the coarse check of ``rescue``, ``_ANY_CANDIDATE``."""

    def __init__(self) -> None:
        self.statement = ""
        self.values: tuple[Any, ...] = ()

    def rows(self) -> list[tuple[int]]:
        return [(1,)] if _any(self.statement, *self.values) else []


@contextmanager
def exact_checks() -> Iterator[None]:
    """Use the exact checks within the block."""
    rescuable = _Check()
    real_rescue, real_release = rescue.rescue, backfill_release.release
    real_changes = tick.Ticker._apply_changes

    def rescue_runs(shards: Any, now: datetime, lease: timedelta, *rest: Any) -> int:
        led = ", ".join(map(str, sorted(shards))) or "NULL"
        rescuable.statement = RESCUABLE.format(shards=settings.SHARDS, led=led)
        overdue = _text(now - settings.REDELIVER_AFTER)
        rescuable.values = (_text(now - lease / 2), overdue, overdue)
        return real_rescue(shards, now, lease, *rest)

    def release(shards: Any, *rest: Any, **options: Any) -> int:
        led = ", ".join(map(str, sorted(shards))) or "NULL"
        statement = RELEASABLE.format(shards=settings.SHARDS, led=led)
        return real_release(shards, *rest, **options) if _any(statement, EXHAUSTED) else 0

    def apply_changes(ticker: tick.Ticker, once: bool) -> None:
        if _any(CHANGED):
            real_changes(ticker, once)

    with (
        patch.object(tick, "release", release),
        patch.object(tick, "rescue", rescue_runs),
        patch.object(tick.Ticker, "_apply_changes", apply_changes),
        patch.object(rescue, "_ANY_CANDIDATE", rescuable),
    ):
        yield
