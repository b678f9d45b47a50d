"""Test the metrics from the database: counters never decrease, and queries have a constant cost."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.models import Cursor, Job, Node, Run, Statistics
from django_dcron.models.statistics import count_ended_runs, count_late_success
from django_dcron.monitoring.metrics import catalog, cluster
from django_dcron.monitoring.metrics.catalog import Metric
from django_dcron.policies.lifecycle import State
from tests.factories import make_idle_job, make_run

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)

pytestmark = pytest.mark.django_db


@pytest.fixture
def now(db: None) -> datetime:
    return database_now("default")


def read(metric: Metric) -> dict[tuple[str, ...], float]:
    """Return the metric's samples by their labels, and assert that each label set is unique."""
    found = [sample for sample in cluster.read_samples() if sample.metric is metric]
    by_labels = {sample.labels: sample.value for sample in found}
    assert len(by_labels) == len(found)
    return by_labels


def read_one(metric: Metric) -> float:
    return read(metric)[()]


def counters() -> dict[tuple[str, ...], float]:
    return read(catalog.RUNS)


def counters_of(job: Job) -> dict[str, float]:
    return {
        labels[3]: value
        for labels, value in counters().items()
        if labels[:3] == (str(job.pk), job.namespace, job.name)
    }


def make_node(now: datetime, name: str, **fields: Any) -> Node:
    given = {
        "id": f"{name}-1",
        "name": name,
        "host": "h",
        "pid": 1,
        "version": "1",
        "started_at": now - HOUR,
        "heartbeat_at": now,
        "ticked_at": now,
        "shards": 64,
        "shard_count": 64,
    }
    return Node.objects.create(**given | fields)


# --- counters -------------------------------------------------------------------------------------


def test_new_job_has_counter_per_outcome() -> None:
    job, other = make_idle_job(), make_idle_job(namespace="billing")
    count_ended_runs([job.pk], State.SUCCEEDED)
    count_ended_runs([job.pk], State.MISSED, 3)
    Statistics.objects.filter(
        pk=other.pk
    ).delete()  # like a job that was created without control.save

    nothing = dict.fromkeys(["succeeded", "failed", "skipped", "missed", "cancelled"], 0)
    assert counters_of(job) == nothing | {"succeeded": 1, "missed": 3}
    assert counters_of(other) == nothing


def test_failures_counted_together_are_consecutive() -> None:
    job = make_idle_job()
    count_ended_runs([job.pk], State.FAILED, 3)
    assert Statistics.objects.get(pk=job.pk).consecutive_failures == 3


def test_late_successes_have_a_counter_of_their_own() -> None:
    late, other = make_idle_job(), make_idle_job()
    count_late_success(late.pk)
    Statistics.objects.filter(pk=other.pk).delete()
    assert read(catalog.LATE_SUCCESSES) == {
        (str(job.pk), job.namespace, job.name): value for job, value in ((late, 1), (other, 0))
    }
    assert counters_of(late)["succeeded"] == 0


def test_pruning_keeps_counters() -> None:
    job = make_idle_job()
    make_run(job, "succeeded")
    count_ended_runs([job.pk], State.SUCCEEDED)
    before = counters()

    Run.objects.all().delete()

    assert counters() == before
    assert counters_of(job)["succeeded"] == 1


def test_jobs_with_counters_are_limited_and_others_are_counted(settings: Settings) -> None:
    settings.DCRON_METRICS_JOBS = 2
    jobs = [make_idle_job() for _ in range(5)]

    assert {labels[0] for labels in counters()} == {str(job.pk) for job in jobs[:2]}
    assert read_one(catalog.JOBS_UNCOUNTED) == 3
    settings.DCRON_METRICS_JOBS = 0
    assert counters() == {}
    settings.DCRON_METRICS_JOBS = 100
    assert read_one(catalog.JOBS_UNCOUNTED) == 0


def test_counters_never_decrease_when_jobs_change(settings: Settings) -> None:
    """No series decreases from one scrape to the next.

    A series that has disappeared never returns for another job.
    """
    settings.DCRON_METRICS_JOBS = 3
    shown: dict[tuple[str, ...], float] = {}

    def scrape() -> None:
        found = counters()
        assert len({labels[0] for labels in found}) <= 3
        assert all(found[labels] >= shown[labels] for labels in found.keys() & shown.keys())
        shown.update(found)

    def rename(job: Job, name: str) -> Job:
        fresh = Job.objects.get(pk=job.pk)
        fresh.name = name
        return control.save(fresh)

    jobs = [make_idle_job(name=f"j{number}") for number in range(6)]
    for number, job in enumerate(jobs, start=1):
        count_ended_runs([job.pk], State.SUCCEEDED, 100 * number)
    scrape()
    jobs[4].delete()  # a job without a series
    scrape()
    jobs[0].delete()  # another job moves up
    scrape()
    assert counters_of(jobs[3])["succeeded"] == 400
    make_idle_job(name="j0")  # the name returns, but the counts don't
    scrape()
    jobs[1], jobs[2] = rename(jobs[1], "x"), rename(jobs[2], "j1")  # a name passes to another job
    scrape()
    rename(jobs[1], "j2")
    scrape()
    make_idle_job(name="new")  # not among the jobs with series
    assert {labels[0] for labels in counters()} == {str(job.pk) for job in jobs[1:4]}
    assert counters_of(Job.objects.get(name="j1")) == counters_of(jobs[2])
    settings.DCRON_METRICS_JOBS = 100
    names = [labels[2] for labels in counters() if labels[3] == "failed"]
    assert sorted(names) == ["j0", "j1", "j2", "j3", "j5", "new"]


# --- gauges ---------------------------------------------------------------------------------------


def test_jobs_are_counted_by_state() -> None:
    enabled, failing, paused, finished, quarantined = (make_idle_job() for _ in range(5))
    Job.objects.filter(pk=paused.pk).update(enabled=False)
    disable_exhausted([finished.pk], "default")
    Cursor.objects.filter(pk=quarantined.pk).update(problem="a zone that vanished")
    for job in (failing, paused):
        count_ended_runs([job.pk], State.FAILED)
    count_ended_runs([enabled.pk], State.FAILED)
    count_ended_runs([enabled.pk], State.SUCCEEDED)

    assert read(catalog.JOBS) == {
        ("enabled",): 2,
        ("paused",): 1,
        ("finished",): 1,
        ("quarantined",): 1,
    }
    assert read_one(catalog.JOBS_FAILING) == 1


def test_unfinished_runs_are_counted_by_state(now: datetime) -> None:
    job = make_idle_job()
    make_run(job, "pending", due_at=now + HOUR)
    make_run(job, "pending", due_at=now - 30 * SECOND)
    make_run(job, "pending", due_at=now)
    for _ in range(3):
        make_run(job, "queued", due_at=now - HOUR)
    for _ in range(4):
        make_run(job, "running")
    for _ in range(5):
        make_run(job, "waiting")
    make_run(job, "succeeded")

    assert read(catalog.RUNS_UNFINISHED) == {
        ("due",): 2,
        ("queued",): 3,
        ("running",): 4,
        ("waiting",): 5,
    }
    oldest = read(catalog.OLDEST)
    assert 30 <= oldest["due",] < 3600 <= oldest["queued",]


def test_metrics_of_empty_database_are_zero() -> None:
    above_zero = {
        (sample.metric, sample.labels) for sample in cluster.read_samples() if sample.value
    }
    assert above_zero == {(catalog.HEALTH_STATUS, ("ok",))}
    assert read(catalog.OLDEST) == {("due",): 0, ("queued",): 0}


def test_count_above_limit_is_limit_plus_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "MAX_COUNTED", 2)
    job = make_idle_job()
    for state in ("pending", "queued"):
        for _ in range(4):
            make_run(job, state)

    found = read(catalog.RUNS_UNFINISHED)
    assert (found["due",], found["queued",]) == (3, 3)


def test_cursor_lag_is_reported_before_the_cursor_is_overdue(now: datetime) -> None:
    fresh, old, quarantined = (make_idle_job() for _ in range(3))
    Cursor.objects.filter(pk=fresh.pk).update(next_at=now - SECOND)

    assert read_one(catalog.CURSORS_OVERDUE) == 0
    assert read_one(catalog.CURSOR_LAG) >= 1

    Cursor.objects.filter(pk=old.pk).update(next_at=now - HOUR)
    Cursor.objects.filter(pk=quarantined.pk).update(next_at=now - 2 * HOUR, problem="no such zone")
    assert read_one(catalog.CURSORS_OVERDUE) == 1
    assert 3600 <= read_one(catalog.CURSOR_LAG) < 7200


def test_nodes_are_counted_by_state(now: datetime) -> None:
    make_node(now, "a", shards=40, agenda=2, skew=-2 * SECOND)
    make_node(now, "b", shards=20, agenda=3, degraded=True, ticked_at=now - HOUR)
    make_node(now, "c", heartbeat_at=now - HOUR, agenda=5, degraded=True, skew=HOUR)
    make_node(now, "b", id="b-0", heartbeat_at=now - HOUR)  # the same node restarted later

    states = {state: number for (state,), number in read(catalog.NODES).items()}
    assert states == {"live": 2, "dead": 1, "degraded": 1, "stalled": 1, "skewed": 1}
    assert read_one(catalog.NODES_AGENDA) == 5
    assert read_one(catalog.NODES_SKEW) == 2
    assert read_one(catalog.SHARDS_UNLED) == 4


def test_unserved_namespaces_are_counted(now: datetime) -> None:
    for namespace in ("a", "b", "c"):
        make_idle_job(namespace=namespace)
    Job.objects.filter(namespace="c").update(enabled=False)
    assert read_one(catalog.NAMESPACES_UNSERVED) == 2

    make_node(now, "x", namespace="a")
    assert read_one(catalog.NAMESPACES_UNSERVED) == 1
    stalled = make_node(now, "y", ticked_at=now - HOUR)
    assert read_one(catalog.NAMESPACES_UNSERVED) == 1
    Node.objects.filter(pk=stalled.pk).update(ticked_at=now)
    assert read_one(catalog.NAMESPACES_UNSERVED) == 0


# --- query costs ----------------------------------------------------------------------------------


def test_number_of_queries_is_bounded(now: datetime, settings: Settings) -> None:
    settings.DCRON_METRICS_JOBS = 100
    job = make_idle_job()
    jobs = [
        Job(name=f"j{i}", target="t", schedule="0 0 1 1 *", namespace=f"n{i % 7}")
        for i in range(300)
    ]
    Job.objects.bulk_create(jobs)
    times = [now - HOUR + i * SECOND / 4 for i in range(2000)]
    states = list(State)
    Run.objects.bulk_create(
        Run(job=job, scheduled_at=at, due_at=at, claimed_at=at, state=states[i % len(states)])
        for i, at in enumerate(times)
    )
    with CaptureQueriesContext(connection) as queries:
        samples = cluster.read_samples()

    assert len(queries) <= cluster.QUERIES
    assert len(samples) < 100 * 6 + 60


@pytest.mark.sqlite
def test_queries_use_indexes_and_limits(now: datetime) -> None:
    job = make_idle_job()
    for state in State:
        make_run(job, state)
    with CaptureQueriesContext(connection) as queries:
        cluster.read_samples()

    tables = ('FROM "django_dcron_run"', 'FROM "django_dcron_cursor"')
    found = [query["sql"] for query in queries if any(table in query["sql"] for table in tables)]
    read = [sum(sql.count(table) for table in tables) for sql in found]
    assert sum(read) >= 11
    # One statement may read several limited sets of rows.
    assert all(sql.count("LIMIT") >= number for sql, number in zip(found, read, strict=True)), found
    scans = ("SCAN django_dcron_run", "SCAN django_dcron_cursor", "TEMP B-TREE FOR ORDER BY")
    with connection.cursor() as cursor:
        for sql in found:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            plan = [row[3] for row in cursor.fetchall()]
            assert not any(scan in step for step in plan for scan in scans), plan
