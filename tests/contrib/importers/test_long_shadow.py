"""Run a short version of the comparison beside a running beat.

It lasts one minute and has 80 rows. docs/contributing/imports.md describes a run of ten minutes
with 1,000 rows.
"""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from tests import services, settings
from tests.contrib.importers.beat_rows import KINDS, sizes
from tests.contrib.importers.beside_beat import (
    AT_ITS_START,
    PAST_ITS_END,
    Compared,
    compare,
    compare_interval,
    sent,
)

BEGIN = datetime(2026, 6, 1, 12, tzinfo=UTC)
END = BEGIN + timedelta(minutes=10)


def at(minutes: float, seconds: float = 0) -> datetime:
    return BEGIN + timedelta(minutes=minutes, seconds=seconds)


@pytest.mark.celery_beat
@pytest.mark.postgresql
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_shadows_match_a_running_beat() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.contrib.importers.long_shadow",
        "--tasks",
        "80",
        "--minutes",
        "1.1",
    ]
    own = {"DCRON_TEST_DIR": f"{settings.DIRECTORY.as_posix()}-shadow", "PYTEST_XDIST_WORKER": ""}
    done = subprocess.run(
        command,
        env=os.environ | own,
        cwd=services.ROOT,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The comparison is clean." in done.stdout
    assert "UNEXPLAINED" not in done.stdout


# --- The comparison -------------------------------------------------------------------------------


def test_each_message_is_paired_with_one_run() -> None:
    runs = [at(n) for n in range(10)]
    found = compare(runs, [at(n, 0.5) for n in range(10)], BEGIN, END)
    assert (found.same, found.messages_only, found.runs_only) == (10, [], [])
    assert set(found.lateness) == {timedelta(seconds=0.5)}


def test_extra_missing_and_late_messages_are_differences() -> None:
    runs = [at(n) for n in (1, 3, 5, 7)]
    found = compare(runs, [at(1, 1), at(1, 2), at(5, 61), at(7)], BEGIN, END)
    assert (found.same, found.messages_only, found.runs_only) == (
        2,
        [at(1, 2), at(6, 1)],
        [at(3), at(5)],
    )
    assert not found.is_clean


def test_messages_outside_of_the_window_are_paired_but_not_counted() -> None:
    found = compare([at(-1), at(0), at(9), at(10)], [at(-0.5), at(0, 1), at(10)], at(0), at(9))
    assert (found.same, found.messages_only, found.runs_only) == (1, [], [])


def test_interval_may_have_a_different_phase() -> None:
    runs, messages = [at(n) for n in range(10)], [at(n, 40) for n in range(10)]
    minute = timedelta(minutes=1)
    assert compare_interval(minute, runs, messages, BEGIN, END).is_clean
    assert compare_interval(minute, runs, messages[:4], BEGIN, END).runs_only
    assert compare_interval(minute, runs[:4], messages, BEGIN, END).messages_only


def test_difference_at_the_start_of_a_row_is_explained() -> None:
    found = Compared(runs_only=[at(3), at(6)], start=at(3))
    assert [why for _, _, why in found.differences()] == [AT_ITS_START, ""]
    assert not found.is_clean
    assert Compared(runs_only=[at(3)], start=at(3)).is_clean


def test_difference_after_the_end_of_an_imported_row_is_explained() -> None:
    found = Compared(runs_only=[at(2), at(3)], messages_only=[at(3)], end=at(3, 30))
    assert [(kind, why) for kind, _, why in found.differences()] == [
        ("message", ""),
        ("run", ""),
        ("run", PAST_ITS_END),
    ]


def test_log_of_celery_beat_is_parsed() -> None:
    log = (
        "[2026-06-01 12:01:00,250: INFO/MainProcess] Scheduler: Sending due task a (b) ü "
        "(tests.app.tasks.ok)\n"
    )
    assert sent(log) == {"a (b) ü": [at(1, 0.25)]}


@pytest.mark.parametrize("number", [60, 80, 1000])
def test_rows_of_every_kind_are_created(number: int) -> None:
    found = sizes(number)
    assert found.total() == number
    assert set(found) == set(KINDS)
    assert min(found.values()) >= 1
