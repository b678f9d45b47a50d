"""Test the filter of runs by a text in their logs."""

import json
import re
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_dcron.diagnosis import log_search
from django_dcron.models import Run
from tests.admin import narrowed_sites
from tests.admin.conftest import NOON, StaffWith, list_url, make_attempt, make_job, make_run

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
URL = list_url("run")


@pytest.fixture
def runs() -> list[Run]:
    """Return runs of two jobs, newest first, each with the log "order <hour>, 100% <b>für</b>"."""
    job, other = make_job(), make_job("other", namespace="shop")
    found = []
    for hour in range(4):
        run = make_run(
            other if hour % 2 else job,
            NOON + hour * HOUR,
            state="failed" if hour == 3 else "succeeded",
            reason="broken" if hour == 3 else "",
        )
        make_attempt(run, log=f"started\norder {hour}, 100% <b>für</b>\n")
        found.append(run)
    return found[::-1]


def _get(client: Client, query: str) -> Any:
    response = client.get(f"{URL}?{query}")
    assert response.status_code == 200, response.headers
    return response


def _listed(client: Client, query: str) -> list[Run]:
    return list(_get(client, query).context["cl"].result_list)


def _links_of_note(response: Any) -> list[str]:
    note = response.content.decode().partition('class="dcron-list-note">')[2].partition("</p>")[0]
    return [unescape(url) for url in re.findall('href="([^"]*)"', note)]


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("ORDER 2", [2]),
        ("100% <B>FÜR</B>", [3, 2, 1, 0]),
        ("  order 1 ", [1]),
        ("1%", []),
        ("o_der", []),
        ("nothing like it", []),
        ("", [3, 2, 1, 0]),
        ("  ", [3, 2, 1, 0]),
    ],
)
def test_runs_whose_log_contains_the_text_are_listed(
    admin_client: Client, runs: list[Run], text: str, hours: list[int]
) -> None:
    assert _listed(admin_client, f"log={quote(text)}") == [runs[3 - hour] for hour in hours]


@pytest.mark.parametrize(
    ("query", "hours"),
    [
        ("state__exact=failed", [3]),
        ("reason__icontains=broken", [3]),
        ("namespace=shop", [3, 1]),
        ("job_name=report", [2, 0]),
        ("q=other", [3, 1]),
        ("scheduled_at__lt=2026-03-01T13:30", [1, 0]),
    ],
)
def test_search_reads_the_newest_runs_that_the_other_filters_match(
    admin_client: Client,
    runs: list[Run],
    monkeypatch: pytest.MonkeyPatch,
    query: str,
    hours: list[int],
) -> None:
    monkeypatch.setattr(log_search, "RUNS_READ", len(hours))
    assert _listed(admin_client, f"log=order&{query}") == [runs[3 - hour] for hour in hours]


def test_line_is_escaped_and_the_text_is_marked(admin_client: Client, runs: list[Run]) -> None:
    content = _get(admin_client, f"log={quote('<B>FÜR')}").content.decode()
    assert "<b>für" not in content
    marked = "order {}, 100% <mark>&lt;b&gt;für</mark>&lt;/b&gt;"
    lines = re.findall(r'<code class="dcron-log-line">(.*?)</code>', content)
    assert lines == [marked.format(hour) for hour in (3, 2, 1, 0)]


def test_line_links_to_all_matching_lines(admin_client: Client, runs: list[Run]) -> None:
    content = _get(admin_client, f"log={quote('100% <B>')}").content.decode()
    cell = content.partition('class="field-log_line"')[2].partition("</td>")[0]
    (url,) = re.findall('href="([^"]*)"', cell)
    assert admin_client.get(unescape(url)).content.decode() == "2: order 3, 100% <b>für</b>\n"


def test_link_continues_with_older_runs(
    admin_client: Client, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "RUNS_READ", 3)
    query = "log=order+0&trigger__exact=schedule"
    first = _get(admin_client, query)
    assert not first.context["cl"].result_list
    assert first.context["cl"].log_search.searched == 3
    (older,) = _links_of_note(first)
    second = admin_client.get(URL + older)
    assert list(second.context["cl"].result_list) == [runs[3]]
    (newest,) = _links_of_note(second)
    assert list(admin_client.get(URL + newest).context["cl"].result_list) == []
    assert "log_before" not in newest


def test_search_without_results_suggests_the_logs(
    admin_client: Client, staff_with: StaffWith, runs: list[Run]
) -> None:
    query = "q=%3Cb%3E+f%C3%BCr&state__exact=failed"
    (url,) = _links_of_note(_get(admin_client, query))
    assert url == "?log=%3Cb%3E+f%C3%BCr&state__exact=failed"
    assert _links_of_note(_get(staff_with("view_run"), query)) == []
    assert _links_of_note(_get(admin_client, "q=report")) == []


def test_links_start_with_the_first_page(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "RUNS_READ", 60)
    job = make_job()
    for minute in range(70):
        make_attempt(make_run(job, NOON + minute * HOUR / 60), log="order")
    (older,) = _links_of_note(_get(admin_client, "log=order&p=2"))
    assert len(admin_client.get(URL + older).context["cl"].result_list) == 10


@pytest.mark.parametrize(
    "position",
    [
        "x",
        "2026-03-01T12:00:00+00:00",
        "2026-03-01T12:00:00,0197b6f4-0000-7000-8000-000000000000",
        "2026-03-01T12:00:00+00:00,x",
        "9999-12-31T23:59:59+00:00,0197b6f4-0000-7000-8000-000000000000",
        "a%00b",
    ],
)
def test_invalid_position_is_refused(admin_client: Client, position: str) -> None:
    response = admin_client.get(f"{URL}?log=x&log_before={position.replace('+', '%2B')}")
    assert (response.status_code, response["Location"]) == (302, f"{URL}?e=1")


def test_filter_needs_the_permission_to_view_attempts(
    staff_with: StaffWith, runs: list[Run]
) -> None:
    for query in ("log=order", "log=nothing+like+it", "log="):
        response = staff_with("view_run").get(f"{URL}?{query}")
        assert (response.status_code, response["Location"]) == (302, f"{URL}?e=1")
    assert 'name="log"' not in staff_with("view_run").get(URL).content.decode()
    client = staff_with("view_run", "view_attempt")
    assert 'name="log"' in client.get(URL).content.decode()
    assert _listed(client, "log=order") == runs


def test_hidden_logs_find_nothing(settings: Any, admin_client: Client) -> None:
    """The site hides all attempts but the first, and manual runs."""
    settings.ROOT_URLCONF = narrowed_sites.Urls(narrowed_sites.planned)
    job = make_job()
    run, hidden = make_run(job), make_run(job, NOON + HOUR, trigger="manual")
    make_attempt(run, 1, log="shown text")
    make_attempt(run, 2, log="hidden text")
    make_attempt(hidden, 1, log="shown text")
    url = reverse("admin:django_dcron_run_changelist")

    def found(text: str) -> Any:
        listed = admin_client.get(f"{url}?log={text}").context["cl"]
        return list(listed.result_list), listed.log_search.searched

    assert found("shown") == ([run], 1)
    assert found("hidden") == ([], 1)


def test_number_of_queries_does_not_depend_on_the_number_of_runs(admin_client: Client) -> None:
    job = make_job()

    def queries() -> list[str]:
        with CaptureQueriesContext(connection) as captured:
            _get(admin_client, "log=order")
        return [each["sql"] for each in captured]

    make_attempt(make_run(job), log="order")
    queries()
    few = queries()
    for hour in range(1, 20):
        make_attempt(make_run(job, NOON + hour * HOUR), log="order")
    many = queries()
    assert len(many) == len(few)
    of_history = [sql for sql in many if "django_dcron_attempt" in sql or "_run" in sql]
    assert of_history
    assert not any("JOIN" in sql for sql in of_history)


def test_export_contains_the_runs_that_were_found(admin_client: Client, runs: list[Run]) -> None:
    url = reverse("admin:django_dcron_run_export", args=["json"])
    content = admin_client.get(f"{url}?log=order+2").getvalue().decode()  # type: ignore[attr-defined]
    assert str(runs[1].pk) in content
    assert not any(str(run.pk) in content for run in (runs[0], runs[2], runs[3]))


@pytest.mark.parametrize(("runs_read", "complete"), [(4, True), (3, False)])
def test_export_of_a_search_that_read_only_the_latest_logs_is_incomplete(
    admin_client: Client,
    runs: list[Run],
    monkeypatch: pytest.MonkeyPatch,
    runs_read: int,
    complete: bool,
) -> None:
    monkeypatch.setattr(log_search, "RUNS_READ", runs_read)
    url = reverse("admin:django_dcron_run_export", args=["json"])
    response: Any = admin_client.get(f"{url}?log=order+2")
    shown = json.loads(response.getvalue())
    assert ([run["id"] for run in shown["runs"]], shown["complete"]) == (
        [str(runs[1].pk)],
        complete,
    )
    assert ("-first-1-" in response["Content-Disposition"]) is not complete


def test_action_applies_to_ticked_runs_that_the_search_no_longer_reaches(
    admin_client: Client, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "RUNS_READ", 4)
    oldest = runs[-1]
    assert oldest in _listed(admin_client, "log=order")
    for hour in range(4):
        make_run(make_job(f"busy {hour}"), NOON + (10 + hour) * HOUR, state="succeeded")
    assert oldest not in _listed(admin_client, "log=order")
    ticked = {"action": "export_csv", "_selected_action": [str(oldest.pk)]}
    response = admin_client.post(f"{URL}?log=order", ticked)
    assert str(oldest.pk) in b"".join(response.streaming_content).decode()  # type: ignore[attr-defined]
