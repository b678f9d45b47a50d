"""``dcron audit``: tables, exports and filters."""

import csv
import json
from datetime import UTC, datetime
from io import StringIO

import pytest
from pytest_django import Settings

from django_dcron import control
from django_dcron.management.dcron import audit
from django_dcron.management.dcron.exits import USAGE_ERROR
from django_dcron.models import AuditEntry, Job
from tests.factories import forget_entries, make_idle_job, make_run
from tests.management.calling import call, table

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    """Return a job with three entries."""
    job = make_idle_job(name="report", namespace="shop", kwargs={})
    with control.acting_as("=ada", "10.0.0.1"):
        control.pause(job, "deploy")
    control.resume(job)
    return job


def test_table_has_the_latest_entries_first(job: Job) -> None:
    result = call("audit", "-n", "2")

    assert result.code == 0
    header, resumed, paused, more = table(result.out)
    assert header[0] == "Time"
    assert paused[1:6] == ["=ada (10.0.0.1)", "code", "pause", "job shop/report", "2"]
    assert "deploy" in paused[6]
    assert "enabled" in paused[6]
    assert resumed[3] == "resume"
    assert more


def test_json_has_the_entries_of_the_table(job: Job) -> None:
    found = json.loads(call("audit", "--json", "-n", "2").out)

    assert (found["version"], found["more"]) == (1, True)
    assert [entry["action"] for entry in found["entries"]] == ["resume", "pause"]
    exported = json.loads(call("audit", "--action", "pause", "--format", "jsonl").out)
    assert found["entries"][1] == exported
    every = json.loads(call("audit", "--json").out)
    assert (len(every["entries"]), every["more"]) == (3, False)
    none = json.loads(call("audit", "--json", "--via", "rest").out)
    assert none == {"version": 1, "entries": [], "more": False}
    assert call("audit", "--json", "--format", "csv").code == USAGE_ERROR


def test_all_times_of_the_table_are_in_the_zone_of_the_site(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Kolkata"
    ends_at = datetime(2027, 1, 1, 12, tzinfo=UTC)
    job = make_idle_job(name="report", ends_at=ends_at)
    control.pause(job, "deploy", datetime(2090, 1, 1, 12, tzinfo=UTC))
    control.freeze("deploy", until=datetime(2090, 2, 1, 12, tzinfo=UTC))
    _header, *rows = table(call("audit").out)
    freeze, pause, created = (row[6] for row in rows)
    assert "until: 2090-02-01 17:30:00 IST" in freeze
    assert "paused_until: null -> 2090-01-01 17:30:00 IST" in pause
    assert "ends_at: null -> 2027-01-01 17:30:00 IST" in created
    assert all(row[0].endswith(" IST") for row in rows)
    assert '"paused_until": "2090-01-01T12:00:00Z"' in call("audit", "--format", "jsonl").out


def test_export_has_all_entries_oldest_first(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "READ_AT_ONCE", 2)
    run = control.trigger(job)

    lines = [json.loads(line) for line in call("audit", "--format", "jsonl").out.splitlines()]
    rows = list(csv.DictReader(StringIO(call("audit", "--format", "csv").out)))

    assert [line["action"] for line in lines] == ["create", "pause", "resume", "trigger"]
    assert [row["action"] for row in rows] == ["create", "pause", "resume", "trigger"]
    assert lines[3]["run_id"] == rows[3]["run_id"] == str(run.pk)
    assert (lines[1]["actor"], rows[1]["actor"]) == ("=ada", "'=ada")
    assert lines[1]["after"] == AuditEntry.objects.get(action="pause").after
    assert json.loads(rows[1]["after"]) == lines[1]["after"]
    assert lines[0]["at"].endswith("Z")


@pytest.mark.parametrize(
    ("options", "actions"),
    [
        (("shop/report",), ["create", "pause", "resume"]),
        (("--user", "=ada"), ["pause"]),
        (("--action", "create", "--action", "resume"), ["create", "resume"]),
        (("--via", "rest"), []),
        (("--since", "1h"), ["create", "pause", "resume"]),
        (("--since", "+1h"), []),
        (("--until", "1h"), []),
        (("--since", "00:00"), ["create", "pause", "resume"]),
        (("--until", "00:00"), []),
    ],
)
def test_entries_are_selected(job: Job, options: tuple[str, ...], actions: list[str]) -> None:
    lines = call("audit", "--format", "jsonl", *options).out.splitlines()
    assert [json.loads(line)["action"] for line in lines] == actions


def test_entries_of_deleted_job_and_of_no_other_job(job: Job) -> None:
    make_idle_job(name="other")
    make_run(job, "succeeded")
    control.delete(job)
    for name in (str(job.pk), f"shop/report (deleted {job.pk})"):
        lines = call("audit", name, "--format", "jsonl").out.splitlines()
        actions = [json.loads(line)["action"] for line in lines]
        assert actions == ["create", "pause", "resume", "delete"]


def test_entries_of_a_job_without_a_row_are_found_by_name_and_number(job: Job) -> None:
    name, number = str(job), str(job.pk)
    control.delete(job)
    assert not Job.with_deleted.filter(pk=job.pk).exists()
    for text in (name, number):
        lines = call("audit", text, "--format", "jsonl").out.splitlines()
        assert json.loads(lines[-1])["action"] == "delete"
    assert call("audit", f"{name}s").code == USAGE_ERROR


def test_environment_names_the_user(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "anna")
    assert call("pause", "shop/report").code == 0
    assert AuditEntry.objects.latest("pk").actor == "anna"


def test_entries_of_an_earlier_job_of_this_name_are_included(job: Job) -> None:
    make_idle_job(name="other", namespace="shop")
    control.delete(job)
    make_idle_job(name="report", namespace="shop")
    lines = call("audit", "shop/report", "--format", "jsonl").out.splitlines()
    actions = [json.loads(line)["action"] for line in lines]
    assert actions == ["create", "pause", "resume", "delete", "create"]


def test_no_entries_and_invalid_options() -> None:
    make_idle_job()
    forget_entries()
    assert call("audit").code == 0
    assert call("audit", "--format", "jsonl").out == ""
    assert call("audit", "unknown").code == USAGE_ERROR
    assert call("audit", "--since", "soon").code == USAGE_ERROR
