"""Test the job list: row texts, filters, search and a constant query count."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from django_dcron import control
from django_dcron.admin.dashboard.timeline import SYMBOLS
from django_dcron.admin.jobs.list_row import HEIGHTS
from django_dcron.diagnosis.job_state import next_run_of
from django_dcron.diagnosis.recent_runs import LATEST, recent_runs
from django_dcron.diagnosis.scope import EVERYTHING
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.models import Cursor, Job, Run, Statistics
from django_dcron.policies.lifecycle import State
from tests.admin.conftest import (
    NOON,
    StaffWith,
    job_url,
    list_url,
    make_job,
    make_run,
    run_url,
)

BARS = re.compile(r'dcron-(\w+)" d="(.*?)"')


def _names(client: Client, query: str) -> set[str]:
    response = client.get(f"{list_url('job')}?{query}")
    assert response.status_code == 200, response
    return {job.name for job in response.context["cl"].result_list}


def test_shapes_distinguish_states_without_color() -> None:
    assert {*HEIGHTS} == {*State}
    assert len({*HEIGHTS.values()}) == len(State)
    ended = {State.FAILED, State.SUCCEEDED, State.CANCELLED, State.MISSED, State.SKIPPED}
    # Skipped runs are squares in the timeline, and runs without a symbol have succeeded.
    assert {*SYMBOLS} >= ended - {State.SUCCEEDED, State.SKIPPED}
    assert len({*SYMBOLS.values()}) == len(SYMBOLS)


def test_row_shows_schedule_next_run_and_last_state(admin_client: Client) -> None:
    job = make_job(schedule="30 3 * * *", timezone="Asia/Tokyo")
    Statistics.objects.filter(job=job).update(last_state="failed", last_finished_at=now())

    page = admin_client.get(list_url("job")).content.decode()

    for message in (
        "30 3 * * *",
        "(Asia/Tokyo)",
        "18:30:00",
        "03:30:00 Asia/Tokyo",
        "dcron-badge dcron-failed",
        "dcron-badge dcron-enabled",
    ):
        assert message in page


def test_row_shows_pause_reason_or_problem(admin_client: Client) -> None:
    control.pause(make_job("paused"), "deploy <b>now</b>")
    broken = make_job("broken")
    Job.objects.filter(pk=broken.pk).update(schedule="99 * * * *")
    Cursor.objects.filter(pk=broken.pk).update(problem="99 is out of range", next_at=None)

    page = admin_client.get(list_url("job")).content.decode()

    assert "deploy &lt;b&gt;now&lt;/b&gt;" in page
    assert page.count('class="dcron-badge dcron-paused"') == 1
    assert page.count('class="dcron-badge dcron-failed"') == 1
    assert "99 is out of range" in page


def test_row_shows_first_tags_escaped(admin_client: Client) -> None:
    make_job(tags=["<b>", *(f"tag {number}" for number in range(9))])

    page = admin_client.get(list_url("job")).content.decode()
    page = page[page.index('id="result_list"') :].split("</table>")[0]

    assert page.count("dcron-tag") == 5
    assert "&lt;b&gt;" in page
    assert "tag 3" in page
    assert "tag 4" not in page


@pytest.mark.parametrize("schedule", ["*/5 * * * * *", "@every 5s"])
def test_next_run_includes_claimed_occurrence(admin_client: Client, schedule: str) -> None:
    job = make_job(schedule=schedule)
    coming = Cursor.objects.get(job=job).next_at
    assert coming is not None
    ahead = coming + timedelta(seconds=10)
    Cursor.objects.filter(job=job).update(next_at=ahead, previous_at=ahead - timedelta(seconds=5))

    status = admin_client.get(job_url(job)).context["page"].status

    # The next occurrence may have passed in the meantime.
    assert status.next_run - coming in (timedelta(), timedelta(seconds=5))
    assert next_run_of(Job.objects.get(pk=job.pk)) == status.next_run or now() >= status.next_run
    assert f"{status.next_run:%H:%M:%S}" in admin_client.get(list_url("job")).content.decode() or (
        now() >= status.next_run
    )


def test_next_run_of_unclaimed_interval_is_its_cursor(db: None) -> None:
    job = make_job(schedule="@every 1h")
    coming = now().replace(microsecond=0) + timedelta(minutes=20)
    Cursor.objects.filter(job=job).update(next_at=coming)

    assert next_run_of(Job.objects.get(pk=job.pk)) == coming


def test_next_run_is_overdue_occurrence(db: None) -> None:
    job = make_job(schedule="@daily")
    overdue = now() - timedelta(days=3)
    Cursor.objects.filter(job=job).update(next_at=overdue)

    assert next_run_of(Job.objects.get(pk=job.pk)) == overdue


def test_next_run_with_invalid_schedule_is_cursor(db: None) -> None:
    job = make_job(schedule="@daily")
    Job.objects.filter(pk=job.pk).update(schedule="99 * * * *")

    assert next_run_of(Job.objects.get(pk=job.pk)) == Cursor.objects.get(job=job).next_at


def test_paused_job_has_no_next_run(db: None) -> None:
    job = control.pause(make_job())

    assert next_run_of(Job.objects.get(pk=job.pk)) is None


def test_number_of_queries_is_constant(
    admin_client: Client, django_assert_num_queries: Any
) -> None:
    make_job("first")
    admin_client.get(list_url("job"))  # caches content types and the like
    with CaptureQueriesContext(connection) as one:
        admin_client.get(list_url("job"))
    for number in range(49):
        make_job(f"job {number}")
    with django_assert_num_queries(len(one)):
        response = admin_client.get(list_url("job"))
    assert len(response.context["cl"].result_list) == 50


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"a", "b", "c", "d"}),
        ("enabled__exact=0", {"b", "d"}),
        ("state=paused", {"b"}),
        ("state=finished", {"d"}),
        ("namespace=shop", {"c"}),
        ("last=failed", {"a"}),
        ("last=none", {"b", "c", "d"}),
        ("state=quarantined", {"c"}),
        ("overlap_policy__exact=allow", {"b"}),
        ("misfire_policy__exact=skip", set()),
        ("q=about-money", {"c"}),
        ("q=tests.app", {"a", "b", "c", "d"}),
    ],
)
def test_job_list_is_filtered_and_searched(
    admin_client: Client, query: str, expected: set[str]
) -> None:
    failed = make_job("a")
    control.pause(make_job("b", overlap_policy="allow"), "")
    quarantined = make_job("c", namespace="shop", description="about-money")
    Statistics.objects.filter(job=failed).update(last_state="failed")
    Cursor.objects.filter(pk=quarantined.pk).update(problem="bad")
    disable_exhausted([make_job("d").pk], "default")

    assert _names(admin_client, query) == expected


def test_list_has_no_editable_columns(admin_client: Client) -> None:
    make_job()

    assert admin_client.get(list_url("job")).context["cl"].list_editable == ()


# --- latest runs and buttons ----------------------------------------------------------------------


def _row(client: Client, job: Job, query: str = "") -> str:
    page = client.get(f"{list_url('job')}?{query}").content.decode()
    rows = page[page.index('id="result_list"') :].split("</table>")[0].split("<tr>")
    (row,) = [row for row in rows if f'href="{job_url(job)}' in row]
    return row


def _finish(job: Job, number: int, state: str, seconds: int = 1) -> Run:
    at = NOON + timedelta(minutes=number)
    times = {"started_at": at, "finished_at": at + timedelta(seconds=seconds)}
    return make_run(job, at, state=state, **times)


def test_row_draws_latest_runs_and_links_to_them(admin_client: Client) -> None:
    job, other = make_job("one"), make_job("other")
    for number in range(LATEST + 5):
        _finish(job, number, "failed" if number < 10 else "succeeded", seconds=number)
    missed = make_run(job, NOON + timedelta(hours=2), state="missed")
    last = _finish(other, 0, "failed")
    Statistics.objects.update(last_state="succeeded", last_finished_at=now())

    row = _row(admin_client, job)
    assert f'href="{list_url("run")}?job__id__exact={job.pk}"' in row
    bars = {state: path.count("M") for state, path in BARS.findall(row)}
    assert bars == {"failed": 4, "succeeded": 25, "missed": 1}
    heights = {state: re.findall(r"v(\d+)", path)[0] for state, path in BARS.findall(row)}
    assert len(set(heights.values())) == 3, "the colors alone distinguish the states"
    assert "Succeeded 25, Failed 4, Missed 1</div>" in row
    assert "% succeeded" not in row, "a rate of the started runs would look too good"
    assert {"22.0\xa0s", "33.0\xa0s"} <= set(re.findall(r"\d+\.\d\ss", row))
    assert run_url(missed) not in row
    row_of_other = _row(admin_client, other)
    assert f'href="{run_url(last)}"' in row_of_other
    assert 'title="0% succeeded">0%<' in row_of_other


def test_row_says_that_the_job_is_running(admin_client: Client) -> None:
    job, idle = make_job("busy"), make_job("idle")
    make_run(job, NOON, state="running")
    make_run(idle, NOON, state="succeeded")
    page = admin_client.get(list_url("job")).content.decode()
    assert page.count('<span class="dcron-badge dcron-running">Running</span>') == 1


def test_runs_of_row_need_permission(staff_with: StaffWith) -> None:
    job = make_job()
    run = _finish(job, 1, "failed")
    Statistics.objects.update(last_state="failed", last_finished_at=now())

    assert "dcron-spark" in _row(staff_with("view_job", "view_run"), job)
    row = _row(staff_with("view_job"), job)
    assert "dcron-spark" not in row
    assert run_url(run) not in row


def test_buttons_of_row_act_and_lead_back_to_filtered_list(admin_client: Client) -> None:
    job = make_job(tags=["a"])
    for label, enabled in (("pause", False), ("resume", True)):
        row = _row(admin_client, job, "tag=a")
        (url,) = re.findall(rf'formaction="([^"]*/do/{label}/[^"]*)"', row)
        answer = admin_client.post(url.replace("&amp;", "&"))
        assert answer["Location"] == f"{list_url('job')}?tag=a"
        assert Job.objects.get().enabled is enabled
    assert "/do/run_now/" in row


def _menu_of(client: Client, job: Job) -> dict[str, str]:
    """Return the URLs in the row's menu by the last part of their path."""
    menu = _row(client, job, "tag=a").partition('<div popover class="dcron-menu"')[2]
    urls = [url.replace("&amp;", "&") for url in re.findall(r'(?:href|formaction)="([^"]*)"', menu)]
    return {url.partition("?")[0].rstrip("/").rpartition("/")[2]: url for url in urls}


def test_menu_of_row_leads_to_pages_and_actions(admin_client: Client) -> None:
    job = make_job(tags=["a"])
    menu = _menu_of(admin_client, job)
    assert list(menu) == ["change", "run", "why", "run_with", "duplicate", "backfill"]
    assert menu["run"] == f"{list_url('run')}?job__id__exact={job.pk}"
    for name in menu.keys() - {"duplicate"}:
        assert admin_client.get(menu[name]).status_code == 200, name
    assert admin_client.post(menu["duplicate"])["Location"] == f"{list_url('job')}?tag=a"
    assert Job.objects.count() == 2
    control.pause(job)
    assert "change_pause" in _menu_of(admin_client, job)


def test_menu_of_row_needs_permissions(staff_with: StaffWith) -> None:
    job = make_job(tags=["a"])
    assert list(_menu_of(staff_with("view_job"), job)) == ["change"]
    assert list(_menu_of(staff_with("view_job", "view_run"), job)) == ["change", "run", "why"]
    found = _menu_of(staff_with("view_job", "trigger_job"), job)
    assert list(found) == ["change", "backfill"]


def test_menu_of_row_calls_the_page_view_without_change_permission(staff_with: StaffWith) -> None:
    job = make_job()
    link = f'<li><a href="{job_url(job)}">{{}}</a></li>'
    assert link.format("View") in _row(staff_with("view_job"), job)
    assert link.format("Edit") in _row(staff_with("view_job", "change_job"), job)


def test_jobs_deleted_while_the_list_loads_have_no_runs(db: None) -> None:
    job, gone = make_job("one"), make_job("gone")
    for each in (job, gone):
        _finish(each, 1, "failed")
    Job.objects.filter(pk=gone.pk).delete()
    assert recent_runs([job, gone], EVERYTHING).keys() == {job.pk}
    assert recent_runs([gone], EVERYTHING) == {}
    assert recent_runs([], EVERYTHING) == {}


def test_buttons_of_row_need_permission(staff_with: StaffWith) -> None:
    job = make_job()
    assert "formaction" not in _row(staff_with("view_job"), job)
    row = _row(staff_with("view_job", "pause_job"), job)
    assert "/do/pause/" in row
    assert "/do/run_now/" not in row


def test_list_with_runs_needs_few_queries(admin_client: Client) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert admin_client.get(list_url("job")).status_code == 200
        return len(queries)

    _finish(make_job("first"), 1, "failed")
    count()
    few = count()
    for number in range(20):
        job = make_job(f"job {number}")
        for minute in range(3):
            _finish(job, minute, "succeeded")
    assert count() == few <= 15
