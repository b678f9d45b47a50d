"""Settings of the tests, of their processes, of mypy and of `makemigrations --check`.

Environment variables choose the servers:

DCRON_TEST_DATABASE   sqlite (the default), postgresql or mariadb
DCRON_TEST_REDIS      host:port of a Redis to use (and to flush!) instead of the tests' own
DCRON_TEST_DATABASE_PORT  the database's port on 127.0.0.1 for a test's process (not its socket)
DCRON_TEST_BROKER     URL of another broker than that Redis
DCRON_TEST_QUEUE_TYPE "quorum" for RabbitMQ's replicated queues
DCRON_TEST_HEARTBEAT  seconds between two heartbeats of a worker and RabbitMQ, or between two checks
                      of a worker's connections to Redis
DCRON_TEST_DB_REUSE_MAX  how many tasks of a worker share a database connection (one, as Celery's
                      default)
DCRON_TEST_THEME      a theme of the admin: unfold or jazzmin; the plain admin by default
DCRON_TEST_SETTINGS   DCRON_* durations in seconds as JSON, for a test's process: {"RUN_LEASE": 1}

This module starts nothing. tests/services.py creates the servers' sockets below DCRON_TEST_DIR,
where these settings expect them. Each parallel session (pytest-xdist) has its own servers and
directory. A process that a test starts inherits the directory and the name of the test database
through its environment.
"""

import json
import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import django

_DIRECTORY_OF_ALL = os.environ.setdefault(
    "DCRON_TEST_DIR", f"{tempfile.gettempdir()}/dcron-{os.getpid()}"
)
DIRECTORY = Path(_DIRECTORY_OF_ALL, os.environ.get("PYTEST_XDIST_WORKER", ""))
DATABASE = os.environ.get("DCRON_TEST_DATABASE", "sqlite")
DATABASE_NAME = os.environ.get("DCRON_TEST_DATABASE_NAME", "")

REDIS_ADDRESS = os.environ.get("DCRON_TEST_REDIS", "")
REDIS_SOCKET = DIRECTORY / "redis.sock"
POSTGRESQL_DIRECTORY = DIRECTORY / "postgresql"
MARIADB_SOCKET = DIRECTORY / "mariadb.sock"

ENGINES: dict[str, dict[str, Any]] = {
    "sqlite": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATABASE_NAME or DIRECTORY / "dcron.sqlite3",
        # A file, because workers and nodes are other processes. Transactions take the write lock at
        # their start, where they can wait for it: an upgrade from a read lock fails at once.
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL",
        },
        "TEST": {"NAME": DIRECTORY / "test_dcron.sqlite3"},
    },
    "postgresql": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": DATABASE_NAME or "postgres",
        "HOST": str(POSTGRESQL_DIRECTORY),
        "USER": "postgres",
        "TEST": {"NAME": "test_dcron"},
    },
    "mariadb": {
        "ENGINE": "django.db.backends.mysql",
        "NAME": DATABASE_NAME or "mysql",
        "HOST": str(MARIADB_SOCKET),
        "USER": "root",
        "OPTIONS": {"charset": "utf8mb4"},
        "TEST": {"NAME": "test_dcron", "CHARSET": "utf8mb4"},
    },
}
if _port := os.environ.get("DCRON_TEST_DATABASE_PORT"):
    ENGINES[DATABASE].update(HOST="127.0.0.1", PORT=_port)
DATABASES = {"default": ENGINES[DATABASE]}

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": f"redis://{REDIS_ADDRESS}/0"
        if REDIS_ADDRESS
        else f"unix://{REDIS_SOCKET}?db=0",
    },
}

CELERY_BROKER_URL = os.environ.get("DCRON_TEST_BROKER") or (
    f"redis://{REDIS_ADDRESS}/1"
    if REDIS_ADDRESS
    else f"redis+socket://{REDIS_SOCKET}?virtual_host=1"
)
if _type := os.environ.get("DCRON_TEST_QUEUE_TYPE"):
    CELERY_TASK_DEFAULT_QUEUE_TYPE = _type
if _seconds_between := os.environ.get("DCRON_TEST_HEARTBEAT"):
    CELERY_BROKER_HEARTBEAT = float(_seconds_between)
    if CELERY_BROKER_URL.startswith("redis"):
        CELERY_BROKER_TRANSPORT_OPTIONS = {"health_check_interval": int(_seconds_between)}
# Queues that the jobs of the tests use. A queue of a single test is added in that test.
DCRON_QUEUES = [
    "celery",
    "1e3",
    "bad",
    "default",
    "fast",
    "mail",
    "nowhere",
    "poison",
    "q",
    "reports",
    "slow",
    "from-nodes",
]
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_DB_REUSE_MAX = int(os.environ.get("DCRON_TEST_DB_REUSE_MAX") or 0)
CELERY_WORKER_LOST_WAIT = (
    0.5  # seconds that Celery waits for a late result of a worker process that died
)

# Nodes and workers of a test serve no pages. Without the admin's modules they start a third faster.
_ADMIN = (
    "django.contrib.admin.apps.SimpleAdminConfig"
    if os.environ.get("DCRON_TEST_CHILD")
    else "django.contrib.admin"
)

INSTALLED_APPS = [
    "django_dcron",  # before the admin and its theme, to add the cluster's health to the index
    _ADMIN,
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_htmx",
    "rest_framework",
    "tests.app",
]
if django.VERSION >= (6, 0):
    INSTALLED_APPS += ["django_tasks_db", "tests.tasked"]
    TASKS = {
        "default": {
            "BACKEND": "django_tasks_db.DatabaseBackend",
            "QUEUES": ["default", "reports", "poison"],
        }
    }
if THEME := os.environ.get("DCRON_TEST_THEME", ""):
    INSTALLED_APPS.insert(1, THEME)
    JAZZMIN_SETTINGS = {"use_google_fonts_cdn": False}
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "tests.urls"
STATIC_URL = "/static/"
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# This is fast and insecure, but these passwords protect nothing.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SECRET_KEY = "only for tests"
MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
USE_TZ = True
TIME_ZONE = "UTC"

for _name, _seconds in json.loads(os.environ.get("DCRON_TEST_SETTINGS", "{}")).items():
    globals()[f"DCRON_{_name}"] = timedelta(seconds=_seconds)
