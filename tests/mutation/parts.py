"""The parts that are mutated, and the tests that answer for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutants import ROOT

SLOW = (
    "tests/domain/test_schedule_properties.py::test_every_zone_is_cut_where_its_file_says",
    "tests/domain/test_schedule_properties.py::test_any_days_in_any_years",
    "tests/domain/test_schedule_properties.py::test_every_zone_at_its_changes",
)
"""Each of these takes longer than most mutants live. What only they would find counts as survived."""


@dataclass(frozen=True)
class Part:
    name: str
    files: tuple[str, ...]
    """Relative to ``django_dcron``; may be patterns."""
    tests: tuple[str, ...]
    database: str = "sqlite"

    @property
    def paths(self) -> list[Path]:
        package = ROOT / "django_dcron"
        return sorted(path.relative_to(ROOT) for each in self.files for path in package.glob(each))


PARTS = (
    Part(
        "transitions",
        ("transitions.py",),
        (
            "tests/test_transitions.py",
            "tests/execution/test_start.py",
            "tests/execution/test_conclusion.py",
            "tests/scheduler/test_rescue.py",
            "tests/test_chains.py",
        ),
    ),
    Part(
        "claiming",
        ("scheduler/claiming.py",),
        ("tests/scheduler/test_claiming.py", "tests/test_calendars.py"),
        database="postgresql",  # SQLite has no row locks to skip
    ),
    Part(
        "start",
        ("execution/start.py",),
        ("tests/execution/test_start.py", "tests/test_backfill.py"),
    ),
    Part(
        "conclusion",
        ("conclusion.py",),
        (
            "tests/execution/test_conclusion.py",
            "tests/execution/test_executor.py",
            "tests/scheduler/test_rescue.py",
        ),
    ),
    Part("rescue", ("scheduler/rescue.py",), ("tests/scheduler/test_rescue.py",), database="postgresql"),
    Part("domain", ("domain/*.py",), ("tests/domain", *(f"--deselect={test}" for test in SLOW))),
)
