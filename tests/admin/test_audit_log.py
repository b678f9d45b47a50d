"""Test an object's history in the admin: who changed which fields, with old and new values."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.html import escape

from django_dcron import control
from django_dcron.admin.jobs.admin import JobAdmin
from django_dcron.jobs import reverting
from django_dcron.jobs.audit.differences import LONGEST, FieldChange
from django_dcron.jobs.audit.entries import LoggedChange, logged_changes_of
from django_dcron.jobs.audit.recording import AuditedChange, record_changes
from django_dcron.models import AuditAction, Job, Run, Via
from django_dcron.targets.redaction import CHANGED_MASK, MASK
from tests.admin.conftest import (
    StaffWith,
    action_url,
    add_url,
    fill_in,
    job_url,
    make_job,
    messages,
)
from tests.factories import entries_by_users, forget_entries

POLICIES: dict[str, Any] = dict(Job._meta.get_field("overlap_policy").flatchoices)


def _changes(job: Job) -> list[LoggedChange]:
    """Return the changes in the admin. The test has created the job by code."""
    return [change for change in logged_changes_of(job) if change.by == "admin"]


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
    assert (change.is_addition, change.version) == (True, 1)
    assert FieldChange("schedule", "", "@daily") in change.fields


def test_actions_are_logged_with_their_user_and_address(admin_client: Client) -> None:
    job = make_job()

    admin_client.post(action_url(job, "pause"), {"reason": "deploy"})
    admin_client.post(action_url(job, "resume"))
    admin_client.post(action_url(job, "run_now"))

    pause, resume = _changes(job)
    assert (pause.action, pause.switched, pause.version) == (AuditAction.PAUSE, False, 2)
    assert pause.of("pause_reason") == FieldChange("pause_reason", "", "deploy (admin)")
    assert (resume.action, resume.switched, resume.version) == (AuditAction.RESUME, True, 3)
    run = entries_by_users().last()
    assert run is not None
    assert (run.action, run.object_id) == (AuditAction.TRIGGER, str(Run.objects.get().pk))
    assert (run.job_id, run.version) == (job.pk, None)
    assert {(entry.via, entry.address) for entry in entries_by_users()} == {
        (Via.ADMIN, "127.0.0.1")
    }


def test_history_shows_that_a_secret_changed(admin_client: Client) -> None:
    kwargs = {"api_token": "hush", "city": "Rome"}
    job = make_job(target="tests.app.tasks.echo", kwargs=kwargs)
    fill_in(admin_client, job_url(job), kwargs=json.dumps(kwargs | {"api_token": "hush-2"}))

    *_others, line = _history(admin_client, job).context["lines"]
    (field,) = line.fields
    assert json.loads(field.old) == {"api_token": MASK, "city": "Rome"}
    assert json.loads(field.new) == {"api_token": CHANGED_MASK, "city": "Rome"}


def test_long_values_are_truncated(admin_client: Client) -> None:
    job = make_job()
    fill_in(admin_client, job_url(job), description="x" * 10_000)

    (change,) = _changes(job)
    (field,) = change.fields
    assert (len(field.new), field.new[-1]) == (LONGEST, "…")


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
        f"{AuditAction.PAUSE.label}: deploy (admin)",
    ):
        assert output in page
    assert "dcron-aside" not in page


def test_history_shows_times_in_site_time_zone(admin_client: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    job = make_job()
    forget_entries()
    admin_client.post(action_url(job, "pause"), {"until": "2099-03-01 12:00:00"})
    assert entries_by_users().get().after["paused_until"] == "2099-03-01T03:00:00Z"
    after = {"paused_until": "some day"}
    record_changes([AuditedChange(AuditAction.PAUSE, job, after=after)], "default")

    pause, other = _history(admin_client, job).context["lines"]

    until = next(field for field in pause.fields if field.label == "Paused until")
    assert (until.old, until.new) == ("-", "2099-03-01 12:00:00 JST")
    assert [field.new for field in other.fields] == ["some day"]


def test_history_counts_changes_without_an_entry(admin_client: Client) -> None:
    job = make_job()
    control.save(job)
    forget_entries()
    fill_in(admin_client, job_url(job), schedule="0 5 * * *")
    for _ in range(2):
        Job.objects.filter(pk=job.pk).update(version=Job.objects.get().version + 1)
    fill_in(admin_client, job_url(job), schedule="0 6 * * *")
    Job.objects.filter(pk=job.pk).update(version=Job.objects.get().version + 1)

    response = _history(admin_client, job)

    shown = [line.unlogged_before for line in response.context["lines"]]
    assert [re.findall(r"\d+", text) for text in shown] == [["1"], ["2"]]
    assert re.findall(r"\d+", response.context["unlogged_changes_since"]) == ["1"]
    assert response.content.decode().count("dcron-aside") == 3


def test_changes_by_code_are_in_the_history(admin_client: Client) -> None:
    job = make_job()
    control.pause(job, "by code")
    with control.acting_as("ada", "10.0.0.1"):
        control.resume(job)

    lines = _history(admin_client, job).context["lines"]

    assert [line.change.action for line in lines] == ["create", "pause", "resume"]
    assert lines[2].change.by == "ada"
    assert lines[1].change.by not in ("", "ada")


def test_only_last_history_page_mentions_later_changes(admin_client: Client) -> None:
    job = make_job()
    forget_entries()
    record_changes([AuditedChange(AuditAction.CHANGE, job)] * 101, "default")
    Job.objects.filter(pk=job.pk).update(version=2)

    first, second = (
        admin_client.get(
            reverse("admin:django_dcron_job_history", args=[job.pk]) + f"?p={page}"
        ).context
        for page in (1, 2)
    )

    assert (len(first["lines"]), first["unlogged_changes_since"]) == (100, "")
    assert len(second["lines"]) == 1
    assert second["unlogged_changes_since"]


def test_history_without_entries_has_no_table(admin_client: Client) -> None:
    job = make_job()
    forget_entries()
    response = _history(admin_client, job)

    assert response.status_code == 200
    assert response.context["lines"] == []
    assert 'class="module dcron-changes"' not in response.content.decode()


def test_history_of_a_job_links_to_the_entries_of_its_runs(
    admin_client: Client, staff_with: StaffWith
) -> None:
    job = make_job()
    control.trigger(make_job("other"))
    with control.acting_as("ada"):
        run = control.trigger(job)

    url = _history(admin_client, job).context["run_entries_url"]

    assert f'href="{escape(url)}"' in _history(admin_client, job).content.decode()
    (entry,) = admin_client.get(url).context["cl"].result_list
    assert (entry.run_id, entry.action, entry.actor) == (run.pk, "trigger", "ada")
    assert "run_entries_url" not in _history(staff_with("view_job"), job).context


def _revert_url(job: Job, version: int) -> str:
    return reverse("admin:django_dcron_job_revert", args=[job.pk, version])


def test_edit_is_reverted_after_a_confirmation(admin_client: Client) -> None:
    job = make_job(tags=["billing"])
    fill_in(admin_client, job_url(job), schedule="0 5 * * *", tags="[]")
    admin_client.post(action_url(job, "pause"), {"reason": "deploy"})

    history = _history(admin_client, job)
    created, edited, paused = history.context["lines"]
    assert "Version 2 · <a href=" in history.content.decode()
    assert (created.revert_url, paused.revert_url) == ("", "")
    assert edited.revert_url == _revert_url(job, 2)
    page = admin_client.get(edited.revert_url)
    assert page.context["refusal"] == ""
    assert 'type="submit" value="Revert"' in page.content.decode()
    assert {(field.old, field.new) for field in page.context["fields"]} == {
        ("0 5 * * *", "30 3 * * *"),
        ("[]", '["billing"]'),
    }
    response = admin_client.post(edited.revert_url, follow=True)

    job.refresh_from_db()
    assert (job.schedule, job.tags, job.enabled) == ("30 3 * * *", ["billing"], False)
    *_others, edited, _paused, reverted = response.context["lines"]
    assert (edited.revert_url, reverted.revert_url) == ("", _revert_url(job, 4))
    assert (reverted.change.by, reverted.change.action) == ("admin", "change")
    assert "reverts version 2 (admin, " in response.content.decode()


def test_refused_revert_is_a_message_and_has_no_link(admin_client: Client) -> None:
    job = make_job()
    fill_in(admin_client, job_url(job), max_attempts="4")
    fill_in(admin_client, job_url(job), max_attempts="5")
    fill_in(admin_client, job_url(job), description="x" * (LONGEST + 1))
    fill_in(admin_client, job_url(job), description="")

    lines = _history(admin_client, job).context["lines"]
    assert [line.revert_url for line in lines] == ["", "", _revert_url(job, 3), "", ""]
    for version, part in ((2, "max_attempts (now 5"), (5, "whole old values of description")):
        _expect_refusal(admin_client.get(_revert_url(job, version)), part)
        response = admin_client.post(_revert_url(job, version), follow=True)
        assert part in " ".join(messages(response))
    Job.objects.filter(pk=job.pk).update(target="gone.task")
    fill_in(admin_client, job_url(job), target="tests.app.tasks.ok")
    _expect_refusal(admin_client.get(_revert_url(job, 6)), "Target: ")
    response = admin_client.post(_revert_url(job, 6), follow=True)
    assert "Target: " in " ".join(messages(response))
    job.refresh_from_db()
    assert (job.max_attempts, job.target, job.version) == (5, "tests.app.tasks.ok", 6)


def _expect_refusal(page: Any, part: str) -> None:
    assert part in page.context["refusal"]
    assert escape(page.context["refusal"]) in page.content.decode()
    assert 'type="submit" value="Revert"' not in page.content.decode()


def test_edit_of_a_pause_has_no_link_if_the_next_page_of_the_history_has_a_later_pause(
    admin_client: Client,
) -> None:
    job = make_job()
    job.enabled = False
    control.save(job)
    record_changes([AuditedChange(AuditAction.CHANGE, job)] * 98, "default")
    assert _history(admin_client, job).context["lines"][1].revert_url == _revert_url(job, 2)
    job.refresh_from_db()
    control.resume(job)
    control.pause(job)
    assert _history(admin_client, job).context["lines"][1].revert_url == ""


def test_edits_before_too_many_later_changes_have_no_link(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    job.max_attempts = 4
    control.save(job)
    record_changes([AuditedChange(AuditAction.CHANGE, job)] * 100, "default")
    for about_new_runs in (AuditAction.BACKFILL, AuditAction.RERUN):
        record_changes([AuditedChange(about_new_runs, job)] * 3, "default")
    monkeypatch.setattr(reverting, "READ", 2)
    assert _history(admin_client, job).context["lines"][1].revert_url == _revert_url(job, 2)
    monkeypatch.setattr(reverting, "READ", 1)
    assert _history(admin_client, job).context["lines"][1].revert_url == ""


def test_only_edits_that_exist_have_a_page(admin_client: Client) -> None:
    job = make_job()
    control.pause(job)
    for version in (1, 2, 3, 10**30):
        assert admin_client.post(_revert_url(job, version)).status_code == 404


def test_viewer_sees_no_link_to_revert(staff_with: StaffWith) -> None:
    job = make_job()
    job.max_attempts = 4
    control.save(job)
    client = staff_with("view_job")
    assert [line.revert_url for line in _history(client, job).context["lines"]] == ["", ""]
    assert client.post(_revert_url(job, 2)).status_code == 403


def test_field_that_the_form_does_not_have_is_not_reverted(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    job.max_attempts = 4
    control.save(job)
    monkeypatch.setattr(JobAdmin, "readonly_fields", ("max_attempts",))
    assert [line.revert_url for line in _history(admin_client, job).context["lines"]] == ["", ""]
    assert admin_client.post(_revert_url(job, 2)).status_code == 403
    job.refresh_from_db()
    assert job.max_attempts == 4
