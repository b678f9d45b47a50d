"""Measure what finished runs in the table cost the tick and the admin's lists.

    python -m benchmarks.history [--runs 1000000] [--jobs 500]

The tick is timed with an empty run table, and with ``runs`` finished runs and as many attempts. The
admin's lists are timed with 60 runs per job, so that the pages are full, and with ``runs``. SQL
creates the rows as copies of one row, one per job and minute into the past. ``VACUUM ANALYZE``
follows, as autovacuum would run it. Ticks run in this process, and pages are requested with
Django's test client, so only the database differs. The figures are medians in milliseconds. The
tick finds nothing to do. ``claim 500`` inserts into the large indexes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.command import run
from benchmarks.testbed import Testbed, in_seconds, make_jobs

REPEATED = 30
CLAIMED = 500

PAGEFUL = 60
"""Runs per job that fill an admin page with the runs of that job alone."""

Medians = dict[str, float]


def measure(testbed: Testbed, runs: int, jobs: int) -> dict[str, Any]:
    far = datetime(datetime.now(UTC).year + 2, 1, 1, tzinfo=UTC)
    created = make_jobs(jobs, far, schedule="0 0 1 1 *")
    first, last = created[0].pk, created[-1].pk
    empty = _time_tick(first)
    fill_history(PAGEFUL * jobs, jobs, first)
    small = _time_pages(last)
    fill_history(runs, jobs, first)
    size = _size()
    return {
        "jobs": jobs,
        "runs": runs,
        "bytes_per_run": size / runs,
        "small": PAGEFUL * jobs,
        "tick_ms": _pairs(empty, _time_tick(first)),
        "admin_ms": _pairs(small, _time_pages(last)),
    }


def _pairs(before: Medians, after: Medians) -> dict[str, list[float]]:
    return {name: [before[name], after[name]] for name in before}


def _time_tick(first_job: int) -> Medians:
    return {name: _median(part) for name, part in _tick()} | {
        f"claim {CLAIMED}": _median_claim(first_job)
    }


def _time_pages(job: int) -> Medians:
    return {name: _median(page) for name, page in _pages(job)}


def _median(call: Callable[[], Any]) -> float:
    call()
    return statistics.median(_milliseconds(call) for _ in range(REPEATED))


def _milliseconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def _tick() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield a node's heartbeat with a whole tick, including steps that run every few seconds."""
    from django.conf import settings

    from django_dcron.dispatch.celery import CeleryDispatcher
    from django_dcron.locks import get_lock
    from django_dcron.models import Node
    from django_dcron.scheduler import tick as scheduler_tick
    from django_dcron.scheduler.runner import Runner

    scheduler_tick.APPLY_CHANGES_EVERY = scheduler_tick.RESCUE_EVERY = 0.0
    settings.DCRON_RUN_LEASE = timedelta(0)
    runner = Runner(name="bench", namespace="", lock=get_lock(), dispatcher=CeleryDispatcher())
    runner.membership.register()
    # Add another node that never dies, which leads half of the shards. The queries then contain the
    # condition on the shard.
    other = Node.objects.get(pk=runner.membership.id)
    other.pk, other.heartbeat_at = "other", other.heartbeat_at + timedelta(days=1)
    other.save(force_insert=True)

    def tick() -> None:
        runner.membership.beat(agenda=0)
        assert 0 < len(runner.membership.shards) < 64
        runner.ticker.record_failure(database_unreachable=False)  # look for own runs, too
        runner.ticker.tick()

    yield "heartbeat and whole tick", tick
    runner.membership.leave()
    other.delete()


def _median_claim(first_job: int) -> float:
    """Measure the claim of one occurrence of some jobs. The cleanup isn't measured."""
    from django_dcron.models import Cursor, Run
    from django_dcron.scheduler.claim import claim

    due_at = in_seconds(5)
    cursors = Cursor.objects.filter(pk__gte=first_job, pk__lt=first_job + CLAIMED)
    seconds = []
    for _ in range(7):
        cursors.update(next_at=due_at)
        seconds.append(_milliseconds(lambda: claim(range(64), due_at, node="bench")))
        claimed = Run.objects.pending().filter(scheduled_at=due_at)
        assert claimed._raw_delete("default") == min(CLAIMED, cursors.count())
    return statistics.median(seconds)


def _pages(job: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    from django.contrib.auth import get_user_model
    from django.test import Client
    from django.urls import reverse

    user, _ = get_user_model().objects.get_or_create(
        username="bench", is_superuser=True, is_staff=True
    )
    client = Client(raise_request_exception=True)
    client.force_login(user)

    def page(model: str, query: str = "") -> Callable[[], Any]:
        address = reverse(f"admin:django_dcron_{model}_changelist") + query

        def get() -> None:
            assert client.get(address, headers={"host": "localhost"}).status_code == 200, address

        return get

    yield "runs", page("run")
    yield "runs of a job", page("run", f"?job__id__exact={job}")
    yield "failed runs", page("run", "?state__exact=failed")
    yield "runs, searched by name", page("run", "?q=job-77")
    yield "runs, page 3", page("run", "?p=3")
    yield "attempts", page("attempt")
    yield "jobs", page("job")


def fill_history(runs: int, jobs: int, first_job: int) -> None:
    """Replace the rows by ``runs`` finished runs and their attempts, in chronological order."""
    from django.db import connection, transaction

    from django_dcron.models import Attempt, Job, Run
    from django_dcron.policies.lifecycle import Outcome, State

    Attempt.objects.all()._raw_delete("default")
    Run.objects.all()._raw_delete("default")
    at = in_seconds(0) - timedelta(days=365)
    template_run = Run.objects.create(
        job=Job.objects.get(pk=first_job),
        scheduled_at=at,
        due_at=at,
        claimed_at=at,
        queued_at=at,
        started_at=at,
        finished_at=at,
        state=State.SUCCEEDED,
        node="bench-00000000",
    )
    template_attempt = Attempt.objects.create(
        run=template_run,
        number=1,
        token=template_run.pk,
        worker="celery@bench",
        started_at=at,
        finished_at=at,
        outcome=Outcome.SUCCEEDED,
    )
    # n counts from the oldest: minute n / jobs, job n % jobs.
    then = "m.start + (n / %(jobs)s) * interval '1 minute'"
    key = (
        f"(lpad(to_hex((extract(epoch FROM {then}) * 1000)::bigint), 12, '0') || '7000'"
        " || '8000' || lpad(to_hex(n), 12, '0'))::uuid"
    )
    run_columns = {
        "id": key,
        "job_id": "%(first)s + n %% %(jobs)s",
        "state": "CASE WHEN n %% 50 = 0 THEN 'failed' ELSE 'succeeded' END",
        **dict.fromkeys(
            ("scheduled_at", "due_at", "claimed_at", "queued_at", "started_at", "finished_at"), then
        ),
    }
    attempt_columns = {"id": "default", "run_id": key, "started_at": then, "finished_at": then}
    source = (
        "generate_series(0, %(runs)s - 1) AS n, (SELECT date_trunc('minute', now()) -"
        " (%(runs)s / %(jobs)s + 10) * interval '1 minute' AS start) AS m"
    )
    numbers = {
        "runs": runs,
        "jobs": jobs,
        "first": first_job,
        "run": template_run.pk,
        "attempt": template_attempt.pk,
    }
    # now() is the start of the transaction, so both tables get the same time.
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_copies(Run, run_columns, source, "template.id = %(run)s"), numbers)
        cursor.execute(
            _copies(Attempt, attempt_columns, source, "template.id = %(attempt)s"), numbers
        )
        template_attempt.delete()
        Run.objects.filter(pk=template_run.pk)._raw_delete("default")
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def _size() -> int:
    """Return the bytes of both tables with their indexes. The rows contain no long texts."""
    from django.db import connection

    from django_dcron.models import Attempt, Run

    with connection.cursor() as cursor:
        tables = (Run._meta.db_table, Attempt._meta.db_table)
        cursor.execute("SELECT pg_total_relation_size(%s) + pg_total_relation_size(%s)", tables)
        return int(cursor.fetchone()[0])


def _copies(model: Any, columns: dict[str, str], source: str, which: str) -> str:
    """Return an INSERT of copies of the template's row, with other values for ``columns``."""
    table = model._meta.db_table
    names = [f.column for f in model._meta.concrete_fields if columns.get(f.column) != "default"]
    values = [columns.get(name, f'template."{name}"') for name in names]
    into = ", ".join(f'"{name}"' for name in names)
    return (
        f'INSERT INTO "{table}" ({into}) SELECT {", ".join(values)} '  # noqa: S608  # nosec B608
        f'FROM {source}, "{table}" AS template WHERE {which}'
    )


if __name__ == "__main__":
    run(__doc__, measure, runs=1_000_000, jobs=500)
