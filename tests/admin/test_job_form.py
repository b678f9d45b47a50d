"""The job's form: four fields suffice, each mistake is an error on its field, and no update is lost."""

from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.exceptions import ValidationError
from django.db import connection
from django.test import Client
from pytest_django import Settings

from django_dcron import control, definition
from django_dcron.admin.jobs.form import JobForm
from django_dcron.domain.schedule import Schedule
from django_dcron.exceptions import Conflict
from django_dcron.models import Cursor, Job, Statistics
from django_dcron.models.database import database_now
from tests.admin.conftest import add_url, as_rendered, errors, fill_in, job_url, list_url, make_job, messages

SIMPLE = {
    "name": "nightly",
    "target": "tests.app.tasks.ok",
    "schedule": "30 3 * * *",
    "timezone": "Europe/Berlin",
}


@pytest.mark.parametrize(
    ("language", "said"),
    [("en", "'* *' has 2 fields"), ("de", "'* *' hat 2 Felder"), ("zh-hans", "'* *' 有 2 个字段")],
)
def test_an_error_stands_at_its_field_without_the_fields_name(
    admin_client: Client, settings: Settings, language: str, said: str
) -> None:
    settings.LANGUAGE_CODE = language
    page = fill_in(admin_client, add_url(), **SIMPLE | {"schedule": "* *"})
    (message,) = page.context["adminform"].form.errors["schedule"]
    assert message.startswith(said)


def test_four_fields_make_a_job(admin_client: Client) -> None:
    response = fill_in(admin_client, add_url(), **SIMPLE)

    assert response.status_code == 302
    job = Job.objects.get(name="nightly")
    assert (job.args, job.kwargs, job.misfire_grace) == ([], {}, timedelta(minutes=1))
    assert job.cursor.next_at is not None


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("schedule", "61 * * * *", "61"),
        ("schedule", "* *", "fields"),
        ("schedule", "0 0 30 2 *", "never"),
        ("schedule", "", "required"),
        ("schedule", "@at 2020-01-01T00:00", "@at 2020-01-01T00:00 is in the past."),
        ("queue", "slow lane", "“slow lane”"),
        ("queue", "größe", "ASCII"),
        ("queue", "x" * 121, "120"),
        ("jitter", "99999d", "Use at most 36500d."),
        ("retry_backoff", "-1", "Use at least 0s."),
        ("timezone", "Europe/Berlim", "Europe/Berlin"),
        ("target", "tests.app.tasks.okk", "tests.app.tasks.ok"),
        ("target", "os.system", "no target"),
        ("target", "", "required"),
        ("args", "[1,", "JSON"),
        ("args", '{"a": 1}', "JSON list"),
        ("args", "[1]", "argument"),
        ("kwargs", "[]", "JSON object"),
        ("kwargs", '{"city": "Berlin"}', "city"),
        ("tags", '"billing"', "JSON list"),
        ("retry_on", "[1]", "texts"),
        ("name", "<script>", "letters"),
        ("misfire_grace", "soon", "1h30m"),
        ("misfire_grace", "0s", "Use at least 1s."),
        ("retry_backoff_max", "1s", "first backoff"),
        ("keep_for", "0s", "Use at least 1s."),
        ("keep_failed_for", "a month", "1h30m"),
        ("keep_runs", "0", "greater than or equal"),
        ("max_attempts", "0", "greater than or equal"),
        ("priority", "10", "less than or equal"),
    ],
)
def test_each_mistake_is_an_error_on_its_field(
    admin_client: Client, field: str, value: str, said: str
) -> None:
    response = fill_in(admin_client, add_url(), **{**SIMPLE, field: value})

    found = errors(response)
    assert list(found) == [field]
    assert len(found[field]) == 1
    assert said in found[field][0]
    assert not Job.objects.exists()


def test_failed_runs_are_kept_as_long_as_others_at_least(admin_client: Client) -> None:
    found = errors(fill_in(admin_client, add_url(), **SIMPLE, keep_for="60d", keep_failed_for="59d"))
    assert found == {
        "keep_failed_for": ["It is shorter than for other runs, 60d. Failed runs are kept at least as long."]
    }
    assert fill_in(admin_client, add_url(), **SIMPLE, keep_for="365d").status_code == 302
    fill_in(admin_client, add_url(), **SIMPLE | {"name": "other"}, keep_failed_for="1d", keep_runs="7")
    job = Job.objects.get(name="other")
    assert (job.keep_for, job.keep_failed_for, job.keep_runs) == (None, timedelta(days=1), 7)


def test_one_mistake_is_one_error_though_others_would_follow(admin_client: Client) -> None:
    """The target needs an argument; whether it gets it cannot be told from what is no JSON."""
    wrong = {"target": "tests.app.tasks.nap", "args": "[1,"}

    found = errors(fill_in(admin_client, add_url(), **{**SIMPLE, **wrong}))

    assert {field: len(said) for field, said in found.items()} == {"args": 1}


def test_several_mistakes_are_told_at_once(admin_client: Client) -> None:
    wrong = {"schedule": "", "target": "nowhere", "max_attempts": "0", "tags": "1", "kwargs": "[]"}

    found = errors(fill_in(admin_client, add_url(), **{**SIMPLE, **wrong}))

    assert {field: len(said) for field, said in found.items()} == dict.fromkeys(wrong, 1)


def test_a_duration_too_long_to_store_is_refused(admin_client: Client) -> None:
    response = fill_in(admin_client, add_url(), **SIMPLE, timeout="999999999d")

    assert list(errors(response)) == ["timeout"]


@pytest.mark.parametrize("field", ["starts_at", "ends_at"])
@pytest.mark.parametrize("day", ["0001-01-01", "1969-12-31", "2200-01-01", "9999-12-31"])
def test_a_time_off_the_calendar_is_refused(admin_client: Client, field: str, day: str) -> None:
    response = fill_in(admin_client, add_url(), **SIMPLE, **{f"{field}_0": day, f"{field}_1": "00:00"})

    assert errors(response) == {field: ["Use a time in the years 1970 to 2199."]}


def test_the_calendars_ends_are_in_it(db: None) -> None:
    begin, end = datetime(1970, 1, 1, tzinfo=UTC), datetime(2199, 12, 31, 23, 59, tzinfo=UTC)
    assert make_job(starts_at=begin, ends_at=end).enabled
    with pytest.raises(ValidationError, match="paused_until"):
        make_job("paused", enabled=False, paused_until=end + timedelta(minutes=1))


@pytest.mark.parametrize("schedule", ["30 3 * * *", "@every 1h", "@at 2099-01-01T00:00"])
@pytest.mark.parametrize("day", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_a_time_off_the_calendar_that_was_written_past_us_takes_no_page_away(
    admin_client: Client, schedule: str, day: datetime
) -> None:
    job = make_job(schedule=schedule)
    off = {"starts_at": day, "ends_at": day, "enabled": True}
    Job.objects.filter(pk=job.pk).update(**off)
    for step in (lambda: None, lambda: definition.follow_changes(database_now("default"), Job.objects.all())):
        step()
        for url in (job_url(job), list_url("job"), "/admin/django_dcron/dashboard/"):
            assert admin_client.get(url).status_code == 200
    Job.objects.filter(pk=job.pk).update(ends_at=None)
    assert admin_client.get(job_url(job)).status_code == 200


def test_a_name_that_is_taken_is_refused(admin_client: Client) -> None:
    make_job("nightly")

    assert errors(fill_in(admin_client, add_url(), **SIMPLE))


def test_friendly_durations_are_shown_and_read(admin_client: Client) -> None:
    job = make_job(timeout=timedelta(minutes=90))

    assert as_rendered(admin_client.get(job_url(job)))["timeout"] == "1h30m"
    fill_in(admin_client, job_url(job), timeout="45m")
    job.refresh_from_db()
    assert job.timeout == timedelta(minutes=45)


def test_emptied_json_means_the_default(admin_client: Client) -> None:
    job = make_job(tags=["billing"])

    fill_in(admin_client, job_url(job), tags="", args="", kwargs="")
    job.refresh_from_db()
    assert (job.tags, job.args, job.kwargs) == ([], [], {})


def test_saving_unchanged_changes_nothing_but_is_logged_as_such(admin_client: Client) -> None:
    job = make_job(starts_at=None)
    before = (
        Job.objects.filter(pk=job.pk).values("schedule", "timeout", "misfire_grace", "retry_backoff").get()
    )

    assert fill_in(admin_client, job_url(job)).status_code == 302
    assert Job.objects.filter(pk=job.pk).values(*before).get() == before
    assert (
        "No fields changed" in admin_client.get(f"/admin/django_dcron/job/{job.pk}/history/").content.decode()
    )


def test_the_cursor_moves_with_the_schedule(admin_client: Client) -> None:
    job = make_job(schedule="30 3 * * *")

    fill_in(admin_client, job_url(job), schedule="45 4 * * *")
    next_at = Cursor.objects.get(job=job).next_at
    assert next_at is not None
    assert (next_at.hour, next_at.minute) == (4, 45)


def test_what_the_scheduler_wrote_meanwhile_stays(admin_client: Client) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    previous = job.cursor.next_at
    Cursor.objects.filter(job=job).update(previous_at=previous)
    Statistics.objects.filter(job=job).update(succeeded=7)

    assert admin_client.post(job_url(job), {**sent, "description": "mine"}).status_code == 302
    assert Cursor.objects.get(job=job).previous_at == previous
    assert Statistics.objects.get(job=job).succeeded == 7


def test_enabling_clears_the_pause_reason(admin_client: Client) -> None:
    job = make_job()
    control.pause(job, "deploy")

    fill_in(admin_client, job_url(job), enabled="on")
    job.refresh_from_db()
    assert (job.enabled, job.pause_reason) == (True, "")


# --- two at once ------------------------------------------------------------------------------------------------------


def _change(job: Job, **values: Any) -> None:
    row = Job.objects.get(pk=job.pk)
    for name, value in values.items():
        setattr(row, name, value)
    control.save(row)


def test_a_job_changed_meanwhile_is_not_overwritten(admin_client: Client) -> None:
    job = make_job(timeout=timedelta(minutes=1))
    sent = as_rendered(admin_client.get(job_url(job)))
    _change(job, schedule="0 4 * * *", timeout=None, description="<b>theirs</b>")

    response = admin_client.post(job_url(job), {**sent, "schedule": "0 5 * * *"})

    said = list(errors(response)["__all__"])
    assert "changed meanwhile by someone else" in said[0]
    assert said[1:] == [
        "Schedule: theirs is “0 4 * * *”, yours is “0 5 * * *”.",
        "Timeout: theirs is empty, yours is “1m”.",
        "Description: theirs is “<b>theirs</b>”, yours is empty.",
    ]
    assert "<b>theirs</b>" not in response.content.decode()
    assert Job.objects.get(pk=job.pk).schedule == "0 4 * * *"
    assert not any("success" in message for message in messages(response))


def test_differences_are_told_as_the_form_shows_them(admin_client: Client) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    _change(
        job,
        starts_at=datetime(2030, 1, 2, 3, 4, tzinfo=UTC),
        tags=["ü"],
        overlap_policy="allow",
        max_attempts=3,
    )

    assert list(errors(admin_client.post(job_url(job), sent))["__all__"])[1:] == [
        "If still running: theirs is “allow: run side by side”, yours is “skip the new run”.",
        "Attempts: theirs is “3”, yours is “1”.",
        "Starts at: theirs is Jan. 2, 2030, 3:04 a.m., yours is empty.",
        'Tags: theirs is ["ü"], yours is [].',
    ]


def test_after_the_warning_one_may_save_knowingly(admin_client: Client) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    _change(job, schedule="0 4 * * *")
    warned = admin_client.post(job_url(job), {**sent, "schedule": "0 5 * * *"})

    assert admin_client.post(job_url(job), as_rendered(warned)).status_code == 302
    assert Job.objects.get(pk=job.pk).schedule == "0 5 * * *"


def test_pausing_counts_as_a_change(admin_client: Client) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    control.pause(job, "on fire")

    response = admin_client.post(job_url(job), sent)

    assert "Enabled: theirs is no, yours is yes." in errors(response)["__all__"]
    assert not Job.objects.get(pk=job.pk).enabled


@pytest.mark.parametrize("version", ["", "abc", "0"])
def test_a_form_without_its_version_is_not_saved(admin_client: Client, version: str) -> None:
    job = make_job()

    response = fill_in(admin_client, job_url(job), seen_version=version, schedule="0 5 * * *")

    assert errors(response)["__all__"]
    assert Job.objects.get(pk=job.pk).schedule == "30 3 * * *"


def test_a_change_between_validation_and_save_is_not_overwritten(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    _change(job, schedule="0 4 * * *")
    refuse = JobForm._refuse

    def blind_once(form: JobForm, cleaned: dict[str, Any]) -> None:
        """As if the form had been validated before the other's change."""
        monkeypatch.setattr(JobForm, "_refuse", refuse)

    monkeypatch.setattr(JobForm, "_refuse", blind_once)
    response = admin_client.post(job_url(job), {**sent, "schedule": "0 5 * * *"})

    assert "Schedule: theirs is “0 4 * * *”, yours is “0 5 * * *”." in errors(response)["__all__"]
    assert Job.objects.get(pk=job.pk).schedule == "0 4 * * *"
    assert messages(response) == []
    assert not LogEntry.objects.exists()


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_a_change_committed_by_another_between_validation_and_save_stays(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with a second connection. (SQLite has one writer at a time: there is no in between.)"""
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    save = control.save

    def theirs() -> None:
        _change(job, schedule="0 4 * * *")
        connection.close()

    def ours(row: Job, **options: Any) -> Job:
        monkeypatch.setattr(control, "save", save)
        other = Thread(target=theirs)
        other.start()
        other.join()
        return save(row, **options)

    monkeypatch.setattr(control, "save", ours)
    response = admin_client.post(job_url(job), {**sent, "schedule": "0 5 * * *"})

    assert "Schedule: theirs is “0 4 * * *”, yours is “0 5 * * *”." in errors(response)["__all__"]
    assert Job.objects.get(pk=job.pk).schedule == "0 4 * * *"


def test_a_conflict_that_stays_is_told_and_saves_nothing(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))

    def refuse(row: Job, **options: Any) -> Job:
        raise Conflict("report was changed meanwhile.")

    monkeypatch.setattr(control, "save", refuse)
    response = admin_client.post(job_url(job), {**sent, "schedule": "0 5 * * *"}, follow=True)

    assert messages(response) == ["Nothing was saved. report was changed meanwhile."]
    assert Job.objects.get(pk=job.pk).schedule == "30 3 * * *"


def test_a_job_deleted_meanwhile_is_told(admin_client: Client) -> None:
    job = make_job()
    sent = as_rendered(admin_client.get(job_url(job)))
    job.delete()

    response = admin_client.post(job_url(job), sent, follow=True)

    assert "deleted" in messages(response)[0]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_suggestions_come_from_the_registry_and_the_zones(admin_client: Client) -> None:
    page = admin_client.get(add_url()).content.decode()

    assert 'list="suggestions-target"' in page
    assert '<option value="tests.app.tasks.ok"></option>' in page
    assert '<option value="Europe/Berlin"></option>' in page


def test_the_page_shows_what_comes(admin_client: Client) -> None:
    job = make_job(schedule="30 3 * * *", timezone="Asia/Tokyo")

    response = admin_client.get(job_url(job))
    page = response.content.decode()

    assert len(response.context["page"].ahead[0]) == 10
    assert "18:30:00" in page  # UTC
    assert "03:30:00" in page  # Tokyo


def test_a_refused_form_still_shows_the_stored_job(admin_client: Client) -> None:
    job = make_job(timezone="Asia/Tokyo")

    response = fill_in(admin_client, job_url(job), schedule="61 * * * *", timezone="Nowhere/City")

    assert errors(response)
    assert response.context["page"].zone == "Asia/Tokyo"
    assert len(response.context["page"].ahead[0]) == 10


def test_a_broken_row_has_a_page(admin_client: Client) -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).update(schedule="99 * * * *", timezone="<i>Nowhere</i>")
    Cursor.objects.filter(pk=job.pk).update(problem="<i>99</i> is too much", next_at=None)

    page = admin_client.get(job_url(job)).content.decode()

    assert "&lt;i&gt;99&lt;/i&gt; is too much" in page
    assert "<i>" not in page


def test_a_schedule_nobody_can_word_still_has_a_page(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()

    def fail(schedule: Schedule) -> str:
        raise RuntimeError

    monkeypatch.setattr(Schedule, "describe", fail)
    assert admin_client.get(job_url(job)).status_code == 200
    assert admin_client.get(list_url("job")).status_code == 200


def test_a_job_without_cursor_and_statistics_has_a_page(admin_client: Client) -> None:
    job = Job.objects.create(name="raw", target="tests.app.tasks.ok", schedule="@daily")

    assert admin_client.get(job_url(job)).status_code == 200
    assert admin_client.get(list_url("job")).status_code == 200
