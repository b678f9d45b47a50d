"""A node's process doesn't collect what lives as long as the process."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from django_dcron.management.commands import runcron


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


class Node:
    """Stands for a node, and counts the objects that aren't collected while it runs."""

    frozen = 0

    def run(self, seconds: float | None, prepare: Any) -> int:
        self.frozen = gc.get_freeze_count()
        return 0


def test_objects_of_the_start_are_excluded_from_garbage_collection() -> None:
    node = Node()
    runcron._run(node, None, {"once": False, "seconds": 0})  # type: ignore[arg-type]
    assert node.frozen > 10_000
