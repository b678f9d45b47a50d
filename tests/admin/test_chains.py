"""Test chains in forms, pages, the delete confirmation, the REST API and the command line."""

import json
import re
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client

from django_dcron.diagnosis import chain_graph
from django_dcron.diagnosis.chain_graph import chain_of_run
from django_dcron.diagnosis.lookahead import describe_schedule_of
from django_dcron.models import Job, Link, Run
from django_dcron.policies.lifecycle import Trigger
from django_dcron.runs.chains import follower_key
from django_dcron.schedules.schedule import parse_schedule
from tests.admin.conftest import (
    add_url,
    as_rendered,
    errors,
    fill_in,
    job_url,
    list_url,
    make_job,
    make_run,
    run_url,
)
from tests.contrib.rest.conftest import Api
from tests.management.calling import call


@pytest.fixture
def first_job(db: None) -> Job:
    return make_job("first")


@pytest.fixture
def second_job(first_job: Job) -> Job:
    return make_job("second", schedule="@never", after={"first": "failed"})


@pytest.fixture
def runs(first_job: Job, second_job: Job) -> tuple[Run, Run]:
    before = make_run(first_job, state="failed")
    return before, make_run(
        second_job, trigger=Trigger.CHAIN, idempotency_key=follower_key(before.pk)
    )


def test_add_form_creates_follower(admin_client: Client, first_job: Job) -> None:
    given = {
        "name": "second",
        "target": "tests.app.tasks.ok",
        "schedule": "@never",
        "after": '{"first": "ended"}',
    }
    assert fill_in(admin_client, add_url(), **given).status_code == 302
    link = Link.objects.get()
    assert (link.job.name, link.after, link.on, link.job.enabled) == (
        "second",
        first_job,
        "ended",
        True,
    )


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ('{"second": "ended"}', "first → second → first"),
        ('{"nobody": "ended"}', "nobody"),
        ('{"second": "over"}', "succeeded, failed, ended"),
        ('{"first": "ended"}', "first"),
    ],
)
def test_invalid_link_shows_error_on_after_field(
    admin_client: Client, second_job: Job, after: str, message: str
) -> None:
    first_job = Job.objects.get(name="first")
    found = errors(fill_in(admin_client, job_url(first_job), after=after))
    assert list(found) == ["after"]
    assert message in found["after"][0]
    assert Link.objects.count() == 1


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ("first: ended", {"first": "ended"}),
        (" first:  failed\r\n\r\n", {"first": "failed"}),
        ("first:failed: succeeded", {"first:failed": "succeeded"}),
        ("first\r\nsecond: failed", {"first": "succeeded", "second": "failed"}),
        ('{"first": "ended"}', {"first": "ended"}),
        ("default/a:b", {"default/a:b": "succeeded"}),
        ("", {}),
    ],
)
def test_predecessors_are_entered_as_lines_or_json_and_shown_as_lines(
    admin_client: Client, second_job: Job, typed: str, stored: dict[str, str]
) -> None:
    make_job(name="a:b")
    make_job(name="first:failed")
    third = make_job(name="third")
    assert fill_in(admin_client, job_url(third), after=typed).status_code == 302
    third.refresh_from_db()
    assert third.after == stored
    rendered = as_rendered(admin_client.get(job_url(third)))
    lines = {f"{job}: {outcome}" for job, outcome in stored.items()}
    assert {*rendered["after"].split("\n")} - {""} == lines
    assert admin_client.post(job_url(third), rendered).status_code == 302
    assert Job.objects.get(pk=third.pk).version == third.version


def test_each_invalid_line_is_named(admin_client: Client, second_job: Job) -> None:
    after = "first: ended\nsecond: finished\nfirst\nfirst:failed"
    found = errors(fill_in(admin_client, job_url(second_job), after=after))["after"]
    outcome, twice, unclear = found
    assert outcome.startswith("Line 2: 'finished'")
    assert "succeeded, failed, ended" in outcome
    assert twice.startswith("Line 3: first")
    assert "“first: failed”" in unclear
    assert "“first:failed: succeeded”" in unclear


def test_form_without_the_field_after_shows_its_error(
    admin_client: Client, first_job: Job, second_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows may have been deleted without ``control``."""
    Job.objects.filter(pk=first_job.pk).delete()
    job_admin = admin.site.get_model_admin(Job)
    read_only = (*job_admin.readonly_fields, "after")
    monkeypatch.setattr(type(job_admin), "readonly_fields", read_only)
    (problem,) = errors(fill_in(admin_client, job_url(second_job)))["__all__"]
    assert "first" in problem


def test_run_pages_link_predecessor_and_follower(
    admin_client: Client, runs: tuple[Run, Run]
) -> None:
    before, after = runs
    assert f'href="{run_url(after)}"' in admin_client.get(run_url(before)).content.decode()
    assert f'href="{run_url(before)}"' in admin_client.get(run_url(after)).content.decode()


@pytest.mark.django_db
def test_chain_shows_states_of_steps_that_ran_and_of_those_that_did_not(
    admin_client: Client, django_assert_max_num_queries: Any
) -> None:
    jobs = [make_job("a")]
    for name in "bcd":
        jobs.append(make_job(name, schedule="@never", after={jobs[-1].name: "ended"}))
    side = make_job("side", schedule="@never", after={"b": "failed"})
    runs = [make_run(jobs[0], state="succeeded")]
    for job in jobs[1:3]:
        key = follower_key(runs[-1].pk)
        runs.append(make_run(job, state="failed", trigger=Trigger.CHAIN, idempotency_key=key))

    for run in runs:
        with django_assert_max_num_queries(10):
            graph = chain_of_run(run)
        assert graph is not None
        (second,) = graph.first.steps
        third, other = second.steps
        (last,) = third.steps
        assert [step.run for step in (graph.first, second, third)] == runs
        assert (other.job, other.run, last.job, last.run) == (side, None, jobs[3], None)
        page = admin_client.get(run_url(run)).content.decode()
        chain = page[page.index('id="dcron-chain"') :].split("</section>")[0]
        assert re.findall(r"dcron-badge dcron-(\w+)", chain) == [
            "succeeded",
            "failed",
            "failed",
            "none",
            "none",
        ]
        assert re.findall(r'aria-current="true"><a href="([^"]*)"', chain) == [run_url(run)]
    assert chain_of_run(make_run(make_job("alone"))) is None

    chain = admin_client.get(job_url(jobs[2])).content.decode().split('id="dcron-chain"')[1]
    assert re.findall(r'<div( aria-current="true")?><a href="([^"]*)"', chain) == [
        (' aria-current="true"' if job == jobs[2] else "", job_url(job))
        for job in (jobs[0], jobs[1], jobs[2], jobs[3], side)
    ]


def test_chain_has_a_bounded_number_of_steps(
    db: None, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    first = make_job("first")
    for number in range(6):
        make_job(f"after {number}", schedule="@never", after={"first": "ended"})
    monkeypatch.setattr(chain_graph, "MAX_STEPS", 4)
    with django_assert_max_num_queries(3):
        graph = chain_graph.chain_of_job(first)
    assert graph is not None
    assert (len(graph.first.steps), graph.is_truncated) == (3, True)


@pytest.mark.parametrize(("levels", "is_truncated"), [(2, False), (3, True)])
def test_chain_has_a_bounded_depth(
    db: None, monkeypatch: pytest.MonkeyPatch, levels: int, is_truncated: bool
) -> None:
    first = make_job("0")
    for number in range(levels):
        make_job(f"{number + 1}", schedule="@never", after={f"{number}": "ended"})
    monkeypatch.setattr(chain_graph, "LEVELS_BEFORE", 1)
    monkeypatch.setattr(chain_graph, "LEVELS_AFTER", 1)
    graph = chain_graph.chain_of_job(first)
    assert graph is not None
    assert not graph.first.steps[0].steps[0].steps
    assert graph.is_truncated == is_truncated


def test_run_page_names_pruned_predecessor_without_link(
    admin_client: Client, runs: tuple[Run, Run]
) -> None:
    run_id = runs[0].pk
    runs[0].delete()
    page = admin_client.get(run_url(runs[1])).content.decode()
    assert f"run {run_id}" in page
    assert f"/run/{run_id}/" not in page


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ("succeeded", "After first succeeds"),
        ("failed", "After first fails"),
        ("ended", "After first ends"),
    ],
)
def test_job_that_only_follows_is_described_by_its_chain(
    admin_client: Client, first_job: Job, on: str, words: str
) -> None:
    job = make_job("second", schedule="@never", after={"first": on})
    assert words in admin_client.get(list_url("job")).content.decode()
    response = admin_client.get(job_url(job))
    assert response.context["preview"].lookahead.words == words
    assert "After other jobs" in response.content.decode()


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ({"first": "ended", "other": "failed"}, "After other jobs"),
        ({"first": ["ended"]}, "After other jobs"),  # invalid, but the user may have typed it
        (["first"], "Only on demand"),
        ({}, "Only on demand"),
    ],
)
def test_description_of_other_chains(after: Any, words: str) -> None:
    job = Job(schedule="@never", after=after)
    assert describe_schedule_of(job, job.parsed_schedule) == words
    assert describe_schedule_of(Job(after=after), parse_schedule("@daily")) == "At 00:00"


def test_job_page_lists_followers(admin_client: Client, second_job: Job) -> None:
    page = admin_client.get(job_url(Job.objects.get(name="first"))).content.decode()
    end = Link.objects.get().get_on_display()
    assert (
        f'<a href="{job_url(second_job)}">second</a> <span class="dcron-aside">{end}</span>' in page
    )
    assert "data-dcron-followers" in page
    assert "data-dcron-followers" not in admin_client.get(job_url(second_job)).content.decode()


def test_delete_page_lists_followers_that_lose_their_link(
    admin_client: Client, first_job: Job, second_job: Job
) -> None:
    url = job_url(first_job).replace("change", "delete")
    lines = admin_client.get(url).context["deleted_objects"]
    assert [line for line in lines if line.startswith("second ") and line.endswith(" first")]
    admin_client.post(url, {"post": "yes"})
    second_job.refresh_from_db()
    assert second_job.after == {}


def test_api_shows_links_and_rejects_cycle(admin_user: User, runs: tuple[Run, Run]) -> None:
    api, (before, after) = Api(admin_user), runs
    assert api.get(f"runs/{after.pk}/").json()["follows"] == str(before.pk)
    assert api.get(f"runs/{before.pk}/").json()["follows"] is None
    assert api.get(f"jobs/{after.job_id}/").json()["after"] == {"first": "failed"}
    refused = api.patch(f"jobs/{before.job_id}/", {"after": {"second": "ended"}}, if_match="*")
    assert refused.status_code == 400
    assert "first → second → first" in json.dumps(refused.json(), ensure_ascii=False)


def test_commands_show_links(runs: tuple[Run, Run]) -> None:
    before, after = runs
    assert "second (when it has failed)" in call("show", "first").out
    assert call("show", "first", "--json").json["followed_by"] == [
        {"job": "second", "on": "failed"}
    ]
    assert f"second {after.pk}" in call("history", str(before.pk)).out
    assert call("history", str(after.pk), "--json").json["run"]["follows"] == str(before.pk)
    assert "After first fails" in call("next", "second").out
