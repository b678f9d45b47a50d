"""Runs that are missing in a worker's database: which are expected, logged and remembered."""

import logging
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import ProgrammingError, connection

from django_dcron.db.now import database_now
from django_dcron.db.routing import database_name, lacks_table
from django_dcron.exceptions import UnknownRun
from django_dcron.execution.unknown_runs import (
    WARN_EVERY,
    UnknownRunLog,
    UnknownRuns,
    is_published_here,
)
from django_dcron.models import Node, Run
from django_dcron.runs import ordinary_start, start_facts
from django_dcron.runs.start import start_attempt


class Seconds:
    """A monotonic clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_node(age: timedelta) -> str:
    at = database_now("default") - age
    node = Node.objects.create(
        id=f"n-{uuid4()}", name="n", host="h", pid=1, version="0", started_at=at, heartbeat_at=at
    )
    return node.pk


@pytest.mark.django_db
def test_message_belongs_to_this_database_if_its_node_is_live() -> None:
    assert not is_published_here(None)
    stale = make_node(timedelta(hours=1))  # as in a copy of the database
    assert not is_published_here(stale)
    assert not is_published_here(None)
    live = make_node(timedelta())
    assert is_published_here(live)
    assert is_published_here(None)
    assert not is_published_here("another")


def test_latest_unknown_runs_are_remembered() -> None:
    clock = Seconds()
    memory = UnknownRuns(size=2, monotonic=clock)
    for run_id, dropped in (("a", False), ("b", False), ("a", True), ("c", False), ("a", False)):
        memory.add(run_id, dropped=dropped)
        clock.now += 1
    assert memory.report() == [
        {"run": "c", "age": 2.0, "dropped": False},
        {"run": "a", "age": 3.0, "dropped": True},
    ]


def test_warnings_are_rate_limited(caplog: pytest.LogCaptureFixture) -> None:
    clock = Seconds()
    log = UnknownRunLog(monotonic=clock)
    run_id = uuid4()
    caplog.set_level(logging.DEBUG, "django_dcron.runs")
    log.log(run_id, 1, "w", "Expected.", expected=True)
    log.log(run_id, 1, "w", "First.")
    for _ in range(3):
        log.log(run_id, 1, "w", "Soon after.")
    clock.now += WARN_EVERY
    log.log(run_id, 1, "w", "Later.")
    assert [record.levelname for record in caplog.records] == [
        "DEBUG",
        "WARNING",
        *["DEBUG"] * 3,
        "WARNING",
    ]
    first, last = (
        record.getMessage() for record in caplog.records if record.levelname == "WARNING"
    )
    assert str(run_id) in first
    assert f" not in {database_name('default')}: " in first
    assert last.endswith("Later. (unknown runs since the last warning: 3)")


def test_database_name_contains_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    account = {"NAME": "shop", "HOST": "db1", "PORT": 5432, "USER": "jane", "PASSWORD": "secret"}
    for name, value in account.items():
        monkeypatch.setitem(connection.settings_dict, name, value)
    assert database_name("default") == f"database default ({connection.vendor} shop on db1:5432)"


def test_database_name_omits_what_a_postgresql_service_defines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NAME", "HOST", "PORT"):
        monkeypatch.setitem(connection.settings_dict, name, "")
    assert database_name("default") == f"database default ({connection.vendor})"


@pytest.mark.django_db
def test_run_is_unknown_if_the_database_lacks_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not lacks_table(Run, "default")

    def fail(**values: object) -> None:
        raise ProgrammingError("no such table")

    monkeypatch.setattr(start_facts._READ, "first", fail)
    monkeypatch.setattr(ordinary_start._START, "execute", fail)
    with pytest.raises(ProgrammingError):
        start_attempt(uuid4(), 1, token=uuid4(), worker="w")
    monkeypatch.setattr(
        "django_dcron.runs.start_facts.lacks_table", lambda model, using: model is Run
    )
    with pytest.raises(UnknownRun) as unknown:
        start_attempt(uuid4(), 1, token=uuid4(), worker="w")
    assert database_name("default") in str(unknown.value)
