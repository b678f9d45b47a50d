"""One tick of a node: its steps, their order, and what it postpones."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError
from django.db.models import F

from django_dcron.conf import settings
from django_dcron.db.contention import is_contention
from django_dcron.db.now import database_now
from django_dcron.jobs import cursors, pausing
from django_dcron.jobs.attempt_end import end_attempt
from django_dcron.models import Cursor, Incident, Job, Run, Statistics
from django_dcron.policies.lifecycle import Outcome
from django_dcron.runs import deliveries, endings, slot_queue, transitions
from django_dcron.runs.completion import Ending
from django_dcron.scheduler import claim, tick
from django_dcron.scheduler.agenda import Agenda
from django_dcron.scheduler.steps import StillLocked
from django_dcron.scheduler.tick import Ticker
from django_dcron.testing import set_clock
from tests.factories import make_idle_job, make_job, make_run
from tests.lock_holder import keeping_locked, lock_limit
from tests.scheduler.stand_ins import MemoryDispatcher, StillClock, due_run

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


class FakeMembership:
    """A membership of one node. The test chooses its shards."""

    id = "me-1"
    name = "me"
    namespace = ""

    def __init__(self) -> None:
        self.shards = frozenset(range(settings.SHARDS))
        self.ticks = 0

    def ticked(self) -> None:
        self.ticks += 1


class NodeUnderTest:
    def __init__(self) -> None:
        self.clock = StillClock(database_now("default"))
        self.dispatcher = MemoryDispatcher()
        self.agenda = Agenda(self.dispatcher, self.clock)
        self.membership = FakeMembership()
        self.ticker = Ticker(self.membership, self.agenda, self.clock)  # type: ignore[arg-type]

    def make_job(self, **fields: Any) -> Job:
        """Create a job at this node's time, however long ago it was set up."""
        with set_clock(self.clock.now()):
            return make_job(**fields)

    def make_run(self, job: Job, state: str = "pending", **fields: Any) -> Run:
        """Create a run that is due at this node's time."""
        with set_clock(self.clock.now()):
            return make_run(job, state, **fields)

    def pass_time(self, seconds: float, every: float = 0.5) -> None:
        for _ in range(int(seconds / every)):
            self.clock.advance(every)
            self.agenda.publish_due()
            self.ticker.tick()


@pytest.fixture
def node() -> NodeUnderTest:
    return NodeUnderTest()


def states(job: Job) -> list[str]:
    return list(
        Run.objects.filter(job=job).order_by("scheduled_at").values_list("state", flat=True)
    )


def raising(error: Exception) -> Callable[..., None]:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    return fail


def test_tick_claims_dispatches_and_marks_runs(node: NodeUnderTest) -> None:
    job = node.make_job()
    node.ticker.tick()
    assert set(states(job)) == {"pending"}
    node.pass_time(5)
    runs = list(Run.objects.filter(job=job).order_by("scheduled_at"))
    queued = [run for run in runs if run.state == "queued"]
    assert [run.due_at <= node.clock.now() for run in runs] == [
        run.state == "queued" for run in runs
    ]
    assert [run.run_id for run in node.dispatcher.dispatched] == [run.pk for run in queued]
    assert all(
        run.deliveries == 1 and run.queued_at and run.queued_at >= run.due_at for run in queued
    )
    assert node.membership.ticks == 11


def test_tick_reports_progress_after_each_claimed_batch(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long catch-up doesn't look like a hanging thread or an unreachable database."""
    signs: list[str] = []
    node.ticker.on_activity = lambda: signs.append("alive")
    node.ticker.on_progress = lambda: signs.append("progressed")
    node.ticker.tick()
    steps = ["mark", "changes", "quarantine", "claim", "release", "adopt"]
    steps += ["incidents", "prune", "count", "report"]
    assert signs == ["alive"] * len(steps) + ["progressed"]
    monkeypatch.setattr(tick, "CLAIMED_AT_ONCE", 1)
    monkeypatch.setattr(claim, "CLAIMED_AT_ONCE", 1)
    signs.clear()
    for _ in range(3):
        node.make_job()
    node.ticker.tick()
    mark, claim_, adopt = ["alive"], ["alive"], ["alive"]
    assert signs == [*mark, *claim_, *["alive", "progressed"] * 3, *adopt, "progressed"]


def test_tick_groups_failures_and_resolves_incidents(node: NodeUnderTest) -> None:
    job = node.make_job(schedule="@never")
    run = make_run(job, "running")
    assert end_attempt(run, 1, Ending(Outcome.FAILED, exception_class="Refused"))
    node.ticker.tick()
    assert Incident.objects.get().state == "open"
    Incident.objects.update(last_seen_at=F("last_seen_at") - SECOND)
    assert end_attempt(make_run(job, "running"), 1, Ending(Outcome.SUCCEEDED))
    node.clock.advance(tick.GROUP_FAILURES_EVERY)
    node.ticker.tick()
    assert Incident.objects.get().state == "resolved"


@pytest.mark.parametrize("rows", ["starts", "incidents"])
def test_pruning_continues_in_the_next_tick_while_rows_are_left(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch, rows: str
) -> None:
    full = [True, True, False]  # whether each batch is full
    if rows == "starts":
        monkeypatch.setattr(tick, "prune_starts", lambda shards: full.pop(0))
    else:
        size = tick.incidents.PRUNED_AT_ONCE
        monkeypatch.setattr(tick.incidents, "prune_incidents", lambda *scope: size * full.pop(0))
    node.ticker.tick()
    assert len(full) == 2
    node.pass_time(5)
    assert full == []


def test_error_while_grouping_failures_does_not_stop_the_schedule(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick.incidents, "group_failed_attempts", raising(ValueError("unreadable")))
    node.make_job()
    node.ticker.tick()
    assert node.membership.ticks == 1
    assert Run.objects.exists()


def test_failed_tick_reports_no_progress(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reads may even succeed, for example if the database has become read-only."""
    signs: list[str] = []
    node.ticker.on_progress = lambda: signs.append("progressed")
    monkeypatch.setattr(
        node.membership, "ticked", raising(OperationalError("read-only transaction"))
    )
    with pytest.raises(OperationalError):
        node.ticker.tick()
    assert signs == []


def test_run_refused_by_the_broker_fails_with_the_error(node: NodeUnderTest) -> None:
    first_at = node.clock.now() + SECOND
    good, bad = node.make_job(starts_at=first_at), node.make_job(starts_at=first_at, queue="bad")
    node.dispatcher.poison = {bad.name}
    node.pass_time(3)
    reasons = Run.objects.filter(job=bad).exclude(state="pending").values_list("reason", flat=True)
    assert set(reasons) == {f"ZeroDivisionError: the driver fails for {bad.name}"}
    assert {"failed", "pending"} == set(states(bad))
    assert {"queued", "pending"} == set(states(good))
    assert states(bad).count("failed") == states(good).count("queued")


def test_node_without_shards_only_marks_dispatched_runs(node: NodeUnderTest) -> None:
    job = node.make_job()
    node.ticker.tick()
    node.clock.advance(1)
    node.agenda.publish_due()
    node.membership.shards = frozenset()
    before = Run.objects.count()
    node.ticker.tick()
    assert states(job)[0] == "queued"
    node.pass_time(20)
    assert Run.objects.count() == before


def test_claimed_runs_are_dispatched_on_time_after_shards_are_lost(node: NodeUnderTest) -> None:
    job = node.make_job()
    node.ticker.tick()
    node.membership.shards = frozenset()
    node.pass_time(11)
    assert set(states(job)) == {"queued"}


def test_idle_tick_needs_three_queries(
    node: NodeUnderTest, django_assert_max_num_queries: Callable[[int], AbstractContextManager[Any]]
) -> None:
    make_idle_job()
    node.ticker.tick()
    node.clock.advance(1.0)
    with django_assert_max_num_queries(3):  # one query each to find claims, releases and adoptions
        node.ticker.tick()


def test_jobs_changed_without_save_are_followed(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.ticker.tick()
    job = Job.objects.create(name="new", schedule="* * * * * *", target="tests.app.tasks.ok")
    node.pass_time(tick.APPLY_CHANGES_EVERY + 1)
    assert states(job)
    assert job.statistics.last_state == ""
    # If more jobs changed than one round follows, the next round starts without a pause.
    monkeypatch.setattr(cursors, "MOVED_AT_ONCE", 2)
    for n in range(6):
        Job.objects.create(name=f"new-{n}", schedule="0 0 1 1 *", target="tests.app.tasks.ok")
    node.pass_time(tick.APPLY_CHANGES_EVERY + 1.5)
    assert Cursor.objects.count() == 7


def test_job_resumes_when_its_pause_ends(node: NodeUnderTest) -> None:
    now = database_now("default")
    ended, lasting = (
        pausing.pause(node.make_job(), "deploy", now + 3600 * SECOND) for _ in range(2)
    )
    # A run may have become due between the save and the pause.
    before = (states(ended), states(lasting))
    node.ticker.tick()
    assert (len(states(ended)), len(states(lasting))) == (len(before[0]), len(before[1]))
    Job.objects.filter(pk=ended.pk).update(paused_until=now)
    node.pass_time(tick.APPLY_CHANGES_EVERY + 1)
    assert Job.objects.get(pk=ended.pk).enabled
    assert len(states(ended)) > len(before[0])
    assert len(states(lasting)) == len(before[1])


def test_one_tick_claims_all_due_jobs(node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "CLAIMED_AT_ONCE", 2)
    monkeypatch.setattr(tick, "CLAIMED_AT_ONCE", 2)
    jobs = [node.make_job() for _ in range(5)]
    node.ticker.tick()
    assert all(states(job) for job in jobs)


def test_stopping_node_claims_nothing(node: NodeUnderTest) -> None:
    node.make_job()
    node.ticker.stopping = lambda: True
    node.ticker.tick()
    assert not Run.objects.exists()


def test_undeliverable_run_fails_with_the_reason(
    node: NodeUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = node.make_job(), node.make_job()
    node.dispatcher.undeliverable = {bad.name}
    node.ticker.tick()
    node.pass_time(3)
    assert set(states(bad)) == {"failed"}
    assert set(Run.objects.filter(job=bad).values_list("reason", flat=True)) == {
        f"no queue for {bad.name}"
    }
    assert "queued" in states(good)
    events = {(vars(record)["event"], vars(record).get("job")) for record in caplog.records}
    assert ("undeliverable", bad.name) in events


@pytest.mark.parametrize("other_step_is_blocked", [False, True])
def test_refused_run_that_could_not_be_ended_is_refused_again_after_a_while(
    node: NodeUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    other_step_is_blocked: bool,
) -> None:
    run = node.make_run(make_idle_job())
    node.dispatcher.undeliverable = {run.job.name}

    def failures() -> list[str]:
        return [
            record.message for record in caplog.records if vars(record)["event"] == "step_failed"
        ]

    with monkeypatch.context() as broken:
        broken.setattr(endings, "end_unstarted", raising(ValueError("can't be ended now")))
        if other_step_is_blocked:
            broken.setattr(tick, "claim", raising(StillLocked([UUID(int=1)])))
        node.pass_time(tick.RETRY_REFUSED_EVERY)
        assert len(failures()) == 1
        node.pass_time(1)
        assert len(failures()) == 2
    assert states(run.job) == ["pending"]
    node.pass_time(tick.RETRY_REFUSED_EVERY)
    assert states(run.job) == ["failed"]


def test_undeliverable_run_that_was_withdrawn_is_ignored(node: NodeUnderTest) -> None:
    node.dispatcher.undeliverable = {"withdrawn"}
    assert node.ticker._add_to_agenda([due_run("withdrawn")]) == 0
    assert len(node.agenda) == 0


def test_next_tick_adopts_runs_of_a_claim_with_unknown_outcome(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_idle_job()
    node.ticker.tick()
    with monkeypatch.context() as broken:
        broken.setattr(node.agenda, "add", raising(OperationalError("gone")))
        node.make_run(job, node=node.membership.id)  # like a claim that was committed
        node.make_job()
        with pytest.raises(OperationalError):
            node.ticker.tick()
        node.ticker.record_failure(database_unreachable=True)
    assert len(node.agenda) == 0
    node.ticker.tick()
    assert len(node.agenda) == Run.objects.count() > 5


@pytest.mark.parametrize("leads_others", [False, True])
def test_run_of_a_failed_tick_is_adopted_once_the_node_leads_its_shard_again(
    leads_others: bool, node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases may lapse and be renewed within one slow heartbeat, which reports no gained shard."""
    job = make_idle_job()
    run = node.make_run(job, node=node.membership.id)
    others = node.membership.shards - {job.pk % settings.SHARDS} if leads_others else frozenset()
    with monkeypatch.context() as broken:
        broken.setattr(node.agenda, "add", raising(OperationalError("gone")))
        with pytest.raises(OperationalError):
            node.ticker.tick()
        node.ticker.record_failure(database_unreachable=True)
    shards, node.membership.shards = node.membership.shards, others
    node.ticker.tick()
    assert len(node.agenda) == 0
    node.membership.shards = shards
    node.ticker.tick()
    assert node.agenda.knows((run.pk, 1))


def test_next_tick_marks_runs_that_could_not_be_marked(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = node.make_job()
    node.clock.instant = database_now("default")  # creating the job may have taken seconds
    node.ticker.tick()
    node.clock.advance(2)
    node.agenda.publish_due()
    with monkeypatch.context() as broken:
        broken.setattr(deliveries, "mark_queued", raising(OperationalError("gone")))
        with pytest.raises(OperationalError):
            node.ticker.tick()
    assert "queued" not in states(job)
    node.ticker.tick()
    assert states(job).count("queued") == len(node.dispatcher.dispatched) >= 2


def test_marking_is_postponed_during_a_burst_up_to_a_limit(node: NodeUnderTest) -> None:
    """In a burst, marking would take time from the runs that are still to be dispatched."""
    job = node.make_job()
    node.ticker.tick()
    node.clock.advance(3)
    node.agenda.publish_due()
    dispatched = len(node.dispatcher.dispatched)
    node.clock.advance(1)  # another run is due and isn't dispatched
    for _ in range(int(tick.LONGEST_BURST / 0.5)):
        node.ticker.tick()
        assert "queued" not in states(job)
        node.clock.advance(0.5)
    node.ticker.tick()
    assert states(job).count("queued") == dispatched > 0


def test_marking_is_not_postponed_while_the_broker_is_unreachable(node: NodeUnderTest) -> None:
    job = node.make_job()
    node.ticker.tick()
    node.clock.advance(3)
    node.agenda.publish_due()
    node.dispatcher.broker_unreachable = True
    node.clock.advance(1)
    node.agenda.publish_due()
    node.ticker.tick()
    assert states(job).count("queued") == len(node.dispatcher.dispatched) > 0


def test_rescue_waits_for_a_lease_of_steady_ticks(node: NodeUnderTest) -> None:
    """After an outage, workers' heartbeats are old although the workers are alive."""
    long_ago = node.clock.now() - timedelta(hours=1)

    def stale() -> Run:
        run = make_run(make_idle_job(), "running", heartbeat_at=long_ago)
        assert run.state == "running"
        return run

    first = stale()
    node.pass_time(15)
    first.refresh_from_db()
    assert first.state == "running"
    node.pass_time(2)
    first.refresh_from_db()
    assert first.state == "failed"

    # Lock contention isn't an outage: the database was reachable.
    node.ticker.record_failure(database_unreachable=False)
    second = stale()
    node.pass_time(3)
    second.refresh_from_db()
    assert second.state == "failed"

    node.ticker.record_failure(database_unreachable=True)
    third = stale()
    node.pass_time(14)
    third.refresh_from_db()
    assert third.state == "running"
    node.pass_time(4)
    third.refresh_from_db()
    assert third.state == "failed"


@pytest.mark.parametrize("where", ["between two ticks", "within a tick"])
def test_no_run_is_lost_right_after_the_database_stalled(
    node: NodeUnderTest, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stall delayed the workers' heartbeats, too. They are about to be written."""
    node.pass_time(60)
    run = make_run(make_idle_job(), "running", heartbeat_at=node.clock.now())
    if where == "within a tick":
        original = node.ticker._claim
        monkeypatch.setattr(node.ticker, "_claim", lambda: (node.clock.advance(30), original()))
        node.ticker.tick()
        monkeypatch.undo()
    else:
        node.clock.advance(30)
    node.pass_time(13)
    run.refresh_from_db()
    assert run.state == "running"
    node.pass_time(5)
    run.refresh_from_db()
    assert run.state == "failed", "there is still no heartbeat"


def test_no_run_is_lost_while_the_database_clock_is_in_doubt(node: NodeUnderTest) -> None:
    """That clock also dates the heartbeats."""
    node.pass_time(30)
    run = make_run(make_idle_job(), "running", heartbeat_at=node.clock.now() - timedelta(hours=1))
    node.ticker.clock_in_doubt = lambda: True
    node.pass_time(30)
    node.ticker.clock_in_doubt = lambda: False
    node.pass_time(13)
    run.refresh_from_db()
    assert run.state == "running"
    node.pass_time(5)
    run.refresh_from_db()
    assert run.state == "failed"


def test_single_tick_rescues_after_a_longer_timeout(node: NodeUnderTest) -> None:
    """If cron starts the node for one tick each time, no later tick would do it."""
    silent, fresh = (
        make_run(make_idle_job(), "running", heartbeat_at=node.clock.now() - age * SECOND)
        for age in (46, 44)
    )
    node.ticker.tick(once=True)
    assert dict(Run.objects.values_list("pk", "state")) == {
        silent.pk: "failed",
        fresh.pk: "running",
    }


def test_run_woken_before_it_was_marked_is_dispatched_again(node: NodeUnderTest) -> None:
    """The message is used up: a queued run would keep the slot, and no worker would start it."""
    job = make_idle_job(overlap_policy="queue_all")
    run = node.make_run(job)
    node.ticker.tick()
    node.agenda.publish_due()  # it is published; the next tick marks it
    assert transitions.mark_waiting(run, slot=None, reason="")
    assert slot_queue.wake_next(job.pk)
    # This step of the tick precedes the agenda's report of the dispatch.
    node.ticker._adopt()
    node.ticker.mark_dispatched()
    run.refresh_from_db()
    assert (run.state, run.deliveries) == ("pending", 0)
    node.pass_time(1)
    run.refresh_from_db()
    assert (run.state, run.deliveries) == ("queued", 1)
    assert [due.run_id for due in node.dispatcher.dispatched] == [run.pk, run.pk]


def test_tick_pauses_a_job_that_keeps_failing(node: NodeUnderTest) -> None:
    job = make_idle_job(pause_after_failures=1)
    Statistics.objects.update(consecutive_failures=1)
    node.ticker.tick()
    job.refresh_from_db()
    assert not job.enabled


def test_quarantined_job_is_retried_every_few_minutes(node: NodeUnderTest) -> None:
    node.ticker.tick()
    job = node.make_job()
    Cursor.objects.update(problem="an old tz database")
    node.pass_time(tick.RETRY_QUARANTINED_EVERY - 10, every=5)
    assert not states(job)
    node.pass_time(20, every=5)
    assert states(job)
    assert Cursor.objects.get().problem == ""


def test_only_jobs_of_its_namespace_and_shards_are_followed(node: NodeUnderTest) -> None:
    node.membership.namespace = "shop"
    own, other = (
        Job.objects.create(name="a", namespace=namespace, schedule="@daily", target="t")
        for namespace in ("shop", "other")
    )
    node.ticker.tick()
    assert list(Cursor.objects.values_list("job", flat=True)) == [own.pk]
    node.membership.namespace, node.membership.shards = "", frozenset({(other.pk + 1) % 64})
    node.pass_time(10)
    assert Cursor.objects.count() == 1


def test_tick_report_counts_the_actions(
    node: NodeUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_dcron.scheduler")
    job = make_idle_job()
    node.ticker.tick()
    assert caplog.messages == ["tick report: node=me agenda=0"]
    node.make_run(job)
    node.pass_time(59)
    assert len(caplog.messages) == 1
    node.pass_time(1)
    assert caplog.messages[1:] == ["tick report: node=me agenda=0 adopted=1 dispatched=1"]
    reported = vars(caplog.records[-1])
    facts = {"event": "tick_report", "node": "me", "agenda": 0, "adopted": 1, "dispatched": 1}
    assert facts.items() <= reported.items()
    assert (reported["claimed"], reported["rescued"]) == (0, 0)


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_locked_run_does_not_block_the_rest_of_the_tick(
    node: NodeUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    """For example, a worker was suspended within its transaction.

    The node marks the run once the lock is released, and logs the contention once.
    """
    caplog.set_level(logging.INFO, "django_dcron.scheduler")
    locked = node.make_run(make_idle_job())
    node.clock.advance(1)
    node.ticker.tick()
    node.agenda.publish_due()
    other = node.make_job()
    with keeping_locked(Run.objects.filter(pk=locked.pk)):
        node.ticker.tick()
        assert Run.objects.filter(job=other).exists(), "other jobs are still claimed"
        assert node.membership.ticks == 2, "and the node still counts as working"
        node.ticker.tick()
    node.agenda.publish_due()
    node.ticker.tick()
    locked.refresh_from_db()
    assert locked.state == "queued"
    logged = [(vars(record)["event"], vars(record).get("step")) for record in caplog.records]
    about_locks = [entry for entry in logged if entry[0] != "tick_report"]
    assert about_locks == [("contention", "mark"), ("contention_over", "mark")]
    node.ticker.close()


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_other_runs_are_adopted_and_marked_while_a_row_is_locked(node: NodeUnderTest) -> None:
    """This applies to dispatched runs and to runs that no node has adopted yet."""
    dispatched = [node.make_run(make_idle_job()) for _ in range(2)]
    node.clock.advance(1)
    node.ticker.tick()
    node.agenda.publish_due()
    triggered = [node.make_run(make_idle_job(), node="") for _ in range(2)]
    locked = [dispatched[0].pk, triggered[0].pk]

    def states() -> list[str]:
        return [Run.objects.get(pk=run.pk).state for run in (*dispatched, *triggered)]

    with keeping_locked(Run.objects.filter(pk__in=locked)):
        for _ in range(2):  # the first tick runs into the lock
            node.ticker.tick()
            node.agenda.publish_due()
        node.ticker.tick()
        assert states() == ["pending", "queued", "pending", "queued"]
        node.pass_time(12)
        assert node.ticker.blocked_steps().keys() == {"mark", "adopt"}
        dispatched[1].delete()
    for _ in range(2):
        node.ticker.tick()
        node.agenda.publish_due()
    node.ticker.tick()
    del dispatched[1]
    assert states() == ["queued", "queued", "queued"]
    assert node.ticker.blocked_steps() == {}
    node.ticker.close()


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_locked_refused_runs_are_ended_later_without_waiting_for_the_lock(
    node: NodeUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    """Each wait would delay the tick by the lock timeout."""
    caplog.set_level(logging.INFO, "django_dcron.scheduler")
    first, second, free = (
        node.make_run(make_idle_job(), node=node.membership.id) for _ in range(3)
    )
    node.dispatcher.undeliverable = {run.job.name for run in (first, second, free)}
    with keeping_locked(Run.objects.filter(pk__in=[first.pk, second.pk])):
        node.pass_time(2 * tick.RETRY_REFUSED_EVERY)
    assert "contention" not in {vars(record)["event"] for record in caplog.records}
    assert [states(run.job) for run in (first, second, free)] == [
        ["pending"],
        ["pending"],
        ["failed"],
    ]
    node.pass_time(tick.RETRY_REFUSED_EVERY)
    assert states(first.job) == states(second.job) == ["failed"]
    node.ticker.close()


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_refused_runs_that_need_a_locked_incident_wait_for_it_only_once(
    node: NodeUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_dcron.scheduler")
    job = make_idle_job(overlap_policy="allow")
    node.dispatcher.undeliverable = {job.name}
    node.make_run(job, node=node.membership.id)
    node.pass_time(1)
    assert states(job) == ["failed"]
    for _ in range(3):
        node.make_run(job, node=node.membership.id)
    node.ticker.record_failure(database_unreachable=False)  # so it looks for these runs
    with keeping_locked(Incident.objects.all()):
        node.ticker.tick()
    assert caplog.text.count("step=refuse") == 1
    assert states(job).count("pending") == 3
    node.pass_time(tick.RETRY_REFUSED_EVERY)
    assert states(job) == ["failed"] * 4
    node.ticker.close()


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_rescue_happens_while_a_row_is_locked(node: NodeUnderTest) -> None:
    """A blocked tick doesn't mean that the workers' heartbeats were delayed."""
    failing, changed = (make_idle_job(pause_after_failures=1) for _ in range(2))
    run = make_run(make_idle_job(), "running", heartbeat_at=node.clock.now() - timedelta(hours=1))
    node.pass_time(13)
    Statistics.objects.filter(pk=failing.pk).update(consecutive_failures=1)
    Job.objects.filter(pk=changed.pk).update(schedule="@daily")
    cursors = Cursor.objects.filter(pk__in=[failing.pk, changed.pk])
    with keeping_locked(cursors):
        node.pass_time(6)
    assert cursors.filter(enabled=True).exclude(schedule="@daily").count() == 2
    run.refresh_from_db()
    assert run.state == "failed"
    node.pass_time(6)
    assert cursors.get(pk=failing.pk).enabled is False
    assert cursors.get(pk=changed.pk).schedule == "@daily"
    node.ticker.close()


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_single_tick_raises_contention_and_resets_lock_timeout(node: NodeUnderTest) -> None:
    locked = node.make_run(make_idle_job())
    node.agenda.add([due_run("locked", run_id=locked.pk)])
    node.clock.advance(1)
    node.agenda.publish_due()
    with (
        keeping_locked(Run.objects.filter(pk=locked.pk)),
        pytest.raises(OperationalError) as raised,
    ):
        node.ticker.tick(once=True)
    assert is_contention(raised.value) or isinstance(raised.value, StillLocked)
    assert lock_limit() in ("1s", 1)
    node.ticker.close()
    assert lock_limit() not in ("1s", 1)
