"""Run tests against mutants in two kinds of pytest sessions, as pytest plugins.

- ``WarmSession``: one session for all mutants of functions. It collects the tests and starts the
  servers once. For each mutant it forks, replaces the function's code, and runs the tests that
  reach the mutated lines until one fails.
- ``FreshSession``: a session for one mutant, which is imported instead of the source. It tests code
  that runs at import. It also tests a mutant again that survived the warm session, if imports reach
  the mutated code. A value that was computed at import doesn't change with the function.
"""

from __future__ import annotations

import ast
import gc
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from coverage import Coverage
from hypothesis import Phase
from hypothesis import settings as hypothesis_settings
from pytest_django.plugin import blocking_manager_key

from tests.mutation.mutants import ROOT, Mutant
from tests.mutation.processes import Died, TimedOut, forked

TIME_MARGIN = 10.0
TIME_FACTOR = 5
"""A mutant gets the clean run's processor time multiplied by this, plus ``TIME_MARGIN`` seconds."""
MAX_TEST_TIME = 15.0
"""The tests of a mutant take at most this processor time in the clean run, in seconds."""
EXAMPLES = 25
UNSUITABLE_FIXTURES = {"start_process", "redis_server", "rabbitmq_server", "live_server"}
"""Fixtures of unsuitable tests: they stop servers that all forks share, or start processes without
the mutation.
"""


class CannotSwap(Exception):
    """The mutation isn't in the code of exactly one existing function."""


@dataclass
class CleanRun:
    """Results of the tests without a mutation."""

    seconds: dict[str, float]
    """Processor time of each test, in seconds."""
    tests: dict[str, dict[int, list[str]]]
    """For each file and line, the tests that reach the line."""
    failed: list[str]


class _Session:
    def __init__(self) -> None:
        self.failed: list[str] = []

    def pytest_sessionstart(self) -> None:
        """Configure Hypothesis for many mutants: few examples, no shrinking and no database."""
        hypothesis_settings.register_profile(
            "mutation",
            parent=hypothesis_settings.get_profile("dcron"),
            max_examples=EXAMPLES,
            phases=(Phase.explicit, Phase.generate),
            derandomize=True,
            database=None,
        )
        hypothesis_settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


class WarmSession(_Session):
    def __init__(self, paths: Iterable[Path], work: Callable[[WarmSession], None]) -> None:
        """Call ``work`` in the ready session. Nothing may import ``paths`` before the session."""
        super().__init__()
        self._paths = [str(ROOT / path) for path in paths]
        self._work = work
        self._coverage = Coverage(data_file=None, include=self._paths, config_file=False)
        self._coverage.start()
        self._kills: defaultdict[str, int] = defaultdict(int)
        self.clean = CleanRun({}, {}, [])

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [
            item
            for item in items
            if not UNSUITABLE_FIXTURES & set(getattr(item, "fixturenames", ()))
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("some tests could not be collected")
        self._coverage.stop()
        data = self._coverage.get_data()
        self._imported = {path: set(data.lines(path) or ()) for path in data.measured_files()}
        self._ready, *others = session.items
        self._items = {item.nodeid: item for item in others}
        self._run([self._ready], others[0])
        if not self.failed:
            self._database = _Database(session.config)
            self._functions = _functions()
            gc.freeze()  # otherwise a fork's garbage collection would copy all of this
            self._work(self)
        self._run([self._ready], None)
        return True

    def _run(self, items: Sequence[pytest.Item], following: pytest.Item | None) -> str | None:
        """Run the tests until one fails, and return its name."""
        for item, next_item in zip(items, [*items[1:], following], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=next_item)
            if self.failed:
                return self.failed[0]
        return None

    def run_clean(self) -> CleanRun:
        """Run all tests, and record the time each takes and the lines it reaches."""
        self._database.renew()
        self.clean = CleanRun(**forked(self._run_and_measure))
        for path, lines in self.clean.tests.items():
            self.clean.tests[path] = {int(line): tests for line, tests in lines.items()}
        return self.clean

    def _run_and_measure(self) -> dict[str, Any]:
        coverage = Coverage(data_file=None, include=self._paths, config_file=False)
        items = list(self._items.values())
        seconds, failed = {}, []
        coverage.start()
        for item, following in zip(items, [*items[1:], self._ready], strict=True):
            coverage.switch_context(item.nodeid)
            began = time.process_time()
            self._run([item], following)
            seconds[item.nodeid] = time.process_time() - began
            failed += self.failed
            self.failed.clear()
        coverage.stop()
        data = coverage.get_data()
        tests = {path: data.contexts_by_lineno(path) for path in data.measured_files()}
        return {"seconds": seconds, "tests": tests, "failed": failed}

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return a bounded number of tests that reach the mutated statement.

        Tests with the most kills per second come first.
        """
        if mutant.function:
            lines = self.clean.tests.get(str(ROOT / mutant.source.path), {})
            found = {
                test for line in statement_lines(mutant) for test in lines.get(line, ()) if test
            }
        else:
            found = set(self._items)
        ordered = sorted(found, key=lambda test: self.clean.seconds[test] / (1 + self._kills[test]))
        spent = accumulate(self.clean.seconds[test] for test in ordered)
        return [
            test for test, seconds in zip(ordered, spent, strict=True) if seconds <= MAX_TEST_TIME
        ]

    def matters_at_import(self, mutant: Mutant) -> bool:
        """Return whether imports of the package or the tests reach the mutated statement."""
        imported = self._imported.get(str(ROOT / mutant.source.path), set())
        return not imported.isdisjoint(statement_lines(mutant))

    def limit(self, tests: Iterable[str]) -> float:
        return TIME_MARGIN + TIME_FACTOR * sum(self.clean.seconds[test] for test in tests)

    def kill(self, mutant: Mutant, tests: list[str]) -> str | None:
        """Return the test that fails with the mutant, or None if all pass."""
        functions = self._functions.get(_function_key(mutant), [])
        code = _mutated_code(mutant)
        if code is None or not functions:
            raise CannotSwap
        if any(function.__code__.co_freevars != code.co_freevars for function in functions):
            raise CannotSwap
        items = [self._items[test] for test in tests]

        def attempt() -> str | None:
            for function in functions:
                function.__code__ = code
            return self._run(items, self._ready)

        self._database.renew()
        try:
            failed: str | None = forked(attempt, self.limit(tests))
        except (TimedOut, Died):
            self._database.empty()
            raise
        if failed in self.clean.seconds:
            self._kills[failed] += 1
        return failed


class FreshSession(_Session):
    def __init__(self, mutant: Mutant, tests: list[str]) -> None:
        super().__init__()
        self._order = {test: position for position, test in enumerate(tests)}
        self._mutant = mutant

    def kill(self, arguments: list[str]) -> str | None:
        """Return the test that fails with the mutant, or None if all pass.

        Works once per process, because imported modules stay.
        """
        name = self._mutant.source.module_name
        assert name not in sys.modules
        sys.meta_path.insert(0, _Finder(name, self._mutant))
        code = pytest.main([*arguments, "-x"], plugins=[self])
        if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return None
        return self.failed[0] if self.failed else f"(pytest ended with {int(code)})"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])


class _Finder:
    """An import finder that provides the mutated module."""

    def __init__(self, name: str, mutant: Mutant) -> None:
        self._name = name
        self._mutant = mutant

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        file = str(ROOT / self._mutant.source.path)
        return spec_from_file_location(name, file, loader=_Loader(name, file, self._mutant))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._mutant.text, self.path, "exec", dont_inherit=True)


class _Database:
    """The test database in its state before any test."""

    def __init__(self, config: pytest.Config) -> None:
        from django.db import connection, connections

        connections.close_all()  # a fork must not inherit a connection
        self._blocker = config.stash[blocking_manager_key]
        self._file = (
            Path(connection.settings_dict["NAME"]) if connection.vendor == "sqlite" else None
        )
        if self._file:
            self._template = self._file.with_suffix(".template")
            shutil.copy(self._file, self._template)

    def renew(self) -> None:
        if self._file:
            for suffix in "-wal", "-shm":
                with suppress(FileNotFoundError):
                    Path(f"{self._file}{suffix}").unlink()
            shutil.copy(self._template, self._file)

    def empty(self) -> None:
        """Empty the database after tests that couldn't clean up."""
        if not self._file:
            forked(self._flush)

    def _flush(self) -> None:
        from django.core.management import call_command

        with self._blocker.unblock():
            call_command("flush", verbosity=0, interactive=False)


def statement_lines(mutant: Mutant) -> Iterator[int]:
    """Yield the lines of the innermost statement around the mutation, or the head of a block."""
    yield mutant.line
    around = (
        node
        for node in ast.walk(ast.parse(mutant.source.text))
        if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= (node.end_lineno or 0)
    )
    inner = max(around, key=lambda node: node.lineno, default=None)
    if inner is None:
        return
    body = getattr(inner, "body", None)
    if body is None and not isinstance(inner, ast.Match):
        yield from range(inner.lineno, (inner.end_lineno or inner.lineno) + 1)
    elif body is not None and mutant.line < body[0].lineno:
        yield from range(inner.lineno, body[0].lineno)


def _functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    """Return all existing functions by file, name and line.

    One place can have several functions, because functions may be copied, wrapped or renamed.
    """
    found = defaultdict(list)
    for candidate in gc.get_objects():
        if isinstance(candidate, FunctionType):
            code = candidate.__code__
            found[code.co_filename, code.co_qualname, code.co_firstlineno].append(candidate)
    return found


def _function_key(mutant: Mutant) -> tuple[str, str, int]:
    return str(ROOT / mutant.source.path), mutant.function, mutant.first_line


def _mutated_code(mutant: Mutant) -> CodeType | None:
    """Return the code of the mutated function."""
    if not mutant.function:
        return None
    left = [compile(mutant.text, _function_key(mutant)[0], "exec", dont_inherit=True)]
    while left:
        code = left.pop()
        if (code.co_qualname, code.co_firstlineno) == (mutant.function, mutant.first_line):
            return code
        left += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return None
