"""Schedules of public projects, as facts: only the values that their code contains.

``public_schedules.json`` maps sources to schedules. A source's own tests convert its schedules, and
compare the next ``COUNT`` occurrences with the computation of the source.
"""

import json
from pathlib import Path
from typing import Any

import pytest

SCHEDULES: dict[str, list[Any]] = json.loads(
    Path(__file__).with_name("public_schedules.json").read_text()
)
COUNT = 20


def each_of(source: str) -> pytest.MarkDecorator:
    """Return a decorator that calls a test with each schedule of a source as ``given``."""
    return pytest.mark.parametrize("given", SCHEDULES[source], ids=str)
