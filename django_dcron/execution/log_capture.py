"""Middleware: keeps what the job's code logs and prints, bounded, for the attempt's row.

One handler on the root logger and one wrapper around ``sys.stdout`` serve all runs of the process; a context variable
says whose output it is. Output goes on to where it went before.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TextIO

from django_dcron.execution.bounded_text import BoundedText
from django_dcron.execution.current import CurrentRun
from django_dcron.log_lines import LineFormatter

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
CELERY_STDOUT = "celery.redirected"
"""Celery's worker turns prints into log records of this name; they are captured as prints already."""

_buffer: ContextVar[BoundedText | None] = ContextVar("dcron_log_buffer", default=None)


def capture_log(call_next: Callable[[CurrentRun], Any]) -> Callable[[CurrentRun], Any]:
    def captured(run: CurrentRun) -> Any:
        _install()
        token = _buffer.set(run.log)
        try:
            return call_next(run)
        finally:
            _buffer.reset(token)

    return captured


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        buffer = _buffer.get()
        if buffer is None or record.name == CELERY_STDOUT:
            return
        try:
            buffer.write(self.format(record) + "\n")
        except Exception:
            # As every logging.Handler: a record that cannot be formatted is logging's to report.
            self.handleError(record)


class _Stdout:
    """Stands before the real ``sys.stdout`` and behaves like it."""

    def __init__(self, original: TextIO):
        self._original = original

    def write(self, text: str) -> int:
        written = self._original.write(text)  # first: it refuses what is no text
        if (buffer := _buffer.get()) is not None:
            buffer.write(text)
        return written

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


_handler = _Handler()
_handler.setFormatter(LineFormatter(FORMAT))


def _install() -> None:
    """Again and again, because logging may be configured anew and ``sys.stdout`` replaced."""
    root = logging.getLogger()
    if _handler not in root.handlers:
        root.addHandler(_handler)
    if not isinstance(sys.stdout, _Stdout):
        sys.stdout = _Stdout(sys.stdout)
