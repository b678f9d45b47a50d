"""Compute the value behind ``H``: a stable, evenly distributed position of a job in a field.

Invariants:

- The value depends only on the field, the range and the key.
- The value is the same in all releases, Python versions and processes. A different value would move
  a job's start time, so tests pin literal values.
"""

from hashlib import sha256


def hash_key_of(namespace: str, name: str) -> str:
    """Return the key of a job: its identity, which seeds ``H`` in its schedule."""
    return f"{namespace}/{name}"


def hashed_value(field: str, low: int, high: int, key: str) -> int:
    """Return the value of ``key`` in ``low..high`` (inclusive). Fields have independent values."""
    digest = sha256(f"{field}\n{key}".encode("utf-8", "surrogatepass")).digest()
    return low + int.from_bytes(digest[:8], "big") % (high - low + 1)
