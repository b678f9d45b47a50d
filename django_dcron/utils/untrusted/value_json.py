"""Encode values of pickles and YAML as JSON, and decode them.

The child process (``child``) sends this JSON to its parent (``reader``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

MAX_DEPTH = 100
SHOWN_LENGTH = 80
_TIMES = (datetime, date, timedelta, timezone, ZoneInfo)


class TextRefused(Exception):
    """The text is invalid, as the message explains."""

    status = "refused"


class ObjectRefused(TextRefused):
    """The text names a class or a function that isn't allowed, as the message explains."""

    status = "object"


class ValueTooLarge(Exception):
    """The text describes too many values, or values nested too deep."""


@dataclass(frozen=True, slots=True)
class UnsupportedValue:
    """A value of an unsupported type."""

    shown: str

    def __repr__(self) -> str:
        return self.shown


@dataclass(frozen=True)
class Record:
    """An object in a pickle: the name of its class, and its attributes."""

    kind: str
    attributes: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["attributes"][name]
        except KeyError:
            raise AttributeError(f"{self.kind} has no attribute {name!r}") from None


class Encoder:
    """Encodes one value as JSON, with at most ``max_values`` values in it.

    A value that occurs twice counts twice.
    """

    def __init__(self, max_values: int) -> None:
        self.remaining = max_values

    def encode(self, value: Any, depth: int = 0) -> Any:
        """Encode ``value``. Raises ``ValueTooLarge``."""
        self.remaining -= 1
        if self.remaining < 0 or depth > MAX_DEPTH:
            raise ValueTooLarge
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if kind is list:
            return [self.encode(item, depth + 1) for item in value]
        if kind in (tuple, set, frozenset):
            name = "tuple" if kind is tuple else "set"
            return {name: [self.encode(item, depth + 1) for item in value]}
        if kind is dict:
            return {"dict": self._pairs(value, depth)}
        if kind is Record:
            return {"record": [value.kind, self._pairs(value.attributes, depth)]}
        if kind in _TIMES:
            return self._encode_time(value, depth)
        return {"other": f"{value!r:.{SHOWN_LENGTH}}"}

    def _pairs(self, mapping: dict[Any, Any], depth: int) -> list[list[Any]]:
        return [
            [self.encode(key, depth + 1), self.encode(value, depth + 1)]
            for key, value in mapping.items()
        ]

    def _encode_time(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is datetime:
            naive = value.replace(tzinfo=None).isoformat()
            return {"datetime": [naive, value.fold, self.encode(value.tzinfo, depth + 1)]}
        if kind is date:
            return {"date": value.isoformat()}
        if kind is timedelta:
            return {"timedelta": [value.days, value.seconds, value.microseconds]}
        if kind is timezone:
            return {"offset": value.utcoffset(None).total_seconds()}
        return {"zone": value.key}


def decode(encoded: Any) -> Any:
    """Return the value that was encoded.

    Raises ``ValueError``, ``TypeError`` or ``OverflowError`` for JSON that no encoder writes.
    """
    if isinstance(encoded, list):
        return list(map(decode, encoded))
    if not isinstance(encoded, dict):
        return encoded
    ((tag, inner),) = encoded.items()
    return _DECODERS[tag](inner)


def _dict(pairs: Any) -> dict[Any, Any]:
    return {_hashable(decode(key)): decode(value) for key, value in pairs}


def _hashable(key: Any) -> Any:
    return frozenset(key) if isinstance(key, set) else key


def _datetime(parts: Any) -> datetime:
    naive, fold, zone = parts
    decoded = decode(zone)
    if decoded is not None and not isinstance(decoded, tzinfo):
        raise ValueError(f"invalid time zone {decoded!r:.{SHOWN_LENGTH}}")
    return datetime.fromisoformat(naive).replace(tzinfo=decoded, fold=fold)


def _offset(seconds: float) -> timezone:
    return timezone(timedelta(seconds=seconds)) if seconds else UTC


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "tuple": lambda items: tuple(map(decode, items)),
    "set": lambda items: set(map(_hashable, map(decode, items))),
    "dict": _dict,
    "record": lambda parts: Record(parts[0], _dict(parts[1])),
    "datetime": _datetime,
    "date": date.fromisoformat,
    "timedelta": lambda parts: timedelta(*parts),
    "offset": _offset,
    "zone": ZoneInfo,
    "other": UnsupportedValue,
}
