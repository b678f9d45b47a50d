"""Jitter: a delay that spreads jobs but is deterministic for each occurrence, on every node."""

from __future__ import annotations

from datetime import datetime, timedelta
from zlib import crc32


def jitter_delay(job_id: int, scheduled_at: datetime, jitter: timedelta) -> timedelta:
    """Return the delay of the due time after ``scheduled_at``, from zero to ``jitter``."""
    if not jitter:
        return jitter
    return jitter * (crc32(f"{job_id}:{scheduled_at.timestamp():.0f}".encode()) / 0xFFFFFFFF)
