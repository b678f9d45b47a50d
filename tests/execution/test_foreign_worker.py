"""Workers on the right broker that belong to another database or another project."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_dcron import control
from django_dcron.models import Node, Run
from tests.conftest import StartProcess
from tests.execution.conftest import reread, state_of
from tests.factories import make_idle_job
from tests.services import Process
from tests.waiting import TIMEOUT, wait_until

WAITED = timedelta(seconds=20)
"""Longer than a quarter of DCRON_REDELIVER_AFTER, and much shorter than all of it."""

StartWorker = Callable[..., Process]


@pytest.fixture
def start_foreign_worker(start_worker: StartProcess, tmp_path: Path) -> StartWorker:
    """Start a worker on its own, empty database."""
    env = {
        "DCRON_TEST_DATABASE": "sqlite",
        "DCRON_TEST_DATABASE_NAME": str(tmp_path / "foreign.sqlite3"),
    }
    return lambda **options: start_worker(env=env, **options)


@pytest.fixture
def start_bare_worker(start_process: StartProcess) -> Callable[[], Process]:
    """Start a worker of another project with its own queue."""

    def start() -> Process:
        command = ["-m", "celery", "-A", "tests.bare_celery_app", "worker", "--loglevel", "INFO"]
        options = [
            "--pool",
            "solo",
            "--without-gossip",
            "--without-mingle",
            "-Q",
            "other-project",
        ]
        return start_process("bare", *command, *options, "--hostname", f"{uuid.uuid4().hex[:8]}@%h")

    return start


def trigger() -> Run:
    return control.trigger(make_idle_job(target="tests.app.tasks.ok"))


def replies() -> list[dict[str, Any]]:
    node = Node.objects.first()
    return node.workers["replies"] if node is not None and node.workers else []


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.nightly)])
def test_foreign_worker_returns_messages_to_the_queue(
    start_worker: StartProcess, start_foreign_worker: StartWorker, pool: str
) -> None:
    foreign, good = (
        start_foreign_worker(pool=pool, wait=False),
        start_worker(pool="solo", wait=False),
    )
    for worker in (foreign, good):
        worker.wait_for_log(" ready.")
    runs: list[Run] = []

    def one_came_through_foreign_worker() -> bool:
        runs.append(trigger())
        return any(
            f"[{run.pk}.1] received" in foreign.log and state_of(run) == "succeeded" for run in runs
        )

    wait_until(one_came_through_foreign_worker, TIMEOUT, interval=0.2)
    wait_until(lambda: "unknown run: run=" in foreign.log, TIMEOUT)
    assert "WARNING" in foreign.log
    assert "foreign.sqlite3" in foreign.log
    assert "Traceback" not in foreign.log


def test_node_detects_foreign_workers_and_redelivers_runs(
    start_runcron: StartProcess,
    start_worker: StartProcess,
    start_foreign_worker: StartWorker,
    start_bare_worker: Callable[[], Process],
) -> None:
    foreign, bare, node = start_foreign_worker(wait=False), start_bare_worker(), start_runcron()
    for worker in (foreign, bare):
        worker.wait_for_log(" ready.")
    run = trigger()
    Run.objects.filter(pk=run.pk).update(due_at=run.due_at - WAITED)

    def seen() -> list[dict[str, Any]]:
        return [reply for reply in replies() if str(run.pk) in reply["unknown_runs"]]

    (foreign_reply,) = wait_until(
        seen, TIMEOUT, what="the node to learn that a worker doesn't know the run"
    )
    assert (foreign_reply["queues"], foreign_reply["executes"]) == (["celery"], True)
    (bare_reply,) = [reply for reply in replies() if reply["queues"] == ["other-project"]]
    assert (bare_reply["executes"], bare_reply["unknown_runs"]) == (False, [])
    node.wait_for_log("foreign worker: worker=")
    assert state_of(run) == "queued"
    assert foreign.log.count("unknown run: run=") < 3  # although it was delivered eleven times

    start_worker()
    wait_until(lambda: state_of(run) == "succeeded", TIMEOUT, what="the run to be dispatched again")
    assert reread(run).deliveries == 1  # the rescue, which counts deliveries, didn't dispatch it
    assert "runs redelivered: " in node.log
    assert "ERROR" not in bare.log
