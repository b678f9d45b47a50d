"""Freezes over HTTP: list those in force, begin and end them."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from pytest_django import Settings

from django_dcron import control
from django_dcron.models import Freeze
from django_dcron.testing import set_clock
from tests.contrib.rest.conftest import Api, ApiWith, problem
from tests.factories import entries_by_users, make_idle_job
from tests.scheduler.stand_ins import START

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def test_freeze_list_and_unfreeze(api: Api, admin_user: User) -> None:
    name = admin_user.get_username()
    with set_clock(START):
        made = api.post("freezes/", {"reason": "deploy", "until": "2026-03-01T14:00:00+01:00"})
        freeze = Freeze.objects.get()
        assert made.status_code == 201
        assert made.json() == {
            "id": freeze.pk,
            "namespace": "",
            "reason": "deploy",
            "frozen_by": name,
            "since": "2026-03-01T12:00:00Z",
            "until": "2026-03-01T13:00:00Z",
            "ended_by": "",
        }
        assert api.get("freezes/").json() == {"results": [made.json()]}

        ended = api.delete(f"freezes/{freeze.pk}/")

        assert ended.status_code == 204
        assert api.get("freezes/").json() == {"results": []}
        problem(api.delete(f"freezes/{freeze.pk}/"), 409)
    freeze.refresh_from_db()
    assert (freeze.ended_by, freeze.until) == (name, START)
    assert entries_by_users().filter(object_id=str(freeze.pk)).count() == 2


def test_freeze_of_someone_else_is_replaced_only_on_request(api: Api) -> None:
    control.freeze("migration")
    assert "replace" in problem(api.post("freezes/", {"reason": "deploy"}), 409)["detail"]
    assert api.post("freezes/", {"reason": "migration"}).status_code == 201
    assert api.post("freezes/", {"reason": "deploy", "replace": True}).status_code == 201
    assert Freeze.objects.get().reason == "deploy"


def test_delete_with_a_reason_ends_no_freeze_that_has_replaced_the_own_one(api: Api) -> None:
    """Both are in the row of the namespace, so their ids are the same."""
    freeze = api.post("freezes/", {"reason": "deploy"}).json()
    api.delete(f"freezes/{freeze['id']}/")
    control.freeze("incident 4711")
    refused = problem(api.delete(f"freezes/{freeze['id']}/?reason=deploy"), 409)
    assert "incident 4711" in refused["detail"]
    assert Freeze.objects.in_force().exists()
    assert api.delete(f"freezes/{freeze['id']}/?reason=incident 4711").status_code == 204


def test_freezes_are_filtered_by_namespace(api: Api) -> None:
    make_idle_job(namespace="shop")
    control.freeze("incident")
    made = api.post("freezes/", {"reason": "deploy", "namespace": "shop"}).json()
    assert [each["namespace"] for each in api.get("freezes/").json()["results"]] == ["", "shop"]
    of_default = api.get("freezes/", namespace="default").json()["results"]
    assert [each["namespace"] for each in of_default] == [""]
    api.delete(f"freezes/{made['id']}/")
    assert [each["namespace"] for each in api.get("freezes/").json()["results"]] == [""]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "reason"),
        ({"reason": ""}, "reason"),
        ({"reason": "x" * 256}, "reason"),
        ({"reason": 7}, "reason"),
        ({"reason": "deploy", "namespace": "shpo"}, "namespace"),
        ({"reason": "deploy", "namespace": "x" * 65}, "namespace"),
        ({"reason": "deploy", "until": "2020-01-01T00:00:00Z"}, "until"),
        ({"reason": "deploy", "until": "2150-01-01T00:00:00"}, "until"),
        ({"reason": "deploy", "scope": "shop"}, "scope"),
    ],
)
def test_an_invalid_freeze_is_refused_by_field(
    api: Api, body: dict[str, object], field: str
) -> None:
    assert field in problem(api.post("freezes/", body), 400)["errors"]
    assert not Freeze.objects.exists()


@pytest.mark.parametrize("key", ["7", "x", "99999999999999999999"])
def test_unknown_freeze_is_not_found(api: Api, key: str) -> None:
    problem(api.delete(f"freezes/{key}/"), 404)


def test_freezing_needs_its_own_permission(api_with: ApiWith) -> None:
    api = api_with("view_job", "change_job", "pause_job")
    freeze = control.freeze("deploy")
    assert len(api.get("freezes/").json()["results"]) == 1
    problem(api.post("freezes/", {"reason": "deploy"}), 403)
    problem(api.delete(f"freezes/{freeze.pk}/"), 403)
    assert Freeze.objects.in_force().exists()


def test_user_freezes_only_namespaces_whose_jobs_are_all_visible(
    api: Api, settings: Settings
) -> None:
    settings.DCRON_REST_QUERYSET = "tests.contrib.rest.test_narrowed.narrow"
    make_idle_job(namespace="mine"), make_idle_job(namespace="hush")
    everywhere, hidden = control.freeze("incident"), control.freeze("secret", "hush")

    assert api.post("freezes/", {"reason": "deploy", "namespace": "mine"}).status_code == 201
    shown = api.get("freezes/").json()["results"]
    assert [each["namespace"] for each in shown] == ["", "mine"]
    problem(api.post("freezes/", {"reason": "deploy"}), 403)
    problem(api.post("freezes/", {"reason": "deploy", "namespace": "hush"}), 400)
    problem(api.delete(f"freezes/{everywhere.pk}/"), 403)
    problem(api.delete(f"freezes/{hidden.pk}/"), 404)
    assert Freeze.objects.in_force().count() == 3
