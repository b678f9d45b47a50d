"""`make demo` with real processes: its output, its exit code and what it leaves behind."""

import csv
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from django_dcron.policies.lifecycle import State
from tests.waiting import TIMEOUT, wait_until

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "example_project" / "demo.py"
MARK = "DCRON_DEMO_OF_TEST"

JOBS = (
    "import-orders",
    "import-prices",
    "nightly-clearsessions",
    "sales-report",
    "shop-pulse",
    "stocktake",
    "tea-sale",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class Demo:
    """A demo, with a mark in the environment that identifies every process it starts."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, DEMO, *arguments],
                # SPT_NOENV: a worker's new title must not overwrite its environment, which contains
                # the mark.
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(ROOT),
                    "SPT_NOENV": "1",
                    MARK: self.mark,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        wait_until(
            lambda: text in self.output or self.process.poll() is not None, 90, what=repr(text)
        )
        assert text in self.output, self.output

    def reported_orders(self) -> list[int]:
        """Return the order numbers in all sales reports, ascending."""
        where = re.search(r"empty database in (\S+)\.", self.output)
        assert where, self.output
        reports = (ROOT / where[1] / "reports").glob("sales-*.csv")
        return sorted(
            int(line["number"])
            for report in reports
            for line in csv.DictReader(report.read_text().splitlines())
        )

    def environment(self) -> dict[str, str]:
        """Return the environment of the web server, for other processes on the demo's database."""
        servers = (process for process in self.left_behind() if "runserver" in process.cmdline())
        return next(servers).environ()

    def left_behind(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._has_mark(process)]

    def _has_mark(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark
        except psutil.Error:
            return False


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    started: list[Demo] = []
    yield started
    for demo in started:
        for process in demo.left_behind():
            process.kill()
        demo.process.wait(TIMEOUT)


def row(output: str, job: str) -> dict[str, str]:
    """Return the row of `job` in the final table, by column."""
    lines = [re.split(r"  +", line.strip()) for line in output.splitlines()]
    head = next(cells for cells in lines if cells[:2] == ["job", "schedule"])
    cells = next(cells for cells in lines if cells[0] == job and len(cells) == len(head))
    return dict(zip(head, cells, strict=True))


def assert_table_agrees_with_verdict(output: str) -> None:
    """Assert that the table has one run per due occurrence, except those that the verdict names."""
    assert "Every due occurrence ran exactly once" in output, output
    verdict = re.search(r"(\d+) in the last second that the next node would run", output)
    left = int(verdict[1]) if verdict else 0
    for job in JOBS:
        cells = row(output, job)
        due = int(cells["due"].rstrip("*"))
        runs = sum(int(cells[state]) for state in State if state in cells)
        assert due - left <= runs <= due, f"{job}: {output}"


@pytest.mark.nightly
def test_two_concurrent_demos_run_every_job_without_problems(
    demos: list[Demo], tmp_path: Path
) -> None:
    demos += [Demo("--for", "20", log=tmp_path / f"{number}.log") for number in (1, 2)]

    for demo in demos:
        assert demo.process.wait(TIMEOUT) == 0, demo.output
        assert demo.left_behind() == []
        assert "PROBLEM" not in demo.output
        for job, least in [
            ("shop-pulse", 8),
            ("import-orders", 4),
            ("sales-report", 1),
            ("stocktake", 1),
        ]:
            assert int(row(demo.output, job)["succeeded"]) >= least, demo.output
        # After a slow start, the sale is before the time that the table covers.
        assert "run succeeded: job=tea-sale attempt=1/1" in demo.output
        sessions = row(demo.output, "nightly-clearsessions")
        assert (sessions["due"], sessions["succeeded"], sessions["other"]) == ("0", "0", "1")
        assert_table_agrees_with_verdict(demo.output)
        assert int(row(demo.output, "import-orders")["retried"]) >= 1
        reported = demo.reported_orders()
        assert reported == list(range(1001, 1001 + len(reported))), (
            "an order is missing or reported twice"
        )


CHANGE = """
from datetime import timedelta
from time import sleep
from uuid import uuid4
from django.utils.timezone import now
from django_dcron import control
from django_dcron.models import Job, Run
for name in "shop-pulse", "stocktake":
    job = Job.objects.get(name=name)
    job.schedule = {"shop-pulse": "*/3 * * * * *", "stocktake": "@every 3s"}[name]
    control.save(job)
job = Job.objects.get(name="sales-report")
control.pause(job)
control.resume(job)
since = now() + timedelta(seconds=1)
runs = Run.objects.filter(job__name="shop-pulse", scheduled_at__gt=since, state="succeeded")
while not (gone := runs.first()):
    sleep(0.1)
gone.delete()
print(f"gone: {gone.scheduled_at:%H:%M:%S}")
extra = gone
extra.pk, extra.job = uuid4(), Job.objects.get(name="import-orders")
extra.scheduled_at = now().replace(microsecond=0)
if extra.scheduled_at.second % 4 == 0:
    extra.scheduled_at += timedelta(seconds=1)
extra.save(force_insert=True)
print(f"extra: {extra.scheduled_at:%H:%M:%S}")
"""


@pytest.mark.nightly
def test_job_changed_during_the_demo_is_checked_by_its_new_schedule(
    demos: list[Demo], tmp_path: Path
) -> None:
    demos.append(demo := Demo("--for", "14", log=tmp_path / "log"))
    demo.wait_for("The demo stops after")
    message = subprocess.run(
        [sys.executable, "manage.py", "shell", "-c", CHANGE],
        cwd=DEMO.parent,
        env=demo.environment(),
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    ).stdout
    gone = re.search(r"gone: (\S+)", message)
    extra = re.search(r"extra: (\S+)", message)
    assert gone, message
    assert extra, message

    assert demo.process.wait(TIMEOUT) == 1, demo.output
    assert f"PROBLEM: shop-pulse was due at {gone[1]} UTC but didn't run." in demo.output
    assert len(re.findall("PROBLEM: .* was due at", demo.output)) == 1
    assert f"PROBLEM: import-orders has a run at {extra[1]} UTC but wasn't due." in demo.output
    # The asterisk means that the job is checked from the change on. The number (at least 1) depends
    # on when the change came.
    assert re.fullmatch(r"[1-9]\*", row(demo.output, "shop-pulse")["due"])
    assert re.fullmatch(r"[1-9]\*", row(demo.output, "stocktake")["due"])
    assert re.fullmatch(r"[0-9]\*", row(demo.output, "sales-report")["due"])
    assert row(demo.output, "import-orders")["due"].isdigit()


@pytest.mark.parametrize("seconds", ["0", "-1", "abc", "inf", "nan"])
def test_invalid_duration_is_refused(demos: list[Demo], tmp_path: Path, seconds: str) -> None:
    demos.append(demo := Demo("--for", seconds, log=tmp_path / "log"))

    assert demo.process.wait(TIMEOUT) == 2
    assert f"argument --for: '{seconds}' isn't a positive number of seconds" in demo.output


def test_ctrl_c_ends_the_demo_with_a_summary(demos: list[Demo], tmp_path: Path) -> None:
    demos.append(demo := Demo(log=tmp_path / "log"))
    demo.wait_for("Press Ctrl-C to stop.")
    demo.process.send_signal(signal.SIGINT)

    assert demo.process.wait(TIMEOUT) == 0, demo.output
    assert_table_agrees_with_verdict(demo.output)
    assert demo.left_behind() == []


def test_signal_during_the_start_leaves_no_process(demos: list[Demo], tmp_path: Path) -> None:
    demos.append(demo := Demo(log=tmp_path / "log"))
    wait_until(lambda: len(demo.left_behind()) > 4, what="its processes to start")
    demo.process.send_signal(signal.SIGTERM)

    assert demo.process.wait(TIMEOUT) == 130, demo.output
    assert demo.left_behind() == []


@pytest.mark.nightly
def test_unexpected_exit_of_a_process_is_reported(demos: list[Demo], tmp_path: Path) -> None:
    demos.append(demo := Demo("--for", "8", log=tmp_path / "log"))
    demo.wait_for("The demo stops after")
    node = next(process for process in demo.left_behind() if "node-b" in process.cmdline())
    node.kill()

    assert demo.process.wait(TIMEOUT) == 1, demo.output
    assert "PROBLEM: node-b exited unexpectedly with exit code -9." in demo.output
    assert demo.left_behind() == []
