"""Test the calendar form, and the calendar field of the job form."""

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import translation
from django.utils.timezone import localdate
from pytest_django import DjangoCaptureOnCommitCallbacks

from django_dcron import control
from django_dcron.contrib.ics import LONGEST_FILE
from django_dcron.exceptions import Conflict, NotPossible
from django_dcron.jobs import placement
from django_dcron.models import Calendar, Cursor, Job
from django_dcron.testing import set_clock
from django_dcron.utils.messages import TOO_LONG
from tests.admin.conftest import (
    StaffWith,
    add_url,
    as_rendered,
    errors,
    fill_in,
    job_url,
    list_url,
    make_job,
    messages,
)
from tests.contrib.test_ics import file_of
from tests.factories import entries_by_users

pytestmark = pytest.mark.django_db

ADD = "admin:django_dcron_calendar_add"


def make_calendar(dates: str = "12-25", name: str = "closed") -> Calendar:
    return control.save_calendar(Calendar(name=name, dates=dates))


def url_of(calendar: Calendar) -> str:
    return reverse("admin:django_dcron_calendar_change", args=[calendar.pk])


def test_calendar_can_be_added_and_changed(
    admin_client: Client, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    fill_in(admin_client, reverse(ADD), name="bank holidays", dates="SAT-SUN\r\nholidays DE-BY\r\n")
    calendar = Calendar.objects.get()
    assert (calendar.pk, calendar.dates) == ("bank holidays", "SAT-SUN\nholidays DE-BY")
    job = make_job(calendar=calendar)
    with django_capture_on_commit_callbacks(execute=True):
        assert fill_in(admin_client, url_of(calendar), dates="2026-05-01").status_code == 302
    cursor = Cursor.objects.get(pk=job.pk)
    assert cursor.calendar_dates == "2026-05-01"
    assert placement.matches_definition(cursor, Job.objects.get())
    assert [entry.action for entry in entries_by_users()] == ["create", "change"]


def test_events_of_an_icalendar_file_are_added(admin_client: Client) -> None:
    year = localdate().year + 1
    content = file_of(
        f"DTSTART;VALUE=DATE:{year}0105 SUMMARY:Move",
        "DTSTART;VALUE=DATE:20200101 RRULE:FREQ=HOURLY SUMMARY:Often",
    )
    file = SimpleUploadedFile("a.ics", content)
    response = fill_in(admin_client, reverse(ADD), name="closed", dates="12-25", ics=file)
    assert Calendar.objects.get().dates.splitlines() == ["12-25", f"{year}-01-05 # Move"]
    assert any("Often" in text for text in messages(admin_client.get(response.url)))


NO_DURATION = "DTSTART:20270105T120000 DTEND:20270105T120000"


def test_warnings_name_five_omitted_events_and_count_the_others(admin_client: Client) -> None:
    def warnings(number: int) -> list[str]:
        events = [f"{NO_DURATION} SUMMARY:Point-{index}." for index in range(number)]
        file = SimpleUploadedFile("a.ics", file_of(*events))
        url = reverse(ADD)
        response = fill_in(admin_client, url, name=f"closed-{number}", dates="12-25", ics=file)
        return [text for text in messages(admin_client.get(response.url)) if "omitted" in text]

    assert [re.findall(r"Point-\d+", text) for text in warnings(5)] == [
        [f"Point-{index}"] for index in range(5)
    ]
    assert [re.findall(r"\d+", text) for text in warnings(6)] == [*map(list, "01234"), ["1"]]
    assert [re.findall(r"\d+", text) for text in warnings(300)] == [*map(list, "01234"), ["295"]]


def test_omitted_event_without_a_title_is_named_by_its_date(admin_client: Client) -> None:
    file = SimpleUploadedFile("a.ics", file_of(NO_DURATION, "DTSTART:someday"))
    response = fill_in(admin_client, reverse(ADD), name="closed", dates="12-25", ics=file)
    shown = [text for text in messages(admin_client.get(response.url)) if "omitted" in text]
    assert ["Event 2027-01-05 of" in shown[0], "Event without a title of" in shown[1]] == [True] * 2


def test_error_names_each_reason_of_omitted_events_once(admin_client: Client) -> None:
    def error(*events: str) -> str:
        file = SimpleUploadedFile("a.ics", file_of(*events))
        response = fill_in(admin_client, reverse(ADD), name="closed", dates="", ics=file)
        (text,) = errors(response)["ics"]
        return text

    hourly = "DTSTART;VALUE=DATE:20270105 RRULE:FREQ=HOURLY"
    assert error(NO_DURATION, hourly) == error(*[NO_DURATION] * 150, *[hourly] * 150)
    unsupported = [f"DTSTART;VALUE=DATE:20270105 RRULE:FREQ=DAILY;X-{n}=1" for n in range(9)]
    assert error(*unsupported).endswith("; …")
    assert error(*unsupported).count("; ") == 5


@pytest.mark.parametrize(
    "content", [b"hello", b"", file_of("DTSTART:someday"), b"x" * (LONGEST_FILE + 1)]
)
def test_unsuitable_icalendar_file_shows_error_on_its_field(
    admin_client: Client, content: bytes
) -> None:
    file = SimpleUploadedFile("a.ics", content)
    response = fill_in(admin_client, reverse(ADD), name="closed", dates="", ics=file)
    assert set(response.context["adminform"].form.errors) == {"ics"}
    assert not Calendar.objects.exists()


def test_invalid_lines_show_errors_on_dates_field(admin_client: Client) -> None:
    dates = "SAT\nXMAS\n12-25 # Christmas\n12-32"
    response = fill_in(admin_client, reverse(ADD), name="closed", dates=dates)
    unknown, no_date = errors(response)["dates"]
    assert unknown.startswith("Line 2: ")
    assert "'XMAS'" in unknown
    assert no_date.startswith("Line 4: ")
    assert not Calendar.objects.exists()


def test_number_of_reported_lines_is_limited(admin_client: Client) -> None:
    response = fill_in(admin_client, reverse(ADD), name="closed", dates="XMAS\n" * 50)
    assert len(errors(response)["dates"]) == 5


def test_entries_of_text_that_is_too_long_are_not_read(admin_client: Client) -> None:
    response = fill_in(admin_client, reverse(ADD), name="closed", dates="XMAS\n" * 2001)
    assert errors(response)["dates"] == [TOO_LONG % {"count": 10_004, "most": 10_000}]


@pytest.mark.parametrize("is_installed", [True, False])
def test_help_says_whether_public_holidays_are_installed(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    if not is_installed:
        monkeypatch.setitem(sys.modules, "holidays", None)
    form = admin_client.get(reverse("admin:django_dcron_calendar_add")).context["adminform"].form
    help_text = str(form.fields["dates"].help_text)
    assert ("django-dcron[holidays]" in help_text) != is_installed


def test_change_page_lists_next_dates_without_name_field(admin_client: Client) -> None:
    tomorrow = localdate() + timedelta(days=1)
    calendar = make_calendar(f"{tomorrow}..{tomorrow + timedelta(days=1)}")
    response = admin_client.get(url_of(calendar))
    assert f"{tomorrow:%a %Y-%m-%d}" in response.text
    assert 'name="name"' not in response.text
    Calendar.objects.update(dates="XMAS")
    assert admin_client.get(url_of(calendar)).status_code == 200


def excluded_days(html: str) -> dict[str, list[str]]:
    """Return the excluded days of each month."""
    grid = html.partition("dcron-month-grid")[2]
    months = re.findall(r"<caption>(.*?)</caption>(.*?)</table>", grid, flags=re.DOTALL)
    return {name: re.findall(r"<s>(\d+)</s>", rows) for name, rows in months}


@pytest.mark.parametrize(("language", "first"), [("en-us", "Sunday"), ("de", "Montag")])
def test_months_show_excluded_days(
    admin_client: Client, settings: Any, language: str, first: str
) -> None:
    settings.LANGUAGE_CODE = language
    url = url_of(make_calendar("12-24..12-26\n2027-10-31\n2027-11-01"))
    with set_clock(datetime(2026, 11, 25, 12, tzinfo=UTC)), translation.override(language):
        html = admin_client.get(url).text

    days = list(excluded_days(html).values())
    assert days == [[], ["24", "25", "26"], *[[]] * 9, ["31"]]
    assert 'class="dcron-today">25<' in html
    assert re.findall(r'abbr="(.*?)"', html)[0] == first


@pytest.mark.parametrize(
    ("language", "holiday"),
    [("en-us", "Christmas Day"), ("de", "Erster Weihnachtstag"), ("zh-hans", "Christmas Day")],
)
def test_excluded_days_name_their_holidays(
    admin_client: Client, settings: Any, language: str, holiday: str
) -> None:
    settings.LANGUAGE_CODE = language
    url = url_of(make_calendar("holidays DE\n12-27 # Inventory\n12-28"))
    with set_clock(datetime(2026, 12, 5, 12, tzinfo=UTC)), translation.override(language):
        html = admin_client.get(url).text
        excluded = translation.gettext("excluded")

    december = html.partition("dcron-month-grid")[2].partition("</table>")[0]
    notes = dict(re.findall(r'(?s)<td [^>]*title="([^"]*)"><s>(\d+)</s>', december))
    reasons = {number: note for note, number in notes.items()}
    assert reasons["25"] == f"{excluded} ({holiday})"
    assert (reasons["27"], reasons["28"]) == (f"{excluded} (Inventory)", f"{excluded} (12-28)")


def test_preview_of_typed_dates_shows_months_or_error_and_saves_nothing(
    admin_client: Client, staff_with: StaffWith
) -> None:
    calendar = make_calendar("12-25")
    filled = as_rendered(admin_client.get(url_of(calendar)))
    url = f"{reverse('admin:django_dcron_calendar_preview')}?calendar={calendar.pk}"

    def preview(dates: str) -> str:
        response = admin_client.post(url, {**filled, "dates": dates})
        assert response.status_code == 200
        return response.text

    assert list(filter(None, excluded_days(preview("12-31")).values())) == [["31"]]
    partly = re.findall(
        r'title="(.*?)"><span class="dcron-partly">(\d+)<', preview("12-31 22:00-06:00 # Backup")
    )
    assert sorted(partly) == [
        ("excluded: 00:00-06:00 (Backup)", "1"),
        ("excluded: 22:00-24:00 (Backup)", "31"),
    ]
    assert "errorlist" in preview("XMAS")
    assert excluded_days(preview("XMAS")) == excluded_days(preview("")) == {}
    assert Calendar.objects.get().dates == "12-25"

    assert admin_client.get(url).status_code == 405
    assert admin_client.post(f"{url}nonsense", filled).status_code == 404
    assert staff_with("view_calendar").post(url, filled).status_code == 403
    assert staff_with("add_calendar").post(url, filled).status_code in (403, 404)


def test_saving_without_changes_writes_nothing(admin_client: Client) -> None:
    texts = {"dates": "12-25\n12-26", "description": "Of the shop.\nNot of the office."}
    calendar = control.save_calendar(Calendar(name="closed", **texts))
    sent = {name: text.replace("\n", "\r\n") for name, text in texts.items()}  # as browsers do
    assert fill_in(admin_client, url_of(calendar), **sent).status_code == 302
    assert Calendar.objects.get().version == 1
    assert not entries_by_users().exists()


def test_conflicting_save_shows_other_version_before_overwriting(admin_client: Client) -> None:
    calendar = make_calendar()
    submitted = as_rendered(admin_client.get(url_of(calendar))) | {"dates": "12-26"}
    fill_in(admin_client, url_of(calendar), dates="12-24")
    refused = admin_client.post(url_of(calendar), submitted)
    (conflict,) = refused.context["adminform"].form.errors.as_data()["__all__"]
    assert (conflict.code, conflict.params) == ("conflict", {"dates": "12-24"})
    assert Calendar.objects.get().dates == "12-24"
    assert admin_client.post(url_of(calendar), as_rendered(refused)).status_code == 302
    assert Calendar.objects.get().dates == "12-26"


def test_conflict_shows_other_description_only_if_it_differs(admin_client: Client) -> None:
    calendar = make_calendar()
    sent = as_rendered(admin_client.get(url_of(calendar)))
    fill_in(admin_client, url_of(calendar), description="Ask HR.\nBy phone.", dates="12-24")

    def params(description: str) -> dict[str, str]:
        submitted = sent | {"description": description}
        form = admin_client.post(url_of(calendar), submitted).context["adminform"].form
        (conflict,) = form.errors.as_data()["__all__"]
        assert all(value in conflict.messages[0] for value in conflict.params.values())
        return dict(conflict.params)

    assert params("Ask me.") == {"dates": "12-24", "description": "Ask HR.\nBy phone."}
    assert params("Ask HR.\r\nBy phone.") == {"dates": "12-24"}


def lose_first_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first save lose a race against another user."""
    save = control.save_calendar

    def raise_conflict_once(submitted: Calendar, **options: Any) -> Calendar:
        monkeypatch.setattr(control, "save_calendar", save)
        raise Conflict("someone was faster")

    monkeypatch.setattr(control, "save_calendar", raise_conflict_once)


def test_save_is_retried_once_after_conflict(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    calendar = make_calendar()
    lose_first_race(monkeypatch)
    assert fill_in(admin_client, url_of(calendar), dates="12-24").status_code == 302
    assert Calendar.objects.get().dates == "12-24"


def test_icalendar_file_is_read_again_when_save_is_retried(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_first_race(monkeypatch)
    year = localdate().year + 1
    file = SimpleUploadedFile("a.ics", file_of(f"DTSTART;VALUE=DATE:{year}0105"))
    response = fill_in(admin_client, reverse(ADD), name="closed", dates="", ics=file)
    assert response.status_code == 302
    assert Calendar.objects.get().dates == f"{year}-01-05"


def test_repeated_conflict_is_reported_and_saves_nothing(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    calendar = make_calendar()

    def refuse(submitted: Calendar, **options: Any) -> Calendar:
        raise Conflict("closed was changed meanwhile.")

    monkeypatch.setattr(control, "save_calendar", refuse)
    sent = as_rendered(admin_client.get(url_of(calendar))) | {"dates": "12-24"}
    refused = admin_client.post(url_of(calendar), sent, follow=True)
    assert len(messages(refused)) == 1
    assert "closed was changed meanwhile." in messages(refused)[0]
    assert Calendar.objects.get().dates == calendar.dates


@pytest.mark.parametrize("by_action", [False, True])
def test_deletion_refused_by_control_keeps_calendar(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, by_action: bool
) -> None:
    calendar = make_calendar()

    def refuse(submitted: Calendar, **options: Any) -> None:
        raise NotPossible("a job names it.")

    monkeypatch.setattr(control, "delete_calendar", refuse)
    if by_action:
        sent = {"action": "delete_selected", "_selected_action": [calendar.pk], "post": "yes"}
        refused = admin_client.post(list_url("calendar"), sent, follow=True)
    else:
        delete = reverse("admin:django_dcron_calendar_delete", args=[calendar.pk])
        refused = admin_client.post(delete, {"post": "yes"}, follow=True)
    assert messages(refused) == ["a job names it."]
    assert Calendar.objects.exists()


def test_list_shows_entries_and_next_excluded_periods(admin_client: Client) -> None:
    make_calendar(dates="12-24..12-26  # Christmas\n01-01\nSUN 02:00-04:00\n05-01")
    make_calendar(name="windows", dates="SUN 02:00-04:00")
    with set_clock(datetime(2026, 12, 1, tzinfo=UTC)):
        html = admin_client.get(list_url("calendar")).content.decode()
    rows = re.findall(r'<td class="field-next_periods">(.*?)</td>', html, re.DOTALL)
    assert "<div>Thu 2026-12-24 \N{EN DASH} Sat 2026-12-26</div>" in rows[0]
    assert "Christmas" in rows[0]
    assert rows[0].count("202") == 4  # three periods; the first one has two dates
    assert rows[1] == "-"
    assert "01-01" in html
    assert "… and 1 more" in html


def period_cell(admin_client: Client, dates: str) -> str:
    """Return the excluded periods of a calendar that the list shows on November 29, 2026."""
    Calendar.objects.all().delete()
    make_calendar(dates)
    with set_clock(datetime(2026, 11, 29, 12, tzinfo=UTC)):
        html = admin_client.get(list_url("calendar")).text
    (cell,) = re.findall(r'<td class="field-next_periods">(.*?)</td>', html, re.DOTALL)
    return cell


@pytest.mark.parametrize(
    ("last", "end"),
    # 400 days are searched: until January 2, 2028.
    [("2028-01-01", "Sat 2028-01-01"), ("2028-01-02", "…"), ("2029-12-31", "…")],
)
def test_period_beyond_the_searched_days_has_an_open_end(
    admin_client: Client, last: str, end: str
) -> None:
    cell = period_cell(admin_client, f"2026-11-01..{last}")
    assert f"<div>Sun 2026-11-29 \N{EN DASH} {end}</div>" in cell


def test_period_names_each_of_its_reasons_once(admin_client: Client) -> None:
    christmas = "12-24..12-26 # Christmas"
    cell = period_cell(admin_client, f"{christmas}\n12-27 # Inventory\n12-28 # Christmas")
    assert ">Christmas, Inventory<" in cell
    days = "\n".join(f"12-{day} # Reason {day}" for day in range(10, 17))
    assert ">Reason 10, Reason 11, Reason 12, Reason 13, Reason 14, …<" in period_cell(
        admin_client, days
    )


def test_list_counts_jobs_and_calendar_in_use_is_not_deleted(admin_client: Client) -> None:
    calendar = make_calendar()
    make_calendar(name="other")
    job = make_job(calendar=calendar)
    page = admin_client.get(list_url("calendar"))
    assert [row.number_of_jobs for row in page.context["cl"].result_list] == [1, 0]
    delete = reverse("admin:django_dcron_calendar_delete", args=["closed"])
    assert admin_client.get(delete).context["protected"]
    admin_client.post(delete, {"post": "yes"})
    assert Calendar.objects.count() == 2
    control.delete(job)
    admin_client.post(delete, {"post": "yes"})
    assert Calendar.objects.get().pk == "other"


def test_job_form_saves_calendar_and_previews_excluded_dates(admin_client: Client) -> None:
    today = localdate()
    make_calendar(f"{today}..{today + timedelta(days=2)}")
    job = make_job(schedule="0 12 * * *")
    form = as_rendered(admin_client.get(job_url(job)))
    preview = admin_client.post(
        reverse("admin:django_dcron_job_preview"),
        {**form, "job": str(job.pk), "calendar": "closed"},
    )
    assert preview.status_code == 200
    assert "except on dates that the calendar excludes" in preview.text
    days = " ".join(row.day for row in preview.context["preview"].rows)
    assert f"{today + timedelta(days=2)}" not in days
    assert f"{today + timedelta(days=3)}" in days
    assert (
        fill_in(
            admin_client, job_url(job), calendar="closed", calendar_policy="next_day"
        ).status_code
        == 302
    )
    job.refresh_from_db()
    assert (job.calendar_id, job.calendar_policy) == ("closed", "next_day")
    history = admin_client.get(reverse("admin:django_dcron_job_history", args=[job.pk])).text
    assert "closed" in history
    assert "Calendar" in history


def test_calendar_on_interval_schedule_shows_error_on_calendar_field(admin_client: Client) -> None:
    make_calendar()
    values = {
        "name": "often",
        "target": "tests.app.tasks.ok",
        "schedule": "@every 5m",
        "calendar": "closed",
    }
    response = fill_in(admin_client, add_url(), **values)
    assert list(errors(response)) == ["calendar"]
    assert "@every 5m" in errors(response)["calendar"][0]
    assert not Job.objects.exists()


def test_user_without_add_calendar_permission_can_choose_calendar(staff_with: StaffWith) -> None:
    make_calendar()
    client = staff_with("add_job", "view_job")
    page = client.get(add_url()).text
    assert '<option value="closed">' in page
    assert "/calendar/add/" not in page
