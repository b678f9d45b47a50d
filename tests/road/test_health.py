"""A node's health as a supervisor meets it: the file, its probe, and nodes and databases that hang, freeze and die."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from django_dcron.models import Cursor, Node, Run
from django_dcron.scheduler.health_file import INTERVALS, probe
from tests import services
from tests.conftest import StartProcess
from tests.factories import make_idle_job, make_run
from tests.waiting import wait_until

PATIENCE = 60.0
QUICK = {"DCRON_TEST_SETTINGS": json.dumps({"TICK": 0.1, "LEASE": 2, "HANG_AFTER": 3})}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "health.json"


Command = Callable[[], tuple[int, str]]


@pytest.fixture
def command(start_process: StartProcess, path: Path) -> Command:
    """``manage.py dcron health``: its exit code and what it said."""

    def ask() -> tuple[int, str]:
        asked = start_process("probe", "-m", "django", "dcron", "health", "--file", str(path))
        return asked.wait(PATIENCE), asked.log.strip().removeprefix("CommandError: ")

    return ask


def wait_for_probe(path: Path, *, fit: bool, saying: str) -> None:
    def answers() -> bool:
        answer = probe(path)
        return answer.fit == fit and saying in answer.reason

    wait_until(answers, PATIENCE, what=f"a node that {'is' if fit else 'is not'} fit: {saying!r}")


def file_says(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else {}


def grow_old(path: Path) -> None:
    """As if nobody had written it for a while."""
    before = path.stat().st_mtime - 2.0 * (INTERVALS + 1)
    os.utime(path, (before, before))


def test_a_node_that_lives_freezes_and_dies(
    start_runcron: StartProcess, path: Path, command: Command
) -> None:
    node = start_runcron("--embedded", "--name", "a", "--health-file", str(path))
    wait_for_probe(path, fit=True, saying="a is ok")
    assert command() == (0, "a is ok")
    wait_until(lambda: file_says(path)["shards"] == 64, PATIENCE, what="what it leads")
    assert file_says(path)["pid"] == node.pid
    assert file_says(path)["id"] == Node.objects.get().pk
    node.freeze()
    grow_old(path)
    wait_for_probe(path, fit=False, saying="s old: a is dead or frozen")
    node.thaw()
    wait_for_probe(path, fit=True, saying="a is ok")
    node.terminate()
    assert node.wait(PATIENCE) == 0
    assert probe(path) == (False, f"{path} is not there: no node is up")
    node.start()
    wait_for_probe(path, fit=True, saying="a is ok")
    node.kill()
    grow_old(path)
    code, said = command()
    assert code == 1
    assert said.endswith("s old: a is dead or frozen")


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.parametrize("how", [pytest.param("stopped", marks=pytest.mark.nightly), "frozen"])
def test_a_database_that_stays_away_makes_unfit_until_it_is_back(
    start_runcron: StartProcess, path: Path, command: Command, database_server: services.Server, how: str
) -> None:
    """Stopped, it refuses; frozen, it lets all who ask it hang."""
    short = json.loads(QUICK["DCRON_TEST_SETTINGS"]) | {"DATABASE_GRACE": 1}
    env = {"DCRON_TEST_SETTINGS": json.dumps(short)}
    node = start_runcron("--name", "a", "--health-file", str(path), env=env)
    wait_for_probe(path, fit=True, saying="a is ok")
    connection.close()
    try:
        database_server.stop() if how == "stopped" else database_server.freeze()
        if how == "stopped":
            wait_for_probe(path, fit=False, saying="a is unfit: no tick has gone through for ")
            assert any(said.startswith("the database is away since ") for said in file_says(path)["reasons"])
            assert file_says(path)["database_away_since"]
        else:
            wait_for_probe(path, fit=False, saying="thread hangs: no sign of life for ")
        code, said = command()
        assert code == 1
        assert said.startswith("a is unfit: ")
    finally:
        database_server.start() if how == "stopped" else database_server.thaw()
    wait_for_probe(path, fit=True, saying="a is ok")
    assert 1 <= node.log.count(" is unfit: ") == node.log.count("a is fit again")
    wait_until(lambda: Node.objects.get().shards == 64, PATIENCE, what="it to lead again")
    due = make_run(make_idle_job())
    wait_until(lambda: Run.objects.get(pk=due.pk).state == "queued", PATIENCE, what="work to be done")


class TableLock:
    """Another session that keeps everybody from the cursors, on MariaDB for as long as it likes: no limit of ours counts."""

    def __init__(self) -> None:
        self._connection = connections["default"].copy()

    def __enter__(self) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLES {Cursor._meta.db_table} WRITE")

    def __exit__(self, *error: object) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute("UNLOCK TABLES")
        self._connection.close()


@pytest.mark.mariadb
def test_a_tick_that_hangs_in_the_database_is_logged_with_its_stack(
    start_runcron: StartProcess, path: Path
) -> None:
    make_idle_job()
    node = start_runcron("--name", "a", "--health-file", str(path), env=QUICK)
    wait_until(lambda: file_says(path).get("shards") == 64, PATIENCE, what="a node that leads")
    with TableLock():
        node.wait_for_log("a is unfit: the tick thread hangs", PATIENCE)
        node.wait_for_log("a leads 0 of 64 shards", PATIENCE)
        wait_for_probe(path, fit=False, saying="a is unfit: the tick thread hangs: no sign of life for ")
        assert file_says(path)["hanging"] == ["tick"]
    wait_for_probe(path, fit=True, saying="a is ok")
    wait_until(lambda: file_says(path)["shards"] == 64, PATIENCE, what="it to lead again")
    stack = node.log[node.log.index("a: its tick thread hangs") :]
    assert "Thread dcron-tick:" in stack.splitlines()[1]
    assert stack.index("in tick") < stack.index("Thread dcron-agenda:")
    assert 1 <= node.log.count("its tick thread hangs,") == node.log.count("its tick thread goes on")
    assert 1 <= node.log.count("a is unfit: ") == node.log.count("a is fit again")


def test_another_node_does_the_work_of_one_that_hangs(start_runcron: StartProcess, tmp_path: Path) -> None:
    """In a router of the project's, as deep in foreign code as it can be."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    stuck = {
        "DJANGO_SETTINGS_MODULE": "tests.road.settings_with_a_stuck_router",
        "DCRON_TEST_PIPE": str(pipe),
    }
    a = start_runcron("--name", "a", env=QUICK | stuck)
    a.wait_for_log("a leads 64 of 64 shards", PATIENCE)
    due = make_run(make_idle_job())
    a.wait_for_log("its tick thread hangs", PATIENCE)
    assert "settings_with_a_stuck_router.py" in a.log
    b = start_runcron("--name", "b", env=QUICK)
    b.wait_for_log("b leads 64 of 64 shards", PATIENCE)
    wait_until(
        lambda: Run.objects.get(pk=due.pk).state == "queued", PATIENCE, what="the other to hand it over"
    )
    assert Node.objects.get(name="a").shards == 64, "its row is as old as its last heartbeat"
    assert Run.objects.get(pk=due.pk).node == Node.objects.get(name="b").pk
    letting_go = threading.Thread(target=lambda: pipe.write_bytes(b""), daemon=True)
    letting_go.start()
    a.wait_for_log("its tick thread goes on", PATIENCE)
    wait_until(lambda: 0 < Node.objects.get(name="a").shards < 64, PATIENCE, what="a share for it")
    for node in (a, b):
        node.terminate()
        assert node.wait(PATIENCE) == 0
    assert Run.objects.get(pk=due.pk).deliveries == 1
