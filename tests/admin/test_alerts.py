"""Test that the list of alerts stays bounded with many alerts."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_dcron.admin import alert as page
from django_dcron.models import Alert, Incident
from tests.admin.conftest import NOON, StaffWith, job_url, list_url, make_job, make_run, run_url

pytestmark = pytest.mark.django_db
URL = reverse("admin:django_dcron_alert_changelist")


def make_alert(number: int) -> Alert:
    return Alert.objects.create(
        channel="ops",
        kind="failed",
        key=str(number),
        subject=f"job {number} failed",
        created_at=NOON,
    )


@pytest.mark.parametrize("query", ["", "?q=failed", "?delivery=given_up", "?kind__exact=failed"])
def test_list_queries_only_latest_alerts(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(page, "LATEST", 2)
    alerts = [make_alert(number) for number in range(4)]
    with CaptureQueriesContext(connection) as captured:
        listed = admin_client.get(URL + query).context["cl"].result_list
    assert list(listed) == [alerts[3], alerts[2]]
    counts = [
        each["sql"]
        for each in captured
        if "COUNT(" in each["sql"] and "django_dcron_alert" in each["sql"]
    ]
    assert counts
    assert all("LIMIT" in sql for sql in counts)


def test_list_ignores_order_parameter(admin_client: Client) -> None:
    alerts = [make_alert(number) for number in range(3)]
    listed = admin_client.get(URL + "?o=1").context["cl"].result_list
    assert list(listed) == alerts[::-1]


@pytest.mark.parametrize(
    ("kind", "state"),
    [("failed", "failed"), ("paused", "failed"), ("missed", "missed"), ("late", None)],
)
def test_alert_links_to_the_job_and_to_the_reported_runs(
    admin_client: Client, kind: str, state: str | None
) -> None:
    job = make_job()
    alert = make_alert(1)
    Alert.objects.filter(pk=alert.pk).update(kind=kind, job=job)

    html = admin_client.get(URL).content.decode()

    assert f'href="{job_url(job)}"' in html
    state_filter = f"&amp;state__exact={state}" if state else ""
    assert f'href="{list_url("run")}?job__id__exact={job.pk}{state_filter}"' in html


def test_alert_about_a_node_links_to_the_nodes(admin_client: Client) -> None:
    alert = make_alert(1)
    Alert.objects.filter(pk=alert.pk).update(kind="node_lost")

    assert f'<a href="{list_url("node")}">' in admin_client.get(URL).content.decode()


@pytest.mark.parametrize(
    ("permissions", "linked"),
    [(("view_alert",), False), (("view_alert", "view_job", "view_run", "view_node"), True)],
)
def test_links_of_an_alert_need_the_permissions_for_the_linked_pages(
    staff_with: StaffWith, permissions: tuple[str, ...], linked: bool
) -> None:
    job = make_job()
    alert = make_alert(1)
    Alert.objects.filter(pk=alert.pk).update(job=job)
    page_url = reverse("admin:django_dcron_alert_change", args=[alert.pk])

    for url in (URL, page_url):
        html = staff_with(*permissions).get(url).content.decode()
        assert (f'href="{job_url(job)}"' in html) == linked


def test_alert_links_to_its_incident_and_run(admin_client: Client, staff_with: StaffWith) -> None:
    job = make_job()
    incident = Incident.objects.create(
        job=job, fingerprint="f", first_seen_at=NOON, last_seen_at=NOON
    )
    run = make_run(job)
    alert = Alert.objects.create(
        channel="ops",
        kind="failed",
        key="1",
        subject="failed",
        created_at=NOON,
        job=job,
        incident=incident,
        run=run.pk,
    )
    links = [reverse("admin:django_dcron_incident_change", args=[incident.pk]), run_url(run)]
    urls = [list_url("alert"), reverse("admin:django_dcron_alert_change", args=[alert.pk])]
    for url in urls:
        text = admin_client.get(url).content.decode()
        assert all(f'href="{link}"' in text for link in links)
    viewer = staff_with("view_alert", "view_job")
    for url in urls:
        text = viewer.get(url).content.decode()
        assert not any(f'href="{link}"' in text for link in links)
