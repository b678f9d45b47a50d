"""Middleware that captures the job's log and output, up to a limit, for the attempt's row.

One handler on the root logger and one wrapper around ``sys.stdout`` serve all runs of the process.
If the records of ``get_task_logger`` don't reach the root logger, as in Celery's workers, the
handler is also on the logger of the tasks. A context variable assigns the output to its run.

Output still reaches its original destination. Without other handlers, Python writes warnings and
errors to standard error. The handler does the same then, also for records outside of runs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TextIO

from django_dcron.execution.current import CurrentRun
from django_dcron.utils.bounded_text import BoundedText
from django_dcron.utils.log_lines import LineFormatter

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
CELERY_STDOUT = "celery.redirected"
"""The logger to which Celery's worker redirects printed text. Its records are skipped, because
``_Stdout`` captures the text.
"""
CELERY_TASKS = "celery.task"
"""The parent of the loggers that ``get_task_logger`` returns."""

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
        last_resort = logging.lastResort
        if (
            last_resort
            and record.levelno >= last_resort.level
            and not _has_other_handler(record.name)
        ):
            last_resort.handle(record)
        buffer = _buffer.get()
        if buffer is None or record.name == CELERY_STDOUT:
            return
        try:
            buffer.write(self.format(record) + "\n")
        except Exception:
            # Like every logging.Handler: logging reports a record that can't be formatted.
            self.handleError(record)


def _has_other_handler(name: str) -> bool:
    """Return whether the logger's records reach a handler other than ``_handler``."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(handler is not _handler for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _reaches_root(logger: logging.Logger) -> bool:
    """Return whether the logger's records reach the handlers of the root logger."""
    while logger.propagate and logger.parent is not None:
        logger = logger.parent
    return logger.parent is None


class _Stdout:
    """Wraps the real ``sys.stdout`` and behaves like it."""

    def __init__(self, original: TextIO):
        self._original = original

    def write(self, text: str) -> int:
        written = self._original.write(text)  # first, because it rejects anything but a str
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
    """Install handler and wrapper before each run.

    The project may have configured logging again or replaced ``sys.stdout``.
    """
    root = logging.getLogger()
    if _handler not in root.handlers:
        root.addHandler(_handler)
    tasks = logging.getLogger(CELERY_TASKS)
    if _reaches_root(tasks):  # A second handler would capture each record twice.
        tasks.removeHandler(_handler)
    elif _handler not in tasks.handlers:
        tasks.addHandler(_handler)
    if not isinstance(sys.stdout, _Stdout):
        sys.stdout = _Stdout(sys.stdout)
