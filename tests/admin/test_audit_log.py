"""Test a job's history: the user, the changed fields and their old and new values.

Django and other tools can also read the entries.
"""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from django_dcron import control
from django_dcron.jobs.audit.differences import LONGEST
from django_dcron.jobs.audit.entries import (
    FieldChange,
    LoggedChange,
    logged_changes_of,
    read_change,
)
from django_dcron.jobs.audit.texts import paused_text, resumed_text, triggered_text
from django_dcron.models import Job, Run
from tests.admin.conftest import StaffWith, action_url, add_url, fill_in, job_url, make_job

POLICIES: dict[str, Any] = dict(Job._meta.get_field("overlap_policy").flatchoices)


def _changes(job: Job) -> list[LoggedChange]:
    return logged_changes_of(job)


def _history(client: Client, job: Job) -> Any:
    return client.get(reverse("admin:django_dcron_job_history", args=[job.pk]))


def test_edit_is_logged_with_old_and_new_value_per_field(admin_client: Client) -> None:
    job = make_job(retry_backoff=timedelta(seconds=10), tags=["billing"])

    response = fill_in(
        admin_client, job_url(job), schedule="0 5 * * *", retry_backoff="1m30s", tags='["a", "ä"]'
    )

    assert response.status_code == 302
    (change,) = _changes(job)
    assert (change.by, change.version) == ("admin", 2)
    assert set(change.fields) == {
        FieldChange("schedule", "30 3 * * *", "0 5 * * *"),
        FieldChange("retry_backoff", "10s", "1m30s"),
        FieldChange("tags", '["billing"]', '["a", "ä"]'),
    }


def test_log_entry_is_readable_by_django(admin_client: Client) -> None:
    job = make_job()
    fill_in(admin_client, job_url(job), schedule="0 5 * * *", description="What for")

    entry = LogEntry.objects.get()

    assert entry.get_change_message() == "Changed Description and Schedule."
    assert str(entry) == "Changed “report” — Changed Description and Schedule."
    assert json.loads(entry.change_message)[0]["changed"] == {"fields": ["Description", "Schedule"]}


def test_automatic_field_change_is_logged(admin_client: Client) -> None:
    """Enabling a job clears its pause reason, even if the form contains one."""
    job = make_job()
    control.pause(job, "deploy")

    fill_in(admin_client, job_url(job), enabled="on", pause_reason="deploy")

    (change,) = _changes(job)
    assert set(change.fields) == {
        FieldChange("enabled", False, True),
        FieldChange("pause_reason", "deploy", ""),
    }
    assert change.switched is True


def test_save_without_changes_is_logged_as_such(admin_client: Client) -> None:
    job = make_job()
    fill_in(admin_client, job_url(job))

    (change,) = _changes(job)
    assert (change.fields, change.message, change.version) == ((), "No fields changed.", 2)


def test_addition_is_logged(admin_client: Client) -> None:
    fill_in(
        admin_client,
        add_url(),
        name="new",
        target="tests.app.tasks.ok",
        schedule="@daily",
        timezone="UTC",
    )

    (change,) = _changes(Job.objects.get())
    assert (change.is_addition, change.message, change.version, change.fields) == (
        True,
        "Added.",
        1,
        (),
    )


def test_actions_are_logged_with_message_and_changed_fields(admin_client: Client) -> None:
    job = make_job()

    admin_client.post(action_url(job, "pause"), {"reason": "deploy"})
    paused = Job.objects.get()
    admin_client.post(action_url(job, "resume"))
    admin_client.post(action_url(job, "run_now"))

    pause, resume = _changes(job)
    assert (pause.message, pause.switched, pause.version) == (
        paused_text(paused),
        False,
        2,
    )
    assert pause.of("pause_reason") == FieldChange("pause_reason", "", "deploy (admin)")
    assert (resume.message, resume.switched, resume.version) == (resumed_text(), True, 3)
    run = read_change(LogEntry.objects.latest("pk"))
    assert run.message == triggered_text(Run.objects.get())
    assert (run.switched, run.version, run.fields) == (None, None, ())
    assert (
        LogEntry.objects.earliest("pk").get_change_message() == "Changed Enabled and Pause reason."
    )


def test_long_values_are_truncated(admin_client: Client) -> None:
    job = make_job()
    fill_in(admin_client, job_url(job), description="x" * 10_000)

    (change,) = _changes(job)
    (field,) = change.fields
    assert (len(field.new), field.new[-1]) == (LONGEST, "…")


@pytest.mark.parametrize(
    "message", ["", "by hand", "[broken", '[{"changed": {"fields": ["A"]}}]', '[{"dcron": 1}]']
)
def test_foreign_log_entry_uses_message_of_django(admin_user: Any, message: str) -> None:
    entry = LogEntry(user=admin_user, change_message=message, action_flag=2)

    change = read_change(entry)

    assert (change.fields, change.version) == ((), None)
    assert change.message == entry.get_change_message()


def test_history_page_shows_old_and_new_values(admin_client: Client) -> None:
    job = make_job()
    fill_in(
        admin_client,
        job_url(job),
        schedule="0 5 * * *",
        overlap_policy="queue_one",
        description="<b>bold</b>",
    )
    admin_client.post(action_url(job, "pause"), {"reason": "deploy"})

    page = _history(admin_client, job).content.decode()

    for output in (
        "<del>30 3 * * *</del>",
        "<ins>0 5 * * *</ins>",
        f"<del>{POLICIES['skip']}</del>",
        f"<ins>{POLICIES['queue_one']}</ins>",
        "<ins>&lt;b&gt;bold&lt;/b&gt;</ins>",
        paused_text(Job.objects.get()),
    ):
        assert output in page
    assert "dcron-aside" not in page


def test_history_shows_times_in_site_time_zone(admin_client: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    job = make_job()
    admin_client.post(action_url(job, "pause"), {"until": "2099-03-01 12:00:00"})
    message = LogEntry.objects.get().change_message
    stored = "2099-03-01T03:00:00Z"
    assert stored in message
    LogEntry.objects.update(
        change_message=message.replace(stored, "2099-03-01T03:00:00.123456+00:00")
    )

    (line,) = _history(admin_client, job).context["lines"]

    until = next(field for field in line.fields if field.label == "Paused until")
    assert (until.old, until.new) == ("-", "2099-03-01 12:00:00 JST")
    LogEntry.objects.update(change_message=message.replace(stored, "some day"))
    assert "some day" in _history(admin_client, job).content.decode()


def test_history_counts_changes_made_outside_admin(admin_client: Client) -> None:
    job = make_job()
    control.save(job)
    fill_in(admin_client, job_url(job), schedule="0 5 * * *")
    for _ in range(2):
        control.save(Job.objects.get())
    fill_in(admin_client, job_url(job), schedule="0 6 * * *")
    control.pause(Job.objects.get(), "by code")

    response = _history(admin_client, job)

    shown = [line.unlogged_before for line in response.context["lines"]]
    assert [re.findall(r"\d+", text) for text in shown] == [["1"], ["2"]]
    assert re.findall(r"\d+", response.context["unlogged_changes_since"]) == ["1"]
    assert response.content.decode().count("dcron-aside") == 3


def test_only_last_history_page_mentions_later_changes(
    admin_client: Client, admin_user: Any
) -> None:
    job = make_job()
    LogEntry.objects.log_actions(admin_user.pk, [job] * 101, 2, "looked at")
    control.save(job)

    first, second = (
        admin_client.get(
            reverse("admin:django_dcron_job_history", args=[job.pk]) + f"?p={page}"
        ).context
        for page in (1, 2)
    )

    assert (len(first["lines"]), first["unlogged_changes_since"]) == (100, "")
    assert len(second["lines"]) == 1
    assert second["unlogged_changes_since"]


def test_history_of_unchanged_job_has_no_table(admin_client: Client) -> None:
    response = _history(admin_client, make_job())

    assert response.status_code == 200
    assert response.context["lines"] == []
    assert 'class="module dcron-changes"' not in response.content.decode()


def test_history_requires_view_job_permission(staff_with: StaffWith) -> None:
    job = make_job()

    assert _history(staff_with("view_run"), job).status_code == 403
    assert _history(staff_with("view_job"), job).status_code == 200
