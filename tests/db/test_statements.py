"""Compiled statements: they do what the ORM does, with any value and on any connection.

A chain of statements is executed completely or not at all.
"""

import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import FieldDoesNotExist
from django.db import IntegrityError, connection, connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Exists, F, OuterRef
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_dcron.db.change_sequence import ChangeSequence
from django_dcron.db.now import UtcNow, database_now
from django_dcron.db.statements import Insert, Placeholder, Select, Update
from django_dcron.models import Attempt, Job, Run, Statistics
from django_dcron.policies.lifecycle import Outcome, State
from django_dcron.policies.slots import Slot
from django_dcron.runs import endings
from django_dcron.runs.endings import AttemptEnd
from tests.factories import make_idle_job, make_run
from tests.threads import in_threads, repeat_after_contention
from tests.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.django_db

JOB_COLUMNS = [field.attname for field in Job._meta.concrete_fields]
RUN_COLUMNS = [field.attname for field in Run._meta.concrete_fields]
NASTY = "100% %s %(x)s 'quoted' \"twice\" \\ ünïcödé \N{PILE OF POO}"


def columns_of(job: Job, *names: str) -> dict[str, Any]:
    return Job.objects.filter(pk=job.pk).values(*names).get()


# --- one statement ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("description", NASTY),
        ("description", ""),
        ("overlap_policy", State.WAITING),  # a member of an enumeration
        ("args", [1, None, {"a": NASTY}]),
        ("declared", None),
        ("declared", {}),
        ("enabled", False),
        ("priority", 9),
        ("priority", None),
        ("retry_jitter", 0.1),
        ("jitter", timedelta(days=400, microseconds=1)),
        ("start_deadline", None),
        ("starts_at", "now"),
        ("starts_at", None),
    ],
)
def test_update_writes_the_same_values_as_the_orm(name: str, value: Any) -> None:
    if value == "now":
        value = database_now("default")
    by_statement, by_orm = make_idle_job(), make_idle_job()
    update = Update(
        Job, lambda: Job.objects.filter(pk=Placeholder(Job, "id")), **{name: Placeholder(Job, name)}
    )
    assert update.execute(id=by_statement.pk, **{name: value}) == 1
    Job.objects.filter(pk=by_orm.pk).update(**{name: value})
    assert columns_of(by_statement, name) == columns_of(by_orm, name) == {name: value}


def test_update_filters_by_each_kind_of_value() -> None:
    run, _ = (
        make_run(make_idle_job(description=NASTY), "queued"),
        make_run(make_idle_job(), "queued"),
    )
    written = Run.objects.filter(
        pk=Placeholder(Run, "id"),
        job=Placeholder(Run, "job_id"),
        job_id__in=Job.objects.filter(description=Placeholder(Job, "description")).values("pk"),
        due_at__lte=Placeholder(Run, "due_at"),
        attempt=Placeholder(Run, "attempt"),
        state__in=(State.PENDING, State.QUEUED),
    )
    update = Update(Run, lambda: written, deliveries=F("deliveries") + 1, started_at=UtcNow())
    values = {
        "id": run.pk,
        "job_id": run.job_id,
        "due_at": run.due_at,
        "attempt": 1,
        "description": NASTY,
    }
    for other in (
        {"id": uuid4()},
        {"job_id": -1},
        {"due_at": run.due_at - timedelta(seconds=1)},
        {"attempt": 2},
    ):
        assert update.execute(**{**values, **other}) == 0
    assert update.execute(**values) == 1
    run.refresh_from_db()
    assert run.deliveries == 2
    assert run.started_at
    assert abs(run.started_at - database_now("default")) < timedelta(minutes=5)


def test_insert_creates_the_same_row_as_the_orm() -> None:
    run, token, now = make_run(make_idle_job()), uuid4(), database_now("default")
    given = {"token": token, "worker": NASTY, "started_at": now}
    insert = Insert(
        Attempt,
        lambda: Attempt(
            number=1, **{name: Placeholder(Attempt, name) for name in ("run_id", *given)}
        ),
    )
    assert insert.execute(run_id=run.pk, **given) == 1
    Attempt.objects.create(run=run, number=2, **given)
    by_statement, by_orm = Attempt.objects.order_by("number").values()
    assert by_statement | {"id": 0, "number": 0} == by_orm | {"id": 0, "number": 0}


def test_select_returns_the_same_values_as_the_orm() -> None:
    job = make_idle_job(tags=["a", NASTY], start_deadline=timedelta(hours=1), retry_on=["OSError"])
    run = make_run(job, "running", kwargs={"a": None}, slot=Slot.RUNNING)

    def read(pk: Any) -> models.QuerySet[Run, tuple[Any, ...]]:
        taken = Exists(Run.objects.in_slot(Slot.RUNNING, OuterRef("job_id")))
        columns = (*RUN_COLUMNS, *(f"job__{name}" for name in JOB_COLUMNS), "taken")
        return Run.objects.filter(pk=pk).annotate(taken=taken).values_list(*columns)

    select = Select(Run, lambda: read(Placeholder(Run, "id")))
    assert select.first(id=uuid4()) is None
    for _ in range(2):
        row = select.first(id=run.pk)
        assert row == list(read(run.pk).get())
        assert [type(value) for value in row] == [type(value) for value in read(run.pk).get()]


@pytest.mark.parametrize(
    "values", [{}, {"id": uuid4()}, {"id": uuid4(), "reason": "", "state": "failed"}]
)
def test_missing_or_extra_values_are_refused_before_any_query(values: dict[str, Any]) -> None:
    update = Update(
        Run,
        lambda: Run.objects.filter(pk=Placeholder(Run, "id")),
        reason=Placeholder(Run, "reason"),
    )
    with (
        CaptureQueriesContext(connection) as sent,
        pytest.raises(TypeError, match=r"\['id', 'reason'\]"),
    ):
        update.execute(**values)
    assert not sent.captured_queries


def test_placeholder_for_unknown_field_is_refused() -> None:
    with pytest.raises(FieldDoesNotExist):
        Placeholder(Run, "colour")


@pytest.mark.postgresql
def test_constants_are_literals_unless_they_need_quoting() -> None:
    text = "100 % o'clock"
    job = make_idle_job(description=text)
    make_idle_job()
    # The pattern of ``startswith`` is "%". In the SQL, the driver would take it for a placeholder.
    rows = Job.objects.filter(description=text, enabled=job.enabled, name__startswith="")
    query = Select(
        Job, lambda: rows.filter(priority=None, name=Placeholder(Job, "name")).values_list("pk")
    )
    for _ in range(10):  # also after it was prepared
        assert query.rows(name=job.name) == [[job.pk]]
    compiled = query.compiled_for(connection)
    assert {text, "%"} <= {each for each in compiled.parameters if isinstance(each, str)}
    assert compiled.names == {"name"}
    assert not any(isinstance(each, bool) for each in compiled.parameters)


# --- which connection ---------------------------------------------------------------------------


class CompileCounter:
    """An update of a run's reason that counts its compilations."""

    def __init__(self) -> None:
        self.compiled = 0
        self.update = Update(Run, self._written, reason=Placeholder(Run, "reason"))

    def _written(self) -> models.QuerySet[Run]:
        self.compiled += 1
        return Run.objects.filter(pk=Placeholder(Run, "id"))


def test_statement_is_compiled_once() -> None:
    counter, runs = CompileCounter(), [make_run(make_idle_job()) for _ in range(3)]
    for run in runs:
        counter.update.execute(id=run.pk, reason=str(run.pk))
    assert counter.compiled == 1
    assert all(Run.objects.get(pk=run.pk).reason == str(run.pk) for run in runs)


@pytest.fixture
def second() -> Iterator[BaseDatabaseWrapper]:
    """Another connection to the same database, with its own alias."""
    connections["second"] = type(connections["default"])(
        connections["default"].settings_dict, "second"
    )
    yield connections["second"]
    connections["second"].close()
    del connections["second"]


class SecondRouter:
    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "second"


@pytest.mark.django_db(transaction=True)
def test_statement_is_compiled_per_database_and_router_is_consulted_each_time(
    second: BaseDatabaseWrapper, settings: Settings
) -> None:
    counter, run = CompileCounter(), make_run(make_idle_job())
    with CaptureQueriesContext(connections["default"]) as first:
        counter.update.execute(id=run.pk, reason="first")
    settings.DATABASE_ROUTERS = [SecondRouter()]
    with (
        CaptureQueriesContext(connections["default"]) as nothing,
        CaptureQueriesContext(second) as then,
    ):
        counter.update.execute(id=run.pk, reason="second")
        counter.update.execute(id=run.pk, reason="third")
    settings.DATABASE_ROUTERS = []
    assert (len(first), len(nothing), len(then)) == (1, 0, 2)
    assert counter.compiled == 2
    assert Run.objects.get().reason == "third"


@pytest.mark.django_db(transaction=True)
def test_concurrent_threads_share_a_statement() -> None:
    counter, runs = CompileCounter(), [make_run(make_idle_job()) for _ in range(4)]
    barrier = threading.Barrier(len(runs))

    def work(run: Run) -> None:
        barrier.wait(TIMEOUT)
        for number in range(5):
            counter.update.execute(id=run.pk, reason=f"{run.pk} {number}")

    in_threads(*(lambda run=run: work(run) for run in runs))
    assert counter.compiled <= len(runs)
    assert all(Run.objects.get(pk=run.pk).reason == f"{run.pk} 4" for run in runs)


# --- chains -------------------------------------------------------------------------------------

CHAIN = ChangeSequence(
    Update(
        Run,
        lambda: Run.objects.filter(pk=Placeholder(Run, "id"), state="queued"),
        state="running",
        reason="100 %",
    ),
    Insert(
        Attempt,
        lambda: Attempt(
            run_id=Placeholder(Run, "id"),
            number=Placeholder(Attempt, "number"),
            token=Placeholder(Attempt, "token"),
            worker=Placeholder(Attempt, "worker"),
            started_at=UtcNow(),
        ),
    ),
    Update(
        Statistics,
        lambda: Statistics.objects.filter(job=Placeholder(Run, "job_id"), failed=0),
        succeeded=F("succeeded") + 1,
    ),
    Update(Job, lambda: Job.objects.filter(pk=Placeholder(Run, "job_id")), description="done"),
)


def execute_chain(run: Run, worker: str = NASTY) -> bool:
    return CHAIN.execute(id=run.pk, job_id=run.job_id, number=1, token=uuid4(), worker=worker)


def outcome_of(run: Run) -> tuple[str, list[str], int, str]:
    run = Run.objects.select_related("job__statistics").get(pk=run.pk)
    workers = list(Attempt.objects.filter(run=run).values_list("worker", flat=True))
    return run.state, workers, run.job.statistics.succeeded, run.job.description


def test_chain_executes_every_statement() -> None:
    run, other = make_run(make_idle_job(), "queued"), make_run(make_idle_job(), "queued")
    assert execute_chain(run)
    assert outcome_of(run) == ("running", [NASTY], 1, "done")
    assert outcome_of(other) == ("queued", [], 0, "")


def test_chain_does_nothing_if_first_statement_matches_no_row() -> None:
    run = make_run(make_idle_job(), "succeeded")
    assert not execute_chain(run)
    assert outcome_of(run) == ("succeeded", [], 0, "")


def test_chain_stops_at_statement_that_matches_no_row() -> None:
    run = make_run(make_idle_job(), "queued")
    Statistics.objects.filter(job=run.job_id).update(failed=1)
    assert execute_chain(run)
    assert outcome_of(run) == ("running", [NASTY], 0, "")


@pytest.mark.django_db(transaction=True)
def test_failed_chain_is_rolled_back() -> None:
    run = make_run(make_idle_job(), "queued")
    Attempt.objects.create(run=run, number=1, token=uuid4(), worker="before", started_at=run.due_at)
    with pytest.raises(IntegrityError):
        execute_chain(run)
    assert outcome_of(run) == ("queued", ["before"], 0, "")


@pytest.mark.django_db(transaction=True)
def test_only_one_of_several_concurrent_chains_succeeds() -> None:
    run = make_run(make_idle_job(), "queued")
    barrier, won = threading.Barrier(4), []

    def work(name: str) -> None:
        barrier.wait(TIMEOUT)
        if repeat_after_contention(lambda: execute_chain(run, name)):
            won.append(name)

    in_threads(*(lambda name=name: work(name) for name in "abcd"))
    assert len(won) == 1
    assert outcome_of(run) == ("running", won, 1, "done")


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_postgresql_executes_a_chain_in_one_statement() -> None:
    run = make_run(make_idle_job(), "queued")
    with CaptureQueriesContext(connection) as sent:
        assert execute_chain(run)
    assert len(sent) == 1  # no BEGIN or COMMIT either


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_finish_rechecks_a_run_that_changed_while_it_waited_for_a_lock() -> None:
    """The single statement of the finish started before the other transaction ended."""
    run = make_run(make_idle_job(), "running")
    (token,) = run.attempts.values_list("token", flat=True)
    closing = {"outcome": Outcome.SUCCEEDED}
    won: list[bool] = []

    def finish_when_unlocked() -> None:
        finish = partial(endings.finish, run, AttemptEnd(1, closing, token), State.SUCCEEDED, "")
        won.append(repeat_after_contention(finish))

    with transaction.atomic():
        endings.finish(run, AttemptEnd(1, {"outcome": Outcome.LOST}), State.FAILED, "lost")
        thread = threading.Thread(target=lambda: in_threads(finish_when_unlocked))
        thread.start()
        wait_until(_is_a_session_waiting_for_a_lock, 60)
    thread.join(TIMEOUT)
    statistics = Statistics.objects.get()
    attempt = Attempt.objects.get()
    assert (won, statistics.failed, statistics.succeeded) == ([False], 1, 0)
    assert attempt.outcome == Outcome.LOST


def _is_a_session_waiting_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])
