"""Test the handover from the real django-celery-beat and back, without gaps or extra runs."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from django_dcron import control
from django_dcron.contrib.importers import celery_beat, handback
from django_dcron.contrib.importers.entry_plans import EntryPlan
from django_dcron.contrib.importers.source_contents import WRITE_DELAY
from django_dcron.contrib.importers.writing import CONTINUES, apply_entry_plans
from django_dcron.diagnosis.doctor.report import MANY_PAUSES
from django_dcron.jobs import placement
from django_dcron.jobs.batch_reading import ORIGIN
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.management.dcron import importing
from django_dcron.management.dcron.doctor import _disabled_text
from django_dcron.management.dcron.exits import NEGATIVE
from django_dcron.models import AuditEntry, Cursor, Job, Node, Run
from django_dcron.models.job_states import ARRIVED_PAUSED, EXHAUSTED, HANDED_BACK
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.targets.redaction import CHANGED_MASK, MASK
from django_dcron.testing import run_due, set_clock
from django_dcron.utils.docs_links import with_link
from tests.celery_app import app
from tests.contrib.importers.beat_rows import Window, clocked, fill
from tests.contrib.importers.conftest import Install
from tests.factories import forget_entries, make_idle_job, make_job, make_run
from tests.management.calling import call

pytestmark = [pytest.mark.django_db, pytest.mark.celery_beat]

SOURCE = "django-celery-beat"
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module", autouse=True)
def tables(install: Install) -> None:
    install("django_celery_beat")


def crontab_row(name: str = "a", minute: str = "*", hour: str = "*") -> Any:
    from django_celery_beat.models import CrontabSchedule, PeriodicTask

    schedule, _ = CrontabSchedule.objects.get_or_create(minute=minute, hour=hour, timezone="UTC")
    return PeriodicTask.objects.create(name=name, task="tests.app.tasks.echo", crontab=schedule)


def twelve_hours_from_now() -> dict[str, str]:
    """Return a time of day that doesn't come during the test."""
    return {"minute": "0", "hour": str((datetime.now(UTC) + timedelta(hours=12)).hour)}


def last_due(name: str) -> datetime:
    last = Job.objects.get(name=name).parsed_schedule.previous_before(datetime.now(UTC))
    assert last is not None
    return last


def last_run_of(**filters: Any) -> datetime:
    from django_celery_beat.models import PeriodicTask

    return PeriodicTask.objects.values_list("last_run_at", flat=True).get(**filters)


def set_last_run(ago: timedelta) -> datetime:
    """Set beat's last run of all rows, as if the jobs had been imported before it."""
    from django_celery_beat.models import PeriodicTask

    last = datetime.now(UTC) - ago
    PeriodicTask.objects.update(last_run_at=last)
    Cursor.objects.update(placed_at=last - timedelta(hours=1))
    return last


def due_at_beat(at: datetime | None = None) -> list[str]:
    """Return the rows that the real scheduler of beat would send at this time, or now."""
    from django_celery_beat.models import PeriodicTask
    from django_celery_beat.schedulers import ModelEntry

    rows = PeriodicTask.objects.enabled().order_by("name")
    entries = [ModelEntry(row, app=app) for row in rows]
    for entry in entries if at else ():
        entry.schedule.nowfun = lambda: at
    return [entry.name for entry in entries if entry.is_due().is_due]


def test_handed_over_job_continues_after_the_last_run_of_the_source() -> None:
    crontab_row()
    assert call("import", SOURCE, "--apply", "--disabled").code == 0
    last = set_last_run(10 * MINUTE)

    dry_run = call("handover", SOURCE)
    assert (dry_run.code, dry_run.err) == (0, "")
    assert f"{SOURCE} must be stopped" in dry_run.out
    assert "manage.py runcron" in dry_run.out, "no node is running"
    assert not Job.objects.get().enabled

    assert call("handover", SOURCE, "--apply").code == 0
    job = Job.objects.get()
    assert (job.enabled, job.paused_until) == (True, None)
    spans = Run.objects.filter(job=job).values_list("scheduled_at", "missed_from", "state")
    assert min(first or at for at, first, _ in spans) == (last + MINUTE).replace(
        second=0, microsecond=0
    )
    # The misfire policy replaces the late runs by one run.
    assert sum(state != State.MISSED for *_, state in spans) <= 3
    assert job.cursor.next_at > max(at for at, *_ in spans)


def test_latest_unexecuted_run_of_a_shadow_is_rerun() -> None:
    crontab_row()
    assert call("import", SOURCE, "--apply", "--shadow").code == 0
    last = set_last_run(10 * MINUTE)
    job = Job.objects.get()
    for ago in (12, 5, 3):
        at = datetime.now(UTC).replace(microsecond=0) - ago * MINUTE
        Run.objects.create(
            job=job,
            scheduled_at=at,
            due_at=at,
            claimed_at=at,
            trigger=Trigger.SCHEDULE,
            state=State.SUCCEEDED,
        )
    assert call("handover", SOURCE, "--apply").code == 0
    again = Run.objects.get(trigger=Trigger.RERUN)
    assert again.rerun_of is not None
    assert again.rerun_of.scheduled_at == max(
        Run.objects.filter(trigger=Trigger.SCHEDULE, state=State.SUCCEEDED).values_list(
            "scheduled_at", flat=True
        )
    )
    assert again.rerun_of.scheduled_at > last
    assert again.job.target == "tests.app.tasks.echo"


@pytest.mark.parametrize("is_disabled_in_source", [True, False])
@pytest.mark.parametrize("mode", ["--shadow", "--disabled"])
def test_handover_runs_no_paused_job(mode: str, is_disabled_in_source: bool) -> None:
    """A row was disabled in the source, or a person paused the imported job.

    Its last occurrence, five minutes ago, has no run. The next one doesn't come during the test.
    """
    row = crontab_row(minute=str((datetime.now(UTC) - 5 * MINUTE).minute))
    row.enabled = not is_disabled_in_source
    row.save()
    assert call("import", SOURCE, "--apply", mode).code == 0
    if not is_disabled_in_source:
        control.pause(Job.objects.get(), "person")
    set_last_run(10 * MINUTE)

    # Neither scheduler runs an entry that is enabled there and whose job is paused here.
    is_idle = not is_disabled_in_source
    assert call("handover", SOURCE).code == is_idle
    for option in ("--json", "--verbosity=1"):
        done = call("handover", SOURCE, "--apply", option)
        assert (done.code, "No job runs now: 1 job stays paused" in done.err) == (is_idle, is_idle)

    job = Job.objects.get()
    assert (job.target, job.enabled, job.paused_until) == ("tests.app.tasks.echo", False, None)
    assert job.pause_reason
    assert run_due() == []
    assert not Run.objects.exists()


@pytest.mark.parametrize("reason", [[], ["--reason", "acme left"]])
@pytest.mark.parametrize("waits", ["imported", "handed back"])
def test_handover_keeps_jobs_paused_that_were_paused_by_name(waits: str, reason: list[str]) -> None:
    for name in ("p-1", "p-2", "other"):
        crontab_row(name, **twelve_hours_from_now())
    call("import", SOURCE, "--apply", *(["--disabled"] if waits == "imported" else []))
    if waits == "handed back":
        assert hand_back() == (0, {"jobs": ["other", "p-1", "p-2"]})
        assert "already paused other\n" in call("handover", SOURCE, "--back").out
    skipped = call("pause", "*", "--reason", "deploy", "--yes").out
    assert "skipped 3 jobs" in skipped
    assert "paused until the handover" in skipped
    assert call("resume", "*", "--reason", "deploy", "--yes").code == 1, "none has this reason"
    assert enabled_jobs() == [], "the old scheduler still runs their work"
    assert call("pause", "p-1", "p-2", *reason).code == 0

    assert call("handover", SOURCE, "--apply").code == 0

    assert enabled_jobs() == ["other"]


def test_resume_of_many_jobs_does_not_anticipate_the_handover() -> None:
    for name in ("a", "b"):
        crontab_row(name, **twelve_hours_from_now())
    call("import", SOURCE, "--apply", "--disabled")
    make_job(name="mine", enabled=False, pause_reason="deploy")

    shown = call("resume", "--all", "--yes", "--json").json

    assert [each["job"] for each in shown["skipped"]] == ["a", "b"]
    assert enabled_jobs() == ["mine"], "the old scheduler still runs the work of the others"
    (by_name,) = call("resume", "a", "--json").json["results"]
    assert enabled_jobs() == ["a", "mine"]
    assert "twice" in by_name["cautions"][0]["message"]


def test_handover_of_a_row_that_was_never_imported_keeps_it_paused() -> None:
    row = crontab_row()
    row.enabled = False
    row.save()
    set_last_run(10 * MINUTE)

    assert call("handover", SOURCE, "--apply").code == 0

    assert not Job.objects.get().enabled
    assert run_due() == []
    assert not Run.objects.exists()


def test_import_without_handover_starts_from_now() -> None:
    crontab_row()
    call("import", SOURCE, "--apply", "--disabled")
    set_last_run(10 * MINUTE)
    assert call("import", SOURCE, "--apply").code == 0
    assert not Run.objects.exists()


def test_handover_back_pauses_jobs_and_updates_last_runs() -> None:
    for name in ("a", "b", "paused"):
        crontab_row(name, **twelve_hours_from_now())
    call("import", SOURCE, "--apply")
    control.pause(Job.objects.get(name="paused"), "ask Ann")
    set_last_run(timedelta(days=3))
    assert due_at_beat() == ["a", "b", "paused"]

    shown = call("handover", SOURCE, "--back", "--json").json
    assert [job["name"] for job in shown["jobs"]] == ["a", "b"]
    assert [job["name"] for job in shown["paused_here"]] == ["paused"]
    lines = call("handover", SOURCE, "--back").out.splitlines()
    assert lines[2].startswith("! paused "), "after the jobs that are handed back"
    assert Job.objects.filter(enabled=True).count() == 2

    assert call("handover", SOURCE, "--back", "--apply").code == 1
    assert last_run_of(name="a") == last_due("a")
    assert due_at_beat() == ["paused"]
    reasons = dict(Job.objects.values_list("name", "pause_reason"))
    assert reasons == {"a": HANDED_BACK, "b": HANDED_BACK, "paused": "ask Ann"}

    crontab_row("new", **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply").code == 0
    assert not Job.objects.filter(enabled=True).exists(), "beat runs all of them, also the new one"
    assert call("handover", SOURCE, "--apply").code == 0
    enabled = Job.objects.filter(enabled=True).values_list("name", flat=True)
    assert set(enabled) == {"a", "b", "new"}


@pytest.mark.parametrize("others", [[], ["b"]])
def test_job_that_is_restored_after_the_handback_waits_for_the_handover(others: list[str]) -> None:
    for name in ("a", *others):
        crontab_row(name, **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply").code == 0
    control.delete(Job.objects.get(name="a"))
    assert call("handover", SOURCE, "--back", "--apply").code == 1
    assert last_run_of(name="a") is None, "beat runs the row from now on"

    planned = call("revert", "a", "--dry-run", "--json").json
    restored = call("revert", "a")

    assert SOURCE in planned["cautions"][0]["message"]
    assert planned["cautions"][0]["message"] in restored.out
    job = Job.objects.get(name="a")
    assert (job.enabled, job.awaits_handover, job.paused_until) == (False, True, None)
    assert call("handover", SOURCE, "--apply").code == 0
    assert enabled_jobs() == ["a", *others]


def test_job_that_is_deleted_during_the_handback_is_listed_and_waits_if_it_is_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("a", "b", "paused"):
        crontab_row(name, **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply").code == 0
    control.pause(Job.objects.get(name="paused"), "ask Ann", datetime(2090, 1, 1, tzinfo=UTC))
    monkeypatch.setattr(handback, "SWITCHED_AT_ONCE", 1)
    stored = celery_beat.hand_back

    def before_deletions(ran_until: Mapping[str, datetime | None]) -> set[str]:
        for job in Job.objects.filter(name__in=["b", "paused"]):
            control.delete(job)
        return stored(ran_until)

    monkeypatch.setattr(celery_beat, "hand_back", before_deletions)
    result = call("handover", SOURCE, "--back", "--apply", "--json")

    assert result.code == 1
    assert "disable there: b (deleted here), paused (deleted here)." in result.err
    assert "continues here" not in result.err
    shown = {key: [each["name"] for each in result.json[key]] for key in ("jobs", "failed")}
    assert shown == {"jobs": ["a"], "failed": []}
    for name in ("b", "paused"):
        assert SOURCE in call("revert", name, "--json").json["cautions"][0]["message"]
    assert Job.objects.get(name="b").awaits_handover
    assert not Job.objects.filter(paused_until__isnull=False).exists()


@pytest.mark.parametrize("is_gone", [True, False])
def test_job_without_an_enabled_entry_is_enabled_if_it_is_restored_after_the_handback(
    is_gone: bool,
) -> None:
    """Beat doesn't run its entry, so neither scheduler would do the work."""
    from django_celery_beat.models import PeriodicTask

    for name in ("a", "b"):
        crontab_row(name, **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply").code == 0
    control.delete(Job.objects.get(name="a"))
    row = PeriodicTask.objects.filter(name="a")
    if is_gone:
        row.delete()
    else:
        row.update(enabled=False)
    assert hand_back() == (0, {"jobs": ["b"]})

    assert call("revert", "a").code == 0

    assert enabled_jobs() == ["a"]


def test_handover_keeps_the_pause_of_a_job_that_is_restored_after_the_handback() -> None:
    """The pause has no end, because the source may still do the work then."""
    for name in ("a", "b"):
        crontab_row(name, **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply").code == 0
    job = Job.objects.get(name="a")
    control.pause(job, "ask Ann", datetime(2090, 1, 1, tzinfo=UTC))
    control.delete(job)
    assert call("handover", SOURCE, "--back", "--apply").code == 1

    (caution,) = call("revert", "a", "--json").json["cautions"]

    assert SOURCE in caution["message"]
    assert call("handover", SOURCE, "--apply").code == 0
    job = Job.objects.get(name="a")
    assert (job.enabled, job.pause_reason, job.paused_until) == (False, "ask Ann", None)


def test_shadow_that_is_restored_after_the_handback_is_enabled() -> None:
    """It executes nothing, and records when it would run."""
    crontab_row("a", **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply", "--shadow").code == 0
    control.delete(Job.objects.get())
    assert call("handover", SOURCE, "--back", "--apply").code == 1

    assert call("revert", "a").code == 0

    assert enabled_jobs() == ["a"]


@pytest.mark.parametrize("option", ["--disabled", "--shadow"])
def test_job_that_is_restored_after_it_missed_the_handover_needs_another_one(option: str) -> None:
    for name in ("a", "b"):
        crontab_row(name, **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply", option).code == 0
    control.delete(Job.objects.get(name="a"))
    assert call("handover", SOURCE, "--apply").code == 0

    planned = call("revert", "a", "--dry-run", "--json").json["cautions"]
    (caution,) = call("revert", "a", "--json").json["cautions"]

    assert [caution] == planned
    assert f"manage.py dcron handover {SOURCE}" in caution["message"]
    assert call("handover", SOURCE, "--apply").code == 0
    assert set(Job.objects.values_list("enabled", "target")) == {(True, "tests.app.tasks.echo")}


@pytest.mark.parametrize("option", ["--disabled", "--shadow"])
def test_job_that_is_restored_before_the_handover_needs_no_other_one(option: str) -> None:
    crontab_row("a", **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply", option).code == 0
    control.delete(Job.objects.get())
    cautions = call("revert", "a", "--json").json["cautions"]
    assert not any("dcron handover" in each["message"] for each in cautions)


def test_job_that_is_restored_after_the_handover_is_enabled() -> None:
    """Other jobs still wait, because their entries are disabled in the source or gone."""
    from django_celery_beat.models import PeriodicTask

    for name in ("a", "disabled", "gone"):
        crontab_row(name, **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply").code == 0
    control.delete(Job.objects.get(name="a"))
    assert call("handover", SOURCE, "--back", "--apply").code == 1
    PeriodicTask.objects.filter(name="disabled").update(enabled=False)
    PeriodicTask.objects.filter(name="gone").delete()
    call("handover", SOURCE, "--apply")
    assert enabled_jobs() == []

    assert call("revert", "a").code == 0

    assert enabled_jobs() == ["a"]
    crontab_row("new", **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply").code == 0
    assert enabled_jobs() == ["a", "new"]


def test_earlier_deletion_is_undone_as_a_later_one_while_the_source_works() -> None:
    """The import has created the job again, as paused, and it was deleted again."""
    for name in ("a", "b"):
        crontab_row(name, **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply").code == 0
    control.delete(Job.objects.get(name="a"))
    earlier = AuditEntry.objects.get(action="delete")
    assert call("handover", SOURCE, "--back", "--apply").code == 1
    assert call("import", SOURCE, "--apply", "--restore", "a").code == 0
    control.delete(Job.objects.get(name="a"))

    assert control.restore(earlier).awaits_handover


def test_script_starts_the_source_only_if_it_repeats_no_work() -> None:
    """Otherwise, beat would send a mail again that was sent here, or run what a person stopped."""
    from django_celery_beat.models import PeriodicTask

    for name in ("a", "deleted", "mail", "paused"):
        crontab_row(name, **twelve_hours_from_now())
    PeriodicTask.objects.filter(name="mail").update(one_off=True)
    assert call("import", SOURCE, "--apply").code == 0
    control.pause(Job.objects.get(name="paused"), "ask Ann")
    control.delete(Job.objects.get(name="deleted"))
    mail = Job.objects.get(name="mail")
    Job.objects.filter(pk=mail.pk).update(enabled=False, pause_reason=EXHAUSTED)
    back = ("handover", SOURCE, "--back")
    for result in (call(*back), call(*back, "--apply"), call(*back, "--apply", "--json")):
        assert result.code == 1
        listed = "deleted (deleted here), mail (has run here), paused (paused here)"
        assert f"disable there: {listed}." in result.err
        assert f"Start {SOURCE} now" not in result.out
    assert call(*back, "--json").json["deleted_here"] == [
        {"namespace": "default", "name": "deleted"}
    ]
    assert "! deleted was deleted here" in call(*back).out
    PeriodicTask.objects.exclude(name="a").update(enabled=False)
    repeated = call(*back, "--apply")
    assert (repeated.code, repeated.err) == (0, "")
    assert f"Start {SOURCE} now" in repeated.out


def test_interval_keeps_its_phase_when_handed_back() -> None:
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    every = IntervalSchedule.objects.create(every=7, period="days")
    last = datetime.now(UTC) - timedelta(days=6)
    for name in ("ran here", "not yet"):
        PeriodicTask.objects.create(
            name=name, task="tests.app.tasks.echo", interval=every, last_run_at=last
        )
    call("import", SOURCE, "--apply")
    here = datetime.now(UTC) - timedelta(hours=5)
    Cursor.objects.filter(job__name="ran here").update(previous_at=here)
    assert call("handover", SOURCE, "--back", "--apply").code == 0
    assert last_run_of(name="ran here") == here
    # The job began at a whole second.
    assert last <= last_run_of(name="not yet") < last + timedelta(seconds=1)


def hand_back() -> Any:
    """Hand all jobs back. Return the exit code, and the names of the jobs by outcome."""
    done = call("handover", SOURCE, "--back", "--apply", "--json")
    names = {key: [job["name"] for job in done.json[key]] for key in ("jobs", "gone", "failed")}
    return done.code, {key: sorted(value) for key, value in names.items() if value}


def enabled_jobs() -> list[str]:
    return sorted(Job.objects.filter(enabled=True).values_list("name", flat=True))


def interval_row(name: str, **every: Any) -> Any:
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    ((period, number),) = every.items()
    schedule = IntervalSchedule.objects.create(every=number, period=period)
    return PeriodicTask.objects.create(name=name, task="tests.app.tasks.echo", interval=schedule)


def test_job_stays_enabled_if_handing_it_back_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {name: crontab_row(name, **twelve_hours_from_now()) for name in ("a", "b")}
    call("import", SOURCE, "--apply")
    set_last_run(timedelta(days=3))
    before = last_run_of(name="a")
    with monkeypatch.context() as patch:
        stored = celery_beat.hand_back

        def fail(ran_until: Mapping[str, datetime | None]) -> set[str]:
            if str(rows["a"].pk) in ran_until:
                raise ConnectionError("Redis is unreachable")
            return stored(ran_until)

        patch.setattr(celery_beat, "hand_back", fail)
        assert hand_back() == (1, {"jobs": ["b"], "failed": ["a"]})
    assert (enabled_jobs(), last_run_of(name="a")) == (["a"], before)
    first = last_run_of(name="b")
    assert first > before

    assert hand_back() == (0, {"jobs": ["a", "b"]})
    assert enabled_jobs() == []
    assert last_run_of(name="a") > before
    # The source runs the occurrences of b that are due in the meantime.
    assert last_run_of(name="b") == first


def test_repeated_handover_restores_a_lost_last_run() -> None:
    from django_celery_beat.models import PeriodicTask

    crontab_row("a", **twelve_hours_from_now())
    call("import", SOURCE, "--apply")
    assert hand_back() == (0, {"jobs": ["a"]})
    PeriodicTask.objects.update(last_run_at=None, date_changed=datetime(2026, 1, 1, tzinfo=UTC))
    assert due_at_beat() == ["a"]
    assert hand_back() == (0, {"jobs": ["a"]})
    assert last_run_of(name="a") == last_due("a")
    assert due_at_beat() == []


def test_run_that_never_happened_is_not_stored() -> None:
    """Nothing was due since the row was created, or since its last run."""
    from django_celery_beat.models import PeriodicTask

    for name in ("new", "ran there"):
        crontab_row(name, **twelve_hours_from_now())
    interval_row("weekly", days=7)
    crontab_row("starts later", **twelve_hours_from_now())
    start = datetime.now(UTC) + timedelta(days=3)
    PeriodicTask.objects.filter(name="starts later").update(start_time=start)
    ran_there = datetime.now(UTC) - timedelta(hours=1)
    PeriodicTask.objects.filter(name="ran there").update(last_run_at=ran_there)
    call("import", SOURCE, "--apply")
    assert hand_back() == (0, {"jobs": ["new", "ran there", "starts later", "weekly"]})
    assert (last_run_of(name="new"), last_run_of(name="ran there")) == (None, ran_there)
    assert last_run_of(name="starts later") is last_run_of(name="weekly") is None
    assert due_at_beat() == []


def test_run_of_a_row_with_a_start_is_stored_although_the_row_was_changed_later() -> None:
    """Beat would run a row at once that has a start and no last run."""
    from django_celery_beat.models import PeriodicTask

    with set_clock(datetime.now(UTC)) as clock:
        interval_row("weekly", days=7)
        PeriodicTask.objects.update(start_time=clock.now() - timedelta(days=1))
        assert call("import", SOURCE, "--apply").code == 0
        clock.advance(timedelta(seconds=1))
        [run] = run_due()
        changed = clock.now() + timedelta(minutes=1)
        PeriodicTask.objects.update(date_changed=changed)
        assert due_at_beat() == ["weekly"]
        clock.advance(timedelta(hours=1))
        assert hand_back() == (0, {"jobs": ["weekly"]})
    assert last_run_of(name="weekly") == run.scheduled_at
    assert due_at_beat() == []


def test_occurrence_that_no_node_claimed_is_executed_by_the_source() -> None:
    row = crontab_row("a", **twelve_hours_from_now())
    call("import", SOURCE, "--apply")
    set_last_run(timedelta(days=3))
    unclaimed = last_due("a")
    Cursor.objects.update(next_at=unclaimed)
    assert hand_back() == (0, {"jobs": ["a"]})
    row.refresh_from_db()
    assert row.last_run_at == unclaimed - timedelta(days=1)
    assert due_at_beat() == ["a"]
    assert_left_to_the_source(unclaimed)


def test_occurrences_of_an_interval_that_no_node_claimed_are_executed_by_the_source() -> None:
    interval_row("a", hours=1)
    call("import", SOURCE, "--apply")
    set_last_run(timedelta(days=3))
    unclaimed = (datetime.now(UTC) - timedelta(hours=3)).replace(microsecond=0)
    before = unclaimed - timedelta(hours=1)
    Cursor.objects.update(next_at=unclaimed, previous_at=before)
    assert hand_back() == (0, {"jobs": ["a"]})
    assert last_run_of(name="a") == before
    assert due_at_beat() == ["a"]
    assert_left_to_the_source(unclaimed)


def assert_left_to_the_source(first: datetime) -> None:
    """The occurrences from ``first`` on are accounted for, and none of them runs here, too."""
    runs = list(Run.objects.order_by("scheduled_at"))
    assert {run.state for run in runs} == {State.MISSED}
    assert min(run.missed_from or run.scheduled_at for run in runs) == first
    assert SOURCE in runs[-1].reason


def test_source_continues_with_its_own_schedule() -> None:
    """The job's schedule was changed here, and its last occurrence is a month ago."""
    crontab_row("a", **twelve_hours_from_now())
    call("import", SOURCE, "--apply")
    job = Job.objects.get()
    job.schedule = "0 0 1 * *"
    control.save(job)
    set_last_run(timedelta(days=90))
    schedule = parse_schedule(f"0 {twelve_hours_from_now()['hour']} * * *", "UTC")
    assert hand_back() == (0, {"jobs": ["a"]})
    assert last_run_of(name="a") == schedule.previous_before(datetime.now(UTC))
    assert due_at_beat() == []


def test_jobs_that_were_edited_here_are_listed_when_handed_back() -> None:
    for name in ("same", "schedule", "args", "invalid", "target", "queue"):
        crontab_row(name, minute="0", hour="4")
    call("import", SOURCE, "--apply")
    Job.objects.filter(name="schedule").update(schedule="30 5 * * *")
    Job.objects.filter(name="args").update(args=[7])
    Job.objects.filter(name="invalid").update(schedule="bogus")
    Job.objects.filter(name="target").update(target="tests.app.tasks.fail")
    Job.objects.filter(name="queue").update(queue="slow")
    lines = call("handover", SOURCE, "--back").out.splitlines()
    warnings = {
        line.split()[1]: line for line in lines if line.startswith("! ") and "differs" in line
    }
    assert set(warnings) == {"schedule", "args", "invalid", "target", "queue"}
    assert "target: tests.app.tasks.fail here, " in warnings["target"]
    assert "30 5 * * *" in warnings["schedule"]
    assert "0 4 * * *" in warnings["schedule"]
    assert "args: [7] here, [] there" in warnings["args"]
    edited = call("handover", SOURCE, "--back", "--json").json["edited"]
    assert {each["name"]: each["fields"] for each in edited} == {
        "schedule": ["schedule"],
        "args": ["args"],
        "invalid": ["schedule"],
        "target": ["target"],
        "queue": ["queue"],
    }


def test_secret_that_was_edited_here_is_marked_on_the_side_of_the_job() -> None:
    from django_celery_beat.models import PeriodicTask

    crontab_row(minute="0", hour="4")
    PeriodicTask.objects.update(kwargs='{"token": "old"}')
    call("import", SOURCE, "--apply")
    Job.objects.update(kwargs={"token": "new"})
    here, there = (json.dumps({"token": mask}) for mask in (CHANGED_MASK, MASK))
    assert f"kwargs: {here} here, {there} there\n" in call("handover", SOURCE, "--back").out
    (kept,) = [line for line in call("import", SOURCE).out.splitlines() if "kept a" in line]
    assert f"kwargs: {here} (" in kept
    assert f"source: {there})" in kept


def test_later_run_in_the_source_is_kept() -> None:
    from django_celery_beat.models import PeriodicTask

    crontab_row("a", **twelve_hours_from_now())
    call("import", SOURCE, "--apply")
    later = datetime.now(UTC) + timedelta(hours=1)
    PeriodicTask.objects.update(last_run_at=later)
    assert hand_back() == (0, {"jobs": ["a"]})
    assert last_run_of(name="a") == later


def test_job_whose_row_was_deleted_stays_enabled() -> None:
    rows = {name: crontab_row(name, **twelve_hours_from_now()) for name in ("a", "b")}
    call("import", SOURCE, "--apply")
    rows["a"].delete()
    assert hand_back() == (0, {"jobs": ["b"], "gone": ["a"]})
    assert enabled_jobs() == ["a"]


@pytest.mark.parametrize("is_one_off", [False, True])
def test_job_whose_row_is_disabled_is_not_handed_back(is_one_off: bool) -> None:
    from django_celery_beat.models import PeriodicTask

    for name in ("a", "b", "off"):
        crontab_row(name, **twelve_hours_from_now())
    call("import", SOURCE, "--apply")
    disabled = PeriodicTask.objects.filter(name__in=["b", "off"])
    disabled.update(enabled=False, one_off=is_one_off)
    control.pause(Job.objects.get(name="off"), "ask Ann")
    assert enabled_jobs() == ["a", "b"]

    preview = call("handover", SOURCE, "--back")
    failed = [line for line in preview.out.splitlines() if line.startswith("failed")]
    assert (preview.code, [line.split()[1] for line in failed]) == (1, ["b"])
    for _repetition in range(2):
        assert hand_back() == (1, {"jobs": ["a"], "failed": ["b"]})
        assert enabled_jobs() == ["b"]


def test_job_that_was_resumed_here_runs_through_a_whole_cycle() -> None:
    from django_celery_beat.models import PeriodicTask

    for name in ("a", "b"):
        crontab_row(name, **twelve_hours_from_now())
    row = PeriodicTask.objects.filter(name="b")
    row.update(enabled=False)
    call("import", SOURCE, "--apply")
    control.resume(Job.objects.get(name="b"))
    assert hand_back() == (1, {"jobs": ["a"], "failed": ["b"]})
    assert call("handover", SOURCE, "--apply").code == 0
    assert enabled_jobs() == ["a", "b"]

    row.update(enabled=True)
    assert hand_back() == (0, {"jobs": ["a", "b"]})
    assert call("handover", SOURCE, "--apply").code == 0
    assert enabled_jobs() == ["a", "b"]


def test_job_whose_row_is_deleted_during_the_handover_stays_enabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from django_celery_beat.models import PeriodicTask

    rows = [crontab_row(name, **twelve_hours_from_now()) for name in ("a", "b")]
    call("import", SOURCE, "--apply")
    stored = celery_beat.hand_back

    def after_deletion(ran_until: Mapping[str, datetime | None]) -> set[str]:
        PeriodicTask.objects.filter(pk=rows[0].pk).delete()
        return stored(ran_until)

    # A separate connection would delete the row. Here, the rollback of the batch restores it.
    monkeypatch.setattr(celery_beat, "hand_back", after_deletion)
    assert hand_back() == (0, {"jobs": ["b"], "gone": ["a"]})
    assert enabled_jobs() == ["a"]


def test_job_without_a_key_is_handed_back_by_name() -> None:
    crontab_row("a", **twelve_hours_from_now())
    call("import", SOURCE, "--apply")
    Job.objects.update(import_key=None)
    set_last_run(timedelta(days=3))
    assert hand_back() == (0, {"jobs": ["a"]})
    assert last_run_of(name="a") == last_due("a")


def test_many_jobs_are_handed_back_in_few_queries(django_assert_max_num_queries: Any) -> None:
    for number in range(40):
        crontab_row(f"row {number}", **twelve_hours_from_now())
    call("import", SOURCE, "--apply")
    with django_assert_max_num_queries(60):
        assert hand_back()[0] == 0
    assert enabled_jobs() == []


def test_interval_that_never_ran_is_handed_back_with_its_start() -> None:
    interval_row("a", minutes=5)
    call("import", SOURCE, "--apply")
    set_last_run(timedelta(hours=1))
    expected = Job.objects.get().cursor.next_at - 5 * MINUTE
    assert hand_back() == (0, {"jobs": ["a"]})
    assert last_run_of(name="a") == expected


def claim_ahead(job: Job, state: State) -> datetime:
    """Claim an occurrence of an interval of an hour that is due soon, as a node does."""
    at = (datetime.now(UTC) + 10 * MINUTE).replace(microsecond=0)
    Cursor.objects.filter(pk=job.pk).update(previous_at=at, next_at=at + timedelta(hours=1))
    Run.objects.create(job=job, scheduled_at=at, due_at=at, claimed_at=at, state=state)
    return at


def test_withdrawn_occurrence_is_executed_by_the_source() -> None:
    interval_row("a", hours=1)
    call("import", SOURCE, "--apply")
    at = claim_ahead(Job.objects.get(), State.PENDING)
    set_last_run(timedelta(hours=3))
    assert hand_back() == (0, {"jobs": ["a"]})
    assert not Run.objects.filter(scheduled_at=at).exists()
    assert last_run_of(name="a") == at - timedelta(hours=1)


def test_dispatched_occurrence_does_not_run_again_in_the_source() -> None:
    interval_row("a", hours=1)
    call("import", SOURCE, "--apply")
    at = claim_ahead(Job.objects.get(), State.QUEUED)
    assert hand_back() == (0, {"jobs": ["a"]})
    assert last_run_of(name="a") == at


def test_invalid_schedule_does_not_affect_other_jobs() -> None:
    for name in ("invalid", "without cursor", "z"):
        crontab_row(name, **twelve_hours_from_now())
    call("import", SOURCE, "--apply")
    Job.objects.filter(name="invalid").update(schedule="bogus")
    Cursor.objects.filter(job__name="without cursor").delete()
    assert hand_back() == (1, {"jobs": ["without cursor", "z"], "failed": ["invalid"]})
    assert enabled_jobs() == ["invalid"]


def test_interval_without_a_cursor_is_handed_back() -> None:
    interval_row("a", minutes=5)
    call("import", SOURCE, "--apply")
    set_last_run(timedelta(hours=1))
    Cursor.objects.all().delete()
    assert hand_back() == (0, {"jobs": ["a"]})
    assert last_run_of(name="a") == Job.objects.get().cursor.placed_at


def test_new_row_is_imported_and_continues_after_its_last_run() -> None:
    crontab_row()
    last = set_last_run(10 * MINUTE)
    assert call("handover", SOURCE, "--apply").code == 0
    job = Job.objects.get()
    assert (job.enabled, job.pause_reason, job.paused_until) == (True, "", None)
    spans = Run.objects.filter(job=job).values_list("scheduled_at", "missed_from")
    assert min(first or at for at, first in spans) == (last + MINUTE).replace(
        second=0, microsecond=0
    )
    assert job.cursor.next_at > max(at for at, _ in spans)


@pytest.mark.parametrize("first", [["--disabled"], ["--shadow"], None])
def test_many_jobs_are_handed_over_in_few_queries(
    first: list[str] | None, django_assert_max_num_queries: Any
) -> None:
    for number in range(40):
        crontab_row(f"row {number}")
    if first:
        call("import", SOURCE, "--apply", *first)
    last = set_last_run(10 * MINUTE)
    with django_assert_max_num_queries(100):
        assert call("handover", SOURCE, "--apply").code == 0
    jobs = Job.objects.filter(enabled=True, pause_reason="", target="tests.app.tasks.echo")
    assert jobs.count() == 40
    if first == ["--shadow"]:  # it ran nothing that has to be repeated
        return
    for job in jobs.prefetch_related("runs"):
        spans = [run.missed_from or run.scheduled_at for run in job.runs.all()]
        assert min(spans) == (last + MINUTE).replace(second=0, microsecond=0)
        assert str(job.cursor.next_at) > max(str(run.scheduled_at) for run in job.runs.all())


def test_refused_job_does_not_affect_the_handover_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("bad", "good"):
        crontab_row(name)
    call("import", SOURCE, "--apply", "--disabled")
    crontab_row("new")
    last = set_last_run(10 * MINUTE)
    decide = placement.decide_placement

    def decide_all_but_one(job: Job, *args: Any, **options: Any) -> placement.Placement:
        if job.name == "bad" and job.enabled:
            raise OverflowError("too large")
        return decide(job, *args, **options)

    monkeypatch.setattr(placement, "decide_placement", decide_all_but_one)
    done = call("handover", SOURCE, "--apply", "--json")
    assert done.code == 1
    outcomes = {job["name"]: job["outcome"] for job in done.json["jobs"]}
    assert outcomes == {"bad": "refused", "good": "change", "new": "create"}
    assert enabled_jobs() == ["good", "new"]
    bad = Job.objects.get(name="bad")
    assert (bad.pause_reason, bad.paused_until) == (ARRIVED_PAUSED, None)
    for name in ("good", "new"):
        spans = Run.objects.filter(job__name=name).values_list("scheduled_at", "missed_from")
        assert min(first or at for at, first in spans) == (last + MINUTE).replace(
            second=0, microsecond=0
        )


def test_handover_with_refused_entries_is_complete() -> None:
    for name in ("a", "b", "refused"):
        crontab_row(name, **twelve_hours_from_now())
    from django_celery_beat.models import PeriodicTask

    PeriodicTask.objects.filter(name="refused").update(task="tests.app.tasks.unknown")
    shown = call("handover", SOURCE)
    assert (shown.code, "complete" in shown.out + shown.err) == (0, False), "nothing was written"
    assert "so neither scheduler would run it" in shown.out
    done = call("handover", SOURCE, "--apply")
    assert (done.code, done.out.splitlines()[-1]) == (
        0,
        "The handover is complete: 2 jobs run here once a node is running. Start a node "
        "with manage.py runcron.",
    )
    assert "1 entry can't be imported" in done.out
    assert call("handover", SOURCE, "--apply", "--json").code == 0
    PeriodicTask.objects.filter(name="refused").delete()
    now = datetime.now(UTC)
    Node.objects.create(
        id="a-1", name="a", host="h", pid=7, started_at=now, heartbeat_at=now, shard_count=64
    )
    done = call("handover", SOURCE, "--apply")
    assert (done.code, done.out.splitlines()[-1]) == (
        0,
        "The handover is complete: 2 jobs run here.",
    )


@pytest.mark.parametrize("refused", [{"task": "tests.app.tasks.unknown"}, {"args": "7"}])
def test_refused_entry_that_is_disabled_in_the_source_does_not_count_as_unscheduled(
    refused: dict[str, str],
) -> None:
    for name in ("a", "disabled", "refused"):
        crontab_row(name, **twelve_hours_from_now())
    from django_celery_beat.models import PeriodicTask

    rows = PeriodicTask.objects.exclude(name="a")
    rows.update(**refused)
    rows.filter(name="disabled").update(enabled=False)
    assert "1 entry can't be imported, so" in call("handover", SOURCE).out
    assert "1 entry can't be imported, so" in call("handover", SOURCE, "--apply").out
    rows.update(enabled=False)
    done = call("handover", SOURCE, "--apply")
    assert done.code == 0
    assert "neither scheduler" not in done.out


@pytest.mark.parametrize(
    ("taken_by", "is_scheduled"),
    [
        ({}, True),
        ({"enabled": False}, False),
        ({"target": "tests.app.tasks.ok"}, False),
        ({"args": [7]}, False),
    ],
)
def test_entry_whose_name_is_taken_during_the_handover_counts_as_a_job_with_its_work(
    monkeypatch: pytest.MonkeyPatch, taken_by: dict[str, Any], is_scheduled: bool
) -> None:
    for name in ("a", "taken"):
        crontab_row(name, **twelve_hours_from_now())

    def apply_after_a_creation(plans: Iterable[EntryPlan]) -> Iterator[EntryPlan]:
        compared = list(plans)
        make_job(**{"name": "taken", "target": "tests.app.tasks.echo"} | taken_by)
        return apply_entry_plans(compared)

    monkeypatch.setattr(importing, "apply_entry_plans", apply_after_a_creation)
    done = call("handover", SOURCE, "--apply")
    assert done.code == 0
    assert ("can't be imported, but has an enabled job here" in done.out) == is_scheduled
    assert ("neither scheduler" in done.out) != is_scheduled
    assert f"{1 + is_scheduled} job" in done.out


@pytest.mark.parametrize(
    ("declared", "source"),
    [({}, ""), (None, ""), (None, "redbeat")],
    ids=["declared", "created", "of another source"],
)
def test_entry_with_an_enabled_job_of_its_name_does_not_count_as_unscheduled(
    declared: dict[str, Any] | None, source: str
) -> None:
    from django_celery_beat.models import PeriodicTask

    crontab_row("imported", **twelve_hours_from_now())
    crontab_row("own", **twelve_hours_from_now())
    own = make_job(
        name="own",
        target="tests.app.tasks.echo",
        schedule="7 7 7 7 *",
        import_source=source,
        declared=declared,
    )
    for options in ([], ["--apply"]):
        done = call("handover", SOURCE, *options)
        assert done.code == 0
        assert "1 entry can't be imported, but has an enabled job here" in done.out
        assert "neither scheduler" not in done.out
    assert "2 jobs run here" in done.out
    PeriodicTask.objects.filter(name="imported").delete()
    for options in ([], ["--apply"]):
        done = call("handover", SOURCE, *options)
        assert done.code == 0
    assert "1 job runs here" in done.out, "an enabled job has the name of the only entry"
    control.pause(own)
    assert call("handover", SOURCE).code == 1
    crontab_row("imported", **twelve_hours_from_now())
    assert "neither scheduler" in call("handover", SOURCE).out


@pytest.mark.parametrize("source", ["", "redbeat"])
@pytest.mark.parametrize("edited", [{"target": "tests.app.tasks.ok"}, {"kwargs": {"days": 7}}])
def test_job_of_the_same_name_that_does_other_work_does_not_count(
    source: str, edited: dict[str, Any]
) -> None:
    crontab_row("own", **twelve_hours_from_now())
    make_job(name="own", import_source=source, **({"target": "tests.app.tasks.echo"} | edited))
    for options in ([], ["--apply"]):
        assert call("handover", SOURCE, *options).code == 1
    crontab_row("imported", **twelve_hours_from_now())
    done = call("handover", SOURCE, "--apply")
    assert (done.code, "1 job runs here" in done.out) == (0, True)
    assert "so neither scheduler would run it" in call("handover", SOURCE).out


@pytest.mark.parametrize("source", ["", "redbeat"])
def test_job_with_the_name_of_an_omitted_entry_does_not_count(source: str) -> None:
    from django_celery_beat.models import PeriodicTask

    crontab_row("refused", **twelve_hours_from_now())
    crontab_row("celery.backend_cleanup", **twelve_hours_from_now())
    rows = PeriodicTask.objects
    rows.filter(name="refused").update(task="tests.app.tasks.unknown")
    rows.filter(name="celery.backend_cleanup").update(task="celery.backend_cleanup")
    make_job(name="celery.backend_cleanup", import_source=source)
    for options in ([], ["--apply"]):
        assert call("handover", SOURCE, *options).code == 1
    assert {job["outcome"] for job in call("handover", SOURCE, "--json").json["jobs"]} == {
        "omitted",
        "refused",
    }


def test_row_that_has_run_for_the_last_time_before_it_expires_does_not_wait_for_a_handover() -> (
    None
):
    from django_celery_beat.models import PeriodicTask

    crontab_row("a", **twelve_hours_from_now())
    crontab_row("ending", **twelve_hours_from_now())
    now = datetime.now(UTC)
    rows = PeriodicTask.objects.filter(name="ending")
    rows.update(expires=now + timedelta(days=1))
    assert call("import", SOURCE, "--apply", "--disabled").code == 0
    rows.update(expires=now + timedelta(hours=1), last_run_at=now)
    done = call("handover", SOURCE, "--apply")
    assert (done.code, enabled_jobs()) == (0, ["a"])


@pytest.mark.parametrize("command", ["import", "handover"])
def test_row_with_only_an_overdue_occurrence_before_it_expires_is_refused(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_celery_beat.models import PeriodicTask

    read = celery_beat.read
    with set_clock(datetime(2027, 1, 1, 12, tzinfo=UTC)) as clock:
        crontab_row("daily", minute="0", hour="9")
        interval_row("hourly", hours=1)
        PeriodicTask.objects.update(
            last_run_at=clock.now() - timedelta(days=1), expires=clock.now() + 30 * MINUTE
        )

        def read_slowly(now: datetime) -> Any:
            contents = read(now)
            clock.advance(timedelta(seconds=5))
            return contents

        monkeypatch.setattr(celery_beat, "read", read_slowly)
        done = call(command, SOURCE, "--apply", "--json")
        assert (done.code, Job.objects.count()) == (1, 0)
        entries = call("import", SOURCE, "--json").json["jobs"]
        assert [each["outcome"] for each in entries] == ["refused", "refused"]


def test_new_row_gets_the_namespace_of_the_handover() -> None:
    crontab_row("a", **twelve_hours_from_now())
    for _ in range(2):
        imported = call("import", SOURCE, "--apply", "--disabled", "--namespace", "shop")
    assert f"handover {SOURCE} --namespace=shop --apply" in imported.out
    crontab_row("new", **twelve_hours_from_now())
    assert call("handover", SOURCE, "--apply", "--namespace", "shop").code == 0
    assert sorted(map(str, Job.objects.filter(enabled=True))) == ["shop/a", "shop/new"]
    assert call("handover", SOURCE, "--back", "--namespace", "shop").code == 2


@pytest.mark.parametrize(("mode", "first"), [("--disabled", 7), ("--shadow", 5)])
def test_short_interval_begins_with_the_handover_or_continues_its_shadow(
    mode: str, first: int
) -> None:
    with set_clock(datetime(2027, 1, 1, 12, tzinfo=UTC)) as clock:
        imported_at = clock.now()
        interval_row("a", minutes=5)
        assert call("import", SOURCE, "--apply", mode).code == 0
        clock.advance(2 * MINUTE)
        assert call("handover", SOURCE, "--apply").code == 0
        assert Job.objects.get().cursor.next_at == imported_at + first * MINUTE


@pytest.mark.parametrize("mode", ["", "--disabled", "--shadow"])
def test_overdue_interval_runs_although_time_passes_after_the_source_was_read(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_celery_beat.models import PeriodicTask

    read = celery_beat.read
    with set_clock(datetime.now(UTC)) as clock:
        interval_row("weekly", days=7)
        PeriodicTask.objects.update(last_run_at=clock.now() - timedelta(days=7, hours=-1))
        if mode:
            assert call("import", SOURCE, "--apply", mode).code == 0
        clock.advance(timedelta(hours=2))

        def read_slowly(now: datetime) -> Any:
            contents = read(now)
            clock.advance(timedelta(seconds=5))
            return contents

        monkeypatch.setattr(celery_beat, "read", read_slowly)
        assert call("handover", SOURCE, "--apply").code == 0
        job = Job.objects.get()
        assert job.cursor.next_at == job.starts_at
        executed = [run.scheduled_at for run in run_due() if run.state == State.SUCCEEDED]
        assert executed == [job.starts_at]
        job.cursor.refresh_from_db()
        assert job.cursor.next_at == job.starts_at + timedelta(days=7)


def test_handover_back_leaves_the_entry_of_a_paused_shadow_enabled() -> None:
    """A shadow executes nothing, so the source must run its entry."""
    crontab_row("shadow", **twelve_hours_from_now())
    assert call("import", SOURCE, "--shadow", "--apply").code == 0
    control.pause(Job.objects.get(), "ask Ann")
    shown = call("handover", SOURCE, "--back", "--apply", "--json")
    assert shown.code == 0
    assert shown.json["paused_here"] == []


def test_paused_job_whose_refused_entry_is_disabled_there_is_not_reported_as_enabled() -> None:
    for name in ("disabled", "enabled"):
        crontab_row(name, **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply").code == 0
    from django_celery_beat.models import PeriodicTask

    PeriodicTask.objects.update(args="7")
    PeriodicTask.objects.filter(name="disabled").update(enabled=False)
    for job in Job.objects.all():
        control.pause(job, "ask Ann")
    shown = call("handover", SOURCE, "--back", "--json").json
    assert [job["name"] for job in shown["paused_here"]] == ["enabled"]


@pytest.mark.parametrize("mode", ["--disabled", "--shadow"])
def test_one_off_whose_time_passes_before_the_handover_runs_only_at_a_later_time(mode: str) -> None:
    from django_celery_beat.models import PeriodicTask

    with set_clock(datetime(2027, 1, 1, 12, tzinfo=UTC)) as clock:
        fields = clocked(clock.now() + 10 * MINUTE)
        row = PeriodicTask.objects.create(name="once", task="tests.app.tasks.echo", **fields)
        assert call("import", SOURCE, "--apply", mode).code == 0
        clock.advance(10.5 * MINUTE)
        if mode == "--shadow":
            assert [run.state for run in run_due()] == [State.SUCCEEDED]
        refused = call("handover", SOURCE, "--apply")
        assert (refused.code, "refused once " in refused.out) == (1, True)

        later = clock.now() + 10 * MINUTE
        row.clocked.clocked_time = later
        row.clocked.save()
        assert call("handover", SOURCE, "--apply").code == 0
        job = Job.objects.get()
        assert (job.target, job.cursor.next_at) == ("tests.app.tasks.echo", later)
        assert run_due() == []
        assert [run.scheduled_at for run in run_due(later)] == [later]


def test_row_that_was_retimed_after_its_import_has_no_run_at_its_old_time() -> None:
    from django_celery_beat.models import PeriodicTask

    with set_clock(datetime(2027, 1, 1, 12, tzinfo=UTC)) as clock:
        crontab_row("a", minute="0", hour="3")
        assert call("import", SOURCE, "--apply", "--disabled").code == 0
        retimed = crontab_row("other", minute="0", hour="5")
        PeriodicTask.objects.filter(name="a").update(
            crontab=retimed.crontab, last_run_at=clock.now() - timedelta(hours=7)
        )
        retimed.delete()
        clock.advance(timedelta(hours=16))
        assert call("handover", SOURCE, "--apply").code == 0
        assert not Run.objects.exists()
        assert Job.objects.get().cursor.next_at == datetime(2027, 1, 2, 5, tzinfo=UTC)


def test_audit_log_names_the_handover_as_the_reason_of_its_pause() -> None:
    crontab_row("a")
    call("import", SOURCE, "--apply", "--disabled")
    crontab_row("new")
    set_last_run(10 * MINUTE)
    forget_entries()

    assert call("handover", SOURCE, "--apply").code == 0
    for job in Job.objects.all():
        assert (job.enabled, job.pause_reason, job.paused_until) == (True, "", None)
        paused, resumed = AuditEntry.objects.filter(job_id=job.pk).order_by("pk")
        assert paused.after["pause_reason"] == resumed.before["pause_reason"] == CONTINUES
        assert paused.after["paused_until"] == resumed.before["paused_until"]
        assert resumed.after["paused_until"] is None


def test_import_and_handover_count_new_jobs_that_omit_late_runs() -> None:
    for name in ("a", "b"):
        crontab_row(name, **twelve_hours_from_now())

    def count(*arguments: str) -> list[str]:
        lines = call(*arguments).out.splitlines()
        return [line.partition(":")[0] for line in lines if "misfire_policy=run_all" in line]

    assert count("import", SOURCE) == ["! 2 jobs have the misfire policy run_latest"]
    assert count("import", SOURCE, "--apply", "--disabled") != []
    assert count("import", SOURCE, "--disabled") == []
    assert call("set", "a", "misfire_policy=run_all").code == 0
    crontab_row("new", **twelve_hours_from_now())
    assert count("handover", SOURCE) == ["! 1 job has the misfire policy run_latest"]
    assert call("handover", SOURCE, "--apply").code == 0
    assert Job.objects.get(name="a").misfire_policy == "run_all"


def test_one_off_that_the_source_has_run_does_not_keep_the_handover_from_success() -> None:
    from django_celery_beat.models import PeriodicTask

    crontab_row("a", **twelve_hours_from_now())
    PeriodicTask.objects.create(
        name="once", task="tests.app.tasks.echo", **clocked(datetime.now(UTC) + 10 * MINUTE)
    )
    assert call("import", SOURCE, "--apply", "--shadow").code == 0
    disable_exhausted([Job.objects.get(name="once").pk], "default")
    PeriodicTask.objects.filter(name="once").update(enabled=False, total_run_count=1)
    done = call("handover", SOURCE, "--apply")
    assert (done.code, "1 job runs here" in done.out) == (0, True)
    assert "still a shadow" not in done.out


def test_new_row_does_not_wait_for_a_one_off_that_the_source_has_run() -> None:
    from django_celery_beat.models import PeriodicTask

    crontab_row("a", **twelve_hours_from_now())
    PeriodicTask.objects.create(
        name="once", task="tests.app.tasks.echo", **clocked(datetime.now(UTC) + 10 * MINUTE)
    )
    assert call("import", SOURCE, "--apply", "--disabled").code == 0
    PeriodicTask.objects.filter(name="once").update(enabled=False, total_run_count=1)
    assert call("handover", SOURCE, "--apply").code == 0
    crontab_row("new", **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply").code == 0
    assert Job.objects.get(name="new").enabled


def test_one_off_that_has_run_here_is_not_refused() -> None:
    from django_celery_beat.models import PeriodicTask

    crontab_row("a", **twelve_hours_from_now())
    row = PeriodicTask.objects.create(
        name="once", task="tests.app.tasks.echo", **clocked(datetime.now(UTC) + 10 * MINUTE)
    )
    assert call("import", SOURCE, "--apply", "--disabled").code == 0
    assert call("handover", SOURCE, "--apply").code == 0
    disable_exhausted([Job.objects.get(name="once").pk], "default")
    row.clocked.clocked_time = datetime.now(UTC) - MINUTE
    row.clocked.save()

    repeated = call("import", SOURCE, "--apply")

    assert repeated.code == 0
    assert "run it manually" not in repeated.out


def test_one_off_crontab_that_has_run_here_is_not_scheduled_again() -> None:
    from django_celery_beat.models import PeriodicTask

    row = crontab_row("once", minute="0", hour="9")
    with set_clock(datetime.now(UTC)) as clock:
        PeriodicTask.objects.update(one_off=True, date_changed=clock.now())
        assert call("import", SOURCE, "--apply").code == 0
        clock.advance(timedelta(days=1))
        assert [run.job.name for run in run_due()] == [row.name]
        disable_exhausted([Job.objects.get().pk], "default")
        assert call("import", SOURCE, "--apply").code == 0
        clock.advance(timedelta(days=1))
        assert run_due() == []


@pytest.mark.parametrize("first", ["--disabled", "--shadow"])
def test_known_warnings_are_not_repeated(first: str) -> None:
    crontab_row("Report (Berlin)", **twelve_hours_from_now())

    def shows_warning(*arguments: str) -> bool:
        out = call(*arguments).out
        assert ("renamed from" in out) is not ("1 warning of an earlier import left out" in out)
        return "renamed from" in out

    assert shows_warning("import", SOURCE, "--apply", first)
    assert not shows_warning("import", SOURCE, "--apply", first)
    assert not shows_warning("handover", SOURCE, "--apply")
    job = Job.objects.get()
    job.name = "changed"
    control.save(job)
    assert not shows_warning("import", SOURCE, "--apply")
    assert call("import", SOURCE).out.splitlines()[-1] == "1 with kept fields only."
    (entry,) = call("import", SOURCE, "--json").json["jobs"]
    assert len(entry["warnings"]) == 1
    from django_celery_beat.models import PeriodicTask

    PeriodicTask.objects.update(priority=3)
    assert shows_warning("import", SOURCE, "--apply")


def test_job_imported_after_the_source_stopped_has_no_gap() -> None:
    from django_celery_beat.models import PeriodicTask

    crontab_row()
    last = datetime.now(UTC) - 10 * MINUTE
    PeriodicTask.objects.update(last_run_at=last)
    call("import", SOURCE, "--apply", "--disabled")
    assert call("handover", SOURCE, "--apply").code == 0
    spans = Run.objects.values_list("scheduled_at", "missed_from")
    assert min(first or at for at, first in spans) == (last + MINUTE).replace(
        second=0, microsecond=0
    )


def test_only_the_named_job_takes_the_name_of_the_source() -> None:
    for name in ("a", "b", "c"):
        crontab_row(name, **twelve_hours_from_now())
    call("import", SOURCE, "--apply")
    for job in Job.objects.all():
        job.name = f"our {job.name}"
        control.save(job)
    overwrite = ("import", SOURCE, "--apply", "--overwrite", "name")
    done = call(*overwrite, "--only", "our b", "--json")
    assert (done.code, [job["name"] for job in done.json["jobs"]]) == (0, ["b"])
    assert done.json["gone"] == []
    assert {job.name for job in Job.objects.all()} == {"our a", "b", "our c"}
    assert call(*overwrite, "--only", "changed").code == 2
    assert call(*overwrite, "--only", "our *").code == 0
    assert {job.name for job in Job.objects.all()} == {"a", "b", "c"}


def test_doctor_names_the_jobs_that_the_source_still_runs() -> None:
    from django_celery_beat.models import PeriodicTask

    for name in ("both", "stopped", "paused", "changed"):
        crontab_row(name, **twelve_hours_from_now())
    call("import", SOURCE, "--apply")
    crontab_row("shadow", **twelve_hours_from_now())
    call("import", SOURCE, "--apply", "--shadow")
    control.pause(Job.objects.get(name="paused"))
    now = datetime.now(UTC)
    Job.objects.update(updated_at=now - 10 * MINUTE)
    Job.objects.filter(name="changed").update(updated_at=now)
    PeriodicTask.objects.update(last_run_at=now - 3 * MINUTE)
    PeriodicTask.objects.filter(name="stopped").update(last_run_at=now - 9.5 * MINUTE)
    document = call("doctor", "--json").json
    found = [each for each in document["findings"] if each["code"] == "other_scheduler_runs"]
    assert [(each["subject"]["name"], each["severity"]) for each in found] == [("both", "warning")]
    assert SOURCE in found[0]["message"]
    later = call("doctor", "--json", "--since", "2m").json["findings"]
    assert "other_scheduler_runs" not in {each["code"] for each in later}


def test_doctor_recommends_a_period_that_covers_the_runs_that_beat_has_not_stored_yet() -> None:
    from django_celery_beat.models import PeriodicTask

    for name in ("a", "b"):
        crontab_row(name, **twelve_hours_from_now())
    call("import", SOURCE, "--apply")
    now = datetime.now(UTC)
    Job.objects.update(updated_at=now - 10 * MINUTE)
    PeriodicTask.objects.update(last_run_at=now - 3 * MINUTE)
    output = call("doctor", "--verbosity", "2").out
    assert output.count(" other_scheduler_runs ") == 2
    (minutes,) = re.findall(r"--since (\d+)m", output)  # once: both findings have this remedy
    assert int(minutes) * MINUTE >= WRITE_DELAY


def test_doctor_names_the_jobs_that_wait_for_the_handover() -> None:
    def noted() -> list[str]:
        notes = call("doctor", "--json").json["notes"]
        return [note for note in notes if f"dcron list --paused --source {SOURCE}" in note]

    for name in ("first", "second", "by-hand"):
        crontab_row(name, **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply").code == 0
    control.pause(Job.objects.get(name="by-hand"))
    assert not noted()
    assert call("handover", SOURCE, "--back", "--apply").code == 1, "beat would run the third one"
    (note,) = noted()
    assert f"2 paused jobs wait for the handover from {SOURCE}: " in note
    assert [name in note for name in ("first", "second", "by-hand")] == [True, True, False]
    assert "first" in call("list", "--paused", "--source", SOURCE).out


def test_doctor_recommends_the_handover_for_jobs_that_were_handed_back() -> None:
    for number in range(MANY_PAUSES):
        crontab_row(f"row-{number}", **twelve_hours_from_now())
    make_idle_job()
    assert call("import", SOURCE, "--apply").code == 0
    assert call("handover", SOURCE, "--back", "--apply").code == 0
    notes = " ".join(call("doctor", "--json").json["notes"])
    assert f"manage.py dcron handover {SOURCE}" in notes
    assert "dcron resume" not in notes, "both schedulers would run the jobs"


@pytest.mark.parametrize("mode", ["--disabled", "--shadow", "--back"])
def test_resume_of_a_job_that_waits_for_the_handover_names_the_handover(mode: str) -> None:
    for name in ("a", "by-hand"):
        crontab_row(name, **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply", *(() if mode == "--back" else (mode,))).code == 0
    if mode == "--back":
        assert call("handover", SOURCE, "--back", "--apply").code == 0
    control.pause(Job.objects.get(name="by-hand"))
    results = call("resume", "a", "by-hand", "--json").json["results"]
    cautions = {each["job"]: [one["message"] for one in each["cautions"]] for each in results}
    assert any(f"manage.py dcron handover {SOURCE}" in each for each in cautions["a"]) == (
        mode != "--shadow"
    ), "a shadow executes nothing"
    assert not any("handover" in each for each in cautions["by-hand"])


def test_doctor_names_entries_that_were_edited_after_the_switch() -> None:
    from django_celery_beat.models import PeriodicTask

    def noted() -> list[str]:
        notes = call("doctor", "--json").json["notes"]
        return [note for note in notes if f"manage.py dcron import {SOURCE}" in note]

    for name in ("edited", "disabled", "same"):
        crontab_row(name, **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply").code == 0
    PeriodicTask.objects.filter(name="disabled").update(enabled=False)
    assert not noted()
    PeriodicTask.objects.filter(name="edited").update(args='["new"]')
    (note,) = noted()
    assert "1 entry isn't imported or was changed since its import: edited." in note
    Job.objects.update(enabled=False)
    assert not noted(), "the jobs don't run here"


def test_doctor_names_jobs_whose_entry_was_disabled_after_the_switch() -> None:
    from django_celery_beat.models import PeriodicTask

    def noted() -> list[str]:
        notes = call("doctor", "--json").json["notes"]
        return [note for note in notes if "manage.py dcron pause" in note]

    for name in ("stopped", "stopped too", "same", "never", "only here"):
        crontab_row(name, **twelve_hours_from_now())
    PeriodicTask.objects.filter(name__in=["never", "only here"]).update(enabled=False)
    assert call("import", SOURCE, "--apply").code == 0
    control.resume(Job.objects.get(name="only here"))
    assert not noted(), "the entries are as they were when they were imported"
    PeriodicTask.objects.filter(name__startswith="stopped").update(enabled=False)
    (note,) = noted()
    assert "2 entries were disabled since the last import" in note
    assert _disabled_text(SOURCE, [*Job.objects.all()] * 2).endswith("manage.py dcron pause JOB")
    PeriodicTask.objects.update(enabled=False)
    assert not noted(), "someone disabled the old scheduler as a whole"
    PeriodicTask.objects.filter(name="same").update(enabled=True)
    assert call(*shlex.split(note.partition("manage.py dcron ")[2])).code == 0
    assert not noted()
    enabled = Job.objects.filter(enabled=True).values_list("name", flat=True)
    assert {*enabled} == {"same", "only here"}


def test_doctor_reports_enabled_entries_that_were_not_imported() -> None:
    def found() -> list[str]:
        findings = call("doctor", "--json").json["findings"]
        return [each["message"] for each in findings if each["code"] == "entry_not_imported"]

    crontab_row("first", **twelve_hours_from_now())
    added = crontab_row("added", **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply", "--only", "first").code == 0
    (message,) = found()
    assert "1 entry isn't imported: added." in message
    assert message.index("--disabled --apply") < message.rindex(" --apply"), "the safe way first"
    added.enabled = False
    added.save()
    assert not found()
    added.enabled = True
    added.save()
    crontab_row("waits", **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply", "--disabled", "--only", "waits").code == 0
    assert not found(), "the old scheduler still runs the entries"
    assert call("handover", SOURCE, "--apply").code == 0
    assert not found()


def test_doctor_names_waiting_jobs_whose_entry_is_gone() -> None:
    from django_celery_beat.models import PeriodicTask

    for name in ("kept", "deleted"):
        crontab_row(name, **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply", "--disabled").code == 0
    PeriodicTask.objects.get(name="deleted").delete()

    def noted() -> list[str]:
        notes = call("doctor", "--json").json["notes"]
        return [note for note in notes if "deleted" in note or "kept" in note]

    gone, waiting = noted()
    assert "deleted" not in waiting
    assert gone.endswith("manage.py dcron delete deleted")
    assert call("handover", SOURCE, "--apply").code == 0
    assert noted() == [gone]


def test_handover_without_any_running_job_fails() -> None:
    from django_celery_beat.models import PeriodicTask

    crontab_row("refused", **twelve_hours_from_now())
    PeriodicTask.objects.update(task="tests.app.tasks.unknown")
    assert call("handover", SOURCE, "--apply").code == 1


def test_handover_fails_if_a_shadow_stays_a_shadow() -> None:
    for name in ("a", "b"):
        crontab_row(name, **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply", "--shadow").code == 0
    Job.objects.filter(name="b").update(target="shadow:tests.app.tasks.ok")
    preview = call("handover", SOURCE)
    assert (preview.code, "1 imported job can't take over" in preview.err) == (1, True)
    done = call("handover", SOURCE, "--apply")
    assert (done.code, "1 job runs here" in done.err) == (1, True)


@pytest.mark.parametrize("option", ["--disabled", "--shadow"])
def test_refused_row_that_is_disabled_does_not_make_the_handover_incomplete(option: str) -> None:
    """Its job waits, but neither scheduler runs it."""
    from django_celery_beat.models import IntervalSchedule

    crontab_row("ok", **twelve_hours_from_now())
    refused = crontab_row("a", **twelve_hours_from_now())
    assert call("import", SOURCE, "--apply", option).code == 0
    refused.crontab = None
    refused.interval = IntervalSchedule.objects.create(every=500, period="microseconds")
    refused.save()
    assert call("import", SOURCE, "--apply", option).code == 1
    assert call("handover", SOURCE).code == 1
    refused.enabled = False
    refused.save()
    assert call("import", SOURCE, "--apply", option).code == 0
    assert call("handover", SOURCE).code == 0
    done = call("handover", SOURCE, "--apply")
    assert done.code == 0
    assert "The handover is complete: 1 job runs here" in done.out


def test_crontab_is_switched_as_the_refused_handover_says(
    tmp_path: Path, settings: Settings
) -> None:
    settings.DCRON_COMMANDS = ["check"]
    file = tmp_path / "crontab"
    file.write_text("30 3 * * * python manage.py check\n")
    options = (str(file), "--timezone", "Europe/Berlin")
    assert call("import", *options, "--apply", "--shadow").code == 0
    refused = call("handover", str(file))
    assert refused.code == 2
    assert with_link("", "how-to/migrate-sources.md#a-crontab") in refused.err
    assert refused.err.index("import it again") < refused.err.index("remove its lines")
    assert call("import", *options, "--apply").code == 0
    file.write_text("")
    assert "gone from the source" in call("import", *options).out
    job = Job.objects.get()
    assert (job.target, job.timezone, job.enabled) == ("command:check", "Europe/Berlin", True)


def test_handover_names_the_jobs_that_stay_paused() -> None:
    for name in ("a", "b"):
        crontab_row(name, **twelve_hours_from_now())
    assert call("handover", SOURCE, "--apply").code == 0
    assert call("pause", "--source", SOURCE, "--yes").code == 0
    done = call("handover", SOURCE, "--apply")
    assert (done.code, "No job runs now: 2 jobs stay paused" in done.err) == (1, True)
    (paused,) = [line for line in done.out.splitlines() if line.startswith("! 2 jobs stay paused")]
    assert "manage.py dcron show JOB" in paused, "the list doesn't contain the reasons"
    assert paused.endswith("to resume them: manage.py dcron resume a b")
    assert call("resume", "a").code == 0
    done = call("handover", SOURCE, "--apply")
    (paused,) = [line for line in done.out.splitlines() if line.startswith("! 1 job stays paused")]
    assert "manage.py dcron show b;" in paused
    assert paused.endswith("to resume it: manage.py dcron resume b")


@pytest.mark.parametrize("imports", [0, 2])
def test_job_that_a_person_created_stays_enabled_or_paused(imports: int) -> None:
    """Each row has the opposite state."""
    from django_celery_beat.models import PeriodicTask

    when = twelve_hours_from_now()
    for name in ("on", "off"):
        crontab_row(name, **when)
        schedule = f"0 {when['hour']} * * *"
        make_job(name=name, target="tests.app.tasks.echo", schedule=schedule)
    PeriodicTask.objects.filter(name="on").update(enabled=False)
    control.pause(Job.objects.get(name="off"), "incident 42")
    for _ in range(imports):
        assert call("import", SOURCE, "--apply", "--disabled").code == 0
    done = call("handover", SOURCE, "--apply")
    assert done.code == 0
    assert "The handover is complete: 1 job runs here" in done.out
    assert "! 1 job stays paused" in done.out
    assert dict(Job.objects.values_list("name", "pause_reason")) == {"on": "", "off": "incident 42"}
    assert dict(Job.objects.values_list("name", "enabled")) == {"on": True, "off": False}


def test_handover_back_to_an_unsupported_source_is_refused() -> None:
    assert call("handover", "django-apscheduler", "--back").code == 2
    refused = call("handover", "celery", "--back")
    assert (refused.code, "celerybeat-schedule*" in refused.err) == (2, True)
    make_idle_job(name="a", import_source="celery", import_key="a")
    command = re.findall(r"manage\.py dcron (pause .*?)\)", refused.err)[0]
    assert call(*shlex.split(command)).code == 0, "a script has no terminal"
    assert Job.objects.get(name="a").pause_reason.startswith("back to beat")


# --- A whole installation -------------------------------------------------------------------------

MADE = 320
WITHOUT_A_NODE = {"no_live_node"}
"""The doctor's only finding: ``run_due`` executes the runs, and no node."""
AHEAD = timedelta(days=2, hours=12)
"""No time of day of a row comes during the test."""


def test_whole_installation_is_handed_over_and_back() -> None:
    """Import, rename, pause, edit, import again, hand over, hand back, and hand over again."""
    from django_celery_beat.models import PeriodicTask

    begin = datetime.now(UTC) + AHEAD
    kinds = fill(MADE, Window(begin, begin + timedelta(hours=2)))
    imported = call("import", SOURCE, "--apply", "--disabled", "--json").json
    outcome = {each["key"]: each["outcome"] for each in imported["jobs"]}
    names = {str(pk): name for pk, name in PeriodicTask.objects.values_list("pk", "name")}
    assert {names[key]: value for key, value in outcome.items()} == {
        name: kind.outcome for name, kind in kinds.items()
    }
    made = Job.objects.count()

    # Users change jobs and rows.
    enabled = PeriodicTask.objects.filter(enabled=True).values_list("pk", flat=True)
    on = Job.objects.filter(import_key__in=[*map(str, enabled)])
    renamed, moved, paused, edited = on.filter(schedule="* * * * *")[:4]
    renamed.name, moved.namespace, edited.schedule = "our own name", "shop", "7 3 * * *"
    for job in (renamed, moved, edited):
        control.save(job)
    control.pause(paused, "ask Ann")
    there, gone = on.filter(schedule__startswith="@every").order_by("pk")[:2]
    PeriodicTask.objects.filter(pk=there.import_key).update(name="their own name")
    PeriodicTask.objects.filter(pk=gone.import_key).delete()

    again = call("import", SOURCE, "--apply", "--disabled", "--json").json
    written = [each for each in again["jobs"] if each["outcome"] in ("create", "change")]
    assert written == []
    assert {each["name"]: set(each["kept"]) for each in again["jobs"] if each["kept"]} == {
        "our own name": {"name"},
        edited.name: {"schedule"},
        there.name: {"name"},
    }
    assert [each["name"] for each in again["gone"]] == [gone.name]
    assert Job.objects.count() == made

    # Hand over. Without a run of beat, only long intervals are due.
    set_last_run(90 * MINUTE)
    disabled = {
        str(pk) for pk in PeriodicTask.objects.filter(enabled=False).values_list("pk", flat=True)
    }
    with set_clock(datetime.now(UTC).replace(second=30, microsecond=0)) as clock:
        switched = call("handover", SOURCE, "--apply", "--json").json
        kept = {each["name"] for each in switched["jobs"] if "enabled" in each["kept"]}
        assert kept == {paused.name}
        for job in Job.objects.all():
            stays_off = job.pk in (paused.pk, gone.pk) or job.import_key in disabled
            assert job.enabled is not stays_off, (job, job.pause_reason)
        assert Job.objects.count() == made
        assert 0 < most_runs_of_a_job(run_due()) <= 2  # one by the misfire policy, one is due now
        assert findings_of_the_doctor() == WITHOUT_A_NODE

        # Hand back. Beat sends only what never ran here: a paused job, and refused entries.
        handed_back = call("handover", SOURCE, "--back", "--apply")
        assert (handed_back.code, f"{paused} (paused here)" in handed_back.err) == (1, True)
        assert not Job.objects.filter(enabled=True).exists()
        below_a_second = {name for name, kind in kinds.items() if "below a second" in kind.name}
        solar = {name for name, kind in kinds.items() if kind.name == "solar"}  # by the time of day
        due = {*due_at_beat(clock.now())} - solar
        assert due == {names[paused.import_key]} | below_a_second
        assert call("import", SOURCE, "--json").json["counts"]["create"] == 0

        # Beat runs for ten minutes, and the work comes here again.
        clock.advance(10 * MINUTE)
        PeriodicTask.objects.update(last_run_at=clock.now() - MINUTE)
        call("handover", SOURCE, "--apply")
        Job.objects.update(updated_at=clock.now())  # which has the time of the process
        assert Job.objects.count() == made
        assert 0 < most_runs_of_a_job(run_due()) <= 2
        assert findings_of_the_doctor() == WITHOUT_A_NODE


def most_runs_of_a_job(runs: list[Run]) -> int:
    """Return the largest number of runs that executed a job. All of them succeeded."""
    executed = [run for run in runs if run.state != State.MISSED]
    assert {run.state for run in executed} <= {State.SUCCEEDED}
    return max(Counter(run.job_id for run in executed).values(), default=0)


def findings_of_the_doctor() -> set[str]:
    return {each["code"] for each in call("doctor", "--json").json["findings"]}


def restore_deleted(job: Job) -> Job:
    control.delete(job)
    return control.restore(AuditEntry.objects.filter(action="delete").latest("pk"))


@pytest.mark.parametrize("has_history", [True, False])
@pytest.mark.parametrize("options", [[], ["--disabled"], ["--shadow"]])
def test_restored_job_still_belongs_to_its_entry(options: list[str], has_history: bool) -> None:
    crontab_row("a", **twelve_hours_from_now())
    call("import", SOURCE, "--apply", *options)
    job = Job.objects.get()
    if has_history:
        make_run(job, "succeeded")
    restored = restore_deleted(job)
    assert [getattr(restored, name) == getattr(job, name) for name in ORIGIN] == [True] * 3

    imported = call("import", SOURCE, "--json", *options).json
    assert [(each["name"], each["outcome"]) for each in imported["jobs"]] == [("a", "same")]
    if options:
        assert call("handover", SOURCE, "--apply").code == 0
        assert enabled_jobs() == ["a"]
    assert call("handover", SOURCE, "--back", "--apply").code == 0
    assert enabled_jobs() == []
    control.delete(Job.objects.get())
    assert "deleted here" in call("import", SOURCE).out


def test_job_that_an_import_created_again_is_not_restored() -> None:
    crontab_row("a", **twelve_hours_from_now())
    call("import", SOURCE, "--apply")
    control.delete(Job.objects.get())
    call("import", SOURCE, "--apply", "--restore", "a")
    job = Job.objects.get()
    job.name = "b"
    control.save(job)
    result = call("revert", "a")
    assert (result.code, Job.objects.count()) == (NEGATIVE, 1)
    assert f"b (number {job.pk})" in result.err
