"""Test ``manage.py dcron prune``: output, deleted rows and exit codes."""

import json
import re
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.models import Job, Run
from django_dcron.runs import retention
from tests.factories import make_idle_job, make_run

pytestmark = pytest.mark.django_db


def call(*options: str) -> tuple[int, str]:
    """Return the exit code and the output."""
    out = StringIO()
    try:
        call_command("dcron", "prune", *options, stdout=out)
    except CommandError as error:
        return error.returncode, out.getvalue() + str(error)
    return 0, out.getvalue()


@pytest.fixture
def nightly() -> Job:
    """A job with two old runs and a recent one."""
    job = make_idle_job(name="nightly")
    make_idle_job(name="without-runs")
    for days in (50, 40, 1):
        at = database_now("default") - timedelta(days=days)
        make_run(job, "succeeded", scheduled_at=at, due_at=at, finished_at=at)
    return job


def test_prune_deletes_and_reports_expired_runs(nightly: Job) -> None:
    assert call() == (0, "nightly: 2 runs\n2 runs deleted.\n")
    assert Run.objects.count() == 1
    assert call() == (0, "0 runs deleted.\n")


def test_dry_run_deletes_nothing(nightly: Job) -> None:
    assert call("--dry-run") == (0, "nightly: 2 runs\n2 runs would be deleted.\n")
    assert Run.objects.count() == 3


def test_json_counts_runs_per_job(nightly: Job) -> None:
    code, output = call("--json", "--dry-run")
    assert code == 0
    assert json.loads(output) == {
        "version": 1,
        "dry_run": True,
        "runs": 2,
        "jobs": [{"namespace": "default", "name": "nightly", "runs": 2, "problem": ""}],
        "audit_entries": 0,
        "definitions": 0,
    }


def test_prune_is_limited_to_jobs_or_namespace(nightly: Job) -> None:
    other = make_idle_job(name="imports", namespace="shop")
    at = database_now("default") - timedelta(days=40)
    make_run(other, "succeeded", scheduled_at=at, due_at=at, finished_at=at)
    make_run(other, "succeeded", finished_at=database_now("default"))
    assert call("--dry-run", "without-runs") == (0, "0 runs would be deleted.\n")
    assert call("--dry-run", "shop/imports", "without-runs")[1].startswith(
        "shop/imports: 1 run\n1 run would"
    )
    assert call("--namespace", "shop") == (0, "shop/imports: 1 run\n1 run deleted.\n")
    assert Run.objects.filter(job=nightly).count() == 3


def test_invalid_arguments_delete_nothing(nightly: Job) -> None:
    assert call("nightly", "nightle")[0] == 2
    assert call("nightly", "--namespace", "shop") == (
        2,
        "Job names can't be combined with --namespace.",
    )
    assert call("--namespace", "defualt")[0] == 2
    assert Run.objects.count() == 3


def test_namespace_of_deleted_jobs_only_is_known(nightly: Job) -> None:
    control.delete(nightly)
    Job.objects.all().delete()
    assert call("--namespace", "default", "--dry-run")[0] == 0


def test_locked_rows_are_reported(nightly: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*args: object) -> None:
        raise retention.DeletionBlocked("a row is locked")

    monkeypatch.setattr(retention, "_delete", locked)
    code, output = call()
    assert code == 1
    assert re.search(r"^nightly: .*: a row is locked$", output, re.MULTILINE)
    assert "1 job " in output.splitlines()[-1]
    assert (
        json.loads(call("--json")[1].partition("Some runs")[0])["jobs"][0]["problem"]
        == "a row is locked"
    )
