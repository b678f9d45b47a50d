"""Test the job form.

Invariants:

- Four fields are enough to create a job.
- Each mistake is reported on its field.
- No concurrent update is lost.
"""

import re
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from django_dcron import control
from django_dcron.admin.jobs.form import JobForm
from django_dcron.db.now import database_now
from django_dcron.diagnosis import lookahead
from django_dcron.exceptions import Conflict
from django_dcron.jobs.cursors import move_outdated_cursors
from django_dcron.models import Cursor, Job, Statistics
from django_dcron.models.job_states import DECLARED_DISABLED, HANDED_BACK
from django_dcron.schedules.schedule import Schedule
from django_dcron.targets import commands
from django_dcron.utils.messages import Language
from tests.admin.conftest import (
    add_url,
    as_rendered,
    errors,
    fill_in,
    job_url,
    list_url,
    make_job,
    messages,
)
from tests.factories import entries_by_users, make_idle_job

SIMPLE = {
    "name": "nightly",
    "target": "tests.app.tasks.ok",
    "schedule": "30 3 * * *",
    "timezone": "Europe/Berlin",
}


@pytest.mark.parametrize("language", ["en", "de", "zh-hans"])
def test_schedule_error_names_value_in_each_language(
    admin_client: Client, settings: Settings, language: str
) -> None:
    settings.LANGUAGE_CODE = language
    page = fill_in(admin_client, add_url(), **SIMPLE | {"schedule": "* *"})
    errors = page.context["adminform"].form.errors
    (message,) = errors["schedule"]
    assert list(errors) == ["schedule"]
    assert "'* *'" in message


def test_four_fields_are_enough_to_create_job(admin_client: Client) -> None:
    response = fill_in(admin_client, add_url(), **SIMPLE)

    assert response.status_code == 302
    job = Job.objects.get(name="nightly")
    assert (job.args, job.kwargs, job.misfire_grace) == ([], {}, timedelta(minutes=1))
    assert job.cursor.next_at is not None


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("schedule", "61 * * * *", "61"),
        ("schedule", "* *", "2"),
        ("schedule", "0 0 30 2 *", "0 0 30 2 *"),
        ("schedule", "", ""),
        ("schedule", "@at 2020-01-01T00:00", "@at 2020-01-01T00:00"),
        ("queue", "slow lane", "“slow lane”"),
        ("queue", "größe", "ASCII"),
        ("queue", "x" * 121, "120"),
        ("jitter", "99999d", "36500d"),
        ("retry_backoff", "-1", "0s"),
        ("timezone", "Europe/Berlim", "Europe/Berlin"),
        ("target", "tests.app.tasks.okk", "tests.app.tasks.ok"),
        ("target", "os.system", "os.system"),
        ("target", "", "shop.tasks.import_orders"),
        ("args", "[1,", "JSON"),
        ("args", '{"a": 1}', '{"a": 1}'),
        ("args", "[1]", "1"),
        ("kwargs", "[]", "[]"),
        ("kwargs", '{"city": "Berlin"}', "city"),
        ("tags", '"billing"', '"billing"'),
        ("retry_on", "[1]", "[1]"),
        ("name", "<script>", "_ . - @ :"),
        ("misfire_grace", "soon", "soon"),
        ("misfire_grace", "0s", "1s"),
        ("retry_backoff_max", "1s", "10s"),
        ("keep_for", "0s", "1s"),
        ("keep_failed_for", "a month", "a month"),
        ("keep_runs", "0", "1"),
        ("max_attempts", "0", "1"),
        ("priority", "10", "9"),
    ],
)
def test_invalid_value_shows_error_on_its_field(
    admin_client: Client, field: str, value: str, named: str
) -> None:
    """The error names the wrong value, the limit or a suggestion."""
    response = fill_in(admin_client, add_url(), **{**SIMPLE, field: value})

    found = errors(response)
    assert list(found) == [field]
    assert len(found[field]) == 1
    assert named in found[field][0]
    assert not Job.objects.exists()


def test_keep_failed_for_must_not_be_shorter_than_keep_for(admin_client: Client) -> None:
    found = errors(
        fill_in(admin_client, add_url(), **SIMPLE, keep_for="60d", keep_failed_for="59d")
    )
    assert list(found) == ["keep_failed_for"]
    assert "60d" in found["keep_failed_for"][0]
    assert fill_in(admin_client, add_url(), **SIMPLE, keep_for="365d").status_code == 302
    fill_in(
        admin_client, add_url(), **SIMPLE | {"name": "other"}, keep_failed_for="1d", keep_runs="7"
    )
    job = Job.objects.get(name="other")
    assert (job.keep_for, job.keep_failed_for, job.keep_runs) == (None, timedelta(days=1), 7)


def test_invalid_arguments_cause_one_error_only(admin_client: Client) -> None:
    """The target needs an argument, but invalid JSON in ``args`` must not cause a second error."""
    wrong = {"target": "tests.app.tasks.nap", "args": "[1,"}

    found = errors(fill_in(admin_client, add_url(), **{**SIMPLE, **wrong}))

    assert {field: len(text) for field, text in found.items()} == {"args": 1}


@pytest.mark.parametrize("field", ["tags", "retry_on", "never_retry_on"])
@pytest.mark.parametrize(
    ("typed", "stored", "shown"),
    [
        ("billing, nightly", ["billing", "nightly"], "billing, nightly"),
        ("billing\r\n nightly ,\r\n", ["billing", "nightly"], "billing, nightly"),
        ('["billing", "nightly"]', ["billing", "nightly"], "billing, nightly"),
        ("5", ["5"], "5"),
        ("billing; nightly", ["billing", "nightly"], "billing, nightly"),
        ('["a, b"]', ["a, b"], '["a, b"]'),
        ('["a;b"]', ["a;b"], '["a;b"]'),
        ('["[a"]', ["[a"], '["[a"]'),
        ("", [], ""),
    ],
)
def test_names_are_entered_as_text_or_json_and_shown_as_text(
    admin_client: Client, field: str, typed: str, stored: list[str], shown: str
) -> None:
    assert fill_in(admin_client, add_url(), **SIMPLE, **{field: typed}).status_code == 302
    job = Job.objects.get()
    assert getattr(job, field) == stored
    rendered = as_rendered(admin_client.get(job_url(job)))
    assert rendered[field] == shown
    assert admin_client.post(job_url(job), rendered).status_code == 302
    assert (getattr(Job.objects.get(), field), Job.objects.get().version) == (stored, job.version)


def test_text_that_begins_like_json_is_refused_with_an_example(admin_client: Client) -> None:
    response = fill_in(admin_client, add_url(), **SIMPLE, tags="[billing]", after="{first}")
    found = errors(response)
    assert "billing, nightly" in found["tags"][0]
    assert "import-orders: succeeded" in found["after"][0]
    assert as_rendered(response)["tags"] == "[billing]"


def test_all_invalid_fields_are_reported_at_once(admin_client: Client) -> None:
    wrong = {"schedule": "", "target": "no", "max_attempts": "0", "tags": "[1]", "kwargs": "[]"}

    found = errors(fill_in(admin_client, add_url(), **{**SIMPLE, **wrong}))

    assert {field: len(text) for field, text in found.items()} == dict.fromkeys(wrong, 1)


def test_duration_beyond_limit_is_refused(admin_client: Client) -> None:
    response = fill_in(admin_client, add_url(), **SIMPLE, timeout="999999999d")

    assert list(errors(response)) == ["timeout"]


@pytest.mark.parametrize("field", ["starts_at", "ends_at"])
@pytest.mark.parametrize("day", ["0001-01-01", "1969-12-31", "2200-01-01", "9999-12-31"])
def test_time_outside_1970_to_2199_is_refused(admin_client: Client, field: str, day: str) -> None:
    response = fill_in(
        admin_client, add_url(), **SIMPLE, **{f"{field}_0": day, f"{field}_1": "00:00"}
    )

    found = errors(response)
    assert list(found) == [field]
    assert re.findall(r"\d+", found[field][0]) == ["1970", "2199"]


def test_first_and_last_supported_times_are_accepted(db: None) -> None:
    begin, end = datetime(1970, 1, 1, tzinfo=UTC), datetime(2199, 12, 31, 23, 59, tzinfo=UTC)
    assert make_job(starts_at=begin, ends_at=end).enabled
    with pytest.raises(ValidationError) as caught:
        make_job("paused", enabled=False, paused_until=end + timedelta(minutes=1))
    assert list(caught.value.error_dict) == ["paused_until"]


@pytest.mark.parametrize("schedule", ["30 3 * * *", "@every 1h", "@at 2099-01-01T00:00"])
@pytest.mark.parametrize(
    "day", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
)
def test_pages_work_with_unsupported_time_in_database(
    admin_client: Client, schedule: str, day: datetime
) -> None:
    job = make_job(schedule=schedule)
    unsupported = {"starts_at": day, "ends_at": day, "enabled": True}
    Job.objects.filter(pk=job.pk).update(**unsupported)
    for step in (
        lambda: None,
        lambda: move_outdated_cursors(database_now("default"), Job.objects.all()),
    ):
        step()
        for url in (job_url(job), list_url("job"), "/admin/django_dcron/dashboard/"):
            assert admin_client.get(url).status_code == 200
    Job.objects.filter(pk=job.pk).update(ends_at=None)
    assert admin_client.get(job_url(job)).status_code == 200


def test_duplicate_name_is_refused(admin_client: Client) -> None:
    make_job("nightly", namespace="billing")

    found = errors(fill_in(admin_client, add_url(), **SIMPLE, namespace="billing"))
    assert list(found) == ["name"]
    (message,) = found["name"]
    assert "nightly" in message
    assert "billing" in message


@pytest.mark.parametrize("field", ["starts_at", "ends_at", "paused_until"])
def test_help_of_a_time_names_the_zone_of_the_site(
    admin_client: Client, settings: Settings, field: str
) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    form = admin_client.get(add_url()).context["adminform"].form
    assert "Asia/Tokyo" in str(form.fields[field].help_text)


@pytest.mark.parametrize(("language", "day"), [("en", "2026-12-07"), ("de", "07.12.2026")])
def test_error_of_an_unreadable_time_has_an_example(
    admin_client: Client, settings: Settings, language: str, day: str
) -> None:
    settings.LANGUAGE_CODE = language
    typed = {"starts_at_0": "soon", "starts_at_1": "noon"}
    of_day, of_time = errors(fill_in(admin_client, add_url(), **SIMPLE, **typed))["starts_at"]
    assert day in of_day
    assert "09:00" in of_time
    incomplete = SIMPLE | {"starts_at_1": "09:00"}
    (message,) = errors(fill_in(admin_client, add_url(), **incomplete))["starts_at"]
    assert day in message


def test_durations_are_shown_and_read_with_units(admin_client: Client) -> None:
    job = make_job(timeout=timedelta(minutes=90))

    assert as_rendered(admin_client.get(job_url(job)))["timeout"] == "1h 30m"
    fill_in(admin_client, job_url(job), timeout="45m")
    job.refresh_from_db()
    assert job.timeout == timedelta(minutes=45)


def test_emptied_json_field_resets_to_default(admin_client: Client) -> None:
    job = make_job(tags=["billing"])

    fill_in(admin_client, job_url(job), tags="", args="", kwargs="")
    job.refresh_from_db()
    assert (job.tags, job.args, job.kwargs) == ([], [], {})


def test_saving_without_changes_writes_nothing(admin_client: Client) -> None:
    job = make_job(starts_at=None, description="Ask the shop team.\nNot on Mondays.")
    before = Job.objects.values().get()

    sent = {"description": job.description.replace("\n", "\r\n")}  # as browsers send it
    assert fill_in(admin_client, job_url(job), **sent).status_code == 302
    assert Job.objects.values().get() == before
    assert not entries_by_users().exists()


def test_saving_a_quarantined_job_without_changes_ends_the_quarantine(admin_client: Client) -> None:
    job = make_job()
    Cursor.objects.filter(pk=job.pk).update(problem="unknown time zone", next_at=None)

    assert fill_in(admin_client, job_url(job)).status_code == 302
    cursor = Cursor.objects.get(pk=job.pk)
    assert (cursor.problem, cursor.next_at is None) == ("", False)


def test_lines_of_schedule_are_saved_with_plain_line_ends(admin_client: Client) -> None:
    lines = "0 9 * * MON-FRI\r\n0 11 * * SAT\r\n"
    fill_in(admin_client, add_url(), **SIMPLE | {"schedule": lines})
    job = Job.objects.get()
    assert job.schedule == "0 9 * * MON-FRI\n0 11 * * SAT"
    fill_in(admin_client, job_url(job), schedule=lines)
    assert [entry.action for entry in entries_by_users()] == ["create"]
    rows = admin_client.get(list_url("job")).content.decode()
    assert "<code>0 9 * * MON-FRI</code><br><code>0 11 * * SAT</code>" in rows


def test_changing_schedule_moves_cursor(admin_client: Client) -> None:
    job = make_job(schedule="30 3 * * *")

    fill_in(admin_client, job_url(job), schedule="45 4 * * *")
    next_at = Cursor.objects.get(job=job).next_at
    assert next_at is not None
    assert (next_at.hour, next_at.minute) == (4, 45)


def test_saving_keeps_concurrent_updates_of_scheduler(admin_client: Client) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    previous = job.cursor.next_at
    Cursor.objects.filter(job=job).update(previous_at=previous)
    Statistics.objects.filter(job=job).update(succeeded=7)

    assert admin_client.post(job_url(job), {**sent, "description": "mine"}).status_code == 302
    assert Cursor.objects.get(job=job).previous_at == previous
    assert Statistics.objects.get(job=job).succeeded == 7


def test_enabling_job_clears_pause_reason(admin_client: Client) -> None:
    job = make_job()
    control.pause(job, "deploy")

    fill_in(admin_client, job_url(job), enabled="on")
    job.refresh_from_db()
    assert (job.enabled, job.pause_reason) == (True, "")


@pytest.mark.parametrize("stored", [DECLARED_DISABLED, HANDED_BACK])
@pytest.mark.parametrize("reason", ["", "deploy"])
def test_end_of_a_pause_is_refused_if_the_job_must_not_start(
    admin_client: Client, reason: str, stored: str
) -> None:
    job = make_idle_job(enabled=False, pause_reason=stored, import_source="redbeat")
    reason = reason or stored
    changes = {"pause_reason": reason, **_inputs("paused_until", "2090-01-01 00:00:00")}

    refused = fill_in(admin_client, job_url(job), **changes)
    assert list(errors(refused)) == ["paused_until"]


def _inputs(name: str, local: str) -> dict[str, str]:
    """Return what a browser submits for a local time, such as 2030-01-02 03:04:05."""
    day, time = local.split(" ")
    return {f"{name}_0": day, f"{name}_1": time}


@pytest.mark.parametrize(
    ("stored", "local"),
    [
        (datetime(2030, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC), "2030-01-02 04:04:05"),
        # The local time occurs twice, in summer time and in winter time.
        (datetime(2030, 10, 27, 0, 30, tzinfo=UTC), "2030-10-27 02:30:00"),
        (datetime(2030, 10, 27, 1, 30, tzinfo=UTC), "2030-10-27 02:30:00"),
    ],
)
def test_unchanged_time_is_kept_exactly(
    admin_client: Client, settings: Settings, stored: datetime, local: str
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    job = make_job(starts_at=stored)

    sent = {**_inputs("starts_at", local), "description": "new"}
    assert fill_in(admin_client, job_url(job), **sent).status_code == 302
    job.refresh_from_db()
    assert (job.description, job.starts_at) == ("new", stored)
    entry = entries_by_users().get()
    assert entry.after == {"description": "new"}


def test_changed_time_must_not_be_ambiguous(admin_client: Client, settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    job = make_job(starts_at=datetime(2030, 10, 27, 0, 30, tzinfo=UTC))

    changed = _inputs("starts_at", "2030-10-27 02:40:00")
    assert [*errors(fill_in(admin_client, job_url(job), **changed))] == ["starts_at"]


# --- concurrent edits -----------------------------------------------------------------------------


def conflicts(response: Any) -> dict[str, tuple[str, str]]:
    """Return the stored and the submitted value of each field that differs."""
    assert errors(response)
    conflict, *fields = response.context["adminform"].form.errors.as_data()["__all__"]
    assert conflict.code == "conflict"
    for error in fields:
        assert error.params["theirs"] in error.messages[0]
        assert error.params["yours"] in error.messages[0]
    return {
        error.code.removeprefix("conflict_"): (error.params["theirs"], error.params["yours"])
        for error in fields
    }


def _change(job: Job, **values: Any) -> None:
    row = Job.objects.get(pk=job.pk)
    for name, value in values.items():
        setattr(row, name, value)
    control.save(row)


def test_concurrent_change_is_reported_and_not_overwritten(admin_client: Client) -> None:
    job = make_job(timeout=timedelta(minutes=1))
    sent = as_rendered(admin_client.get(job_url(job)))
    _change(job, schedule="0 4 * * *", timeout=None, description="<b>theirs</b>")

    response = admin_client.post(job_url(job), {**sent, "schedule": "0 5 * * *"})

    assert conflicts(response) == {
        "schedule": ("“0 4 * * *”", "“0 5 * * *”"),
        "timeout": ("empty", "“1m”"),
        "description": ("“<b>theirs</b>”", "empty"),
    }
    assert "<b>theirs</b>" not in response.content.decode()
    assert Job.objects.get(pk=job.pk).schedule == "0 4 * * *"
    assert not any("success" in message for message in messages(response))


def test_conflict_shows_values_as_form_does(admin_client: Client) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    _change(
        job,
        starts_at=datetime(2030, 1, 2, 3, 4, tzinfo=UTC),
        tags=["ü"],
        overlap_policy="allow",
        max_attempts=3,
    )

    labels = dict(Job._meta.get_field("overlap_policy").flatchoices)
    assert conflicts(admin_client.post(job_url(job), sent)) == {
        "overlap_policy": (f"“{labels['allow']}”", f"“{labels['skip']}”"),
        "max_attempts": ("“3”", "“1”"),
        "starts_at": ("2030-01-02 03:04:00 UTC", "empty"),
        "tags": ("“ü”", "empty"),
    }


def test_conflict_distinguishes_true_from_1_and_shows_seconds(admin_client: Client) -> None:
    starts_at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    job = make_job(target="tests.app.tasks.nap", args=[1], starts_at=starts_at)
    rendered = as_rendered(admin_client.get(job_url(job)))
    sent = rendered | _inputs("starts_at", "2030-01-02 03:04:05")
    _change(job, args=[True], starts_at=starts_at + timedelta(seconds=10))

    assert conflicts(admin_client.post(job_url(job), sent)) == {
        "args": ("[true]", "[1]"),
        "starts_at": ("2030-01-02 03:04:15 UTC", "2030-01-02 03:04:05 UTC"),
    }


def test_conflict_lists_no_time_that_differs_only_in_microseconds(admin_client: Client) -> None:
    job = make_job()
    until = database_now("default").replace(microsecond=123456) + timedelta(hours=1)
    control.pause(job, "deploy", until=until)
    rendered = as_rendered(admin_client.get(job_url(job)))
    sent = rendered | _inputs("paused_until", f"{until:%Y-%m-%d %H:%M:%S}")
    _change(job, description="theirs")

    assert conflicts(admin_client.post(job_url(job), sent)) == {
        "description": ("“theirs”", "empty")
    }


def test_saving_again_after_conflict_overwrites(admin_client: Client) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    _change(job, schedule="0 4 * * *")
    warned = admin_client.post(job_url(job), {**sent, "schedule": "0 5 * * *"})

    assert admin_client.post(job_url(job), as_rendered(warned)).status_code == 302
    assert Job.objects.get(pk=job.pk).schedule == "0 5 * * *"


def test_concurrent_pause_is_reported_as_conflict(admin_client: Client) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    control.pause(job, "on fire")

    response = admin_client.post(job_url(job), sent)

    assert conflicts(response)["enabled"] == ("no", "yes")
    assert not Job.objects.get(pk=job.pk).enabled


@pytest.mark.parametrize("version", ["", "abc", "0"])
def test_form_without_valid_version_is_not_saved(admin_client: Client, version: str) -> None:
    job = make_job()

    response = fill_in(admin_client, job_url(job), seen_version=version, schedule="0 5 * * *")

    assert errors(response)["__all__"]
    assert Job.objects.get(pk=job.pk).schedule == "30 3 * * *"


def test_change_between_validation_and_save_is_not_overwritten(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    _change(job, schedule="0 4 * * *")
    add_conflict = JobForm._add_conflict

    def skip_check_once(form: JobForm, cleaned: dict[str, Any]) -> None:
        """Skip the check once, as if validation had run before the other user's change."""
        monkeypatch.setattr(JobForm, "_add_conflict", add_conflict)

    monkeypatch.setattr(JobForm, "_add_conflict", skip_check_once)
    response = admin_client.post(job_url(job), {**sent, "schedule": "0 5 * * *"})

    assert conflicts(response) == {"schedule": ("“0 4 * * *”", "“0 5 * * *”")}
    assert Job.objects.get(pk=job.pk).schedule == "0 4 * * *"
    assert messages(response) == []
    assert not entries_by_users().exists()


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_change_of_other_connection_before_save_is_not_overwritten(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like the previous test, but the other change comes from a second connection.

    SQLite is excluded: it has one writer at a time.
    """
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    save = control.save

    def save_as_other_user() -> None:
        _change(job, schedule="0 4 * * *")
        connection.close()

    def save_after_other_user(row: Job, **options: Any) -> Job:
        monkeypatch.setattr(control, "save", save)
        other = Thread(target=save_as_other_user)
        other.start()
        other.join()
        return save(row, **options)

    monkeypatch.setattr(control, "save", save_after_other_user)
    response = admin_client.post(job_url(job), {**sent, "schedule": "0 5 * * *"})

    assert conflicts(response) == {"schedule": ("“0 4 * * *”", "“0 5 * * *”")}
    assert Job.objects.get(pk=job.pk).schedule == "0 4 * * *"


def test_repeated_conflict_is_reported_and_saves_nothing(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))

    def refuse(row: Job, **options: Any) -> Job:
        raise Conflict("report was changed meanwhile.")

    monkeypatch.setattr(control, "save", refuse)
    response = admin_client.post(job_url(job), {**sent, "schedule": "0 5 * * *"}, follow=True)

    assert len(messages(response)) == 1
    assert "report was changed meanwhile." in messages(response)[0]
    assert Job.objects.get(pk=job.pk).schedule == "30 3 * * *"


def test_saving_deleted_job_is_reported(admin_client: Client) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    job.delete()

    response = admin_client.post(job_url(job), sent, follow=True)

    assert len(messages(response)) == 1
    assert not Job.objects.exists()


# --- page contents --------------------------------------------------------------------------------


def test_form_suggests_registered_targets_and_time_zones(admin_client: Client) -> None:
    page = admin_client.get(add_url()).content.decode()

    assert 'list="suggestions-target"' in page
    assert '<option value="tests.app.tasks.ok"></option>' in page
    assert '<option value="Europe/Berlin"></option>' in page


def test_page_of_a_job_whose_command_cannot_be_loaded_names_the_error(
    admin_client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_COMMANDS = {"check": "__all__"}
    job = make_job(target="command:check")

    def fail(app: str, name: str) -> None:
        raise ModuleNotFoundError("No module named pandas")

    monkeypatch.setattr(commands, "load_command_class", fail)
    response = admin_client.get(job_url(job))
    assert "No module named pandas" in response.content.decode()
    found = errors(admin_client.post(job_url(job), as_rendered(response)))
    assert "No module named pandas" in found["args"][0]


def test_page_shows_next_occurrences_in_utc_and_job_time_zone(admin_client: Client) -> None:
    job = make_job(schedule="30 3 * * *", timezone="Asia/Tokyo")

    response = admin_client.get(job_url(job))
    page = response.content.decode()

    assert len(response.context["page"].next_occurrences.times) == 10
    assert "18:30:00" in page  # UTC
    assert "03:30:00" in page  # Tokyo


def test_time_zone_of_a_new_job_is_that_of_the_site(
    admin_client: Client, settings: Settings
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    add = reverse("admin:django_dcron_job_add")
    form = admin_client.get(add).context["adminform"].form
    assert form["timezone"].value() == "Europe/Berlin"
    form = admin_client.get(add, {"timezone": "Asia/Tokyo"}).context["adminform"].form
    assert form["timezone"].value() == "Asia/Tokyo"


def test_invalid_form_still_shows_stored_job(admin_client: Client) -> None:
    job = make_job(timezone="Asia/Tokyo")

    response = fill_in(admin_client, job_url(job), schedule="61 * * * *", timezone="Nowhere/City")

    assert {"schedule", "timezone"} <= {*errors(response)}
    assert response.context["page"].zone == "Asia/Tokyo"
    assert len(response.context["page"].next_occurrences.times) == 10


def test_page_of_quarantined_job_shows_problem(admin_client: Client) -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).update(schedule="99 * * * *", timezone="<i>Nowhere</i>")
    Cursor.objects.filter(pk=job.pk).update(problem="<i>99</i> is too much", next_at=None)

    page = admin_client.get(job_url(job)).content.decode()

    assert "&lt;i&gt;99&lt;/i&gt; is too much" in page
    assert "<i>" not in page


def test_pages_work_if_schedule_description_fails(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()

    def fail(schedule: Schedule, language: Language) -> str:
        raise RuntimeError

    monkeypatch.setattr(lookahead, "describe", fail)
    assert admin_client.get(job_url(job)).status_code == 200
    assert admin_client.get(list_url("job")).status_code == 200


def test_pages_work_without_cursor_and_statistics(admin_client: Client) -> None:
    job = Job.objects.create(name="raw", target="tests.app.tasks.ok", schedule="@daily")

    assert admin_client.get(job_url(job)).status_code == 200
    assert admin_client.get(list_url("job")).status_code == 200
