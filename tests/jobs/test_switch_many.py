"""``pause_many`` and ``resume_many`` do what one call for each job does, in few statements."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.db.models.signals import post_save, pre_save
from django.test.utils import CaptureQueriesContext
from hypothesis import example, given, settings
from hypothesis import strategies as st

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.exceptions import Conflict, InvalidValue, NotPossible
from django_dcron.jobs import pausing
from django_dcron.models import Calendar, Cursor, Job, Run, Statistics
from django_dcron.models.job_states import (
    AUTOMATIC_PAUSES,
    DECLARED_DISABLED,
    HANDOVER_REASONS,
    NO_LONGER_DECLARED,
)
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.policies.slots import Slot, backfill_number
from django_dcron.testing import set_clock
from tests.depth import examples
from tests.factories import make_idle_job, make_job, make_run
from tests.jobs.test_save_many import NOW, snapshot, undone
from tests.refusals import refusal

pytestmark = pytest.mark.django_db

FAR = NOW + timedelta(hours=1)
PAUSED: dict[str, Any] = {"enabled": False, "pause_reason": "deploy (ada)"}
KINDS: dict[str, dict[str, Any]] = {
    "every minute": {"schedule": "* * * * *"},
    "every minute late": {"schedule": "* * * * *", "misfire_policy": "run_all"},
    "late skip": {
        "schedule": "* * * * *",
        "misfire_policy": "skip",
        "misfire_grace": timedelta(seconds=1),
    },
    "interval": {"schedule": "@every 7m"},
    "hash": {"schedule": "H H * * *", "timezone": "Europe/Berlin"},
    "calendar": {"schedule": "0 12 * * *", "calendar_id": "holidays"},
    "follower": {"schedule": "@never", "after": {"every minute": "succeeded"}},
    "never": {"schedule": "@never"},
    "over": {"schedule": "@at 2020-01-01T00:00", "enabled": False},
    "over backfilled": {"schedule": "@at 2020-01-01T00:00", "enabled": False},
    "starts later": {"schedule": "0 0 1 1 *", "starts_at": FAR},
    "invalid": {"schedule": "0 0 1 1 *"},
    "quarantined": {"schedule": "0 0 1 1 *"},
    "without cursor": {"schedule": "0 0 1 1 *"},
    "paused": {"schedule": "* * * * *"} | PAUSED,
    "paused until later": {"schedule": "* * * * *", "paused_until": FAR} | PAUSED,
    "pause is over": {"schedule": "* * * * *"} | PAUSED,
    "pause is over interval": {"schedule": "@every 90s", "misfire_policy": "run_all"} | PAUSED,
    "claimed ahead": {"schedule": "0 0 1 1 *"},
    "queued": {"schedule": "0 0 1 1 *"},
    "deleted": {"schedule": "0 0 1 1 *"},
    "outdated": {"schedule": "0 0 1 1 *"},
}


def set_up() -> None:
    Calendar.objects.create(name="holidays", dates="05-04, 05-05")
    for name, fields in KINDS.items():
        make_job(name=name, **fields)
    over = NOW - timedelta(minutes=3, seconds=20)
    Job.objects.filter(name__startswith="pause is over").update(paused_until=over)
    late = Cursor.objects.filter(job__name__in=["every minute late", "late skip"])
    late.update(next_at=NOW - timedelta(minutes=4, seconds=30))
    Cursor.objects.filter(job__name="interval").update(previous_at=NOW - timedelta(minutes=6))
    Job.objects.filter(name="invalid").update(schedule="61 * * * *")
    Cursor.objects.filter(job__name="quarantined").update(problem="broken", next_at=None)
    Cursor.objects.filter(job__name="without cursor").delete()
    Statistics.objects.update(consecutive_failures=2)
    jobs = {job.name: job for job in Job.objects.all()}
    soon = {"scheduled_at": NOW + timedelta(seconds=9), "due_at": NOW, "claimed_at": NOW}
    make_run(jobs["claimed ahead"], **soon)
    make_run(jobs["queued"], "queued", queued_at=NOW, deliveries=1, **soon)
    at = NOW - timedelta(days=9)
    place = {"slot": Slot.BACKFILL, "slot_number": backfill_number(at)}
    backfilled = {"scheduled_at": at, "due_at": at, "claimed_at": at, **place}
    make_run(jobs["over backfilled"], "waiting", trigger=Trigger.BACKFILL, **backfilled)


def read(names: Sequence[str]) -> list[Job]:
    """Return an instance for each name. Then delete one job and change another."""
    jobs = [Job.objects.get(name=name) for name in names]
    Job.objects.filter(name="deleted").delete()
    Job.objects.filter(name="outdated").update(description="changed", version=2)
    return jobs


def states(jobs: Sequence[Job]) -> list[Any]:
    return [(job.version, job.enabled, job.pause_reason, job.paused_until) for job in jobs]


def one_by_one(action: Callable[[Job], object], jobs: Sequence[Job]) -> dict[int, Exception]:
    errors: dict[int, Exception] = {}
    for position, job in enumerate(jobs):
        try:
            action(job)
        except (Conflict, NotPossible) as error:
            errors[position] = error
    return errors


ACTIONS = {
    "pause": (
        lambda job: control.pause(job, "incident", FAR),
        lambda jobs: control.pause_many(jobs, "incident", FAR),
    ),
    "pause for good": (control.pause, control.pause_many),
    "resume": (control.resume, control.resume_many),
}


@settings(max_examples=examples(90))
@given(
    names=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=30),
    actions=st.lists(st.sampled_from(sorted(ACTIONS)), min_size=1, max_size=2),
    at_once=st.sampled_from((1, 3, 500)),
)
@example(names=[*sorted(KINDS), "interval"], actions=["pause", "resume"], at_once=500)
def test_results_equal_those_of_single_calls(
    names: list[str], actions: list[str], at_once: int
) -> None:
    found: list[Any] = []
    with undone(), set_clock(NOW), pytest.MonkeyPatch.context() as patch:
        patch.setattr(pausing, "SWITCHED_AT_ONCE", at_once)
        set_up()
        for many in (False, True):
            with undone():
                jobs = read(names)
                refused = [
                    ACTIONS[action][1](jobs) if many else one_by_one(ACTIONS[action][0], jobs)
                    for action in actions
                ]
                errors = [{at: (type(e), str(e)) for at, e in each.items()} for each in refused]
                found.append((errors, snapshot(), states(jobs)))
    assert found[1] == found[0]


def count_queries(action: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as queries:
        action()
    return len(queries)


@pytest.mark.parametrize("switch", [control.pause_many, control.resume_many])
def test_number_of_queries_does_not_grow_with_the_jobs_of_a_batch(
    switch: Callable[..., dict[int, Exception]],
) -> None:
    Calendar.objects.create(name="holidays", dates="12-25")
    counts = []
    for number in (3, 60):
        jobs = [make_idle_job(calendar_id="holidays") for _ in range(number)]
        jobs += [make_job(schedule="@at 2020-01-01T00:00", enabled=False) for _ in range(number)]
        if switch is control.resume_many:
            control.pause_many(jobs, "deploy")
        counts.append(count_queries(lambda jobs=jobs: switch(jobs)))  # type: ignore[misc]
    assert counts[0] == counts[1] < 20


def test_refused_job_does_not_stop_the_others() -> None:
    jobs = [
        make_idle_job(),
        make_idle_job(),
        make_job(schedule="@at 2020-01-01T00:00", enabled=False),
    ]
    Job.objects.filter(pk=jobs[1].pk).delete()
    refused = control.pause_many([*jobs[:2], make_idle_job()], "deploy")
    assert {at: getattr(error, "code", "") for at, error in refused.items()} == {1: "deleted"}
    assert Job.objects.filter(enabled=False).count() == 3
    refused = control.resume_many([jobs[2], jobs[0]])
    assert {at: getattr(error, "code", "") for at, error in refused.items()} == {
        0: "nothing_to_run"
    }
    assert Job.objects.get(pk=jobs[0].pk).enabled


def test_signals_are_sent_for_each_job_and_may_refuse_one(request: pytest.FixtureRequest) -> None:
    jobs = [make_idle_job(name=name) for name in ("a", "b", "c")]
    sent: list[Any] = []

    def before(instance: Job, update_fields: Any, **_: Any) -> None:
        if instance.name == "b":
            raise NotPossible("no", code="vetoed")
        instance.pause_reason += " (checked)"
        sent.append(("before", instance.name, "paused_until" in update_fields))

    def after(instance: Job, created: bool, **_: Any) -> None:
        sent.append(("after", instance.name, created))

    for signal, receiver in ((pre_save, before), (post_save, after)):
        signal.connect(receiver, sender=Job)
        request.addfinalizer(lambda s=signal, r=receiver: s.disconnect(r, sender=Job))
    refused = control.pause_many(jobs, "deploy")
    assert [*refused] == [1]
    assert getattr(refused[1], "code", "") == "vetoed"
    last = {each[1]: each for each in sent if each[0] == "after"}
    assert last == {"a": ("after", "a", False), "c": ("after", "c", False)}
    assert {each for each in sent if each[0] == "before"} == {
        ("before", "a", True),
        ("before", "c", True),
    }
    assert dict(Job.objects.values_list("name", "pause_reason")) == {
        "a": "deploy (checked)",
        "b": "",
        "c": "deploy (checked)",
    }


def test_interruption_leaves_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pausing, "SWITCHED_AT_ONCE", 2)
    jobs = [make_idle_job() for _ in range(7)]
    done: list[int] = []

    def interrupt(number: int) -> None:
        done.append(number)
        if number == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        control.pause_many(jobs, "deploy", on_progress=interrupt)
    assert done == [2, 4]
    switched = Job.objects.order_by("pk").values_list("enabled", "version", "cursor__enabled")
    assert [*switched] == [(False, 2, False)] * 4 + [(True, 1, True)] * 3


@pytest.mark.parametrize("reason", ["x" * 256, "a\0b"])
def test_reason_that_does_not_fit_is_refused_and_not_cut(reason: str) -> None:
    job = make_idle_job()
    for pause in (lambda: control.pause(job, reason), lambda: control.pause_many([job], reason)):
        with pytest.raises(InvalidValue, match=r"^reason: "):
            pause()
    assert Job.objects.get().enabled
    assert control.pause(job, "x" * 255).pause_reason == "x" * 255


def test_pause_that_does_not_replace_keeps_reason_and_end_of_an_earlier_one() -> None:
    paused, other = make_idle_job(), make_idle_job()
    control.pause(Job.objects.get(pk=paused.pk), "incident 17")
    refused = control.pause_many([paused, other], "deploy", replace=False)
    assert {at: getattr(error, "code", "") for at, error in refused.items()} == {0: "paused"}
    assert dict(Job.objects.values_list("pk", "pause_reason")) == {
        paused.pk: "incident 17",
        other.pk: "deploy",
    }


@pytest.mark.parametrize("reason", AUTOMATIC_PAUSES)
def test_pause_that_does_not_replace_replaces_an_automatic_pause(reason: str) -> None:
    job = make_idle_job()
    Job.objects.update(enabled=False, pause_reason=reason)
    assert control.pause_many([job], "deploy", replace=False) == {}
    assert Job.objects.get().pause_reason == "deploy"


@pytest.mark.parametrize("reason", HANDOVER_REASONS)
@pytest.mark.parametrize("hours", [None, 1])
def test_pause_of_many_jobs_does_not_end_the_wait_for_a_handover(
    reason: str, hours: int | None
) -> None:
    """Their resumption would start the job while the old scheduler still runs its work."""
    waiting = make_idle_job(import_source="redbeat")
    Job.objects.update(enabled=False, pause_reason=reason)
    until = None if hours is None else database_now("default") + timedelta(hours=hours)
    refused = control.pause_many([waiting], "deploy", until, replace=False)
    assert getattr(refused[0], "code", "") == "paused"
    job = Job.objects.get()
    assert (job.pause_reason, job.paused_until) == (reason, None)
    refused = control.pause_many([waiting], "deploy", until, replace=False, replace_wait=True)
    job.refresh_from_db()
    if until:  # the end of the pause would enable the job
        assert (getattr(refused[0], "code", ""), job.pause_reason) == ("awaits_handover", reason)
    else:
        assert (refused, job.pause_reason) == ({}, "deploy")


def test_pause_that_only_replaces_the_wait_for_a_handover_keeps_other_pauses() -> None:
    paused = control.pause(make_idle_job(import_source="redbeat"), "incident 17")
    refused = control.pause_many([paused], "deploy", replace=False, replace_wait=True)
    assert getattr(refused[0], "code", "") == "paused"
    assert Job.objects.get().pause_reason == "incident 17"


@pytest.mark.parametrize(
    ("reason", "replace", "code"),
    [
        *product((NO_LONGER_DECLARED, DECLARED_DISABLED), (True, False), ("disabled_by_sync",)),
        *product(HANDOVER_REASONS, (True,), ("awaits_handover",)),
    ],
)
def test_job_that_must_not_start_is_not_paused_with_an_end(
    reason: str, replace: bool, code: str
) -> None:
    """The end of the pause would enable the job."""
    disabled, other = make_idle_job(import_source="redbeat"), make_idle_job()
    Job.objects.filter(pk=disabled.pk).update(enabled=False, pause_reason=reason)
    until = database_now("default") + timedelta(seconds=1)
    with refusal(NotPossible, code):
        control.pause(disabled, "deploy", until)
    refused = control.pause_many([disabled, other], "deploy", until, replace=replace)
    assert {at: getattr(error, "code", "") for at, error in refused.items()} == {0: code}
    assert pausing.end_pauses(Job.objects.using("default")) == 1
    assert dict(Job.objects.values_list("pk", "enabled")) == {disabled.pk: False, other.pk: True}
    disabled.refresh_from_db()
    disabled.paused_until = until + timedelta(hours=1)
    for reason_of_person in (reason, "deploy"):
        disabled.pause_reason = reason_of_person
        with pytest.raises(ValidationError) as raised:
            control.save(disabled)
        assert [*raised.value.error_dict] == ["paused_until"]


def test_invalid_end_changes_nothing() -> None:
    job = make_idle_job()
    with refusal(InvalidValue, "in_the_past", field="until"):
        control.pause_many([job], until=datetime(2020, 1, 1, tzinfo=UTC))
    assert Job.objects.get().enabled


def test_pause_withdraws_claimed_runs_and_keeps_others() -> None:
    jobs = [make_idle_job() for _ in range(3)]
    ahead = database_now("default") + timedelta(seconds=9)
    for job in jobs:
        make_run(job, scheduled_at=ahead)
        make_run(job, "running")
    control.pause_many(jobs)
    assert set(Run.objects.values_list("state", flat=True)) == {State.RUNNING}
    assert Run.objects.count() == 3


def test_many_pauses_that_are_over_end_in_few_queries() -> None:
    Calendar.objects.create(name="holidays", dates="12-25")
    counts = []
    for number in (3, 30):
        jobs = [make_idle_job(calendar_id="holidays") for _ in range(number)]
        jobs += [make_job(schedule="@at 2020-01-01T00:00", enabled=False) for _ in range(number)]
        over = database_now("default") - timedelta(seconds=5)
        ids = [job.pk for job in jobs]
        Job.objects.filter(pk__in=ids).update(enabled=False, paused_until=over)
        counts.append(count_queries(lambda: pausing.end_pauses(Job.objects.using("default"))))
        ended = Job.objects.filter(pk__in=ids, paused_until=None)
        assert (ended.count(), ended.filter(enabled=True).count()) == (2 * number, number)
        assert Cursor.objects.filter(job__in=ids, next_at__isnull=False).count() == number
    assert counts[0] == counts[1] < 20
