"""The parts of the package to mutate, and the tests that must kill their mutants."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutants import ROOT

SLOW = (
    "tests/schedules/test_schedule_properties.py::test_offset_changes_match_the_time_zone_files",
    "tests/schedules/test_schedule_properties.py::test_random_day_fields_match_the_oracle",
    "tests/schedules/test_schedule_properties.py::test_occurrences_match_the_oracle_at_clock_changes_in_every_zone",
)
"""Slow tests that aren't run, because each takes longer than all tests of most mutants. A mutant
that only they would kill counts as survived.
"""


@dataclass(frozen=True)
class Part:
    name: str
    files: tuple[str, ...]
    """Paths or patterns relative to ``django_dcron``."""
    tests: tuple[str, ...]
    database: str = "sqlite"

    @property
    def paths(self) -> list[Path]:
        package = ROOT / "django_dcron"
        return sorted(path.relative_to(ROOT) for each in self.files for path in package.glob(each))


PARTS = (
    Part(
        "transitions",
        ("runs/transitions.py", "runs/endings.py", "runs/deliveries.py"),
        (
            "tests/runs/test_transitions.py",
            "tests/runs/test_start.py",
            "tests/runs/test_completion.py",
            "tests/scheduler/test_rescue.py",
            "tests/runs/test_chains.py",
        ),
    ),
    Part(
        "claiming",
        ("scheduler/claim.py",),
        ("tests/scheduler/test_claim.py", "tests/jobs/test_calendars.py"),
        database="postgresql",  # SQLite has no row locks to skip
    ),
    Part(
        "start",
        ("runs/start.py", "runs/start_facts.py"),
        (
            "tests/runs/test_start.py",
            "tests/execution/test_unknown_runs.py",
            "tests/jobs/test_backfill.py",
        ),
    ),
    Part(
        "completion",
        ("runs/completion.py",),
        (
            "tests/runs/test_completion.py",
            "tests/execution/test_executor.py",
            "tests/scheduler/test_rescue.py",
        ),
    ),
    Part(
        "rescue",
        ("scheduler/rescue.py",),
        ("tests/scheduler/test_rescue.py",),
        database="postgresql",
    ),
    Part(
        "pure",
        (
            "schedules/*.py",
            "policies/*.py",
            "policies/health/*.py",
            "utils/counts.py",
            "utils/durations.py",
            "utils/json_values.py",
            "db/clock.py",
        ),
        (
            "tests/schedules",
            "tests/policies",
            "tests/utils/test_counts.py",
            "tests/utils/test_durations.py",
            "tests/utils/test_json_values.py",
            "tests/db/test_clock.py",
            *(f"--deselect={test}" for test in SLOW),
        ),
    ),
)
