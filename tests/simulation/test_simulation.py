"""The simulator itself: a seed decides the whole history."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from django.db import ProgrammingError

import django_dcron
from tests.simulation import broken_guards, engine, plan, sessions, shrinking
from tests.simulation.database import Database, is_write_in_with

HOURS = "1"
LIMIT = 540.0
"""Seconds. It is shorter than the limit of a test, so that a failure shows what was going on."""


def simulate(*arguments: str, each: str = HOURS) -> subprocess.CompletedProcess[str]:
    """Run the simulator in its own process, because it replaces parts of the package."""
    options = ["-X", "faulthandler", "-m", "tests.simulation", "--each", each]
    with subprocess.Popen(
        [sys.executable, *options, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, error = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)  # each process writes its stacks
            out, error = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def digest_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the hash of the history, if the simulator has found nothing."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.partition("history ")[2].split()[0].rstrip(",")


def test_replay_of_a_seed_prints_the_same_history() -> None:
    simulated = simulate("--seed", "1", "--hours", HOURS, "--processes", "2")
    replayed = simulate("--replay", "1")
    assert digest_of(replayed) == digest_of(simulated)
    assert "queued -> running" in replayed.stdout


def test_different_seeds_have_different_histories() -> None:
    both = [simulate("--seed", seed, "--hours", HOURS) for seed in ("2", "3")]
    assert len(set(map(digest_of, both))) == 2


def test_broken_guard_is_found_and_its_replay_fails() -> None:
    name = "attempts_stay_open"
    found = simulate("--broken", name, "--hours", HOURS, "--seed", "2")
    assert f"| `{name}` | 1 | 2 | attempts" in found.stdout, found.stdout + found.stderr
    replayed = simulate("--replay", "2", "--broken", name)
    assert replayed.returncode == 1
    assert "attempts: job-" in replayed.stdout


def test_simulation_on_postgresql_executes_the_statement_that_starts_a_run() -> None:
    """Each operating system process has its own copy of the database."""
    given = "--database", "postgresql"
    simulated = simulate(*given, "--seed", "1", "--hours", HOURS, "--processes", "2")
    replayed = simulate(*given, "--replay", "1")
    assert digest_of(replayed) == digest_of(simulated)
    assert "queued -> running" in replayed.stdout
    number = re.search(r"single_statement_starts (\d+)", simulated.stdout)
    assert number is not None
    assert int(number[1]) > 0


def test_error_in_a_statement_is_a_finding_whoever_catches_it() -> None:
    """A node repeats a tick that fails, so the error could go unnoticed."""
    found: list[str] = []
    simulator = engine.Engine(Random(0), lambda task, error: None)
    database = Database(simulator, lambda kind, values: None, found.append)

    def execute(*given: object) -> None:
        raise ProgrammingError("syntax error")

    def work() -> None:
        with suppress(ProgrammingError):
            database.statement(execute, "SELECT 1 FROM", (), False, None)

    engine.Process(simulator, "node-a").start("tick", work)
    simulator.run_until(10.0)
    assert found == ["node-a: ProgrammingError: syntax error\nSELECT 1 FROM"]


@pytest.mark.parametrize(
    ("sql", "writes"),
    [
        (
            "WITH seen (c0) AS (SELECT 1), changed AS (UPDATE t SET a = 1 RETURNING 1) SELECT 1",
            True,
        ),
        ("WITH step AS (INSERT INTO t VALUES (1)) SELECT 1", True),
        ("WITH seen AS (SELECT 1) SELECT 1 FROM seen", False),
        ("SELECT 1 FROM (UPDATE t)", False),
    ],
)
def test_with_that_changes_rows_is_a_write(sql: str, writes: bool) -> None:
    assert is_write_in_with(sql) == writes


def test_totals_are_printed_with_their_date_and_commit() -> None:
    kept = json.loads(Path("docs/contributing/simulation-totals.json").read_text())
    printed = simulate("--totals").stdout
    assert f"occurrences {kept['occurrences']:,}" in printed
    assert f"faults {sum(kept['faults'].values()):,}" in printed
    assert kept["date"] in printed
    assert kept["commit"] in printed


def test_recorded_kinds_of_faults_exist() -> None:
    """Otherwise, a renamed kind would have two counts."""
    kinds = {*plan.FAULTS, *plan.FAULTS_AT_POINTS}
    assert sessions.read_recorded()["faults"].keys() <= kinds


def test_totals_with_former_names_are_kept() -> None:
    recorded = {"hours": 24, "doubled": 1, "faults": {"freeze": 2, "kill": 3, "suspend": 4}}
    assert sessions.with_current_names(recorded) == {
        "hours": 24,
        "duplicated": 1,
        "faults": {"suspend": 6, "kill": 3},
    }


def rows_of_broken_guards() -> list[list[str]]:
    """Return the rows of the docs' table: the guard, the hours, the seed and the finding."""
    text = Path("docs/contributing/simulation.md").read_text()
    rows = re.findall(
        r"^\| (`[a-z_]+` \| .*) \|$", text.partition("## Broken guards")[2], re.MULTILINE
    )
    return [[cell.strip("` ") for cell in row.split("|")] for row in rows]


def test_docs_list_each_broken_guard_once() -> None:
    source = Path("tests/simulation/broken_guards.py").read_text()
    guards = re.findall(r"^@(?:postgresql_)?guard\ndef (\w+)", source, re.MULTILINE)
    assert sorted(row[0] for row in rows_of_broken_guards()) == sorted(guards)


@pytest.mark.parametrize("name", [*broken_guards.GUARDS, *broken_guards.POSTGRESQL_GUARDS])
def test_guard_can_be_broken_and_restored(name: str) -> None:
    for _ in range(2):
        with broken_guards.broken(name):  # fails if the replaced code was renamed
            pass


def test_code_calls_what_guards_replace_where_they_replace_it() -> None:
    """A module that imports a function keeps the real one when another module's is replaced.

    Deletions and the cancellation of many runs do so. The guards don't concern them.
    """
    source = Path(broken_guards.__file__).read_text()
    replaced = {
        (owner, name)
        for owner, name in re.findall(r"(?:put\(stack, |patch\.object\()(\w+), \"(\w+)\"", source)
        if isinstance(getattr(broken_guards, owner), ModuleType)
    }
    assert len(replaced) > 20
    package = Path(django_dcron.__file__).parent
    modules = {getattr(broken_guards, owner).__name__: owner for owner, _ in replaced}
    kept = [
        f"{owner}.{alias.name} in {path.relative_to(package)}"
        for path in package.rglob("*.py")
        if path.name not in ("deletion.py", "bulk_cancellation.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (owner := modules.get(node.module or ""))
        for alias in node.names
        if (owner, alias.name) in replaced
    ]
    assert kept == []


@pytest.mark.parametrize(
    "guard",
    [
        "runs_are_inserted_after_the_cursors_are_committed",
        "runs_are_dispatched_early",
        "a_second_delivery_resumes_a_running_attempt",
    ],
)
def test_seed_of_the_docs_finds_the_broken_guard(guard: str) -> None:
    seed = next(row[2] for row in rows_of_broken_guards() if row[0] == guard)
    replayed = simulate("--replay", seed, "--broken", guard, each="8")
    assert replayed.returncode == 1, replayed.stdout + replayed.stderr
    assert "BROKEN" in replayed.stdout


def test_shrinking_leaves_only_the_items_that_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = plan.draw(1, 12.0)
    needed = {3, len(drawn.items) - 5}
    monkeypatch.setattr(shrinking, "fails", lambda _, numbers: needed <= set(numbers))
    assert set(shrinking.shrink(drawn, float("inf"))) == needed


def test_history_without_a_finding_is_not_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = plan.draw(1, 12.0)
    monkeypatch.setattr(shrinking, "fails", lambda _, numbers: False)
    assert len(shrinking.shrink(drawn)) == len(drawn.items)


def test_broken_guard_shrinks_to_a_shorter_history_that_fails_each_time() -> None:
    given = ["--replay", "2", "--broken", "attempts_stay_open"]
    number = len(plan.draw(2, float(HOURS)).items)
    shrunk = [simulate(*given, "--shrink") for _ in range(2)]
    commands = {each.stdout.splitlines()[0] for each in shrunk}
    assert len(commands) == 1
    only = re.search(r"--only '([\d,]*)'", commands.pop())
    assert only is not None
    assert len(only[1].split(",")) < number
    replayed = simulate(*given, "--only", only[1])
    assert replayed.returncode == 1
    assert "attempts: job-" in replayed.stdout


def test_each_wait_takes_time_however_short_it_is() -> None:
    """With a drifting clock, the remaining waits until an instant become ever shorter."""
    simulator = engine.Engine(Random(0), lambda task, error: pytest.fail(repr(error)))
    simulator.now = began = 1e9
    ended: list[float] = []

    def work() -> None:
        simulator.rest(1e-12)
        ended.append(simulator.now)

    engine.Process(simulator, "worker").start("wait", work)
    simulator.run_until(began + 1)
    assert began < ended[0] < began + 1


def test_threads_of_a_suspended_process_continue_in_any_order() -> None:
    """Otherwise, the same thread would win each race after a suspension."""

    def order(seed: int) -> tuple[str, ...]:
        simulator = engine.Engine(Random(seed), lambda task, error: pytest.fail(repr(error)))
        process = engine.Process(simulator, "worker")
        continued: list[str] = []

        def work(name: str, seconds: float) -> None:
            simulator.rest(seconds)
            continued.append(name)

        process.start("first", lambda: work("first", 1.0))
        process.start("second", lambda: work("second", 2.0))
        simulator.at(0.5, lambda: process.suspend(10.0))
        simulator.run_until(20.0)
        return tuple(continued)

    assert {order(seed) for seed in range(20)} == {("first", "second"), ("second", "first")}


def test_each_period_between_calm_periods_has_its_own_style() -> None:
    assert len({plan.style(1, period) for period in range(4)}) == 4


@pytest.mark.parametrize("seed", range(1, 21))
def test_calm_periods_have_no_faults(seed: int) -> None:
    items = [item for item in plan.draw(seed, 8.0).items if item.kind != "calm"]
    assert items
    assert all(
        item.at < plan.CALM_EVERY * plan.HOUR
        or item.at % (plan.CALM_EVERY * plan.HOUR) >= plan.CALM
        for item in items
    )
