"""The tests' settings, with changes for benchmarks."""

import os

from tests.settings import *  # noqa: F403

CELERY_DB_REUSE_MAX = int(os.environ.get("BENCH_DB_REUSE_MAX", "0"))
