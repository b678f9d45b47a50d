"""The testbed of a benchmark: new servers and a migrated database, removed afterwards.

DCRON_TEST_DATABASE chooses the database, as in the tests: postgresql (the default here), sqlite,
mariadb. Redis is always a separate one, because it is flushed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.services import Process, Server

os.environ.setdefault("DCRON_TEST_DATABASE", "postgresql")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")
os.environ.pop("DCRON_TEST_REDIS", None)


@dataclass
class Testbed:
    redis: Server
    database: Server | None = None
    """None on SQLite."""


@contextmanager
def new_testbed() -> Iterator[Testbed]:
    """Start Redis and the database, and create empty tables."""
    import django
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connections

    from tests import services

    settings.DIRECTORY.mkdir(mode=0o700)
    testbed = Testbed(services.redis_server())
    try:
        testbed.redis.start()
        testbed.database = services.start_database_server()
        django.setup()
        call_command("migrate", verbosity=0)
        yield testbed
    finally:
        connections.close_all()
        for server in (testbed.redis, testbed.database):
            if server is not None:
                server.stop()
        shutil.rmtree(settings.DIRECTORY, ignore_errors=True)


def make_jobs(
    number: int, first_at: datetime, *, schedule: str = "", target: str = "tests.app.tasks.ok"
) -> list[Any]:
    """Create ``number`` jobs that are first due at ``first_at``, a whole second.

    By default, they are due every minute from then on.
    """
    from django_dcron.models import Cursor, Job, Statistics
    from django_dcron.models.cursor import COPIED_FIELDS

    schedule = schedule or f"{first_at.second} * * * * *"
    jobs = Job.objects.bulk_create(
        [Job(name=f"job-{n}", target=target, schedule=schedule) for n in range(number)],
        batch_size=1000,
    )
    if jobs and jobs[0].pk is None:  # MariaDB before 10.5 returns no keys
        jobs = list(Job.objects.all())
    Cursor.objects.bulk_create(
        [
            Cursor(
                job=job,
                next_at=first_at,
                placed_at=job.created_at,
                **{field: getattr(job, field) for field in COPIED_FIELDS},
            )
            for job in jobs
        ],
        batch_size=1000,
    )
    Statistics.objects.bulk_create([Statistics(job=job) for job in jobs], batch_size=1000)
    with suppress(ImportError):  # an earlier commit to compare with may lack it
        from django_dcron.jobs.definitions import store_definitions

        for start in range(0, number, 1000):
            store_definitions(jobs[start : start + 1000])
    analyze(Job, Cursor, Statistics)
    return jobs


def analyze(*models: Any) -> None:
    """Vacuum and analyze these tables on PostgreSQL, as autovacuum does within about a minute.

    The servers of the testbed run without autovacuum. It doesn't analyze unused tables. For an
    empty table with statistics, PostgreSQL keeps plans that scan the whole table.
    """
    from django.db import connection

    if connection.vendor == "postgresql":
        tables = ", ".join(connection.ops.quote_name(model._meta.db_table) for model in models)
        with connection.cursor() as cursor:
            cursor.execute(f"VACUUM (ANALYZE) {tables}")


def empty_tables() -> None:
    from django.core.management import call_command

    call_command("flush", interactive=False, verbosity=0)


def python(name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Process:
    """Return a Python process with django-dcron that uses the servers of the testbed."""
    from tests import services

    variables = {"DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"]}
    return services.python_process(name, *arguments, env={**variables, **(env or {})})


@contextmanager
def nodes(number: int = 1) -> Iterator[list[Process]]:
    """Run ``number`` nodes."""
    processes = [
        python(f"node-{n}", "-m", "django", "runcron", "--name", f"node-{n}") for n in range(number)
    ]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            process.stop()


def in_seconds(seconds: float) -> datetime:
    """Return the current whole second plus ``seconds``, rounded."""
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=round(seconds))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of the process and its children, including children that have ended."""
    import psutil

    process = psutil.Process(pid)
    own = process.cpu_times()
    seconds = own.user + own.system + own.children_user + own.children_system
    for child in process.children(recursive=True):
        times = child.cpu_times()
        seconds += times.user + times.system
    return float(seconds)


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
