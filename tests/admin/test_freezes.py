"""The admin of freezes: begin and end them, permissions, history and the banner on every page."""

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils.timezone import localtime
from pytest_django import Settings

from django_dcron import control
from django_dcron.admin import freeze as admin_freeze
from django_dcron.admin.display import render_time
from django_dcron.db.now import database_now
from django_dcron.models import Cursor, Freeze
from tests.admin.conftest import NOON, job_url, list_url, log_in_as, make_job, make_run, run_url
from tests.admin.test_dashboard import make_node
from tests.factories import entries_by_users

pytestmark = pytest.mark.django_db

ADD = "admin:django_dcron_freeze_add"
BANNER = 'class="dcron-freeze"'


def end_url(freeze: Freeze) -> str:
    return reverse("admin:django_dcron_freeze_action", args=[freeze.pk, "unfreeze"])


def page_url(freeze: Freeze) -> str:
    return reverse("admin:django_dcron_freeze_change", args=[freeze.pk])


def add(client: Client, **given: str) -> Any:
    return client.post(reverse(ADD), {"namespace": "", "reason": "deploy", "until": "", **given})


def test_freeze_can_be_started_and_ended_in_the_admin(
    admin_client: Client, admin_user: User
) -> None:
    name = admin_user.get_username()
    assert add(admin_client, until="2h").status_code == 302
    freeze = Freeze.objects.in_force().get()
    assert (freeze.namespace, freeze.reason, freeze.frozen_by) == ("", "deploy", name)
    assert freeze.until is not None
    assert freeze.until - freeze.since <= timedelta(hours=2)

    page = admin_client.get(page_url(freeze)).content.decode()
    assert end_url(freeze) in page
    assert admin_client.post(end_url(freeze)).status_code == 302

    assert not Freeze.objects.in_force().exists()
    assert Freeze.objects.get().ended_by == name
    assert end_url(freeze) not in admin_client.get(page_url(freeze)).content.decode()
    entries = entries_by_users().filter(kind="freeze", object_id=str(freeze.pk))
    assert [(entry.actor, entry.action, entry.reason) for entry in entries] == [
        (name, "freeze", "deploy"),
        (name, "unfreeze", "deploy"),
    ]


def messages_of(response: Any) -> list[str]:
    return [message.message for message in response.wsgi_request._messages]


def test_form_banner_and_message_name_the_time_zone_and_the_distance(
    admin_client: Client, settings: Settings
) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    form = admin_client.get(reverse(ADD)).context["adminform"].form
    assert "Asia/Tokyo" in form.fields["until"].help_text
    passed = database_now("default") - timedelta(minutes=30)
    response = add(admin_client, until=f"{localtime(passed):%H:%M}")
    until = Freeze.objects.get().until
    assert until is not None
    text = f"Frozen until {localtime(until):%Y-%m-%d %H:%M:%S} JST, in 23h "
    assert messages_of(response)[0].startswith(text)
    page = admin_client.get(reverse("admin:index")).content.decode()
    assert "Asia/Tokyo" in page[page.index(BANNER) :].partition("</p>")[0]


def test_message_says_that_a_freeze_has_no_planned_end(admin_client: Client) -> None:
    assert "until someone ends" in messages_of(add(admin_client))[0]


@pytest.mark.parametrize(("namespace", "number"), [("", 3), ("shop", 2)])
def test_page_of_a_freeze_in_force_counts_its_running_runs(
    admin_client: Client, namespace: str, number: int
) -> None:
    jobs = [make_job(f"j{each}", namespace="shop" if each else "default") for each in range(3)]
    for job in jobs:
        make_run(job, state="running", started_at=database_now("default"))
        make_run(job, NOON - timedelta(hours=1), state="succeeded")
    freeze = control.freeze("deploy", namespace)
    page = admin_client.get(page_url(freeze)).content.decode()
    found = re.search(r'<a href="([^"]*state__exact=running[^"]*)">(\d+)</a>', page)
    assert found
    assert int(found[2]) == number
    listed = admin_client.get(html.unescape(found[1]))
    assert len(listed.context["cl"].result_list) == number
    control.unfreeze(namespace)
    assert "state__exact=running" not in admin_client.get(page_url(freeze)).content.decode()


def test_number_of_running_runs_needs_the_permission_to_view_runs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(make_job(), state="running", started_at=database_now("default"))
    freeze = control.freeze("deploy")
    client.force_login(User.objects.create_user("ann", is_staff=True))
    log_in_as(("view_job", "freeze_jobs"), monkeypatch)
    assert "state__exact=running" not in client.get(page_url(freeze)).content.decode()


def test_a_frozen_scope_can_be_frozen_again(admin_client: Client) -> None:
    assert "replace" not in admin_client.get(reverse(ADD)).content.decode()
    control.freeze("incident", until=database_now("default") + timedelta(hours=1))
    assert 'name="replace"' in admin_client.get(reverse(ADD)).content.decode()
    refused = add(admin_client)
    assert set(refused.context["adminform"].form.errors) == {"replace"}
    assert Freeze.objects.get().reason == "incident"
    response = add(admin_client, replace="on")
    assert response.status_code == 302
    end, replaced, *_others = messages_of(response)
    assert "until someone ends" in end
    assert "incident" in replaced
    freeze = Freeze.objects.get()
    assert (freeze.reason, freeze.until) == ("deploy", None)
    shown = messages_of(response)
    admin_client.get(reverse("admin:index"))  # it shows the messages
    assert len(messages_of(add(admin_client))) == len(shown) - 1, "nothing was replaced"


def test_freeze_that_began_after_the_user_opened_the_form_is_not_replaced(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.freeze("incident")
    monkeypatch.setattr(admin_freeze, "_read_freezes", lambda *_: [])
    response = add(admin_client, reason="deploy of shop")
    form = response.context["adminform"].form
    page = response.content.decode()
    assert [*form.errors] == ["replace"]
    assert html.escape(form.errors["replace"][0]) in page
    assert 'name="replace"' in page
    assert "deploy of shop" in page
    assert Freeze.objects.get().reason == "incident"


def test_a_freeze_of_a_namespace_is_ended_from_the_list(admin_client: Client) -> None:
    make_job(namespace="shop")
    assert add(admin_client, namespace="shop").status_code == 302
    freeze = Freeze.objects.get()
    sent = {"action": "unfreeze", "_selected_action": freeze.pk}
    confirmation = admin_client.post(list_url("freeze"), sent)
    assert confirmation.status_code == 200
    name = re.search(r'name="(\w+)" value="yes"', confirmation.content.decode())
    assert name
    admin_client.post(list_url("freeze"), {**sent, name[1]: "yes"})
    assert not Freeze.objects.in_force().exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reason", ""),
        ("reason", " "),
        ("namespace", "shpo"),
        ("until", "x"),
        ("until", "2020-01-01"),
    ],
)
def test_an_invalid_freeze_is_refused_by_field(
    admin_client: Client, field: str, value: str
) -> None:
    response = add(admin_client, **{field: value})
    assert response.status_code == 200
    assert set(response.context["adminform"].form.errors) == {field}
    assert not Freeze.objects.exists()


@pytest.mark.parametrize(
    ("permissions", "sees", "freezes"),
    [
        ((), False, False),
        (("freeze_jobs",), False, False),
        (("view_job",), True, False),
        (("view_job", "change_job", "pause_job"), True, False),
        (("view_job", "freeze_jobs"), True, True),
    ],
)
def test_freezing_needs_its_own_permission(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    permissions: tuple[str, ...],
    sees: bool,
    freezes: bool,
) -> None:
    freeze = control.freeze("incident")
    client.force_login(User.objects.create_user("ann", is_staff=True))
    log_in_as(permissions, monkeypatch)

    listed = client.get(list_url("freeze"))
    assert listed.status_code == (200 if sees else 403)
    assert (reverse(ADD) in listed.content.decode()) is freezes
    assert (end_url(freeze) in client.get(page_url(freeze)).content.decode()) is freezes
    assert add(client, replace="on").status_code == (302 if freezes else 403)
    assert client.post(end_url(freeze)).status_code == (302 if freezes else 403)
    assert Freeze.objects.in_force().exists() is not freezes
    assert Freeze.objects.get().reason == ("deploy" if freezes else "incident")


def pages() -> list[str]:
    job = make_job()
    run = make_run(job, state="succeeded")
    return [
        reverse("admin:index"),
        reverse("admin:app_list", args=["django_dcron"]),
        *(list_url(each) for each in ("job", "run", "node", "calendar", "alert", "freeze")),
        list_url("dashboard"),
        job_url(job),
        run_url(run),
        reverse("admin:django_dcron_job_add"),
        reverse("admin:django_dcron_calendar_add"),
        reverse("admin:django_dcron_job_history", args=[job.pk]),
        reverse("admin:django_dcron_job_delete", args=[job.pk]),
        reverse("admin:django_dcron_job_why", args=[job.pk]),
        reverse("admin:django_dcron_job_action", args=[job.pk, "pause"]),
        reverse(ADD),
    ]


def test_every_page_has_the_banner_during_a_freeze(admin_client: Client) -> None:
    visited = pages()
    for url in visited:
        response = admin_client.get(url)
        assert response.status_code == 200, url
        assert BANNER not in response.content.decode(), url
    control.freeze(
        "<b>deploy</b>", "default", database_now("default") + timedelta(hours=1), by="ann"
    )
    for url in visited:
        page = admin_client.get(url).content.decode()
        assert page.count(BANNER) == 1, url
        banner = page[page.index(BANNER) :]
        shown = banner[: banner.index("</p>")]
        assert "&lt;b&gt;deploy" in shown
        assert "ann" in shown
        assert "default" in shown
        assert list_url("freeze") in shown


def test_next_run_of_a_frozen_job_shows_the_end_of_the_freeze(admin_client: Client) -> None:
    frozen, other = make_job("frozen", namespace="shop"), make_job("other")
    until = database_now("default") + timedelta(days=900)
    control.freeze("deploy", "shop", until)

    def next_runs() -> dict[str, str]:
        changelist = admin_client.get(list_url("job")).context["cl"]
        model_admin = changelist.model_admin
        return {job.name: model_admin.next_run(job) for job in changelist.result_list}

    text = f"frozen until {render_time(until)}"
    assert text in next_runs()["frozen"]
    assert "frozen" not in next_runs()["other"]
    assert admin_client.get(job_url(frozen)).context["page"].status.until_next == text
    assert "frozen" not in admin_client.get(job_url(other)).context["page"].status.until_next
    control.freeze("deploy", "shop")
    assert admin_client.get(job_url(frozen)).context["page"].status.until_next == "frozen"
    end = database_now("default") + timedelta(seconds=1)
    control.freeze("deploy", "shop", end, replace=True)
    Cursor.objects.filter(pk=frozen.pk).update(next_at=until)
    assert "frozen" not in next_runs()["frozen"], "the freeze ends before the next run"


def test_health_line_that_only_names_a_freeze_is_marked(admin_client: Client) -> None:
    """A style hides it on pages with the banner."""
    make_node()
    make_job()
    urls = (reverse("admin:index"), list_url("dashboard"))
    assert all("dcron-freeze-line" not in admin_client.get(url).content.decode() for url in urls)
    control.freeze("deploy")
    for url in urls:
        page = admin_client.get(url).content.decode()
        assert page.count('dcron-health-ok dcron-freeze-line"') == 1


def test_user_without_view_permission_gets_no_banner(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.freeze("secret")
    client.force_login(User.objects.create_user("ann", is_staff=True))
    log_in_as(("view_node",), monkeypatch)
    page = client.get(list_url("node"))
    assert page.status_code == 200
    assert "secret" not in page.content.decode()
