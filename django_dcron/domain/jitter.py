"""Jitter: a delay that is spread over the jobs but always the same for one occurrence, whoever claims it."""

from __future__ import annotations

from datetime import datetime, timedelta
from zlib import crc32


def offset(job_id: int, scheduled_at: datetime, jitter: timedelta) -> timedelta:
    """How long after ``scheduled_at`` the run falls due: from zero up to ``jitter``."""
    if not jitter:
        return jitter
    return jitter * (crc32(f"{job_id}:{scheduled_at.timestamp():.0f}".encode()) / 0xFFFFFFFF)
