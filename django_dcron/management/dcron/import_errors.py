"""Log task modules that can't be imported in one line, without the traceback."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

EVENT = "tasks_not_imported"
LOGGERS = ("django_dcron.targets.celery_tasks", "django_dcron.targets.django_tasks")
"""The loggers of this event. A filter of a logger doesn't see the records of its children."""


@contextmanager
def short_import_errors() -> Iterator[None]:
    """Replace the traceback by its last frame and the error, for the block."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(_shorten)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    if getattr(record, "event", "") == EVENT and record.exc_info and record.exc_info[1]:
        error = record.exc_info[1]
        text = " ".join(f"{type(error).__name__}: {error}".split())
        record.msg = f"{record.getMessage()} error={text}{_place_of(error)} (more: --traceback)"
        record.args, record.exc_info, record.exc_text = (), None, None
    return True


def _place_of(error: BaseException) -> str:
    """Return the file and line of the last frame outside of Python's import system."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen importlib")
    ]
    return f" at={frames[-1].filename}:{frames[-1].lineno}" if frames else ""
