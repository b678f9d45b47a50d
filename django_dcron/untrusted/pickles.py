"""Reads a pickle as data. It runs in the child only.

Nothing that a pickle names is imported or called, but for the times of ``datetime`` and zones by their names. Its objects of
APScheduler's classes become records with these classes' names. Anything else is refused, by name.
"""

from __future__ import annotations

import datetime as times
import io
import pickle
from typing import Any
from zoneinfo import ZoneInfo

from django_dcron.untrusted import plain

PACKAGE = "apscheduler.triggers."
TIMES: dict[str, Any] = {
    "date": times.date,
    "datetime": times.datetime,
    "timedelta": times.timedelta,
    "timezone": times.timezone,
}


class Refused(Exception):
    """The pickle names what is not read from one; the message says what."""


class _Object:
    """Takes what a pickle says of an object."""

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):  # plain attributes, and those of slots
            vars(self).update(part or {})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "datetime" and name in TIMES:
            return TIMES[name]
        if (module, name) in (("zoneinfo", "ZoneInfo"), ("zoneinfo", "ZoneInfo._unpickle")):
            return _zone
        if (module, name) == ("builtins", "getattr"):
            return _attribute
        if (module, name) in (("pytz", "_UTC"), ("pytz", "_p")):
            return _pytz_zone
        if module.startswith(PACKAGE) and name.isidentifier():
            return type(name, (_Object,), {})
        raise Refused(f"its state holds a {module}.{name}, and such are not read from a pickle")


def _zone(key: str, *_from_cache: Any) -> ZoneInfo:
    return ZoneInfo(key)


def _pytz_zone(key: str = "UTC", *_offsets: Any) -> ZoneInfo:
    """APScheduler wrote such until 3.10."""
    return ZoneInfo(key)


def _attribute(of: Any, name: str) -> Any:
    """``ZoneInfo._unpickle``, which is how zones are pickled, and nothing else."""
    if of is not _zone or name != "_unpickle":
        raise Refused("its state looks for an attribute, as those do that mean to run code")
    return _zone


class Encoder(plain.Encoder):
    def encode(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, _Object):
            return super().encode(plain.Record(type(value).__name__, vars(value)), depth)
        return super().encode(value, depth)


def read(pickled: bytes, most: int) -> Any:
    """As JSON. Raises ``Refused``, or whatever bytes raise that are no pickle."""
    return Encoder(most).encode(_Unpickler(io.BytesIO(pickled)).load())
