"""Set how thorough random and exhaustive tests are.

`make test` runs a sample. `make nightly` sets ``DCRON_TEST_DEPTH=full``, which runs everything, and
also runs the tests marked ``nightly``.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

FULL = os.environ.get("DCRON_TEST_DEPTH") == "full"
ONE_IN = 6
"""A sample keeps one example in this many."""

Item = TypeVar("Item")


def examples(count: int) -> int:
    """Return how many of ``count`` random examples to try."""
    return count if FULL else max(count // ONE_IN, 10)


def sample(items: Sequence[Item]) -> Sequence[Item]:
    """Return every ``ONE_IN``-th item, or all of them at full depth."""
    return items if FULL else items[::ONE_IN]
