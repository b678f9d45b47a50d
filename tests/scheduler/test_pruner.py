"""The pruner prunes only the shards that the node leads, at a limited pace.

It retries after errors and stops when the node stops.
"""

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError
from django.db.models.signals import post_delete
from pytest_django import Settings

from django_dcron.db.now import database_now
from django_dcron.models import Job, Node, Run
from django_dcron.runs import retention
from django_dcron.scheduler import pruner as module
from django_dcron.scheduler.pruner import FIRST_ROUND_AFTER, PAUSE_BETWEEN_ROUNDS, Pruner
from tests.factories import make_idle_job, make_node, make_run
from tests.logs import events, logged

pytestmark = pytest.mark.django_db

ALL = frozenset(range(64))


class World:
    """A clock that advances at each step, and pauses that stop the node when the test says so."""

    def __init__(self) -> None:
        self.membership = SimpleNamespace(name="a", shards=ALL, namespace="")
        self.rests: list[float] = []
        self.seconds = 0.0
        self.work = 1.0
        """Duration of each step, in seconds."""
        self.rounds = 1
        self.stops: Callable[[], bool] = lambda: False

    def now(self) -> Any:
        return database_now("default")

    def monotonic(self) -> float:
        self.seconds += self.work
        return self.seconds

    def rest(self, seconds: float) -> bool:
        self.rests.append(seconds)
        return self.stops() or self.rests.count(PAUSE_BETWEEN_ROUNDS) >= self.rounds

    def run(self) -> None:
        Pruner(self.membership, self, self.rest).run()  # type: ignore[arg-type]


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    caplog.set_level(logging.INFO, "django_dcron.scheduler")
    return World()


def make_old_runs(job: Job, number: int = 1) -> None:
    for age in range(40, 40 + number):
        at = database_now("default") - timedelta(days=age)
        make_run(job, "succeeded", due_at=at, finished_at=at, scheduled_at=at)
    make_run(job, "succeeded", finished_at=database_now("default"))


def run_counts() -> dict[str, int]:
    return {job.name: Run.objects.filter(job=job).count() for job in Job.objects.all()}


def test_old_runs_are_pruned_and_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("one", "two"):
        make_old_runs(make_idle_job(name=name), 3)
    make_idle_job(name="three")
    world.run()
    assert run_counts() == {"one": 1, "two": 1, "three": 0}
    assert events(caplog) == ["pruned"]
    assert logged(caplog, "pruned", "runs=6 ", "jobs=2", node="a")


def test_only_led_shards_and_served_namespace_are_pruned(world: World, settings: Settings) -> None:
    settings.DCRON_SHARDS = 2
    jobs = [
        make_idle_job(),
        make_idle_job(),
        make_idle_job(namespace="shop"),
        make_idle_job(namespace="shop"),
    ]
    for job in jobs:
        make_old_runs(job)
    world.membership.shards, world.membership.namespace = frozenset({jobs[0].pk % 2}), "shop"
    world.run()
    pruned = [job for job in jobs if Run.objects.filter(job=job).count() == 1]
    assert pruned == [job for job in jobs[2:] if job.pk % 2 == jobs[0].pk % 2]
    assert len(pruned) == 1
    world.membership.shards = frozenset()
    world.rests.clear()
    world.run()
    assert world.rests == [FIRST_ROUND_AFTER, PAUSE_BETWEEN_ROUNDS]


@pytest.mark.parametrize(("shards", "left"), [(ALL, {"recent"}), (ALL - {0}, {"recent", "old"})])
def test_leader_of_shard_0_deletes_rows_of_nodes_that_died_a_day_ago(
    world: World, shards: frozenset[int], left: set[str]
) -> None:
    for name, hours in (("recent", 23), ("old", 25)):
        make_node(name, age=timedelta(hours=hours))
    world.membership.shards = shards
    world.run()
    assert set(Node.objects.values_list("name", flat=True)) == left


def test_pruner_rests_nine_times_as_long_as_it_works(world: World) -> None:
    make_old_runs(make_idle_job())
    world.run()
    assert world.rests == [FIRST_ROUND_AFTER, *[pytest.approx(9)] * 3, PAUSE_BETWEEN_ROUNDS]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH_SIZE", 2)
    monkeypatch.setattr(module, "JOBS_AT_ONCE", 2)


def test_pruner_stops_between_two_batches(world: World, small_batches: None) -> None:
    for _ in range(3):
        make_old_runs(make_idle_job(), 6)
    world.stops = lambda: Run.objects.count() <= 3 * 7 - 4
    world.run()
    assert Run.objects.count() == 3 * 7 - 4


def test_pruner_stops_with_a_job_when_its_shard_is_lost(world: World, small_batches: None) -> None:
    job = make_idle_job()
    make_old_runs(job, 6)

    def lose_shard_after_first_batch() -> bool:
        if Run.objects.count() < 7:
            world.membership.shards = ALL - {job.pk % 64}
        return False

    world.stops = lose_shard_after_first_batch
    world.run()
    assert Run.objects.count() == 5


def test_all_jobs_are_pruned_in_several_batches(world: World, small_batches: None) -> None:
    for _ in range(7):
        make_old_runs(make_idle_job())
    world.run()
    assert set(run_counts().values()) == {1}


def test_pruning_is_retried_in_the_next_round_after_database_error(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_old_runs(make_idle_job())
    real = retention.candidates

    def unreachable(*args: Any) -> list[int]:
        monkeypatch.setattr(retention, "candidates", real)
        raise OperationalError("the server closed\nthe connection")

    monkeypatch.setattr(module.connections, "close_all", lambda: None)
    monkeypatch.setattr(retention, "candidates", unreachable)
    world.rounds = 2
    world.run()
    assert set(run_counts().values()) == {1}
    assert events(caplog) == ["pruning_failed", "pruned"]
    assert logged(caplog, "pruning_failed", "the server closed the connection", node="a")


def test_locked_run_of_one_job_does_not_block_other_jobs(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make_idle_job(), make_idle_job()
    make_old_runs(first), make_old_runs(second)
    real = retention.prune_runs

    def prune(job_id: int, *args: Any) -> Iterator[int]:
        if job_id == first.pk:
            raise retention.DeletionBlocked("a row is locked")
        return real(job_id, *args)

    monkeypatch.setattr(retention, "prune_runs", prune)
    world.run()
    assert run_counts() == {first.name: 2, second.name: 1}
    assert logged(caplog, "not_pruned", f"={first.pk} ", "a row is locked", node="a")


def test_failing_signal_receiver_does_not_stop_the_node(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make_idle_job(name="first"), make_idle_job(name="second")
    make_old_runs(first), make_old_runs(second)

    def fails(instance: Run, **kwargs: Any) -> None:
        if instance.job_id == first.pk:
            raise ZeroDivisionError("a bug in the project")

    post_delete.connect(fails, sender=Run)
    try:
        world.run()
    finally:
        post_delete.disconnect(fails, sender=Run)
    assert run_counts() == {"first": 2, "second": 1}
    assert logged(caplog, "not_pruned", f"={first.pk}", node="a")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model", [Job, Node])
def test_failing_signal_receiver_of_jobs_or_nodes_does_not_end_the_round(
    world: World, caplog: pytest.LogCaptureFixture, model: type[Job | Node]
) -> None:
    long_ago = database_now("default") - timedelta(days=2)
    Job.objects.filter(pk=make_idle_job().pk).update(deleted_at=long_ago)
    make_node("old", age=timedelta(days=2))

    def fails(**kwargs: Any) -> None:
        raise ZeroDivisionError("a bug in the project")

    post_delete.connect(fails, sender=model)
    try:
        world.run()
    finally:
        post_delete.disconnect(fails, sender=model)
    assert events(caplog, "step_failed", "pruning_failed") == ["step_failed"]
    assert Job.with_deleted.exists() is (model is Job)
    assert Node.objects.exists() is (model is Node)


def test_job_deleted_during_pruning_is_ignored(world: World, small_batches: None) -> None:
    job = make_idle_job()
    make_old_runs(job, 6)

    def deleted() -> bool:
        if Run.objects.count() < 7:
            Job.objects.all().delete()
        return False

    world.stops = deleted
    world.run()
    assert not Job.objects.exists()
