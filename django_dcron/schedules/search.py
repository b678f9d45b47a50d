"""Search for dates or times, and remember the period without a result.

A claim asks a schedule for one occurrence after the other. Without the memory, a line that never
fires would be searched up to the horizon for each occurrence of the other lines.

Invariants:

- The results don't depend on what is remembered.
- Threads share a search: its memory is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", date, datetime)

AHEAD = timedelta(days=366)
"""How far beyond the limit a search looks. Later searches without a result are then free."""


class _LastSearch(NamedTuple, Generic[T]):
    start: T
    reached: T
    """The result, or the limit if there was none. Nothing lies between it and the start."""
    found: T | None


class Search(Generic[T]):
    """Calls ``find``, which returns the first result from a start up to a limit.

    A limit before the start means that it searches backward. ``first`` and ``last``: the ends of
    the calendar.
    """

    def __init__(self, find: Callable[[T, T], T | None], first: T, last: T) -> None:
        self._find: Callable[[T, T], T | None] = find
        self._first: T = first
        self._last: T = last
        self._last_search: _LastSearch[T] | None = None

    def __call__(self, start: T, limit: T) -> T | None:
        last = self._last_search
        if last is not None and _is_between(start, last.start, last.reached):
            found = last.found
            if found is None and not _is_between(limit, last.start, last.reached):
                found = self._search(last.start, last.reached, limit)
        else:
            found = self._search(start, start, limit)
        return found if found is not None and _is_between(found, start, limit) else None

    def _search(self, begin: T, start: T, limit: T) -> T | None:
        """Search from ``start``, and remember the result.

        No result lies between ``begin`` and ``start``.
        """
        further: T = (
            limit + min(AHEAD, self._last - limit)
            if start <= limit
            else limit - min(AHEAD, limit - self._first)
        )
        found: T | None = self._find(start, further)
        self._last_search = _LastSearch(begin, further if found is None else found, found)
        return found


def _is_between(value: T, one: T, other: T) -> bool:
    return one <= value <= other or other <= value <= one
