"""Test that a job with a history is deleted in batches, after a summary."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.db.models import F
from django.test import Client
from django.urls import reverse

from django_dcron import control, targets
from django_dcron.admin import actions
from django_dcron.admin.jobs import deletion as job_deletion
from django_dcron.admin.jobs.admin import JobAdmin
from django_dcron.admin.lists import bounded
from django_dcron.jobs import deletion
from django_dcron.jobs.deletion import delete_job
from django_dcron.models import (
    Attempt,
    AuditEntry,
    Calendar,
    Cursor,
    DeletedImport,
    Deletion,
    Job,
    Link,
    Run,
)
from django_dcron.models.job_states import HANDED_BACK
from django_dcron.targets import cron
from tests.admin.conftest import (
    NOON,
    StaffWith,
    job_url,
    list_url,
    make_attempt,
    make_job,
    make_run,
    messages,
    run_url,
)


@pytest.fixture
def job(db: None) -> Job:
    job = make_job()
    first = make_run(job, state="failed")
    make_attempt(first, outcome="failed")
    make_run(job, NOON + timedelta(days=1), state="succeeded", rerun_of=first)
    make_run(make_job("other"))
    return job


def _delete_url(job: Job) -> str:
    return reverse("admin:django_dcron_job_delete", args=[job.pk])


def test_confirmation_counts_runs_without_listing_them(admin_client: Client, job: Job) -> None:
    page = admin_client.get(_delete_url(job)).content.decode()

    assert "Runs: 2" in page
    assert str(Run.objects.filter(job=job)[0].pk) not in page


def test_confirmation_caps_count_of_runs(
    admin_client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "MAX_COUNTED", 1)

    assert "Runs: more than 1" in admin_client.get(_delete_url(job)).content.decode()


def test_confirmation_counts_the_jobs_and_followers_that_it_does_not_list(
    admin_client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_deletion, "MAX_LISTED", 1)
    for number in range(3):
        Link.objects.create(job=make_job(f"follower {number}"), after=job, on="ended")
    chosen = {
        "action": "delete_selected",
        "_selected_action": [job.pk, Job.objects.get(name="other").pk],
    }

    lines = admin_client.post(list_url("job"), chosen).context["deletable_objects"][0]

    assert len(lines) == 4
    assert (lines[1], lines[3]) == ("… and 1 more", "… and 2 more")


def test_deleted_job_keeps_its_history(admin_client: Client, job: Job) -> None:
    run = Run.objects.filter(job=job).earliest("scheduled_at")

    admin_client.post(_delete_url(job), {"post": "yes"})

    assert [left.name for left in Job.objects.all()] == ["other"]
    assert Run.objects.filter(job=job).count() == 2
    assert admin_client.get(_delete_url(job)).status_code == 302
    assert f"(deleted {job.pk})" not in admin_client.get(list_url("job")).content.decode()
    for url in (list_url("run"), run_url(run)):
        page = admin_client.get(url)
        assert page.status_code == 200
        assert f"(deleted {job.pk})" in page.content.decode()
        assert job_url(job) not in page.content.decode()
    assert "Run again" not in admin_client.get(run_url(run)).content.decode()


def test_confirmation_says_that_code_declares_the_job(admin_client: Client, job: Job) -> None:
    assert "@cron" not in admin_client.get(_delete_url(job)).content.decode()
    Job.objects.filter(pk=job.pk).update(declared={})
    assert "@cron" not in admin_client.get(_delete_url(job)).content.decode(), "it did earlier"
    with targets.isolated_registry():
        cron("@daily", name=job.name)(test_confirmation_says_that_code_declares_the_job)
        assert "@cron" in admin_client.get(_delete_url(job)).content.decode()


def test_history_of_a_deleted_job_is_found(admin_client: Client, job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(tags=["nightly"])
    delete_job(job)
    assert Attempt.objects.exists()
    for model, query in [
        ("run", {"q": "deleted"}),
        ("run", {"q": "report"}),
        ("run", {"job_name": "report"}),
        ("run", {"tag": "nightly"}),
        ("run", {"namespace": job.namespace, "q": "deleted"}),
        ("attempt", {"q": "deleted"}),
    ]:
        rows = admin_client.get(list_url(model), query).context["cl"].result_list
        assert rows, (model, query)
        runs = {row if model == "run" else row.run for row in rows}
        assert {run.job_id for run in runs} == {job.pk}, (model, query)


def test_erasing_job_deletes_its_history_only(
    admin_client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "BATCH_SIZE", 1)
    assert 'name="erase"' in admin_client.get(_delete_url(job)).content.decode()

    admin_client.post(_delete_url(job), {"post": "yes", "erase": "yes"})

    assert [left.name for left in Job.objects.all()] == ["other"]
    assert Run.objects.count() == Cursor.objects.count() == 1
    assert not Attempt.objects.exists()


def test_bulk_delete_removes_chosen_jobs(admin_client: Client, job: Job) -> None:
    chosen = {
        "action": "delete_selected",
        "_selected_action": list(Job.objects.values_list("pk", flat=True)),
    }

    assert "Runs: 3" in admin_client.post(list_url("job"), chosen).content.decode()
    admin_client.post(list_url("job"), {**chosen, "post": "yes"})
    assert not Job.objects.exists()
    assert Run.objects.count() == 3


def test_bulk_delete_erases_the_history_on_request(admin_client: Client, job: Job) -> None:
    chosen = {"action": "delete_selected", "_selected_action": [job.pk]}
    assert 'name="erase"' in admin_client.post(list_url("job"), chosen).content.decode()

    admin_client.post(list_url("job"), {**chosen, "post": "yes", "erase": "yes"})

    assert not Job.with_deleted.filter(pk=job.pk).exists()
    assert Run.objects.count() == 1


def test_bulk_delete_is_limited_with_warning(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MAX_ROWS", 50)
    fields = {"target": "t", "schedule": "0 0 1 1 *", "version": 1}
    Job.objects.bulk_create(Job(name=f"job {number:04}", **fields) for number in range(110))
    chosen = {
        "action": "delete_selected",
        "select_across": "1",
        "_selected_action": [Job.objects.latest("pk").pk],
    }

    page = admin_client.post(list_url("job"), chosen)
    keys = re.findall(r'name="_selected_action" value="(\d+)"', page.content.decode())
    answer = admin_client.post(
        list_url("job"), chosen | {"select_across": "0", "_selected_action": keys, "post": "yes"}
    )

    (warning,) = messages(page)
    assert re.findall(r"\d+", warning) == ["110", "50", "50"]
    assert (len(keys), answer.status_code) == (50, 302)
    assert list(Job.objects.order_by("name").values_list("name", flat=True)) == [
        f"job {number:04}" for number in range(50, 110)
    ]


def test_bulk_delete_is_absent_if_site_disables_it(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(admin.site._actions, "delete_selected")

    assert 'value="delete_selected"' not in admin_client.get(list_url("job")).content.decode()


def test_deletion_requires_only_delete_job_permission(staff_with: StaffWith, job: Job) -> None:
    assert (
        staff_with("view_job", "change_job").post(_delete_url(job), {"post": "yes"}).status_code
        == 403
    )
    assert (
        staff_with("view_job", "delete_job").post(_delete_url(job), {"post": "yes"}).status_code
        == 302
    )
    assert not Job.objects.filter(pk=job.pk).exists()


# --- undo -----------------------------------------------------------------------------------------


def _restore_url(entry: AuditEntry) -> str:
    return reverse("admin:django_dcron_job_restore", args=[entry.pk])


def _deletion() -> AuditEntry:
    return AuditEntry.objects.get(kind="job", action="delete")


def test_deletion_is_undone_after_a_confirmation(admin_client: Client, job: Job) -> None:
    job.tags = ["billing"]
    control.save(job)
    response = admin_client.post(_delete_url(job), {"post": "yes"}, follow=True)
    url = _restore_url(_deletion())
    assert f'href="{url}"' in response.content.decode()
    entry_url = reverse("admin:django_dcron_auditentry_change", args=[_deletion().pk])
    assert f'href="{url}"' in admin_client.get(entry_url).content.decode()

    page = admin_client.get(url)
    assert {"Tags": '["billing"]'}.items() <= {
        field.label: field.old for field in page.context["fields"]
    }.items()
    assert not Job.objects.filter(name=job.name)
    response = admin_client.post(url, follow=True)

    restored = Job.objects.get(name=job.name)
    assert restored.pk != job.pk
    assert restored.tags == ["billing"]
    assert response.redirect_chain == [(job_url(restored), 302)]
    creation = AuditEntry.objects.get(object_id=restored.pk)
    assert (creation.actor, creation.via, creation.action) == ("admin", "admin", "create")

    assert f'href="{url}"' not in admin_client.get(entry_url).content.decode()
    for method in (admin_client.get, admin_client.post):
        assert f"number {restored.pk}" in " ".join(messages(method(url, follow=True)))
    assert Job.objects.filter(name=job.name).get() == restored


def test_deletion_that_is_no_longer_stored_has_no_link(admin_client: Client, job: Job) -> None:
    control.delete(job)
    entry_url = reverse("admin:django_dcron_auditentry_change", args=[_deletion().pk])
    url = _restore_url(_deletion())
    assert url in admin_client.get(entry_url).content.decode()
    Deletion.objects.update(entry_id=F("entry_id") + 1)  # the job was deleted again
    assert url not in admin_client.get(entry_url).content.decode()
    response = admin_client.get(url, follow=True)
    assert response.redirect_chain == [(list_url("job"), 302)]
    assert job.name in " ".join(messages(response))


@pytest.mark.parametrize(
    "origin",
    [
        {"declared": {"schedule": "@daily"}},
        {"import_source": "redbeat", "import_key": "1", "imported": {"name": "a"}},
    ],
)
def test_deletion_of_a_declared_or_imported_job_is_undone(
    admin_client: Client, job: Job, origin: dict[str, Any]
) -> None:
    Job.objects.filter(pk=job.pk).update(**origin)
    deleted = admin_client.post(_delete_url(job), {"post": "yes"}, follow=True)
    url = _restore_url(_deletion())
    assert url in deleted.content.decode()
    assert admin_client.get(url).status_code == 200
    admin_client.post(url)
    assert Job.objects.filter(name=job.name, **origin).exists()


def test_message_says_why_a_restored_job_is_paused(admin_client: Client, job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(import_source="redbeat", import_key="1")
    control.delete(Job.objects.get(pk=job.pk))
    DeletedImport.objects.update(left_to_source=True)
    response = admin_client.post(_restore_url(_deletion()), follow=True)
    assert "redbeat" in messages(response)[-1]
    assert Job.objects.get(name=job.name).awaits_handover


def test_message_says_that_a_restored_job_missed_the_handover(
    admin_client: Client, job: Job
) -> None:
    Job.objects.filter(pk=job.pk).update(import_source="redbeat", import_key="1")
    control.delete(control.pause(Job.objects.get(pk=job.pk), HANDED_BACK))
    DeletedImport.objects.update(left_to_source=False)
    response = admin_client.post(_restore_url(_deletion()), follow=True)
    assert "manage.py dcron handover redbeat" in messages(response)[-1]


def test_job_with_a_hidden_calendar_is_not_restored(
    admin_client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    calendar = control.save_calendar(Calendar(name="hush", dates="12-25"))
    Job.objects.filter(pk=job.pk).update(calendar=calendar)
    control.delete(Job.objects.get(pk=job.pk))
    visible = Calendar.objects.exclude(name="hush")
    calendar_admin = type(admin.site.get_model_admin(Calendar))
    monkeypatch.setattr(calendar_admin, "get_queryset", lambda self, request: visible.all())
    admin_client.post(_restore_url(_deletion()))
    assert not Job.objects.filter(name=job.name).exists()


def test_refused_restore_is_a_message(admin_client: Client, job: Job) -> None:
    control.delete(job)
    other = make_job(job.name)
    response = admin_client.post(_restore_url(_deletion()), follow=True)
    assert f"number {other.pk}" in " ".join(messages(response))
    assert Job.objects.filter(name=job.name).count() == 1


def test_only_the_deletion_of_a_job_is_undone(admin_client: Client, job: Job) -> None:
    control.pause(job)
    control.save_calendar(Calendar(name="holidays", dates="12-25"))
    control.delete_calendar(Calendar.objects.get())
    for key in (*AuditEntry.objects.values_list("pk", flat=True), 10**30):
        url = reverse("admin:django_dcron_job_restore", args=[key])
        assert admin_client.post(url).status_code == 404
    assert {*AuditEntry.objects.values_list("action", flat=True)} >= {"pause", "delete"}


def test_user_who_may_not_add_jobs_does_not_restore(staff_with: StaffWith, job: Job) -> None:
    client = staff_with("view_job", "change_job", "delete_job", "view_auditentry")
    response = client.post(_delete_url(job), {"post": "yes"}, follow=True)
    url = _restore_url(_deletion())
    entry_url = reverse("admin:django_dcron_auditentry_change", args=[_deletion().pk])
    for page in (response, client.get(entry_url)):
        assert page.status_code == 200
        assert url not in page.content.decode()
    assert client.post(url).status_code == 403


def test_value_of_a_field_that_the_form_does_not_have_is_not_restored(
    admin_client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.queue = "mail"
    control.save(job)
    monkeypatch.setattr(JobAdmin, "readonly_fields", ("queue",))
    deleted = admin_client.post(_delete_url(job), {"post": "yes"}, follow=True)
    url = _restore_url(_deletion())
    entry_url = reverse("admin:django_dcron_auditentry_change", args=[_deletion().pk])
    for page in (deleted, admin_client.get(entry_url)):
        assert url not in page.content.decode()
    assert admin_client.post(url).status_code == 403
