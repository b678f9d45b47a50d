"""Divide sequences into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    """Yield the items in order, in lists of ``size`` items; the last list may be shorter.

    ``itertools.batched`` needs Python 3.12.
    """
    for start in range(0, len(items), size):
        yield list(items[start : start + size])
