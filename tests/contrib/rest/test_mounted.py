"""Test that URLs and the project's own OpenAPI document are correct wherever the API is mounted."""

import pytest
from django.contrib.auth.models import User
from django.test import override_settings
from django.urls import include, path
from drf_spectacular.generators import SchemaGenerator
from rest_framework.settings import api_settings

from django_dcron.models import Run
from tests.contrib.rest.conftest import Api
from tests.factories import make_idle_job, make_job

JOB = {"name": "report", "target": "tests.app.tasks.ok", "schedule": "30 3 * * *"}
inner = ([path("jobs-api/", include("django_dcron.contrib.rest.urls"))], "api")
urlpatterns = [path("v1/", include(inner))]
ROOT = "/v1/jobs-api"


@pytest.fixture
def inside(admin_user: User) -> Api:
    return Api(admin_user)


@override_settings(ROOT_URLCONF=__name__)
def test_addresses_are_of_the_place_where_it_is_mounted(inside: Api) -> None:
    """Also inside a URL namespace: building the URL of a created object must not fail."""
    job = make_job()

    made = inside.post(f"{ROOT}/jobs/{job.pk}/trigger/")

    run = Run.objects.get()
    assert (made.status_code, made["Location"]) == (201, f"{ROOT}/runs/{run.pk}/")
    assert made.json()["url"] == made["Location"]
    assert inside.get(made["Location"]).status_code == 200

    Run.objects.update(state="succeeded")
    again = inside.post(f"{ROOT}/runs/{run.pk}/rerun/")
    assert inside.get(again["Location"]).json()["rerun_of"] == str(run.pk)

    created = inside.post(f"{ROOT}/jobs/", JOB)
    assert inside.get(created["Location"]).json()["name"] == "report"


@override_settings(ROOT_URLCONF=__name__)
def test_the_projects_own_document_can_be_made_with_us_in_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``manage.py spectacular`` of a project may document all views of the project."""
    monkeypatch.setattr(api_settings, "DEFAULT_SCHEMA_CLASS", "drf_spectacular.openapi.AutoSchema")

    made = SchemaGenerator().get_schema(public=True)

    found = {address.removeprefix(ROOT) for address in made["paths"]}
    assert {"/jobs/", "/jobs/{job_id}/trigger/", "/runs/", "/stats/"} <= found
    assert "/schema/" not in found
    assert "Error" not in capsys.readouterr().err


@override_settings(ROOT_URLCONF=__name__)
def test_the_document_says_where_it_is_mounted(inside: Api) -> None:
    make_idle_job()
    document = inside.get(f"{ROOT}/schema/").json()
    assert document["servers"] == [{"url": ROOT}]
    assert inside.get(document["servers"][0]["url"] + "/jobs/").json()["results"] != []
