"""Judge histories: print the totals and findings of each. Exit with 1 if there are findings.

python -m tests.verdict HISTORY.json ...
python -m tests.verdict --write HISTORY.json --sqlite FILE --after INSTANT --until INSTANT
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from tests.verdict.history import History
from tests.verdict.judgement import judge
from tests.verdict.tables import read_history
from tests.verdict.witness import Anchor, read_log


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.write is not None:
        _write(given)
    failed = False
    for path in [*given.histories, *([given.write] if given.write else [])]:
        verdict = judge(History.read(path))
        failed |= bool(verdict.findings)
        print(f"{path}: {verdict}")
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.verdict", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("histories", nargs="*", type=Path, metavar="HISTORY.json")
    writing = parser.add_argument_group("write a history of an SQLite database, and judge it")
    writing.add_argument("--write", type=Path, metavar="HISTORY.json")
    writing.add_argument("--sqlite", type=Path, metavar="FILE")
    writing.add_argument("--after", type=datetime.fromisoformat, metavar="INSTANT")
    writing.add_argument("--until", type=datetime.fromisoformat, metavar="INSTANT")
    writing.add_argument(
        "--witness-log",
        type=Path,
        metavar="FILE",
        help="the witness log, written on this machine since its last boot",
    )
    writing.add_argument("--witnessed", nargs="*", default=[], metavar="TARGET")
    return parser


def _write(given: argparse.Namespace) -> None:
    starts = []
    if given.witness_log is not None:
        starts = read_log(given.witness_log, Anchor(time.monotonic(), datetime.now(UTC)))
    with closing(sqlite3.connect(given.sqlite)) as connection:
        history = read_history(
            connection.cursor(), given.after, given.until, starts, witnessed=given.witnessed
        )
    history.write(given.write)


if __name__ == "__main__":
    sys.exit(main())
