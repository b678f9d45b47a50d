"""The contestants other than django-dcron: how each stores its jobs, and how its scheduler starts.

Each has its own virtual environment and its own database on the same PostgreSQL, and publishes to
the same queue of the same Redis. All run with their defaults, with two exceptions in their
favor. They log no line per job (the level is WARNING). APScheduler has no limit to how late a job
may start, because with its default limit, it would drop most of a burst.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.environments import ROOT, environment, is_made

if TYPE_CHECKING:
    from tests.services import Process

CELERY = ("-m", "celery", "-A", "benchmarks.contestants.celery_app")
BEAT = (*CELERY, "beat", "--loglevel", "WARNING", "--pidfile", "", "--scheduler")
ENVIRONMENT = ("celery", "redis", "packaging", "psycopg[binary]")


@dataclass(frozen=True)
class Contestant:
    name: str
    packages: tuple[str, ...]
    store: str
    """Name of the module that stores the jobs."""
    scheduler: tuple[str, ...]
    """Arguments for its Python interpreter."""
    django: bool = False
    job_takes: float = 0.0
    """Maximum seconds to store one job."""

    @property
    def python(self) -> Path:
        return environment(self.name, (*self.packages, *ENVIRONMENT))

    @property
    def is_made(self) -> bool:
        return is_made(self.name)

    @property
    def database(self) -> str:
        return self.name.replace("-", "_")

    def variables(self, burst_at: datetime) -> dict[str, str]:
        return variables_of(self.database, django=self.django) | {
            "BENCH_BURST_AT": str(burst_at.timestamp())
        }

    def store_jobs(self, number: int, burst_at: datetime) -> None:
        new_database(self.database)
        env = {**os.environ, **self.variables(burst_at)}
        subprocess.run([self.python, "-m", self.store, str(number)], cwd=ROOT, env=env, check=True)

    def process(self, burst_at: datetime) -> Process:
        from tests.services import Process

        return Process(self.name, [self.python, *self.scheduler], env=self.variables(burst_at))


CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant(
            "django-celery-beat",
            ("django-celery-beat", "django"),
            "benchmarks.contestants.beat_jobs",
            (*BEAT, "django_celery_beat.schedulers:DatabaseScheduler"),
            django=True,
        ),
        Contestant(
            "celery-redbeat",
            ("celery-redbeat",),
            "benchmarks.contestants.redbeat_jobs",
            (*BEAT, "redbeat.RedBeatScheduler"),
        ),
        Contestant(
            "apscheduler",
            ("apscheduler", "sqlalchemy"),
            "benchmarks.contestants.apscheduler_jobs",
            ("-m", "benchmarks.contestants.apscheduler_jobs"),
            job_takes=0.004,
        ),
    )
}


def variables_of(database: str, *, django: bool) -> dict[str, str]:
    """Return the variables for ``contestants.variables``, with Django settings if needed."""
    from django.conf import settings

    return {
        "BENCH_POSTGRESQL_SOCKETS": str(settings.POSTGRESQL_DIRECTORY),
        "BENCH_REDIS_SOCKET": str(settings.REDIS_SOCKET),
        "BENCH_DATABASE": database,
        "DJANGO_SETTINGS_MODULE": "benchmarks.contestants.django_settings" if django else "",
    }


def new_database(name: str) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE IF EXISTS "{name}"')
        cursor.execute(f'CREATE DATABASE "{name}"')
