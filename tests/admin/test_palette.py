"""Test the results of the command palette: bounded, and only what the user may open or do."""

import re
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.admin import site
from django.test import Client
from django.urls import reverse

from django_dcron.admin.jobs import palette
from django_dcron.models import Job, Run
from tests.admin.conftest import (
    StaffWith,
    action_url,
    job_url,
    list_url,
    make_job,
    make_run,
    run_url,
)

QUERIES = 10
"""The maximum number of queries per request, including those of session and permissions."""


def find(client: Client, text: str) -> list[str]:
    """Return the URLs of the results in their order."""
    answer = client.get(reverse(f"admin:{palette.URL_NAME}"), {"q": text})
    assert answer.status_code == 200
    return re.findall(r'(?:href|action)="([^"]*)"', answer.content.decode())


@pytest.fixture
def jobs(db: None) -> list[Job]:
    return [
        make_job(name, namespace=namespace)
        for name, namespace in [("import", "shop"), ("import", "zoo"), ("report", "shop")]
    ]


def test_jobs_are_found_by_words_of_name_and_namespace(
    admin_client: Client, jobs: list[Job]
) -> None:
    first, second, third = (job_url(job) for job in jobs)
    for text, expected in [
        ("import", [first, second]),
        ("shop/import", [first]),
        ("zoo imp", [second]),
        ("shop", [first, third]),
        ("nothing", []),
    ]:
        found = find(admin_client, text)
        assert [url for url in found if url in (first, second, third)] == expected, text


def test_action_is_found_by_its_name_and_a_job(admin_client: Client, jobs: list[Job]) -> None:
    assert find(admin_client, "pause zoo")[0] == action_url(jobs[1], "pause")
    actions = [url for url in find(admin_client, "pause import") if "/do/" in url]
    assert actions == [action_url(job, "pause") for job in jobs[:2]]
    jobs[0].enabled = False
    jobs[0].save()
    actions = [url for url in find(admin_client, "pause import") if "/do/pause/" in url]
    assert actions == [action_url(jobs[1], "pause")]
    assert admin_client.post(actions[0]).status_code == 302
    assert not Job.objects.get(pk=jobs[1].pk).enabled


def test_action_alone_asks_for_the_name_of_a_job(
    admin_client: Client, staff_with: StaffWith, jobs: list[Job]
) -> None:
    def text(client: Client, typed: str) -> str:
        return client.get(reverse(f"admin:{palette.URL_NAME}"), {"q": typed}).content.decode()

    assert "Add the name of a job: pause NAME" in text(admin_client, "pause")
    assert "Nothing found" in text(admin_client, "pause nothing")
    assert "Nothing found" in text(staff_with("view_job"), "pause")
    Job.objects.filter(pk=jobs[0].pk).update(name="pause-everything")
    assert find(admin_client, "pause")[0] == job_url(jobs[0])


def test_run_is_found_by_its_id(admin_client: Client, jobs: list[Job]) -> None:
    run = make_run(jobs[0])
    for typed in (f" {run.pk} ", run.pk.hex, str(run.pk)[:23], str(run.pk)[:13].upper()):
        assert find(admin_client, typed) == [run_url(run)]
    assert find(admin_client, str(uuid4())) == []


@pytest.mark.parametrize(
    "name",
    [
        "20261128-01",
        "deadbeef-cafe",
        "d41d8cd98f00b204e9800998ecf8427e",
        "0b54a9ae-94c5-4c2f-9d67-0a3b6c1f2e11",
    ],
)
def test_job_whose_name_looks_like_an_id_is_found(admin_client: Client, name: str) -> None:
    run = make_run(make_job(name))
    assert find(admin_client, name)[0] == job_url(run.job)
    for model in ("run", "attempt"):
        page = admin_client.get(list_url(model), {"q": name})
        assert [row.pk for row in page.context["cl"].result_list] == (
            [run.pk] if model == "run" else []
        )


def test_each_list_has_a_shortcut_of_its_own() -> None:
    models = {model for model in site._registry if model._meta.app_label == "django_dcron"}
    assert {model for model, _ in palette.PAGES} == models
    assert len({keys for _, keys in palette.PAGES}) == len(palette.PAGES)


def test_pages_are_found_by_their_titles(admin_client: Client) -> None:
    everything = find(admin_client, "")
    assert list_url("dashboard") in everything
    assert len(everything) == len(palette.PAGES) + 1
    assert find(admin_client, "calend") == [list_url("calendar")]


@pytest.mark.parametrize("text", ["", "import", "pause import", str(UUID(int=7))])
def test_results_are_bounded(
    admin_client: Client, django_assert_max_num_queries: Any, text: str
) -> None:
    for number in range(2 * palette.JOBS_FOUND):
        make_job(f"import {number}")
    with django_assert_max_num_queries(QUERIES):
        found = find(admin_client, text)
    assert len([url for url in found if url.endswith("/change/")]) <= palette.JOBS_FOUND


def test_results_need_permissions(staff_with: StaffWith, jobs: list[Job]) -> None:
    run = make_run(jobs[0])
    url = reverse(f"admin:{palette.URL_NAME}")
    assert staff_with("view_run").get(url).status_code == 403
    client = staff_with("view_job")
    assert find(client, "") == [list_url("job"), list_url("freeze")]
    assert find(client, str(run.pk)) == []
    assert find(client, "pause import") == []
    assert [url for url in find(client, "import") if "/do/" in url] == []
    client = staff_with("view_job", "pause_job")
    assert [url for url in find(client, "import") if "/do/" in url] == [
        action_url(job, "pause") for job in jobs[:2]
    ]
    assert Run.objects.count() == 1


@pytest.mark.parametrize("permissions", [("view_job",), ("view_job", "view_dashboard")])
def test_pages_have_the_palette(staff_with: StaffWith, permissions: tuple[str, ...]) -> None:
    make_job()
    page = staff_with(*permissions).get(list_url("job")).content.decode()
    assert page.count('id="dcron-palette"') == 1
    assert f'data-url="{reverse(f"admin:{palette.URL_NAME}")}"' in page
    assert (list_url("dashboard") in page) == ("view_dashboard" in permissions)
