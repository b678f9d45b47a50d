"""Adoption: one query adopts the pending runs that aren't on this node's agenda."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from pytest_django import DjangoAssertNumQueries

from django_dcron.db.now import database_now
from django_dcron.dispatch.base import DueRun
from django_dcron.models import Cursor, Run
from django_dcron.policies.lifecycle import State
from django_dcron.runs import deliveries
from django_dcron.scheduler import adoption
from django_dcron.scheduler.adoption import adopt, return_pending
from tests.factories import make_idle_job, make_run

pytestmark = pytest.mark.django_db

ALL = range(64)
SECOND = timedelta(seconds=1)


def test_pending_runs_of_other_nodes_are_adopted_oldest_first() -> None:
    job = make_idle_job(queue="q", priority=2, timeout=timedelta(seconds=30))
    now = database_now("default")
    runs = [
        make_run(
            job, node=node, scheduled_at=now + n * SECOND, due_at=now - n * SECOND, attempt=n + 1
        )
        for n, node in enumerate(["dead", "", "other"])
    ]
    adopted = adopt(ALL, now, node="me")
    assert [run.key for run in adopted] == [(run.pk, run.attempt) for run in reversed(runs)]
    due = adopted[0]
    assert (due.due_at, due.job_id, due.job_name) == (now - 2 * SECOND, job.pk, job.name)
    assert (due.target, due.queue, due.priority, due.timeout) == (job.target, "q", 2, job.timeout)
    assert set(Run.objects.values_list("node", flat=True)) == {"me"}


def test_runs_on_the_agenda_are_not_adopted() -> None:
    job = make_idle_job()
    now = database_now("default")
    known, other = make_run(job, node=""), make_run(job, node="dead")
    adopted = adopt(ALL, now + SECOND, node="me", known=lambda key: key == (known.pk, 1))
    assert [run.run_id for run in adopted] == [other.pk]
    assert dict(Run.objects.values_list("pk", "node")) == {known.pk: "", other.pk: "me"}


def test_attempt_that_began_meanwhile_is_adopted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the read and the assignment, a worker starts the run, fails, and wants a retry."""
    now = database_now("default")
    job = make_idle_job(max_attempts=2)
    run, other = make_run(job, node=""), make_run(job, node="")
    locked: list[DueRun] = []
    real = deliveries.lock_unlocked

    def retry_first(run_ids: Collection[UUID]) -> Any:
        Run.objects.filter(pk=run.pk).update(attempt=2)
        return real(run_ids)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(deliveries, "lock_unlocked", retry_first)
        adopted = adopt(ALL, now + SECOND, node="me", on_locked=locked.append)
    assert [due.key for due in adopted] == [(other.pk, 1)]
    assert locked == []
    assert [due.key for due in adopt(ALL, now + SECOND, node="me")] == [(run.pk, 2)]


def test_node_adopts_a_run_once() -> None:
    now = database_now("default")
    make_run(make_idle_job())
    assert len(adopt(ALL, now + SECOND, node="me")) == 1
    assert adopt(ALL, now + SECOND, node="me") == []
    assert len(adopt(ALL, now + SECOND, node="another")) == 1


def test_only_pending_runs_due_by_the_horizon_are_adopted() -> None:
    job = make_idle_job()
    now = database_now("default")
    make_run(job, due_at=now + 11 * SECOND)
    for n, state in enumerate(set(State) - {State.PENDING}):
        make_run(job, state, scheduled_at=now + (n + 1) * SECOND)
    assert adopt(ALL, now + 10 * SECOND, node="me") == []
    assert len(adopt(ALL, now + 11 * SECOND, node="me")) == 1


def test_only_runs_of_led_shards_and_served_namespace_are_adopted() -> None:
    own, other = make_idle_job(namespace="shop"), make_idle_job(namespace="other")
    make_run(own), make_run(other)
    horizon = database_now("default") + SECOND
    assert adopt({(own.pk + 1) % 64}, horizon, node="me", namespace="shop") == []
    assert [run.job_id for run in adopt(ALL, horizon, node="me", namespace="shop")] == [own.pk]
    assert [run.job_id for run in adopt({other.pk % 64}, horizon, node="me")] == [other.pk]


def test_runs_that_other_nodes_lead_cost_one_check(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    """With several nodes, there are always pending runs in the shards of the others."""
    own, other = make_idle_job(namespace="shop"), make_idle_job(namespace="other")
    make_run(own, node="other"), make_run(other, node="other")
    horizon = database_now("default") + SECOND
    led = set(ALL) - {own.pk % 64, other.pk % 64}
    with django_assert_num_queries(1):
        assert adopt(led, horizon, node="me") == []
    with django_assert_num_queries(1):
        assert adopt(led - {min(led)}, horizon, node="me") == []
    with django_assert_num_queries(1):
        assert adopt(ALL, horizon, node="me", namespace="third") == []
    assert len(adopt(ALL, horizon, node="me")) == 2


def test_runs_of_a_quarantined_job_are_adopted() -> None:
    job = make_idle_job()
    Cursor.objects.update(problem="unreadable", next_at=None)
    make_run(job)
    assert len(adopt(ALL, database_now("default") + SECOND, node="me")) == 1


def test_all_own_runs_are_adopted_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that didn't learn of its claim's success finds the runs among any number of others."""
    monkeypatch.setattr(adoption, "ADOPTED_AT_ONCE", 2)
    monkeypatch.setattr(adoption, "ASSIGNED_AT_ONCE", 1)
    job = make_idle_job()
    now = database_now("default")
    own = [make_run(job, node="me", scheduled_at=now + n * SECOND) for n in range(5)]
    foreign = [make_run(job, node="other", scheduled_at=now - (n + 1) * SECOND) for n in range(3)]
    assert len(adopt(ALL, now + SECOND, node="me")) == 2
    adopted = adopt(ALL, now + SECOND, node="me", also_own=True)
    assert sorted(run.run_id for run in adopted) == sorted(run.pk for run in own + foreign)
    assert len({run.key for run in adopted}) == len(adopted)


def test_own_runs_that_jitter_makes_due_later_are_adopted_on_request() -> None:
    """The node has claimed them, but doesn't know it, because the reply to the commit was lost."""
    now = database_now("default")
    own = make_run(make_idle_job(), node="me", scheduled_at=now, due_at=now + timedelta(hours=1))
    assert [run.run_id for run in adopt(ALL, now, node="me", also_own=True)] == [own.pk]


def test_runs_returned_to_the_nodes_have_no_node() -> None:
    job = make_idle_job()
    now = database_now("default")
    make_run(job, node="me"), make_run(job, node="other", scheduled_at=now + SECOND)
    queued = make_run(job, "queued", node="me", scheduled_at=now + 2 * SECOND)
    assert return_pending("me") == 1
    assert sorted(Run.objects.values_list("node", flat=True)) == ["", "me", "other"]
    queued.refresh_from_db()
    assert queued.node == "me"
