"""Texts of any size and content, kept within a limit and fit for any database."""

from __future__ import annotations

import re
from collections import deque

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""NUL, which PostgreSQL refuses, and lone surrogates, which are no Unicode."""


def storable(text: str) -> str:
    return UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def truncated(text: str, limit: int) -> str:
    """``text``, or its beginning and end with a mark between that says how much is left out."""
    if len(text) <= limit:
        return storable(text)
    buffer = BoundedText(limit)
    buffer.write(text)
    return buffer.getvalue()


class BoundedText:
    """Collects text; of more than ``limit`` characters it keeps the first and the last half."""

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
        """What was kept. May be called by another thread than writes."""
        written = self.written  # first, so that what is written meanwhile is not taken for left out
        head = "".join(list(self._head))
        tail = "".join(list(self._tail))[-self._tail_limit :] if self._tail_limit else ""
        left_out = written - len(head) - len(tail)
        mark = f"\n[... {left_out:,} characters left out ...]\n" if left_out > 0 else ""
        return storable(head + mark + tail)
