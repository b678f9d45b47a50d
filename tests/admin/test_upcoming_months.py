"""Test the months of the job form's preview and of the page of a user who may only view jobs."""

# ruff: noqa: RUF001 -- the numbers have a multiplication sign

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from django_dcron import control
from django_dcron.admin.month_grid import MonthDay
from django_dcron.models import Calendar, Freeze
from django_dcron.testing import set_clock
from tests.admin.conftest import StaffWith, add_url, as_rendered, job_url, make_job

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 12, 9, 12, 0, 30, tzinfo=UTC)
"""A Wednesday."""
URL = "/admin/django_dcron/job/preview/"
DAILY = {
    "name": "new",
    "target": "tests.app.tasks.ok",
    "schedule": "30 3 * * *",
    "timezone": "Europe/Berlin",
}


@pytest.fixture(autouse=True)
def at_now() -> Iterator[None]:
    with set_clock(NOW):
        yield


def closed(dates: str) -> str:
    return str(control.save_calendar(Calendar(name="closed", dates=dates)).pk)


def preview(client: Client, **changes: str) -> Any:
    response = client.post(URL, {**as_rendered(client.get(add_url())), **DAILY, **changes})
    assert response.status_code == 200
    return response


def days(response: Any) -> dict[tuple[int, int], MonthDay]:
    """Return the days by the number of their month, from 0, and of the day."""
    months = response.context["preview"].months.grid.months
    return {(number, day.number): day for number, month in enumerate(months) for day in month.days}


def test_preview_shows_time_of_each_day_in_two_months(admin_client: Client) -> None:
    response = preview(admin_client)
    found = days(response)

    assert len(found) == 31 + 31
    assert found[0, 8] == MonthDay(8, is_past=True)
    assert found[0, 9] == MonthDay(9, is_today=True)
    assert found[0, 10] == MonthDay(10, label="03:30", notes=("one occurrence, at 03:30",))
    assert {day.label for day in list(found.values())[9:]} == {"03:30"}
    assert "Occurrences per day in Europe/Berlin" in response.text
    assert "Struck-through" not in response.text


def test_day_with_many_occurrences_shows_their_number(admin_client: Client) -> None:
    found = days(preview(admin_client, schedule="* * * * *"))

    assert (found[0, 9].label, found[1, 31].label) == ("659×", "1,440×")
    assert found[1, 31].notes == ("1,440 occurrences, the first at 00:00",)


@pytest.mark.parametrize(
    ("dates", "policy", "label", "text"),
    [
        ("12-25 # Christmas", "skip", "03:30", "are skipped"),
        ("12-25 # Christmas", "next_day", "03:30", "on the next open day"),
        ("12-25 # Christmas", "window_end", "2×", "at the end of the excluded time"),
    ],
)
def test_excluded_day_has_its_reason_and_policy(
    admin_client: Client, dates: str, policy: str, label: str, text: str
) -> None:
    response = preview(admin_client, calendar=closed(dates), calendar_policy=policy)
    christmas, following = days(response)[0, 25], days(response)[0, 26]

    assert (christmas.is_excluded, christmas.label) == (True, "")
    assert christmas.notes == ("excluded (Christmas)",)
    assert following.label == label
    assert '<s>25</s><span class="dcron-hidden"> excluded (Christmas)</span>' in response.text
    assert "<li>25: Christmas</li>" in response.text
    assert text in response.context["preview"].months.policy_text


def test_partly_excluded_days_show_times_and_reason(admin_client: Client) -> None:
    found = days(preview(admin_client, calendar=closed("only MON-FRI 02:00-17:00\n12-24..12-26")))

    assert found[0, 10].is_partly_excluded
    assert found[0, 10].notes[1] == "excluded: 00:00-02:00, 17:00-24:00 (outside the “only” times)"
    assert found[0, 12].note == "excluded (outside the “only” times)"
    assert found[0, 25].note == "excluded (12-24..12-26)"


def test_reasons_need_permission_to_view_calendars(staff_with: StaffWith) -> None:
    calendar = closed("12-25 # Secret party")

    for permissions, note in [
        (("add_job",), "excluded"),
        (("add_job", "view_calendar"), "excluded (Secret party)"),
    ]:
        response = preview(staff_with(*permissions), calendar=calendar)
        assert days(response)[0, 25].note == note
        assert ("Secret party" in response.text) == ("view_calendar" in permissions)


def test_frozen_days_name_the_freeze(admin_client: Client) -> None:
    make_job("other", namespace="other")
    control.freeze("deploy", until=NOW + timedelta(days=2))
    control.freeze("incident", "other")
    response = preview(admin_client)
    found = days(response)

    assert [day for day in found if found[day].is_frozen] == [(0, 9), (0, 10), (0, 11)]
    assert found[0, 10].notes[1].startswith("frozen until 2026-12-11")
    assert found[0, 10].notes[1].endswith(": deploy")
    assert "incident" not in response.text
    with_both = preview(admin_client, namespace="other")
    assert "frozen without a planned end: incident" in days(with_both)[1, 31].note


def test_freezes_need_permission_to_view_jobs(staff_with: StaffWith) -> None:
    control.freeze("deploy", until=NOW + timedelta(days=2))

    for permissions, is_frozen in [(("add_job",), False), (("add_job", "view_job"), True)]:
        assert days(preview(staff_with(*permissions)))[0, 10].is_frozen == is_frozen


@pytest.mark.parametrize(
    ("language", "first", "count"),
    [("en-us", "Sunday", "1,440×"), ("de", "Montag", "1.440×"), ("zh-hans", "星期一", "1440×")],
)
def test_weeks_and_numbers_follow_the_language(
    admin_client: Client, settings: Any, language: str, first: str, count: str
) -> None:
    settings.LANGUAGE_CODE = language
    with translation.override(language):
        response = preview(admin_client, schedule="* * * * *")

    grid = response.text.partition("dcron-month-grid")[2]
    assert re.findall(r'abbr="(.*?)"', grid)[0] == first
    assert f'<span class="dcron-planned" aria-hidden="true">{count}</span>' in grid


@pytest.mark.parametrize("schedule", ["@never", "@at 2020-01-01T09:00", "* *", ""])
def test_job_without_occurrences_has_no_months(admin_client: Client, schedule: str) -> None:
    response = preview(admin_client, schedule=schedule)

    assert response.context["preview"].months is None
    assert "dcron-month-grid" not in response.text


def test_days_outside_the_job_are_marked(admin_client: Client) -> None:
    bounds = {"starts_at_0": "2026-12-12", "starts_at_1": "00:00:00", "ends_at_0": "2026-12-13"}
    found = days(preview(admin_client, **bounds, ends_at_1="12:00:00"))

    assert [key for key in found if found[key].label] == [(0, 12), (0, 13)]
    assert "before the start" in found[0, 11].note


def test_pages_of_jobs_contain_months_once(admin_client: Client, staff_with: StaffWith) -> None:
    """The form of an editor has them in its preview, the page of a viewer in its overview."""
    job = make_job(calendar=Calendar.objects.get(pk=closed("12-25 # Party")))

    for client in (admin_client, staff_with("view_job", "view_calendar")):
        page = client.get(job_url(job)).text
        assert page.count("dcron-month-grid") == 1
        assert "<li>25: Party</li>" in page


def test_page_reads_freezes_once(admin_client: Client) -> None:
    control.freeze("deploy", until=NOW + timedelta(days=2))
    job = make_job()
    with CaptureQueriesContext(connection) as queries:
        page = admin_client.get(job_url(job)).text

    assert "dcron-freeze" in page
    assert "dcron-frozen" in page
    assert sum(f"FROM {quoted(Freeze)}" in query["sql"] for query in queries) == 1


def quoted(model: type[Freeze]) -> str:
    return connection.ops.quote_name(model._meta.db_table)
