"""Test how an import compares entries with existing jobs: the diff, the writes and the refusals."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from django_dcron import control
from django_dcron.contrib.importers import calendars as import_calendars
from django_dcron.contrib.importers.comparison import compare_entries
from django_dcron.contrib.importers.entry_plans import ComparisonOptions, ImportOutcome
from django_dcron.contrib.importers.names import clean_name, with_distinct_names
from django_dcron.contrib.importers.source_contents import SourceCalendar, SourceEntry
from django_dcron.contrib.importers.writing import (
    apply_entry_plans,
)
from django_dcron.jobs.sync import DECLARED_DISABLED, NO_LONGER_DECLARED, edited_fields
from django_dcron.management.dcron.import_output import _change_texts
from django_dcron.models import Calendar, Job
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.targets.redaction import CHANGED_MASK, MASK
from tests.factories import make_idle_job, make_job
from tests.management.calling import call

pytestmark = pytest.mark.django_db

VALUES: dict[str, Any] = {
    "target": "tests.app.tasks.echo",
    "schedule": "@daily",
    "timezone": "UTC",
    "enabled": True,
    "pause_reason": "",
}

DECLARED = {"schedule": "@daily", "timezone": "UTC", "target": "tests.app.tasks.ok"}


def found(name: str = "a", **values: Any) -> SourceEntry:
    return SourceEntry(f"row {name}", name, VALUES | values)


def plan_for(name: str = "a", *, disabled: bool = False, **values: Any) -> Any:
    (plan,) = compare_entries([found(name, **values)], options=ComparisonOptions(disabled=disabled))
    return plan


def apply(*entries: SourceEntry, **options: Any) -> list[Any]:
    return list(apply_entry_plans(compare_entries(entries, options=ComparisonOptions(**options))))


def test_new_entry_creates_a_job() -> None:
    assert plan_for().outcome is ImportOutcome.CREATE
    assert not Job.objects.exists()
    apply(found())
    job = Job.objects.get()
    assert (job.namespace, job.name, job.schedule) == ("default", "a", "@daily")
    assert job.cursor.next_at


def test_only_fields_of_the_source_are_compared() -> None:
    apply(found())
    job = Job.objects.get()
    job.max_attempts = 5
    control.save(job)
    assert plan_for().outcome is ImportOutcome.SAME
    changed = plan_for(schedule="@hourly")
    assert (changed.outcome, dict(changed.changes)) == (
        ImportOutcome.CHANGE,
        {"schedule": ("@daily", "@hourly")},
    )
    apply(found(schedule="@hourly"))
    job.refresh_from_db()
    assert (job.schedule, job.max_attempts, job.version) == ("@hourly", 5, 3)


def test_disabled_import_creates_a_paused_job() -> None:
    apply(found(), disabled=True)
    job = Job.objects.get()
    assert (job.enabled, job.pause_reason) == (False, "imported with --disabled")
    assert plan_for(disabled=True).outcome is ImportOutcome.SAME
    assert dict(plan_for().changes) == {
        "enabled": (False, True),
        "pause_reason": ("imported with --disabled", ""),
    }
    apply(found())
    job.refresh_from_db()
    assert (job.enabled, job.pause_reason) == (True, "")
    # ``disabled`` doesn't pause an enabled job.
    assert plan_for(disabled=True).outcome is ImportOutcome.SAME


def test_pause_is_one_line() -> None:
    changes = {
        "enabled": (False, True),
        "pause_reason": ("imported with --disabled", ""),
        "paused_until": ("2083-01-01T00:00:00Z", None),
        "schedule": ("@daily", "@hourly"),
    }
    first, second = _change_texts(changes)
    assert first.startswith("enabled: ")
    assert "imported with --disabled" in first
    assert second.startswith("schedule: ")


def test_pause_reason_of_a_user_is_kept() -> None:
    apply(found(enabled=False, pause_reason="was disabled"))
    control.pause(Job.objects.get(), "ask Ann")
    assert plan_for(enabled=False, pause_reason="was disabled").outcome is ImportOutcome.SAME


def test_job_declared_in_code_is_a_conflict() -> None:
    make_job(name="a", declared={"schedule": "@weekly"}, schedule="@weekly")
    assert plan_for().outcome is ImportOutcome.CONFLICT
    assert "@cron" in plan_for().reasons[0]
    apply(found())
    assert Job.objects.get().schedule == "@weekly"


def test_refused_entry_does_not_affect_others() -> None:
    plans = apply(found("a", schedule="61 * * * *"), found("b"), found("c", queue="with space"))
    assert [each.outcome for each in plans] == [
        ImportOutcome.REFUSED,
        ImportOutcome.CREATE,
        ImportOutcome.REFUSED,
    ]
    assert plans[0].reasons[0].startswith("schedule: minute: 61 is out of range")
    assert plans[2].reasons[0].startswith("queue: ")
    assert list(Job.objects.values_list("name", flat=True)) == ["b"]


def test_job_changed_after_the_comparison_is_not_overwritten() -> None:
    apply(found())
    plans = compare_entries([found(schedule="@hourly")])
    job = Job.objects.get()
    job.schedule = "@weekly"
    control.save(job)
    (done,) = apply_entry_plans(plans)
    assert done.outcome is ImportOutcome.REFUSED
    assert "run the import again" in done.reasons[0]
    assert Job.objects.get().schedule == "@weekly"


def test_job_created_after_the_comparison_is_not_overwritten() -> None:
    plans = compare_entries([found()])
    make_job(name="a", schedule="@weekly")
    (done,) = apply_entry_plans(plans)
    assert done.outcome is ImportOutcome.REFUSED
    assert Job.objects.get().schedule == "@weekly"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nightly report", "nightly report"),
        ("send (daily) / Ulm", "send daily - Ulm"),
        ("tasks.a:b@c", "tasks.a:b@c"),
        ("  ", "job"),
        ("Weekly report (old) *", "Weekly report old"),
        ("Weekly report ", "Weekly report"),
        ("* - (a) / ", "a"),
        ("***", "job"),
        ("日本", "日本"),
    ],
)
def test_names_are_cleaned(text: str, name: str) -> None:
    assert clean_name(text) == name
    Job(name=name).clean_fields(exclude={field.name for field in Job._meta.fields} - {"name"})


@given(st.lists(st.text(max_size=130) | st.sampled_from(["a", "A", "á", "a ", "a*"]), max_size=6))
def test_distinct_names_are_valid_unique_and_stable(names: list[str]) -> None:
    entries = [SourceEntry(f"row {number}", name) for number, name in enumerate(names)]
    named = [each.name for each in with_distinct_names(entries)]
    for name in named:
        Job(name=name).clean_fields(exclude={f.name for f in Job._meta.fields} - {"name"})
    assert len({name.casefold() for name in named}) == len(named)
    assert [each.name for each in reversed(with_distinct_names(reversed(entries)))] == named


def test_changed_name_is_reported() -> None:
    (entry,) = with_distinct_names([SourceEntry("row 1", "a (b)")])
    assert entry.warnings == ("renamed from 'a (b)'",)


def test_long_names_are_shortened_and_stay_distinct() -> None:
    long = [f"{'x' * 150}{n}" for n in range(2)]
    names = {each.name for each in with_distinct_names(SourceEntry(name, name) for name in long)}
    assert len(names) == 2
    assert {len(name) for name in names} == {120}


def test_names_equal_after_cleaning_stay_distinct() -> None:
    one, two = with_distinct_names([SourceEntry("row 1", "a/b"), SourceEntry("row 2", "a-b")])
    assert one.name != two.name
    assert [
        each.name
        for each in with_distinct_names([SourceEntry("row 2", "a-b"), SourceEntry("row 1", "a/b")])
    ] == [
        two.name,
        one.name,
    ]


# --- django-dcron exports -------------------------------------------------------------------------


def test_import_of_an_export_restores_the_jobs(tmp_path: Path) -> None:
    make_job(name="a", namespace="shop", schedule="0 4 * * MON", max_attempts=4, tags=["x"])
    make_idle_job(name="b")
    for suffix in ("json", "yaml"):
        file = tmp_path / f"jobs.{suffix}"
        assert call("export", "--output", str(file)).code == 0
        assert call("import", str(file)).out == "2 same.\n"
        before = call("export").out
        Job.objects.all().delete()
        assert call("import", str(file), "--apply").code == 0
        assert call("export").out == before


def test_omitted_field_is_reset_to_its_default(tmp_path: Path) -> None:
    job = make_idle_job(name="a", max_attempts=4)
    file = tmp_path / "jobs.json"
    fields = {"name": "a", "target": job.target, "schedule": job.schedule, "enabled": job.enabled}
    file.write_text(json.dumps({"format": "django-dcron", "version": 1, "jobs": [fields]}))
    assert "change a max_attempts: 4 -> 1" in call("import", str(file)).out


def test_export_can_be_imported_into_another_namespace(tmp_path: Path) -> None:
    make_idle_job(name="a", namespace="shop")
    file = tmp_path / "jobs.json"
    call("export", "--output", str(file))
    assert call("import", str(file), "--namespace", "copy", "--apply").code == 0
    assert set(Job.objects.values_list("namespace", "name")) == {("shop", "a"), ("copy", "a")}


def test_declared_jobs_are_omitted(tmp_path: Path) -> None:
    make_job(name="a", **DECLARED, declared=DECLARED)
    file = tmp_path / "jobs.json"
    call("export", "--output", str(file))
    Job.objects.all().delete()
    done = call("import", str(file), "--apply")
    assert (done.code, Job.objects.count()) == (0, 0)
    assert "omitted a " in done.out


def test_edits_of_a_declared_job_are_imported_once_the_job_exists(tmp_path: Path) -> None:
    job = make_job(name="a", **DECLARED, declared=DECLARED)
    job.queue = "mail"
    control.save(job)
    control.pause(job, "ask Ann")
    file = tmp_path / "jobs.json"
    call("export", "--output", str(file))
    Job.objects.all().delete()

    done = call("import", str(file), "--apply")
    assert (done.code, Job.objects.count()) == (1, 0)
    assert "changed enabled, pause_reason, paused_until, queue;" in done.out
    assert "manage.py dcron sync" in done.out

    make_job(name="a", **DECLARED, declared={**DECLARED, "max_attempts": 3}, max_attempts=3)
    assert call("import", str(file), "--apply").code == 0
    restored = Job.objects.get()
    assert (restored.queue, restored.enabled, restored.pause_reason) == ("mail", False, "ask Ann")
    assert restored.max_attempts == 3, "a field that nobody changed follows the code here"
    assert call("import", str(file)).out.startswith("1 same")

    Job.objects.update(declared=None)
    done = call("import", str(file))
    assert done.code == 1
    assert "isn't declared" in done.out


@pytest.mark.parametrize(
    ("declared", "job", "edited"),
    [
        ({}, {}, set()),
        ({"queue": "a"}, {"queue": "a"}, set()),
        ({"queue": "a"}, {"queue": "b"}, {"queue"}),
        ({}, {"queue": "b"}, {"queue"}),
        ({"enabled": False}, {"enabled": False, "pause_reason": DECLARED_DISABLED}, set()),
        (
            {"enabled": False},
            {"enabled": True},
            {"enabled", "pause_reason", "paused_until"},
        ),
        ({}, {"enabled": False, "pause_reason": EXHAUSTED}, set()),
        ({}, {"enabled": False, "pause_reason": NO_LONGER_DECLARED}, set()),
        ({}, {"enabled": False, "pause_reason": "x"}, {"enabled", "pause_reason", "paused_until"}),
    ],
)
def test_edits_of_a_declared_job_are_the_values_that_differ_from_its_declaration(
    declared: dict[str, Any], job: dict[str, Any], edited: set[str]
) -> None:
    assert edited_fields(Job(**DECLARED, declared=DECLARED | declared, **job)) == edited


def test_problems_of_an_export_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    good = {"name": "good", "target": "tests.app.tasks.ok", "schedule": "@daily"}
    file.write_text(
        json.dumps(
            {
                "format": "django-dcron",
                "version": 1,
                "jobs": [good, {"name": "bad", "max_attemps": 1}],
            }
        )
    )
    done = call("import", str(file), "--apply")
    assert done.code == 1
    assert "Did you mean 'max_attempts'" in done.out
    assert "; target: " in done.out
    assert list(Job.objects.values_list("name", flat=True)) == ["good"]
    paused = {"name": "paused", "target": "no.such", "schedule": "@daily", "enabled": False}
    file.write_text(json.dumps({"format": "django-dcron", "version": 1, "jobs": [good, paused]}))
    done = call("import", str(file), "--apply")
    assert (done.code, done.out.splitlines()[-1]) == (1, "1 same, 1 refused.")
    file.write_text("[]")
    assert (call("import", str(file)).code, call("import", str(file)).out) == (2, "")


# --- Calendars of an export -----------------------------------------------------------------------


def exported_with_calendars(tmp_path: Path) -> Path:
    """Export jobs and calendars.

    Two jobs refer to the calendar ``closed``. No job refers to ``other``, so it isn't exported.
    """
    closed = control.save_calendar(
        Calendar(name="closed", dates="SAT-SUN\n12-25", description="Ask Ada.")
    )
    control.save_calendar(Calendar(name="other", dates="12-26"))
    make_idle_job(name="a", namespace="shop", calendar=closed, calendar_policy="next_day")
    make_idle_job(name="b", calendar=closed)
    make_idle_job(name="c")
    file = tmp_path / "jobs.json"
    assert call("export", "--output", str(file)).code == 0
    return file


def delete_everything() -> None:
    Job.objects.all().delete()
    Calendar.objects.all().delete()


def calendars() -> list[tuple[str, str, str, int]]:
    return [*Calendar.objects.values_list("name", "dates", "description", "version")]


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_calendars_of_an_export_are_imported(suffix: str, tmp_path: Path) -> None:
    exported_with_calendars(tmp_path)
    file = tmp_path / f"jobs.{suffix}"
    call("export", "--output", str(file))
    assert call("import", str(file)).out == "Calendars: 1 same.\n3 same.\n"
    before = call("export").out
    delete_everything()
    shown = call("import", str(file))
    assert shown.code == 0
    assert "create calendar closed SAT-SUN, 12-25\n" in shown.out
    assert "Calendars: 1 to create.\n" in shown.out
    assert shown.out.endswith("3 to create.\nNothing was written. To write, use --apply.\n")
    assert calendars() == []
    done = call("import", str(file), "--apply")
    assert (done.code, calendars()) == (0, [("closed", "SAT-SUN\n12-25", "Ask Ada.", 1)])
    assert "created calendar closed SAT-SUN, 12-25\nCalendars: 1 created.\n" in done.out
    assert call("export").out == before
    job = Job.objects.get(name="b")
    assert (job.cursor.calendar_dates, job.cursor.problem) == ("SAT-SUN\n12-25", "")


def test_changed_calendar_reports_other_affected_jobs(tmp_path: Path) -> None:
    file = exported_with_calendars(tmp_path)
    calendar = Calendar.objects.get(name="closed")
    calendar.dates = "SUN"
    control.save_calendar(calendar)
    make_idle_job(name="not in the export", calendar=calendar)
    shown = call("import", str(file))
    assert "change calendar closed dates: SUN -> SAT-SUN, 12-25\n" in shown.out
    assert "! calendar closed: this also affects 3 existing jobs\n" in shown.out
    assert shown.out.endswith("3 same.\nNothing was written. To write, use --apply.\n")
    document = call("import", str(file), "--json").json
    (calendar_move,) = document["calendars"]
    assert (calendar_move["name"], calendar_move["outcome"]) == ("closed", "change")
    assert calendar_move["changes"] == {"dates": {"from": "SUN", "to": "SAT-SUN\n12-25"}}
    assert call("import", str(file), "--apply").code == 0
    assert Calendar.objects.get(name="closed").dates == "SAT-SUN\n12-25"
    assert call("import", str(file)).out == "Calendars: 1 same.\n3 same.\n"


def test_changed_secrets_are_marked(tmp_path: Path) -> None:
    make_idle_job(name="a", target="tests.app.tasks.echo", kwargs={"token": "old"})
    file = tmp_path / "jobs.json"
    file.write_text(call("export").out)
    Job.objects.update(kwargs={"token": "new"})
    command = ("import", str(file), "--overwrite", "kwargs")
    (job,) = call(*command, "--json").json["jobs"]
    old, new = {"token": MASK}, {"token": CHANGED_MASK}
    assert job["changes"] == {"kwargs": {"from": old, "to": new}}
    assert f"kwargs: {json.dumps(old)} -> {json.dumps(new)}\n" in call(*command).out


def test_changed_description_of_a_calendar_affects_no_jobs(tmp_path: Path) -> None:
    file = exported_with_calendars(tmp_path)
    calendar = Calendar.objects.get(name="closed")
    calendar.description = "Ask Bob."
    control.save_calendar(calendar)
    shown = call("import", str(file))
    assert "change calendar closed description: Ask Bob. -> Ask Ada.\n" in shown.out
    assert "affects" not in shown.out


def document_with(tmp_path: Path, *jobs: dict[str, Any], **fields: Any) -> str:
    file = tmp_path / "jobs.json"
    given = [{"target": "tests.app.tasks.ok", "schedule": "@daily", **job} for job in jobs]
    file.write_text(json.dumps({"format": "django-dcron", "version": 1, "jobs": given} | fields))
    return str(file)


def test_job_with_an_unknown_calendar_is_refused(tmp_path: Path) -> None:
    control.save_calendar(Calendar(name="here", dates="12-25"))
    jobs = [{"name": name, "calendar": name} for name in ("here", "there", "nowhere")]
    file = document_with(tmp_path, *jobs, calendars=[{"name": "there", "dates": "12-24"}])
    done = call("import", file, "--apply")
    assert done.code == 1
    refused = (
        'calendar: "nowhere": unknown calendar; it is neither in the database nor in the document'
    )
    assert f"refused nowhere {refused}\n" in done.out
    assert set(Job.objects.values_list("name", "calendar")) == {
        ("here", "here"),
        ("there", "there"),
    }
    assert done.err.startswith("1 of 4 ")


def test_jobs_are_validated_with_the_imported_calendar(tmp_path: Path) -> None:
    control.save_calendar(Calendar(name="closed", dates="12-24"))
    jobs = [
        {"name": "never", "schedule": "0 0 25 12 *", "calendar": "closed"},
        {"name": "now and then", "schedule": "0 0 24 12 *", "calendar": "turned"},
        {"name": "elapsed", "schedule": "@every 1h", "calendar": "new"},
    ]
    control.save_calendar(Calendar(name="turned", dates="12-24"))
    given = [{"name": name, "dates": "12-25"} for name in ("closed", "turned", "new")]
    file = document_with(tmp_path, *jobs, calendars=given)
    for applied in ((), ("--apply",)):
        done = call("import", file, *applied)
        assert done.code == 1
        assert re.search('refused never calendar: "closed": .*0 0 25 12 [*]', done.out)
        assert 'refused elapsed calendar: "new": ' in done.out
        assert "elapsed time" in done.out
    assert [*Job.objects.values_list("name", flat=True)] == ["now and then"]


def test_calendar_is_refused_if_a_job_that_uses_it_is_refused(tmp_path: Path) -> None:
    """Otherwise the calendar's new dates would suppress all occurrences of the existing job."""
    closed = control.save_calendar(Calendar(name="closed", dates="12-24"))
    live = make_job(name="live", schedule="0 0 25 12 *", calendar=closed)
    due = live.cursor.next_at
    jobs = [
        {"name": "live", "schedule": "0 0 25 12 *", "calendar": "closed"},
        {"name": "other", "calendar": "closed"},
        {"name": "twice", "calendar": "new"},
        {"name": "twice", "calendar": "newer"},
        {"name": "free", "calendar": "sound"},
    ]
    given = [{"name": name, "dates": "12-25"} for name in ("closed", "new", "newer", "sound")]
    file = document_with(tmp_path, *jobs, calendars=given)

    for applied in ((), ("--apply",)):
        done = call("import", file, *applied)
        assert done.code == 1
        assert (
            "refused calendar closed not saved, because job live, which uses it, can't be "
            "imported\n"
        ) in done.out
        for name in ("new", "newer"):
            assert (
                f"refused calendar {name} not saved, because job default/twice, which uses it, "
                in done.out
            )
        assert "this also affects" not in done.out
        assert "refused other calendar: the calendar can't be imported\n" in done.out
        assert done.err.startswith("6 of 8 ")

    assert {each[:2] for each in calendars()} == {("closed", "12-24"), ("sound", "12-25")}
    assert set(Job.objects.values_list("name", "enabled")) == {("live", True), ("free", True)}
    live.refresh_from_db()
    assert Job.objects.get(name="live").cursor.next_at == due


def test_calendar_is_refused_if_the_job_that_uses_it_is_declared_in_code(tmp_path: Path) -> None:
    job = make_idle_job(name="declared")
    Job.objects.filter(pk=job.pk).update(declared={})
    file = document_with(
        tmp_path,
        {"name": "declared", "calendar": "new"},
        calendars=[{"name": "new", "dates": "12-25"}],
    )

    done = call("import", file, "--apply")

    assert (
        "refused calendar new not saved, because job declared, which uses it, can't be imported\n"
        in done.out
    )
    assert calendars() == []


@pytest.mark.parametrize(
    ("calendar", "message"),
    [
        (
            {"name": "closed", "dates": "XMAS"},
            "refused calendar closed dates: \"XMAS\": Line 1: unknown entry 'XMAS'",
        ),
        ({"name": "closed"}, "refused calendar closed dates: "),
        ({"name": "closed", "dates": "12-25", "date": 1}, "Did you mean 'dates'"),
        ({"name": "closed", "dates": ["12-25"]}, 'refused calendar closed dates: ["12-25"]: '),
    ],
)
def test_invalid_calendar_and_its_jobs_are_refused(
    calendar: dict[str, Any], message: str, tmp_path: Path
) -> None:
    control.save_calendar(Calendar(name="closed", dates="12-25"))
    jobs = [{"name": "a", "calendar": "closed"}, {"name": "b"}]
    done = call("import", document_with(tmp_path, *jobs, calendars=[calendar]), "--apply")
    assert done.code == 1
    assert message in done.out
    assert 'refused a calendar: "closed": this calendar has a problem itself\n' in done.out
    assert (Job.objects.get().name, calendars()) == ("b", [("closed", "12-25", "", 1)])


def test_calendar_changed_after_the_comparison_is_not_overwritten() -> None:
    made = control.save_calendar(Calendar(name="changed", dates="12-25"))
    entries = [
        SourceCalendar(name, {"description": "", "dates": "12-24"})
        for name in ("changed", "created")
    ]
    planned = import_calendars.compare_calendars(entries)
    jobs = [found(name, calendar=name, calendar_policy="skip") for name in ("changed", "created")]
    plans = compare_entries(
        [*jobs, found("free")],
        options=ComparisonOptions(calendars=import_calendars.calendars_to_save(planned)),
    )
    made.dates = "12-26"
    control.save_calendar(made)
    control.save_calendar(Calendar(name="created", dates="12-27"))
    done = list(import_calendars.apply_calendar_plans(planned))
    assert [each.outcome for each in done] == [ImportOutcome.REFUSED] * 2
    assert "run the import again" in done[0].reasons[0]
    assert "already exists" in done[1].reasons[0]
    unwritten = {each.name for each in done}
    allowed = import_calendars.refuse_without_calendar(unwritten, plans)
    written = list(apply_entry_plans(allowed))
    assert [each.outcome for each in written] == [
        ImportOutcome.REFUSED,
        ImportOutcome.REFUSED,
        ImportOutcome.CREATE,
    ]
    assert {each[1] for each in calendars()} == {"12-26", "12-27"}


def test_document_without_calendars_uses_existing_ones(tmp_path: Path) -> None:
    control.save_calendar(Calendar(name="closed", dates="12-25"))
    assert (
        call("import", document_with(tmp_path, {"name": "a", "calendar": "closed"}), "--apply").code
        == 0
    )
    assert Job.objects.get().calendar_id == "closed"
    Job.objects.all().delete()
    make_idle_job(name="a")
    assert "calendars" not in json.loads(call("export").out)


# --- The import command ---------------------------------------------------------------------------


def test_json_output_lists_changes_and_counts(tmp_path: Path) -> None:
    make_job(name="b", schedule="@weekly", target="tests.app.tasks.ok", enabled=True)
    file = tmp_path / "jobs.json"
    jobs = [
        {
            "name": name,
            "target": "tests.app.tasks.ok",
            "schedule": "@daily",
            "starts_at": "2027-01-01T00:00:00Z",
        }
        for name in ("a", "b")
    ]
    file.write_text(json.dumps({"format": "django-dcron", "version": 1, "jobs": jobs}))
    document = call("import", str(file), "--json").json
    assert document["applied"] is False
    assert document["counts"] == {
        "create": 1,
        "change": 1,
        "same": 0,
        "kept": 0,
        "omitted": 0,
        "deleted here": 0,
        "conflict": 0,
        "refused": 0,
    }
    assert document["calendars"] == []
    created, changed = document["jobs"]
    assert created["changes"]["starts_at"] == {"from": None, "to": "2027-01-01T00:00:00Z"}
    assert changed["changes"]["schedule"] == {"from": "@weekly", "to": "@daily"}
    assert Job.objects.count() == 1
    assert call("import", str(file), "--json", "--apply").json["applied"] is True
    assert Job.objects.get(name="b").starts_at == datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("source", ["django-celery-beat", "django-q2", "django-apscheduler"])
def test_scheduler_that_is_not_installed_is_an_error(source: str) -> None:
    answer = call("import", source)
    assert answer.code == 2
    assert f"{source} is not installed" in answer.err


def test_incompatible_or_invalid_options_are_refused() -> None:
    assert "with redbeat" in call("import", "redbeat", "--timezone", "UTC").err
    assert call("import", "redbeat", "--namespace", "no way!").code == 2


def test_option_that_names_no_entry_is_refused(tmp_path: Path) -> None:
    refused = call("import", document_with(tmp_path, {"name": "report"}), "--restore", "reports")
    assert refused.code == 2
    assert "No entry has a job named 'reports'. Did you mean 'report'?" in refused.err


# --- many at once ---------------------------------------------------------------------------------


def test_with_atomic_all_entries_are_written_or_none(tmp_path: Path) -> None:
    declared = make_idle_job(name="declared")
    Job.objects.filter(pk=declared.pk).update(declared={})
    jobs = [{"name": "good", "calendar": "new"}, {"name": "then", "after": {"good": "ended"}}]
    new = [{"name": "new", "dates": "12-25"}]
    bad = document_with(tmp_path, *jobs, {"name": "declared"}, calendars=new)

    refused = call("import", bad, "--apply", "--atomic")
    assert refused.code == 1
    assert call("import", bad, "--apply", "--atomic", "--json").json["applied"] is False
    assert list(Job.objects.values_list("name", flat=True)) == ["declared"]
    assert not calendars()

    done = call("import", document_with(tmp_path, *jobs, calendars=new), "--apply", "--atomic")
    assert done.code == 0
    assert Job.objects.get(name="then").after == {"good": "ended"}
    assert len(calendars()) == 1


def test_an_import_needs_few_statements(tmp_path: Path) -> None:
    def statements(number: int) -> int:
        jobs = [{"name": f"{number}-{n}"} for n in range(number)]
        file = document_with(tmp_path, *jobs)
        with CaptureQueriesContext(connection) as queries:
            assert call("import", file, "--apply").code == 0
        return len(queries)

    assert statements(30) - statements(3) < 10


def test_progress_is_shown_on_a_terminal(tmp_path: Path) -> None:
    file = document_with(tmp_path, {"name": "one"}, {"name": "two"})
    assert "2/2" in call("import", file, "--apply", "--force-color").out
