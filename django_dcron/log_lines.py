"""A formatter whose records cannot be forged: each begins a line, and nothing inside a record can look like another one."""

from __future__ import annotations

import logging
import re

INDENT = "    "
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What ends a line, steers a terminal or turns a line round; not the tab and the newline."""


class LineFormatter(logging.Formatter):
    """The lines of a message or traceback after the first are indented, and control characters are shown as escapes."""

    def format(self, record: logging.LogRecord) -> str:
        return as_one_record(super().format(record))


def as_one_record(text: str) -> str:
    plain = _STEERING.sub(lambda found: ascii(found[0])[1:-1], text.replace("\r\n", "\n"))
    return plain.rstrip("\n").replace("\n", f"\n{INDENT}")
