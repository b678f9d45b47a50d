"""Chains: each run with a matching end makes exactly one run of the following job.

Invariant: a process that dies at any moment neither loses nor duplicates the following run.
"""

import copy
import json
from datetime import timedelta
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_dcron import control, targets
from django_dcron.db.now import database_now
from django_dcron.diagnosis.doctor.findings import Code
from django_dcron.diagnosis.doctor.report import examine
from django_dcron.diagnosis.doctor.window import Window
from django_dcron.diagnosis.why.explanation import explain
from django_dcron.dispatch import DispatchFailed, best_effort
from django_dcron.execution import termination
from django_dcron.execution.database_outage import retry_until_available
from django_dcron.execution.termination import record_killed_attempt
from django_dcron.jobs import portable
from django_dcron.jobs.attempt_end import declare_lost, end_attempt
from django_dcron.jobs.chains import resolve_follows
from django_dcron.jobs.cursors import move_outdated_cursors
from django_dcron.jobs.pausing import end_pauses
from django_dcron.jobs.sync import apply, plan
from django_dcron.locks import get_lock
from django_dcron.models import Attempt, Job, Link, Run
from django_dcron.policies.lifecycle import Outcome, State, Trigger
from django_dcron.policies.misfire import PlannedRun
from django_dcron.runs import endings
from django_dcron.runs.chains import follower_key, parse_follower_key
from django_dcron.runs.completion import WITHOUT_EXCEPTION, Ending
from django_dcron.runs.creation import insert_runs, new_run
from django_dcron.runs.start import start_attempt
from django_dcron.scheduler.claim import claim
from django_dcron.testing import set_clock
from django_dcron.utils import sync_points
from tests.execution.conftest import deliver, state_of
from tests.factories import make_idle_job, make_job, make_run
from tests.threads import in_threads, repeat_after_contention

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_broker")]

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
SUCCEEDED = Ending(Outcome.SUCCEEDED)
FAILED = Ending(Outcome.FAILED, WITHOUT_EXCEPTION, exception_class="ValueError", message="no")


def follower(of: Job, on: str = "ended", **fields: Any) -> Job:
    return make_job(schedule="@never", after={str(of): on}, **fields)


def running(job: Job | None = None, **fields: Any) -> Run:
    return make_run(job or make_idle_job(**fields), "running")


def token_of(run: Run) -> Any:
    return Attempt.objects.get(run=run, number=run.attempt).token


def followers(of: Run) -> list[Run]:
    return list(Run.objects.filter(idempotency_key=follower_key(of.pk)))


def succeed(run: Run) -> bool:
    return end_attempt(run, run.attempt, SUCCEEDED, token_of(run))


def end_by_force(run: Run) -> bool:
    # ``record_killed_attempt`` closes all connections, because its process needs none.
    with mock.patch.object(termination, "connections"):
        record_killed_attempt(run.pk, 1, Outcome.TIMED_OUT, "too long", worker="w")
    return True


# --- endings ------------------------------------------------------------------------------------


ENDS = {
    "succeeded": lambda run: succeed(run),
    "failed": lambda run: end_attempt(run, 1, FAILED, token_of(run)),
    "lost": lambda run: declare_lost(run, "gone"),
    "ended by force": lambda run: end_by_force(run),
    "cancelled": lambda run: end_attempt(run, 1, Ending(Outcome.CANCELLED), token_of(run)),
    "failed after a cancel request": lambda run: (
        control.cancel(run) and end_attempt(Run.objects.get(pk=run.pk), 1, FAILED, token_of(run))
    ),
}
MET_CONDITIONS = {
    "succeeded": {"succeeded", "ended"},
    "failed": {"failed", "ended"},
    "lost": {"failed", "ended"},
    "ended by force": {"failed", "ended"},
    "cancelled": {"ended"},
    "failed after a cancel request": {"ended"},
}


@pytest.mark.parametrize("overlap", ["skip", "queue_all"])
@pytest.mark.parametrize("end", list(ENDS))
def test_end_of_run_creates_one_run_of_each_following_job(end: str, overlap: str) -> None:
    run = running(overlap_policy=overlap)
    jobs = {on: follower(run.job, on) for on in ("succeeded", "failed", "ended")}
    paused = follower(run.job)
    control.pause(paused)

    assert ENDS[end](run)

    made = {each.job_id: each for each in followers(run)}
    assert set(made) == {jobs[on].pk for on in MET_CONDITIONS[end]}
    for each in made.values():
        assert (
            each.trigger,
            each.state,
            each.attempt,
            each.node,
        ) == (
            Trigger.CHAIN,
            State.PENDING,
            1,
            "",
        )
        assert each.scheduled_at.microsecond, "it doesn't take the place of an occurrence"
        assert str(run.pk) in each.reason
        assert parse_follower_key(each.idempotency_key) == run.pk
    assert Run.objects.filter(job=paused).count() == 0


@pytest.mark.parametrize(("ends_in", "number"), [(-1, 1), (1, 0)])
def test_pause_of_following_job_ends_at_its_time_even_if_no_node_has_enabled_the_job(
    ends_in: int, number: int
) -> None:
    run = running()
    following = follower(run.job)
    until = database_now("default") + timedelta(hours=ends_in)
    Job.objects.filter(pk=following.pk).update(enabled=False, paused_until=until)

    assert ENDS["succeeded"](run)

    assert len(followers(run)) == number


@pytest.mark.parametrize("edited", [False, True])
def test_follower_is_not_created_before_the_end_of_a_pause_that_a_node_has_ended(
    edited: bool,
) -> None:
    """A node ends a pause ahead of time, so that an occurrence at its end is on time."""
    within, after = running(), running()
    paused = make_job(schedule="@never", after={str(within.job): "ended", str(after.job): "ended"})
    with set_clock(database_now("default")) as clock:
        control.pause(paused, "deploy", clock.now() + 8 * SECOND)
        assert end_pauses(Job.objects.using("default")) == 1
        if edited:
            job = Job.objects.get(pk=paused.pk)
            job.schedule = "0 0 1 1 *"
            control.save(job)
        clock.advance(7 * SECOND)
        assert succeed(within)
        clock.advance(SECOND)
        assert succeed(after)
    assert followers(within) == []
    assert [run.job_id for run in followers(after)] == [paused.pk]


@pytest.mark.parametrize("state", [State.SKIPPED, State.MISSED, State.CANCELLED])
def test_unstarted_run_has_no_follower(state: State) -> None:
    run = make_run(make_idle_job())
    follower(run.job)
    assert endings.end_unstarted(run, state, "why")
    assert not followers(run)


def test_run_missed_at_the_claim_has_no_follower() -> None:
    job = make_idle_job()
    follower(job)
    now = database_now("default")
    span = PlannedRun(now.replace(microsecond=0) - MINUTE, missed=True)
    insert_runs(
        [new_run(span, job_id=job.pk, jitter=timedelta(), misfire_grace=MINUTE, now=now, node="")],
        "default",
    )
    assert Run.objects.filter(state="missed").count() == Run.objects.count() == 1


def test_run_cancelled_between_attempts_has_a_follower_on_ended() -> None:
    run = running(max_attempts=2)
    follower(run.job, "ended")
    follower(run.job, "failed")
    assert end_attempt(run, 1, FAILED, token_of(run))
    assert not followers(run), "the run will be retried"
    assert control.cancel(run).state == State.CANCELLED
    assert len(followers(run)) == 1


def test_undeliverable_run_has_a_follower_on_failed() -> None:
    run = make_run(make_idle_job())
    follower(run.job, "failed")
    assert endings.end_unstarted(run, State.FAILED, "no such queue")
    assert len(followers(run)) == 1


def test_rerun_and_backfilled_run_have_followers() -> None:
    job = make_idle_job()
    follower(job, "succeeded")
    again = make_run(job, "running", trigger="rerun")
    late = make_run(job, "running", trigger="backfill")
    assert succeed(again)
    assert succeed(late)
    assert [len(followers(run)) for run in (again, late)] == [1, 1]


def test_links_are_evaluated_when_the_run_ends() -> None:
    run = running()
    following = follower(run.job)
    following.after = {}
    control.save(following)
    assert succeed(run)
    assert not followers(run)


def test_overlap_policy_of_the_following_job_applies() -> None:
    first = make_idle_job(overlap_policy="allow")
    following = follower(first)
    for run in (running(first), running(first)):
        assert succeed(run)
    one, two = Run.objects.filter(job=following).order_by("pk")
    assert start_attempt(one.pk, 1, token=uuid4(), worker="w")
    assert start_attempt(two.pk, 1, token=uuid4(), worker="w") is None
    assert Run.objects.get(pk=two.pk).state == State.SKIPPED


# --- exactly once -------------------------------------------------------------------------------


class Killed(BaseException):
    pass


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("overlap", ["skip", "queue_all"])
@pytest.mark.parametrize("point", ["finish.ended", "follow.made"])
def test_follower_is_created_in_the_transaction_that_ends_the_run(
    point: str, overlap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = running(overlap_policy=overlap)
    follower(run.job)

    def kill(at: str) -> None:
        if at == point:
            raise Killed

    monkeypatch.setattr(sync_points, "listener", kill)
    with pytest.raises(Killed):
        succeed(run)
    monkeypatch.setattr(sync_points, "listener", None)
    assert Run.objects.get().state == State.RUNNING
    assert succeed(run)
    assert len(followers(run)) == 1


def test_follower_is_created_once_for_repeated_endings() -> None:
    run = running()
    follower(run.job)
    token = token_of(run)
    assert declare_lost(run, "gone")
    assert not end_attempt(run, 1, SUCCEEDED, token)
    assert not end_attempt(run, 1, SUCCEEDED, token)
    end_by_force(run)
    assert len(followers(run)) == 1


@pytest.mark.django_db(transaction=True)
def test_concurrent_endings_create_one_follower() -> None:
    for _ in range(5):
        run = running()
        follower(run.job)
        token = token_of(run)
        won = in_threads(
            lambda run=run, token=token: end_attempt(run, 1, SUCCEEDED, token),
            lambda run=run: declare_lost(run, "gone"),
            lambda run=run: declare_lost(run, "gone as well"),
        )
        assert won.count(True) == 1
        assert len(followers(run)) == 1


@pytest.mark.django_db(transaction=True)
def test_concurrent_ends_of_many_runs_create_one_follower_each() -> None:
    firsts = [make_idle_job(overlap_policy="allow") for _ in range(4)]
    following = make_job(
        schedule="@never",
        after={str(first): "succeeded" for first in firsts},
        overlap_policy="allow",
    )
    ends = [[running(first) for _ in range(5)] for first in firsts]

    def end(run: Run) -> None:
        """Repeat after a lock timeout: all followers lock one job."""
        assert repeat_after_contention(lambda: succeed(run))

    in_threads(*(lambda runs=runs: [end(run) for run in runs] for runs in ends))
    assert Run.objects.filter(job=following).count() == 20
    assert {
        parse_follower_key(run.idempotency_key) for run in Run.objects.filter(job=following)
    } == {run.pk for runs in ends for run in runs}


def test_follower_gets_a_free_scheduled_at(monkeypatch: pytest.MonkeyPatch) -> None:
    run = running()
    following = follower(run.job)
    now = database_now("default").replace(microsecond=7)
    monkeypatch.setattr("django_dcron.runs.chains.database_now", lambda using: now)
    taken = [
        make_run(following, scheduled_at=now + timedelta(microseconds=step)) for step in (0, 1, 3)
    ]
    assert succeed(run)
    (made,) = followers(run)
    assert made.pk not in {other.pk for other in taken}
    assert Run.objects.filter(job=following).count() == 4


@pytest.mark.django_db(transaction=True)
def test_run_ends_while_the_following_job_is_deleted() -> None:
    """The run ends, and no run of the deleted job starts, whichever comes first."""
    for _ in range(5):
        run = running()
        following = follower(run.job)

        def end(run: Run = run) -> bool:
            return retry_until_available(lambda: succeed(run), "the end", "default")

        in_threads(end, lambda job=following: control.delete(job))
        assert Run.objects.get(pk=run.pk).state == State.SUCCEEDED
        assert not Job.objects.filter(pk=following.pk).exists()
        assert not Link.objects.exists()
        for left in Run.objects.filter(job=following.pk):
            assert deliver(left) is None
            assert state_of(left) == State.CANCELLED


# --- dispatch -----------------------------------------------------------------------------------


class Broker:
    batch_size = 100

    def __init__(self, unreachable: bool) -> None:
        self.unreachable, self.published = unreachable, []

    def prepare(self, run: Any) -> Any:
        return run

    def publish(self, runs: list[Any]) -> None:
        if self.unreachable:
            raise DispatchFailed("gone")
        self.published += runs


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("unreachable", [False, True])
def test_follower_is_dispatched_at_once_or_left_to_a_node(
    unreachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(unreachable)
    monkeypatch.setattr(best_effort, "shared_dispatcher", lambda: broker)
    monkeypatch.setattr(best_effort, "_broker_unreachable_until", float("-inf"))
    run = running()
    follower(run.job)
    assert succeed(run)
    (follower_run,) = followers(run)
    assert follower_run.state == (State.PENDING if unreachable else State.QUEUED)
    assert [due.run_id for due in broker.published] == ([] if unreachable else [follower_run.pk])


@pytest.mark.django_db(transaction=True)
def test_chain_of_a_hundred_jobs_runs_to_its_end() -> None:
    jobs = [make_idle_job()]
    for _ in range(99):
        jobs.append(follower(jobs[-1], "succeeded"))
    run = make_run(jobs[0])
    for job in jobs:
        assert run.job_id == job.pk
        started = start_attempt(run.pk, 1, token=uuid4(), worker="w")
        assert started
        assert succeed(started[0])
        run = next(iter(followers(run)), run)
    assert Run.objects.filter(state="succeeded").count() == 100
    jobs[0].after = {str(jobs[-1]): "succeeded"}
    with pytest.raises(ValidationError) as error:
        control.save(jobs[0])
    assert [each.code for each in error.value.error_dict["after"]] == ["cycle"]


# --- cost ---------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("overlap", ["skip", "queue_all"])
def test_job_without_followers_needs_no_extra_query(overlap: str) -> None:
    follower(make_idle_job())
    run = running(overlap_policy=overlap)
    token = token_of(run)
    with CaptureQueriesContext(connection) as queries:
        assert end_attempt(run, 1, SUCCEEDED, token)
    selects = [each["sql"] for each in queries if each["sql"].startswith("SELECT")]
    selects = [sql for sql in selects if "set_config" not in sql]  # limits of the transaction
    assert len(selects) <= (0 if overlap == "skip" else 2), selects
    assert not [sql for sql in selects if "dcron_link" in sql and "EXISTS" not in sql]
    if overlap == "skip" and connection.vendor == "postgresql":
        assert len(queries) == 1


# --- jobs without a schedule --------------------------------------------------------------------


def test_job_with_schedule_never_stays_enabled() -> None:
    job = make_job(schedule="@never")
    assert job.cursor.next_at is None
    assert move_outdated_cursors(database_now("default"), Job.objects.all()) == 0
    Job.objects.update(timezone="Europe/Berlin")
    assert move_outdated_cursors(database_now("default"), Job.objects.all()) == 1
    job.refresh_from_db()
    assert (job.enabled, job.pause_reason) == (True, "")
    control.pause(job)
    assert control.resume(job).enabled
    assert control.preview(job) == []
    assert control.trigger(job).state == State.PENDING


def test_following_job_stays_enabled_after_its_schedule_ends() -> None:
    run = running()
    now = database_now("default")
    following = follower(run.job, "succeeded")
    following.schedule = f"@at {now + 3 * timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ}"
    control.save(following)
    plain = make_job(schedule=following.schedule)
    claim({*range(64)}, now + MINUTE, node="n")
    following.refresh_from_db()
    plain.refresh_from_db()
    assert (following.enabled, plain.enabled) == (True, False)
    assert Run.objects.filter(job=following, trigger="schedule").count() == 1
    control.save(following)
    assert succeed(run)
    assert len(followers(run)) == 1


# --- validation ---------------------------------------------------------------------------------


def test_name_alone_is_a_job_in_the_namespace_default() -> None:
    make_idle_job(name="first", namespace="shop")
    with pytest.raises(ValidationError) as refused:
        make_job(name="me", namespace="shop", after={"first": "ended"})
    assert "outside the namespace default" in refused.value.message_dict["after"][0]
    first = make_idle_job(name="first")
    me = make_job(name="me", namespace="shop", after={"first": "ended"})
    assert Link.objects.get(job=me).after_id == first.pk


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (["a"], "a JSON object"),
        ({"first": "done"}, 'first: "done" '),
        ({"first": "done"}, "succeeded, failed, ended"),
        ({"first": None}, "first: null "),
        ({"first": ["failed"]}, 'first: ["failed"] '),
        ({"nobody": "failed"}, "There is no job nobody."),
        ({"shop/first": "failed"}, "There is no job shop/first."),
        ({"me": "failed"}, "me "),
        ({"default/me": "failed"}, "default/me "),
        ({"first": "ended", "default/first": "failed"}, "first and default/first "),
        ({"default/first": "failed", "first": "ended"}, "default/first and first "),
    ],
)
def test_invalid_after_is_refused_and_not_saved(after: Any, text: str) -> None:
    make_idle_job(name="first")
    with pytest.raises(ValidationError) as refused:
        make_job(name="me", after=after)
    assert text in "".join(refused.value.message_dict["after"])
    assert not Job.objects.filter(name="me").exists()
    me = make_job(name="me", after={"first": "failed"})
    me.after = after
    with pytest.raises(ValidationError):
        control.save(me)
    me.refresh_from_db()
    assert me.after == {"first": "failed"}
    assert Link.objects.get().on == "failed"


def test_stored_job_that_names_another_job_twice_can_be_paused_and_follows_it_once() -> None:
    """Such rows may exist: they were stored before the validation refused them."""
    first = make_idle_job(name="first")
    second = follower(first, name="second")
    after = {"first": "ended", "default/first": "ended"}
    Job.objects.filter(pk=second.pk).update(after=after)
    control.resume(control.pause(Job.objects.get(pk=second.pk), "deploy"))
    run = running(first)
    assert succeed(run)
    assert len(followers(run)) == 1
    first.name = "renamed"
    control.save(first)
    second.refresh_from_db()
    assert second.after == {"renamed": "ended"}


@pytest.mark.parametrize("edges", [{1: {2}}, {1: {2}, 2: set()}, {1: {2}, 2: {3}}])
def test_refused_cycle_leaves_the_links_unchanged(edges: dict[int, set[int]]) -> None:
    before = copy.deepcopy(edges)
    job = Job(pk=2, name="two", after={"one": "ended"})
    jobs = {1: Job(pk=1, name="one"), 2: job}
    with pytest.raises(ValidationError):
        resolve_follows(job, 2, {("default", "one"): 1}, edges, lambda cycle: jobs)
    assert edges == before


def test_cycle_is_refused_and_named() -> None:
    one, two = make_idle_job(name="one"), make_idle_job(name="two", namespace="shop")
    two.after = {"one": "failed"}
    control.save(two)
    three = follower(two, name="three")
    one.after = {"three": "succeeded"}
    with pytest.raises(ValidationError) as error:
        control.save(one)
    (cycle,) = error.value.error_dict["after"]
    assert cycle.code == "cycle"
    assert "one → shop/two → three → one" in cycle.messages[0]
    one.refresh_from_db()
    assert (one.after, one.version) == ({}, 1)
    assert three.after == {"shop/two": "ended"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("length", [2, 3])
def test_concurrent_saves_cannot_create_a_cycle(length: int) -> None:
    def save(job: Job) -> bool:
        try:
            control.save(job)
        except ValidationError:
            return False
        return True

    for _ in range(5):
        jobs = [make_idle_job() for _ in range(length)]
        for number, job in enumerate(jobs):
            job.after = {str(jobs[number - 1]): "ended"}
        saved = in_threads(*(lambda job=job: save(job) for job in jobs))
        assert saved.count(False) == 1
        assert Link.objects.filter(job__in=jobs).count() == length - 1


def test_links_follow_renaming_and_deletion_of_a_job() -> None:
    first, other = make_idle_job(name="first"), make_idle_job(name="other")
    following = make_job(
        name="after", schedule="@never", after={"first": "failed", "other": "ended"}
    )
    saved_at = following.updated_at - MINUTE
    Job.objects.filter(pk=following.pk).update(updated_at=saved_at)
    first.name, first.namespace = "renamed", "shop"
    control.save(first)
    following.refresh_from_db()
    assert following.updated_at > saved_at
    assert (following.after, following.version) == ({"shop/renamed": "failed", "other": "ended"}, 2)
    control.save(following)
    control.delete(first)
    following.refresh_from_db()
    assert (following.after, following.version) == ({"other": "ended"}, 4)
    assert [link.after_id for link in Link.objects.all()] == [other.pk]
    control.delete(following)
    assert not Link.objects.exists()


# --- declaration and export ---------------------------------------------------------------------


def test_following_job_can_be_declared_before_the_job_it_follows() -> None:
    with targets.isolated_registry():
        targets.cron("@never", name="second", after={"first": "succeeded"})(
            test_after_is_exported_by_job_labels
        )
        targets.cron("@daily", name="first")(test_after_is_exported_by_job_labels)
        done = apply(plan())
        assert [change.kind for change in done] == ["create", "create"], done
        assert not [change for change in plan() if change.is_difference]
    link = Link.objects.get()
    assert (link.job.name, link.after.name, link.on) == ("second", "first", "succeeded")
    assert link.job.enabled


def test_after_is_exported_by_job_labels() -> None:
    job = make_idle_job(name="first")
    document = json.loads(portable.write_document([follower(job, name="second"), job]))
    assert {each["name"]: each["after"] for each in document["jobs"]} == {
        "first": {},
        "second": {"first": "ended"},
    }


def test_why_and_doctor_take_chains_into_account() -> None:
    run = running()
    following = follower(run.job)
    assert succeed(run)
    (made,) = followers(run)
    shown = explain(following, made.scheduled_at).sentences
    (chained,) = (sentence for sentence in shown if sentence.code == "chained")
    assert str(made.pk) in chained.params["runs"]
    now = database_now("default")
    report = examine(Window(since=now - MINUTE, until=now, now=now), get_lock())
    assert Code.NEVER_FIRES not in report.findings.counts
