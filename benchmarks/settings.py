"""The tests' settings, with changes for benchmarks."""

import os

from tests.settings import *  # noqa: F403

CELERY_DB_REUSE_MAX = int(os.environ.get("BENCH_DB_REUSE_MAX", "0"))

DCRON_THREADS = int(os.environ.get("BENCH_THREADS", "8"))
DCRON_COROUTINES = int(os.environ.get("BENCH_COROUTINES", "100"))
DATABASES["default"]["CONN_MAX_AGE"] = int(os.environ.get("BENCH_CONN_MAX_AGE", "0"))  # noqa: F405
