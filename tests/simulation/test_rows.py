"""Statements that also read the runs that retention has deleted."""

from __future__ import annotations

import pytest

from tests.simulation.rows import with_pruned


def every(table: str) -> str:
    return (
        f"FROM (SELECT * FROM django_dcron_{table} UNION ALL SELECT * FROM pruned_{table})"  # noqa: S608
        f" AS all_{table}s"
    )


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT * FROM django_dcron_run", f"SELECT * {every('run')}"),
        ("SELECT id FROM django_dcron_run WHERE x = 1", f"SELECT id {every('run')} WHERE x = 1"),
        (
            "SELECT * FROM django_dcron_attempt WHERE run_id IN (SELECT id FROM django_dcron_run)",
            f"SELECT * {every('attempt')} WHERE run_id IN (SELECT id {every('run')})",
        ),
        ("SELECT * FROM django_dcron_runner", "SELECT * FROM django_dcron_runner"),
    ],
)
def test_statement_reads_the_deleted_rows_whatever_its_conditions(
    statement: str, expected: str
) -> None:
    assert with_pruned(statement) == expected
