"""Format a log record as one line of JSON.

Invariants:

- Every record becomes one line that any JSON parser reads, regardless of its arguments and extras.
- A value that isn't JSON is shown as its ``repr``. A value that is too large is truncated with a
  mark.
- No record makes the formatter raise.
- The module doesn't import Django, because logging is configured before the apps are loaded.
"""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from django_dcron.utils.bounded_text import truncate_middle

TEXT_LIMIT = 16 * 1024
"""Maximum number of characters of a message, of a traceback and of each value."""
ITEMS_LIMIT = 50
"""Maximum number of items of a list or dict. It also limits the extras of a record."""
DEPTH_LIMIT = 3
LARGEST_NUMBER = 2**63

FIRST = ("event", "node", "job", "run", "attempt", "worker", "trace_id")
"""Extras that precede all others."""
RESERVED = ("time", "level", "logger", "message", "exception", "stack")
STANDARD = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats records as JSON. Configure it in ``LOGGING["formatters"]``.

    The entry is ``{"()": "django_dcron.monitoring.log_format.JsonFormatter"}``.
    """

    def __init__(self) -> None:
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, Any] = {
            "time": _time(record.created),
            "level": _plain(record.levelname),
            "logger": _plain(record.name),
            "message": _message(record),
        }
        own_fields = len(content)
        extras = {key: value for key, value in record.__dict__.items() if key not in STANDARD}
        for key in (
            *(key for key in FIRST if key in extras),
            *(key for key in extras if key not in FIRST),
        ):
            if len(content) == ITEMS_LIMIT:
                content["omitted"] = len(extras) - (ITEMS_LIMIT - own_fields)
                break
            content[_key(key, content)] = _shorten_value(_plain(extras[key]))
        if exception := _exception(self, record):
            content["exception"] = exception
        if record.stack_info:
            content["stack"] = _plain(record.stack_info)
        return json.dumps(content)


def _time(created: float) -> Any:
    try:
        at = datetime.fromtimestamp(created, UTC)
    # The project or a library may set any value.
    except (ValueError, OverflowError, OSError, TypeError):
        return _plain(created)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        return _text(record.getMessage())
    except Exception:  # the arguments don't match the message: show both anyway
        return _text(f"{_repr(record.msg)} % {_repr(record.args)}")


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    info: Any = record.exc_info
    try:
        if info and info[0] is not None:
            return _text(formatter.formatException(info))
        return _text(record.exc_text or "")  # another process may have formatted the exception
    except Exception as error:  # formatting an unknown exception may raise anything
        return f"(traceback unavailable: {type(error).__name__})"


def _key(key: object, taken: dict[str, Any]) -> str:
    """Return the key of an extra, with an underscore appended while the name is taken."""
    name = _text(key) if isinstance(key, str) else _repr(key)
    while name in taken or name in RESERVED:
        name += "_"
    return name


def _plain(value: Any, depth: int = 0) -> Any:
    try:
        return _as_json_value(value, depth)
    except Exception:  # objects within the value may raise anything
        return _repr(value)


def _as_json_value(value: Any, depth: int) -> Any:
    """Convert a value to JSON types.

    A subclass of ``str``, ``int`` or ``float`` is converted without its own methods.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, depth)
    if isinstance(value, int):
        number = int.__int__(value)
        return number if abs(number) < LARGEST_NUMBER else _text(hex(number))
    if isinstance(value, float):
        return float.__float__(value) if math.isfinite(value) else float.__repr__(value)
    if isinstance(value, timedelta):
        return timedelta.total_seconds(value)
    if type(value) in (datetime, date):
        return value.isoformat()
    if type(value) is UUID:
        return str(value)
    if depth < DEPTH_LIMIT and type(value) in (list, tuple, set, frozenset):
        return [_plain(item, depth + 1) for item in _first(value)]
    if depth < DEPTH_LIMIT and type(value) is dict:
        plain: dict[str, Any] = {}
        for key in _first(value):
            plain[_text(key) if isinstance(key, str) else _repr(key)] = _plain(
                value.get(key), depth + 1
            )
        return plain
    return _repr(value)


def _shorten_value(plain: Any) -> Any:
    """Return the value, or the beginning and end of its JSON if that is too long."""
    if not isinstance(plain, (list, dict)):
        return plain
    dumped = json.dumps(plain)
    return plain if len(dumped) <= TEXT_LIMIT else truncate_middle(dumped, TEXT_LIMIT)


def _first(items: Any) -> list[Any]:
    """Return the first items, or none if another thread changes the collection meanwhile."""
    try:
        return list(items)[:ITEMS_LIMIT]
    except RuntimeError:
        return []


def _text(text: str, depth: int = 0) -> str:
    """Return the text, truncated. Each level of nesting has a sixteenth of the limit above it."""
    return truncate_middle(str.__str__(text), TEXT_LIMIT >> 4 * depth)


def _repr(value: object) -> str:
    try:
        return _text(repr(value))
    except Exception as error:  # an unknown __repr__ may raise anything
        return f"<{type(value).__name__}: repr() raises {type(error).__name__}>"
