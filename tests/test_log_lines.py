"""A record of the log cannot be forged by what is in another one."""

import logging
import re

import pytest

from django_dcron.execution import log_capture
from django_dcron.log_lines import LineFormatter
from django_dcron.management.commands import runcron

FORGED = "2026-11-22 03:30:00,000 ERROR   run failed: job=payroll"
BEGINS = re.compile(r"^20\d\d-", re.MULTILINE)


def formatters() -> list[logging.Formatter]:
    """Those that write for people: the node's console, and the log of an attempt."""
    logger = logging.getLogger("django_dcron")
    before = logger.handlers[:], logger.level, logger.propagate
    logger.handlers, logger.propagate = [], False
    try:
        runcron._log_to_console(1)
        (handler,) = logger.handlers
    finally:
        logger.handlers, logger.level, logger.propagate = before
    console = handler.formatter
    captured = log_capture._handler.formatter
    assert console is not None
    assert captured is not None
    return [console, captured]


@pytest.mark.parametrize(
    "line_end", ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\x1b[1A\r"]
)
def test_no_text_in_a_record_begins_another_one(line_end: str) -> None:
    try:
        raise ValueError(f"x{line_end}{FORGED}")
    except ValueError as error:
        values = (f"said %s{line_end}{FORGED}", (error,), (ValueError, error, error.__traceback__))
    for formatter in formatters():
        record = logging.LogRecord(f"shop{line_end}{FORGED}", logging.ERROR, __file__, 1, *values)
        shown = formatter.format(record)
        assert all(not line.startswith("2026-11-22 03:30") for line in shown.splitlines()), shown
        assert len(BEGINS.findall(shown)) == 1
        assert "\x1b" not in shown


def test_a_traceback_is_still_read() -> None:
    try:
        raise ValueError("x")
    except ValueError as error:
        record = logging.LogRecord(
            "a", logging.ERROR, "f", 1, "said", (), (ValueError, error, error.__traceback__)
        )
    first, *others = LineFormatter("%(message)s").format(record).split("\n")
    assert first == "said"
    assert others[0] == "    Traceback (most recent call last):"
    assert others[-1] == "    ValueError: x"
