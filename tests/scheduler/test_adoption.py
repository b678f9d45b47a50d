"""Adoption: one query takes up the pending runs that are on no agenda of this node."""

from datetime import timedelta

import pytest

from django_dcron.db.now import database_now
from django_dcron.models import Cursor, Run
from django_dcron.policies.lifecycle import State
from django_dcron.scheduler import adoption
from django_dcron.scheduler.adoption import adopt, give_back
from tests.factories import make_idle_job, make_run

pytestmark = pytest.mark.django_db

ALL = range(64)
SECOND = timedelta(seconds=1)


def test_what_is_pending_elsewhere_is_taken_up_oldest_first() -> None:
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


def test_what_the_node_knows_is_left_as_it_is() -> None:
    job = make_idle_job()
    now = database_now("default")
    known, other = make_run(job, node=""), make_run(job, node="dead")
    adopted = adopt(ALL, now + SECOND, node="me", known=lambda key: key == (known.pk, 1))
    assert [run.run_id for run in adopted] == [other.pk]
    assert dict(Run.objects.values_list("pk", "node")) == {known.pk: "", other.pk: "me"}


def test_nothing_is_taken_up_twice_by_one_node() -> None:
    now = database_now("default")
    make_run(make_idle_job())
    assert len(adopt(ALL, now + SECOND, node="me")) == 1
    assert adopt(ALL, now + SECOND, node="me") == []
    assert len(adopt(ALL, now + SECOND, node="another")) == 1


def test_neither_what_is_due_later_nor_what_is_not_pending() -> None:
    job = make_idle_job()
    now = database_now("default")
    make_run(job, due_at=now + 11 * SECOND)
    for n, state in enumerate(set(State) - {State.PENDING}):
        make_run(job, state, scheduled_at=now + (n + 1) * SECOND)
    assert adopt(ALL, now + 10 * SECOND, node="me") == []
    assert len(adopt(ALL, now + 11 * SECOND, node="me")) == 1


def test_only_of_the_shards_and_the_namespace_one_serves() -> None:
    ours, other = make_idle_job(namespace="ours"), make_idle_job(namespace="other")
    make_run(ours), make_run(other)
    horizon = database_now("default") + SECOND
    assert adopt({(ours.pk + 1) % 64}, horizon, node="me", namespace="ours") == []
    assert [run.job_id for run in adopt(ALL, horizon, node="me", namespace="ours")] == [ours.pk]
    assert [run.job_id for run in adopt({other.pk % 64}, horizon, node="me")] == [other.pk]


def test_a_job_in_quarantine_keeps_the_runs_it_has() -> None:
    job = make_idle_job()
    Cursor.objects.update(problem="unreadable", next_at=None)
    make_run(job)
    assert len(adopt(ALL, database_now("default") + SECOND, node="me")) == 1


def test_ones_own_only_when_asked_for_and_then_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that didn't learn of its claim's success finds the runs among any number of others."""
    monkeypatch.setattr(adoption, "ADOPTED_AT_ONCE", 2)
    monkeypatch.setattr(adoption, "MARKED_AT_ONCE", 1)
    job = make_idle_job()
    now = database_now("default")
    own = [make_run(job, node="me", scheduled_at=now + n * SECOND) for n in range(5)]
    foreign = [make_run(job, node="it", scheduled_at=now - (n + 1) * SECOND) for n in range(3)]
    assert len(adopt(ALL, now + SECOND, node="me")) == 2
    adopted = adopt(ALL, now + SECOND, node="me", also_own=True)
    assert sorted(run.run_id for run in adopted) == sorted(run.pk for run in own + foreign)
    assert len({run.key for run in adopted}) == len(adopted)


def test_given_back_is_anybodys() -> None:
    job = make_idle_job()
    now = database_now("default")
    make_run(job, node="me"), make_run(job, node="other", scheduled_at=now + SECOND)
    queued = make_run(job, "queued", node="me", scheduled_at=now + 2 * SECOND)
    assert give_back("me") == 1
    assert sorted(Run.objects.values_list("node", flat=True)) == ["", "me", "other"]
    queued.refresh_from_db()
    assert queued.node == "me"
