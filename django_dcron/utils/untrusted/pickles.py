"""Read a pickle as data. This module runs only in the child process that reads untrusted data.

A pickle can instantiate only the classes of ``datetime`` and time zones, and nothing is imported.
Objects of APScheduler's trigger classes become records with the class's name. Any other name is
refused.
"""

from __future__ import annotations

import datetime as times
import io
import pickle
from typing import Any
from zoneinfo import ZoneInfo

from django_dcron.utils.untrusted import value_json

PACKAGE = "apscheduler.triggers."
TIMES: dict[str, Any] = {
    "date": times.date,
    "datetime": times.datetime,
    "timedelta": times.timedelta,
    "timezone": times.timezone,
}


class _UnpickledObject:
    """Stores the attributes of an unpickled object."""

    def __setstate__(self, state: Any) -> None:
        # Plain attributes, and attributes of slots.
        for part in state if isinstance(state, tuple) else (state,):
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
            return type(name, (_UnpickledObject,), {})
        raise value_json.ObjectRefused(
            f"it contains a {module}.{name}, which is not allowed in a pickle"
        )


def _zone(key: str, *_from_cache: Any) -> ZoneInfo:
    return ZoneInfo(key)


def _pytz_zone(key: str = "UTC", *_offsets: Any) -> ZoneInfo:
    """Return the zone of a pytz pickle, which APScheduler wrote until 3.10."""
    return ZoneInfo(key)


def _attribute(of: Any, name: str) -> Any:
    """Return the function for ``ZoneInfo._unpickle``, which zones are pickled with.

    Refuse anything else.
    """
    if of is not _zone or name != "_unpickle":
        raise value_json.ObjectRefused(
            "it reads an attribute, which is not allowed because it could run code"
        )
    return _zone


class PickleEncoder(value_json.Encoder):
    def encode(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, _UnpickledObject):
            return super().encode(value_json.Record(type(value).__name__, vars(value)), depth)
        return super().encode(value, depth)


def read_pickle(pickled: bytes, max_values: int) -> Any:
    """Return the content of a pickle as JSON.

    Raises ``value_json.ObjectRefused``, or any exception for malformed bytes.
    """
    return PickleEncoder(max_values).encode(_Unpickler(io.BytesIO(pickled)).load())
