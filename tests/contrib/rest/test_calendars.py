"""Test calendars over HTTP: create, read, replace, change and delete.

Each change names the version it is based on.
"""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoCaptureOnCommitCallbacks

from django_dcron import control
from django_dcron.contrib.rest import named_rows
from django_dcron.contrib.rest.concurrency import check_match
from django_dcron.models import Calendar, Cursor, Job
from django_dcron.testing import set_clock
from tests.admin.conftest import as_rendered, errors
from tests.contrib.rest.conftest import Api, ApiWith, problem
from tests.contrib.test_ics import file_of
from tests.factories import entries_by_users, make_idle_job

CLOSED = {"name": "closed", "dates": "12-25"}
PATH = "calendars/closed/"


def make_calendar(name: str = "closed", dates: str = "12-25", **fields: Any) -> Calendar:
    return control.save_calendar(Calendar(name=name, dates=dates, **fields))


def stored() -> tuple[str, int]:
    return Calendar.objects.values_list("dates", "version").get()


# --- create ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bank days", "Feiertage in Köln", "a@b:c", "休日", "..a", ". ."])
def test_calendar_is_created_and_readable_at_its_location(name: str, api: Api) -> None:
    made = api.post(
        "calendars/", {"name": name, "dates": "SAT-SUN\r\n12-25 \r\n", "description": "Ask Ada."}
    )

    assert made.status_code == 201
    assert made["ETag"] == '"1"'
    assert made["Location"].isascii()
    assert made.json() == {
        "name": name,
        "version": 1,
        "description": "Ask Ada.",
        "dates": "SAT-SUN\n12-25",
    }
    read = api.get(made["Location"])
    assert (read.json(), read["ETag"]) == (made.json(), '"1"')
    job = api.post(
        "jobs/",
        {"name": "a", "target": "tests.app.tasks.ok", "schedule": "@daily", "calendar": name},
    )
    assert job.status_code == 201
    assert Job.objects.get().calendar_id == name


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        ("name", "two  spaces"),
        ("name", "."),
        ("name", ".."),
        ("name", "..."),
        ("name", "a/b"),
        ("name", "x" * 121),
        ("dates", "SAT\nXMAS"),
        ("dates", "MON-SUN"),
        ("dates", "# nothing"),
        ("dates", "12-25," * 2_000),
        ("dates", "holidays XX"),
    ],
)
def test_field_errors_are_the_same_as_in_the_admin(
    field: str, sent: str, api: Api, admin_client: Client
) -> None:
    refused = problem(api.post("calendars/", CLOSED | {field: sent}), 400)

    url = reverse("admin:django_dcron_calendar_add")
    form = as_rendered(admin_client.get(url)) | CLOSED | {field: sent}
    assert [*refused["errors"]] == [field]
    assert refused["errors"] == errors(admin_client.post(url, form))
    assert not Calendar.objects.exists()


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"name": "closed"}, "dates"),
        ({"dates": "12-25"}, "name"),
        (CLOSED | {"date": "x"}, "date"),
        (CLOSED | {"name": 5}, "name"),
        (CLOSED | {"name": None}, "name"),
        (CLOSED | {"dates": ["12-25"]}, "dates"),
        (CLOSED | {"dates": ""}, "dates"),
        (CLOSED | {"dates": "12-25 # \0"}, "dates"),
        (CLOSED | {"description": "\ud800"}, "description"),
        ([], "non_field_errors"),
    ],
)
def test_invalid_body_is_refused(sent: Any, field: str, api: Api) -> None:
    assert field in problem(api.post("calendars/", sent), 400)["errors"]
    assert not Calendar.objects.exists()


def test_duplicate_name_is_refused(api: Api) -> None:
    make_calendar()

    refused = problem(api.post("calendars/", CLOSED | {"dates": "12-26"}), 400)

    assert "already exists" in refused["errors"]["name"][0]
    assert refused["code"] == "already_exists"
    assert stored() == ("12-25", 1)


# --- change ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_change_applies_to_its_jobs_immediately(
    method: str, api: Api, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    job = make_idle_job(calendar=make_calendar(description="old"))
    tag = api.get(PATH)["ETag"]

    with django_capture_on_commit_callbacks(execute=True):
        changed = api.send(method, PATH, {"dates": "12-26"}, if_match=tag)

    assert changed.status_code == 200
    assert changed["ETag"] == '"2"' != tag
    # A replacement resets omitted fields to their defaults.
    description = "" if method == "PUT" else "old"
    assert changed.json() == {
        "name": "closed",
        "version": 2,
        "description": description,
        "dates": "12-26",
    }
    assert Cursor.objects.get(pk=job.pk).calendar_dates == "12-26"


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_representation_can_be_sent_back_but_name_cannot_change(method: str, api: Api) -> None:
    make_calendar(description="Ask Ada.")
    read = api.get(PATH)

    again = api.send(method, PATH, read.json(), if_match=read["ETag"])
    assert again.json() == read.json() | {"version": 2}

    refused = problem(api.send(method, PATH, read.json() | {"name": "open"}, if_match="*"), 400)
    assert [*refused["errors"]] == ["name"]
    assert [*Calendar.objects.values_list("name", flat=True)] == ["closed"]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    ("header", "status"),
    [(None, 428), ('"1"', 412), ("2", 400), ('"2"', 200), ('W/"2"', 200), ("*", 200)],
)
def test_if_match_prevents_lost_updates(
    method: str, header: str | None, status: int, api: Api
) -> None:
    calendar = make_calendar()
    calendar.dates = "12-24"
    control.save_calendar(calendar)
    body = None if method == "DELETE" else {"dates": "12-26"}

    response = api.send(method, PATH, body, **({} if header is None else {"if_match": header}))

    if status == 200:
        assert response.status_code == (204 if method == "DELETE" else 200)
        assert not Calendar.objects.filter(dates="12-24").exists()
    else:
        problem(response, status)
        assert stored() == ("12-24", 2)


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("what", ["saves", "deletes"])
def test_concurrent_change_is_not_overwritten(
    what: str, method: str, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_calendar()
    rows = Calendar.objects.filter(pk="closed")

    def check_match_then_change(request: Any, calendar: Any) -> None:
        check_match(request, calendar)
        rows.update(dates="12-24", version=2) if what == "saves" else rows.delete()

    monkeypatch.setattr(named_rows, "check_match", check_match_then_change)

    body = None if method == "DELETE" else {"dates": "12-26"}
    problem(api.send(method, PATH, body, if_match='"1"'), 412)

    assert [*rows.values_list("dates", flat=True)] == (["12-24"] if what == "saves" else [])
    assert not entries_by_users().exists()


def test_refused_change_writes_nothing(api: Api) -> None:
    make_calendar()

    refused = problem(api.patch(PATH, {"description": "x", "dates": "XMAS"}, if_match="*"), 400)

    assert [*refused["errors"]] == ["dates"]
    assert stored() == ("12-25", 1)


# --- delete ---------------------------------------------------------------------------------------


def test_calendar_used_by_a_job_is_not_deleted(api: Api) -> None:
    job = make_idle_job(name="report", calendar=make_calendar())

    refused = problem(api.delete(PATH, if_match="*"), 409)

    assert refused["code"] == "conflict"
    assert "report" in refused["detail"]
    assert Job.objects.get().calendar_id == "closed"
    control.delete(job)
    assert api.delete(PATH, if_match='"1"').status_code == 204
    assert not Calendar.objects.exists()


@pytest.mark.parametrize(
    ("also", "named"), [((), "a job"), (("view_job",), "report"), (("change_job",), "report")]
)
def test_conflict_names_the_job_only_with_permission_to_view_jobs(
    also: tuple[str, ...], named: str, api_with: ApiWith
) -> None:
    make_idle_job(name="report", calendar=make_calendar())

    refused = problem(api_with("delete_calendar", *also).delete(PATH, if_match="*"), 409)

    assert refused["code"] == "conflict"
    assert refused["detail"].endswith(f"because {named} uses it.")


@pytest.mark.parametrize("name", ["nothing", "a%00b", "%F0%9F", "x" * 2_000, "two%20%20spaces"])
def test_unknown_calendar_is_not_found(name: str, api: Api) -> None:
    for method in ("GET", "PATCH", "DELETE"):
        body = {"dates": "12-25"} if method == "PATCH" else None
        problem(api.send(method, f"calendars/{name}/", body, if_match="*"), 404)


# --- history --------------------------------------------------------------------------------------


def test_changes_are_recorded_in_the_history(api: Api, admin_client: Client) -> None:
    api.post("calendars/", CLOSED)
    api.patch(PATH, {"dates": "12-26"}, if_match="*")
    page = admin_client.get(
        reverse("admin:django_dcron_calendar_history", args=["closed"])
    ).content.decode()
    api.delete(PATH, if_match="*")

    made, changed, deleted = entries_by_users()
    assert {(entry.actor, entry.kind, entry.object_id) for entry in (made, changed, deleted)} == {
        ("admin", "calendar", "closed")
    }
    assert [entry.action for entry in (made, changed, deleted)] == ["create", "change", "delete"]
    assert (changed.before, changed.after) == ({"dates": "12-25"}, {"dates": "12-26"})
    assert deleted.before == {"name": "closed", "dates": "12-26"}
    assert "<del>12-25</del>" in page
    assert "<ins>12-26</ins>" in page
    assert "dcron-aside" not in page


# --- list -----------------------------------------------------------------------------------------


def _names(response: Any) -> list[str]:
    assert response.status_code == 200, response.content
    return [calendar["name"] for calendar in response.json()["results"]]


def test_list_shows_the_number_of_jobs_per_calendar(
    api: Api, django_assert_num_queries: Any
) -> None:
    calendar = make_calendar()
    make_calendar("other")
    for _ in range(2):
        make_idle_job(calendar=calendar)
    make_idle_job()
    api.get("calendars/")

    with django_assert_num_queries(3):  # the session, the user and the calendars
        shown = api.get("calendars/").json()

    assert shown["next"] is None
    assert [(each["name"], each["number_of_jobs"]) for each in shown["results"]] == [
        ("closed", 2),
        ("other", 0),
    ]
    assert shown["results"][0]["dates"] == "12-25"


def test_list_is_filtered_ordered_and_paginated(api: Api) -> None:
    names = [f"bank {number}" for number in range(3)] + ["closed"]
    for name in names:
        make_calendar(name)

    assert _names(api.get("calendars/", search="BANK")) == names[:3]
    for ordering, whole in (("name", names), ("-name", names[::-1])):
        found, page = [], api.get("calendars/", ordering=ordering, limit=3)
        while page is not None:
            found += _names(page)
            following = page.json()["next"]
            page = api.get(following) if following else None
        assert found == whole
    problem(api.get("calendars/", ordering="version"), 400)
    problem(api.get("calendars/", cursor="x"), 400)


def test_jobs_can_be_filtered_by_calendar(api: Api) -> None:
    make_idle_job(name="a", calendar=make_calendar())
    make_idle_job(name="b")

    assert _names(api.get("jobs/", calendar="closed")) == ["a"]
    assert _names(api.get("jobs/", calendar="nothing")) == []


CHRISTMAS = "DTSTART;VALUE=DATE:20261224 RRULE:FREQ=YEARLY SUMMARY:Christmas"
HOURLY = "DTSTART;VALUE=DATE:20261224 RRULE:FREQ=HOURLY SUMMARY:Often"


def test_icalendar_file_becomes_entries_that_a_calendar_takes(api: Api) -> None:
    text = file_of(CHRISTMAS, HOURLY).decode()
    body = {"ics": text, "timezone": "Europe/Berlin", "years": 2}
    with set_clock(datetime(2026, 12, 1, tzinfo=UTC)):
        shown = api.post("calendars/ics/preview/", body).json()

    assert shown["dates"] == "2026-12-24, 2027-12-24 # Christmas"
    assert [event["event"] for event in shown["omitted"]] == ["Often"]
    assert not Calendar.objects.exists()
    created = api.post("calendars/", {"name": "closed", "dates": shown["dates"]})
    assert created.status_code == 201


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "ics"),
        ({"ics": "BEGIN:NONSENSE"}, "ics"),
        ({"ics": file_of(CHRISTMAS).decode(), "timezone": "Europe/Berlim"}, "timezone"),
        ({"ics": file_of(CHRISTMAS).decode(), "years": 21}, "years"),
        ({"ics": file_of(CHRISTMAS).decode(), "weeks": 1}, "weeks"),
    ],
)
def test_invalid_icalendar_file_is_refused_by_field(
    api: Api, body: dict[str, Any], field: str
) -> None:
    assert [*problem(api.post("calendars/ics/preview/", body), 400)["errors"]] == [field]
