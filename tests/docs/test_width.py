"""Prose in Markdown files wraps at 100 columns."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 100
FILES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r" *(```+|~~~+|:::+)")
UNBREAKABLE = re.compile(r"!?\[[^\]]*\]\([^)]*\)[.,;]?|\S*https?://\S*|`[^`]*`")
"""Links, URLs and inline code: a line may be longer if such a part alone makes it longer."""


def too_long(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and text of lines of prose that should be wrapped."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := FENCE.match(line):
            if not fence:
                fence = match[1]
            elif match[1].startswith(fence) and line.strip() == match[1]:
                fence = ""
            continue
        if fence or len(line) <= WIDTH or line.lstrip().startswith("|"):
            continue
        if len(UNBREAKABLE.sub("", line).split()) > 1:
            yield number, line


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_fits_the_line_width(path: Path) -> None:
    assert list(too_long(path.read_text())) == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("word " * 30, [1]),
        ("short\n\n- " + "word " * 30, [3]),
        ("| " + "word " * 30 + "|", []),
        ("```\n" + "word " * 30 + "\n```\n" + "word " * 30, [4]),
        ("[Text](https://example.com/" + "x" * 100 + ")", []),
        ("- [Text](" + "x" * 100 + "): a description", [1]),
    ],
)
def test_too_long_reports_only_lines_that_can_be_wrapped(text: str, lines: list[int]) -> None:
    assert [number for number, _ in too_long(text)] == lines
