"""Test the admin's list of the audit log: read-only, with its own permission, and exported."""

import csv
import json
from datetime import UTC, datetime, timedelta
from io import StringIO

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django import Settings

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.models import AuditEntry
from tests.admin.conftest import StaffWith, list_url, make_job

LIST = "admin:django_dcron_auditentry_changelist"


def _export(client: Client, kind: str, **filters: str) -> str:
    response = client.get(reverse("admin:django_dcron_auditentry_export", args=[kind]), filters)
    assert response.status_code == 200
    return response.getvalue().decode()


def _listed(client: Client, **filters: str) -> list[str]:
    response = client.get(reverse(LIST), filters)
    assert response.status_code == 200
    return [entry.action for entry in response.context["cl"].result_list]


def test_list_shows_who_did_what_and_is_filtered(admin_client: Client) -> None:
    job = make_job()
    with control.acting_as("ada <b>", "10.0.0.1"):
        control.pause(job, "deploy <b>")
    control.delete(job)

    page = admin_client.get(reverse(LIST)).content.decode()

    assert "10.0.0.1" in page
    assert "<b>" not in page
    assert _listed(admin_client) == ["delete", "pause", "create"]
    assert _listed(admin_client, action__exact="pause", via__exact="code") == ["pause"]
    assert _listed(admin_client, q="ADA") == ["pause"]
    assert _listed(admin_client, q="nobody") == []
    assert len(_listed(admin_client, when="1h")) == 3
    tomorrow = (database_now("default") + timedelta(days=1)).isoformat()
    assert _listed(admin_client, at__gte=tomorrow) == []


def test_pages_name_the_time_zone_of_their_times(admin_client: Client, settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Kolkata"
    job = make_job()
    control.pause(job, "deploy", datetime(2090, 1, 1, 12, tzinfo=UTC))
    entry = AuditEntry.objects.get(action="pause")
    pages = [
        reverse(LIST),
        reverse("admin:django_dcron_auditentry_change", args=[entry.pk]),
        reverse("admin:django_dcron_job_history", args=[job.pk]),
    ]
    for page in pages:
        text = admin_client.get(page).content.decode()
        assert "ime (Asia/Kolkata)" in text, page
        assert "2090-01-01 17:30:00 IST" in text, page


def test_each_kind_of_entry_has_a_page(admin_client: Client) -> None:
    job = make_job()
    control.cancel(control.trigger(job))
    control.freeze("deploy")
    control.delete(job)
    for entry in AuditEntry.objects.all():
        url = reverse("admin:django_dcron_auditentry_change", args=[entry.pk])
        assert entry.label in admin_client.get(url).content.decode()
        assert admin_client.post(url, {"actor": "nobody"}).status_code == 403
        deletion = reverse("admin:django_dcron_auditentry_delete", args=[entry.pk])
        assert admin_client.post(deletion, {"post": "yes"}).status_code == 403
    assert not AuditEntry.objects.filter(actor="nobody").exists()


def test_permission_to_view_jobs_is_not_enough(staff_with: StaffWith) -> None:
    make_job()
    assert staff_with("view_job", "change_job").get(reverse(LIST)).status_code == 403
    assert _listed(staff_with("view_auditentry")) == ["create"]


def test_entries_are_exported_as_lines_and_csv(admin_client: Client) -> None:
    job = make_job()
    with control.acting_as("=ada"):
        control.pause(job, "deploy")

    pause, created = map(json.loads, _export(admin_client, "jsonl").splitlines())
    assert (pause["action"], pause["actor"], pause["after"]["enabled"]) == ("pause", "=ada", False)
    assert created["action"] == "create"
    (row,) = csv.DictReader(StringIO(_export(admin_client, "csv", action__exact="pause")))
    assert (row["actor"], json.loads(row["before"])["enabled"]) == ("'=ada", True)
    unknown = reverse("admin:django_dcron_auditentry_export", args=["json"])
    assert admin_client.get(unknown).status_code == 404
    sent = {"action": "export_lines", "_selected_action": [created["id"]]}
    chosen = admin_client.post(list_url("auditentry"), sent)
    assert [json.loads(line)["id"] for line in chosen.getvalue().splitlines()] == [created["id"]]


def test_number_of_queries_does_not_grow_with_the_entries(admin_client: Client) -> None:
    counts = []
    for _ in range(2):
        for _each in range(5):
            control.save(make_job(f"job {AuditEntry.objects.count()}"))
        with CaptureQueriesContext(connection) as queries:
            _listed(admin_client)
        counts.append(len(queries))
    assert counts[0] == counts[1]
