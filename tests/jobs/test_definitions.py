"""Each attempt references the definition that it ran, whoever changes the job meanwhile."""

import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from threading import Event, Thread
from typing import Any
from uuid import uuid4

import pytest
from django.db import (
    DataError,
    IntegrityError,
    OperationalError,
    connection,
    connections,
    transaction,
)
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import Settings

from django_dcron import RetryLater, control, current_run
from django_dcron.db.now import database_now
from django_dcron.execution import database_outage, executor
from django_dcron.execution.executor import execute
from django_dcron.jobs import definition_retention
from django_dcron.jobs.definition_retention import prune_definitions
from django_dcron.jobs.definitions import content_of, definition_id
from django_dcron.models import Attempt, Definition, Job, Run
from django_dcron.runs.retention import prune_runs
from django_dcron.targets import functions
from django_dcron.testing import set_clock
from django_dcron.testing.manual_clock import ManualClock
from tests.depth import examples
from tests.execution.conftest import MakeTarget, attempt_of
from tests.execution.conftest import make_target as make_target
from tests.factories import make_idle_job, make_run
from tests.jobs.test_save_many import NOW, undone
from tests.threads import in_threads
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
Ran = dict[tuple[Any, int], Any]


def test_time_zone_defaults_to_the_site_and_is_a_part_of_each_definition(
    settings: Settings,
) -> None:
    ids = set()
    for zone in ("UTC", "Europe/Berlin", "Etc/GMT-5"):
        settings.TIME_ZONE = zone
        job = Job(pk=1, name="report", schedule="@daily", target="tests.app.tasks.add")
        assert job.timezone == zone
        ids.add(definition_id(job))
    assert len(ids) == 3


@pytest.fixture
def ran() -> Ran:
    """What the code of each attempt saw of its job, by run and attempt."""
    return {}


def note(ran: Ran) -> None:
    """The code of the jobs."""
    run = current_run()
    ran[run.id, run.attempt] = content_of(run.job)


@pytest.fixture
def target(make_target: MakeTarget, ran: Ran) -> str:
    return make_target(lambda: note(ran))


def perform(job: Job) -> Attempt:
    run = make_run(job, "queued")
    assert execute(run.pk, 1, worker="w")
    return attempt_of(run)


def recorded() -> Ran:
    attempts = Attempt.objects.select_related("definition")
    return {
        (each.run_id, each.number): each.definition.content
        for each in attempts
        if each.definition is not None
    }


def change(job: Job, **fields: Any) -> None:
    fresh = Job.objects.get(pk=job.pk)
    for name, value in fields.items():
        setattr(fresh, name, value)
    control.save(fresh)


def change_by_orm(job: Job, **fields: Any) -> None:
    Job.objects.filter(pk=job.pk).update(**fields)


def test_attempts_of_one_version_share_the_definition_that_they_ran(
    target: str, ran: Ran, settings: Settings
) -> None:
    settings.DCRON_RELEASE = "r1"
    job = make_idle_job(target=target, args=[], timeout=timedelta(minutes=5), queue="mail")
    first, second = perform(job), perform(job)

    assert recorded() == ran
    assert Definition.objects.count() == 1
    definition = Definition.objects.get()
    assert (definition.job_id, definition.version) == (job.pk, 1)
    assert first.definition_id == second.definition_id == definition_id(job)
    assert definition.content["target"] == target
    assert (definition.content["timeout"], definition.content["queue"]) == ("5m", "mail")
    assert (first.release, second.release) == ("r1", "r1")


def test_recording_a_known_definition_costs_no_statement(target: str) -> None:
    job = make_idle_job(target=target)
    perform(job)
    run = make_run(job, "queued")
    with CaptureQueriesContext(connection) as captured:
        assert execute(run.pk, 1, worker="w")
    table = Definition._meta.db_table
    of_jobs = connection.ops.quote_name(Job._meta.db_table)
    with_table = [each["sql"] for each in captured if table in each["sql"]]
    assert len(with_table) == 1  # the start, which reads it
    assert not [each["sql"] for each in captured if f"FROM {of_jobs}" in each["sql"]]
    assert attempt_of(run).definition_id == definition_id(job)


@pytest.mark.parametrize("changed", [change, change_by_orm])
def test_changed_job_is_recorded_as_it_ran(
    target: str, ran: Ran, changed: Callable[..., None]
) -> None:
    job = make_idle_job(target=target, queue="q")
    for queue in ("q", "fast", "q", "mail"):
        changed(job, queue=queue)
        perform(job)
    assert recorded() == ran
    attempts = Attempt.objects.select_related("definition").order_by("pk")
    assert [each.definition.content["queue"] for each in attempts] == ["q", "fast", "q", "mail"]
    assert Definition.objects.count() == 3


def test_each_attempt_of_a_run_has_its_own_definition(make_target: MakeTarget) -> None:
    def fail_once() -> None:
        if current_run().attempt == 1:
            change(job, queue="reports")
            raise RetryLater

    job = make_idle_job(target=make_target(fail_once), max_attempts=2)
    run = make_run(job, "queued")
    for attempt in (1, 2):
        Run.objects.update(due_at=database_now("default"))
        assert execute(run.pk, attempt, worker="w")
    attempts = Attempt.objects.select_related("definition").order_by("number")
    assert [each.definition.content["queue"] for each in attempts] == ["", "reports"]


@pytest.mark.parametrize("lost", ["before", "after"])
def test_recording_is_repeated_after_an_outage(
    target: str, ran: Ran, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    real, failures = executor.record_definition, iter([True])

    def record(*given: Any) -> None:
        fails = next(failures, False)
        if lost == "after" or not fails:
            real(*given)
        if fails:
            raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(executor, "record_definition", record)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(connection, "close", lambda: None)  # the test's transaction stays open
    perform(make_idle_job(target=target))
    assert recorded() == ran
    assert len(ran) == 1


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_locked_attempt_is_recorded_when_it_is_unlocked(
    target: str, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker doesn't wait for the lock without a limit. It logs that it waits."""
    locked, refused, unlocked = Event(), Event(), Event()
    real = executor.record_definition

    def lock(attempt: int) -> None:
        with transaction.atomic():
            assert Attempt.objects.select_for_update().get(pk=attempt)
            locked.set()
            assert refused.wait(TIMEOUT)
        unlocked.set()
        connections.close_all()

    def record(job: Job, attempt: int) -> None:
        if not locked.is_set():
            Thread(target=lock, args=[attempt]).start()
            assert locked.wait(TIMEOUT)
        real(job, attempt)

    def pause(seconds: float) -> None:
        refused.set()
        assert unlocked.wait(TIMEOUT)

    monkeypatch.setattr(executor, "record_definition", record)
    monkeypatch.setattr(database_outage.time, "sleep", pause)
    job = make_idle_job(target=target)
    change_by_orm(job, queue="reports")
    perform(job)
    assert refused.is_set()
    assert recorded() == ran


@pytest.mark.parametrize("error", [DataError, IntegrityError, OperationalError])
def test_refused_definition_prevents_no_run(
    target: str, ran: Ran, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(*given: Any) -> None:
        raise error("too long")

    job = make_idle_job(target=target)
    perform(job)
    change_by_orm(job, queue="reports")
    monkeypatch.setattr(executor, "record_definition", refuse)
    monkeypatch.setattr(executor, "RECORDING_TIMEOUT", 0.0)
    attempt = perform(job)
    assert len(ran) == 2
    assert (attempt.outcome, attempt.definition_id) == ("succeeded", None)


def test_texts_pauses_and_defaults_are_not_part_of_a_definition() -> None:
    job = make_idle_job()
    before = definition_id(job)
    job.description, job.enabled, job.pause_reason = "new", False, "closed"
    assert definition_id(job) == before
    job.version += 1
    assert definition_id(job) == before
    assert "description" not in content_of(job)
    job.queue = "reports"
    assert definition_id(job) != before


@pytest.mark.django_db(transaction=True)
def test_workers_that_start_at_once_record_what_each_ran(target: str, ran: Ran) -> None:
    """Four workers start runs of one job while it is changed in both ways."""
    job, numbers = make_idle_job(target=target, overlap_policy="allow"), count()

    def work() -> None:
        for _ in range(5):
            perform(job)

    def edit() -> None:
        for _ in range(5):
            change_by_orm(job, catchup_limit=next(numbers) + 1)
            change(job, priority=next(numbers) % 10)

    in_threads(work, work, work, work, edit)
    assert len(ran) == 20
    assert recorded() == ran


STEPS: dict[str, Callable[[Job, ManualClock], object]] = {
    "run": lambda job, clock: perform(Job.objects.get(pk=job.pk)),
    "save a": lambda job, clock: change(job, queue="q"),
    "save b": lambda job, clock: change(job, queue="fast"),
    "update a": lambda job, clock: change_by_orm(job, queue="q"),
    "update b": lambda job, clock: change_by_orm(job, queue="fast"),
    "prune runs": lambda job, clock: list(prune_runs(job.pk, clock.now)),
    "prune definitions": lambda job, clock: list(prune_definitions()),
    "10 days": lambda job, clock: clock.advance(10 * DAY),
    "40 days": lambda job, clock: clock.advance(40 * DAY),
}


@hypothesis_settings(max_examples=examples(60))
@given(steps=st.lists(st.sampled_from(["run", *STEPS]), max_size=25))
def test_kept_attempts_reference_what_they_ran(steps: list[str]) -> None:
    """Runs, changes, retention and the passing of time, in any order."""
    ran: Ran = {}
    with undone(), set_clock(NOW) as clock, pytest.MonkeyPatch.context() as patch:
        patch.setattr(functions, "registered", {})
        job = make_idle_job(target=functions.register_function(lambda: note(ran)))
        for step in steps:
            clock.advance(timedelta(milliseconds=1))
            STEPS[step](job, clock)
            kept = {(each.run_id, each.number) for each in Attempt.objects.all()}
            assert recorded() == {key: ran[key] for key in kept}
        Run.objects.filter(job=job).delete()
        list(prune_definitions())
        assert Definition.objects.filter(job_id=job.pk).count() == 1


def _definitions_of(job: Job, *ages: timedelta) -> list[Definition]:
    """Replace the definitions of the job by some that became the latest that long ago."""
    Definition.objects.filter(job_id=job.pk).delete()
    rows = [
        Definition(
            id=uuid4(),
            job_id=job.pk,
            version=number,
            content={},
            current_since=database_now("default") - age,
        )
        for number, age in enumerate(ages)
    ]
    return Definition.objects.bulk_create(rows)


@pytest.fixture(params=[1, 500])
def batch_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition_retention, "BATCH_SIZE", request.param)


@pytest.mark.usefixtures("batch_size")
def test_only_definitions_that_no_run_or_job_needs_are_deleted() -> None:
    now = database_now("default")
    unused, with_run, deleted = make_idle_job(), make_idle_job(), make_idle_job()
    make_run(with_run, "succeeded", scheduled_at=now - 20 * DAY)
    _definitions_of(unused, 30 * DAY, 20 * DAY, 10 * DAY)
    _definitions_of(with_run, 50 * DAY, 40 * DAY, 30 * DAY, 10 * DAY)
    _definitions_of(deleted, 30 * DAY)
    Job.objects.filter(pk=deleted.pk).delete()

    assert sum(prune_definitions(dry_run=True)) == 5
    assert Definition.objects.count() == 8
    assert sum(prune_definitions()) == 5
    left = Definition.objects.values_list("job_id", "version")
    assert set(left) == {(unused.pk, 2), (with_run.pk, 2), (with_run.pk, 3)}
    assert sum(prune_definitions()) == 0


def test_definition_that_is_the_latest_again_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_idle_job()
    old, _new = _definitions_of(job, 30 * DAY, 20 * DAY)
    batches = prune_definitions()
    real = definition_retention._delete

    def delete(unneeded: Any) -> int:
        Definition.objects.filter(pk=old.pk).update(current_since=database_now("default"))
        return real(unneeded)

    monkeypatch.setattr(definition_retention, "_delete", delete)
    assert sum(batches) == 0
    assert Definition.objects.count() == 2


def test_definitions_are_erased_with_their_job(target: str) -> None:
    job, other = make_idle_job(target=target), make_idle_job(target=target)
    for each in (job, other):
        perform(each)
    control.delete(job, erase=True)
    assert list(Definition.objects.values_list("job_id", flat=True)) == [other.pk]
