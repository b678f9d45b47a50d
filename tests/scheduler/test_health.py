"""The health verdict of a node, and the file that reports it."""

import errno
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_dcron.scheduler.health import HealthStatus, NodeFacts, NodeHealth, judge
from django_dcron.scheduler.health_file import MAX_AGE_IN_INTERVALS, HealthFile, main, probe
from tests.scheduler.stand_ins import START

WELL = NodeFacts(
    at=START,
    name="a",
    id="a-1",
    namespace="billing",
    version="0.1.0",
    pid=7,
    since=START,
    shards=64,
    leases=60,
    agenda=3,
    lag=0.25,
    ticked=True,
    tick_age=0.4,
    heartbeat_age=1.5,
    hanging={},
    waiting={},
    check_age=2.0,
    database_unreachable_since=None,
    database_error="",
    lock_degraded=False,
    lock_error="",
    broker_unreachable=False,
    broker_error="",
    skew=0.01,
    draining=False,
)
GRACE = 300.0


def judged(**facts: Any) -> NodeHealth:
    return judge(replace(WELL, **facts), GRACE)


# --- the verdict --------------------------------------------------------------------------------

UNREACHABLE = {"database_unreachable_since": START, "database_error": "refused"}
UNREACHABLE_REASON = "the database has been unusable since 2026-03-01 12:00:00 UTC: refused"
LOCK_FAILS = {"lock_degraded": True, "lock_error": "read-only"}
LOCK_REASON = "shards are assigned by hash, without locks: read-only"
BROKER_FAILS = {"broker_unreachable": True, "broker_error": "out of memory"}
BROKER_REASON = "the broker accepts no messages, so runs wait on the agenda: out of memory"
HANGS = {"hanging": {"tick": 61.0}}
HANGS_REASON = "the tick thread hangs: no activity for 61 s"
ALERTS_HANG = {"hanging": {"alerts-ops": 61.0, "alerts": 75.0}}
ALERTS_HANG_REASONS = [
    "the alerts-ops thread hangs: no activity for 61 s",
    "the alerts thread hangs: no activity for 75 s",
]
WAITS = {"waiting": {"tick": 61.0}}
WAITS_REASON = "the tick thread has been waiting for the database for 61 s"
CLOCK_REASON = "the database clock jumped by -6.0 s: cluster time doesn't follow it yet"
BLOCKED_REASON = (
    "another transaction has locked rows or tables of django_dcron in the database: the node "
    "hasn't completed adopt for 10 s, claim for 12 s"
)
FOREIGN_REASON = (
    "vm-1, a node of another database, has locks of this node's shards: give each site that "
    "shares a Redis its own KEY_PREFIX in CACHES"
)
STARTS = {"at": None, "since": None, "ticked": False}


@pytest.mark.parametrize(
    ("facts", "status", "reasons"),
    [
        ({}, "ok", []),
        ({"skew": 600.0}, "ok", []),
        ({"tick_age": GRACE, "heartbeat_age": GRACE}, "ok", []),
        (LOCK_FAILS, "degraded", [LOCK_REASON]),
        (BROKER_FAILS, "degraded", [BROKER_REASON]),
        ({"clock_doubt": -6.0}, "degraded", [CLOCK_REASON]),
        ({"blocked_steps": {"claim": 12.4, "adopt": 10.1}}, "degraded", [BLOCKED_REASON]),
        ({"foreign_lock_holder": "vm-1"}, "degraded", [FOREIGN_REASON]),
        (UNREACHABLE | {"tick_age": GRACE}, "degraded", [UNREACHABLE_REASON]),
        ({"database_error": "a deadlock"}, "ok", []),
        ({"tick_age": GRACE + 1}, "unfit", ["no tick has succeeded for 301 s"]),
        (
            {"tick_age": GRACE + 1, "database_error": "a deadlock"},
            "unfit",
            ["no tick has succeeded for 301 s: a deadlock"],
        ),
        ({"heartbeat_age": GRACE + 1}, "unfit", ["no heartbeat written for 301 s"]),
        (
            UNREACHABLE | {"tick_age": GRACE + 1},
            "unfit",
            ["no tick has succeeded for 301 s: refused", UNREACHABLE_REASON],
        ),
        (HANGS, "unfit", [HANGS_REASON]),
        ({"check_age": 10.5}, "unfit", ["the health monitor hangs: no check for 10 s"]),
        (HANGS | BROKER_FAILS, "unfit", [HANGS_REASON, BROKER_REASON]),
        (ALERTS_HANG, "degraded", ALERTS_HANG_REASONS),
        (
            {"hanging": ALERTS_HANG["hanging"] | HANGS["hanging"]},
            "unfit",
            [HANGS_REASON, *ALERTS_HANG_REASONS],
        ),
        (WAITS | {"tick_age": GRACE}, "degraded", [WAITS_REASON]),
        (
            WAITS | {"tick_age": GRACE + 1},
            "unfit",
            ["no tick has succeeded for 301 s", WAITS_REASON],
        ),
        (STARTS, "starting", []),
        (STARTS | {"tick_age": GRACE + 1}, "unfit", ["no tick has succeeded for 301 s"]),
        ({"draining": True}, "draining", []),
        (
            HANGS | {"draining": True, "tick_age": 1e6},
            "draining",
            [HANGS_REASON, "no tick has succeeded for 1000000 s"],
        ),
    ],
)
def test_status_and_reasons_follow_from_the_facts(
    facts: dict[str, Any], status: str, reasons: list[str]
) -> None:
    health = judged(**facts)
    assert (health.status, list(health.reasons)) == (status, reasons)
    assert health.status.fit == (status != "unfit")
    assert health.as_json()["reasons"] == reasons


@pytest.mark.parametrize(
    ("facts", "alive", "ready"),
    [
        ({}, True, True),
        ({"lock_degraded": True}, True, True),
        ({"broker_unreachable": True}, True, True),
        (UNREACHABLE, True, False),
        ({"ticked": False}, True, False),
        (STARTS, True, False),
        ({"tick_age": GRACE + 1}, True, False),
        (WAITS, True, True),
        (HANGS, False, False),
        (ALERTS_HANG, True, True),
        ({"check_age": 10.5}, False, False),
        ({"draining": True}, True, False),
        (HANGS | {"draining": True}, True, False),
    ],
)
def test_alive_and_ready_follow_from_the_facts(
    facts: dict[str, Any], alive: bool, ready: bool
) -> None:
    health = judged(**facts)
    assert (health.alive, health.ready) == (alive, ready)


def test_health_as_json() -> None:
    shown = judged(hanging={"tick": 61.0}, **UNREACHABLE).as_json()
    assert json.loads(json.dumps(shown)) == shown
    assert shown | {"reasons": []} == {
        "status": "unfit",
        "reasons": [],
        "name": "a",
        "id": "a-1",
        "namespace": "billing",
        "version": "0.1.0",
        "pid": 7,
        "since": "2026-03-01T12:00:00Z",
        "shards": 64,
        "leases": 60,
        "agenda": 3,
        "lag": 0.25,
        "tick_age": 0.4,
        "heartbeat_age": 1.5,
        "hanging": ["tick"],
        "blocked_steps": [],
        "database_unreachable_since": "2026-03-01T12:00:00Z",
        "lock_degraded": False,
        "broker_unreachable": False,
        "skew": 0.01,
        "clock_doubt": 0.0,
        "written_at": "2026-03-01T12:00:00Z",
    }


def test_health_of_a_starting_node_as_json() -> None:
    shown = judged(**STARTS).as_json()
    assert json.loads(json.dumps(shown)) == shown
    assert (shown["status"], shown["since"], shown["written_at"]) == ("starting", None, None)


# --- the file and its probe ---------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> HealthFile:
    file = HealthFile(tmp_path / "health.json")
    file.prepare()
    assert not list(tmp_path.iterdir())
    return file


@pytest.mark.parametrize(
    ("facts", "fit", "message"),
    [
        ({}, True, "a is ok"),
        (BROKER_FAILS, True, f"a is degraded: {BROKER_REASON}"),
        ({"draining": True}, True, "a is draining"),
        (STARTS, True, "a is starting"),
        (HANGS | UNREACHABLE, False, f"a is unfit: {HANGS_REASON}; {UNREACHABLE_REASON}"),
        (
            {"tick_age": 301.0, "database_error": "no\nroute"},
            False,
            "a is unfit: no tick has succeeded for 301 s: no route",
        ),
    ],
)
def test_probe_reports_status_of_the_file(
    file: HealthFile, facts: dict[str, Any], fit: bool, message: str
) -> None:
    file.write(judged(**facts).as_json(), 2.0)
    assert probe(file.path) == (fit, message)
    assert [path.name for path in file.path.parent.iterdir()] == ["health.json"], (
        "no temporary file is left"
    )


@pytest.mark.parametrize("direction", [-1, 1])
def test_old_file_is_unfit(file: HealthFile, direction: int) -> None:
    """A file with a time stamp in the future isn't trusted either."""
    file.write(judged().as_json(), 2.0)
    for age, fit in (
        (2.0 * MAX_AGE_IN_INTERVALS - 1.5, True),
        (2.0 * MAX_AGE_IN_INTERVALS + 1.5, False),
    ):
        written_at = time.time() + direction * age
        os.utime(file.path, (written_at, written_at))
        assert probe(file.path).fit == fit
    assert "s old: a is dead or suspended" in probe(file.path).reason


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b"\xff",
        b'{"status": "ok"}',
        b'{"status": "fine", "name": "a", "interval": 2, "reasons": []}',
    ],
)
def test_invalid_file_is_unfit(file: HealthFile, content: bytes) -> None:
    file.path.write_bytes(content)
    assert probe(file.path) == (False, f"{file.path} isn't a health file")


def test_missing_file_is_unfit(file: HealthFile) -> None:
    assert probe(file.path) == (False, f"{file.path} doesn't exist: no node is running")
    assert "isn't readable" in probe(file.path.parent).reason


def test_no_file_is_left_after_removal(file: HealthFile) -> None:
    file.write(judged().as_json(), 2.0)
    file.remove()
    assert not list(file.path.parent.iterdir())


def test_health_file_is_not_written_through_a_symbolic_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("kept")
    file = HealthFile(tmp_path / "health.json")
    file._temporary_path.symlink_to(secret)
    with pytest.raises(OSError, match=re.escape(str(file._temporary_path))) as refused:
        file.write({"id": "a-1"}, 1)
    assert refused.value.errno == errno.ELOOP
    assert secret.read_text() == "kept"


def test_nodes_that_share_a_file_notice_it_and_keep_each_others_file(file: HealthFile) -> None:
    """Two containers may both have pid 1 and share a directory."""
    file.write(judged(id="a-1").as_json(), 2.0)
    other = HealthFile(file.path)
    assert other._temporary_path != file._temporary_path
    other.prepare()
    assert probe(file.path).fit, "it belongs to another node"
    other.write(judged(id="b-2", name="b").as_json(), 2.0)
    assert not other.shared, "it may be left over from a previous node"
    file.remove()
    assert probe(file.path) == (True, "b is ok")
    file.write(judged(id="a-1").as_json(), 2.0)
    other.write(judged(id="b-2", name="b").as_json(), 2.0)
    assert file.shared
    assert other.shared
    other.write(judged(id="b-2", name="b").as_json(), 2.0)
    assert not other.shared


def test_health_command_prints_status_and_fails_when_unfit(
    file: HealthFile, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command needs no database. This test has no access to one."""
    file.write(judged().as_json(), 2.0)
    call_command("dcron", "health", "--file", str(file.path))
    assert capsys.readouterr().out == "a is ok\n"
    file.write(judged(**HANGS).as_json(), 2.0)
    with pytest.raises(CommandError, match=f"^a .*: {HANGS_REASON}$") as refused:
        call_command("dcron", "health", "--file", str(file.path))
    assert refused.value.returncode == 1


def test_probe_runs_without_django(file: HealthFile, capsys: pytest.CaptureFixture[str]) -> None:
    file.write(judged().as_json(), 2.0)
    assert (main([str(file.path)]), capsys.readouterr().out) == (0, "a is ok\n")
    file.remove()
    assert main([str(file.path)]) == 1
    assert main([]) == 1
    loaded = "import sys, django_dcron.scheduler.health_file; sys.exit('django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded]).returncode == 0


# --- runcron's option ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/no/such/directory/health.json", "/", "", "/dev"])
def test_runcron_refuses_an_unwritable_health_file(path: str) -> None:
    with pytest.raises(CommandError, match=r"can't start: the health file can't be written: .+"):
        call_command("runcron", embedded=True, health_file=path)


def test_runcron_refuses_health_file_with_once(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--once") as refused:
        call_command("runcron", embedded=True, once=True, health_file=str(tmp_path / "health.json"))
    assert refused.value.returncode == 2


def test_every_status_and_key_is_documented() -> None:
    document = (
        Path(__file__).resolve().parents[2] / "docs" / "reference" / "observability.md"
    ).read_text()
    assert all(
        f"| `{status}` | {'yes' if status.fit else 'no'} |" in document for status in HealthStatus
    )
    assert all(f"`{key}`" in document for key in [*judged().as_json(), "interval"])
