"""The demo's report: runs that were skipped, cancelled or missed, and jobs that were changed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import TIMEOUT

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "example_project"

# The shop of each case is open for 8.5 s, so an unchanged job is due at seconds 2, 4, 6 and 8. The
# nodes may leave the occurrence at second 8 to the next node.
CASES: dict[str, dict[str, Any]] = {
    "succeeded": {"runs": {2: "succeeded", 4: "succeeded", 6: "succeeded", 8: "succeeded"}},
    "not run": {"runs": {2: "skipped", 4: "cancelled", 6: "skipped", 8: "missed"}},
    "missed": {"runs": {2: "succeeded", 4: "missed", 6: "succeeded", 8: "succeeded"}},
    "left": {"runs": {2: "skipped", 4: "succeeded", 6: "succeeded", 8: "queued"}},
    "no run": {"runs": {2: "succeeded", 6: "succeeded"}},
    "unfinished": {"runs": {2: "succeeded", 4: "running", 6: "succeeded", 8: "succeeded"}},
    "not due": {
        "runs": {2: "succeeded", 3: "skipped", 4: "succeeded", 6: "succeeded", 8: "succeeded"}
    },
    "paused and resumed": {
        "actions": {1: "pause", 4.5: "resume"},
        "runs": {6: "succeeded", 8: "succeeded"},
    },
    "paused until second 5": {"until": 5, "runs": {6: "succeeded", 8: "succeeded"}},
    "paused": {"actions": {1: "pause"}, "runs": {}},
    "one-time job": {"schedule": "@at 2026-11-18T12:00:04Z", "end": True, "runs": {4: "succeeded"}},
    "paused one-time job": {
        "schedule": "@at 2026-11-18T12:00:04Z",
        "actions": {2: "pause"},
        "runs": {},
    },
    "waiting": {"runs": {2: "succeeded", 4: "succeeded", 6: "pending", 8: "succeeded"}},
    "other triggers": {
        "runs": {2: "succeeded", 4: "succeeded", 6: "succeeded", 8: "succeeded"},
        "others": {-86400: "backfill", 3.1: "manual", 3.2: "rerun", 3.3: "chain"},
    },
}

# The tests' settings don't install the shop's app, so another process prepares the cases. Each is
# in a transaction that it rolls back.
REPORT = """
import json, sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from unittest import mock

import django
from django.conf import settings

settings.MIGRATION_MODULES = {app.rpartition(".")[2]: None for app in settings.INSTALLED_APPS}
django.setup()
from django.core.management import call_command
from django.db import transaction
from demo_account import Account
from django_dcron import control
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.jobs.pausing import end_pauses
from django_dcron.models import Job, Run
from django_dcron.testing import set_clock

def at(second):
    return datetime(2026, 11, 18, 12, tzinfo=UTC) + timedelta(seconds=float(second))

@contextmanager
def clock(second):
    with mock.patch("django.utils.timezone.now", return_value=at(second)), set_clock(at(second)):
        yield

def create_run(job, second, claimed_at, **columns):
    due = at(second)
    Run.objects.create(job=job, scheduled_at=due, due_at=due, claimed_at=claimed_at, **columns)

def report(case):
    job = Job(
        name="pulse", target="shop.cron.shop_pulse", schedule=case.get("schedule", "*/2 * * * * *")
    )
    with clock(0):
        control.save(job)
        account = Account(set())
    for second, action in case.get("actions", {}).items():
        with clock(second):
            getattr(control, action)(job)
    if end := case.get("until"):
        with clock(1):
            control.pause(job, until=at(end))
            account.watch()
            assert end_pauses(Job.objects.all()) == 1  # ahead of the end
    for second, state in case["runs"].items():
        # A pending run waits for its second attempt.
        columns = {"attempt": 2, "started_at": at(5), "queued_at": at(5)}
        create_run(job, second, at(5), state=state, **(columns if state == "pending" else {}))
    for second, trigger in case.get("others", {}).items():
        create_run(job, second, at(5), state="succeeded", trigger=trigger)
    if case.get("end"):
        disable_exhausted([job.pk], "default")
    with clock(8.5):
        account.close()
    row, = account.jobs
    return {
        "problems": account.problems(),
        "verdict": account.verdict(),
        "due": row.cells([])[0],
        "delay": row.cells([])[-2],
        "other": row.cells([])[-1],
        "text": account.text(),
    }

call_command("migrate", run_syncdb=True, verbosity=0)
reports = {}
for name, case in json.loads(sys.argv[1]).items():
    with transaction.atomic():
        reports[name] = report(case)
        transaction.set_rollback(True)
print(json.dumps(reports))
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    output = subprocess.run(
        [sys.executable, "-c", REPORT, json.dumps(CASES)],
        cwd=EXAMPLE,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{EXAMPLE}{os.pathsep}{ROOT}",
            "DJANGO_SETTINGS_MODULE": "shop_site.settings",
            "SHOP_DIR": str(tmp_path_factory.mktemp("shop")),
        },
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
    ).stdout
    found: dict[str, dict[str, Any]] = json.loads(output)
    return found


@pytest.mark.parametrize(
    ("case", "exceptions"),
    [
        ("succeeded", ""),
        ("not run", ", except 2 skipped, 1 cancelled, 1 missed"),
        ("left", ", except 1 skipped, 1 in the last second that the next node would run"),
    ],
)
def test_verdict_counts_occurrences_that_did_not_run(
    reports: dict[str, dict[str, Any]], case: str, exceptions: str
) -> None:
    assert reports[case]["problems"] == []
    assert reports[case]["verdict"] == f"Every due occurrence ran exactly once{exceptions}."


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        ("missed", "pulse was due at 12:00:04 UTC but didn't run."),
        ("no run", "pulse was due at 12:00:04 UTC but didn't run."),
        ("unfinished", "pulse was due at 12:00:04 UTC and is still running."),
        ("not due", "pulse has a run at 12:00:03 UTC but wasn't due."),
    ],
)
def test_missing_unfinished_and_unexpected_runs_are_problems(
    reports: dict[str, dict[str, Any]], case: str, problem: str
) -> None:
    assert reports[case]["problems"] == [problem]


@pytest.mark.parametrize(
    ("case", "due"),
    [
        ("paused and resumed", "2*"),
        ("paused until second 5", "2*"),
        ("paused", "0*"),
        ("one-time job", "1"),
        ("paused one-time job", "0*"),
    ],
)
def test_changed_job_is_checked_from_the_change_on(
    reports: dict[str, dict[str, Any]], case: str, due: str
) -> None:
    assert reports[case]["problems"] == []
    assert reports[case]["due"] == due


def test_runs_that_the_schedule_did_not_create_have_their_own_column(
    reports: dict[str, dict[str, Any]],
) -> None:
    assert reports["other triggers"]["problems"] == []
    assert (reports["other triggers"]["due"], reports["other triggers"]["other"]) == ("4", "4")


def test_run_that_waits_for_its_next_attempt_has_no_delay(
    reports: dict[str, dict[str, Any]],
) -> None:
    report = reports["waiting"]
    assert report["problems"] == []
    assert report["verdict"].endswith("Runs that wait for their next attempt: 1.")
    assert report["delay"] == "-"
    assert "started before their dispatch" not in report["text"]
