"""Pruning, on the real database: expired runs are deleted in small batches; others are kept."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, connections, transaction
from django.db.models import ProtectedError
from django.db.models.signals import post_delete, pre_delete
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.diagnosis.why.explanation_data import is_of_occurrence
from django_dcron.exceptions import NotPossible
from django_dcron.execution.executor import execute
from django_dcron.models import Attempt, Cursor, Job, Limit, LimitPlace, Run, Statistics
from django_dcron.policies import retention
from django_dcron.runs import retention as run_retention
from django_dcron.scheduler.claim import claim
from django_dcron.utils import sync_points
from tests.factories import make_idle_job, make_job, make_run
from tests.lock_holder import keeping_locked
from tests.refusals import refusal
from tests.threads import in_threads
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


def now() -> datetime:
    return database_now("default")


def ended(
    job: Job, days: float, state: str = "succeeded", *, attempts: int = 1, **fields: Any
) -> Run:
    """A run from ``days`` ago that ended at once and is counted in the statistics."""
    at = now() - days * DAY
    given = {
        "scheduled_at": at,
        "due_at": at,
        "claimed_at": at,
        "started_at": at,
        "finished_at": at,
    }
    run = make_run(job, state, **given | fields)
    for number in range(1, attempts + 1):
        Attempt.objects.create(
            run=run, number=number, token=uuid4(), worker="w", started_at=at, finished_at=at
        )
    statistics = Statistics.objects.get(pk=job.pk)
    setattr(statistics, state, getattr(statistics, state) + 1)
    statistics.save()
    return run


def prune(job: Job, **options: Any) -> int:
    return sum(run_retention.prune_runs(job.pk, now, **options))


def remaining(job: Job) -> set[Any]:
    return set(Run.objects.filter(job=job).values_list("pk", flat=True))


# --- expired runs -------------------------------------------------------------------------------


def test_old_runs_are_deleted_with_attempts_and_failures_kept_longer() -> None:
    job = make_idle_job()
    ended(job, 100, "failed", attempts=3)
    ended(job, 40, attempts=2)
    kept = {ended(job, 39, "failed").pk, ended(job, 29, attempts=2).pk, make_run(job).pk}
    assert prune(job) == 2
    assert remaining(job) == kept
    assert set(Attempt.objects.values_list("run", flat=True)) < kept


def test_pruning_keeps_cursor_and_statistics() -> None:
    job = make_job(schedule="@hourly")
    for days in (40, 35, 31, 1):
        ended(job, days)
    cursor, statistics = Cursor.objects.values().get(), Statistics.objects.values().get()
    version = Job.objects.get().version
    assert prune(job) == 3
    assert (Cursor.objects.values().get(), Statistics.objects.values().get()) == (
        cursor,
        statistics,
    )
    assert Job.objects.get().version == version


def test_limits_of_the_job_override_the_settings(settings: Settings) -> None:
    settings.DCRON_KEEP_FOR = 5 * DAY
    settings.DCRON_KEEP_FAILED_FOR = 10 * DAY
    settings.DCRON_KEEP_RUNS = 3
    plain, own = (
        make_idle_job(),
        make_idle_job(keep_for=20 * DAY, keep_failed_for=50 * DAY, keep_runs=100),
    )
    for job in (plain, own):
        for days in (60, 40):
            ended(job, days, "failed")
        for days in (30, 15, 4, 3, 2, 1):
            ended(job, days)
    assert prune(plain) == 5
    assert prune(own) == 2
    assert Run.objects.filter(job=plain).count() == 3
    settings.DCRON_KEEP_RUNS = None
    assert prune(plain) == 0


def test_keep_runs_counts_failed_runs_separately() -> None:
    job = make_idle_job(keep_runs=2)
    failed = [ended(job, days, "failed") for days in (9, 8, 7)]
    others = [ended(job, days) for days in (6, 5, 4)]
    assert prune(job) == 2
    assert remaining(job) == {run.pk for run in (*failed[1:], *others[1:])}


def test_latest_finished_run_is_kept() -> None:
    job = make_idle_job()
    latest = ended(job, 400)
    make_run(job)
    assert prune(job) == 0
    assert latest.pk in remaining(job)


def test_dry_run_counts_and_deletes_nothing() -> None:
    job = make_idle_job()
    for days in (50, 40, 1):
        ended(job, days)
    assert prune(job, dry_run=True) == 2
    assert len(remaining(job)) == 3


def test_deleted_job_has_nothing_to_prune() -> None:
    assert sum(run_retention.prune_runs(0, now)) == 0


def test_runs_of_other_jobs_are_kept() -> None:
    job, other = make_idle_job(), make_idle_job()
    for each in (job, other):
        ended(each, 40), ended(each, 1)
    assert prune(job) == 1
    assert len(remaining(other)) == 2


# --- runs that must be kept ---------------------------------------------------------------------


@pytest.mark.parametrize("state", ["pending", "queued", "running", "waiting"])
def test_unfinished_run_and_all_later_runs_are_kept(state: str) -> None:
    job = make_idle_job()
    ended(job, 60)
    at = now() - 50 * DAY
    old = make_run(job, state, scheduled_at=at, due_at=at)
    ended(job, 40), ended(job, 1)
    assert prune(job) == 1
    Run.objects.filter(pk=old.pk).update(state="succeeded", finished_at=at)
    assert prune(job) == 2


def test_delete_skips_unfinished_runs() -> None:
    job = make_idle_job()
    finished, running = ended(job, 40), make_run(job, "running")
    run_retention._delete([finished.pk, running.pk], "default")
    assert remaining(job) == {running.pk}
    assert Attempt.objects.get().run == running


def test_original_of_an_unfinished_rerun_is_kept() -> None:
    job = make_idle_job()
    original = ended(job, 40)
    ended(job, 1)
    rerun = control.rerun(original)
    assert prune(job) == 0
    Run.objects.filter(pk=rerun.pk).update(state="succeeded", finished_at=now(), slot=None)
    assert prune(job) == 1
    rerun.refresh_from_db()
    assert rerun.rerun_of is None


@pytest.mark.parametrize("in_bulk", [True, False])
def test_queued_rerun_of_a_pruned_run_is_still_shown_as_a_rerun(
    monkeypatch: pytest.MonkeyPatch, in_bulk: bool
) -> None:
    monkeypatch.setattr(run_retention, "_can_delete_in_bulk", lambda: in_bulk)
    job = make_idle_job()
    rerun = ended(job, 1, trigger="backfill", rerun_of=ended(job, 40))
    backfilled = ended(job, 2, trigger="backfill")
    assert prune(job) == 1
    kept = Run.objects.get(pk=rerun.pk)
    assert (kept.rerun_of, kept.shown_trigger, kept.trigger) == (None, "rerun", "backfill")
    assert Run.objects.shown_as("rerun").get() == kept
    assert Run.objects.shown_as("backfill").get() == backfilled
    assert [is_of_occurrence(run) for run in (kept, backfilled)] == [False, True]


def test_backfill_refuses_pruned_occurrences_unless_requested() -> None:
    job = make_job(schedule="0 0 * * *", timezone="UTC")
    midnight = now().replace(hour=0, minute=0, second=0, microsecond=0)
    for days in (45, 40, 20):
        at = midnight - days * DAY
        ended(job, days, scheduled_at=at, due_at=at, finished_at=at)
    assert (
        len(
            control.backfill(
                job, midnight - 42 * DAY, midnight - 39 * DAY, dry_run=True
            ).occurrences
        )
        == 2
    )
    assert prune(job) == 2
    kept = midnight - 20 * DAY
    with refusal(NotPossible, "pruned", job=job, kept=kept.isoformat()):
        control.backfill(job, midnight - 42 * DAY, midnight - 39 * DAY)
    assert len(control.backfill(job, kept, kept + 2 * DAY).occurrences) == 1
    everything = control.backfill(job, midnight - 42 * DAY, midnight - 39 * DAY, over_pruned=True)
    assert len(everything.occurrences) == 3


def test_idempotency_key_is_forgotten_with_its_run() -> None:
    job = make_idle_job()
    first = ended(job, 40, idempotency_key="order-7")
    assert control.trigger(job, idempotency_key="order-7").pk == first.pk
    ended(job, 1)
    assert prune(job) == 1
    assert control.trigger(job, idempotency_key="order-7").pk != first.pk


# --- small batches ------------------------------------------------------------------------------


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_retention, "BATCH_SIZE", 3)
    monkeypatch.setattr(retention, "ROWS_AT_ONCE", 4)


def test_each_batch_is_deleted_only_when_requested(small_batches: None) -> None:
    job = make_idle_job()
    for number in range(10):
        ended(job, 50 - number)
    ended(job, 1)
    batches = run_retention.prune_runs(job.pk, now)
    assert next(batches) == 2
    assert Run.objects.count() == 9, "no more are deleted before the next batch is requested"
    rest = list(batches)
    assert sum(rest) == 8
    assert max(rest) <= 3
    assert Run.objects.count() == 1


def test_longer_keep_for_set_meanwhile_applies_at_once(small_batches: None) -> None:
    job = make_idle_job()
    for number in range(10):
        ended(job, 50 - number)
    ended(job, 1)
    batches = run_retention.prune_runs(job.pk, now)
    assert next(batches) == 2
    job.keep_for = 45.5 * DAY
    control.save(job)
    assert sum(batches) == 3
    assert Run.objects.count() == 6


def test_larger_keep_runs_set_meanwhile_applies_at_once(small_batches: None) -> None:
    job = make_idle_job(keep_runs=2)
    for number in range(10):
        ended(job, 20 - number)
    batches = run_retention.prune_runs(job.pk, now)
    while not next(batches):
        pass
    job.keep_runs = 6
    control.save(job)
    assert sum(batches) == 2
    assert Run.objects.count() == 6


def test_page_needs_a_fixed_number_of_queries() -> None:
    job = make_idle_job(keep_runs=1000)

    def queries(runs: int) -> int:
        for number in range(runs):
            ended(job, 90 - number / 100, attempts=2)
        ended(job, 1)
        with CaptureQueriesContext(connection) as captured:
            assert prune(job) >= runs
        uncounted = "SET", "SAVEPOINT", "RELEASE"
        return sum(not each["sql"].startswith(uncounted) for each in captured)

    assert queries(60) - queries(5) <= 2


def test_keep_runs_is_counted_page_by_page(small_batches: None) -> None:
    job = make_idle_job(keep_runs=4)
    failed = [ended(job, 40 - number, "failed") for number in range(6)]
    others = [ended(job, 20 - number) for number in range(9)]
    make_run(job)
    batches = list(run_retention.prune_runs(job.pk, now))
    assert sum(batches) == 7
    assert batches[0] == 0, "the first pass only counts"
    kept = {run.pk for run in (*failed[-4:], *others[-4:])}
    assert remaining(job) - kept == {Run.objects.get(state="pending").pk}
    assert remaining(job) >= kept


def test_candidates_are_found_in_one_query() -> None:
    old, new, numbered, empty = (make_idle_job() for _ in range(4))
    ended(old, 40), ended(new, 1), ended(numbered, 1)
    numbered.keep_runs = 5
    control.save(numbered)
    at = now()
    with CaptureQueriesContext(connection) as captured:
        assert run_retention.candidates(Job.objects.all(), at) == [old.pk, numbered.pk]
    assert len(captured) == 1
    assert not remaining(empty)


# --- concurrency --------------------------------------------------------------------------------


@pytest.fixture
def run_while_locked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Do ``work`` once, while a batch is locked and not deleted yet."""

    def do_at_lock(work: Callable[[], None]) -> None:
        def on_point(point: str) -> None:
            if point == "prune.locked":
                monkeypatch.setattr(sync_points, "listener", None)
                work()

        monkeypatch.setattr(sync_points, "listener", on_point)

    return do_at_lock


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.parametrize("locked", ["run", "attempt"])
def test_pruning_does_not_wait_for_locked_rows(locked: str) -> None:
    job = make_idle_job()
    old = ended(job, 40)
    ended(job, 1)
    rows = Run.objects.filter(pk=old.pk) if locked == "run" else Attempt.objects.filter(run=old)
    with keeping_locked(rows), pytest.raises(run_retention.DeletionBlocked):
        prune(job)
    assert len(remaining(job)) == 2
    assert prune(job) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgresql
@pytest.mark.mariadb
def test_scheduling_and_execution_do_not_wait_for_a_batch(
    run_while_locked: Callable[[Callable[[], None]], None],
) -> None:
    """Trigger, start, finish, claim and save don't wait for a locked batch."""
    job = make_job(schedule="* * * * * *", overlap_policy="allow")
    Cursor.objects.filter(pk=job.pk).update(
        next_at=now().replace(microsecond=0) - timedelta(seconds=5)
    )
    old = ended(job, 40)
    ended(job, 1)
    run = make_run(job)

    def meanwhile() -> None:
        assert claim(range(64), now(), node="a").considered == 1
        control.trigger(job)
        execute(run.pk, 1, worker="w")
        job.description = "another"
        control.save(job)

    run_while_locked(lambda: in_threads(meanwhile)[0])
    assert prune(job) == 1
    assert old.pk not in remaining(job)
    assert Statistics.objects.get(pk=job.pk).succeeded == 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgresql
@pytest.mark.mariadb
def test_rerun_of_a_run_that_is_being_deleted_is_refused(
    run_while_locked: Callable[[Callable[[], None]], None],
) -> None:
    job = make_idle_job()
    old = ended(job, 40)
    ended(job, 1)
    refused: list[str] = []

    def rerun() -> None:
        try:
            control.rerun(old)
        except NotPossible as error:
            refused.append(str(error))
        finally:
            connections.close_all()

    thread = threading.Thread(target=rerun)
    run_while_locked(thread.start)
    assert prune(job) == 1
    thread.join(TIMEOUT)
    assert refused == ["The run can't be run again, because it has been pruned."]
    assert not Run.objects.filter(trigger="rerun").exists()


@pytest.mark.django_db(transaction=True)
def test_concurrent_pruners_delete_each_run_once(small_batches: None) -> None:
    job = make_idle_job()
    for number in range(30):
        ended(job, 60 - number / 10)
    kept = ended(job, 1)

    def prune_until_done() -> int:
        deleted = 0
        while True:
            try:
                for number in run_retention.prune_runs(job.pk, now):
                    deleted += number
            except run_retention.DeletionBlocked:
                continue
            return deleted

    in_threads(prune_until_done, prune_until_done, prune_until_done)
    assert remaining(job) == {kept.pk}
    assert not Attempt.objects.exclude(run=kept).exists()


def refer_to_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a table of the project refer to runs, with a hidden reverse relation."""
    fields = Run._meta.get_fields

    def with_invoice(**options: Any) -> list[Any]:
        relation = SimpleNamespace(
            auto_created=True,
            concrete=False,
            related_model=User,
            one_to_one=False,
            one_to_many=False,
            many_to_many=False,
        )
        return [*fields(**options), *([relation] if options.get("include_hidden") else [])]

    monkeypatch.setattr(Run._meta, "get_fields", with_invoice)


def test_rows_of_a_run_are_deleted_without_loading_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_idle_job(limit=Limit.objects.create(name="api", max_running=1))
    gone = ended(job, 40, attempts=2)
    LimitPlace.objects.create(run=gone, limit=job.limit, due_at=gone.due_at)
    rerun = ended(job, 1, trigger="manual", rerun_of=gone)
    monkeypatch.setattr("django.db.models.deletion.Collector.collect", None)  # it loads them
    assert prune(job) == 1
    assert remaining(job) == {rerun.pk}
    assert Run.objects.get().rerun_of is None
    assert not LimitPlace.objects.exists()
    assert Attempt.objects.count() == 1


@pytest.mark.parametrize("model", [Run, Attempt, LimitPlace])
@pytest.mark.parametrize("signal", [pre_delete, post_delete])
def test_receivers_of_the_project_see_each_deleted_row(signal: Any, model: Any) -> None:
    job = make_idle_job(limit=Limit.objects.create(name="api", max_running=1))
    gone = ended(job, 40)
    ended(job, 1)
    LimitPlace.objects.create(run=gone, limit=job.limit, due_at=gone.due_at)
    seen = []

    def receive(instance: Any, **_: Any) -> None:
        seen.append(instance)

    signal.connect(receive, sender=model)
    try:
        assert prune(job) == 1
    finally:
        signal.disconnect(receive, sender=model)
    assert [type(each) for each in seen] == [model]


def test_run_referenced_by_a_protected_row_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_idle_job()
    ended(job, 40), ended(job, 1)

    def protected(*args: object) -> None:
        raise ProtectedError("an invoice refers to it", set())

    with transaction.atomic(), monkeypatch.context() as patched:
        refer_to_runs(patched)
        patched.setattr("django.db.models.deletion.Collector.collect", protected)
        with pytest.raises(
            run_retention.DeletionBlocked, match="an invoice refers to it"
        ) as raised:
            prune(job)
    assert isinstance(raised.value.__cause__, IntegrityError)
    assert prune(job) == 1
