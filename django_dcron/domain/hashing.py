"""The value behind `H`: a job's own, evenly spread and stable place inside a field.

Invariant: the value depends on nothing but the field, the range and the key. It never changes between releases,
Python versions or processes, because a changed value moves a job's running time; tests pin literal values.
"""

from hashlib import sha256


def hashed_value(field: str, low: int, high: int, key: str) -> int:
    """A value in `low..high` (both included) drawn by `key`; each field draws on its own."""
    digest = sha256(f"{field}\n{key}".encode("utf-8", "surrogatepass")).digest()
    return low + int.from_bytes(digest[:8], "big") % (high - low + 1)
