"""Prevent texts in a log record from forging another record.

Invariants:

- Every record of this package passes ``EscapingFilter``, so no text in its message or traceback
  starts a line, whatever formatter the project uses. Extras are unchanged: formatters of structured
  logs escape them.
- ``LineFormatter`` does the same for records of all loggers. Nodes and the logs of attempts use it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from typing import Any

from django_dcron.utils.control_characters import escape_control_characters

INDENT = "    "
_PLAIN = logging.Formatter()
LOGGERS = (
    "django_dcron",
    "django_dcron.alerts",
    "django_dcron.control",
    "django_dcron.locks.file",
    "django_dcron.monitoring",
    "django_dcron.runs",
    "django_dcron.scheduler",
    "django_dcron.targets.celery_tasks",
    "django_dcron.targets.django_tasks",
    "django_dcron.tracing",
)
"""All loggers of this package.

Python applies only the filters of the logger that made the record, not of its parents.
"""


class LineFormatter(logging.Formatter):
    """Formats a record as one entry: indents further lines and escapes control characters."""

    def format(self, record: logging.LogRecord) -> str:
        copied = copy(record)
        copied.exc_text = None  # set by another formatter, or indented already
        return escape_log_text(super().format(copied))


class EscapingFilter(logging.Filter):
    """Escapes and indents the arguments of a message and the traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_escaped, record.args))
        elif isinstance(record.args, Mapping):
            record.args = {name: _escaped(value) for name, value in record.args.items()}
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            with suppress(Exception):  # a third-party exception may raise anything
                record.exc_text = escape_log_text(_PLAIN.formatException(record.exc_info))
        return True


def _escaped(value: Any) -> Any:
    """Return ``value``, or its escaped text if it contains a line break or a control character."""
    if value is None or isinstance(value, int | float):
        return value
    try:
        text = str(value)
    except Exception:  # the formatter of the record handles it
        return value
    plain = escape_log_text(text)
    return value if plain == text else plain


def protect_own_loggers() -> None:
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, EscapingFilter) for each in logger.filters):
            logger.addFilter(EscapingFilter())


def escape_log_text(text: str) -> str:
    return escape_control_characters(text).rstrip("\n").replace("\n", f"\n{INDENT}")
