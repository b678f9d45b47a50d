"""A node's health as supervisors see it: the file, its probe, hanging and dying processes."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from django_dcron.models import Cursor, Node, Run
from django_dcron.scheduler.health_file import MAX_AGE_IN_INTERVALS, probe
from tests import services
from tests.conftest import StartProcess
from tests.factories import make_idle_job, make_run
from tests.waiting import TIMEOUT, wait_until

QUICK = {"DCRON_TEST_SETTINGS": json.dumps({"TICK": 0.1, "LEASE": 2, "HANG_AFTER": 3})}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "health.json"


Command = Callable[[], tuple[int, str]]


@pytest.fixture
def command(start_process: StartProcess, path: Path) -> Command:
    """Run ``manage.py dcron health``. Return its exit code and its output."""

    def ask() -> tuple[int, str]:
        asked = start_process("probe", "-m", "django", "dcron", "health", "--file", str(path))
        return asked.wait(TIMEOUT), asked.log.strip().removeprefix("CommandError: ")

    return ask


def wait_for_probe(path: Path, *, fit: bool, saying: str) -> None:
    def answers() -> bool:
        answer = probe(path)
        return answer.fit == fit and saying in answer.reason

    wait_until(answers, TIMEOUT, what=f"a node that {'is' if fit else 'is not'} fit: {saying!r}")


def file_says(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else {}


def grow_old(path: Path) -> None:
    """Set the file's time stamp back, as if nothing had written it for a while."""
    before = path.stat().st_mtime - 2.0 * (MAX_AGE_IN_INTERVALS + 1)
    os.utime(path, (before, before))


def test_health_file_shows_whether_a_node_is_alive_suspended_or_dead(
    start_runcron: StartProcess, path: Path, command: Command
) -> None:
    node = start_runcron("--embedded", "--name", "a", "--health-file", str(path))
    wait_for_probe(path, fit=True, saying="a is ok")
    assert command() == (0, "a is ok")
    wait_until(lambda: file_says(path)["shards"] == 64, TIMEOUT, what="the node to lead all shards")
    assert file_says(path)["pid"] == node.pid
    assert file_says(path)["id"] == Node.objects.get().pk
    node.suspend()
    grow_old(path)
    wait_for_probe(path, fit=False, saying="s old: a is dead or suspended")
    node.resume()
    wait_for_probe(path, fit=True, saying="a is ok")
    node.terminate()
    assert node.wait(TIMEOUT) == 0
    assert probe(path) == (False, f"{path} doesn't exist: no node is running")
    node.start()
    wait_for_probe(path, fit=True, saying="a is ok")
    node.kill()
    grow_old(path)
    code, message = command()
    assert code == 1
    assert message.endswith("s old: a is dead or suspended")


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.parametrize("how", [pytest.param("stopped", marks=pytest.mark.nightly), "suspended"])
def test_node_is_unfit_while_the_database_is_unreachable_for_long(
    start_runcron: StartProcess,
    path: Path,
    command: Command,
    database_server: services.Server,
    how: str,
) -> None:
    """A stopped database refuses connections. A suspended one never answers."""
    short = json.loads(QUICK["DCRON_TEST_SETTINGS"]) | {"DATABASE_GRACE": 1}
    env = {"DCRON_TEST_SETTINGS": json.dumps(short)}
    node = start_runcron("--name", "a", "--health-file", str(path), env=env)
    wait_for_probe(path, fit=True, saying="a is ok")
    connection.close()
    try:
        database_server.stop() if how == "stopped" else database_server.suspend()
        if how == "stopped":
            wait_for_probe(path, fit=False, saying="a is unfit: no tick has succeeded for ")
            assert any(
                message.startswith("the database has been unusable since ")
                for message in file_says(path)["reasons"]
            )
            assert file_says(path)["database_unreachable_since"]
        else:
            wait_for_probe(path, fit=False, saying="thread hangs: no activity for ")
        code, message = command()
        assert code == 1
        assert message.startswith("a is unfit: ")
    finally:
        database_server.start() if how == "stopped" else database_server.resume()
    wait_for_probe(path, fit=True, saying="a is ok")
    assert 1 <= node.log.count("node unfit: ") == node.log.count("node fit again")
    wait_until(lambda: Node.objects.get().shards == 64, TIMEOUT, what="the node to lead again")
    due = make_run(make_idle_job())
    wait_until(
        lambda: Run.objects.get(pk=due.pk).state == "queued", TIMEOUT, what="a run to be dispatched"
    )


@contextmanager
def locked_table(table: str) -> Iterator[None]:
    """Lock a table in another session, as an ``ALTER TABLE`` or a backup does."""
    other = connections["default"].copy()
    with other.cursor() as cursor:
        if other.vendor == "postgresql":
            cursor.execute("BEGIN")
            cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        else:
            cursor.execute(f"LOCK TABLES {table} WRITE")
    try:
        yield
    finally:
        other.close()


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_locked_table_blocks_the_steps_that_need_it(
    start_runcron: StartProcess, path: Path
) -> None:
    job = make_idle_job()
    node = start_runcron("--name", "a", "--health-file", str(path), env=QUICK)
    wait_until(lambda: file_says(path).get("shards") == 64, TIMEOUT, what="a node that leads")
    with locked_table(Cursor._meta.db_table):
        wait_for_probe(path, fit=True, saying="a is degraded: another transaction has locked")
        assert "claim" in file_says(path)["blocked_steps"]
        due = make_run(job)
        wait_until(
            lambda: Run.objects.get(pk=due.pk).state == "queued",
            TIMEOUT,
            what="the run to be dispatched in spite of the lock",
        )
    wait_for_probe(path, fit=True, saying="a is ok")
    assert "thread hangs" not in node.log


def test_another_node_takes_over_from_a_hanging_node(
    start_runcron: StartProcess, tmp_path: Path
) -> None:
    """The thread hangs in the project's router, as deep in third-party code as possible."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    stuck = {
        "DJANGO_SETTINGS_MODULE": "tests.end_to_end.settings_with_a_stuck_router",
        "DCRON_TEST_PIPE": str(pipe),
    }
    a = start_runcron("--name", "a", env=QUICK | stuck)
    a.wait_for_log("node=a shards=64/64", TIMEOUT)
    due = make_run(make_idle_job())
    a.wait_for_log("thread hangs: node=a thread=tick", TIMEOUT)
    assert "settings_with_a_stuck_router.py" in a.log
    b = start_runcron("--name", "b", env=QUICK)
    b.wait_for_log("node=b shards=64/64", TIMEOUT)
    wait_until(
        lambda: Run.objects.get(pk=due.pk).state == "queued",
        TIMEOUT,
        what="the other node to dispatch the run",
    )
    assert Node.objects.get(name="a").shards == 64, "its row dates from its last heartbeat"
    assert Run.objects.get(pk=due.pk).node == Node.objects.get(name="b").pk
    release = threading.Thread(target=lambda: pipe.write_bytes(b""), daemon=True)
    release.start()
    a.wait_for_log("thread recovered: node=a thread=tick", TIMEOUT)
    wait_until(
        lambda: 0 < Node.objects.get(name="a").shards < 64, TIMEOUT, what="the node to lead a share"
    )
    for node in (a, b):
        node.terminate()
        assert node.wait(TIMEOUT) == 0
    assert Run.objects.get(pk=due.pk).deliveries == 1
