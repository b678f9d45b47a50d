"""Test the CSV and JSON export: its rows, chunks, limits and the escaping of formulas."""

import csv
import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_dcron.admin.lists import export
from django_dcron.jobs.representation import JOB_FIELDS, document_of, read_fields
from django_dcron.models import Job, Run
from tests.admin.conftest import NOON, StaffWith, list_url, make_job, make_run


def _url(model: str, kind: str, query: str = "") -> str:
    return f"{list_url(model)}export/{kind}/?{query}"


def _text(response: Any) -> str:
    assert response.status_code == 200, response.headers
    return b"".join(response.streaming_content).decode()


def _csv(response: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(_text(response), newline="")))


def _json(response: Any, key: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(_text(response))[key]
    return rows


def test_job_can_be_recreated_from_json_export(admin_client: Client) -> None:
    """The export contains the whole document of the job."""
    job = make_job(
        "größe",
        schedule="@daily",
        timezone="Europe/Berlin",
        tags=["a", "ü"],
        retry_on=["KeyError"],
        timeout=timedelta(minutes=1, milliseconds=500),
        starts_at=NOON,
    )

    (row,) = _json(admin_client.get(_url("job", "json")), "jobs")

    assert (row["timeout"], row["misfire_grace"]) == ("1m0.5s", "1m")
    job.refresh_from_db()
    assert row == document_of(job)
    parsed = read_fields(row, list(JOB_FIELDS.values()), [])
    assert not parsed.errors
    again = Job(**parsed.values)
    assert [getattr(again, name) for name in row] == [getattr(job, name) for name in row]


def test_csv_export_of_jobs_has_headers_and_plain_values(admin_client: Client) -> None:
    make_job("größe", tags=["a"], args=[], schedule="30 3 * * *")

    response = admin_client.get(_url("job", "csv"))
    (row,) = _csv(response)

    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert response["Content-Disposition"].startswith('attachment; filename="dcron-jobs-2')
    assert (row["name"], row["tags"], row["schedule"]) == ("größe", '["a"]', "30 3 * * *")
    assert (row["timeout"], row["misfire_grace"], row["enabled"]) == ("", "1m", "True")


def test_rerun_that_queues_like_a_backfill_is_found_and_exported_as_a_rerun(
    admin_client: Client,
) -> None:
    job = make_job()
    failed = make_run(job, trigger="backfill", state="failed")
    at = NOON + timedelta(hours=1)
    rerun = make_run(job, at, trigger="backfill", state="waiting", rerun_of=failed)
    for trigger, run in (("rerun", rerun), ("backfill", failed)):
        rows = _json(admin_client.get(_url("run", "json", f"trigger__exact={trigger}")), "runs")
        assert [(row["id"], row["trigger"]) for row in rows] == [(str(run.pk), trigger)]


def test_export_of_runs_includes_delay_and_duration(admin_client: Client) -> None:
    started = NOON + timedelta(milliseconds=250)
    job = make_job(namespace="shop")
    done = make_run(
        job, state="succeeded", started_at=started, finished_at=started + timedelta(seconds=90)
    )
    make_run(job, NOON + timedelta(hours=1), rerun_of=done, state="running", started_at=NOON)

    (again, first) = _json(admin_client.get(_url("run", "json")), "runs")

    assert (first["id"], first["namespace"], first["job"]) == (str(done.pk), "shop", "report")
    assert (first["scheduled_at"], first["start_delay_seconds"], first["duration_seconds"]) == (
        "2026-03-01T12:00:00+00:00",
        0.25,
        90,
    )
    assert (again["rerun_of"], again["duration_seconds"]) == (str(done.pk), None)
    assert list(_csv(admin_client.get(_url("run", "csv")))[0]) == list(first)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "\nx", "\uff1d1"])
def test_csv_export_escapes_formulas(admin_client: Client, text: str) -> None:
    make_run(make_job(), state="failed", reason=text)

    (row,) = _csv(admin_client.get(_url("run", "csv")))

    assert row["reason"] == f"'{text}"
    assert _json(admin_client.get(_url("run", "json")), "runs")[0]["reason"] == text


def test_csv_export_keeps_numbers_and_quoted_text(admin_client: Client) -> None:
    make_run(make_job(), idempotency_key='a,b\n"c"', args=[-1])

    (row,) = _csv(admin_client.get(_url("run", "csv")))

    assert (row["attempt"], row["idempotency_key"], row["args"]) == ("1", 'a,b\n"c"', "[-1]")


def test_export_link_keeps_filters_and_search(admin_client: Client) -> None:
    shop = make_job("shop report", namespace="shop")
    make_run(shop, state="failed")
    make_run(shop, NOON + timedelta(hours=1))
    make_run(make_job("other"), state="failed")

    links = admin_client.get(f"{list_url('run')}?state__exact=failed&q=shop&p=1").context["exports"]

    assert len(links) == 2
    for _label, url in links:
        assert "p=1" not in url
        text = _text(admin_client.get(url))
        assert "shop report" in text
        assert "other" not in text
        assert "pending" not in text


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_export_action_exports_chosen_rows(admin_client: Client, kind: str) -> None:
    chosen, _left = make_job("chosen"), make_job("left")
    sent = {"action": f"export_{kind}", "_selected_action": [chosen.pk], "index": 0}

    text = _text(admin_client.post(list_url("job"), sent))

    assert "chosen" in text
    assert "left" not in text


def test_export_action_with_select_across_exports_all_pages(admin_client: Client) -> None:
    job = make_job()
    runs = [make_run(job, NOON + timedelta(minutes=number)) for number in range(60)]
    sent = {
        "action": "export_json",
        "_selected_action": [runs[0].pk],
        "index": 0,
        "select_across": 1,
    }

    rows = _json(admin_client.post(list_url("run"), sent), "runs")

    assert [row["id"] for row in rows] == [str(run.pk) for run in reversed(runs)]


def test_export_cut_at_row_limit_is_marked_incomplete(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "MAX_ROWS", 3)
    for number in range(4):
        make_job(f"job {number}", description=f"nr{number}")

    cut, whole = (
        admin_client.get(_url("job", "json")),
        admin_client.get(_url("job", "json", "q=nr3")),
    )

    assert "-first-3-" in cut["Content-Disposition"]
    assert "-first-" not in whole["Content-Disposition"]
    shown, filtered = json.loads(_text(cut)), json.loads(_text(whole))
    assert (shown["complete"], len(shown["jobs"])) == (False, 3)
    assert (filtered["complete"], len(filtered["jobs"])) == (True, 1)


def test_export_streams_in_chunks_and_skips_deleted_rows(
    rf: Any, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "CHUNK_SIZE", 2)
    job = make_job()
    runs = [make_run(job, NOON + timedelta(minutes=number)) for number in range(5)]
    run_admin: Any = admin.site.get_model_admin(Run)

    response = run_admin.export(rf.get("/"), Run.objects.order_by("scheduled_at"), "csv")
    lines = iter(response.streaming_content)
    next(lines)
    with CaptureQueriesContext(connection) as queries:
        next(lines)
    assert len(queries) == 2  # the two runs and their job
    runs[3].delete()

    rest = b"".join(lines).decode()
    assert [str(run.pk) in rest for run in runs] == [False, True, True, False, True]


def test_empty_export_is_valid_file(admin_client: Client) -> None:
    assert _json(admin_client.get(_url("run", "json")), "runs") == []
    assert _text(admin_client.get(_url("run", "csv"))).count("\r\n") == 1


def test_export_requires_view_permission(staff_with: StaffWith) -> None:
    make_run(make_job("seen"))
    client = staff_with("view_job")

    assert "seen" in _text(client.get(_url("job", "csv")))
    assert client.get(_url("run", "csv")).status_code == 403
    assert staff_with().get(_url("job", "json")).status_code == 403
    assert "/login/" in Client().get(_url("job", "json"))["Location"]


def test_unknown_format_method_or_filter_is_refused(admin_client: Client) -> None:
    assert admin_client.get(_url("job", "xlsx")).status_code == 404
    assert admin_client.post(_url("job", "csv")).status_code == 405
    assert (
        admin_client.get(_url("run", "csv", "scheduled_at__gte=nonsense"))["Location"]
        == f"{list_url('run')}?e=1"
    )
