"""Test the explanation of why a job ran or didn't run: verdicts and sentences."""

import copy
import pickle
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_dcron import control
from django_dcron.db import clock
from django_dcron.db.now import database_now
from django_dcron.diagnosis.long_runs import USUAL_DURATION_NEEDS
from django_dcron.diagnosis.scope import Scope
from django_dcron.diagnosis.why import cluster_sentences, latest, other_jobs
from django_dcron.diagnosis.why.explanation import Answer, explain, run_outcome
from django_dcron.diagnosis.why.explanation_data import OTHER_RUNS_READ_LIMIT, ExplanationData
from django_dcron.diagnosis.why.latest import explain_latest
from django_dcron.diagnosis.why.sentence import Sentence
from django_dcron.diagnosis.why.verdicts import WhyVerdict
from django_dcron.jobs import pausing
from django_dcron.jobs.audit.actor import Actor, acting
from django_dcron.jobs.definitions import definition_id
from django_dcron.models import (
    Attempt,
    AuditAction,
    AuditEntry,
    AuditKind,
    Cursor,
    Freeze,
    Incident,
    Job,
    Limit,
    Node,
    Run,
    Statistics,
    Via,
)
from django_dcron.models.job_states import EXHAUSTED, NO_LONGER_DECLARED
from django_dcron.policies.health.workers import IDLE_QUEUE_AFTER
from django_dcron.policies.jitter import jitter_delay
from django_dcron.policies.misfire import REPLACED_BY_NEWER_RUN
from django_dcron.targets.shadow import NOT_EXECUTED
from django_dcron.testing import set_clock
from django_dcron.utils.time_format import format_duration
from tests import factories
from tests.diagnosis.conftest import codes
from tests.factories import make_node

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)

ONE_RUN_HIDDEN = Scope(lambda model: Run.objects.exclude(pk=UUID(int=1)) if model is Run else None)
"""Readers who may not see all runs learn nothing about the runs of other jobs."""

pytestmark = pytest.mark.django_db


def make_job(**fields: Any) -> Job:
    """Create a job that is years old and whose definition never changed."""
    job = factories.make_job(**({"name": "report", "schedule": "0 * * * *"} | fields))
    factories.forget_entries()
    return set_placed_at(job, datetime(2023, 1, 1, tzinfo=UTC))


def set_placed_at(job: Job, at: datetime) -> Job:
    Job.objects.filter(pk=job.pk).update(created_at=datetime(2023, 1, 1, tzinfo=UTC))
    Cursor.objects.filter(pk=job.pk).update(placed_at=at)
    return Job.objects.get(pk=job.pk)


def make_run(job: Job, at: datetime = NOON, **fields: Any) -> Run:
    times = {"due_at": at, "claimed_at": at - 10 * timedelta(seconds=1)}
    return Run.objects.create(
        **{"job": job, "scheduled_at": at, "state": "succeeded"} | times | fields
    )


def run_times(at: datetime = NOON, *, seconds: float = 90) -> dict[str, Any]:
    started = at + timedelta(milliseconds=20)
    return {"started_at": started, "finished_at": started + timedelta(seconds=seconds)}


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize(("waited", "is_late"), [(5, False), (6, True)])
def test_late_start_of_a_job_with_a_limit_names_the_limit(
    waited: int, is_late: bool, limited: bool
) -> None:
    limit = Limit.objects.create(name="api", max_running=1) if limited else None
    job = make_job(limit=limit)
    started = NOON + timedelta(seconds=waited)
    make_run(job, started_at=started, finished_at=started)

    codes = [sentence.code for sentence in explain(job, NOON).sentences]

    assert ("may_wait_for_limit" in codes) == (is_late and limited)


def log_change(
    job: Job,
    at: datetime,
    *fields: tuple[str, Any, Any],
    by: str = "ada",
    action: AuditAction = AuditAction.CHANGE,
) -> None:
    """Record a change in the admin: the job's next version and the log entry."""
    change_without_entry(job)
    AuditEntry.objects.create(
        at=at,
        actor=by,
        via=Via.ADMIN,
        action=action,
        kind=AuditKind.JOB,
        object_id=str(job.pk),
        label=str(job),
        version=job.version,
        before={name: old for name, old, _new in fields},
        after={name: new for name, _old, new in fields},
    )


def change_without_entry(job: Job, times: int = 1) -> None:
    Job.objects.filter(pk=job.pk).update(version=F("version") + times)
    job.refresh_from_db()


def log_pause(
    job: Job, at: datetime, reason: str = "deploy", until: datetime | None = None
) -> None:
    end = [("paused_until", None, until.isoformat())] if until else []
    log_change(job, at, ("enabled", True, False), ("pause_reason", "", reason), *end)


def log_resume(job: Job, at: datetime, reason: str = "deploy", by: str = "bob") -> None:
    log_change(job, at, ("enabled", False, True), ("pause_reason", reason, ""), by=by)


def params(answer: Answer, code: str) -> dict[str, Any]:
    """Return the values of the only sentence with this code, which all are in its text."""
    (sentence,) = (sentence for sentence in answer.sentences if sentence.code == code)
    assert not re.search(r"%\(|\{", sentence)
    return sentence.params


# --- a run exists -------------------------------------------------------------------------------


def test_succeeded_run_is_explained() -> None:
    job = make_job()
    run = make_run(job, **run_times())

    answer = explain(job, NOON)

    assert (answer.verdict, answer.run, answer.occurrence) == (WhyVerdict.SUCCEEDED, run, NOON)
    assert (answer.before, answer.after) == (NOON - HOUR, NOON + HOUR)
    assert codes(answer) == ["succeeded"]
    assert params(answer, "succeeded") == {
        "started": "2024-05-06 12:00:00 UTC",
        "late": "20 ms",
        "took": "1m 30s",
    }
    for value in answer.sentences[0].params.values():
        assert value in answer.sentences[0]


@pytest.mark.parametrize("state", ["succeeded", "failed", "running"])
def test_backfilled_run_starts_after_its_release(state: str) -> None:
    """Its occurrence may be months before, so "due" would be wrong."""
    job = make_job()
    times = run_times() if state != "running" else {"started_at": NOON}
    make_run(job, **{"state": state, "trigger": "backfill", "attempt": 1} | times)
    (sentence,) = (each for each in explain(job, NOON).sentences if each.code == state)
    assert "after it was released" in str(sentence)


def test_run_that_was_sent_again_says_so() -> None:
    job = make_job()
    run = make_run(job, state="queued", queued_at=NOON, deliveries=1)
    assert "sent to a worker at" in explain(job, NOON).sentences[0]
    Run.objects.filter(pk=run.pk).update(deliveries=2)
    assert "sent to a worker again at" in explain(job, NOON).sentences[0]


ENDED = {"started": "2024-05-06 12:00:00 UTC", "late": "20 ms", "took": "1m 30s"}
STATES: list[tuple[dict[str, Any], WhyVerdict, str, dict[str, Any]]] = [
    (
        {"state": "failed", "reason": "ValueError: no", **run_times()},
        WhyVerdict.FAILED,
        "failed",
        ENDED,
    ),
    (
        {"state": "failed", "finished_at": NOON, "reason": "no route"},
        WhyVerdict.FAILED,
        "failed_before_start",
        {"ended": "2024-05-06 12:00:00 UTC"},
    ),
    (
        {"state": "cancelled", **run_times()},
        WhyVerdict.CANCELLED,
        "cancelled",
        {"started": "2024-05-06 12:00:00 UTC", "ended": "2024-05-06 12:01:30 UTC"},
    ),
    (
        {"state": "cancelled", "finished_at": NOON},
        WhyVerdict.CANCELLED,
        "cancelled_before_start",
        {"ended": "2024-05-06 12:00:00 UTC"},
    ),
    (
        {"state": "missed", "finished_at": NOON + HOUR},
        WhyVerdict.MISSED,
        "missed",
        {"ended": "2024-05-06 13:00:00 UTC"},
    ),
    (
        {"state": "running", "started_at": NOON},
        WhyVerdict.RUNNING,
        "running",
        {"started": "2024-05-06 12:00:00 UTC", "late": "0 ms"},
    ),
    (
        {"state": "running", "started_at": NOON, "cancel_requested_at": NOON},
        WhyVerdict.RUNNING,
        "cancel_requested",
        {"asked": "2024-05-06 12:00:00 UTC"},
    ),
    (
        {"state": "queued", "queued_at": NOON},
        WhyVerdict.QUEUED,
        "queued",
        {"queued": "2024-05-06 12:00:00 UTC"},
    ),
    ({"state": "waiting"}, WhyVerdict.WAITING, "waiting", {}),
    ({"state": "waiting", "trigger": "backfill"}, WhyVerdict.WAITING, "waiting_for_backfill", {}),
    (
        {"trigger": "backfill", **run_times()},
        WhyVerdict.SUCCEEDED,
        "backfilled",
        {"claimed": "2024-05-06 11:59:50 UTC"},
    ),
    (
        {"attempt": 3, **run_times()},
        WhyVerdict.SUCCEEDED,
        "succeeded_after_retries",
        {"attempt": 3, **ENDED},
    ),
    (
        {"state": "failed", "attempt": 2, "reason": "ValueError: no", **run_times()},
        WhyVerdict.FAILED,
        "failed_after_retries",
        {"attempt": 2, **ENDED},
    ),
    (
        {"state": "failed", "attempt": 2, **run_times(), "due_at": NOON + HOUR},
        WhyVerdict.FAILED,
        "failed_before_retry",
        {"attempt": 2, "ended": "2024-05-06 12:01:30 UTC"},
    ),
    (
        {"state": "cancelled", "attempt": 2, **run_times()},
        WhyVerdict.CANCELLED,
        "attempts",
        {"count": 2},
    ),
    (
        {"state": "running", "attempt": 2, "started_at": NOON},
        WhyVerdict.RUNNING,
        "retry_running",
        {"attempt": 2, "started": "2024-05-06 12:00:00 UTC", "late": "0 ms"},
    ),
    (
        {"claimed_at": NOON + HOUR, **run_times(NOON + HOUR)},
        WhyVerdict.SUCCEEDED,
        "claimed_late",
        {"claimed": "2024-05-06 13:00:00 UTC"},
    ),
    (
        {"missed_before": 2, "missed_from": NOON - 2 * HOUR, **run_times()},
        WhyVerdict.SUCCEEDED,
        "counts_missed",
        {"count": 2, "since": "2024-05-06 10:00:00 UTC"},
    ),
]


@pytest.mark.parametrize(("fields", "verdict", "code", "values"), STATES)
def test_run_is_explained_by_its_state(
    fields: dict[str, Any], verdict: WhyVerdict, code: str, values: dict[str, Any]
) -> None:
    job = make_job()
    run = make_run(job, **fields)

    answer = explain(job, NOON)

    assert (answer.verdict, answer.run) == (verdict, run)
    assert params(answer, code) == values
    assert ("reason" in codes(answer)) == ("reason" in fields)
    if reason := fields.get("reason"):
        assert params(answer, "reason") == {"reason": reason}


@pytest.mark.parametrize(
    ("timeout", "to_stop", "ignored"),
    [(20 * SECOND, 10 * SECOND, True), (20 * SECOND, DAY, False), (DAY, 10 * SECOND, False)],
)
def test_run_whose_code_has_not_stopped_after_its_timeout_says_so(
    settings: Any, timeout: timedelta, to_stop: timedelta, ignored: bool
) -> None:
    settings.DCRON_HARD_TIMEOUT_AFTER = to_stop
    job, now = make_job(timeout=timeout), database_now("default")
    make_executing_run(job, now - MINUTE, heartbeat_at=now)

    answer = explain(job, NOON)

    assert answer.verdict is WhyVerdict.RUNNING
    assert ("timeout_ignored" in codes(answer)) is ignored
    if ignored:
        assert params(answer, "timeout_ignored") == {"timeout": "20s"}


def make_executing_run(job: Job, started: datetime, **fields: Any) -> Run:
    """Create a running run of the job's current definition."""
    run = make_run(job, state="running", started_at=started, **fields)
    start = {"started_at": started, "definition_id": definition_id(job)}
    Attempt.objects.create(run=run, number=1, token=uuid4(), worker="w", **start)
    return run


@pytest.mark.parametrize(
    ("at_start", "since_then", "ignored"),
    [(4 * HOUR, 5 * MINUTE, False), (5 * MINUTE, 4 * HOUR, True), (5 * MINUTE, None, True)],
)
def test_run_keeps_the_timeout_with_which_it_started(
    at_start: timedelta, since_then: timedelta | None, ignored: bool
) -> None:
    job, now = make_job(timeout=at_start), database_now("default")
    make_executing_run(job, now - HOUR, heartbeat_at=now)
    job.timeout = since_then
    control.save(job)

    answer = explain(job, NOON)

    assert ("timeout_ignored" in codes(answer)) is ignored


def test_code_of_a_run_without_a_current_heartbeat_is_not_said_to_run() -> None:
    job, now = make_job(timeout=5 * MINUTE), database_now("default")
    make_executing_run(job, now - HOUR, heartbeat_at=now - HOUR)

    assert "timeout_ignored" not in codes(explain(job, NOON))


def test_backfilled_run_of_a_paused_job_waits_until_it_is_resumed() -> None:
    job = make_job()
    make_run(job, state="waiting", trigger="backfill")
    control.pause(job, "deploy")

    answer = explain(Job.objects.get(), NOON)

    assert answer.verdict is WhyVerdict.WAITING
    assert "waiting_for_resume" in codes(answer)


def test_skipped_run_names_unfinished_run() -> None:
    job = make_job()
    holder = make_run(job, NOON - HOUR, **run_times(NOON - HOUR))
    make_run(
        job,
        state="skipped",
        finished_at=NOON,
        reason=f"the run of 11:00 ({holder.pk}) was unfinished: running",
    )

    answer = explain(job, NOON)

    assert answer.verdict is WhyVerdict.SKIPPED
    assert codes(answer) == ["skipped", "reason"]
    assert params(answer, "skipped") == {"ended": "2024-05-06 12:00:00 UTC"}
    assert str(holder.pk) in answer.sentences[1]


@pytest.mark.parametrize("state", ["skipped", "waiting"])
def test_run_that_an_earlier_run_blocks_names_it_with_its_duration(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    monkeypatch.setattr(clock, "fixed_at", NOON + 5 * MINUTE)
    blocking = make_run(job, NOON - HOUR, state="running", started_at=NOON - MINUTE)
    make_run(job, state=state, finished_at=NOON if state == "skipped" else None)
    assert params(explain(job, NOON), "blocked_by") == {
        "run_at": "2024-05-06 11:00:00 UTC",
        "lasts": format_duration(6 * MINUTE),
        "run_id": str(blocking.pk),
    }
    Run.objects.filter(pk=blocking.pk).update(scheduled_at=NOON + HOUR)  # of a backlog
    assert params(explain(job, NOON), "blocked_by")["run_at"] == "2024-05-06 13:00:00 UTC"

    for hours, seconds in enumerate([40, *[9] * (USUAL_DURATION_NEEDS - 1)], start=2):
        make_run(job, NOON - hours * HOUR, **run_times(NOON - hours * HOUR, seconds=seconds))
    answer = explain(job, NOON)
    assert params(answer, "usual_durations") == {
        "median": format_duration(9 * SECOND),
        "longest": format_duration(40 * SECOND),
    }
    assert f"manage.py dcron cancel {blocking.pk}" in str(answer.sentences)
    Run.objects.filter(pk=blocking.pk).update(cancel_requested_at=NOON)
    found = codes(explain(job, NOON))
    assert ("blocked_by" in found, "how_to_cancel" in found) == (True, False)
    Run.objects.filter(pk=blocking.pk).update(state="succeeded", finished_at=NOON + MINUTE)
    assert "blocked_by" not in codes(explain(job, NOON))


def test_running_run_says_for_how_long_on_which_worker_and_how_to_cancel_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_job()
    monkeypatch.setattr(clock, "fixed_at", NOON + 5 * MINUTE)
    run = make_executing_run(job, NOON)
    for hours in range(1, 1 + USUAL_DURATION_NEEDS):
        make_run(job, NOON - hours * HOUR, **run_times(NOON - hours * HOUR, seconds=9))

    answer = explain(job, NOON)

    assert codes(answer) == ["running", "running_for", "usual_durations", "worker", "how_to_cancel"]
    assert params(answer, "running_for") == {"lasts": format_duration(5 * MINUTE)}
    assert params(answer, "worker") == {"worker": "w"}
    assert params(answer, "how_to_cancel") == {"run_id": str(run.pk)}
    assert "worker" not in codes(explain(job, NOON, show_nodes=False))
    Run.objects.filter(pk=run.pk).update(cancel_requested_at=NOON, heartbeat_at=NOON)
    answer = explain(job, NOON)
    assert "how_to_cancel" not in codes(answer)
    assert params(answer, "no_heartbeat") == {"since": "2024-05-06 12:00:00 UTC"}


def test_run_that_waits_for_a_limit_is_not_blocked_by_an_earlier_run() -> None:
    job = make_job(limit=Limit.objects.create(name="api", max_running=1))
    make_run(job, NOON - HOUR, state="running", started_at=NOON - MINUTE)
    make_run(job, state="waiting", limited=True)
    assert "blocked_by" not in codes(explain(job, NOON))


def test_pending_run_shows_due_time_with_jitter_or_retry() -> None:
    job = make_job(jitter=HOUR)
    tomorrow = (database_now("default") + DAY).replace(minute=0, second=0, microsecond=0)
    run = make_run(job, tomorrow, state="pending", due_at=tomorrow + 10 * MINUTE)

    due = {"due": f"{tomorrow + 10 * MINUTE:%Y-%m-%d %H:%M:%S} UTC"}
    assert params(explain(job, tomorrow), "due_with_jitter") == due
    Run.objects.filter(pk=run.pk).update(attempt=2, reason="ValueError: no")
    assert params(explain(job, tomorrow), "retry_due") == {"attempt": 2} | due
    Run.objects.filter(pk=run.pk).update(attempt=1, due_at=tomorrow, reason="")
    assert params(explain(job, tomorrow), "due") == {"due": f"{tomorrow:%Y-%m-%d %H:%M:%S} UTC"}


def test_overdue_run_mentions_missing_nodes() -> None:
    job = make_job()
    make_run(job, state="pending")

    answer = explain(job, NOON)

    assert answer.verdict is WhyVerdict.PENDING
    assert codes(answer) == ["overdue", "no_nodes"]
    assert params(answer, "overdue")["due"] == "2024-05-06 12:00:00 UTC"


def test_run_to_be_sent_again_names_the_time_of_the_last_delivery() -> None:
    job = make_job()
    make_run(job, state="pending", queued_at=NOON + MINUTE, deliveries=1)
    answer = explain(job, NOON)
    assert params(answer, "not_started") == {"queued": "2024-05-06 12:01:00 UTC"}


def test_unknown_state_refers_to_doctor() -> None:
    job = make_job()
    make_run(job, state="undead")

    answer = explain(job, NOON)

    assert answer.verdict is WhyVerdict.UNEXPLAINED
    assert codes(answer) == ["unknown_state", "ask_doctor"]
    assert "undead" in answer.sentences[0]


def test_missed_run_names_the_newer_run_that_replaces_it() -> None:
    job = make_job()
    reason = f"the run didn't start within 1m; {REPLACED_BY_NEWER_RUN}"
    make_run(job, state="missed", finished_at=NOON + HOUR, reason=reason)
    make_run(job, NOON + HOUR, state="missed", finished_at=NOON + HOUR, reason=reason)
    assert codes(explain(job, NOON)) == ["missed", "reason"]
    newer = make_run(job, NOON + 2 * HOUR)

    answer = explain(job, NOON)

    assert codes(answer) == ["missed", "reason", "replaced_by_newer"]
    assert params(answer, "replaced_by_newer") == {
        "run_at": "2024-05-06 14:00:00 UTC",
        "run_id": str(newer.pk),
    }


@pytest.mark.parametrize("counted", [False, True])
def test_missed_occurrence_is_compared_with_other_jobs(counted: bool) -> None:
    """An outage of workers concerns all jobs; a missed run of one job has another cause."""
    job, other = make_job(), make_job(name="other", schedule="* * * * *")
    if counted:
        make_run(job, NOON + HOUR, missed_before=1, missed_from=NOON)
    else:
        make_run(job, state="missed", finished_at=NOON + HOUR)
    code = "counted_by_later" if counted else "missed"
    for early in (NOON - MINUTE, NOON - timedelta(seconds=1)):
        make_run(other, early, **run_times(early))
    make_run(other, NOON + 2 * MINUTE, state="running", attempt=2, **run_times(NOON + 2 * MINUTE))
    make_run(other, NOON + 2 * HOUR, **run_times(NOON + 2 * HOUR))  # after the wait
    assert codes(explain(job, NOON)) == [code]

    make_run(other, NOON, state="missed")
    assert codes(explain(job, NOON)) == [code, "others_late"]
    make_run(other, NOON + MINUTE, **run_times(NOON + MINUTE + timedelta(seconds=6)))
    answer = explain(job, NOON)
    assert codes(answer) == [code, "others_late", "first_of_others"]
    assert params(answer, "others_late") == {"count": 2}
    assert params(answer, "first_of_others") == {"first": "2024-05-06 12:01:06 UTC"}

    make_run(make_job(name="third"), **run_times())
    assert codes(explain(job, NOON, scope=ONE_RUN_HIDDEN)) == [code]
    answer = explain(job, NOON)
    assert codes(answer) == [code, "others_on_time"]
    assert params(answer, "others_on_time") == {"on_time": 1, "count": 3}


@pytest.mark.parametrize(("waited", "is_late"), [(5, False), (6, True)])
def test_late_start_is_compared_with_other_jobs(waited: int, is_late: bool) -> None:
    job = make_job()
    run = make_run(job, **run_times(NOON + timedelta(seconds=waited) - timedelta(milliseconds=20)))
    make_run(make_job(name="other"), **run_times())

    assert codes(explain(job, NOON)) == ["succeeded", "others_on_time"][: 1 + is_late]
    Run.objects.filter(pk=run.pk).update(trigger="backfill")
    assert "others_on_time" not in codes(explain(job, NOON))


def test_runs_that_an_outage_did_not_delay_do_not_exonerate_it() -> None:
    """Of the runs of other jobs, only those count that had to wait as the late run did."""
    job, other = make_job(), make_job(name="other")
    end = NOON + timedelta(seconds=22)
    make_run(job, **run_times(end))
    for seconds in (-30, -10, 18, 21, 23, 40):  # before, at the end of and after the outage
        due = NOON + timedelta(seconds=seconds)
        make_run(other, due, **run_times(max(due, end) if seconds > 0 else due))
    assert codes(explain(job, NOON)) == ["succeeded"]

    for seconds in (1, 4, 11):
        make_run(other, NOON + timedelta(seconds=seconds), **run_times(end))
    answer = explain(job, NOON)
    assert params(answer, "others_late") == {"count": 3}


def test_comparison_with_other_jobs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_jobs, "MAX_RUNS", 2)
    job, other = make_job(), make_job(name="other")
    make_run(job, state="missed", finished_at=NOON + HOUR)
    for minutes in (1, 2):
        make_run(other, NOON + minutes * MINUTE, state="missed")
    assert codes(explain(job, NOON)) == ["missed", "others_late"]
    make_run(other, NOON + 3 * MINUTE, state="missed")
    answer = explain(job, NOON)
    assert params(answer, "others_late") == {"count": 2}
    assert params(answer, "others_limited") == {"count": 2}


@pytest.mark.parametrize("state", ["succeeded", "running", "missed"])
def test_late_run_says_when_it_was_sent(state: str) -> None:
    """The time shows whether a node or a worker was late."""
    job = make_job()
    times = run_times(NOON + MINUTE)
    if state == "missed":
        times = {"finished_at": NOON + MINUTE}
    sent = NOON + timedelta(seconds=2)
    run = make_run(job, state=state, queued_at=sent, deliveries=1, **times)
    assert params(explain(job, NOON), "sent") == {
        "sent": "2024-05-06 12:00:02 UTC",
        "late": "2.0 s",
    }
    Run.objects.filter(pk=run.pk).update(deliveries=2)
    assert "last sent" in str(explain(job, NOON).sentences)
    retry = {"attempt": 2, "due_at": NOON + timedelta(seconds=3), "deliveries": 0}
    Run.objects.filter(pk=run.pk).update(**retry)
    assert "sent" not in codes(explain(job, NOON)), "the time is of the attempt before"


def test_run_that_started_on_time_does_not_say_when_it_was_sent() -> None:
    job = make_job()
    make_run(job, queued_at=NOON, deliveries=1, **run_times())
    assert codes(explain(job, NOON)) == ["succeeded"]


def test_missed_occurrence_is_counted_by_later_run() -> None:
    job = make_job()
    later = make_run(
        job,
        NOON + 2 * HOUR,
        missed_before=4,
        missed_from=NOON - 2 * HOUR,
        claimed_at=NOON + 3 * HOUR,
    )
    make_run(job, NOON + 3 * HOUR, **run_times(NOON + 3 * HOUR))

    answer = explain(job, NOON)

    assert (answer.verdict, answer.run) == (WhyVerdict.COVERED, later)
    assert codes(answer) == ["counted_by_later", "claimed_late"]
    assert params(answer, "counted_by_later") == {"run_at": "2024-05-06 14:00:00 UTC", "count": 4}
    assert params(answer, "claimed_late") == {"claimed": "2024-05-06 15:00:00 UTC"}
    assert explain(job, NOON - 3 * HOUR).verdict is not WhyVerdict.COVERED


@pytest.mark.parametrize("instant", [NOON, NOON + 30 * MINUTE])
def test_missed_occurrence_of_earlier_definition_is_explained_by_change(instant: datetime) -> None:
    """The job was hourly when the occurrences were missed, and has another schedule now.

    The times of the missed occurrences can't be computed any more.
    """
    job = set_placed_at(make_job(schedule="30 * * * *"), NOON + DAY)
    later = make_run(job, NOON + 2 * HOUR, missed_before=4, missed_from=NOON - 2 * HOUR)

    answer = explain(job, instant)

    assert (answer.verdict, answer.run) == (WhyVerdict.CHANGED, later)
    assert codes(answer) == ["counted_by_changed_job", "changed"]
    counted = {"run_at": "2024-05-06 14:00:00 UTC", "since": "2024-05-06 10:00:00 UTC"}
    assert params(answer, "counted_by_changed_job") == {"count": 4} | counted
    assert params(answer, "changed") == {"placed": "2024-05-07 12:00:00 UTC"}
    assert explain(job, NOON - 3 * HOUR).run is None
    Run.objects.filter(pk=later.pk).update(missed_before=1)
    assert explain(job, instant).run is None  # the missed occurrence is 10:00
    answer = explain(job, NOON - 2 * HOUR)
    assert params(answer, "counted_by_changed_job") == {"count": 1} | counted


# --- interpretation of the requested time -------------------------------------------------------


def test_minute_finds_occurrence_within_it() -> None:
    job = make_job(schedule="30 0 * * * *")
    run = make_run(job, NOON.replace(second=30), **run_times())

    assert explain(job, NOON).run == run
    assert explain(job, NOON.replace(second=30, microsecond=7)).run == run
    assert explain(job, NOON.replace(second=29)).verdict is WhyVerdict.NO_OCCURRENCE


def test_minute_with_several_occurrences_explains_first_one() -> None:
    job = make_job(schedule="* * * * * *")
    run = make_run(job, **run_times())

    answer = explain(job, NOON)

    assert params(answer, "several") == {"count": 60, "first": "2024-05-06 12:00:00 UTC"}
    assert (answer.run, answer.after) == (run, NOON + timedelta(seconds=1))


def test_manual_runs_are_mentioned() -> None:
    job = make_job()
    by_hand = make_run(
        job, NOON + 5 * MINUTE + timedelta(seconds=3.7), trigger="manual", **run_times()
    )

    answer = explain(job, NOON + 5 * MINUTE)

    assert (answer.verdict, answer.run) == (WhyVerdict.NO_OCCURRENCE, by_hand)
    assert codes(answer)[-1] == "manual"
    assert params(answer, "manual") == {"count": 1, "runs": f"{by_hand.pk} (succeeded)"}


def test_rerun_of_a_manual_run_is_no_other_run() -> None:
    job, at = make_job(), NOON + 5 * MINUTE
    manual = make_run(job, at + 3.5 * SECOND, state="failed", trigger="manual")
    make_run(job, at + 3.6 * SECOND, trigger="backfill", rerun_of=manual, claimed_at=at + MINUTE)
    answer = explain(job, at)
    assert (answer.run, answer.other_runs) == (manual, (manual,))
    assert (codes(answer)[-2:], params(answer, "manual")["count"]) == (["manual", "rerun"], 1)

    other = make_run(job, at + 9.5 * SECOND, state="failed", trigger="manual")
    answer = explain(job, at)
    assert (answer.run, answer.other_runs) == (None, (manual, other))
    named = ", ".join(f"{run.pk} (failed)" for run in (manual, other))
    assert params(answer, "manual") == {"count": 2, "runs": named}
    assert answer.has_run_at_time


def test_run_of_a_shadow_executed_nothing_and_its_rerun_is_named() -> None:
    job = make_job(schedule="* * * * *")
    shadow = make_run(job, reason=NOT_EXECUTED, **run_times())
    times = {"claimed_at": NOON + 9 * SECOND, **run_times(NOON + 9 * SECOND)}
    rerun = make_run(job, NOON + 9.5 * SECOND, trigger="rerun", rerun_of=shadow, **times)

    answer = explain(job, NOON)

    assert (answer.verdict, answer.run, answer.is_unexecuted) == ("succeeded", shadow, True)
    assert codes(answer) == ["shadow_not_executed", "rerun"], "the rerun isn't counted as manual"
    named = params(answer, "rerun")
    assert (named["run_id"], named["state"]) == (str(rerun.pk), "succeeded")
    assert named["created"] == "2024-05-06 12:00:09 UTC"
    later = NOON + 90.5 * SECOND
    make_run(job, later, trigger="backfill", state="waiting", rerun_of=shadow, claimed_at=later)
    named = params(explain(job, NOON), "rerun")
    assert (named["count"], named["state"]) == (2, "waiting")


def test_latest_answer_about_a_shadow_says_so_first() -> None:
    job = make_job(schedule="0 0 1 1 *", target="shadow:tests.app.tasks.ok")
    assert codes(explain_latest(job, NOON))[0] == "shadow"
    Job.objects.filter(pk=job.pk).update(target="tests.app.tasks.ok")
    job.refresh_from_db()
    assert "shadow" not in codes(explain_latest(job, NOON))


def test_latest_answer_names_a_rerun_once() -> None:
    job = make_job(schedule="@never")
    failed = make_run(job, NOON - HOUR, state="failed", trigger="manual")
    rerun = make_run(job, NOON - MINUTE, state="failed", trigger="rerun", rerun_of=failed)
    answer = explain_latest(job, database_now("default"))
    assert {"rerun_later"} == {"manual_later", "rerun_later", "rerun"} & set(codes(answer))
    assert params(answer, "rerun_later")["run_id"] == str(rerun.pk)


def test_latest_answer_describes_the_rerun_of_the_explained_run() -> None:
    job = make_job()
    failed = make_run(job, state="failed", **run_times())
    ended = {"state": "failed", "trigger": "rerun", "rerun_of": failed}
    reruns = []
    for number in (1, 2):
        at = NOON + number * MINUTE + SECOND / 2
        reruns.append(make_run(job, at, claimed_at=at, **ended, **run_times(at)))
        answer = explain_latest(job, NOON + 10 * MINUTE)
        assert codes(answer) == ["failed", "rerun", "about_rerun", "failed"]
        named = params(answer, "rerun")
        assert (named["count"], named["run_id"]) == (number, str(reruns[-1].pk))
        assert answer.run == failed

    # It queued like a backfill, for the time of the original.
    at = NOON + 5 * MINUTE
    make_run(job, NOON + MINUTE / 4, claimed_at=at, **ended | {"trigger": "backfill"})
    answer = explain_latest(job, NOON + 10 * MINUTE)
    assert (codes(answer), params(answer, "rerun")["count"]) == (["failed", "rerun"], 3)


def test_outcome_of_a_rerun_follows_the_causes_of_the_original() -> None:
    job = make_job()
    control.freeze("deploy", until=database_now("default") + HOUR)
    Freeze.objects.update(since=NOON - MINUTE, until=NOON + MINUTE)
    missed = make_run(job, state="missed", reason="too late", finished_at=NOON + MINUTE)
    at = NOON + 2.5 * MINUTE
    make_run(job, at, claimed_at=at, trigger="rerun", rerun_of=missed, **run_times(at))

    answer = explain_latest(job, NOON + 10 * MINUTE)

    causes = ["missed", "reason", "frozen_all", "freeze_reason", "freeze_ended"]
    assert codes(answer) == [*causes, "rerun", "about_rerun", "succeeded"]


def test_rerun_counts_only_later_reruns() -> None:
    job = make_job(schedule="@never")
    failed = make_run(job, state="failed", trigger="manual")
    first, last = (
        make_run(job, at, state="failed", trigger="rerun", rerun_of=failed, claimed_at=at)
        for at in (NOON + MINUTE, NOON + 2 * MINUTE)
    )
    data = ExplanationData(job, NOON, show_nodes=True)

    def named(run: Run) -> list[tuple[int, str]]:
        found = [each for each in run_outcome(data, run).sentences if each.code == "rerun"]
        return [(each.params["count"], each.params["run_id"]) for each in found]

    assert named(failed) == [(2, str(last.pk))]
    assert named(first) == [(1, str(last.pk))]
    assert named(last) == []


def test_scheduled_run_is_found_after_many_manual_runs() -> None:
    job = make_job(schedule="30 0 * * * *")
    due = NOON + timedelta(seconds=30)
    run = make_run(job, due, **run_times(due))
    Run.objects.bulk_create(
        Run(
            job=job,
            scheduled_at=NOON + timedelta(milliseconds=number),
            due_at=NOON,
            claimed_at=NOON,
            trigger="chain" if number % 2 else "manual",
        )
        for number in range(1, OTHER_RUNS_READ_LIMIT + 1)
    )

    answer = explain(job, NOON)

    half = OTHER_RUNS_READ_LIMIT // 2
    assert (answer.verdict, answer.run) == (WhyVerdict.SUCCEEDED, run)
    assert codes(answer) == ["succeeded", "chained", "manual"]
    assert params(answer, "chained")["count"] == params(answer, "manual")["count"] == half
    assert params(answer, "manual")["runs"].endswith(", ...")
    make_run(job, NOON + timedelta(seconds=3.7), trigger="manual")
    answer = explain(job, NOON)
    assert answer.run == run
    assert codes(answer) == ["succeeded", "many_other_runs"]
    assert params(answer, "many_other_runs") == {"count": OTHER_RUNS_READ_LIMIT}


def test_interval_is_computed_from_its_phase() -> None:
    job = make_job(schedule="@every 7m")
    next_at = datetime(2099, 1, 1, 0, 3, 20, tzinfo=UTC)
    Cursor.objects.filter(pk=job.pk).update(next_at=next_at)
    occurrence = next_at - 1_000_000 * 7 * MINUTE
    make_run(job, occurrence, **run_times(occurrence))

    instant = occurrence.replace(second=0)

    assert explain(job, instant).occurrence == occurrence
    elsewhere = explain(job, instant + 3 * MINUTE)
    assert (elsewhere.before, elsewhere.after) == (occurrence, occurrence + 7 * MINUTE)


@pytest.mark.parametrize(
    "instant",
    [NOON.replace(tzinfo=None), datetime(1969, 1, 1, tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC)],
)
def test_naive_or_unsupported_time_is_refused(instant: datetime) -> None:
    with pytest.raises(ValueError, match=re.escape(instant.isoformat())):
        explain(make_job(), instant)


# --- clock changes ------------------------------------------------------------------------------


def test_skipped_local_time_is_moved_to_end_of_gap() -> None:
    job = make_job(schedule="30 2 * * *", timezone="Europe/Berlin")
    occurrence = datetime(2024, 3, 31, 1, tzinfo=UTC)
    run = make_run(job, occurrence, **run_times(occurrence))

    answer = explain(job, datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN))

    assert (answer.verdict, answer.run) == (WhyVerdict.SUCCEEDED, run)
    assert codes(answer) == ["skipped_time_moved", "succeeded"]
    assert params(answer, "skipped_time_moved") == {
        "time": "02:30",
        "day": "2024-03-31",
        "zone": "Europe/Berlin",
        "from": "02:00",
        "to": "03:00",
    }
    assert params(answer, "succeeded")["started"] == "2024-03-31 03:00:00 CEST (01:00:00 UTC)"


def test_run_at_end_of_gap_mentions_replaced_time() -> None:
    job = make_job(schedule="30 2 * * *", timezone="Europe/Berlin")
    occurrence = datetime(2024, 3, 31, 1, tzinfo=UTC)
    make_run(job, occurrence, **run_times(occurrence))

    answer = explain(job, occurrence)

    assert codes(answer)[0] == "replaces_skipped_time"
    note = params(answer, "replaces_skipped_time")
    assert (note["time"], note["zone"]) == ("02:30", "Europe/Berlin")
    make_run(job, occurrence + DAY - HOUR / 2, **run_times())
    assert "replaces_skipped_time" not in codes(explain(job, occurrence + DAY - HOUR / 2))


def test_run_scheduled_at_end_of_gap_has_no_note() -> None:
    job = make_job(schedule="0,30 2,3 * * *", timezone="Europe/Berlin")
    occurrence = datetime(2024, 3, 31, 1, tzinfo=UTC)
    make_run(job, occurrence, **run_times(occurrence))

    assert len(explain(job, occurrence).sentences) == 1


def test_wildcard_schedule_has_no_occurrence_in_gap() -> None:
    job = make_job(schedule="30 * * * *", timezone="Europe/Berlin")

    answer = explain(job, datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN))

    assert answer.verdict is WhyVerdict.NO_OCCURRENCE
    assert codes(answer)[0] == "skipped_time"
    assert params(answer, "skipped_time")["time"] == "02:30"
    assert answer.before == datetime(2024, 3, 31, 0, 30, tzinfo=UTC)
    assert answer.after == datetime(2024, 3, 31, 1, 30, tzinfo=UTC)


def test_scheduled_time_after_gap_does_not_explain_skipped_time() -> None:
    job = make_job(schedule="0 3 * * *", timezone="Europe/Berlin")

    answer = explain(job, datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN))

    assert answer.verdict is WhyVerdict.NO_OCCURRENCE
    assert answer.after == datetime(2024, 3, 31, 1, tzinfo=UTC)


def test_fixed_time_in_repeated_hour_runs_in_first_pass() -> None:
    job = make_job(schedule="30 2 * * *", timezone="Europe/Berlin")
    occurrence = datetime(2024, 10, 27, 0, 30, tzinfo=UTC)
    run = make_run(job, occurrence, **run_times(occurrence))

    first, second = (
        explain(job, datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=fold)) for fold in (0, 1)
    )

    assert (first.run, second.run) == (run, None)
    assert second.verdict is WhyVerdict.NO_OCCURRENCE
    for answer in (first, second):
        assert codes(answer)[0] == "repeated_time_runs_once"
        note = params(answer, "repeated_time_runs_once")
        assert (note["time"], note["day"], note["zone"]) == ("02:30", "2024-10-27", "Europe/Berlin")
        assert note["first"] == "2024-10-27 02:30:00 CEST"
        assert note["second"] == "2024-10-27 02:30:00 CET"


def test_wildcard_schedule_runs_in_both_passes_of_repeated_hour() -> None:
    job = make_job(schedule="30 * * * *", timezone="Europe/Berlin")
    runs = [
        make_run(job, datetime(2024, 10, 27, hour, 30, tzinfo=UTC), **run_times())
        for hour in (0, 1)
    ]

    answers = [
        explain(job, datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=fold)) for fold in (0, 1)
    ]

    assert [answer.run for answer in answers] == runs
    for answer, meant in zip(answers, ("CEST", "CET"), strict=True):
        note = params(answer, "repeated_time_runs_twice")
        assert note["meant"] == f"2024-10-27 02:30:00 {meant}"
        assert note["meant"] in answer.sentences[0]


def test_repeated_time_without_occurrence_names_both_passes() -> None:
    job = make_job(schedule="30 * * * *", timezone="Europe/Berlin")

    answer = explain(job, datetime(2024, 10, 27, 2, 10, tzinfo=BERLIN))

    assert answer.verdict is WhyVerdict.NO_OCCURRENCE
    note = params(answer, "repeated_time")
    assert (note["second"], note["meant"]) == (
        "2024-10-27 02:10:00 CET",
        "2024-10-27 02:10:00 CEST",
    )


def test_day_without_clock_change_has_no_note() -> None:
    job = make_job(schedule="30 2 * * *", timezone="Europe/Berlin")
    make_run(job, datetime(2024, 5, 6, 0, 30, tzinfo=UTC), **run_times())

    assert len(explain(job, datetime(2024, 5, 6, 2, 30, tzinfo=BERLIN)).sentences) == 1


# --- no occurrence at that time -----------------------------------------------------------------


def test_time_without_occurrence_names_nearest_ones() -> None:
    job = make_job()

    answer = explain(job, NOON + 10 * MINUTE)

    assert (answer.verdict, answer.run, answer.occurrence) == (WhyVerdict.NO_OCCURRENCE, None, None)
    assert (answer.before, answer.after) == (NOON, NOON + HOUR)
    assert codes(answer) == ["no_match", "nearest"]
    assert params(answer, "no_match") == {"schedule": "0 * * * *"}
    nearest = {"before": "2024-05-06 12:00:00 UTC", "after": "2024-05-06 13:00:00 UTC"}
    assert params(answer, "nearest") == nearest


def test_time_before_start_or_after_end_is_explained() -> None:
    job = make_job(starts_at=NOON, ends_at=datetime(2099, 1, 1, tzinfo=UTC))

    early, late = explain(job, NOON - HOUR), explain(job, datetime(2100, 1, 1, tzinfo=UTC))

    assert early.verdict is WhyVerdict.BEFORE_START
    assert params(early, "starts_at") == {"at": "2024-05-06 12:00:00 UTC"}
    assert (early.before, early.after) == (None, NOON)
    assert late.verdict is WhyVerdict.AFTER_END
    assert params(late, "ends_at") == {"at": "2099-01-01 00:00:00 UTC"}
    assert (late.before, late.after) == (datetime(2099, 1, 1, tzinfo=UTC), None)


def test_invalid_schedule_is_explained_as_quarantined() -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).update(schedule="99 * * * *")

    answer = explain(Job.objects.get(pk=job.pk), NOON)

    assert (answer.verdict, answer.zone) == (WhyVerdict.QUARANTINED, "UTC")
    assert codes(answer) == ["quarantined"]
    assert "99" in params(answer, "quarantined")["problem"]


# --- a future occurrence ------------------------------------------------------------------------


@pytest.fixture
def tomorrow(db: None) -> datetime:
    return (database_now("default") + DAY).replace(minute=0, second=0, microsecond=0)


def test_future_occurrence_shows_due_time(tomorrow: datetime) -> None:
    job = make_job()
    make_node()

    answer = explain(job, tomorrow)

    assert answer.verdict is WhyVerdict.NOT_DUE
    assert codes(answer) == ["to_come_due"]
    assert params(answer, "to_come_due") == {"due": f"{tomorrow:%Y-%m-%d %H:%M:%S} UTC"}


def test_future_occurrence_mentions_jitter_and_missing_nodes(tomorrow: datetime) -> None:
    job = make_job(jitter=30 * MINUTE)
    make_node(age=HOUR)

    answer = explain(job, tomorrow)

    due = tomorrow + jitter_delay(job.pk, tomorrow, job.jitter)
    assert codes(answer) == ["to_come_due_with_jitter", "no_live_node"]
    assert params(answer, "to_come_due_with_jitter") == {"due": f"{due:%Y-%m-%d %H:%M:%S} UTC"}
    assert params(answer, "no_live_node")["node"] == "node-a"


def test_nodes_of_other_namespace_are_ignored(tomorrow: datetime) -> None:
    make_node(namespace="shop")

    assert codes(explain(make_job(), tomorrow))[-1] == "no_nodes"


def test_future_occurrence_of_paused_job_names_pause(tomorrow: datetime) -> None:
    job = make_job()
    make_node()
    control.pause(job, "deploy")

    answer = explain(job, tomorrow)

    assert answer.verdict is WhyVerdict.PAUSED
    assert codes(answer) == ["to_come_paused", "paused_by", "reason"]
    assert params(answer, "reason") == {"reason": "deploy"}


def test_time_without_occurrence_names_pause_in_effect() -> None:
    job = make_job(schedule="0 0 1 1 *")
    assert "paused" not in codes(explain(job, database_now("default")))
    control.pause(job, "deploy")
    now = database_now("default").replace(microsecond=1)

    answer = explain(job, now)

    assert answer.verdict is WhyVerdict.NO_OCCURRENCE
    assert codes(answer)[:3] == ["paused", "paused_by", "reason"]
    assert params(answer, "reason") == {"reason": "deploy"}
    assert "paused" not in codes(explain(job, now - HOUR)), "before the pause"

    until = now + HOUR
    control.pause(job, "deploy", until)
    assert codes(explain(job, now + MINUTE))[:2] == ["paused_until", "paused_by"]
    assert "paused_until" not in codes(explain(job, until + MINUTE)), "after its end"


def test_pause_of_a_job_that_is_no_longer_declared_mentions_a_rename() -> None:
    job = make_job(schedule="0 0 1 1 *")
    control.pause(job, "deploy")
    now = database_now("default")
    assert "may_be_renamed" not in codes(explain(job, now))
    control.pause(job, NO_LONGER_DECLARED)
    assert codes(explain(job, now))[:3] == ["paused", "reason", "may_be_renamed"]


def test_answer_without_a_time_names_user_who_paused() -> None:
    """A job that is disabled in the job form has no entry of the action "pause"."""
    job, now = set_placed_at(make_job(enabled=False), NOON), NOON + DAY + MINUTE
    assert codes(explain_latest(job, now)) == ["paused"], "no entry"
    log_change(job, NOON, ("enabled", True, False), by="carol")

    answer = explain_latest(job, now)

    assert codes(answer) == ["paused", "paused_by"]
    assert params(answer, "paused_by") == {"by": "carol", "at": "2024-05-06 12:00:00 UTC"}
    log_change(job, NOON + MINUTE, ("enabled", False, True), by="dan")
    assert codes(explain_latest(job, now)) == ["paused"], "paused without an entry since"


def test_occurrence_after_end_of_pause_is_not_paused(tomorrow: datetime) -> None:
    job = make_job()
    make_node()
    control.pause(job, "deploy")
    Job.objects.filter(pk=job.pk).update(paused_until=tomorrow)
    job.refresh_from_db()

    assert explain(job, tomorrow - HOUR).verdict is WhyVerdict.PAUSED
    answer = explain(job, tomorrow)
    assert answer.verdict is WhyVerdict.NOT_DUE
    assert params(answer, "paused_until") == {"until": f"{tomorrow:%Y-%m-%d %H:%M:%S} UTC"}


def test_future_occurrence_of_quarantined_job_names_problem(tomorrow: datetime) -> None:
    job = make_job()
    Cursor.objects.filter(pk=job.pk).update(problem="the zone is gone")

    answer = explain(job, tomorrow)

    assert answer.verdict is WhyVerdict.QUARANTINED
    assert codes(answer) == ["not_due", "quarantined"]
    assert "the zone is gone" in answer.sentences[1]


# --- a past occurrence without a run ------------------------------------------------------------


def test_time_before_creation_of_job_is_explained() -> None:
    job = make_job()
    before = job.created_at - DAY

    answer = explain(job, before)

    assert answer.verdict is WhyVerdict.NOT_CREATED
    created = {"at": "2023-01-01 00:00:00 UTC"}
    assert params(answer, "created") == created
    log_change(job, job.created_at, action=AuditAction.CREATE)
    assert params(explain(job, before), "created_by") == created | {"by": "ada"}
    assert explain(job, before + 10 * MINUTE).verdict is WhyVerdict.NOT_CREATED


def test_past_pause_names_users_who_paused_and_resumed() -> None:
    job = set_placed_at(make_job(), NOON + DAY)
    log_pause(job, NOON - DAY)
    log_resume(job, NOON + DAY)

    answer = explain(job, NOON)

    assert answer.verdict is WhyVerdict.PAUSED
    assert codes(answer) == ["was_paused_by", "reason", "resumed_by"]
    assert params(answer, "was_paused_by") == {"by": "ada", "at": "2024-05-05 12:00:00 UTC"}
    assert params(answer, "reason") == {"reason": "deploy"}
    assert params(answer, "resumed_by") == {"by": "bob", "at": "2024-05-07 12:00:00 UTC"}


def test_past_pause_outside_admin_names_user_who_resumed() -> None:
    job = set_placed_at(make_job(), NOON + DAY)
    log_resume(job, NOON + DAY, "paused automatically after 3 consecutive failed runs")

    answer = explain(job, NOON)

    assert answer.verdict is WhyVerdict.PAUSED
    assert codes(answer) == ["was_paused_until", "reason"]
    assert params(answer, "was_paused_until") == {"by": "bob", "at": "2024-05-07 12:00:00 UTC"}
    assert params(answer, "reason") == {
        "reason": "paused automatically after 3 consecutive failed runs"
    }


def test_current_pause_is_explained() -> None:
    job = make_job()
    control.pause(job, "deploy")
    factories.forget_entries()
    job = set_placed_at(job, NOON - DAY)

    answer = explain(job, NOON)
    assert answer.verdict is WhyVerdict.PAUSED
    assert codes(answer) == ["paused_since_then", "reason"]
    assert params(answer, "reason") == {"reason": "deploy"}

    log_pause(job, NOON - DAY)
    assert codes(explain(job, NOON))[-1] == "still_paused"


def test_pause_before_last_placement_is_no_explanation() -> None:
    """The job was resumed without the admin, which only the cursor shows."""
    job = set_placed_at(make_job(), NOON - HOUR)
    log_pause(job, NOON - DAY)

    assert explain(job, NOON).verdict is WhyVerdict.UNEXPLAINED


def test_expired_pause_is_no_explanation_after_its_end() -> None:
    job = set_placed_at(make_job(), NOON + DAY)
    log_pause(job, NOON - DAY, until=NOON)
    change_without_entry(job)  # the scheduler resumed it

    assert explain(job, NOON - HOUR).verdict is WhyVerdict.PAUSED
    assert explain(job, NOON).verdict is WhyVerdict.CHANGED


@pytest.mark.parametrize("unseen", [1, 2])
def test_pause_with_unlogged_changes_since_is_no_explanation(unseen: int) -> None:
    """Code resumed and paused the job again, so nothing is certain before the second pause."""
    job = make_job()
    control.pause(job, "deploy")
    factories.forget_entries()
    log_pause(job, NOON - DAY)
    change_without_entry(job, unseen)
    job = set_placed_at(job, NOON + DAY)

    answer = explain(job, NOON)

    assert ("was_paused_by" in codes(answer)) == (unseen == 1)
    assert (answer.verdict is WhyVerdict.CHANGED) == (unseen == 2)


@pytest.mark.parametrize(("unseen", "certain"), [(0, True), (1, True), (2, False)])
def test_resume_after_unlogged_changes_may_end_other_pause(unseen: int, certain: bool) -> None:
    job = set_placed_at(make_job(), NOON + DAY)
    log_pause(job, NOON - DAY)
    change_without_entry(job, unseen)
    log_resume(job, NOON + DAY)

    found = codes(explain(job, NOON))

    assert ("was_paused_by" in found) == certain
    assert ("was_paused_until" in found) == (not certain)


def test_pause_ended_by_code_is_no_explanation() -> None:
    job = set_placed_at(make_job(), NOON + 2 * DAY)
    log_pause(job, NOON - DAY)
    change_without_entry(job)
    log_pause(job, NOON + DAY)
    log_resume(job, NOON + 2 * DAY)

    assert explain(job, NOON).verdict is WhyVerdict.CHANGED


def test_pause_ended_by_code_before_edit_is_no_explanation() -> None:
    job = set_placed_at(make_job(), NOON + DAY)
    log_pause(job, NOON - DAY)
    change_without_entry(job)
    log_change(job, NOON + DAY, ("schedule", "5 * * * *", "0 * * * *"))

    assert explain(job, NOON).verdict is WhyVerdict.CHANGED


def test_pause_with_later_unlogged_changes_is_not_called_current() -> None:
    job = make_job()
    control.pause(job, "deploy")
    factories.forget_entries()
    log_pause(job, NOON - DAY)
    log_change(job, NOON + HOUR, ("description", "", "Hourly"))
    change_without_entry(job, 2)
    job = set_placed_at(job, NOON + DAY)

    assert codes(explain(job, NOON)) == ["was_paused_by", "reason"]


def test_exhausted_job_is_not_explained_as_paused() -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).update(enabled=False, pause_reason=EXHAUSTED)
    Cursor.objects.filter(pk=job.pk).update(enabled=False, next_at=None, previous_at=NOON)

    assert explain(Job.objects.get(pk=job.pk), NOON).verdict is WhyVerdict.UNEXPLAINED


def test_later_changes_of_definition_are_listed() -> None:
    job = set_placed_at(make_job(), NOON + DAY)
    log_change(job, NOON - DAY, ("schedule", "* * * * *", "5 * * * *"))
    log_change(
        job, NOON + DAY, ("schedule", "5 * * * *", "0 * * * *"), ("description", "", "Hourly")
    )

    answer = explain(job, NOON)

    assert answer.verdict is WhyVerdict.CHANGED
    at = "2024-05-07 12:00:00 UTC"
    assert codes(answer) == ["changed", "field_changed", "field_changed"]
    assert params(answer, "changed") == {"placed": at}
    changes = {str(sentence.params["field"]): sentence.params for sentence in answer.sentences[1:]}
    schedule, description = changes["schedule"], changes["description"]
    assert schedule == {
        "by": "ada",
        "at": at,
        "field": Job._meta.get_field("schedule").verbose_name,
        "old": "“5 * * * *”",
        "new": "“0 * * * *”",
    }
    assert (description["field"], description["new"]) == ("description", "“Hourly”")
    elsewhere = explain(job, NOON + 5 * MINUTE)
    assert (elsewhere.verdict, elsewhere.sentences[2:]) == (
        WhyVerdict.NO_OCCURRENCE,
        answer.sentences,
    )


def test_later_changes_of_times_and_lists_are_readable() -> None:
    job = set_placed_at(make_job(timezone="Asia/Tokyo"), NOON + DAY)
    pause = ("paused_until", None, "2024-05-07T12:00:00Z")
    log_change(job, NOON + DAY, ("args", [], ["a", None]), pause)

    listed = explain(job, NOON).sentences[1:]

    texts = [(each.params["old"], each.params["new"]) for each in listed]
    assert texts == [("“[]”", '“["a", null]”'), ("empty", "2024-05-07 12:00:00 UTC")]


def test_run_of_earlier_definition_is_found() -> None:
    job = set_placed_at(make_job(), NOON + DAY)
    at = NOON + timedelta(seconds=30)
    run = make_run(job, at, **run_times())

    assert explain(job, NOON).run == run


def test_pauses_by_commands_code_and_nodes_are_known() -> None:
    job, by_code = make_job(), make_job(name="by code")
    by_node = make_job(name="by node", pause_after_failures=1)
    with acting(lambda: Actor("ada", "web-1", Via.CLI)):
        control.pause(job, "deploy")
    control.pause(by_code, "deploy")
    Statistics.objects.filter(pk=by_node.pk).update(consecutive_failures=1)
    pausing.pause_failing_jobs(Job.objects.filter(pk=by_node.pk))
    entries = AuditEntry.objects.all()
    authors = []
    for each in (job, by_code, by_node):
        (entry,) = entries.filter(object_id=str(each.pk), action="pause")
        entry_id = entry.pk
        # As if the pause had begun before the time in question.
        entry.pk, entry.at, entry._state.adding = None, NOON - DAY, True
        entries.delete_for_retention([entry_id])
        entry.save()
        answer = explain(set_placed_at(each, NOON - DAY), NOON)
        assert answer.verdict is WhyVerdict.PAUSED
        authors.append((entry.via, params(answer, "was_paused_by")["by"]))
    assert [via for via, _by in authors] == [Via.CLI, Via.CODE, Via.SCHEDULER]
    assert "ada" in authors[0][1]
    assert len({by for _via, by in authors}) == 3


def test_change_not_processed_by_node_is_explained() -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).update(schedule="0 12 * * *")

    answer = explain(Job.objects.get(pk=job.pk), NOON)

    assert answer.verdict is WhyVerdict.NOT_CLAIMED
    assert codes(answer)[0] == "change_not_processed"
    Cursor.objects.all().delete()
    assert explain(Job.objects.get(pk=job.pk), NOON).verdict is WhyVerdict.NOT_CLAIMED


def test_occurrence_after_quarantine_is_explained_as_quarantined() -> None:
    job = make_job()
    Cursor.objects.filter(pk=job.pk).update(problem="the zone is gone", next_at=NOON)

    assert explain(job, NOON).verdict is WhyVerdict.QUARANTINED
    assert explain(job, NOON - HOUR).verdict is WhyVerdict.UNEXPLAINED


@pytest.mark.parametrize(
    ("fields", "runs"),
    [
        ({"misfire_policy": "run_latest"}, True),
        ({"misfire_policy": "run_latest", "schedule": "0 * * * *"}, False),
        ({"misfire_policy": "run_latest", "start_deadline": HOUR}, False),
        ({"misfire_policy": "skip"}, False),
    ],
)
def test_unclaimed_occurrence_says_what_the_misfire_policy_does(
    fields: dict[str, Any], runs: bool
) -> None:
    with set_clock(NOON - DAY):
        job = make_job(**{"schedule": "@at 2024-05-06T12:00"} | fields)
    Cursor.objects.filter(pk=job.pk).update(next_at=NOON)

    answer = explain(job, NOON)

    assert answer.verdict is WhyVerdict.NOT_CLAIMED
    assert params(answer, "after_claim")["policy"] == fields["misfire_policy"]
    assert ("runs_after_claim" in codes(answer)) is runs


def test_unclaimed_occurrence_mentions_nodes() -> None:
    job = make_job()
    Cursor.objects.filter(pk=job.pk).update(next_at=NOON - HOUR)
    make_node(age=HOUR)

    answer = explain(job, NOON)

    assert answer.verdict is WhyVerdict.NOT_CLAIMED
    assert codes(answer) == ["not_claimed", "after_claim", "no_live_node"]
    assert params(answer, "not_claimed") == {"next": "2024-05-06 11:00:00 UTC"}
    Node.objects.update(heartbeat_at=database_now("default"))
    assert params(explain(job, NOON), "live_nodes") == {"count": 1}
    Node.objects.update(shards=0)  # nodes of another database have the locks
    assert params(explain(job, NOON), "no_leader") == {"count": 1}
    Node.objects.update(started_at=database_now("default"))  # it acquires its locks
    assert params(explain(job, NOON), "live_nodes") == {"count": 1}
    Node.objects.update(started_at=F("heartbeat_at") - HOUR, degraded=True)
    assert params(explain(job, NOON), "live_nodes") == {"count": 1}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"target": "tests.app.tasks.renamed"}, "unknown_target"),
        ({"kwargs": {"unknown": 1}}, "arguments_rejected"),
    ],
)
def test_coming_runs_that_must_fail_are_named(
    tomorrow: datetime, fields: dict[str, Any], code: str
) -> None:
    job = make_job()
    now = database_now("default")
    assert not {code} & {*codes(explain(job, tomorrow)), *codes(explain_latest(job, now))}
    Job.objects.filter(pk=job.pk).update(**fields)
    job = Job.objects.get(pk=job.pk)
    assert codes(explain(job, tomorrow))[-1] == code
    assert codes(explain_latest(job, now))[-1] == code
    assert code not in codes(explain(job, NOON)), "that time is in the past"


def test_nodes_are_mentioned_only_with_permission(tomorrow: datetime) -> None:
    job = make_job()
    Cursor.objects.filter(pk=job.pk).update(next_at=NOON)
    make_run(job, NOON + HOUR, state="pending")
    make_node(age=HOUR)

    for at in (tomorrow, NOON, NOON + HOUR):
        shown = explain(job, at).sentences
        assert (shown[-1].code, shown[-1].params["node"]) == ("no_live_node", "node-a")
        assert explain(job, at, show_nodes=False).sentences == shown[:-1]


def test_pruned_occurrence_is_explained() -> None:
    job = make_job()
    make_run(job, NOON + HOUR, **run_times(NOON + HOUR))
    Statistics.objects.filter(pk=job.pk).update(succeeded=7)

    answer = explain(job, NOON)

    assert answer.verdict is WhyVerdict.PRUNED
    assert params(answer, "pruned") == {"kept": "2024-05-06 13:00:00 UTC"}
    assert explain(job, NOON + 2 * HOUR).verdict is WhyVerdict.UNEXPLAINED


def test_unexplained_occurrence_refers_to_doctor() -> None:
    job = make_job()
    make_run(job, NOON - HOUR, **run_times(NOON - HOUR))
    make_run(job, NOON + HOUR, **run_times(NOON + HOUR))
    Statistics.objects.filter(pk=job.pk).update(succeeded=2)

    answer = explain(job, NOON)

    assert (answer.verdict, answer.run) == (WhyVerdict.UNEXPLAINED, None)
    assert codes(answer) == ["unexplained", "ask_doctor"]


# --- cost ---------------------------------------------------------------------------------------


def test_number_of_queries_is_constant() -> None:
    job = make_job(schedule="* * * * *")
    ContentType.objects.get_for_model(Job)
    for minute in range(60):
        at = NOON + minute * MINUTE
        make_run(job, at, **run_times(at, seconds=1))

    with CaptureQueriesContext(connection) as of_a_run:
        explain(job, NOON)
    with CaptureQueriesContext(connection) as of_none:
        explain(job, NOON - MINUTE)

    assert len(of_a_run) == 5  # the clock, the cursor, the runs of occurrences, other runs, reruns
    assert len(of_none) <= 10


def test_sentence_can_be_copied_and_pickled() -> None:
    sentence = Sentence("late", "%(seconds)d s late, 100 %%", seconds=3)
    for same in (copy.deepcopy(sentence), pickle.loads(pickle.dumps(sentence))):  # noqa: S301 (our own)
        assert (same, same.code, same.params) == ("3 s late, 100 %", "late", {"seconds": 3})
    assert Sentence("plain", "100 % of all runs") == "100 % of all runs"


@pytest.mark.parametrize("seconds", [1, 7])
def test_latest_occurrence_is_one_second_of_its_minute(seconds: int) -> None:
    job = make_job(schedule="*/2 * * * * *")
    latest = NOON + timedelta(seconds=seconds - 1)
    run = make_run(job, latest, **run_times(latest))
    answer = explain_latest(job, NOON + timedelta(seconds=seconds))
    assert (answer.instant, answer.occurrence, answer.run) == (latest, latest, run)
    assert "several" not in [sentence.code for sentence in answer.sentences]
    assert "several" in [sentence.code for sentence in explain(job, NOON).sentences]


def test_latest_occurrence_of_a_new_job_is_from_before_the_schedule_changed() -> None:
    job = make_job(schedule="4-59/20 * * * *")
    Job.objects.filter(pk=job.pk).update(created_at=NOON - 10 * MINUTE)
    Cursor.objects.filter(pk=job.pk).update(placed_at=NOON, next_at=NOON + 4 * MINUTE)
    job = Job.objects.get(pk=job.pk)

    assert codes(explain_latest(job, NOON + MINUTE))[0] == "no_occurrence_yet"

    run = make_run(job, NOON - 3 * MINUTE, **run_times(NOON - 3 * MINUTE))
    answer = explain_latest(job, NOON + MINUTE)
    assert (answer.verdict, answer.run) == (WhyVerdict.SUCCEEDED, run)
    assert answer.after == NOON + 4 * MINUTE


def test_job_without_a_further_occurrence_needs_a_future_time_and_no_node() -> None:
    job, past = make_job(), NOON - 30 * MINUTE
    fields = {"schedule": "@at 2024-05-06T11:30", "enabled": False, "pause_reason": EXHAUSTED}
    Job.objects.filter(pk=job.pk).update(created_at=NOON - 10 * MINUTE, **fields)
    job = Job.objects.get(pk=job.pk)
    answer = explain_latest(job, NOON)
    assert codes(answer) == ["over_at_creation", "no_further_occurrence"]
    assert f"{past:%Y-%m-%d %H:%M}" in answer.sentences[0]

    Job.objects.filter(pk=job.pk).update(created_at=NOON - 60 * MINUTE)
    make_run(job, past, **run_times(past))
    job = Job.objects.get(pk=job.pk)
    answer = explain_latest(job, NOON)
    assert (answer.verdict, codes(answer)[-1]) == (WhyVerdict.SUCCEEDED, "no_further_occurrence")
    Job.objects.filter(pk=job.pk).update(pause_reason="stocktaking")
    assert "no_further_occurrence" not in codes(explain_latest(Job.objects.get(pk=job.pk), NOON))


@pytest.mark.parametrize(("dispatcher", "is_named"), [("celery", True), ("thread", False)])
def test_queued_run_names_the_queue_that_needs_a_worker(
    dispatcher: str, is_named: bool, settings: Settings
) -> None:
    settings.DCRON_DISPATCHER = dispatcher
    job = make_job(queue="reports")
    make_run(job, state="queued", queued_at=NOON)
    needs = [s.params for s in explain(job, NOON).sentences if s.code == "needs_worker"]
    assert needs == ([{"queue": "reports"}] if is_named else [])


@pytest.mark.parametrize(
    ("executes", "deliveries", "after"),
    [(True, 1, MINUTE), (True, 2, 2 * MINUTE), (False, 1, None), (None, 1, None)],
)
def test_queued_run_says_when_it_is_sent_again_if_its_queue_has_a_worker(
    executes: bool | None,
    deliveries: int,
    after: timedelta | None,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.DCRON_DISPATCHER = "celery"
    settings.DCRON_REDELIVER_AFTER = MINUTE
    job, now = make_job(queue="reports"), database_now("default").replace(microsecond=0)
    monkeypatch.setattr(clock, "fixed_at", now)
    sent = now - IDLE_QUEUE_AFTER
    make_run(job, state="queued", queued_at=sent, deliveries=deliveries)
    answer = {"name": "w1", "queues": ["reports"], "executes": executes, "unknown_runs": []}
    replies = [] if executes is None else [answer]
    make_node(workers={"at": now.isoformat(), "replies": replies})

    found = {each.code: each.params for each in explain(job, NOON).sentences}

    assert ("needs_worker" in found) is not bool(executes)
    at = f"{sent + after:%Y-%m-%d %H:%M:%S} UTC" if after else None
    assert found.get("sent_again") == (at and {"queue": "reports", "at": at})
    Run.objects.update(queued_at=sent + SECOND)
    assert "sent_again" not in codes(explain(job, NOON)), "a worker may start it at any moment"


def test_queued_run_says_that_no_worker_has_replied_since_it_was_sent(settings: Settings) -> None:
    settings.DCRON_DISPATCHER = "celery"
    job, now = make_job(queue="reports"), database_now("default")
    make_run(job, state="queued", queued_at=now - MINUTE)
    unknown = sentence(explain(job, NOON), "needs_worker")
    node = make_node(workers={"at": (now - 2 * MINUTE).isoformat(), "replies": []})
    assert sentence(explain(job, NOON), "needs_worker") == unknown, "asked before the run was sent"
    node.workers["at"] = now.isoformat()
    node.save()
    assert sentence(explain(job, NOON), "needs_worker") != unknown


def sentence(answer: Answer, code: str) -> str:
    (found,) = (each for each in answer.sentences if each.code == code)
    return str(found)


def test_queued_run_counts_the_runs_that_keep_workers_busy(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_DISPATCHER = "celery"
    settings.DCRON_REDELIVER_AFTER = MINUTE
    job, now = make_job(queue="reports"), database_now("default").replace(microsecond=0)
    monkeypatch.setattr(clock, "fixed_at", now)
    sent = now - IDLE_QUEUE_AFTER
    make_run(job, state="queued", queued_at=sent, deliveries=1)
    knows = {"executes": True, "unknown_runs": []}
    replies = [
        {"name": "w1", "queues": ["reports", "mail"], **knows},
        {"name": "w2", "queues": ["fast"], **knows},
    ]
    make_node(workers={"at": now.isoformat(), "replies": replies})
    for queue in ("mail", "fast"):
        flood = make_job(name=f"flood-{queue}", queue=queue)
        make_run(flood, state="running", started_at=sent, heartbeat_at=now)
        if queue == "mail":
            assert "sent_again" in codes(explain(job, NOON)), "no other run is queued"
        for minutes in (1, 2):
            make_run(flood, NOON + minutes * MINUTE, state="queued", queued_at=sent)
    monkeypatch.setattr(cluster_sentences, "MAX_COUNTED", 3)  # runs of other queues don't count
    assert params(explain(job, NOON), "workers_busy") == {"running": 1, "queued": 2}
    assert "sent_again" not in codes(explain(job, NOON))
    found = codes(explain(job, NOON, scope=ONE_RUN_HIDDEN))
    assert ("sent_again" in found, "workers_busy" in found) == (True, False)
    Run.objects.filter(job__queue="mail").delete()
    found = codes(explain(job, NOON))
    assert ("sent_again" in found, "workers_busy" in found) == (True, False), "w2 is busy, not w1"


def test_answer_from_before_the_run_was_sent_is_no_sign_of_a_worker(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_DISPATCHER = "celery"
    job, now = make_job(queue="reports"), database_now("default").replace(microsecond=0)
    monkeypatch.setattr(clock, "fixed_at", now)
    answered = now - 40 * SECOND
    worker = {"name": "w1", "queues": ["reports"], "executes": True, "unknown_runs": []}
    make_node(workers={"at": answered.isoformat(), "replies": [worker]})
    run = make_run(job, state="queued", queued_at=answered - SECOND)
    assert "needs_worker" not in codes(explain(job, NOON))
    for state in ("queued", "pending"):
        Run.objects.filter(pk=run.pk).update(state=state, queued_at=answered, deliveries=1)
        found = codes(explain(job, NOON))
        assert ("needs_worker" in found, "sent_again" in found) == (True, False)


@pytest.mark.parametrize(
    ("replies", "was_started", "is_told"),
    [
        (None, False, True),
        (None, True, False),
        ([("reports", True)], False, False),
        ([("reports", True), ("reports", False)], True, True),
        ([("other", False)], True, False),
    ],
)
def test_queued_run_asks_to_restart_workers_only_if_they_may_lack_the_task(
    replies: list[tuple[str, bool]] | None,
    was_started: bool,
    is_told: bool,
    settings: Settings,
) -> None:
    settings.DCRON_DISPATCHER = "celery"
    job, now = make_job(queue="reports"), database_now("default")
    make_run(job, state="queued", queued_at=NOON)
    if was_started:
        factories.make_run(make_job(name="other"), "running")
    if replies is not None:
        answers = [
            {"name": f"w{number}", "queues": [queue], "executes": executes, "unknown_runs": []}
            for number, (queue, executes) in enumerate(replies)
        ]
        make_node(workers={"at": now.isoformat(), "replies": answers})

    found = [sentence.code for sentence in explain(job, NOON).sentences]

    assert ("restart_workers" in found) is is_told


@pytest.mark.parametrize("state", ["queued", "pending"])
@pytest.mark.parametrize(
    ("last_start", "code"), [(None, "queue_waits"), (HOUR, "queue_idle"), (timedelta(), "")]
)
def test_run_that_was_sent_says_since_when_its_queue_stands_still(
    state: str, last_start: timedelta | None, code: str, settings: Settings
) -> None:
    settings.DCRON_DISPATCHER = "celery"
    now = database_now("default").replace(microsecond=0)
    sent = {"queued_at": NOON, "deliveries": 1}
    job = make_job(queue="reports")
    make_run(job, state=state, **sent)
    other = make_job(name="other", queue="reports")
    make_run(other, NOON, state="queued", **sent)
    if last_start is not None:
        started = make_run(other, NOON + HOUR, started_at=now - last_start)
        Attempt.objects.create(run=started, number=1, token=uuid4(), started_at=now - last_start)

    codes_of = ("queue_waits", "queue_idle")
    found = [each for each in explain(job, NOON).sentences if each.code in codes_of]

    since = NOON if last_start is None else now - last_start
    assert [each.code for each in found] == [code] * bool(code)
    for sentence in found:
        assert sentence.params == {"queue": "reports", "since": f"{since:%Y-%m-%d %H:%M:%S} UTC"}
    hidden = explain(job, NOON, scope=ONE_RUN_HIDDEN).sentences
    assert not {"queue_waits", "queue_idle"} & {each.code for each in hidden}


def test_overdue_run_mentions_the_broker_only_if_no_node_reaches_it() -> None:
    job = make_job()
    make_run(job, state="pending")
    make_node(broker_unreachable_since=database_now("default"), broker_error="out of memory")
    found = {sentence.code: sentence.params for sentence in explain(job, NOON).sentences}
    assert "no_broker" in found
    assert found["broker_error"] == {"error": "out of memory"}
    hidden = explain(job, NOON, show_nodes=False).sentences
    assert "no_broker" not in [sentence.code for sentence in hidden]
    make_node("b")
    assert "no_broker" not in [sentence.code for sentence in explain(job, NOON).sentences]


@pytest.mark.parametrize("is_manual", [False, True])
def test_auto_paused_job_names_its_latest_failure_and_how_to_resume(is_manual: bool) -> None:
    job = make_job()
    failed = {"state": "failed", "reason": "ValueError: no beans", **run_times(NOON)}
    make_run(job, **failed)
    later = NOON + timedelta(seconds=67)
    trigger = {"trigger": "manual"} if is_manual else {}
    run = make_run(job, later, **failed | run_times(later) | trigger)
    reason = f"{pausing.AUTO_PAUSED}2 consecutive failed runs"
    Job.objects.filter(pk=job.pk).update(enabled=False, pause_reason=reason)

    answer = explain_latest(Job.objects.get(pk=job.pk), NOON + 2 * MINUTE - timedelta(seconds=1))
    found = {sentence.code: sentence.params for sentence in answer.sentences}

    assert ("latest_failure" in found, "manual_later" in found) == (not is_manual, is_manual)
    if not is_manual:
        assert found["latest_failure"]["error"] == "ValueError: no beans."
        assert found["latest_failure"]["command"] == f"manage.py dcron history {run.pk}"
    assert found["how_to_resume"]["command"] == f"manage.py dcron resume {job}"
    Job.objects.filter(pk=job.pk).update(pause_reason="stocktaking")
    by_person = explain_latest(Job.objects.get(pk=job.pk), later)
    assert not {"latest_failure", "how_to_resume"} & {*codes(by_person)}


def test_latest_failure_of_an_auto_paused_job_is_the_run_that_failed_last() -> None:
    job = make_job()
    rerun = make_run(job, NOON - HOUR, state="failed", **run_times(NOON + MINUTE))
    make_run(job, state="failed", reason="ValueError: no beans", **run_times())
    reason = f"{pausing.AUTO_PAUSED}2 consecutive failed runs"
    Job.objects.filter(pk=job.pk).update(enabled=False, pause_reason=reason)

    answer = explain_latest(Job.objects.get(pk=job.pk), NOON + 2 * MINUTE - SECOND)

    (sentence,) = (each for each in answer.sentences if each.code == "latest_failure")
    assert sentence.params["command"] == f"manage.py dcron history {rerun.pk}"
    assert ": ." not in sentence, "the run has no reason"


def test_latest_failure_is_searched_among_the_latest_runs_and_those_of_incidents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latest, "RUNS_READ_LIMIT", 2)
    job = make_job()
    run = make_run(job, NOON - HOUR, state="failed", trigger="backfill", **run_times())
    for minutes in (3, 2, 1):
        make_run(job, NOON - minutes * MINUTE, **run_times(NOON - minutes * MINUTE))
    reason = f"{pausing.AUTO_PAUSED}2 consecutive failed runs"
    Job.objects.filter(pk=job.pk).update(enabled=False, pause_reason=reason)
    job = Job.objects.get(pk=job.pk)
    assert "latest_failure" not in codes(explain_latest(job, NOON + MINUTE))

    seen = {"first_seen_at": NOON, "last_seen_at": NOON}
    Incident.objects.create(job=job, fingerprint="beans", last_run=run.pk, **seen)

    found = params(explain_latest(job, NOON + MINUTE), "latest_failure")
    assert found["command"] == f"manage.py dcron history {run.pk}"


def test_later_run_says_what_became_of_it_without_repeating_why_work_stands_still() -> None:
    job = make_job(queue="reports")
    waiting = {"state": "queued", "queued_at": NOON}
    make_run(job, **waiting)
    make_run(job, NOON + MINUTE, trigger="manual", **waiting)

    found = [sentence.code for sentence in explain_latest(job, NOON + 2 * MINUTE).sentences]

    assert found.count("queued") == 2
    assert found.count("needs_worker") == 1
