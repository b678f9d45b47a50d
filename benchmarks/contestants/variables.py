"""A contestant's environment variables, which ``benchmarks.contestant_setup`` sets."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

POSTGRESQL_SOCKETS = os.environ["BENCH_POSTGRESQL_SOCKETS"]
DATABASE = os.environ["BENCH_DATABASE"]
REDIS_SOCKET = os.environ["BENCH_REDIS_SOCKET"]
BROKER_URL = f"redis+socket://{REDIS_SOCKET}?virtual_host=1"


def burst_at() -> datetime:
    return datetime.fromtimestamp(float(os.environ["BENCH_BURST_AT"]), UTC)


def wait_for_last_minute() -> None:
    """Wait until the last minute before the burst.

    Some schedulers count from a job's creation, so the job must be created in that minute.
    """
    time.sleep(max(0.0, burst_at().timestamp() - 59 - time.time()))
