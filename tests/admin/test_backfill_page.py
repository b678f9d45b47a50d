"""Test that the backfill page shows a preview and then creates exactly the previewed runs."""

import re
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from django_dcron import control
from django_dcron.admin.action_forms import InstantField
from django_dcron.jobs import backfill
from django_dcron.models import Cursor, Job, Run
from tests.admin.conftest import StaffWith, job_url, make_job, make_run, messages
from tests.factories import entries_by_users, make_node
from tests.management.calling import call

DAY = timedelta(days=1)
FIRST = datetime(2026, 3, 1, 3, 30, tzinfo=UTC)
THREE_DAYS = {"start": "2026-03-01T00:00", "end": "2026-03-04T00:00", "limit": "100"}


def _url(job: Job) -> str:
    return reverse("admin:django_dcron_job_backfill", args=[job.pk])


def _post(client: Client, job: Job, **changes: str) -> Any:
    return client.post(_url(job), THREE_DAYS | changes)


def _codes(response: Any) -> dict[str, list[str]]:
    """Return the codes of the form's errors by field."""
    errors = response.context["form"].errors.as_data()
    return {field: [error.code for error in found] for field, found in errors.items()}


def _confirm(client: Client, job: Job, preview: Any, **changes: str) -> Any:
    """Submit the confirmation form of the preview."""
    return client.post(_url(job), preview.context["preview"].hidden_fields | changes, follow=True)


def test_opening_page_creates_no_runs(admin_client: Client) -> None:
    job = make_job()

    response = admin_client.get(_url(job), {"start": "2026-03-01T00:00:00+01:00", "limit": "7"})

    form = response.context["form"]
    assert 'value="2026-02-28T23:00:00"' in response.content.decode()
    assert form["limit"].value() == 7
    assert not Run.objects.exists()


def test_preview_lists_occurrences_without_creating_runs(admin_client: Client) -> None:
    job = make_job()
    make_run(job, FIRST + DAY, state="succeeded")

    response = _post(admin_client, job)

    preview = response.context["preview"]
    assert (preview.count, preview.planned.existing_runs) == (2, 1)
    (paragraph,) = re.findall(r"<p><strong>.*?</p>", response.content.decode(), re.DOTALL)
    assert re.findall(r"\d+", paragraph) == ["2", "1"]
    assert 'name="create"' in response.content.decode()
    assert list(preview.first) == [FIRST, FIRST + 2 * DAY]
    assert Run.objects.count() == 1
    assert not entries_by_users().exists()


def test_long_preview_shows_first_and_last_occurrences(admin_client: Client) -> None:
    job = make_job(timezone="Asia/Tokyo")

    response = _post(admin_client, job, end="2026-03-31T00:00")

    preview = response.context["preview"]
    assert (preview.count, len(preview.first), preview.omitted, len(preview.last)) == (30, 5, 20, 5)
    page = response.content.decode()
    for text in (
        "… 20 ",
        "Sun 2026-03-01 18:30:00",
        "Mon 2026-03-02 03:30:00",
        "Mon 2026-03-30 18:30:00",
    ):
        assert text in page


@pytest.mark.parametrize("count", [1, 5, 6, 10, 11])
def test_preview_shows_each_occurrence_at_most_once(admin_client: Client, count: int) -> None:
    job = make_job()
    response = _post(admin_client, job, limit=str(count), end="2026-06-01T00:00")

    preview = response.context["preview"]
    assert [*preview.first, *preview.last] == sorted({*preview.first, *preview.last})
    assert len(preview.first) + preview.omitted + len(preview.last) == count


def test_confirming_creates_previewed_runs(admin_client: Client) -> None:
    job = make_job()

    response = _confirm(admin_client, job, _post(admin_client, job))

    runs = Run.objects.filter(job=job).order_by("scheduled_at")
    assert [run.scheduled_at for run in runs] == [FIRST, FIRST + DAY, FIRST + 2 * DAY]
    assert {run.trigger for run in runs} == {"backfill"}
    assert str(job.pk) in response.redirect_chain[-1][0]
    assert set(response.context["cl"].result_list) == set(runs)
    entry = entries_by_users().get()
    assert (entry.object_id, entry.action, entry.after["runs"]) == (str(job.pk), "backfill", 3)
    (text,) = messages(response)
    for value in ("3", "2026-03-01 03:30:00 UTC", "2026-03-03 03:30:00 UTC"):
        assert value in text


def test_confirming_twice_creates_runs_once(admin_client: Client) -> None:
    job = make_job()
    preview = _post(admin_client, job)
    _confirm(admin_client, job, preview)

    response = _confirm(admin_client, job, preview)

    assert [message.level_tag for message in response.context["messages"]] == ["warning"]
    assert Run.objects.count() == 3


def test_confirming_creates_no_run_beyond_preview_limit(admin_client: Client) -> None:
    job = make_job()
    preview = _post(admin_client, job, limit="2", end="2026-03-11T00:00")
    shown = set(preview.context["preview"].planned.occurrences)
    # another user's backfill in the meantime
    make_run(job, FIRST, trigger="backfill", state="waiting")

    response = _confirm(admin_client, job, preview)

    assert set(Run.objects.values_list("scheduled_at", flat=True)) == shown == {FIRST, FIRST + DAY}
    assert any(f'<a href="{_url(job)}?' in message for message in messages(response))


def test_new_preview_after_job_change_covers_whole_range(admin_client: Client) -> None:
    job = make_job()
    preview = _post(admin_client, job, limit="2")
    job.schedule = "30 4 * * *"
    control.save(job)

    again = _confirm(admin_client, job, preview, limit="100")

    assert again.context["preview"].count == 3
    _confirm(admin_client, job, again)
    assert Run.objects.count() == 3


@pytest.mark.parametrize(
    ("zone", "kept", "shown", "start"),
    [
        (
            "Asia/Tokyo",
            datetime(2026, 3, 10, 3, 29, 59, 250_000, tzinfo=UTC),
            "2026-03-10 12:30:00 JST",
            "2026-03-10 12:30:00",
        ),
        (
            "Europe/Berlin",
            datetime(2025, 10, 26, 1, 30, tzinfo=UTC),
            "2025-10-26 02:30:00 CET",
            "2025-10-26 03:00:00",
        ),
    ],
)
def test_error_about_pruned_runs_names_the_command_that_runs_all(
    admin_client: Client,
    monkeypatch: pytest.MonkeyPatch,
    zone: str,
    kept: datetime,
    shown: str,
    start: str,
) -> None:
    monkeypatch.setattr(backfill, "kept_from", lambda job_id, oldest, now: kept)
    job = make_job("a report")
    with timezone.override(zone):
        response = _post(admin_client, job, limit="2")
        assert InstantField().clean(start) >= kept

    (error,) = response.context["form"].errors.as_data()["start"]
    assert error.code == "pruned"
    message = error.messages[0]
    assert f"before {shown} were" in message
    assert f"Start at {start}, or" in message
    command = message.partition("manage.py dcron ")[2]
    assert call(*shlex.split(command), "--dry-run", "--json").json["occurrences"] == [
        "2026-03-01T03:30:00Z",
        "2026-03-02T03:30:00Z",
    ]


def test_times_out_of_range_in_query_string_are_refused(admin_client: Client) -> None:
    far = {"start": "0001-01-01T00:00:00+05:00", "end": "9999-12-31T23:59:59Z"}
    with timezone.override("Asia/Tokyo"):
        page = admin_client.get(_url(make_job()), far)
        refused = _post(admin_client, Job.objects.get(), **far)

    assert page.status_code == 200
    assert _codes(refused) == {"start": ["out_of_range"], "end": ["out_of_range"]}


def test_confirming_outdated_preview_shows_new_preview(admin_client: Client) -> None:
    job = make_job()
    preview = _post(admin_client, job)
    job.schedule = "30 3 * * SUN"
    control.save(job)

    response = _confirm(admin_client, job, preview)

    assert response.status_code == 200
    assert _codes(response) == {"__all__": ["outdated"]}
    assert response.context["preview"].first == (FIRST,)
    assert not Run.objects.exists()
    _confirm(admin_client, job, response)
    assert Run.objects.count() == 1


def test_message_links_to_backfill_of_remaining_occurrences(admin_client: Client) -> None:
    job = make_job()
    preview = _post(admin_client, job, limit="2")
    assert "2026-03-03 03:30:00" in preview.content.decode()

    response = _confirm(admin_client, job, preview)

    (link,) = [message for message in messages(response) if f'<a href="{_url(job)}?' in message]
    next_page = admin_client.get(str(link).split('"')[1].replace("&amp;", "&"))
    shown = next_page.context["form"]
    again = _post(
        admin_client,
        job,
        start=shown["start"].value().isoformat(),
        end=shown["end"].value().isoformat(),
    )
    assert again.context["preview"].first == (FIRST + 2 * DAY,)
    assert again.context["preview"].planned.continue_from is None


def test_times_are_read_in_site_time_zone(admin_client: Client) -> None:
    job = make_job()
    with timezone.override("Asia/Tokyo"):
        response = _post(admin_client, job, start="2026-03-01T12:30:00", end="2026-03-01T12:30:01")
        for name in ("start", "end"):
            assert "Asia/Tokyo" in response.context["form"].fields[name].help_text
    assert response.context["preview"].first == (FIRST,)


def test_preview_of_paused_job_shows_notice(admin_client: Client) -> None:
    job = make_job()
    assert "data-dcron-paused" not in _post(admin_client, job).content.decode()
    control.pause(job, "deploy")

    assert "data-dcron-paused" in _post(admin_client, job).content.decode()


def test_preview_shows_a_freeze_and_that_no_node_serves_the_job(admin_client: Client) -> None:
    job = make_job()
    assert "data-dcron-no-node" in _post(admin_client, job).content.decode()
    make_node()
    control.freeze("stocktaking")
    page = _post(admin_client, job).content.decode()
    assert ("stocktaking" in page, "data-dcron-no-node" in page) == (True, False)


def test_missing_node_is_shown_only_to_users_who_may_see_nodes(staff_with: StaffWith) -> None:
    job = make_job()
    permissions = ["view_job", "trigger_job", "view_run"]
    cases: list[tuple[list[str], bool]] = [([], False), (["view_node"], True)]
    for others, is_shown in cases:
        page = _post(staff_with(*permissions, *others), job).content.decode()
        assert ("data-dcron-no-node" in page) is is_shown


def test_preview_of_imported_job_warns_about_runs_of_its_source(admin_client: Client) -> None:
    job = make_job()
    assert "data-dcron-caution" not in _post(admin_client, job).content.decode()
    Job.objects.filter(pk=job.pk).update(import_source="django-celery-beat", import_key="7")

    page = _post(admin_client, job).content.decode()
    assert page.count("data-dcron-caution") == 1
    assert "django-celery-beat" in page.partition("data-dcron-caution")[2].partition("</p>")[0]
    for number in range(3):
        make_run(job, FIRST + number * DAY, state="succeeded")
    assert "data-dcron-caution" not in _post(admin_client, job).content.decode()


@pytest.mark.parametrize("target", ["shop.cron.gone", "shadow:tests.app.tasks.fail"])
@pytest.mark.parametrize("language", ["en", "de", "zh-hans"])
def test_preview_warns_that_runs_execute_nothing(
    admin_client: Client, settings: Settings, target: str, language: str
) -> None:
    settings.LANGUAGE_CODE = language
    job = make_job()
    Job.objects.filter(pk=job.pk).update(target=target)

    page = _post(admin_client, job).content.decode()

    caution = page.partition("data-dcron-caution>")[2].partition("</p>")[0]
    assert target.removeprefix("shadow:") in caution
    assert (("Runs fail" in caution) or ("is a shadow" in caution)) == (language == "en")


@pytest.mark.parametrize(
    ("sent", "field", "code"),
    [
        ({"start": ""}, "start", "required"),
        ({"start": "yesterday"}, "start", "invalid"),
        ({"start": "2026-03-05T00:00"}, "end", "end_not_after_start"),
        ({"start": "2090-01-01T00:00", "end": "2091-01-01T00:00"}, "start", "future"),
        ({"start": "1960-01-01T00:00"}, "start", "out_of_range"),
        ({"limit": "0"}, "limit", "min_value"),
        ({"limit": "10001"}, "limit", "max_value"),
        ({"limit": "x"}, "limit", "invalid"),
    ],
)
def test_invalid_field_shows_its_error(
    admin_client: Client, sent: dict[str, str], field: str, code: str
) -> None:
    response = _post(admin_client, make_job(), **sent, create="1")

    assert response.status_code == 200
    assert _codes(response) == {field: [code]}
    assert 'name="create"' not in response.content.decode()
    assert not Run.objects.exists()


def test_preview_of_job_without_cursor_shows_error(admin_client: Client) -> None:
    job = make_job()
    Cursor.objects.all().delete()

    response = _post(admin_client, job)

    assert response.status_code == 200
    (error,) = response.context["form"].errors["__all__"]
    assert str(job) in error
    assert 'name="create"' not in response.content.decode()


def test_empty_preview_has_no_submit_button(admin_client: Client) -> None:
    response = _post(admin_client, make_job(schedule="0 0 1 1 *"))

    page = response.content.decode()
    assert response.context["preview"].count == 0
    assert 'id="dcron-preview"' in page
    assert 'name="create"' not in page


def test_user_without_view_run_permission_is_redirected_to_job(staff_with: StaffWith) -> None:
    job, client = make_job(), staff_with("view_job", "trigger_job")

    response = _confirm(client, job, _post(client, job))

    assert response.redirect_chain[-1][0] == job_url(job)
    assert Run.objects.count() == 3


def test_unknown_job_returns_404_and_unsupported_method_405(admin_client: Client) -> None:
    job = make_job()
    assert admin_client.put(_url(job)).status_code == 405
    url = _url(job)
    job.delete()
    assert admin_client.get(url).status_code == 404
