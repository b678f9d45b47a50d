"""The page about the audit names tests that exist."""

import re

import pytest

from tests.docs.test_documents import ROOT

PAGE = (ROOT / "docs" / "contributing" / "audit.md").read_text()
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| ([HMLF]\d+|later):", line)]


def test_every_finding_has_a_row() -> None:
    codes = {row.split(":")[0].strip("| ") for row in ROWS} - {"later"}
    ranges = {"H": range(1, 4), "M": range(4, 9), "L": range(9, 14), "F": range(1, 11)}
    assert codes == {f"{letter}{n}" for letter, numbers in ranges.items() for n in numbers}


@pytest.mark.parametrize("row", ROWS, ids=[row.split(":")[0].strip("| ") for row in ROWS])
def test_tests_of_a_finding_exist(row: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", row)
    assert named
    for path, name in named:
        text = (ROOT / path).read_text()
        assert not name or f"def {name}(" in text, name
