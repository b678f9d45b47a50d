"""Test the list of alerts: its bounds with many alerts, its groups, and its links."""

import re
from datetime import timedelta
from itertools import count
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import escape

from django_dcron.admin import alert as page
from django_dcron.admin.alert_groups import GroupingFilter
from django_dcron.models import Alert, Incident, Job, Run
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
    of_alerts = [each["sql"] for each in captured if "django_dcron_alert" in each["sql"]]
    latest, *statements = [sql.replace("`", '"') for sql in of_alerts]
    assert "LIMIT 1" in latest
    assert statements
    newest = ", ".join(str(alert.pk) for alert in (alerts[3], alerts[2]))
    bounds = (f'"id" > {alerts[3].pk - 2}', f'"id" IN ({newest})')
    assert all(any(bound in sql for bound in bounds) for sql in statements)


@pytest.mark.parametrize("query", ["", "ungrouped=1"])
def test_pages_of_many_rows(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(page.AlertAdmin, "list_per_page", 2)
    alerts = [make_alert(number) for number in range(5)][::-1]
    for number in range(3):
        changelist = admin_client.get(f"{URL}?{query}&p={number + 1}").context["cl"]
        assert list(changelist.result_list) == alerts[2 * number : 2 * number + 2]
        assert (changelist.result_count, changelist.multi_page) == (5, True)
    assert admin_client.get(f"{URL}?{query}&p=4")["Location"] == f"{URL}?e=1"


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


def test_alert_of_a_newer_release_is_shown(admin_client: Client) -> None:
    job = make_job()
    alert = make_alert(1)
    Alert.objects.filter(pk=alert.pk).update(kind="newer", job=job)
    for url in (
        URL,
        f"{URL}?ungrouped=1",
        reverse("admin:django_dcron_alert_change", args=[alert.pk]),
    ):
        html = admin_client.get(url).content.decode()
        assert f'href="{list_url("run")}?job__id__exact={job.pk}"' in html


@pytest.mark.parametrize("query", ["", "?ungrouped=1"])
def test_runs_of_a_page_are_read_at_once_and_pruned_ones_have_no_link(
    admin_client: Client, query: str
) -> None:
    alerts = [make_alert(number) for number in range(4)]
    runs = [make_run(make_job(f"job-{number}")) for number in range(3)]
    for alert, run in zip(alerts, runs, strict=False):
        Alert.objects.filter(pk=alert.pk).update(run=run.pk)
    Run.objects.filter(pk=runs[0].pk).delete()
    with CaptureQueriesContext(connection) as captured:
        html = admin_client.get(URL + query).content.decode()
    assert [f'href="{run_url(run)}"' in html for run in runs] == [False, True, True]
    assert sum("django_dcron_run" in each["sql"] for each in captured) == 1
    for alert, run in zip(alerts, runs, strict=False):
        page_url = reverse("admin:django_dcron_alert_change", args=[alert.pk])
        html = admin_client.get(page_url).content.decode()
        assert (f'href="{run_url(run)}"' in html) == (run != runs[0])


# --- Groups ---------------------------------------------------------------------------------------


def _alert(minute: int, **values: Any) -> Alert:
    default = {
        "channel": "ops",
        "kind": "failed",
        "key": f"key:{minute}",
        "subject": "a subject",
        "created_at": NOON + timedelta(minutes=minute),
        "sent_at": NOON,
    }
    return Alert.objects.create(**default | values)


def _incident(job: Job, fingerprint: str) -> Incident:
    return Incident.objects.create(
        job=job, fingerprint=fingerprint, first_seen_at=NOON, last_seen_at=NOON
    )


def _groups(client: Client, query: str = "") -> list[tuple[Alert, int]]:
    """Return the newest alert and the number of alerts of each row."""
    rows = client.get(f"{URL}?{query}").context["cl"].result_list
    return [(row, row.group.number) for row in rows]


@pytest.fixture
def causes(db: None) -> list[list[Alert]]:
    """Return the alerts of each cause, in order of their newest alerts, newest first."""
    job, other = make_job(), make_job("other")
    first, second = _incident(job, "a"), _incident(job, "b")
    unhealthy = {"kind": "unhealthy", "subject": "2 runs are queued"}
    values: list[list[dict[str, Any]]] = [
        [{"job": job, "incident": first, "subject": f"report failed {n} times"} for n in range(3)],
        [{"job": job, "incident": second}],
        [{"job": job, "kind": "recovered"}],
        [{"job": other, "incident": None}],
        [{"kind": "node_lost", "subject": "node a is lost"} for _ in range(2)],
        [{"kind": "node_lost", "subject": "node b is lost"}],
        [{"kind": "degraded", "subject": "node b is lost"}],
        [
            {**unhealthy, "key": "unhealthy:no_worker:1700000001"},
            {**unhealthy, "key": "unhealthy:no_worker:1700000002", "subject": "9 runs are queued"},
        ],
        [{**unhealthy, "key": "unhealthy:no_broker:1700000003"}],
        [{**unhealthy, "key": f"unhealthy:outage:170000000{n}"} for n in range(2)],
        [{"subject": "a deleted job failed"}],
    ]  # fmt: skip
    minutes = count()
    return [[_alert(next(minutes), **each) for each in cause] for cause in values][::-1]


def test_alerts_are_grouped_by_cause(admin_client: Client, causes: list[list[Alert]]) -> None:
    assert _groups(admin_client) == [(cause[-1], len(cause)) for cause in causes]


def test_row_links_to_the_alerts_of_its_group(
    admin_client: Client, causes: list[list[Alert]]
) -> None:
    changelist = admin_client.get(URL).context["cl"]
    for row, cause in zip(changelist.result_list, causes, strict=True):
        url = changelist.url_for_result(row)
        if len(cause) == 1:
            assert url == reverse("admin:django_dcron_alert_change", args=[row.pk])
        response = admin_client.get(f"{URL}?{urlencode(row.group.lookups)}")
        assert list(response.context["cl"].result_list) == cause[::-1]
        if len(cause) > 1:
            assert f'href="{escape(url)}"' in admin_client.get(URL).content.decode()
            assert list(admin_client.get(URL + url).context["cl"].result_list) == cause[::-1]
            assert 'href="?">' in admin_client.get(URL + url).content.decode()


def test_filters_and_search_apply_before_grouping(admin_client: Client) -> None:
    job = make_job()
    shared = {"job": job, "key": "1", "created_at": NOON}
    mail = _alert(1, **shared | {"channel": "mail", "sent_at": None})
    _alert(2, **shared)
    (group,) = admin_client.get(URL).context["cl"].result_list
    assert group.group.number == 2
    assert (group.group.first_channel, group.group.last_channel) == ("mail", "ops")
    assert (group.group.sent, group.group.pending, group.group.given_up) == (1, 0, 1)
    assert _groups(admin_client, "delivery=given_up") == [(mail, 1)]
    assert _groups(admin_client, "q=mail") == [(mail, 1)]
    assert _groups(admin_client, "kind__exact=late") == []


def test_link_to_a_group_keeps_the_other_filters(admin_client: Client) -> None:
    job = make_job()
    for minute in range(3):
        _alert(minute, job=job, sent_at=None if minute else NOON)
    changelist = admin_client.get(f"{URL}?delivery=given_up").context["cl"]
    (row,) = changelist.result_list
    listed = admin_client.get(URL + changelist.url_for_result(row)).context["cl"].result_list
    assert len(listed) == row.group.number == 2


def test_group_shows_its_times_and_its_deliveries(admin_client: Client) -> None:
    job = make_job()
    for minute in range(5):
        _alert(minute, job=job)
    _alert(5, job=job, sent_at=None, try_at=NOON)
    _alert(6, job=job, sent_at=None, error="<refused>")
    html = admin_client.get(URL).content.decode()
    row = html.partition('id="result_list"')[2].partition("</tbody>")[0]
    for minute in (0, 6):
        assert (NOON + timedelta(minutes=minute)).isoformat() in row
    cell = row.partition('class="field-deliveries"')[2].partition("</td>")[0]
    assert re.findall(r"</span> (\d+)</div>", cell) == ["5", "1", "1"]
    assert "&lt;refused&gt;" in cell


def test_single_alerts_stay_reachable(admin_client: Client, causes: list[list[Alert]]) -> None:
    changelist = admin_client.get(f"{URL}?ungrouped=1").context["cl"]
    assert list(changelist.result_list) == [alert for cause in causes for alert in cause[::-1]]
    (spec,) = [each for each in changelist.filter_specs if isinstance(each, GroupingFilter)]
    choices = list(spec.choices(changelist))
    assert [choice["selected"] for choice in choices] == [False, True]
    assert [choice["query_string"] for choice in choices] == ["?", "?ungrouped=1"]


@pytest.mark.parametrize("query", ["", "ungrouped=1"])
def test_queries_do_not_depend_on_the_number_of_alerts(admin_client: Client, query: str) -> None:
    def statements() -> list[str]:
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(f"{URL}?{query}").status_code == 200
        return [each["sql"] for each in captured if "django_dcron_alert" in each["sql"]]

    _alert(0, job=make_job())
    statements()
    few = statements()
    jobs = [make_job(f"job-{number}") for number in range(5)]
    for minute in range(1, 21):
        _alert(minute, job=jobs[minute % 5])
    many = statements()
    assert len(many) == len(few) == 3, "the latest key, the page or groups, and the count or rows"
    assert not any("JOIN" in sql for sql in many)
    assert sum("GROUP BY" in sql for sql in many) == (0 if query else 1)
    assert not any('"text"' in sql for sql in many)
