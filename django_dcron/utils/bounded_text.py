"""Shorten texts and lists to a limit, and replace characters that databases can't store."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""NUL, which PostgreSQL rejects, and lone surrogates, which aren't valid Unicode."""

OMISSION_MARK = re.compile(r"\n\[\.\.\. ([0-9,]+) characters omitted \.\.\.\]\n")
"""The mark in the middle of a text that exceeded its limit."""


def replace_unstorable(text: str) -> str:
    return UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def with_ellipsis(text: str, limit: int) -> str:
    """Return ``text``, or its beginning with an ellipsis, at most ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def first_distinct(texts: Iterable[str], limit: int) -> list[str]:
    """Return each distinct text once. An ellipsis replaces those after the first ``limit``."""
    found: list[str] = []
    for text in texts:
        if text in found:
            continue
        if len(found) == limit:
            return [*found, "…"]
        found.append(text)
    return found


def truncate_middle(text: str, limit: int) -> str:
    """Return ``text``, or its beginning and end with the number of omitted characters."""
    if len(text) <= limit:
        return replace_unstorable(text)
    buffer = BoundedText(limit)
    buffer.write(text)
    return buffer.getvalue()


class BoundedText:
    """Collects text and keeps at most ``limit`` characters: the first half and the last half."""

    def __init__(self, limit: int):
        self._head_room = limit // 2
        self._tail_limit = limit - limit // 2
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._tail_length = 0
        self.written = 0

    def write(self, text: str) -> None:
        length = len(text)
        if self._head_room:
            self._head.append(text[: self._head_room])
            text = text[len(self._head[-1]) :]
            self._head_room -= len(self._head[-1])
        if text and self._tail_limit:
            self._tail.append(text[-self._tail_limit :])
            self._tail_length += len(self._tail[-1])
            while self._tail_length - len(self._tail[0]) >= self._tail_limit:
                self._tail_length -= len(self._tail.popleft())
        self.written += length

    def getvalue(self) -> str:
        """Return the text that was kept. Another thread may be writing meanwhile."""
        written = self.written  # read first, so that later writes don't count as omitted
        head = "".join(list(self._head))
        tail = "".join(list(self._tail))[-self._tail_limit :] if self._tail_limit else ""
        left_out = written - len(head) - len(tail)
        mark = f"\n[... {left_out:,} characters omitted ...]\n" if left_out > 0 else ""
        return replace_unstorable(head + mark + tail)
