"""Saving and pausing jobs: a job and its cursor change together, and no change is lost."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, OperationalError, ProgrammingError, connections
from django.db.models import F
from django.db.models.signals import post_save
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.diagnosis.figures import job_figures
from django_dcron.diagnosis.job_filters.job_filter import JobCondition, JobFilter, jobs_matching
from django_dcron.diagnosis.job_state import job_state
from django_dcron.diagnosis.lookahead import translate_problem
from django_dcron.diagnosis.system_health import read_facts
from django_dcron.exceptions import Conflict, InvalidSchedule, InvalidValue, NotPossible
from django_dcron.jobs import batch_reading, chains, cursors, pausing, placement, saving, switching
from django_dcron.jobs.cursors import disable_exhausted, move_outdated_cursors
from django_dcron.jobs.deletion import delete_job
from django_dcron.models import Cursor, Job, Run, Statistics
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.policies.lifecycle import State
from django_dcron.runs import transitions
from django_dcron.scheduler.claim import claim
from django_dcron.schedules.timetable import Timetable
from django_dcron.testing import set_clock
from django_dcron.utils.time_format import format_time_to_store
from tests.factories import make_idle_job, make_job, make_run
from tests.jobs.conftest import cursor_of, reread
from tests.logs import logged
from tests.refusals import refusal
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
FAR = datetime(2090, 1, 1, tzinfo=UTC)


def claim_ahead(job: Job) -> list[Run]:
    claim(range(64), database_now("default"), node="a")
    return list(Run.objects.filter(job=job))


# --- save ---------------------------------------------------------------------------------------


def test_saving_a_new_job_creates_its_cursor_and_statistics() -> None:
    job = make_job()
    cursor = cursor_of(job)
    assert placement.matches_definition(cursor, job)
    assert cursor.next_at is not None
    assert timedelta() < cursor.next_at - database_now("default") + SECOND <= 2 * SECOND
    assert cursor.previous_at is None
    assert Statistics.objects.get(pk=job.pk).succeeded == 0
    assert job.version == 1


def test_invalid_job_is_not_written() -> None:
    job = make_job()
    job.schedule = "61 * * * *"
    with pytest.raises(ValidationError) as refused:
        saving.save(job)
    assert list(refused.value.message_dict) == ["schedule"]
    assert (reread(job).schedule, reread(job).version) == ("* * * * * *", 1)


def test_changed_schedule_moves_the_cursor_and_withdraws_future_runs() -> None:
    job, other = make_job(), make_job()
    due = make_run(job, scheduled_at=database_now("default").replace(microsecond=0) - SECOND)
    assert claim_ahead(job)
    job.schedule = "0 0 1 1 *"
    saving.save(job)
    left = Run.objects.filter(job=job)
    assert due in left
    assert left.filter(scheduled_at__gt=cursor_of(job).placed_at).count() == 0
    assert Run.objects.filter(job=other).count() >= 10
    next_at = cursor_of(job).next_at
    assert next_at is not None
    assert (next_at.month, next_at.day, next_at.hour) == (1, 1, 0)


def test_change_of_other_fields_keeps_cursor_and_claimed_runs() -> None:
    job = make_job()
    claimed = claim_ahead(job)
    before = Cursor.objects.filter(pk=job.pk).values().get()
    job.description, job.queue = "better", "q"
    saving.save(job)
    assert Cursor.objects.filter(pk=job.pk).values().get() == before
    assert Run.objects.filter(job=job).count() == len(claimed)
    assert (reread(job).description, reread(job).version) == ("better", 2)


@pytest.mark.parametrize("state", sorted(set(State) - {State.PENDING}))
def test_only_pending_runs_are_withdrawn(state: State) -> None:
    job = make_idle_job()
    make_run(job, state, scheduled_at=FAR)
    job.schedule = "0 0 1 2 *"
    saving.save(job)
    assert Run.objects.get().state == state


def test_resumed_interval_job_continues_from_now_in_phase() -> None:
    """The withdrawn occurrences are still to come. The interval must not count them as done."""
    start = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
    job = make_job(schedule="@every 3s")
    timetable = placement.timetable_of(job)
    assert timetable.first_after(start + SECOND, previous=start + 9 * SECOND) == start + 3 * SECOND
    assert timetable.first_after(start, previous=start + 9 * SECOND) == start + 3 * SECOND
    assert isinstance(timetable, Timetable)

    Cursor.objects.filter(pk=job.pk).update(
        next_at=database_now("default").replace(microsecond=0) + SECOND
    )
    claimed = claim_ahead(job)
    phase = {run.scheduled_at.timestamp() % 3 for run in claimed}
    job = pausing.resume(pausing.pause(job))
    next_at = cursor_of(job).next_at
    assert next_at is not None
    assert next_at - database_now("default") <= 3 * SECOND
    assert {next_at.timestamp() % 3} == phase


def test_saving_a_stale_instance_raises_conflict() -> None:
    job = make_job()
    stale = reread(job)
    job.description = "first"
    saving.save(job)
    stale.description, stale.schedule = "second", "0 0 1 1 *"
    with pytest.raises(Conflict) as refused:
        saving.save(stale)
    assert refused.value.code == "changed"
    assert (reread(job).description, reread(job).schedule) == ("first", "* * * * * *")
    assert stale.version == 1, "the instance keeps the version that it was read with"


def test_expected_version_must_match_the_stored_version() -> None:
    job = make_job()
    shown = job.version
    saving.save(job)
    fresh = reread(job)
    with pytest.raises(Conflict):
        saving.save(fresh, expected_version=shown)
    assert saving.save(fresh, expected_version=2).version == 3


def test_saving_a_deleted_job_raises_conflict() -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).delete()
    with pytest.raises(Conflict) as refused:
        saving.save(job)
    assert refused.value.code == "deleted"
    with pytest.raises(Conflict):
        pausing.pause(job)
    assert not Job.objects.exists()


def test_name_taken_between_validation_and_write_is_a_validation_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_job(name="taken")
    late = Job(name="taken", schedule="@daily", target="tests.app.tasks.ok")
    with monkeypatch.context() as patched:
        patched.setattr(chains, "read_ids", lambda keys, using: {})
        with pytest.raises(ValidationError):
            saving.save(late)
    assert late.pk is None
    late.name = "free"
    assert saving.save(late).pk
    assert Cursor.objects.count() == 2


def test_failed_save_is_rolled_back_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> None:
        raise RuntimeError("half way")

    job = make_job()
    for each in (job, Job(name="new", schedule="@daily", target="tests.app.tasks.ok")):
        with monkeypatch.context() as patched:
            patched.setattr(placement, "decide_placement", broken)
            each.description = "changed"
            with pytest.raises(RuntimeError):
                saving.save(each)
        assert Job.objects.count() == 1
        assert not Job.objects.filter(description="changed", name="new").exists()
        saving.save(each)
        assert reread(each).description == "changed"


# --- changes while no node claims ---------------------------------------------------------------


def leave_unclaimed(job: Job, *, minutes: int) -> datetime:
    """Move the cursor back, as if no node had claimed occurrences for ``minutes`` minutes.

    Returns the oldest unclaimed occurrence, which is at the beginning of a minute.
    """
    since = database_now("default").replace(second=0, microsecond=0) - timedelta(minutes=minutes)
    Cursor.objects.filter(pk=job.pk).update(next_at=since, previous_at=None)
    return since


@pytest.mark.parametrize("how", ["save", "pause", "update"])
def test_occurrences_due_before_a_change_are_recorded(how: str) -> None:
    job = make_job(schedule="* * * * *")
    since = leave_unclaimed(job, minutes=30)
    before = database_now("default")
    if how == "save":
        job.schedule = "0 0 1 1 *"
        saving.save(job)
    elif how == "pause":
        pausing.pause(job)
    else:
        Job.objects.filter(pk=job.pk).update(schedule="0 0 1 1 *")
        move_outdated_cursors(before, Job.objects.using("default"))
    runs = list(Run.objects.filter(job=job).order_by("scheduled_at"))
    assert {(run.state, run.node) for run in runs} == {("pending", transitions.NOBODY)}
    assert runs[0].missed_from == since
    assert sum(1 + run.missed_before for run in runs) in (31, 32), (
        "up to the current minute, without future occurrences"
    )
    assert runs[-1].scheduled_at <= database_now("default")
    assert cursor_of(job).previous_at == runs[-1].scheduled_at


def test_due_occurrence_survives_repeated_edits() -> None:
    """Otherwise, a job that is saved more often than a node ticks would never run."""
    job = make_job()
    second = database_now("default").replace(microsecond=0)
    Cursor.objects.filter(pk=job.pk).update(next_at=second)
    for n in range(5):
        job.schedule = f"*/{n + 1} * * * * *"
        saving.save(job)
    assert Run.objects.filter(job=job, scheduled_at=second).count() == 1


def test_interval_keeps_its_phase_when_edited_after_an_outage() -> None:
    job = make_job(schedule="@every 7m")
    since = leave_unclaimed(job, minutes=30)
    job = pausing.resume(pausing.pause(job))
    next_at = cursor_of(job).next_at
    assert next_at is not None
    assert (next_at - since) % timedelta(minutes=7) == timedelta()


def test_invalid_old_definition_does_not_prevent_a_change(caplog: pytest.LogCaptureFixture) -> None:
    job = make_job(schedule="* * * * *")
    since = leave_unclaimed(job, minutes=30)
    Cursor.objects.update(timezone="Mars/Olympus")
    job.schedule = "0 0 1 1 *"
    saving.save(job)
    missed = Run.objects.get()
    assert (missed.scheduled_at, missed.state) == (since, "missed")
    assert "Mars/Olympus" in missed.reason
    assert placement.matches_definition(cursor_of(job), job)
    assert logged(caplog, "due_not_claimed", job=str(job))


def test_number_of_runs_created_by_a_change_is_limited() -> None:
    """All seconds of a day may still be on time. That is too much work for one web request."""
    job = make_job(misfire_grace=timedelta(days=1))
    since = leave_unclaimed(job, minutes=30)
    pausing.pause(job)
    *claimed, rest = Run.objects.filter(job=job).order_by("scheduled_at")
    assert [run.state for run in claimed] == ["pending"] * 1000
    assert (rest.state, rest.missed_from) == ("missed", since + 1000 * SECOND)
    assert "changed" in rest.reason
    assert 1000 + rest.missed_before + 1 >= 1800
    assert cursor_of(job).previous_at == rest.scheduled_at


def test_occurrences_due_before_a_change_use_the_old_misfire_policy() -> None:
    job = make_job(schedule="* * * * *", misfire_policy="skip")
    leave_unclaimed(job, minutes=30)
    job.schedule, job.misfire_policy, job.misfire_grace = "0 0 1 1 *", "run_all", timedelta(days=1)
    saving.save(job)
    assert Run.objects.filter(job=job, state="missed", missed_before__gte=27).count() == 1
    assert Run.objects.filter(job=job, state="pending").count() <= 2


# --- pause and resume ---------------------------------------------------------------------------


def test_pausing_withdraws_future_runs_and_keeps_running_ones() -> None:
    job = make_job()
    claim_ahead(job)
    running = make_run(job, "running", scheduled_at=FAR)
    paused = pausing.pause(job, "x" * 255)
    assert (paused.enabled, paused.pause_reason) == (False, "x" * 255)
    assert (cursor_of(job).next_at, cursor_of(job).enabled) == (None, False)
    assert not Run.objects.filter(
        state="pending", scheduled_at__gt=database_now("default")
    ).exists()
    running.refresh_from_db()
    assert running.state == "running"
    assert claim(range(64), FAR, node="a").considered == 0


def test_resumed_job_continues_from_now() -> None:
    job = pausing.pause(make_job(), "why")
    resumed = pausing.resume(job)
    assert (resumed.enabled, resumed.pause_reason, resumed.version) == (True, "", 3)
    next_at = cursor_of(job).next_at
    assert next_at is not None
    assert next_at > database_now("default") - SECOND
    assert reread(job).version == job.version, "the instance may be saved again"
    saving.save(job)


@pytest.mark.parametrize(
    "switch", [pausing.resume, lambda job: pausing.pause(pausing.pause(job, "a"), "a")]
)
def test_pausing_or_resuming_twice_writes_nothing(switch: Callable[[Job], Job]) -> None:
    job = make_job()
    switch(job)
    version = reread(job).version
    switch(job)
    assert reread(job).version == version


def test_pausing_a_stale_instance_keeps_changes_by_others() -> None:
    job = make_job()
    stale = reread(job)
    job.description = "newer"
    saving.save(job)
    pausing.pause(stale)
    assert (reread(job).description, reread(job).enabled, reread(job).version) == (
        "newer",
        False,
        3,
    )
    with pytest.raises(Conflict):  # its description is outdated
        saving.save(stale)


@pytest.mark.parametrize("schedule", ["@at {:%Y-%m-%dT%H:%M:%S}", "* * * * * *"])
def test_job_whose_last_occurrence_passes_during_save_is_refused(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, it would stay enabled and silently never run."""
    last = database_now("default").replace(microsecond=0) + 60 * SECOND
    old = make_idle_job()
    monkeypatch.setattr(batch_reading, "database_now", lambda using: last + SECOND)
    for job in (reread(old), Job(name="new", target="tests.app.tasks.ok")):
        job.schedule, job.ends_at = schedule.format(last), last
        with pytest.raises(ValidationError) as refused:
            saving.save(job)
        assert refused.value.error_dict["schedule"][0].code == "exhausted"
    assert (reread(old).schedule, Job.objects.count()) == (old.schedule, 1)


@pytest.mark.parametrize(("now", "first"), [(-1, 0), (23, 24)], ids=["start ahead", "start past"])
def test_interval_with_a_start_may_end_at_its_first_occurrence(now: int, first: int) -> None:
    """The interval counts from the start, not from now."""
    start = datetime(2027, 1, 1, 12, tzinfo=UTC)
    end = start + timedelta(hours=first)
    job = Job(
        name="a", target="tests.app.tasks.ok", schedule="@every 1d", starts_at=start, ends_at=end
    )
    with set_clock(start + timedelta(hours=now)):
        job.clean_fields()
        job.ends_at = end - SECOND
        with pytest.raises(ValidationError) as refused:
            job.clean_fields()
    assert set(refused.value.message_dict) == {"ends_at"}


@pytest.mark.parametrize(("end", "is_allowed"), [(6, True), (5, False)])
def test_interval_without_a_start_may_end_at_its_next_occurrence(
    end: int, is_allowed: bool
) -> None:
    """The interval counts from the last occurrence, not from now."""
    job = make_job(schedule="@every 1d")
    now = database_now("default").replace(microsecond=0)
    next_at = now + timedelta(hours=6)
    Cursor.objects.filter(pk=job.pk).update(
        next_at=next_at, previous_at=next_at - timedelta(days=1)
    )
    job = reread(job)
    job.ends_at = now + timedelta(hours=end)
    with nullcontext() if is_allowed else pytest.raises(ValidationError, match="ends_at"):
        saving.save(job)
    assert reread(job).ends_at == (job.ends_at if is_allowed else None)


def test_job_can_be_changed_shortly_before_its_only_interval_ends() -> None:
    now = database_now("default").replace(microsecond=0)
    job = make_job(schedule="@every 1d", ends_at=now + timedelta(hours=30))
    Cursor.objects.filter(pk=job.pk).update(next_at=now + timedelta(hours=6))
    Job.objects.filter(pk=job.pk).update(ends_at=now + timedelta(hours=12))
    Cursor.objects.filter(pk=job.pk).update(ends_at=now + timedelta(hours=12))
    job = reread(job)
    job.description = "changed"
    saving.save(job)
    assert cursor_of(job).next_at == now + timedelta(hours=6)


@pytest.mark.parametrize("schedule", ["@at 2020-01-01T00:00", "@never"])
def test_job_in_a_chain_needs_no_occurrences(schedule: str) -> None:
    before = make_idle_job()
    job = make_job(schedule=schedule, after={str(before): "ended"})
    assert (reread(job).enabled, Cursor.objects.get(pk=job.pk).next_at) == (True, None)


@pytest.mark.parametrize(
    ("fields", "enabled"),
    [
        ({"schedule": "@at 2020-01-01T00:00"}, False),
        ({"schedule": "@at 2020-01-01T00:00", "after": {"other": "ended"}}, True),
        ({"schedule": "@at 2050-01-01T00:00"}, True),
        ({"schedule": "@never"}, True),
    ],
    ids=["never runs again", "follows another job", "has an occurrence", "runs on demand"],
)
def test_follower_of_a_deleted_job_is_disabled_if_it_can_never_run_again(
    fields: dict[str, Any], enabled: bool
) -> None:
    deleted, _ = make_idle_job(name="deleted"), make_idle_job(name="other")
    job = make_job(**fields | {"after": fields.get("after", {}) | {"deleted": "ended"}})
    delete_job(deleted)
    left = reread(job)
    assert (left.enabled, left.pause_reason) == (enabled, "" if enabled else EXHAUSTED)
    assert Cursor.objects.get(pk=job.pk).enabled == enabled


def test_follower_updated_without_save_is_left_to_move_outdated_cursors() -> None:
    deleted = make_idle_job(name="deleted")
    job = make_job(schedule="@at 2020-01-01T00:00", after={"deleted": "ended"})
    Job.objects.filter(pk=job.pk).update(schedule="* * * * * *")
    delete_job(deleted)
    assert reread(job).enabled
    assert move_outdated_cursors(database_now("default"), Job.objects.all()) == 1
    assert Cursor.objects.get(pk=job.pk).next_at is not None


def test_job_without_further_occurrences_cannot_be_resumed() -> None:
    job = make_job(schedule="@at 2050-01-01T00:00")
    pausing.pause(job)
    Job.objects.filter(pk=job.pk).update(schedule="@at 2020-01-01T00:00")
    with refusal(NotPossible, "nothing_to_run", job=job):
        pausing.resume(job)
    Job.objects.filter(pk=job.pk).update(timezone="Mars/Olympus")
    with refusal(NotPossible, "nothing_to_run", job=job) as caught:
        pausing.resume(job)
    assert "Mars/Olympus" in str(caught.value)
    Job.objects.filter(pk=job.pk).update(timezone="Europe/Berlim")
    with refusal(NotPossible, "nothing_to_run", job=job) as caught:
        pausing.resume(job)
    assert str(caught.value).endswith("'Europe/Berlin'?")
    assert not reread(job).enabled


# --- pauses with an end -------------------------------------------------------------------------


def paused_until(until: datetime, **fields: Any) -> Job:
    """Return a job that was paused long ago until ``until``, which may be in the past."""
    job = pausing.pause(make_job(**fields), "deploy", database_now("default") + 3600 * SECOND)
    Job.objects.filter(pk=job.pk).update(paused_until=until)
    Cursor.objects.filter(pk=job.pk).update(placed_at=until - 3600 * SECOND)
    return reread(job)


def seconds_ago(seconds: float) -> datetime:
    """Return a time in the past that isn't a whole second."""
    return database_now("default").replace(microsecond=500_000) - seconds * SECOND


def end_pauses() -> int:
    return pausing.end_pauses(Job.objects.using("default"))


def retry_ends_of_pauses() -> int:
    return pausing.retry_ends_of_pauses(Job.objects.using("default"))


def test_pause_can_have_an_end() -> None:
    until = database_now("default") + 3600 * SECOND
    job = pausing.pause(make_job(), "deploy", until)
    assert (job.enabled, job.pause_reason, job.paused_until) == (False, "deploy", until)
    assert reread(job).paused_until == until
    assert end_pauses() == 0
    pausing.pause(job, "deploy", until + SECOND)
    assert (reread(job).paused_until, reread(job).version) == (until + SECOND, 3)
    pausing.pause(job, "deploy")
    assert (reread(job).paused_until, job.paused_until) == (None, None)


@pytest.mark.parametrize(
    ("until", "code"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), "in_the_past"),
        (datetime(2090, 1, 1), "naive"),  # noqa: DTZ001
    ],
)
def test_past_or_naive_end_of_a_pause_is_refused(until: datetime, code: str) -> None:
    job = make_job()
    with pytest.raises(InvalidValue) as refused:
        pausing.pause(job, "deploy", until)
    assert (refused.value.field, refused.value.code) == ("until", code)
    assert refused.value.params["value"] == until.isoformat()
    assert (job.enabled, reread(job).enabled, reread(job).version) == (True, True, 1)


@pytest.mark.parametrize("how", ["resume", "save"])
def test_resuming_a_job_clears_the_reason_and_the_end_of_its_pause(how: str) -> None:
    job = pausing.pause(make_job(), "deploy", FAR)
    if how == "resume":
        pausing.resume(job)
    else:
        job.enabled = True
        saving.save(job)
    for each in (job, reread(job)):
        assert (each.enabled, each.pause_reason, each.paused_until) == (True, "", None)


@pytest.mark.parametrize("how", ["auto_paused", "exhausted"])
def test_automatic_pause_has_no_end(how: str) -> None:
    job = failing()
    Job.objects.update(paused_until=FAR)  # written without ``save``
    if how == "auto_paused":
        pausing.pause_failing_jobs(Job.objects.using("default"))
    else:
        disable_exhausted([job.pk], "default")
    assert (reread(job).enabled, reread(job).paused_until) == (False, None)


def test_pause_ends_once_and_later_occurrences_are_claimed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "django_dcron.scheduler")
    until = seconds_ago(7)
    job, other = paused_until(until), paused_until(FAR)
    assert end_pauses() == 1
    assert end_pauses() == 0
    row = reread(job)
    assert (row.enabled, row.pause_reason, row.paused_until) == (True, "", None)
    assert row.version == job.version + 1
    assert cursor_of(job).next_at == until + SECOND / 2
    assert [record.event for record in caplog.records] == ["resumed"]  # type: ignore[attr-defined]
    assert logged(caplog, "resumed", format_time_to_store(until), job=str(job))
    claim_ahead(job)
    times = Run.objects.filter(job=job).values_list("scheduled_at", flat=True)
    assert min(times) == until + SECOND / 2
    assert not reread(other).enabled


def test_occurrence_at_the_end_of_the_pause_is_included() -> None:
    midnight = database_now("default").replace(hour=0, minute=0, second=0, microsecond=0)
    job = paused_until(midnight, schedule="@daily")
    end_pauses()
    assert cursor_of(job).next_at == midnight


def test_schedule_changed_after_the_end_of_a_pause_starts_from_the_change() -> None:
    """No node ticked for a while, and a user changed the schedule of the paused job."""
    job = paused_until(seconds_ago(3600), schedule="0 0 1 1 *")
    job.schedule = "* * * * * *"
    saving.save(job)
    changed_at = cursor_of(job).placed_at
    assert end_pauses() == 1
    next_at = cursor_of(job).next_at
    assert next_at is not None
    assert changed_at < next_at <= changed_at + SECOND


def test_interval_keeps_its_phase_through_a_pause() -> None:
    job = make_job(schedule="@every 10s")
    first = seconds_ago(60)
    Cursor.objects.update(previous_at=first)
    pausing.pause(job, "", FAR)
    Job.objects.update(paused_until=first + 33 * SECOND)
    Cursor.objects.update(placed_at=first)
    end_pauses()
    assert cursor_of(job).next_at == first + 40 * SECOND


def test_end_of_a_pause_resets_the_failure_count() -> None:
    job = paused_until(seconds_ago(1), pause_after_failures=2)
    Statistics.objects.update(consecutive_failures=2)
    end_pauses()
    assert pausing.pause_failing_jobs(Job.objects.using("default")) == 0
    assert reread(job).enabled


def test_job_stays_disabled_if_its_schedule_ends_before_its_pause() -> None:
    job = paused_until(seconds_ago(1))
    Job.objects.update(ends_at=seconds_ago(30))
    assert end_pauses() == 1
    row = reread(job)
    assert (row.enabled, row.pause_reason, row.paused_until) == (False, EXHAUSTED, None)
    assert placement.matches_definition(cursor_of(job), row)
    assert end_pauses() == 0


def test_pause_of_an_unreadable_job_ends_once_it_is_readable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For example, another node knows the time zone. No occurrence after the pause is lost."""

    def unknown(job: Job) -> None:
        raise InvalidSchedule("timezone: not known here")

    job, other = paused_until(end := seconds_ago(60)), paused_until(seconds_ago(50))
    with monkeypatch.context() as patched:
        patched.setattr(switching, "timetable_of", unknown)
        assert [end_pauses(), end_pauses(), retry_ends_of_pauses()] == [0, 0, 0]
    assert (reread(job).enabled, reread(job).paused_until) == (False, end)
    assert cursor_of(job).problem == "timezone: not known here"
    assert len(caplog.messages) == 2, "once for each job"
    assert retry_ends_of_pauses() == 2
    assert end <= (cursor_of(job).next_at or FAR) <= end + SECOND
    assert cursor_of(other).problem == ""


def test_change_locks_runs_before_statistics() -> None:
    """A cancellation locks in this order, too. Otherwise, the two could deadlock."""
    job = make_job(misfire_policy="skip", misfire_grace=SECOND)
    ahead = make_run(job, scheduled_at=database_now("default") + 9 * SECOND)
    Cursor.objects.update(next_at=seconds_ago(60))
    with CaptureQueriesContext(connections["default"]) as queries:
        pausing.pause(job)
    assert Statistics.objects.get().missed > 50
    assert not Run.objects.filter(pk=ahead.pk).exists()
    written = [each["sql"] for each in queries]
    (deleted,) = (at for at, sql in enumerate(written) if sql.startswith("DELETE"))
    counted = [at for at, sql in enumerate(written) if "django_dcron_statistics" in sql]
    assert deleted < min(counted)


@pytest.mark.postgresql
@pytest.mark.parametrize("verb", ["pause", "save", "end_pauses", "pause_failing_jobs", "delete"])
def test_only_a_deletion_blocks_the_creation_of_runs(verb: str) -> None:
    """Each new run locks its job's key."""
    job = paused_until(seconds_ago(1)) if verb == "end_pauses" else failing()
    with CaptureQueriesContext(connections["default"]) as queries:
        if verb in ("pause", "save"):
            getattr(control, verb)(job)
        elif verb == "delete":
            delete_job(job)
        else:
            getattr(pausing, verb)(Job.objects.using("default"))
    ends = [
        each["sql"].partition(" FOR ")[2]
        for each in queries
        if ' FROM "django_dcron_job" ' in each["sql"] and " FOR " in each["sql"]
    ]
    assert ends
    assert all(end.startswith("UPDATE" if verb == "delete" else "NO KEY UPDATE") for end in ends)


@pytest.mark.parametrize("change", ["rename", "resume", "pause longer", "update without save"])
def test_occurrences_since_the_end_of_a_pause_survive_a_concurrent_change(change: str) -> None:
    job = paused_until(end := seconds_ago(30), schedule="* * * * * *", misfire_policy="run_all")
    if change == "rename":
        job.name, job.enabled = "renamed", True
        saving.save(job)
    elif change == "resume":
        pausing.resume(job)
    elif change == "update without save":
        Job.objects.filter(pk=job.pk).update(schedule="0 0 1 1 *")
        assert move_outdated_cursors(database_now("default"), Job.objects.using("default")) == 1
        assert end_pauses() == 1
    else:
        pausing.pause(job, "longer", FAR)
    rows = Run.objects.filter(job=job).order_by("scheduled_at")
    first, last = rows[0].scheduled_at, rows.last().scheduled_at  # type: ignore[union-attr]
    assert end <= first <= end + SECOND
    assert last - first >= 28 * SECOND
    assert rows.count() == (last - first) / SECOND + 1
    assert reread(job).enabled == (change != "pause longer")


def test_pause_ends_ahead_by_the_claim_look_ahead() -> None:
    """Otherwise, the occurrences at the very end of the pause would be late."""
    now = database_now("default")
    soon, later = (paused_until(now + ahead * SECOND) for ahead in (8, 60))
    assert end_pauses() == 1
    assert (reread(soon).enabled, reread(later).enabled) == (True, False)
    assert now + 8 * SECOND <= (cursor_of(soon).next_at or now) <= now + 9 * SECOND


@pytest.mark.parametrize("how", ["saved", "written without save", "saved twice"])
def test_change_just_before_the_end_of_a_pause_does_not_shorten_it(how: str) -> None:
    now = database_now("default")
    end = now + 8 * SECOND
    with set_clock(now):
        job = paused_until(end)
        assert end_pauses() == 1
        job = reread(job)
        claim_ahead(job)
        if how == "written without save":
            Job.objects.filter(pk=job.pk).update(schedule="*/2 * * * * *")
            move_outdated_cursors(database_now("default"), Job.objects.using("default"))
        else:
            for schedule in ("*/2 * * * * *", "*/3 * * * * *")[: 2 if how == "saved twice" else 1]:
                job.schedule = schedule
                job = saving.save(job)
        assert not Run.objects.filter(job=job, scheduled_at__lt=end).exists()
        assert end <= (cursor_of(job).next_at or end - SECOND) <= end + 4 * SECOND


def test_manually_resumed_job_continues_before_the_end_of_its_former_pause() -> None:
    end = database_now("default") + 8 * SECOND
    job = paused_until(end)
    assert end_pauses() == 1
    pausing.resume(pausing.pause(reread(job), "by hand"))
    assert (cursor_of(job).next_at or end) < end


def test_resume_shortly_before_the_end_of_a_pause_takes_effect_now() -> None:
    """A node has already ended the pause ahead of time. The user's request isn't ignored."""
    now = database_now("default")
    with set_clock(now):
        job = paused_until(now + 8 * SECOND)
        assert end_pauses() == 1
        claim_ahead(job)
        version = reread(job).version
        pausing.resume(reread(job))
        cursor = cursor_of(job)
        assert now < (cursor.next_at or FAR) <= now + SECOND
        assert (cursor.resumes_at, reread(job).version) == (None, version + 1)
        claim_ahead(job)
        assert Run.objects.filter(job=job).earliest("scheduled_at").scheduled_at <= now + SECOND
        pausing.resume(reread(job))
        assert reread(job).version == version + 1, "a second resume changes nothing"


def test_cursor_placed_in_the_far_future_is_moved_back_to_now() -> None:
    """The cursor was written while the database's clock was ahead."""
    job, now = make_job(), database_now("default")
    Cursor.objects.update(placed_at=now + 3600 * SECOND, next_at=now + 3601 * SECOND)
    job.schedule = "*/2 * * * * *"
    saving.save(job)
    assert (cursor_of(job).next_at or now + 3600 * SECOND) <= now + 10 * SECOND


def test_interval_without_previous_occurrence_starts_at_the_end_of_the_pause() -> None:
    end = seconds_ago(30).replace(microsecond=0)
    job = paused_until(end, schedule="@every 1h")
    assert end_pauses() == 1
    assert cursor_of(job).next_at == end


def test_interval_that_replaces_an_invalid_schedule_begins_on_a_whole_second() -> None:
    """The pause has ended within a second, and the occurrences since then are unknown."""
    job = make_idle_job()
    end = seconds_ago(3600).replace(microsecond=214_000)
    Cursor.objects.update(placed_at=end - timedelta(hours=1))
    Job.objects.update(schedule="now and then", enabled=False, paused_until=end)
    Cursor.objects.update(schedule="now and then", enabled=False)
    job.refresh_from_db()
    job.schedule = "@every 23m"

    control.save(job)

    missed = Run.objects.get(state="missed")
    assert missed.scheduled_at == end
    cursor = Cursor.objects.get()
    assert cursor.previous_at == end.replace(microsecond=0)


def test_move_outdated_cursors_clears_the_pause_end_of_an_enabled_job() -> None:
    job = paused_until(FAR)
    Job.objects.filter(pk=job.pk).update(enabled=True, pause_reason="")
    move_outdated_cursors(database_now("default"), Job.objects.using("default"))
    assert reread(job).paused_until is None


@pytest.mark.parametrize("error", [ZeroDivisionError, IntegrityError, ProgrammingError])
@pytest.mark.parametrize("verb", ["end_pauses", "pause_failing_jobs"])
def test_error_while_switching_one_job_does_not_affect_others(
    verb: str, error: type[Exception], request: pytest.FixtureRequest
) -> None:
    if verb == "end_pauses":
        failing_job, _ = paused_until(seconds_ago(2)), paused_until(seconds_ago(1))
    else:
        failing_job, _ = make_job(pause_after_failures=1), make_job(pause_after_failures=1)
        Statistics.objects.update(consecutive_failures=1)

    fail_for(failing_job, request, error)
    assert getattr(pausing, verb)(Job.objects.using("default")) == 1
    assert reread(failing_job).enabled == (verb == "pause_failing_jobs")


def test_job_whose_pause_cannot_end_is_quarantined_and_retried_less_often(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second, third = (paused_until(seconds_ago(ago)) for ago in (60, 50, 40))
    disconnect = fail_for(second, request, IntegrityError)
    assert [end_pauses() for _ in range(3)] == [2, 0, 0]
    assert [reread(job).enabled for job in (first, second, third)] == [True, False, True]
    assert "IntegrityError" in cursor_of(second).problem
    assert "refused" not in cursor_of(second).problem, "the error's text may contain values"
    assert retry_ends_of_pauses() == 0
    events = [record.event for record in caplog.records]  # type: ignore[attr-defined]
    assert events == ["quarantined"], "once, and once only"

    monkeypatch.setattr(pausing, "SWITCHED_AT_ONCE", 1)
    later = paused_until(seconds_ago(10))
    assert end_pauses() == 1
    assert reread(later).enabled

    disconnect()
    assert end_pauses() == 0
    assert retry_ends_of_pauses() == 1
    end = second.paused_until or FAR
    assert end <= (cursor_of(second).next_at or FAR) <= end + SECOND
    assert cursor_of(second).problem == ""


@pytest.fixture
def stuck(request: pytest.FixtureRequest) -> Job:
    """A job whose pause is over, but can't end."""
    job = paused_until(seconds_ago(60))
    fail_for(job, request, IntegrityError)
    assert end_pauses() == 0
    assert cursor_of(job).problem
    return job


def test_job_whose_pause_cannot_end_is_quarantined_in_counts_lists_and_findings(stuck: Job) -> None:
    other, last = paused_until(FAR), make_idle_job(name="last")
    disable_exhausted([last.pk], "default")
    states = [job_state(reread(job)) for job in (stuck, other, last)]
    assert states == ["quarantined", "paused", "finished"]
    assert {
        condition: [*jobs_matching(JobFilter(condition=condition)).values_list("pk", flat=True)]
        for condition in JobCondition
        if condition not in (JobCondition.RUNNING, JobCondition.FAILING)
    } == {
        JobCondition.PAUSED: [other.pk],
        JobCondition.FINISHED: [last.pk],
        JobCondition.QUARANTINED: [stuck.pk],
        JobCondition.ENABLED: [],
    }
    assert read_facts().quarantined.names == (str(stuck),)
    counted = job_figures(database_now("default"))
    assert (counted.quarantined, counted.paused, counted.enabled) == (1, 1, 0)
    with translation.override("de"):
        problem = translate_problem(stuck, cursor_of(stuck).problem)
    assert "IntegrityError" in problem
    assert problem != cursor_of(stuck).problem


@pytest.mark.parametrize("until", [None, FAR])
def test_problem_is_cleared_if_sql_changes_the_end_of_the_pause(
    stuck: Job, until: datetime | None
) -> None:
    Job.objects.filter(pk=stuck.pk).update(paused_until=until)
    assert pausing.forget_problems_of_pauses(Job.objects.using("default")) == 1
    assert cursor_of(stuck).problem == ""
    assert job_state(reread(stuck)) == "paused"


def test_problem_is_kept_while_the_pause_is_over(stuck: Job) -> None:
    assert pausing.forget_problems_of_pauses(Job.objects.using("default")) == 0
    assert cursor_of(stuck).problem


@pytest.mark.parametrize("change", [{"paused_until": FAR}, {"enabled": True}])
def test_job_that_changes_while_its_pause_fails_to_end_is_not_quarantined(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = paused_until(seconds_ago(60))

    def fail_after_a_change(job_ids: object, using: str) -> None:
        Job.objects.filter(pk=job.pk).update(**change)
        raise IntegrityError("refused")

    monkeypatch.setattr(pausing, "end_pauses_of", fail_after_a_change)
    assert end_pauses() == 0
    assert cursor_of(job).problem == ""


def test_pauses_do_not_end_one_by_one_while_the_database_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(4):
        paused_until(seconds_ago(1))
    tried: list[Any] = []

    def unavailable(job_ids: Any, using: str) -> None:
        tried.append(job_ids)
        raise OperationalError("the connection is closed")

    monkeypatch.setattr(pausing, "end_pauses_of", unavailable)
    monkeypatch.setattr(connections["default"], "is_usable", lambda: False)
    with pytest.raises(OperationalError):
        end_pauses()
    assert len(tried) == 1


def fail_for(
    job: Job, request: pytest.FixtureRequest, error: type[Exception]
) -> Callable[[], object]:
    """Connect a receiver that refuses saved versions of ``job``. Returns how to disconnect it."""

    def fail_for_one_job(instance: Job, **_: Any) -> None:
        if instance.pk == job.pk:
            raise error("refused by a signal receiver")

    post_save.connect(fail_for_one_job, sender=Job)
    disconnect = partial(post_save.disconnect, fail_for_one_job, sender=Job)
    request.addfinalizer(disconnect)
    return disconnect


@pytest.mark.parametrize("meanwhile", ["paused", "resumed"])
def test_failing_job_is_not_paused_if_it_was_switched_concurrently(
    meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(pause_after_failures=2)
    Statistics.objects.update(consecutive_failures=2)
    lock = pausing.lock_job

    def lock_after_another_user(*args: Any, **options: Any) -> Job | None:
        monkeypatch.setattr(pausing, "lock_job", lock)
        pausing.pause(job, "deploy", FAR)
        if meanwhile == "resumed":
            pausing.resume(job)
        return lock(*args, **options)

    monkeypatch.setattr(pausing, "lock_job", lock_after_another_user)
    assert pausing.pause_failing_jobs(Job.objects.using("default")) == 0
    row = reread(job)
    paused = (False, "deploy", FAR)
    assert (row.enabled, row.pause_reason, row.paused_until) == (
        paused if meanwhile == "paused" else (True, "", None)
    )


@pytest.mark.parametrize("change", ["longer", "for good", "resumed", "deleted"])
def test_concurrent_change_of_a_pause_takes_precedence(
    change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The change comes between the query and the lock."""
    caplog.set_level("INFO", "django_dcron.scheduler")
    job = paused_until(seconds_ago(1))
    lock = switching.lock_cursors

    def lock_after_another_user(*args: Any, **options: Any) -> dict[int, Cursor]:
        monkeypatch.setattr(switching, "lock_cursors", lock)
        if change == "resumed":
            pausing.resume(job)
        elif change == "deleted":
            Job.objects.all().delete()
        else:
            pausing.pause(job, "theirs", FAR if change == "longer" else None)
        return lock(*args, **options)

    monkeypatch.setattr(switching, "lock_cursors", lock_after_another_user)
    assert end_pauses() == 0
    assert caplog.messages == []
    if change != "deleted":
        row = reread(job)
        assert (row.enabled, row.paused_until) == (
            change == "resumed",
            FAR if change == "longer" else None,
        )


def test_end_pauses_is_limited_to_the_given_jobs_and_batch_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [paused_until(seconds_ago(number + 1)) for number in range(3)]
    only = Job.objects.using("default").in_shards([jobs[0].pk % 64], 64)
    assert pausing.end_pauses(only) == 1
    assert list(Job.objects.filter(enabled=True)) == [jobs[0]]
    monkeypatch.setattr(pausing, "SWITCHED_AT_ONCE", 1)
    assert [end_pauses() for _ in range(3)] == [1, 1, 0]


@pytest.mark.django_db(transaction=True)
def test_concurrent_nodes_end_a_pause_once() -> None:
    job = paused_until(seconds_ago(1))
    together = threading.Barrier(4)
    ended: list[int] = []

    def node() -> None:
        together.wait(TIMEOUT)
        try:
            ended.append(end_pauses())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=node) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert sorted(ended) == [0, 0, 0, 1]
    assert reread(job).version == job.version + 1


# --- changes written without save ---------------------------------------------------------------


def test_move_outdated_cursors_places_a_job_created_without_save() -> None:
    job = Job.objects.create(name="new", schedule="* * * * * *", target="tests.app.tasks.ok")
    now = database_now("default")
    assert move_outdated_cursors(now, Job.objects.using("default")) == 1
    assert move_outdated_cursors(now, Job.objects.using("default")) == 0
    cursor = cursor_of(job)
    assert cursor.next_at is not None
    assert cursor.next_at > now
    assert Statistics.objects.filter(pk=job.pk).exists()


def test_move_outdated_cursors_withdraws_future_runs_of_a_changed_job() -> None:
    job = make_job()
    claimed = claim_ahead(job)
    Job.objects.filter(pk=job.pk).update(schedule="0 0 1 1 *")
    move_outdated_cursors(min(run.scheduled_at for run in claimed), Job.objects.using("default"))
    assert Run.objects.filter(job=job).count() == 1


def test_move_outdated_cursors_disables_a_job_without_further_occurrences() -> None:
    job = make_idle_job()
    Job.objects.filter(pk=job.pk).update(schedule="@at 2020-01-01T00:00")
    move_outdated_cursors(database_now("default"), Job.objects.using("default"))
    assert (reread(job).enabled, reread(job).pause_reason) == (False, EXHAUSTED)
    assert placement.matches_definition(cursor_of(job), reread(job))
    assert move_outdated_cursors(database_now("default"), Job.objects.using("default")) == 0


def test_invalid_jobs_do_not_delay_others_in_move_outdated_cursors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursors, "MOVED_AT_ONCE", 2)
    now = database_now("default")
    for n in range(6):
        schedule = "nonsense" if n < 4 else "@daily"
        Job.objects.create(name=f"job-{n}", schedule=schedule, target="t")
    assert [move_outdated_cursors(now, Job.objects.using("default")) for _ in range(4)] == [
        2,
        2,
        2,
        0,
    ]
    problems = {cursor.name: cursor.problem for cursor in Cursor.objects.all()}
    assert [bool(problems[f"job-{n}"]) for n in range(6)] == [True] * 4 + [False] * 2
    assert "nonsense" in problems["job-0"]
    assert Job.objects.filter(enabled=True).count() == 6, "quarantined, not disabled"


def test_unexpected_error_quarantines_only_the_affected_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = make_idle_job(), make_idle_job()
    Job.objects.update(schedule="@daily")
    original = placement.timetable_of

    def timetable_of(job: Job) -> Timetable:
        return original(job) if job.pk == good.pk else 1 / 0  # type: ignore[return-value]

    monkeypatch.setattr(placement, "timetable_of", timetable_of)
    assert move_outdated_cursors(database_now("default"), Job.objects.using("default")) == 2
    assert cursor_of(bad).problem == "ZeroDivisionError: division by zero"
    assert cursor_of(good).problem == ""
    assert logged(caplog, "quarantined", job=str(bad))


def test_move_outdated_cursors_ignores_a_job_deleted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Job.objects.create(name="new", schedule="@daily", target="t")
    original = saving.transaction.atomic

    def deleting(**options: Any) -> Any:
        Job.objects.all()._raw_delete("default")
        return original(**options)

    monkeypatch.setattr(saving.transaction, "atomic", deleting)
    assert move_outdated_cursors(database_now("default"), Job.objects.using("default")) == 0


def test_move_outdated_cursors_is_limited_to_the_given_jobs() -> None:
    own, other = (
        Job.objects.create(name=name, schedule="@daily", target="t") for name in ("a", "b")
    )
    jobs = Job.objects.using("default")
    now = database_now("default")
    assert move_outdated_cursors(now, jobs.in_shards([(other.pk + 1) % 64], 64)) == 0
    assert move_outdated_cursors(now, jobs.in_shards([own.pk % 64], 64)) == 1
    assert move_outdated_cursors(now, jobs.filter(namespace="another")) == 0
    assert list(Cursor.objects.values_list("pk", flat=True)) == [own.pk]
    Job.objects.update(schedule="@hourly")
    assert move_outdated_cursors(now, jobs.in_shards([other.pk % 64], 64)) == 1
    assert move_outdated_cursors(now, jobs) == 1


# --- auto-pause ---------------------------------------------------------------------------------


def failing(**fields: Any) -> Job:
    job = make_idle_job(pause_after_failures=2, **fields)
    Statistics.objects.filter(pk=job.pk).update(consecutive_failures=2)
    return job


def test_job_that_keeps_failing_is_paused_once(caplog: pytest.LogCaptureFixture) -> None:
    """A worker may be killed after it recorded the failure and before it paused the job."""
    job, healthy = failing(), make_idle_job(pause_after_failures=2)
    assert pausing.pause_failing_jobs(Job.objects.using("default")) == 1
    assert pausing.pause_failing_jobs(Job.objects.using("default")) == 0
    assert (reread(job).enabled, reread(job).pause_reason) == (
        False,
        "paused automatically after 2 consecutive failed runs",
    )
    assert reread(healthy).enabled
    assert logged(caplog, "auto_paused", "2 consecutive failed runs", job=str(job))


@pytest.mark.parametrize("how", ["resume", "save", "update"])
def test_failure_count_is_reset_when_the_job_is_resumed(how: str) -> None:
    job = failing()
    jobs = Job.objects.using("default")
    pausing.pause_failing_jobs(jobs)
    job = reread(job)
    if how == "resume":
        pausing.resume(job)
    elif how == "save":
        job.enabled, job.pause_reason = True, ""
        saving.save(job)
    else:
        jobs.update(enabled=True)
        assert pausing.pause_failing_jobs(jobs) == 0, "not before move_outdated_cursors"
        move_outdated_cursors(database_now("default"), jobs)
    assert Statistics.objects.get().consecutive_failures == 0
    assert pausing.pause_failing_jobs(jobs) == 0
    assert reread(job).enabled


def ended_job_with_backfill(**fields: Any) -> Job:
    job = make_job(schedule="0 * * * *", **fields)
    begin = datetime(2025, 1, 15, 12, tzinfo=UTC)
    control.backfill(job, begin, begin + timedelta(hours=2))
    Cursor.objects.filter(pk=job.pk).update(next_at=None)
    Job.objects.filter(pk=job.pk).update(ends_at=begin + timedelta(days=1))
    move_outdated_cursors(database_now("default"), Job.objects.using("default"))
    job = reread(job)
    assert (job.enabled, job.pause_reason) == (False, EXHAUSTED)
    return job


def finished_job() -> Job:
    job = make_job(schedule="@at 2083-01-01T00:00Z")
    disable_exhausted([job.pk], "default")
    assert reread(job).is_finished
    return reread(job)


@pytest.mark.parametrize("field", ["schedule", "after"])
def test_finished_job_with_new_occurrences_is_enabled_again(field: str) -> None:
    job = finished_job()
    setattr(job, field, "@daily" if field == "schedule" else {make_job(name="first").name: "ended"})
    control.save(job)
    row = reread(job)
    assert (job.enabled, job.pause_reason) == (row.enabled, row.pause_reason) == (True, "")
    assert Cursor.objects.get(pk=job.pk).next_at is not None


@pytest.mark.parametrize(
    "change",
    [{"schedule": "@at 2020-01-01T00:00Z"}, {"description": "Ran once."}],
    ids=["in the past", "not of its timing"],
)
def test_finished_job_without_new_occurrences_stays_finished(change: dict[str, str]) -> None:
    job = finished_job()
    job.schedule = "@at 2020-01-02T00:00Z"
    job = control.save(job)
    for name, value in change.items():
        setattr(job, name, value)
    control.save(job)
    assert job.is_finished
    assert reread(job).is_finished


def test_change_that_pauses_a_finished_job_does_not_enable_it() -> None:
    job = finished_job()
    job.schedule, job.pause_reason = "@daily", "not yet"
    control.save(job)
    assert (reread(job).enabled, reread(job).pause_reason) == (False, "not yet")


def test_refused_change_of_a_finished_job_leaves_the_instance_finished() -> None:
    job = finished_job()
    job.schedule = "@daily"
    Job.objects.filter(pk=job.pk).update(version=F("version") + 1)
    with pytest.raises(Conflict):
        control.save(job)
    assert job.is_finished


def test_failed_save_of_a_finished_job_leaves_the_instance_finished() -> None:
    def fail(**signal: Any) -> None:
        raise RuntimeError

    job = finished_job()
    job.schedule = "@daily"
    post_save.connect(fail, sender=Job)
    try:
        with pytest.raises(RuntimeError):
            control.save(job)
    finally:
        post_save.disconnect(fail, sender=Job)
    assert job.is_finished
    control.save(job)
    assert reread(job).enabled


def test_failing_backfill_is_paused_even_if_the_schedule_has_ended() -> None:
    job = ended_job_with_backfill(pause_after_failures=2)
    jobs = Job.objects.using("default")
    assert pausing.pause_failing_jobs(jobs) == 0
    Statistics.objects.update(consecutive_failures=2)
    assert pausing.pause_failing_jobs(jobs) == 1
    assert reread(job).pause_reason == "paused automatically after 2 consecutive failed runs"
    assert pausing.pause_failing_jobs(jobs) == 0
    resumed = pausing.resume(reread(job))
    assert (resumed.enabled, resumed.pause_reason) == (False, EXHAUSTED)
    assert Statistics.objects.get().consecutive_failures == 0
    assert pausing.pause_failing_jobs(jobs) == 0


def test_ended_schedule_without_backfill_is_neither_paused_nor_resumed() -> None:
    job = ended_job_with_backfill(pause_after_failures=2)
    Run.objects.all().delete()
    Statistics.objects.update(consecutive_failures=2)
    assert pausing.pause_failing_jobs(Job.objects.using("default")) == 0
    with refusal(NotPossible, "nothing_to_run", job=job):
        pausing.resume(job)


def test_manually_paused_backfill_of_an_ended_schedule_is_resumed() -> None:
    job = pausing.pause(ended_job_with_backfill(), "not now")
    version = job.version
    assert (job.enabled, job.pause_reason) == (False, "not now")
    pausing.resume(job)
    row = reread(job)
    assert (row.enabled, row.pause_reason) == (False, EXHAUSTED)
    assert (row.version, job.version, job.pause_reason) == (
        version + 2,
        version + 2,
        EXHAUSTED,
    )
    assert Cursor.objects.get().enabled is False


# --- concurrency --------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_one_of_several_concurrent_saves_succeeds() -> None:
    job = make_job()
    together = threading.Barrier(4)
    won: list[str] = []
    refused: list[Exception] = []

    def admin(name: str) -> None:
        own_copy = reread(job)
        own_copy.description = name
        together.wait(TIMEOUT)
        try:
            saving.save(own_copy)
            won.append(name)
        except Conflict as error:
            refused.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=admin, args=(f"admin-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert (len(won), len(refused)) == (1, 3)
    assert (reread(job).description, reread(job).version) == (won[0], 2)
