"""The sync of jobs declared in code with their rows, on a real database."""

import importlib
import json
import logging
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import IntegrityError, connection, connections
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_dcron import control, targets
from django_dcron.conf import settings as dcron
from django_dcron.db.now import database_now
from django_dcron.exceptions import Conflict
from django_dcron.jobs import deletion, pausing, saving, sync
from django_dcron.jobs.batch_reading import JobToSave
from django_dcron.jobs.calendars import save_calendar
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.jobs.sync import (
    ChangeKind,
    SyncChange,
    comparison,
    predecessors,
    stored,
    writing,
)
from django_dcron.jobs.sync.comparison import WORKING_DAYS_CAUTION
from django_dcron.management.dcron import sync as sync_command
from django_dcron.management.dcron.run_absence import Absence, absence_text
from django_dcron.management.dcron.sync import RESTART
from django_dcron.models import AuditEntry, Calendar, Cursor, Job, Node
from django_dcron.models.job_states import DECLARED_DISABLED, EXHAUSTED
from django_dcron.node import sync_declared
from django_dcron.targets import cron
from django_dcron.targets.redaction import CHANGED_MASK, MASK
from tests.app import tasks
from tests.factories import make_job, make_run
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db

PAST = "@at 2020-01-01T00:00"
NO_NODE = absence_text(Absence.NODE)
MATCHES = "The database matches the code.\n"
DECLARED = f"Declared: 1 job in {__name__}\n"
FIRST_DAY = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def isolated_declarations() -> Iterator[None]:
    with targets.isolated_registry():
        yield


def report(city: str = "Ulm") -> None: ...


def secretive(password: str = "") -> None: ...


def sell() -> None: ...


def synced() -> list[str]:
    return [str(change) for change in sync.apply(sync.plan())]


@contextmanager
def code(schedule: str = "@daily", **fields: Any) -> Iterator[None]:
    """Simulate a version of the code that declares one job."""
    with targets.isolated_registry():
        cron(schedule, **{"name": "report", **fields})(report)
        yield


def restore_deleted(job: Job) -> None:
    control.delete(job)
    control.restore(AuditEntry.objects.filter(action="delete").latest("pk"))


def the_job() -> Job:
    return Job.objects.get(name="report")


def edit(**fields: Any) -> Job:
    """Change the job as a user does in the admin."""
    job = the_job()
    for name, value in fields.items():
        setattr(job, name, value)
    return saving.save(job)


# --- Creating -----------------------------------------------------------------------------------


def test_declared_job_is_created_with_its_cursor(settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    with code(
        "30 3 * * *", timeout=timedelta(minutes=2), retry_on=[OSError], kwargs={"city": "Bonn"}
    ):
        assert synced() == ["create report 30 3 * * * (Europe/Berlin)"]
        assert synced() == []

    job = the_job()
    assert (job.target, job.schedule, job.timezone) == (
        f"{__name__}.report",
        "30 3 * * *",
        "Europe/Berlin",
    )
    assert (job.timeout, job.retry_on, job.kwargs) == (
        timedelta(minutes=2),
        ["OSError"],
        {"city": "Bonn"},
    )
    assert job.enabled
    assert job.cursor.next_at is not None
    assert job.declared == {
        "target": f"{__name__}.report",
        "schedule": "30 3 * * *",
        "timezone": "Europe/Berlin",
        "args": [],
        "kwargs": {"city": "Bonn"},
        "timeout": "2m",
        "retry_on": ["OSError"],
    }


def test_job_without_further_occurrences_is_created_disabled() -> None:
    with code(PAST):
        (line,) = synced()
        assert line.endswith("disabled: its schedule has no further occurrence")
        assert synced() == []
    assert (the_job().enabled, the_job().pause_reason) == (False, EXHAUSTED)


def test_job_declared_disabled_is_created_disabled() -> None:
    with code(enabled=False):
        synced()
        assert synced() == []
    assert (the_job().enabled, the_job().pause_reason) == (False, sync.DECLARED_DISABLED)


def test_jobs_declared_in_task_modules_are_discovered(monkeypatch: pytest.MonkeyPatch) -> None:
    def discover() -> str:
        cron("@daily")(report)
        return ""

    monkeypatch.setattr(targets, "discovery_problem", discover)
    assert len(synced()) == 1


# --- Updating: merging code, declaration and row ------------------------------------------------


def test_changed_declaration_updates_the_row() -> None:
    with code(priority=1):
        synced()
    with code("@hourly", priority=1, timeout=timedelta(seconds=90)):
        assert synced() == ["update report schedule: @daily -> @hourly; timeout: null -> 1m30s"]
        assert synced() == []
    assert (the_job().schedule, the_job().version) == ("@hourly", 2)
    assert Cursor.objects.get().schedule == "@hourly"


def test_removed_field_is_reset_to_its_default() -> None:
    with code(tags=["shop"], max_attempts=3):
        synced()
    with code(tags=["shop"]):
        assert synced() == ["update report max_attempts: 3 -> 1"]
    with code():
        assert synced() == ['update report tags: ["shop"] -> []']


def test_field_edited_by_a_user_is_kept() -> None:
    with code(timeout=timedelta(minutes=1)):
        synced()
        edit(timeout=timedelta(minutes=9), description="mine")
        kept = "keep report timeout: 9m (code: %s; to reset: manage.py dcron set report timeout=%s)"
        assert synced() == [kept % ("1m", "1m")]
    with code("@hourly", timeout=timedelta(minutes=2)):
        assert synced() == ["update report schedule: @daily -> @hourly", kept % ("2m", "2m")]
        assert synced() == [kept % ("2m", "2m")]
    assert the_job().timeout == timedelta(minutes=9)
    assert the_job().description == "mine"


def test_field_that_code_no_longer_names_is_kept_with_its_default() -> None:
    with code(timeout=timedelta(minutes=1)):
        synced()
        edit(timeout=timedelta(minutes=9))
    kept = "timeout: 9m (default: null; to reset: manage.py dcron set report timeout=null)"
    with code():
        assert kept in [detail for change in sync.plan() for detail in change.details]
        synced()
        assert kept in [detail for change in sync.undeclared_edits() for detail in change.details]


@pytest.mark.parametrize(
    ("declared", "edited"),
    [
        ({"schedule": "*/5 8-18 * * MON-FRI"}, {"schedule": "@weekly"}),
        ({"description": 'It\'s "daily" $HOME'}, {"description": "x"}),
        ({"description": ""}, {"description": "x"}),
        ({"tags": ["billing", "a b"]}, {"tags": []}),
        ({"retry_on": ["ValueError"]}, {"retry_on": []}),
        ({"alerts": None}, {"alerts": []}),
        ({"priority": None}, {"priority": 3}),
        ({"max_attempts": 3}, {"max_attempts": 4}),
        ({"retry_backoff_factor": 1.5}, {"retry_backoff_factor": 3}),
        ({"timeout": timedelta(minutes=1)}, {"timeout": None}),
        ({"timeout": None}, {"timeout": timedelta(minutes=1)}),
        ({"starts_at": FIRST_DAY}, {"starts_at": None}),
        ({"calendar": None}, {"calendar": "days"}),
        ({"kwargs": {"city": "Bonn"}}, {"kwargs": {}}),
        ({"enabled": True}, {"enabled": False, "pause_reason": "x"}),
        ({"enabled": False}, {"enabled": True, "pause_reason": ""}),
    ],
)
def test_sync_prints_the_command_that_resets_a_kept_field(
    declared: dict[str, Any], edited: dict[str, Any]
) -> None:
    calendar = save_calendar(Calendar(name="days", dates="SAT-SUN"))
    with code(**declared):
        synced()
        edit(**{**edited, **({"calendar": calendar} if "calendar" in edited else {})})
        [line] = synced()
        _, _, reset = line.removesuffix(")").partition("manage.py dcron ")
        call_command("dcron", *shlex.split(reset), stdout=StringIO())
        assert command() == f"{MATCHES}{DECLARED}"


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_field_with_several_lines_is_shown_in_one_line(line_break: str) -> None:
    with code(description="Daily."):
        synced()
        edit(description=f"Mine.{line_break}Ask Ann.")
        (kept,) = synced()
        assert re.search(r"description: Mine\.\\[nr]Ask Ann\. \(code: Daily\.;", kept)
        edit(description="Daily.")
    with code(description=f"One.{line_break}Two."):
        (updated,) = synced()
        assert re.fullmatch(r"update report description: Daily\. -> One\.\\[nr]Two\.", updated)


def test_new_job_with_several_schedules_is_shown_in_one_line() -> None:
    with code("0 1 * * *\n0 2 * * SAT"):
        assert synced() == [r"create report 0 1 * * *\n0 2 * * SAT (UTC)"]


def test_no_command_that_resets_a_kept_field_contains_a_secret() -> None:
    with targets.isolated_registry():
        cron("@daily", name="report", kwargs={"password": "s3cret"})(secretive)
        synced()
        edit(kwargs={"password": "other"})
        [line] = synced()
    assert line.startswith("keep report kwargs: ")
    assert "dcron set" not in line
    assert "s3cret" not in line


def test_kept_field_follows_the_code_again_once_both_agree() -> None:
    with code(max_attempts=1):
        synced()
        edit(max_attempts=5)
    with code(max_attempts=5):
        (change,) = sync.apply(sync.plan())
        assert (change.kind, {*change.values}) == (ChangeKind.UPDATE, {"declared"})
        assert synced() == []
    with code(max_attempts=7):
        assert synced() == ["update report max_attempts: 5 -> 7"]


def test_field_edited_before_it_was_declared_is_kept() -> None:
    with code():
        synced()
        edit(queue="slow")
    with code(queue="fast"):
        assert any(line.startswith("keep report queue: slow (code: ") for line in synced())
    assert the_job().queue == "slow"


def test_values_of_every_type_compare_equal_after_storing() -> None:
    fields: dict[str, Any] = {
        "starts_at": datetime(2027, 1, 1, 12, 30, 1, 5, tzinfo=UTC),
        "ends_at": None,
        "jitter": timedelta(microseconds=1),
        "retry_backoff": timedelta(days=2, seconds=3, microseconds=40),
        "keep_for": timedelta(days=7),
        "keep_failed_for": timedelta(days=400),
        "keep_runs": 1000,
        "retry_backoff_max": timedelta(days=400),
        "retry_backoff_factor": 3,
        "args": [1.5, None, {"a": [True, "ü"]}],
        "priority": 0,
        "misfire_policy": "run_all",
        "description": "",
    }
    cron("@daily", name="report", **fields)(lambda *args: None)
    assert len(synced()) == 1
    assert synced() == []
    job = the_job()
    assert {name: getattr(job, name) for name in fields} == fields
    assert stored.from_stored(job.declared or {}).items() >= fields.items()


# --- Enabled ------------------------------------------------------------------------------------


def test_undeclared_job_is_disabled_and_enabled_when_declared_again() -> None:
    with code():
        synced()
    # The target is unknown now, too.
    assert synced() == ["disable report no longer declared in code"]
    assert synced() == []
    assert (the_job().enabled, the_job().cursor.next_at) == (False, None)
    with code():
        assert synced() == ["enable report"]
        assert synced() == []
    assert (the_job().enabled, the_job().pause_reason) == (True, "")
    assert the_job().cursor.next_at is not None


@pytest.mark.parametrize("prefix", ["", "shadow:"])
def test_declared_job_that_repeats_an_imported_job_is_created_paused(prefix: str) -> None:
    """Otherwise, both jobs run, for example twice for the same payment."""
    with code(name="the new", kwargs={"city": "Bonn"}):
        target = targets.declarations()[0].target
        origin = {"import_source": "redbeat", "import_key": "old", "target": f"{prefix}{target}"}
        make_job(name="the old", kwargs={"city": "Bonn"}, **origin)
        (change,) = synced()
        reason = "the job 'the old', imported from redbeat, has the same target and arguments"
        assert f"disabled: {reason}; " in change
        assert change.endswith(": manage.py dcron resume 'the new'")
        job = Job.objects.get(name="the new")
        assert (job.enabled, job.pause_reason) == (False, reason)
        assert [each for each in synced() if not each.startswith("keep")] == []
        pausing.resume(job)
        assert synced() == []
        assert Job.objects.get(name="the new").enabled
    with code(name="other", kwargs={"city": "Ulm"}):
        assert not any("imported" in change for change in synced()), "its arguments differ"


@pytest.mark.parametrize("number", [2, 20])
def test_search_for_twins_compares_each_job_once(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of imported jobs may have the same target, for example one for each tenant."""
    target = "tests.app.tasks.echo"
    for city in range(number):
        kwargs = {"city": city}
        make_job(name=f"old-{city}", target=target, kwargs=kwargs, import_source="redbeat")
    make_job(name="new", target=target, kwargs={"city": 1}, declared={})
    jobs = {job.name: job for job in Job.objects.all()}
    imported = [job for job in jobs.values() if job.import_source]
    compared: list[Any] = []
    work_of = comparison._work_of
    monkeypatch.setattr(comparison, "_work_of", lambda job: compared.append(job) or work_of(job))

    twins = sync.enabled_twins(imported, Job.objects.all())

    assert twins == {jobs["old-1"].pk: jobs["new"]}
    assert len(compared) == number + 1
    compared.clear()
    assert sync.enabled_twins([jobs["new"]], Job.objects.all()) == {jobs["new"].pk: jobs["old-1"]}
    assert len(compared) == number + 1


def test_twin_is_the_oldest_job_that_does_the_same_work() -> None:
    work = {"target": "tests.app.tasks.echo", "kwargs": {"city": 1}}
    imported = [make_job(name=f"old-{n}", import_source="redbeat", **work) for n in range(2)]
    declared = [make_job(name=f"new-{n}", declared={}, **work) for n in range(2)]
    twins = sync.enabled_twins([*imported, *declared], Job.objects.all())
    assert twins == {
        **{job.pk: declared[0] for job in imported},
        **{job.pk: imported[0] for job in declared},
    }


def test_shadow_of_a_declared_job_has_no_twin() -> None:
    """It doesn't do the work."""
    shadow = {"target": "shadow:tests.app.tasks.echo"}
    make_job(name="new", declared={}, **shadow)
    make_job(name="old", import_source="redbeat", **shadow)
    assert sync.enabled_twins(Job.objects.all(), Job.objects.all()) == {}


def test_changed_secrets_are_marked() -> None:
    with code(name="new", kwargs={"city": "ftp://ann:a@bonn"}):
        synced()
    with code(name="new", kwargs={"city": "ftp://ann:b@bonn"}):
        (change,) = synced()
    old, new = (json.dumps({"city": f"ftp://ann:{mask}@bonn"}) for mask in (MASK, CHANGED_MASK))
    assert change.endswith(f"kwargs: {old} -> {new}")


def test_job_declared_again_is_enabled_as_declared() -> None:
    with code(enabled=True):
        synced()
    synced()
    with code(enabled=True):
        assert synced() == ["enable report"]
        assert synced() == []
    synced()
    with code(enabled=False):
        assert synced()[0].endswith("disabled: declared disabled in code")
        assert synced() == []
    assert (the_job().enabled, the_job().pause_reason) == (False, sync.DECLARED_DISABLED)


def test_job_declared_again_without_further_occurrences_stays_disabled() -> None:
    with code():
        synced()
    synced()
    with code(PAST):
        synced()
        assert synced() == []
    assert (the_job().enabled, the_job().pause_reason) == (False, EXHAUSTED)


def test_pause_by_a_user_survives_all_code_changes() -> None:
    with code():
        synced()
        pausing.pause(the_job(), "stocktaking")
        assert synced() == []
    assert synced() == []
    with code("@hourly"):
        assert synced() == ["update report schedule: @daily -> @hourly"]
    assert (the_job().enabled, the_job().pause_reason) == (False, "stocktaking")


def test_pause_by_a_user_survives_if_code_no_longer_disables_the_job() -> None:
    with code(enabled=False):
        synced()
        pausing.pause(the_job(), "the provider is down")
        assert synced() == []
    with code():
        assert synced() == [
            "update report only its stored declaration; the job keeps its values",
            "keep report enabled: false (default: true; to reset: manage.py dcron resume report)",
        ]
        assert synced() == []
        assert (the_job().enabled, the_job().pause_reason) == (False, "the provider is down")
        pausing.resume(the_job())
        assert synced() == []
    assert the_job().enabled


def test_disabling_in_code_clears_the_end_of_a_pause_by_a_user() -> None:
    until = datetime(2090, 1, 1, tzinfo=UTC)
    with code(enabled=True):
        synced()
        pausing.pause(the_job(), "stocktaking", until)
        synced()
        assert the_job().paused_until == until
    with code(enabled=False):
        (change,) = synced()
        assert change.startswith("update report paused_until: 2090-01-01")
        assert (the_job().pause_reason, the_job().paused_until) == ("stocktaking", None)
        # A user may still enable and then pause the job.
        pausing.pause(pausing.resume(the_job()), "stocktaking", until)
        assert synced() == []
        assert the_job().paused_until == until


@pytest.mark.parametrize("description", ["as before", "changed"])
def test_sync_clears_the_end_of_its_own_pause(description: str) -> None:
    """An earlier release stored the end, which would enable the job."""
    with code(enabled=False, description="as before"):
        synced()
        Job.objects.update(paused_until=datetime(2090, 1, 1, tzinfo=UTC))
    with code(enabled=False, description=description):
        (change,) = synced()
        assert "paused_until: 2090-01-01" in change
        assert synced() == []
    job = the_job()
    assert (job.description, job.pause_reason) == (description, DECLARED_DISABLED)
    assert job.paused_until is None


def test_pause_by_a_user_stays_if_code_disables_and_enables_the_job() -> None:
    with code():
        synced()
        pausing.pause(the_job(), "stocktaking", datetime(2090, 1, 1, tzinfo=UTC))
    with code(enabled=False):
        synced()
    with code():
        assert any(line.startswith("keep report enabled: ") for line in synced())
        assert (the_job().enabled, the_job().pause_reason) == (False, "stocktaking")


def test_undeclared_job_does_not_resume_at_the_end_of_its_pause() -> None:
    with code():
        synced()
        pausing.pause(the_job(), "stocktaking", datetime(2090, 1, 1, tzinfo=UTC))
    (change,) = synced()
    assert "already paused" in change
    assert "2090-01-01" in change
    assert (the_job().pause_reason, the_job().paused_until) == ("stocktaking", None)
    assert synced() == []
    with code():
        assert synced() == []
    assert not the_job().enabled, "a user paused it"


def test_enabled_is_merged_like_other_fields() -> None:
    with code(enabled=True):
        synced()
        pausing.pause(the_job(), "stocktaking")
        assert synced() == [
            "keep report enabled: false (code: true; to reset: manage.py dcron resume report)"
        ]
        pausing.resume(the_job())
    with code(enabled=False):
        assert synced() == [
            "update report enabled: true -> false; disabled: declared disabled in code"
        ]
    with code(enabled=True):
        assert synced() == ["enable report enabled: false -> true"]
    assert (the_job().enabled, the_job().pause_reason) == (True, "")


def test_finished_one_time_job_stays_disabled_until_its_time_changes() -> None:
    future = "@at 2090-01-01T00:00"
    with code(future):
        synced()
    job = the_job()
    # The scheduler does this after it has claimed the last occurrence.
    disable_exhausted([job.pk], "default")
    with code(future, description="new text"):
        assert synced() == ["update report description: (empty) -> new text"]
        assert not the_job().enabled
    with code("@at 2091-01-01T00:00", description="new text"):
        assert synced() == [f"enable report schedule: {future} -> @at 2091-01-01T00:00"]
        assert the_job().enabled
    with code(PAST, description="new text"):
        assert synced()[0].endswith("disabled: its schedule has no further occurrence")
        assert not the_job().enabled


@pytest.mark.parametrize("enabled", [True, False])
def test_finished_job_that_now_follows_another_is_enabled_unless_code_disables_it(
    enabled: bool,
) -> None:
    make_job(name="first")
    declared: dict[str, Any] = {"schedule": "@at 2090-01-01T00:00", "enabled": enabled}
    with code(**declared):
        synced()
    job = the_job()
    if not enabled:
        control.resume(job)
    disable_exhausted([job.pk], "default")
    with code(**declared, after={"first": "ended"}):
        (line,) = synced()
    assert line.startswith("enable report" if enabled else "update report")
    assert the_job().enabled is enabled
    assert not the_job().is_finished


def test_changes_are_postponed_until_the_last_occurrence_is_claimed() -> None:
    with code("@at 2090-01-01T00:00"):
        synced()
    Job.objects.update(schedule=PAST, declared={**(the_job().declared or {}), "schedule": PAST})
    with code(PAST):
        assert synced() == []
    with code(PAST, description="new text"):
        (line,) = synced()
        assert line.startswith("keep report changes are postponed")
    assert the_job().enabled


# --- Refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["name", "namespace"])
def test_job_that_the_code_declares_is_not_renamed(field: str) -> None:
    with code():
        synced()
        with pytest.raises(ValidationError) as info:
            edit(**{field: "other"})
        assert [error.code for error in info.value.error_dict[field]] == ["declared"]
        assert edit(description="kept").name == "report"
        assert synced() == []


def test_job_renamed_in_code_and_here_keeps_its_history() -> None:
    with code():
        synced()
    job = the_job()
    with code(name="sales"):
        synced()
        assert not the_job().enabled
        deletion.delete_job(Job.objects.get(name="sales"))
        edit(name="sales")
        synced()
    assert [(each.pk, each.name, each.enabled) for each in Job.objects.all()] == [
        (job.pk, "sales", True)
    ]


def test_job_created_by_a_user_is_not_changed() -> None:
    saving.save(Job(name="report", target="tests.app.tasks.ok", schedule="@weekly"))
    with code():
        (line,) = synced()
    assert line.startswith("conflict report ")
    assert (the_job().schedule, the_job().declared) == ("@weekly", None)
    assert synced() == []  # it isn't disabled either


def test_conflict_with_an_imported_job_names_its_source() -> None:
    imported = Job(name="report", target="tests.app.tasks.ok", schedule="@weekly")
    imported.import_source, imported.import_key = "redbeat", "a"
    saving.save(imported)
    with code():
        (line,) = synced()
        assert line.startswith("conflict report ")
        assert "imported from redbeat" in line
        assert "if redbeat still has" in line, "after a migration, it may be uninstalled"
        the_job().delete()
        assert synced()[0].startswith("create report ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_attempts": 0}, "max_attempts: "),
        ({"args": [b"bytes"]}, r"args\[0\] has the type bytes"),
        ({"retry_jitter": float("nan")}, "retry_jitter: nan"),
        ({"kwargs": {"town": "Ulm"}}, "kwargs: .*'town'.*city"),
        ({"name": "a/b"}, "name: "),
    ],
)
def test_invalid_declaration_does_not_affect_others(fields: dict[str, Any], message: str) -> None:
    cron("@daily", name="good")(report)
    cron("@daily", **{"name": "report", **fields})(report)
    good, bad = sync.apply(sync.plan())
    assert (good.kind, bad.kind) == (ChangeKind.CREATE, ChangeKind.INVALID)
    assert bad.is_problem
    assert not bad.is_difference
    assert re.search(message, str(bad)), str(bad)
    assert Job.objects.get().name == "good"


@pytest.mark.parametrize(
    "arguments",
    [
        {"kwargs": {"password": "s3cret", "when": {1, 2}}},
        {"kwargs": {"password": {"s3cret"}}},
        {"kwargs": {"password": "s3cret\0"}},
        {"args": ["--password", b"s3cret"]},
        {"args": ["--password=s3cret", float("nan")]},
    ],
)
def test_refused_arguments_are_not_shown(arguments: dict[str, Any]) -> None:
    cron("@daily", **arguments)(secretive)
    [name] = arguments
    for option in ("--check", "--dry-run", "--verbosity=1"):
        out = StringIO()
        with pytest.raises(CommandError) as caught:
            call_command("dcron", "sync", option, stdout=out, no_color=True)
        assert f"invalid secretive {name}: {name}" in out.getvalue()
        assert "s3cret" not in f"{out.getvalue()}{caught.value}"


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize(
    ("label", "advice"),
    [("imports", "Did you mean 'import'?"), ("zzz", "write namespace/name.")],
)
def test_unknown_job_in_after_is_refused_with_similar_names(
    label: str, advice: str, writes: bool
) -> None:
    saving.save(Job(name="import", target="tests.app.tasks.ok", schedule="@weekly"))
    cron("@daily", name="first")(report)
    cron("@daily", name="good", after={"first": "failed", "import": "ended"})(report)
    cron("@daily", name="bad", after={"first": "failed", label: "ended"})(report)
    changes = sync.apply(sync.plan()) if writes else sync.plan()
    [bad] = [change for change in changes if change.is_problem]
    assert bad.job == "bad"
    assert str(bad).startswith(f"invalid bad after: There is no job {label!r}. ")
    assert str(bad).endswith(advice)
    assert len(changes) == 3


def test_job_itself_is_not_suggested_instead_of_an_unknown_job() -> None:
    cron("@daily", name="import", after={"imports": "ended"})(report)
    (change,) = sync.plan()
    assert str(change).endswith("There is no job 'imports'." + predecessors.WITH_NAMESPACE)


@pytest.mark.parametrize("fields", [{"max_attempts": 0}, {"after": {"zzz": "failed"}}])
def test_jobs_that_follow_a_refused_job_are_refused(fields: dict[str, Any]) -> None:
    cron("@daily", name="last", after={"next": "failed"})(report)
    cron("@daily", name="next", after={"first": "failed"})(report)
    cron("@daily", name="first", **fields)(report)
    planned = {str(change) for change in sync.plan()}
    assert {
        "invalid last after: waits for next, which is refused",
        "invalid next after: waits for first, which is refused",
    } < planned
    assert {*synced()} == planned
    assert not Job.objects.exists()


def test_job_that_follows_a_stored_job_whose_update_is_refused_is_created() -> None:
    cron("@daily", name="first")(report)
    synced()
    with targets.isolated_registry():
        cron("@daily", name="first", max_attempts=0)(report)
        cron("@daily", name="next", after={"first": "failed"})(report)
        refused, created = synced()
    assert refused.startswith("invalid first max_attempts: ")
    assert created.startswith("create next ")


def test_invalid_update_leaves_the_row_unchanged() -> None:
    with code():
        synced()
    with code("@hourly", queue="q" * 200):
        (line,) = synced()
    assert line.startswith("invalid report queue: ")
    assert (the_job().schedule, the_job().enabled) == ("@daily", True)


def test_no_job_is_disabled_if_task_modules_fail_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    with code():
        synced()
    monkeypatch.setattr(targets, "discovery_problem", lambda: "ImportError: shpo")
    assert synced() == ["invalid task modules some can't be imported: ImportError: shpo"]
    assert the_job().enabled


# --- Concurrency --------------------------------------------------------------------------------


def test_applying_a_plan_again_changes_nothing() -> None:
    with code():
        plan = sync.plan()
        assert len(sync.apply(plan)) == 1
        assert sync.apply(plan) == []
    with code("@hourly"):
        plan = sync.plan()
        assert len(sync.apply(plan)) == 1
        assert sync.apply(plan) == []
        assert the_job().version == 2
    plan = sync.plan()
    assert len(sync.apply(plan)) == 1
    assert sync.apply(plan) == []
    assert Job.objects.count() == 1


def test_job_created_by_another_node_during_planning_is_not_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = comparison._rows

    def rows(*args: Any) -> list[Job]:
        found = list(original(*args))
        monkeypatch.setattr(comparison, "_rows", original)
        sync.apply(sync.plan())
        return found

    with code():
        monkeypatch.setattr(comparison, "_rows", rows)
        assert sync.apply(sync.plan()) == []
    assert Job.objects.count() == 1


def test_edit_between_plan_and_apply_is_kept() -> None:
    with code(timeout=timedelta(minutes=1)):
        synced()
    with code("@hourly", timeout=timedelta(minutes=2)):
        plan = sync.plan()
        edit(timeout=timedelta(minutes=9))
        assert [str(change) for change in sync.apply(plan)] == [
            "update report schedule: @daily -> @hourly"
        ]
    assert (the_job().schedule, the_job().timeout) == ("@hourly", timedelta(minutes=9))


def test_job_deleted_between_plan_and_apply_is_created() -> None:
    with code():
        synced()
    with code("@hourly"):
        plan = sync.plan()
        the_job().delete()
        assert [change.kind for change in sync.apply(plan)] == [ChangeKind.CREATE]


def test_job_created_by_a_user_between_plan_and_apply_is_a_conflict() -> None:
    with code():
        plan = sync.plan()
        saving.save(Job(name="report", target="tests.app.tasks.ok", schedule="@weekly"))
        assert [change.kind for change in sync.apply(plan)] == [ChangeKind.CONFLICT]


@pytest.mark.parametrize(
    "error", [Conflict("again"), IntegrityError("again"), ValidationError("again")]
)
def test_repeated_conflict_is_reported_as_invalid(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(change: JobToSave) -> Job:
        raise error

    def refuse(changes: object, **options: Any) -> dict[int, Exception]:
        return {0: error}

    monkeypatch.setattr(writing.saving, "save_change", fail)
    monkeypatch.setattr(writing.saving, "save_changes", refuse)
    with code():
        (change,) = sync.apply(sync.plan())
    assert change.kind is ChangeKind.INVALID
    assert "again" in str(change)


@pytest.mark.django_db(transaction=True)
def test_concurrent_nodes_create_each_job_once() -> None:
    for number in range(5):
        cron("@daily", name=f"job {number}")(report)
    barrier, results = threading.Barrier(4), []

    def node() -> None:
        try:
            plan = sync.plan()
            barrier.wait(TIMEOUT)
            results.append(sync.apply(plan))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=node) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 4
    done = [change for result in results for change in result]
    assert sorted(change.job for change in done) == [f"job {number}" for number in range(5)]
    assert {change.kind for change in done} == {ChangeKind.CREATE}
    assert Cursor.objects.filter(next_at__isnull=False).count() == Job.objects.count() == 5


# --- manage.py dcron sync -----------------------------------------------------------------------


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("dcron", "sync", *arguments, stdout=out, no_color=True)
    return out.getvalue()


def test_differences_are_flushed_before_the_error() -> None:
    """Both streams share a pipe, as in a CI log: stdout is buffered there, stderr isn't."""

    class Pipe(StringIO):
        written = ""

        def flush(self) -> None:
            self.written = self.getvalue()

    out = Pipe()
    with code(), pytest.raises(CommandError):
        call_command("dcron", "sync", "--check", stdout=out)
    assert "create report" in out.written


def test_command_reports_each_change() -> None:
    with code(timeout=timedelta(minutes=1)):
        assert command() == f"created report @daily (UTC)\n{NO_NODE}\n{DECLARED}"
        assert command() == f"{MATCHES}{DECLARED}"
        edit(timeout=timedelta(minutes=9))
    with code("@hourly", priority=3, timeout=timedelta(minutes=1)):
        assert command() == (
            "updated report schedule: @daily -> @hourly\n"
            "updated report priority: null -> 3\n"
            "kept report timeout: 9m (code: 1m; "
            "to reset: manage.py dcron set report timeout=1m)\n"
            f"{NO_NODE}\n{DECLARED}"
        )
    assert command().startswith("disabled report no longer declared in code\n")
    with code("@hourly", priority=3, timeout=timedelta(minutes=1)):
        assert command().startswith("enabled report\n")


def test_check_and_dry_run_list_the_edited_fields_that_code_does_not_name() -> None:
    with code(timeout=timedelta(minutes=1)):
        synced()
        edit(queue="slow", tags=["mine"], timeout=timedelta(minutes=9))
        shown = command("--dry-run")
        assert command("--check") == shown, "an edit isn't a difference"
        kept = {line.split(":")[0] for line in shown.splitlines() if line.startswith("kept")}
        assert kept == {f"kept report {name}" for name in ("queue", "tags", "timeout")}
        assert 'kept report tags: ["mine"] (default: []; ' in shown
        assert "kept report timeout: 9m (code: 1m; " in shown
        assert {*sync.declared_texts(the_job())} == {"queue", "tags", "timeout"}, "as in the admin"
        assert "kept report queue" not in command(), "each deployment would repeat it"
        out = StringIO()
        call_command("dcron", "show", "report", stdout=out)
        assert re.findall(r"(\w+) \(code: (.+)\)", out.getvalue()) == [
            ("queue", "(empty)"),
            ("timeout", "1m"),
            ("tags", "[]"),
        ]


def test_command_quotes_names_with_spaces() -> None:
    with code(name="friday 13 check"):
        assert command().startswith("created 'friday 13 check' @daily (UTC)\n")


def test_command_says_how_to_cancel_runs_whose_target_is_missing() -> None:
    hint = "To cancel them: manage.py dcron cancel 'my report'\n"
    for state in ("succeeded", "queued"):
        with code(name="my report"):
            sync.apply(sync.plan())
        make_run(Job.objects.get(), state)
        assert hint not in command("--dry-run")
        assert command().endswith(hint) is (state == "queued")
    with code(name="my report"):
        sync.apply(sync.plan())
    with code(name="other"):
        assert hint not in command(), "the code still contains the target"


def test_command_names_the_live_nodes_which_may_run_older_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = database_now("default")
    for number in range(4):
        age = timedelta(hours=number)
        common = {"host": "h", "pid": 1, "version": "1", "shard_count": 64}
        heartbeat = {"heartbeat_at": now - (dcron.LEASE if number == 3 else timedelta())}
        name = f"node-{number}"
        Node.objects.create(id=name, name=name, started_at=now - age, **common, **heartbeat)
    monkeypatch.setattr(sync_command, "NODES_LISTED", 2)
    with code():
        lines = command().splitlines()
    assert RESTART in lines
    assert [line.split()[1] for line in lines if line.startswith("Node ")] == ["node-2", "node-1"]
    assert lines[-2].startswith("1 more node")


def test_command_names_installed_apps_if_nothing_is_declared() -> None:
    assert command() == f"{sync.NOTHING_DECLARED}\n"


def test_command_names_an_app_that_is_not_installed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for app in ("package_of_settings", "shop_of_sync"):
        (tmp_path / app).mkdir()
        (tmp_path / app / "__init__.py").touch()
    (tmp_path / "manage.py").touch()
    (tmp_path / "shop_of_sync" / "cron.py").write_text("from django_dcron import cron")
    monkeypatch.syspath_prepend(tmp_path)
    settings.SETTINGS_MODULE = "package_of_settings.settings"
    importlib.invalidate_caches()
    first, second = command().splitlines()
    assert first == sync.NOTHING_DECLARED
    assert "'shop_of_sync' isn't in INSTALLED_APPS" in second
    with code():
        assert "shop_of_sync" not in command()


def test_command_counts_the_jobs_of_each_module() -> None:
    for name in ("first", "second"):
        cron("@daily", name=name)(report)
    for name in ("ok", "echo"):
        cron("@daily")(getattr(tasks, name))
    last = command("--dry-run").splitlines()[-1]
    assert last == f"Declared: 2 jobs in {__name__}, 2 in {tasks.__name__}"


@pytest.mark.parametrize(
    ("is_declared", "is_stored", "events"),
    [(False, False, ["no_jobs"]), (False, True, []), (True, False, ["synced"])],
)
def test_node_logs_that_there_are_no_jobs(
    caplog: pytest.LogCaptureFixture, is_declared: bool, is_stored: bool, events: list[str]
) -> None:
    """A project may create all of its jobs in the admin."""
    caplog.set_level("INFO", "django_dcron.scheduler")
    if is_stored:
        make_job()
    with code() if is_declared else nullcontext():
        sync_declared()
    assert [record.event for record in caplog.records] == events  # type: ignore[attr-defined]


def test_node_logs_an_invalid_declaration_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with code(calendar="unknown"):
        sync_declared()
    [record] = caplog.records
    assert (record.levelno, vars(record)["event"]) == (logging.ERROR, "sync_failed")
    assert record.getMessage().startswith("job not synced: invalid report calendar: ")


@pytest.mark.parametrize(("calendar", "warns"), [("SAT-SUN", False), ("02:00-04:00", True)])
def test_sync_warns_if_every_date_is_a_working_day(calendar: str, warns: bool) -> None:
    save_calendar(Calendar(name="days", dates=calendar))
    with code("0 9 WD#3 * ?", calendar="days"):
        assert (WORKING_DAYS_CAUTION in command()) is warns
    with code("0 9 WD#4 * ?", calendar="days"):
        assert (WORKING_DAYS_CAUTION in command()) is warns


def test_sync_says_how_to_create_an_unknown_calendar() -> None:
    with code(calendar="maintenance"):
        [change] = sync.plan()
    assert change.kind is ChangeKind.INVALID
    assert "'maintenance'" in change.details[0]
    assert "control.save_calendar" in change.details[0]


def test_dry_run_shows_changes_and_writes_nothing() -> None:
    with code():
        assert command("--dry-run") == f"create report @daily (UTC)\n{DECLARED}"
    assert not Job.objects.exists()


def test_check_fails_if_the_database_differs_from_the_code() -> None:
    with code():
        with pytest.raises(CommandError) as caught:
            command("--check")
        assert caught.value.returncode == 1
        assert not Job.objects.exists()
        synced()
        edit(schedule="@weekly")  # sync keeps the edit of a user
        assert command("--check") == (
            "kept report schedule: @weekly (code: @daily; "
            "to reset: manage.py dcron set report schedule=@daily)\n"
            f"Apart from what is kept, the database matches the code.\n{DECLARED}"
        )


@pytest.mark.parametrize("moved", [{}, {"namespace": "shop"}])
def test_command_says_how_a_renamed_job_keeps_its_history(moved: dict[str, str]) -> None:
    with code():
        synced()
    job = the_job()
    with code(name="sales report", **moved):
        [hint] = [line for line in command("--dry-run").splitlines() if line.startswith("If ")]
        _, _, rename = hint.partition("manage.py dcron ")
        call_command("dcron", *shlex.split(rename), stdout=StringIO())
        assert command("--check") == f"{MATCHES}{DECLARED}"
    assert [(each.pk, each.name, each.enabled) for each in Job.objects.all()] == [
        (job.pk, "sales report", True)
    ]
    assert Job.objects.get().namespace == moved.get("namespace", "default")


def test_after_a_sync_command_says_how_a_renamed_job_keeps_its_history() -> None:
    with code():
        synced()
    job = the_job()
    with code(name="sales"):
        [hint] = [line for line in command().splitlines() if line.startswith("If ")]
        _, *steps = hint.split("manage.py dcron ")
        out = StringIO()
        for step in steps:
            call_command("dcron", *shlex.split(step.rstrip("; ")), stdout=out)
        assert "unless you first rename the job that it replaces" in out.getvalue()
        command()
    assert [(each.pk, each.name, each.enabled) for each in Job.objects.all()] == [
        (job.pk, "sales", True)
    ]


@pytest.mark.parametrize("arguments", [("--check",), ()])
def test_command_says_how_a_job_keeps_its_history_if_its_function_was_renamed(
    arguments: tuple[str, ...],
) -> None:
    with code():
        synced()
    job = the_job()
    with targets.isolated_registry():
        cron("@hourly")(sell)
        out = StringIO()
        with suppress(CommandError):
            call_command("dcron", "sync", *arguments, stdout=out, no_color=True)
        [hint] = [line for line in out.getvalue().splitlines() if line.startswith("If ")]
        _, *steps = hint.split("manage.py dcron ")
        target = f"{__name__}.sell"
        assert steps[-1] == f"set report name=sell target={target}"
        for step in steps:
            call_command("dcron", *shlex.split(step.rstrip("; ")), stdout=StringIO())
        command()
        assert command() == f"{MATCHES}{DECLARED}"
    [renamed] = Job.objects.all()
    assert (renamed.pk, renamed.name, renamed.target) == (job.pk, "sell", target)
    assert (renamed.enabled, renamed.schedule) == (True, "@hourly")


def test_command_guesses_no_rename_if_a_module_has_several_new_jobs() -> None:
    with code():
        synced()
    with targets.isolated_registry():
        cron("@daily")(sell)
        cron("@daily")(secretive)
        assert "If " not in command("--dry-run")


def test_command_guesses_no_rename_if_several_jobs_have_the_target() -> None:
    for name in ("old", "other"):
        cron("@daily", name=name)(report)
    synced()
    with code(name="new"):
        assert "If " not in command("--dry-run")


@pytest.mark.parametrize("arguments", [(), ("--check",), ("--dry-run",)])
def test_command_exits_with_2_after_applying_the_other_changes(arguments: tuple[str, ...]) -> None:
    cron("@daily", name="bad", max_attempts=0)(report)
    cron("@daily", name="good")(report)
    with pytest.raises(CommandError, match=r"^1 ") as caught:
        command(*arguments)
    assert caught.value.returncode == 2
    assert Job.objects.filter(name="good").exists() is (not arguments)


def test_check_and_dry_run_are_mutually_exclusive() -> None:
    with pytest.raises(CommandError, match=r"--dry-run.*--check|--check.*--dry-run"):
        command("--check", "--dry-run")


def test_change_without_details_has_a_short_text() -> None:
    assert str(SyncChange(ChangeKind.ENABLE, "report")) == "enable report"


# --- Calendars ----------------------------------------------------------------------------------


def test_declared_calendar_is_set_and_a_user_edit_is_kept() -> None:
    for name in ("closed", "open"):
        save_calendar(Calendar(name=name, dates="12-25"))
    with code(calendar="closed", calendar_policy="next_day"):
        assert synced() == ["create report @daily (UTC)"]
        assert synced() == []
    assert (the_job().calendar_id, the_job().cursor.calendar_dates) == ("closed", "12-25")
    with code(calendar="open", calendar_policy="next_day"):
        assert synced() == ["update report calendar: closed -> open"]
        edit(calendar_id="closed")
        [line] = synced()
        assert line.startswith("keep report calendar: closed (code: ")
        edit(calendar_id="open")
    with code(calendar="none", calendar_policy="next_day"):
        (change,) = sync.plan()
        assert change.kind is ChangeKind.INVALID
        assert "calendar: " in str(change)
    with code():
        synced()
    assert (the_job().calendar_id, the_job().calendar_policy) == (None, "skip")
    assert the_job().cursor.calendar_dates is None


def test_number_of_statements_does_not_grow_with_the_declarations() -> None:
    def statements(number: int) -> int:
        with targets.isolated_registry():
            for n in range(number):
                cron("@daily", name=f"{number}-{n}")(report)
            with CaptureQueriesContext(connection) as queries:
                applied = sync.apply(sync.plan())
        assert [change.kind for change in applied].count(ChangeKind.CREATE) == number
        return len(queries)

    first = statements(3)
    Job.objects.all().delete()
    assert statements(30) - first < 10


@pytest.mark.parametrize("has_history", [True, False])
def test_sync_continues_after_a_deletion_is_undone(has_history: bool) -> None:
    with code(schedule="@daily", max_attempts=2):
        synced()
        job = edit(max_attempts=5)
        if has_history:
            make_run(job, "succeeded")
        restore_deleted(job)
        assert [change.kind for change in sync.plan()] == [ChangeKind.KEEP]
    with code(schedule="@hourly", max_attempts=2):
        synced()
        assert (the_job().schedule, the_job().max_attempts) == ("@hourly", 5)


def test_job_that_code_no_longer_declares_stays_disabled_after_a_deletion_is_undone() -> None:
    with targets.isolated_registry():
        cron("@daily", name="report")(tasks.ok)
        synced()
    restore_deleted(the_job())
    assert [change.kind for change in sync.plan()] == [ChangeKind.DISABLE]
    synced()
    restore_deleted(the_job())
    assert not the_job().enabled
    assert sync.plan() == []
    cron("@daily", name="report")(tasks.ok)
    synced()
    assert the_job().enabled
