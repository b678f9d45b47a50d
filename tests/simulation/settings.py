"""Django settings of the simulator: an SQLite in memory or a PostgreSQL, and long intervals.

The intervals of the cluster are 120 times their defaults. A simulated hour therefore has as many
ticks and heartbeats as half a minute of a real cluster with the default settings. Jobs are due
every few minutes, and faults last from seconds to hours.
"""

import os
from datetime import timedelta
from typing import Any

FACTOR = 120

DATABASE = os.environ.get("DCRON_SIMULATION_DATABASE", "sqlite")
"""``sqlite`` or ``postgresql``."""
POSTGRESQL_DIRECTORY = os.environ.get("DCRON_SIMULATION_POSTGRESQL", "")
"""Where the socket of the PostgreSQL server is."""

ENGINES: dict[str, dict[str, Any]] = {
    "sqlite": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": ":memory:",
        "OPTIONS": {"cached_statements": 1000},
    },
    "postgresql": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "HOST": POSTGRESQL_DIRECTORY,
        "USER": "postgres",
        "CONN_MAX_AGE": None,
        # Functions of the schema ``simulation`` replace those of PostgreSQL.
        "OPTIONS": {
            "options": "-c search_path=simulation,public,pg_catalog -c synchronous_commit=off"
        },
    },
}
DATABASES = {"default": ENGINES[DATABASE]}
INSTALLED_APPS = [
    "django_dcron",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "only for tests"
USE_TZ = True
TIME_ZONE = "UTC"
LOGGING_CONFIG = None

DCRON_TICK = timedelta(seconds=0.5 * FACTOR)
DCRON_LOOK_AHEAD = timedelta(seconds=2.5 * FACTOR)
DCRON_LEASE = timedelta(seconds=6 * FACTOR)
DCRON_RUN_LEASE = timedelta(seconds=15 * FACTOR)
DCRON_STOP_WITHOUT_HEARTBEAT_AFTER: timedelta | None = DCRON_RUN_LEASE
DCRON_REDELIVER_AFTER = timedelta(seconds=60 * FACTOR)
DCRON_HANG_AFTER = timedelta(seconds=60 * FACTOR)
DCRON_DATABASE_GRACE = timedelta(seconds=300 * FACTOR)
DCRON_HARD_TIMEOUT_AFTER = timedelta(seconds=60)
DCRON_SHARDS = 4
DCRON_DISPATCHER = "tests.simulation.broker.Broker"
DCRON_MIDDLEWARE = ["django_dcron.execution.time_limit.limit_time"]
DCRON_KEEP_FOR = timedelta(days=2)
