"""Test the limit form and list, and the limit field of the job form."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from django_dcron import control
from django_dcron.admin.conflicts import needs_save
from django_dcron.models import Job, Limit
from tests.admin.conftest import errors, fill_in, job_url, list_url, make_job
from tests.execution.conftest import deliver
from tests.factories import entries_by_users, make_idle_job, make_run

pytestmark = pytest.mark.django_db

ADD = "admin:django_dcron_limit_add"


def make_limit(max_running: int = 1, name: str = "api") -> Limit:
    return control.save_limit(Limit(name=name, max_running=max_running))


def url_of(limit: Limit, page: str = "change") -> str:
    return reverse(f"admin:django_dcron_limit_{page}", args=[limit.pk])


def test_limit_can_be_added_changed_and_selected_in_a_job(admin_client: Client) -> None:
    fill_in(admin_client, reverse(ADD), name="payment api", max_running="3", key="{args[0]}")
    limit = Limit.objects.get()
    assert (limit.pk, limit.max_running, limit.key) == ("payment api", 3, "{args[0]}")
    changed = fill_in(admin_client, url_of(limit), max_running="", max_started="5", interval="1m")
    assert changed.status_code == 302
    limit.refresh_from_db()
    assert (limit.max_running, limit.max_started) == (None, 5)
    assert limit.interval == timedelta(minutes=1)
    assert [entry.action for entry in entries_by_users()] == ["create", "change"]
    assert admin_client.get(url_of(limit, "history")).status_code == 200
    job = make_job()
    assert fill_in(admin_client, job_url(job), limit="payment api").status_code == 302
    assert Job.objects.get(pk=job.pk).limit_id == "payment api"


def test_saving_without_changes_writes_nothing(admin_client: Client) -> None:
    limit = control.save_limit(
        Limit(name="api", max_running=1, description="Of the shop.\nAsk before a change.")
    )
    sent = {"description": limit.description.replace("\n", "\r\n")}  # as browsers send it
    assert fill_in(admin_client, url_of(limit), **sent).status_code == 302
    assert Limit.objects.get().version == 1
    assert not entries_by_users().exists()


class ReplicaRouter:
    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"  # doesn't exist


def test_row_is_not_compared_with_a_replica(settings: Settings) -> None:
    limit = make_limit()
    settings.DATABASE_ROUTERS = [ReplicaRouter()]
    assert not needs_save(limit)


def test_invalid_key_is_an_error_of_its_field(admin_client: Client) -> None:
    response = fill_in(admin_client, reverse(ADD), name="api", max_running="3", key="{kwargs}")
    assert {*errors(response)} == {"key"}


def test_outdated_form_saves_nothing_until_it_is_sent_again(admin_client: Client) -> None:
    limit = make_limit()
    limit.max_running = 7
    control.save_limit(limit)
    response = fill_in(admin_client, url_of(limit), max_running="2", seen_version="1")
    assert [
        error.code for error in response.context["adminform"].form.non_field_errors().as_data()
    ] == ["conflict"]
    assert Limit.objects.get().max_running == 7


def test_list_shows_how_many_runs_are_running_and_waiting(admin_client: Client) -> None:
    limit = make_limit()
    job = make_idle_job(limit=limit, overlap_policy="allow")
    runs = [make_run(job, trigger="manual") for _ in range(3)]
    for run in runs:
        deliver(run)
    response = admin_client.get(list_url("limit"))
    (row,) = response.context["cl"].result_list
    assert (row.running, row.waiting) == (1, 2)
    page = admin_client.get(reverse("admin:django_dcron_run_change", args=[runs[2].pk]))
    runs[2].refresh_from_db()
    assert runs[2].reason in page.content.decode()


def test_limit_in_use_can_not_be_deleted(admin_client: Client) -> None:
    limit = make_limit()
    job = make_job(limit=limit)
    response = admin_client.get(url_of(limit, "delete"))
    assert str(job) in response.content.decode()
    assert response.context["protected"]
    Job.objects.update(limit=None)
    run = make_run(make_idle_job(limit=limit))
    assert deliver(run)
    Job.objects.update(limit=None)
    response = admin_client.post(url_of(limit, "delete"), {"post": "yes"}, follow=True)
    assert Limit.objects.exists()
    run.refresh_from_db()
    run.limit_place.delete()
    admin_client.post(url_of(limit, "delete"), {"post": "yes"})
    assert not Limit.objects.exists()
