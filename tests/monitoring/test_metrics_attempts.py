"""Test the histograms of attempts: the leader of the job's shard observes each attempt once.

Memory and queries are bounded for any number of attempts between two scrapes.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from django_dcron.conf import settings
from django_dcron.db.now import database_now
from django_dcron.models import Attempt, Job, Run
from django_dcron.monitoring.metrics import attempts, catalog
from django_dcron.monitoring.metrics.attempts import AttemptObserver
from django_dcron.monitoring.metrics.samples import Distribution, Histogram
from tests.factories import make_idle_job, make_run

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
ALL = frozenset(range(settings.SHARDS))


@pytest.fixture
def job(db: None) -> Job:
    return make_idle_job()


@pytest.fixture
def now(db: None) -> datetime:
    return database_now("default")


def make_observer(shards: Iterable[int] = ALL, namespace: str = "") -> AttemptObserver:
    """Return an observer that has been updated once."""
    led = frozenset(shards)
    observer = AttemptObserver(namespace, lambda: led)
    observer.update()
    return observer


def start(
    job: Job, started_at: datetime, late: timedelta = SECOND, waited: timedelta | None = None
) -> Attempt:
    run = make_run(job, due_at=started_at - late, state="queued")
    Run.objects.filter(pk=run.pk).update(state="running")
    return Attempt.objects.create(
        run=run,
        number=1,
        token=uuid4(),
        worker="w",
        due_at=started_at - late,
        queued_at=None if waited is None else started_at - waited,
        started_at=started_at,
    )


def end(attempt: Attempt, outcome: str = "succeeded", took: timedelta = SECOND) -> None:
    ended = {"outcome": outcome, "finished_at": attempt.started_at + took}
    Attempt.objects.filter(pk=attempt.pk).update(**ended)
    Run.objects.filter(pk=attempt.run_id).update(state="succeeded")


def distributions(observer: AttemptObserver) -> dict[tuple[str, ...], Distribution]:
    found = [each for each in observer.metrics() if isinstance(each, Distribution)]
    return {(each.metric.name, *each.labels): each for each in found}


def observed_count(observer: AttemptObserver, name: str, *labels: str) -> int:
    return distributions(observer)[f"dcron_attempt_{name}_seconds", *labels].buckets[-1][1]


def observed_counts(observer: AttemptObserver) -> tuple[int, int]:
    """Return the numbers of observed starts and ends."""
    ends = [
        each.buckets[-1][1] for key, each in distributions(observer).items() if "duration" in key[0]
    ]
    return observed_count(observer, "start_delay"), sum(ends)


def unobserved(observer: AttemptObserver) -> float:
    (found,) = [each for each in observer.metrics() if each.metric is catalog.UNOBSERVED]
    assert not isinstance(found, Distribution)
    return found.value


def test_bucket_includes_its_upper_bound() -> None:
    histogram = Histogram(catalog.WAIT, (0.1, 1, 10))
    for seconds in (0.05, 0.1, 0.100001, 1, 10, 11, -5):
        histogram.observe(timedelta(seconds=seconds))

    found = histogram.now()
    assert found.buckets == (("0.1", 3), ("1.0", 5), ("10.0", 6), ("+Inf", 7))
    assert found.sum == pytest.approx(22.250001)


def test_starts_and_ends_are_observed_once(job: Job, now: datetime) -> None:
    observer = make_observer()
    first = start(job, now - 60 * SECOND, late=3 * SECOND, waited=2 * SECOND)
    second = start(job, now - 50 * SECOND, late=40 * SECOND)
    observer.update()

    assert (observed_count(observer, "start_delay"), observed_count(observer, "wait")) == (2, 1)
    assert distributions(observer)["dcron_attempt_start_delay_seconds",].sum == 43
    assert distributions(observer)["dcron_attempt_wait_seconds",].sum == 2
    assert observed_counts(observer) == (2, 0)

    end(first, "failed", 5 * SECOND)
    observer.update()
    end(second)
    observer.update()
    observer.update()

    assert observed_counts(observer) == (2, 2)
    assert distributions(observer)["dcron_attempt_duration_seconds", "failed"].sum == 5
    assert observed_count(observer, "duration", "succeeded") == 1
    assert observed_count(observer, "duration", "lost") == 0


def test_attempt_between_two_updates_is_observed_once(job: Job, now: datetime) -> None:
    observer = make_observer()
    end(start(job, now - 60 * SECOND), "timed_out")
    for _ in range(3):
        observer.update()

    assert observed_counts(observer) == (1, 1)
    assert observed_count(observer, "duration", "timed_out") == 1


def test_first_update_ignores_finished_attempts_but_tracks_running_ones(
    job: Job, now: datetime
) -> None:
    end(start(job, now - 60 * SECOND))
    running = start(job, now - 50 * SECOND)
    observer = make_observer()
    assert observed_counts(observer) == (0, 0)

    end(running, took=40 * SECOND)
    observer.update()

    assert observed_counts(observer) == (0, 1)
    assert distributions(observer)["dcron_attempt_duration_seconds", "succeeded"].sum == 40


def test_attempt_started_during_first_update_is_observed_once(job: Job, now: datetime) -> None:
    started: list[Attempt] = []

    def start_before(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if 'FROM "django_dcron_run"' in sql.replace("`", '"') and not started:
            started.append(None)  # type: ignore[arg-type]  # start() must not recurse
            started[0] = start(job, now - 60 * SECOND)
        return execute(sql, *rest)

    with connection.execute_wrapper(start_before):
        observer = make_observer()
    end(started[0])
    observer.update()

    assert observed_counts(observer) == (1, 1)


def test_attempt_without_due_time_has_no_start_delay(job: Job, now: datetime) -> None:
    observer = make_observer()
    attempt = start(job, now - 60 * SECOND)
    Attempt.objects.update(due_at=None, queued_at=None)
    end(attempt)
    observer.update()

    assert (
        observed_count(observer, "start_delay"),
        observed_count(observer, "wait"),
        observed_counts(observer)[1],
    ) == (
        0,
        0,
        1,
    )


def test_nodes_observe_attempts_of_their_shards(now: datetime) -> None:
    jobs = [make_idle_job() for _ in range(10)]
    some = {job.pk % settings.SHARDS for job in jobs[:3]}
    nodes = [make_observer(some), make_observer(ALL - some), make_observer(())]
    for job in jobs:
        end(start(job, now - 60 * SECOND))
    for node in nodes:
        node.update()

    assert [observed_counts(node) for node in nodes] == [(3, 3), (7, 7), (0, 0)]


def test_node_that_takes_over_shard_observes_end(job: Job, now: datetime) -> None:
    led: list[int] = []
    observer = AttemptObserver("", lambda: led)
    observer.update()
    attempt = start(job, now - 60 * SECOND)
    observer.update()
    led += ALL
    end(attempt)
    observer.update()

    assert observed_counts(observer) == (0, 1)


def test_node_of_one_namespace_observes_its_jobs_only(job: Job, now: datetime) -> None:
    other = make_idle_job(namespace="billing")
    before = [start(each, now - 70 * SECOND) for each in (job, other)]
    observer = make_observer(namespace="billing")
    attempts_since = [start(each, now - 60 * SECOND) for each in (job, other)]
    observer.update()
    for attempt in (*before, *attempts_since):
        end(attempt)
    observer.update()

    assert observed_counts(observer) == (1, 2)


def test_recent_rows_wait_for_uncommitted_earlier_rows(job: Job, now: datetime) -> None:
    observer = make_observer()
    start(job, now - 60 * SECOND)
    hidden = start(job, now - 59 * SECOND)
    Attempt.objects.filter(pk=hidden.pk).delete()
    start(job, now + 60 * SECOND)
    start(job, now - 58 * SECOND)
    observer.update()
    assert observed_counts(observer) == (1, 0)

    hidden.save(force_insert=True)  # the row's transaction commits
    Attempt.objects.filter(started_at__gt=now).update(started_at=now - 57 * SECOND)
    observer.update()
    assert observed_counts(observer) == (4, 0)


def test_attempts_of_deleted_runs_are_forgotten(job: Job, now: datetime) -> None:
    observer = make_observer()
    start(job, now - 60 * SECOND)
    observer.update()
    assert observer._open
    Run.objects.all().delete()
    observer.update()

    assert not observer._open
    assert observed_counts(observer) == (1, 0)


def test_attempts_are_read_in_chunks(
    job: Job, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "CHUNK", 3)
    running = [start(job, now - 60 * SECOND) for _ in range(7)]
    observer = make_observer()
    running += [start(job, now - 50 * SECOND) for _ in range(8)]
    observer.update()
    for attempt in running:
        end(attempt)
    observer.update()

    assert observed_counts(observer) == (8, 15)
    assert unobserved(observer) == 0


def test_attempts_beyond_limit_are_counted_as_unobserved(
    job: Job, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MAX_NEW", 4)
    monkeypatch.setattr(attempts, "MAX_OPEN", 3)
    observer = make_observer()
    for _ in range(10):
        start(job, now - 60 * SECOND)
    observer.update()

    assert observed_counts(observer) == (4, 0)
    assert len(observer._open) == 3
    assert unobserved(observer) == 6 + 1


def test_gaps_between_keys_are_not_counted_as_unobserved(
    job: Job, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MAX_NEW", 3)
    observer = make_observer()
    for _ in range(10):
        start(job, now - 60 * SECOND)
    Attempt.objects.filter(
        pk__in=list(Attempt.objects.order_by("-pk").values_list("pk", flat=True)[1:8])
    ).delete()
    observer.update()

    assert observed_counts(observer) == (3, 0)
    assert unobserved(observer) == 0


def test_update_needs_constant_number_of_queries(job: Job, now: datetime) -> None:
    for _ in range(50):
        end(start(job, now - 60 * SECOND))
    observer = make_observer()

    def queries_of_update() -> int:
        with CaptureQueriesContext(connection) as queries:
            observer.update()
        return len(queries)

    assert queries_of_update() == 2  # the time, and the check for new rows
    for _ in range(30):
        end(start(job, now - 50 * SECOND))
    assert queries_of_update() == 4
    running = [start(job, now - 50 * SECOND) for _ in range(30)]
    assert queries_of_update() == 4
    for attempt in running:
        end(attempt)
    assert queries_of_update() == 3
    assert observed_counts(observer) == (60, 60)


class FailingQuery:
    """Refuses the n-th query."""

    def __init__(self, refused: int):
        self.left = refused

    def __call__(self, execute: Callable[..., Any], *query: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise OperationalError("unreachable")
        return execute(*query)


def test_failed_update_loses_and_repeats_no_attempt(
    job: Job, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "CHUNK", 2)
    running = [start(job, now - 70 * SECOND) for _ in range(4)]
    observer = make_observer()
    for attempt in running:
        end(attempt)
    for _ in range(5):
        end(start(job, now - 60 * SECOND))

    failures = 0
    for refused in range(1, 20):
        try:
            with connection.execute_wrapper(FailingQuery(refused)):
                observer.update()
        except OperationalError:
            failures += 1
        else:
            break
    assert failures > 3
    assert observed_counts(observer) == (5, 9)


@pytest.mark.sqlite
def test_queries_use_indexes(job: Job, now: datetime) -> None:
    end(start(job, now - 60 * SECOND))
    running = start(job, now - 60 * SECOND)
    with CaptureQueriesContext(connection) as queries:
        observer = make_observer()
        start(job, now - 50 * SECOND)
        observer.update()
        end(running)
        observer.update()

    tables = ('FROM "django_dcron_run"', 'FROM "django_dcron_attempt"')
    found = [each["sql"] for each in queries if any(table in each["sql"] for table in tables)]
    found = [sql for sql in found if sql.startswith("SELECT")]
    assert len(found) > 6
    with connection.cursor() as cursor:
        for sql in found:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            plan = [row[3] for row in cursor.fetchall()]
            newest = sql.endswith("DESC LIMIT 1")  # the last row in key order
            assert newest or not any(step.startswith("SCAN") for step in plan), (sql, plan)
            assert not any("TEMP B-TREE" in step for step in plan), (sql, plan)
