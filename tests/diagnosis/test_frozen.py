"""A freeze in the diagnosis: every part names it, and nothing that it holds back is overdue."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from django_dcron import control
from django_dcron.diagnosis.doctor.findings import Code
from django_dcron.diagnosis.doctor.report import Report, examine
from django_dcron.diagnosis.doctor.window import Window
from django_dcron.diagnosis.misfire_effect import misfire_effect, start_deadline_effect
from django_dcron.diagnosis.system_health import read_verdict
from django_dcron.diagnosis.why.explanation import explain
from django_dcron.diagnosis.why.latest import explain_latest
from django_dcron.diagnosis.why.verdicts import WhyVerdict
from django_dcron.models import Cursor, Freeze, Job, Node, Run
from django_dcron.monitoring.metrics import catalog, cluster
from django_dcron.policies.health.problems import Problem
from django_dcron.policies.health.verdict import SystemStatus
from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.runs import deliveries
from django_dcron.scheduler.claim import claim
from django_dcron.testing import set_clock
from django_dcron.testing.manual_clock import ManualClock
from tests.diagnosis.conftest import codes
from tests.factories import make_job, make_run
from tests.scheduler.stand_ins import START

pytestmark = pytest.mark.django_db

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LATE = {Problem.CURSOR_OVERDUE, Problem.RUN_OVERDUE, Problem.WORKERS_BEHIND, Problem.NO_WORKER}
LATE_CODES = {Code(problem.value) for problem in (Problem.CURSOR_OVERDUE, Problem.RUN_OVERDUE)} | {
    Code.RUN_UNDELIVERED
}


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    with set_clock(START) as clock:
        yield clock


@pytest.fixture
def job(clock: ManualClock) -> Job:
    """A job with an unclaimed occurrence, a pending run and a queued run, all long overdue.

    A live node ticks.
    """
    job = make_job(schedule="* * * * *", namespace="shop", misfire_policy="skip")
    make_run(job, "pending", node="n")
    make_run(job, "queued")
    clock.advance(HOUR)
    now = clock.now()
    beats = {"started_at": START, "heartbeat_at": now, "ticked_at": now}
    Node.objects.create(
        id="n", name="n", host="h", pid=1, version="1", shards=64, shard_count=64, **beats
    )
    # The job's creation has the time of the wall clock.
    Job.objects.update(created_at=START)
    return job


class NoLock:
    """A lock that nobody has. The shards aren't of interest here."""

    address = "none"

    def holders(self, names: Any) -> dict[str, str]:
        return {}


def report(now: Any) -> Report:
    return examine(Window(START, now, now), NoLock())  # type: ignore[arg-type]


@pytest.mark.parametrize("namespace", [None, "shop"])
def test_frozen_runs_and_cursors_are_not_overdue(
    job: Job, clock: ManualClock, namespace: str | None
) -> None:
    assert read_verdict().problems & LATE
    assert report(clock.now()).findings.counts.keys() & LATE_CODES
    freeze = control.freeze("deploy", namespace, by="ann")

    verdict, found = read_verdict(), report(clock.now())

    assert not verdict.problems & LATE
    assert verdict.status is SystemStatus.OK
    (facts,) = verdict.facts.freezes
    assert (facts.namespace, facts.reason, facts.frozen_by) == (freeze.namespace, "deploy", "ann")
    assert not found.findings.counts.keys() & LATE_CODES
    assert any("deploy" in note and "ann" in note for note in found.notes)


def test_freeze_of_another_namespace_excuses_nothing(job: Job, clock: ManualClock) -> None:
    make_job(namespace="billing")
    control.freeze("deploy", "billing")
    assert read_verdict().problems & LATE
    assert read_verdict("shop").facts.freezes == ()
    assert report(clock.now()).findings.counts.keys() & LATE_CODES


def test_health_lists_the_freezes(job: Job, admin_client: Client, clock: ManualClock) -> None:
    control.freeze("deploy", until=clock.now() + MINUTE, by="ann")
    expected = {
        "since": "2026-03-01T13:00:00Z",
        "until": "2026-03-01T13:01:00Z",
        "namespace": "",
    }
    health = admin_client.get("/probes/health").json()
    assert health["freezes"] == [expected | {"reason": "deploy", "frozen_by": "ann"}]
    assert health["status"] == "ok"
    stranger = Client().get("/probes/health").json()
    assert stranger["freezes"] == [expected | {"reason": "", "frozen_by": ""}]


def samples() -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for sample in cluster.read_samples():
        found.setdefault(sample.metric.name, {})[sample.labels] = float(sample.value)
    return found


def test_metrics_show_the_freeze(job: Job) -> None:
    before = samples()
    assert before[catalog.FROZEN.name] == {("",): 0}
    assert before[catalog.CURSORS_OVERDUE.name] == {(): 1}
    control.freeze("deploy", "shop")
    frozen = samples()
    assert frozen[catalog.FROZEN.name] == {("",): 0, ("shop",): 1}
    assert frozen[catalog.CURSORS_OVERDUE.name] == {(): 0}
    assert frozen[catalog.CURSOR_LAG.name] == {(): 0}
    assert frozen[catalog.RUNS_UNFINISHED.name]["due",] == 0
    control.unfreeze("shop")
    assert samples()[catalog.FROZEN.name] == {("",): 0, ("shop",): 0}


# --- why ------------------------------------------------------------------------------------------


def test_why_names_the_freeze_of_an_unclaimed_occurrence(clock: ManualClock) -> None:
    job = make_job(schedule="* * * * *")
    job.created_at = START - HOUR  # it has the time of the wall clock
    clock.advance(MINUTE)
    control.freeze("deploy", until=clock.now() + HOUR, by="ann")
    clock.advance(MINUTE)
    answer = explain(job, clock.now())
    assert answer.verdict is WhyVerdict.FROZEN
    assert codes(answer) == ["frozen_all", "freeze_reason", "freeze_ends", "after_freeze"]
    assert answer.sentences[0].params["by"] == "ann"
    assert answer.sentences[1].params["reason"] == "deploy"


@pytest.mark.parametrize("state", ["pending", "queued"])
def test_why_names_the_freeze_of_a_claimed_run(clock: ManualClock, state: str) -> None:
    job = make_job(schedule="* * * * *")
    run = make_run(job, state, scheduled_at=START + MINUTE, due_at=START + MINUTE)
    control.freeze("deploy", "default")
    clock.advance(2 * MINUTE)
    answer = explain(job, run.scheduled_at)
    assert answer.verdict == state
    assert "frozen_namespace" in codes(answer)
    assert codes(answer)[-1] == "after_freeze"


@pytest.mark.parametrize("policy", MisfirePolicy)
def test_why_says_what_the_misfire_policy_does_after_the_freeze(
    clock: ManualClock, policy: MisfirePolicy
) -> None:
    job = make_job(schedule="* * * * *", misfire_policy=policy)
    run = make_run(job, scheduled_at=START + MINUTE, due_at=START + MINUTE)
    control.freeze("deploy")
    last = explain(job, run.scheduled_at).sentences[-1]
    assert last.params == {"policy": str(policy), "effect": misfire_effect(job)}
    assert misfire_effect(job) in last
    assert start_deadline_effect(job) == ""
    job.start_deadline = 5 * MINUTE
    last = explain(job, run.scheduled_at).sentences[-1]
    assert start_deadline_effect(job)
    assert last.endswith(start_deadline_effect(job))


@pytest.mark.parametrize("values", [{"attempt": 2}, {"trigger": "backfill"}])
def test_why_says_that_other_runs_can_start_after_the_freeze(
    clock: ManualClock, values: dict[str, Any]
) -> None:
    """The misfire policy doesn't apply to them."""
    run = make_run(make_job(schedule="@never"), scheduled_at=START, **values)
    control.freeze("deploy")
    assert codes(explain(run.job, run.scheduled_at))[-1] == "start_after_freeze"


@pytest.mark.parametrize(("minutes", "named"), [(5, True), (90, False)])
def test_why_names_a_freeze_that_lasts_until_an_occurrence_to_come(
    clock: ManualClock, minutes: int, named: bool
) -> None:
    job = make_job(schedule="* * * * *")
    clock.advance(timedelta(seconds=1))
    control.freeze("deploy", until=START + HOUR)
    answer = explain(job, START + minutes * MINUTE)
    assert answer.verdict is WhyVerdict.NOT_DUE
    assert ("frozen_all" in codes(answer)) is named


@pytest.mark.parametrize(
    ("policy", "asked", "verdict"),
    [
        ("skip", 5, WhyVerdict.COVERED),
        ("skip", 9, WhyVerdict.MISSED),
        ("run_latest", 5, WhyVerdict.COVERED),
    ],
)
def test_why_names_the_past_freeze_that_delayed_a_missed_occurrence(
    clock: ManualClock, policy: str, asked: int, verdict: WhyVerdict
) -> None:
    job = make_job(schedule="* * * * *", misfire_policy=policy)
    clock.advance(timedelta(seconds=1))
    control.freeze("deploy", until=START + 10 * MINUTE + timedelta(seconds=30))
    clock.advance(10 * MINUTE + timedelta(seconds=30))
    Cursor.objects.filter(pk=job.pk).update(placed_at=START - HOUR)
    claim(range(64), clock.now(), node="n")
    answer = explain(job, START + asked * MINUTE)
    assert answer.verdict is verdict
    assert {"frozen_all", "freeze_reason", "freeze_ended"} <= set(codes(answer))
    order = [code for code in codes(answer) if code in ("frozen_all", "claimed_late")]
    assert order == ["frozen_all", "claimed_late"], "the cause first"
    missed = Run.objects.filter(state="missed").values_list("reason", flat=True)
    assert all("deploy" in reason for reason in missed)


def test_why_does_not_name_a_freeze_as_the_cause_of_an_earlier_claim(clock: ManualClock) -> None:
    """No node ran at first. The freeze began after a node had claimed the run."""
    job, due, claimed = make_job(schedule="@never"), START + MINUTE, START + 2 * MINUTE
    started = START + 20 * MINUTE
    times = {"due_at": due, "claimed_at": claimed, "started_at": started, "finished_at": started}
    make_run(job, "succeeded", scheduled_at=due, **times)
    clock.advance(3 * MINUTE)
    control.freeze("deploy", until=START + 19 * MINUTE)
    clock.advance(HOUR)
    order = [code for code in codes(explain(job, due)) if code in ("frozen_all", "claimed_late")]
    assert order == ["claimed_late", "frozen_all"]
    Freeze.objects.update(since=due)
    order = [code for code in codes(explain(job, due)) if code in ("frozen_all", "claimed_late")]
    assert order == ["frozen_all", "claimed_late"]


def test_why_names_the_past_freeze_that_delayed_a_start(clock: ManualClock) -> None:
    job, due, end = make_job(schedule="@never"), START + MINUTE, START + 2 * MINUTE
    times = {"due_at": due, "claimed_at": START, "started_at": end, "finished_at": end}
    make_run(job, "succeeded", scheduled_at=due, **times)
    control.freeze("deploy", until=end)
    clock.advance(HOUR)
    assert {"frozen_all", "freeze_reason", "freeze_ended"} <= set(codes(explain(job, due)))


def test_why_names_a_freeze_that_began_during_the_wait_of_a_missed_run(clock: ManualClock) -> None:
    """The freeze may not be the only cause: the run was late already."""
    job = make_job(schedule="@never", misfire_policy="skip")
    due = START + MINUTE
    run = make_run(job, "missed", scheduled_at=due, due_at=due, finished_at=due + HOUR)
    make_run(make_job(), "missed", scheduled_at=due, due_at=due)
    clock.advance(MINUTE + timedelta(seconds=6))
    control.freeze("deploy", until=clock.now() + MINUTE)
    clock.advance(HOUR)
    answer = explain(job, run.scheduled_at)
    freeze = ["frozen_all", "freeze_reason", "freeze_ended"]
    assert codes(answer) == ["missed", *freeze, "others_late"]
    Run.objects.filter(pk=run.pk).update(finished_at=due + timedelta(seconds=6))
    assert "frozen_all" not in codes(explain(job, run.scheduled_at)), "the wait was over"


def test_why_does_not_name_a_freeze_for_a_late_manual_run(clock: ManualClock) -> None:
    """A freeze doesn't hold back manual runs."""
    job, end = make_job(schedule="@never"), START + 2 * MINUTE
    times = {"started_at": end, "finished_at": end, "due_at": START, "claimed_at": START}
    make_run(job, "succeeded", trigger="manual", scheduled_at=START, **times)
    control.freeze("deploy", until=START + MINUTE)
    clock.advance(HOUR)
    assert "frozen_all" not in codes(explain_latest(job, clock.now()))


def test_why_says_that_a_returned_run_had_been_sent(clock: ManualClock) -> None:
    """A worker received the run, but a freeze began before the worker started it."""
    job, due = make_job(schedule="@never"), START + MINUTE
    clock.advance(MINUTE)
    run = make_run(job, "queued", scheduled_at=due, due_at=due, queued_at=due)
    clock.advance(MINUTE)
    control.freeze("deploy", by="ann")
    assert deliveries.hold(run)
    answer = explain(job, due)
    assert answer.verdict is WhyVerdict.PENDING
    assert codes(answer) == ["to_be_sent_again", "frozen_all", "freeze_reason", "after_freeze"]
    assert "12:01:00" in answer.sentences[0].params["sent"]

    control.unfreeze()
    Run.objects.filter(pk=run.pk).update(state="missed", finished_at=clock.now() + MINUTE)
    assert codes(explain(job, due))[:3] == ["missed", "sent", "frozen_all"]


def test_why_names_the_past_freeze_that_a_later_one_has_replaced(clock: ManualClock) -> None:
    job, due = make_job(schedule="@never", misfire_policy="skip"), START + 2 * MINUTE
    make_run(job, "missed", scheduled_at=due, due_at=due, finished_at=due + HOUR)
    control.freeze("older", by="cid")
    clock.advance(MINUTE)
    control.unfreeze()
    control.freeze("deploy", until=due + HOUR, by="ann")
    clock.advance(2 * MINUTE)
    # The same freeze gets another reason and end.
    control.freeze("rollback", replace=True, by="bob")
    clock.advance(MINUTE)
    control.unfreeze(by="ann")
    clock.advance(HOUR)
    control.freeze("incident", by="eve")
    answer = explain(job, due)
    named = {each.code: each.params for each in answer.sentences}
    assert codes(answer).count("frozen_all") == 1
    assert (named["frozen_all"]["by"], named["freeze_reason"]["reason"]) == ("bob", "rollback")
    assert "12:01:00" in named["frozen_all"]["since"]
    assert "12:04:00" in named["freeze_ended"]["until"]


def test_why_names_a_replaced_freeze_until_its_planned_end(clock: ManualClock) -> None:
    job = make_job(schedule="@never", misfire_policy="skip")
    during, after = START + MINUTE, START + 3 * MINUTE
    for due in (during, after):
        make_run(job, "missed", scheduled_at=due, due_at=due, finished_at=due + MINUTE)
    control.freeze("deploy", "default", until=START + 2 * MINUTE)
    clock.advance(HOUR)
    control.freeze("incident", "default", until=START + 2 * HOUR)
    clock.advance(2 * HOUR)
    named = {each.code: each.params for each in explain(job, during).sentences}
    assert named["freeze_reason"]["reason"] == "deploy"
    assert "12:02:00" in named["freeze_ended"]["until"]
    assert "freeze_reason" not in codes(explain(job, after))


def test_why_without_a_time_also_names_the_freeze_in_force(clock: ManualClock) -> None:
    job, due = make_job(schedule="0 * * * *"), START + HOUR
    job.created_at = START - HOUR  # it has the time of the wall clock
    clock.advance(HOUR - MINUTE)
    control.freeze("deploy", until=due + MINUTE)
    make_run(job, "missed", scheduled_at=due, due_at=due, finished_at=due + MINUTE)
    clock.advance(HOUR / 2)
    control.freeze("incident")
    answer = explain_latest(job, clock.now())
    reasons = [each.params["reason"] for each in answer.sentences if each.code == "freeze_reason"]
    assert reasons == ["deploy", "incident"]
