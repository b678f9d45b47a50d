"""Measure the queries and the CPU time of each page of the admin in a large installation.

    python -m benchmarks.pages [--runs 1000000] [--jobs 10000]

Every tenth job is paused, and every fiftieth run failed. Each page is requested with Django's test
client. The figures are the queries of one request, and the medians of the CPU time and the elapsed
time of this process in milliseconds. The elapsed time includes the database.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.command import run
from benchmarks.history import fill_history
from benchmarks.testbed import Testbed, make_jobs

REPEATED = 5
TAGS = ("billing", "reports", "imports", "hourly", "nightly")
NAMESPACES = ("default", "shop", "warehouse")


def measure(testbed: Testbed, runs: int, jobs: int) -> dict[str, Any]:
    from django_dcron.models import Job
    from django_dcron.runs.incidents import group_failed_attempts

    far = datetime(datetime.now(UTC).year + 2, 1, 1, tzinfo=UTC)
    made = make_jobs(jobs, far, schedule="0 0 1 1 *")
    for number, job in enumerate(made):
        job.tags = [TAGS[number % len(TAGS)], TAGS[number % 3]]
        job.namespace = NAMESPACES[number % len(NAMESPACES)]
        job.enabled = number % 10 > 0
    Job.objects.bulk_update(made, ["tags", "namespace", "enabled"], batch_size=1000)
    fill_history(runs, jobs, made[0].pk)
    group_failed_attempts()
    return {"jobs": jobs, "runs": runs, "pages": {name: _figures(get) for name, get in _pages()}}


def _figures(get: Callable[[], Any]) -> dict[str, float]:
    from django.db import connection

    queries = []

    def note(execute: Any, sql: str, *arguments: Any) -> Any:
        queries.append(sql)
        return execute(sql, *arguments)

    get()  # fills caches and compiles the templates
    with connection.execute_wrapper(note):
        get()
    times = [_milliseconds(get) for _ in range(REPEATED)]
    cpu, elapsed = (round(statistics.median(each), 1) for each in zip(*times, strict=True))
    return {"queries": len(queries), "cpu_ms": cpu, "elapsed_ms": elapsed}


def _milliseconds(call: Callable[[], Any]) -> tuple[float, float]:
    cpu, began = time.process_time(), time.perf_counter()
    call()
    return (time.process_time() - cpu) * 1000, (time.perf_counter() - began) * 1000


def _pages() -> Iterator[tuple[str, Callable[[], Any]]]:
    from django.contrib.auth import get_user_model
    from django.test import Client
    from django.urls import reverse

    from django_dcron.models import Attempt, Job, Run

    user = get_user_model().objects.create_superuser("bench")
    client = Client(raise_request_exception=True)
    client.force_login(user)
    job, failed = Job.objects.first(), Run.objects.filter(state="failed").latest("scheduled_at")
    attempt = Attempt.objects.get(run=failed)
    assert job is not None
    yesterday = f"{failed.scheduled_at - timedelta(days=1):%Y-%m-%dT%H:%M}"
    addresses: list[tuple[str, str, list[Any], str]] = [
        ("admin index", "index", [], ""),
        ("app index", "app_list", ["django_dcron"], ""),
        ("dashboard", "django_dcron_dashboard_changelist", [], ""),
        ("jobs", "django_dcron_job_changelist", [], ""),
        ("jobs with a tag", "django_dcron_job_changelist", [], "?tag=billing"),
        ("jobs in a state", "django_dcron_job_changelist", [], "?state=paused"),
        ("jobs by last outcome", "django_dcron_job_changelist", [], "?last=none"),
        ("jobs in a namespace", "django_dcron_job_changelist", [], "?namespace=shop"),
        ("jobs, searched", "django_dcron_job_changelist", [], "?q=job-77"),
        (
            "jobs, all filters",
            "django_dcron_job_changelist",
            [],
            "?tag=billing&state=paused&namespace=default&last=none&kind=code&q=job",
        ),
        ("new job", "django_dcron_job_add", [], ""),
        ("job", "django_dcron_job_change", [job.pk], ""),
        ("job's history", "django_dcron_job_history", [job.pk], ""),
        ("why", "django_dcron_job_why", [job.pk], f"?at={yesterday}"),
        ("backfill", "django_dcron_job_backfill", [job.pk], ""),
        ("run with arguments", "django_dcron_job_action", [job.pk, "run_with"], ""),
        ("runs", "django_dcron_run_changelist", [], ""),
        ("failed runs", "django_dcron_run_changelist", [], "?state__exact=failed"),
        ("runs with a tag", "django_dcron_run_changelist", [], "?tag=billing"),
        ("runs in a namespace", "django_dcron_run_changelist", [], "?namespace=shop"),
        ("runs of a job", "django_dcron_run_changelist", [], f"?job__id__exact={job.pk}"),
        ("runs, searched", "django_dcron_run_changelist", [], "?q=job-77"),
        ("run", "django_dcron_run_change", [failed.pk], ""),
        ("attempts", "django_dcron_attempt_changelist", [], ""),
        ("attempts, searched", "django_dcron_attempt_changelist", [], "?q=job-77"),
        ("attempt", "django_dcron_attempt_change", [attempt.pk], ""),
        ("incidents", "django_dcron_incident_changelist", [], ""),
        ("alerts", "django_dcron_alert_changelist", [], ""),
        ("nodes", "django_dcron_node_changelist", [], ""),
        ("calendars", "django_dcron_calendar_changelist", [], ""),
        ("limits", "django_dcron_limit_changelist", [], ""),
        ("freezes", "django_dcron_freeze_changelist", [], ""),
        ("audit log", "django_dcron_auditentry_changelist", [], ""),
    ]
    for name, view, values, query in addresses:
        address = reverse(f"admin:{view}", args=values) + query

        def get(address: str = address) -> None:
            assert client.get(address, headers={"host": "localhost"}).status_code == 200, address

        yield name, get


if __name__ == "__main__":
    run(__doc__, measure, runs=1_000_000, jobs=10_000)
