"""``control.trigger_many`` gives the results of ``trigger`` of each job, in few statements."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.exceptions import (
    IdempotencyKeyReused,
    InvalidArguments,
    InvalidValue,
    NotPossible,
    UnknownTarget,
)
from django_dcron.jobs import manual_runs
from django_dcron.models import Job, Run
from django_dcron.runs.chains import avoid_whole_second
from tests.factories import make_idle_job, make_job, make_run
from tests.refusals import refusal

COMPARED = ("trigger", "state", "args", "kwargs", "attempt", "node", "slot", "idempotency_key")


def columns(run: Run) -> list[Any]:
    run.refresh_from_db()
    assert run.due_at == run.claimed_at
    return [getattr(run, name) for name in COMPARED]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments", [{}, {"args": [1], "kwargs": {"a": None}}, {"args": []}], ids=str
)
def test_runs_are_those_of_trigger(arguments: dict[str, Any]) -> None:
    paused = make_job(target="tests.app.tasks.echo", args=[7], enabled=False)
    jobs = [make_idle_job(target="tests.app.tasks.echo"), paused]
    made = control.trigger_many(jobs, **arguments)
    for job, run in zip(jobs, made, strict=True):
        assert isinstance(run, Run)
        assert run.job_id == job.pk
        assert columns(run) == columns(control.trigger(job, **arguments))


@pytest.mark.django_db(transaction=True)
def test_refused_job_does_not_stop_the_others() -> None:
    good, gone, unknown, no_arguments, last = (make_idle_job() for _ in range(5))
    Job.objects.filter(pk=gone.pk).delete()
    unknown.target = "nobody.has.this"
    jobs = [good, gone, unknown, last, good]
    made = control.trigger_many(jobs)
    kinds = [Run, NotPossible, UnknownTarget, Run, Run]
    assert [type(each) for each in made] == kinds
    assert Run.objects.filter(job=good).count() == 2, "a job that is listed twice runs twice"
    assert isinstance(control.trigger_many([no_arguments], args=[1, 2, 3])[0], InvalidArguments)


@pytest.mark.django_db
def test_instant_of_another_run_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    now = database_now("default")
    monkeypatch.setattr(manual_runs, "database_now", lambda using: now)
    jobs = [make_idle_job() for _ in range(3)]
    make_run(jobs[1], scheduled_at=avoid_whole_second(now))
    made = [run for run in control.trigger_many(jobs) if isinstance(run, Run)]
    assert len({run.pk for run in made}) == 3


@pytest.mark.django_db
def test_arguments_that_cannot_be_stored_are_refused_for_all() -> None:
    with pytest.raises(InvalidArguments):
        control.trigger_many([make_idle_job()], args=[object()])


@pytest.mark.django_db(transaction=True)
def test_runs_are_dispatched_and_queries_do_not_grow(settings: Settings) -> None:
    """In a process without a node, threads execute nothing, so a node dispatches the runs."""
    settings.DCRON_DISPATCHER = "thread"
    counts = []
    for number in (3, 30):  # SQLite would need another statement for more rows
        jobs = [make_idle_job() for _ in range(number)]
        with CaptureQueriesContext(connection) as queries:
            control.trigger_many(jobs)
        counts.append(len(queries))
        assert set(Run.objects.values_list("state", flat=True)) == {"pending"}
    assert counts[0] == counts[1] < 10


@pytest.mark.django_db(transaction=True)
def test_runs_are_published_to_celery_and_marked_in_few_queries() -> None:
    counts = []
    for number in (3, 30):  # SQLite would need another statement for more rows
        jobs = [make_idle_job() for _ in range(number)]
        with CaptureQueriesContext(connection) as queries:
            made = control.trigger_many(jobs)
        counts.append(len(queries))
        ids = [run.pk for run in made if isinstance(run, Run)]
        assert Run.objects.filter(pk__in=ids, state="queued", deliveries=1).count() == number
    assert counts[0] == counts[1] < 10


@pytest.mark.django_db(transaction=True)
def test_each_job_has_one_run_with_the_key() -> None:
    first, second, third = (make_idle_job() for _ in range(3))
    before = control.trigger(second, idempotency_key="k")
    made = control.trigger_many([first, second, third, first], idempotency_key="k")
    runs = [run for run in made if isinstance(run, Run)]
    assert [run.job_id for run in runs] == [first.pk, second.pk, third.pk, first.pk]
    assert runs[1].pk == before.pk
    assert Run.objects.filter(idempotency_key="k").count() == 3
    with refusal(InvalidValue, "reserved", field="idempotency_key"):
        control.trigger_many([first], idempotency_key="after run 1")


@pytest.mark.django_db(transaction=True)
def test_job_whose_run_with_the_key_has_other_arguments_is_refused() -> None:
    first, second = (make_idle_job(target="tests.app.tasks.echo") for _ in range(2))
    before = control.trigger(second, args=[1], idempotency_key="k")
    made, refused = control.trigger_many([first, second], args=[2], idempotency_key="k")
    assert isinstance(made, Run)
    assert isinstance(refused, IdempotencyKeyReused)
    assert str(before.pk) in str(refused)
    assert Run.objects.filter(idempotency_key="k").count() == 2
