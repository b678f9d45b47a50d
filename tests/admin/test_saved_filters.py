"""Test that each user saves, follows and deletes filters of the lists of jobs and runs."""

from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_dcron.admin.lists import saved_filters
from django_dcron.models import SavedFilter
from tests.admin.conftest import StaffWith, list_url, make_job


def _post(client: Client, model: str, **sent: str) -> Any:
    return client.post(reverse(f"admin:django_dcron_{model}_filters"), sent)


def _menu(client: Client, model: str, query: str = "") -> dict[str, str]:
    """Return the query strings of the menu by name."""
    response = client.get(f"{list_url(model)}?{query}")
    return {each.name: each.query for each in response.context["saved_filters"]}


def _level(response: Any) -> str:
    *_earlier, message = get_messages(response.wsgi_request)
    return str(message.level_tag)


@pytest.mark.parametrize("model", ["job", "run"])
def test_saved_filter_is_in_menu_until_deleted(admin_client: Client, model: str) -> None:
    query = "q=caf%C3%A9&tag=a%26b"
    shown = admin_client.get(f"{list_url(model)}?{query}&p=1").context["filter_to_save"]
    assert shown == query

    saved = _post(admin_client, model, name=" <Mine> ", query=f"{query}&p=2&e=1")

    assert saved["Location"] == f"{list_url(model)}?{query}"
    assert _level(saved) == "success"
    other = "run" if model == "job" else "job"
    assert _menu(admin_client, model) == {"<Mine>": query}
    assert _menu(admin_client, other) == {}
    page = admin_client.get(list_url(model)).content.decode()
    assert "&lt;Mine&gt;</a>" in page
    assert "?q=caf%C3%A9&amp;tag=a%26b" in page
    _post(admin_client, other, delete="<Mine>")
    deleted = _post(admin_client, model, delete="<Mine>", query="q=x")
    assert deleted["Location"] == f"{list_url(model)}?q=x"
    assert _menu(admin_client, model) == {}


def test_saving_same_name_again_replaces_filter(admin_client: Client) -> None:
    for query in ("q=a", "q=b"):
        _post(admin_client, "job", name="mine", query=query)
    assert _menu(admin_client, "job") == {"mine": "q=b"}


def test_users_see_and_delete_only_their_own_filters(
    admin_client: Client, staff_with: StaffWith
) -> None:
    _post(admin_client, "job", name="mine", query="q=a")
    other = staff_with("view_job")
    assert _menu(other, "job") == {}
    _post(other, "job", name="mine", query="q=other")
    _post(other, "job", delete="mine")
    assert _menu(admin_client, "job") == {"mine": "q=a"}


def test_saving_needs_view_permission_and_post(
    admin_client: Client, staff_with: StaffWith, client: Client
) -> None:
    url = reverse("admin:django_dcron_job_filters")
    assert _post(staff_with("view_run"), "job", name="a", query="q=a").status_code == 403
    assert _post(client, "job", name="a", query="q=a").status_code == 302  # to the login page
    assert admin_client.get(url).status_code == 405
    assert not SavedFilter.objects.exists()


@pytest.mark.parametrize(
    "sent",
    [
        {"name": "", "query": "q=a"},
        {"name": "n" * 61, "query": "q=a"},
        {"name": "a\0b", "query": "q=a"},
        {"name": "a\u202eb", "query": "q=a"},
        {"name": "a", "query": ""},
        {"name": "a", "query": "p=2"},
        {"name": "a", "query": f"q={'x' * 2000}"},
        {"name": "third", "query": "q=a"},
    ],
)
def test_filter_that_cannot_be_saved_is_refused(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, sent: dict[str, str]
) -> None:
    monkeypatch.setattr(saved_filters, "MAX_FILTERS", 2)
    for name in ("one", "two")[: 2 if sent["name"] == "third" else 0]:
        _post(admin_client, "job", name=name, query="q=a")
    before = SavedFilter.objects.count()
    assert _level(_post(admin_client, "job", **sent)) == "error"
    assert SavedFilter.objects.count() == before


def test_full_menu_accepts_new_query_for_same_name(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_filters, "MAX_FILTERS", 1)
    for query in ("q=a", "q=b"):
        _post(admin_client, "job", name="one", query=query)
    assert _menu(admin_client, "job") == {"one": "q=b"}


def test_menu_needs_one_query(admin_client: Client) -> None:
    make_job()

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            admin_client.get(list_url("job"))
        return sum("savedfilter" in query["sql"] for query in captured)

    queries()
    assert queries() == 1
    for number in range(5):
        _post(admin_client, "job", name=str(number), query="q=a")
    queries()  # shows the messages
    assert queries() == 1
