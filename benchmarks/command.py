"""Run a measure as a program: ``python -m benchmarks.<measure> [options] [--json FILE]``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.testbed import new_testbed


def run(document: str, measure: Callable[..., dict[str, Any]], **numbers: int) -> None:
    """Measure in a fresh testbed, print the figures, and write them to a file if requested.

    ``numbers`` contains the measure's options with their defaults.
    """
    parser = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    options = vars(parser.parse_args())
    path = options.pop("json")
    with new_testbed() as testbed:
        figures = measure(testbed, **options)
    write(figures, path)


def write(figures: Any, path: Path | None) -> None:
    text = json.dumps(figures, indent=2)
    if path is None:
        print(text)
    else:
        path.write_text(text + "\n")
