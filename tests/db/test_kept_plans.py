"""The plans that PostgreSQL keeps find runs in progress by an index, without reading the history.

A kept plan doesn't know the values of parameters. With a state as a parameter, PostgreSQL would
expect many runs in that state, and read the whole table to find the first one.
"""

from datetime import timedelta

import pytest
from django.db import connection

from django_dcron.db.now import database_now
from django_dcron.db.plan_cache import _numbered
from django_dcron.models import Run
from django_dcron.runs import slot_queue
from django_dcron.scheduler import adoption, limit_lines, rescue
from tests.factories import make_idle_job

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]

ALL_SHARDS = frozenset(range(64))
STATEMENTS = {
    "rescue": rescue._ANY_CANDIDATE,
    "adoption": adoption._any_of_other_nodes(frozenset({1, 2}), 64, ""),
    "oldest runs to adopt": adoption._oldest_of_other_nodes(ALL_SHARDS, 64, "", 500),
    "waiting runs": limit_lines._WAITING,
    "next in line": slot_queue._ANY_IN_LINE,
}


@pytest.fixture
def history() -> None:
    job, now = make_idle_job(), database_now("default")
    Run.objects.bulk_create(
        Run(job=job, scheduled_at=at, due_at=at, claimed_at=at, finished_at=at, state=state)
        for number in range(5_000)
        for at in [now - timedelta(minutes=number)]
        for state in ["failed" if number % 50 == 0 else "succeeded"]
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_dcron_run")


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize("name", STATEMENTS)
def test_kept_plan_finds_runs_in_progress_by_an_index(name: str) -> None:
    compiled = STATEMENTS[name].compiled_for(connection)
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (GENERIC_PLAN) " + _numbered(compiled.sql))
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Seq Scan on django_dcron_run" not in plan, plan
