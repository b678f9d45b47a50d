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
def mounted_api(admin_user: User) -> Api:
    return Api(admin_user)


@override_settings(ROOT_URLCONF=__name__)
def test_urls_include_the_mount_point(mounted_api: Api) -> None:
    """The URL of a created object is correct even inside a URL namespace."""
    job = make_job()

    made = mounted_api.post(f"{ROOT}/jobs/{job.pk}/trigger/")

    run = Run.objects.get()
    assert (made.status_code, made["Location"]) == (201, f"{ROOT}/runs/{run.pk}/")
    assert made.json()["url"] == made["Location"]
    assert mounted_api.get(made["Location"]).status_code == 200

    Run.objects.update(state="succeeded")
    again = mounted_api.post(f"{ROOT}/runs/{run.pk}/rerun/")
    assert mounted_api.get(again["Location"]).json()["rerun_of"] == str(run.pk)

    created = mounted_api.post(f"{ROOT}/jobs/", JOB)
    assert mounted_api.get(created["Location"]).json()["name"] == "report"


@override_settings(ROOT_URLCONF=__name__)
def test_openapi_document_of_the_project_includes_the_api(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``manage.py spectacular`` of a project may document all views of the project."""
    monkeypatch.setattr(api_settings, "DEFAULT_SCHEMA_CLASS", "drf_spectacular.openapi.AutoSchema")

    made = SchemaGenerator().get_schema(public=True)

    found = {path.removeprefix(ROOT) for path in made["paths"]}
    assert {"/jobs/", "/jobs/{job_id}/trigger/", "/runs/", "/stats/"} <= found
    assert "/schema/" not in found
    assert "Error" not in capsys.readouterr().err


@override_settings(ROOT_URLCONF=__name__)
def test_openapi_document_names_the_mount_point_as_server(mounted_api: Api) -> None:
    make_idle_job()
    document = mounted_api.get(f"{ROOT}/schema/").json()
    assert document["servers"] == [{"url": ROOT}]
    assert mounted_api.get(document["servers"][0]["url"] + "/jobs/").json()["results"] != []
