"""Presets: sensible fields for the five usual kinds of jobs.

The admin's add form offers them, and the guide on recipes shows the same fields with ``@cron``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.policies.overlap import OverlapPolicy


@dataclass(frozen=True)
class Preset:
    schedule: str
    """An example. Empty for a single time, which depends on the date."""
    fields: Mapping[str, Any]
    """The fields of the job that differ from their defaults or that matter for this kind of job."""


PRESETS: Mapping[str, Preset] = {
    "report": Preset(
        "30 3 * * *",
        {
            "misfire_policy": MisfirePolicy.RUN_LATEST.value,
            "overlap_policy": OverlapPolicy.SKIP.value,
            "timeout": timedelta(hours=1),
            "max_attempts": 3,
            "retry_backoff": timedelta(minutes=5),
        },
    ),
    "poll": Preset(
        "* * * * *",
        {
            "misfire_policy": MisfirePolicy.SKIP.value,
            "misfire_grace": timedelta(seconds=30),
            "overlap_policy": OverlapPolicy.SKIP.value,
            "timeout": timedelta(minutes=5),
        },
    ),
    "import": Preset(
        "*/15 * * * *",
        {
            "overlap_policy": OverlapPolicy.QUEUE_ONE.value,
            "timeout": timedelta(minutes=10),
            "max_attempts": 5,
            "retry_backoff": timedelta(seconds=30),
            "retry_backoff_max": timedelta(minutes=10),
        },
    ),
    "cleanup": Preset(
        "H H(1-5) * * *",
        {
            "misfire_policy": MisfirePolicy.SKIP.value,
            "overlap_policy": OverlapPolicy.SKIP.value,
            "timeout": timedelta(hours=1),
            "keep_for": timedelta(days=7),
        },
    ),
    "once": Preset(
        "",
        {
            "misfire_policy": MisfirePolicy.RUN_LATEST.value,
            "timeout": timedelta(hours=1),
            "max_attempts": 3,
            "retry_backoff": timedelta(minutes=1),
        },
    ),
}
