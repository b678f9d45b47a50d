"""Test the page that explains why a job didn't run: its form, answer, links and permissions."""

import html
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.html import strip_tags
from pytest_django import Settings

from django_dcron.admin.jobs.why import BADGES
from django_dcron.diagnosis.why.verdicts import WhyVerdict
from django_dcron.models import Cursor, Job, Node
from django_dcron.policies.lifecycle import State
from tests.admin.conftest import NOON, StaffWith, job_url, make_job, make_run, run_url


def why_url(job: Job) -> str:
    return reverse("admin:django_dcron_job_why", args=[job.pk])


def ask(client: Client, job: Job, at: str) -> Any:
    return client.get(why_url(job), {"at": at})


@pytest.fixture
def job(db: None) -> Job:
    job = make_job(schedule="0 * * * *", timezone="Europe/Berlin")
    long_ago = datetime(2023, 1, 1, tzinfo=UTC)
    Job.objects.filter(pk=job.pk).update(created_at=long_ago)
    Cursor.objects.filter(pk=job.pk).update(placed_at=long_ago)
    return Job.objects.get(pk=job.pk)


def test_page_without_time_shows_form_only(admin_client: Client, job: Job) -> None:
    response = admin_client.get(why_url(job))

    assert "answer" not in response.context
    page = response.content.decode()
    assert "Europe/Berlin" in page
    assert 'method="get"' in page
    assert "csrfmiddlewaretoken" not in page.split('class="dcron-ask"')[1].split("</form>")[0]


def test_time_is_read_in_time_zone_of_job(admin_client: Client, job: Job) -> None:
    run = make_run(
        job, NOON, state="succeeded", started_at=NOON, finished_at=NOON + timedelta(seconds=3)
    )

    response = ask(admin_client, job, "2026-03-01T13:00")

    assert response.context["answer"].run == run
    page = response.content.decode()
    assert run_url(run) in page
    for message in (
        "2026-03-01 13:00:00 CET",
        str(response.context["answer"].sentences[0]),
        'value="2026-03-01T13:00"',
    ):
        assert message in page


@pytest.mark.parametrize(
    "at", ["2026-03-01T12:00:00Z", "2026-03-01 13:00:00+01:00", "2026-03-01T13:00:00"]
)
def test_time_accepts_offset_and_seconds(admin_client: Client, job: Job, at: str) -> None:
    run = make_run(job, NOON, state="skipped", finished_at=NOON)

    assert ask(admin_client, job, at).context["answer"].run == run


@pytest.mark.parametrize("year", [2026, 2136])
def test_time_is_read_in_site_zone_if_the_job_has_no_occurrence_then_in_its_own(
    admin_client: Client, job: Job, settings: Settings, year: int
) -> None:
    """Lists show times in the site's zone, also of future runs, and people copy them."""
    settings.TIME_ZONE = "Asia/Tokyo"
    Job.objects.update(timezone="America/New_York", schedule="0 17 * * *")
    due = datetime(year, 3, 2, 17, tzinfo=ZoneInfo("America/New_York"))
    in_tokyo = f"{due.astimezone(ZoneInfo('Asia/Tokyo')):%Y-%m-%dT%H:%M}"
    answered = ask(admin_client, job, in_tokyo).context
    assert (answered["answer"].occurrence, "Asia/Tokyo" in answered["note"]) == (due, True)
    answered = ask(admin_client, job, f"{year}-03-02T17:00").context
    assert (answered["answer"].occurrence, "note" in answered) == (due, False)
    manual = make_run(
        job, due.replace(tzinfo=ZoneInfo("America/New_York"), day=3, hour=7), trigger="manual"
    )
    answered = ask(admin_client, job, f"{year}-03-03T07:00").context
    assert answered["answer"].run == manual, "the job's zone has precedence"
    answered = ask(admin_client, job, f"{in_tokyo}Z").context
    assert "note" not in answered


def test_answer_links_to_neighboring_occurrences(admin_client: Client, job: Job) -> None:
    response = ask(admin_client, job, "2026-03-01T13:10")

    before, after = response.context["before"], response.context["after"]
    assert (before.label, after.label) == ("2026-03-01 13:00:00 CET", "2026-03-01 14:00:00 CET")
    assert admin_client.get(after.url).context["answer"].occurrence == NOON + timedelta(hours=1)


def test_links_reach_both_passes_of_repeated_hour(admin_client: Client, job: Job) -> None:
    """The field can't express the second pass of the repeated hour, but the page links to it."""
    first = ask(admin_client, job, "2025-10-26T02:00")
    second = admin_client.get(first.context["after"].url)

    assert first.context["answer"].occurrence == datetime(2025, 10, 26, 0, tzinfo=UTC)
    assert second.context["answer"].occurrence == datetime(2025, 10, 26, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("<b>soon</b>", "<b>soon</b>"),
        ("2026-02-30T00:00", "2026-02-30T00:00"),
        ("1900-01-01T00:00", "1970 to 2199"),
        ("0001-01-01T00:00+14:00", "1970 to 2199"),
        ("9999-12-31T23:59-12:00", "1970 to 2199"),
    ],
)
def test_invalid_time_shows_error(admin_client: Client, job: Job, at: str, message: str) -> None:
    response = ask(admin_client, job, at)

    assert response.status_code == 200
    assert message in response.context["error"]
    assert "answer" not in response.context
    assert "<b>soon" not in response.content.decode()


@pytest.mark.parametrize("at", ["2026-03-01T13:00", "2026-03-01T13:00:07"])
def test_time_field_accepts_seconds(admin_client: Client, job: Job, at: str) -> None:
    page = ask(admin_client, job, at).content.decode()
    assert f'value="{at}" step="1"' in page
    field = admin_client.get(job_url(job)).content.decode().partition('id="dcron-at"')[2]
    assert 'step="1"' in field.partition(">")[0]


def test_existing_runs_named_in_reason_are_linked(admin_client: Client, job: Job) -> None:
    holder = make_run(job, NOON - timedelta(hours=1), state="running", started_at=NOON)
    gone = "01890000-0000-7000-8000-000000000000"
    make_run(
        job,
        state="skipped",
        finished_at=NOON,
        reason=f"<i> the run ({holder.pk}) was unfinished; {gone} waits",
    )

    page = ask(admin_client, job, "2026-03-01T13:00").content.decode()

    assert f'<a href="{run_url(holder)}">{holder.pk}</a>' in page
    assert f">{gone}<" not in page
    assert f"{gone} waits" in page
    assert "<i>" not in page
    assert f"&lt;i&gt; the run ({holder.pk}) was unfinished" in page.replace(
        f'<a href="{run_url(holder)}">', ""
    ).replace("</a>", "")


def test_job_with_invalid_schedule_is_explained_as_quarantined(
    admin_client: Client, job: Job
) -> None:
    Job.objects.filter(pk=job.pk).update(schedule="nonsense", timezone="Nowhere/City")

    response = ask(admin_client, job, "2026-03-01T13:00")

    answer = response.context["answer"]
    assert answer.verdict is WhyVerdict.QUARANTINED
    assert str(answer.sentences[0]) in strip_tags(html.unescape(response.content.decode()))


@pytest.mark.parametrize(
    ("permissions", "status"),
    [
        ((), 403),
        (("view_job",), 403),
        (("view_run",), 403),
        (("change_job",), 403),
        (("view_job", "view_run"), 200),
    ],
)
def test_page_requires_view_job_and_view_run_permissions(
    staff_with: StaffWith, job: Job, permissions: tuple[str, ...], status: int
) -> None:
    client = staff_with(*permissions)

    assert ask(client, job, "2026-03-01T13:00").status_code == status
    if "view_job" in permissions:
        assert (why_url(job) in client.get(job_url(job)).content.decode()) == (status == 200)


def test_node_names_require_view_node_permission(staff_with: StaffWith, job: Job) -> None:
    Cursor.objects.filter(pk=job.pk).update(next_at=NOON)
    seen = {"started_at": NOON, "heartbeat_at": NOON}
    Node.objects.create(id="n", name="secret-node", host="h", pid=1, version="1", **seen)
    at = "2026-03-01T13:00"

    response = ask(staff_with("view_job", "view_run"), job, at)
    assert response.context["answer"].verdict is WhyVerdict.NOT_CLAIMED
    assert b"secret-node" not in response.content
    assert b"secret-node" in ask(staff_with("view_job", "view_run", "view_node"), job, at).content


def test_anonymous_user_is_redirected_to_login(client: Client, job: Job) -> None:
    assert "/login/" in ask(client, job, "2026-03-01T13:00")["Location"]


def test_deleted_job_returns_404(admin_client: Client, job: Job) -> None:
    url = why_url(job)
    job.delete()

    assert admin_client.get(url).status_code == 404
    assert admin_client.get(url.replace(str(job.pk), "x")).status_code == 404


def test_verdict_is_state_or_has_badge() -> None:
    assert set(BADGES) == {verdict for verdict in WhyVerdict if verdict not in set(State)}
