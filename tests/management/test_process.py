"""Test subcommands as from a shell, with real processes on the test database."""

import json
from typing import Any

import pytest

from django_dcron.jobs.portable import read_document
from tests.conftest import StartProcess
from tests.factories import make_idle_job, make_run
from tests.waiting import TIMEOUT


@pytest.fixture
def run_dcron(start_process: StartProcess) -> Any:
    def run(*arguments: str) -> tuple[int | None, str]:
        process = start_process("dcron", "-m", "django", "dcron", *arguments)
        return process.wait(TIMEOUT), process.log

    return run


READ_ONE_LINE = """
import subprocess, sys
command = [sys.executable, "-m", "django", "dcron", "next", "* * * * * *"]
command += ["-n", "1000", "--force-color"]
with subprocess.Popen(command, stdout=subprocess.PIPE) as run:
    run.stdout.readline()
    run.stdout.close()
sys.exit(run.returncode)
"""


def test_closed_pipe_during_table_exits_with_141(start_process: StartProcess) -> None:
    """rich would exit with 1, the exit code for a negative result."""
    reader = start_process("reader", "-c", READ_ONE_LINE)
    assert (reader.wait(TIMEOUT), reader.log) == (141, "")


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.nightly)])
def test_non_ascii_name_works_with_any_encoding(encoding: str, start_process: StartProcess) -> None:
    make_idle_job(name="ünï 日本")
    env = {"PYTHONIOENCODING": encoding}
    listed = start_process("dcron", "-m", "django", "dcron", "list", env=env)
    assert listed.wait(TIMEOUT) == 0, listed.log
    assert "\\u65e5\\u672c" in listed.log_path.read_text(encoding)
    exported = start_process("dcron", "-m", "django", "dcron", "export", env=env)
    assert exported.wait(TIMEOUT) == 0, exported.log
    (entry,) = read_document(exported.log_path.read_text("utf-8")).entries
    assert entry.values["name"] == "ünï 日本"


def test_process_reports_existing_run_and_unknown_job(run_dcron: Any) -> None:
    job = make_idle_job(name="nightly-report")
    run = make_run(job, "failed", reason="no such order")
    code, message = run_dcron("history", str(run.pk)[:23], "--json")
    assert (code, json.loads(message)["run"]["reason"]) == (0, "no such order")
    code, message = run_dcron("show", "nightly", "--skip-checks")
    assert (code, message) == (
        2,
        "CommandError: Unknown job 'nightly'. Did you mean nightly-report?\n",
    )
