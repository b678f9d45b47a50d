"""Test ``manage.py dcron doctor``: exit codes, text, JSON and documentation."""

import json
import re
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import OperationalError
from django.utils import timezone
from pytest_django import Settings

from django_dcron import control
from django_dcron.diagnosis.doctor.findings import NAMED, WARNINGS, Code
from django_dcron.diagnosis.doctor.window import format_moment
from django_dcron.jobs.representation import to_json
from django_dcron.management.dcron import doctor
from django_dcron.models import Attempt, Cursor, Job, Node, Run
from tests.diagnosis.conftest import MINUTE, System
from tests.factories import make_idle_job, make_run
from tests.management import calling

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "doctor.md").read_text()


def call(*options: str) -> tuple[int, str]:
    """Return the exit code and the output."""
    out = StringIO()
    try:
        call_command("dcron", "doctor", *options, stdout=out)
    except CommandError as error:
        return error.returncode, out.getvalue() + str(error)
    return 0, out.getvalue()


def test_healthy_system_exits_with_0(system: System) -> None:
    code, output = call()
    assert code == 0
    assert (
        "1 live node; checked the schedules of 1 of 1 job (5 occurrences, 5 runs) and the rows of "
        "5 runs" in output
    )
    assert not re.search("^(error|warning) ", output, re.MULTILINE)


def test_difference_between_occurrences_and_runs_and_jobs_is_explained(system: System) -> None:
    Run.objects.filter(
        scheduled_at__in=[system.latest - MINUTE, system.latest - 2 * MINUTE]
    ).delete()
    Run.objects.filter(scheduled_at=system.latest).update(
        missed_before=2, missed_from=system.latest - 2 * MINUTE
    )
    control.pause(make_idle_job(), "deploy")
    output = call()[1]
    shown = "1 of 2 jobs (5 occurrences, 3 runs, 2 missed occurrences counted by later runs)"
    assert shown in output
    assert "note: The schedules of 1 job weren't checked. " in output
    missed = "note: 2 occurrences were missed in this period (2 of them counted by later runs)."
    assert missed in output.splitlines(), "no run is missed, so there is none to list"


def test_note_on_missed_runs_has_the_command_that_lists_them(system: System) -> None:
    Run.objects.filter(scheduled_at=system.latest).update(
        state="missed", started_at=None, heartbeat_at=None
    )
    note = next(line for line in call()[1].splitlines() if "missed in this period" in line)
    assert note.startswith("note: 1 occurrence was missed in this period. To list these runs: ")
    command = note.partition("manage.py dcron ")[2].split()
    assert len(calling.call(*command, "--json").json["runs"]) == 1


def test_doctor_that_checked_no_schedule_says_so(system: System) -> None:
    control.pause(system.job, "deploy")
    code, output = call()
    assert (code, output.splitlines()[-1].startswith("No problems found, but ")) == (0, True)
    assert "checked the schedules of 0 of 1 job " in output


def test_stalled_queue_is_named_and_keeps_the_doctor_from_finding_no_problems(
    system: System, settings: Settings
) -> None:
    settings.DCRON_DISPATCHER = "celery"
    Attempt.objects.update(started_at=system.latest - timedelta(hours=1))
    waiting = timezone.now() - timedelta(seconds=30)
    job = make_idle_job(queue="reports")
    make_run(job, "queued", queued_at=waiting, due_at=waiting)
    code, output = call()
    assert code == 0
    assert re.search("^note: No queued run has started for .* queue reports ", output, re.MULTILINE)
    assert output.splitlines()[-1].startswith("No other problems found.")
    Run.objects.filter(job=job).delete()
    assert call()[1].endswith("No problems found.\n")


def test_overdue_occurrence_has_its_delay_in_words(system: System) -> None:
    Cursor.objects.update(next_at=timezone.now() - timedelta(hours=1, minutes=2, seconds=20))
    output = call()[1]
    assert re.search("is 1h 2m [0-9]+s overdue", output)
    assert "manage.py dcron doctor" not in output, "the doctor doesn't recommend itself"


def test_findings_exit_with_1_and_one_line_each(system: System) -> None:
    Run.objects.filter(scheduled_at=system.latest - 2 * MINUTE).delete()
    Node.objects.update(degraded=True)
    code, output = call()
    assert code == 1
    assert re.search(
        rf"^error +occurrence_missing +job {system.job}: 1 occurrence ", output, re.MULTILINE
    )
    assert re.search(r"^warning node_degraded +cluster: .*: a\.", output, re.MULTILINE)
    assert output.index("\nerror ") < output.index("\nwarning "), "the most urgent first"
    assert output.endswith("2 findings.")


def test_times_are_in_the_time_zone_of_the_site(system: System) -> None:
    Run.objects.filter(scheduled_at=system.latest - 2 * MINUTE).delete()
    Node.objects.update(heartbeat_at=system.latest - timedelta(hours=1))
    with timezone.override("Asia/Tokyo"):
        _, output = call("--since", "2h")
        _, from_noon = call("--since", "2026-11-23T12:00")
    times = re.findall(r"\d\d:\d\d:\d\d \S+", output)
    assert len(times) > 3
    assert {time.split()[1].strip(".:") for time in times} == {"JST"}
    assert from_noon.startswith("2026-11-23 12:00:00 JST")


def test_repeated_findings_take_one_line_per_code(system: System) -> None:
    due_at = system.latest - timedelta(hours=2)
    runs = [make_run(system.job, due_at=due_at + n * MINUTE) for n in range(30)]
    code, output = call()
    assert code == 1
    (line,) = re.findall(r"^\w+ +run_overdue .*$", output, re.MULTILINE)
    assert line.split()[2] == "30"
    assert f"oldest at {format_moment(runs[0].due_at)}" in line
    assert [str(run.pk) in line for run in runs] == [True] * 3 + [False] * 27
    assert "27 more" in line
    assert line.count("See the findings about nodes") == 1, "the remedy"

    verbose = call("--verbosity", "2")[1]
    assert len(re.findall(r"^\w+ +run_overdue .*$", verbose, re.MULTILINE)) == NAMED
    assert verbose.count("See the findings about nodes") == 1, "the remedy"

    report = json.loads(call("--json")[1].partition("\n}")[0] + "}")
    summary = {each["code"]: each for each in report["summary"]}
    assert summary["run_overdue"]["count"] == 30
    assert summary["run_overdue"]["oldest"] == to_json(runs[0].due_at)
    assert all(report[name].endswith("Z") for name in ("at", "since", "until"))
    assert len([each for each in report["findings"] if each["code"] == "run_overdue"]) == NAMED
    assert report["more"]["run_overdue"] == 30 - NAMED


def test_runs_with_one_known_cause_are_one_finding(system: System) -> None:
    due_at = system.latest - timedelta(hours=2)
    runs = [
        make_run(system.job, due_at=due_at + n * MINUTE, node=system.node.id) for n in range(30)
    ]
    code, output = call()
    assert (code, output.splitlines()[-1]) == (1, "2 findings.")
    (line,) = re.findall(r"^\w+ +run_overdue .*$", output, re.MULTILINE)
    assert "30 runs wait because of no_broker" in line
    assert "no node leads" not in line, "a guess"
    assert [str(run.pk) in line for run in runs] == [True] * 3 + [False] * 27

    listed = re.findall(r"^ +run_overdue +run of .*$", call("--verbosity", "2")[1], re.MULTILINE)
    assert len(listed) == NAMED

    report = json.loads(call("--json")[1].partition("\n}")[0] + "}")
    (finding,) = [each for each in report["findings"] if each["code"] == "run_overdue"]
    assert (finding["explained_by"], finding["count"]) == (["no_broker"], 30)
    assert len(finding["explained"]) == NAMED
    assert finding["explained"][0]["subject"]["id"] == str(runs[0].pk)
    assert report["more"] == {}


def test_invalid_options_or_database_error_exit_with_2(
    system: System, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    def raise_database_error(*args: object) -> None:
        raise OperationalError("no such table: django_dcron_job")

    assert call("--since", "yesterday")[0] == 2
    assert call("--since", "2026-13-01")[0] == 2
    assert call("--since", "99999999d")[0] == 2
    assert call("--since", "1h", "--until", "2h")[0] == 2
    assert call("--since", "1h", "--until", "")[0] == 2
    assert call("--limit", "0")[0] == 2
    settings.DCRON_LOCK = "no.such.Lock"
    assert call()[0] == 2
    settings.DCRON_LOCK = "redis"
    monkeypatch.setattr(doctor, "examine", raise_database_error)
    code, output = call()
    assert code == 2
    assert "no such table" in output


def test_window_accepts_times_and_durations(system: System) -> None:
    start = (system.latest - 2.5 * MINUTE).isoformat()
    assert json.loads(call("--json", "--since", start)[1])["checked"]["occurrences"] == 3
    end = (system.latest - MINUTE).replace(tzinfo=None).isoformat()
    assert (
        json.loads(call("--json", "--since", "2d", "--until", end)[1])["checked"]["occurrences"]
        == 4
    )
    assert json.loads(call("--json", "--limit", "2")[1])["checked"]["occurrences"] == 2
    midnight = system.latest.replace(hour=0, minute=0, second=0, microsecond=0)
    report = json.loads(call("--json", "--since", "2d", "--until", "00:00")[1])
    assert datetime.fromisoformat(report["until"]) == midnight


def test_doctor_is_limited_to_namespace(system: System) -> None:
    Job.objects.update(target="nobody.has.this")
    assert call()[0] == 1
    make_idle_job(namespace="elsewhere")
    assert call("--namespace", "elsewhere")[0] == 0
    assert call("--namespace", "default")[0] == 1


def test_unknown_namespace_is_refused_with_the_existing_ones(system: System) -> None:
    code, output = call("--namespace", "defualt")
    assert code == 2
    assert "'defualt'" in output
    assert "Did you mean 'default'?" in output


def test_json_has_documented_keys(system: System) -> None:
    Job.objects.update(target="nobody.has.this")
    code, output = call("--json")
    assert code == 1
    report = json.loads(output.removesuffix("1 finding."))
    assert list(report) == re.findall(r"^\| `(\w+)` \|", _section("## JSON"), re.MULTILINE)
    assert report["version"] == 1
    assert report["healthy"] is False
    assert list(report["checked"]) == [
        "jobs",
        "jobs_accounted_for",
        "occurrences",
        "scheduled_runs",
        "counted_by_later_runs",
        "runs",
        "live_nodes",
    ]
    (finding,) = report["findings"]
    assert "'nobody.has.this'" in finding.pop("message")
    assert finding == {
        "code": "unknown_target",
        "severity": "error",
        "subject": {"kind": "job", "id": str(system.job.pk), "name": str(system.job)},
    }
    assert report["more"] == {}
    assert report["summary"] == [
        {"code": "unknown_target", "severity": "error", "count": 1, "oldest": None}
    ]
    assert isinstance(report["notes"], list)


def test_every_code_is_documented_with_severity() -> None:
    documented = dict(re.findall(r"^\| `(\w+)` \| (error|warning) \|", DOCUMENT, re.MULTILINE))
    assert documented == {code.value: "warning" if code in WARNINGS else "error" for code in Code}


def _section(title: str) -> str:
    return DOCUMENT[DOCUMENT.index(title) :]
